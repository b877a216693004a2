"""What books in this process answer of pods that name ResourceClaims, which the books alone know nothing of."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from partage.dashboard.views import BookViews
from partage.extender.books import Books
from partage.extender.explain import explain
from partage.model.allocation import CLAIM
from partage.model.quantity import NANO
from partage.sim.claims import ClaimAllocator
from partage.wire.device_requests import Ask
from partage.wire.documents import Document
from partage.wire.outcomes import grant_document
from partage.wire.translation import PodEntry

Made = ClaimAllocator | Callable[[], Awaitable[ClaimAllocator]]


class ClaimViews(BookViews):
    """Views in which such pods are explained too."""

    def __init__(
        self, books: Books, pods: Mapping[str, Document], allocator: Made, *, settled: bool
    ) -> None:
        """Views.

        Args:
            books: what is known.
            pods: those that name claims, by `namespace/name`.
            allocator: allocates claims; or makes what does, once it is needed.
            settled: see `BookViews`.
        """
        super().__init__(books, settled=settled)
        self._claimants, self._allocator, self._own = pods, allocator, (books, settled)

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
                lambda pod: allocator.decide(pod, document, keep=False),
            ),
        )
        if found is None:
            return None
        held = [grant_document(grant, node) for node, grant in allocator.held(document)]
        asks = [_asked(claim, ask) for claim, ask in allocator.asks(document)]
        return found | {
            "allocations": [*found["allocations"], *held],
            "request": [*found["request"], *asks],
            "notes": [*found["notes"], *allocator.notes],
        }


def read(books: Books, document: Document) -> PodEntry:
    """A pod as the books read it."""
    known = books.cluster_cache.pod_named(document.namespace, document.name)
    return known or books.cluster_cache.translation.read(document)


def _asked(claim: str, ask: Ask) -> dict[str, Any]:
    """A request of a claim, as other requests are told."""
    return {
        "protocol": CLAIM,
        "dialect": f"{claim}, request {ask.name}: {ask.device_class}",
        "containers": [],
        "type": "gpu",
        "count": ask.count or None,
        "core_milli": ask.capacity.get("cores", 0) * 10 // NANO,
        "memory_bytes": ask.capacity.get("memory", 0) // NANO,
        "memory_milli": 0,
        "whole": False,
    }
