"""Scheduling attempts of a kube-scheduler that asks through its plugin.

kube-scheduler decides about one pod at a time, and binds in the background:

    propose ── reserve ── (waits for Permit) ── bind ── the Binding is sent ── bound
      │           └── unreserve: the devices are released, the place is remembered
      └── the proposal ends with the next question, or with the connection

* A proposal is a hold on the best node. Nothing else keeps it: kube-scheduler asks about no other
  pod before it has reserved or given up.
* A reservation counts like an allocation. A pod group is tried and reverted before it is bound, so
  `reserve` may come a second time without `propose`: it takes the same place or fails the attempt.
* A place on which others still run that are leaving is provisional: it can never be bound.
* Every question names its attempt. A question of an attempt that a newer one replaced changes
  nothing, and neither does a repeated one.
* A pod that asks by ResourceClaims alone is kube-scheduler's to place. Its proposal names nodes where its claims
  are best, by what the books have, and holds none: of nodes whose ResourceSlices kube-scheduler has all seen, for it can allocate
  on no other, and the books know cards by Devices and totals, earlier or without any slice. Where filters reject all of
  them others are named once more, and then kube-scheduler looks at all nodes by itself. `reserve` says what it has allocated, which the books hold
  until it is stored (`extender.pending_allocations`).
* A pod that asks by names and by claims is proposed by its names. What kube-scheduler has allocated to its claims is
  said before `reserve`, which then takes a place beside that: else both could want one card.
* A pod that is refused may be told where less important pods could make room (`preempt`). Who goes,
  and that the pod is nominated, is kube-scheduler's own preemption's work; its victims hold those
  of the plan. What is free of a nominated place is kept as `extender.books` has it.

The Binding itself goes through `extender.bindings`, as for the extender: its states, locks and
unknown ends are the same. What differs is who sends it: the plugin, after `bind` allowed it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final, TypeVar, cast

import numpy as np

from partage.extender.books import Books
from partage.extender.node_offers import (
    MOST_PROPOSED,
    PROPOSED,
    REJECTED_SECONDS,
    RejectedNodes,
    marked,
    offered,
    others,
)
from partage.extender.ports import Answered, Binding, Outcome
from partage.extender.preemption import Planner, may_preempt, to_be_gone
from partage.extender.service import SchedulerService
from partage.model.allocation import Allocation
from partage.model.errors import InvalidDocument, LedgerError
from partage.model.reason import ReasonCode, Refusal
from partage.placement.work import MOST, Work
from partage.scheduler.engine import State
from partage.scheduler.events import BindFailed, HoldEnded, Placement, RoomKept
from partage.scheduler.preemption import Plan
from partage.wire import plugin as wire
from partage.wire.claim_requests import MOST_BYTES, request_of_claims
from partage.wire.documents import outdated
from partage.wire.extender import BindArgs, decode_claim, decode_pod
from partage.wire.pods import translate_pod
from partage.wire.translation import PodEntry

_LOG = logging.getLogger("partage.extender")

_PLANS: Final = 16
"""Nodes with a plan that kube-scheduler's own preemption chooses from."""
_MOST_PLANNING: Final = 20 * MOST
"""Units of work that plans for one pod may take: kube-scheduler decides about no other meanwhile."""
_PLANNED_AGAIN: Final = 10.0
"""Seconds for which pods that ask alike are not planned for again where nothing helped one of them."""
_TURN: Final = 0.004
"""Seconds after which others have their turn while plans are made."""
_SENT_AWAY: Final = 10.0
"""Seconds after which what the API server says of a group's victims and nominations must be known."""
_MOST: Final = 20_000
"""Attempts that are remembered; kube-scheduler binds far fewer at a time."""

CLOSED: Final = "EngineNotReady"
STALE: Final = "StaleAttempt"
CHANGED: Final = "PodChanged"
PROVISIONAL: Final = "Provisional"
PLACE_LOST: Final = "PlaceLost"
NOT_BOUND: Final = "NotBound"
"""Codes beside those of refusals; docs/reference/plugin.md lists them."""


_Answering = TypeVar("_Answering", bound=Callable[..., wire.Answer])


@dataclass(slots=True)
class _Attempt:
    """One attempt.

    Attributes:
        number: kube-scheduler's.
        entry: the pod as it was decided about.
        travelled: the pod came with the question; no watch has shown it yet.
        planned: those on which less important pods could make room, and who.
        more: others could too.
        place: what `reserve` took; remembered after `unreserve`.
        reserved: the place is in the ledger now.
        provisional: others still run there; it can never be bound.
        outcome: set by `bound` while the Binding is on its way.
        claimed: the pod asks by claims; there is nothing to reserve or bind.
        wide: every node that fits was proposed, of which kube-scheduler chooses.
        narrowed: as wide, but of each domain the best alone.
    """

    number: int
    entry: PodEntry
    travelled: bool
    nodes: frozenset[str] = frozenset()
    planned: Mapping[str, Plan] = field(default_factory=dict)
    more: bool = False
    place: Allocation | None = None
    reserved: bool = False
    provisional: bool = False
    outcome: asyncio.Future[Answered] | None = None
    claimed: bool = False
    wide: bool = False
    narrowed: bool = False


def _measured(verb: str) -> Callable[[_Answering], _Answering]:
    """Observe how long answers to a question take."""

    def measured(answer: _Answering) -> _Answering:
        @wraps(answer)
        def answered(attempts: "Attempts", *args: Any, **more: Any) -> wire.Answer:
            with attempts.seconds.labels(verb).time():
                return answer(attempts, *args, **more)

        return cast("_Answering", answered)

    return measured


class Attempts:
    """The engine's side of one kube-scheduler; `seconds` are those that answers took, by question."""

    def __init__(
        self, service: SchedulerService, may_bind: Callable[[], bool], *, preempts: bool = True
    ) -> None:
        """No attempt yet.

        Args:
            may_bind: whether this instance leads at this very moment; asked before every Binding.
            preempts: less important pods may be sent away for devices.
        """
        self.seconds = service.meters.verbs
        self._preempts = preempts
        self._service = service
        self._may_bind = may_bind
        self._planner = Planner(service.clock, _PLANNED_AGAIN, _TURN)
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()
        self._rejected = RejectedNodes()
        self._pools: set[str] | None = None
        self._sent_away: dict[str, float] = {}
        self._several_until = 0.0
        self._proposal = ""
        self._books: Books | None = None
        service.forget.append(self._gone)

    # --- questions -----------------------------------------------------------------------------

    @_measured("propose")
    def propose(self, question: wire.Propose, fitting: Sequence[str] | None = None) -> wire.Answer:
        """Nodes for the pod's devices, the best first.

        Args:
            fitting: the nodes that kube-scheduler's own filters leave, where they came before; a
                genuine kube-scheduler filters afterwards.
        """
        books, now = self._current(), self._service.clock.monotonic()
        self._end_proposal()
        self._heed_facts(books, now)
        if question.taken:
            _take_in(books, {one.node: _amounts(one) for one in question.taken})
        if question.pools is not None:
            self._pools = self._pools or set()
            self._pools.update(question.pools.whole)
            self._pools.difference_update(question.pools.gone)
        known = self._attempts.get(question.uid)
        if known is not None and question.attempt < known.number:
            return _refused(question, STALE, "a newer attempt replaced this one")
        if self._service.closed:
            return _refused(question, CLOSED, self._service.closed)
        # An attempt before this one is over.
        self._service.pending.withdrawn(books, question.uid, now)
        if question.claims:
            return self._for_claims(books, question, now)
        try:
            entry, travelled = self._entry(books, question)
        except InvalidDocument as error:
            return _refused(question, ReasonCode.INVALID_REQUEST, str(error))
        if entry is None:
            return wire.Answer(question.id, unseen=not travelled, skip=travelled)
        past = books.cluster_cache.past(entry)
        if past:
            return _refused(question, CHANGED, past)
        if known is not None:
            if known.outcome is not None or question.uid in self._service.bindings.busy:
                return _refused(question, STALE, "the pod's Binding is on its way")
            self._release(known)
            if known.planned and not question.nominated and not books.nomination(question.uid):
                # kube-scheduler's own rules could not make room there.
                self._rejected.add(question.uid, known.planned, now)
        attempt = _Attempt(question.attempt, entry, travelled)
        self._remember(question.uid, attempt)
        try:
            return self._proposed(books, question, attempt, now, fitting)
        except LedgerError as error:
            return _refused(
                question, STALE, f"{error}; what became of its Binding is not known yet"
            )

    async def preempt(self, question: wire.Preempt) -> wire.Answer:
        """Where less important pods could make room, the best first; no nodes where none could."""
        books, uid = self._current(), question.uid
        attempt, waiting = self._of(question), books.waiting.get(uid)
        if isinstance(attempt, wire.Answer):
            return attempt
        if waiting is None or waiting.deferred or not self._may_preempt(books, attempt):
            return wire.Answer(question.id)
        pod, rejected = attempt.entry.pod, uid in self._rejected
        try:
            budgets = wire.budgets(question)
        except InvalidDocument as error:
            return _refused(question, ReasonCode.INVALID_REQUEST, str(error))
        allowance, clock = books.cycle.allowance, self._service.clock
        if not allowance.may_evict(pod.namespace, clock.monotonic()):
            books.postpone(uid)
            return wire.Answer(question.id)
        turn = allowance.has_turn(pod.namespace, clock.monotonic())
        planning = Work(_MOST_PLANNING if turn else MOST)
        with self.seconds.labels("preempt").time():
            found = await self._planner.best(books, waiting, budgets, _PLANS + 1, planning)
        allowance.spend(pod, planning.taken, clock.monotonic())
        if self._current() is not books or self._attempts.get(uid) is not attempt:
            return _refused(question, STALE, "things changed; schedule the pod again")
        # Pods that leave and are as important cannot be sent away: their room is waited for.
        plans = {
            plan.node: (plan, gone)
            for plan in found
            if (gone := to_be_gone(books, plan, pod.priority))
        }
        if not plans and rejected:
            # Only those that kube-scheduler rejected are left: it shall say why once more.
            self._rejected.forget(uid)
            return wire.Answer(question.id, again=True)
        if not plans:
            self._planner.give_up(pod)
        nodes = list(plans)[:_PLANS]
        for node in nodes[:1]:  # kube-scheduler compares them by the same rules
            victims = [victim.uid for victim in plans[node][0].victims]
            allowance.evict(pod, victims, clock.monotonic())
        attempt.planned = {node: plans[node][0] for node in nodes}
        attempt.more = len(plans) > len(nodes)
        books.counts["plugin planned"] += bool(nodes)
        return wire.Answer(question.id, nodes=nodes, victims=[plans[node][1] for node in nodes])

    @_measured("reserve")
    def reserve(self, question: wire.Reserve) -> wire.Answer:
        """Take the proposed place, or the same place again."""
        books = self._current()
        if question.claims:
            return self._allocated(books, question)
        attempt = self._of(question)
        if isinstance(attempt, wire.Answer):
            return attempt
        if attempt.claimed:
            return _refused(question, PLACE_LOST, "its claims are kube-scheduler's to allocate")
        if attempt.reserved and attempt.place is not None:
            if attempt.place.node == question.node:
                return wire.Answer(question.id)
            return _refused(question, PLACE_LOST, f"it is reserved on node {attempt.place.node}")
        if question.filtered:
            self._several_until = self._service.clock.monotonic() + REJECTED_SECONDS
        past = _past(books, attempt)
        if past:
            return _refused(question, CHANGED, past)
        if self._proposal == question.uid:
            self._proposal = ""
        if attempt.place is not None:
            return self._again(books, attempt, question)
        if question.node not in attempt.nodes | attempt.planned.keys():
            return _refused(question, PLACE_LOST, f"node {question.node} was not proposed")
        return self._take(books, attempt, question)

    def unreserve(self, question: wire.Unreserve) -> wire.Answer:
        """Release what `reserve` took."""
        books, now = self._current(), self._service.clock.monotonic()
        self._service.pending.withdrawn(books, question.uid, now, question.attempt)
        attempt = self._attempts.get(question.uid)
        if attempt is not None and attempt.number == question.attempt:
            if self._proposal == question.uid:
                self._end_proposal()
            self._release(attempt)
        return wire.Answer(question.id)

    @_measured("another")
    def another(self, question: wire.Another) -> wire.Answer:
        """Whether the pod shall be scheduled again, without the nodes that were rejected."""
        books, now = self._current(), self._service.clock.monotonic()
        attempt = self._attempts.get(question.uid)
        if attempt is None or attempt.number != question.attempt or self._service.closed:
            return wire.Answer(question.id)
        if attempt.claimed:
            self._rejected.add(question.uid, set(question.rejected) & attempt.nodes, now)
            return wire.Answer(question.id, again=True)
        self._end_proposal()
        pod, allowance, ledger = attempt.entry.pod, books.cycle.allowance, books.engine.ledger
        if attempt.wide:
            # What is rejected beside all others now need not be the next time.
            room, among = (
                int(attempt.narrowed),
                ledger.present & ~marked(ledger, question.rejected),
            )
        else:
            self._several_until = now + REJECTED_SECONDS
            mine = set(question.rejected) & (attempt.nodes | attempt.planned.keys())
            room = self._rejected.add(question.uid, mine, now)
            left = self._rejected.left(ledger, question.uid, now)
            among = ledger.present.copy() if left is None else left
        if room and attempt.planned:
            return wire.Answer(question.id, again=attempt.more)
        work = allowance.work(pod, now)
        if work is None:
            return wire.Answer(question.id)
        found = books.engine.evaluate(pod, reasons=False, among=among, work=work)
        allowance.spend(pod, work.taken, now)
        if isinstance(found, Refusal):
            # kube-scheduler knows what to wait for on those that it rejected, and nothing of devices on the others.
            books.awaits(attempt.entry, found, now, among)
            return wire.Answer(question.id)
        if room and attempt.wide:
            self._several_until = now + REJECTED_SECONDS
        return wire.Answer(question.id, again=room > 0)

    async def bind(
        self, question: wire.Bind, reply: Callable[[wire.Answer], None]
    ) -> wire.Answer | None:
        """See a Binding through; `reply` allows it. What is returned answers `bind` where it is not.

        The caller runs this in a task of its own: it ends when the outcome is known.

        Args:
            reply: sends the answer that allows the plugin to send the Binding.
        """
        books, attempt = self._current(), self._of(question)
        if isinstance(attempt, wire.Answer):
            return attempt
        if attempt.provisional:
            return _refused(question, PROVISIONAL, "pods that still run there hold its place")
        if attempt.outcome is not None:
            return _refused(question, STALE, "the pod's Binding is on its way")
        changed = await self._changed(books, attempt)
        if changed:
            return _refused(question, CHANGED, changed)
        books = self._current()
        place = attempt.place
        if place is None or place.node != question.node:
            return _refused(question, PLACE_LOST, f"nothing is reserved on node {question.node}")
        if not attempt.reserved:
            lost = self._again(books, attempt, question)
            if lost.code:
                return lost
        attempt.outcome = asyncio.get_running_loop().create_future()
        attempt.outcome.add_done_callback(lambda _: None)
        try:
            with self.seconds.labels("bind").time():
                return await self._bound(books, attempt, question, reply)
        finally:
            attempt.outcome = None
            attempt.reserved = False
            if self._service.books.cluster_cache.is_gone(question.uid):
                self._gone(question.uid)

    def bound(self, question: wire.Bound) -> bool:
        """The plugin says what became of its Binding; whether anything waits for that."""
        attempt = self._attempts.get(question.uid)
        outcome = attempt.outcome if attempt is not None else None
        if attempt is None or outcome is None or attempt.number != question.attempt:
            return False
        try:
            told = Outcome(question.outcome)
        except ValueError:
            told = Outcome.UNKNOWN
        if not outcome.done():
            outcome.set_result(Answered(told, question.message))
        return True

    def placed(self, question: wire.Bound) -> wire.Answer:
        """Where the pod is, by the ledger, now that its Binding has ended."""
        books = self._service.books
        held = books.engine.ledger.allocation(question.uid)
        bound = held is not None and books.engine.states.get(question.uid) is State.BOUND
        attempt = self._attempts.get(question.uid)
        place = attempt.place if attempt is not None else None
        here = bound and (place is None or held is None or held.node == place.node)
        return wire.Answer(question.id, bound=here)

    def disconnected(self) -> None:
        """kube-scheduler is gone, or its connection: what it had not bound is released.

        A Binding on its way has an unknown end, and is read back.
        """
        books = self._current()
        self._pools = None
        self._end_proposal()
        self._service.pending.clear(books, self._service.clock.monotonic())
        for attempt in list(self._attempts.values()):
            if attempt.outcome is not None:
                if not attempt.outcome.done():
                    attempt.outcome.set_result(
                        Answered(Outcome.UNKNOWN, "kube-scheduler disconnected")
                    )
            else:
                self._release(attempt)

    def forget(self) -> None:
        """Another run of kube-scheduler begins: its attempts count from anew."""
        self.disconnected()
        for uid, attempt in list(self._attempts.items()):
            if attempt.outcome is None:
                del self._attempts[uid]

    def rebuilt(self) -> None:
        """The books were made anew: what is reserved is reserved in them too."""
        self._current()

    def _of(self, question: wire.Preempt | wire.Reserve | wire.Bind) -> _Attempt | wire.Answer:
        """The attempt that a question is about, or why nothing may follow from it now."""
        attempt = self._attempts.get(question.uid)
        if attempt is None and self._service.books.cluster_cache.is_gone(question.uid):
            return _refused(question, CHANGED, "the pod is gone")
        if attempt is None or attempt.number != question.attempt:
            return _refused(question, STALE, "this attempt is not known; schedule the pod again")
        if self._service.closed:
            return _refused(question, CLOSED, self._service.closed)
        return attempt

    # --- proposing -----------------------------------------------------------------------------

    def _entry(self, books: Books, question: wire.Propose) -> tuple[PodEntry | None, bool]:
        """The pod, and whether it came with the question."""
        known = books.cluster_cache.document(question.uid)
        if bytes(question.pod):
            document = decode_pod(bytes(question.pod))
            if document.metadata.uid != question.uid:
                raise InvalidDocument(f"the pod that came has not the uid {question.uid}")
            if not outdated(document, known):
                if not books.cluster_cache.translation.concerns(document):
                    return None, True
                return books.cluster_cache.translation.read(document), True
        if known is None or _newer(question.version, known.metadata.resource_version or ""):
            return None, bool(bytes(question.pod))
        return books.cluster_cache.pod(question.uid), False

    def _proposed(
        self,
        books: Books,
        question: wire.Propose,
        attempt: _Attempt,
        now: float,
        fitting: Sequence[str] | None,
    ) -> wire.Answer:
        engine, pod, stories = books.engine, attempt.entry.pod, self._service.stories
        asking = books.cluster_cache.asking(attempt.entry)
        start = stories.now()
        among = self._rejected.left(engine.ledger, question.uid, now, question.nominated)
        if fitting is not None:
            left = marked(engine.ledger, fitting)
            among = left if among is None else among & left
        if not pod.request.groups and pod.request.fault is None:
            return wire.Answer(question.id, skip=True)
        # The pod's own hold must not count against it.
        engine.handle(HoldEnded(pod.uid))
        work = books.cycle.allowed(pod, now)
        beside: dict[str, int] = {}
        lately = now < self._several_until
        several = question.wide or question.simulated or lately
        domains = () if lately else question.domains
        attempt.wide, attempt.narrowed = question.wide, bool(domains)
        if several and pod.request.fault is None and work is not None:
            mine = Work(work.limit)
            beside = others(books.cycle, asking, question, domains, among, mine, now)
            if not beside and asking is not pod:
                mine = Work(work.limit)
                beside = others(books.cycle, pod, question, domains, among, mine, now)
        decision = books.cycle.hold(asking, among, now, work)
        lacking = isinstance(decision, Refusal) and ReasonCode.NODE_RESOURCES in decision.counts
        if lacking and asking is not pod and work is not None:
            # Where nothing but devices is looked at it may fit: kube-scheduler then says what nodes
            # lack beside them, and may make room.
            decision = books.cycle.hold(pod, among, now, Work(work.limit))
        asked_about = int(np.count_nonzero(engine.ledger.present if among is None else among))
        if isinstance(decision, Refusal):
            # Its own filters come afterwards: nothing but devices is known to be in the way.
            asked = books.engine.ledger.present.copy() if among is None else among
            books.refuse(attempt.entry, decision, now, asked)
            books.counts["plugin refused"] += 1
            preempt = self._may_preempt(books, attempt)
            if not preempt and self._rejected.forget(question.uid):
                # kube-scheduler shall say once more why it rejects those: it then knows what to
                # wait for.
                return self._proposed(books, question, attempt, now, fitting)
            stories.filtered(attempt.entry, start, (asked_about, 0), decision, engine.decision_id)
            return wire.Answer(
                question.id,
                code=str(decision.code),
                message=decision.message,
                preempt=preempt,
            )
        self._proposal = question.uid
        self._service.left(question.uid)
        books.counts["plugin proposed"] += 1
        nodes = offered(engine, pod, question, decision.allocation.node, beside)
        attempt.nodes = frozenset(nodes)
        stories.filtered(attempt.entry, start, (asked_about, len(nodes)), None, engine.decision_id)
        scores = list(nodes.values()) if question.wide else []
        return wire.Answer(question.id, nodes=list(nodes), scores=scores)

    def _for_claims(self, books: Books, question: wire.Propose, now: float) -> wire.Answer:
        """Nodes where a pod's claims are best; `skip` where kube-scheduler has to look at all nodes by itself."""
        uid, left_out = question.uid, self._rejected.count(question.uid, now)
        entry = _claimant(books, question)
        work = books.cycle.allowed(entry.pod, now) if entry is not None else None
        rejected = left_out > (0 if question.wide else PROPOSED)
        if entry is None or work is None or rejected:
            return wire.Answer(question.id, skip=True)
        among = self._rejected.left(books.engine.ledger, uid, now)
        if self._pools is not None:
            whole = marked(books.engine.ledger, self._pools)
            among = whole if among is None else among & whole
        most = MOST_PROPOSED if left_out else PROPOSED
        books.cluster_cache.compares(entry.pod)
        found = others(books.cycle, entry.pod, question, question.domains, among, work, now, most)
        if not found:
            return wire.Answer(question.id, skip=True)
        books.counts["plugin proposed for claims"] += 1
        nodes = frozenset(found)
        self._remember(
            uid, _Attempt(question.attempt, entry, travelled=True, nodes=nodes, claimed=True)
        )
        scores = list(found.values()) if question.wide else []
        return wire.Answer(question.id, nodes=list(found), scores=scores)

    def _allocated(self, books: Books, question: wire.Reserve) -> wire.Answer:
        """Hold what kube-scheduler has allocated to a pod's claims; it needs no leave."""
        known = self._attempts.get(question.uid)
        if known is not None and question.attempt < known.number:
            return _refused(question, STALE, "a newer attempt replaced this one")
        if self._service.closed:
            return _refused(question, CLOSED, self._service.closed)
        try:
            claims = [decode_claim(bytes(one)) for one in question.claims]
        except InvalidDocument as error:
            return _refused(question, ReasonCode.INVALID_REQUEST, str(error))
        if self._proposal == question.uid:
            # It asks by names too: its place on that node is chosen anew, beside its claims.
            self._end_proposal()
        now = self._service.clock.monotonic()
        self._service.pending.said(books, question.uid, question.attempt, claims, now)
        return wire.Answer(question.id)

    def _may_preempt(self, books: Books, attempt: _Attempt) -> bool:
        """Whether it is worth asking who could make room."""
        waiting = books.waiting.get(attempt.entry.pod.uid)
        if waiting is None or not self._preempts:
            return False
        return may_preempt(books, waiting) and not self._planner.in_vain(attempt.entry.pod)

    def _end_proposal(self) -> None:
        """The proposal that was not reserved ends."""
        uid, self._proposal = self._proposal, ""
        books = self._service.books
        if uid and books.engine.states.get(uid) is State.HELD:
            books.take([HoldEnded(uid)], self._service.clock.monotonic())

    # --- reserving -----------------------------------------------------------------------------

    def _take(self, books: Books, attempt: _Attempt, question: wire.Reserve) -> wire.Answer:
        entry, now = attempt.entry, self._service.clock.monotonic()
        try:
            decision = books.cycle.reserve(entry.pod, question.node)
        except LedgerError as error:
            return _refused(question, STALE, str(error))
        books.settle(now)
        if isinstance(decision, Refusal):
            if question.simulated and self._kept(books, attempt, question.node, now):
                return wire.Answer(question.id)
            books.refuse(entry, decision, now)
            if self._service.pending.has(entry.pod.uid):
                # Its claims have what it would need there, and would have it again.
                self._rejected.add(entry.pod.uid, {question.node}, now)
            return _refused(question, decision.code, decision.message)
        attempt.place, attempt.reserved = decision.allocation, True
        return wire.Answer(question.id)

    def _kept(self, books: Books, attempt: _Attempt, node: str, now: float) -> bool:
        """Whether the place is that of pods which are leaving; then it is kept, provisionally."""
        uid = attempt.entry.pod.uid
        if books.nomination(uid) == node:
            books.cycle.nominate(attempt.entry.pod, node, now, books.leaving(node))
        elif node in attempt.planned:
            # kube-scheduler sends those away now; the next pods of the group count on none of it.
            books.make_room(attempt.entry, attempt.planned[node], now)
        else:
            return False
        attempt.provisional = True
        return True

    def _again(
        self, books: Books, attempt: _Attempt, question: wire.Reserve | wire.Bind
    ) -> wire.Answer:
        """Take exactly the place that was taken before, or fail the attempt."""
        place, now = attempt.place, self._service.clock.monotonic()
        if place is None or place.node != question.node:
            where = place.node if place is not None else "no node"
            return _refused(question, PLACE_LOST, f"its place is on {where}")
        engine, uid = books.engine, attempt.entry.pod.uid
        taken: Placement | Refusal | None = None
        try:
            books.take([RoomKept(attempt.entry.pod, place.node, place.grants)], now)
            if engine.keeps(uid, place.node) and engine.ledger.allocation(uid) == place:
                taken = books.cycle.reserve(attempt.entry.pod, place.node)
        except LedgerError as error:
            return _refused(question, STALE, str(error))
        if isinstance(taken, Placement):
            attempt.reserved = True
            return wire.Answer(question.id)
        books.take([HoldEnded(uid)], now)
        return _refused(question, PLACE_LOST, "others took its place; schedule the pod again")

    def _release(self, attempt: _Attempt) -> None:
        """Give the ledger back what an attempt holds of it, unless its Binding is on its way."""
        uid, now = attempt.entry.pod.uid, self._service.clock.monotonic()
        if attempt.outcome is not None or uid in self._service.bindings.busy:
            return
        books = self._service.books
        state = books.engine.states.get(uid)
        if attempt.reserved and state is State.RESERVED:
            books.take([BindFailed(uid)], now)
        elif attempt.provisional and uid in books.making_room:
            # Its victims are being sent away. Until watches show that, and for which pod, no
            # other may be sent away for it.
            self._sent_away.setdefault(uid, now + _SENT_AWAY)
        elif attempt.provisional and state in (State.HELD, State.CLEARING):
            books.take([HoldEnded(uid)], now)
        attempt.reserved = attempt.provisional = False

    def _heed_facts(self, books: Books, now: float) -> None:
        """Room that a group's pods were to get is kept by what the API server says, after a while."""
        for uid in [uid for uid, end in self._sent_away.items() if now >= end]:
            del self._sent_away[uid]
            if uid in books.making_room:
                books.give_up(uid, now)
                entry = books.cluster_cache.pod(uid)
                if entry is not None:
                    books.pod_seen(entry, now)  # it is nominated by now, or no pod went for it

    # --- binding -------------------------------------------------------------------------------

    async def _changed(self, books: Books, attempt: _Attempt) -> str:
        """Why the pod is not the one that was decided about; empty when it is."""
        pod = attempt.entry.pod
        entry = books.cluster_cache.pod(pod.uid)
        if entry is None:
            if books.cluster_cache.is_gone(pod.uid):
                return f"pod {pod.key} is gone"
            try:
                entry = await self._service.read(pod.namespace, pod.name, pod.uid)
            except InvalidDocument as error:
                return str(error)
        if entry is None or entry.pod.request != attempt.entry.pod.request:
            return f"pod {pod.key} changed since it was decided about"
        return books.cluster_cache.past(entry)

    async def _bound(
        self,
        books: Books,
        attempt: _Attempt,
        question: wire.Bind,
        reply: Callable[[wire.Answer], None],
    ) -> wire.Answer | None:
        place, entry, outcome = attempt.place, attempt.entry, attempt.outcome
        assert place is not None and outcome is not None  # noqa: S101, PT018 # `bind` has set both
        allowed = False

        async def send(binding: Binding) -> Answered:
            nonlocal allowed
            if outcome.done():
                return Answered(Outcome.REFUSED, "kube-scheduler went before it was sent")
            changed = await self._changed(books, attempt)  # while it waited for its turn
            if changed:
                return Answered(Outcome.REFUSED, changed)
            if not self._may_bind():
                return Answered(Outcome.REFUSED, "this instance does not lead any more")
            allowed = True
            reply(
                wire.Answer(
                    question.id,
                    annotations=dict(binding.annotations),
                    labels=dict(binding.labels),
                    within=self._service.bindings.limits.send,
                )
            )
            return await asyncio.shield(outcome)

        pod = entry.pod
        args = BindArgs(pod.namespace, pod.name, pod.uid, question.node)
        problem = await self._service.bindings.bind_reserved(
            books, args, entry, Placement(place, pod.request.notes), send
        )
        if not allowed:
            return _refused(question, NOT_BOUND, problem or "the Binding was not sent")
        return None

    # --- keeping -------------------------------------------------------------------------------

    def _current(self) -> Books:
        """The books in force. New ones do not know what was reserved: it is taken again."""
        books = self._service.books
        if self._books is not books:
            before, self._books = self._books, books
            if before is not None:
                self._carry_over(before, books)
        return books

    def _carry_over(self, before: Books, books: Books) -> None:
        _take_in(books, before.cluster_cache.taken)
        for uid, attempt in list(self._attempts.items()):
            attempt.travelled = False  # a fresh list has it, unless it is gone
            if attempt.reserved and attempt.place is not None and attempt.outcome is None:
                attempt.reserved = False
                if _past(books, attempt):
                    continue
                question = wire.Reserve(0, uid, attempt.number, attempt.place.node)
                if self._again(books, attempt, question).code:
                    _LOG.info("pod %s lost its place", attempt.entry.pod.key)
            elif books.cluster_cache.document(uid) is None:
                self._gone(uid)

    def _gone(self, uid: str) -> None:
        """A pod is there no more. What its author wrote may be large, and is not kept for that."""
        attempt = self._attempts.get(uid)
        if attempt is not None and attempt.outcome is None:
            del self._attempts[uid]
        self._rejected.forget(uid)

    def _remember(self, uid: str, attempt: _Attempt) -> None:
        self._attempts.pop(uid, None)
        self._attempts[uid] = attempt
        while len(self._attempts) > _MOST:
            _, oldest = self._attempts.popitem(last=False)
            self._release(oldest)


def _amounts(one: wire.Taken) -> Mapping[str, int]:
    return {"cpu": one.cpu, "memory": one.memory, "pods": one.pods}


def _take_in(books: Books, taken: Mapping[str, Mapping[str, int]]) -> None:
    """Tell the engine what is left of nodes beside devices; no room for devices appears, so no pod is woken."""
    for event in books.cluster_cache.take(taken):
        books.engine.handle(event)


def _claimant(books: Books, question: wire.Propose) -> PodEntry | None:
    """A pod that asks by claims as one that asks by the engine's request; None where that cannot be said."""
    translation = books.cluster_cache.translation
    if sum(map(len, question.claims)) > MOST_BYTES:
        return None
    try:
        document = decode_pod(bytes(question.pod))
        claims = [decode_claim(bytes(one)) for one in question.claims]
        if document.metadata.uid != question.uid or translation.concerns(document):
            return None
        translated = translate_pod(document, translation.context)
    except InvalidDocument:
        return None
    request = request_of_claims(document, claims)
    if request is None:
        return None
    return PodEntry(replace(translated.pod, request=request), translated.view)


def _past(books: Books, attempt: _Attempt) -> str:
    """Why the pod cannot be placed any more; empty when it can."""
    if not attempt.travelled and books.cluster_cache.pod(attempt.entry.pod.uid) is None:
        return f"pod {attempt.entry.pod.key} is gone"
    return books.cluster_cache.past(attempt.entry)


def _newer(one: str, other: str) -> bool:
    """Whether a resourceVersion is newer than another; those that are no numbers never are."""
    return one.isdecimal() and other.isdecimal() and int(one) > int(other)


def _refused(
    question: wire.Propose | wire.Preempt | wire.Reserve | wire.Bind,
    code: str,
    message: str,
) -> wire.Answer:
    return wire.Answer(question.id, code=str(code), message=message)
