"""A cluster's decision inputs as one file: a header, then one object a line, in the node order.

It is a file of manifests: every reader of manifests reads it and skips the header. Objects contain only the
fields that decisions read, so the file has no environment, no command line, no image and
no Secret. It keeps the protocols' annotations, and the keys of ConfigMaps that contain settings.
Ended pods are left out, because they hold nothing.

    {"apiVersion": "partage.io/v1", "kind": "Snapshot", "spec": {"at": …, "seed": 0, …}}
    {"apiVersion": "v1", "kind": "Node", …}
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from partage.model.errors import UNREADABLE, InvalidDocument
from partage.vendors import names
from partage.wire import shapes
from partage.wire.claims import held_devices
from partage.wire.config import keys_read
from partage.wire.device_requests import CLAIM_KINDS
from partage.wire.documents import SNAPSHOT, Document
from partage.wire.heeded import ours

KIND, _FORMAT = SNAPSHOT
_VERSIONS: Final = {
    "Device": "scheduling.koordinator.sh/v1alpha1",
    "PriorityClass": "scheduling.k8s.io/v1",
} | dict.fromkeys(CLAIM_KINDS, "resource.k8s.io/v1")
_OVER: Final = frozenset({"Succeeded", "Failed"})


class _Head(msgspec.Struct, frozen=True):
    kind: str = ""
    api: str = msgspec.field(default="", name="apiVersion")
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of the header.

    Attributes:
        at: the time of the listing, RFC 3339.
        seed: of the order in which equal nodes are preferred.
        policy: in force if neither a pod nor a ConfigMap names one.
        masked: whether names were replaced.
    """

    at: str = ""
    partage: str = ""
    seed: int = 0
    policy: str = "partage"
    masked: bool = False
    notes: tuple[str, ...] = ()


def snapshot_header(source: str, data: bytes) -> Snapshot | None:
    """A file's header; None if it is no snapshot. Raises `InvalidDocument`: another version, or a broken header."""
    line = data.partition(b"\n")[0]
    try:
        head = msgspec.json.decode(line, type=_Head)
        if head.kind != KIND:
            return None
        if head.api == _FORMAT:
            return msgspec.convert(head.spec, Snapshot)
    except UNREADABLE as error:
        if b'"Snapshot"' not in line:
            return None
        raise InvalidDocument(f"{source}: the header of the snapshot: {error}") from error
    raise InvalidDocument(
        f"{source}: snapshot of format {head.api}; this version reads {_FORMAT}: use the "
        "version of partage that wrote it"
    )


def permuted(nodes: Iterable[Document], seed: int) -> list[Document]:
    """Nodes in the explicit order: a seeded permutation over creation time and uid."""
    ordered = sorted(
        nodes, key=lambda d: (d.metadata.creation_timestamp or "", d.metadata.uid or d.name)
    )
    random.Random(seed).shuffle(ordered)  # noqa: S311 # a reproducible order, not a secret
    return ordered


def snapshot_lines(head: Snapshot, objects: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """The file, line by line."""
    first = {"apiVersion": _FORMAT, "kind": KIND, "metadata": {"name": "snapshot"}}
    yield msgspec.json.encode(first | {"spec": asdict(head)}) + b"\n"
    for one in objects:
        yield msgspec.json.encode(one) + b"\n"


def plain(document: Document, *, masked: bool = False) -> dict[str, Any] | None:
    """The object with only the fields that decisions read; None for one that decides nothing.

    `masked`: whether its names will be replaced. Pending claims are left out then, because selectors would break.
    """
    shape = document.shape
    if isinstance(shape, shapes.Pod):
        if shape.status and shape.status.phase in _OVER:
            return None
        shape = _without_claims(shape) if masked else shape
    elif isinstance(shape, shapes.ResourceSlice):
        if masked or not shape.spec or shape.spec.driver != names.DRA_DRIVER:
            return None
    elif isinstance(shape, shapes.ResourceClaim):
        held = held_devices(document)
        if not held and masked:
            return None
        shape = shapes.ResourceClaim(
            metadata=shape.metadata,
            spec=None if masked else _asking(shape.spec),
            status={"allocation": {"devices": {"results": held}}} if held else None,
        )
    read = keys_read(document)
    if (isinstance(shape, shapes.ConfigMap) and not read) or (
        isinstance(shape, shapes.DeviceClass) and masked
    ):
        return None
    found: dict[str, Any] = _pruned(msgspec.to_builtins(shape))
    found = {"apiVersion": _VERSIONS.get(document.kind, "v1"), "kind": document.kind} | found
    if isinstance(shape, shapes.Pod):
        _without_endings(found.get("status", {}))
    metadata = found.get("metadata", {})
    metadata.pop("dropped", None)
    kept = {key: text for key, text in metadata.pop("annotations", {}).items() if ours(key)}
    if kept:
        metadata["annotations"] = kept
    if isinstance(shape, shapes.ConfigMap):
        found["data"] = {key: text for key, text in found["data"].items() if key in read}
    return found


def _asking(spec: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A claim's request, without the parts that only drivers read."""
    devices = (spec or {}).get("devices")
    if not isinstance(devices, dict):
        return None
    return {"devices": {key: part for key, part in devices.items() if key != "config"}}


def _without_claims(pod: shapes.Pod) -> shapes.Pod:
    replace = msgspec.structs.replace
    spec, status = pod.spec, pod.status
    return replace(
        pod,
        spec=replace(spec, resource_claims=None) if spec else None,
        status=replace(status, resource_claim_statuses=None) if status else None,
    )


def _without_endings(status: dict[str, Any]) -> None:
    """Remove the end reports of a pod and its containers, which decide nothing and may contain anything."""
    listed = (status.get(key, ()) for key in ("containerStatuses", "initContainerStatuses"))
    ends = (one.get("state", {}).get("terminated", {}) for part in listed for one in part)
    for said in (status, *ends):
        said.pop("reason", None)
        said.pop("message", None)


def _pruned(value: Any) -> Any:
    """The value without nulls, because null means the same as absent."""
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return value
