"""kube-scheduler's own checks of a pod and its nodes: taints, affinity, ordinary resources.

The engine's own ledger counts ordinary resources of nodes without their devices, and its columns list the nodes
that a pod's rules allow. The extender checks devices.

Unlike a genuine kube-scheduler, it does not check affinity between pods, spreading, volumes and ports.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from partage.embedded.manifests import decoded
from partage.inventory.columns import ASSUMED
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Ints
from partage.model.allocation import Allocation
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.reason import NodeReason, ReasonCode
from partage.model.request import PodRequest
from partage.placement.node import Eligibility, NodeColumns, eligibility_key
from partage.wire.context import Context
from partage.wire.nodes import translate_node
from partage.wire.pods import translate_pod

_NO_DEVICES: Final = PodRequest()
_NOTHING: Final = np.zeros(1, np.int64)
_KINDS: Final = 64
"""Most kinds of pods, by their rules, with remembered nodes."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The nodes with room for a pod.

    Attributes:
        fitting: by their number in the books.
        objections: reasons against others, in kube-scheduler's words, with numbers of nodes.
        short: the first ordinary resource that is short on the rest, with numbers of nodes.
    """

    fitting: Ints
    objections: Mapping[str, int]
    short: Mapping[str, int]

    def summary(self) -> str:
        """One line in kube-scheduler's words, with a number for each reason."""
        counts = Counter(self.objections)
        counts.update({f"Insufficient {resource}": n for resource, n in self.short.items()})
        total = self.fitting.size + counts.total()
        listed = _listed(counts) or "none has what the pod asks for"
        return f"0/{total} nodes are available: {listed}."

    def shortages(self) -> str:
        """Shortages of ordinary resources, with numbers; empty without any."""
        return _listed({f"insufficient {resource}": n for resource, n in self.short.items()})


class Rooms:
    """All nodes, and their pods."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._columns = NodeColumns(self._ledger)
        self._kinds: OrderedDict[object, Eligibility] = OrderedDict()
        self._names: NDArray[np.object_] = np.zeros(0, np.object_)
        self._named_at = 0

    def node_changed(self, value: Mapping[str, Any], context: Context) -> bool:
        """Take in a new or changed node; whether that matters to a pending pod."""
        name = str(value["metadata"]["name"])
        try:
            node = translate_node(decoded("Node", value), None, context).node
        except InvalidDocument:
            self.node_gone(name)  # an unreadable node takes no pod
            return False
        return self.node_seen(node)

    def node_seen(self, node: Node) -> bool:
        """The same for a decoded node, without its devices and its protocols' facts."""
        told = {**dict.fromkeys(ASSUMED, 0), **node.allocatable}
        node = replace(node, devices=(), verdicts=(), properties={}, links={}, allocatable=told)
        index = self._ledger.index.get(node.name)
        if index is not None and self._ledger.nodes[index] == node:
            return False
        self._ledger.upsert_node(node)
        return True

    def node_gone(self, name: str) -> None:
        """Take in a node's deletion."""
        self._ledger.remove_node(name)

    def holds(self, uid: str, node: str) -> bool:
        """Whether a pod is counted on this node."""
        held = self._ledger.allocation(uid)
        return held is not None and held.node == node

    def place(self, pod: Pod, node: str) -> None:
        """Count a pod on a node, bound or about to be."""
        if not self.holds(pod.uid, node):
            self.leave(pod.uid)
            self._ledger.apply(Allocation(pod.uid, pod.namespace, pod.name, node, host=pod.host))

    def leave(self, uid: str) -> bool:
        """Remove a pod that has ended or was not placed; whether it held anything."""
        return self._ledger.undo(uid) is not None

    def survey(self, pod: Pod) -> Survey:
        """The nodes with room for a pod made by `without_devices`."""
        key, ledger = eligibility_key(pod), self._ledger
        kind = self._kinds.setdefault(key, Eligibility(pod, self._columns))
        self._kinds.move_to_end(key)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        kind.refresh(ledger)
        refused = np.flatnonzero(ledger.present & ~kind.allowed).tolist()
        reasons = (kind.objection(ledger, index) for index in refused)
        among, short = kind.allowed.copy(), {}
        for resource, asked in pod.host.items():
            enough = np.maximum(ledger.host_free.get(resource, _NOTHING), 0) >= asked
            if lacking := int(np.count_nonzero(among & ~enough)):
                short[resource] = lacking
                among &= enough
        objections = Counter(_brief(reason) for reason in reasons if reason is not None)
        return Survey(np.flatnonzero(among), objections, short)

    def names(self, survey: Survey) -> list[str]:
        """The names of nodes with room."""
        if self._named_at != self._ledger.node_changes.count:
            self._named_at = self._ledger.node_changes.count
            self._names = np.array([node and node.name for node in self._ledger.nodes], np.object_)
        found: list[str] = self._names[survey.fitting].tolist()
        return found

    def idlest(self, names: Collection[str]) -> str:
        """The node with the largest free part of CPU and memory."""
        ledger = self._ledger
        indexes = np.array([ledger.index[name] for name in names], np.intp)
        parts = [
            np.maximum(ledger.host_free[resource][indexes], 0)
            / np.maximum(ledger.host_total[resource][indexes], 1)
            for resource in ("cpu", "memory")
        ]
        return ledger.node_at(int(indexes[np.argmax(sum(parts))])).name


def without_devices(value: Mapping[str, Any], context: Context) -> Pod:
    """A pod of the API server in kube-scheduler's view. Raises `InvalidDocument`."""
    return replace(translate_pod(decoded("Pod", value), context).pod, request=_NO_DEVICES)


def _brief(reason: NodeReason) -> str:
    """kube-scheduler's name for it."""
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
    """Reasons with their counts, most frequent first."""
    return ", ".join(
        f"{count} {what}" for what, count in sorted(counts.items(), key=lambda c: (-c[1], c))
    )
