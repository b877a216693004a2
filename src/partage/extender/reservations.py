"""The places that attempts of the plugin hold in the books: proposed, reserved or provisional.

    proposal ── taken ── released, or bound by `extender.bindings`
                  └── taken again: exactly the earlier place, or none

`extender.attempts` finds the attempt of each question, and answers kube-scheduler.
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
"""Seconds after which the watches must have shown a group's victims and nominations."""


@dataclass(slots=True)
class Attempt:
    """One attempt.

    Attributes:
        number: kube-scheduler's number of the attempt.
        entry: the pod as the decision read it.
        travelled: the question contained the pod; no watch has shown it yet.
        planned: by node, the plans by which less important pods could make room there.
        more: other nodes have such plans too.
        place: the allocation that `reserve` made; remembered after `unreserve`.
        reserved: the place is in the ledger now.
        provisional: other pods still run on the place; this attempt can never be bound.
        outcome: set by `bound` while the Binding is on its way.
        claimed: the pod asks by claims; there is nothing to reserve or bind.
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
    outcome: asyncio.Future[Answered] | None = None
    claimed: bool = False
    wide: bool = False
    narrowed: bool = False


class Lost(NamedTuple):
    """The reason for kube-scheduler why no place was taken."""

    code: str
    message: str


class Reservations:
    """The places of one kube-scheduler's attempts; `proposed` is the uid of the pod with a held proposal, or empty."""

    def __init__(self, service: SchedulerService, rejected: RejectedNodes) -> None:
        """Reservations without a place."""
        self.proposed = ""
        self._service, self._rejected = service, rejected
        self._sent_away: dict[str, float] = {}

    def end_proposal(self) -> None:
        """End the proposal that was not reserved."""
        uid, self.proposed = self.proposed, ""
        books = self._service.books
        if uid and books.engine.states.get(uid) is State.HELD:
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
            if self._service.pending.has(entry.pod.uid):
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

    def heed_facts(self, books: Books, now: float) -> None:
        """After a while, keep a group's room only if the API server's objects confirm it."""
        for uid in [uid for uid, end in self._sent_away.items() if now >= end]:
            del self._sent_away[uid]
            if uid in books.making_room:
                books.give_up(uid, now)
                entry = books.cluster_cache.pod(uid)
                if entry is not None:
                    books.pod_seen(entry, now)  # nominated by now, or no pod was evicted for it

    @property
    def _now(self) -> float:
        return self._service.clock.monotonic()
