"""Reserves the devices of a ResourceClaim before the API server stores the allocation.

kube-scheduler allocates by its own view, which lacks the latest decisions of others. So the API server sends the claim
before it stores it, and one step both checks that the devices are free and reserves them. A refusal fails the binding
of the pod, and kube-scheduler tries again with the devices that are free by then.

Any client may ask, because API servers present no credential. So a claim reserves no more than its allocation would take: one
allocation at a time, which is no more than it asks for and which quotas of claims have counted. A question about other
devices is refused, and the service soon writes the claim, so that the first allocation can no longer be stored.

A reservation ends when the API server reports the allocation, which is then a fact. No report arrives if another
admission refused the write, or if the write lost a race. `WAIT` after the first question the service then writes the
claim itself, so that no admitted write can still arrive. It removes kube-scheduler's finalizer by that write, so the
claim is not admitted again until kube-scheduler has begun to allocate it again. Without that, a client that repeats the
question would have the devices for ever. Changes of the claim do not prolong this time either. If the webhook knows
that an answer was too late for the API server, it withdraws the question and the reservation ends at once. Otherwise a
busy service would refuse claims because of devices that no claim will hold.

A write that an API server was allowed to store cannot be revoked. The server may store it at any later time, even after
the term of the leader that reserved the devices, or after the time limit of any request. But the write names the
version of the claim that it replaces. So `outdated` has the service write the claim first. Every write that was
admitted before names an older version and fails; its scheduler then reads the claim and asks again. This relies on no
clock. A new leader writes few claims, because none is admitted without kube-scheduler's finalizer: those whose
allocation is on its way, and those whose last allocation failed.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from partage.extender.books import Books
from partage.extender.claim_room import grants_of, holds, reserved, short, whole
from partage.extender.pending_allocations import PendingAllocations
from partage.kube.clock import Clock
from partage.model.pod import Pod
from partage.scheduler.events import Event, HoldEnded, RoomKept
from partage.vendors.names import CLAIM_FINALIZER
from partage.wire.claims import (
    MOST_FINALIZERS,
    Claim,
    are_few,
    claim_uid,
    is_protected,
    may_be_allocated,
    read_claim,
)
from partage.wire.documents import Document, precedes

_LOG: Final = logging.getLogger("partage.extender")
_AT_ONCE: Final = 16
"""Claims that are written at a time."""
_AGAIN: Final = 1.0
"""Seconds until the next try for the claims that could not be written."""

Outdate = Callable[[str, str], Awaitable[Document | None]]
"""Gives the ResourceClaim of this namespace and name another version, without kube-scheduler's finalizer if it is not
allocated, and returns the claim as written; None if the claim does not exist. After an exception of any type the outcome
is unknown."""
WAIT: Final = 66.0
"""Seconds that a reservation lasts without news: the longest life of a request in an API server, plus a tenth."""
_MOST: Final = 4096
"""Claims with reservations at a time, far more than a scheduler binds in a minute; above it, claims are refused."""
_MOST_WITHDRAWN: Final = 4096
"""The latest withdrawn questions to remember, because a question may arrive after its withdrawal."""
_OF_NAMESPACE: Final = 512
"""Those of one namespace."""
_MOST_BEGUN: Final = 2 * _MOST
"""Claims to remember that were admitted and are not known to be allocated."""
_MOST_QUESTIONS: Final = 64
"""Questions about one reservation, each for a write that may arrive; an API server asks one or two."""
_TOO_OFTEN: Final = "too many claims are being allocated, or this one too often; try again"


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation for a claim that is not known to be allocated.

    Attributes:
        claim: its uid.
        version: the claim's version that the write replaces; a write for an older version can never arrive.
        fact: the devices that the claim will hold, under a key of the reservation's own.
        until: when the service writes the claim if there is no news, in seconds on its steady clock.
        questions: uids of the questions that the reservation answered.
    """

    claim: str
    version: str
    fact: Pod
    until: float
    questions: frozenset[str] = frozenset()


class Due(NamedTuple):
    """A claim that the service must write; `reserved`: its reservation then, if it had one."""

    claim: str
    namespace: str
    name: str
    reserved: Reserved | None = None


class _Begun(NamedTuple):
    """The first admission of a claim that is not known to be allocated, and the version that the last one was about."""

    since: float
    version: str


class ClaimArbiter:
    """Reservations for claims.

    Attributes:
        reserved: the reservations without news, by the claim's uid.
    """

    def __init__(self) -> None:
        self.reserved: dict[str, Reserved] = {}
        self._asked: dict[str, str] = {}  # the claim of the reservation, by question
        self._of: Counter[str] = Counter()  # reservations, by namespace
        self._begun: OrderedDict[str, _Begun] = OrderedDict()
        self._began = ""  # the latest question that was a claim's first
        self._overdue: dict[str, Due] = {}  # claims to write that have no reservation
        self._withdrawn: OrderedDict[str, None] = OrderedDict()

    def review(
        self,
        books: Books,
        document: Document,
        now: float,
        pending: PendingAllocations,
        *,
        question: str = "",
        dry_run: bool = False,
    ) -> str:
        """Reserve the claim's devices in this document; return the reason for a refusal, else an empty text.

        Args:
            pending: allocations that give way to this one.
            question: uid by which the webhook may withdraw the question; empty if it may not.
            dry_run: the API server stores nothing, so no reservation is kept and nothing gives way.
        """
        if question in self._withdrawn:
            return "the API server stopped waiting for this answer; try again"
        cache = books.cluster_cache
        claim = read_claim(document, cache.as_read)
        if not claim.records and not claim.problems:
            return ""
        gone = f"claim {claim.key} is gone" if cache.claims.is_gone(claim.uid) else ""
        refusal = _unread(claim) or gone or _unbounded(claim, document)
        if refusal:
            return refusal
        (fact,) = claim.facts()
        version = document.metadata.resource_version or ""
        known = cache.claims.held(claim.uid)
        if known:
            # A write that replaces a newer version than the known one may follow a deallocation.
            heard = not _precedes(cache.claims.version(claim.uid), version)
            if heard and [holds(one) for one in known] == [holds(fact)]:
                return ""
            return f"claim {claim.key} is still allocated in this instance's ledger; try again"
        since = self._since(claim.uid, now)
        refusal = self._untimely(claim, fact, version, pending)
        refusal = refusal or self._late(claim, now - since, dry_run=dry_run)
        if refusal:
            return refusal
        if not dry_run:
            pending.asked(books, document)
        mine = self.reserved.get(claim.uid)
        if mine is not None and _precedes(mine.version, version):
            self._drop(mine)
            books.take([HoldEnded(mine.fact.uid)], now)
        elif mine is not None:
            return self._asked_again(books, mine, fact, question, now, dry_run=dry_run)
        if len(self.reserved) >= _MOST or self._of[claim.namespace] >= _OF_NAMESPACE:
            return _TOO_OFTEN
        fact = replace(fact, uid=f"{claim.uid}#0")
        refusal = self._reserve(books, fact, document, now, pending, dry_run=dry_run)
        if not refusal and not dry_run:
            one = Reserved(claim.uid, version, fact, since + WAIT, frozenset([question]))
            self._keep(one)
            if since == now:
                self._began = question
            self._begun[claim.uid] = _Begun(since, version)
            if len(self._begun) > _MOST_BEGUN:
                self._begun.popitem(last=False)
        return refusal

    def began(self, question: str) -> bool:
        """Whether a question that was just answered was a claim's first; once."""
        began, self._began = self._began, ""
        return bool(began) and began == question

    def _since(self, uid: str, now: float) -> float:
        """When the claim was admitted first. If it cannot be written, it is admitted again after another `WAIT`."""
        begun = self._begun.get(uid)
        return now if begun is None or now >= begun.since + 2 * WAIT else begun.since

    def _untimely(self, claim: Claim, fact: Pod, version: str, pending: PendingAllocations) -> str:
        """The reason why this allocation is not the claim's next; empty if it is."""
        mine = self.reserved.get(claim.uid)
        if mine is not None and _precedes(version, mine.version):
            return f"claim {claim.key} has changed since; try again"
        if pending.other(fact):
            return f"kube-scheduler has allocated other devices to claim {claim.key}; try again"
        return ""

    def _late(self, claim: Claim, past: float, *, dry_run: bool) -> str:
        """The reason why a claim is not admitted again; `past`: seconds since its first admission."""
        if past < WAIT:
            return ""
        if not dry_run:
            self._overdue[claim.uid] = Due(claim.uid, claim.namespace, claim.name)
        return f"claim {claim.key} was admitted {past:.0f} s ago and is not stored; try again"

    def _reserve(
        self,
        books: Books,
        fact: Pod,
        document: Document,
        now: float,
        pending: PendingAllocations,
        *,
        dry_run: bool,
    ) -> str:
        """Hold the devices, also in place of pending allocations; in a dry run only for a moment."""

        def take(event: Event) -> None:
            books.take([event], now)

        refusal = reserved(books.engine, fact, take)
        if dry_run:
            if not refusal:
                take(HoldEnded(fact.uid))
            return refusal
        if refusal:
            given = pending.gives_way(books, document, now)
            refusal = reserved(books.engine, fact, take) if given else refusal
            if refusal:
                pending.returns(books, given, now)
        return refusal

    def _asked_again(
        self, books: Books, mine: Reserved, fact: Pod, question: str, now: float, *, dry_run: bool
    ) -> str:
        """Answer a repeated question about a claim with a reservation: one more write may be on its way from now on."""
        if holds(mine.fact) != holds(fact):
            if not dry_run:
                self._keep(replace(mine, until=now))
            return f"another allocation of claim {fact.key} may still be stored; try again"
        if not whole(books.engine, mine.fact):
            # Another leader allocated its room meanwhile, because it did not know the reservation.
            return short(books.engine, mine.fact)
        if len(mine.questions) >= _MOST_QUESTIONS:
            return _TOO_OFTEN
        if not dry_run:
            self._keep(replace(mine, questions=mine.questions | {question}))
        return ""

    def _keep(self, one: Reserved) -> None:
        self._drop(self.reserved.get(one.claim))
        self._asked.update((question, one.claim) for question in one.questions)
        self._of[one.fact.namespace] += 1
        self.reserved[one.claim] = one

    def _drop(self, one: Reserved | None) -> None:
        if one is None:
            return
        del self.reserved[one.claim]
        for question in one.questions:
            self._asked.pop(question, None)
        self._of[one.fact.namespace] -= 1
        if not self._of[one.fact.namespace]:
            del self._of[one.fact.namespace]

    # --- the end of a reservation ------------------------------------------------------------

    def withdrawn(self, books: Books, question: str, now: float) -> None:
        """Withdraw a question: the API server has refused its write, whatever the answer is or will be."""
        self._withdrawn[question] = None
        if len(self._withdrawn) > _MOST_WITHDRAWN:
            self._withdrawn.popitem(last=False)
        mine = self.reserved.get(self._asked.get(question, ""))
        if mine is None:
            return
        left = replace(mine, questions=mine.questions - {question})
        self._keep(left)
        if not left.questions:
            self._drop(left)
            books.take([HoldEnded(left.fact.uid)], now)

    def settled(self, books: Books, document: Document) -> list[Event]:
        """Events that end a reservation because of a reported claim; the facts of that claim follow them."""
        uid, version = claim_uid(document), document.metadata.resource_version or ""
        claims = books.cluster_cache.claims
        gone, begun = claims.is_gone(uid), self._begun.get(uid)
        # A report of an older version proves nothing about a write that replaces a newer one.
        if begun is not None and (
            gone or (_precedes(begun.version, version) and not may_be_allocated(document))
        ):
            del self._begun[uid]
            self._overdue.pop(uid, None)
        mine = self.reserved.get(uid)
        if mine is None or not (gone or _precedes(mine.version, version)):
            return []
        self._drop(mine)
        return [HoldEnded(mine.fact.uid)]

    def due(self, now: float) -> Sequence[Due]:
        """The claims that the service must write, because it had no news for so long; namespaces take turns."""
        found = [
            Due(uid, one.fact.namespace, one.fact.name, one)
            for uid, one in self.reserved.items()
            if now >= one.until
        ]
        found += [one for uid, one in self._overdue.items() if uid not in self.reserved]
        before = Counter[str]()
        ranks = []
        for one in found:
            ranks.append(before[one.namespace])
            before[one.namespace] += 1
        return [found[number] for number in sorted(range(len(found)), key=ranks.__getitem__)]

    def put_off(self, one: Due) -> None:
        """Put a claim that could not be written behind the other claims that are due."""
        if one.claim in self.reserved:
            self.reserved[one.claim] = self.reserved.pop(one.claim)
        if one.claim in self._overdue:
            self._overdue[one.claim] = self._overdue.pop(one.claim)

    def written(self, books: Books, one: Due, document: Document | None, now: float) -> None:
        """End a reservation, and take in the claim as it is after the write; `document` is None if it is gone."""
        self._overdue.pop(one.claim, None)
        events: list[Event] = []
        if document is not None and claim_uid(document) == one.claim:
            told = books.cluster_cache.claim_changed(document)
            events = [*self.settled(books, document), *told]
        else:
            self._begun.pop(one.claim, None)
        mine = self.reserved.get(one.claim)
        if mine is not None and mine == one.reserved:
            self._drop(mine)
            events.insert(0, HoldEnded(mine.fact.uid))
        books.take(events, now)

    def renew(self, books: Books, now: float) -> None:
        """Repeat the reservations in rebuilt books."""
        claims = books.cluster_cache.claims
        for uid, one in list(self.reserved.items()):
            if claims.is_gone(uid) or _precedes(one.version, claims.version(uid)):
                self._drop(one)
            else:
                books.take([RoomKept(one.fact, one.fact.node or "", grants_of(one.fact))], now)


def _unread(claim: Claim) -> str:
    """The reason why a claim's devices cannot be reserved, whatever is free; empty if there is none."""
    if claim.problems:
        return claim.problems[0]
    several = len(claim.records) > 1
    return f"devices of several nodes: {', '.join(claim.records)}" if several else ""


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
    if not are_few(document):  # no leader could remove that one alone
        return f"claim {claim.key} has more than {MOST_FINALIZERS} finalizers"
    return ""


def _precedes(one: str, other: str) -> bool:
    """Whether a version of an object comes before another one, as far as they can be compared."""
    if not (one and other):
        return False
    both = one + other
    return precedes(one, other) if both.isascii() and both.isdecimal() else one != other


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
