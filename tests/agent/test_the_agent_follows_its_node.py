"""The node's own objects are read from the API server, and whatever goes wrong there changes nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from claims_world import until

from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.agent.device_document import device_document
from partage.agent.discovery.found import Roots
from partage.agent.reporting import ReportingSettings
from partage.daemon.discovering import DiscoveryOptions, NodeDiscovery
from partage.daemon.node_facts import Heartbeat, NodeFacts
from partage.daemon.node_pods import NodePods
from partage.daemon.settings import NodeSettings
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config, UserConfig
from partage.kube.errors import NotServed
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import HamiSettings, Settings
from partage.wire.context import Context

CONTEXT = Context.of(Settings(), FAMILIES)
NODES = "/api/v1/nodes"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


def _device(*uuids: str) -> dict[str, Any]:
    resources = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi"}
    cards = [
        {"type": "gpu", "health": True, "id": uuid, "minor": minor, "resources": resources}
        for minor, uuid in enumerate(uuids)
    ]
    return {"metadata": {"name": "n1"}, "spec": {"devices": cards}}


def _client(server: KubeServer) -> Client:
    return Client(Config(ClusterConfig(server.url), UserConfig()))


def _cards(node: Node) -> list[str]:
    return [device.uuid for device in node.devices]


async def test_a_node_is_read_with_and_without_its_device() -> None:
    """A node that has no Device object is a node without devices."""
    async with KubeServer() as server, _client(server) as client:
        server.store.create(NODES, None, {"metadata": {"name": "n1"}})
        facts = NodeFacts(client, "n1", lambda: CONTEXT, [].append)
        assert _cards(await facts.read()) == []
        server.store.create(DEVICES, None, _device("GPU-a"))
        assert _cards(await facts.read()) == ["GPU-a"]


async def test_what_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Refusals are logged once; the node is passed on as soon as it can be read, and when it changes."""
    async with KubeServer() as server, _client(server) as client:
        server.store.create(NODES, None, {"metadata": {"name": "n1"}})
        server.store.create(DEVICES, None, _device("GPU-a"))
        server.fail(Fault(path=NODES, status=403, reason="Forbidden", times=2))
        told: asyncio.Queue[Node] = asyncio.Queue()
        facts = NodeFacts(client, "n1", lambda: CONTEXT, told.put_nowait, period=0.05)
        task = asyncio.create_task(facts.run())
        async with asyncio.timeout(240):
            assert _cards(await told.get()) == ["GPU-a"]
            server.store.update(DEVICES, None, "n1", _device("GPU-a", "GPU-b"))
            while _cards(await told.get()) != ["GPU-a", "GPU-b"]:
                pass
        task.cancel()
        server.fail(Fault(path=DEVICES, status=404))  # a proxy answers, which knows no Device
        with pytest.raises(NotServed):
            await facts.read()
        server.store.delete(DEVICES, None, "n1")
        assert not (await facts.read()).devices

    assert caplog.text.count("node n1 cannot be read") == 1


async def test_a_config_map_that_breaks_a_rule_leaves_what_was_in_force(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The scheduler service does the same; the published defaults hold once the ConfigMap is deleted."""
    where, name = "/api/v1/configmaps", "hami-device-plugin"

    def written(split: str) -> dict[str, Any]:
        text = f'{{"nodeconfig": [{{"name": "n1", "devicesplitcount": {split}}}]}}'
        return {"metadata": {"name": name, "namespace": "team"}, "data": {"config.json": text}}

    async with KubeServer() as server, _client(server) as client:
        settings = NodeSettings(client, [("team", name)])

        async def read() -> list[int | None]:
            await settings.read()
            return [one.split_count for one in settings.settings.hami.nodes.values()]

        assert await read() == []
        server.store.create(where, "team", written("3"))
        assert await read() == [3]
        server.store.update(where, "team", name, written('"many"'))
        assert await read() == [3]
        server.store.update(where, "team", name, written("4"))
        # A proxy answers this without knowing the object.
        server.fail(Fault(path="/configmaps/", status=404))
        with pytest.raises(NotServed):
            await read()
        assert settings.settings.hami.nodes["n1"].split_count == 3
        assert await read() == [4]
        server.store.delete(where, "team", name)
        assert await read() == []

    assert caplog.text.count("devicesplitcount") == 1


async def test_an_agent_that_reports_nothing_says_that_it_is_there() -> None:
    """It renews the lease that the scheduler looks at, through refusals."""
    async with KubeServer() as server, _client(server) as client:
        kept = "/apis/coordination.k8s.io/v1/leases"
        server.fail(Fault(path="/leases", status=403, reason="Forbidden", times=2))
        made = asyncio.Event()
        server.store.listeners.append(lambda _event: made.set())
        often = ReportingSettings(lease_period=0.01)
        task = asyncio.create_task(Heartbeat(client, "n1", often).run())
        async with asyncio.timeout(240):
            await made.wait()
        task.cancel()
        (lease,) = server.store.list(kept, "kube-node-lease")
        assert lease["metadata"]["name"] == "partage-agent-n1"
        assert names.AGENT in lease["metadata"]["labels"]


async def test_a_node_that_was_made_again_gets_labels_and_lease_again() -> None:
    """The kubelet makes it again, with another UID; a Lease of the old one would be deleted again and again."""
    kept = "/apis/coordination.k8s.io/v1/leases"
    label = {names.ISOLATION_PROVIDER: "partage"}

    async with KubeServer() as server, _client(server) as client:
        often = ReportingSettings(lease_period=0.01, isolation=label)

        async def has(uid: str) -> None:
            while True:
                node = next(server.store.list(NODES, ""))["metadata"]
                owners = [
                    one["uid"]
                    for lease in server.store.list(kept, "kube-node-lease")
                    for one in lease["metadata"].get("ownerReferences", ())
                ]
                if node.get("labels") == label and owners == [uid]:
                    return
                await asyncio.sleep(0.01)

        made = server.store.create(NODES, "", {"metadata": {"name": "n1"}})
        task = asyncio.create_task(Heartbeat(client, "n1", often).run())
        async with asyncio.timeout(240):
            await has(made["metadata"]["uid"])
            server.store.delete(NODES, "", "n1")
            again = server.store.create(NODES, "", {"metadata": {"name": "n1"}})
            assert again["metadata"]["uid"] != made["metadata"]["uid"]
            await has(again["metadata"]["uid"])
        task.cancel()
        await asyncio.wait((task,))


async def test_a_lease_is_renewed_although_the_node_cannot_be_read() -> None:
    """The agent reads its Node now and then; a refusal of that, or a long wait, closes no node."""

    def renewals(server: KubeServer) -> int:
        return sum("/leases" in one.path and one.method != "GET" for one in server.requests)

    async with KubeServer() as server, _client(server) as client:
        server.store.create(NODES, "", {"metadata": {"name": "n1"}})
        often = ReportingSettings(lease_period=0.01, period=0.01)
        task = asyncio.create_task(Heartbeat(client, "n1", often).run())
        async with asyncio.timeout(240):
            for fault in (
                Fault(path=NODES, status=403, reason="Forbidden", times=1000),
                Fault(path=NODES, status=429, retry_after="600", times=1000),
            ):
                while not renewals(server):  # noqa: ASYNC110 # the task renews
                    await asyncio.sleep(0.01)
                server.fail(fault)
                enough = renewals(server) + 20
                while renewals(server) < enough:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait((task,))


async def test_a_search_before_its_report_is_no_change(tmp_path: Path) -> None:
    """Otherwise the node would be read and written twice in each period, for ever."""
    (tmp_path / "devices.yaml").write_text("{model: Tesla-T4, cards: 1}")
    roots = Roots(simulated=tmp_path / "devices.yaml")
    options = DiscoveryOptions(roots, (), ReportingSettings(), kept=tmp_path)
    taken: list[Node] = []
    discovery = NodeDiscovery("n1", options, taken.append, None)
    node = {"metadata": {"name": "n1", "uid": "of-n1"}}
    reported = device_document("n1", discovery.found, None, "2026-11-28T00:00:00Z", "of-n1")

    discovery._hear(node, reported, discovery.found)
    before = len(taken)
    for _ in range(3):
        discovery._hear(node, None, discovery.found)
        discovery._hear(node, reported, discovery.found)

    assert len(taken) == before


async def test_changed_settings_are_passed_on_with_an_unchanged_node(tmp_path: Path) -> None:
    """A ConfigMap that changes while the agent runs holds for the kubelet's units and for new containers."""
    (tmp_path / "devices.yaml").write_text("{model: Tesla-T4, cards: 1}")
    roots = Roots(simulated=tmp_path / "devices.yaml")
    options = DiscoveryOptions(roots, (), ReportingSettings(period=0.01), kept=tmp_path)
    settings = [Settings()]
    taken: list[tuple[Node, Settings]] = []

    discovery = NodeDiscovery(
        "n1",
        options,
        lambda node: taken.append((node, settings[0])),
        None,
        lambda: settings[0],
    )
    task = asyncio.create_task(discovery.run())
    settings[0] = Settings(hami=HamiSettings(count_name="example.com/vgpu"))
    async with asyncio.timeout(240):
        while len(taken) < 2:  # noqa: ASYNC110 # a thread searches
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait((task,))

    (before, _), (after, said) = taken
    assert before.devices == after.devices
    assert said.hami.count_name == "example.com/vgpu"


async def test_many_changes_of_pods_are_read_at_once() -> None:
    """A reader reads all pods of the node, and a tenant may change his as often as he likes: four times a second at most."""
    pod: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"nodeName": "n1"},
    }
    seen: list[str] = []

    def changed() -> None:
        if pods.objects:
            (one,) = pods.objects.values()
            seen.append((one.metadata.annotations or {}).get("partage.io/note", ""))

    async with KubeServer() as server, _client(server) as client:
        pods = NodePods(client, "n1", changed)
        assert pods.objects is None
        server.store.create("/api/v1/pods", "team", pod)
        loop = asyncio.get_running_loop()
        start, task = loop.time(), asyncio.create_task(pods.run())
        async with asyncio.timeout(240):
            for turn in range(100):
                pod["metadata"]["annotations"] = {"partage.io/note": str(turn)}
                server.store.update("/api/v1/pods", "team", "p", pod)
                await asyncio.sleep(0.01)
            await until(lambda: seen[-1:] == ["99"])
        assert len(seen) <= (loop.time() - start) / 0.25 + 1
        task.cancel()
        await asyncio.wait((task,))
