"""Turns manifests into objects of the API server: the resource of each, and their order.

Manifests stay as their author wrote them, because the API server checks them like any others. Only simulated
nodes are no objects, and this module reads them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from partage.embedded import fleet
from partage.embedded.fleet import SimulatedNode, simulated_nodes
from partage.model.errors import InvalidDocument
from partage.wire.documents import (
    KINDS,
    SNAPSHOT,
    Document,
    doubts,
    nothing_in,
    plain,
    read_paths,
    typed,
    values,
)
from partage.wire.yaml_values import MOST_NOTES, Repeated

_FIRST: Final = (
    "CustomResourceDefinition",
    "Namespace",
    "PriorityClass",
    "ServiceAccount",
    "ResourceQuota",
    "ConfigMap",
    "Node",
    "Device",
)
_DEEPEST: Final = 8


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object to create; `where` names file and place, for messages."""

    where: str
    value: dict[str, Any]

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self.value["kind"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.value["metadata"].get("name") or "")

    @property
    def namespace(self) -> str:
        """Its namespace; empty if it has none."""
        return str(self.value["metadata"].get("namespace") or "")


@dataclass(frozen=True, slots=True)
class Manifests:
    """Content of files.

    Attributes:
        objects: all others, dependencies first.
        notes: remarks for the user.
        doubtful: those notes that strict decoding refuses, as in `Batch`.
    """

    simulated: tuple[SimulatedNode, ...] = ()
    objects: tuple[Manifest, ...] = ()
    notes: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()

    @property
    def describe_nodes(self) -> bool:
        """Whether the files describe any node."""
        return bool(self.simulated) or any(one.kind == "Node" for one in self.objects)


def read(paths: Sequence[Path]) -> Manifests:
    """All objects in these files and folders. Raises `InvalidDocument`: a missing file, or a malformed document."""
    return read_sources(read_paths(paths))


def read_sources(sources: Iterable[tuple[str, bytes]]) -> Manifests:
    """All objects in these texts, each with its name. Raises `InvalidDocument`: a malformed document."""
    simulated: list[SimulatedNode] = []
    objects: list[Manifest] = []
    notes: list[str] = []
    doubtful: list[str] = []
    for source, data in sources:
        repeated: list[Repeated] = []
        found = [
            one
            for number, value in enumerate(values(source, data, repeated), 1)
            for one in _expand(value, _Place(f"{source}: document {number}"))
        ]
        for one, raw in found:
            if one.kind == fleet.KIND:
                simulated += simulated_nodes(one.value, one.where)
            else:
                objects.append(one)
                if not one.value["metadata"].get("uid"):
                    doubtful += [f"{one.where}: {doubt}" for doubt in doubts(one.kind, raw)]
        doubtful += [f"{source}: {note}" for note in repeated]
        if not found:
            notes.append(nothing_in(source))
    rank = {kind: index for index, kind in enumerate(_FIRST)}
    objects.sort(key=lambda one: rank.get(one.kind, len(rank)))
    doubtful = doubtful[:MOST_NOTES]
    told = [*notes, *doubtful][:MOST_NOTES]
    return Manifests(tuple(simulated), tuple(objects), tuple(told), tuple(doubtful))


def decoded(kind: str, value: Mapping[str, Any]) -> Document:
    """An object of the API server as a typed document. Raises `InvalidDocument`: not the shape of its kind."""
    shape = typed(value, KINDS[kind][0], f"the API server: {kind}")
    return Document(kind, "the API server", 1, shape)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a value, with the kind and version that a typed list gives its items."""

    where: str
    kind: str = ""
    version: str = ""
    depth: int = 0


def _expand(raw: Any, place: _Place) -> Iterator[tuple[Manifest, Any]]:
    """The objects of one value, each with its raw value: itself, or a list's items."""
    value = plain(raw)
    if value is None:
        return
    where = place.where
    if not isinstance(value, dict):
        raise InvalidDocument(f"{where}: expected an object, got {type(value).__name__}")
    kind = value.get("kind") or place.kind
    if not isinstance(kind, str) or not kind:
        raise InvalidDocument(f"{where}: field kind: missing")
    if kind.endswith("List") and isinstance(value.get("items"), list | None):
        if place.depth >= _DEEPEST:
            raise InvalidDocument(f"{where}: lists are nested deeper than {_DEEPEST}")
        inner = kind.removesuffix("List")
        version = str(value.get("apiVersion") or "") if inner else ""
        for item in value.get("items") or ():
            yield from _expand(item, _Place(where, inner, version, place.depth + 1))
        return
    if (kind, value.get("apiVersion")) == SNAPSHOT:
        raise InvalidDocument(
            f"{where}: a snapshot's pods have no images; read it by partage schedule, or dump the cluster with kubectl get"
        )
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not (
        metadata.get("name") or metadata.get("generateName")
    ):
        raise InvalidDocument(f"{where} ({kind}): field metadata.name: missing")
    if place.kind:
        value.setdefault("kind", kind)
        if place.version:
            value.setdefault("apiVersion", place.version)
    name = metadata.get("name") or metadata["generateName"]
    yield Manifest(f"{where} ({kind} {name})", value), raw


# Examples are in the package, or in the tree that the program runs from.
_HERE: Final = Path(__file__).resolve()
_PLACES: Final = (_HERE.parent / "manifests_of_examples", _HERE.parents[3] / "examples")


def examples() -> Sequence[Path]:
    """The folder of examples. Raises `InvalidDocument`: this installation has none."""
    for place in _PLACES:
        if place.is_dir():
            return (place,)
    raise InvalidDocument("this installation has no examples; use --no-examples or -f FILE")
