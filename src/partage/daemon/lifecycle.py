"""Starts, awaits and stops a daemon that runs beside other things in one process.

A daemon is one coroutine that runs until an event is set. In a process of its own it needs no more. In a shared
process (`partage up`, tests) its starter goes on once the daemon serves, gets the error of a failed start, and waits
at the end until the daemon's work is finished.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Self

from partage.kube.clock import end, race


class Beside(ABC):
    """A daemon that runs beside others by `async with`, or alone by its `run`; `ready` is set once it serves."""

    _running: asyncio.Task[None] | None = None

    def __init__(self) -> None:
        self.ready, self._over = asyncio.Event(), asyncio.Event()

    @abstractmethod
    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set."""

    async def __aenter__(self) -> Self:
        """Start, and wait until the daemon serves. Raises `Exception`: the error of `run` before that."""
        name = type(self).__name__
        task = self._running = asyncio.create_task(self.run(self._over), name=name)
        ready = asyncio.create_task(self.ready.wait(), name=f"{name}:ready")
        try:
            await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await end(task)
            raise
        finally:
            ready.cancel()
        if task.done():
            await task
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop, and wait until the daemon's work has ended."""
        self._over.set()
        if self._running is not None:
            await self._running


async def until(stop: asyncio.Event, work: Coroutine[None, None, None], name: str) -> None:
    """Do the work until the event is set, and cancel it then; it has ended on return. Raises `Exception`."""
    task = asyncio.create_task(work, name=f"{name}:work")
    waiting = asyncio.create_task(stop.wait(), name=f"{name}:stop")
    await race(task, waiting)
    if not task.cancelled():
        task.result()
