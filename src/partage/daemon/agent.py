"""The node agent as a process: the NRI plugin with its keeper, its companions, a port for health and metrics.

A companion runs beside injection as long as the agent: it makes hardware instances, finds and reports devices, or
checks limits. A companion that fails ends the agent, because half an agent would hide its missing work.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.registry import Collector

from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.discovery.found import CardUse, Inventory
from partage.agent.host import Host
from partage.agent.injection import Place, looked_at
from partage.agent.isolation.container_dirs import Rooms
from partage.agent.isolation.folders import Folders
from partage.agent.isolation.overhead import SLACK
from partage.agent.isolation.providers import HamiCore, Isolation, NoIsolation, Provider
from partage.agent.journal import Journal
from partage.agent.metrics import Books, Nameless, NodeSeries, Tallies
from partage.agent.notes import Code, Notes
from partage.agent.nri.plugin import Plugin, PluginOptions
from partage.agent.stories import Stories
from partage.agent.trouble import Rounds
from partage.agent.uses import DriverMeter, Meter
from partage.daemon.instances import NodeInstances
from partage.daemon.mps import MpsDaemon
from partage.kube.clock import end
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.serving.limits import Limits, guard
from partage.serving.listener import cause
from partage.serving.site import Site, probe_site
from partage.tracing.tracer import NO_TRACES, SpanSeries, Tracer
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.context import Context

_LOG: Final = logging.getLogger("partage.daemon")
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


class Asked(Protocol):
    """Answers the runtime or the kubelet about containers; `ready` is set while it is asked about each container."""

    ready: asyncio.Event

    @property
    def problem(self) -> str:
        """Why containers start without a question, and the remedy; empty if there is no problem."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set."""


class Companion(Protocol):
    """A task that runs beside injection."""

    @property
    def name(self) -> str:
        """One word, for the log."""

    async def run(self) -> None:
        """Work until cancelled."""


@dataclass(frozen=True, slots=True)
class IsolationOptions:
    """How the limits of software shares are enforced.

    Attributes:
        library: the enforcement library as built, if the provider is Partage's own.
        folder: of its files, as a path on the host.
        evict: whether a container without enforced limits must not run.
        period: seconds between two checks whether limits are in force.
        slack: bytes by which the context of a process may grow beyond a container's memory.
        online: namespaces whose pods may have precedence on a card; `*` for all.
        mps: looks after NVIDIA's MPS daemon, if that enforces the limits.
    """

    provider: Provider = field(default_factory=NoIsolation)
    library: Path | None = None
    folder: str = "/var/lib/partage/isolation"
    evict: bool = False
    period: float = 10.0
    slack: int = SLACK
    online: frozenset[str] = frozenset()
    mps: MpsDaemon | None = None


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """One node's agent; the help of `partage agent` explains most fields.

    Attributes:
        port: 0 takes any free port.
        asked: makes the part that answers about containers; None for the NRI plugin.
        cdi: kind of NVIDIA's cards in the host's CDI specifications; empty for none.
    """

    journal: Path = Path("/var/lib/partage/agent")
    host: str = "127.0.0.1"
    port: int = 0
    health_port: int | None = None
    plugin: PluginOptions = PluginOptions()
    isolation: IsolationOptions = field(default_factory=IsolationOptions)
    exempt: frozenset[str] = frozenset({"kube-system"})
    roots: Host = Host()
    asked: Callable[[Keeper], Asked] | None = None
    cdi: str = ""
    tracer: Tracer = NO_TRACES
    pod_series: bool = True


class AgentDaemon:
    """One agent; `run` it.

    Attributes:
        url: of health and metrics; empty before the agent serves.
        notes: facts that operators have to know.
        found: the result of the last search for devices.
        instances: the maker of hardware instances; None without one.
    """

    def __init__(
        self,
        node: Node,
        context: Context,
        options: AgentOptions | None = None,
        instances: Callable[[Tallies, Notes], NodeInstances] | None = None,
        beside: Callable[["AgentDaemon"], Sequence[Companion]] = lambda _daemon: (),
    ) -> None:
        """An agent that does not serve yet. Raises `InvalidDocument`: the journal or the library cannot be used.

        `instances`: returns the maker of hardware instances; without one, pods with instances wait. `beside`: returns
        further companions.
        """
        self.options = options or AgentOptions()
        self.url = ""
        self.tallies = Tallies()
        self.notes = Notes()
        self.instances = None if instances is None else instances(self.tallies, self.notes)
        none = Instance(why="this agent makes no instances (--mig)")
        of_pods = (lambda *_: none) if self.instances is None else self.instances.instance
        roots, chosen = self.options.roots, self.options.isolation
        facts = HostFacts(
            of_pods,
            roots.verbs,
            self._files,
            chosen.provider,
            cdi=self.options.cdi,
            online=chosen.online,
        )
        self.meter = Meter(time.monotonic)
        self._drivers, self._looking = DriverMeter(time.monotonic), asyncio.Lock()
        self.found: Callable[[], Inventory] = Inventory
        self._known = False
        self._place = Place(node, context.settings, FAMILIES, facts, self.options.exempt)
        self._journal = self._opened()
        isolation, folders = self._isolation(), None
        if isinstance(chosen.provider, HamiCore):
            folders = Folders(chosen.provider.folder, roots.at, time.time)
        tracer = self.options.tracer
        stories = Stories(tracer, node.name, lambda: secrets.token_hex(8))
        self.keeper = Keeper(
            lambda: self._place, roots, self._journal, self.tallies, isolation, folders, stories
        )
        if self.instances is not None:
            self.instances.keep(lambda: self.keeper.books.allocations)
        self.tallies.registry.register(SpanSeries(tracer))
        make = self.options.asked
        plugin = replace(self.options.plugin, kept=looked_at)
        self.asked = make(self.keeper) if make else Plugin(self.keeper, plugin)
        self._followers: list[Callable[[Place], None]] = []
        self.tallies.registry.register(NodeSeries(self._books))
        if chosen.mps is not None:
            chosen.mps.tell(self.tallies, self.notes)
        self._folders = folders
        more = self.instances, chosen.mps
        self._companions = [*beside(self), *(one for one in more if one is not None)]

    def _opened(self) -> Journal:
        journal = Journal(self.options.journal)
        if journal.damaged:
            damaged = f"{journal.damaged} lines of the journal are damaged"
            _LOG.warning("%s", damaged)
            self.notes.say("journal", Code.JOURNAL_DAMAGED, (damaged,))
        return journal

    def _isolation(self) -> Isolation | None:
        """Enforcement by Partage's own library; None if it is not chosen."""
        chosen = self.options.isolation
        if chosen.library is None:
            return None
        rooms = Rooms(chosen.library, self.options.roots.at(chosen.folder), chosen.folder)
        for problem in rooms.problems:
            _LOG.warning("%s", problem)
        self.notes.say("rooms", Code.ISOLATION_FILES, rooms.problems)
        return Isolation(rooms, chosen.evict)

    def _files(self, uuid: str) -> tuple[str, ...]:
        """Device files of a card, from the last search; called in the keeper's thread."""
        return next((one.files for one in self.found().found if one.device.uuid == uuid), ())

    def take(self, node: Node, settings: Settings | None = None) -> None:
        """Replace the node by its present state, in one step because the keeper's thread reads it.

        `settings`: the families' settings in force now; None: those of before.
        """
        self._place = replace(self._place, node=node, settings=settings or self._place.settings)
        self._known = True
        for tell in self._followers:
            tell(self._place)

    def follow(self, tell: Callable[[Place], None]) -> None:
        """Call `tell` with the node now and after each change."""
        self._followers.append(tell)
        tell(self._place)

    def _books(self) -> Books:
        uses = {**self.meter.uses, **self._drivers.uses}
        return Books(self._place.node, self.keeper.books.latest, self._cards(), uses)

    def _cards(self) -> dict[str, CardUse]:
        return {one.device.uuid: one.use for one in self.found().found if one.use is not None}

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises `InvalidValue`: a port is not available."""
        probed = [web.get("/healthz", self._healthy), web.get("/readyz", self._ready)]
        app = web.Application(middlewares=[guard()])
        app.add_routes([*probed, web.get("/metrics", self._metrics)])
        site, probes = Site(app, Limits()), probe_site(probed)
        try:
            await self._start(site, self.options.port, "--port")
            if self.options.health_port is not None:
                await self._start(probes, self.options.health_port, "--health-port")
            self.url = site.url
            _LOG.info("health and metrics at %s", site.url)
            await self._serve(stop)
        finally:
            await site.stop()
            await probes.stop()
            self._journal.close()

    async def _start(self, site: Site, port: int, option: str) -> None:
        try:
            await site.start(self.options.host, port)
        except OSError as error:
            where = f"{self.options.host}:{port}"
            raise InvalidValue(f"{where}: {cause(error)}; name another {option}") from error

    async def _serve(self, stop: asyncio.Event) -> None:
        """Inject, with all companions. A fault in a companion ends the agent, so that it is not hidden."""
        works = {one.name: one.run() for one in self._companions}
        # Often enough to add all samples up, even if no program reads the metrics.
        drivers = Rounds("the drivers' samples cannot be read")
        works["drivers"] = drivers.every(self.options.isolation.period, self._look_at_drivers)
        if self._folders is not None:
            tidying = Rounds("folders of ended containers cannot be removed")
            works["tidying"] = tidying.every(2.0, partial(self._tidy, self._folders))
        tasks = {asyncio.create_task(work, name=f"agent:{name}") for name, work in works.items()}
        for task in tasks:
            task.add_done_callback(lambda _task: stop.set())
        try:
            await self.asked.run(stop)
        finally:
            await end(*tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _tidy(self, folders: Folders) -> None:
        """Remove some thousand files of ended containers, of which a tenant may have written any number.

        A thread of its own does it, so that no container waits for it and the agent can end in time.
        """
        if folders.pending:
            await asyncio.to_thread(folders.sweep)

    async def _look_at_drivers(self) -> None:
        async with self._looking:
            held, uses = self.keeper.books.latest, self.meter.uses
            await asyncio.to_thread(self._drivers.look, held, self._cards(), uses)

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        if not self._known:
            return web.Response(status=503, text="the node's devices are not known yet\n")
        if self.asked.ready.is_set():
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"{self.asked.problem}\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        self.tallies.connected.set(self.asked.ready.is_set())
        for code, count in self.notes.counted.items():
            self.tallies.notes.labels(code).set(count)
        await self._look_at_drivers()
        registry: Collector = self.tallies.registry
        if not self.options.pod_series:
            registry = Nameless(registry)
        data = generate_latest(registry)
        return web.Response(body=data, headers={"Content-Type": _METRICS})
