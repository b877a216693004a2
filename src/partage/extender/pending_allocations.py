"""Devices that kube-scheduler has allocated to ResourceClaims in its own memory, and that are not stored yet.

kube-scheduler allocates a claim when it reserves the claim's pod, and stores the allocation beside its next decisions.
Until the API server asks before it stores the allocation (`claim_arbiter`), these devices would count as free, and the
next pods would go to nodes that have none left. So the plugin reports the allocation at Reserve, and the books hold it:

    reported at Reserve ──> asked about before it is stored, then reserved ──> stored: a fact
          └── Unreserve; the pod or the claim is gone; kube-scheduler is gone; `LIFE` is over

No pending allocation makes the service refuse another claim, because a question before storage ends those in its way.
But it refuses other devices for the same claim: kube-scheduler does not ask for these.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from partage.extender.books import Books
from partage.extender.claim_room import holds, reserved
from partage.model.pod import Pod
from partage.scheduler.events import Event, HoldEnded
from partage.wire.claims import claim_uid, held_devices, read_claim
from partage.wire.documents import Document

LIFE: Final = 60.0
"""Seconds for which the books hold an allocation without further news of it."""
MOST: Final = 4096
"""The most claims at a time, far more than kube-scheduler binds in a second; beyond it the oldest of the namespace with the most ends."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """The allocation of one claim, under a key of its own; `pod` and `attempt` are those of Reserve."""

    fact: Pod
    pod: str
    attempt: int
    until: float


Ended = tuple[str, _Pending]
"""A claim's uid, and its allocation."""


class PendingAllocations:
    """The pending allocations of one kube-scheduler; `pods` has the claims of each pod, by uid."""

    def __init__(self) -> None:
        self._claims: OrderedDict[str, _Pending] = OrderedDict()
        self.pods: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def said(
        self, books: Books, pod: str, attempt: int, claims: Iterable[Document], now: float
    ) -> None:
        """Hold the allocations of these claims, after kube-scheduler has reserved their pod.

        Args:
            claims: the claims with their allocations. Claims of other drivers are ignored, as are claims whose devices
                the books have allocated already.
        """
        self._take_back(books, self.pods.get(pod, ()), now)
        for document in claims:
            claim = read_claim(document, books.cluster_cache.as_read)
            if claim.problems or len(claim.records) != 1:
                continue
            (fact,) = claim.facts()
            fact = replace(fact, uid=f"{claim.uid}#pending")
            if claim.uid not in self._claims and self._held(books, claim.uid, fact, now):
                self._claims[claim.uid] = _Pending(fact, pod, attempt, now + LIFE)
                self.pods.setdefault(pod, []).append(claim.uid)
        while len(self._claims) > MOST:
            self._take_back(books, [self._superfluous()], now)

    def _superfluous(self) -> str:
        """The oldest claim of the namespace with the most claims, so that no namespace ends those of others."""
        of = Counter(one.fact.namespace for one in self._claims.values())
        most = max(of, key=of.__getitem__)
        return next(uid for uid, one in self._claims.items() if one.fact.namespace == most)

    def _held(self, books: Books, claim: str, fact: Pod, now: float) -> bool:
        """Hold an allocation unless the claim is allocated or gone; whether it is held."""
        known = books.cluster_cache.claims
        if known.is_gone(claim) or known.held(claim):
            return False
        return not reserved(books.engine, fact, lambda event: books.take([event], now))

    def withdrawn(self, books: Books, pod: str, now: float, attempt: int | None = None) -> None:
        """End the allocations of a pod that is no longer reserved, by all attempts or by one that gives them back."""
        mine = self.pods.get(pod, ())
        if attempt is None:
            self._take_back(books, mine, now)
        else:
            ended = self._ended(one for one in mine if self._claims[one].attempt == attempt)
            books.give_back(pod, ended, now)

    def other(self, fact: Pod) -> bool:
        """Whether other devices than these are allocated to the claim that has the fact."""
        known = self._claims.get(fact.uid)
        return known is not None and holds(known.fact) != holds(fact)

    def asked(self, books: Books, document: Document) -> None:
        """End the pending allocation of a claim that the API server asks about; from now on the answer counts."""
        books.digest(self._ended([claim_uid(document)]))

    def settled(self, books: Books, document: Document) -> list[Event]:
        """The events that end a pending allocation after the books have read that its claim is allocated or gone."""
        uid, known = claim_uid(document), books.cluster_cache.claims
        return self._ended([uid] if known.held(uid) or known.is_gone(uid) else ())

    def gives_way(self, books: Books, document: Document, now: float) -> Sequence[Ended]:
        """End the pending allocations on the nodes of a refused claim; they are returned."""
        nodes = {one.get("pool") for one in held_devices(document)}
        ended = [(uid, one) for uid, one in self._claims.items() if one.fact.node in nodes]
        self._take_back(books, [uid for uid, _ in ended], now)
        return ended

    def returns(self, books: Books, those: Sequence[Ended], now: float) -> None:
        """Hold allocations again that gave way to a claim that was refused nevertheless."""
        for uid, one in those:
            if self._held(books, uid, one.fact, now):
                self._claims[uid] = one
                self.pods.setdefault(one.pod, []).append(uid)

    def expire(self, books: Books, now: float) -> None:
        """End the allocations that are older than `LIFE`."""
        self._take_back(books, [uid for uid, one in self._claims.items() if one.until <= now], now)

    def clear(self, books: Books, now: float) -> None:
        """End all allocations, because kube-scheduler is gone."""
        self._take_back(books, self._claims, now)

    def renew(self, books: Books, now: float) -> None:
        """Hold all pending allocations in rebuilt books too."""
        lost = [
            uid for uid, one in self._claims.items() if not self._held(books, uid, one.fact, now)
        ]
        self._ended(lost)

    def _take_back(self, books: Books, claims: Iterable[str], now: float) -> None:
        events = self._ended(claims)
        if events:
            books.take(events, now)

    def _ended(self, claims: Iterable[str]) -> list[Event]:
        events: list[Event] = []
        for uid in list(claims):
            one = self._claims.pop(uid, None)
            if one is not None:
                mates = self.pods[one.pod]
                mates.remove(uid)
                if not mates:
                    del self.pods[one.pod]
                events.append(HoldEnded(one.fact.uid))
        return events
