"""What books in this process answer to what can be asked of them (`dashboard.queries`)."""

from typing import Any

from partage.dashboard.nodes import node_document, nodes_document
from partage.dashboard.overview import overview_document
from partage.dashboard.queries import NodeQuery, PodQuery
from partage.dashboard.workloads import pods_document
from partage.extender.books import Books
from partage.extender.explain import explain


class BookViews:
    """Views of books in this process."""

    def __init__(self, books: Books, *, settled: bool = False) -> None:
        """Views; when `settled`, every pod had its turn, and those that wait are not asked anew."""
        self._books = books
        self._settled = settled

    async def overview(self) -> dict[str, Any]:
        """See `Views`."""
        return await overview_document(self._books)

    async def nodes(self, query: NodeQuery) -> dict[str, Any]:
        """See `Views`."""
        return await nodes_document(self._books, query)

    async def node(self, name: str) -> dict[str, Any] | None:
        """See `Views`; what came and went only a running service knows."""
        found = node_document(self._books, name)
        return found and found | {"history": None}

    async def pods(self, query: PodQuery) -> dict[str, Any]:
        """See `Views`."""
        return await pods_document(self._books, query)

    async def explain(self, namespace: str, name: str) -> dict[str, Any] | None:
        """See `Views`."""
        return explain(self._books, namespace, name, settled=self._settled)
