"""Whether a node may host a pod at all: Kubernetes' own rules and the protocols' objections.

The pod's own exclusions come first: a taint or a cordon of such a node needs no action. The others follow in the order
of kube-scheduler's filters; ordinary resources are last.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from partage.model.device import DeviceType
from partage.model.node import Node, Verdict
from partage.model.pod import Pod
from partage.model.quantity import Quantity, binary, decimal
from partage.model.reason import NodeReason, ReasonCode
from partage.model.request import DeviceRequest, PodRequest
from partage.model.selector import NodeConstraint, Taint

_MOST_TOLD: Final = 8
"""The most terms of a pod's node affinity that a sentence repeats."""
_UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def objection(node: Node, pod: Pod) -> NodeReason | None:
    """Why the pod excludes the node, regardless of free amounts, or None."""
    if not pod.constraint.matches(node.name, node.labels):
        return _mismatch(node, pod.constraint)
    if node.unschedulable and cordon(pod):
        return NodeReason(ReasonCode.NODE_UNSCHEDULABLE, "the node is cordoned")
    taint = repelling(node.taints, pod)
    if taint is not None:
        message = f"taint {taint} is not tolerated"
        return NodeReason(ReasonCode.TAINT, message, brief=str(taint))
    return _protocol_objection(node, pod.request)


def cordon(pod: Pod) -> bool:
    """Whether the pod excludes the node because of its cordon."""
    return not any(t.tolerates(_UNSCHEDULABLE) for t in pod.tolerations)


def repelling(taints: Iterable[Taint], pod: Pod) -> Taint | None:
    """The first of a node's taints that keeps the pod away."""
    for taint in taints:
        if taint.repels and not any(t.tolerates(taint) for t in pod.tolerations):
            return taint
    return None


def _mismatch(node: Node, constraint: NodeConstraint) -> NodeReason:
    """The part of a pod's selector or affinity that a node does not meet."""
    for requirement in constraint.selector.requirements:
        if not requirement.matches(node.labels):
            have = node.labels.get(requirement.key)
            found = f"it is {have!r} here" if have is not None else "the node has no such label"
            message = f"nodeSelector asks for {requirement}, {found}"
            return NodeReason(ReasonCode.NODE_AFFINITY, message, brief=str(requirement))
    told = [str(term) for term in (constraint.terms or ())[:_MOST_TOLD]]
    more = len(constraint.terms or ()) - len(told)
    terms = " or ".join([*told, f"{more} more terms"] if more > 0 else told) or "nothing"
    return NodeReason(ReasonCode.NODE_AFFINITY, f"node affinity asks for {terms}", brief=terms)


def _protocol_objection(node: Node, request: PodRequest) -> NodeReason | None:
    for rule in request.node_labels:
        if node.labels.get(rule.key) != rule.value:
            return NodeReason(rule.code, rule.message, brief=rule.message)
    for verdict in node.verdicts:
        if concerned(verdict, request):
            return NodeReason(verdict.code, verdict.message, brief=verdict.message)
    return None


def concerned(verdict: Verdict, request: PodRequest) -> bool:
    """Whether a protocol's objection to a node applies to this request."""
    for group in request.groups:
        cards = group.request.type is DeviceType.GPU
        if verdict.protocol not in ("", group.protocol) or (verdict.cards_only and not cards):
            continue
        if not verdict.sharing_only or (cards and not group.request.whole):
            return True
    return False


def shortage(host: Mapping[str, int], free: Mapping[str, int]) -> NodeReason | None:
    """The ordinary resource that is short on a node, or None; the first by name order of the pod."""
    for resource, asked in host.items():
        left = free.get(resource, 0)
        if asked > max(left, 0):
            facts = (
                f"{resource}: asked {amount(resource, asked)}, "
                f"free {amount(resource, max(left, 0))}"
            )
            return NodeReason(
                ReasonCode.NODE_RESOURCES,
                f"insufficient {facts.replace(': asked', ' (asked')})",
                asked=asked,
                free=left,
                brief=facts,
            )
    return None


def amount(resource: str, value: int) -> str:
    """An amount of an ordinary resource as Kubernetes writes it."""
    if resource == "cpu":
        return str(Quantity(value * 10**6))
    if "memory" in resource or "storage" in resource or resource.startswith("hugepages-"):
        return str(binary(value))
    return str(decimal(value))


def template(node: Node, request: DeviceRequest) -> str:
    """The one sharing template of the node that equals a templated request; empty if none does."""
    asked = templated(request)
    matches = [name for name, amounts in node.templates.items() if dict(amounts) == asked]
    return matches[0] if len(matches) == 1 else ""


def templated(request: DeviceRequest) -> dict[str, int]:
    """The amounts of a templated request, by the names that templates use."""
    asked = dict(request.extras)
    if request.memory_bytes:
        asked["memory"] = request.memory_bytes
    return asked
