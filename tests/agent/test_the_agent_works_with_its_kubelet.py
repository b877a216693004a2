"""Kubelet, API server and agent together: advice by records, units while no injector is there, evictions."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from claims_world import until
from prometheus_client import generate_latest

from fakes.clock import SteppedClock
from fakes.kube_server import KubeServer
from fakes.kubelet import FakeKubelet, NotStarted, fake_kubelet
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.differences import Kind, read_findings
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.journal import Journal
from partage.agent.kubelet import messages as said
from partage.agent.metrics import Tallies
from partage.agent.notes import Notes
from partage.agent.nri.messages import Container, PodSandbox
from partage.daemon import kubelet_side, reconciling
from partage.daemon.evicting import Evictions
from partage.daemon.kubelet_side import KubeletOptions, KubeletSide
from partage.daemon.reconciling import Reconciling
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config, UserConfig
from partage.kube.errors import api_error
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import HamiSettings, Settings
from partage.wire import record
from partage.wire.record import encode

GIB = 2**30
GPU = "nvidia.com/gpu"
PODS = "/api/v1/pods"
CARDS = tuple(
    Device(DeviceType.GPU, minor, f"GPU-{minor}", vendor="nvidia", memory_bytes=16 * GIB)
    for minor in range(2)
)
NODE = Node("n1", devices=CARDS, labels={names.QGPU_ENABLE: "enable"})


def _pod(name: str, card: int, requests: dict[str, str], milli: int = 100) -> dict[str, Any]:
    """A pod that is bound here, with its record."""
    grant = Grant(
        "main", DeviceType.GPU, card, f"GPU-{card}", milli, GIB, GrantMode.SHARE, protocol="qgpu"
    )
    record = encode(Allocation(f"uid-{name}", "team", name, "n1", (grant,)))
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "annotations": {names.ALLOCATION: record},
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": requests}}],
        },
    }


class Runtime:
    """What asks the keeper, or does not."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    @property
    def problem(self) -> str:
        """Why it does not."""
        return "" if self.ready.is_set() else "NRI is off"

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing to do."""


@dataclass
class World:
    """All that is together here."""

    server: KubeServer
    client: Client
    kubelet: FakeKubelet
    keeper: Keeper
    runtime: Runtime
    side: KubeletSide
    place: Place
    notes: Notes


@contextlib.asynccontextmanager
async def _world(
    folder: Path, *, api: bool = True, wait: float = 60, patience: float = 0.1
) -> AsyncIterator[World]:
    place = Place(NODE, Settings(), FAMILIES, HostFacts(lambda _p, _c, _m: Instance()))
    journal = Journal(folder / "journal")
    keeper = Keeper(lambda: place, Host(folder), journal, Tallies())
    config = Config(ClusterConfig("http://127.0.0.1:1"), UserConfig())
    async with KubeServer() as server, fake_kubelet(folder) as kubelet:
        config = Config(ClusterConfig(server.url), UserConfig())
        async with Client(config) as client:
            runtime = Runtime()
            options = KubeletOptions(folder, wait=wait, patience=patience, period=0.02, look=0.02)
            notes = Notes()
            side = KubeletSide(
                "n1", options, keeper, runtime, lambda: 0.5, client if api else None, notes
            )
            side.take(place)
            task = asyncio.create_task(side.run())
            try:
                yield World(server, client, kubelet, keeper, runtime, side, place, notes)
            finally:
                task.cancel()
                await asyncio.wait((task,))
                journal.close()


async def test_units_are_those_of_the_cards_in_the_records(folder: Path) -> None:
    """Shares on both cards, admitted in any order: the kubelet's count is the ledger's, card by card."""
    async with _world(folder, patience=60) as world:
        world.runtime.ready.set()
        await world.kubelet.until(names.QGPU_MEMORY, 32)
        await world.kubelet.until(names.QGPU_CORE, 200)
        asked = {names.QGPU_CORE: "10", names.QGPU_MEMORY: "1"}
        for number in range(4):
            world.server.store.create(PODS, "team", _pod(f"p{number}", number % 2, asked))
        for number in (3, 1, 0, 2):
            for resource, size in ((names.QGPU_CORE, 10), (names.QGPU_MEMORY, 1)):
                await world.kubelet.admit("team", f"p{number}", "main", resource, size)
        for resource, size in ((names.QGPU_CORE, 20), (names.QGPU_MEMORY, 2)):
            cards = [
                unit.partition("::")[0]
                for key, units in world.kubelet.held.items()
                if key[3] == resource
                for unit in units
            ]
            assert {card: cards.count(card) for card in cards} == {
                "GPU-0": size,
                "GPU-1": size,
            }


async def test_a_pod_that_the_kubelet_hears_of_first_is_waited_for(folder: Path) -> None:
    """The API server reports the pod to the agent a moment later: advice waits for it, for a bounded time."""
    async with _world(folder, patience=60) as world:
        world.runtime.ready.set()
        await world.kubelet.until(names.QGPU_CORE, 200)
        admitting = asyncio.create_task(
            world.kubelet.admit("team", "late", "main", names.QGPU_CORE, 10)
        )
        await asyncio.sleep(0)
        pod = _pod("late", 1, {names.QGPU_CORE: "10"})
        world.server.store.create(PODS, "team", pod)
        assert {unit.partition("::")[0] for unit in await admitting} == {"GPU-1"}
    async with _world(folder) as world:
        world.runtime.ready.set()
        await world.kubelet.until(names.QGPU_CORE, 200)
        assert len(await world.kubelet.admit("team", "x", "main", names.QGPU_CORE, 7)) == 7


async def test_a_pod_that_is_gone_holds_up_the_kubelet_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tenant deleted it by force as it was bound, or it never had a record; it may have many containers."""
    async with _world(folder, patience=1) as world:
        world.runtime.ready.set()
        await world.kubelet.until(names.QGPU_CORE, 200)
        world.server.store.create(PODS, "team", _pod("other", 1, {names.QGPU_CORE: "10"}))
        await until(lambda: world.side.pods)
        monkeypatch.setattr("partage.daemon.kubelet_side._CALM", 3600)
        waits = set()  # each wait in vain sets another end
        for number in range(20):
            await world.kubelet.admit("team", "gone", f"c{number}", names.QGPU_CORE, 1)
            waits.add(world.side._calm_until)
        assert len(waits) == 1
        given = await world.kubelet.admit("team", "other", "main", names.QGPU_CORE, 10)
        assert {unit.partition("::")[0] for unit in given} == {"GPU-1"}


async def test_what_grows_with_containers_is_read_beside_the_event_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet's report, records for its advice and pods to compare: the runtime waits for none of them."""
    threads: dict[str, set[int]] = {}

    def noted(module: ModuleType, name: str) -> None:
        real, known = getattr(module, name), threads.setdefault(name, set())

        def called(*arguments: Any) -> Any:
            known.add(threading.get_ident())
            return real(*arguments)

        monkeypatch.setattr(module, name, called)

    async with _world(folder, patience=60) as world:
        world.runtime.ready.set()
        await world.kubelet.until(names.QGPU_CORE, 200)
        world.server.store.create(PODS, "team", _pod("a", 1, {names.QGPU_CORE: "10"}))
        noted(record, "decode")
        noted(reconciling, "bound_pods")
        noted(reconciling, "counted")
        noted(kubelet_side, "counted")
        monkeypatch.setattr(
            said.ListResponse,
            "decode",
            lambda data, real=said.ListResponse.decode: (
                threads.setdefault("report", set()).add(threading.get_ident()) or real(data)
            ),
        )
        await world.kubelet.admit("team", "a", "main", names.QGPU_CORE, 10)
        comparing = reconciling.Reconciling(world.keeper, folder, world.side)
        comparing.take(world.place)
        await comparing.look()
    assert threads.keys() == {"decode", "bound_pods", "counted", "report"}
    assert all(threads.values())
    assert not any(threading.get_ident() in known for known in threads.values())


async def test_without_an_api_server_the_kubelet_chooses(folder: Path) -> None:
    """No pods are known, nothing is advised, units are given."""
    async with _world(folder, api=False) as world:
        world.runtime.ready.set()
        await world.kubelet.until(GPU, 20)
        assert len(await world.kubelet.admit("team", "a", "main", GPU, 3)) == 3


async def test_containers_with_units_wait_for_who_injects(folder: Path) -> None:
    """Units are given; while the runtime does not ask the agent no container starts, and it says why."""
    async with _world(folder, wait=0.05) as world:
        await world.kubelet.until(GPU, 20)
        await world.kubelet.admit("team", "a", "main", GPU, 1)
        why = "the container would get no devices: NRI is off"
        with pytest.raises(NotStarted, match=why):
            await world.kubelet.start_container("team", "a", "main", GPU)
        world.runtime.ready.set()
        await world.kubelet.start_container("team", "a", "main", GPU)


async def test_a_runtime_that_comes_back_in_time_is_not_missed(folder: Path) -> None:
    """The start of a container waits a moment for it, and goes on."""
    async with _world(folder, wait=60) as world:
        await world.kubelet.until(GPU, 20)
        await world.kubelet.admit("team", "a", "main", GPU, 1)
        starting = asyncio.create_task(world.kubelet.start_container("team", "a", "main", GPU))
        await asyncio.sleep(0)
        world.runtime.ready.set()
        await starting


async def test_who_holds_units_and_was_given_nothing_is_counted(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet's word alone counts: logged once, and shown in the metrics."""
    async with _world(folder) as world:
        world.runtime.ready.set()
        await world.kubelet.until(GPU, 20)
        await world.kubelet.admit("team", "a", "main", GPU, 1)

        def metrics() -> str:
            return generate_latest(world.keeper.tallies.registry).decode()

        await until(lambda: "partage_agent_kubelet_unserved 1.0" in metrics())
        assert 'partage_agent_kubelet_units{resource="nvidia.com/gpu"} 20.0' in metrics()
        assert 'partage_agent_kubelet_registered{resource="nvidia.com/gpu"} 1.0' in metrics()
        world.kubelet.release("team", "a")
        await until(lambda: "partage_agent_kubelet_unserved 0.0" in metrics())
        world.side.take(replace(world.place, node=Node("n1")))  # its cards have gone
        assert 'partage_agent_kubelet_units{resource="nvidia.com/gpu"} 0.0' in metrics()

    assert caplog.text.count("team/a/main holds units") == 1


# --- four parts that must agree ----------------------------------------------------------------


def _reconciling(world: World, folder: Path) -> Reconciling:
    """The comparison, at its own pace."""
    made = Reconciling(world.keeper, folder / "journal", world.side)
    made.take(world.place)
    return made


def _started(world: World, folder: Path, name: str, card: int) -> None:
    """Give a pod's container its card, by its record, as the runtime starts it."""
    (folder / "dev").mkdir()
    for file in ("nvidia0", "nvidia1"):
        (folder / "dev" / file).symlink_to("/dev/null")
    world.keeper.synchronize((), ())
    record = _pod(name, card, {})["metadata"]["annotations"]
    sandbox = PodSandbox(f"s-{name}", name, f"uid-{name}", "team", {}, record)
    world.keeper.create(sandbox, Container(f"c-{name}", f"s-{name}", "main"))


def _metrics(world: World) -> str:
    return generate_latest(world.keeper.tallies.registry).decode()


async def test_units_of_another_card_are_told_once_two_looks_have_seen_them(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet chose before the API server sent the pod; in the log, by kind, and in the file for the doctor."""
    async with _world(folder) as world:
        world.runtime.ready.set()
        await world.kubelet.until(GPU, 20)
        assert await world.kubelet.admit("team", "a", "main", GPU, 1) == ("GPU-0::0",)
        pod = _pod("a", 1, {GPU: "1"})
        world.server.store.create(PODS, "team", pod)
        await until(lambda: bool(world.side.pods))
        _started(world, folder, "a", 1)
        reconciling = _reconciling(world, folder)

        await reconciling.look()
        assert 'partage_agent_findings{kind="OtherCard"} 0.0' in _metrics(world)
        await reconciling.look()
        await reconciling.look()
        assert 'partage_agent_findings{kind="OtherCard"} 1.0' in _metrics(world)
        assert _metrics(world).count("partage_agent_findings{") == len(Kind)
        _, told = read_findings(folder / "journal" / "findings.json")
        assert [(one.kind, one.pod, one.container) for one in told] == [
            ("OtherCard", "team/a", "main")
        ]
        world.kubelet.release("team", "a")
        world.keeper.remove(Container("c-a"))
        await reconciling.look()
        assert 'partage_agent_findings{kind="OtherCard"} 0.0' in _metrics(world)
        assert read_findings(folder / "journal" / "findings.json")[1] == []

    assert caplog.text.count("the kubelet counts units of GPU-0, its record names GPU-1") == 1


async def test_a_pod_that_runs_with_units_and_without_a_record_is_evicted(folder: Path) -> None:
    """Behind a proxy its variables are unknown; the kubelet reports it. By UID, and in no exempt namespace."""
    async with _world(folder) as world:
        world.runtime.ready.set()
        await world.kubelet.until(GPU, 20)
        await world.kubelet.admit("team", "old", "main", GPU, 1)
        old = _pod("old", 0, {GPU: "1"})
        del old["metadata"]["annotations"]
        world.server.store.create(PODS, "team", old)
        await until(lambda: bool(world.side.pods))
        sandbox = PodSandbox("s-old", "old", "uid-old", "team")
        world.keeper.synchronize((sandbox,), (Container("c-old", "s-old", "main"),))
        assert world.keeper.unprotected == {}
        reconciling = _reconciling(world, folder)
        async with _evicting(world):
            reconciling.take(replace(world.place, exempt=frozenset({"team"})))
            for _ in range(3):
                await reconciling.look()
                assert world.keeper.suspected == ()
            assert [one.kind for one in reconciling.findings] == [Kind.RUNS_WITHOUT_RECORD]
            reconciling.take(world.place)
            await reconciling.look()
            await until(lambda: not _pods(world))
        assert _asked(world) == 1


async def test_a_silent_kubelet_accuses_nobody(folder: Path) -> None:
    """It does not answer, and no API server is there: what journal and runtime agree on is no finding."""
    async with _world(folder, api=False) as world:
        await world.kubelet.stop()
        assert await world.side.held() is None
        assert world.side.pods is None
        _started(world, folder, "a", 0)
        reconciling = _reconciling(world, folder)
        await reconciling.look()
        await reconciling.look()
        assert reconciling.findings == []


async def test_of_a_node_without_devices_nothing_is_said(folder: Path) -> None:
    """Its cards are not known yet: every container's device would be gone."""
    async with _world(folder) as world:
        _unprotected(world.keeper, "early")
        reconciling = _reconciling(world, folder)
        reconciling.take(replace(world.place, node=Node("n1")))
        await reconciling.look()
        await reconciling.look()
        assert reconciling.findings == []
        reconciling.take(world.place)
        await reconciling.look()
        await reconciling.look()
        assert [one.kind for one in reconciling.findings] == [Kind.STARTED_UNASKED]


# --- evictions -------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _evicting(world: World) -> AsyncIterator[None]:
    task = asyncio.create_task(Evictions(world.client, world.keeper, period=0.01).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


def _pods(world: World) -> set[str]:
    return {one["metadata"]["name"] for one in world.server.store.list(PODS, "team")}


def _asked(world: World) -> int:
    """How many evictions were asked for."""
    return sum(one.path.endswith("/eviction") for one in world.server.requests)


def _unprotected(keeper: Keeper, *names_: str) -> None:
    """Let the keeper find pods whose containers were started while it was away."""
    pods, containers = [], []
    for name in names_:
        record = _pod(name, 0, {})["metadata"]["annotations"]
        pods.append(PodSandbox(f"s-{name}", name, f"uid-{name}", "team", {}, record))
        containers.append(Container(f"c-{name}", f"s-{name}", "main"))
    keeper.synchronize(tuple(pods), tuple(containers))


async def test_pods_of_unprotected_containers_are_evicted_once(folder: Path) -> None:
    """They are evicted by UID: a missing one is left, and its successor of the same name is never hit."""
    async with _world(folder) as world:
        store = world.server.store
        store.create(PODS, "team", _pod("early", 0, {}))
        store.create(
            PODS,
            "team",
            {
                **_pod("again", 0, {}),
                "metadata": {
                    "name": "again",
                    "namespace": "team",
                    "uid": "uid-of-its-successor",
                },
            },
        )
        _unprotected(world.keeper, "early", "again", "gone")
        async with _evicting(world):
            await until(lambda: _asked(world) >= 3)
            await until(lambda: "early" not in _pods(world))
        assert _pods(world) == {"again"}
        text = generate_latest(world.keeper.tallies.registry)
        assert b"partage_agent_evicted_total 1.0" in text


async def test_a_disruption_budget_is_waited_for(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged once while it forbids the eviction; the pod is evicted once it allows it."""
    async with _world(folder) as world:
        world.server.budget_blocked = True
        world.server.store.create(PODS, "team", _pod("early", 0, {}))
        _unprotected(world.keeper, "early")
        async with _evicting(world):
            await until(lambda: _asked(world) >= 3)
            world.server.budget_blocked = False
            await until(lambda: not _pods(world))

    assert caplog.text.count("cannot be evicted") == 1


async def test_a_disruption_budget_that_never_allows_it_costs_few_requests(folder: Path) -> None:
    """A tenant's budget may forbid the eviction of all its pods for days. Each is asked for again after ever longer pauses."""
    async with _world(folder) as world:
        world.server.budget_blocked = True
        _unprotected(world.keeper, *(f"p{number}" for number in range(5)))
        clock = world.client.clock = SteppedClock()
        asked = []
        task = asyncio.create_task(Evictions(world.client, world.keeper, period=5.0).run())
        for _ in range(200):
            await until(lambda: clock.sleepers > 0)
            await clock.advance(6.1)
            asked.append(_asked(world))
        task.cancel()
        await asyncio.wait((task,))

    minutes = 200 * 6.1 / 60
    assert 5 * minutes / 1.5 < asked[-1] < 5 * (5 + 2 * minutes)


async def test_a_404_of_a_proxy_ends_no_eviction(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod is there, so the next look asks again."""
    genuine, answers = Client.evict, [b"404 page not found"]

    async def evict(self: Client, *args: Any, **more: Any) -> None:
        if answers:
            raise api_error("POST", "/", 404, answers.pop())
        await genuine(self, *args, **more)

    monkeypatch.setattr(Client, "evict", evict)

    async with _world(folder) as world:
        world.server.store.create(PODS, "team", _pod("early", 0, {}))
        _unprotected(world.keeper, "early")
        async with _evicting(world):
            await until(lambda: not _pods(world))


async def test_units_that_cannot_be_told_are_noted(folder: Path) -> None:
    """The note lasts as long as there are more units than a message may hold."""
    async with _world(folder) as world:
        assert world.notes.said == ()
        many = Settings(hami=HamiSettings(split_count=100_000))
        world.side.take(replace(world.place, settings=many))
        (note,) = world.notes.said
        assert (note.code, note.message.partition(":")[0]) == ("UnitsLeftOut", "nvidia.com/gpu")
        world.side.take(world.place)
        assert world.notes.said == ()


async def test_another_plugin_of_a_name_is_noted_until_it_has_gone(folder: Path) -> None:
    """While the kubelet has its units instead of the agent's; nothing else shows it. Then the agent registers again."""
    async with _world(folder) as world:
        await world.kubelet.until(GPU, 20)
        ours = world.kubelet.plugins[GPU]
        theirs = said.Device("GPU-of-another", said.HEALTHY)

        world.kubelet.plugins[GPU] = replace(ours, devices={theirs.id: theirs})

        await until(lambda: bool(world.notes.said))
        (note,) = world.notes.said
        assert note.code == "OtherPlugin"
        assert note.message.startswith("nvidia.com/gpu: ")
        assert "GPU-of-another" in note.message
        # It goes; the kubelet does not return to the agent, whose stream it kept.
        world.kubelet.plugins[GPU] = replace(ours, devices={})
        await world.kubelet.until(GPU, 20)
        await until(lambda: not world.notes.said)
