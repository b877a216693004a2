"""The starter of a daemon goes on once it serves, gets the error of a failed start, and waits for its end."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from partage.daemon.lifecycle import Beside, until


class It(Beside):
    """A daemon that runs what it is given."""

    def __init__(self, work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        super().__init__()
        self._work = work

    async def run(self, stop: asyncio.Event) -> None:
        """See `Beside`."""
        await self._work(stop)


def test_it_is_started_once_it_serves_and_stopped_once_it_has_ended() -> None:
    """Neither its start nor its end returns earlier."""
    told: list[str] = []

    async def scene() -> None:
        async def run(stop: asyncio.Event) -> None:
            told.append("runs")
            life.ready.set()
            await stop.wait()
            await asyncio.sleep(0)
            told.append("ended")

        life = It(run)
        await life.__aenter__()
        told.append("started")
        await life.__aexit__()
        told.append("stopped")

    asyncio.run(scene())
    assert told == ["runs", "started", "ended", "stopped"]


def test_why_it_did_not_serve_is_raised() -> None:
    """Its start raises the error."""

    async def run(_stop: asyncio.Event) -> None:
        raise OSError("the port is taken")

    with pytest.raises(OSError, match="the port is taken"):
        asyncio.run(It(run).__aenter__())


def test_who_gives_up_waiting_takes_it_along() -> None:
    """A cancelled start leaves no daemon running."""

    async def scene() -> None:
        ended = asyncio.Event()

        async def run(_stop: asyncio.Event) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        begun = asyncio.Event()
        starting = asyncio.create_task(It(run).__aenter__())
        await begun.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await ended.wait()

    asyncio.run(scene())


def test_one_that_never_ran_can_be_stopped() -> None:
    """There is nothing to wait for."""

    async def run(_stop: asyncio.Event) -> None:
        raise AssertionError("it was not started")

    asyncio.run(It(run).__aexit__())


def test_work_is_done_until_it_is_to_stop() -> None:
    """Then `until` cancels the work and waits for its clean-up."""

    async def scene() -> bool:
        stop, cleaned = asyncio.Event(), False

        async def work() -> None:
            nonlocal cleaned
            stop.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned = True

        await until(stop, work(), "it")
        return cleaned

    assert asyncio.run(scene())


def test_what_ends_work_is_raised() -> None:
    """`until` hides no error."""

    async def work() -> None:
        raise ValueError("broken")

    async def scene() -> None:
        await until(asyncio.Event(), work(), "it")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(scene())
