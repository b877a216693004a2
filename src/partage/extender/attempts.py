"""Answers a kube-scheduler that asks through its plugin, and follows its scheduling attempts.

kube-scheduler decides about one pod at a time, and binds in the background:

    propose ── reserve ── (waits for Permit) ── bind ── the Binding is sent ── bound
      │           └── unreserve: the devices are released, the place is remembered
      └── the proposal ends with the next question, or with the connection

* A proposal is a hold on the best node. The hold has no time limit, because kube-scheduler asks about no other pod
  before it has reserved or given up.
* A reservation counts like an allocation. kube-scheduler tries and reverts a pod group before it binds the group, so
  `reserve` may arrive again without `propose`. It then takes the same place or fails the attempt.
* A place is provisional while leaving pods still run there. A provisional place can never be bound.
* Every question names its attempt. A question of a replaced attempt changes nothing, nor does a repeated question.
* kube-scheduler itself places a pod that asks by ResourceClaims alone. The proposal names the best nodes for the claims
  by the books, and holds none. It names only nodes of which kube-scheduler has received all ResourceSlices, because
  kube-scheduler can allocate on no other. The books may know cards earlier or without a slice, by Devices and totals.
  If filters reject all proposed nodes, a second proposal names others. Then kube-scheduler looks at all nodes itself.
  `reserve` reports the allocation, which the books hold until it is stored (`extender.pending_allocations`).
* The proposal for a pod that asks by names and by claims depends on its names. The plugin reports the allocation of the
  claims before `reserve`, which then takes a place beside it. Otherwise both could take the same card.
* For a refused pod, `preempt` names nodes where less important pods could make room. kube-scheduler's own preemption
  evicts the victims, which include those of the plan, and nominates the pod. `extender.books` keeps the free part of a
  nominated place.

`extender.bindings` handles the Binding as for the extender, with the same states, locks and unknown outcomes. But the
plugin sends the Binding, after `bind` has allowed it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Final, TypeVar, cast

import numpy as np
from msgspec import structs
from prometheus_client import Histogram

from partage.extender.books import Books
from partage.extender.cycle import PROPOSED, Wanted, marked
from partage.extender.places import (
    MOST_PROPOSED,
    MOST_REJECTED,
    MOST_WIDE_REJECTED,
    REJECTED_SECONDS,
    Attempt,
    Lost,
    RejectedNodes,
    Reservations,
    claimant_of,
    pod_of,
)
from partage.extender.ports import Answered, Binding, Outcome
from partage.extender.preemption import Planner, may_preempt, to_be_gone
from partage.extender.service import SchedulerService
from partage.model.errors import InvalidDocument, LedgerError
from partage.model.reason import ReasonCode, Refusal
from partage.placement.work import MOST, Work
from partage.scheduler.engine import State
from partage.scheduler.events import Placement
from partage.wire import plugin as wire
from partage.wire.extender import BindArgs, decode_claim
from partage.wire.plugin import CHANGED, CLOSED, NOT_BOUND, PLACE_LOST, PROVISIONAL, STALE

_LOG = logging.getLogger("partage.extender")

_PLANS: Final = 16
"""Nodes with a plan in one answer; kube-scheduler's own preemption chooses one of them."""
_MOST_PLANNING: Final = 20 * MOST
"""Units of work that plans for one pod may take; kube-scheduler decides about no other pod meanwhile."""
_PLANNED_AGAIN: Final = 10.0
"""Seconds without new plans for pods with equal requests, after no plan helped one of them."""
_TURN: Final = 0.004
"""Seconds of planning after which other tasks have their turn."""
_MOST: Final = 20_000
"""Attempts to remember; kube-scheduler binds far fewer at a time."""


_Answering = TypeVar("_Answering", bound=Callable[..., wire.Answer])


def _measured(verb: str) -> Callable[[_Answering], _Answering]:
    """Measure the time of answers to a question."""

    def measured(answer: _Answering) -> _Answering:
        @wraps(answer)
        def answered(attempts: "Attempts", *args: Any, **more: Any) -> wire.Answer:
            with attempts.timed(verb):
                return answer(attempts, *args, **more)

        return cast("_Answering", answered)

    return measured


class Attempts:
    """The engine's side of one kube-scheduler."""

    def __init__(
        self, service: SchedulerService, may_bind: Callable[[], bool], *, preempts: bool = True
    ) -> None:
        """Start without attempts.

        Args:
            may_bind: whether this instance leads now; checked before every Binding.
            preempts: whether less important pods may be evicted for devices.
        """
        # Looked up once: labels take longer than the measurement.
        self._seconds: dict[str, Histogram] = {}
        self._preempts = preempts
        self._service = service
        self._may_bind = may_bind
        self._planner = Planner(service.clock, _PLANNED_AGAIN, _TURN)
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()
        self._rejected = RejectedNodes()
        self._places = Reservations(service, self._rejected)
        self._pools: set[str] | None = None
        self._several_until = 0.0
        self._books: Books | None = None
        service.forget.append(self._gone)

    def timed(self, verb: str) -> AbstractContextManager[Any]:
        """Measure the time of an answer to a question."""
        seconds = self._seconds.get(verb)
        if seconds is None:
            seconds = self._seconds[verb] = self._service.meters.verbs.labels(verb)
        return seconds.time()

    # --- questions -----------------------------------------------------------------------------

    @_measured("propose")
    def propose(self, question: wire.Propose, fitting: Sequence[str] | None = None) -> wire.Answer:
        """Nodes for the pod's devices, the best first.

        Args:
            fitting: the nodes that passed kube-scheduler's own filters, if these ran before; a
                genuine kube-scheduler filters afterwards.
        """
        books, now = self._current(), self._service.clock.monotonic()
        known = self._attempts.get(question.uid)
        # A late question changes nothing; nor does a repeated one whose attempt has its place already.
        late = known is not None and (
            question.attempt < known.number
            or (question.attempt == known.number and known.reserved)
        )
        self._places.begin(books, now, late=late)
        _take_in(books, dict(map(_amounts, question.taken)))
        if question.pools is not None:
            self._pools = self._pools or set()
            self._pools.update(question.pools.whole)
            self._pools.difference_update(question.pools.gone)
        if late:
            return _refused(question, STALE, "this attempt or a newer one went on")
        if self._service.closed:
            return _refused(question, CLOSED, self._service.closed)
        if question.uid in self._service.pending.pods:  # of the attempt before this one
            self._service.pending.withdrawn(books, question.uid, now)
        if question.claims:
            return self._for_claims(books, question, now)
        try:
            entry, travelled = pod_of(books, question)
        except InvalidDocument as error:
            return _refused(question, ReasonCode.INVALID_REQUEST, str(error))
        if entry is None:
            return wire.Answer(question.id, unseen=not travelled, skip=travelled)
        attempt = Attempt(question.attempt, entry, travelled)
        past = _past(books, attempt)
        if past:
            return _refused(question, CHANGED, past)
        if known is not None:
            if known.outcome is not None or question.uid in self._service.bindings.busy:
                return _refused(question, STALE, "the pod's Binding is on its way")
            self._places.release(known)
            if known.planned and not question.nominated and not books.nomination(question.uid):
                # kube-scheduler's own preemption could not make room there.
                self._rejected.add(question.uid, known.planned, now)
        books.tried_again(question.uid)
        self._remember(question.uid, attempt)
        try:
            with books.cycle.moving(question.uid):
                return self._proposed(books, question, attempt, now, fitting)
        except LedgerError as error:
            return _refused(
                question, STALE, f"{error}; what became of its Binding is not known yet"
            )

    async def preempt(self, question: wire.Preempt) -> wire.Answer:
        """The nodes where less important pods could make room, the best first; no nodes if they cannot."""
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
        with self.timed("preempt"):
            found = await self._planner.best(books, waiting, budgets, _PLANS + 1, planning)
        allowance.spend(pod, planning.taken, clock.monotonic())
        if self._current() is not books or self._attempts.get(uid) is not attempt:
            return _refused(question, STALE, "things changed; schedule the pod again")
        # A plan is left out if it evicts no pod, because it only waits for leaving pods that are as important.
        plans = {
            plan.node: (plan, gone)
            for plan in found
            if (gone := to_be_gone(books, plan, pod.priority))
        }
        if not plans and rejected:
            # Only the nodes that kube-scheduler rejected are left, so it has to give its reasons once more.
            self._rejected.forget(uid)
            return wire.Answer(question.id, again=True)
        if not plans:
            self._planner.give_up(pod)
        nodes = list(plans)[:_PLANS]
        for node in nodes[:1]:  # kube-scheduler compares nodes by the same rules
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
        if self._places.proposed == question.uid:
            self._places.proposed = ""
        node, attempt.simulated = question.node, question.simulated
        if attempt.place is not None:
            lost = self._places.take_again(books, attempt, node)
        elif node in attempt.nodes | attempt.planned.keys():
            lost = self._places.take(books, attempt, node, simulated=question.simulated)
        else:
            lost = Lost(PLACE_LOST, f"node {node} was not proposed")
        return wire.Answer(question.id) if lost is None else _refused(question, *lost)

    def unreserve(self, question: wire.Unreserve) -> wire.Answer:
        """Release the place that `reserve` took."""
        books, now = self._current(), self._service.clock.monotonic()
        self._service.pending.withdrawn(books, question.uid, now, question.attempt)
        attempt = self._attempts.get(question.uid)
        if attempt is not None and attempt.number == question.attempt:
            if self._places.proposed == question.uid:
                self._places.end_proposal()
            if attempt.place is not None and not attempt.simulated:
                books.released(question.uid, attempt.place.node)
            self._places.release(attempt)
        return wire.Answer(question.id)

    @_measured("another")
    def another(self, question: wire.Another) -> wire.Answer:
        """Whether kube-scheduler should schedule the pod again, without the rejected nodes."""
        books, now = self._current(), self._service.clock.monotonic()
        attempt = self._attempts.get(question.uid)
        if attempt is None or attempt.number != question.attempt or self._service.closed:
            # The engine that proposed them is gone: only its successor's next proposal shows whether there are others.
            return wire.Answer(question.id, again=True)
        if attempt.claimed:
            self._rejected.add(question.uid, set(question.rejected) & attempt.nodes, now)
            return wire.Answer(question.id, again=True)
        self._places.end_proposal()
        pod, allowance, ledger = attempt.entry.pod, books.cycle.allowance, books.engine.ledger
        if attempt.wide:
            # This rejection is not remembered if these were all nodes that fit, because the next comparison of all nodes
            # may accept them.
            room = int(attempt.narrowed)
            left = self._rejected.left(ledger, question.uid, now)
            among = ledger.present if left is None else left
            among = among & ~marked(ledger, attempt.nodes.union(question.rejected))
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
            # kube-scheduler knows what to wait for on the nodes that it rejected, but not for devices on the others.
            books.awaits(attempt.entry, found, now, among)
            if attempt.wide and not attempt.planned:
                self._rejected.forget(question.uid)
            return wire.Answer(question.id)
        if attempt.narrowed:
            self._several_until = now + REJECTED_SECONDS
        elif attempt.wide:
            # The exact rule judged a part of the nodes alone.
            room = self._rejected.add(question.uid, attempt.nodes, now, MOST_WIDE_REJECTED)
        return wire.Answer(question.id, again=room > 0)

    async def bind(
        self, question: wire.Bind, reply: Callable[[wire.Answer], None]
    ) -> wire.Answer | None:
        """Follow a Binding to its end. `reply` allows it; a returned answer refuses it.

        The caller runs this in a task of its own, because it ends only when the outcome is known.
        """
        attempt = self._of(question)
        if isinstance(attempt, wire.Answer):
            return attempt
        before, reserved = attempt, attempt.reserved
        changed = await self._changed(self._current(), attempt)
        if changed:
            return _refused(question, CHANGED, changed)
        # The pod may have been read meanwhile, and the attempt, or this instance's lead, may have ended.
        books, attempt = self._current(), self._of(question)
        if isinstance(attempt, wire.Answer):
            return attempt
        if attempt is not before or attempt.reserved < reserved:
            # A kube-scheduler that has given up, or is gone, would not report the outcome of the Binding.
            return _refused(question, STALE, "the attempt ended meanwhile; schedule the pod again")
        if attempt.provisional:
            return _refused(question, PROVISIONAL, "pods that still run there hold its place")
        if attempt.outcome is not None:
            return _refused(question, STALE, "the pod's Binding is on its way")
        place = attempt.place
        if place is None or place.node != question.node:
            return _refused(question, PLACE_LOST, f"nothing is reserved on node {question.node}")
        if not attempt.reserved:
            lost = self._places.take_again(books, attempt, question.node)
            if lost is not None:
                return _refused(question, *lost)
        attempt.outcome = asyncio.get_running_loop().create_future()
        try:
            with self.timed("bind"):
                return await self._bound(books, attempt, question, reply)
        finally:
            attempt.outcome = None
            attempt.reserved = False
            if attempt.gone:
                self._gone(question.uid)

    def bound(self, question: wire.Bound) -> bool:
        """Take in the outcome of a Binding from the plugin; return whether its attempt waits for the outcome."""
        attempt = self._attempts.get(question.uid)
        outcome = attempt.outcome if attempt is not None else None
        if attempt is None or outcome is None or attempt.number != question.attempt:
            return False
        try:
            told = Outcome(question.outcome)
        except ValueError:
            told = Outcome.UNKNOWN
        ended = question.outcome == wire.CONFLICT
        if not outcome.done():
            outcome.set_result(Answered(told, question.message, ended))
        return True

    def placed(self, question: wire.Bound) -> wire.Answer:
        """The answer after the end of a Binding: whether the ledger has the pod at its place."""
        books = self._service.books
        held = books.engine.ledger.allocation(question.uid)
        bound = held is not None and books.engine.states.get(question.uid) is State.BOUND
        attempt = self._attempts.get(question.uid)
        place = attempt.place if attempt is not None else None
        here = bound and (place is None or held is None or held.node == place.node)
        return wire.Answer(question.id, bound=here)

    def disconnected(self) -> None:
        """Release all places that are not bound, because kube-scheduler or its connection is gone.

        A Binding on its way has an unknown outcome, and the service reads the pod back.
        """
        books = self._current()
        self._pools = None
        self._places.end_proposal()
        self._service.pending.clear(books, self._service.clock.monotonic())
        for attempt in list(self._attempts.values()):
            if attempt.outcome is not None:
                if not attempt.outcome.done():
                    attempt.outcome.set_result(
                        Answered(Outcome.UNKNOWN, "kube-scheduler disconnected")
                    )
            else:
                self._places.release(attempt)

    def forget(self) -> None:
        """Forget the attempts of the last run of kube-scheduler, because a new run starts its numbers again."""
        self.disconnected()
        # Bindings on their way are followed to their ends without it.
        self._attempts.clear()

    def rebuilt(self) -> None:
        """Repeat the reservations in rebuilt books."""
        self._current()

    def _of(self, question: wire.Preempt | wire.Reserve | wire.Bind) -> Attempt | wire.Answer:
        """The attempt of a question, or an answer with the reason why the question can have no effect."""
        attempt = self._attempts.get(question.uid)
        if attempt is None and self._service.books.cluster_cache.is_gone(question.uid):
            return _refused(question, CHANGED, "the pod is gone")
        if attempt is None or attempt.number != question.attempt:
            return _refused(question, STALE, "this attempt is not known; schedule the pod again")
        if self._service.closed:
            return _refused(question, CLOSED, self._service.closed)
        return attempt

    # --- proposing -----------------------------------------------------------------------------

    def _proposed(
        self,
        books: Books,
        question: wire.Propose,
        attempt: Attempt,
        now: float,
        fitting: Sequence[str] | None,
    ) -> wire.Answer:
        engine, pod, stories = books.engine, attempt.entry.pod, self._service.stories
        asking = books.cluster_cache.asking(attempt.entry)
        start = stories.now()
        among = self._rejected.left(engine.ledger, question.uid, now, question.nominated)
        crowded = among is not None and self._rejected.count(question.uid, now) >= MOST_REJECTED
        if fitting is not None:
            left = marked(engine.ledger, fitting)
            among = left if among is None else among & left
        if not pod.request.groups and pod.request.fault is None:
            return wire.Answer(question.id, skip=True)
        if crowded:
            # Its filters judge all other nodes at once: pods of others may repel it from any number of the best ones.
            question = structs.replace(question, wide=True, domains=[])
        lately = now < self._several_until
        domains = () if lately else question.domains
        attempt.wide, attempt.narrowed = question.wide, bool(domains)
        several = question.wide or question.simulated or lately
        wanted = Wanted(several, question.wide, domains, question.nominated)
        decision, nodes = books.cycle.propose(pod, asking, wanted, among, now)
        asked_about = int(np.count_nonzero(engine.ledger.present if among is None else among))
        if isinstance(decision, Refusal):
            # kube-scheduler's own filters run afterwards, so devices are the only known obstacle.
            asked = books.engine.ledger.present.copy() if among is None else among
            books.refuse(attempt.entry, decision, now, asked)
            books.counts["plugin refused"] += 1
            preempt = self._may_preempt(books, attempt)
            if not preempt and self._rejected.forget(question.uid):
                # kube-scheduler has to reject those nodes once more, because it then knows what to
                # wait for.
                return self._proposed(books, question, attempt, now, fitting)
            stories.filtered(attempt.entry, start, (asked_about, 0), decision, engine.decision_id)
            return wire.Answer(
                question.id,
                code=str(decision.code),
                message=decision.message,
                preempt=preempt,
            )
        self._places.propose(books, question.uid)
        books.left(question.uid)
        books.counts["plugin proposed"] += 1
        attempt.nodes = frozenset(nodes)
        stories.filtered(attempt.entry, start, (asked_about, len(nodes)), None, engine.decision_id)
        scores = list(nodes.values()) if question.wide else []
        return wire.Answer(question.id, nodes=list(nodes), scores=scores)

    def _for_claims(self, books: Books, question: wire.Propose, now: float) -> wire.Answer:
        """The best nodes for a pod's claims; `skip` if kube-scheduler has to look at all nodes by itself."""
        uid, left_out = question.uid, self._rejected.count(question.uid, now)
        entry = claimant_of(books, question)
        work = books.cycle.allowance.work(entry.pod, now) if entry is not None else None
        rejected = left_out > (0 if question.wide else PROPOSED)
        if entry is None or work is None or rejected:
            return wire.Answer(question.id, skip=True)
        among = self._rejected.left(books.engine.ledger, uid, now)
        if self._pools is not None:
            whole = marked(books.engine.ledger, self._pools)
            among = whole if among is None else among & whole
        most = MOST_PROPOSED if left_out else PROPOSED
        books.cluster_cache.compares(entry.pod)
        wanted = Wanted(wide=question.wide, domains=question.domains)
        found = books.cycle.others(entry.pod, wanted, among, work, now, most)
        if not found:
            return wire.Answer(question.id, skip=True)
        books.counts["plugin proposed for claims"] += 1
        nodes = frozenset(found)
        self._remember(
            uid, Attempt(question.attempt, entry, travelled=True, nodes=nodes, claimed=True)
        )
        scores = list(found.values()) if question.wide else []
        return wire.Answer(question.id, nodes=list(found), scores=scores)

    def _allocated(self, books: Books, question: wire.Reserve) -> wire.Answer:
        """Hold the devices that kube-scheduler has allocated to a pod's claims; a lack of room refuses nothing."""
        known = self._attempts.get(question.uid)
        if known is not None and question.attempt < known.number:
            return _refused(question, STALE, "a newer attempt replaced this one")
        if self._service.closed:
            return _refused(question, CLOSED, self._service.closed)
        try:
            claims = [decode_claim(bytes(one)) for one in question.claims]
        except InvalidDocument as error:
            return _refused(question, ReasonCode.INVALID_REQUEST, str(error))
        if self._places.proposed == question.uid:
            # The pod asks by names too. `reserve` chooses its place again, beside its claims.
            self._places.end_proposal()
        now = self._service.clock.monotonic()
        self._service.pending.said(books, question.uid, question.attempt, claims, now)
        return wire.Answer(question.id)

    def _may_preempt(self, books: Books, attempt: Attempt) -> bool:
        """Whether a search for victims may help."""
        waiting = books.waiting.get(attempt.entry.pod.uid)
        if waiting is None or not self._preempts:
            return False
        return may_preempt(books, waiting) and not self._planner.in_vain(attempt.entry.pod)

    # --- binding -------------------------------------------------------------------------------

    async def _changed(self, books: Books, attempt: Attempt) -> str:
        """The reason why the pod is not the one of the decision; empty if it is."""
        pod = attempt.entry.pod
        entry = books.cluster_cache.pods.get(pod.uid)
        behind = attempt.travelled and entry is not None and entry.pod.request != pod.request
        if entry is None or behind:  # our watch may not show the pod of the question yet
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
        attempt: Attempt,
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
            changed = await self._changed(books, attempt)  # during the wait for a turn
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
            return await outcome

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
        """The current books. Rebuilt books lack the reservations, so these are repeated in them."""
        books = self._service.books
        if self._books is not books:
            before, self._books = self._books, books
            if before is not None:
                self._carry_over(before, books)
        return books

    def _carry_over(self, before: Books, books: Books) -> None:
        _take_in(books, before.cluster_cache.taken)
        for uid, attempt in list(self._attempts.items()):
            attempt.travelled = False  # the fresh list contains the pod, unless it is gone
            if attempt.reserved and attempt.place is not None and attempt.outcome is None:
                attempt.reserved = False
                if _past(books, attempt):
                    continue
                if self._places.take_again(books, attempt, attempt.place.node) is not None:
                    _LOG.info("pod %s lost its place", attempt.entry.pod.key)
            elif books.cluster_cache.documents.get(uid) is None:
                self._gone(uid)

    def _gone(self, uid: str) -> None:
        """Forget a deleted pod at once, because its document may be large."""
        attempt = self._attempts.get(uid)
        if attempt is not None and attempt.outcome is None:
            del self._attempts[uid]
        elif attempt is not None:
            attempt.gone = True
        self._rejected.forget(uid)

    def _remember(self, uid: str, attempt: Attempt) -> None:
        self._attempts.pop(uid, None)
        self._attempts[uid] = attempt
        while len(self._attempts) > _MOST:
            _, oldest = self._attempts.popitem(last=False)
            self._places.release(oldest)


def _amounts(one: wire.Taken) -> tuple[str, Mapping[str, int]]:
    return one.node, {"cpu": one.cpu, "memory": one.memory, "pods": one.pods}


def _take_in(books: Books, taken: Mapping[str, Mapping[str, int]]) -> None:
    """Pass the amounts taken beside devices to the engine. They free no devices, so no pod is woken."""
    for event in books.cluster_cache.take(taken) if taken else ():
        books.engine.handle(event)


def _past(books: Books, attempt: Attempt) -> str:
    """The reason why the pod cannot be placed any more; empty if it can."""
    if not attempt.travelled and books.cluster_cache.pods.get(attempt.entry.pod.uid) is None:
        return f"pod {attempt.entry.pod.key} is gone"
    return books.cluster_cache.past(attempt.entry)


def _refused(
    question: wire.Propose | wire.Preempt | wire.Reserve | wire.Bind,
    code: str,
    message: str,
) -> wire.Answer:
    return wire.Answer(question.id, code=str(code), message=message)
