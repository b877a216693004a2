"""Answers questions (`dashboard.queries`) from books in this process.

An allocator adds the answers about pods that name ResourceClaims, because the books alone know nothing of these.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from partage.dashboard.nodes import node_document, nodes_document
from partage.dashboard.overview import overview_document
from partage.dashboard.queries import NodeQuery, PodQuery
from partage.dashboard.workloads import pods_document
from partage.extender.books import Books
from partage.extender.claims_told import with_claims
from partage.extender.explain import explain
from partage.model.pod import Pod
from partage.model.reason import Refusal
from partage.sim.claims import ClaimAllocator
from partage.wire.documents import Document
from partage.wire.translation import PodEntry

Made = ClaimAllocator | Callable[[], Awaitable[ClaimAllocator]]


class BookViews:
    """Views of books in this process."""

    def __init__(
        self,
        books: Books,
        claimants: Mapping[str, Document],
        allocator: Made,
        asked: Mapping[str, Pod],
        *,
        settled: bool,
    ) -> None:
        """Views.

        Args:
            claimants: pods that name claims, by `namespace/name`.
            allocator: allocates claims, and judges waiting ones in lists of pods too; or a function that makes
                it when an explanation needs it.
            asked: pods with their requests beside devices, by `namespace/name`, if the books have the nodes' amounts.
            settled: every pod has been tried, and waiting ones are not tried again.
        """
        self._books, self._settled = books, settled
        self._claimants, self._allocator = claimants, allocator
        self._asked = asked

    async def overview(self) -> dict[str, Any]:
        """See `Views`."""
        return await overview_document(self._books)

    async def nodes(self, query: NodeQuery) -> dict[str, Any]:
        """See `Views`."""
        return await nodes_document(self._books, query)

    async def node(self, name: str) -> dict[str, Any] | None:
        """See `Views`; only a running service has the history."""
        found = node_document(self._books, name)
        return found and found | {"history": None}

    async def pods(self, query: PodQuery) -> dict[str, Any]:
        """See `Views`."""
        found = await pods_document(self._books, query)
        for pod in found["pods"]:
            document = self._claimants.get(f"{pod['namespace']}/{pod['name']}")
            if document is not None and pod["node"] is None:
                self._judge(pod, document)
        return found

    def _judge(self, pod: dict[str, Any], document: Document) -> None:
        """The reason why a pod's claims wait; nothing if devices are free."""
        if isinstance(self._allocator, ClaimAllocator):
            asked = read(self._books, document).pod
            decision = self._allocator.decide(asked, document, keep=False)
            why = decision if isinstance(decision, Refusal) else None
            pod |= {"code": why and why.code.value, "message": why and why.message}

    async def explain(self, namespace: str, name: str) -> dict[str, Any] | None:
        """See `Views`."""
        document = self._claimants.get(f"{namespace}/{name}")
        asked = self._asked.get(f"{namespace}/{name}")
        host = asked.host if asked else None
        if document is None:
            return explain(self._books, namespace, name, settled=self._settled, host=host)
        if not isinstance(self._allocator, ClaimAllocator):
            self._allocator = await self._allocator()
        allocator = self._allocator
        claimant = (
            read(self._books, document),
            lambda pod, _work: allocator.decide(pod, document, keep=False),
        )
        found = explain(
            self._books, namespace, name, settled=self._settled, claimant=claimant, host=host
        )
        if found is None:
            return None
        held, asks = allocator.held(document), allocator.asks(document)
        ledger = self._books.engine.ledger
        return with_claims(ledger, found, document, held, asks, allocator.notes)


def read(books: Books, document: Document) -> PodEntry:
    """A pod in the books' form."""
    known = books.cluster_cache.pod_named(document.namespace, document.name)
    return known or books.cluster_cache.translation.read(document)
