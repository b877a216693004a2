"""A queue of keys for controllers: each key once, never two workers on one, with delays after failures.

A second add of a waiting key changes nothing. If a key is added while a worker has it, it is worked on
once more afterwards. So one worker at a time always sees the latest change.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from partage.kube.clock import Clock, sleep_until
from partage.kube.retry import Backoff

K = TypeVar("K", bound=Hashable)

_SLACK: Final = 64
"""Outdated entries that the heap of delays may contain before a sweep is worthwhile."""


class WorkQueue(Generic[K]):
    """Keys that wait for work, in the order of their adding."""

    def __init__(
        self,
        *,
        clock: Clock,
        chance: Callable[[], float],
        backoff: Backoff = Backoff(base=0.05, cap=300.0),  # noqa: B008 - a frozen value
    ) -> None:
        """An empty queue. `chance`: random numbers in [0, 1); `backoff`: delays of `retry` by a key's failures."""
        self._clock = clock
        self._chance = chance
        self._backoff = backoff
        self._ready: deque[K] = deque()
        # A key is in `_wanted` from its adding until a worker takes it, then in `_working` until it is
        # done. It is in `_ready` if and only if it is wanted and not in work.
        self._wanted: set[K] = set()
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        # Delayed keys: the earliest moment of each, and a heap that may contain outdated ones.
        self._due: dict[K, float] = {}
        self._delayed: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys ready or delayed, without those in work."""
        return len(self._ready) + len(self._due)

    @property
    def idle(self) -> bool:
        """Whether no key is ready, due or in work; keys may still be delayed."""
        due = self._delayed and self._delayed[0][0] <= self._clock.monotonic()
        return not (self._ready or self._working or due)

    def add(self, key: K) -> None:
        """Queue the key for work as soon as possible; a delay of the key ends."""
        self._due.pop(key, None)
        if key in self._wanted:
            return
        self._wanted.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._changed.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue the key for work after so long, or earlier if an earlier time is set already."""
        if seconds <= 0:
            self.add(key)
            return
        if key in self._wanted:
            return
        due = self._clock.monotonic() + seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._sequence += 1
            heapq.heappush(self._delayed, (due, self._sequence, key))
            if len(self._delayed) > 2 * len(self._due) + _SLACK:
                self._delayed = [
                    item for item in self._delayed if self._due.get(item[2]) == item[0]
                ]
                heapq.heapify(self._delayed)
            self._changed.set()

    def retry(self, key: K) -> float:
        """Queue a failed key for later, each time later; returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = self._backoff.delay(failures, self._chance())
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Record a success of the key: its next failure is its first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often the key failed since it last succeeded."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key; the caller must call `done` after its work."""
        while True:
            self._ripen()
            if self._ready:
                key = self._ready.popleft()
                self._wanted.discard(key)
                self._working.add(key)
                return key
            self._changed.clear()
            left = self._delayed[0][0] - self._clock.monotonic() if self._delayed else None
            await sleep_until(self._clock, left, self._changed)

    def done(self, key: K) -> None:
        """End the work on the key; if it was added meanwhile, it is ready again."""
        self._working.discard(key)
        if key in self._wanted:
            self._ready.append(key)
            self._changed.set()

    def _ripen(self) -> None:
        now = self._clock.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:
                self.add(key)


async def work(
    queue: WorkQueue[K],
    handle: Callable[[K], Awaitable[None]],
    *,
    workers: int,
    name: str,
    failed: Callable[[K, Exception], None],
) -> None:
    """Work on a queue until cancelled; a key whose handler raises is retried.

    `handle`: looks at a key's object and does the work. `failed`: gets each exception; the retry is already arranged.
    """
    async with asyncio.TaskGroup() as group:
        for index in range(workers):
            group.create_task(_worker(queue, handle, failed), name=f"{name}:{index}")


async def _worker(
    queue: WorkQueue[K],
    handle: Callable[[K], Awaitable[None]],
    failed: Callable[[K, Exception], None],
) -> None:
    while True:
        key = await queue.get()
        try:
            await handle(key)
        except Exception as error:  # noqa: BLE001 - one key's fault does not affect another
            queue.retry(key)
            failed(key, error)
        else:
            queue.forget(key)
        finally:
            queue.done(key)
