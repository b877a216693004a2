"""Time as an argument: what the client's loops need of a clock, and the real one."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """A source of time; tests pass one that does not wait."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def now(self) -> datetime:
        """The wall clock, in UTC; only ever written down, never compared between machines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait this long; zero or less still lets others run."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def now(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(max(0.0, seconds))
