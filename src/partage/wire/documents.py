"""Reads files and streams as typed documents.

A source is YAML or JSON: one document or many, concatenated or one a line, a `List`, or a typed
list such as `PodList`. A text that begins as JSON is read as JSON, whatever the name of its file, because
that is many times faster. Decoding is pure; only `read_file` and `read_paths` touch the file system.

Kinds that Partage does not know, and kinds of another API group that share a name, are skipped
with a note. Everything else that cannot be decoded is an `InvalidDocument` that names file,
document and field.
"""

import difflib
import errno
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from partage.model.errors import UNREADABLE, InvalidDocument, InvalidValue
from partage.wire import shapes
from partage.wire.decode_errors import alternatives, misspelt, with_keys
from partage.wire.json_values import TooDeep, json_values, keys_given_twice, with_quoted_numbers
from partage.wire.yaml_values import MOST_NOTES, TEMPLATE, Repeated, YamlError, yaml_values

_T = TypeVar("_T")

LARGEST: Final = 2**29
"""Bytes of all files of one command argument; a snapshot of 5,000 nodes has a few percent of them."""
_PIECE: Final = 2**20
_SUFFIXES: Final = (".json", ".yaml", ".yml")
_DEEPEST_LIST: Final = 8
_SUFFIX: Final = 5  # characters that Kubernetes adds to a generateName
_YAML_FALLBACK: Final = 2**20  # bytes of broken JSON that are still tried as YAML flow style

KINDS: Final[dict[str, tuple[type[shapes.Shape], tuple[str, ...]]]] = {
    "Node": (shapes.Node, ("",)),
    "Device": (shapes.Device, ("scheduling.koordinator.sh",)),
    "Pod": (shapes.Pod, ("",)),
    "Deployment": (shapes.Workload, ("apps", "extensions")),
    "ReplicaSet": (shapes.Workload, ("apps", "extensions")),
    "StatefulSet": (shapes.Workload, ("apps",)),
    "Job": (shapes.Workload, ("batch",)),
    "Namespace": (shapes.Shape, ("",)),
    "ConfigMap": (shapes.ConfigMap, ("",)),
    "ResourceQuota": (shapes.ResourceQuota, ("",)),
    "PriorityClass": (shapes.PriorityClass, ("scheduling.k8s.io",)),
    "ResourceClaim": (shapes.ResourceClaim, ("resource.k8s.io",)),
    "ResourceClaimTemplate": (shapes.ResourceClaimTemplate, ("resource.k8s.io",)),
    "DeviceClass": (shapes.DeviceClass, ("resource.k8s.io",)),
    "ResourceSlice": (shapes.ResourceSlice, ("resource.k8s.io",)),
}
"""Kind to its shape and its known API groups, the present one first; a missing apiVersion counts as known."""

SNAPSHOT: Final = ("Snapshot", "partage.io/v1")
"""Kind and version of a snapshot's first object, which tells `partage replay` how it was made."""

_CLUSTER_SCOPED: Final = frozenset(
    {"Node", "Device", "Namespace", "PriorityClass", "DeviceClass", "ResourceSlice"}
)
_ALIKE: Final = 0.8
_KEY: Final = "key in "
_EXPECTATION: Final = re.compile(r"^(?P<rule>.*?)(?: - at (?P<at>.*))?$", re.DOTALL)


class _Head(msgspec.Struct, frozen=True, gc=False):
    kind: str | None = None
    version: str | None = msgspec.field(default=None, name="apiVersion")
    items: msgspec.Raw = msgspec.Raw()


class _PlainHead(msgspec.Struct, frozen=True, gc=False):
    kind: str | None = None
    version: str | None = msgspec.field(default=None, name="apiVersion")
    items: list[Any] | None = None


class TooDeepDocument(InvalidDocument):
    """Something in a JSON text is nested too deeply to be read, perhaps in a field that Partage does not read."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a known kind.

    `source`: its file, or the caller's name for the stream. `number`: its place in the source, from 1; each item of a
    list counts as one.
    """

    kind: str
    source: str
    number: int
    shape: shapes.Shape

    @property
    def metadata(self) -> shapes.Metadata:
        """Its metadata, empty when absent."""
        return self.shape.metadata or shapes.Metadata()

    @property
    def namespace(self) -> str:
        """Its namespace; `default` when a namespaced object names none, empty for kinds without namespaces."""
        if self.kind in _CLUSTER_SCOPED:
            return ""
        return self.metadata.namespace or "default"

    @property
    def name(self) -> str:
        """Its name; never empty in the results of `decode`."""
        return self.metadata.name or ""

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return texts(self.metadata.labels)

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations."""
        return texts(self.metadata.annotations)

    @property
    def dropped(self) -> int:
        """Bytes of annotations that were dropped because nothing reads them."""
        metadata = self.shape.metadata
        return metadata.dropped if isinstance(metadata, shapes.LightMetadata) else 0

    @property
    def identity(self) -> tuple[str, str, str]:
        """Kind, namespace and name, which are unique to an object."""
        return self.kind, self.namespace, self.name

    @property
    def label(self) -> str:
        """`Pod default/web`, for people."""
        return f"{self.kind} {self.namespace}/{self.name}".replace(" /", " ")

    @property
    def where(self) -> str:
        """File, place and identity, for messages."""
        return f"{self.source}: document {self.number} ({self.label})"

    def invalid(self, field: str, rule: str) -> InvalidDocument:
        """The error for one of its fields."""
        return InvalidDocument(f"{self.where}: field {field}: {rule}")


def invalid(document: Document, error: InvalidValue) -> InvalidDocument:
    """The error for a broken rule whose message begins with `field …: `."""
    field, _, rule = str(error).removeprefix("field ").partition(": ")
    return document.invalid(field, rule)


def outdated(document: Document, known: Document | None) -> bool:
    """Whether a newer state of the same object is already known."""
    if known is None or known.metadata.uid != document.metadata.uid:
        return False
    versions = [one.metadata.resource_version or "" for one in (document, known)]
    return precedes(*versions)


def precedes(one: str, other: str) -> bool:
    """Whether a resourceVersion is older than another; False if one of them is no decimal number, of any length."""
    if one == other or not (
        one.isascii() and one.isdecimal() and other.isascii() and other.isdecimal()
    ):
        return False
    one, other = one.lstrip("0"), other.lstrip("0")
    return (len(one), one) < (len(other), other)


def texts(given: Mapping[str, str | None] | None) -> dict[str, str]:
    """Labels, annotations or data; null becomes the empty text."""
    if given is None or None not in given.values():  # nearly always, and there may be 50,000
        return dict(given or {})  # type: ignore[arg-type]  # as was just looked
    return {key: value or "" for key, value in given.items()}


def size_of(annotations: Mapping[str, str]) -> int:
    """Bytes of keys and values, as the API server counts them."""
    parts = chain(annotations, annotations.values())
    return len("".join(parts).encode(errors="surrogatepass"))


@dataclass(frozen=True, slots=True)
class Batch:
    """The contents of a source.

    Attributes:
        documents: in the order written.
        notes: on skipped or doubtful parts.
        doubtful: those notes that strict decoding refuses: fields that a kind does not have, and
            repeated keys.
    """

    documents: tuple[Document, ...] = ()
    notes: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a value, and the kind of a typed list's items, if any."""

    source: str
    number: int
    kind: str | None = None
    depth: int = 0

    def __str__(self) -> str:
        return f"{self.source}: document {self.number}"


def decode(source: str, data: bytes, *, written: bool = False) -> Batch:
    """The documents in one source. Raises `InvalidDocument`: the text, or one document of it, cannot be decoded.

    `data`: UTF-8 text, with or without a byte order mark. `written`: whether a person may have typed it, so fields that
    a kind does not have are noted; not in objects with a UID, because an API server has read those.
    """
    documents: list[Document] = []
    notes: list[str] = []
    number = 1
    repeated: list[Repeated] = []
    doubtful: list[str] = []
    for value in values(source, data, repeated):
        for found, raw in _expand(value, _Place(source, number)):
            number += 1
            if isinstance(found, Document):
                documents.append(found)
                if written and not found.metadata.uid and len(doubtful) < MOST_NOTES:
                    doubtful += [f"{found.where}: {one}" for one in doubts(found.kind, raw)]
            elif found:
                notes.append(found)
    doubtful += [f"{source}: {note}" for note in repeated]
    doubtful = doubtful[:MOST_NOTES]
    return Batch(tuple(documents), (*notes, *doubtful), tuple(doubtful))


def nothing_in(source: str) -> str:
    """The note on a source without any document."""
    return f"{source}: no document there"


def unknown(kind: str, version: str | None, known: Collection[str]) -> str:
    """Why an object of another kind is left out, with the known kind that its author may have meant."""
    hint = _hint(kind, frozenset(known))
    return f"kind {kind} ({version or 'no apiVersion'}) is not known here{hint}"


_MAKERS: Final = frozenset({"DaemonSet", "CronJob", "ReplicationController"})
"""Kubernetes' kinds that make pods and are not known; their pods in a dump count."""


@lru_cache(maxsize=256)
def _hint(kind: str, known: frozenset[str]) -> str:
    if kind == "SimulatedNode":
        return "; partage up alone makes nodes of it"
    if kind in _MAKERS and kind not in known:
        return "; no pods are made of it, try a Deployment or a Job"
    alike = {one.lower(): one for one in sorted(known)}
    near = difflib.get_close_matches(kind.lower(), alike, n=1, cutoff=_ALIKE)
    return f"; did you mean {alike[near[0]]}?" if near and kind not in known else ""


def doubts(kind: str, value: Any) -> list[str]:
    """The parts of one object, JSON text or a plain value, that strict decoding refuses."""
    own = KINDS[kind][1][0] if kind in KINDS else ""
    told = misspelt(kind, own, plain(value), MOST_NOTES)
    if isinstance(value, msgspec.Raw):
        for path in keys_given_twice(bytes(value)):
            told.append(f"field {path} is given twice; the last holds")
    return told


def read_whole(file: BinaryIO, most: int = LARGEST) -> bytes:
    """All of an open file, also of an endless one. Raises `OSError`: larger than `most` bytes, or unreadable."""
    data = bytearray()
    while piece := file.read(_PIECE):
        data += piece
        if len(data) > most:
            raise OSError(errno.EFBIG, f"holds more than the {most >> 20} MiB that are read")
    return bytes(data)


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """All of a file. Raises `OSError`: it is larger than `most` bytes, or cannot be read."""
    with path.open("rb") as file:
        return read_whole(file, most)


def read_paths(paths: Sequence[Path]) -> list[tuple[str, bytes]]:
    """Name and bytes of each file; a folder means its YAML and JSON files.

    A folder's files, and those of its folders, are in the order of their paths; hidden ones are left out. Raises
    `InvalidDocument`: a file is missing or cannot be read, or a folder holds no manifest.
    """
    found: list[tuple[str, bytes]] = []
    left = LARGEST
    for path in paths:
        try:
            if path.is_dir():
                files = sorted(
                    entry
                    for entry in path.rglob("*")
                    if entry.suffix in _SUFFIXES
                    and entry.is_file()
                    and not any(part.startswith(".") for part in entry.relative_to(path).parts)
                )
                if not files:
                    raise InvalidDocument(
                        f"{path}: no *.yaml, *.yml or *.json file in this folder"
                    )
            else:
                files = [path]
            for file in files:
                found.append((str(file), read_file(file, left)))
                left -= len(found[-1][1])
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidDocument(
                f"{path}: cannot be read: {reason}; name a file or folder of manifests, or - for "
                "standard input"
            ) from error
    return found


def values(source: str, data: bytes, repeated: list[Repeated]) -> Sequence[Any]:
    """JSON documents as `Raw`, YAML documents as plain values. Raises `InvalidDocument`: neither JSON nor YAML.

    `repeated`: receives repeated keys of YAML.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data[:4096].lstrip()[:1] in (b"{", b"["):
        return _json_or_flow(source, data, repeated)
    try:
        return yaml_values(data, repeated)
    except YamlError as error:
        raise InvalidDocument(f"{source}: {error}") from error


def _json_or_flow(source: str, data: bytes, repeated: list[Repeated]) -> Sequence[Any]:
    """JSON, or a short text in YAML's flow style, because that may begin the same way."""
    try:
        return json_values(data)
    except TooDeep as error:
        raise TooDeepDocument(f"{source}: {error}") from error
    except ValueError as error:
        cause: ValueError = error
        if len(data) <= _YAML_FALLBACK and not source.endswith(".json"):
            try:
                return yaml_values(data, repeated)
            except YamlError as other:
                cause = other if TEMPLATE in str(other) else error
        raise InvalidDocument(f"{source}: {cause}") from cause


def _expand(value: Any, place: _Place) -> Iterator[tuple[Document | str, Any]]:
    """The documents of one value: itself or a list's items, each with its own value.

    A text in place of a document is a note, or empty for none.
    """
    if _is_null(value):
        yield "", None
        return
    head, items = _head(value, place)
    kind = head.kind or place.kind
    if kind is None:
        raise InvalidDocument(f"{place}: field kind: missing")
    if not kind.endswith("List"):
        yield _document(value, kind, head.version, place), value
        return
    if place.depth >= _DEEPEST_LIST:
        raise InvalidDocument(f"{place}: lists are nested deeper than {_DEEPEST_LIST}")
    inner = kind.removesuffix("List") or None
    for number, item in enumerate(items or (), place.number):
        yield from _expand(item, _Place(place.source, number, inner, place.depth + 1))


def _head(value: Any, place: _Place) -> tuple[_Head | _PlainHead, Sequence[Any] | None]:
    if not isinstance(value, msgspec.Raw):
        plain_head = typed(value, _PlainHead, str(place))
        return plain_head, plain_head.items
    head = typed(value, _Head, str(place))
    if _is_null(head.items):
        return head, None
    return head, typed(head.items, list[msgspec.Raw], f"{place}: field items")


def _document(value: Any, kind: str, version: str | None, place: _Place) -> Document | str:
    if (kind, version) == SNAPSHOT:
        return ""
    known = KINDS.get(kind)
    group = None if version is None else version.rpartition("/")[0]
    if known is None or (group is not None and group not in known[1]):
        return f"{place}: {unknown(kind, version, KINDS)}; skipped"
    where = f"{place} ({kind}{_name_of(value, kind)})"
    shape = _named(typed(value, known[0], where), place)
    document = Document(kind, place.source, place.number, shape)
    if not document.name:
        raise InvalidDocument(f"{where}: field metadata.name: missing")
    return document


def _named(shape: shapes.Shape, place: _Place) -> shapes.Shape:
    """The shape with a name made from `generateName`, like the API server's, but predictable."""
    metadata = shape.metadata
    if metadata is None or metadata.name or not metadata.generate_name:
        return shape
    digest = hashlib.sha256(f"{place.source}/{place.number}".encode()).hexdigest()
    named = msgspec.structs.replace(metadata, name=metadata.generate_name + digest[:_SUFFIX])
    return msgspec.structs.replace(shape, metadata=named)


def _name_of(value: Any, kind: str) -> str:
    """A space and the document's name, or nothing if the name cannot be read."""
    try:
        metadata = _decoded(value, shapes.Shape).metadata or shapes.Metadata()
    except UNREADABLE:
        return ""
    scope = "" if kind in _CLUSTER_SCOPED else f"{metadata.namespace or 'default'}/"
    return f" {scope}{metadata.name}" if metadata.name else ""


def typed(value: Any, shape: type[_T], where: str) -> _T:
    """JSON text, or its plain value, in its shape. Raises `InvalidDocument`, which begins with `where`."""
    try:
        return _decoded(value, shape)
    except UNREADABLE as error:
        instead = alternatives(str(error), shape)
        raise InvalidDocument(f"{where}: {explain(error, value)}{instead}") from error


def _decoded(value: Any, shape: type[_T]) -> _T:
    if not isinstance(value, msgspec.Raw | bytes):
        return msgspec.convert(value, shape)
    key: Any = shape
    try:
        decoded: _T = _decoder(key).decode(value)
    except msgspec.ValidationError as error:
        if "out of range" not in str(error):
            raise
        # A quantity of a thousand digits is the pod's fault, and no reason to end the run.
        try:
            decoded = _decoder(key).decode(with_quoted_numbers(bytes(value)))
        except msgspec.ValidationError:  # the number is no quantity, so the first error holds
            raise error from None
    return decoded


@cache
def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def _is_null(value: Any) -> bool:
    return value is None or (
        isinstance(value, msgspec.Raw) and bytes(memoryview(value)[:5]) in (b"", b"null")
    )


def explain(error: Exception, value: Any = None) -> str:
    """A decoder's error as field and rule; with keys of maps if the value is given."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    message = str(error)
    if "[...]" in message and value is not None:
        with suppress(*UNREADABLE):  # the rest may be no text at all, so the first error holds
            message = with_keys(message, plain(value))
    match = _EXPECTATION.match(message.replace("`", ""))
    rule, at = (match["rule"], match["at"]) if match else (message, None)
    if not rule[:2].isupper():  # not that of "JSON is malformed"
        rule = rule[:1].lower() + rule[1:]
    if at is not None and at.startswith(_KEY):
        at, rule = at.removeprefix(_KEY), f"a key: {rule}"
    field = (at or "").removeprefix("$").removeprefix(".")
    return f"field {field}: {rule}" if field else rule


def plain(value: Any) -> Any:
    """A value as plain values; numbers in JSON text that a decoder may not represent become texts."""
    if not isinstance(value, msgspec.Raw | bytes):
        return value
    return msgspec.json.decode(with_quoted_numbers(bytes(value)))
