"""Pods that wait for devices by ResourceClaims alone. The books hold nothing of them; people want to see that they wait.

Claims are looked up at each look at the list, because a claim may come after its pod. Pods whose claims ask no class of
Partage's own are another driver's, and not told.
"""

from collections.abc import Callable
from typing import Final

from partage.model.errors import InvalidValue
from partage.vendors.names import DRA_DRIVER
from partage.wire import shapes
from partage.wire.device_requests import asked, claims_named
from partage.wire.documents import Document, outdated

CLASSES: Final = frozenset({f"share.{DRA_DRIVER}", f"mig.{DRA_DRIVER}"})
"""DeviceClasses whose devices Partage offers."""
Known = Callable[[str, str, str], Document | None]
"""The newest document of a kind, namespace and name; None where there is none."""

_MOST: Final = 1000
"""Pods that are told at most."""


def unknown(_kind: str, _namespace: str, _name: str) -> None:
    """Of no claim anything is known."""
    return


class Claimants:
    """Pods of one service that wait so.

    Attributes:
        known: finds their claims.
    """

    def __init__(self) -> None:
        self.known: Known = unknown
        self._documents: dict[str, Document] = {}

    def changed(self, document: Document) -> None:
        """A pod without devices of its own is there, or has changed."""
        uid = document.metadata.uid or ""
        before = self._documents.get(uid)
        if outdated(document, before):
            return
        if _waits(document) and claims_named(document):
            self._documents[uid] = document
        elif before is not None:
            del self._documents[uid]

    def gone(self, uid: str) -> None:
        """A pod is there no more, or is one of the books."""
        self._documents.pop(uid, None)

    def waiting(self) -> list[Document]:
        """Those that wait for devices of Partage, the oldest event first."""
        found = []
        for document in self._documents.values():
            if self._ours(document):
                found.append(document)
                if len(found) == _MOST:
                    break
        return found

    def _ours(self, document: Document) -> bool:
        for _, name, _ in claims_named(document):
            claim = self.known("ResourceClaim", document.metadata.namespace or "", name)
            shape = claim.shape if name and claim is not None else None
            if not isinstance(shape, shapes.ResourceClaim):
                continue
            try:
                requests = asked(shape.spec).requests
            except InvalidValue:
                continue
            if any(ask.device_class in CLASSES for asks in requests for ask in asks):
                return True
        return False


def _waits(document: Document) -> bool:
    shape = document.shape
    if not isinstance(shape, shapes.Pod) or shape.spec is None or shape.spec.node_name:
        return False
    phase = shape.status.phase if shape.status else None
    return phase not in ("Succeeded", "Failed")
