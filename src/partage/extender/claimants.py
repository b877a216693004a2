"""Pods that wait for devices by ResourceClaims alone. The books hold nothing of them; people want to see that they wait.

    a pod names a claim ──┬──> it waits for devices of Partage
    the claim asks us ────┘

Either may come first. Both are kept from event to event, so that a question looks at its namespace alone. Pods whose claims
ask no class of Partage's own are another driver's, and are left out. A class of an operator that names this driver counts as
Partage's own where the program reads DeviceClasses, before claims.
"""

from collections.abc import Collection
from typing import Final

from partage.model.errors import InvalidValue
from partage.vendors.names import DRA_DRIVER, MIG_CLASS, SHARE_CLASS
from partage.wire import shapes
from partage.wire.device_pools import class_selectors
from partage.wire.device_requests import asked, claims_named
from partage.wire.documents import Document, outdated

CLASSES: Final = frozenset({SHARE_CLASS, MIG_CLASS})
"""DeviceClasses whose devices Partage offers."""

_Key = tuple[str, str]
"""Namespace and name of a claim."""


class Claimants:
    """Pods of one service that wait so."""

    def __init__(self) -> None:
        self._pods: dict[str, Document] = {}
        self._by_claim: dict[_Key, set[str]] = {}
        self._claims: dict[_Key, str] = {}
        self._waiting: dict[str, dict[str, Document]] = {}
        self._classes = set(CLASSES)

    @property
    def count(self) -> int:
        """How many wait for devices of Partage."""
        return sum(map(len, self._waiting.values()))

    def waiting(self, namespace: str = "") -> Collection[Document]:
        """Those that wait for devices of Partage; of one namespace, or of all."""
        if namespace:
            return self._waiting.get(namespace, {}).values()
        return [one for those in self._waiting.values() for one in those.values()]

    def knows(self, uid: str) -> bool:
        """Whether a pod names claims and is not bound."""
        return uid in self._pods

    # --- pods --------------------------------------------------------------------------------

    def changed(self, document: Document) -> None:
        """A pod without devices of its own is there, or has changed."""
        uid = document.metadata.uid or ""
        if outdated(document, self._pods.get(uid)):
            return
        self.gone(uid)
        keys = _named(document) if _waits(document) else None
        if keys is not None:
            self._pods[uid] = document
            for key in keys:
                self._by_claim.setdefault(key, set()).add(uid)
            self._judge(uid)

    def gone(self, uid: str) -> None:
        """A pod is there no more, or is one of the books."""
        document = self._pods.pop(uid, None)
        if document is None:
            return
        for key in _named(document) or ():
            mates = self._by_claim[key]
            mates.discard(uid)
            if not mates:
                del self._by_claim[key]
        self._leaves(uid, document)

    def _judge(self, uid: str) -> None:
        """Put a pod among those that wait for devices of Partage, or leave it out."""
        document = self._pods[uid]
        if any(key in self._claims for key in _named(document) or ()):
            self._waiting.setdefault(document.namespace, {})[uid] = document
        else:
            self._leaves(uid, document)

    def _leaves(self, uid: str, document: Document) -> None:
        namespace = document.namespace
        mates = self._waiting.get(namespace)
        if mates is not None and mates.pop(uid, None) is not None and not mates:
            del self._waiting[namespace]

    # --- claims ------------------------------------------------------------------------------

    def claim_changed(self, document: Document) -> None:
        """A ResourceClaim is there; what it asks stays as it is for as long as it lives."""
        key, uid = _key(document), document.metadata.uid or ""
        if self._claims.get(key) == uid:
            return
        if self._is_ours(document):
            self._claims[key] = uid
        elif self._claims.pop(key, None) is None:
            return
        for one in self._by_claim.get(key, ()):
            self._judge(one)

    def class_changed(self, document: Document) -> None:
        """A DeviceClass is there."""
        for name, selectors in class_selectors((document,)).items():
            if any(DRA_DRIVER in one for one in selectors):
                self._classes.add(name)

    def claim_gone(self, document: Document) -> None:
        """A ResourceClaim is there no more."""
        key = _key(document)
        if self._claims.get(key) == (document.metadata.uid or ""):
            del self._claims[key]
            for one in self._by_claim.get(key, ()):
                self._judge(one)

    def _is_ours(self, claim: Document) -> bool:
        """Whether it asks for devices of Partage."""
        shape = claim.shape
        if not isinstance(shape, shapes.ResourceClaim):
            return False
        try:
            requests = asked(shape.spec).requests
        except InvalidValue:
            return False
        return any(ask.device_class in self._classes for asks in requests for ask in asks)


def _key(claim: Document) -> _Key:
    return claim.namespace, claim.name


def _named(pod: Document) -> set[_Key] | None:
    """The claims of a pod that are there; None where it names none at all."""
    named = claims_named(pod)
    return {(pod.namespace, name) for _, name, _ in named if name} if named else None


def _waits(document: Document) -> bool:
    shape = document.shape
    if not isinstance(shape, shapes.Pod) or shape.spec is None or shape.spec.node_name:
        return False
    phase = shape.status.phase if shape.status else None
    return phase not in ("Succeeded", "Failed")
