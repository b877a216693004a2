"""Everything that can be asked of the books, by one name each: over HTTP and on the command line.

The service, and a command that read the cluster itself, give the same documents.
"""

from typing import Any, Protocol

from partage.dashboard.nodes import NodeQuery, node_document, nodes_document
from partage.dashboard.overview import overview_document
from partage.dashboard.workloads import PodQuery, pods_document
from partage.extender.books import Books
from partage.extender.explain import explain


class Views(Protocol):
    """What can be asked; every answer is plain values ready for JSON."""

    async def overview(self) -> dict[str, Any]:
        """The whole cluster."""
        ...

    async def nodes(self, query: NodeQuery) -> dict[str, Any]:
        """One page of nodes with their cards."""
        ...

    async def node(self, name: str) -> dict[str, Any] | None:
        """One node; None where it is not known."""
        ...

    async def pods(self, query: PodQuery) -> dict[str, Any]:
        """One page of pods."""
        ...

    async def explain(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Why a pod is where it is; None where it is not known or asks for no device."""
        ...


class BookViews:
    """Views of books in this process."""

    def __init__(self, books: Books, *, settled: bool = False) -> None:
        """Views.

        Args:
            books: what is known.
            settled: every pod had its turn; those that wait are not asked anew.
        """
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
