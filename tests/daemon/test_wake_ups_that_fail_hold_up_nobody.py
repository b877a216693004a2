"""Failed wake-ups are tried again beside those of waiting pods."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.clock import SteppedClock
from partage.daemon.events_and_wakeups import Notices
from partage.kube.errors import Conflict, Forbidden, KubeError, NotServed, ServerError
from partage.kube.errors import Status as ErrorStatus


def entry(uid: str) -> SimpleNamespace:
    """A pod that waits."""
    pod = SimpleNamespace(uid=uid, key=f"default/{uid}", name=uid, namespace="default", node=None)
    return SimpleNamespace(pod=pod)


WAITS = entry("waits")
REFUSALS = {
    "conflict": Conflict("PATCH", "/pods", 409, ErrorStatus()),
    "forbidden": Forbidden("PATCH", "/pods", 403, ErrorStatus()),
    "of a proxy": NotServed("PATCH", "/pods", 404, ErrorStatus()),
    "in trouble": ServerError("PATCH", "/pods", 503, ErrorStatus()),
}


class Api:
    """Takes patches, and tells whose.

    Attributes:
        patched: whose, each with the seconds since the start.
        refused: what is said to a change of a pod, by name.
    """

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.patched: list[str] = []
        self.when: list[tuple[str, float]] = []
        self.refused: dict[str, KubeError] = {}
        self._start = self.clock.monotonic()

    async def patch(self, _kind: object, name: str, _body: Any, **_: Any) -> None:
        """A pod is changed, or not."""
        self.when.append((name, self.clock.monotonic() - self._start))
        if name in self.refused:
            raise self.refused[name]
        self.patched.append(name)


async def told(known: dict[str, Any]) -> tuple[Api, Notices, asyncio.Task[None]]:
    """Notices that run."""
    api = Api()
    client: Any = api
    notices = Notices(client, "test", known.get)
    notices.speaks = True
    running = asyncio.create_task(notices.run())
    await asyncio.sleep(0)
    return api, notices, running


def test_a_pod_that_waits_is_woken_at_once_behind_many_that_are_gone() -> None:
    """A job of a thousand pods was deleted when room for them appeared."""

    async def run() -> None:
        api, notices, running = await told({"waits": WAITS})
        notices.wake([*(f"gone-{number}" for number in range(1000)), "waits"])
        await api.clock.advance(0)
        assert api.patched == ["waits"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_a_pod_of_which_no_watch_has_told_is_woken_once_one_has() -> None:
    """Without a report of a watch the wake-up ends after fifteen seconds."""

    async def run() -> None:
        known: dict[str, Any] = {}
        api, notices, running = await told(known)
        notices.wake(["waits", "never"])
        await api.clock.advance(3.5)
        assert api.patched == []
        known["waits"] = WAITS
        await api.clock.advance(4.0)
        assert api.patched == ["waits"]
        await api.clock.advance(20.0)
        known["never"] = WAITS
        await api.clock.advance(20.0)
        assert api.patched == ["waits"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_pod_that_waits_is_woken_at_once_behind_many_that_cannot_be(
    refusal: KubeError,
) -> None:
    """The API server refuses the others for any reason."""

    async def run() -> None:
        many = [f"refused-{number}" for number in range(100)]
        api, notices, running = await told({name: entry(name) for name in [*many, "waits"]})
        api.refused = dict.fromkeys(many, refusal)
        notices.wake([*many, "waits"])
        await api.clock.advance(0)
        assert api.patched == ["waits"]
        api.refused.clear()
        await api.clock.advance(1.0)
        assert sorted(api.patched[1:]) == sorted(many)
        await api.clock.advance(600)
        assert len(api.patched) == 101, "each once"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_a_wake_up_that_is_refused_is_tried_again_more_and_more_rarely() -> None:
    """The tries end when kube-scheduler has tried the pod itself."""

    async def run() -> None:
        api, notices, running = await told({"waits": WAITS})
        api.refused["waits"] = REFUSALS["forbidden"]
        notices.wake(["waits"])
        await api.clock.advance(1000)
        when = [at for _, at in api.when]
        waits = [later - earlier for earlier, later in pairwise(when)]
        assert waits[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
        assert set(waits[5:]) == {30.0}
        assert 250 <= when[-1] <= 300
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_a_pod_that_is_woken_while_it_is_put_off_is_woken_once() -> None:
    """New room appears before the delayed try is due, and that try does not follow."""

    async def run() -> None:
        api, notices, running = await told({"waits": WAITS})
        api.refused["waits"] = REFUSALS["conflict"]
        for _ in range(4):
            notices.wake(["waits"])
            await api.clock.advance(0.1)
        api.refused.clear()
        notices.wake(["waits"])
        await api.clock.advance(100)
        assert api.patched == ["waits"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
