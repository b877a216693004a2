"""Callers leave a leader that stands still, whatever connections to it are open; pods without devices do not wait for it.

Not covered: a leader whose machine is cut off (the same to kube-scheduler: nothing comes back).
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import MERGE, SYSTEM, Stack, documents, eventually, pod

EXAMPLES = Path(__file__).parents[2] / "examples"
SEAMS = ("extender", "plugin")
STOPPED = {"engine": ("scheduler",), "kube-scheduler": ("kube-scheduler",)}
STOPPED["both"] = (*STOPPED["engine"], *STOPPED["kube-scheduler"])
PODS = f"/api/v1/namespaces/{SYSTEM}/pods"


def promised(stack: Stack) -> float:
    """Seconds to the next Binding at most.

    With the extender: Lease of the service, time-out of a Binding, 3 s, and 10 s for which what is open to the old leader
    lasts. With the plugin: kube-scheduler's Lease, 3 s for the tries to get it, 4.8 s for a Binding, and 3 s.
    """
    lease = stack.layout.lease
    return max(lease, 15) + 3 + 4.8 + 3 if stack.layout.plugged else lease + 10 + 3 + 10


@pytest.fixture
def second(stack: Stack) -> Iterator[str]:
    """Another instance that follows."""
    nodes = stack.plane.call("GET", "/api/v1/nodes")["items"]
    if "host05" not in [n["metadata"]["name"] for n in nodes]:
        stack.add_nodes(documents(EXAMPLES / "koordinator" / "host05.yaml"))
    first = stack.layout.pod
    eventually("the first instance leads", lambda: stack.leader() == stack.instances[first][0])
    stack.start_scheduler_service("second")
    if stack.layout.plugged:
        replicas(stack, first, "second")
    yield "second"
    for name in STOPPED["both"]:
        stack.plane.processes[name].signal(signal.SIGCONT)
    for process in stack.pod_of("second"):
        process.stop()
    for name in ("second", stack.beside("second")) if stack.layout.plugged else ("second",):
        stack.plane.processes.pop(name)
    stack.plane.call("DELETE", f"{PODS}/second?gracePeriodSeconds=0")
    port = stack.instances[first][0]
    stack.instances.pop("second")
    for process in stack.pod_of(first):
        process.revive()
    eventually("the first instance leads again", lambda: stack.leader() == port)
    stack.plane.call("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")


def replicas(stack: Stack, *names: str) -> None:
    """Make these pods look like ready ones of one Deployment, of which kube-scheduler counts them."""
    where = f"/api/v1/namespaces/{SYSTEM}/configmaps/{stack.layout.beside}"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": stack.layout.beside}
    owner |= {"uid": stack.plane.call("GET", where)["metadata"]["uid"], "controller": True}
    labels = {"app.kubernetes.io/instance": "partage"}
    for name in names:
        metadata = {"labels": labels, "ownerReferences": [owner]}
        stack.plane.call("PATCH", f"{PODS}/{name}", {"metadata": metadata}, kind=MERGE)
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        stack.plane.call("PATCH", f"{PODS}/{name}/status", {"status": ready}, kind=MERGE)


def connections(port: int) -> int:
    """Established connections at a port of loopback, at its end."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[1].split(":")[1], 16) == port and row[3] == "01" for row in rows)


@pytest.mark.parametrize("what", STOPPED)
def test_a_leader_that_stands_still_is_left(stack: Stack, second: str, what: str) -> None:
    """Pods are bound by the next leader, and by the first one or by it when the first is back."""
    if not stack.layout.plugged and what != "engine":
        pytest.skip("kube-scheduler and the service are apart with the extender")
    # In the middle of its work: connections are kept.
    for number in range(12):
        stack.create(pod(f"before-{number}", {"koordinator.sh/gpu": "10"}))
    for number in range(12):
        stack.bound(f"before-{number}")
    if not stack.layout.plugged:
        port = stack.instances[stack.layout.pod][0]
        eventually("connections are kept", lambda: connections(port) > 0)

    for name in STOPPED[what]:
        stack.plane.processes[name].signal(signal.SIGSTOP)
    paused = time.monotonic()
    stack.create(pod("after", {"koordinator.sh/gpu": "10"}))
    eventually("the next leader binds", lambda: stack.pod("after")["spec"].get("nodeName"))
    took = time.monotonic() - paused
    print(f"bound {took:.1f} s after {what} stood still, at most {promised(stack)} are promised")  # noqa: T201 # a measurement
    eventually("its pod has the label", lambda: stack.leader() == stack.instances[second][0])

    # The old leader does not lead when it is back, and sends a caller that still has a connection to another one.
    for name in STOPPED[what]:
        stack.plane.processes[name].signal(signal.SIGCONT)
    stack.create(pod("last", {"koordinator.sh/gpu": "10"}))
    stack.bound("last")


def test_pods_without_devices_do_not_wait_for_an_engine_that_stands_still(stack: Stack) -> None:
    """Twenty of the same kube-scheduler are bound while pods with devices wait for the engine."""
    if not stack.layout.plugged:
        pytest.skip("an extender is asked about every pod of its kube-scheduler")
    own = {"schedulerName": "partage-scheduler"}
    engine = stack.plane.processes["scheduler"]
    stack.create(pod("early", {"koordinator.sh/gpu": "10"}))
    stack.bound("early")
    engine.signal(signal.SIGSTOP)
    try:
        for number in range(4):
            stack.create(pod(f"waiting-{number}", {"koordinator.sh/gpu": "10"}))
        for number in range(20):
            stack.create(pod(f"plain-{number}", {"cpu": "10m"}, **own))
        for number in range(20):
            stack.bound(f"plain-{number}")
        assert not [n for n in range(4) if stack.pod(f"waiting-{n}")["spec"].get("nodeName")]
    finally:
        engine.signal(signal.SIGCONT)
    for number in range(4):
        stack.bound(f"waiting-{number}")
    stack.plane.call("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
