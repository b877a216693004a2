"""The last known state of the objects that controllers compare, and the reading of them.

The picture keeps every Node and Device object, pods that concern devices, and the ConfigMaps with settings. It
shares documents with other readers of the same watch. It reads nodes and pods when a controller looks at them,
and keeps only few as read, because the books of the scheduler hold them already.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from partage.model.node import Node
from partage.vendors.settings import Settings
from partage.wire import shapes
from partage.wire.config_book import ConfigBook
from partage.wire.context import Context
from partage.wire.documents import Document, outdated
from partage.wire.nodes import TranslatedNode, translate_node
from partage.wire.translation import PodEntry, Translation, concerns_devices

_MOST_READ: Final = 512
"""Nodes kept as read: enough for looks at nodes together with their pods."""


@dataclass(slots=True)
class _Place:
    """Known facts about one node; its `documents`, by kind, are the Node and the Device object."""

    documents: dict[str, Document] = field(default_factory=dict)
    pods: set[str] = field(default_factory=set)


class Picture:
    """The last known objects; `pods` are those that concern devices, by uid."""

    def __init__(
        self,
        namespaces: Iterable[str] = (),
        read: Callable[[Document], PodEntry | None] = lambda _: None,
    ) -> None:
        self.read_already = read
        self.configs = ConfigBook(namespaces)
        self._translation = Translation(Context.of(Settings()))
        self._places: dict[str, _Place] = {}
        self.pods: dict[str, Document] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._read: OrderedDict[str, TranslatedNode] = OrderedDict()

    @property
    def context(self) -> Context:
        """The present settings for reading nodes and pods."""
        return self._translation.context

    @property
    def nodes(self) -> list[str]:
        """Names of the API server's nodes."""
        return [name for name, place in self._places.items() if "Node" in place.documents]

    def node(self, name: str) -> tuple[Document | None, Document | None]:
        """The Node and the Device object of this name."""
        documents = (self._places.get(name) or _Place()).documents
        return documents.get("Node"), documents.get("Device")

    def pods_on(self, node: str) -> Iterable[str]:
        """The uids of the node's bound pods that concern devices."""
        place = self._places.get(node)
        return tuple(place.pods) if place else ()

    def pod_named(self, namespace: str, name: str) -> Document | None:
        """A pod that concerns devices, by name."""
        return self.pods.get(self._by_name.get((namespace, name), ""))

    def read_node(self, name: str) -> TranslatedNode | None:
        """The node with every family's configuration applied; None where the API has none.

        Raises `InvalidDocument`: an amount of its documents is no quantity.
        """
        node, device = self.node(name)
        if node is None:
            return None
        read = self._read.get(name)
        if read is None:
            read = self._read[name] = translate_node(node, device, self.context)
            if len(self._read) > _MOST_READ:
                self._read.popitem(last=False)
        return read

    def read_pod(self, document: Document, node: Node | None) -> PodEntry:
        """The pod with its holdings on its node by its records. Raises `InvalidDocument`: it is no pod."""
        known = None if node is None else self.read_already(document)
        if known is not None:
            return known
        entry = self._translation.read(document)
        return self._translation.with_record(entry, node)

    def node_changed(self, document: Document) -> bool:
        """Take in a new or changed Node or Device object; whether that is news.

        Most changes of a node are its kubelet's heartbeats.
        """
        documents = self._places.setdefault(document.name, _Place()).documents
        before = documents.get(document.kind)
        if outdated(document, before):
            return False
        documents[document.kind] = document
        if before is not None and _says_the_same(before, document):
            return False
        self._read.pop(document.name, None)
        return True

    def node_gone(self, document: Document) -> None:
        """Take in the deletion of a Node, or of a Device object."""
        place = self._places.get(document.name)
        if place is not None:
            self._read.pop(document.name, None)
            place.documents.pop(document.kind, None)
            self._sweep(document.name, place)

    def pod_changed(self, document: Document) -> bool:
        """Take in a new or changed pod; whether it concerns devices and this is news."""
        uid = document.metadata.uid or ""
        known = self.pods.get(uid)
        if outdated(document, known):
            return False
        if known is None and not concerns_devices(document, self.context):
            return False
        if known is not None:
            self._leave(uid, known)
        self.pods[uid] = document
        self._by_name[document.namespace, document.name] = uid
        node = bound_to(document)
        if node:
            self._places.setdefault(node, _Place()).pods.add(uid)
        return True

    def pod_gone(self, uid: str) -> None:
        """Take in a pod's deletion."""
        known = self.pods.pop(uid, None)
        if known is None:
            return
        if self._by_name.get((known.namespace, known.name)) == uid:
            del self._by_name[known.namespace, known.name]
        self._leave(uid, known)

    def _leave(self, uid: str, document: Document) -> None:
        node = bound_to(document)
        place = self._places.get(node)
        if place is not None:
            place.pods.discard(uid)
            self._sweep(node, place)

    def _sweep(self, name: str, place: _Place) -> None:
        if not place.documents and not place.pods:
            del self._places[name]

    def config_changed(self, document: Document, *, gone: bool = False) -> bool:
        """Take in a new, changed or deleted ConfigMap; whether other settings are in force now."""
        changed = self.configs.gone(document) if gone else self.configs.changed(document)
        if changed:
            self._translation.reset(Context.of(self.configs.configuration.settings))
            self._read.clear()
        return changed


def _says_the_same(one: Document, other: Document) -> bool:
    """Whether two states of a Node are equal in all fields that readers use."""
    if not isinstance(one.shape, shapes.Node) or not isinstance(other.shape, shapes.Node):
        return False
    first, second = one.metadata, other.metadata
    return (
        first.uid == second.uid
        and first.labels == second.labels
        and first.annotations == second.annotations
        and one.shape.spec == other.shape.spec
        and one.shape.status == other.shape.status
    )


def bound_to(document: Document) -> str:
    """The node of a pod; empty if it has none."""
    shape = document.shape
    spec = shape.spec if isinstance(shape, shapes.Pod) else None
    return (spec.node_name if spec else None) or ""
