"""The status that a kubelet writes of a simulated pod: pure functions of the pod and a moment."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_ALWAYS: Final = "Always"
_COMPLETED: Final = "Completed"


@dataclass(frozen=True, slots=True)
class Life:
    """What is known of a pod's run.

    Attributes:
        started: when its present containers started, as Kubernetes writes it.
        first: when the pod started.
        restarts: how often its containers were started again.
        ended: when they ended; empty while they run.
        address: its node's address.
    """

    started: str
    first: str
    restarts: int = 0
    ended: str = ""
    address: str = ""


def running(pod: Mapping[str, Any], life: Life) -> dict[str, Any]:
    """Status of a pod whose containers run."""
    now = {"running": {"startedAt": life.started}}
    last = {"terminated": _terminated(life.started, life.started)} if life.restarts else {}
    return {
        "phase": "Running",
        **_place(pod, life),
        "conditions": _conditions(life.first, life.started, ready=True),
        "initContainerStatuses": _initial(pod, life),
        "containerStatuses": [
            _container(one, life, now, ready=True, last=last) for one in _main(pod)
        ],
    }


def finished(pod: Mapping[str, Any], life: Life) -> dict[str, Any]:
    """Status of a pod whose containers ended well."""
    over = {"terminated": _terminated(life.started, life.ended)}
    return {
        "phase": "Succeeded",
        **_place(pod, life),
        "conditions": _conditions(life.first, life.ended, ready=False, reason="PodCompleted"),
        "initContainerStatuses": _initial(pod, life),
        "containerStatuses": [_container(one, life, over, ready=False) for one in _main(pod)],
    }


def failed(reason: str, message: str, moment: str) -> dict[str, Any]:
    """Status of a pod that the kubelet does not admit."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": moment,
    }


def _place(pod: Mapping[str, Any], life: Life) -> dict[str, Any]:
    uid = str(pod["metadata"].get("uid", ""))
    number = int(hashlib.sha256(uid.encode()).hexdigest()[:6], 16)
    address = f"10.{128 + number % 64}.{number // 64 % 256}.{number // 16384 % 254 + 1}"
    return {
        "hostIP": life.address,
        "hostIPs": [{"ip": life.address}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": life.first,
    }


def _conditions(
    first: str, changed: str, *, ready: bool, reason: str = ""
) -> list[dict[str, Any]]:
    state = "True" if ready else "False"
    why = {"reason": reason} if reason else {}
    return [
        {
            "type": "PodReadyToStartContainers",
            "status": state,
            "lastTransitionTime": first if ready else changed,
        },
        {"type": "Initialized", "status": "True", "lastTransitionTime": first, **why},
        {"type": "Ready", "status": state, "lastTransitionTime": changed, **why},
        {"type": "ContainersReady", "status": state, "lastTransitionTime": changed, **why},
    ]


def _main(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (pod.get("spec") or {}).get("containers") or ()


def _initial(pod: Mapping[str, Any], life: Life) -> list[dict[str, Any]]:
    """Init containers ended at once; sidecars among them share the pod's fate."""
    statuses = []
    for one in (pod.get("spec") or {}).get("initContainers") or ():
        sidecar = one.get("restartPolicy") == _ALWAYS
        if sidecar and not life.ended:
            state: dict[str, Any] = {"running": {"startedAt": life.first}}
        else:
            state = {"terminated": _terminated(life.first, life.ended if sidecar else life.first)}
        ready = not sidecar or not life.ended
        statuses.append(_container(one, life, state, ready=ready))
    return statuses


def _container(
    one: Mapping[str, Any],
    life: Life,
    state: Mapping[str, Any],
    *,
    ready: bool,
    last: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    image = str(one.get("image") or "")
    digest = hashlib.sha256(f"{image}/{life.started}/{one.get('name')}".encode()).hexdigest()
    return {
        "name": one.get("name", ""),
        "image": image,
        "imageID": f"simulated://{image}",
        "containerID": f"simulated://{digest}",
        "ready": ready,
        "started": "running" in state,
        "restartCount": life.restarts,
        "state": dict(state),
        "lastState": dict(last or {}),
    }


def _terminated(started: str, ended: str) -> dict[str, Any]:
    return {
        "exitCode": 0,
        "reason": _COMPLETED,
        "startedAt": started,
        "finishedAt": ended,
        "containerID": "",
    }
