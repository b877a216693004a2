"""The node's own enforcement library as the keeper uses it: its rooms, and how one is mounted."""

from dataclasses import dataclass
from pathlib import Path

from partage.agent.isolation.providers import Bind
from partage.agent.isolation.rooms import INSIDE, PRELOAD, Room, Rooms

__all__ = ["Isolation", "binds_of"]


@dataclass(frozen=True, slots=True)
class Isolation:
    """The node's own enforcement library.

    Attributes:
        rooms: of its containers.
        required: what cannot be held to its limits is not started.
        proc: procfs of the host.
    """

    rooms: Rooms
    required: bool = False
    proc: Path = Path("/proc")


def binds_of(room: Room) -> tuple[Bind, ...]:
    """The mounts of a room, outer ones first: read-only but for what tenants share."""
    shared = ("account", *(card.page for card in room.limits.cards))
    return (
        Bind(room.source, INSIDE),
        *(Bind(f"{room.source}/{name}", f"{INSIDE}/{name}", writable=True) for name in shared),
        Bind(f"{room.source}/preload", PRELOAD),
    )
