"""A small discrete-event kernel: virtual time and a heap of the events to come.

Events at the same time are taken by priority (lower first), then in the order in which they were scheduled. So a run
never depends on how a heap breaks ties. The kernel knows nothing of pods.
"""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

E = TypeVar("E")


class Kernel(Generic[E]):
    """The events to come, and the time of the last one taken; `now` is virtual time, in the unit of the driver."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self._sequence = 0
        self._heap: list[tuple[float, int, int, E]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time: float, event: E, priority: int = 0) -> None:
        """Schedule `event` at `time`. Raises `ValueError`: the time is past, or not a number."""
        if not time >= self.now:
            raise ValueError(f"an event at {time} when it is {self.now}")
        heapq.heappush(self._heap, (time, priority, self._sequence, event))
        self._sequence += 1

    def run(self) -> Iterator[E]:
        """Yield every event in its turn, including events that are scheduled meanwhile."""
        while self._heap:
            time, _, _, event = heapq.heappop(self._heap)
            self.now = time
            yield event
