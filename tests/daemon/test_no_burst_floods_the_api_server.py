"""The service's own writes have a budget for any number of pods, and a pod after a burst soon gets its event.

Time is virtual, and the tests count requests.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from fakes.clock import SteppedClock
from partage.daemon.claim_templates import ClaimTemplates
from partage.daemon.events_and_wakeups import Notices
from partage.daemon.options import SchedulerOptions, WriteBudget
from partage.daemon.scheduler import SchedulerDaemon
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.resources import PODS
from partage.kube.transport import Request
from partage.model.reason import ReasonCode, Refusal
from partage.vendors import names
from partage.wire.claim_shapes import Shape, Translated, encode_translated
from partage.wire.documents import decode

BURST = 20_000
BUDGET = WriteBudget()


class Wire:
    """Answers every request at once.

    Attributes:
        sent: what came: the second, method and path.
    """

    def __init__(self, clock: SteppedClock) -> None:
        self._clock, self._start = clock, clock.monotonic()
        self.sent: list[tuple[float, str, str]] = []

    async def send(self, request: Request) -> bytes:
        """Take a request."""
        self.sent.append((self._clock.monotonic() - self._start, request.method, request.path))
        name = request.path.rpartition("/")[2]
        space = request.path.partition("/namespaces/")[2].partition("/")[0]
        head = {"name": name, "namespace": space, "uid": name, "resourceVersion": "1"}
        return json.dumps({"kind": "Any", "metadata": head, "items": []}).encode()

    def times(self, part: str) -> list[float]:
        """When requests came whose path has a part."""
        return [at for at, _, path in self.sent if part in path]


class Told:
    """Notices at work over such a wire."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.wire = Wire(self.clock)
        client = Client(Config(ClusterConfig("https://nowhere")), clock=self.clock)
        client._sender.transport = cast("Any", self.wire)
        self.client = client
        self.notices = Notices(
            client.paced(BUDGET.wake_ups),
            "test",
            _entry,
            lambda: True,
            client.paced(BUDGET.events),
        )
        self.notices.speaks = True

    def refused(self, uid: str, why: str = "no card is free") -> None:
        """A pod waits."""
        refusal = Refusal(ReasonCode.INSUFFICIENT_CARDS, why)
        self.notices.hooks.refused(cast("Any", _entry(uid)), refusal)

    def kept(self) -> int:
        """Objects that notices keep of the messages so far."""
        recorder = self.notices.recorder._book
        lists = [recorder._records, recorder._later, recorder._budgets]
        lists += [self.notices._queue, self.notices._queue._failures]
        return sum(map(len, lists))


def _entry(uid: str) -> SimpleNamespace:
    """A pod that waits; its namespace is the first part of the uid."""
    namespace, _, name = uid.partition("/")
    pod = SimpleNamespace(uid=uid, key=uid, name=name, namespace=namespace, node=None)
    return SimpleNamespace(pod=pod)


def run(story: Callable[[Told], Coroutine[Any, Any, None]]) -> None:
    """Run a story."""

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.notices.run())
        await asyncio.sleep(0)
        try:
            await story(told)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def most_in(times: list[float], seconds: float) -> int:
    """The most that came within so many seconds."""
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def test_a_burst_of_pods_is_told_within_the_budget() -> None:
    """20,000 pods of a tenant are refused in ten seconds: events keep their rate, and memory its bound."""

    async def story(told: Told) -> None:
        for second in range(10):
            for number in range(BURST // 10):
                told.refused(f"bad/{second}-{number}")
            await told.clock.advance(1)
        assert told.kept() < 4 * 4096
        await told.clock.advance(600)
        events = told.wire.times("/events")
        assert BUDGET.events <= most_in(events, 1) <= 3 * BUDGET.events + 1
        assert most_in(events, 60) <= 62 * BUDGET.events + 1
        assert len(events) < BURST
        assert told.notices.recorder._book.dropped == BURST - len(events)

    run(story)


def test_the_event_of_another_namespace_comes_soon_in_a_burst() -> None:
    """It is written after the events in progress, not after thousands."""

    async def story(told: Told) -> None:
        for number in range(BURST):
            told.refused(f"bad/{number}")
        await told.clock.advance(5)
        told.refused("good/web")
        await told.clock.advance(2)
        assert told.wire.times("/namespaces/good/")

    run(story)


def test_what_a_pod_has_to_say_again_and_again_is_one_event() -> None:
    """A thousand messages about one pod are ten writes, and then one each half minute, the newest."""

    async def story(told: Told) -> None:
        for number in range(1000):
            told.refused("bad/web", f"{number} cards are free")
            await told.clock.advance(0.1)
        assert len(told.wire.times("/events")) <= 10 + 100 / 30 + 1

    run(story)


def test_wake_ups_keep_their_rate_and_nobody_is_woken_twice_for_one() -> None:
    """Thousands of wake-ups arrive at once and are repeated; memory has a bound."""

    async def story(told: Told) -> None:
        for _ in range(3):
            told.notices.wake([f"bad/{number}" for number in range(5000)])
        assert told.kept() <= 5000
        await told.clock.advance(120)
        pods = [path for _, method, path in told.wire.sent if method == "PATCH"]
        assert Counter(pods).most_common(1)[0][1] == 1
        assert len(pods) == 5000
        times = told.wire.times("/pods/")
        assert most_in(times, 1) <= 3 * BUDGET.wake_ups + 1
        assert most_in(times, 30) <= 32 * BUDGET.wake_ups + 1

    run(story)


def test_a_new_leader_wakes_who_waits_beside_those_for_whom_room_appeared() -> None:
    """A wake-up for new room is written at once, while thousands of pods have one look each."""

    async def story(told: Told) -> None:
        told.notices.wake_in_turn([f"bad/{number}" for number in range(5000)])
        await told.clock.advance(5)
        told.notices.wake(["good/web"])
        await told.clock.advance(1)
        assert told.wire.times("/namespaces/good/")
        await told.clock.advance(120)
        assert len(told.wire.times("/namespaces/bad/")) == 5000

    run(story)


def test_callers_with_a_bound_hold_up_no_others() -> None:
    """Bindings and Leases use the client itself, which waits for no budget."""

    async def story(told: Told) -> None:
        told.notices.wake([f"bad/{number}" for number in range(5000)])
        await told.clock.advance(1)
        before = told.clock.monotonic()
        for _ in range(100):
            await told.client.get(PODS, "p", namespace="good", into=dict[str, Any])
        assert told.clock.monotonic() == before

    run(story)


def test_a_flood_of_templates_holds_up_no_controller() -> None:
    """A namespace's thousand templates are made at their own pace, and controllers write without delay meanwhile."""

    async def story(told: Told) -> None:
        options = SchedulerOptions(claims=True, claim_templates=True)
        daemon = SchedulerDaemon(told.client, options)
        (templates,) = (one for one in daemon._companions if isinstance(one, ClaimTemplates))
        for number in range(1, 1001):
            asked = {"main": Translated(Shape(memory_bytes=number << 20))}
            meta = {
                "uid": f"{number}",
                "annotations": {names.TRANSLATED: encode_translated(asked)},
            }
            claim = {"name": "c", "resourceClaimTemplateName": asked["main"].shape.template}
            pod = {"kind": "Pod", "metadata": {"name": "p", **meta}}
            pod["spec"] = {"resourceClaims": [claim]}
            (document,) = decode("test", json.dumps(pod).encode()).documents
            templates.changed(document)
        daemon.service.rebuilt = True
        making = asyncio.create_task(templates.look())
        while not told.clock.sleepers:  # noqa: ASYNC110 # those that may be sent at once
            await asyncio.sleep(0)
        await told.clock.advance(2)
        controllers = [
            asyncio.create_task(
                daemon._objects.get(PODS, "p", namespace="good", into=dict[str, Any])
            )
            for _ in range(100)
        ]
        await told.clock.advance(0)
        assert all(one.done() for one in controllers)
        assert not making.done()
        await told.clock.advance(60)
        assert making.done()
        await making
        assert most_in(told.wire.times("/resourceclaimtemplates"), 1) <= 3 * BUDGET.templates + 1

    run(story)


def test_nothing_is_kept_of_a_burst_that_is_over() -> None:
    """Only the data remains that merges the next messages about the same pods."""

    async def story(told: Told) -> None:
        for number in range(BURST):
            told.refused(f"bad/{number}")
        told.notices.wake([f"bad/{number}" for number in range(BURST)])
        assert told.kept() <= 10_000 + 3 * 4096
        await told.clock.advance(1200)
        told.refused("good/web")
        await told.clock.advance(1)
        assert told.kept() <= 4096 + 100

    run(story)
