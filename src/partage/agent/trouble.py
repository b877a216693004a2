"""Temporary failures of the kernel or the disk: they end no loop, and the log reports each once.

If there is no descriptor, memory or thread left, or a disk does not answer, one round of a loop fails and the
next one tries again. An agent that ended instead would return to the same node, and containers would meanwhile start
without it.
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, NoReturn

_LOG: Final = logging.getLogger("partage.agent")
_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_NO_THREAD: Final = "can't start new thread"
"""Python's only sign of it, in a `RuntimeError`."""


def passes(error: BaseException | None) -> bool:
    """Whether an error is temporary and no fault of ours."""
    return isinstance(error, (OSError, MemoryError)) or (
        isinstance(error, RuntimeError) and _NO_THREAD in str(error)
    )


def is_own(error: BaseException) -> bool:
    """Whether this process lacks a resource, which proves nothing about the requested file."""
    return isinstance(error, OSError) and error.errno in _OWN


class Rounds:
    """The rounds of one loop, `with` each; a temporary error ends a round and not the loop. `failed`: rounds in a row.

    Errors of `kinds` count as temporary too: those of the API server, for a loop that writes there.
    """

    def __init__(self, what: str, *kinds: type[Exception]) -> None:
        """Start without rounds; `what` names the loop for people."""
        self._what, self._kinds = what, kinds
        self.failed = 0
        self.problem = ""

    async def every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> NoReturn:
        """Work until cancelled, with a pause of so many seconds after each round."""
        while True:
            with self:
                await work()
            await asyncio.sleep(seconds)

    def __enter__(self) -> None:
        """A round begins."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        """End the round; true if the loop continues after a failure."""
        if error is None:
            self.failed, self.problem = 0, ""
            return False
        if not (passes(error) or isinstance(error, self._kinds)):
            return False
        told = str(error) or type(error).__name__
        if told != self.problem:
            _LOG.warning("%s: %s; trying again", self._what, told)
        self.failed, self.problem = self.failed + 1, told
        return True
