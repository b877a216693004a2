"""What processes use of a card beyond what the library counted, as the driver says: contexts, modules, the rest.

The driver tells a process's memory by its number on the host; the account knows it by the number it has in its
container and its start. The figures of the driver and of the account are of different moments, so the least
of the last few differences counts: a context is there all the time, memory that was just given back is not.

With oversubscription a container may have its cap and what goes beyond it on the card at once: memory that the driver
moves is where it was used last. So both together are its bound, and what is beyond a process's count tells nothing.

Where the driver tells nothing of processes, the estimate of the limits file counts (`--context-memory`).
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from partage.agent.isolation.account import Process, set_overhead
from partage.agent.isolation.rooms import Room
from partage.agent.isolation.sight import Sight
from partage.model.errors import InvalidDocument

__all__ = ["Overheads"]

_LOOKS: Final = 3
_GRANULE: Final = 2 * 2**20
_Key = tuple[str, int, int, int]


class Overheads:
    """Measures again and again; each sample of the driver's once."""

    def __init__(self) -> None:
        self._seen: Mapping[str, Mapping[int, int]] | None = None
        self._beyond: dict[_Key, deque[int]] = {}
        self._whole: dict[tuple[str, str], deque[int]] = {}
        self.above: Mapping[str, str] = {}
        """Containers that use more of a card than their cap, with the words for it."""

    def look(
        self, rooms: Mapping[str, Room], used: Mapping[str, Mapping[int, int]], sight: Sight
    ) -> None:
        """Write down what containers use beyond what they counted.

        Args:
            rooms: by container.
            used: bytes by card and process, for cards whose driver tells; a sample is an object of its own.
            sight: what was read of rooms and processes.
        """
        if used is self._seen:
            return
        self._seen = used
        beyond: dict[_Key, deque[int]] = {}
        whole: dict[tuple[str, str], deque[int]] = {}
        above: dict[str, str] = {}
        for container, processes in sight.processes.items():
            room, account = rooms[container], sight.rooms[container].account
            if isinstance(account, str):
                continue
            known = {(one.pid, one.start): one for one in account}
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
                    # What is served beyond the cap lies on the card or on the host, as the driver likes.
                    if process is not None and pid in told and not process.cards[index].swapped:
                        key = (container, process.place, process.start, index)
                        self._one(room, process, index, told[pid], key)
                        beyond[key] = self._beyond[key]
                sums = self._whole.get((container, card.uuid), deque(maxlen=_LOOKS))
                sums.append(sum(told.get(pid, 0) for pid in pids))
                whole[container, card.uuid] = sums
                granted = card.memory_bytes + card.swap_bytes
                if len(sums) == _LOOKS and min(sums) > granted + _GRANULE:
                    above[container] = (
                        f"its processes use {min(sums)} bytes of card {card.uuid} by the driver's word, "
                        f"{granted} are granted"
                    )
        self._beyond, self._whole, self.above = beyond, whole, above

    def _one(self, room: Room, process: Process, index: int, used: int, key: _Key) -> None:
        holding = process.cards[index]
        seen = self._beyond.setdefault(key, deque(maxlen=_LOOKS))
        seen.append(used - holding.counted)
        least = min(seen)
        # Managed memory is counted wherever it lies: then the driver's figure is less, and tells nothing.
        if len(seen) == _LOOKS and least > 0:
            try:
                set_overhead(room.account, process, index, least)
            except (InvalidDocument, OSError):
                return  # the next look says what is wrong with it
