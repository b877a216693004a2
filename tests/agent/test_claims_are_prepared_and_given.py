"""ResourceClaims on one node: what a kubelet asks of a driver, what containers get, and who is refused."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from fakes.kube_server import KubeServer
from fakes.nri_runtime import FakeRuntime, fake_runtime
from fakes.nvml import FakeNvml
from partage.agent.dra import messages as said
from partage.agent.dra.plugin import DriverFiles
from partage.agent.host import Host
from partage.agent.isolation.providers import HamiCore
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
from partage.cli.agent import agent
from partage.daemon.agent import AgentDaemon, AgentOptions, IsolationOptions
from partage.daemon.claims import DriverOptions, ResourceDriver
from partage.daemon.instances import NodeInstances
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config, UserConfig
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.node import Node
from partage.vendors import names
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


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="dra") as made:
        yield Path(made)


class World:
    """What outlives an agent: API server, driver of the cards, runtime and disk."""

    def __init__(self, folder: Path, server: KubeServer, runtime: FakeRuntime) -> None:
        self.folder, self.server, self.runtime = folder, server, runtime
        self.nvml = FakeNvml(cards=2)
        self.files = DriverFiles(folder / "kubelet", look=0.01)
        self.cdi = folder / "cdi"
        self.node = NODE
        self.isolation = IsolationOptions()
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
        driver = DriverOptions(self.files, self.cdi, self.folder / "journal", patience=PATIENCE)
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

    async def given(
        self, env: tuple[str, ...], name: str = "main", pod: str = "web"
    ) -> dict[str, str]:
        """Variables of a container that is made."""
        found = await self.create(env, name, pod)
        assert isinstance(found, Adjustment), found
        return {one.key: one.value for one in found.env}


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that tells nobody when it happens."""
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


def run(folder: Path, story: Callable[[World], Awaitable[None]]) -> None:
    """Run a story beside an API server and a runtime."""

    async def main() -> None:
        async with KubeServer() as server, fake_runtime(folder / "nri.sock") as runtime:
            await story(World(folder, server, runtime))

    asyncio.run(main())


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


def test_the_kubelet_finds_the_driver_and_is_told_which_services_it_has(folder: Path) -> None:
    """Both versions and health, at a socket of its own; both sockets go with the agent."""

    async def story(world: World) -> None:
        async with world.agent():
            method = f"{said.REGISTRATION}/GetInfo"
            info = said.PluginInfo.decode(await world.call(world.files.registry, method, b""))
            assert (info.type, info.name) == ("DRAPlugin", "gpu.partage.io")
            assert info.endpoint == str(world.files.service)
            assert info.supported_versions == (
                "v1.DRAPlugin",
                "v1beta1.DRAPlugin",
                "v1alpha1.DRAResourceHealth",
            )
            status = said.RegistrationStatus(registered=True).encode()
            method = f"{said.REGISTRATION}/NotifyRegistrationStatus"
            await world.call(world.files.registry, method, status)
            world.files.registry.unlink()  # somebody cleans up
            await until(world.files.registry.exists)
            await world.call(world.files.registry, f"{said.REGISTRATION}/GetInfo", b"")
        assert not world.files.registry.exists()
        assert not world.files.service.exists()

    run(folder, story)


@pytest.mark.parametrize("service", [0, 1], ids=["v1", "v1beta1"])
def test_a_container_gets_the_share_that_its_claim_holds(folder: Path, service: int) -> None:
    """The card and the limits of its provider; the mark is taken away; unprepared, nothing is left."""

    async def story(world: World) -> None:
        world.isolation = IsolationOptions(HamiCore("/lib/libvgpu.so", "/lib/containers"))
        (world.folder / "lib").mkdir()
        (world.folder / "lib/libvgpu.so").touch()
        async with world.agent() as daemon:
            claim = world.claim("half", share(1, 50, "20Gi"), uid="9f-half")
            found = (await world.prepare(claim, service=service))[claim.uid]
            assert found.devices == (
                said.Device(("r0",), "n", "gpu-1", ("partage.io/claim=claim-9f-half-0",), "s-1"),
            )
            assert await world.prepare(claim, service=service) == {claim.uid: found}
            metric = daemon.tallies.registry.get_sample_value
            assert metric("partage_agent_claims_prepared") == 1
            env = world.env(found.devices)
            given = await world.given(env)
            assert given["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
            assert given["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"
            assert given["CUDA_DEVICE_SM_LIMIT"] == "50"
            assert given[env[0].partition("=")[0]] == ""
            assert [one.allocation.name for one in daemon.keeper.holdings] == ["web"]
            assert await world.unprepare(claim, service=service) == [""]
            assert await world.unprepare(claim, service=service) == [""]
            assert list(world.cdi.glob("partage.io-claim*")) == []
            assert metric("partage_agent_claims_prepared") == 0
            assert "not prepared here" in str(await world.create(env, pod="late"))

    run(folder, story)


def test_requests_go_to_the_containers_that_name_them(folder: Path) -> None:
    """Two cards by one claim; the alternative that was chosen counts as its request."""

    async def story(world: World) -> None:
        async with world.agent():
            claim = world.claim(
                "two", share(0, 10, "1Gi"), {**share(1, 20, "2Gi"), "request": "big/first"}
            )
            devices = await world.prepared(claim)
            assert [one.request_names for one in devices] == [("r0",), ("big",)]
            both = await world.given(world.env(devices))
            assert both["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
            one = await world.given(world.env(devices, "big"), "second")
            assert one["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
            other = await world.given((), "third")
            assert other["NVIDIA_VISIBLE_DEVICES"] == "void"

    run(folder, story)


def test_a_claim_is_prepared_over_every_restart(folder: Path) -> None:
    """Of the agent, and of the machine, whose CDI folder is empty afterwards."""

    async def story(world: World) -> None:
        claim = world.claim("half", share(0, 60, "20Gi"))
        async with world.agent():
            before = world.env(await world.prepared(claim))
        (spec,) = world.cdi.glob("partage.io-claim*")
        assert spec.stat().st_mode & 0o777 == 0o600
        spec.unlink()
        (world.cdi / "partage.io-claim_uid-gone.json").write_text("{}")
        async with world.agent():
            assert [path.name for path in world.cdi.glob("partage.io-claim*")] == [spec.name]
            world.server.store.delete(CLAIMS, "team", "half")
            assert world.env(await world.prepared(claim)) == before
            assert (await world.given(before))["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
            assert "CardFull" in await world.refused(world.claim("more", share(0, 60, "1Gi")))

    run(folder, story)


def test_no_card_is_given_twice_whichever_way_it_is_asked_for(folder: Path) -> None:
    """Claims beside claims, claims beside pods with records, and records beside claims."""

    async def story(world: World) -> None:
        async with world.agent() as daemon:
            old = {names.ALLOCATION: record(600, 10 * GIB)}
            container = Container("c-old", "s-old", "main")
            pod = PodSandbox("s-old", "old", "uid-pod-old", "team", annotations=old)
            assert isinstance(
                await world.runtime.create(pod, container, PATIENCE), CreateContainerResponse
            )
            late = world.claim("late", share(0, 50, "1Gi"))
            assert "CardFull" in await world.refused(late)
            assert "team/old" in await world.refused(late)
            assert (
                daemon.tallies.registry.get_sample_value(
                    "partage_agent_claim_failures_total", {"rule": "CardFull"}
                )
                == 2
            )
            fits = world.claim("fits", share(0, 40, "70Gi"))
            await world.prepared(fits)
            second = world.claim("second", share(0, 1, "1Gi"))
            assert "team/fits" in await world.refused(second)
            other = PodSandbox(
                "s-n",
                "new",
                "uid-pod-new",
                "team",
                annotations={names.ALLOCATION: record(10, GIB, "uid-pod-new")},
            )
            refused = await world.runtime.create(other, Container("c-n", "s-n", "main"), PATIENCE)
            assert "CardFull" in str(refused)
            await world.runtime.removed(container)
            await world.prepared(second)
            await world.unprepare(fits)
            assert isinstance(
                await world.runtime.create(other, Container("c-n", "s-n", "main"), PATIENCE),
                CreateContainerResponse,
            )
            assert "CardFull" in await world.refused(world.claim("large", share(1, 50, "81Gi")))

    run(folder, story)


def test_instances_are_made_on_demand_and_removed(folder: Path) -> None:
    """Prepare waits until the driver has made it; shares and instances of one card exclude each other."""

    async def story(world: World) -> None:
        async with world.agent():
            claim = world.claim("part", {"device": "gpu-0-mig-1g-10gb-3"})
            devices = await world.prepared(claim)
            (made,) = world.nvml.instances("GPU-0")
            assert made.start == 3
            assert devices[0].share_id == ""
            given = await world.given(world.env(devices))
            assert given["NVIDIA_VISIBLE_DEVICES"] == made.computes[0].uuid
            again = await world.given(world.env(devices), "second")
            assert again == given
            assert "CardFull" in await world.refused(world.claim("share", share(0, 10, "1Gi")))
            over = world.claim("over", {"device": "gpu-0-mig-2g-20gb-2"})
            assert "overlaps" in await world.refused(over)
            for name in ("main", "second"):
                await world.runtime.removed(Container(f"c-web-{name}", "s-web", name))
            await world.unprepare(claim)
            await until(lambda: not world.nvml.instances("GPU-0"))
            await world.prepared(over)
            assert [one.start for one in world.nvml.instances("GPU-0")] == [2]

    run(folder, story)


def test_an_agent_that_makes_no_instances_says_so(folder: Path) -> None:
    """A claim of one waits with a reason."""

    async def story(world: World) -> None:
        async with world.agent(mig=False):
            refused = await world.refused(world.claim("part", {"device": "gpu-0-mig-1g-10gb-3"}))
            assert "--mig" in refused

    run(folder, story)


def test_claims_that_cannot_be_honoured_are_refused_with_their_reason(folder: Path) -> None:
    """Another claim of the name, one of another node, of a device that is not there, for administrators, of nothing."""

    async def story(world: World) -> None:
        async with world.agent():
            world.claim("a", share(0, 1, "1Gi"))
            assert "another one now" in await world.refused(said.Claim("team", "uid-old", "a"))
            assert "not found" in await world.refused(said.Claim("team", "uid-b", "b"))
            elsewhere = world.claim("c", {**share(0, 1, "1Gi"), "pool": "m"})
            assert "BadClaim" not in await world.refused(elsewhere)
            assert "on node m" in await world.refused(elsewhere)
            assert "no such card" in await world.refused(world.claim("d", share(7, 1, "1Gi")))
            admin = world.claim("e", {**share(0, 1, "1Gi"), "adminAccess": True})
            assert "administrators" in await world.refused(admin)
            assert "not allocated" in await world.refused(world.claim("f"))
            odd = world.claim("g", share(0, 1, "1Gi"), uid="../../etc/passwd")
            assert "is none" in await world.refused(odd)
            found = await world.prepare(odd, world.claim("h", share(0, 1, "1Gi")))
            assert [bool(one.error) for one in found.values()] == [True, False]
            assert not (world.folder / "etc").exists()

    run(folder, story)


def test_nobody_writes_a_mark_into_a_pod(folder: Path) -> None:
    """A mark is a secret that no container sees; one that is guessed, copied or changed is refused."""

    async def story(world: World) -> None:
        async with world.agent():
            claim = world.claim("two", share(0, 10, "1Gi"), share(1, 10, "1Gi"))
            first, second = world.env(await world.prepared(claim))
            name, _, token = first.partition("=")
            for env in (f"{name}=1", f"{name[:-1]}9={token}", f"{name[:-1]}={token}"):
                assert "NoRecord" in str(await world.create((env,)))
            assert token not in json.dumps(await world.given((first, second)))

    run(folder, story)


def test_what_cannot_be_counted_once_is_refused(folder: Path) -> None:
    """Two claims in a container, a claim beside a record, a share that two containers would each have in full."""

    async def story(world: World) -> None:
        world.isolation = IsolationOptions(HamiCore("/lib/libvgpu.so", "/lib/containers"))
        (world.folder / "lib").mkdir()
        (world.folder / "lib/libvgpu.so").touch()
        async with world.agent():
            one = world.env(await world.prepared(world.claim("one", share(0, 10, "1Gi"))))
            two = world.env(await world.prepared(world.claim("two", share(0, 10, "1Gi"))))
            assert "two ResourceClaims" in str(await world.create((*one, *two)))
            own = {names.ALLOCATION: record(100, GIB, "uid-pod-web", card=1)}
            assert "by its pod's record and by" in str(await world.create(one, annotations=own))
            beside = await world.create(one, "other", annotations=own)
            assert isinstance(beside, Adjustment)
            assert "ClaimShared" in str(await world.create(one, pod="second"))
            await world.runtime.removed(Container("c-web-other", "s-web", "other"))
            assert isinstance(await world.create(one, pod="second"), Adjustment)
            whole = world.env(await world.prepared(world.claim("all", share(1, 100, "80Gi"))))
            assert (await world.given(whole, pod="a"))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
            assert (await world.given(whole, pod="b"))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"

    run(folder, story)


def test_a_claim_that_cannot_be_read_back_closes_the_node(folder: Path) -> None:
    """Nobody knows what it holds, until the kubelet unprepares it."""

    async def story(world: World) -> None:
        claim = world.claim("one", share(0, 10, "1Gi"))
        async with world.agent():
            await world.prepared(claim)
        (world.folder / "journal/claims/uid-one.json").write_text("{")
        other = world.claim("two", share(0, 10, "1Gi"))
        async with world.agent() as daemon:
            assert "JournalDamaged" in daemon.notes.text
            assert "UnknownHeld" in await world.refused(other)
            assert await world.unprepare(claim) == [""]
            await world.prepared(other)

    run(folder, story)


def test_the_kubelet_is_told_the_health_of_devices(folder: Path) -> None:
    """All of them at once, and again when one changes."""

    async def story(world: World) -> None:
        async with world.agent() as daemon:
            options = (("grpc.use_local_subchannel_pool", 1),)
            target = f"unix:{world.files.service}"
            async with grpc.aio.insecure_channel(target, options=options) as channel:
                stream = channel.unary_stream(f"/{said.HEALTH}/NodeWatchResources")(b"")
                first = said.HealthResponse.decode(await stream.read())
                assert {one.health for one in first.devices} == {said.HEALTHY}
                assert len(first.devices) == 52
                ill = replace(NODE.devices[1], healthy=False, health_detail="fell off")
                daemon.take(replace(NODE, devices=(NODE.devices[0], ill)))
                async with asyncio.timeout(PATIENCE):
                    while True:
                        told = said.HealthResponse.decode(await stream.read())
                        found = {one.device.device_name: one for one in told.devices if one.device}
                        if found["gpu-1"].health == said.UNHEALTHY:
                            break
                assert found["gpu-1"].message == "fell off"
                assert found["gpu-0"].health == said.HEALTHY
                stream.cancel()

    run(folder, story)


def test_what_is_no_message_is_refused(folder: Path) -> None:
    """And so are more claims than any pod has."""

    async def story(world: World) -> None:
        async with world.agent():
            method = f"{said.SERVICES[0]}/NodePrepareResources"
            many = said.ClaimRequest((said.Claim("a", "b", "c"),) * 257).encode()
            for argument in (b"\x0a\xff", many):
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await world.call(world.files.service, method, argument)
                assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(folder, story)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--standalone"], "needs the API server"),
        (["--devices", "x.yaml"], "needs the API server"),
        (["--cri-socket", "x.sock"], "needs NRI"),
    ],
)
def test_options_that_do_not_go_with_claims_are_refused(options: list[str], told: str) -> None:
    """Before anything is begun."""
    result = CliRunner().invoke(agent, ["--dra", "--node", "n", *options])
    assert result.exit_code == 2
    assert told in result.output


def test_what_pods_hold_is_not_offered_to_claims(folder: Path) -> None:
    """A bound pod's share leaves the slices, and is back when the pod has ended; an odd record closes every card."""

    def offered(world: World) -> dict[str, tuple[str, bool]]:
        """Memory of each card's share, and whether the card is marked."""
        found = world.server.store.list("/apis/resource.k8s.io/v1/resourceslices", None)
        return {
            one["name"]: (one["capacity"]["memory"]["value"], "taints" in one)
            for part in found
            for one in part["spec"].get("devices", ())
            if "mig" not in one["name"]
        }

    async def story(world: World) -> None:
        whole = {"gpu-0": ("80Gi", False), "gpu-1": ("80Gi", False)}
        pods = "/api/v1/pods"
        world.server.store.create(
            pods,
            "team",
            {
                "metadata": {
                    "name": "old",
                    "uid": "uid-pod-old",
                    "annotations": {names.ALLOCATION: record(300, 20 * GIB)},
                },
                "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
                "status": {"phase": "Running"},
            },
        )
        async with world.agent():
            await until(lambda: bool(offered(world)))
            assert offered(world) == {**whole, "gpu-0": ("60Gi", False)}
            odd = deepcopy(world.server.store.get(pods, "team", "old"))
            odd["metadata"]["annotations"][names.ALLOCATION] = "?"
            world.server.store.update(pods, "team", "old", odd)
            await until(lambda: offered(world) == dict.fromkeys(whole, ("80Gi", True)))
            world.server.store.delete(pods, "team", "old")
            await until(lambda: offered(world) == whole)

    run(folder, story)


def test_the_card_with_the_least_room_is_offered_first(folder: Path) -> None:
    """An allocator takes the first that fits: what is prepared decides which one that is."""

    def tried(world: World) -> list[str]:
        found = world.server.store.list("/apis/resource.k8s.io/v1/resourceslices", None)
        listed = [one["name"] for part in found for one in part["spec"].get("devices", ())]
        return [name for name in listed if "mig" not in name]

    async def story(world: World) -> None:
        async with world.agent():
            await until(lambda: tried(world) == ["gpu-0", "gpu-1"])
            claims = [
                world.claim("small", share(0, 20, "20Gi")),
                world.claim("large", share(1, 70, "70Gi")),
            ]
            for one in claims:
                await world.prepared(one)
            await until(lambda: tried(world) == ["gpu-1", "gpu-0"])
            assert await world.unprepare(claims[1]) == [""]
            await until(lambda: tried(world) == ["gpu-0", "gpu-1"])

    run(folder, story)
