"""The status of a simulated pod, as a kubelet writes it: pure functions of the pod and a moment."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from partage.embedded.turns import Ran, Turn, pause

_ALWAYS: Final = "Always"
_KILLED: Final = 137
"""Exit code of a killed container."""


@dataclass(frozen=True, slots=True)
class Life:
    """Known facts of a pod's run; `first` is its start, in Kubernetes' format."""

    first: str
    address: str
    turns: tuple[Turn, ...]

    @property
    def over(self) -> bool:
        """Whether every container has ended for good."""
        return all(turn.over is not None for turn in self.turns)


def started(pod: Mapping[str, Any], life: Life, moment: str) -> dict[str, Any]:
    """Status of a pod with started containers, at a moment at which some of them changed."""
    ended = [turn.over.code for turn in life.turns if turn.over is not None]
    phase = "Running" if not life.over else "Failed" if any(ended) else "Succeeded"
    return {
        "phase": phase,
        **_place(pod, life),
        "conditions": _conditions(pod, life, phase, moment),
        "initContainerStatuses": _initial(pod, life, moment),
        "containerStatuses": [
            _container(one, turn, _state(pod, one, turn))
            for one, turn in zip(_main(pod), life.turns, strict=True)
        ],
    }


def overdue(pod: Mapping[str, Any], life: Life, moment: str) -> dict[str, Any]:
    """Status of a pod whose containers were killed at its deadline."""
    turns = (
        turn
        if turn.over is not None
        else replace(turn, over=Ran(turn.started, moment, _KILLED), waits=False)
        for turn in life.turns
    )
    return {
        **started(pod, replace(life, turns=tuple(turns)), moment),
        "phase": "Failed",
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
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
    pod: Mapping[str, Any], life: Life, phase: str, moment: str
) -> list[dict[str, Any]]:
    idle = [
        one.get("name", "")
        for one, turn in zip(_main(pod), life.turns, strict=True)
        if not turn.runs
    ]
    why: dict[str, Any] = {"reason": None, "message": None}  # removes the earlier ones
    if life.over:
        why["reason"] = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    elif idle:
        why["reason"] = "ContainersNotReady"
        why["message"] = f"containers with unready status: [{' '.join(idle)}]"
    completed = {"reason": why["reason"]} if phase == "Succeeded" else {}
    state = {"status": "False" if idle else "True", "lastTransitionTime": moment, **why}
    return [
        {
            "type": "PodReadyToStartContainers",
            "status": "False" if life.over else "True",
            "lastTransitionTime": moment if life.over else life.first,
        },
        {
            "type": "Initialized",
            "status": "True",
            "lastTransitionTime": life.first,
            **completed,
        },
        {"type": "Ready", **state},
        {"type": "ContainersReady", **state},
    ]


def _main(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (pod.get("spec") or {}).get("containers") or ()


def _initial(pod: Mapping[str, Any], life: Life, moment: str) -> list[dict[str, Any]]:
    """Statuses of init containers: they ended at once, but sidecars live as long as the pod."""
    statuses = []
    for one in (pod.get("spec") or {}).get("initContainers") or ():
        sidecar = one.get("restartPolicy") == _ALWAYS
        if sidecar and not life.over:
            turn = Turn(life.first)
        else:
            turn = Turn(life.first, over=Ran(life.first, moment if sidecar else life.first))
        found = _container(one, turn, _state(pod, one, turn))
        statuses.append({**found, "ready": not sidecar or turn.runs})
    return statuses


def _container(one: Mapping[str, Any], turn: Turn, state: Mapping[str, Any]) -> dict[str, Any]:
    image = str(one.get("image") or "")
    digest = hashlib.sha256(f"{image}/{turn.started}/{one.get('name')}".encode()).hexdigest()
    return {
        "name": one.get("name", ""),
        "image": image,
        "imageID": f"simulated://{image}",
        "containerID": f"simulated://{digest}",
        "ready": turn.runs,
        "started": turn.runs,
        "restartCount": turn.restarts,
        "state": dict(state),
        "lastState": {"terminated": _terminated(turn.last)} if turn.last is not None else {},
    }


def _state(pod: Mapping[str, Any], one: Mapping[str, Any], turn: Turn) -> dict[str, Any]:
    if turn.over is not None:
        return {"terminated": _terminated(turn.over)}
    if not turn.waits:
        return {"running": {"startedAt": turn.started}}
    return {"waiting": {"reason": "CrashLoopBackOff", "message": back_off(pod, one, turn)}}


def back_off(pod: Mapping[str, Any], one: Mapping[str, Any], turn: Turn) -> str:
    """The message about a failed container that waits for its restart."""
    head = pod["metadata"]
    return (
        f"back-off {pause(turn)}s restarting failed container={one.get('name', '')} "
        f"pod={head.get('name', '')}_{head.get('namespace', '')}({head.get('uid', '')})"
    )


def _terminated(ran: Ran) -> dict[str, Any]:
    return {
        "exitCode": ran.code,
        "reason": "Error" if ran.code else "Completed",
        "startedAt": ran.started,
        "finishedAt": ran.ended,
        "containerID": "",
    }
