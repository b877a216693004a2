"""Devices that kube-scheduler has allocated to ResourceClaims in its own memory, and that are not stored yet.

kube-scheduler allocates a claim when it reserves the claim's pod, and stores the allocation beside its next decisions.
Until the API server asks before it stores the allocation (`claim_arbiter`), these devices would count as free, and the
next pods would go to nodes that have none left. So the plugin reports the allocation at Reserve, and the books hold it:

    said at Reserve ──> asked about before it is stored, then reserved ──> stored: a fact
          └── Unreserve; the pod or the claim is gone; kube-scheduler is gone; `LIFE` is over

No claim is refused because of what is held here: a question before storage ends what is in its way.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from partage.extender.books import Books
from partage.extender.claim_arbiter import reserved
from partage.model.pod import Pod
from partage.scheduler.events import Event, HoldEnded
from partage.wire.claims import claim_uid, held_devices, read_claim
from partage.wire.documents import Document

LIFE: Final = 60.0
"""Seconds for which an allocation of which nothing more is heard is held."""
MOST: Final = 4096
"""Claims at a time, far more than kube-scheduler binds in a second; the oldest ends for one more."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """What one claim was allocated, under a key of its own; `pod` and `attempt` are those of Reserve."""

    fact: Pod
    pod: str
    attempt: int
    until: float


class PendingAllocations:
    """Those of one kube-scheduler."""

    def __init__(self) -> None:
        self._claims: OrderedDict[str, _Pending] = OrderedDict()
        self._pods: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def has(self, pod: str) -> bool:
        """Whether anything is held that was allocated for a pod."""
        return pod in self._pods

    def said(
        self, books: Books, pod: str, attempt: int, claims: Iterable[Document], now: float
    ) -> None:
        """kube-scheduler has reserved a pod and allocated these claims for it.

        Args:
            pod: its uid.
            claims: with their allocations; of other drivers' nothing is kept, nor where the books have given the devices already.
            now: seconds on the service's steady clock.
        """
        self._take_back(books, self._pods.get(pod, ()), now)
        for document in claims:
            claim = read_claim(document, books.cluster_cache.as_read)
            if claim.problems or len(claim.records) != 1:
                continue
            (fact,) = claim.facts()
            fact = replace(fact, uid=f"{claim.uid}#pending")
            if claim.uid not in self._claims and self._held(books, claim.uid, fact, now):
                self._claims[claim.uid] = _Pending(fact, pod, attempt, now + LIFE)
                self._pods.setdefault(pod, []).append(claim.uid)
        while len(self._claims) > MOST:
            self._take_back(books, [next(iter(self._claims))], now)

    def _held(self, books: Books, claim: str, fact: Pod, now: float) -> bool:
        """Hold it, unless more is known of the claim; whether it is held."""
        known = books.cluster_cache.claims
        if known.is_gone(claim) or known.held(claim):
            return False
        return not reserved(books.engine, fact, lambda event: books.take([event], now))

    # --- ends --------------------------------------------------------------------------------

    def withdrawn(self, books: Books, pod: str, now: float, attempt: int | None = None) -> None:
        """A pod is not reserved any more, by an attempt or by any."""
        mine = self._pods.get(pod, ())
        ended = [one for one in mine if attempt in (None, self._claims[one].attempt)]
        self._take_back(books, ended, now)

    def asked(self, books: Books, document: Document) -> None:
        """The API server asks about a claim: the answer counts from now on."""
        books.digest(self._ended([claim_uid(document)]))

    def settled(self, books: Books, document: Document) -> list[Event]:
        """Events where the API server has told that a claim is allocated or gone, and that was taken in."""
        uid, known = claim_uid(document), books.cluster_cache.claims
        return self._ended([uid] if known.held(uid) or known.is_gone(uid) else ())

    def gives_way(self, books: Books, document: Document, now: float) -> bool:
        """End what is held on the nodes of a claim that was refused; whether there was anything."""
        nodes = {one.get("pool") for one in held_devices(document)}
        ended = [uid for uid, one in self._claims.items() if one.fact.node in nodes]
        self._take_back(books, ended, now)
        return bool(ended)

    def expire(self, books: Books, now: float) -> None:
        """End those of which nothing was heard for long."""
        self._take_back(books, [uid for uid, one in self._claims.items() if one.until <= now], now)

    def clear(self, books: Books, now: float) -> None:
        """kube-scheduler is gone."""
        self._take_back(books, self._claims, now)

    def renew(self, books: Books, now: float) -> None:
        """The books were made anew: what is pending is held in them too."""
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
                mates = self._pods[one.pod]
                mates.remove(uid)
                if not mates:
                    del self._pods[one.pod]
                events.append(HoldEnded(one.fact.uid))
        return events
