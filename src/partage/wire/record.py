"""Everything that is written on a pod for its allocation: every family's keys, and our record and permit.

Partage's own record is the annotation `partage.io/allocation`. It contains every grant completely, so that the books
can be rebuilt from it alone. A protocol's own annotation cannot do that (Koordinator's names no container, qGPU's no
amounts). Compact JSON:

    {"v":1,"uid":"…","node":"…","containers":[{"name":"main","phase":"main","devices":[
      {"type":"gpu","minor":0,"uuid":"…","milli":500,"bytes":8589934592,"mode":"share",
       "protocol":"hami", … }]}]}

A device leaves out default values. The version rises when a reader of the old one would
misread the new one. Such a reader refuses the record and does not guess.

Source: docs/decisions/0002 and 0003.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec.structs import asdict, astuple

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.errors import UNREADABLE
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.request import Phase, PodRequest, Scope
from partage.vendors import names
from partage.vendors.base import Family, PlacedPod, Rendering
from partage.vendors.settings import Settings
from partage.wire import permit, shapes
from partage.wire.documents import explain
from partage.wire.pod_phase import finished
from partage.wire.routing import HAMI, KOORDINATOR, UNDECIDED

VERSION: Final = 1
SOURCE: Final = "partage"

_Natural = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_MOST_SHOWN: Final = 80
_LONGEST_LABEL: Final = 63
"""Characters of a label's value. The API server takes longer ones from a Binding, and then refuses each later write of
the pod, also the kubelet's of its end."""


class _Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    profile: str
    start: _Natural
    size: _Natural


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    minor: int
    bus: str = msgspec.field(name="busID")


class _Device(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"core_milli": "milli", "memory_bytes": "bytes", "function": "vf"},
):
    """A `Grant` without its container; the fields have its names."""

    type: DeviceType
    minor: _Natural
    uuid: str
    core_milli: _Natural
    memory_bytes: _Natural
    mode: GrantMode
    protocol: str
    mig: _Slice | None = None
    function: _Function | None = None
    extras: dict[str, _Natural] = {}
    exclusive: bool = False
    sharers: _Natural | None = None
    template: str = ""
    fence: Scope | None = None
    slots: _Natural = 1


class _Container(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    phase: Phase
    devices: list[_Device]


class _Version(msgspec.Struct, frozen=True):
    v: int


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    uid: str
    node: str
    containers: list[_Container]


_READER: Final = msgspec.json.Decoder(_Document)


def render(placed: PlacedPod, settings: Settings, families: Sequence[Family]) -> Rendering:
    """The families' renderings as one, with Partage's record; empty for a pod without devices.

    A lone `nvidia.com/gpu` gets the records of the protocol that its node registers with.
    """
    placed = resolve(placed)
    if not placed.allocation.grants:
        return Rendering()
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    env: dict[str, dict[str, str]] = {}
    on_node: dict[str, str] = {}
    grants = placed.allocation.grants
    # Those of the grants' protocols, and of the devices' makers.
    concerned = {name for grant in grants for name in (grant.protocol, placed.card(grant)[1])}
    for family in families:
        if family.name not in concerned:
            continue
        said = family.render(placed, settings)
        annotations |= said.annotations
        labels |= said.labels
        on_node |= said.node_annotations
        for container, variables in said.env.items():
            env.setdefault(container, {}).update(variables)
    annotations[names.ALLOCATION] = encode(placed.allocation)
    if placed.allocation.permit is not None:
        annotations[names.PERMIT] = permit.encode(placed.allocation.permit, placed.allocation.uid)
    return Rendering(dict(sorted(annotations.items())), _short(labels), env, on_node)


def labels_of(
    placed: PlacedPod, settings: Settings, families: Sequence[Family]
) -> Mapping[str, str]:
    """The labels of `render`, at a small part of its cost."""
    if not placed.allocation.grants:
        return {}
    if any(grant.protocol == UNDECIDED for grant in placed.allocation.grants):
        # Labels follow from the grants, and a record names their protocols.
        placed = resolve(placed)
    found: dict[str, str] = {}
    for family in families:
        found |= family.labels(placed, settings)
    return _short(found)


def _short(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that an API server takes; annotations have the values of the others."""
    return {key: text for key, text in sorted(labels.items()) if len(text) <= _LONGEST_LABEL}


def resolve(placed: PlacedPod) -> PlacedPod:
    """The pod with undecided requests and grants given to their node's protocol."""
    told = {grant.protocol for grant in placed.allocation.grants}
    if UNDECIDED not in told.union(group.protocol for group in placed.request.groups):
        return placed
    protocol = _owner(placed.allocation, placed.node)
    return replace(
        placed,
        request=_given(placed.request, protocol),
        allocation=resolved(placed.allocation, placed.node),
    )


@lru_cache(maxsize=1024)
def _given(request: PodRequest, protocol: str) -> PodRequest:
    """The request with its undecided groups given to a protocol; made once for equal pods."""
    groups = tuple(
        replace(group, protocol=protocol) if group.protocol == UNDECIDED else group
        for group in request.groups
    )
    return replace(request, groups=groups)


def _owner(allocation: Allocation, node: Node) -> str:
    """The protocol for undecided requests: HAMi also if they got an instance, which Koordinator's record lacks."""
    cut = any(grant.mig and grant.protocol == UNDECIDED for grant in allocation.grants)
    return HAMI if cut or node.registrar == HAMI else KOORDINATOR


def resolved(allocation: Allocation, node: Node) -> Allocation:
    """The allocation with undecided grants given to the node's protocol."""
    protocol = _owner(allocation, node)
    return msgspec.structs.replace(
        allocation,
        grants=tuple(
            msgspec.structs.replace(grant, protocol=protocol)
            if grant.protocol == UNDECIDED
            else grant
            for grant in allocation.grants
        ),
    )


def encode(allocation: Allocation) -> str:
    """The record's text. Grants are grouped by container, in the order of their first grant."""
    containers: dict[tuple[str, Phase], list[_Device]] = {}
    for grant in allocation.grants:
        containers.setdefault((grant.container, grant.phase), []).append(_device(grant))
    document = _Document(
        VERSION,
        allocation.uid,
        allocation.node,
        [_Container(name, phase, devices) for (name, phase), devices in containers.items()],
    )
    return msgspec.json.encode(document).decode()


def decode(text: str, uid: str, node: str) -> Record:
    """The contents of a record; never raises.

    The record's problem explains a text that cannot be trusted: it is malformed, of a newer version, or
    written for another pod or node (a copy of a manifest also copies the annotation).
    """
    try:
        document = _READER.decode(text)
    except UNREADABLE as error:
        return _refused(_of_version(text) or f"cannot be read: {explain(error)}")
    if document.v != VERSION:
        return _refused(_of_version(text))
    for what, found, expected in (("pod", document.uid, uid), ("node", document.node, node)):
        if found != expected:
            return _refused(f"was written for {what} {found[:_MOST_SHOWN]!r}, not {expected!r}")
    grants = tuple(
        _grant(container, device)
        for container in document.containers
        for device in container.devices
    )
    return Record(grants=grants, source=SOURCE)


def _of_version(text: str) -> str:
    """The error in a record's version; empty when there is none, or it cannot be read."""
    try:
        version = msgspec.json.decode(text, type=_Version).v
    except UNREADABLE:
        return ""
    if version > VERSION:
        return f"is of version {version}, this program reads up to {VERSION}"
    return f"is of version {version}, which does not exist" if version < VERSION else ""


def on_node(pods: Iterable[shapes.Pod], node: str) -> Iterator[tuple[str, shapes.Pod, Record]]:
    """Pods that are bound to a node and hold devices of it by a record, oldest first: UID, pod, record.

    A pod holds them until its containers have ended for good, however long its deletion takes.
    """
    for pod in sorted(pods, key=_age):
        metadata, spec = pod.metadata, pod.spec
        if metadata is None or not metadata.uid or spec is None or spec.node_name != node:
            continue
        text = (metadata.annotations or {}).get(names.ALLOCATION)
        if text and not finished(pod):
            yield metadata.uid, pod, decode(text, metadata.uid, node)


def _age(pod: shapes.Pod) -> tuple[str, str]:
    metadata = pod.metadata or shapes.Metadata()
    return metadata.creation_timestamp or "", metadata.uid or ""


def readdressed(text: str, uid: str) -> str:
    """The record with the uid of the pod that represents the first one. Raises `msgspec.MsgspecError`: no record."""
    document = msgspec.json.decode(text, type=_Document)
    return msgspec.json.encode(msgspec.structs.replace(document, uid=uid)).decode()


def _refused(why: str) -> Record:
    return Record(source=SOURCE, problem=f"annotation {names.ALLOCATION} {why}")


def _device(grant: Grant) -> _Device:
    given = {name: getattr(grant, name) for name in _Device.__struct_fields__}
    mig, function = grant.mig, grant.function
    given["mig"] = mig and _Slice(mig.profile, mig.start, mig.size)
    given["function"] = function and _Function(*function)
    given["extras"] = dict(grant.extras)
    return _Device(**given)


def _grant(container: _Container, device: _Device) -> Grant:
    given = asdict(device)
    given["mig"] = device.mig and MigSlice(*astuple(device.mig))
    given["function"] = device.function and astuple(device.function)
    given["extras"] = tuple(device.extras.items())
    return Grant(container=container.name, phase=container.phase, **given)
