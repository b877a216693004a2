"""`partage agent` as one process: it finds and reports devices and serves containers, whatever other part is away."""

import asyncio
import contextlib
import json
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fakes.nri_runtime import FakeRuntime, fake_runtime
from partage.agent.notes import read_notes
from partage.agent.nri.messages import Container, CreateContainerResponse, PodSandbox, Status
from partage.apiserver import ApiServer, serve
from partage.embedded.definitions import DEFINITIONS
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.vendors import names
from partage.wire.record import encode

from nodes_world import older_definition  # isort: skip # beside this file

DEVICES = "devices.scheduling.koordinator.sh"
SLOWEST = 240.0
"""Seconds that a slow machine may take; nothing is measured by them."""
GIB = 2**30


@dataclass
class World:
    """An API server, a container runtime and the files of one node."""

    folder: Path
    server: ApiServer
    runtime: FakeRuntime
    kubeconfig: Path
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    url: str = ""

    @asynccontextmanager
    async def agent(self, *options: str) -> AsyncIterator[None]:
        """The agent as a process, that the runtime asks when this begins."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "partage.cli.main",
            "agent",
            "--node",
            "n1",
            "--port",
            "0",
            "--simulated",
            self.folder / "devices.yaml",
            "--period",
            "0.1",
            "--journal",
            self.folder / "journal",
            "--nri-socket",
            self.runtime.socket,
            "--host-root",
            self.folder,
            "--deadline",
            "60",  # a busy disk may be late
            *options,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        said = ""
        while "metrics at " not in said:
            said = (await process.stderr.readline()).decode()
            assert said, "the agent ended"
        self.url = said.split("metrics at ")[1].strip()
        reading = asyncio.create_task(process.stderr.read())  # or its pipe would fill
        try:
            await self.until(lambda: self.get("/readyz") == "ok\n")
            yield
            process.terminate()
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await reading
            self.runtime.plugin.clear()

    def get(self, path: str) -> str:
        """What the agent serves."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=240) as answer:  # noqa: S310 # ours
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for something that another process does."""
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 # another process
            await asyncio.sleep(0.02)

    def device(self) -> dict[str, Any]:
        """The Device object; empty without one."""
        record = self.server.store.get(DEVICES, "", "n1")
        return dict(record.value) if record else {}

    def labels(self) -> dict[str, str]:
        """Of the Node."""
        record = self.server.store.get("nodes", "", "n1")
        assert record is not None
        return dict(record.value["metadata"]["labels"])

    def health(self) -> list[bool]:
        """Of the devices in the object."""
        return [one["health"] for one in (self.device().get("spec") or {}).get("devices", ())]

    async def create(self, uid: str) -> CreateContainerResponse | Status:
        """Ask for a container of a pod with a share of the first card."""
        card = json.loads((self.folder / "journal/node.json").read_text())["device"]["spec"]
        first = next(one for one in card["devices"] if one["type"] == "gpu")
        grant = Grant(
            "main", DeviceType.GPU, 0, first["id"], 300, GIB, GrantMode.SHARE, protocol="qgpu"
        )
        record = encode(Allocation(uid, "team", uid, "n1", (grant,)))
        pod = PodSandbox(f"s-{uid}", uid, uid, "team", annotations={names.ALLOCATION: record})
        return await self.runtime.create(pod, Container(f"c-{uid}", f"s-{uid}", "main"), 60)


@contextlib.asynccontextmanager
async def world_of(folder: Path) -> AsyncIterator[World]:
    """A world beside a fresh server with one Node."""
    server = ApiServer()
    for definition in DEFINITIONS:
        await server.create("customresourcedefinitions.apiextensions.k8s.io", definition)
    labels = {names.QGPU_POLICY: "fixed-share"}
    await server.create("nodes", {"metadata": {"name": "n1", "labels": labels}})
    (folder / "devices.yaml").write_text("{model: H100-80GB-HBM3, cards: 2}")
    async with (
        asyncio.timeout(SLOWEST),
        serve(server) as url,
        fake_runtime(folder / "nri.sock") as runtime,
    ):
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {}}],
                    "clusters": [{"name": "c", "cluster": {"server": url}}],
                }
            )
        )
        yield World(folder, server, runtime, kubeconfig)


async def test_devices_are_reported_and_containers_are_served(tmp_path: Path) -> None:
    """One command: the Device object, the node's labels, the lease, and a share given with its variables."""
    async with (
        world_of(tmp_path) as world,
        world.agent("--kubeconfig", str(world.kubeconfig), "--qgpu"),
    ):
        await world.until(lambda: world.health() == [True, True])
        answer = await world.create("u1")
        assert isinstance(answer, CreateContainerResponse), answer
        assert answer.adjust is not None
        env = {one.key: one.value for one in answer.adjust.env}
        devices = world.device()["spec"]["devices"]
        assert env["NVIDIA_VISIBLE_DEVICES"] == devices[0]["id"]
        await world.until(
            lambda: world.server.store.get(
                "leases.coordination.k8s.io", "kube-node-lease", "partage-agent-n1"
            )
        )
        await world.until(lambda: world.labels().get(names.GPU_VENDOR) == "nvidia")
        metrics = await asyncio.to_thread(world.get, "/metrics")
        assert 'gpu_core_allocated{card="0",node="n1"} 30.0' in metrics
        assert 'pod_core_request{namespace="team",node="n1",pod="u1"} 30.0' in metrics


async def test_settings_of_config_maps_hold_for_kubelet_and_containers(tmp_path: Path) -> None:
    """They hold from the start on: the published names of resources never reach the kubelet."""
    pytest.importorskip("grpc")

    async with world_of(tmp_path) as world:
        text = "nvidia:\n  resourceCountName: example.com/vgpu\n  deviceSplitCount: 3\n"
        made = {
            "metadata": {"name": "hami-scheduler-device"},
            "data": {"device-config.yaml": text},
        }
        await world.server.create("configmaps", made, "default")
        options = ("--config-map", "default/hami-scheduler-device", "--kubelet-dir", str(tmp_path))
        async with world.agent("--kubeconfig", str(world.kubeconfig), *options):
            metrics = await asyncio.to_thread(world.get, "/metrics")
            assert 'partage_agent_kubelet_units{resource="example.com/vgpu"} 6.0' in metrics
            assert 'resource="nvidia.com/gpu"' not in metrics


@pytest.mark.parametrize("way", ["annotation", "file"])
async def test_a_simulated_card_breaks_on_demand(tmp_path: Path, way: str) -> None:
    """An annotation of the Node or the file breaks it; then it is well again."""
    async with world_of(tmp_path) as world:

        async def say(fault: str) -> None:
            if way == "file":
                text = f"{{model: H100-80GB-HBM3, cards: 2, faults: '{fault}'}}"
                (tmp_path / "devices.yaml").write_text(text)
                return
            changed = {"metadata": {"annotations": {names.SIMULATE_UNHEALTHY: fault}}}
            await world.server.patch("nodes", "", "n1", changed)

        async with world.agent("--kubeconfig", str(world.kubeconfig)):
            await world.until(lambda: world.health() == [True, True])
            await say("1=Xid 79")
            await world.until(lambda: world.health() == [True, False])
            await say("")
            await world.until(lambda: world.health() == [True, True])


async def test_an_agent_that_starts_while_the_api_server_is_away_serves_as_before(
    tmp_path: Path,
) -> None:
    """What was last known of the node is on its disk; the policy of its label is among it."""

    def world_url(world: World) -> str:
        url: str = json.loads(world.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        return url

    async with world_of(tmp_path) as world:
        async with world.agent("--kubeconfig", str(world.kubeconfig)):
            await world.until(lambda: world.health() == [True, True])
        away = tmp_path / "away"
        away.write_text(
            world.kubeconfig.read_text().replace(world_url(world), "http://127.0.0.1:1")
        )
        async with world.agent("--kubeconfig", str(away)):
            answer = await world.create("u2")
            assert isinstance(answer, CreateContainerResponse), answer
            kept = json.loads((tmp_path / "journal/node.json").read_text())
            assert kept["node"]["metadata"]["labels"][names.QGPU_POLICY] == "fixed-share"


async def test_without_a_cluster_devices_are_given_and_nothing_is_reported(tmp_path: Path) -> None:
    """`--standalone`."""
    async with world_of(tmp_path) as world:
        async with world.agent("--standalone"):
            answer = await world.create("u3")
            assert isinstance(answer, CreateContainerResponse), answer
        assert world.device() == {}


async def test_what_operators_have_to_know_stands_on_the_node(tmp_path: Path) -> None:
    """The note is on the Node and not only in the log: lines of a journal are damaged."""
    async with world_of(tmp_path) as world:
        (tmp_path / "journal").mkdir(exist_ok=True)
        (tmp_path / "journal/containers.jsonl").write_text("damaged\ndamaged\n")
        async with world.agent("--kubeconfig", str(world.kubeconfig)):

            def noted() -> str:
                node = world.server.store.get("nodes", "", "n1")
                assert node is not None
                return str((node.metadata.get("annotations") or {}).get(names.AGENT_NOTES, ""))

            await world.until(noted)
            (note,) = read_notes(noted())
            assert note.code == "JournalDamaged"
            assert 'partage_agent_notes{code="JournalDamaged"} 1.0' in world.get("/metrics")


async def test_a_definition_older_than_the_agent_is_named(tmp_path: Path) -> None:
    """The agent serves all the same, and says which fields the API server does not keep."""
    async with world_of(tmp_path) as world:
        kind = "customresourcedefinitions.apiextensions.k8s.io"
        await world.server.patch(kind, "", DEVICES, {"spec": older_definition()["spec"]})
        async with world.agent("--kubeconfig", str(world.kubeconfig)):
            await world.until(world.health)
            given = await world.create("a")
            assert isinstance(given, CreateContainerResponse)

            def noted() -> bool:
                return 'code="DeviceFields"} 1.0' in world.get("/metrics")

            await world.until(noted)
