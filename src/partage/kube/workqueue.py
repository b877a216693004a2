"""A queue of keys for controllers: each key once, never two workers on one, slower after failures.

Adding a waiting key changes nothing; adding a key in work has it worked on once more afterwards. So
one worker at a time always sees the latest change.
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
"""Outdated entries that the heap of delays may hold before it is worth sweeping."""


class WorkQueue(Generic[K]):
    """Keys waiting for work, in the order they were added."""

    def __init__(
        self,
        *,
        clock: Clock,
        chance: Callable[[], float],
        backoff: Backoff = Backoff(base=0.05, cap=300.0),  # noqa: B008 - a frozen value
    ) -> None:
        """An empty queue.

        Args:
            chance: random numbers in [0, 1) for jitter.
            backoff: delays of `retry`, by the number of failures of a key.
        """
        self._clock = clock
        self._chance = chance
        self._backoff = backoff
        self._ready: deque[K] = deque()
        # A key is in `_wanted` from being added until a worker takes it; in `_working` from then
        # until it is done. It is in `_ready` if and only if it is wanted and not worked on.
        self._wanted: set[K] = set()
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        # Delayed keys: the earliest moment of each, and a heap that may hold outdated ones.
        self._due: dict[K, float] = {}
        self._delayed: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys ready or delayed, not those being worked on."""
        return len(self._ready) + len(self._due)

    @property
    def idle(self) -> bool:
        """Whether nothing is ready, due or in hand; keys may still be delayed."""
        due = self._delayed and self._delayed[0][0] <= self._clock.monotonic()
        return not (self._ready or self._working or due)

    def add(self, key: K) -> None:
        """Have the key worked on as soon as may be; it need not wait for a delay any more."""
        self._due.pop(key, None)
        if key in self._wanted:
            return
        self._wanted.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._changed.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have the key worked on after so long, or earlier if an earlier time is set already."""
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
        """Have a key that failed worked on later, each time later; returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = self._backoff.delay(failures, self._chance())
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure is its first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often the key failed since it last succeeded."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key; the caller must say `done` when it has worked on it."""
        while True:
            self._ripen()
            if self._ready:
                key = self._ready.popleft()
                self._wanted.discard(key)
                self._working.add(key)
                return key
            await self._wait()

    def done(self, key: K) -> None:
        """Work on the key has ended; if it was added meanwhile, it is ready again."""
        self._working.discard(key)
        if key in self._wanted:
            self._ready.append(key)
            self._changed.set()

    def _ripen(self) -> None:
        """Make ready what is due."""
        now = self._clock.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:
                self.add(key)

    async def _wait(self) -> None:
        """Until something is added, done or due."""
        self._changed.clear()
        if not self._delayed:
            await self._changed.wait()
            return
        delay = self._delayed[0][0] - self._clock.monotonic()
        await sleep_until(self._clock, delay, self._changed)


async def work(
    queue: WorkQueue[K],
    handle: Callable[[K], Awaitable[None]],
    *,
    workers: int,
    name: str,
    failed: Callable[[K, Exception], None],
) -> None:
    """Work on a queue until cancelled; a key whose handler raises is retried.

    Args:
        handle: looks at a key's object and does what is to be done.
        name: begins the names of the tasks.
        failed: told each exception; the retry is already arranged.
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
        except Exception as error:  # noqa: BLE001 - one key's fault is not another's
            queue.retry(key)
            failed(key, error)
        else:
            queue.forget(key)
        finally:
            queue.done(key)
