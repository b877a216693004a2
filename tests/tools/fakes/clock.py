"""Clocks for tests: time that does not pass by itself."""

import asyncio
import heapq
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["InstantClock", "SteppedClock"]

_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


class InstantClock:
    """Sleeping takes no time and moves the clock: for code with one thing going on.

    Attributes:
        slept: every wait that was asked for, in seconds.
    """

    def __init__(self, start: float = 1000.0, epoch: datetime = _EPOCH) -> None:
        self._start = start
        self._now = start
        self._epoch = epoch
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """Seconds; moves only by sleeping and `pass_time`."""
        return self._now

    def now(self) -> datetime:
        """The wall clock, which moves along."""
        return self._epoch + timedelta(seconds=self._now - self._start)

    def pass_time(self, seconds: float) -> None:
        """Let time pass without a sleeper."""
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        """Note the wait, move the clock, and let others run."""
        self.slept.append(seconds)
        self._now += max(0.0, seconds)
        await asyncio.sleep(0)


class SteppedClock:
    """Sleepers wait until the test moves time: for code with several things going on."""

    def __init__(self, start: float = 1000.0, epoch: datetime = _EPOCH) -> None:
        self._start = start
        self._now = start
        self._epoch = epoch
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._sequence = 0

    @property
    def sleepers(self) -> int:
        """How many wait."""
        return sum(not future.done() for _, _, future in self._sleepers)

    def monotonic(self) -> float:
        """Seconds; moves only by `advance`."""
        return self._now

    def now(self) -> datetime:
        """The wall clock, which moves along."""
        return self._epoch + timedelta(seconds=self._now - self._start)

    async def sleep(self, seconds: float) -> None:
        """Wait until the test has moved time so far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sequence += 1
        heapq.heappush(self._sleepers, (self._now + seconds, self._sequence, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move time, waking sleepers one moment at a time and letting each go on.

        A task that is about to sleep goes to sleep first: a task that was made but has not begun would
        otherwise count its seconds from the end.
        """
        await self._settle()
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            moment, _, future = heapq.heappop(self._sleepers)
            self._now = max(self._now, moment)
            if not future.done():
                future.set_result(None)
                await self._settle()
        self._now = end
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
