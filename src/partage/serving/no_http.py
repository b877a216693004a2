"""What is logged of requests that are no HTTP: a line a minute with their number, however many come.

Aiohttp answers them with 400, and writes a traceback for each, which a stranger could fill a disk with.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError

_TELL: Final = 60.0
"""Seconds between two lines."""


class _Rarely(logging.Filter):
    """Counts records of such requests, and lets one of them through now and then; all others always."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._next = float("-inf")
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self._count += 1
        now = self._clock()
        if now < self._next:
            return False
        # Not the error's own words: they are the stranger's.
        record.msg = (
            "refused as no HTTP since the last such line: %d requests; the last is from %s: %s"
        )
        record.args = (self._count, *(record.args or ("?",)), type(error).__name__)
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.exc_info = record.exc_text = None
        self._next, self._count = now + _TELL, 0
        return True


def quiet_logger(name: str, clock: Callable[[], float] = time.monotonic) -> logging.Logger:
    """A logger for aiohttp that says so rarely, by a `clock` in seconds."""
    logger = logging.getLogger(name)
    for known in list(logger.filters):
        logger.removeFilter(known)
    logger.addFilter(_Rarely(clock))
    return logger
