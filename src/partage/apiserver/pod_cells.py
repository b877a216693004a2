"""The cells of a pod that follow from its containers: how many are ready, its status in a word, and restarts.

Source: `printPod` in `pkg/printers/internalversion` of Kubernetes 1.36.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Value = Mapping[str, Any]

_OVER: Final = ("Succeeded", "Failed")
_LOST: Final = "NodeLost"


@dataclass(slots=True)
class PodCells:
    """The containers' cells of `kubectl get pods`. `last`: the end of the run before the last restart, or empty."""

    ready: int = 0
    total: int = 0
    status: str = ""
    restarts: int = 0
    last: str = ""

    @property
    def readiness(self) -> str:
        """The containers that are ready, of all."""
        return f"{self.ready}/{self.total}"

    def restarted(self, ago: Callable[[str], str]) -> str:
        """The restarts, with the time since the last one by `ago`."""
        return (
            f"{self.restarts} ({ago(self.last)} ago)"
            if self.restarts and self.last
            else f"{self.restarts}"
        )


def pod_cells(pod: Value) -> PodCells:
    """The cells of a pod."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    begun = {one.get("name"): one for one in spec.get("initContainers") or ()}
    sidecars = {name for name, one in begun.items() if one.get("restartPolicy") == "Always"}
    phase = str(status.get("phase") or "")
    made = PodCells(
        total=len(spec.get("containers") or ()) + len(sidecars),
        status=str(status.get("reason") or phase),
    )
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    if (conditions.get("PodScheduled") or {}).get("reason") == "SchedulingGated":
        made.status = "SchedulingGated"
    states = status.get("initContainerStatuses") or ()
    word = _starting(states, sidecars, len(begun), made)
    if word:
        made.status = word
    if not word or (conditions.get("Initialized") or {}).get("status") == "True":
        made.restarts, made.last = 0, ""
        for one in states:
            if one.get("name") in sidecars:
                _restarts(one, made)
        ready = (conditions.get("Ready") or {}).get("status") == "True"
        _main(status.get("containerStatuses") or (), made, ready=ready)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == _LOST:
            made.status = "Unknown"
        elif phase not in _OVER:
            made.status = "Terminating"
    return made


def _starting(states: Any, sidecars: set[Any], total: int, made: PodCells) -> str:
    """The word for init containers that have not all ended or started; empty otherwise."""
    for number, one in enumerate(states):
        _restarts(one, made)
        state = one.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and not ended.get("exitCode"):
            continue
        if one.get("name") in sidecars and one.get("started"):
            made.ready += bool(one.get("ready"))
            continue
        if ended is not None:
            return f"Init:{_end(ended)}"
        if waiting.get("reason", "") not in ("", "PodInitializing"):
            return f"Init:{waiting['reason']}"
        return f"Init:{number}/{total}"
    return ""


def _main(states: Any, made: PodCells, *, ready: bool) -> None:
    """Counts the main containers, and takes the word of the first that waits or has ended."""
    runs, failed = False, ""
    for one in reversed(states):
        _restarts(one, made)
        state = one.get("state") or {}
        ended = state.get("terminated")
        if (state.get("waiting") or {}).get("reason"):
            made.status = str(state["waiting"]["reason"])
        elif ended is not None:
            made.status = _end(ended)
            failed = made.status if ended.get("exitCode") else failed
        elif one.get("ready") and state.get("running") is not None:
            runs = True
            made.ready += 1
    if made.status == "Completed":
        idle = failed or ("NotReady" if runs else "Completed")
        made.status = "Running" if runs and ready else idle


def _end(ended: Value) -> str:
    """The end of a container in a word."""
    if ended.get("reason"):
        return str(ended["reason"])
    signal = ended.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{ended.get('exitCode') or 0}"


def _restarts(one: Value, made: PodCells) -> None:
    made.restarts += int(one.get("restartCount") or 0)
    last = ((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
    made.last = max(made.last, str(last))
