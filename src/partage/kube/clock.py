"""Time as an argument: the clock that the client's loops need, and the real one."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol


class Clock(Protocol):
    """A source of time; tests pass one that does not wait."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back, nor stops while a machine sleeps."""

    def now(self) -> datetime:
        """The wall clock, in UTC; for display, never to compare two machines."""

    async def sleep(self, seconds: float) -> None:
        """Wait this long; zero or less still lets other tasks run."""


class SystemClock:
    """The machine's own clock."""

    def __init__(self) -> None:
        self._steady = _steady()

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._steady()

    def now(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(max(0.0, seconds))


def time_text(moment: datetime) -> str:
    """A moment as Kubernetes writes it in objects: in UTC, in whole seconds."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


async def sleep_until(
    clock: Clock, seconds: float | None, event: asyncio.Event, *others: asyncio.Future[Any]
) -> None:
    """Wait this long (None: without an end), or until the event is set or one of the other tasks has ended; those go on."""
    mine: list[asyncio.Future[Any]] = [asyncio.ensure_future(event.wait())]
    if seconds is not None:
        mine.append(asyncio.ensure_future(clock.sleep(seconds)))
    try:
        await asyncio.wait([*mine, *others], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in mine:
            one.cancel()


async def race(*tasks: asyncio.Future[Any]) -> None:
    """Wait until one of these tasks has ended; then, or if the caller is cancelled, end the others too."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(*tasks)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel these tasks, and wait until they have ended; an exception stays in its task."""
    for one in tasks:
        one.cancel()
    await asyncio.wait(tasks)


def _steady() -> Callable[[], float]:
    """Linux' clock that goes on while the machine is suspended, if the system has it."""
    which = getattr(time, "CLOCK_BOOTTIME", None)
    if which is not None:
        try:
            time.clock_gettime(which)
        except OSError:  # a sandbox without it
            return time.monotonic
        return lambda: time.clock_gettime(which)
    return time.monotonic
