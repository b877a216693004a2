"""The verdict of `make soak` and `make failover`: a run that shows nothing has not passed."""

from copy import deepcopy
from typing import Any

import pytest
from churn import SHAPES
from verdict import failed, failover_failed

GOOD: dict[str, Any] = {
    "minutes": 20.0,
    "rate": 50.0,
    "lease": 15,
    "seam": "extender",
    "quiet": False,
    "only": "",
    "pods": {
        "made": 60_000,
        "bound": 59_000,
        "bound_by_shape": dict.fromkeys(SHAPES, 100),
    },
    "outside_of_announced_faults": {
        "seconds": 800,
        "made_per_second": 49.9,
        "bound_per_second": 49.5,
    },
    "release_to_next_binding": {"counted": 400, "p99_s": 0.9},
    "faults": {"requests fail": 40, "the leader is killed": 3},
    "leader_lost": {
        "killed": {"times": 3, "max_s": 22.0},
        "stood still": {"times": 3, "max_s": 30.0},
    },
    "changes_looked_at": 400_000,
    "audits": 500,
    "audits_least": 200,
    "audits_that_found_something": [],
    "broken_invariants": [],
    "units_left_at_the_end": 0.0,
    "crashes": [],
    "tracebacks": {"steady": 0},
    "memory_mib": {"seen": True, "early": 110, "late": 120},
}

BROKEN: dict[str, tuple[str, Any]] = {
    "no audit": ("audits", 0),
    "too few audits": ("audits", 150),
    "an audit found something": ("audits_that_found_something", ["9 s: leaked"]),
    "nothing bound": ("pods.bound", 0),
    "many never bound": ("pods.bound", 50_000),
    "a shape never bound": ("pods.bound_by_shape.metax", 0),
    "seven a second": ("outside_of_announced_faults.made_per_second", 7.2),
    "bound too slowly": ("outside_of_announced_faults.bound_per_second", 40.0),
    "never calm": ("outside_of_announced_faults.seconds", 0),
    "a broken invariant": ("broken_invariants", ["I1: …"]),
    "no change looked at": ("changes_looked_at", 0),
    "a crash": ("crashes", ["steady ended with 1"]),
    "a traceback": ("tracebacks.steady", 1),
    "something left": ("units_left_at_the_end", 500.0),
    "no figure of what is left": ("units_left_at_the_end", None),
    "a fault that never came": ("faults.the leader is killed", 0),
    "no fault": ("faults", {}),
    "a late successor": ("leader_lost.killed.max_s", 28.5),
    "a late successor of one that stands still": ("leader_lost.stood still.max_s", 38.5),
    "no leader was lost": ("leader_lost", {"killed": {"times": 0, "max_s": 0.0}}),
    "a slow release": ("release_to_next_binding.p99_s", 3.2),
    "too few releases": ("release_to_next_binding.counted", 199),
    "memory that grows": ("memory_mib.late", 170),
}
"""What is different, and how, by name."""


def changed(place: str, value: Any) -> dict[str, Any]:
    """A good summary with one difference."""
    summary = deepcopy(GOOD)
    *path, last = place.split(".")
    part = summary
    for key in path:
        part = part[key]
    part[last] = value
    return summary


def test_a_good_run_passes() -> None:
    """Nothing is asked that a good run does not show."""
    assert failed(GOOD) == []


@pytest.mark.parametrize("how", BROKEN)
def test_a_run_fails_for_each_single_lack(how: str) -> None:
    """One sentence names it, and nothing else."""
    assert len(failed(changed(*BROKEN[how]))) == (2 if how == "nothing bound" else 1)


@pytest.mark.parametrize(("seconds", "wrong"), [(20.9, 0), (21.1, 1)])
def test_by_the_plugin_no_open_connection_keeps_a_leader_that_stands_still(
    seconds: float, wrong: int
) -> None:
    """It may take as long as one that is killed, and no longer."""
    plugged = changed("seam", "plugin")
    for row in plugged["leader_lost"].values():
        row["max_s"] = 20.0
    plugged["leader_lost"]["stood still"]["max_s"] = seconds
    assert len(failed(plugged)) == wrong


def test_a_short_run_need_not_meet_every_fault() -> None:
    """It still must bind, audit and keep its rate."""
    short = changed("minutes", 1.0)
    short["faults"]["the leader is killed"] = 0
    short["release_to_next_binding"]["counted"] = 5
    assert failed(short) == []


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        pytest.param({}, 0, id="kept"),
        pytest.param({"worst": {"binding": 28.4}}, 1, id="too late"),
        pytest.param({"seam": "plugin", "worst": {"binding": 21.1}}, 1, id="too late by plugin"),
        pytest.param({"kills": 4}, 1, id="a kill is missing"),
        pytest.param({"kills": 0, "bound": 0}, 2, id="nothing happened"),
        pytest.param({"tracebacks": ["Traceback"]}, 1, id="a traceback"),
    ],
)
def test_a_fail_over_keeps_its_promise(change: dict[str, Any], lacks: int) -> None:
    """Lease, time-out of a Binding and 3 s; with the defaults 28 s, and 21 by the plugin."""
    run = {
        "kills": 5,
        "bound": 600,
        "tracebacks": [],
        "seam": "extender",
        "worst": {"binding": 27.9},
    }
    assert len(failover_failed(run | change, lease=15, kills=5)) == lacks
