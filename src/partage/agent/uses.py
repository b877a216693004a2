"""What containers use of a node's cards: measured, never guessed.

Containers with the enforcement library report through their accounts (memory) and seats (device time). For others, with
any provider, the driver reports each process's memory and the part of the time it was busy, if the agent
sees processes of the host. The sum over looks is device time. The driver may also report how busy a hardware
instance was; this figure is its only container's. A value that is not measured is absent, and so is its series.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from partage.agent.discovery.found import CardUse, InstanceUse
from partage.agent.held_allocations import Holding
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.node_scan import RoomView, Sight
from partage.agent.isolation.processes import processes_of
from partage.agent.isolation.seats import Seat
from partage.model.device import MILLI

_SECOND_NS: Final = 10**9
_LONGEST_GAP: Final = 60.0
"""Seconds for which one sample of a driver may count."""


@dataclass(frozen=True, slots=True)
class Use:
    """A container's use of a card.

    Attributes:
        memory_bytes: counted over its processes, contexts and modules included.
        busy: part of the card's time, 0 to 1: since the last look by the seat (None at the first), else in the
            driver's last sample; None if nothing measures it.
        served_ns: total device time received: counted by the seat, else summed over the driver's samples since the
            agent started; None if nothing measures it.
        overhead_bytes: of the memory, the driver's figure beyond the count; None before it was measured.
    """

    memory_bytes: int
    busy: float | None
    served_ns: int | None
    overhead_bytes: int | None = None


class Meter:
    """Compares rooms at each look; device time is the difference of two looks."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without a look; `clock` returns seconds and never goes back."""
        self._clock = clock
        self._before: dict[tuple[str, str], tuple[float, int]] = {}
        self.uses: Mapping[tuple[str, str], Use] = {}

    def look(self, rooms: Mapping[str, Room], sight: Sight) -> None:
        """Take a look's result: `uses` is by container and card. A room that could not be read has none."""
        now = self._clock()
        found: dict[tuple[str, str], Use] = {}
        before: dict[tuple[str, str], tuple[float, int]] = {}
        for container, room in rooms.items():
            seen = sight.rooms[container]
            account = seen.account
            if isinstance(account, str) or any(
                isinstance(one, str) for one in seen.seats.values()
            ):
                continue
            times = {card.uuid: _served(room, card, seen) for card in room.limits.cards}
            for index, card in enumerate(room.limits.cards):
                served = times[card.uuid]
                key = (container, card.uuid)
                if served is not None:
                    before[key] = (now, served)
                mine = [one.cards[index] for one in account.processes]
                beyond = account.overhead[index] + sum(one.overhead for one in mine)
                memory = account.counted[index] + sum(one.counted for one in mine) + beyond
                busy = _busy(self._before.get(key), now, served)
                found[key] = Use(memory, busy, served, beyond or None)
        self.uses, self._before = found, before


def _served(room: Room, card: CardLimits, seen: RoomView) -> int | None:
    """Device time that a container reports as received; None if nothing measures it."""
    if card.uuid not in seen.seats:
        return None
    seat = seen.seats[card.uuid]
    return (
        seat.served_ns if isinstance(seat, Seat) and seat.container == room.limits.container else 0
    )


def _busy(before: tuple[float, int] | None, now: float, served: int | None) -> float | None:
    """A tenant's own report, limited to possible values."""
    if before is None or served is None or now <= before[0]:
        return None
    return min(max(served - before[1], 0) / ((now - before[0]) * _SECOND_NS), 1.0)


def told_by_drivers(
    held: Iterable[Holding],
    cards: Mapping[str, CardUse],
    known: Mapping[tuple[str, str], Use],
    proc: Path = Path("/proc"),
) -> dict[tuple[str, str], Use]:
    """Memory and time of containers that the library does not count in full, by container and card; it reads files.

    A container without a visible process is left out. `cards`: the drivers' figures. `known`: existing measurements;
    those without time get it, as if the library enforces memory alone.
    """
    wanted = {
        (one.container, grant.uuid)
        for one in held
        for grant in one.allocation.grants
        if grant.container == one.name
        and (use := cards.get(grant.uuid)) is not None
        and use.processes is not None
        and (
            (before := known.get((one.container, grant.uuid))) is None
            or (before.busy is None and use.times is not None)
        )
    }
    pids = processes_of({container for container, _ in wanted}, proc)
    found: dict[tuple[str, str], Use] = {}
    for container, uuid in wanted:
        of_card = cards[uuid].processes or {}
        if container not in pids:
            continue
        mine = [of_card[pid] for pid in pids[container] if pid in of_card]
        times, busy = cards[uuid].times, None
        if times is not None:
            busy = min(sum(times.get(pid, 0.0) for pid in pids[container]), 1.0)
        measured = known.get((container, uuid)) or Use(sum(mine), None, None)
        found[container, uuid] = replace(measured, busy=busy)
    return found


class DriverMeter:
    """Reads the drivers' figures of containers' processes at each look; `uses` is by container and card."""

    def __init__(self, clock: Callable[[], float], proc: Path = Path("/proc")) -> None:
        """Start without a look; `clock` returns seconds and never goes back."""
        self._clock, self._proc = clock, proc
        self._looked: float | None = None
        self._since: dict[str, float] = {}
        self._counted: dict[tuple[str, str], float] = {}
        self._served: dict[tuple[str, str], int] = {}
        self.uses: Mapping[tuple[str, str], Use] = {}

    def look(
        self,
        held: Sequence[Holding],
        cards: Mapping[str, CardUse],
        known: Mapping[tuple[str, str], Use],
    ) -> None:
        """Take the present readings; it reads files. See `told_by_drivers`.

        The present figure counts for the time since the last look, up to `_LONGEST_GAP`. On hardware instances a
        container gets the instances' figures of the measured time, if it existed for all of it.
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
        self._since = {one: self._since.get(one, now) for one in here}
        self._counted = {key: at for key, at in self._counted.items() if key[0] in here}
        for key, parts in _on_instances(held, cards).items():
            lacks = key in found and found[key].busy is None
            if lacks and all(use.began >= self._since[key[0]] for _, use in parts):
                new = [one for one in parts if one[1].ended > self._counted.get(key, 0.0)]
                time = sum(part * use.busy * (use.ended - use.began) for part, use in new)
                served[key] = served.get(key, 0) + round(time * _SECOND_NS)
                self._counted[key] = max(use.ended for _, use in parts)
                busy = min(sum(part * use.busy for part, use in parts), 1.0)
                found[key] = replace(found[key], busy=busy, served_ns=served[key])
        self._served, self.uses = served, found


def _on_instances(
    held: Sequence[Holding], cards: Mapping[str, CardUse]
) -> dict[tuple[str, str], list[tuple[float, InstanceUse]]]:
    """By container and card, the parts of the card that it has as instances, and their figures.

    Absent if a figure of one is unknown, or another container has one of them too.
    """
    places: dict[tuple[str, str], list[tuple[float, tuple[int, int]]]] = {}
    owners: dict[tuple[str, tuple[int, int]], set[str]] = {}
    for one in held:
        for grant in one.allocation.grants:
            if grant.container == one.name and grant.mig is not None:
                place = (grant.mig.start, grant.mig.size)
                part = grant.core_milli / MILLI
                places.setdefault((one.container, grant.uuid), []).append((part, place))
                owners.setdefault((grant.uuid, place), set()).add(one.container)
    found = {}
    for (container, uuid), parts in places.items():
        told = cards[uuid].instances if uuid in cards else {}
        if all(place in told and len(owners[uuid, place]) == 1 for _, place in parts):
            found[container, uuid] = [(part, told[place]) for part, place in parts]
    return found
