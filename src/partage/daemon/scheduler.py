"""The scheduler as a running process: it follows a cluster, keeps the books, serves and leads.

    start:    listen ── list everything ── rebuild ── Ready (a standby already follows)
    lead:     get the Lease ── wait out the quiet period ── list again ── rebuild ── audit ── serve
              (with the plugin kube-scheduler has got its own Lease before)
    no more:  stop serving ── let Bindings end ── give the Lease back ── follow again

Without an election the instance leads as soon as its books are rebuilt. Facts from the API server
go to the service and to companions (the controllers), in the order of each watch.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from aiohttp import web
from prometheus_client import Gauge

from partage.controllers.manager import Controllers
from partage.controllers.routes import config_routes
from partage.daemon.access_review import AccessReviews
from partage.daemon.agent_liveness import AgentSilence
from partage.daemon.binding import ApiNodeLocks, ApiPods
from partage.daemon.claim_reviews import ClaimDesk, outdater
from partage.daemon.claim_templates import ClaimTemplates
from partage.daemon.events_and_wakeups import Notices
from partage.daemon.gc_tuning import collecting_later
from partage.daemon.informers import Facts, Feed
from partage.daemon.leadership import LeaderLabel, Leadership, Memory, Sole, quiet_period
from partage.daemon.learning import Learning
from partage.daemon.lifecycle import Beside, until
from partage.daemon.options import SchedulerOptions
from partage.daemon.plugin import PluginServer
from partage.daemon.preempting import Preempting
from partage.daemon.recording import Recorder
from partage.daemon.watched import CLASSES, config_maps, watched
from partage.dashboard.history import History
from partage.dashboard.pages import page_routes
from partage.dashboard.routes import document_routes
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.server import probe_routes, scheduler_site
from partage.extender.service import SchedulerService
from partage.extender.stories import Stories
from partage.kube.client import Client
from partage.kube.clock import end, sleep_until
from partage.scheduler.engine import Engine
from partage.serving.site import Site, probe_site
from partage.tracing.tracer import SpanSeries
from partage.wire.documents import Document

_LOG: Final = logging.getLogger("partage.daemon")
_RENEWAL: Final = 60.0
"""Seconds between two looks at the certificate files."""
_PARTING: Final = 1.5
"""Seconds that open Bindings have when the process ends; the next leader waits for those that are left."""
_WORDS: Final = ("ConfigMap", "Node")
"""Kinds on which the names of device resources depend."""
_SOONEST: Final = 2.0
"""Seconds from a rebuild of the books to the next one; each further one waits twice as long."""
_CALM: Final = 60.0
"""Seconds without a doubt after which the books are rebuilt at once again; no rebuild waits longer."""


class Companion(Facts, Protocol):
    """Takes in all facts, as the scheduler does, and works only while this instance leads."""

    async def run(self) -> None:
        """Work until cancelled."""


class SchedulerDaemon(Beside):
    """One instance of the scheduler.

    Use `async with daemon:` beside other things in one process, or `await daemon.run(stop)`. `service`: answers
    requests; it has books even before they are rebuilt.
    """

    def __init__(
        self,
        client: Client,
        options: SchedulerOptions | None = None,
        *,
        routes: Iterable[web.RouteDef] = (),
        wake: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """A daemon that is not yet running.

        Args:
            client: an open client, for as long as the daemon runs; its clock is the daemon's.
            routes: further routes on the same port.
            wake: has kube-scheduler try pods again that may fit now, by their UIDs; None has the plugin
                do that if there is one, and otherwise changes each pod.
        """
        super().__init__()
        self.options = options or SchedulerOptions()
        self._client = client
        self._woken_by = wake
        self._clock = client.clock
        election = self.options.election
        self._leadership = self._lead(client)
        self._sole = Sole(client, self._went_back)
        self._memory = Memory(client, election)
        self._label = LeaderLabel(client, election.pod if election else None)
        writes = self.options.writes
        self._objects = client.paced(writes.objects)
        self._evicting = client.paced(writes.evictions)
        self._notices = Notices(
            client.paced(writes.wake_ups),
            self.options.identity,
            lambda uid: self.service.books.cluster_cache.pods.get(uid),  # noqa: PLW0108 # other books come
            self.may_bind,
            client.paced(writes.events),
        )
        record = self.options.record
        self._recorder = (
            Recorder(record, self.options.identity, client.clock) if record is not None else None
        )
        self.service = self._service(client)
        self._claims = ClaimDesk(self.service, self.may_bind, self._claim)
        self._plugin = self._plugin_server()
        self._silence = AgentSilence(
            self._objects,
            self._whole_books,
            self._notices.recorder,
            self.may_bind,
            self.options.silence,
            self.service.meters.registry,
        )
        controllers = self._controllers()
        self._companions: Sequence[Companion] = controllers
        if self.options.claim_templates:
            templates = ClaimTemplates(client.paced(writes.templates), self._whole_books)
            self._companions = (*self._companions, templates)
        configs = config_maps(self.options.config_namespaces, self.options.config_names)
        kinds = watched(configs, claims=self.options.claims)
        if self.options.claims:
            kinds = (*kinds, CLASSES)
        self._feed = Feed(client, kinds, self, self.options.watches, self._lists_went_back)
        self._history = History(client.clock.now)
        self._site = self._listening(controllers, routes)
        self._probes = probe_site(probe_routes(self.service))
        self._loaded = False
        self._loading = asyncio.Lock()
        self._doubt = asyncio.Event()
        self._restored = asyncio.Event()
        self._reigning = False
        self._predecessor_is_over = self._leadership is None
        self._stop = asyncio.Event()

    def _lead(self, client: Client) -> Leadership | None:
        election, plugin = self.options.election, self.options.plugin
        if election is None:
            return None
        return Leadership(
            client,
            self.options.identity,
            election,
            self._reign,
            settled=self._settled,
            went_back=self._lease_went_back,
            send=self.options.service.limits.send,
            followed=plugin.lease if plugin is not None else None,
        )

    def _service(self, client: Client) -> SchedulerService:
        pods = ApiPods(client, self.may_bind, self.options.service.limits.send)
        service = SchedulerService(
            pods,
            client.clock,
            replace(self._notices.hooks, wake=self._wake),
            locks=ApiNodeLocks(client),
            settings=replace(
                self.options.service,
                cluster_cache=lambda: ClusterCache(
                    policy=self.options.policy, namespaces=self.options.config_namespaces
                ),
                engine=Engine if self._recorder is None else self._recorder.engine,
                known=lambda *key: self._feed.document(*key) if self.options.claims else None,
                amender=pods,
            ),
            stories=Stories(self.options.tracer),
            outdate=outdater(client, self.options.identity, self._claim),
        )
        service.meters.registry.register(SpanSeries(self.options.tracer))
        Gauge(
            "partage_extender_certificate_end_seconds",
            "End of the certificate for the extender's verbs, seconds since 1970; 0 without one.",
            registry=service.meters.registry,
        ).set_function(lambda: self.options.tls.end if self.options.tls else 0.0)
        return service

    def _listening(
        self, controllers: Iterable[Controllers], routes: Iterable[web.RouteDef]
    ) -> Site:
        faces, client = self.options.faces, self._client
        if self.options.authorize and faces.readers is None:
            reviews = AccessReviews(client.paced(self.options.writes.reviews))
            faces = replace(faces, readers=reviews)
        shown = [*routes]
        for one in controllers:
            shown += config_routes(one.picture, self.options.policy)
        shown += document_routes(
            self.service, faces.readers, client.clock.monotonic, self._history
        )
        shown += page_routes()
        if self.options.claims:
            shown += self._claims.routes(faces.limits)
        return scheduler_site(self.service, faces, shown, self.options.tls)

    def _plugin_server(self) -> PluginServer | None:
        options = self.options.plugin
        if options is None:
            return None
        # Without an election this instance leads whatever kube-scheduler reports.
        claimed = self._leadership.claim if self._leadership is not None else lambda _: None
        preempts, claims = self.options.preemption is not None, self.options.claims
        return PluginServer(
            options, self.service, self.may_bind, claimed, preempts=preempts, claims=claims
        )

    def _wake(self, uids: Sequence[str]) -> None:
        """Have kube-scheduler try these pods again: by its plugin, or by a change of each pod."""
        if self._woken_by is not None:
            self._woken_by(uids)
        elif self._plugin is not None:
            self._plugin.activate(uids)
        else:
            self._notices.wake(uids)

    def _controllers(self) -> Sequence[Controllers]:
        given = self.options.controllers
        if given is None:
            return ()
        return (
            Controllers(
                self._objects,
                self._notices.recorder,
                settings=replace(given, namespaces=self.options.config_namespaces),
                registry=self.service.meters.registry,
                read=lambda pod: self.service.books.cluster_cache.taken_in(pod),  # noqa: PLW0108 # other books come
                node=lambda name: self.service.books.cluster_cache.as_read(name),  # noqa: PLW0108 # other books come
            ),
        )

    # --- life --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL of the service, without a trailing slash."""
        return self._site.url

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and path of all routes."""
        return self._site.routes

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, and then let open Bindings end.

        Raises `OSError`: the port is taken; `InvalidValue`: a TLS file is missing or broken.
        """
        self._stop = stop
        recording = asyncio.create_task(self._record(), name="scheduler:record")
        try:
            await self._site.start(self.options.host, self.options.port)
            if self.options.read_port is not None:
                await self._site.start_second(self.options.host, self.options.read_port)
            if self.options.health_port is not None:
                await self._probes.start(self.options.host, self.options.health_port)
            if self._plugin is not None:
                await self._plugin.start()
            _LOG.info("listening on %s", self.url)
            await until(stop, self._work(), "scheduler")
        finally:
            await self._drained()
            if self._plugin is not None:
                await self._plugin.stop()
            await self._site.stop()
            await self._probes.stop()
            await end(recording)
            _LOG.info("stopped")

    async def _record(self) -> None:
        """Keep the journal to the very end, because open Bindings end before."""
        if self._recorder is not None:
            await self._recorder.run()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed.run(), name="scheduler:feed")
            group.create_task(self._notices.run(), name="scheduler:notices")
            await self._load()
            group.create_task(self._tick(), name="scheduler:tick")
            group.create_task(self._audit(), name="scheduler:audit")
            group.create_task(self._mend(), name="scheduler:mend")
            group.create_task(
                self._history.follow(self._whole_books, self._clock.sleep),
                name="scheduler:history",
            )
            if self._leadership is None:
                group.create_task(self._sole.run(), name="scheduler:sole")
                await self._outdate_claims()
                await self._serve()
            else:
                self.ready.set()
                await self._label.take_off()
                await self._leadership.run()

    async def _load(self) -> None:
        async with self._loading:
            await self._load_alone()

    async def _load_alone(self) -> None:
        started = self._clock.monotonic()
        with collecting_later():
            await self._feed.refresh()
            # The lists settle all doubts until now.
            self._doubt.clear()
            self._restored.clear()
            listed = self._clock.monotonic()
            documents = self._feed.documents()
            # From here on facts go to the service, which keeps them until the books exist.
            self._loaded = True
            if not await self.service.rebuild(documents):
                self._doubt.set()
            if await self._memory.answers():
                _LOG.error(
                    "the API server lists what its store no longer has: the store was restored from a backup while "
                    "this API server ran. Nothing is allocated until the API servers are restarted; if they were, "
                    "restart this service"
                )
                self._doubt.set()
            if self._plugin is not None:
                self._plugin.rebuilt()
        _LOG.info(
            "ledger rebuilt: %d nodes, %d pods with devices; listed in %.1f s, rebuilt in %.1f s",
            len(self.service.books.engine.ledger.index),
            len(self.service.books.cluster_cache.pods),
            listed - started,
            self._clock.monotonic() - listed,
        )

    # --- leading -----------------------------------------------------------------------------

    @property
    def quiet_period(self) -> float:
        """Seconds after which no request of ours can still arrive."""
        return quiet_period(self.options.service.limits.send, self.options.election)

    async def _reign(self) -> None:
        """Wait out the leader before, rebuild the books, and serve until the lead is lost."""
        self._predecessor_is_over = False
        if self._leadership is not None:
            await self._leadership.predecessor_over()
        self._predecessor_is_over = True
        await self._load()
        await self._outdate_claims()
        await self._check()
        await self._serve()

    async def _outdate_claims(self) -> None:
        """Have earlier allocations fail that were admitted and have not arrived: the quiet period is for Bindings."""
        claims = self._feed.documents("ResourceClaim")
        since = self._clock.monotonic()
        if self._leadership is not None:
            since = min(since, self._leadership.sent_until)
        if not await self.service.outdate_claims(claims, since):
            await self._load()

    async def _serve(self) -> None:
        """Answer the verbs and run the companions, until cancelled."""
        self._reigning = self._notices.speaks = True
        if not self._doubt.is_set():  # otherwise it leads after the rebuild
            self.service.lead()
        self.ready.set()
        waiting = [
            entry.pod.uid
            for entry in self.service.books.cluster_cache.pods.values()
            if entry.pod.node is None and not entry.pod.finished
        ]
        _LOG.info("leading; %d pods with devices wait", len(waiting))
        # Nothing else wakes pods that an earlier leader refused, or that no leader answered.
        if self._plugin is not None:
            self._plugin.activate(waiting)
        else:
            self._notices.wake_in_turn(waiting)
        self._serves()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._label.wear(), name="scheduler:label")
                if self.options.learning is not None:
                    learning = Learning(
                        lambda: self.service.books, self._clock, self.options.learning
                    )
                    group.create_task(learning.run(), name="scheduler:learning")
                # Through the plugin kube-scheduler's own preemption counts devices too.
                if self.options.preemption is not None and self._plugin is None:
                    preempting = Preempting(
                        self._evicting,
                        lambda: self.service.books,
                        self._notices.recorder,
                        self.may_bind,
                        self.options.preemption,
                        self.service.stories,
                    )
                    group.create_task(preempting.run(), name="scheduler:preemption")
                group.create_task(self._silence.run(), name="scheduler:silence")
                for companion in self._companions:
                    group.create_task(companion.run(), name="scheduler:companion")
                await asyncio.Event().wait()
        finally:
            self._reigning = self._notices.speaks = False
            self.service.follow()
            self._serves()
            _LOG.info("lost the lead")
            await self._drained()
            await self._label.take_off()

    async def _drained(self) -> None:
        """Wait for the end of open Bindings; only for a moment if the process ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARTING if self._stop.is_set() else None):
                await self.service.close()

    def _settled(self) -> bool:
        """Whether no request can still arrive, after the end of our lead.

        Requests of the leader before us count as well, because we may not have waited for their end.
        """
        return (
            self._predecessor_is_over
            and self.service.bindings.settled
            and self.service.books.settled
        )

    def may_bind(self) -> bool:
        """Whether this instance leads now, with books that are not in doubt; checked before every Binding."""
        leads = (self._leadership or self._sole).leading
        return self._reigning and self.service.leading and leads and not self._doubt.is_set()

    # --- beside ------------------------------------------------------------------------------

    def _whole_books(self) -> Books | None:
        """The books; None while they are made."""
        return self.service.books if self.service.rebuilt else None

    async def _tick(self) -> None:
        looked = self._clock.monotonic()
        while True:
            await self._clock.sleep(self.options.tick)
            try:
                await self.service.tick()
            except Exception:  # noqa: BLE001 # logged, and the books are rebuilt
                _LOG.exception("the periodic work failed")
                self._doubt.set()
            if self.options.tls is not None and self._clock.monotonic() > looked + _RENEWAL:
                looked = self._clock.monotonic()
                self.options.tls.refresh()

    async def _audit(self) -> None:
        listed = self._clock.monotonic()
        while True:
            await self._clock.sleep(self.options.audit)
            if self._clock.monotonic() >= listed + self.options.relist:
                await self._feed.refresh()
                listed = self._clock.monotonic()
            try:
                await self._check()
            except Exception:  # noqa: BLE001 # logged, and the books are rebuilt
                _LOG.exception("the audit failed")
                self._doubt.set()

    async def _check(self) -> None:
        """Compare the books with the API server's pods; wrong books are rebuilt."""
        if not self.service.rebuilt:
            return
        found = await self.service.audit_gently(lambda: self._feed.documents("Pod"))
        if found is not None and not found.clean:
            self._doubt.set()

    async def _mend(self) -> None:
        """Rebuild the books whenever they are in doubt, by an audit, a fault of ours or a restored store.

        Books in doubt serve nothing, also in the pause between two rebuilds.
        """
        rebuilt, pause = self._clock.monotonic(), 0.0
        while True:
            await self._doubt.wait()
            since = self._clock.monotonic() - rebuilt
            if since >= _CALM:
                pause = 0.0
            left = max(0.0, pause - since)
            pause = min(2 * pause or _SOONEST, _CALM)
            _LOG.error("the ledger is in doubt and is rebuilt in %.0f s", left)
            self.service.follow()
            self._serves()
            await sleep_until(self._clock, left, self._restored)
            async with self._loading:
                if not self._doubt.is_set():
                    continue  # this instance got the lead meanwhile, with new books
                self.service.follow()
                self._serves()
                await self.service.bindings.drain()
                if self.service.books.unread:
                    await self._clock.sleep(self.quiet_period)
                await self._load_alone()
            rebuilt = self._clock.monotonic()
            if self._reigning and not self._doubt.is_set():
                self.service.lead()
                self._serves()

    def _serves(self) -> None:
        if self._plugin is not None:
            self._plugin.ready_changed()

    def _claim(self, namespace: str, name: str) -> Document | None:
        return self._feed.document("ResourceClaim", namespace, name)

    # --- facts -------------------------------------------------------------------------------

    def _lease_went_back(self) -> None:
        """Log the restore and rebuild the books, unless the lists come from an API server's memory."""
        _LOG.error("the Lease is older than it was, as after a restore from a backup")
        self._went_back()

    def _lists_went_back(self) -> None:
        """Rebuild the books from an API server that answers with what the store has."""
        self._memory.forget()
        self._went_back()

    def _went_back(self) -> None:
        """Stop deciding and rebuild the books, because the API server's store has lost later changes."""
        self.service.follow()
        self._serves()
        self._doubt.set()
        self._restored.set()

    def changed(self, document: Document) -> None:
        """See `informers.Facts`."""
        self._tell(document, lambda one: one.changed(document))

    def gone(self, document: Document) -> None:
        """See `informers.Facts`."""
        self._tell(document, lambda one: one.gone(document))

    def _tell(self, document: Document, tell: Callable[[Facts], object]) -> None:
        """Pass a fact to all parts; a fault of ours in one fact must not end the watch of all others."""
        if self._loaded:  # the first lists go into the books all at once
            try:
                tell(self.service)
                if self._plugin is not None and document.kind in _WORDS:
                    self._plugin.settings_changed()
            except Exception:  # noqa: BLE001 # logged, and the books are rebuilt
                _LOG.exception("the ledger cannot apply %s", document.label)
                self._doubt.set()
        for companion in self._companions:  # they see what the books have read
            try:
                tell(companion)
            except Exception:  # noqa: BLE001 # logged with its traceback
                _LOG.exception("a part of this process failed to handle %s", document.label)
        if document.kind == "ResourceClaim":
            self._claims.claim_changed(document)
