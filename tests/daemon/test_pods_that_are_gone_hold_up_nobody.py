"""Wake-ups of pods that nobody knows are tried again beside those of pods that wait."""

import asyncio
from types import SimpleNamespace
from typing import Any

from partage.daemon.notices import Notices
from partage.testing.clock import SteppedClock

WAITS = SimpleNamespace(
    pod=SimpleNamespace(uid="waits", key="default/waits", name="waits", namespace="default", node=None)
)  # fmt: skip


class Api:
    """Takes patches, and tells whose."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.patched: list[str] = []

    async def patch(self, _kind: object, name: str, _body: object, **_: Any) -> None:
        """A pod is changed."""
        self.patched.append(name)


async def told(known: dict[str, Any]) -> tuple[Api, Notices, asyncio.Task[None]]:
    """Notices that run."""
    api = Api()
    client: Any = api
    notices = Notices(client, "test", known.get, lambda _uid: False)
    notices.speaks = True
    running = asyncio.create_task(notices.run())
    await asyncio.sleep(0)
    return api, notices, running


def test_a_pod_that_waits_is_woken_at_once_behind_many_that_are_gone() -> None:
    """A job of a thousand pods was deleted as room came for them."""

    async def run() -> None:
        api, notices, running = await told({"waits": WAITS})
        notices.wake([*(f"gone-{number}" for number in range(1000)), "waits"])
        await api.clock.advance(0)
        assert api.patched == ["waits"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_a_pod_of_which_no_watch_has_told_is_woken_once_one_has() -> None:
    """And given up after ten seconds, where none ever tells of it."""

    async def run() -> None:
        known: dict[str, Any] = {}
        api, notices, running = await told(known)
        notices.wake(["waits", "never"])
        await api.clock.advance(3.5)
        assert api.patched == []
        known["waits"] = WAITS
        await api.clock.advance(1.0)
        assert api.patched == ["waits"]
        await api.clock.advance(20.0)
        known["never"] = WAITS
        await api.clock.advance(20.0)
        assert api.patched == ["waits"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
