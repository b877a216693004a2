"""Decisions of the StatefulSet controller: pure functions of a set and its pods.

Pods have numbers. In order means: a pod is made when all earlier ones serve, and one goes, the last first, when
all others serve. Pods use the present template only, because no earlier ones are kept.

Source: apps/v1 of Kubernetes 1.36, as far as its users see.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from partage.apiserver import Record
from partage.embedded.replicas import AT_ONCE, pod_of, ready
from partage.embedded.watching import is_over

_REVISION: Final = "controller-revision-hash"
_NAME: Final = "statefulset.kubernetes.io/pod-name"
_INDEX: Final = "apps.kubernetes.io/pod-index"


@dataclass(frozen=True, slots=True)
class Turn:
    """A set's next step: the numbers of pods that it makes, and the pods that it deletes."""

    made: tuple[int, ...] = ()
    gone: tuple[Record, ...] = ()


def ordinal(stateful: Record, pod: Record) -> int | None:
    """The number of a pod in a set; None if its name is not of this set."""
    text = pod.name.removeprefix(f"{stateful.name}-")
    known = text != pod.name and text.isdecimal() and str(int(text)) == text
    return int(text) if known else None


def revision_of(pod: Record) -> str:
    """The revision of a pod's template."""
    return str((pod.metadata.get("labels") or {}).get(_REVISION, ""))


def turn(spec: Mapping[str, Any], pods: Mapping[int, Record], revision: str) -> Turn:
    """The next step to the intended pods of template `revision`. `pods`: existing ones, by number."""
    start = int((spec.get("ordinals") or {}).get("start", 0))
    wanted = range(start, start + int(spec.get("replicas", 1)))
    ordered = spec.get("podManagementPolicy") != "Parallel"
    made: list[int] = []
    gone = [pod for number, pod in pods.items() if number in wanted and is_over(pod)]
    for number in wanted:
        pod = pods.get(number)
        if pod is None:
            made.append(number)
        if len(made) == AT_ONCE or (ordered and not _serves(pod)):
            return Turn(tuple(made), tuple(gone))
    beyond = [pods[number] for number in sorted(pods, reverse=True) if number not in wanted]
    if beyond:
        return Turn(tuple(made), (*gone, *(beyond[:1] if ordered else beyond)))
    return Turn(tuple(made), (*gone, *_outdated(spec, pods, revision, wanted)))


def _outdated(
    spec: Mapping[str, Any], pods: Mapping[int, Record], revision: str, wanted: range
) -> Iterable[Record]:
    """The next pod to replace after a change of the template, the last one first."""
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return ()
    partition = int((strategy.get("rollingUpdate") or {}).get("partition", 0))
    for number in reversed(wanted[partition:]):
        pod = pods.get(number)
        if pod is not None and revision_of(pod) != revision:
            return (pod,)
        if not _serves(pod):
            return ()
    return ()


def _serves(pod: Record | None) -> bool:
    return (
        pod is not None
        and ready(pod)
        and not is_over(pod)
        and not pod.metadata.get("deletionTimestamp")
    )


def set_pod(value: Mapping[str, Any], number: int, revision: str) -> dict[str, Any]:
    """The pod of a number, with its network name and the claims of its volumes."""
    made = pod_of(value, "StatefulSet", "apps/v1")
    spec, head = made["spec"], made["metadata"]
    name = f"{value['metadata']['name']}-{number}"
    del head["generateName"]
    head["name"] = name
    head["labels"] |= {_NAME: name, _INDEX: str(number), _REVISION: revision}
    claims = [one["metadata"]["name"] for one in value["spec"].get("volumeClaimTemplates") or ()]
    others = [one for one in spec.get("volumes") or () if one.get("name") not in claims]
    mounted = [
        {"name": one, "persistentVolumeClaim": {"claimName": f"{one}-{name}"}} for one in claims
    ]
    spec["hostname"] = name
    if service := value["spec"].get("serviceName"):
        spec["subdomain"] = service
    if claims:
        spec["volumes"] = [*others, *mounted]
    return made


def set_status(value: Mapping[str, Any], pods: Iterable[Record], revision: str) -> dict[str, Any]:
    """A set's status; its current revision is the last one that all its pods had."""
    pods = list(pods)
    before = str((value.get("status") or {}).get("currentRevision") or revision)
    wanted = int(value["spec"].get("replicas", 1))
    serving = sum(map(ready, pods))
    updated = sum(revision_of(pod) == revision for pod in pods)
    current = revision if updated == len(pods) == serving == wanted else before
    return {
        "observedGeneration": value["metadata"].get("generation", 1),
        "replicas": len(pods),
        "readyReplicas": serving,
        "availableReplicas": serving,
        "currentReplicas": sum(revision_of(pod) == current for pod in pods),
        "updatedReplicas": updated,
        "currentRevision": current,
        "updateRevision": revision,
    }
