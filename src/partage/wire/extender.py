"""The documents of kube-scheduler's extender, v1.

The structures have no JSON tags in Go: keys are capitalised (`NodeNames`), and Go reads them in
any case. Both the capitalised and the documented lower-case forms are read here; the capitalised
are written. Node names are kept as they came until they are needed: with five thousand of
them, that is most of the time of a call.

Source: docs/sources/kubernetes.md 3.1 (read from 1.36, tried on 1.20).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from partage.model.errors import InvalidDocument
from partage.wire import shapes
from partage.wire.documents import Document, explain

_T = TypeVar("_T")

_SOURCE = "extender request"
_ABSENT: Final = msgspec.Raw()


class _RawArgs(msgspec.Struct, frozen=True, gc=False):
    pod: msgspec.Raw = msgspec.field(default=_ABSENT, name="Pod")
    nodes: msgspec.Raw = msgspec.field(default=_ABSENT, name="Nodes")
    names: msgspec.Raw = msgspec.field(default=_ABSENT, name="NodeNames")
    pod_lower: msgspec.Raw = msgspec.field(default=_ABSENT, name="pod")
    nodes_lower: msgspec.Raw = msgspec.field(default=_ABSENT, name="nodes")
    names_lower: msgspec.Raw = msgspec.field(default=_ABSENT, name="nodenames")
    names_camel: msgspec.Raw = msgspec.field(default=_ABSENT, name="nodeNames")


class _Items(msgspec.Struct, frozen=True, gc=False):
    items: list[msgspec.Raw] | None = None


class _NodeHead(msgspec.Struct, frozen=True, gc=False):
    metadata: shapes.Metadata | None = None


class _RawBind(msgspec.Struct, frozen=True, gc=False):
    name: str | None = msgspec.field(default=None, name="PodName")
    namespace: str | None = msgspec.field(default=None, name="PodNamespace")
    uid: str | None = msgspec.field(default=None, name="PodUID")
    node: str | None = msgspec.field(default=None, name="Node")
    name_camel: str | None = msgspec.field(default=None, name="podName")
    namespace_camel: str | None = msgspec.field(default=None, name="podNamespace")
    uid_camel: str | None = msgspec.field(default=None, name="podUID")
    node_lower: str | None = msgspec.field(default=None, name="node")


class _VictimPod(msgspec.Struct, frozen=True, gc=False):
    metadata: shapes.Metadata | None = None
    uid: str | None = msgspec.field(default=None, name="UID")
    uid_lower: str | None = msgspec.field(default=None, name="uid")


class _RawVictims(msgspec.Struct, frozen=True, gc=False):
    pods: list[_VictimPod] | None = msgspec.field(default=None, name="Pods")
    violations: int | None = msgspec.field(default=None, name="NumPDBViolations")
    pods_lower: list[_VictimPod] | None = msgspec.field(default=None, name="pods")
    violations_camel: int | None = msgspec.field(default=None, name="numPDBViolations")


_VictimMap = dict[str, _RawVictims | None] | None


class _RawPreempt(msgspec.Struct, frozen=True, gc=False):
    pod: msgspec.Raw = msgspec.field(default=_ABSENT, name="Pod")
    full: _VictimMap = msgspec.field(default=None, name="NodeNameToVictims")
    meta: _VictimMap = msgspec.field(default=None, name="NodeNameToMetaVictims")
    pod_lower: msgspec.Raw = msgspec.field(default=_ABSENT, name="pod")
    full_camel: _VictimMap = msgspec.field(default=None, name="nodeNameToVictims")
    meta_camel: _VictimMap = msgspec.field(default=None, name="nodeNameToMetaVictims")


class _Score(msgspec.Struct, gc=False):
    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """The arguments of filter and prioritize.

    Attributes:
        raw_names: the JSON array of node names as it came; empty when full nodes were sent.
        nodes: full nodes by name as they came, when the scheduler does not cache them.
    """

    pod: Document
    raw_names: bytes = b""
    nodes: Mapping[str, msgspec.Raw] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the nodes in question.

        Raises:
            InvalidDocument: the array holds something else.
        """
        return _decode(self.raw_names, list[str], "NodeNames") if self.raw_names else [*self.nodes]


@dataclass(frozen=True, slots=True)
class BindArgs:
    """The arguments of bind."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to be evicted from one node, by UID, and how many disruption budgets that breaks."""

    uids: tuple[str, ...]
    violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """The arguments of preempt: the pod, and victims by node."""

    pod: Document
    victims: Mapping[str, Victims]


def decode_filter(body: bytes) -> FilterArgs:
    """The arguments of filter or prioritize.

    Raises:
        InvalidDocument: the body is not what kube-scheduler sends; the message names the field.
    """
    raw = _decode(body, _RawArgs, "body")
    pod = _pod(raw.pod, raw.pod_lower)
    names = _given(raw.names, raw.names_lower, raw.names_camel)
    if names:
        return FilterArgs(pod, raw_names=names)
    nodes = _given(raw.nodes, raw.nodes_lower)
    if not nodes:
        return FilterArgs(pod)
    items = _decode(nodes, _Items, "Nodes").items or []
    return FilterArgs(pod, nodes={_node_name(item): item for item in items})


def decode_bind(body: bytes) -> BindArgs:
    """The arguments of bind.

    Raises:
        InvalidDocument: a field is missing or of the wrong type.
    """
    raw = _decode(body, _RawBind, "body")
    fields = {
        "PodName": raw.name or raw.name_camel,
        "PodUID": raw.uid or raw.uid_camel,
        "Node": raw.node or raw.node_lower,
    }
    for name, value in fields.items():
        if not value:
            raise InvalidDocument(f"{_SOURCE}: field {name}: missing")
    namespace = raw.namespace or raw.namespace_camel or "default"
    return BindArgs(
        namespace, fields["PodName"] or "", fields["PodUID"] or "", fields["Node"] or ""
    )


def decode_preempt(body: bytes) -> PreemptArgs:
    """The arguments of preempt, with full or meta victims.

    Raises:
        InvalidDocument: the body is not what kube-scheduler sends.
    """
    raw = _decode(body, _RawPreempt, "body")
    given = raw.meta or raw.meta_camel or raw.full or raw.full_camel or {}
    return PreemptArgs(
        _pod(raw.pod, raw.pod_lower),
        {node: _victims(victims) for node, victims in given.items() if victims is not None},
    )


def _victims(raw: _RawVictims) -> Victims:
    uids = []
    for pod in raw.pods or raw.pods_lower or ():
        uid = pod.uid or pod.uid_lower or (pod.metadata.uid if pod.metadata else None)
        if uid:
            uids.append(uid)
    return Victims(tuple(uids), raw.violations or raw.violations_camel or 0)


def filter_reply(
    args: FilterArgs,
    names: Sequence[str],
    failed: Mapping[str, str],
    unresolvable: Mapping[str, str],
) -> bytes:
    """The answer of filter: the nodes that fit, in the form in which they were asked about.

    Args:
        unresolvable: those where evicting would not help.
    """
    nodes: object = None
    if args.nodes:
        nodes = {"metadata": {}, "items": [args.nodes[name] for name in names]}
    return msgspec.json.encode(
        {
            "Nodes": nodes,
            "NodeNames": None if args.nodes else list(names),
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": unresolvable,
            "Error": "",
        }
    )


def passing_reply(args: FilterArgs) -> bytes:
    """The answer of filter that lets a pod pass everywhere; names are given back unread.

    Raises:
        InvalidDocument: the names are no array.
    """
    if args.nodes or not args.raw_names:
        return filter_reply(args, args.names, {}, {})
    if args.raw_names[:1] != b"[":
        raise InvalidDocument(f"{_SOURCE}: NodeNames: expected an array")
    return b'{"Nodes":null,"NodeNames":%b,%b' % (args.raw_names, _NO_FAILURES)


_NO_FAILURES: Final = b'"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'


def error_reply(message: str) -> bytes:
    """The answer of filter when the attempt itself failed; kube-scheduler will try again."""
    return msgspec.json.encode({"Nodes": None, "NodeNames": None, "Error": message})


def prioritize_reply(scores: Iterable[tuple[str, int]]) -> bytes:
    """The answer of prioritize. Scores are integers: a float is dropped without a word."""
    return msgspec.json.encode([_Score(host, score) for host, score in scores])


def bind_reply(error: str = "") -> bytes:
    """The answer of bind."""
    return msgspec.json.encode({"Error": error})


def preempt_reply(victims: Mapping[str, Victims]) -> bytes:
    """The answer of preempt: nodes that are kept, always with meta victims."""
    return msgspec.json.encode(
        {
            "NodeNameToMetaVictims": {
                node: {
                    "Pods": [{"UID": uid} for uid in kept.uids],
                    "NumPDBViolations": kept.violations,
                }
                for node, kept in victims.items()
            }
        }
    )


def _given(*fields: msgspec.Raw) -> bytes:
    """The first of a field's spellings that is there and not null; empty when none is."""
    for field_ in fields:
        data = bytes(field_)
        if data and data != b"null":
            return data
    return b""


def _pod(*fields: msgspec.Raw) -> Document:
    raw = _given(*fields)
    if not raw:
        raise InvalidDocument(f"{_SOURCE}: field Pod: missing")
    return decode_pod(raw)


def decode_pod(raw: bytes | msgspec.Raw) -> Document:
    """A pod as kube-scheduler has it.

    Raises:
        InvalidDocument: it is none; the message names the field.
    """
    document = Document("Pod", _SOURCE, 1, _decode(raw, shapes.Pod, "Pod"))
    if not document.name:
        raise InvalidDocument(f"{_SOURCE}: field Pod.metadata.name: missing")
    return document


def _node_name(item: msgspec.Raw) -> str:
    metadata = _decode(bytes(item), _NodeHead, "Nodes.items").metadata
    if metadata is None or not metadata.name:
        raise InvalidDocument(f"{_SOURCE}: field Nodes.items: a node has no name")
    return metadata.name


def _decode(data: bytes, shape: type[_T], field_: str) -> _T:
    key: Any = shape
    try:
        decoded: _T = _decoder(key).decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise InvalidDocument(f"{_SOURCE}: {field_}: {explain(error)}") from error
    return decoded


@cache
def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)
