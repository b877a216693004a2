"""What kube-scheduler itself checks of a pod and its nodes: taints, affinity, ordinary resources.

The rules are those of `placement.node`, and pods and nodes are read by `wire`; here is only the
count of what is taken. Devices are none of its business: those are the extender's.

A pod is not held against every node: what is free lies in columns (`room_columns`), and what a rule
says of a node is kept for pods with the same rules. `survey_plainly` is the twin that asks node by
node; both agree, or a test fails.

Not checked, unlike a genuine kube-scheduler: affinity between pods, spreading, volumes, ports.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from partage.embedded.manifests import decoded
from partage.embedded.room_columns import MOST, RoomColumns
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.reason import NodeReason, ReasonCode
from partage.model.request import PodRequest
from partage.placement.node import objection, shortage
from partage.wire.context import Context
from partage.wire.nodes import translate_node
from partage.wire.pods import translate_pod

_NO_DEVICES: Final = PodRequest()
_SCALE: Final = 10


@dataclass(frozen=True, slots=True)
class Survey:
    """Which nodes have room.

    Attributes:
        objections: what speaks against others, in kube-scheduler's words, and of how many nodes.
        short: the first ordinary resource that is short on the rest, and on how many nodes.
    """

    fitting: list[str]
    objections: Mapping[str, int]
    short: Mapping[str, int]

    def summary(self) -> str:
        """One line in kube-scheduler's words, with numbers by reason."""
        counts = Counter(self.objections)
        counts.update({f"Insufficient {resource}": n for resource, n in self.short.items()})
        total = len(self.fitting) + counts.total()
        listed = _listed(counts) or "none has what the pod asks for"
        return f"0/{total} nodes are available: {listed}."

    def shortages(self) -> str:
        """Where ordinary resources are short, with numbers; empty where they are not."""
        return _listed({f"insufficient {resource}": n for resource, n in self.short.items()})


@dataclass(slots=True)
class _Room:
    """One node and what is left of it."""

    node: Node
    free: dict[str, int] = field(default_factory=dict)


class Rooms:
    """All nodes, and who is on them."""

    def __init__(self) -> None:
        self._rooms: dict[str, _Room] = {}
        self._columns = RoomColumns()
        self._placed: dict[str, str] = {}
        self._on: dict[str, dict[str, Mapping[str, int]]] = {}

    # --- facts -------------------------------------------------------------------------------

    def node_changed(self, value: Mapping[str, Any], context: Context) -> bool:
        """A node is there or has changed; whether that matters to a pending pod."""
        name = str(value["metadata"]["name"])
        try:
            node = translate_node(decoded("Node", value), None, context).node
        except InvalidDocument:
            self.node_gone(name)  # what cannot be read takes no pod
            return False
        return self.node_seen(replace(node, devices=(), verdicts=(), properties={}, links={}))

    def node_seen(self, node: Node) -> bool:
        """The same of a node that was read; its devices and what protocols say of it are left out."""
        known = self._rooms.get(node.name)
        if known is not None and known.node == node:
            return False
        free = dict(node.allocatable)
        for host in self._on.get(node.name, {}).values():
            _take(free, host)
        self._rooms[node.name] = _Room(node, free)
        self._columns.node_seen(node, free)
        return True

    def node_gone(self, name: str) -> None:
        """A node is there no more."""
        if self._rooms.pop(name, None) is not None:
            self._columns.node_gone(name, lambda other: self._rooms[other].free)

    def holds(self, uid: str, node: str) -> bool:
        """Whether a pod is counted on this node."""
        return self._placed.get(uid) == node

    def place(self, uid: str, node: str, host: Mapping[str, int]) -> None:
        """A pod is on a node, or is about to be."""
        if self.holds(uid, node):
            return
        self.leave(uid)
        self._placed[uid] = node
        self._on.setdefault(node, {})[uid] = host
        self._took(node, host)

    def leave(self, uid: str) -> bool:
        """A pod has ended, or was not placed after all; whether it held anything."""
        node = self._placed.pop(uid, None)
        if node is None:
            return False
        mates = self._on[node]
        host = mates.pop(uid)
        if not mates:
            del self._on[node]
        self._took(node, host, sign=-1)
        return True

    def _took(self, node: str, host: Mapping[str, int], sign: int = 1) -> None:
        room = self._rooms.get(node)
        if room is not None:
            _take(room.free, host, sign)
            self._columns.free_changed(node, {name: room.free[name] for name in host})

    # --- questions ---------------------------------------------------------------------------

    def survey(self, pod: Pod) -> Survey:
        """Where the pod, as `without_devices` makes it, has room."""
        if pod.request != _NO_DEVICES or any(asked > MOST for asked in pod.host.values()):
            return self.survey_plainly(pod)
        fits, objections = self._columns.allowed(pod, self._objection)
        fitting, short = self._columns.with_room(pod.host, fits)
        return Survey(fitting, objections, short)

    def survey_plainly(self, pod: Pod) -> Survey:
        """The same, node by node."""
        fitting: list[str] = []
        objections: Counter[str] = Counter()
        short: Counter[str] = Counter()
        for name, room in self._rooms.items():
            reason = self._objection(name, pod)
            lacking = None if reason else shortage(pod.host, room.free)
            if reason:
                objections[reason] += 1
            elif lacking is not None:
                short[lacking.brief.partition(":")[0]] += 1
            else:
                fitting.append(name)
        return Survey(fitting, objections, short)

    def _objection(self, name: str, pod: Pod) -> str:
        """Why a node is out of the question whatever is free, as kube-scheduler says it; or empty."""
        reason = objection(self._rooms[name].node, pod)
        return _brief(reason) if reason else ""

    def idleness(self, name: str) -> float:
        """How much of a node's CPU and memory is free, from 0 to 10."""
        room = self._rooms.get(name)
        if room is None:
            return 0.0
        total = room.node.allocatable
        parts = [
            max(room.free.get(resource, 0), 0) / total[resource]
            for resource in ("cpu", "memory")
            if total.get(resource)
        ]
        return _SCALE * sum(parts) / len(parts) if parts else 0.0


def without_devices(value: Mapping[str, Any], context: Context) -> Pod:
    """A pod of the API server as kube-scheduler sees it. Raises `InvalidDocument`."""
    return replace(translate_pod(decoded("Pod", value), context).pod, request=_NO_DEVICES)


def _take(free: dict[str, int], host: Mapping[str, int], sign: int = 1) -> None:
    for resource, amount in host.items():
        free[resource] = free.get(resource, 0) - sign * amount


def _brief(reason: NodeReason) -> str:
    """What kube-scheduler calls it."""
    match reason.code:
        case ReasonCode.NODE_AFFINITY:
            return "node(s) didn't match Pod's node affinity/selector"
        case ReasonCode.TAINT:
            return f"node(s) had untolerated taint {{{reason.brief or reason.message}}}"
        case ReasonCode.NODE_UNSCHEDULABLE:
            return "node(s) were unschedulable"
        case _:
            return reason.message


def _listed(counts: Mapping[str, int]) -> str:
    """Reasons with how often each occurs, most frequent first."""
    return ", ".join(
        f"{count} {what}" for what, count in sorted(counts.items(), key=lambda c: (-c[1], c))
    )
