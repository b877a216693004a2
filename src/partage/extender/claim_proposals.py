"""Nodes for pods that ask for devices by ResourceClaims alone: kube-scheduler itself allocates those.

The books name the best nodes for the claims, and hold none. They name only nodes of which kube-scheduler has received
all ResourceSlices, because kube-scheduler can allocate on no other. The books may know cards earlier or without a
slice, by Devices and totals. If filters reject all proposed nodes, a second proposal names others. Then kube-scheduler
looks at all nodes itself.
"""

from dataclasses import replace
from typing import Final

from partage.extender.books import Books
from partage.extender.cycle import PROPOSED, Wanted, marked
from partage.extender.retries import RejectedNodes
from partage.model.errors import InvalidDocument
from partage.model.reason import ReasonCode
from partage.wire.claim_requests import MOST_BYTES, request_of_claims
from partage.wire.extender import decode_claim, decode_pod
from partage.wire.plugin import Pools, Propose
from partage.wire.pods import translate_pod
from partage.wire.translation import PodEntry

MOST_PROPOSED: Final = 100
"""Nodes of a further proposal for a pod with claims. kube-scheduler checks only a part of a longer list."""


class ClaimProposals:
    """The proposals to one kube-scheduler; `pools` are those of which it has all ResourceSlices, if it reports them."""

    def __init__(self) -> None:
        self.pools: set[str] | None = None

    def take_in(self, pools: Pools) -> None:
        """Take in the pools that are newly whole, or no longer."""
        self.pools = (self.pools or set()).union(pools.whole).difference(pools.gone)

    def nodes(
        self, books: Books, question: Propose, rejected: RejectedNodes, now: float
    ) -> tuple[PodEntry | None, dict[str, int]]:
        """The pod as a request of the engine, and the best nodes for it with scores.

        No pod or no nodes if kube-scheduler has to look at all nodes by itself.
        """
        left_out, entry = rejected.count(question.uid, now), _claimant_of(books, question)
        work = books.cycle.allowance.work(entry.pod, now) if entry is not None else None
        if entry is None or work is None or left_out > (0 if question.wide else PROPOSED):
            return None, {}
        among = rejected.left(books.engine.ledger, question.uid, now)
        if self.pools is not None:
            whole = marked(books.engine.ledger, self.pools)
            among = whole if among is None else among & whole
        most = MOST_PROPOSED if left_out else PROPOSED
        books.cluster_cache.compares(entry.pod)
        wanted = Wanted(wide=question.wide, domains=question.domains)
        found = books.cycle.others(entry.pod, wanted, among, work, now, most)
        books.counts["plugin proposed for claims"] += bool(found)
        return entry, found


def _claimant_of(books: Books, question: Propose) -> PodEntry | None:
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
