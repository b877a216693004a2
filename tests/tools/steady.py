"""An event loop whose time passes while it waits, and next to none while it works.

Tests run a whole cluster in one loop. On a busy machine each step of it takes ten times as long, while Leases and
time-outs run on, so that a leader would lose its Lease for want of a processor. Here a wait passes the seconds that it
was made for however late the machine wakes the loop, and each round of work passes a millisecond at most. So what is
over first depends on what programs wait for, and not on how fast they run. On a quiet machine it is the machine's own time.

Give-up deadlines of tests look at the machine's clock. So does what other processes do, and tests on the genuine control
plane, whose programs wait for each other across processes. A test here does not let a program in this loop and one in
another process wait for each other's Lease: their clocks would not go at the same speed.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from partage.kube.clock import SystemClock

__all__ = ["SteadyLoop", "run_steadily", "steady"]

_run = asyncio.run

_ROUND = 0.001
"""Seconds that a round of work may pass: what it takes on a quiet machine, and what lets who spins get on."""


class _Waits(selectors.DefaultSelector):
    """Measures its waits.

    Attributes:
        passed: seconds of them, none longer than asked for, and of the work between, each round of it bounded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.passed = self._back = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait as the plain selector does."""
        begun = time.monotonic()
        self.passed += min(begun - self._back, _ROUND)
        if timeout:  # due by what has just passed
            timeout = max(0.0, timeout - min(begun - self._back, _ROUND))
        found = super().select(timeout)
        self._back = time.monotonic()
        waited = self._back - begun
        self.passed += waited if timeout is None else min(waited, max(timeout, 0.0))
        return found


class SteadyLoop(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self._waits = _Waits()
        super().__init__(self._waits)

    def time(self) -> float:
        """Seconds; see the module."""
        return self._waits.passed


def run_steadily(main: Coroutine[Any, Any, Any], *, debug: bool | None = None) -> Any:
    """What `asyncio.run` does; meanwhile clocks of programs in this process show the loop's time, on the wall too."""
    if threading.current_thread() is not threading.main_thread():
        return _run(main, debug=debug)
    with (
        asyncio.Runner(debug=debug, loop_factory=SteadyLoop) as runner,
        pytest.MonkeyPatch.context() as patch,
    ):
        loop = runner.get_loop()
        began, wall = loop.time(), datetime.now(UTC)
        patch.setattr(SystemClock, "monotonic", lambda _: loop.time())
        patch.setattr(SystemClock, "now", lambda _: wall + timedelta(seconds=loop.time() - began))
        return runner.run(main)


@contextmanager
def steady() -> Iterator[None]:
    """Let tests that call `asyncio.run` themselves get such a loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run", run_steadily)
        yield
