"""A service's handling of SIGTERM and SIGINT, from its first step to its end.

The first signal cancels a service in any state: while it waits for a certificate, a Lease or an answer, or while
it serves. The service cleans up in its `finally` blocks, which later signals do not interrupt. It ends within
4.5 s even if a server does not answer or a task blocks the loop. This is safe because all lasting state is in
the API server or in journals that survive a crash.
"""

import asyncio
import contextlib
import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, Self

_LOG: Final = logging.getLogger("partage")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LONGEST: Final = 4.5
"""Most seconds from the first signal to the end, even if cleaning up is not done."""
_FORCED: Final = b"ended though not all was put away: it took more than %.1f s after the signal\n"
_TOLD, _OVER = b"!", b"."


class Ending:
    """Cancels a service at the first signal, and bounds the time of its end; a context manager."""

    def __init__(self) -> None:
        self._told = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Event | None = None
        self._before: dict[int, Any] = {}
        self._ears, self._mouth = -1, -1
        self._guard = threading.Thread(target=self._watch, name="ending", daemon=True)

    def __enter__(self) -> Self:
        self._ears, self._mouth = os.pipe()
        self._guard.start()
        self._before = {number: signal.signal(number, self._heard) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the earlier handlers, or ignore signals after one arrived, and stop the watching thread."""
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._told else before)
        os.write(self._mouth, _OVER)
        self._guard.join()
        os.close(self._ears)
        os.close(self._mouth)

    async def run(self, main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        """Run `main` until it ends, or a signal ends it by cancellation. Raises `Exception`: its earlier error."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(_quietly)
        self._task = asyncio.create_task(main(self._stop), name="service")
        if self._told:
            self._end()
        await asyncio.wait((self._task,))
        if self._task.cancelled():
            return
        if self._told:
            if problem := self._task.exception():
                _LOG.warning("not everything could be closed: %s", problem)
            return
        self._task.result()

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal; runs in the main thread, between any two steps of the program."""
        if self._told:
            return
        self._told = True
        os.write(self._mouth, _TOLD)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._stop is not None and not self._stop.is_set():
            self._stop.set()
            if self._task is not None:
                self._task.cancel()

    def _watch(self) -> None:
        """End the process if its end takes too long; in a thread, because the loop may be blocked."""
        if os.read(self._ears, 1) == _TOLD:
            over, _, _ = select.select([self._ears], [], [], _LONGEST)
            if not over:
                os.write(2, _FORCED % _LONGEST)
                os._exit(0)


def _quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore a broken connection, which is ordinary; its user has got the error."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)
