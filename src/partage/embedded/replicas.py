"""Decisions of the workload controllers: pure functions of a workload and its objects.

Source: apps/v1 and batch/v1 of Kubernetes 1.36, as far as their users see: the number of pods, their names,
their order, and the status.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from partage.apiserver import Record
from partage.embedded.watching import is_over, owner

_QUARTER: Final = "25%"
_SAFE: Final = "bcdfghjklmnpqrstvwxz2456789"
_HASH: Final = "pod-template-hash"
AT_ONCE: Final = 500
"""Most pods that one step of a workload makes. The pods' own changes cause the next step, and other workloads have
their turn between. Kubernetes' controllers have the same bound."""


def active(pods: Iterable[Record]) -> list[Record]:
    """Pods that are neither ended nor in deletion."""
    return [pod for pod in pods if not pod.metadata.get("deletionTimestamp") and not is_over(pod)]


def ready(pod: Record) -> bool:
    """Whether the pod serves."""
    return any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in (pod.value.get("status") or {}).get("conditions") or ()
    )


def _phase(pod: Record) -> str:
    return str((pod.value.get("status") or {}).get("phase") or "Pending")


def surplus(pods: Sequence[Record], count: int) -> list[Record]:
    """The given number of least needed pods: those without a node, those not ready, the newest."""
    order = sorted(
        pods,
        key=lambda pod: (
            bool((pod.value.get("spec") or {}).get("nodeName")),
            ready(pod),
            -pod.revision,
        ),
    )
    return order[:count]


def template_hash(template: Any) -> str:
    """A short name of a pod template; equal templates have equal names."""
    text = msgspec.json.encode(template, order="deterministic")
    digest = hashlib.sha256(text).digest()
    return "".join(_SAFE[byte % len(_SAFE)] for byte in digest[:10])


def pod_of(value: Mapping[str, Any], kind: str, version: str) -> dict[str, Any]:
    """A workload's new pod; the API server generates the rest of its name."""
    template = value["spec"]["template"]
    inner = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{value['metadata']['name']}-",
            "labels": dict(inner.get("labels") or {}),
            "annotations": dict(inner.get("annotations") or {}),
            "ownerReferences": [owner(value, kind, version)],
        },
        "spec": dict(template.get("spec") or {}),
    }


# --- Deployments -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rollout:
    """Intended numbers of pods of a Deployment's present template and its earlier ones."""

    new: int
    old: int


def rollout(
    spec: Mapping[str, Any], new: int, new_ready: int, old: int, old_ready: int
) -> Rollout:
    """The next step of a rollout.

    Args:
        new: pods that the present template's ReplicaSet should have now.
        new_ready: those of them that serve.
        old: pods that earlier templates' ReplicaSets should have now.
        old_ready: those of them that serve.
    """
    wanted = int(spec.get("replicas", 1))
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Rollout(0 if old else wanted, 0)
    rolling = strategy.get("rollingUpdate") or {}
    surge = part_of(rolling.get("maxSurge", _QUARTER), wanted, up=True)
    spare = part_of(rolling.get("maxUnavailable", _QUARTER), wanted, up=False)
    if surge + spare == 0:
        spare = 1
    more = max(0, wanted + surge - new - old)
    grown = min(wanted, new + more)
    # Pods that do not serve go first; of the others, as many go as are replaced.
    idle = max(0, old - old_ready)
    removable = max(0, new_ready + old_ready - (wanted - spare))
    return Rollout(grown if old else wanted, max(0, old - idle - removable))


def part_of(value: Any, of: int, *, up: bool) -> int:
    """A number, or a percentage such as `25%` of one."""
    text = str(value)
    if not text.endswith("%"):
        return int(text)
    share = int(text[:-1]) * of
    return -(-share // 100) if up else share // 100


def replica_set_of(value: Mapping[str, Any], digest: str, count: int) -> dict[str, Any]:
    """The ReplicaSet of a Deployment's present template."""
    spec = value["spec"]
    template = spec["template"]
    inner = template.get("metadata") or {}
    labels = {**(inner.get("labels") or {}), _HASH: digest}
    selector = spec.get("selector") or {}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{value['metadata']['name']}-{digest}",
            "labels": labels,
            "ownerReferences": [owner(value, "Deployment", "apps/v1")],
        },
        "spec": {
            "replicas": count,
            "selector": {
                **selector,
                "matchLabels": {**(selector.get("matchLabels") or {}), _HASH: digest},
            },
            "template": {**template, "metadata": {**inner, "labels": labels}},
        },
    }


def deployment_status(
    value: Mapping[str, Any], new: Sequence[Record], old: Sequence[Record], moment: str
) -> dict[str, Any]:
    """A Deployment's status.

    Args:
        new: pods of the present template.
        old: pods of earlier ones.
        moment: now, in Kubernetes' format.
    """
    wanted = int(value["spec"].get("replicas", 1))
    everyone = [*new, *old]
    serving = sum(map(ready, everyone))
    available = serving >= wanted - part_of(
        ((value["spec"].get("strategy") or {}).get("rollingUpdate") or {}).get(
            "maxUnavailable", _QUARTER
        ),
        wanted,
        up=False,
    )
    complete = len(new) == wanted and not old and serving == wanted
    known = {one["type"]: one for one in (value.get("status") or {}).get("conditions") or ()}
    return {
        "observedGeneration": value["metadata"].get("generation", 1),
        "replicas": len(everyone),
        "updatedReplicas": len(new),
        "readyReplicas": serving,
        "availableReplicas": serving,
        "unavailableReplicas": max(0, wanted - serving),
        "conditions": [
            _condition(known, "Available", moment, "MinimumReplicas", holds=available),
            _condition(
                known,
                "Progressing",
                moment,
                "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated",
                holds=True,
            ),
        ],
    }


def _condition(
    known: Mapping[str, Mapping[str, Any]], kind: str, moment: str, reason: str, *, holds: bool
) -> dict[str, Any]:
    status = "True" if holds else "False"
    if kind == "Available":
        reason += "Available" if holds else "Unavailable"
    before = known.get(kind)
    if before is not None and (before.get("status"), before.get("reason")) == (status, reason):
        return dict(before)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": moment,
        "lastUpdateTime": moment,
    }


# --- Jobs ------------------------------------------------------------------------------------


def job_status(
    value: Mapping[str, Any], pods: Sequence[Record], moment: str
) -> tuple[dict[str, Any], int]:
    """A Job's status, and the number of pods that it lacks; below 0 it has too many.

    For an ended Job the number is 0.
    """
    spec, status = value["spec"], value.get("status") or {}
    succeeded = sum(_phase(pod) == "Succeeded" for pod in pods)
    failed = sum(_phase(pod) == "Failed" for pod in pods)
    running = active(pods)
    completions = spec.get("completions")
    parallelism = int(spec.get("parallelism", 1))
    over = any(one.get("type") in ("Complete", "Failed") for one in status.get("conditions") or ())
    told: dict[str, Any] = {
        "active": len(running),
        "ready": sum(map(ready, running)),
        "succeeded": succeeded,
        "failed": failed,
        "startTime": status.get("startTime") or moment,
    }
    if over:
        told["failed"] = max(failed, int(status.get("failed") or 0))
        return {**status, **told}, 0
    wanted = completions if completions is not None else max(1, succeeded)
    done = succeeded >= wanted and (completions is not None or not running) and succeeded > 0
    if completions == 0:
        done = True
    conditions = list(status.get("conditions") or ())
    if done:
        ended = [*conditions, _over("CompletionsReached", moment)]
        return {**told, "completionTime": moment, "conditions": ended}, 0
    limit = int(spec.get("backoffLimit", 6))
    why = ""
    if failed > limit or sum(map(_restarts, running)) >= max(limit, 1):
        why = "BackoffLimitExceeded"
    elif job_left(value, moment) <= 0:
        why = "DeadlineExceeded"
    if why:
        told["failed"] = failed + len(running)
        return {**told, "conditions": [*conditions, _over(why, moment)]}, -len(running)
    paused = any(one.get("type") == "Suspended" and one["status"] == "True" for one in conditions)
    if spec.get("suspend"):
        told |= {"startTime": None, "conditions": conditions if paused else [_suspended(moment)]}
        return told, -len(running)
    if paused:
        told |= {"startTime": moment, "conditions": [_suspended(moment, holds=False)]}
    left = parallelism if completions is None else min(parallelism, completions - succeeded)
    if completions is None and succeeded:
        left = len(running)  # a work queue: once one has succeeded, no more are started
    return told, left - len(running)


def job_left(value: Mapping[str, Any], moment: str) -> float:
    """Seconds until a Job's deadline; infinite where it has none or is suspended."""
    spec, status = value["spec"], value.get("status") or {}
    limit = spec.get("activeDeadlineSeconds")
    if limit is None or spec.get("suspend"):
        return float("inf")
    start = datetime.fromisoformat(status.get("startTime") or moment)
    return float(limit) - (datetime.fromisoformat(moment) - start).total_seconds()


def _suspended(moment: str, *, holds: bool = True) -> dict[str, Any]:
    return {
        "type": "Suspended",
        "status": "True" if holds else "False",
        "lastTransitionTime": moment,
        "lastProbeTime": moment,
        "reason": "JobSuspended" if holds else "JobResumed",
        "message": "Job suspended" if holds else "Job resumed",
    }


def _restarts(pod: Record) -> int:
    """Number of failed containers of a pod that its node restarted."""
    if (pod.value.get("spec") or {}).get("restartPolicy") != "OnFailure":
        return 0
    states = (pod.value.get("status") or {}).get("containerStatuses") or ()
    return sum(int(one.get("restartCount") or 0) for one in states)


_ENDS: Final = {
    "CompletionsReached": "Reached expected number of succeeded pods",
    "BackoffLimitExceeded": "Job has reached the specified backoff limit",
    "DeadlineExceeded": "Job was active longer than specified deadline",
}


def _over(reason: str, moment: str) -> dict[str, Any]:
    return {
        "type": "Complete" if reason == "CompletionsReached" else "Failed",
        "status": "True",
        "lastTransitionTime": moment,
        "lastProbeTime": moment,
        "reason": reason,
        "message": _ENDS[reason],
    }
