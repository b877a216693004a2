"""Runs a preemption plan's search to its end, for tests that give no other task a turn."""

from typing import Any

from partage.scheduler.preemption import Plan, planning


def plan_on(*asked: Any, **more: Any) -> Plan | None:
    """The result of `planning`, whose arguments these are."""
    steps = planning(*asked, **more)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Plan | None = end.value
            return found
