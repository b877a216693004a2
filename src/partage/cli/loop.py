"""The event loop that the services run on: uvloop where it is installed, else asyncio's own.

The loop changes nothing that is decided, only what a request costs: a pod passes through six or
so sockets of the scheduler service on its way, and each hop is the loop's work.

Nor does it change anything that new objects are looked through for cycles more seldom than Python's 700: a pod leaves
about a hundred behind that stay, so that every few pods paid for a look that found nothing.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, Final, TypeVar

__all__ = ["run"]

_T = TypeVar("_T")

_YOUNG: Final = 10_000
"""Objects that are new since the last look; a look at so many takes well under a millisecond."""


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """As `asyncio.run`, on the fastest loop there is.

    Args:
        main: what runs until the service ends.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _YOUNG), *before[1:])
    try:
        with asyncio.Runner(loop_factory=_factory()) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*before)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes a loop; None for asyncio's own."""
    try:
        made: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return made
