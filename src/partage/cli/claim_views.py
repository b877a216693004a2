"""What books in this process answer of pods that name ResourceClaims, which the books alone know nothing of."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from partage.dashboard.queries import PodQuery
from partage.dashboard.views import BookViews
from partage.extender.books import Books
from partage.extender.claims_told import with_claims
from partage.extender.explain import explain
from partage.model.reason import Refusal
from partage.sim.claims import ClaimAllocator
from partage.wire.documents import Document
from partage.wire.translation import PodEntry

Made = ClaimAllocator | Callable[[], Awaitable[ClaimAllocator]]


class ClaimViews(BookViews):
    """Views in which such pods are explained too."""

    def __init__(
        self, books: Books, pods: Mapping[str, Document], allocator: Made, *, settled: bool
    ) -> None:
        """Views.

        Args:
            pods: those that name claims, by `namespace/name`.
            allocator: allocates claims, and judges those that wait in lists of pods too; or makes what does, once
                an explanation needs it.
            settled: see `BookViews`.
        """
        super().__init__(books, settled=settled)
        self._claimants, self._allocator, self._own = pods, allocator, (books, settled)

    async def pods(self, query: PodQuery) -> dict[str, Any]:
        """See `Views`."""
        found = await super().pods(query)
        for pod in found["pods"]:
            document = self._claimants.get(f"{pod['namespace']}/{pod['name']}")
            if document is not None and pod["node"] is None:
                self._judge(pod, document)
        return found

    def _judge(self, pod: dict[str, Any], document: Document) -> None:
        """Say why a pod's claims wait; nothing where devices are free."""
        if isinstance(self._allocator, ClaimAllocator):
            books, _ = self._own
            decision = self._allocator.decide(read(books, document).pod, document, keep=False)
            why = decision if isinstance(decision, Refusal) else None
            pod |= {"code": why and why.code.value, "message": why and why.message}

    async def explain(self, namespace: str, name: str) -> dict[str, Any] | None:
        """See `Views`."""
        document = self._claimants.get(f"{namespace}/{name}")
        if document is None:
            return await super().explain(namespace, name)
        if not isinstance(self._allocator, ClaimAllocator):
            self._allocator = await self._allocator()
        allocator, (books, settled) = self._allocator, self._own
        found = explain(
            books,
            namespace,
            name,
            settled=settled,
            claimant=(
                read(books, document),
                lambda pod, _work: allocator.decide(pod, document, keep=False),
            ),
        )
        if found is None:
            return None
        held, asks = allocator.held(document), allocator.asks(document)
        return with_claims(found, document, held, asks, allocator.notes)


def read(books: Books, document: Document) -> PodEntry:
    """A pod as the books read it."""
    known = books.cluster_cache.pod_named(document.namespace, document.name)
    return known or books.cluster_cache.translation.read(document)
