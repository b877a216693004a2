"""A cluster in which Partage ran is as before once it was uninstalled: nodes, Devices, Leases, objects.

The agent is the real process with simulated devices. What helm's hook runs is run here by the rights
of the chart, as the Deployments' programs are: a thread stands in for the kubelet of that one pod.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from chart import helm
from stack import MERGE, RELEASE, SYSTEM, Layout, Stack, documents, eventually, pod
from stack import stack as started

EXAMPLES = Path(__file__).parents[2] / "examples" / "koordinator"
JOB = f"{RELEASE}-withdraw"
PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
AGENT = "agent.enabled=true,agent.simulated.model=Tesla-T4,agent.simulated.cards=2"
OPERATOR = {"partage.io/agent": "yes", "qgpu-device-enable": "enable"}
"""Labels that an operator set."""
BARE = {"cpu": "8", "memory": "32Gi", "pods": "110"}


@pytest.fixture
def partage(tmp_path: Path) -> Iterator[Stack]:
    """A cluster of its own, with Partage and its agents' DaemonSet."""
    selector = "agent.nodeSelector.partage\\.io/agent=yes"
    layout = Layout(options=("--set", AGENT, "--set-string", selector), settled=False)
    with started(tmp_path, layout=layout) as made:
        yield made


def test_nothing_is_left(partage: Stack) -> None:
    """It goes at once if no pod holds devices, else after those pods; what others wrote stays."""
    others = [one for one in documents(EXAMPLES / "host04.yaml") if one["kind"] == "Device"]
    partage.add_nodes([node("n1", OPERATOR), node("host04", {"pool": "b"})])
    before = {name: shown(partage, name) for name in ("n1", "host04")}
    partage.add_nodes(others)
    agent(partage, "n1")
    eventually(
        "the agent's totals are there", lambda: "kubernetes.io/gpu" in totals(partage, "n1")
    )
    eventually("its Lease, too", lambda: f"{LEASES}/partage-agent-n1" in leases(partage))
    lease = partage.plane.call("GET", f"{LEASES}/partage-agent-n1")
    uid = partage.plane.call("GET", "/api/v1/nodes/n1")["metadata"]["uid"]
    owned = eventually("the Lease is the Node's", lambda: owners(partage, "partage-agent-n1"))
    assert (owned, lease["spec"]["holderIdentity"]) == ([uid], "n1")
    limits = {"kubernetes.io/gpu": "100"}
    partage.create(pod("train", limits, nodeSelector={"pool": "b"}))
    record = partage.bound("train")["metadata"]["annotations"]["partage.io/allocation"]

    with (
        jobs(partage) as said,
        partage.forbidden_meanwhile(),
        pytest.raises(AssertionError, match=JOB),
    ):
        helm(partage.plane, "uninstall", RELEASE, "-n", SYSTEM)

    assert "left: node host04: pods that hold its devices run there: default/train" in said[0]
    assert "release: not found" in status_of_release(partage)
    assert shown(partage, "n1") == before["n1"]
    assert not partage.shell(f"kubectl get {DEVICES_KIND} n1 --ignore-not-found")
    assert not [one for one in leases(partage) if "partage" in one]
    assert "kubernetes.io/gpu" in totals(partage, "host04")
    assert partage.pod("train")["metadata"]["annotations"]["partage.io/allocation"] == record

    for name in ("kube-scheduler", "scheduler", "webhook", "agent-n1"):
        partage.plane.processes[name].stop()
    partage.shell("kubectl delete pod train --force --grace-period=0")
    assert "node host04: removed" in by_hand(partage)
    assert shown(partage, "host04") == before["host04"]
    assert partage.shell(f"kubectl get {DEVICES_KIND} host04")
    assert by_hand(partage) == "nothing of Partage is here\n"
    left = partage.shell(
        "kubectl get $(kubectl api-resources --verbs=list -o name | paste -sd, -) -A "
        "-l app.kubernetes.io/part-of=partage -o name --ignore-not-found"
    ).split()
    # The definitions, kept on purpose, and the Job that reported what it left, with its pod.
    assert {one for one in left if not one.startswith("customresourcedefinition")} <= {
        f"job.batch/{JOB}",
        *(one for one in left if one.startswith(f"pod/{JOB}-")),
    }


DEVICES_KIND = "devices.scheduling.koordinator.sh"


def node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    """A node that reports no devices."""
    head = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": head, "status": {"allocatable": BARE}}


def shown(stack: Stack, node: str) -> dict[str, Any]:
    """What other writers may have written of a node: labels, annotations, totals."""
    found = stack.plane.call("GET", f"/api/v1/nodes/{node}")
    head = found["metadata"]
    # Kubernetes' own keys come when they come.
    labels = {k: v for k, v in head.get("labels", {}).items() if "kubernetes.io/" not in k}
    notes = {k: v for k, v in head.get("annotations", {}).items() if "kubernetes.io" not in k}
    parts = {part: found["status"].get(part) for part in ("capacity", "allocatable")}
    return {"labels": labels, "annotations": notes, **parts}


def totals(stack: Stack, node: str) -> dict[str, str]:
    """What a node offers."""
    found: dict[str, str] = stack.plane.call("GET", f"/api/v1/nodes/{node}")["status"][
        "allocatable"
    ]
    return found


def leases(stack: Stack) -> list[str]:
    """Paths of the nodes' Leases."""
    return [
        f"{LEASES}/{one['metadata']['name']}" for one in stack.plane.call("GET", LEASES)["items"]
    ]


def owners(stack: Stack, lease: str) -> list[str]:
    """Of a Lease."""
    head = stack.plane.call("GET", f"{LEASES}/{lease}")["metadata"]
    return [one["uid"] for one in head.get("ownerReferences", ())]


def status_of_release(stack: Stack) -> str:
    """What helm says of a release that is gone."""
    with pytest.raises(AssertionError) as error:
        helm(stack.plane, "status", RELEASE, "-n", SYSTEM)
    return str(error.value)


def by_hand(stack: Stack) -> str:
    """What `partage withdraw` prints, as the administrator."""
    command = [
        sys.executable,
        "-m",
        "partage.cli.main",
        "withdraw",
        "--kubeconfig",
        str(stack.plane.kubeconfig()),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def agent(stack: Stack, node: str) -> None:
    """Run what the DaemonSet's pod on the node would run, with the token that its kubelet would give it."""

    def placed() -> Any:
        query = "labelSelector=app.kubernetes.io/component%3Dagent"
        found = stack.plane.call("GET", f"{PODS}?{query}")["items"]
        return next((one for one in found if one["spec"].get("nodeName") == node), None)

    found = eventually("the DaemonSet's pod is there", placed)
    token = given(stack, found)
    folder = stack.plane.folder / node
    folder.mkdir()
    (folder / "devices.yaml").write_text("{model: Tesla-T4, cards: 2}")
    command = [
        sys.executable,
        "-m",
        "partage.cli.main",
        "agent",
        "--node",
        node,
        "--port",
        "0",
        "--simulated",
        str(folder / "devices.yaml"),
        "--kubeconfig",
        str(stack.plane.kubeconfig(token)),
        "--journal",
        str(folder / "journal"),
        "--nri-socket",
        str(folder / "none"),
        "--period",
        "0.2",
        "--config-map",
        f"{SYSTEM}/hami-scheduler-device",
    ]
    stack.plane.run(f"agent-{node}", command)


def given(stack: Stack, found: dict[str, Any]) -> str:
    """A token of a pod's service account, for that pod."""
    head, account = found["metadata"], found["spec"]["serviceAccountName"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": head["name"], "uid": head["uid"]}
    where = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
    text: str = stack.plane.call("POST", where, {"spec": {"boundObjectRef": bound}})["status"][
        "token"
    ]
    return text


@contextmanager
def jobs(stack: Stack) -> Iterator[list[str]]:
    """Run the hook's pod as its kubelet would; gives what it said."""
    said: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.2) and not said:
            with suppress(OSError):
                query = f"labelSelector=batch.kubernetes.io/job-name%3D{JOB}"
                found = stack.plane.call("GET", f"{PODS}?{query}")["items"]
                said.extend(ran(stack, one) for one in found if one["spec"].get("nodeName"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield said
    finally:
        over.set()
        thread.join()


def ran(stack: Stack, found: dict[str, Any]) -> str:
    """Run a pod's program, and report how it ended."""
    (container,) = found["spec"]["containers"]
    config = stack.plane.kubeconfig(given(stack, found))
    command = [
        sys.executable,
        "-m",
        "partage.cli.main",
        *container["args"],
        "--kubeconfig",
        str(config),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ended = {"exitCode": done.returncode, "reason": "Error" if done.returncode else "Completed"}
    status = {
        "phase": "Failed" if done.returncode else "Succeeded",
        "containerStatuses": [
            {
                "name": container["name"],
                "image": "i",
                "imageID": "i",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": ended},
            }
        ],
    }
    stack.plane.call(
        "PATCH", f"{PODS}/{found['metadata']['name']}/status", {"status": status}, kind=MERGE
    )
    return json.dumps(ended) + done.stdout + done.stderr
