"""Reserves the devices of a ResourceClaim before the API server stores the allocation.

kube-scheduler allocates by its own view, which lacks the latest decisions of others. So the API server sends the claim
before it stores it, and one step both checks that the devices are free and reserves them. A refusal fails the binding
of the pod, and kube-scheduler tries again with the devices that are free by then.

A reservation ends when the API server reports the allocation, which is then a fact. No report arrives if another
admission refused the write, or if the write lost a race. After `WAIT` the service then writes the claim itself, so that
no admitted write can still arrive. If the webhook knows that an answer was too late for the API
server, it withdraws the question and the reservation ends at once. Otherwise a busy service would refuse claims because
of devices that no claim will hold.

A write that an API server was allowed to store cannot be revoked. The server may store it at any later time, even after
the term of the leader that reserved the devices, or after the time limit of any request. But the write names the
version of the claim that it replaces. So `outdated` has the service write the claim first. Every write that was
admitted before names an older version and fails; its scheduler then reads the claim and asks again. This relies on no
clock. A new leader writes few claims, because none is admitted without kube-scheduler's finalizer: those whose
allocation is on its way, and those whose last allocation failed.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from partage.extender.books import Books
from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.kube.clock import Clock
from partage.model.allocation import Allocation, Grant
from partage.model.device import DeviceType, SliceMode
from partage.model.pod import Pod
from partage.model.quantity import brief
from partage.model.reason import ReasonCode
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import Event, HoldEnded, RoomKept
from partage.vendors.names import CLAIM_FINALIZER
from partage.wire.claims import Claim, claim_uid, is_protected, read_claim, share_name
from partage.wire.documents import Document, precedes

_LOG: Final = logging.getLogger("partage.extender")
_AT_ONCE: Final = 16
"""Claims that are written at a time."""
_AGAIN: Final = 1.0
"""Seconds until the next try for the claims that could not be written."""

Outdate = Callable[[str, str], Awaitable[Document | None]]
"""Gives the ResourceClaim of this namespace and name another version, and returns the claim as written; None if the
claim does not exist. After an exception of any type the outcome is unknown."""
WAIT: Final = 66.0
"""Seconds that a reservation lasts without news: the longest life of a request in an API server, plus a tenth."""
_MOST: Final = 4096
"""Claims with reservations at a time, far more than a scheduler binds in a minute; above it, claims are refused."""
_MOST_WITHDRAWN: Final = 4096
"""The latest withdrawn questions to remember, because a question may arrive after its withdrawal."""
_MOST_WRITES: Final = 8
"""Writes of one version of one claim that may be on their way."""
_MOST_QUESTIONS: Final = 64
"""Questions about one reservation, each for a write that may arrive; an API server asks one or two."""
_TOO_OFTEN: Final = "too many claims are being allocated, or this one too often; try again"


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation for a claim that is not known to be allocated.

    Attributes:
        version: the claim's version that the write replaces; a write for an older version can never arrive.
        fact: the devices that the claim will hold, under a key of the reservation's own.
        since: time of the last question, in seconds on the service's steady clock.
        questions: uids of the questions that the reservation answered.
    """

    claim: str
    version: str
    fact: Pod
    since: float
    questions: frozenset[str] = frozenset()

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Its devices."""
        return self.fact.record.grants if self.fact.record is not None else ()


class ClaimArbiter:
    """Reservations for claims.

    Attributes:
        reserved: the reservations without news, by the claim's uid: nearly always one. Two writes of one version of a
            claim may both be on their way. Either may arrive, so both reservations are kept.
    """

    def __init__(self) -> None:
        self.reserved: dict[str, list[Reserved]] = {}
        self._asked: dict[str, str] = {}  # the claim of the reservation, by question
        self._withdrawn: OrderedDict[str, None] = OrderedDict()

    def review(  # noqa: PLR0911 # each reason is an answer
        self,
        books: Books,
        document: Document,
        now: float,
        *,
        question: str = "",
        dry_run: bool = False,
    ) -> str:
        """Reserve the claim's devices in this document; return the reason for a refusal, else an empty text.

        Args:
            question: uid by which the webhook may withdraw the question; empty if it may not.
            dry_run: the API server stores nothing, so no reservation is kept.
        """
        if question in self._withdrawn:
            return "the API server stopped waiting for this answer; try again"
        cache = books.cluster_cache
        claim = read_claim(document, cache.as_read)
        if not claim.records and not claim.problems:
            return ""
        if claim.problems:
            return claim.problems[0]
        (fact, *others) = claim.facts()
        if others:
            return f"devices of several nodes: {', '.join(claim.records)}"
        if cache.claims.is_gone(claim.uid):
            return f"claim {claim.key} is gone"
        refusal = _unbounded(claim, document)
        if refusal:
            return refusal
        version = document.metadata.resource_version or ""
        known = cache.claims.held(claim.uid)
        if known:
            # A write that replaces a newer version than the known one may follow a deallocation.
            heard = not _precedes(cache.claims.version(claim.uid), version)
            if heard and [_holds(one) for one in known] == [_holds(fact)]:
                return ""
            return f"claim {claim.key} is still allocated in this instance's ledger; try again"
        mine = self.reserved.get(claim.uid, [])
        if any(_precedes(version, one.version) for one in mine):
            return f"claim {claim.key} has changed since; try again"
        void = [one for one in mine if _precedes(one.version, version)]
        mine = [one for one in mine if one not in void]
        self._keep(claim.uid, mine)
        books.take(_ends(void), now)
        same = [one for one in mine if _holds(one.fact) == _holds(fact)]
        asked = frozenset([question])
        if same:
            return self._asked_again(books, mine, same, asked, now, dry_run=dry_run)
        if len(mine) >= _MOST_WRITES or len(self.reserved) >= _MOST:
            return _TOO_OFTEN
        taken = {one.fact.uid for one in mine}
        keys = (f"{claim.uid}#{number}" for number in range(_MOST_WRITES))
        fact = replace(fact, uid=next(key for key in keys if key not in taken))
        refusal = reserved(books.engine, fact, lambda event: books.take([event], now))
        if not refusal and dry_run:
            books.take([HoldEnded(fact.uid)], now)
        elif not refusal:
            self._keep(claim.uid, [*mine, Reserved(claim.uid, version, fact, now, asked)])
        return refusal

    def _asked_again(
        self,
        books: Books,
        mine: list[Reserved],
        same: list[Reserved],
        asked: frozenset[str],
        now: float,
        *,
        dry_run: bool,
    ) -> str:
        """Answer a repeated question about reserved devices: one more write may be on its way from now on."""
        for one in same:
            held = books.engine.ledger.allocation(one.fact.uid)
            if held is None or not _whole(books.engine, held, one.grants):
                # Another leader allocated its room meanwhile, because it did not know the reservation.
                return _short(books.engine, one.fact, one.grants)
            if len(one.questions) >= _MOST_QUESTIONS:
                return _TOO_OFTEN
        if not dry_run:
            again = [
                replace(one, since=now, questions=one.questions | asked) if one in same else one
                for one in mine
            ]
            self._keep(same[0].claim, again)
        return ""

    def _keep(self, claim: str, those: list[Reserved]) -> None:
        for one in self.reserved.get(claim, ()):
            for question in one.questions:
                self._asked.pop(question, None)
        self._asked.update((question, claim) for one in those for question in one.questions)
        if those:
            self.reserved[claim] = those
        else:
            self.reserved.pop(claim, None)

    # --- the end of a reservation ------------------------------------------------------------

    def withdrawn(self, books: Books, question: str, now: float) -> None:
        """Withdraw a question: the API server has refused its write, whatever the answer is or will be."""
        self._withdrawn[question] = None
        if len(self._withdrawn) > _MOST_WITHDRAWN:
            self._withdrawn.popitem(last=False)
        claim = self._asked.get(question, "")
        left = [
            replace(one, questions=one.questions - {question})
            for one in self.reserved.get(claim, ())
        ]
        self._keep(claim, [one for one in left if one.questions])
        books.take(_ends([one for one in left if not one.questions]), now)

    def settled(self, books: Books, document: Document) -> list[Event]:
        """Events that end reservations because of a reported claim; the facts of that claim follow them."""
        uid, mine = claim_uid(document), self.reserved.get(claim_uid(document), [])
        version = document.metadata.resource_version or ""
        gone = books.cluster_cache.claims.is_gone(uid)
        # A report of an older version proves nothing about a write that replaces a newer one.
        ended = [one for one in mine if gone or _precedes(one.version, version)]
        self._keep(uid, [one for one in mine if one not in ended])
        return _ends(ended)

    def due(self, now: float) -> Sequence[Reserved]:
        """Reservations without news for so long that the service must write the claim."""
        return [
            one for those in self.reserved.values() for one in those if now >= one.since + WAIT
        ]

    def put_off(self, one: Reserved) -> None:
        """Put a claim that could not be written behind the other claims that are due."""
        if one.claim in self.reserved:
            self.reserved[one.claim] = self.reserved.pop(one.claim)

    def written(self, books: Books, one: Reserved, document: Document | None, now: float) -> None:
        """End a reservation, and take in the claim as it is after the write; `document` is None if it is gone."""
        mine = self.reserved.get(one.claim, [])
        if one not in mine:
            return
        events: list[Event] = []
        if document is not None and claim_uid(document) == one.claim:
            events = books.cluster_cache.claim_changed(document)
        self._keep(one.claim, [other for other in mine if other is not one])
        books.take([HoldEnded(one.fact.uid), *events], now)

    def renew(self, books: Books, now: float) -> None:
        """Repeat the reservations in rebuilt books."""
        claims = books.cluster_cache.claims
        for uid, known in list(self.reserved.items()):
            newest, gone = claims.version(uid), claims.is_gone(uid)
            those = [one for one in known if not gone and not _precedes(one.version, newest)]
            self._keep(uid, those)
            if those:
                books.take(
                    [RoomKept(one.fact, one.fact.node or "", one.grants) for one in those], now
                )


def _unbounded(claim: Claim, document: Document) -> str:
    """The reason why no later leader could make this write fail; empty if one could."""
    if not document.metadata.resource_version:
        return (
            f"claim {claim.key}: the write names no resourceVersion, so it may arrive at any time"
        )
    if not is_protected(document):  # no leader finds it, and no controller frees its devices
        return (
            f"claim {claim.key} lacks the finalizer {CLAIM_FINALIZER}, which kube-scheduler sets before "
            "it allocates: whatever else allocates claims of this driver must set it too"
        )
    return ""


def _precedes(one: str, other: str) -> bool:
    """Whether a version of an object comes before another one, as far as they can be compared."""
    if not (one and other):
        return False
    both = one + other
    return precedes(one, other) if both.isascii() and both.isdecimal() else one != other


def _ends(those: Sequence[Reserved]) -> list[Event]:
    return [HoldEnded(one.fact.uid) for one in those]


def _holds(fact: Pod) -> tuple[str | None, object]:
    return fact.node, fact.record


def reserved(engine: Engine, fact: Pod, take: Callable[[Event], object]) -> str:
    """Hold a claim's devices, all of them or none; return the reason for a refusal, else an empty text."""
    obstacle = _obstacle(engine, fact)
    if obstacle:
        return obstacle
    grants = fact.record.grants if fact.record is not None else ()
    take(RoomKept(fact, fact.node or "", grants))
    held = engine.ledger.allocation(fact.uid)
    if held is not None and _whole(engine, held, grants):
        return ""
    take(HoldEnded(fact.uid))
    return _short(engine, fact, grants)


def _obstacle(engine: Engine, fact: Pod) -> str:
    """The reason why the node takes no claim at all, whatever is free; empty if there is none."""
    ledger, node = engine.ledger, fact.node or ""
    index = ledger.index.get(node)
    if index is None:
        return f"node {node} is not known"
    shut = [one for one in ledger.node_at(index).verdicts if not one.protocol]
    if ledger.shut[index]:
        return f"node {node}: {shut[0].message}"
    return ""


def _whole(engine: Engine, held: Allocation, grants: Sequence[Grant]) -> bool:
    """Whether all grants are held, no card is overbooked by them, and each card is cut as they need."""
    if held.grants != tuple(grants) or engine.states.get(held.uid) is not State.HELD:
        return False
    cards = _cards(engine.ledger, held.node)
    return not engine.ledger.overbooked(held.uid) and all(
        _takes(cards[grant.minor], grant) for grant in grants if grant.minor in cards
    )


def _takes(card: Card, grant: Grant) -> bool:
    """Whether a card, which has the grant already, is cut as the grant needs."""
    if card.closed is ReasonCode.QUARANTINED or card.device.vendor_cut:
        return False
    mode = SliceMode.SHARE if grant.mig is not None else SliceMode.MIG
    return card.device.mode is not mode


def _cards(ledger: Ledger, node: str) -> dict[int, Card]:
    index = ledger.index.get(node)
    if index is None:
        return {}
    return {one.device.minor: one for one in ledger.cards(DeviceType.GPU, index)}


def _short(engine: Engine, fact: Pod, grants: Sequence[Grant]) -> str:
    """The requested and the free amounts of each card, in words."""
    cards = _cards(engine.ledger, fact.node or "")
    told = []
    for grant in grants:
        card = cards.get(grant.minor)
        if card is None:
            told.append(f"{share_name(grant.minor)} is not there")
            continue
        why = f", {card.closed_detail or card.closed.value}" if card.closed is not None else ""
        if card.closed is None and grant.mig is None and card.slots_free < 1:
            why = f", for no further sharer beside {card.tenants}"
        asked = (
            f"{grant.mig.profile} at {grant.mig.start}"
            if grant.mig is not None
            else f"{grant.core_milli / 10:g}% and {brief(grant.memory_bytes)}"
        )
        told.append(
            f"{share_name(grant.minor)}: {asked} asked, {max(card.core_free, 0) / 10:g}% and "
            f"{brief(max(card.memory_free, 0))} free{why}"
        )
    return f"node {fact.node}: no room for claim {fact.key}: {'; '.join(told)}"


async def outdated(
    claims: Sequence[Document],
    outdate: Outdate,
    clock: Clock,
    until: float,
    tell: Callable[[Document], object],
) -> bool:
    """Write these claims; whether each claim was written or is gone. Any user may have made any of them.

    Args:
        until: when the function gives up, seconds on the clock's steady time.
        tell: receives each claim as it was written.
    """
    turns = asyncio.Semaphore(_AT_ONCE)
    left = list(claims)
    errors: list[str] = []
    told = ""

    async def write(claim: Document) -> None:
        async with turns:
            if clock.monotonic() >= until:  # one user's many claims delay others no longer
                return
            try:
                found = await outdate(claim.namespace, claim.name)
            except Exception as error:  # noqa: BLE001 # the port may raise any exception
                errors.append(f"{claim.label}: {error}")
                return
        left.remove(claim)
        if found is not None:
            tell(found)

    while left:
        errors.clear()
        async with asyncio.TaskGroup() as group:
            for claim in left:
                group.create_task(write(claim), name=f"outdate {claim.label}")
        if left:
            why = errors[0] if errors else "no time"
            if why != told:
                _LOG.warning(
                    "%d claims cannot be written, so allocations that were admitted for them may still be stored; "
                    "this instance serves when none can be, in %.0f s at most: %s",
                    len(left),
                    max(0.0, until - clock.monotonic()),
                    why,
                )
                told = why
            if clock.monotonic() >= until:
                return False
            await clock.sleep(_AGAIN)
    return True
