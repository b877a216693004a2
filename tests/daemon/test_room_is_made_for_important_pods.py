"""Preemption by resource names that kube-scheduler does not count: victims, spared pods and reserved room.

`World` plays kube-scheduler: it filters, writes the condition of a pod that it has given up on,
and binds. The tests end pods, as a kubelet would.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from daemon_world import World, until, world
from proxy import Proxy

from fakes.builders import make_pod
from fakes.clock import InstantClock
from fakes.kept_spans import KeptSpans
from fakes.wire import Fault, Wire
from partage.daemon import preempting
from partage.daemon.options import SchedulerOptions
from partage.daemon.preempting import Preempting, PreemptionSettings, room_made
from partage.daemon.scheduler import SchedulerDaemon
from partage.extender import cycle
from partage.extender.cycle import AllowanceSettings
from partage.extender.preemption import MOST_PLANNING, Planner, given_up_on
from partage.extender.service import ServiceSettings
from partage.kube.events import EventRecorder
from partage.placement.card import FEW, Work
from partage.scheduler.engine import State
from partage.scheduler.preemption import Plan
from partage.tracing.context import trace_of
from partage.tracing.spans import MAKE_ROOM
from partage.tracing.tracer import NO_TRACES, Tracer

HALF = {"koordinator.sh/gpu": "50"}
FAST = PreemptionSettings(period=0.01, patience=0.05)
CLASSES = {"low": -5, "high": 10, "higher": 20}


class Game:
    """A cluster, its scheduler, and what kube-scheduler does."""

    def __init__(self, cluster: World, daemon: SchedulerDaemon) -> None:
        self.cluster = cluster
        self.daemon = daemon

    async def runs(self, name: str, limits: Mapping[str, str] | None = None, **more: Any) -> str:
        """A pod that is placed; its node."""
        await self.cluster.pod(name, limits, **more)
        node = await self.cluster.schedule(self.daemon.url, name)
        assert node
        await until(lambda: self.state(name) is State.BOUND and name in self._known())
        return node

    async def waits(self, name: str, limits: Mapping[str, str] | None = None, **more: Any) -> None:
        """A pod that kube-scheduler gives up on."""
        await self.cluster.pod(name, limits, **more)
        await self.refused(name)

    async def refused(self, name: str) -> None:
        """Kube-scheduler tries a pod once more and is refused."""
        assert not (await self.cluster.filter(self.daemon.url, name))["NodeNames"]
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        await self.cluster.api.patch(
            "pods", "default", name, {"status": {"conditions": [condition]}}, sub="status"
        )

    def going(self) -> set[str]:
        """Pods that are on their way out."""
        return {
            record.name
            for record in self.cluster.api.store.all("pods")
            if record.metadata.get("deletionTimestamp")
        }

    async def look(self) -> None:
        """One look at the waiting pods, here and now."""
        client = await self.cluster.client()
        recorder = EventRecorder(client, component="test", instance="test")
        books = self.daemon.service
        await Preempting(client, lambda: books.books, recorder, lambda: True, FAST).look()

    def nominated(self, name: str) -> str:
        """Where room is made for a pod, as it says itself."""
        return str(self.cluster.stored(name)["status"].get("nominatedNodeName", ""))

    def heard(self, name: str) -> str | None:
        """Where room is made for a pod, as far as the service has heard."""
        entry = self.daemon.service.books.cluster_cache.pods.get(self.uid(name))
        return entry.nominated if entry is not None else None

    async def gets(self, name: str) -> str:
        """A pod is placed now; its node."""
        await until(lambda: self.state(name) is State.HELD)
        return await self.cluster.schedule(self.daemon.url, name)

    def uid(self, name: str) -> str:
        """A pod's uid."""
        return str(self.cluster.stored(name)["metadata"]["uid"])

    def state(self, name: str) -> State | None:
        """Where a pod stands in the books."""
        return self.daemon.service.books.engine.states.get(self.uid(name))

    def _known(self) -> set[str]:
        pods = self.daemon.service.books.cluster_cache.pods.values()
        return {entry.pod.name for entry in pods if entry.pod.node}


@asynccontextmanager
async def game(
    nodes: int = 1,
    cards: int = 1,
    preemption: PreemptionSettings | None = FAST,
    tracer: Tracer = NO_TRACES,
    victims: int = 240,
) -> AsyncIterator[Game]:
    """A cluster with three priority classes."""
    service = ServiceSettings(allowance=AllowanceSettings(victims=victims))
    options = SchedulerOptions(preemption=preemption, tick=0.05, tracer=tracer, service=service)
    async with world(nodes, cards) as cluster:
        for name, value in CLASSES.items():
            head = {"metadata": {"name": name}, "value": value}
            await cluster.api.create("priorityclasses.scheduling.k8s.io", head)
        async with SchedulerDaemon(await cluster.client(), options) as daemon:
            books = daemon.service.books
            await until(lambda: len(books.engine.ledger.index) == nodes)
            yield Game(cluster, daemon)


async def test_for_whom_room_is_made_is_told_in_its_trace() -> None:
    """The trace has the node and the number of victims, not their owners."""
    kept = KeptSpans()
    async with game(tracer=kept) as g:
        where = await g.runs("least", priorityClassName="low")
        await g.waits("vip", priorityClassName="high")

        await until(lambda: kept.named(MAKE_ROOM.name))
        (span,) = kept.named(MAKE_ROOM.name)
        trace = trace_of(g.uid("vip"), {})
        assert (trace.trace, span) in kept.told
        assert span.parent == trace.scheduling
        assert span.attributes["k8s.node.name"] == where
        assert span.attributes["partage.victims"] == 1
        assert span.attributes["partage.outcome"] == "asked"
        assert "least" not in str(span)


def test_victims_of_other_namespaces_are_counted_and_not_named() -> None:
    """The event is in the namespace of the pod that gets the room."""
    own = make_pod("own", priority=5)
    others = [replace(own, name=f"secret-{n}", namespace="theirs") for n in range(2)]

    assert room_made("n", [own, *others], "default") == (
        "room is made on node n: default/own (priority 5), 2 pods of other namespaces"
    )
    assert room_made("n", others[:1], "default").endswith(": 1 pod of other namespaces")
    assert "theirs/secret-1" in room_made("n", [own, *others])
    assert room_made("n", [], "default").endswith(": by pods that end")


async def test_the_least_important_pod_that_helps_goes() -> None:
    """It gets the reason, the pod is nominated, and gets the card once it is free."""
    async with game(nodes=2) as g:
        await g.runs("plain")
        where = await g.runs("least", priorityClassName="low")
        await g.waits("vip", priorityClassName="high")

        await until(g.going)
        assert g.going() == {"least"}
        await until(lambda: g.nominated("vip") == where)
        (condition,) = [
            one
            for one in g.cluster.stored("least")["status"]["conditions"]
            if one["type"] == "DisruptionTarget"
        ]
        assert condition["reason"] == "PreemptionByScheduler"
        await g.cluster.delete("least")
        assert await g.gets("vip") == where
        assert set(g.cluster.taken().values()) == {1000}
        await until(lambda: g.cluster.events("vip") and g.cluster.events("least"))
        (told,) = [e for e in g.cluster.events("vip") if e["reason"] == "Preempting"]
        assert "default/least (priority" in told["message"]
        assert any(e["reason"] == "Preempted" for e in g.cluster.events("least"))
        assert g.daemon.service.audit().clean


async def test_a_namespace_has_so_many_sent_away_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of victims follows time, not the number of important pods."""
    monkeypatch.setattr(cycle, "_MINUTE", 1e9)
    async with game(nodes=3, preemption=None, victims=1) as g:
        for name in ("one", "two", "three"):
            await g.runs(name, priorityClassName="low")
        counts = g.daemon.service.books.counts
        for number in range(3):
            await g.waits(f"vip{number}", priorityClassName="high")
            vip = g.uid(f"vip{number}")
            await until(lambda vip=vip: given_up_on(g.daemon.service.books, vip))  # type: ignore[misc]
            await g.look()
            assert len(g.going()) == 1
        assert counts["preemption victims"] == 1
        assert counts["preemption postponed"] == 2


async def test_rows_of_pods_for_which_nothing_helps_leave_time_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After each plan as much time passes as it took, and a namespace waits once it has used its search."""
    planned: list[int] = []
    async with game(nodes=2, cards=2, preemption=None) as g:
        await g.runs("calm", HALF, priorityClassName="low")
        for number in range(8):
            await g.waits(
                f"vip{number}",
                {"koordinator.sh/gpu": str(300 + 100 * number)},
                priorityClassName="high",
            )
        books = g.daemon.service.books
        for number in range(8):
            vip = g.uid(f"vip{number}")
            await until(lambda vip=vip: given_up_on(books, vip))  # type: ignore[misc]

        async def best(_planner: Planner, *_: Any, work: Work, **__: Any) -> list[Plan]:
            planned.append(work.limit)
            work.done += work.limit
            return []

        monkeypatch.setattr(Planner, "best", best)
        client = await g.cluster.client()
        # The books' time goes on in the planner's: a clock of its own may be before it, and nothing would be paid.
        client.clock = clock = InstantClock(client.clock.monotonic())
        recorder = EventRecorder(client, component="test", instance="test")
        await Preempting(client, lambda: books, recorder, lambda: True, FAST).look()
        settings, pause = books.cycle.allowance.settings, MOST_PLANNING * 5e-6
        plans, debt = 0, 0.0
        while debt < settings.owed:
            debt += MOST_PLANNING - FEW - settings.rate * pause
            plans += 1
        assert len(planned) == plans < 8
        assert clock.slept == [pause] * plans


async def test_a_fault_in_one_pod_does_not_end_the_service_of_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next pods get their room, and the pod itself is left alone for a while."""
    planned: list[str] = []
    async with game(preemption=None) as g:
        await g.runs("calm", HALF, priorityClassName="low")
        for name in ("odd", "next"):
            limits = {"koordinator.sh/gpu": "100" if name == "odd" else "90"}
            await g.waits(name, limits, priorityClassName="high")
        books = g.daemon.service.books
        await until(lambda: all(given_up_on(books, g.uid(name)) for name in ("odd", "next")))

        async def best(_planner: Planner, _books: Any, waiting: Any, *_: Any, **__: Any) -> None:
            planned.append(waiting.entry.pod.name)
            if len(planned) == 1:
                raise RuntimeError("a fault")

        monkeypatch.setattr(Planner, "best", best)
        client = await g.cluster.client()
        recorder = EventRecorder(client, component="test", instance="test")
        loop = Preempting(client, lambda: books, recorder, lambda: True, PreemptionSettings())
        await loop.turn()
        await loop.turn()
    assert sorted(planned) == ["next", "odd"]
    assert f"no room can be made for pod default/{planned[0]}" in caplog.text


async def test_room_is_kept_while_victims_end_one_by_one() -> None:
    """No other pod gets the first free half of a card; it is free again when the important pod is deleted."""
    async with game() as g:
        for name in ("one", "two"):
            await g.runs(name, HALF)
        await g.waits("vip", priorityClassName="high")
        await until(lambda: g.going() == {"one", "two"})

        await g.cluster.delete("one")
        await until(lambda: g.daemon.service.books.engine.ledger.allocation(g.uid("vip")))
        await g.waits("thief", HALF)
        assert g.going() == {"two"}
        await g.cluster.delete("vip")
        await until(lambda: g.state("thief") is None and not g.daemon.service.books.making_room)
        assert await g.cluster.schedule(g.daemon.url, "thief") == "n0"


@pytest.mark.parametrize("policy", ["Never", None], ids=["never", "of equal rank"])
async def test_nobody_goes_for_who_may_not_preempt(policy: str | None) -> None:
    """Its PriorityClass forbids it, or its priority is not higher."""
    async with game(preemption=None) as g:
        await g.runs("calm")
        if policy is not None:
            head = {"metadata": {"name": "polite"}, "value": 10, "preemptionPolicy": policy}
            await g.cluster.api.create("priorityclasses.scheduling.k8s.io", head)
        await g.waits("vip", **({} if policy is None else {"priorityClassName": "polite"}))
        vip = g.uid("vip")
        await until(lambda: given_up_on(g.daemon.service.books, vip))

        await g.look()
        assert not g.going()
        assert not g.nominated("vip")


@pytest.mark.parametrize("preemption", [FAST, None], ids=["on", "off"])
async def test_it_can_be_switched_off(preemption: PreemptionSettings | None) -> None:
    """Then no task looks for victims."""
    async with game(preemption=preemption):
        running = {task.get_name() for task in asyncio.all_tasks()}

        assert ("scheduler:preemption" in running) == (preemption is not None)


async def test_nobody_goes_for_a_pod_that_kube_scheduler_still_tries() -> None:
    """kube-scheduler's own preemption may help, so nothing is evicted before it has given up."""
    async with game(preemption=None) as g:
        await g.runs("calm")
        await g.cluster.pod("vip", priorityClassName="high")
        assert not (await g.cluster.filter(g.daemon.url, "vip"))["NodeNames"]
        await g.look()
        assert not g.going()

        await g.refused("vip")
        vip = g.uid("vip")
        await until(lambda: given_up_on(g.daemon.service.books, vip))
        await g.look()
        assert g.going() == {"calm"}


async def test_only_nodes_that_kube_scheduler_finds_fit_are_emptied() -> None:
    """On a node that cannot run the pod for other reasons, no pod is evicted."""
    async with game(nodes=2) as g:
        await g.runs("calm", priorityClassName="low")
        other = await g.runs("other")
        g.cluster.names.remove("n1" if other == "n0" else "n0")
        await g.waits("vip", priorityClassName="high")

        await until(g.going)
        assert g.going() == {"other"}


BUDGET = {
    "metadata": {"name": "keep"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
}


async def _budget(g: Game, allowed: int, name: str) -> None:
    await g.cluster.api.create("poddisruptionbudgets.policy", BUDGET, "default")
    await g.cluster.api.patch(
        "poddisruptionbudgets.policy",
        "default",
        "keep",
        {"status": {"disruptionsAllowed": allowed, "observedGeneration": 1}},
        sub="status",
    )
    labels = {"metadata": {"labels": {"app": "kept"}}}
    await g.cluster.api.patch("pods", "default", name, labels)
    await until(lambda: _labelled(g, name))


def _labelled(g: Game, name: str) -> bool:
    entry = g.daemon.service.books.cluster_cache.pod_named("default", name)
    return entry is not None and "app" in entry.view.labels


async def test_a_budget_spares_its_pods_where_another_will_do() -> None:
    """Even a more important pod is evicted before a budget is broken."""
    async with game(nodes=2) as g:
        await g.runs("guarded", priorityClassName="low")
        await g.runs("other")
        await _budget(g, 0, "guarded")
        await g.waits("vip", priorityClassName="high")

        await until(g.going)
        assert g.going() == {"other"}


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"minAvailable": 0}},
        {
            "status": {
                "disruptionsAllowed": 0,
                "disruptedPods": {"guarded": "2026-01-01T00:00:00Z"},
            }
        },
    ],
    ids=["not counted since its last change", "it has let the pod go before"],
)
async def test_a_budget_by_which_the_api_server_refuses_spares_its_pods(
    change: dict[str, Any],
) -> None:
    """By each the cheapest victim would be asked for in vain, and no other pod would make room."""
    async with game(nodes=2) as g:
        await g.runs("guarded", priorityClassName="low")
        await g.runs("other")
        await _budget(g, 1, "guarded")
        sub = "status" if "status" in change else ""
        budgets = "poddisruptionbudgets.policy"
        await g.cluster.api.patch(budgets, "default", "keep", change, sub=sub)
        await g.waits("vip", priorityClassName="high")

        await until(g.going)
        assert g.going() == {"other"}


BLOCKED = {"status": 429, "causes": ("DisruptionBudget",)}


@asynccontextmanager
async def refusing(g: Game, **how: Any) -> AsyncIterator[tuple[Preempting, Wire]]:
    """A loop for `vip`, whose requests for the pods of `guarded…` fail."""
    await g.waits("vip", priorityClassName="high")
    vip, service = g.uid("vip"), g.daemon.service
    await until(lambda: given_up_on(service.books, vip))
    async with Wire(g.cluster.url) as wire:
        client = await g.cluster.client(wire.url)
        recorder = EventRecorder(client, component="test", instance="test")
        wire.fail(Fault(path="/pods/guarded", times=100, **how))
        yield Preempting(client, lambda: service.books, recorder, lambda: True, FAST), wire


@pytest.mark.parametrize("nodes", [1, 2], ids=["of one node", "of two nodes"])
@pytest.mark.parametrize("budget", [True, False], ids=["evicted", "deleted"])
@pytest.mark.parametrize(
    "how", [BLOCKED, {"status": 403}, {"drop": True}], ids=["blocked", "forbidden", "no answer"]
)
async def test_a_victim_that_was_refused_is_spared_if_others_help(
    how: dict[str, Any], nodes: int, *, budget: bool
) -> None:
    """What its budget refused is of one pod, so the next look has another plan at once."""
    async with game(nodes, 2 // nodes, preemption=None) as g:
        await g.runs("guarded", priorityClassName="low")
        await g.runs("other")
        if budget:
            await _budget(g, 1, "guarded")
        async with refusing(g, **how) as (loop, wire):
            await loop.look()
            assert wire.struck
            assert not g.going()
            if how is not BLOCKED:
                await asyncio.sleep(2 * FAST.patience)
            await loop.look()
            assert g.going() == {"other"}


async def test_a_victim_that_is_refused_again_is_not_asked_for_at_each_look() -> None:
    """Nothing else helps, so it is asked for again, but not all the time."""
    async with game(preemption=None) as g:
        await g.runs("guarded")
        await _budget(g, 1, "guarded")
        async with refusing(g, **BLOCKED) as (loop, wire):
            for _ in range(4):
                await loop.look()
            assert len(wire.struck) == 2
            await asyncio.sleep(2 * FAST.patience)
            await loop.look()
            assert len(wire.struck) == 3


@pytest.mark.parametrize("bound", ["_SPARED", "_MOST_REFUSED"])
async def test_refused_victims_are_remembered_within_bounds(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """For some minutes, and so many; then they are asked for again."""
    monkeypatch.setattr(preempting, bound, 0)
    async with game(nodes=2, preemption=None) as g:
        await g.runs("guarded", priorityClassName="low")
        await g.runs("other")
        await _budget(g, 1, "guarded")
        async with refusing(g, **BLOCKED) as (loop, wire):
            for number in (1, 2):
                await loop.look()
                assert len(wire.struck) == number
                await asyncio.sleep(2 * FAST.patience)
            assert not g.going()


@pytest.mark.parametrize("allowed", [0, 1], ids=["broken as the last resort", "kept"])
async def test_a_budget_is_asked_and_broken_only_if_nothing_else_helps(allowed: int) -> None:
    """A pod is evicted if its budget allows that, and otherwise deleted, as by kube-scheduler."""
    async with game() as g:
        await g.runs("guarded")
        await _budget(g, allowed, "guarded")
        await g.waits("vip", priorityClassName="high")

        await until(g.going)
        status = g.cluster.stored("guarded")["status"]
        told = [c for c in status.get("conditions", ()) if c["type"] == "DisruptionTarget"]
        assert bool(told) == (allowed == 0)


async def test_a_pod_of_two_budgets_goes_where_both_allow_it() -> None:
    """Kubernetes never evicts such a pod, so repeated evictions would never help."""
    async with game() as g:
        await g.runs("guarded")
        await _budget(g, 1, "guarded")
        more = BUDGET | {"metadata": {"name": "more"}}
        allowed = {"disruptionsAllowed": 1, "observedGeneration": 1}
        budgets = "poddisruptionbudgets.policy"
        await g.cluster.api.create(budgets, more, "default")
        await g.cluster.api.patch(budgets, "default", "more", {"status": allowed}, sub="status")
        await g.waits("vip", priorityClassName="high")

        await until(g.going)
        assert g.going() == {"guarded"}


@pytest.mark.parametrize("unknown", ["", "/poddisruptionbudgets"], ids=["cut", "404 of a proxy"])
async def test_nobody_goes_while_budgets_cannot_be_read(unknown: str) -> None:
    """The spared pods are unknown; the next try follows after a while, not at once."""
    async with game(preemption=None) as g, Proxy(g.cluster.url) as proxy:
        await g.runs("calm")
        await g.waits("vip", priorityClassName="high")
        vip = g.uid("vip")
        await until(lambda: given_up_on(g.daemon.service.books, vip))
        client = await g.cluster.client(proxy.url)
        recorder = EventRecorder(client, component="test", instance="test")
        service = g.daemon.service
        loop = Preempting(client, lambda: service.books, recorder, lambda: True, FAST)

        proxy.cut, proxy.unknown = not unknown, unknown
        assert await loop.turn() == FAST.patience
        assert not g.going()
        proxy.cut, proxy.unknown = False, ""
        assert await loop.turn() == FAST.period
        assert g.going() == {"calm"}


async def test_a_404_of_a_proxy_does_not_show_that_a_victim_is_gone() -> None:
    """Otherwise its room would be awaited for ever, and no other pod would be asked."""
    async with game(preemption=None) as g, Proxy(g.cluster.url) as proxy:
        await g.runs("calm")
        await _budget(g, 1, "calm")
        await g.waits("vip", priorityClassName="high")
        vip = g.uid("vip")
        await until(lambda: given_up_on(g.daemon.service.books, vip))
        client = await g.cluster.client(proxy.url)
        recorder = EventRecorder(client, component="test", instance="test")
        books = g.daemon.service
        loop = Preempting(client, lambda: books.books, recorder, lambda: True, FAST)

        proxy.unknown = "/eviction"
        await loop.look()
        assert not g.going()
        proxy.unknown = ""
        await asyncio.sleep(2 * FAST.patience)
        await loop.look()
        assert g.going() == {"calm"}


async def test_the_most_important_takes_over_what_was_made_for_another() -> None:
    """A more important pod gets room in the making, and no other pod is evicted."""
    async with game() as g:
        await g.runs("calm")
        await g.waits("vip", priorityClassName="high")
        await until(g.going)
        await g.waits("more", priorityClassName="higher")
        await until(lambda: g.nominated("more") == "n0")

        await g.cluster.delete("calm")
        assert await g.gets("more") == "n0"
        assert g.state("vip") is None


async def test_two_who_want_room_send_two_away() -> None:
    """The second pod does not count on the room of the first."""
    async with game(nodes=1, cards=2) as g:
        for name in ("one", "two"):
            await g.runs(name)
        for name in ("first", "second"):
            await g.waits(name, priorityClassName="high")

        await until(lambda: g.going() == {"one", "two"})
        for name in ("one", "two"):
            await g.cluster.delete(name)
        for name in ("first", "second"):
            assert await g.gets(name) == "n0"
        assert set(g.cluster.taken().values()) == {1000}


async def test_room_that_cannot_be_had_after_all_is_looked_for_again() -> None:
    """kube-scheduler rejects the node for other reasons, so another one is emptied."""
    async with game(nodes=2) as g:
        first = await g.runs("low", priorityClassName="low")
        await g.runs("calm")
        await g.waits("vip", priorityClassName="high")
        await until(lambda: g.going() == {"low"})
        await until(lambda: g.nominated("vip") == first)
        await until(lambda: g.heard("vip") == first)

        g.cluster.names.remove(first)
        await g.refused("vip")

        await until(lambda: g.going() == {"low", "calm"})
        await until(lambda: g.nominated("vip") not in ("", first))
