"""What kube-scheduler itself checks of a pod and its nodes: taints, affinity, ordinary resources.

The rules are those of `placement.node`, and pods and nodes are read by `wire`; here is only the
count of what is taken. Devices are none of its business: those are the extender's.

Not checked, unlike a genuine kube-scheduler: affinity between pods, spreading, volumes, ports.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from partage.embedded.manifests import decoded
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.reason import NodeReason, ReasonCode
from partage.model.request import PodRequest
from partage.placement.node import objection, shortage
from partage.wire import shapes
from partage.wire.asking import names_devices
from partage.wire.context import Context
from partage.wire.nodes import translate_node
from partage.wire.pods import translate_pod

__all__ = ["Asker", "Rooms", "Survey", "asker"]

_NO_DEVICES: Final = PodRequest()
_SCALE: Final = 10


@dataclass(frozen=True, slots=True)
class Asker:
    """A pod as kube-scheduler sees it.

    Attributes:
        pod: without its devices.
        wants_devices: whether it asks for any.
    """

    pod: Pod
    wants_devices: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """Which nodes have room.

    Attributes:
        fitting: their names.
        refused: why the others have none.
    """

    fitting: list[str]
    refused: dict[str, NodeReason]

    def summary(self) -> str:
        """One line in kube-scheduler's words, with numbers by reason."""
        total = len(self.fitting) + len(self.refused)
        listed = _listed(_brief(reason) for reason in self.refused.values())
        return f"0/{total} nodes are available: {listed or 'none has what the pod asks for'}."

    def short(self) -> str:
        """Where ordinary resources are short, with numbers; empty where they are not."""
        return _listed(
            f"insufficient {reason.brief.partition(':')[0]}"
            for reason in self.refused.values()
            if reason.code is ReasonCode.NODE_RESOURCES
        )


@dataclass(slots=True)
class _Room:
    """One node and what is taken of it."""

    node: Node
    free: dict[str, int] = field(default_factory=dict)


class Rooms:
    """All nodes, and who is on them."""

    def __init__(self) -> None:
        self._rooms: dict[str, _Room] = {}
        self._placed: dict[str, tuple[str, Mapping[str, int]]] = {}

    # --- facts -------------------------------------------------------------------------------

    def node_changed(self, value: Mapping[str, Any], context: Context) -> bool:
        """A node is there or has changed; whether that matters to anybody who waits."""
        name = str(value["metadata"]["name"])
        try:
            node = translate_node(decoded("Node", value), None, context).node
        except InvalidDocument:
            self._rooms.pop(name, None)  # what cannot be read takes nobody
            return False
        node = replace(node, devices=(), verdicts=(), properties={}, links={})
        known = self._rooms.get(name)
        if known is not None and known.node == node:
            return False
        self._rooms[name] = _Room(node, self._free(name, node))
        return True

    def node_gone(self, name: str) -> None:
        """A node is there no more."""
        self._rooms.pop(name, None)

    def _free(self, name: str, node: Node) -> dict[str, int]:
        free = dict(node.allocatable)
        for place, host in self._placed.values():
            if place == name:
                _take(free, host)
        return free

    def holds(self, uid: str, node: str) -> bool:
        """Whether a pod is counted on this node."""
        held = self._placed.get(uid)
        return held is not None and held[0] == node

    def place(self, uid: str, node: str, host: Mapping[str, int]) -> None:
        """A pod is on a node, or is about to be."""
        if self.holds(uid, node):
            return
        self.leave(uid)
        self._placed[uid] = (node, host)
        room = self._rooms.get(node)
        if room is not None:
            _take(room.free, host)

    def leave(self, uid: str) -> bool:
        """A pod has ended, or was not placed after all; whether it held anything."""
        held = self._placed.pop(uid, None)
        if held is None:
            return False
        room = self._rooms.get(held[0])
        if room is not None:
            _take(room.free, held[1], sign=-1)
        return True

    # --- questions ---------------------------------------------------------------------------

    def survey(self, pod: Pod) -> Survey:
        """Where the pod has room."""
        fitting: list[str] = []
        refused: dict[str, NodeReason] = {}
        for name, room in self._rooms.items():
            reason = objection(room.node, pod) or shortage(pod.host, room.free)
            if reason is None:
                fitting.append(name)
            else:
                refused[name] = reason
        return Survey(fitting, refused)

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


def asker(value: Mapping[str, Any], context: Context) -> Asker:
    """A pod of the API server as kube-scheduler sees it.

    Raises:
        InvalidDocument: it cannot be read as a pod.
    """
    document = decoded("Pod", value)
    pod = replace(translate_pod(document, context).pod, request=_NO_DEVICES)
    spec = document.shape.spec if isinstance(document.shape, shapes.Pod) else None
    return Asker(pod, names_devices(spec, context))


def _take(free: dict[str, int], host: Mapping[str, int], sign: int = 1) -> None:
    for resource, amount in host.items():
        free[resource] = free.get(resource, 0) - sign * amount


def _brief(reason: NodeReason) -> str:
    """What kube-scheduler calls it."""
    match reason.code:
        case ReasonCode.NODE_RESOURCES:
            return f"Insufficient {reason.brief.partition(':')[0]}"
        case ReasonCode.NODE_AFFINITY:
            return "node(s) didn't match Pod's node affinity/selector"
        case ReasonCode.TAINT:
            return f"node(s) had untolerated taint {{{reason.brief or reason.message}}}"
        case ReasonCode.NODE_UNSCHEDULABLE:
            return "node(s) were unschedulable"
        case _:
            return reason.message


def _listed(reasons: Iterable[str]) -> str:
    """Reasons with how often each occurs, most frequent first."""
    counts = Counter(reasons)
    return ", ".join(
        f"{count} {what}" for what, count in sorted(counts.items(), key=lambda c: (-c[1], c))
    )
