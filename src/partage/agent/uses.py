"""What containers use of a node's cards: measured, never guessed.

Those that the enforcement library holds tell through their accounts (memory) and seats (device time). Of others,
whatever enforces, the driver tells the memory of each process and what part of the time it was busy, where the agent
sees processes of the host; from look to look that adds up to device time. What is not measured is absent, and so is its
series.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from partage.agent.discovery.found import CardUse
from partage.agent.held_allocations import Holding
from partage.agent.isolation.account import Process
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.node_scan import RoomView, Sight
from partage.agent.isolation.processes import processes_of
from partage.agent.isolation.seats import Seat

_SECOND_NS: Final = 10**9
_LONGEST_GAP: Final = 60.0
"""Seconds for which one sample of a driver may stand."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a container uses of a card.

    Attributes:
        memory_bytes: counted over its processes, contexts and modules included.
        busy: part of the card's time, 0 to 1: since the last look by the seat (None at the first), else in the
            driver's last sample; None where nothing measures it.
        served_ns: device time received in all: counted by the seat, else added up from the driver's samples since the agent
            started; None where nothing measures it.
        overhead_bytes: of the memory, what the driver says beyond what was counted; None before it was measured.
    """

    memory_bytes: int
    busy: float | None
    served_ns: int | None
    processes: int
    overhead_bytes: int | None = None


class Meter:
    """Looks at rooms again and again; device time is the difference of two looks."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """A meter that has not looked; `clock` gives seconds and never goes back."""
        self._clock = clock
        self._before: dict[tuple[str, str], tuple[float, int]] = {}
        self.uses: Mapping[tuple[str, str], Use] = {}

    def look(self, rooms: Mapping[str, Room], sight: Sight) -> None:
        """Take what was read: `uses` is by container and card. A room that could not be read has none."""
        now = self._clock()
        found: dict[tuple[str, str], Use] = {}
        before: dict[tuple[str, str], tuple[float, int]] = {}
        for container, room in rooms.items():
            seen = sight.rooms[container]
            processes = seen.account
            if isinstance(processes, str) or any(
                isinstance(one, str) for one in seen.seats.values()
            ):
                continue
            times = {card.uuid: _served(room, card, seen) for card in room.limits.cards}
            for index, card in enumerate(room.limits.cards):
                served = times[card.uuid]
                key = (container, card.uuid)
                if served is not None:
                    before[key] = (now, served)
                found[key] = Use(
                    _memory(processes, index),
                    _busy(self._before.get(key), now, served),
                    served,
                    sum(1 for one in processes if one.cards[index].counted),
                    sum(one.cards[index].overhead for one in processes) or None,
                )
        self.uses, self._before = found, before


def _served(room: Room, card: CardLimits, seen: RoomView) -> int | None:
    """Device time that a container says it received; None where nothing measures it."""
    if card.uuid not in seen.seats:
        return None
    seat = seen.seats[card.uuid]
    return (
        seat.served_ns if isinstance(seat, Seat) and seat.container == room.limits.container else 0
    )


def _memory(processes: tuple[Process, ...], card: int) -> int:
    return sum(one.cards[card].counted + one.cards[card].overhead for one in processes)


def _busy(before: tuple[float, int] | None, now: float, served: int | None) -> float | None:
    """What a tenant wrote is its own statement: it is kept within what can be."""
    if before is None or served is None or now <= before[0]:
        return None
    return min(max(served - before[1], 0) / ((now - before[0]) * _SECOND_NS), 1.0)


def told_by_drivers(
    held: Iterable[Holding],
    cards: Mapping[str, CardUse],
    known: Mapping[tuple[str, str], Use],
    proc: Path = Path("/proc"),
) -> dict[tuple[str, str], Use]:
    """Memory and time of containers that the library does not count, or not all of it, by container and card; it reads files.

    A container none of whose processes is seen is left out: the agent may have no sight of them.

    Args:
        cards: what drivers say, by card.
        known: what is measured already; those of them without time get it, as where the library holds memory alone.
    """
    wanted = {
        (one.container, grant.uuid)
        for one in held
        for grant in one.allocation.grants
        if grant.container == one.name
        and (use := cards.get(grant.uuid)) is not None
        and use.processes is not None
        and _lacks(known.get((one.container, grant.uuid)), use)
    }
    pids = processes_of({container for container, _ in wanted}, proc)
    found: dict[tuple[str, str], Use] = {}
    for container, uuid in wanted:
        of_card = cards[uuid].processes or {}
        if container not in pids:
            continue
        mine = [of_card[pid] for pid in pids[container] if pid in of_card]
        times = cards[uuid].times
        busy = (
            None
            if times is None
            else min(sum(times.get(pid, 0.0) for pid in pids[container]), 1.0)
        )
        measured = known.get((container, uuid)) or Use(sum(mine), None, None, len(mine))
        found[container, uuid] = replace(measured, busy=busy)
    return found


class DriverMeter:
    """Looks again and again at what drivers say of containers' processes; `uses` is by container and card."""

    def __init__(self, clock: Callable[[], float], proc: Path = Path("/proc")) -> None:
        """A meter that has not looked; `clock` gives seconds and never goes back."""
        self._clock, self._proc = clock, proc
        self._looked: float | None = None
        self._served: dict[tuple[str, str], int] = {}
        self.uses: Mapping[tuple[str, str], Use] = {}

    def look(
        self,
        held: Sequence[Holding],
        cards: Mapping[str, CardUse],
        known: Mapping[tuple[str, str], Use],
    ) -> None:
        """Take the present readings; it reads files. See `told_by_drivers`.

        A container counts as busy since the last look as it is now, and for `_LONGEST_GAP` at most.
        """
        now = self._clock()
        since = 0.0 if self._looked is None else min(now - self._looked, _LONGEST_GAP)
        self._looked = now
        found = told_by_drivers(held, cards, known, self._proc)
        here = {one.container for one in held}
        served = {key: time for key, time in self._served.items() if key[0] in here}
        sampled = {key: use.busy for key, use in found.items() if use.served_ns is None}
        for key, busy in sampled.items():
            if busy is not None:
                served[key] = served.get(key, 0) + round(busy * since * _SECOND_NS)
                found[key] = replace(found[key], served_ns=served[key])
        self._served, self.uses = served, found


def _lacks(known: Use | None, card: CardUse) -> bool:
    """Whether a card's driver tells more of a container than is known."""
    return known is None or (known.busy is None and card.times is not None)
