"""Changes that Partage's own accounts may make to others' objects, as CEL for the chart's policies.

RBAC gives rights to whole objects. A program with the right to write a condition of a pod could mark the pod as not
ready, and one with the right to write totals of a node could change its kubelet's address. So each list here has the
fields that a program writes. Everything else must stay unchanged, including fields of later Kubernetes releases.

The expressions read objects as maps (`dyn`), because CEL iterates over keys of maps alone.

The lists omit labels and annotations that the scheduler's account writes on pods and in Bindings. Others' webhooks,
and the API server itself, add theirs to its requests, and a policy cannot distinguish these. A refusal would keep pods
from their nodes.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from partage.vendors import names
from partage.vendors.locks import LOCKS
from partage.wire.nodes import COPIED_LABELS

Rule = Mapping[str, str]
"""An expression and its message."""

MOST_DEVICES: Final = 256
"""Of one Device object; of each of the three types the service keeps 80."""
_OURS: Final = "k.startsWith('partage.io/')"
_NODE_LABELS: Final = {
    *COPIED_LABELS,
    names.QGPU_MODEL_LABELS[0],
    names.QGPU_DRIVER_LABELS[1],
    names.QGPU_ENABLE,
}
_NODE_ANNOTATIONS: Final = {names.HAMI_REGISTER, names.HAMI_SCORE, *LOCKS}
_OF_CLAIMS: Final = {"extendedResourceClaimStatus", "nodeAllocatableResourceClaimStatuses"}
"""Fields of a pod's status that kube-scheduler writes about claims; with the plugin it has the service's account."""
_AGENT: Final = "a node agent"
ATTRIBUTES: Final = {
    "string": ("kind", "uuid", "productName", "model", "vendor", "architecture", "profile"),
    "int": ("index", "memory", "numaNode", "nvlinkDomain", "start"),
    "version": ("driverVersion",),
}
"""Attributes of a slice's devices, by type: a selector that compares texts fails if one device has a number."""
_DELETES: Final = "request.operation == 'DELETE' || "


def own_fields() -> dict[str, list[Rule]]:
    """Rules of the policies by account; an agent's `variables.node` is its token's node."""
    conditions = {names.CONDITION, names.ADJUSTED_CONDITION, "PodScheduled", "DisruptionTarget"}
    scheduler = [
        *_of_both(),
        _rule(
            _keeps("nodes", "status", _in({"capacity", "allocatable"})),
            "nothing of a node's status but totals",
        ),
        *(
            _rule(
                _keeps("nodes", f"status.{part}", "k.contains('/')"), f"no {part} of CPU or memory"
            )
            for part in ("capacity", "allocatable")
        ),
        *_of_pods({"conditions", "nominatedNodeName", *_OF_CLAIMS}, conditions),
    ]
    agent = [
        *_of_both(),
        *_of_pods({"conditions"}, {names.LIMITS_CONDITION, names.ADJUSTED_CONDITION}),
        _rule(_keeps("pods", "metadata.labels", "false"), "no label of a pod", _AGENT),
        _rule(
            _keeps("pods", "metadata.annotations", _in({names.ENFORCED})),
            f"no annotation of a pod but {names.ENFORCED}",
            _AGENT,
        ),
        _rule(
            f"{_DELETES}{_same('metadata.finalizers', created='!has(object.metadata.finalizers)')}",
            "no finalizer",
            _AGENT,
        ),
        {
            "expression": "request.resource.resource != 'devices' || !has(object.spec)"
            f" || !has(object.spec.devices) || size(object.spec.devices) <= {MOST_DEVICES}",
            "message": f"a node has {MOST_DEVICES} devices at most",
        },
    ]
    return {"scheduler": scheduler, "claims": _of_claims(), "agent": agent}


def _of_claims() -> list[Rule]:
    """Rules of ResourceClaims for a scheduler's account that is not kube-scheduler's too, as it is with the plugin.

    A claim's spec is immutable, and its status needs another right. kube-scheduler's finalizer protects an allocation,
    so it may be removed where there is none.
    """
    claims = "request.resource.resource != 'resourceclaims' || "
    free = "!has(oldObject.status) || !has(oldObject.status.allocation)"
    had, has = (
        f"(has({one}.metadata.finalizers) ? {one}.metadata.finalizers : [])"
        for one in ("oldObject", "object")
    )
    removed = f"({free}) && {has} == {had}.filter(f, f != '{names.CLAIM_FINALIZER}')"
    return [
        _rule(
            f"{claims}({_same('metadata.finalizers')}) || {removed}",
            f"no finalizers of a claim but {names.CLAIM_FINALIZER} of one that is not allocated",
        ),
        _rule(f"{claims}({_same('metadata.ownerReferences')})", "no ownerReferences of a claim"),
        _rule(
            _keeps("resourceclaims", "metadata.labels", _OURS),
            "no label of a claim but its own",
        ),
        _rule(
            _keeps("resourceclaims", "metadata.annotations", "false"), "no annotation of a claim"
        ),
    ]


def own_slices() -> list[Rule]:
    """Rules of an agent's ResourceSlices.

    A slice in another node's pool may outdate those of that node. A selector that names an attribute one device lacks
    fails, and its pod waits wherever it could go.
    """
    slices = "request.resource.resource != 'resourceslices' || "
    which = "(request.operation == 'DELETE' ? oldObject : object)"
    suffix = f"-{names.DRA_DRIVER.replace('.', '[.]')}"
    probe = f"has(request.dryRun) && request.dryRun && object.metadata.name.matches('{suffix}-probe-[01]$')"
    has = "has(d.attributes) && '{0}' in d.attributes && has(d.attributes['{0}'].{1})"
    share = " && ".join(
        (
            has.format("memory", "int"),
            "has(d.capacity) && 'cores' in d.capacity && 'memory' in d.capacity",
        )
    )
    instance = has.format("profile", "string")
    kind = "d.attributes['kind'].string"
    whole = f"{has.format('kind', 'string')} && ({kind} == 'share' && {share} || {kind} == 'mig' && {instance})"
    typed = " && ".join(
        f"{list(those)}.all(a, !(a in d.attributes) || has(d.attributes[a].{kept}))"
        for kept, those in ATTRIBUTES.items()
    )
    return [
        {
            "expression": f"{slices}{which}.spec.driver == '{names.DRA_DRIVER}' && {which}.spec.pool.name == variables.node",
            "message": f"a node agent offers devices of {names.DRA_DRIVER} in the pool of its own node only",
        },
        {
            # Names that there are few of bound how many slices a node has. A long name of a node is cut off in them.
            "expression": f"{slices}{_DELETES}{probe} || object.metadata.name.matches('{suffix}-(counters|devices)-[0-9]{{1,2}}$')"
            " && (size(variables.node) > 200 || object.metadata.name.startsWith(variables.node + '-'))",
            "message": "a node agent names its ResourceSlices after its node, with a number of two digits",
        },
        {
            "expression": f"{slices}{_DELETES}{probe} || !has(object.spec.devices) || object.spec.devices.all(d, {whole} && {typed})",
            "message": "a node agent says of each device what the DeviceClasses ask for",
        },
    ]


def _of_both() -> list[Rule]:
    """Fields of pods and nodes that both accounts must not change; the policies see only updates."""
    others = "!(request.resource.resource in ['nodes', 'pods']) || "
    return [
        _rule(f"{others}({_same('spec')})", "no spec of a pod or node"),
        *(
            _rule(f"{others}({_same(f'metadata.{field}')})", f"no {field} of a pod or node")
            for field in ("finalizers", "ownerReferences")
        ),
        _rule(
            _keeps("nodes", "metadata.labels", _any(_OURS, _in(_NODE_LABELS))),
            "no label by which others choose nodes",
        ),
        _rule(
            _keeps("nodes", "metadata.annotations", _any(_OURS, _in(_NODE_ANNOTATIONS))),
            "no annotation of a node but of its devices",
        ),
    ]


def _of_pods(fields: Iterable[str], conditions: Iterable[str]) -> list[Rule]:
    """An account must not change a pod's status, except these fields and conditions of these types."""
    new, old = "object.status.conditions", "oldObject.status.conditions"
    here, before = _there(new), _there(old)
    kept = (
        f"(!({here}) || {new}.all(k, {_in(conditions, 'k.type')} || {before} && k in {old})) && "
        f"(!({before}) || {old}.all(k, {_in(conditions, 'k.type')} || {here} && k in {new}))"
    )
    return [
        _rule(
            _keeps("pods", "status", _in(fields)),
            "neither phase nor addresses nor containers' states of a pod",
        ),
        _rule(
            f"request.resource.resource != 'pods' || {kept}",
            "no condition of a pod but its own",
        ),
    ]


def _rule(expression: str, kept: str, who: str = "Partage") -> Rule:
    return {"expression": expression, "message": f"{who} changes {kept}"}


def _keeps(resource: str, at: str, may: str) -> str:
    """No key of this map is added, changed or removed, except the allowed ones."""
    new, old = f"object.{at}", f"oldObject.{at}"
    here, before = _there(new), _there(old)
    added = f"{before} && k in dyn({old}) && dyn({old})[k] == dyn({new})[k]"
    return (
        f"request.resource.resource != '{resource}' || "
        f"(!({here}) || dyn({new}).all(k, {may} || {added})) && "
        f"(!({before}) || dyn({old}).all(k, {may} || {here} && k in dyn({new})))"
    )


def _same(at: str, created: str = "") -> str:
    """A field is unchanged; `created` is the condition for a new object."""
    new, old = f"object.{at}", f"oldObject.{at}"
    same = f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"
    return f"(request.operation == 'CREATE' ? {created} : {same})" if created else same


def _there(at: str) -> str:
    """Whether a field and its parents exist; metadata always does."""
    whole, *rest = at.split(".")
    found = []
    for step in rest:
        whole = f"{whole}.{step}"
        if step != "metadata":
            found.append(f"has({whole})")
    return " && ".join(found)


def _in(texts: Iterable[str], what: str = "k") -> str:
    listed = ", ".join(f"'{text}'" for text in sorted(texts))
    return f"{what} in [{listed}]"


def _any(*parts: str) -> str:
    return f"({' || '.join(parts)})"
