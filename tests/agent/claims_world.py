"""A node whose agent is a DRA driver, the state that outlives the agent, and its callers: kubelet and runtime."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from fakes.kube_server import KubeServer
from fakes.nri_runtime import FakeRuntime, fake_runtime
from fakes.nvml import FakeNvml
from partage.agent.dra import messages as said
from partage.agent.dra.plugin import DriverFiles
from partage.agent.host import Host
from partage.agent.mig.cdi import Numbers, Specs
from partage.agent.mig.journal import FileJournals
from partage.agent.mig.runner import Node as CardNode
from partage.agent.nri.messages import (
    Adjustment,
    Container,
    CreateContainerResponse,
    PodSandbox,
)
from partage.agent.nri.plugin import PluginOptions
from partage.daemon.agent import AgentDaemon, AgentOptions, IsolationOptions
from partage.daemon.claims import DriverOptions, ResourceDriver
from partage.daemon.instances import NodeInstances
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config, UserConfig
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.node import Node
from partage.vendors.catalog import FAMILIES
from partage.vendors.mig import MIG_CARDS
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.record import encode

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
PATIENCE = 240.0
GIB = 2**30
CUT = Cutting(MIG_CARDS["A100-80GB"].axis, frozenset())
NODE = Node(
    "n",
    devices=tuple(
        Device(
            DeviceType.GPU,
            i,
            f"GPU-{i}",
            vendor="nvidia",
            memory_bytes=80 * GIB,
            mode=SliceMode.EITHER,
            cutting=CUT,
        )
        for i in range(2)
    ),
)


class World:
    """What outlives an agent: API server, driver of the cards, runtime and disk."""

    def __init__(self, folder: Path, server: KubeServer, runtime: FakeRuntime) -> None:
        self.folder, self.server, self.runtime = folder, server, runtime
        self.nvml = FakeNvml(cards=2)
        self.files = DriverFiles(folder / "kubelet", look=0.01)
        self.cdi = folder / "cdi"
        self.node = NODE
        self.isolation = IsolationOptions()
        self.look = 3600.0
        server.store.create("/api/v1/nodes", None, {"metadata": {"name": "n"}})

    def claim(self, name: str, *results: dict[str, Any], uid: str = "") -> said.Claim:
        """A claim that was allocated here; the kubelet's name for it."""
        listed = [
            {"driver": "gpu.partage.io", "pool": "n", "request": f"r{number}", **one}
            for number, one in enumerate(results)
        ]
        made = self.server.store.create(
            CLAIMS,
            "team",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "uid": uid or f"uid-{name}"},
                "status": {"allocation": {"devices": {"results": listed}}},
            },
        )
        return said.Claim("team", made["metadata"]["uid"], name)

    @asynccontextmanager
    async def agent(self, *, mig: bool = True) -> AsyncIterator[AgentDaemon]:
        """An agent, from its start to its end."""
        stop = asyncio.Event()
        specs = Specs(self.cdi)
        node = CardNode(
            self.nvml,
            FileJournals(self.folder / "mig"),
            specs,
            lambda: str(self.nvml.epoch),
            self.numbers,
        )
        options = AgentOptions(
            self.folder / "journal",
            plugin=PluginOptions(self.runtime.socket, deadline=30.0),
            roots=Host(self.folder, simulated=True),
            isolation=self.isolation,
        )
        driver = DriverOptions(
            self.files, self.cdi, self.folder / "journal", patience=PATIENCE, look=self.look
        )
        async with Client(Config(ClusterConfig(self.server.url), UserConfig())) as client:
            daemon = AgentDaemon(
                self.node,
                Context.of(Settings(), FAMILIES),
                options,
                (
                    lambda tallies, notes: NodeInstances(
                        client, "n", node, specs, tallies, notes=notes
                    )
                )
                if mig
                else None,
                lambda made: [ResourceDriver(client, made, "n", driver)],
            )
            daemon.take(self.node)
            task = asyncio.create_task(daemon.run(stop))
            await self.runtime.plugin.wait()
            await until(self.files.registry.exists)
            try:
                yield daemon
            finally:
                stop.set()
                await task

    def numbers(self) -> Numbers:
        """Capabilities of what is on the cards."""
        minors = {}
        for card in self.nvml.cards():
            for one in self.nvml.instances(card.uuid):
                base = 100 * card.minor + 10 * one.id
                minors[f"gpu{card.minor}/gi{one.id}/access"] = base
                minors[f"gpu{card.minor}/gi{one.id}/ci0/access"] = base + 1
        return Numbers(195, 510, 511, minors)

    # --- as the kubelet does -----------------------------------------------------------------

    async def call(self, socket: Path, method: str, argument: bytes) -> bytes:
        """One call."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
            answer: bytes = await channel.unary_unary(f"/{method}")(argument, timeout=PATIENCE)
            return answer

    async def prepare(self, *claims: said.Claim, service: int = 0) -> dict[str, said.Prepared]:
        """NodePrepareResources; what became of each claim by its uid."""
        method = f"{said.SERVICES[service]}/NodePrepareResources"
        asked = said.ClaimRequest(claims).encode()
        answer = said.PrepareResponse.decode(await self.call(self.files.service, method, asked))
        return {one.uid: one.prepared or said.Prepared() for one in answer.claims}

    async def prepared(self, claim: said.Claim) -> tuple[said.Device, ...]:
        """Devices of a claim that is prepared."""
        found = (await self.prepare(claim))[claim.uid]
        assert not found.error
        return found.devices

    async def refused(self, claim: said.Claim) -> str:
        """Why a claim is not prepared."""
        found = (await self.prepare(claim))[claim.uid]
        assert not found.devices
        return found.error

    async def unprepare(self, *claims: said.Claim, service: int = 0) -> list[str]:
        """NodeUnprepareResources; what went wrong with each."""
        method = f"{said.SERVICES[service]}/NodeUnprepareResources"
        asked = said.ClaimRequest(claims).encode()
        answer = said.UnprepareResponse.decode(await self.call(self.files.service, method, asked))
        assert [one.uid for one in answer.claims] == [one.uid for one in claims]
        return ["" if one.unprepared is None else one.unprepared.error for one in answer.claims]

    # --- as the runtime does -----------------------------------------------------------------

    def env(self, devices: tuple[said.Device, ...], *requests: str) -> tuple[str, ...]:
        """What CDI puts into a container that has these requests of a claim."""
        found: dict[str, list[str]] = {}
        for path in self.cdi.glob("*.json"):
            spec = json.loads(path.read_bytes())
            for one in spec["devices"]:
                # Of a device that starts with a digit, runtimes leave out the file unless it is of 0.5.0.
                assert one["name"][0].isalpha()
                found[f"{spec['kind']}={one['name']}"] = one["containerEdits"].get("env", [])
        return tuple(
            text
            for device in devices
            if not requests or set(requests) & set(device.request_names)
            for name in device.cdi_device_ids
            for text in found[name]
        )

    async def create(
        self, env: tuple[str, ...], name: str = "main", pod: str = "web", **others: Any
    ) -> Adjustment | str:
        """Make a container; what it gets, or why it is not made."""
        sandbox = PodSandbox(f"s-{pod}", pod, f"uid-pod-{pod}", "team", **others)
        container = Container(f"c-{pod}-{name}", sandbox.id, name, env=env)
        answer = await self.runtime.create(sandbox, container, PATIENCE)
        if isinstance(answer, CreateContainerResponse):
            return answer.adjust or Adjustment()
        return answer.message

    @staticmethod
    def container(name: str = "main", pod: str = "web") -> Container:
        """A container as `create` makes it."""
        return Container(f"c-{pod}-{name}", f"s-{pod}", name)

    async def given(
        self, env: tuple[str, ...], name: str = "main", pod: str = "web"
    ) -> dict[str, str]:
        """Variables of a container that is made."""
        found = await self.create(env, name, pod)
        assert isinstance(found, Adjustment), found
        return {one.key: one.value for one in found.env}


async def until(holds: Callable[[], object]) -> None:
    """Wait for something that sends no event when it happens."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 # files have no event here
            await asyncio.sleep(0.01)


def share(card: int, cores: int, memory: str, identity: str = "s") -> dict[str, Any]:
    """What an allocation says of a share of a card."""
    return {
        "device": f"gpu-{card}",
        "shareID": f"{identity}-{card}",
        "consumedCapacity": {"cores": str(cores), "memory": memory},
    }


@contextlib.asynccontextmanager
async def world_of(folder: Path) -> AsyncIterator[World]:
    """A world beside an API server and a runtime."""
    async with KubeServer() as server, fake_runtime(folder / "nri.sock") as runtime:
        yield World(folder, server, runtime)


def record(milli: int, memory: int, uid: str = "uid-pod-old", card: int = 0) -> str:
    """The record of another pod that has a share of a card."""
    grant = Grant(
        "main",
        DeviceType.GPU,
        card,
        f"GPU-{card}",
        milli,
        memory,
        GrantMode.SHARE,
        protocol="hami",
    )
    return encode(Allocation(uid, "team", "old", "n", (grant,)))
