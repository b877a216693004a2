"""A missing agent closes its node, and an agent that is back opens it, by data in the API server.

`World` plays kube-scheduler. The agent's part is the call by which an agent renews its lease. Time is
the clock of the leader that looks, and the tests move it.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from daemon_world import World, node, until, world
from prometheus_client import CollectorRegistry
from proxy import Proxy

from fakes.clock import InstantClock
from partage.agent.reporting import ReportingSettings, renew_lease
from partage.apiserver import DeleteOptions
from partage.daemon.agent_liveness import AgentSilence, SilenceSettings
from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.daemon.watched import LiveNode, as_document
from partage.extender.books import Books
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.events import EventRecorder
from partage.model.errors import LedgerError
from partage.vendors import names

LEASES = "leases.coordination.k8s.io"
SPACE = "kube-node-lease"
NEVER = SilenceSettings(period=3600.0)
"""Of the daemon itself, which looks once and leaves the rest to the test."""
PERIOD = 10.0


class Game:
    """A cluster with a scheduler, and a leader's looks at the agents."""

    def __init__(self, cluster: World, daemon: SchedulerDaemon, client: Client) -> None:
        self.cluster, self.daemon, self.client = cluster, daemon, client
        assert isinstance(client.clock, InstantClock)
        self.clock = client.clock
        self.leads = True
        self.recorder = EventRecorder(client, component="test", instance="test")
        self.silence = self.another()

    def another(self, limit: float = 60.0) -> AgentSilence:
        """Another look at agents, which has not looked yet."""
        self.registry = CollectorRegistry()
        return AgentSilence(
            self.client,
            lambda: self.daemon.service.books,
            self.recorder,
            lambda: self.leads,
            SilenceSettings(limit),
            self.registry,
        )

    async def renews(self, *nodes: str) -> None:
        """Agents say that they are alive."""
        for name in nodes:
            await renew_lease(self.client, name, ReportingSettings())

    async def passes(self, seconds: float, *alive: str) -> None:
        """Time, with looks all the while; these agents go on."""
        for _ in range(int(seconds / PERIOD)):
            self.clock.pass_time(PERIOD)
            await self.renews(*alive)
            await self.silence.look()

    def says(self, node: str) -> str | None:
        """What the Node says of its agent."""
        annotations = self.cluster.stored(node, "nodes", "")["metadata"].get("annotations", {})
        return dict(annotations).get(names.AGENT_SILENT)

    async def known(self, node: str, *, closed: bool) -> None:
        """Wait until the books have it."""
        ledger = self.daemon.service.books.engine.ledger
        await until(lambda: ledger.node_at(ledger.index[node]).shut is closed)

    def sample(self, name: str, **labels: str) -> float | None:
        """A series of the one that looks."""
        return self.registry.get_sample_value(name, labels)


@asynccontextmanager
async def game(nodes: int) -> AsyncIterator[Game]:
    """Nodes whose agents are there, and were looked at once."""
    async with world(nodes) as cluster:
        options = SchedulerOptions(tick=0.05, silence=NEVER)
        config = Config(ClusterConfig(cluster.url))
        async with (
            Client(config, clock=InstantClock()) as client,
            SchedulerDaemon(await cluster.client(), options) as daemon,
        ):
            made = Game(cluster, daemon, client)
            await made.renews(*cluster.names)
            await made.silence.look()
            yield made


def play(story: Callable[[Game], Awaitable[None]], nodes: int = 1) -> None:
    """Run a story."""

    async def run() -> None:
        async with game(nodes) as made:
            await story(made)

    asyncio.run(run())


def test_a_pod_waits_until_the_agent_is_back() -> None:
    """The agent ends, the pod waits with the reason, and then gets its place; running pods stay untouched."""

    async def story(made: Game) -> None:
        cluster, url = made.cluster, made.daemon.url
        await cluster.pod("runs")
        assert await cluster.schedule(url, "runs") == "n0"
        await made.passes(50)
        assert made.says("n0") is None

        await made.passes(10)
        await made.known("n0", closed=True)
        await cluster.pod("waits")
        refused = await cluster.filter(url, "waits")
        assert (
            "AgentSilent: the node's agent has not renewed its Lease since 2026-01-01T"
            in (refused["FailedAndUnresolvableNodes"]["n0"])
        )
        assert cluster.taken() == {("n0", "GPU-n0-0"): 1000}

        await made.passes(10, "n0")
        await made.known("n0", closed=False)
        woken = names.WOKEN
        await until(lambda: woken in cluster.stored("waits")["metadata"].get("annotations", {}))
        assert await cluster.schedule(url, "waits") == "n0"

    play(story)


def test_nodes_are_told_apart() -> None:
    """Each node follows its own agent; a node without one is never closed, whatever its kubelet does."""

    async def story(made: Game) -> None:
        lease = {"metadata": {"name": "n2"}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
        await made.cluster.api.create(LEASES, lease, SPACE)
        await made.cluster.api.delete(LEASES, SPACE, "partage-agent-n2", DeleteOptions())

        await made.passes(120, "n1")

        assert [made.says(name) is not None for name in ("n0", "n1", "n2")] == [True, False, False]
        assert made.says("n0") == "2026-01-01T00:00:00Z 60"
        assert made.sample("partage_agents", state="silent") == 1
        assert made.sample("partage_agents", state="heard") == 1

    play(story, nodes=3)


def test_an_outage_closes_nobody() -> None:
    """The API server was away for ten minutes; on its return every agent has its full time."""

    async def run() -> None:
        async with world(2) as cluster, Proxy(cluster.url) as proxy:
            options = SchedulerOptions(tick=0.05, silence=NEVER)
            config = Config(ClusterConfig(proxy.url))
            async with (
                Client(config, clock=InstantClock()) as client,
                SchedulerDaemon(await cluster.client(), options) as daemon,
            ):
                made = Game(cluster, daemon, client)
                await made.renews("n0", "n1")
                await made.silence.look()
                proxy.cut = True
                await made.passes(600)
                assert (made.sample("partage_agents_unlisted_total") or 0) >= 60
                proxy.cut = False

                await made.passes(50)
                assert (made.says("n0"), made.says("n1")) == (None, None)
                await made.passes(20, "n1")
                assert made.says("n0") is not None
                assert made.says("n1") is None

    asyncio.run(run())


def test_a_new_leader_keeps_a_node_closed_until_it_hears_the_agent() -> None:
    """It reads the closure from the Node, and counts the silence of others from its own first look."""

    async def story(made: Game) -> None:
        await made.passes(60, "n1")
        await made.known("n0", closed=True)
        since = made.says("n0")
        made.silence = made.another()

        await made.passes(30)
        assert (made.says("n0"), made.says("n1")) == (since, None)
        await made.passes(10, "n0")
        assert (made.says("n0"), made.says("n1")) == (None, None)
        await made.passes(30, "n0")

        assert made.says("n1") is not None

    play(story, nodes=2)


def test_who_does_not_lead_writes_nothing() -> None:
    """Another instance may have heard the agent."""

    async def story(made: Game) -> None:
        made.leads = False
        await made.passes(120)
        assert made.says("n0") is None

    play(story)


def test_a_node_that_cannot_be_read_is_told_once() -> None:
    """It stays closed for both reasons, and the annotation is written once and taken off as any other."""

    async def story(made: Game) -> None:
        await made.passes(60)
        await made.known("n0", closed=True)
        ledger = made.daemon.service.books.engine.ledger
        broken = copy.deepcopy(made.cluster.stored("n0", "nodes", ""))
        broken["status"]["allocatable"]["cpu"] = "many"
        made.daemon.service.changed(as_document("Node", msgspec.convert(broken, LiveNode)))
        assert "cannot be read" in ledger.node_at(ledger.index["n0"]).verdicts[0].message
        written = made.cluster.stored("n0", "nodes", "")["metadata"]["resourceVersion"]

        await made.passes(30)
        assert made.cluster.stored("n0", "nodes", "")["metadata"]["resourceVersion"] == written
        await made.passes(10, "n0")
        assert made.says("n0") is None

    play(story)


def test_a_lease_that_is_deleted_opens_the_node() -> None:
    """An operator deletes the Lease after moving the node to another system."""

    async def story(made: Game) -> None:
        await made.passes(60)
        await made.known("n0", closed=True)
        await made.cluster.api.delete(LEASES, SPACE, "partage-agent-n0", DeleteOptions())

        await made.passes(10)

        assert made.says("n0") is None

    play(story)


def test_a_lease_that_outlives_its_node_is_nobodys() -> None:
    """It is not reported as silent. A new node with the name has the agent's full time."""

    async def story(made: Game) -> None:
        ledger = made.daemon.service.books.engine.ledger
        await made.cluster.api.delete("nodes", "", "n0", DeleteOptions())
        await until(lambda: "n0" not in ledger.index)
        await made.passes(120, "n1")
        assert made.sample("partage_agents", state="silent") == 0
        assert made.sample("partage_agents", state="heard") == 1

        await made.cluster.api.create("nodes", node("n0"))
        await until(lambda: "n0" in ledger.index)
        await made.passes(60, "n1")
        assert made.says("n0") is None
        await made.passes(10, "n1")
        assert made.says("n0") is not None

    play(story, nodes=2)


def test_a_fault_of_ours_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """The fault is logged, and counts as a failed look."""

    async def story(made: Game) -> None:
        def broken() -> Books | None:
            raise LedgerError("no such books")

        silence = AgentSilence(
            made.client,
            broken,
            made.recorder,
            lambda: True,
            SilenceSettings(),
            CollectorRegistry(),
        )
        task = asyncio.create_task(silence.run())
        await until(lambda: caplog.text.count("cannot judge which agents are silent") > 1)
        assert not task.done()
        task.cancel()
        await asyncio.wait((task,))

    play(story)


def test_a_lease_without_a_time_is_silent() -> None:
    """Such a Lease does not show that its agent works."""

    async def story(made: Game) -> None:
        patch: dict[str, Any] = {"spec": {"renewTime": None}}
        await made.cluster.api.patch(LEASES, SPACE, "partage-agent-n0", patch)

        await made.passes(80)

        assert made.says("n0") is not None

    play(story)


def test_it_is_told_loudly(caplog: pytest.LogCaptureFixture) -> None:
    """Each node gets an event and a log line, and there is one more line if most agents are silent at once."""

    async def story(made: Game) -> None:
        await made.passes(60)
        await made.known("n0", closed=True)
        await made.passes(10, "n0")
        await made.recorder.flush()

        events = {one["reason"]: one for one in made.cluster.events("n0")}
        assert events["AgentSilent"]["type"] == "Warning"
        assert (
            "no new pod with devices is placed here until it is back"
            in (events["AgentSilent"]["message"])
        )
        assert events["AgentHeard"]["type"] == "Normal"

    play(story, nodes=3)
    assert "3 of 3 agents are silent" in caplog.text
    assert "node n0: the node's agent has not renewed its Lease since" in caplog.text


def test_a_running_scheduler_opens_what_is_closed_where_the_rule_is_off() -> None:
    """No other program would open the node."""

    async def run() -> None:
        async with world(1) as cluster:
            note = {"metadata": {"annotations": {names.AGENT_SILENT: "2026-01-01T00:00:00Z 60"}}}
            await cluster.api.patch("nodes", "", "n0", note)
            options = SchedulerOptions(silence=SilenceSettings(0))
            async with SchedulerDaemon(await cluster.client(), options) as daemon:
                kept = cluster.stored
                await until(
                    lambda: (
                        names.AGENT_SILENT
                        not in kept("n0", "nodes", "")["metadata"].get("annotations", {})
                    )
                )
                await cluster.pod("web")
                ledger = daemon.service.books.engine.ledger
                await until(lambda: not ledger.node_at(ledger.index["n0"]).shut)
                assert await cluster.schedule(daemon.url, "web") == "n0"

    asyncio.run(run())
