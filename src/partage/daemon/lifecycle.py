"""Starts, awaits and stops a daemon that runs beside other things in one process.

A daemon is one coroutine that runs until an event is set. In a process of its own it needs no more. In a shared
process (`partage up`, tests) its starter goes on once the daemon serves, gets the error of a failed start, and waits
at the end until the daemon's work is finished.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Self

from partage.kube.clock import end, race


class Life:
    """The task of one daemon, which sets `ready` once it serves."""

    def __init__(
        self, name: str, run: Callable[[asyncio.Event], Coroutine[None, None, None]]
    ) -> None:
        """A daemon that is not running; `run` runs until the event is set."""
        self.ready = asyncio.Event()
        self._name = name
        self._run = run
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Run the daemon, and wait until it is ready. Raises `Exception`: the error that ended it before."""
        task = self._task = asyncio.create_task(self._run(self._stop), name=self._name)
        ready = asyncio.create_task(self.ready.wait(), name=f"{self._name}:ready")
        try:
            await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await end(task)
            raise
        finally:
            ready.cancel()
        if task.done():
            await task

    async def stop(self) -> None:
        """Stop the daemon, and wait until its work has ended."""
        self._stop.set()
        if self._task is not None:
            await self._task


class Beside:
    """A daemon that runs beside others by `async with`, or alone by its `run`."""

    _life: Life

    async def __aenter__(self) -> Self:
        """Start, and wait until the daemon serves. Raises `Exception`: the error of `run` before that."""
        await self._life.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop, and wait until the daemon's work has ended."""
        await self._life.stop()


async def until(stop: asyncio.Event, work: Coroutine[None, None, None], name: str) -> None:
    """Do the work until the event is set, and cancel it then; it has ended on return. Raises `Exception`."""
    task = asyncio.create_task(work, name=f"{name}:work")
    waiting = asyncio.create_task(stop.wait(), name=f"{name}:stop")
    await race(task, waiting)
    if not task.cancelled():
        task.result()
