"""Answers a kube-scheduler that asks through its plugin, and follows its scheduling attempts.

kube-scheduler decides about one pod at a time, and binds in the background:

    propose ── reserve ── (waits for Permit) ── bind ── the Binding is sent ── bound
      │           └── unreserve: the devices are released, the place is remembered
      └── the proposal ends with the next question, or with the connection

* A proposal is a hold on the best node. The hold has no time limit, because kube-scheduler asks about no other pod
  before it has reserved or given up.
* A reservation counts like an allocation. kube-scheduler tries and reverts a pod group before it binds the group, so
  `reserve` may arrive again without `propose`. It then takes the same place or fails the attempt.
* A place is provisional while leaving pods still run there. A provisional place can never be bound, nor one that only the
  cycle of a group took.
* Every question names its attempt. A question of a replaced attempt changes nothing, nor does a repeated question.
* kube-scheduler itself places a pod that asks by ResourceClaims alone (`extender.claim_proposals`). `reserve` reports the
  allocation, which the books hold until it is stored (`extender.pending_allocations`).
* The proposal for a pod that asks by names and by claims depends on its names. The plugin reports the allocation of the
  claims before `reserve`, which then takes a place beside it. Otherwise both could take the same card.
* `extender.retries` answers for pods that got no place: `another` after kube-scheduler rejected the nodes, `preempt` after
  a refusal. `extender.books` keeps the free part of a nominated place.

`extender.bindings` handles the Binding as for the extender, with the same states, locks and unknown outcomes. But the
plugin sends the Binding, after `bind` has allowed it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec

import numpy as np
from msgspec import structs
from prometheus_client import Histogram

from partage.extender.books import Books
from partage.extender.claim_proposals import ClaimProposals
from partage.extender.cycle import Wanted, marked
from partage.extender.ports import Answered, Binding, Outcome
from partage.extender.retries import MOST_REJECTED, Attempt, Retries
from partage.extender.service import SchedulerService
from partage.inventory.plane import Bools
from partage.model.errors import InvalidDocument, LedgerError
from partage.model.reason import ReasonCode, Refusal
from partage.placement.card import Work
from partage.scheduler.engine import State
from partage.scheduler.events import BindFailed, HoldEnded, Placement, RoomKept
from partage.wire import plugin as wire
from partage.wire.documents import outdated, precedes
from partage.wire.extender import BindArgs, decode_claim, decode_pod
from partage.wire.plugin import CHANGED, CLOSED, NOT_BOUND, PLACE_LOST, PROVISIONAL, STALE
from partage.wire.translation import PodEntry

_LOG = logging.getLogger("partage.extender")

_SENT_AWAY: Final = 10.0
"""Seconds after which the watches must have shown a group's victims and nominations."""
_MOST: Final = 20_000
"""Attempts to remember; kube-scheduler binds far fewer at a time."""
_P = ParamSpec("_P")


def _measured(
    answer: Callable[Concatenate["Attempts", _P], wire.Answer],
) -> Callable[Concatenate["Attempts", _P], wire.Answer]:
    """Measure the time of answers to a question, which has the function's name."""

    @wraps(answer)
    def answered(attempts: "Attempts", /, *args: _P.args, **more: _P.kwargs) -> wire.Answer:
        with attempts.timed(answer.__name__):
            return answer(attempts, *args, **more)

    return answered


class _Lost(NamedTuple):
    """The reason for kube-scheduler why no place was taken."""

    code: str
    message: str


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
        self._service = service
        self._may_bind = may_bind
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()
        self._retries = Retries(service.clock, preempts=preempts)
        self._claims = ClaimProposals()
        self._newest: Attempt | None = None
        self._proposed = ""  # the uid of the pod with a held proposal
        self._moment = (0, 0)  # of the waiting pods when it was proposed
        self._sent_away: dict[str, float] = {}
        self._books: Books | None = None
        service.forget, service.periodic = self._gone, self._tick

    def timed(self, verb: str) -> AbstractContextManager[Any]:
        """Measure the time of an answer to a question."""
        if verb not in self._seconds:
            self._seconds[verb] = self._service.meters.verbs.labels(verb)
        return self._seconds[verb].time()

    # --- questions -----------------------------------------------------------------------------

    @_measured
    def propose(self, question: wire.Propose, fitting: Sequence[str] | None = None) -> wire.Answer:
        """Nodes for the pod's devices, the best first.

        Args:
            fitting: the nodes that passed kube-scheduler's own filters, if these ran before; a
                genuine kube-scheduler filters afterwards.
        """
        books, now = self._current(), self._now
        known = self._attempts.get(question.uid)
        # A late question changes nothing; nor does a repeated one whose attempt has its place already.
        late = known is not None and (
            question.attempt < known.number
            or (question.attempt == known.number and known.reserved)
        )
        if not late:
            self._end_proposal()
        _take_in(books, dict(map(_amounts, question.taken)))
        if question.pools is not None:
            self._claims.take_in(question.pools)
        if late:
            return _refused(question, STALE, "this attempt or a newer one went on")
        if self._service.closed:
            return _refused(question, CLOSED, self._service.closed)
        if question.uid in self._service.pending.pods:  # of the attempt before this one
            self._service.pending.withdrawn(books, question.uid, now)
        if question.claims:
            return self._for_claims(books, question, now)
        try:
            entry, travelled = _pod_of(books, question)
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
            self._release(known)
            if known.offered and not question.nominated and not books.nomination(question.uid):
                # kube-scheduler's own preemption could not make room there.
                self._retries.rejected.add(question.uid, known.offered, now)
        books.tried_again(question.uid)
        self._remember(question.uid, attempt)
        try:
            return self._propose(books, question, attempt, now, fitting)
        except LedgerError as error:
            unknown = f"{error}; the result of its Binding is not known yet"
            return _refused(question, STALE, unknown)

    async def preempt(self, question: wire.Preempt) -> wire.Answer:
        """The nodes where less important pods could make room, the best first; no nodes if they cannot."""
        books, attempt = self._current(), self._of(question)
        if isinstance(attempt, wire.Answer):
            return attempt
        try:
            budgets = wire.budgets(question)
        except InvalidDocument as error:
            return _refused(question, ReasonCode.INVALID_REQUEST, str(error))

        def current() -> bool:
            return self._current() is books and self._attempts.get(question.uid) is attempt

        with self.timed("preempt"):
            plans = await self._retries.plans(books, attempt, budgets, current)
        if not current():
            return _refused(question, STALE, "the cluster changed; schedule the pod again")
        if plans is None:
            return wire.Answer(question.id, again=True)
        return wire.Answer(question.id, nodes=list(plans), victims=list(plans.values()))

    @_measured
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
                attempt.simulated = attempt.simulated and question.simulated
                return wire.Answer(question.id)
            return _refused(question, PLACE_LOST, f"it is reserved on node {attempt.place.node}")
        if question.filtered:
            self._retries.several(self._now)
        past = _past(books, attempt)
        if past:
            return _refused(question, CHANGED, past)
        if self._proposed == question.uid:
            held = books.engine.ledger.allocation(question.uid)
            if held is not None and held.node != question.node:
                self._end_proposal()  # the room that it leaves is no news either
            self._proposed = ""
        node, attempt.simulated = question.node, question.simulated
        if attempt.place is not None:
            lost = self._take_again(books, attempt, node)
        elif node in attempt.nodes | attempt.planned.keys():
            lost = self._take(books, attempt, node, simulated=question.simulated)
        else:
            lost = _Lost(PLACE_LOST, f"node {node} was not proposed")
        return wire.Answer(question.id) if lost is None else _refused(question, *lost)

    def unreserve(self, question: wire.Unreserve) -> wire.Answer:
        """Release the place that `reserve` took."""
        books, now = self._current(), self._now
        self._service.pending.withdrawn(books, question.uid, now, question.attempt)
        attempt = self._attempts.get(question.uid)
        if attempt is not None and attempt.number == question.attempt:
            if self._proposed == question.uid:
                self._end_proposal()
            if attempt.place is not None and not attempt.simulated:
                books.released(question.uid, attempt.place.node)
            self._release(attempt, given_back=True)
        return wire.Answer(question.id)

    @_measured
    def another(self, question: wire.Another) -> wire.Answer:
        """Whether kube-scheduler should schedule the pod again, without the rejected nodes."""
        books, now = self._current(), self._now
        attempt = self._attempts.get(question.uid)
        if attempt is None or attempt.number != question.attempt or self._service.closed:
            # The engine that proposed them is gone: only its successor's next proposal shows whether there are others.
            return wire.Answer(question.id, again=True)
        if not attempt.claimed:
            self._end_proposal()
        again = self._retries.another(books, attempt, question.rejected, now)
        return wire.Answer(question.id, again=again)

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
        if attempt.simulated:
            return _refused(question, STALE, "its place was reserved only to try its group")
        if attempt.outcome is not None:
            return _refused(question, STALE, "the pod's Binding is on its way")
        place = attempt.place
        if place is None or place.node != question.node:
            return _refused(question, PLACE_LOST, f"nothing is reserved on node {question.node}")
        if not attempt.reserved:
            lost = self._take_again(books, attempt, question.node)
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
        bound = books.engine.states.get(question.uid) is State.BOUND
        attempt = self._attempts.get(question.uid)
        place = attempt.place if attempt is not None else None
        here = bound and held is not None and (place is None or held.node == place.node)
        return wire.Answer(question.id, bound=here)

    def disconnected(self) -> None:
        """Release all places that are not bound, because kube-scheduler or its connection is gone.

        A Binding on its way has an unknown outcome, and the service reads the pod back.
        """
        books = self._current()
        self._claims.pools = None
        self._end_proposal()
        self._service.pending.clear(books, self._now)
        for attempt in list(self._attempts.values()):
            if attempt.outcome is None:
                self._release(attempt)
            elif not attempt.outcome.done():
                lost = Answered(Outcome.UNKNOWN, "kube-scheduler disconnected")
                attempt.outcome.set_result(lost)

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
        if attempt is None and question.uid in self._service.books.cluster_cache.deleted:
            return _refused(question, CHANGED, "the pod is gone")
        if attempt is None or attempt.number != question.attempt:
            return _refused(question, STALE, "this attempt is not known; schedule the pod again")
        if self._service.closed:
            return _refused(question, CLOSED, self._service.closed)
        return attempt

    # --- proposing -----------------------------------------------------------------------------

    def _propose(
        self,
        books: Books,
        question: wire.Propose,
        attempt: Attempt,
        now: float,
        fitting: Sequence[str] | None,
        before: tuple[Bools, Work | None] | None = None,
    ) -> wire.Answer:
        """The answer. `before`: the nodes that were searched for it in vain, and the work, of which the rest is left."""
        engine, pod, stories = books.engine, attempt.entry.pod, self._service.stories
        asking = books.asking(attempt.entry)
        start = stories.now()
        rejected, among, crowded = self._retries.rejected, None, False
        if question.uid in rejected:
            among = rejected.left(engine.ledger, question.uid, now, question.nominated)
            crowded = rejected.count(question.uid, now) >= MOST_REJECTED
        if fitting is not None:
            left = marked(engine.ledger, fitting)
            among = left if among is None else among & left
        if not pod.request.groups and pod.request.fault is None:
            return wire.Answer(question.id, skip=True)
        if crowded:
            # Its filters judge all other nodes at once: pods of others may repel it from any number of the best ones.
            question = structs.replace(question, wide=True, domains=[])
        lately = now < self._retries.several_until
        domains = () if lately else question.domains
        attempt.wide, attempt.narrowed = question.wide, bool(domains)
        several = question.wide or question.simulated or lately
        wanted = Wanted(several, question.wide, domains, question.nominated)
        asked, searched = engine.ledger.present if among is None else among, among
        if before is None:
            work = books.cycle.allowance.work(pod, now)
        else:
            searched, work = asked & ~before[0], before[1]
        decision, nodes = books.cycle.propose(pod, asking, wanted, searched, work, now)
        asked_about = int(np.count_nonzero(asked))
        if isinstance(decision, Refusal):
            if before is None and books.yields(pod, decision, asked, work, now):
                nowhere = np.zeros_like(asked)
                return self._propose(books, question, attempt, now, fitting, (nowhere, work))
            # kube-scheduler's own filters run afterwards, so devices are the only known obstacle.
            asked = asked.copy()
            books.refuse(attempt.entry, decision, now, asked, grouped=question.simulated)
            books.counts["plugin refused"] += 1
            preempt = self._retries.may_preempt(books, attempt)
            if not preempt and question.uid in rejected:
                del rejected[question.uid]
                # kube-scheduler has to reject those nodes once more, because it then knows what to
                # wait for.
                if work is not None:
                    work.go_on()
                return self._propose(books, question, attempt, now, fitting, (asked, work))
            stories.filtered(attempt.entry, start, (asked_about, 0), decision, engine.decision_id)
            return _refused(question, decision.code, decision.message, preempt=preempt)
        self._proposed, self._moment = question.uid, _moment(books)
        books.left(question.uid)
        books.counts["plugin proposed"] += 1
        attempt.nodes = frozenset(nodes)
        stories.filtered(attempt.entry, start, (asked_about, len(nodes)), None, engine.decision_id)
        scores = list(nodes.values()) if question.wide else []
        return wire.Answer(question.id, nodes=list(nodes), scores=scores)

    def _for_claims(self, books: Books, question: wire.Propose, now: float) -> wire.Answer:
        """The best nodes for a pod's claims; `skip` if kube-scheduler has to look at all nodes by itself."""
        entry, found = self._claims.nodes(books, question, self._retries.rejected, now)
        if entry is None or not found:
            return wire.Answer(question.id, skip=True)
        nodes = frozenset(found)
        attempt = Attempt(question.attempt, entry, travelled=True, nodes=nodes, claimed=True)
        self._remember(question.uid, attempt)
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
        if self._proposed == question.uid:
            # The pod asks by names too. `reserve` chooses its place again, beside its claims.
            self._end_proposal()
        self._service.pending.said(books, question.uid, question.attempt, claims, self._now)
        return wire.Answer(question.id)

    # --- places --------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        """Keep the room of a released group after a while only if the API server's objects confirm it.

        kube-scheduler evicts for a group's pods one by one, also if it then finds no place for another one of them.
        """
        if not self._sent_away:
            return
        books = self._current()
        for uid in [uid for uid, end in self._sent_away.items() if now >= end]:
            del self._sent_away[uid]
            entry = books.cluster_cache.pods.get(uid)
            if uid not in books.making_room:
                continue
            if entry is not None and entry.nominated:
                books.confirm(uid, now)
            else:
                if entry is not None:
                    self._retries.in_vain(uid, now)
                books.give_up(uid, now)

    def _end_proposal(self) -> None:
        """End the proposal that was not reserved."""
        uid, self._proposed = self._proposed, ""
        books = self._service.books
        if uid and books.engine.states.get(uid) is State.HELD:
            self._revert(books, HoldEnded(uid), self._moment)

    def _revert(
        self, books: Books, event: HoldEnded | BindFailed, moment: tuple[int, int]
    ) -> None:
        """End what was held since a moment for a proposal, or for the cycle of a group, and leads to no Binding.

        No pod was decided about meanwhile that may have it, so its room is news for no pod. Otherwise two pods that
        kube-scheduler's own rules keep off every node would wake each other without end, and so would the pods of a
        group that has places for some of them. It is news if pods were compared with other new room meanwhile.
        """
        held = books.engine.ledger.allocation(event.uid)
        if held is None or _moment(books) != moment:
            books.take([event], self._now)
            return
        books.engine.handle(event)
        if books.nominees(held.node):
            books.settle(self._now, (held.node,))

    def _take(self, books: Books, attempt: Attempt, node: str, *, simulated: bool) -> _Lost | None:
        """Take a place on a node; `simulated` if the cycle of a pod group asks, which is reverted later."""
        entry, now = attempt.entry, self._now
        try:
            decision = books.cycle.reserve(entry.pod, node)
        except LedgerError as error:
            return _Lost(STALE, str(error))
        books.settle(now)
        if isinstance(decision, Refusal):
            if simulated and self._kept(books, attempt, node, now):
                return None
            books.refuse(entry, decision, now)
            if entry.pod.uid in self._service.pending.pods:
                # The pod's own claims hold the devices that it needs there, and would hold them again.
                self._retries.rejected.add(entry.pod.uid, {node}, now)
            return _Lost(str(decision.code), decision.message)
        attempt.place, attempt.reserved = decision.allocation, True
        attempt.moment = _moment(books)
        return None

    def _kept(self, books: Books, attempt: Attempt, node: str, now: float) -> bool:
        """Keep the place provisionally if it belongs to leaving pods; whether it is kept."""
        uid = attempt.entry.pod.uid
        if books.nomination(uid) == node:
            books.cycle.nominate(attempt.entry.pod, node, now, books.leaving(node))
        elif node in attempt.planned:
            # kube-scheduler evicts those now; the next pods of the group must not use the same room.
            books.make_room(attempt.entry, attempt.planned[node], now)
        else:
            return False
        attempt.provisional = True
        return True

    def _take_again(self, books: Books, attempt: Attempt, node: str) -> _Lost | None:
        """Take exactly the earlier place again, or fail the attempt."""
        place, now = attempt.place, self._now
        if place is None or place.node != node:
            where = place.node if place is not None else "no node"
            return _Lost(PLACE_LOST, f"its place is on {where}")
        engine, uid = books.engine, attempt.entry.pod.uid
        taken: Placement | Refusal | None = None
        try:
            books.take([RoomKept(attempt.entry.pod, place.node, place.grants)], now)
            if engine.kept(uid, place.node) == place:
                taken = books.cycle.reserve(attempt.entry.pod, place.node)
        except LedgerError as error:
            return _Lost(STALE, str(error))
        if isinstance(taken, Placement):
            attempt.reserved, attempt.moment = True, _moment(books)
            return None
        books.take([HoldEnded(uid)], now)
        return _Lost(PLACE_LOST, "others took its place; schedule the pod again")

    def _release(self, attempt: Attempt, *, given_back: bool = False) -> None:
        """Release the place of an attempt in the ledger, unless its Binding is on its way.

        Args:
            given_back: kube-scheduler does without the place, perhaps because another pod of a group has none.
        """
        uid, now = attempt.entry.pod.uid, self._now
        if attempt.outcome is not None or uid in self._service.bindings.busy:
            return
        books = self._service.books
        state = books.engine.states.get(uid)
        if attempt.reserved and state is State.RESERVED and attempt.simulated:
            self._revert(books, BindFailed(uid), attempt.moment)
        elif attempt.reserved and state is State.RESERVED and given_back:
            books.give_back(uid, [BindFailed(uid)], now)
        elif attempt.reserved and state is State.RESERVED:
            books.take([BindFailed(uid)], now)
        elif attempt.provisional and uid in books.making_room:
            # Its victims are being evicted. Until the watches show this and the nominated pod, the
            # room stays kept, so that no more pods are evicted for it.
            self._sent_away.setdefault(uid, now + _SENT_AWAY)
        elif attempt.provisional and state in (State.HELD, State.CLEARING):
            books.take([HoldEnded(uid)], now)
        attempt.reserved = attempt.provisional = False

    # --- binding -------------------------------------------------------------------------------

    async def _changed(self, books: Books, attempt: Attempt) -> str:
        """The reason why the pod is not the one of the decision; empty if it is."""
        pod = attempt.entry.pod
        entry = books.cluster_cache.pods.get(pod.uid)
        behind = attempt.travelled and entry is not None and entry.pod.request != pod.request
        if entry is None or behind:  # our watch may not show the pod of the question yet
            if pod.uid in books.cluster_cache.deleted:
                return f"pod {pod.key} is gone"
            try:
                entry = await self._service.read(pod.namespace, pod.name, pod.uid)
            except InvalidDocument as error:
                return str(error)
        if entry is None or entry.pod.request != attempt.entry.pod.request:
            return f"pod {pod.key} changed since it was decided about"
        return books.past(entry)

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
                return Answered(Outcome.REFUSED, "kube-scheduler disconnected before it was sent")
            changed = await self._changed(books, attempt)  # during the wait for a turn
            if changed:
                return Answered(Outcome.REFUSED, changed)
            # First: if this process or kube-scheduler stands still from here on, the Binding is not sent later.
            within = self._service.bindings.limits.send
            until = self._now + within
            if not self._may_bind():
                return Answered(Outcome.REFUSED, "this instance does not lead any more")
            allowed = True
            reply(
                wire.Answer(
                    question.id,
                    annotations=dict(binding.annotations),
                    labels=dict(binding.labels),
                    within=within,
                    until=until,
                )
            )
            return await outcome

        pod = entry.pod
        args = BindArgs(pod.namespace, pod.name, pod.uid, question.node)
        problem = await self._service.bindings.bind_reserved(books, args, entry, place, send)
        if not allowed:
            return _refused(question, NOT_BOUND, problem or "the Binding was not sent")
        return None

    @property
    def _now(self) -> float:
        return self._service.clock.monotonic()

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
        self._retries.keep(books.cluster_cache.pods)
        for uid, attempt in list(self._attempts.items()):
            attempt.travelled = False  # the fresh list contains the pod, unless it is gone
            if attempt.reserved and attempt.place is not None and attempt.outcome is None:
                attempt.reserved = False
                if _past(books, attempt):
                    continue
                if self._take_again(books, attempt, attempt.place.node) is not None:
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
        self._retries.forget(uid)

    def _remember(self, uid: str, attempt: Attempt) -> None:
        if self._newest is not None:
            # Proposals and plans end with the next question. All of them together would be names by millions.
            self._newest.nodes = frozenset()
            self._newest.planned = {}
        self._newest = attempt
        self._attempts.pop(uid, None)
        self._attempts[uid] = attempt
        if len(self._attempts) > _MOST:
            self._release(self._attempts.pop(self._superfluous()))

    def _superfluous(self) -> str:
        """The oldest attempt without a place; if all have one, the oldest. Those in its way become the newest."""
        for _ in range(len(self._attempts) - 1):
            uid, one = next(iter(self._attempts.items()))
            if not one.reserved and not one.provisional and one.outcome is None:
                return uid
            self._attempts.move_to_end(uid)
        self._attempts.move_to_end(next(iter(self._attempts)))
        return next(iter(self._attempts))


def _pod_of(books: Books, question: wire.Propose) -> tuple[PodEntry | None, bool]:
    """The pod, and whether the question contained it."""
    known = books.cluster_cache.documents.get(question.uid)
    if bytes(question.pod):
        document = decode_pod(bytes(question.pod))
        if document.metadata.uid != question.uid:
            raise InvalidDocument(f"the pod that came has not the uid {question.uid}")
        if not outdated(document, known):
            if not books.cluster_cache.translation.concerns(document):
                return None, True
            before = books.cluster_cache.pods.get(question.uid)
            return books.cluster_cache.translation.read(document, before=before), True
    if known is None or precedes(known.metadata.resource_version or "", question.version):
        return None, bool(bytes(question.pod))
    return books.asked(question.uid), False


def _amounts(one: wire.Taken) -> tuple[str, Mapping[str, int]]:
    return one.node, {"cpu": one.cpu, "memory": one.memory, "pods": one.pods}


def _take_in(books: Books, taken: Mapping[str, Mapping[str, int]]) -> None:
    """Pass the amounts taken beside devices to the engine. They free no devices, so no pod is woken."""
    for event in books.cluster_cache.take(taken) if taken else ():
        books.engine.handle(event)


def _moment(books: Books) -> tuple[int, int]:
    """Changes with each new room, and whenever waiting pods were compared with new room."""
    return books.waiting.newest, books.waiting.checks


def _past(books: Books, attempt: Attempt) -> str:
    """The reason why the pod cannot be placed any more; empty if it can."""
    if not attempt.travelled and books.cluster_cache.pods.get(attempt.entry.pod.uid) is None:
        return f"pod {attempt.entry.pod.key} is gone"
    return books.past(attempt.entry)


def _refused(
    question: wire.Propose | wire.Preempt | wire.Reserve | wire.Bind,
    code: str,
    message: str,
    *,
    preempt: bool = False,
) -> wire.Answer:
    return wire.Answer(question.id, code=str(code), message=message, preempt=preempt)
