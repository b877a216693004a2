"""The ends and restarts of a simulated pod's containers: pure functions of known facts about one and a moment.

Source: the kubelet of Kubernetes 1.36, as far as users see: whether a container is started again,
and after which pause.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from partage.embedded.lifetimes import FOREVER, Course

_AGAIN: Final = 1.0
"""Least seconds between two starts of a container that ends by itself and restarts."""
_FIRST: Final = 10
_LONGEST: Final = 300
_DOUBLED: Final = 5
"""Doublings of a pause until it is the longest."""
_STEADY: Final = 600.0
"""Seconds of a run after which a failed container restarts without a pause."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One ended run; `started` is its beginning, in Kubernetes' format."""

    started: str
    ended: str
    code: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """Known facts of one container.

    Attributes:
        started: beginning of its present or last run.
        over: its final run; None while it runs or will run again.
        last: the run before the present one.
        waits: it failed, and restarts after a pause.
    """

    started: str
    restarts: int = 0
    over: Ran | None = None
    last: Ran | None = None
    waits: bool = False

    @property
    def runs(self) -> bool:
        """Whether it runs now."""
        return self.over is None and not self.waits


def again(policy: str, code: int) -> bool:
    """Whether a container with this end restarts."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def length(turn: Turn, course: Course, policy: str) -> float:
    """Seconds from the turn's beginning until its next change."""
    if turn.over is not None:
        return FOREVER
    if turn.waits:
        return float(pause(turn))
    return max(course.seconds, _AGAIN) if again(policy, course.code) else course.seconds


def pause(turn: Turn) -> int:
    """Seconds before a container that failed again restarts: 10, 20, 40, and no more than 300."""
    return min(_LONGEST, _FIRST << min(max(turn.restarts - 1, 0), _DOUBLED))


def followed(turn: Turn, course: Course, policy: str, moment: str) -> Turn:
    """The next turn, after a turn's seconds."""
    if turn.waits:
        return Turn(moment, turn.restarts + 1, last=turn.last)
    ran = Ran(turn.started, moment, course.code)
    if not again(policy, course.code):
        return replace(turn, over=ran)
    if course.code and turn.restarts and course.seconds < _STEADY:
        return replace(turn, last=ran, waits=True)
    return Turn(moment, turn.restarts + 1, last=ran)


def turn_of(status: Mapping[str, Any]) -> Turn | None:
    """The turn in a container's status; None if it has none that continues."""
    state = status.get("state") or {}
    restarts = int(status.get("restartCount") or 0)
    last = _ran((status.get("lastState") or {}).get("terminated"))
    over = _ran(state.get("terminated"))
    started = (state.get("running") or {}).get("startedAt")
    if started:
        return Turn(started, restarts, last=last)
    if over is not None:
        return Turn(over.started, restarts, over=over, last=last)
    if "waiting" in state and last is not None:
        return Turn(last.started, restarts, last=last, waits=True)
    return None


def _ran(terminated: Mapping[str, Any] | None) -> Ran | None:
    found = terminated or {}
    if not found.get("startedAt") or not found.get("finishedAt"):
        return None
    return Ran(found["startedAt"], found["finishedAt"], int(found.get("exitCode") or 0))
