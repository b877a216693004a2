"""What attempts of the plugin hold of the books: a proposed place, a reserved one, a provisional one.

    proposal ── taken ── released, or bound by `extender.bindings`
                  └── taken again: exactly the place of before, or none

Which attempt a question is about, and what kube-scheduler hears, is `extender.attempts`' matter.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from partage.extender.books import Books
from partage.extender.node_offers import RejectedNodes
from partage.extender.ports import Answered
from partage.extender.service import SchedulerService
from partage.model.allocation import Allocation
from partage.model.errors import LedgerError
from partage.model.reason import Refusal
from partage.scheduler.engine import State
from partage.scheduler.events import BindFailed, HoldEnded, Placement, RoomKept
from partage.scheduler.preemption import Plan
from partage.wire.plugin import PLACE_LOST, STALE
from partage.wire.translation import PodEntry

_SENT_AWAY: Final = 10.0
"""Seconds after which what the API server says of a group's victims and nominations must be known."""


@dataclass(slots=True)
class Attempt:
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


class Lost(NamedTuple):
    """Why nothing was taken, as kube-scheduler hears it."""

    code: str
    message: str


class Reservations:
    """The places of one kube-scheduler's attempts; `proposed` is the pod whose best node is held, if one is."""

    def __init__(self, service: SchedulerService, rejected: RejectedNodes) -> None:
        """Nothing is held."""
        self.proposed = ""
        self._service, self._rejected = service, rejected
        self._sent_away: dict[str, float] = {}

    def end_proposal(self) -> None:
        """The proposal that was not reserved ends."""
        uid, self.proposed = self.proposed, ""
        books = self._service.books
        if uid and books.engine.states.get(uid) is State.HELD:
            books.take([HoldEnded(uid)], self._now)

    def take(
        self, books: Books, attempt: Attempt, node: str, *, simulated: bool = False
    ) -> Lost | None:
        """Take a place on a node; `simulated` where only what would be is tried."""
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
            if self._service.pending.has(entry.pod.uid):
                # Its claims have what it would need there, and would have it again.
                self._rejected.add(entry.pod.uid, {node}, now)
            return Lost(str(decision.code), decision.message)
        attempt.place, attempt.reserved = decision.allocation, True
        return None

    def _kept(self, books: Books, attempt: Attempt, node: str, now: float) -> bool:
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

    def take_again(self, books: Books, attempt: Attempt, node: str) -> Lost | None:
        """Take exactly the place that was taken before, or fail the attempt."""
        place, now = attempt.place, self._now
        if place is None or place.node != node:
            where = place.node if place is not None else "no node"
            return Lost(PLACE_LOST, f"its place is on {where}")
        engine, uid = books.engine, attempt.entry.pod.uid
        taken: Placement | Refusal | None = None
        try:
            books.take([RoomKept(attempt.entry.pod, place.node, place.grants)], now)
            if engine.keeps(uid, place.node) and engine.ledger.allocation(uid) == place:
                taken = books.cycle.reserve(attempt.entry.pod, place.node)
        except LedgerError as error:
            return Lost(STALE, str(error))
        if isinstance(taken, Placement):
            attempt.reserved = True
            return None
        books.take([HoldEnded(uid)], now)
        return Lost(PLACE_LOST, "others took its place; schedule the pod again")

    def release(self, attempt: Attempt) -> None:
        """Give the ledger back what an attempt holds of it, unless its Binding is on its way."""
        uid, now = attempt.entry.pod.uid, self._now
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

    def heed_facts(self, books: Books, now: float) -> None:
        """Room that a group's pods were to get is kept by what the API server says, after a while."""
        for uid in [uid for uid, end in self._sent_away.items() if now >= end]:
            del self._sent_away[uid]
            if uid in books.making_room:
                books.give_up(uid, now)
                entry = books.cluster_cache.pod(uid)
                if entry is not None:
                    books.pod_seen(entry, now)  # it is nominated by now, or no pod went for it

    @property
    def _now(self) -> float:
        return self._service.clock.monotonic()
