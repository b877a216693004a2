"""Pods that ask for devices by ResourceClaims alone. The books hold nothing of them; people want to see what they have or wait for.

    a pod names a claim ──┬──> it waits for devices of Partage, or has some
    the claim asks us ────┘

Either may come first. Both are kept from event to event, and which pods are concerned is found when it is asked: one claim may be named by
thousands of pods, and be made and deleted again and again. Pods whose claims ask no class of Partage's own are another
driver's, and are left out. A class of an operator that names this driver counts as Partage's own where the program reads
DeviceClasses, before claims.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Claimant:
    """A pod, the claims that it names, and whether it has a node."""

    document: Document
    keys: frozenset[_Key]
    placed: bool


class Claimants:
    """Those of one service."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, _Claimant]] = {}
        self._namespaces: dict[str, str] = {}
        self._claims: dict[_Key, str] = {}
        self._classes = set(CLASSES)

    def count(self, *, placed: bool = False) -> int:
        """How many wait for devices of Partage, or have a node."""
        return sum(1 for namespace in self._pods for _ in self._of(namespace, placed=placed))

    def waiting(self, namespace: str = "") -> Collection[Document]:
        """Those that wait for devices of Partage; of one namespace, or of all."""
        return self._all(namespace, placed=False)

    def placed(self, namespace: str = "") -> Collection[Document]:
        """Those that have a node; of one namespace, or of all."""
        return self._all(namespace, placed=True)

    def _all(self, namespace: str, *, placed: bool) -> Collection[Document]:
        namespaces = [namespace] if namespace else list(self._pods)
        return [one for each in namespaces for one in self._of(each, placed=placed)]

    def _of(self, namespace: str, *, placed: bool) -> Iterator[Document]:
        for one in self._pods.get(namespace, {}).values():
            if one.placed is placed and not self._claims.keys().isdisjoint(one.keys):
                yield one.document

    def waits(self, uid: str) -> bool:
        """Whether a pod names claims and has no node."""
        known = self._pods.get(self._namespaces.get(uid, ""), {}).get(uid)
        return known is not None and not known.placed

    def claims_of(self, document: Document) -> list[str]:
        """Uids of the claims that a pod names and that ask for devices of Partage."""
        keys = sorted(_named(document) or ())
        return [self._claims[key] for key in keys if key in self._claims]

    # --- pods --------------------------------------------------------------------------------

    def changed(self, document: Document) -> None:
        """A pod without devices of its own is there, or has changed."""
        uid, namespace = document.metadata.uid or "", document.namespace
        known = self._pods.get(self._namespaces.get(uid, ""), {}).get(uid)
        if outdated(document, known.document if known else None):
            return
        self.gone(uid)
        shape = document.shape
        keys = _named(document) if _lives(shape) else None
        if keys is not None:
            self._namespaces[uid] = namespace
            placed = isinstance(shape, shapes.Pod) and bool(shape.spec and shape.spec.node_name)
            self._pods.setdefault(namespace, {})[uid] = _Claimant(document, keys, placed)

    def gone(self, uid: str) -> None:
        """A pod is there no more, or is one of the books."""
        namespace = self._namespaces.pop(uid, None)
        if namespace is not None:
            mates = self._pods[namespace]
            del mates[uid]
            if not mates:
                del self._pods[namespace]

    # --- claims ------------------------------------------------------------------------------

    def claim_changed(self, document: Document) -> None:
        """A ResourceClaim is there; what it asks stays as it is for as long as it lives."""
        key, uid = _key(document), document.metadata.uid or ""
        if self._claims.get(key) == uid:
            return
        if self._is_ours(document):
            self._claims[key] = uid
        else:
            self._claims.pop(key, None)

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


def _named(pod: Document) -> frozenset[_Key] | None:
    """The claims of a pod that are there; None where it names none at all."""
    named = claims_named(pod)
    return frozenset((pod.namespace, name) for _, name, _ in named if name) if named else None


def _lives(shape: object) -> bool:
    if not isinstance(shape, shapes.Pod) or shape.spec is None:
        return False
    phase = shape.status.phase if shape.status else None
    return phase not in ("Succeeded", "Failed")
