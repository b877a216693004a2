"""Facts of the API server handed to all who keep something of them."""

from collections.abc import Sequence
from typing import Protocol

from partage.wire.documents import Document


class Hearer(Protocol):
    """Hears facts, synchronously and in the order of each watch."""

    def node_changed(self, document: Document) -> None:
        """A Node is there, or has changed."""

    def node_gone(self, name: str) -> None:
        """A Node is there no more."""

    def device_changed(self, document: Document) -> None:
        """A Device object is there, or has changed."""

    def device_gone(self, name: str) -> None:
        """A Device object is there no more."""

    def pod_changed(self, document: Document) -> None:
        """A pod is there, or has changed."""

    def pod_gone(self, uid: str) -> None:
        """A pod is there no more."""

    def config_changed(self, document: Document) -> object:
        """A ConfigMap or ResourceQuota is there, or has changed."""

    def config_gone(self, document: Document) -> None:
        """A ConfigMap or ResourceQuota is there no more."""

    def claim_changed(self, document: Document) -> None:
        """A ResourceClaim is there, or has changed."""

    def claim_gone(self, document: Document) -> None:
        """A ResourceClaim is there no more."""


class Companion(Hearer, Protocol):
    """Who hears the same facts as the scheduler all the time, and works only while it leads."""

    async def run(self) -> None:
        """Work until cancelled."""


def tell_changed(hearers: Sequence[Hearer], document: Document) -> None:
    """Tell all hearers that an object is there, or has changed."""
    for hearer in hearers:
        match document.kind:
            case "Node":
                hearer.node_changed(document)
            case "Device":
                hearer.device_changed(document)
            case "Pod":
                hearer.pod_changed(document)
            case "ResourceClaim":
                hearer.claim_changed(document)
            case _:
                hearer.config_changed(document)


def tell_gone(hearers: Sequence[Hearer], document: Document) -> None:
    """Tell all hearers that an object is there no more."""
    for hearer in hearers:
        match document.kind:
            case "Node":
                hearer.node_gone(document.name)
            case "Device":
                hearer.device_gone(document.name)
            case "Pod":
                hearer.pod_gone(document.metadata.uid or "")
            case "ResourceClaim":
                hearer.claim_gone(document)
            case _:
                hearer.config_gone(document)
