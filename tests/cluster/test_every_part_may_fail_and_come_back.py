"""Parts of Partage and of the control plane end and start again; nothing is lost or given twice."""

import copy
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, documents, eventually, pod

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORD = "partage.io/allocation"
NODE = "host05"
HALF = {"koordinator.sh/gpu": "50"}
PODS = "/api/v1/namespaces/default/pods"
OURS = ("scheduler", "webhook", "kube-scheduler")
SEAMS = ("extender", "plugin")


@pytest.fixture(scope="module", autouse=True)
def node(stack: Stack) -> None:
    """One node with eight cards."""
    with_cards(stack)


def with_cards(stack: Stack) -> None:
    """Make the node, if no other test has."""
    nodes = stack.plane.call("GET", "/api/v1/nodes")["items"]
    if NODE not in [n["metadata"]["name"] for n in nodes]:
        stack.add_nodes(documents(EXAMPLES / "koordinator" / f"{NODE}.yaml"))
    eventually(
        "node totals are written",
        lambda: (
            "kubernetes.io/gpu"
            in stack.plane.call("GET", f"/api/v1/nodes/{NODE}")["status"].get("allocatable", {})
        ),
    )


@pytest.fixture(autouse=True)
def emptied(stack: Stack) -> Iterator[None]:
    """Start whatever was left ended, and leave the cluster without pods."""
    yield
    for process in stack.plane.processes.values():
        if not process.running:
            process.start()
    stack.plane.wait_ready()
    for path in (PODS, "/api/v1/namespaces/kube-system/pods"):
        stack.plane.call("DELETE", f"{path}?gracePeriodSeconds=0")
    eventually("nothing is allocated", lambda: not held(stack))


def held(stack: Stack) -> dict[str, Any]:
    """The allocations of all pods, by the debug API."""
    found: dict[str, Any] = stack.get(f"/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/{NODE}")[
        "allocateSet"
    ]
    return found.get("gpu", {}) if found else {}


def placed(stack: Stack) -> list[Any]:
    """Pods that have a node; no card of theirs is over its capacity."""
    found = [p for p in stack.plane.call("GET", PODS)["items"] if p["spec"].get("nodeName")]
    used: dict[str, int] = {}
    for one in found:
        text = (one["metadata"].get("annotations") or {}).get(RECORD)
        for container in json.loads(text)["containers"] if text else ():
            for device in container["devices"]:
                used[device["uuid"]] = used.get(device["uuid"], 0) + device["milli"]
    assert all(milli <= 1000 for milli in used.values()), f"I1: {used}"
    return found


def admitted(stack: Stack, value: dict[str, Any]) -> bool:
    """Try to create a pod, as controllers do again and again; whether it is there."""
    try:
        stack.create(copy.deepcopy(value))
    except urllib.error.HTTPError as error:
        return error.code == 409
    return True


def test_pods_without_devices_start_while_partage_is_down(stack: Stack) -> None:
    """The cluster's own scheduler places them; device pods wait, and start afterwards."""
    stack.create(pod("early", HALF))
    stack.bound("early")
    for name in OURS:
        stack.plane.processes[name].kill()
    stack.create(pod("plain", {"cpu": "100m"}))
    assert stack.bound("plain")["spec"]["schedulerName"] == "default-scheduler"
    with pytest.raises(urllib.error.HTTPError) as error:
        stack.create(pod("late", HALF))
    assert "failed calling webhook" in error.value.read().decode()
    stack.plane.processes["webhook"].start()
    eventually("the webhook is back", lambda: admitted(stack, pod("late", HALF)))
    assert not stack.pod("late")["spec"].get("nodeName")
    for name in OURS:
        if name != "webhook":
            stack.plane.processes[name].start()
    stack.bound("late")
    assert len(placed(stack)) == 3


PARTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "scheduler",
    "webhook",
)
ZIGZAG = (0, 1, 5, 2, 4, 3)
ORDERS = [[PARTS[(first + step) % 6] for step in ZIGZAG] for first in range(6)]
"""Every part goes right after every other one in one of them, and is the first in one and the last in one."""


def test_the_orders_are_all_there_are_of_two() -> None:
    """Six orders of six, in which each of the thirty pairs is once side by side."""
    pairs = [pair for order in ORDERS for pair in itertools.pairwise(order)]

    assert sorted(pairs) == sorted(itertools.permutations(PARTS, 2))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]} first")
def test_any_part_may_be_restarted_under_load(stack: Stack, order: list[str]) -> None:
    """Ten pods are on their way while all parts restart, the control plane's by a crash: no card is allocated twice."""
    for number in range(5):
        stack.create(pod(f"before-{number}", HALF))
    for name in order:
        stack.restart(name, crash=name.startswith(("etcd", "kube-")))
    for number in range(5):
        value = pod(f"after-{number}", HALF)
        eventually("the pod is admitted", lambda value=value: admitted(stack, value))
    eventually("all are placed", lambda: len(placed(stack)) == 10)
    eventually("the books say the same", lambda: len(held(stack)) == 10)


def test_a_follower_takes_over_from_a_leader_that_crashed(stack: Stack) -> None:
    """The second instance serves what the first had not; what the first allocated stays allocated."""
    stack.start_scheduler_service("second")
    for number in range(6):
        stack.create(pod(f"before-{number}", HALF))
    eventually("the first gives", lambda: len(placed(stack)) >= 1)
    for process in stack.pod_of("scheduler"):
        process.kill()
    for number in range(6):
        stack.create(pod(f"after-{number}", HALF))
    eventually("all are placed", lambda: len(placed(stack)) == 12)
    # With the plugin, no Binding waits for the label.
    eventually("the second one leads", lambda: stack.leader() == stack.instances["second"][0])
    for process in stack.pod_of("scheduler"):
        process.start()
    for process in stack.pod_of("second"):
        process.stop()
        del stack.plane.processes[process.name]
    eventually("the first leads again", lambda: len(held(stack)) == 12)


CARD = "GPU-5a4e0000-0000-4000-8000-00000000050{}"
TAKEN = {
    "of-hami": (
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "40960", "nvidia.com/gpucores": "50"},
        {
            "hami.io/vgpu-node": NODE,
            "hami.io/vgpu-devices-allocated": f"{CARD.format(0)},NVIDIA,40960,50:;",
            "hami.io/bind-phase": "success",
        },
    ),
    "of-koordinator": (
        {"koordinator.sh/gpu": "100"},
        {
            "scheduling.koordinator.sh/device-allocated": json.dumps(
                {
                    "gpu": [
                        {
                            "minor": 1,
                            "resources": {
                                "koordinator.sh/gpu-core": "100",
                                "koordinator.sh/gpu-memory": "80Gi",
                                "koordinator.sh/gpu-memory-ratio": "100",
                            },
                        }
                    ]
                }
            )
        },
    ),
    "of-koordinator-v1.4": (
        {"kubernetes.io/gpu": "100"},
        {
            "scheduling.koordinator.sh/device-allocated": json.dumps(
                {
                    "gpu": [
                        {
                            "minor": 2,
                            "resources": {
                                "kubernetes.io/gpu-core": "100",
                                "kubernetes.io/gpu-memory": "80Gi",
                                "kubernetes.io/gpu-memory-ratio": "100",
                            },
                        }
                    ]
                }
            )
        },
    ),
}
"""Pods that HAMi and Koordinator have placed, with their own annotations and none of ours."""


def test_pods_that_others_placed_are_taken_over(stack: Stack) -> None:
    """A running cluster's pods are in the books after a start, and their cards are not given again."""
    stack.plane.processes["scheduler"].stop()
    for name, (asks, notes) in TAKEN.items():
        # Admission leaves this namespace alone, as none was there when these pods were made.
        value = pod(name, asks, annotations=notes, nodeName=NODE)
        value["metadata"]["namespace"] = "kube-system"
        stack.create(value)
    stack.plane.processes["scheduler"].start()
    eventually("all are in the books", lambda: len(held(stack)) == len(TAKEN))
    assert {name.split("/")[1] for name in held(stack)} == set(TAKEN)
    stack.create(pod("all-that-is-left", {"nvidia.com/gpu": "5"}))
    stack.bound("all-that-is-left")
    stack.create(pod("half-beside-hami", HALF))
    record = json.loads(stack.bound("half-beside-hami")["metadata"]["annotations"][RECORD])
    assert record["containers"][0]["devices"][0]["uuid"] == CARD.format(0)
    stack.create(pod("too-much", HALF))
    eventually(
        "it waits",
        lambda: any(
            c["type"] == "PodScheduled" and c["status"] == "False"
            for c in stack.pod("too-much")["status"].get("conditions", ())
        ),
    )


def test_what_is_forbidden_would_be_noticed(stack: Stack) -> None:
    """The audit log, on which the proof of the roles rests, shows a refusal."""
    request = urllib.request.Request(  # noqa: S310 # loopback, by https
        f"{stack.plane.url}/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dprobe",
        headers={"Authorization": f"Bearer {stack.token('partage-scheduler')}"},
    )
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, context=stack.plane.trust)  # noqa: S310 # the same
    seen = eventually("the audit log shows it", lambda: stack.refusals(expected=True))
    assert "secrets" in seen[-1]
    assert stack.refusals() == [], "forbidden: what the chart's roles should allow"
