"""The event loop that the services run on: uvloop where it is installed, else asyncio's own.

The loop changes nothing that is decided, only what a request costs: a pod passes through six or
so sockets of the scheduler service on its way, and each hop is the loop's work.
"""

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["run"]

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """As `asyncio.run`, on the fastest loop there is.

    Args:
        main: what runs until the service ends.
    """
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes a loop; None for asyncio's own."""
    try:
        made: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return made
