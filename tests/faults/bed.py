"""A cluster to break: everything that Partage meets, with a wire in between that can fail.

    churn, kubelets, kube-scheduler ── API server ── wire ── instances of the scheduler
                    └──────────── relay: to the leader ───────────┘

The API server, the stand-ins for kubelets, node agents and kube-scheduler are those of
`partage up`; they reach the API server directly, so that every fault hits Partage alone.
"""

import asyncio
import contextlib
import copy
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import invariants
from handing import HandingKubelet
from instances import Relay, Spawned
from seats import LEASE, ExtenderSeam, PluggedKubeScheduler, Seat
from watchman import Watchman

from fakes.leases import given_back
from fakes.wire import Wire
from partage.apiserver import (
    ApiError,
    ApiServer,
    DeleteOptions,
    Settings,
    ambient,
    serve,
    write_kubeconfig,
)
from partage.controllers.manager import ControllerSettings
from partage.daemon.options import ElectionOptions, SchedulerOptions
from partage.daemon.plugin import PluginOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.embedded.agents import Agents
from partage.embedded.definitions import DEFINITIONS
from partage.embedded.fleet import SimulatedNode, node_of
from partage.embedded.scheduling import KubeScheduler, Ports
from partage.extender.bindings import BindLimits
from partage.extender.cluster_cache import ClusterCache
from partage.extender.service import ServiceSettings
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.election import LeaseSettings
from partage.kube.retry import Backoff
from partage.kube.watch import WatchSettings
from partage.vendors import names

__all__ = ["HALF", "PATIENCE", "QUARTER", "WHOLE", "Bed", "bed", "node", "pod", "until"]

Document = dict[str, Any]

PATIENCE = 240.0
"""Seconds that a test waits for what must come; a loaded machine may take long."""
SCHEDULER = "partage-scheduler"
WHOLE = {"koordinator.sh/gpu": "100"}
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
QUARTER = {"koordinator.sh/gpu-core": "25", "koordinator.sh/gpu-memory-ratio": "25"}
LEASES = "leases.coordination.k8s.io"
DEVICES = "devices.scheduling.koordinator.sh"

TIMES = LeaseSettings(duration=4, deadline=2.7, retry=0.3)
LIMITS = BindLimits(send=2.0, read=1.0, lock=1.0, pause=0.02, late=1.0)
QUICK = SchedulerOptions(
    watches=WatchSettings(backoff=Backoff(base=0.02, cap=0.2)),
    service=ServiceSettings(LIMITS, hold=1.5),
    controllers=ControllerSettings(grace=1.0),
    learning=None,
    tick=0.05,
    audit=0.3,
)
"""What takes seconds in a cluster takes tenths here."""
PLUGGED_PATIENCE = 1.5
"""Seconds after which a seat gives up the Lease where its instance does not serve."""


def node(name: str = "n0", cards: int = 2, **more: Any) -> SimulatedNode:
    """A simulated node of A100s with 80 GiB."""
    model = more.pop("model", "A100-SXM4-80GB")
    return node_of(name, model, cards, **more)


def pod(
    name: str,
    limits: Mapping[str, str] | None = None,
    *,
    meta: Document | None = None,
    **spec: Any,
) -> Document:
    """A pod of one container, by default with a whole card."""
    inner = {"name": "main", "image": "busybox"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **(meta or {})},
        "spec": {
            "schedulerName": SCHEDULER,
            "restartPolicy": "Never",
            "containers": [{**inner, "resources": {"limits": dict(limits or WHOLE)}}],
            **spec,
        },
    }


async def until(true: Callable[[], object], what: str = "", seconds: float = PATIENCE) -> None:
    """Wait for something that must come true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"what was waited for did not come true: {what}"
        await asyncio.sleep(0.01)


@dataclass(slots=True)
class ServerClock:
    """The API server's wall clock, which may be set: `wrong` seconds beside the machine's."""

    wrong: float = 0.0

    def now(self) -> float:
        """Seconds since 1970, as this clock has it."""
        return time.time() + self.wrong


@dataclass
class Bed:
    """The cluster.

    Attributes:
        server: the API server, for clients beside the wire.
        url: of the API server itself.
        wire: what Partage's instances go through.
        relay: where kube-scheduler finds the leader.
        kube: the stand-in for kube-scheduler.
        watchman: looks at the invariants at every change.
        handed: what the kubelets handed to containers.
        foreign: pods whose record is forged, or whose card is taken away.
        clock: the API server's.
    """

    server: ApiServer
    url: str
    wire: Wire
    relay: Relay
    http: aiohttp.ClientSession
    kube: KubeScheduler
    watchman: Watchman
    handed: invariants.Handed
    stack: contextlib.AsyncExitStack
    folder: Path | None = None
    foreign: frozenset[str] = frozenset()
    clock: ServerClock = field(default_factory=ServerClock)
    daemons: dict[str, SchedulerDaemon] = field(default_factory=dict)
    spawned: dict[str, Spawned] = field(default_factory=dict)

    # --- instances ---------------------------------------------------------------------------

    async def client(self, url: str = "", **more: Any) -> Client:
        """A new client that goes through the wire, open for as long as the bed lasts."""
        config = Config(ClusterConfig(url or self.wire.url))
        return await self.stack.enter_async_context(Client(config, **more))

    async def daemon(
        self,
        name: str = "one",
        options: SchedulerOptions = QUICK,
        quiet_period: float = 0.1,
        pod: tuple[str, str] | None = None,
        *,
        plugged: bool | None = None,
        **more: Any,
    ) -> SchedulerDaemon:
        """Another instance in this process; the first needs no long quiet period.

        `plugged`: False for one with the extender although kube-scheduler has the plugin, as during an upgrade.
        """
        election = ElectionOptions("default", times=TIMES, quiet_period=quiet_period, pod=pod)
        options = replace(options, identity=name, election=election)
        if self.plugged if plugged is None else plugged:
            seat = await self.seat(name, url=more.get("url", ""))
            options = replace(options, plugin=PluginOptions(seat))
        made = SchedulerDaemon(await self.client(**more), options)
        self.daemons[name] = self.relay.instances[name] = made
        await self.stack.enter_async_context(made)
        return made

    @property
    def plugged(self) -> bool:
        """Whether kube-scheduler asks by its plugin."""
        return isinstance(self.kube, PluggedKubeScheduler)

    async def seat(
        self,
        name: str,
        times: LeaseSettings = TIMES,
        patience: float = PLUGGED_PATIENCE,
        url: str = "",
    ) -> Path:
        """The kube-scheduler of one instance, with the same way to the API server; where it looks for its engine."""
        assert isinstance(self.kube, PluggedKubeScheduler)
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="seat-"))
        path = Path(folder) / "s"  # a socket's path is short

        def lives() -> bool:
            spawned = self.spawned.get(name)
            return spawned is None or spawned.running

        seat = Seat(name, path, await self.client(url), times, patience, lives=lives)
        self.kube.sit(seat)
        await self.stack.enter_async_context(_running(seat=seat.run()))
        return path

    async def spawn(self, name: str, **more: Any) -> Spawned:
        """Another instance as a process."""
        assert self.folder is not None
        config = self.folder / "kubeconfig"
        write_kubeconfig(config, self.wire.url)
        made = Spawned(name, config, self.folder / f"{name}.log", **more)
        if self.plugged and not made.program:
            seconds = made.lease
            times = LeaseSettings(seconds, deadline=seconds * 2 / 3, retry=min(2.0, seconds / 8))
            made.socket = await (self.seat(name) if made.quick else self.seat(name, times, 5.0))
        self.spawned[name] = self.relay.instances[name] = made
        self.stack.push_async_callback(made.kill)
        await made.start()
        return made

    def leader(self) -> str:
        """The instance that holds the Lease."""
        found = self.server.store.get(LEASES, "default", "partage-scheduler")
        return str(found.value["spec"].get("holderIdentity") or "") if found else ""

    async def led(self, name: str = "") -> None:
        """Wait until an instance serves; or this one does."""

        async def serves() -> bool:
            leader = name or self.leader()
            found = self.relay.instances.get(leader)
            if found is None or not found.url:
                return False
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                where = f"{found.url}{invariants.SUMMARIES}"
                async with self.http.get(where, timeout=aiohttp.ClientTimeout(5)) as answer:
                    return answer.status == 200
            return False

        end = time.monotonic() + PATIENCE
        while not await serves():
            assert time.monotonic() < end, f"no instance leads: {self.leader()}"
            await asyncio.sleep(0.02)

    # --- objects -----------------------------------------------------------------------------

    async def create(self, value: Document, resource: str = "pods") -> str:
        """A new object; its uid."""
        record = await self.server.create(resource, value, value["metadata"].get("namespace", ""))
        return str(record.value["metadata"]["uid"])

    async def pod(self, name: str, limits: Mapping[str, str] | None = None, **more: Any) -> str:
        """A new pod; its uid."""
        return await self.create(pod(name, limits, **more))

    async def patch(
        self, name: str, body: Document, resource: str = "pods", sub: str = ""
    ) -> None:
        """Change an object."""
        namespace = "default" if resource == "pods" else ""
        await self.server.patch(resource, namespace, name, body, sub=sub)

    async def delete(self, name: str, resource: str = "pods", grace: int | None = 0) -> None:
        """Delete an object, by default by force."""
        namespace = "default" if resource == "pods" else ""
        with contextlib.suppress(ApiError):
            await self.server.delete(resource, namespace, name, DeleteOptions(grace=grace))

    def stored(self, name: str, resource: str = "pods") -> Document:
        """An object as the API server has it; empty when there is none."""
        namespace = "default" if resource == "pods" else ""
        record = self.server.store.get(resource, namespace, name)
        return copy.deepcopy(dict(record.value)) if record is not None else {}

    def placed(self, name: str) -> str:
        """The node of a pod, empty when it has none or is gone."""
        return str((self.stored(name).get("spec") or {}).get("nodeName", ""))

    @property
    def places(self) -> int:
        """How many pods have a node, whatever kube-scheduler was answered."""
        return sum(
            bool(one.value["spec"].get("nodeName")) for one in self.server.store.all("pods")
        )

    async def bound(self, *pods: str) -> None:
        """Wait until all of these have a node."""
        await until(lambda: all(map(self.placed, pods)), f"pods {pods} have a node")

    async def told(self, name: str) -> str:
        """Why a pod waits, once its condition says so."""

        def why() -> str:
            conditions = (self.stored(name).get("status") or {}).get("conditions") or ()
            found = [c.get("message", "") for c in conditions if c["type"] == "PodScheduled"]
            return str(found[0]) if found and not self.placed(name) else ""

        await until(why, f"pod {name} says why it waits")
        return why()

    def cards(self, name: str) -> list[str]:
        """The devices of a pod's record."""
        text = (self.stored(name)["metadata"].get("annotations") or {}).get(names.ALLOCATION, "{}")
        return [d["uuid"] for c in json.loads(text).get("containers", ()) for d in c["devices"]]

    def events(self, name: str, reason: str = "") -> list[Document]:
        """Events about an object."""
        return [
            dict(record.value)
            for record in self.server.store.all("events")
            if record.value["involvedObject"]["name"] == name
            and (not reason or record.value.get("reason") == reason)
        ]

    # --- what must hold ----------------------------------------------------------------------

    async def look(self) -> invariants.Findings:
        """What can be seen from outside, of the leader."""
        leading = self.relay.instances[self.leader()]
        return await invariants.look(self.http, self.url, leading.url)

    async def sound(self, scenario: str = "") -> invariants.Findings:
        """Wait until all five invariants hold, which they must; and they did at every change.

        Args:
            scenario: written to `PARTAGE_FAULTS` with the seconds that this took.
        """
        started = time.monotonic()
        wrong: list[str] = ["no instance leads"]
        while True:
            with contextlib.suppress(aiohttp.ClientError, KeyError, OSError, TimeoutError):
                found = await self.look()
                wrong = invariants.findings(found, self.handed, self.foreign)
            if not wrong:
                break
            assert time.monotonic() < started + PATIENCE, wrong
            await asyncio.sleep(0.05)
        assert not self.watchman.wrong, self.watchman.wrong
        if scenario:
            told(scenario, time.monotonic() - started)
        return found


def told(scenario: str, seconds: float) -> None:
    """Write a figure down, where `PARTAGE_FAULTS` names a file."""
    file = os.environ.get("PARTAGE_FAULTS")
    if file:
        with Path(file).open("a") as out:
            out.write(json.dumps({"scenario": scenario, "seconds": round(seconds, 2)}) + "\n")


@contextlib.asynccontextmanager
async def bed(
    *nodes: SimulatedNode,
    settings: Settings | None = None,
    folder: Path | None = None,
    foreign: Collection[str] = (),
    seam: str = "extender",
) -> AsyncIterator[Bed]:
    """A cluster of these nodes, without an instance of the scheduler.

    Args:
        nodes: one of two cards by default.
        settings: of the API server.
        folder: for processes.
        foreign: names of pods whose record is forged, or whose card is taken away.
        seam: by which kube-scheduler asks, `extender` or `plugin`; then each instance has a seat beside it.
    """
    context = ClusterCache().translation.context
    clock = ServerClock()
    server = ApiServer(settings, replace(ambient(), now=clock.now))
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve(server))
        for definition in DEFINITIONS:
            await server.create("customresourcedefinitions.apiextensions.k8s.io", definition)
        lease = given_back(
            "partage-scheduler", "default", elected=LEASE if seam == "plugin" else ""
        )
        await server.create(LEASES, lease, "default")
        http = await stack.enter_async_context(aiohttp.ClientSession())
        wire = await stack.enter_async_context(Wire(url))
        agents = Agents(server, nodes or (node(),))
        await agents.register()
        made: Bed
        relay = Relay(lambda: made.leader())  # noqa: PLW0108 # made later
        await relay.start()
        stack.push_async_callback(relay.stop)
        ports = Ports(frozenset({SCHEDULER}), lambda: context)
        kube = (
            PluggedKubeScheduler(server, ports)
            if seam == "plugin"
            else KubeScheduler(server, ports, ExtenderSeam(relay.url, http))
        )
        kubelet = HandingKubelet(server, lambda: context)
        excused = frozenset(foreign)
        watchman = Watchman(http, url, kubelet.handed, excused)
        made = Bed(
            server,
            url,
            wire,
            relay,
            http,
            kube,
            watchman,
            kubelet.handed,
            stack,
            folder,
            excused,
            clock,
        )
        await stack.enter_async_context(
            _running(
                agents=agents.run(),
                kubelet=kubelet.run(),
                scheduling=kube.run(),
                watchman=watchman.run(),
            )
        )
        instances = await stack.enter_async_context(contextlib.AsyncExitStack())
        made.stack = instances
        try:
            yield made
        except Exception as error:
            # What failed may not fail when it is run again, and what was seen would be forgotten.
            if watchman.wrong:
                raise AssertionError(watchman.wrong) from error
            raise


@contextlib.asynccontextmanager
async def _running(**work: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(one) for one in work.values()]
    try:
        yield
    finally:
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            task.result()
