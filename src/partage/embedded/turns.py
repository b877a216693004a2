"""The ends and restarts of a simulated pod's containers: pure functions of known facts about one and a moment.

Source: the kubelet of Kubernetes 1.36, as far as users see: whether a container is started again,
and after which pause.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from partage.embedded.lifetimes import FOREVER, Course

_AGAIN: Final = 1.0
"""Least seconds between two starts of a container that ends by itself and is started again."""
_FIRST: Final = 10
_LONGEST: Final = 300
_DOUBLED: Final = 5
"""So often a pause is doubled until it is the longest."""
_STEADY: Final = 600.0
"""Seconds after which a container that failed is started again without a pause."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run that is over; `started` says when it began, as Kubernetes writes it."""

    started: str
    ended: str
    code: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What is known of one container.

    Attributes:
        started: when its present run began, or its last one.
        restarts: how often it was started again.
        over: its run that ended for good; None while it runs or will run again.
        last: the run before the present one.
        waits: it failed, and is started again after a pause.
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
    """Whether a container that ended so is started again."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def length(turn: Turn, course: Course, policy: str) -> float:
    """Seconds from the turn's beginning until something happens to it."""
    if turn.over is not None:
        return FOREVER
    if turn.waits:
        return float(pause(turn))
    return max(course.seconds, _AGAIN) if again(policy, course.code) else course.seconds


def pause(turn: Turn) -> int:
    """Seconds before a container that failed again is started: 10, 20, 40, and no more than 300."""
    return min(_LONGEST, _FIRST << min(max(turn.restarts - 1, 0), _DOUBLED))


def followed(turn: Turn, course: Course, policy: str, moment: str) -> Turn:
    """What comes next, once a turn's seconds are over."""
    if turn.waits:
        return Turn(moment, turn.restarts + 1, last=turn.last)
    ran = Ran(turn.started, moment, course.code)
    if not again(policy, course.code):
        return replace(turn, over=ran)
    if course.code and turn.restarts and course.seconds < _STEADY:
        return replace(turn, last=ran, waits=True)
    return Turn(moment, turn.restarts + 1, last=ran)


def turn_of(status: Mapping[str, Any]) -> Turn | None:
    """What a container's status says; None where it says nothing that goes on."""
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
