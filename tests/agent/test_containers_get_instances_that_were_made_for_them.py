"""From a bound pod to its instance in the container, and back: agent, API server, driver and files."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from claims_world import until
from click.testing import CliRunner

from fakes.kept_spans import KeptSpans
from fakes.kube_server import KubeServer
from fakes.nri_runtime import FakeRuntime, fake_runtime
from fakes.nvml import FakeNvml
from partage.agent.mig.cdi import Numbers, Specs
from partage.agent.mig.journal import FileJournals
from partage.agent.mig.runner import Node as CardNode
from partage.agent.nri.messages import (
    Adjustment,
    Container,
    CreateContainerResponse,
    PodSandbox,
    Status,
)
from partage.agent.nri.plugin import PluginOptions
from partage.cli.agent import agent
from partage.daemon.agent import AgentDaemon, AgentOptions
from partage.daemon.instances import NodeInstances
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config, UserConfig
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.tracing.context import trace_of
from partage.tracing.spans import INSTANCE
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire import record
from partage.wire.context import Context

PODS = "/api/v1/pods"
PATIENCE = 240.0
NODE = Node(
    "n",
    devices=tuple(
        Device(DeviceType.GPU, i, f"GPU-{i}", vendor="nvidia", memory_bytes=80 << 30, slots=7)
        for i in range(2)
    ),
)
MAIN = Container("c", "p", "main")


def _record(uid: str, *places: tuple[int, int]) -> str:
    """Instances of one slice by (card, start)."""
    grants = tuple(
        Grant(
            "main",
            DeviceType.GPU,
            card,
            f"GPU-{card}",
            0,
            10 << 30,
            GrantMode.MIG,
            protocol="hami",
            mig=MigSlice("1g.10gb", start, 1),
        )
        for card, start in places
    )
    return record.encode(Allocation(uid, "team", "train", "n", grants))


class _World:
    """What outlives an agent: the API server, the driver, the runtime and the disk."""

    def __init__(self, folder: Path, server: KubeServer, runtime: FakeRuntime) -> None:
        self.folder, self.server, self.runtime = folder, server, runtime
        self.nvml = FakeNvml(cards=2)
        self.specs = Specs(folder / "cdi")

    def bound(self, *places: tuple[int, int]) -> PodSandbox:
        """A pod as the scheduler binds it, and as the runtime describes it."""
        made = self.server.store.create(
            PODS,
            "team",
            {
                "metadata": {"name": "train", "namespace": "team"},
                "spec": {"containers": [{"name": "main"}]},
            },
        )
        uid = made["metadata"]["uid"]
        told = {names.ALLOCATION: _record(uid, *places)}
        bound = {
            "metadata": {**made["metadata"], "annotations": told},
            "spec": {**made["spec"], "nodeName": "n"},
        }
        self.server.store.update(PODS, "team", "train", bound)
        return PodSandbox("p", "train", uid, "team", {}, told)

    def numbers(self) -> Numbers:
        """Capabilities of what is on the cards."""
        minors = {}
        for card in self.nvml.cards():
            for one in self.nvml.instances(card.uuid):
                base = 100 * card.minor + 10 * one.id
                minors[f"gpu{card.minor}/gi{one.id}/access"] = base
                minors[f"gpu{card.minor}/gi{one.id}/ci0/access"] = base + 1
        return Numbers(195, 510, 511, minors)

    def starts(self, card: str) -> list[int]:
        """Where instances are."""
        return [one.start for one in self.nvml.instances(card)]

    @asynccontextmanager
    async def agent(self, tracer: Tracer = NO_TRACES) -> AsyncIterator[AgentDaemon]:
        """An agent, from its start to its end."""
        stop = asyncio.Event()
        node = CardNode(
            self.nvml,
            FileJournals(self.folder / "mig"),
            self.specs,
            lambda: str(self.nvml.epoch),
            self.numbers,
        )
        options = AgentOptions(
            self.folder / "journal", plugin=PluginOptions(self.runtime.socket, deadline=30.0)
        )
        async with Client(Config(ClusterConfig(self.server.url), UserConfig())) as client:
            daemon = AgentDaemon(
                NODE,
                Context.of(Settings(), FAMILIES),
                options,
                lambda tallies, notes: NodeInstances(
                    client, "n", node, self.specs, tallies, tracer, notes
                ),
            )
            task = asyncio.create_task(daemon.run(stop))
            await self.runtime.plugin.wait()
            try:
                yield daemon
            finally:
                stop.set()
                await task

    async def created(self, pod: PodSandbox) -> Adjustment:
        """Ask for the container until it may be made, as the kubelet does."""
        while True:
            answer = await self.runtime.create(pod, MAIN, PATIENCE)
            if isinstance(answer, CreateContainerResponse):
                assert answer.adjust is not None
                return answer.adjust
            assert "NoInstance" in answer.message, answer
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def world_of(folder: Path) -> AsyncIterator[_World]:
    """A world beside an API server and a runtime."""
    async with (
        asyncio.timeout(PATIENCE),
        KubeServer() as server,
        fake_runtime(folder / "nri.sock") as runtime,
    ):
        yield _World(folder, server, runtime)


def _visible(given: Adjustment) -> list[str]:
    return next(one.value for one in given.env if one.key == "NVIDIA_VISIBLE_DEVICES").split(",")


async def test_a_bound_pod_gets_its_instances_and_gives_them_back(tmp_path: Path) -> None:
    """They are made at exactly the places of the record, equal ones on two cards kept apart, and then removed."""
    async with world_of(tmp_path) as world, world.agent() as daemon:
        pod = world.bound((0, 3), (1, 3))
        given = await world.created(pod)
        assert (world.starts("GPU-0"), world.starts("GPU-1")) == ([3], [3])
        uuids = [world.nvml.instances(card)[0].computes[0].uuid for card in ("GPU-0", "GPU-1")]
        assert _visible(given) == uuids
        labels = {
            "card": "GPU-0",
            "profile": "1g.10gb",
            "start": "3",
            "size": "1",
            "mig_uuid": uuids[0],
            "gpu_instance": "1",
            "compute_instance": "0",
            "pod": pod.uid,
            "state": "ready",
        }
        series = daemon.tallies.registry.get_sample_value
        assert series("partage_agent_instance_info", labels) == 1
        assert given.linux is not None
        files = {one.path: (one.major, one.minor) for one in given.linux.devices}
        assert files == {
            "/dev/nvidiactl": (195, 255),
            "/dev/nvidia0": (195, 0),
            "/dev/nvidia1": (195, 1),
            "/dev/nvidia-uvm": (510, 0),
            "/dev/nvidia-uvm-tools": (510, 1),
            "/dev/nvidia-caps/nvidia-cap10": (511, 10),
            "/dev/nvidia-caps/nvidia-cap11": (511, 11),
            "/dev/nvidia-caps/nvidia-cap110": (511, 110),
            "/dev/nvidia-caps/nvidia-cap111": (511, 111),
        }
        world.server.store.delete(PODS, "team", "train")
        await world.runtime.removed(MAIN)
        await until(lambda: not world.starts("GPU-0") + world.starts("GPU-1"))
        refused = await world.runtime.create(pod, MAIN, PATIENCE)
        assert isinstance(refused, Status)
        assert "NoInstance" in refused.message


async def test_an_instance_stays_while_a_container_has_it(tmp_path: Path) -> None:
    """Its pod is gone, by force or by a restored backup, and another pod of the backup has its place."""
    async with world_of(tmp_path) as world, world.agent() as daemon:
        assert daemon.instances is not None
        given = _visible(await world.created(world.bound((0, 3))))
        world.server.store.delete(PODS, "team", "train")
        back = world.bound((0, 3))
        why = daemon.instances.instance
        await until(lambda: "Conflict" in why(back.uid, "GPU-0", MigSlice("1g.10gb", 3, 1)).why)
        assert [one.computes[0].uuid for one in world.nvml.instances("GPU-0")] == given

        await world.runtime.removed(MAIN)

        assert _visible(await world.created(back)) != given


async def test_how_long_a_pod_waited_for_its_instances_is_told(tmp_path: Path) -> None:
    """One span for each instance, in the pod's trace; none for instances from before the agent."""
    async with world_of(tmp_path) as world:
        kept = KeptSpans()
        async with world.agent(kept):
            pod = world.bound((0, 3), (1, 3))
            await world.created(pod)
        world.runtime.plugin.clear()
        before = list(kept.told)
        async with world.agent(kept):
            await world.created(pod)

        assert kept.told == before
        trace = trace_of(pod.uid, {})
        assert {found for found, _ in kept.told} == {trace.trace}
        spans = sorted((span for _, span in kept.told), key=lambda s: str(s.attributes))
        assert [span.attributes["partage.card"] for span in spans] == ["GPU-0", "GPU-1"]
        for span in spans:
            assert (span.kind, span.parent) == (INSTANCE, trace.above)
            assert span.attributes["partage.profile"] == "1g.10gb"
            assert span.attributes["partage.start"] == 3
            assert {*span.attributes} <= {
                "k8s.namespace.name",
                "k8s.node.name",
                "k8s.pod.name",
                "k8s.pod.uid",
                "partage.card",
                "partage.profile",
                "partage.start",
            }
            assert span.start < span.end


async def test_a_new_agent_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """What is wanted keeps its UUID; what was wanted is removed, although no event reported its end."""
    async with world_of(tmp_path) as world:
        pod = world.bound((0, 2))
        async with world.agent():
            before = _visible(await world.created(pod))
        world.runtime.plugin.clear()
        async with world.agent():
            assert _visible(await world.created(pod)) == before
        world.runtime.plugin.clear()
        world.server.store.delete(PODS, "team", "train")
        assert world.starts("GPU-0") == [2]
        async with world.agent():
            await until(lambda: not world.starts("GPU-0"))


async def test_a_place_that_others_have_is_told(tmp_path: Path) -> None:
    """The refusal names what is in the way; the instance of others stays."""
    async with world_of(tmp_path) as world:
        foreign = world.nvml.foreign("1g.10gb", 3)
        async with world.agent() as daemon:
            pod = world.bound((0, 3))
            message = ""
            while "Foreign" not in message:
                answer = await world.runtime.create(pod, MAIN, PATIENCE)
                assert isinstance(answer, Status), answer
                message = answer.message
            assert "1g.10gb at 3 of card GPU-0 is not made yet: Foreign" in message
            assert world.nvml.instances("GPU-0") == (foreign,)
            value = daemon.tallies.registry.get_sample_value(
                "partage_agent_instances", {"card": "GPU-0", "state": "foreign"}
            )
            assert value == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        pytest.param(["--devices", "any"], "--mig needs the API server", id="no server"),
        pytest.param([], "--mig: ", id="no driver"),
    ],
)
def test_what_instances_need_is_said(
    arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names what is missing; exit 2."""
    config = tmp_path / "config"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, "
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], "
        "contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setitem(sys.modules, "pynvml", None)

    found = CliRunner().invoke(agent, ["--node", "n", "--mig", *arguments])

    assert found.exit_code == 2
    assert why in found.stderr
    assert "Traceback" not in found.output
