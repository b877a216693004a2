"""The node's own enforcement library for `container_admission`: its rooms, and how to mount one."""

from dataclasses import dataclass
from pathlib import Path

from partage.agent.isolation.container_dirs import INSIDE, PRELOAD, Room, Rooms
from partage.agent.isolation.providers import Bind
from partage.agent.isolation.seats import seat_file


@dataclass(frozen=True, slots=True)
class Isolation:
    """The node's own enforcement library; if `required`, containers whose limits it cannot enforce do not start."""

    rooms: Rooms
    required: bool = False
    proc: Path = Path("/proc")


def binds_of(room: Room) -> tuple[Bind, ...]:
    """The mounts of a room, outer ones first: read-only except for its own account and its own seats."""
    host = room.source.rpartition("/containers/")[0]
    binds = [
        Bind(room.source, INSIDE),
        Bind(
            f"{host}/private/{room.account.parent.name}/{room.account.name}",
            f"{INSIDE}/{room.limits.account}",
            writable=True,
        ),
    ]
    for card in room.limits.cards:
        seats = room.seats_of(card)
        if seats is None:
            continue
        own = seat_file(seats, card.slot).name
        source, inside = f"{host}/{seats.parent.name}/{seats.name}", f"{INSIDE}/{card.seats}"
        binds += [Bind(source, inside), Bind(f"{source}/{own}", f"{inside}/{own}", writable=True)]
    return (*binds, Bind(f"{room.source}/preload", PRELOAD))
