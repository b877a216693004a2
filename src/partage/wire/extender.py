"""The documents of kube-scheduler's extender, v1.

The structures have no JSON tags in Go: keys are capitalised (`NodeNames`), and Go reads them in
any case. This module reads any case too, and writes capitalised keys. Node names stay undecoded
until they are needed, because five thousand of them take most of the time of a call. A refusal has
two maps of nodes: those where evictions may help, and the others.

Source: docs/sources/kubernetes.md 3.1 (read from 1.36, tried on 1.20).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from partage.model.errors import InvalidDocument
from partage.model.reason import ReasonCode, Refusal
from partage.wire import shapes
from partage.wire.documents import Document, typed

_SOURCE = "extender request"
_Fields = Mapping[str, msgspec.Raw]
"""Fields that are not null, by their names in lower case."""
_T = TypeVar("_T")
_NONE: Final[Mapping[str, str]] = {}
_MOST_TOLD: Final = 2**20
_LEAST_TOLD: Final = 128
"""Characters of one reason repeated for all nodes of an answer, and of what each node gets of it at least."""
_UNRESOLVABLE: Final = frozenset(
    {
        ReasonCode.INVALID_REQUEST,
        ReasonCode.NODE_AFFINITY,
        ReasonCode.TAINT,
        ReasonCode.DRIVER_UNSUPPORTED,
        ReasonCode.ISOLATION_PROVIDER,
        ReasonCode.TEMPLATE_MISMATCH,
        ReasonCode.TYPE_MISMATCH,
        ReasonCode.NODE_POLICY,
        ReasonCode.AGENT_SILENT,
        ReasonCode.DEVICE_FILES_UNKNOWN,
    }
)
"""Codes of reasons of a node that no eviction can change."""


class _Items(msgspec.Struct, frozen=True, gc=False):
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """The arguments of filter and prioritize.

    `raw_names`: the undecoded JSON array of node names; empty when full nodes were sent. `nodes`: undecoded full nodes
    by name, when the scheduler does not cache them.
    """

    pod: Document
    raw_names: bytes = b""
    nodes: Mapping[str, msgspec.Raw] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the nodes. Raises `InvalidDocument`: the array contains something else."""
        return _typed(self.raw_names, list[str], "NodeNames") if self.raw_names else [*self.nodes]


@dataclass(frozen=True, slots=True)
class BindArgs:
    """The arguments of bind."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to evict from one node, by UID, and the number of disruption budgets that this breaks."""

    uids: tuple[str, ...]
    violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """The arguments of preempt: the pod, and victims by node."""

    pod: Document
    victims: Mapping[str, Victims]


def decode_filter(body: bytes) -> FilterArgs:
    """The arguments of filter or prioritize. Raises `InvalidDocument`: the body is not what kube-scheduler sends."""
    fields = _fields(body, "body")
    pod = _pod(fields)
    if "nodenames" in fields:
        return FilterArgs(pod, raw_names=bytes(fields["nodenames"]))
    if "nodes" not in fields:
        return FilterArgs(pod)
    items = _typed(fields["nodes"], _Items, "Nodes").items or []
    return FilterArgs(pod, nodes={_node_name(item): item for item in items})


def decode_bind(body: bytes) -> BindArgs:
    """The arguments of bind. Raises `InvalidDocument`: a field is missing or of the wrong type."""
    fields = _fields(body, "body")
    given = {
        name: _typed(fields[name.lower()], str, name) if name.lower() in fields else ""
        for name in ("PodName", "PodNamespace", "PodUID", "Node")
    }
    for name, value in given.items():
        if not value and name != "PodNamespace":
            raise InvalidDocument(f"{_SOURCE}: field {name}: missing")
    namespace = given["PodNamespace"] or "default"
    return BindArgs(namespace, given["PodName"], given["PodUID"], given["Node"])


def decode_preempt(body: bytes) -> PreemptArgs:
    """The arguments of preempt, with full or meta victims. Raises `InvalidDocument`."""
    fields = _fields(body, "body")
    victims: dict[str, Victims] = {}
    for name in ("NodeNameToMetaVictims", "NodeNameToVictims"):
        if name.lower() in fields and not victims:
            victims = {
                node: _victims(_fields(raw, f"{name}.{node}"))
                for node, raw in _fields(fields[name.lower()], name, exactly=True).items()
            }
    return PreemptArgs(_pod(fields), victims)


def _victims(fields: _Fields) -> Victims:
    pods = _typed(fields["pods"], list[msgspec.Raw], "Pods") if "pods" in fields else []
    uids = []
    for one in pods:
        pod = _fields(one, "Pods")
        if "uid" in pod:
            uids.append(_typed(pod["uid"], str, "UID"))
        elif "metadata" in pod:
            uids.append(_typed(pod["metadata"], shapes.Metadata, "metadata").uid or "")
    violations = fields.get("numpdbviolations")
    return Victims(
        tuple(filter(None, uids)),
        0 if violations is None else _typed(violations, int, "NumPDBViolations"),
    )


def refused_reply(args: FilterArgs, asked: Sequence[str], refusal: Refusal) -> bytes:
    """The answer of filter that accepts no node, with each node's reason as far as kube-scheduler needs it."""
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    broken = refusal.code is ReasonCode.INVALID_REQUEST
    late = refusal.code is ReasonCode.SEARCH_DEFERRED
    # A node without a reason of its own is unresolvable only if the pod itself is.
    rest = f"{refusal.code}: {refusal.message}" if broken else f"{refusal.code}"
    most = max(_LEAST_TOLD, _MOST_TOLD // max(1, len(asked)))
    rest = rest if len(rest) <= most else f"{rest[: most - 1]}…"
    for name in asked:
        reason = refusal.nodes.get(name)
        if reason is None:
            # No eviction would shorten a deferred search.
            (unresolvable if broken or late else failed)[name] = rest
        else:
            hopeless = reason.code in _UNRESOLVABLE
            (unresolvable if hopeless else failed)[name] = f"{reason.code}: {reason.message}"
    return filter_reply(args, [], failed, unresolvable)


def filter_reply(
    args: FilterArgs,
    names: Sequence[str],
    failed: Mapping[str, str] = _NONE,
    unresolvable: Mapping[str, str] = _NONE,
) -> bytes:
    """The answer of filter that accepts these nodes, in the question's form.

    The others are named with their reasons, as far as kube-scheduler needs them; eviction would not help on
    `unresolvable` ones.
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
    """The answer of filter that accepts every node, with names unread. Raises `InvalidDocument`: names are no array."""
    if args.nodes or not args.raw_names:
        return filter_reply(args, args.names)
    if args.raw_names[:1] != b"[":
        raise InvalidDocument(f"{_SOURCE}: NodeNames: expected an array")
    return b'{"Nodes":null,"NodeNames":%b,%b' % (args.raw_names, _NO_FAILURES)


_NO_FAILURES: Final = b'"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'


def error_reply(message: str) -> bytes:
    """The answer of filter after a failed attempt; kube-scheduler will try again."""
    return msgspec.json.encode({"Nodes": None, "NodeNames": None, "Error": message})


def prioritize_reply(scores: Iterable[tuple[str, int]]) -> bytes:
    """The answer of prioritize. Scores are integers, because kube-scheduler silently drops a float."""
    return msgspec.json.encode([{"Host": host, "Score": score} for host, score in scores])


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


def _typed(value: bytes | msgspec.Raw, shape: type[_T], field: str) -> _T:
    return typed(value, shape, f"{_SOURCE}: {field}")


def _fields(data: bytes | msgspec.Raw, what: str, *, exactly: bool = False) -> _Fields:
    """The fields of an object; Go reads their names in any case, but keys of a map exactly."""
    given = _typed(data, dict[str, msgspec.Raw], what)
    return {
        name if exactly else name.lower(): raw
        for name, raw in given.items()
        if bytes(raw) != b"null"
    }


def _pod(fields: _Fields) -> Document:
    if "pod" not in fields:
        raise InvalidDocument(f"{_SOURCE}: field Pod: missing")
    return decode_pod(fields["pod"])


def decode_pod(raw: bytes | msgspec.Raw) -> Document:
    """kube-scheduler's form of a pod. Raises `InvalidDocument`: it is none; the message names the field."""
    pod = _typed(raw, shapes.Pod, "Pod")
    if pod.metadata is None or not pod.metadata.name:
        raise InvalidDocument(f"{_SOURCE}: field Pod.metadata.name: missing")
    return Document("Pod", _SOURCE, 1, pod)


def decode_claim(raw: bytes | msgspec.Raw) -> Document:
    """kube-scheduler's form of a ResourceClaim. Raises `InvalidDocument`: it is none; the message names the field."""
    return Document(
        "ResourceClaim", _SOURCE, 1, _typed(raw, shapes.ResourceClaim, "ResourceClaim")
    )


def _node_name(item: msgspec.Raw) -> str:
    metadata = _typed(bytes(item), shapes.Shape, "Nodes.items").metadata
    if metadata is None or not metadata.name:
        raise InvalidDocument(f"{_SOURCE}: field Nodes.items: a node has no name")
    return metadata.name
