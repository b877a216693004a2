"""Keeps the pods that ask for devices by ResourceClaims alone: the books lack them, but the lists of pods show them.

    a pod names a claim ────┬──> it waits for devices of Partage, or has some
    the claim asks Partage ─┘

Either may happen first. Both are kept between events, and the pods concerned are computed on request, because thousands
of pods may name one claim, and it may be created and deleted repeatedly. Pods whose claims ask no class of Partage
belong to another driver and are left out. An operator's class that names this driver counts as Partage's own. For an
allocated claim the devices decide, whatever its class is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from partage.model.errors import InvalidValue
from partage.vendors.names import DRA_DRIVER, MIG_CLASS, SHARE_CLASS
from partage.wire import shapes
from partage.wire.claims import held_devices
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


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim: its requested classes, and whether it holds devices of Partage; None if it is not allocated."""

    uid: str
    classes: frozenset[str]
    ours: bool | None


class Claimants:
    """The pods with claims, their claims, and the classes that count as Partage's."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, _Claimant]] = {}
        self._namespaces: dict[str, str] = {}
        self._claims: dict[_Key, _Claim] = {}
        self._classes = set(CLASSES)

    def count(self, *, placed: bool = False) -> int:
        """The number of pods that wait for devices of Partage, or that have a node."""
        return sum(1 for _ in self.pods(placed=placed))

    def pods(self, namespace: str = "", *, placed: bool = False) -> Iterator[Document]:
        """The pods that wait for devices of Partage, or that have a node; of one namespace, or of all."""
        for name in [namespace] if namespace else list(self._pods):
            for one in self._pods.get(name, {}).values():
                if one.placed is placed and any(map(self._ours, one.keys)):
                    yield one.document

    def waits(self, uid: str) -> bool:
        """Whether a pod names claims and has no node."""
        known = self._pods.get(self._namespaces.get(uid, ""), {}).get(uid)
        return known is not None and not known.placed

    def claims_of(self, document: Document) -> list[str]:
        """Uids of the claims that a pod names and that ask for devices of Partage."""
        keys = sorted(_named(document) or ())
        return [self._claims[key].uid for key in keys if self._ours(key)]

    def changed(self, document: Document) -> None:
        """Take in a new or changed pod that asks for no devices by names."""
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
        """Forget a pod that was deleted, or that the books have now."""
        namespace = self._namespaces.pop(uid, None)
        if namespace is not None:
            mates = self._pods[namespace]
            del mates[uid]
            if not mates:
                del self._pods[namespace]

    def claim_changed(self, document: Document) -> None:
        """Take in a new or changed ResourceClaim; its requests never change."""
        key, uid = _key(document), document.metadata.uid or ""
        known = self._claims.get(key)
        classes = known.classes if known and known.uid == uid else _classes(document)
        self._claims[key] = _Claim(uid, classes, _holds(document))

    def class_changed(self, document: Document) -> None:
        """Take in a new or changed DeviceClass."""
        self.class_gone(document)
        for name, selectors in class_selectors((document,)).items():
            if any(DRA_DRIVER in one for one in selectors):
                self._classes.add(name)

    def class_gone(self, document: Document) -> None:
        """Forget a deleted DeviceClass; claims that name the chart's classes still count as Partage's."""
        if document.name not in CLASSES:
            self._classes.discard(document.name)

    def claim_gone(self, document: Document) -> None:
        """Forget a deleted ResourceClaim."""
        key = _key(document)
        known = self._claims.get(key)
        if known is not None and known.uid == (document.metadata.uid or ""):
            del self._claims[key]

    def _ours(self, key: _Key) -> bool:
        """Whether a claim has devices of Partage, or asks for them and has none yet."""
        known = self._claims.get(key)
        if known is None:
            return False
        return not self._classes.isdisjoint(known.classes) if known.ours is None else known.ours


def _classes(claim: Document) -> frozenset[str]:
    """The DeviceClasses that a claim asks for."""
    shape = claim.shape
    try:
        requests = asked(shape.spec).requests if isinstance(shape, shapes.ResourceClaim) else ()
    except InvalidValue:
        return frozenset()
    return frozenset(ask.device_class for asks in requests for ask in asks)


def _holds(claim: Document) -> bool | None:
    """Whether a claim holds devices of Partage; None if it is not allocated."""
    shape = claim.shape
    status = shape.status if isinstance(shape, shapes.ResourceClaim) else None
    return bool(held_devices(claim)) if (status or {}).get("allocation") else None


def _key(claim: Document) -> _Key:
    return claim.namespace, claim.name


def _named(pod: Document) -> frozenset[_Key] | None:
    """The existing claims of a pod; None if it names no claims."""
    named = claims_named(pod)
    return frozenset((pod.namespace, name) for _, name, _ in named if name) if named else None


def _lives(shape: object) -> bool:
    if not isinstance(shape, shapes.Pod) or shape.spec is None:
        return False
    phase = shape.status.phase if shape.status else None
    return phase not in ("Succeeded", "Failed")
