"""Checks that the parts for our driver's ResourceClaims fit together: offering, counting and asking.

All of it is optional. Without an agent that offers cards to claims, and without its remains, there is no finding.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from partage.doctor.finding import ClusterFacts, Finding, Object, error, named, node_of, warning
from partage.doctor.scheduling import switched_off
from partage.vendors import names
from partage.webhook.installation import CLAIMS

_GUIDE: Final = "docs/how-to/offer-cards-to-claims.md"
_GATES: Final = ("DRAConsumableCapacity", "DRADeviceTaints", "DRAPartitionableDevices")


def parts(facts: ClusterFacts) -> Iterator[Finding]:
    """Agents' offers have classes, the service counts them, and the API server asks before it stores allocations."""
    agents, schedulers = list(_run(facts, "agent")), list(_run(facts, "scheduler"))
    offering = [one for _, one in agents if "--dra" in one]
    counting = [one for _, one in schedulers if "--claims" in one]
    if offering and facts.classes is not None:
        wanted = {names.SHARE_CLASS, *(names.MIG_CLASS for one in offering if "--mig" in one)}
        for name in sorted(wanted - facts.classes):
            yield error(
                "claims-class-missing",
                f"DeviceClass {name}",
                "agents offer cards to ResourceClaims (--dra), and no claim can name this class",
                "apply the chart again with agent.dra.enabled=true, which makes both classes",
            )
    if offering and schedulers and not counting:
        yield error(
            "claims-uncounted",
            "the scheduler service",
            "agents offer cards to ResourceClaims (--dra), and the service does not count the devices of "
            "claims (--claims): it places pods on cards that claims have, and they wait there",
            "set scheduler.claims=true in the chart",
        )
    asked = any(
        hook.get("name") == CLAIMS
        for one in facts.validating or ()
        for hook in one.get("webhooks") or ()
    )
    if counting and facts.validating is not None and not asked:
        yield error(
            "claims-webhook-missing",
            CLAIMS,
            "the API server must ask the leader before it stores an allocation of this driver; otherwise a claim may "
            "get devices that a pod already holds, and its own pod waits on the node",
            "apply the chart again with scheduler.claims=true and webhook.enabled=true, or partage webhook "
            "--claims URL --manifests | kubectl apply -f -",
        )
    if facts.templates and not any("--claim-templates" in one for _, one in schedulers):
        count = len(facts.templates)
        yield warning(
            "claims-templates-left",
            f"ResourceClaimTemplate {named(facts.templates[0])}"
            + (f" and {count - 1} more" if count > 1 else ""),
            "the scheduler service made them, and runs without --claim-templates now: they are not removed with "
            "their last pod",
            "kubectl delete resourceclaimtemplates -A -l "
            f"{names.CLAIMS_LABEL}={names.CLAIMS_TRANSLATE}; existing claims do not need them",
        )


def resources(facts: ClusterFacts) -> Iterator[Finding]:
    """No DeviceClass has a name by which pods ask for Partage's devices, because two would decide about one request."""
    for name, resource in facts.taken:
        yield error(
            "claims-class-takes-name",
            f"DeviceClass {name}",
            f"its extendedResourceName is {resource}, by which pods ask Partage: kube-scheduler (from 1.36) wants a device of "
            "the class for such a pod too, and no node of Partage fits it (cannot fit resource)",
            "give the class another extendedResourceName, or none",
        )


def gates(facts: ClusterFacts) -> Iterator[Finding]:
    """No part's options switch off a feature gate that claims for cards need."""
    if not any("--dra" in given for _, given in _run(facts, "agent")):
        return
    for pod in facts.pods:
        for gate in switched_off(pod, _GATES):
            yield error(
                "feature-gate",
                named(pod),
                f"feature gate {gate} must be on where cards are offered to ResourceClaims, and is off: the API "
                "server drops fields of slices and claims silently",
                f"remove {gate}=false from --feature-gates; the guide: {_GUIDE}",
            )


def slices(facts: ClusterFacts) -> Iterator[Finding]:
    """Every node's ResourceSlices are complete, and an agent maintains them."""
    by_node: dict[str, list[Object]] = defaultdict(list)
    for one in facts.slices or ():
        spec = one.get("spec") or {}
        if spec.get("driver") == names.DRA_DRIVER:
            by_node[str(spec.get("nodeName", ""))].append(spec)
    kept = _kept(facts)
    for node in sorted(by_node.keys() - kept):
        yield error(
            "claims-slices-stale",
            f"ResourceSlices of node {node}",
            "no agent there keeps them (--dra): they offer devices that pods hold, and a claim that is allocated from "
            "them is never prepared",
            f"run Partage's agent there; if claims should get none of its devices: kubectl delete resourceslices "
            f"--field-selector spec.nodeName={node},spec.driver={names.DRA_DRIVER}",
        )
    for node in sorted(by_node.keys() & kept):
        pools: list[Any] = [spec.get("pool") or {} for spec in by_node[node]]
        newest = max(pool.get("generation", 0) for pool in pools)
        mine = [pool for pool in pools if pool.get("generation", 0) == newest]
        wanted = mine[0].get("resourceSliceCount", 0)
        if len(mine) != wanted:
            yield error(
                "claims-slices-incomplete",
                f"ResourceSlices of node {node}",
                f"generation {newest} of its pool has {wanted} slices, and {len(mine)} are there: nothing of the node is "
                "allocated to claims until all are",
                f"see the log of Partage's agent on {node}; it looks every few seconds",
            )
    if facts.slices is None:
        return
    for pod, given in _run(facts, "agent"):
        node = node_of(pod)
        if "--dra" in given and node in facts.known and node not in by_node and _runs(pod):
            yield warning(
                "claims-nothing-offered",
                f"node {node}",
                "its agent runs with --dra, and there is no ResourceSlice of the node: its cards are offered to no claim",
                f"read the agent's note (agent-note) and its log on {node}: a feature gate is off, or claims can "
                "express none of its cards",
            )


def _kept(facts: ClusterFacts) -> set[str]:
    """Nodes whose slices an agent maintains: one in a pod with --dra, or one outside of pods that renews its Lease."""
    pods = list(_run(facts, "agent"))
    keeping = {node_of(pod) for pod, given in pods if "--dra" in given and _runs(pod)}
    return keeping | (facts.agents.keys() - {node_of(pod) for pod, _ in pods})


def _run(facts: ClusterFacts, program: str) -> Iterator[tuple[Object, list[str]]]:
    for pod in facts.programs:
        for container in pod.get("spec", {}).get("containers") or ():
            given = [str(one) for one in container.get("args") or ()]
            if given[:1] == [program]:
                yield pod, given


def _runs(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")
