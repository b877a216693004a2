"""The questions that the books answer, one name each, over HTTP and on the command line.

The service and a command that read the cluster itself give the same documents (`cli.engine_here`). A command that
asks the service imports this module and nothing of the books.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

MOST_NODES: Final = 200
"""Most nodes of one page."""
MOST_COUNTED: Final = 1000
"""The same without their cards."""
MOST_PODS: Final = 500
"""Most pods of one page."""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """The requested nodes, and their order, by the parameters of docs/reference/http.md."""

    text: str = ""
    only: str = ""
    vendor: str = ""
    model: str = ""
    protocol: str = ""
    cards: str = ""
    order: str = "name"
    offset: int = 0
    limit: int = 24


@dataclass(frozen=True, slots=True)
class PodQuery:
    """The requested pods, and their order, by the parameters of docs/reference/http.md."""

    state: str = ""
    namespace: str = ""
    text: str = ""
    code: str = ""
    protocol: str = ""
    order: str = "name"
    reverse: str = ""
    offset: int = 0
    limit: int = 100


class Views(Protocol):
    """The questions; every answer is plain values ready for JSON."""

    async def overview(self) -> dict[str, Any]:
        """The whole cluster."""

    async def nodes(self, query: NodeQuery) -> dict[str, Any]:
        """One page of nodes with their cards."""

    async def node(self, name: str) -> dict[str, Any] | None:
        """One node; None if unknown."""

    async def pods(self, query: PodQuery) -> dict[str, Any]:
        """One page of pods."""

    async def explain(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The reason for a pod's place; None if it is unknown or asks for no device."""
