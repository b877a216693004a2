"""What a soak and a fail-over run must have shown to count as passed.

Nothing found is no proof that anything was looked at: a run in which nothing was bound, no audit
was read or no leader was lost fails too.
"""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["BINDING_SECONDS", "failed", "failover_failed", "gap_promised"]

Summary = Mapping[str, Any]

BINDING_SECONDS = 10.0
"""Time-out of a Binding, by default."""
_SERVES_SECONDS = 3.0
_PLUGGED_SECONDS = 6.0
"""By the plugin what an earlier leader may have sent is waited for within the Lease: 2 s between two tries to get it,
1 s between two looks at it, and 3 s to serve."""
HTTP_TIMEOUT = 10.0
"""kube-scheduler's patience with an extender: a leader that stands still keeps its connections. The plugin has no part in
this: kube-scheduler gives up the Lease five seconds after its engine's last answer, or loses it."""
RATE_SHARE = 0.97
BOUND_SHARE = 0.95
RELEASE_SECONDS = 3.0
RELEASES = 200
"""Fewer say nothing about a 99th percentile."""
_LONG_MINUTES = 10.0
"""A run of this length must have met every fault, every shape and enough releases."""
_GROWTH = 1.25
_GROWTH_MIB = 24.0


def gap_promised(lease: float, seam: str) -> float:
    """Seconds from the death of a leader to the next Binding, at most."""
    if seam == "plugin":
        return lease + _PLUGGED_SECONDS
    return lease + BINDING_SECONDS + _SERVES_SECONDS


def failed(summary: Summary) -> list[str]:
    """What a soak did not fulfil, one sentence each; empty when it passed."""
    return [*_sound(summary), *_looked(summary), *_rates(summary), *_times(summary)]


def _sound(summary: Summary) -> Iterator[str]:
    """Nothing may have gone wrong."""
    for key in ("audits_that_found_something", "broken_invariants", "crashes"):
        if summary[key]:
            yield f"{key}: {summary[key]}"
    if summary["units_left_at_the_end"] != 0:
        yield f"units left at the end: {summary['units_left_at_the_end']}, not 0"
    for name, lines in summary["tracebacks"].items():
        if lines:
            yield f"{lines} tracebacks in the log of {name}"


def _looked(summary: Summary) -> Iterator[str]:
    """What was not looked at was not found sound."""
    if summary["audits"] < 1 or summary["audits"] < summary["audits_least"]:
        yield f"{summary['audits']} clean audits were read, {summary['audits_least']} were due"
    if not summary["changes_looked_at"]:
        yield "no change of a pod was looked at"
    long = summary["minutes"] >= _LONG_MINUTES
    for name, count in summary["pods"]["bound_by_shape"].items():
        if long and not count:
            yield f"no pod of shape {name} was bound"
    if not summary["faults"] and not summary["quiet"]:
        yield "nothing was broken"
    if long and not summary["only"]:
        for name, count in summary["faults"].items():
            if not count:
                yield f"fault {name} never happened"


def _rates(summary: Summary) -> Iterator[str]:
    pods, rate = summary["pods"], summary["rate"]
    if not pods["bound"]:
        yield "no pod was bound"
    if pods["bound"] < BOUND_SHARE * pods["made"]:
        yield f"{pods['bound']} of {pods['made']} pods were bound, less than {BOUND_SHARE:.0%}"
    calm = summary["outside_of_announced_faults"]
    if not calm["seconds"]:
        yield "all of the run was an announced fault"
        return
    for what, share in (("made", RATE_SHARE), ("bound", BOUND_SHARE)):
        if calm[f"{what}_per_second"] < share * rate:
            yield (
                f"{calm[f'{what}_per_second']} pods a second were {what} outside of announced "
                f"faults, less than {share:.0%} of {rate:g}"
            )


def _times(summary: Summary) -> Iterator[str]:
    promised = gap_promised(summary["lease"], summary["seam"])
    lost = sum(row["times"] for row in summary["leader_lost"].values())
    if summary["minutes"] >= _LONG_MINUTES and not (lost or summary["quiet"] or summary["only"]):
        yield "no leader was lost"
    for how, row in summary["leader_lost"].items():
        hangs = how == "stood still" and summary["seam"] == "extender"
        most = promised + (HTTP_TIMEOUT if hangs else 0.0)
        if row["max_s"] > most:
            yield f"a leader was {how}, and nothing was bound for {row['max_s']} s, over {most:g}"
    release = summary["release_to_next_binding"]
    due = RELEASES if summary["minutes"] >= _LONG_MINUTES else 1
    if release["counted"] < due:
        yield f"{release['counted']} releases were counted, {due} are needed"
    if release["p99_s"] > RELEASE_SECONDS:
        yield f"release to next Binding p99 {release['p99_s']} s, over {RELEASE_SECONDS:g}"
    memory = summary["memory_mib"]
    most = memory["early"] * _GROWTH + _GROWTH_MIB
    if memory["seen"] and memory["late"] > most:
        yield f"memory grew from {memory['early']} to {memory['late']} MiB, over {most:.0f}"


def failover_failed(summary: Summary, lease: float, kills: int) -> list[str]:
    """What a fail-over run did not fulfil."""
    wrong = [f"tracebacks: {summary['tracebacks'][:3]}"] if summary["tracebacks"] else []
    if summary["kills"] < max(kills, 1):
        wrong.append(f"{summary['kills']} leaders were killed, {kills} were to be")
    if not summary["bound"]:
        wrong.append("no pod was bound")
    most = gap_promised(lease, summary["seam"])
    if summary["worst"]["binding"] > most:
        wrong.append(f"nothing was bound for {summary['worst']['binding']} s, over {most:g}")
    return wrong
