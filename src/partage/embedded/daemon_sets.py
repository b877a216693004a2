"""What the stand-in for the DaemonSet controller decides: a pod for every node that takes one.

Pure functions of a DaemonSet, the nodes and its pods. Which node takes a pod is judged by the rule
that places all other pods; what the template lacks for that is added as Kubernetes adds it.

Source: apps/v1 of Kubernetes 1.36, as far as its users see.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from partage.apiserver import Record
from partage.embedded.manifests import decoded
from partage.embedded.replicas import part_of, pod_of, ready, template_hash
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.pod import Pod
from partage.placement.node import objection
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.nodes import translate_node
from partage.wire.pods import translate_pod

__all__ = ["HASH", "Plan", "plan"]

HASH: Final = "controller-revision-hash"
_CONTEXT: Final = Context.of(Settings(), ())
_EXECUTE: Final = "NoExecute"
_NODE: Final = "metadata.name"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_ENDURED: Final = (
    ("node.kubernetes.io/not-ready", _EXECUTE),
    ("node.kubernetes.io/unreachable", _EXECUTE),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
"""Taints that its pods always tolerate."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, and what the status says.

    Attributes:
        made: pods to be created.
        gone: pods to be deleted.
        status: of the DaemonSet.
    """

    made: Sequence[dict[str, Any]]
    gone: Sequence[Record]
    status: Mapping[str, Any]


def plan(value: Mapping[str, Any], nodes: Iterable[Record], pods: Iterable[Record]) -> Plan:
    """The next step towards one ready pod of the present template on every node that takes one.

    Args:
        value: the DaemonSet.
        nodes: all nodes.
        pods: those of the DaemonSet that are not over.
    """
    spec, digest = value["spec"], template_hash(value["spec"]["template"])
    read = _template(value)
    judged = {node.name: _judged(node, read) for node in nodes}
    wanted = [name for name, verdict in judged.items() if verdict is True]
    kept: dict[str, Record] = {}
    gone: list[Record] = []
    for pod in sorted(pods, key=lambda one: (not ready(one), one.revision)):
        name = _place(pod)
        if judged.get(name, False) is False or name in kept:
            gone.append(pod)
        else:
            kept[name] = pod
    there = [pod for name, pod in kept.items() if judged[name] is True]
    available = sum(map(ready, there))
    stale = [pod for pod in kept.values() if pod.labels.get(HASH) != digest]
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") == "RollingUpdate":
        most = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
        spare = max(part_of(most, len(wanted), up=True), 1) - (len(wanted) - available)
        # Pods that do not serve are missed by nobody.
        gone += [pod for pod in stale if not ready(pod)]
        gone += [pod for pod in stale if ready(pod)][: max(spare, 0)]
    made = [_pod(value, name, digest) for name in wanted if name not in kept]
    status = {
        "observedGeneration": value["metadata"].get("generation", 1),
        "desiredNumberScheduled": len(wanted),
        "currentNumberScheduled": len(there),
        "numberMisscheduled": len(kept) - len(there),
        "updatedNumberScheduled": sum(pod.labels.get(HASH) == digest for pod in there),
        "numberReady": available,
        "numberAvailable": available,
        "numberUnavailable": len(wanted) - available,
    }
    return Plan(made, gone, status)


def _pod(value: Mapping[str, Any], node: str, digest: str) -> dict[str, Any]:
    """The pod for one node: nothing but that node will do."""
    generation = str(value["metadata"].get("generation", 1))
    made = pod_of(
        value, "DaemonSet", "apps/v1", labels={HASH: digest, "pod-template-generation": generation}
    )
    spec = made["spec"]
    affinity = dict(spec.get("affinity") or {})
    on = {"matchFields": [{"key": _NODE, "operator": "In", "values": [node]}]}
    affinity["nodeAffinity"] = {
        **(affinity.get("nodeAffinity") or {}),
        _REQUIRED: {"nodeSelectorTerms": [on]},
    }
    spec["affinity"] = affinity
    spec["tolerations"] = _tolerations(spec)
    return made


def _tolerations(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    added = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in _ENDURED]
    if spec.get("hostNetwork"):
        key = "node.kubernetes.io/network-unavailable"
        added.append({"key": key, "operator": "Exists", "effect": "NoSchedule"})
    given = list(spec.get("tolerations") or ())
    return given + [one for one in added if one not in given]


def _place(pod: Record) -> str:
    """The node of a pod, or the one that it was made for."""
    spec = pod.value.get("spec") or {}
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    for term in (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ():
        for one in term.get("matchFields") or ():
            if one.get("key") == _NODE and one.get("values"):
                return str(one["values"][0])
    return ""


def _template(value: Mapping[str, Any]) -> Pod | None:
    """A pod of the template as the rules read it; None for one that cannot be read."""
    template = value["spec"]["template"]
    spec = {**(template.get("spec") or {})}
    spec["tolerations"] = _tolerations(spec)
    metadata = {"name": value["metadata"]["name"], "namespace": value["metadata"]["namespace"]}
    try:
        return translate_pod(decoded("Pod", {"metadata": metadata, "spec": spec}), _CONTEXT).pod
    except InvalidDocument:
        return None


def _judged(record: Record, pod: Pod | None) -> bool | None:
    """Whether the node takes a pod (True), only keeps one that is there (None), or neither."""
    if pod is None:
        return False
    try:
        node: Node = translate_node(decoded("Node", record.value), None, _CONTEXT).node
    except InvalidDocument:
        return False
    if objection(node, pod) is None:
        return True
    lasting = tuple(taint for taint in node.taints if taint.effect == _EXECUTE)
    kept = replace(node, taints=lasting, unschedulable=False)
    return None if objection(kept, pod) is None else False
