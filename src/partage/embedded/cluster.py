"""The embedded cluster: every part of a cluster with Partage, assembled in one process.

    API server ── nodes and devices ── admission ── scheduler service ── agents, kubelet stand-in,
    controllers, scheduling loop ── pods

All servers listen on loopback and every client is an administrator, because it is for trials, lessons and tests.
Production is Kubernetes itself.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from partage.apiserver import (
    ADMIN,
    ApiServer,
    Record,
    Settings,
    UnreadableState,
    User,
    write_kubeconfig,
)
from partage.controllers.manager import ControllerSettings
from partage.daemon.options import SchedulerOptions
from partage.daemon.recording import RecordSettings
from partage.daemon.scheduler import SchedulerDaemon
from partage.embedded.admitting import admit_claims, admit_unacted, admit_with
from partage.embedded.agents import Agents
from partage.embedded.applying import Outcome, apply_all, is_state
from partage.embedded.claim_lives import ClaimLives
from partage.embedded.claim_places import CLASSES, ClaimPlaces
from partage.embedded.claim_slices import Slices
from partage.embedded.definitions import DEFINITIONS, DEVICES
from partage.embedded.fleet import SimulatedNode
from partage.embedded.kubelet import Kubelet
from partage.embedded.manifests import Manifest
from partage.embedded.overview import Overview, overview, waits_because
from partage.embedded.scheduling import InProcess, KubeScheduler, Ports
from partage.embedded.tainting import TaintEvictions
from partage.embedded.watching import forget_old_events, is_over
from partage.embedded.workloads import Workloads
from partage.extender.attempts import Attempts
from partage.extender.cluster_cache import ClusterCache
from partage.extender.server import Faces
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config, UserConfig
from partage.model.errors import InvalidValue
from partage.serving.access import Access
from partage.serving.listener import cause
from partage.sim.claims import OWN_CLASSES
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.vendors.reserved import RESERVED
from partage.webhook.server import review_routes
from partage.webhook.settings import Admission
from partage.wire.context import Context
from partage.wire.routing import DEFAULT_SCHEDULER

_LOG: Final = logging.getLogger("partage.embedded")
_HOST: Final = "127.0.0.1"
_NAMESPACE: Final = "partage-system"
_ACCOUNT: Final = "system:serviceaccount:partage-system:partage-scheduler"
_DEFINITIONS: Final = "customresourcedefinitions.apiextensions.k8s.io"
_LOOK: Final = 0.05
_PATIENCE: Final = 20.0
_GRACE: Final = 2.0
"""Seconds that a device may be unhealthy before its pods are flagged; no agent restarts here."""
_TICK: Final = 0.25
"""Seconds between two looks of the scheduler for pods to wake."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts to start, and their settings.

    Attributes:
        port: the API server's; 0 takes a free one.
        scheduler_port: the scheduler service's; 0 takes a free one.
        kubeconfig: its path; None takes a new folder, removed at the end.
        file: keeps the objects from one run to the next; None keeps nothing.
        resumable: nodes that continue if `file` has them, and are not created again.
        notes: on the plan's files; reported with the results.
        record: file for every decision with its causes; None keeps none.
    """

    simulated: Sequence[SimulatedNode] = ()
    objects: Sequence[Manifest] = ()
    port: int = 0
    scheduler_port: int = 0
    kubeconfig: Path | None = None
    file: Path | None = None
    resumable: Sequence[SimulatedNode] = ()
    notes: Sequence[str] = ()
    record: RecordSettings | None = None
    tracer: Tracer = NO_TRACES


@dataclass(frozen=True, slots=True)
class Addresses:
    """The parts' addresses; URLs have no trailing slash."""

    api: str
    scheduler: str
    dashboard: str
    kubeconfig: str


class EmbeddedCluster:
    """A cluster that runs as long as the context lasts; `server` is for code in the same process."""

    def __init__(self, plan: Plan) -> None:
        """A cluster that does not run yet. Raises `InvalidValue`: the plan's file holds no cluster's state."""
        self._plan = plan
        self._token = secrets.token_urlsafe(32)
        self._writer = User(_ACCOUNT, ("system:serviceaccounts", "system:authenticated"))
        try:
            self.server = ApiServer(
                Settings(
                    tokens={self._token: self._writer},
                    anonymous=ADMIN,
                    logs=lambda request: self._kubelet.logs(request),  # noqa: PLW0108 # it is made after this
                    file=plan.file,
                    relaxed_names=True,  # the MetaX and HAMi documents use names with capitals
                )
            )
        except UnreadableState as error:
            raise InvalidValue(str(error)) from error
        except OSError as error:
            raise InvalidValue(f"{plan.file} cannot be read: {error.strerror or error}") from error
        self.outcome = Outcome(notes=list(plan.notes))
        self._kubelet = Kubelet(self.server, self._context, plan.tracer)
        kept = {record.name for record in self.server.store.all("nodes")}
        resumed = [node for node in plan.resumable if node.name in kept]
        self._agents = Agents(self.server, [*resumed, *plan.simulated])
        self._admission = Admission()
        self._served = frozenset({*self._admission.served, DEFAULT_SCHEDULER})
        self._daemon: SchedulerDaemon | None = None
        self._loop: KubeScheduler | None = None
        self._stopping = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self.addresses = Addresses("", "", "", "")

    # --- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start everything; pods are decided in the background.

        Raises `InvalidValue`: a port is taken, or the kubeconfig cannot be written.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        plan = self._plan
        if plan.file is not None:
            stack.enter_context(_held(plan.file))
        if plan.kubeconfig is not None:
            with contextlib.suppress(OSError):  # what follows says why
                plan.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
            # kubectl's own lock on a kubeconfig is FILE.lock.
            stack.enter_context(_held(plan.kubeconfig, ".up"))
        api = await _listening("API server", plan.port, self.server.start(_HOST, plan.port))
        stack.push_async_callback(self.server.stop)
        try:
            await self.server.save()
        except OSError as error:
            raise InvalidValue(
                f"{plan.file} cannot be written: {error.strerror or error}; name another file"
            ) from error
        await self._furnish()
        config = Config(ClusterConfig(api), UserConfig(token=self._token))
        client = await stack.enter_async_context(Client(config))
        self._daemon = daemon = SchedulerDaemon(
            client,
            SchedulerOptions(
                host=_HOST,
                port=plan.scheduler_port,
                tick=_TICK,
                faces=Faces(Access(plain=True, here=True), pod_series=True),
                controllers=ControllerSettings(grace=_GRACE),
                claims=True,
                record=plan.record,
                tracer=plan.tracer,
            ),
            routes=review_routes(self._context, lambda: self._admission, tracer=plan.tracer),
            wake=self._wake,
        )
        # The scheduler starts first, so that it prefers nodes in the order of their creation, as
        # `partage schedule` does with the same files.
        await _listening("scheduler", plan.scheduler_port, stack.enter_async_context(daemon))
        state = [one for one in plan.objects if is_state(one)]
        things = [one for one in state if one.kind != "Pod"]
        admit_unacted(self.server)
        await apply_all(self.server, things, self._writer, self.outcome)
        await self._agents.register()
        await self._known()
        admit_with(self.server, self._context, lambda: self._admission, plan.tracer)
        admit_claims(self.server, daemon.service.review_claim)
        bound = [one for one in state if one.kind == "Pod"]
        await apply_all(self.server, bound, self._writer, self.outcome)
        await self._known()
        rest = [one for one in plan.objects if not is_state(one)]
        await apply_all(self.server, rest, self._writer, self.outcome)
        # The loop starts last, so that it takes these pods by priority and not by file.
        await stack.enter_async_context(self._running(daemon))
        kubeconfig = self._write_kubeconfig(api, stack)
        self.addresses = Addresses(api, daemon.url, daemon.url, str(kubeconfig))

    async def _furnish(self) -> None:
        """Creates the cluster's objects that exist before any manifest."""
        store = self.server.store
        for definition in DEFINITIONS:
            if store.get(_DEFINITIONS, "", definition["metadata"]["name"]) is None:
                await self.server.create(_DEFINITIONS, definition)
        for name, selectors in OWN_CLASSES.items():
            if store.get(CLASSES, "", name) is None:
                spec = {"selectors": [{"cel": {"expression": one}} for one in selectors]}
                await self.server.create(CLASSES, {"metadata": {"name": name}, "spec": spec})
        if store.get("namespaces", "", _NAMESPACE) is None:
            await self.server.create("namespaces", {"metadata": {"name": _NAMESPACE}})
        await self.server.settle()

    async def _known(self) -> None:
        """Waits until the scheduler knows the API server's nodes, devices and bound pods."""
        end = asyncio.get_running_loop().time() + _PATIENCE
        while not self._in_the_books():
            if asyncio.get_running_loop().time() >= end:
                _LOG.warning("the scheduler has not read some nodes or pods yet")
                return
            await asyncio.sleep(_LOOK / 5)

    def _in_the_books(self) -> bool:
        if self._daemon is None:
            return False
        books, store = self._daemon.service.books, self.server.store
        cluster_cache, index = books.cluster_cache, books.engine.ledger.index
        return (
            all(
                one.name in index or f"Node {one.name}" in cluster_cache.problems
                for one in store.all("nodes")
            )
            and all(cluster_cache.device_document(one.name) for one in store.all(DEVICES))
            and all(
                cluster_cache.pods.get(one.uid)
                for one in store.all("pods")
                if RESERVED.in_annotations(one.metadata.get("annotations") or ())
            )
        )

    @contextlib.asynccontextmanager
    async def _running(self, daemon: SchedulerDaemon) -> AsyncIterator[None]:
        """All background tasks."""
        # Here the service itself evicts less important pods, as beside the extender.
        attempts = Attempts(daemon.service, daemon.may_bind, preempts=False)
        seam = InProcess(self.server, attempts, self._writer)
        slices = Slices(self.server, lambda: daemon.service.books)
        await slices.publish()
        claims = ClaimPlaces(self.server, lambda: daemon.service.books)
        ports = Ports(self._served, self._context, claims)
        loop = self._loop = KubeScheduler(self.server, ports, seam)
        tasks = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("agents", self._agents.run()),
                ("kubelet", self._kubelet.run()),
                ("workloads", Workloads(self.server).run()),
                ("taints", TaintEvictions(self.server).run()),
                ("claims", ClaimLives(self.server).run()),
                ("slices", slices.run()),
                ("scheduling", loop.run()),
                ("events", forget_old_events(self.server)),
            )
        ]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            yield
        finally:
            self._stopping.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._stopping.is_set():
            return
        _LOG.error(
            "%s ended; the cluster is no longer complete",
            task.get_name(),
            exc_info=task.exception(),
        )

    def _write_kubeconfig(self, api: str, stack: contextlib.AsyncExitStack) -> Path:
        path = self._plan.kubeconfig
        if path is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="partage-"))
            path = Path(folder) / "kubeconfig"
        try:
            write_kubeconfig(path, api)
        except OSError as error:
            raise InvalidValue(
                f"the kubeconfig {path} cannot be written: {error.strerror}"
            ) from error
        return path

    # --- what the parts ask of each other ----------------------------------------------------

    def _context(self) -> Context:
        """The present settings for reading pods."""
        if self._daemon is None:
            return ClusterCache().translation.context
        return self._daemon.service.books.cluster_cache.translation.context

    def _wake(self, uids: Sequence[str]) -> None:
        """Makes the loop try these pods again."""
        if self._loop is not None:
            self._loop.activate(uids)

    # --- for those who look at it ------------------------------------------------------------

    def overview(self) -> Overview:
        """The cluster's present state."""
        if self._daemon is None:
            return Overview()
        return overview(self.server, self._daemon.service.books)

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and path of every route of the scheduler's URL."""
        return [] if self._daemon is None else self._daemon.routes

    @property
    def conflicts(self) -> int:
        """Number of Bindings that failed at the first try."""
        return 0 if self._loop is None else self._loop.conflicts

    async def settled(self, seconds: float) -> bool:
        """Waits until every pod has a node or a reason; whether this happened in time."""
        end = asyncio.get_running_loop().time() + seconds
        while any(map(self._undecided, self.server.store.all("pods"))):
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(_LOOK)
        return True

    def _undecided(self, pod: Record) -> bool:
        """Whether Partage decides about the pod, and has no result yet."""
        spec = pod.value.get("spec") or {}
        ours = spec.get("schedulerName") in self._served and not spec.get("schedulingGates")
        return ours and not (spec.get("nodeName") or is_over(pod) or waits_because(pod))


@contextlib.contextmanager
def _held(file: Path, end: str = ".lock") -> Iterator[None]:
    """A lock on this file against other clusters, beside it. Raises `InvalidValue`: another cluster uses it."""
    mark = file.with_name(file.name + end)
    try:
        lock = os.open(mark, os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        raise InvalidValue(
            f"{mark} cannot be written: {error.strerror or error}; name another file"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one before may have removed the file since we opened it; the next one locks another.
            if not os.path.samestat(os.fstat(lock), mark.stat()):
                raise FileNotFoundError(mark)
        except OSError as error:
            raise InvalidValue(
                f"{file} is another partage up's; end that one, or name another file"
            ) from error
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)
    finally:
        os.close(lock)


async def _listening(what: str, port: int, start: Awaitable[_T]) -> _T:
    """The result of starting to listen."""
    try:
        return await start
    except OSError as error:
        raise InvalidValue(
            f"port {port} of the {what} cannot be had: {cause(error)}; choose another, or 0 for any "
            "that is free"
        ) from error
