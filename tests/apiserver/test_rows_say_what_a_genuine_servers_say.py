"""Cells of pods in each state, and of other kinds where one rule is easily forgotten.

`tests/cluster/test_tables_show_what_a_genuine_server_shows.py` compares many more with a genuine server.
"""

from typing import Any

import pytest

from partage.apiserver.columns import COLUMNS

NOW = 1_700_000_000.0
OLD = "2023-11-14T22:08:20Z"  # five minutes before
RUNS = {"running": {"startedAt": OLD}}
LAST = {"terminated": {"exitCode": 1, "finishedAt": OLD}}
READY = [{"type": "Ready", "status": "True"}]
BEGUN = [{"type": "Initialized", "status": "True"}]


def row(resource: str, value: dict[str, Any]) -> dict[str, Any]:
    """The cells of an object, by heading."""
    made = {"metadata": {"name": "one", "creationTimestamp": OLD}, **value}
    return {column.name: column.cell(made, NOW) for column in COLUMNS[resource]}


def state(how: dict[str, Any], name: str = "a", **more: Any) -> dict[str, Any]:
    """A container's status."""
    return {"name": name, "state": how, **more}


def ended(code: int, reason: str = "", signal: int = 0) -> dict[str, Any]:
    """The state of a container that has ended."""
    return {"terminated": {"exitCode": code, "reason": reason, "signal": signal}}


def main(*states: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The status of a pod with these containers."""
    return {"phase": "Running", "containerStatuses": list(states), **more}


def init(*states: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The status of a pod with these init containers, of which `s` is a sidecar."""
    return {"phase": "Pending", "initContainerStatuses": list(states), **more}


COMPLETED = state(ended(0, "Completed"))
POD = {
    "ready": (main(state(RUNS, ready=True)), "1/2 Running 0"),
    "ready without a state": (main(state({}, ready=True)), "0/2 Running 0"),
    "restarted": (main(state(RUNS, restartCount=2, lastState=LAST)), "0/2 Running 2 (5m ago)"),
    "restarted once, unknown when": (main(state(RUNS, restartCount=1)), "0/2 Running 1"),
    "waits": (main(state({"waiting": {"reason": "ErrImagePull"}})), "0/2 ErrImagePull 0"),
    "code": (main(state(ended(3))), "0/2 ExitCode:3 0"),
    "signal": (main(state(ended(137, signal=9))), "0/2 Signal:9 0"),
    "one runs": (
        main(COMPLETED, state(RUNS, "b", ready=True), conditions=READY),
        "1/2 Running 0",
    ),
    "one runs, not ready": (main(COMPLETED, state(RUNS, "b", ready=True)), "1/2 NotReady 0"),
    "one failed": (main(COMPLETED, state(ended(1, "Error"), "b")), "0/2 Error 0"),
    "all completed": (main(COMPLETED), "0/2 Completed 0"),
    "gated": (
        {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}],
        },
        "0/2 SchedulingGated 0",
    ),
    "first of two": (init(state(RUNS, "i")), "0/2 Init:0/2 0"),
    "sidecar starts": (init(state(ended(0), "i"), state(RUNS, "s")), "0/2 Init:1/2 0"),
    "init failed": (init(state(ended(2), "i", restartCount=4)), "0/2 Init:ExitCode:2 4"),
    "init waits": (init(state({"waiting": {"reason": "Nope"}}, "i")), "0/2 Init:Nope 0"),
    "init begins": (
        init(state({"waiting": {"reason": "PodInitializing"}}, "i")),
        "0/2 Init:0/2 0",
    ),
    "begun before": (
        init(state(RUNS, "i"), **main(state(RUNS, ready=True)), conditions=BEGUN),
        "1/2 Init:0/2 0",
    ),
    "sidecar runs": (
        init(
            state(ended(0), "i", restartCount=3),
            state(RUNS, "s", started=True, ready=True, restartCount=1),
            **main(state(RUNS, ready=True)),
        ),
        "2/2 Running 1",
    ),
}


@pytest.mark.parametrize("case", POD)
def test_a_pods_containers_are_told_in_a_word(case: str) -> None:
    """Ready containers, the status in one word, and restarts."""
    status, told = POD[case]
    spec = {
        "containers": [{"name": "a"}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
    }

    cells = row("pods", {"spec": spec, "status": status})

    assert f"{cells['Ready']} {cells['Status']} {cells['Restarts']}" == told


GOING = {
    "running": ({"phase": "Running"}, "Terminating"),
    "ended": ({"phase": "Succeeded"}, "Succeeded"),
    "lost": ({"phase": "Running", "reason": "NodeLost"}, "Unknown"),
}


@pytest.mark.parametrize("case", GOING)
def test_a_pod_in_deletion_says_so_while_it_runs(case: str) -> None:
    """An ended pod keeps its word."""
    status, told = GOING[case]
    head = {"name": "one", "deletionTimestamp": OLD}

    assert row("pods", {"metadata": head, "status": status})["Status"] == told


SELECTOR = {
    "matchLabels": {"z": "1", "b": "2"},
    "matchExpressions": [
        {"key": "a", "operator": "In", "values": ["3", "2"]},
        {"key": "y", "operator": "DoesNotExist"},
    ],
}
HELD = {"name": "one", "deletionTimestamp": OLD}
MET = {"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}
LOAD = {"ingress": [{"ip": "192.0.2.2"}, {"hostname": "a.example.com"}]}
OTHERS: dict[str, tuple[str, dict[str, Any], str, Any]] = {
    "selector": (
        "deployments.apps",
        {"spec": {"selector": SELECTOR}},
        "Selector",
        "a in (2,3),b=2,!y,z=1",
    ),
    "labels": ("services", {"spec": {"selector": {"b": "1", "a": "2"}}}, "Selector", "a=2,b=1"),
    "queue": ("jobs.batch", {"spec": {"parallelism": 3}}, "Completions", "0/1 of 3"),
    "one": ("jobs.batch", {"spec": {"parallelism": 1}}, "Completions", "0/1"),
    "met": ("jobs.batch", {"status": MET}, "Status", "SuccessCriteriaMet"),
    "held": ("jobs.batch", {"metadata": HELD, "status": MET}, "Status", "Terminating"),
    "reporter": (
        "events",
        {"source": {"component": "c"}, "reportingInstance": "i"},
        "Source",
        "c, i",
    ),
    "once": ("events", {"eventTime": OLD}, "Last Seen", "5m"),
    "never": ("events", {}, "Last Seen", "<unknown>"),
    "series": ("events", {"series": {"count": 7}}, "Count", 7),
    "pending": ("services", {"spec": {"type": "LoadBalancer"}}, "External-IP", "<pending>"),
    "balanced": (
        "services",
        {"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": LOAD}},
        "External-IP",
        "192.0.2.2,a.example.com",
    ),
    "outside": ("services", {"spec": {"externalIPs": ["192.0.2.1"]}}, "External-IP", "192.0.2.1"),
    "named": (
        "services",
        {"spec": {"type": "ExternalName", "externalName": "a.example.com"}},
        "External-IP",
        "a.example.com",
    ),
    "kernel": (
        "nodes",
        {"status": {"nodeInfo": {"kernelVersion": "6", "architecture": "amd64"}}},
        "Kernel-Version",
        "6 (amd64)",
    ),
    "subjects": (
        "rolebindings.rbac.authorization.k8s.io",
        {"subjects": [{"kind": "ServiceAccount", "namespace": "team", "name": "s"}]},
        "ServiceAccounts",
        "team/s",
    ),
    "images": (
        "cronjobs.batch",
        {
            "spec": {
                "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"image": "b"}]}}}}
            }
        },
        "Images",
        "b",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_kinds_say_what_a_genuine_server_says(case: str) -> None:
    """One cell of each."""
    resource, value, heading, told = OTHERS[case]

    assert row(resource, value)[heading] == told
