"""What kube-scheduler's attempts through the plugin are offered, and the places that they hold in the books.

A question names a pod, in the question itself or as a watch has reported it. `Cycle.propose` finds the nodes for it.

The engine knows only a node's devices, CPU, memory, and the labels and taints that select it. A proposed node may lack
something else. kube-scheduler then reports it, and for a while the pod is offered other nodes. The number of nodes left
out for one pod is bounded. At the bound all other nodes that fit are proposed together.

    proposal ── taken ── released, or bound by `extender.bindings`
                  └── taken again: exactly the earlier place, or none

`extender.attempts` finds the attempt of each question, and answers kube-scheduler.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from partage.extender.books import Books
from partage.extender.cycle import WIDE
from partage.extender.ports import Answered
from partage.extender.service import SchedulerService
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools
from partage.model.allocation import Allocation
from partage.model.errors import InvalidDocument, LedgerError
from partage.model.reason import ReasonCode, Refusal
from partage.scheduler.engine import State
from partage.scheduler.events import BindFailed, HoldEnded, Placement, RoomKept
from partage.scheduler.preemption import Plan
from partage.wire.claim_requests import MOST_BYTES, request_of_claims
from partage.wire.documents import outdated
from partage.wire.extender import decode_claim, decode_pod
from partage.wire.plugin import PLACE_LOST, STALE, Propose
from partage.wire.pods import translate_pod
from partage.wire.translation import PodEntry

MOST_PROPOSED: Final = 100
"""Nodes of a further proposal for a pod with claims. kube-scheduler checks only a part of a longer list."""
REJECTED_SECONDS: Final = 60.0
"""Seconds for which a rejected node is not proposed for the pod again, and for which all proposals name several."""
MOST_REJECTED: Final = 128
"""The most rejected nodes of a pod in that time: eight proposals of sixteen. Then all others are proposed together."""
MOST_WIDE_REJECTED: Final = 8 * WIDE
"""The same for a pod that needs every node that fits, if the exact rule must judge them: eight proposals, too."""
_MOST_PODS: Final = 20_000
_SENT_AWAY: Final = 10.0
"""Seconds after which the watches must have shown a group's victims and nominations."""


# --- the question --------------------------------------------------------------------------


def pod_of(books: Books, question: Propose) -> tuple[PodEntry | None, bool]:
    """The pod, and whether the question contained it."""
    known = books.cluster_cache.documents.get(question.uid)
    if bytes(question.pod):
        document = decode_pod(bytes(question.pod))
        if document.metadata.uid != question.uid:
            raise InvalidDocument(f"the pod that came has not the uid {question.uid}")
        if not outdated(document, known):
            if not books.cluster_cache.translation.concerns(document):
                return None, True
            return books.cluster_cache.translation.read(document), True
    if known is None or known.older(question.version):
        return None, bool(bytes(question.pod))
    return books.cluster_cache.pods.get(question.uid), False


def claimant_of(books: Books, question: Propose) -> PodEntry | None:
    """A pod with claims, with these claims as a request of the engine; None if that is impossible."""
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
    fault = translated.pod.request.fault
    if request is None or (fault is not None and fault.code is ReasonCode.SEARCH_LIMIT):
        return None  # it is too much, or only kube-scheduler can tell
    return PodEntry(replace(translated.pod, request=request), translated.view)


# --- nodes -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rejected:
    since: float
    nodes: set[str] = field(default_factory=set)


class RejectedNodes:
    """Remembers the rejected nodes of each pod for a while; times are seconds on a steady clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Rejected] = OrderedDict()

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def add(self, uid: str, nodes: Iterable[str], now: float, most: int = MOST_REJECTED) -> int:
        """Leave nodes out for a pod; returns how many more it could leave out before this call."""
        known = self._of(uid, now)
        if known is None:
            known = self._known[uid] = _Rejected(now)
            oldest = next(iter(self._known.values()))
            while len(self._known) > _MOST_PODS or now >= oldest.since + REJECTED_SECONDS:
                self._known.popitem(last=False)
                oldest = next(iter(self._known.values()))
        room = max(0, most - len(known.nodes))
        known.nodes.update(sorted(nodes)[:room])
        return room

    def count(self, uid: str, now: float) -> int:
        """The number of nodes that are left out for a pod."""
        known = self._of(uid, now)
        return len(known.nodes) if known is not None else 0

    def forget(self, uid: str) -> bool:
        """Offer the pod all nodes again; whether some were left out."""
        return self._known.pop(uid, None) is not None

    def left(self, ledger: Ledger, uid: str, now: float, nominated: str = "") -> Bools | None:
        """By node index, whether the node may be proposed for a pod; None for all nodes.

        Args:
            nominated: the node that the pod is nominated for; it stays in, because it may have room by now.
        """
        known = self._of(uid, now)
        if known is None:
            return None
        among: Bools = ledger.present.copy()
        for name in known.nodes:
            if name in ledger.index and name != nominated:
                among[ledger.index[name]] = False
        return among

    def _of(self, uid: str, now: float) -> _Rejected | None:
        known = self._known.get(uid)
        if known is not None and now >= known.since + REJECTED_SECONDS:
            del self._known[uid]
            return None
        return known


# --- places ------------------------------------------------------------------------------


@dataclass(slots=True)
class Attempt:
    """One attempt.

    Attributes:
        entry: the pod as the decision read it.
        travelled: the question contained the pod; no watch had shown it in this state.
        planned: by node, the plans by which less important pods could make room there.
        more: other nodes have such plans too.
        place: the allocation that `reserve` made; remembered after `unreserve`.
        reserved: the place is in the ledger now.
        provisional: other pods still run on the place; this attempt can never be bound.
        simulated: the cycle of a pod group took the place last, and reverts it.
        outcome: set by `bound` while the Binding is on its way.
        claimed: the pod asks by claims; there is nothing to reserve or bind.
        gone: the pod was deleted while its Binding was on its way.
        wide: every node that fits was proposed, and kube-scheduler chooses among them.
        narrowed: as `wide`, but only the best nodes of each domain were proposed.
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
    simulated: bool = False
    outcome: asyncio.Future[Answered] | None = None
    claimed: bool = False
    gone: bool = False
    wide: bool = False
    narrowed: bool = False


class Lost(NamedTuple):
    """The reason for kube-scheduler why no place was taken."""

    code: str
    message: str


class Reservations:
    """The places of one kube-scheduler's attempts; `proposed` is the uid of the pod with a held proposal, or empty."""

    def __init__(self, service: SchedulerService, rejected: RejectedNodes) -> None:
        self.proposed = ""
        self._room = 0
        self._service, self._rejected = service, rejected
        self._sent_away: dict[str, float] = {}

    def begin(self, books: Books, now: float, *, late: bool) -> None:
        """Do what is due before a proposal.

        A proposal that was not reserved ends, unless the question is late. After a while a group's room is kept only if
        the API server's objects confirm it.
        """
        if not late:
            self.end_proposal()
        for uid in [uid for uid, end in self._sent_away.items() if now >= end]:
            del self._sent_away[uid]
            if uid in books.making_room:
                books.give_up(uid, now)
                entry = books.cluster_cache.pods.get(uid)
                if entry is not None:
                    books.pod_seen(entry, now)  # nominated by now, or no pod was evicted for it

    def propose(self, books: Books, uid: str) -> None:
        """A place is held for the proposal of a pod."""
        self.proposed, self._room = uid, books.waiting.newest

    def end_proposal(self) -> None:
        """End the proposal that was not reserved.

        No other pod was decided about meanwhile, so its room is news for no pod. Otherwise two pods that kube-scheduler's
        own rules keep off every node would wake each other without end. It is news if pods were compared with other
        new room meanwhile, or if room is kept for a pod on the node.
        """
        uid, self.proposed = self.proposed, ""
        books = self._service.books
        if not uid or books.engine.states.get(uid) is not State.HELD:
            return
        held = books.engine.ledger.allocation(uid)
        quiet = held is not None and not books.nominees(held.node)
        if quiet and books.waiting.newest == self._room:
            books.engine.handle(HoldEnded(uid))
        else:
            books.take([HoldEnded(uid)], self._now)

    def take(
        self, books: Books, attempt: Attempt, node: str, *, simulated: bool = False
    ) -> Lost | None:
        """Take a place on a node; `simulated` if the cycle of a pod group asks, which is reverted later."""
        entry, now = attempt.entry, self._now
        try:
            decision = books.cycle.reserve(entry.pod, node)
        except LedgerError as error:
            return Lost(STALE, str(error))
        books.settle(now)
        if isinstance(decision, Refusal):
            if simulated and self._kept(books, attempt, node, now):
                return None
            books.refuse(entry, decision, now)
            if entry.pod.uid in self._service.pending.pods:
                # The pod's own claims hold the devices that it needs there, and would hold them again.
                self._rejected.add(entry.pod.uid, {node}, now)
            return Lost(str(decision.code), decision.message)
        attempt.place, attempt.reserved = decision.allocation, True
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

    def take_again(self, books: Books, attempt: Attempt, node: str) -> Lost | None:
        """Take exactly the earlier place again, or fail the attempt."""
        place, now = attempt.place, self._now
        if place is None or place.node != node:
            where = place.node if place is not None else "no node"
            return Lost(PLACE_LOST, f"its place is on {where}")
        engine, uid = books.engine, attempt.entry.pod.uid
        taken: Placement | Refusal | None = None
        try:
            books.take([RoomKept(attempt.entry.pod, place.node, place.grants)], now)
            if engine.kept(uid, place.node) == place:
                taken = books.cycle.reserve(attempt.entry.pod, place.node)
        except LedgerError as error:
            return Lost(STALE, str(error))
        if isinstance(taken, Placement):
            attempt.reserved = True
            return None
        books.take([HoldEnded(uid)], now)
        return Lost(PLACE_LOST, "others took its place; schedule the pod again")

    def release(self, attempt: Attempt) -> None:
        """Release the place of an attempt in the ledger, unless its Binding is on its way."""
        uid, now = attempt.entry.pod.uid, self._now
        if attempt.outcome is not None or uid in self._service.bindings.busy:
            return
        books = self._service.books
        state = books.engine.states.get(uid)
        if attempt.reserved and state is State.RESERVED:
            books.take([BindFailed(uid)], now)
        elif attempt.provisional and uid in books.making_room:
            # Its victims are being evicted. Until the watches show this and the nominated pod, the
            # room stays kept, so that no more pods are evicted for it.
            self._sent_away.setdefault(uid, now + _SENT_AWAY)
        elif attempt.provisional and state in (State.HELD, State.CLEARING):
            books.take([HoldEnded(uid)], now)
        attempt.reserved = attempt.provisional = False

    @property
    def _now(self) -> float:
        return self._service.clock.monotonic()
