"""A command's handling of SIGTERM and SIGINT until its own code handles them.

The first process of a container ignores signals without a handler. So the handler is installed before any large
import, and this module has none.
"""

import os
import signal
from types import FrameType


def end_at_once(*, service: bool) -> None:
    """End at the first signal, until a service handles them. `service`: a signal is the command's ordinary end."""

    def ended(number: int, _frame: FrameType | None) -> None:
        os._exit(0 if service else 128 + number)

    signal.signal(signal.SIGTERM, ended)
    if service:
        signal.signal(signal.SIGINT, ended)


def pressed(_number: int, _frame: FrameType | None) -> None:
    """Interrupt whatever runs. asyncio replaces Python's own handler by one that waits until a task awaits something."""
    raise KeyboardInterrupt
