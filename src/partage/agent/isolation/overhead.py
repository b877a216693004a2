"""Computes the memory that processes use beyond the library's count, by the driver: contexts, modules, the rest.

The driver reports a process's memory by its number on the host. The account knows the process by its number in the
container and its start. The figures of driver and account are of different moments, so the smallest of the
last few differences counts: a context is always included, memory that was just released is not.

With oversubscription a container may have its cap and its excess on the card at once, because memory that the driver
moves is where it was used last. So their sum is its bound, and an excess over a process's count proves nothing.

A container is also judged as a whole, by its limits and the driver's figures alone, which the container cannot
change. Contexts grow after they were measured (kernels that are loaded at their first use, stacks, graphs), so a
program that filled its cap exceeds it soon without a fault. Growth of any size looks like memory that bypassed the
library, so a bound divides them. Up to the slack the agent reports the excess and subtracts it from what may still
be allocated. Beyond the slack the cap is not in force.

If the driver reports no processes, the estimate of the limits file counts (`--context-memory`).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from partage.agent.isolation.account import Process, set_overhead
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.node_scan import Sight
from partage.model.errors import InvalidDocument

SLACK: Final = 2**30
"""Usual contexts take half a GiB before they are measured, and grow by the same."""
_PART: Final = 10
"""One part in so many of a cap is accepted as well."""
_PROCESSES: Final = 4
"""Up to so many processes may have a growing context each; more processes gain nothing."""
_LOOKS: Final = 3
_GRANULE: Final = 2 * 2**20
_Key = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class _Whole:
    """A container's use of a card in a sample: bytes, and processes that use it."""

    used: int
    processes: int


class Overheads:
    """Measures at each look; each sample of the driver once."""

    def __init__(self, slack: int = SLACK) -> None:
        """Start without measurements; a process's context may grow `slack` bytes beyond a cap."""
        self._slack = slack
        self._seen: Mapping[str, Mapping[int, int]] | None = None
        self._beyond: dict[_Key, deque[tuple[int, int]]] = {}
        """Uncounted bytes, and the estimate of the contexts, for each of the last looks."""
        self._whole: dict[tuple[str, str], deque[_Whole]] = {}
        self.above: Mapping[str, str] = {}
        """Containers that use more of a card than their cap and the slack, with a text."""
        self.grown: Mapping[str, str] = {}
        """Containers that are beyond their cap within the slack, with a text that stays the same meanwhile."""
        self.excess: Mapping[tuple[str, str], int] = {}
        """Bytes beyond the cap, by container and card; absent if there are none."""

    def look(
        self, rooms: Mapping[str, Room], used: Mapping[str, Mapping[int, int]], sight: Sight
    ) -> None:
        """Record use beyond the count. `used`: bytes by card and process, if reported; each sample is a new object."""
        if used is self._seen:
            return
        self._seen = used
        beyond: dict[_Key, deque[tuple[int, int]]] = {}
        whole: dict[tuple[str, str], deque[_Whole]] = {}
        for container, processes in sight.processes.items():
            room, account = rooms[container], sight.rooms[container].account
            entered = () if isinstance(account, str) else account.processes
            known = {(one.pid, one.start): one for one in entered}
            pids = [one.pid for one in processes]
            inside = {
                one.pid: (one.numbers.inner, one.numbers.start)
                for one in processes
                if one.numbers is not None
            }
            for index, card in enumerate(room.limits.cards):
                told = used.get(card.uuid)
                if told is None or not card.memory_bytes:
                    continue
                for pid, identity in inside.items():
                    process = known.get(identity)
                    # The driver keeps memory beyond the cap on the card or on the host.
                    if process is not None and pid in told and not process.cards[index].swapped:
                        key = (container, process.place, process.start, index)
                        self._one(room, process, index, told[pid], key)
                        beyond[key] = self._beyond[key]
                sums = self._whole.get((container, card.uuid), deque(maxlen=_LOOKS))
                mine = [told[pid] for pid in pids if told.get(pid)]
                sums.append(_Whole(sum(mine), len(mine)))
                whole[container, card.uuid] = sums
        self._beyond, self._whole = beyond, whole
        self._judge(rooms)

    def _one(self, room: Room, process: Process, index: int, used: int, key: _Key) -> None:
        holding = process.cards[index]
        seen = self._beyond.setdefault(key, deque(maxlen=_LOOKS))
        seen.append((used - holding.counted, holding.allowance))
        least = min(beyond for beyond, _ in seen)
        # A context that came or went is not in all of them. The library counts it by its estimate until it is.
        same = len({allowance for _, allowance in seen}) == 1
        # Managed memory is counted wherever it lies: a smaller figure of the driver proves nothing then.
        if len(seen) == _LOOKS and same and least > 0:
            try:
                set_overhead(room.account, process, index, least)
            except (InvalidDocument, OSError):
                return  # the next look reports its fault

    def _judge(self, rooms: Mapping[str, Room]) -> None:
        """Find the containers beyond a cap, and whether growth may be the reason."""
        above: dict[str, str] = {}
        grown: dict[str, str] = {}
        excess: dict[tuple[str, str], int] = {}
        for container, room in rooms.items():
            for card in room.cards:
                sums = self._whole.get((container, card.uuid), ())
                granted = card.memory_bytes + card.swap_bytes
                least = min((one.used for one in sums), default=0)
                if len(sums) < _LOOKS or least <= granted + _GRANULE:
                    continue
                excess[container, card.uuid] = least - granted
                if all(one.used > granted + self._accepted(card, one.processes) for one in sums):
                    accepted = self._accepted(card, max(one.processes for one in sums))
                    above[container] = (
                        f"the driver reports that its processes use {least} bytes of card {card.uuid}, {granted} are "
                        f"granted, and contexts that grow are accepted up to {accepted} beyond it"
                    )
                else:
                    grown[container] = (
                        f"the driver reports use beyond its memory of card {card.uuid}, within what contexts may "
                        "grow by; it gets no more memory until it uses less"
                    )
        self.above, self.grown, self.excess = above, grown, excess

    def _accepted(self, card: CardLimits, processes: int) -> int:
        """Bytes beyond the grant that count as growth."""
        if not self._slack:
            return _GRANULE
        return max(
            self._slack * min(max(processes, 1), _PROCESSES), card.memory_bytes // _PART, _GRANULE
        )
