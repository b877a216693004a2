"""The scheduler service: requests of kube-scheduler and facts of the API server, over one engine.

It knows no socket and no API server. Requests and answers are bytes; facts of the API server
are documents; Bindings are sent through a port; time is an argument. Only a leader with rebuilt
books answers the verbs. Filter, prioritize and preempt are synchronous, so nothing else can
happen between a decision and its entry in the books.

The service answers at once for a pod without devices: it decodes only the pod's resource names.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Histogram

from partage.extender.adjustments import Adjustments, Amender
from partage.extender.audit import Audit, audit, doubtful
from partage.extender.bindings import Bindings, BindLimits
from partage.extender.books import Books
from partage.extender.claim_arbiter import WAIT, ClaimArbiter, Outdate, outdated
from partage.extender.claims_told import Known, explained, unknown
from partage.extender.cluster_cache import ClusterCache
from partage.extender.cycle import HOLD, Allowance, AllowanceSettings
from partage.extender.pending_allocations import PendingAllocations
from partage.extender.ports import Binder, Hooks, NodeLocks
from partage.extender.preemption import proposed
from partage.extender.rebuild import filled
from partage.extender.stories import SILENT, Stories
from partage.kube.clock import Clock
from partage.model.errors import InvalidDocument, LedgerError
from partage.model.policy import Policy
from partage.scheduler.engine import Engine
from partage.scheduler.events import Event
from partage.tracing.spans import PREEMPT, PRIORITIZE
from partage.vendors import names
from partage.wire.claims import are_few, may_be_allocated
from partage.wire.documents import Document
from partage.wire.extender import (
    Victims,
    bind_reply,
    decode_bind,
    decode_filter,
    decode_preempt,
    error_reply,
    filter_reply,
    passing_reply,
    preempt_reply,
    prioritize_reply,
    refused_reply,
)
from partage.wire.translation import PodEntry

_LOG = logging.getLogger("partage.extender")
_PLAIN: Final = 20_000
_SEEN: Final = 20_000
_MOST_READ: Final = 8
"""The most claims without news that one tick writes."""
_LEAST: Final = 20.0
"""The least time that a new leader has to write claims, seconds."""
_READING: Final = 1.0
"""Seconds for which a tick waits for its reads from the API server."""
_BUCKETS: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
_WAITS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Meters:
    """Histograms of the service's latencies."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.verbs = Histogram(
            "partage_verb_seconds",
            "Time to answer a verb of the extender or a question of the plugin, without reading and writing the connection.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.woken = Histogram(
            "partage_wake_to_bind_seconds",
            "From the moment a waiting pod was woken, because room appeared, to its Binding.",
            buckets=_WAITS,
            registry=self.registry,
        )


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of the service.

    Attributes:
        hold: seconds that a predicted place is kept.
        seed: the seed of the order in which equal nodes are preferred.
        allowance: how much search the pods of a namespace may have.
        adapts: write the annotations that vendors' own device plugins read (DevicePluginAdaption).
        cluster_cache: makes the cluster cache of new books.
        known: finds the pods and ResourceClaims of explanations, if the service follows claims.
        amender: writes the records of adjusted shares; None adjusts none.
    """

    limits: BindLimits = BindLimits()
    hold: float = HOLD
    seed: int = 0
    allowance: AllowanceSettings = AllowanceSettings()
    adapts: bool = True
    cluster_cache: Callable[[], ClusterCache] = ClusterCache
    engine: Callable[[Policy], Engine] = Engine
    known: Known = unknown
    amender: Amender | None = None


class SchedulerService:
    """One scheduler service.

    Attributes:
        books: the engine and the state beside it; replaced by `rebuild`.
        leading: this instance serves the verbs; a standby only keeps its books up to date.
        rebuilt: the books agree with the API server.
        closed: the reason why this instance does not serve the verbs; empty if it does.
        stories: receives the decisions, for traces.
        claims: reserves the devices that claims are about to be allocated.
        pending: the pending allocations of claims, as kube-scheduler's plugin reports them.
        adjustments: follows the adjustments that running pods ask for; None if nothing writes their records.
        forget: called with the uid of every deleted pod, after the books have removed it.
        periodic: called with the time, in seconds on the service's steady clock, at every tick.
    """

    def __init__(
        self,
        binder: Binder,
        clock: Clock,
        hooks: Hooks | None = None,
        *,
        locks: NodeLocks | None = None,
        settings: ServiceSettings | None = None,
        meters: Meters | None = None,
        stories: Stories = SILENT,
        outdate: Outdate | None = None,
    ) -> None:
        self.stories = stories
        self._binder = binder
        self.clock = clock
        self.meters = meters or Meters()
        self._hooks = replace(stories.hooks(hooks or Hooks()), bound=self.meters.woken.observe)
        self._settings = settings or ServiceSettings()
        self.bindings = Bindings(
            binder,
            clock,
            locks,
            self._settings.limits,
            adapts=self._settings.adapts,
            asked=self._asked,
            gone=self.pod_gone,
            stories=stories,
        )
        self._allowance = Allowance(self._settings.allowance)
        self.books = self._new_books()
        self.claims = ClaimArbiter()
        self.pending = PendingAllocations()
        self.adjustments: Adjustments | None = None
        if (amender := self._settings.amender) is not None:
            late, tell = self._settings.limits.late, self._hooks.not_adjusted
            self.adjustments = Adjustments(amender, clock, late, tell=tell)
        self._outdate = outdate
        self.forget: Callable[[str], object] = lambda _: None
        self.periodic: Callable[[float], object] = lambda _: None
        self._judge(leading=False, rebuilt=False)
        self.last_audit: Audit | None = None
        self._plain: OrderedDict[str, None] = OrderedDict()
        self._seen: OrderedDict[str, PodEntry] = OrderedDict()
        self._late: list[Callable[[], object]] | None = None
        self._reading: asyncio.Task[None] | None = None

    def _new_books(self) -> Books:
        return Books(
            self._settings.cluster_cache(),
            self._hooks,
            hold=self._settings.hold,
            engine=self._settings.engine,
            stories=self.stories,
            allowance=self._allowance,
        )

    def _judge(self, *, leading: bool, rebuilt: bool) -> None:
        self.leading, self.rebuilt = leading, rebuilt
        why = "" if rebuilt else "the ledger is not rebuilt yet"
        self.closed = why if leading else "the instance is not leader"

    # --- start and leadership ----------------------------------------------------------------

    async def rebuild(self, documents: Sequence[Document]) -> bool:
        """Build new books from a fresh list of all objects, after the Bindings on their way have ended.

        Facts that arrive meanwhile wait and enter the books last. The order in which equal nodes are preferred is a
        seeded permutation over creation time and uid. So it does not depend on names, and is the same after a restart.

        Returns:
            Whether every fact that arrived meanwhile entered the books; if not, a fault of ours is logged.
        """
        before = self.rebuilt
        self._judge(leading=self.leading, rebuilt=False)
        late: list[Callable[[], object]] = []
        self._late = late
        try:
            await self.bindings.drain()
            if self.adjustments is not None:
                await self.adjustments.drain()
            self.books = await filled(
                self._new_books(),
                documents,
                seed=self._settings.seed,
                before=self.books,
                now=self.clock.monotonic(),
            )
            now = self.clock.monotonic()
            self.claims.renew(self.books, now)
            self.pending.renew(self.books, now)
            if self.adjustments is not None:
                self.adjustments.renew(self.books, now)
            before = True
        finally:
            # After a failure the old books remain in use and must miss no fact.
            self._late = None
            missed = sum(not _entered(fact) for fact in late)
            self._judge(leading=self.leading, rebuilt=before)
        return not missed

    def lead(self) -> None:
        """Serve the verbs. The caller has waited out the quiet period and rebuilt."""
        self.bindings.forget_locks()
        self._judge(leading=True, rebuilt=self.rebuilt)

    def follow(self) -> None:
        """Stop serving the verbs; the books stay up to date."""
        self._judge(leading=False, rebuilt=self.rebuilt)

    def audit(self, pods: Iterable[Document] | None = None) -> Audit:
        """Compare the books with the pods of a fresh list; None compares with the pods last seen."""
        self.last_audit = audit(self.books, pods)
        if not self.last_audit.clean:
            _LOG.error("the ledger disagrees with the API server: %s", self.last_audit)
        return self.last_audit

    async def audit_gently(self, pods: Callable[[], Sequence[Document]]) -> Audit | None:
        """As `audit`, but other tasks run meanwhile; None if the books were rebuilt meanwhile."""
        books = self.books
        if await doubtful(books, pods, lambda: asyncio.sleep(0)):
            return self.audit(pods()) if books is self.books else None
        if books is not self.books:
            return None
        self.last_audit = Audit()
        return self.last_audit

    async def tick(self) -> None:
        """Do the periodic work: end holds, wake waiting pods, read pods that no watch reported, release locks.

        The driver calls this about every second. If the API server is slow, its reads continue in a task of their own,
        so that everything with a time limit ends in time.
        """
        now = self.clock.monotonic()
        self.periodic(now)
        self.books.tick(now)
        self.pending.expire(self.books, now)
        if self.adjustments is not None and not self.closed:
            self.adjustments.tick(self.books, now)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="read back")
        await asyncio.wait((self._reading,), timeout=_READING)
        if self._reading.done():
            reading, self._reading = self._reading, None
            if not reading.cancelled():  # `close` may have cancelled it
                reading.result()

    async def _read(self) -> None:
        for uid in list(self.books.unread):
            if uid not in self.bindings.busy:
                await self.bindings.read_back(self.books, uid)
        for entry in self.books.unheard(self.clock.monotonic()):
            await self.bindings.look_for(entry)
        if self.leading:
            await self._end_reservations()
            await self.bindings.settle_locks(self.books)

    async def close(self) -> None:
        """Stop serving, and wait until the Bindings and adjustments on their way have ended."""
        self.follow()
        if self._reading is not None:
            self._reading.cancel()
        await self.bindings.drain()
        if self.adjustments is not None:
            await self.adjustments.drain()

    # --- facts of the API server -------------------------------------------------------------

    def changed(self, document: Document) -> str:
        """Read a new or changed object; returns the fault of a ConfigMap or quota, empty if it is in force."""
        if self._late is not None:  # the fact waits until the books are rebuilt
            self._late.append(partial(self.changed, document))
            return ""
        now, cluster_cache = self.clock.monotonic(), self.books.cluster_cache
        events = cluster_cache.changed(document)
        ended: Sequence[Event] = ()
        if document.kind == "Pod":
            entry = cluster_cache.pods.get(document.metadata.uid or "")
            if entry is not None:
                self.books.pod_seen(entry, now)
            if self.adjustments is not None:
                ended = self.adjustments.settled(document)
        elif document.kind == "ResourceClaim":
            ended = self._claim_told(document)
        self.books.take([*ended, *events], now)
        if document.kind == "Pod" and names.ADJUST in document.annotations:
            self._adjust(document.metadata.uid or "")
        return cluster_cache.problems.get(document.label, "")

    def gone(self, document: Document) -> None:
        """Remove a deleted object."""
        if document.kind == "Pod":
            self.pod_gone(document.metadata.uid or "")
            return
        if self._late is not None:
            self._late.append(partial(self.gone, document))
            return
        events = self.books.cluster_cache.gone(document)
        if document.kind == "ResourceClaim":
            events = [*self._claim_told(document), *events]
        self.books.take(events, self.clock.monotonic())

    def _claim_told(self, document: Document) -> list[Event]:
        """The events that end the reservation and the pending allocation of a claim that the API server reports."""
        books = self.books
        return self.claims.settled(books, document) + self.pending.settled(books, document)

    def pod_gone(self, uid: str) -> None:
        """Remove a deleted pod."""
        if self._late is not None:
            self._late.append(partial(self.pod_gone, uid))
            return
        events = self.books.cluster_cache.pod_gone(uid)
        self.stories.gone(uid)
        self._seen.pop(uid, None)
        self._plain.pop(uid, None)
        self.books.pod_gone(uid)
        self.pending.withdrawn(self.books, uid, self.clock.monotonic())
        ended = [] if self.adjustments is None else self.adjustments.gone(uid)
        self.books.take([*ended, *events], self.clock.monotonic())
        self.forget(uid)

    def _adjust(self, uid: str) -> None:
        """Check the adjustment that a bound pod asks for; later if this instance does not serve now."""
        held, now = self.books.engine.ledger.allocation(uid), self.clock.monotonic()
        if self.adjustments is None or held is None:
            return
        if self.closed:
            self.adjustments.postpone(uid, held.namespace, now)
        else:
            self.adjustments.look(self.books, uid, now)

    async def _end_reservations(self) -> None:
        """Write claims with a reservation and without news, so that no late allocation of them can be stored."""
        for one in self.claims.due(self.clock.monotonic())[:_MOST_READ]:
            books, found = self.books, None
            try:
                if self._outdate is not None:
                    found = await self._outdate(one.namespace, one.name)
            except Exception as error:  # noqa: BLE001 # the port may raise any exception
                _LOG.warning("claim %s/%s cannot be written: %s", one.namespace, one.name, error)
                self.claims.put_off(one)
                continue
            if books is self.books and self._late is None:
                self.claims.written(books, one, found, self.clock.monotonic())

    async def outdate_claims(self, claims: Iterable[Document], since: float) -> bool:
        """Make allocations fail that an earlier leader admitted and that are not stored yet; whether all will fail.

        If claims cannot be written, this waits until no API server has such a write any more. Then, and if the books could
        not take what was written, the caller must list the stored claims again.

        Args:
            claims: the claims, listed after the earlier leader's last admission.
            since: the time of this last admission, seconds on the service's steady clock.
        """
        # One with too many finalizers is not admitted in this version.
        late = [one for one in claims if may_be_allocated(one) and are_few(one)]
        if self._outdate is None or not late:
            return True
        _LOG.info(
            "allocations of %d claims may still arrive from the earlier leader; writing the claims makes them fail",
            len(late),
        )
        until = max(since + WAIT, self.clock.monotonic() + _LEAST)
        entered: list[bool] = []
        done = await outdated(
            late,
            self._outdate,
            self.clock,
            until,
            lambda one: entered.append(_entered(partial(self.changed, one))),
        )
        return done and all(entered)

    def explain(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Why a pod is on its node or why it waits, with the claims that it names; None if it is not known."""
        return explained(self.books, namespace, name, self._settings.known, self.clock.monotonic())

    def review_claim(
        self, document: Document, *, question: str = "", dry_run: bool = False
    ) -> str:
        """Reserve the devices that a claim is about to be allocated; returns the refusal, empty if it may be stored.

        Args:
            document: the claim as it would be stored.
            question: the uid by which the review may be withdrawn; empty for none.
            dry_run: nothing will be stored.
        """
        if self.closed:
            return self.closed
        now = self.clock.monotonic()
        return self.claims.review(
            self.books, document, now, self.pending, question=question, dry_run=dry_run
        )

    def withdraw_review(self, question: str) -> None:
        """Free the devices that were reserved for one question alone, because the API server refuses its claim."""
        self.claims.withdrawn(self.books, question, self.clock.monotonic())

    # --- the verbs ---------------------------------------------------------------------------

    def filter(self, body: bytes) -> bytes:
        """Answer filter; the answer contains the fault of a broken request."""
        start, books = self.stories.now(), self.books
        try:
            args = decode_filter(body)
            entry = self._entry(args.pod)
            if entry is None:
                books.counts["filter without devices"] += 1
                return passing_reply(args)
            past = books.past(entry)
            if past:
                return error_reply(past)
            asked, now = args.names, self.clock.monotonic()
            pod, one = entry.pod, not entry.flexible
            refusal, found, among = books.cycle.filter(pod, asked, now, one=one)
            if refusal is not None:
                books.tried_again(pod.uid)
                work = books.cycle.allowance.work(pod, now)
                if books.yields(pod, refusal, among, work, now):
                    refusal, found, among = books.cycle.filter(pod, asked, now, one=one)
            decision = books.engine.decision_id
        except (InvalidDocument, LedgerError) as error:
            books.counts["filter error"] += 1
            return error_reply(str(error))
        if refusal is not None:
            books.refuse(entry, refusal, now, among)
        else:
            books.left(pod.uid)
        books.counts["filter passed" if refusal is None else "filter refused"] += 1
        if books.cycle.vacated:
            books.settle(now)
        self.stories.filtered(entry, start, (len(asked), len(found)), refusal, decision)
        if refusal is not None:
            return refused_reply(args, asked, refusal)
        return filter_reply(args, found)

    def prioritize(self, body: bytes) -> bytes:
        """Answer prioritize. Raises `InvalidDocument`: the body is not one of kube-scheduler."""
        start = self.stories.now()
        args = decode_filter(body)
        entry = self._entry(args.pod)
        if entry is None:
            return prioritize_reply((name, 0) for name in args.names)
        asked = args.names
        scores = self.books.cycle.prioritize(entry.pod, asked, self.clock.monotonic())
        self.stories.asked(PRIORITIZE, entry, start, {"partage.nodes.asked": len(asked)})
        return prioritize_reply(zip(asked, scores.tolist(), strict=True))

    async def bind(self, body: bytes) -> bytes:
        """Answer bind, once its outcome is known or counts as unknown."""
        try:
            args = decode_bind(body)
            entry = self._seen.get(args.uid) or self.books.cluster_cache.pods.get(args.uid)
            if entry is None and args.uid not in self._plain:
                entry = await self.read(args.namespace, args.name, args.uid)
        except InvalidDocument as error:
            return bind_reply(str(error))
        if self.closed:  # since the pod was read
            return bind_reply(self.closed)
        if entry is not None and (args.namespace, args.name) != (
            entry.pod.namespace,
            entry.pod.name,
        ):
            return bind_reply(f"uid {args.uid} is that of pod {entry.pod.key}")
        past = self.books.past(entry, args.node) if entry is not None else ""
        if past:
            return bind_reply(past)
        problem = await self.bindings.bind(self.books, args, entry)
        if not problem:
            self._plain.pop(args.uid, None)
            self._seen.pop(args.uid, None)
        return bind_reply(problem)

    def preempt(self, body: bytes) -> bytes:
        """Answer preempt with the nodes where evictions make room on the cards.

        Raises:
            InvalidDocument: the body is not one of kube-scheduler.
        """
        start = self.stories.now()
        args = decode_preempt(body)
        entry = self._entry(args.pod)
        if entry is None:
            return preempt_reply(args.victims)
        if entry.pod.uid in self.books.making_room:
            return preempt_reply({})  # others are being evicted for it already
        allowance, now = self.books.cycle.allowance, self.clock.monotonic()
        if not allowance.may_evict(entry.pod.namespace, now):
            self.books.postpone(entry.pod.uid)
            return preempt_reply({})
        candidates = {node: victims.uids for node, victims in args.victims.items()}
        kept = proposed(self.books.cycle, entry.pod, candidates, self.books.priority, now)
        if kept:
            # kube-scheduler chooses the node, so this counts the fewest victims.
            allowance.evict(entry.pod, min(kept.values(), key=len), now)
        told = {"partage.nodes.asked": len(args.victims), "partage.nodes.fitting": len(kept)}
        self.stories.asked(PREEMPT, entry, start, told)
        return preempt_reply(
            {node: Victims(uids, args.victims[node].violations) for node, uids in kept.items()}
        )

    def _asked(self, uid: str) -> bool:
        """Whether our kube-scheduler has asked about a pod that is not bound."""
        return uid in self._seen or uid in self.books.waiting

    # --- reading requests --------------------------------------------------------------------

    def _entry(self, document: Document) -> PodEntry | None:
        """The pod of a request, as the watch's document of this version was read; None for one without devices."""
        cache, uid, version = self.books.cluster_cache, *_state(document)
        entry, known = self.books.asked(uid), cache.documents.get(uid)
        if entry is None or known is None or not version or _state(known) != (uid, version):
            if not cache.translation.concerns(document):
                self._plain[uid] = None
                if len(self._plain) > _PLAIN:
                    self._plain.popitem(last=False)
                return None
            entry = cache.translation.read(document, before=cache.pods.get(uid))
        self._seen[entry.pod.uid] = entry
        if len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return entry

    async def read(self, namespace: str, name: str, uid: str) -> PodEntry | None:
        """Read a pod that kube-scheduler knows and this instance has never seen; forget it if it is gone.

        Raises:
            InvalidDocument: the pod does not exist or cannot be read.
        """
        try:
            document = await self._binder.read(namespace, name)
        except Exception as error:  # the port may raise any exception
            raise InvalidDocument(f"pod {namespace}/{name} cannot be read: {error}") from error
        if document is None or document.metadata.uid != uid:
            if self.books.cluster_cache.pods.get(uid) is None:
                self.pod_gone(uid)  # perhaps no watch ever reports its end
            raise InvalidDocument(f"there is no pod {namespace}/{name} with uid {uid}")
        return self._entry(document)


def _state(document: Document) -> tuple[str, str]:
    """The uid and the resourceVersion of an object."""
    metadata = document.metadata
    return metadata.uid or "", metadata.resource_version or ""


def _entered(fact: Callable[[], object]) -> bool:
    """Apply a fact before the service leads; a fault of ours in one fact must not lose the others."""
    try:
        fact()
    except Exception:  # noqa: BLE001 # logged, and the books are rebuilt
        _LOG.exception("the ledger cannot apply a fact that arrived before it leads")
        return False
    return True
