"""Finds empty nodes that are read alike, of which `partage doctor` reads one.

Reading nodes causes most of the cost of a large cluster's books. Nodes of a pool differ only in their names and
in the identities of their devices.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from partage.model.errors import InvalidDocument
from partage.vendors import names
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.heeded import ours
from partage.wire.nodes import allocatable_of

KINDS: Final = frozenset({"Device", "Node"})
_HOST: Final = "kubernetes.io/hostname"


def alike(nodes: Mapping[str, Iterable[Document]]) -> dict[str, str]:
    """Nodes that are read like an earlier one, with that one's name.

    The earlier node decides whether such a node can be read, has devices, and who registered it. `nodes`: documents of
    `KINDS` by the node's name.
    """
    first: dict[object, str] = {}
    found = {}
    for name, documents in nodes.items():
        key = _key(documents)
        if key is not None and first.setdefault(key, name) != name:
            found[name] = first[key]
    return found


def _key(documents: Iterable[Document]) -> object:
    """All facts that decide these; None for an unreadable node, and for one whose own UUIDs matter."""
    parts: list[object] = []
    for document in documents:
        shape = document.shape
        if names.HAMI_CORDON in document.annotations:
            return None
        parts += [document.kind, _texts(document.labels), _texts(document.annotations)]
        if isinstance(shape, shapes.Device):
            entries = (shape.spec.devices if shape.spec else None) or ()
            parts += [
                (one.type, one.minor, tuple((one.resources or {}).items())) for one in entries
            ]
            continue
        try:
            # Amounts of Kubernetes' own resources differ a little from node to node and do not concern devices.
            parts += [
                (name, str(much) if "/" in name else "")
                for name, much in allocatable_of(document).items()
            ]
        except InvalidDocument:
            return None
    return tuple(parts)


def _texts(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Labels or annotations that a rule may read of a node's devices."""
    return tuple(one for one in given.items() if one[0] != _HOST and ours(one[0]))
