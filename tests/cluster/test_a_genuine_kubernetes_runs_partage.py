"""Pods of every protocol on a genuine API server, placed through a genuine kube-scheduler."""

import json
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from stack import MERGE, Stack, documents, eventually, pod

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORD = "partage.io/allocation"
CARDS = 8
ASKS: dict[str, dict[str, str]] = {
    "koordinator-v1.4": {"kubernetes.io/gpu": "50"},
    "koordinator-v1.4-parts": {
        "kubernetes.io/gpu-core": "20",
        "kubernetes.io/gpu-memory-ratio": "20",
    },
    "koordinator": {"koordinator.sh/gpu": "50"},
    "koordinator-parts": {
        "koordinator.sh/gpu-core": "20",
        "koordinator.sh/gpu-memory": "8Gi",
    },
    "whole": {"nvidia.com/gpu": "1"},
    "percent": {"nvidia.com/gpu": "100"},
    "qgpu": {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "5"},
    "hami": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "30"},
    "hami-percent": {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "25"},
}
SCHEDULERS = ("default-scheduler", "koord-scheduler", "hami-scheduler", "partage-scheduler")


@pytest.fixture(scope="module")
def node(stack: Stack) -> str:
    """A node with eight cards, from the examples, with both dialects' totals."""
    nodes = stack.plane.call("GET", "/api/v1/nodes")["items"]
    if "host05" not in [n["metadata"]["name"] for n in nodes]:
        stack.add_nodes(documents(EXAMPLES / "koordinator" / "host05.yaml"))
    eventually("node totals are written", lambda: "kubernetes.io/gpu-core" in totals(stack))
    return "host05"


@pytest.fixture(autouse=True)
def emptied(stack: Stack) -> Iterator[None]:
    """Leave the cluster without pods."""
    yield
    path = "/api/v1/namespaces/default/pods"
    stack.plane.call("DELETE", f"{path}?gracePeriodSeconds=0")
    eventually("all pods are gone", lambda: not stack.plane.call("GET", path)["items"])
    eventually("nothing is allocated", lambda: used(stack) == 0)


def totals(stack: Stack) -> dict[str, str]:
    """What the node offers."""
    found: dict[str, str] = stack.plane.call("GET", "/api/v1/nodes/host05")["status"][
        "allocatable"
    ]
    return found


def used(stack: Stack) -> int:
    """How many shares the books have on the node, by the debug API."""
    summary = stack.get("/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/host05")
    return len(summary["allocateSet"] or {})


def refused(stack: Stack, method: str, path: str, body: object, kind: str = "") -> str:
    """What the API server says as it refuses a request."""
    with pytest.raises(urllib.error.HTTPError) as error:
        stack.plane.call(method, path, body, kind=kind)
    message: str = json.load(error.value)["message"]
    return message


def test_node_totals_are_in_both_dialects(stack: Stack, node: str) -> None:
    """Eight cards are 800 percent by every name (the MetaX and Koordinator documents)."""
    found = totals(stack)
    assert node
    for name in ("gpu", "gpu-core", "gpu-memory-ratio"):
        assert found[f"kubernetes.io/{name}"] == found[f"koordinator.sh/{name}"] == "800"
    assert found["kubernetes.io/gpu-memory"] == found["koordinator.sh/gpu-memory"] == "640Gi"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", ASKS)
def test_pods_of_every_protocol_are_bound_by_us(
    stack: Stack, node: str, name: str, scheduler: str
) -> None:
    """Whatever names and scheduler a pod carries, it is bound with a record of ours."""
    stack.create(pod("one", ASKS[name], schedulerName=scheduler))
    found = stack.bound("one")
    assert found["spec"]["nodeName"] == node
    record = json.loads(found["metadata"]["annotations"][RECORD])
    assert record["uid"] == found["metadata"]["uid"]
    assert record["node"] == node
    assert record["containers"][0]["devices"]


def test_labels_travel_in_the_binding(stack: Stack, node: str) -> None:
    """From Kubernetes 1.35 on a Binding's labels are on the pod from the moment that it is bound."""
    since = stack.revision()
    stack.create(pod("one", ASKS["qgpu"]))
    stack.bound("one")
    found = stack.first_bound("one", since)
    assert found["metadata"]["labels"]["tke.cloud.tencent.com/qgpu"] == "true"
    assert node


def test_pods_without_devices_are_not_ours(stack: Stack, node: str) -> None:
    """They are bound as without Partage, without a record."""
    stack.create(pod("plain", {"cpu": "100m"}))
    assert RECORD not in (stack.bound("plain")["metadata"].get("annotations") or {})
    assert node


def test_nothing_is_handed_out_twice_when_all_come_at_once(stack: Stack, node: str) -> None:
    """Twenty pods of half a card each: sixteen run, four wait and say why."""
    for number in range(20):
        stack.create(pod(f"half-{number}", ASKS["koordinator"]))
    path = "/api/v1/namespaces/default/pods"

    def placed() -> list[Any]:
        return [p for p in stack.plane.call("GET", path)["items"] if p["spec"].get("nodeName")]

    eventually("sixteen are bound", lambda: len(placed()) == 2 * CARDS)
    held: dict[str, int] = {}
    for found in placed():
        record = json.loads(found["metadata"]["annotations"][RECORD])
        for device in record["containers"][0]["devices"]:
            held[device["uuid"]] = held.get(device["uuid"], 0) + device["milli"]
    assert held == dict.fromkeys(held, 1000)
    assert len(held) == CARDS
    waiting = next(
        p for p in stack.plane.call("GET", path)["items"] if not p["spec"].get("nodeName")
    )
    name = waiting["metadata"]["name"]

    def told() -> bool:
        events = stack.plane.call("GET", "/api/v1/namespaces/default/events")["items"]
        mine = [e for e in events if e["involvedObject"].get("name") == name]
        return any("insufficient gpu-memory (asked 40Gi" in e["message"] for e in mine)

    eventually("an event says why", told)
    assert node


def test_a_released_card_goes_to_who_waits(stack: Stack, node: str) -> None:
    """The waiting pod is bound soon after another is gone, without the five-minute flush."""
    stack.create(pod("all", {"nvidia.com/gpu": "8"}))
    stack.bound("all")
    stack.create(pod("next", {"nvidia.com/gpu": "1"}))
    eventually(
        "the next one waits",
        lambda: any(
            c["type"] == "PodScheduled" and c["status"] == "False"
            for c in stack.pod("next")["status"].get("conditions", ())
        ),
    )
    stack.delete("all")
    stack.bound("next")
    assert node


def test_a_broken_request_is_refused_as_it_is_made(stack: Stack, node: str) -> None:
    """The webhook names container, name and rule."""
    broken = pod("broken", {"tke.cloud.tencent.com/qgpu-core": "33"})
    message = refused(stack, "POST", "/api/v1/namespaces/default/pods", broken)
    assert "qgpu-core" in message
    assert "33" in message
    assert node


def test_records_cannot_be_forged(stack: Stack, node: str) -> None:
    """No create, update or Binding does so, not by an administrator either."""
    path = "/api/v1/namespaces/default/pods"
    forged = pod("forged", ASKS["qgpu"], annotations={RECORD: "{}"})
    assert RECORD in refused(stack, "POST", path, forged)

    stack.create(pod("one", ASKS["qgpu"]))
    stack.bound("one")
    change = {"metadata": {"annotations": {RECORD: None}}}
    assert RECORD in refused(stack, "PATCH", f"{path}/one", change, MERGE)

    nobody = pod("waits", ASKS["qgpu"], schedulerName="nobody")
    stack.create(nobody)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "waits", "annotations": {RECORD: "{}"}},
        "target": {"kind": "Node", "name": node},
    }
    assert RECORD in refused(stack, "POST", f"{path}/waits/binding", binding)


SELDOM = {
    ("get", "nodes"): "a lock of a single vendor's plugin is taken off",
    ("get", "pods"): "a Binding that was never answered is read back",
    ("patch", "events"): "the same happens again",
    ("patch", "pods/status"): "a pod's devices differ from the ledger, or it is nominated",
    ("watch", "leases"): "another instance leads",
    ("delete", "pods"): "preemption",
    ("create", "pods/eviction"): "preemption",
    ("list", "poddisruptionbudgets"): "preemption",
    ("create", "tokenreviews"): "a user reads an explanation",
    ("create", "subjectaccessreviews"): "a user reads an explanation",
}
"""Rights of the scheduler service that a quiet cluster does not need; a test of the chart finds where it uses them."""


def test_services_use_the_rights_that_they_have(stack: Stack, node: str) -> None:
    """The API server's audit log shows it: the webhook uses all, the scheduler all but what is seldom needed."""
    stack.create(pod("share", {"koordinator.sh/gpu": "50"}))
    stack.bound("share")
    stack.create(pod("waits", {"koordinator.sh/gpu": "1600"}))
    eventually("an event says why", lambda: stack.events("waits"))

    def unused(name: str) -> set[tuple[str, str]]:
        return stack.rights(name) - stack.used(name) - SELDOM.keys()

    for name in ("partage-webhook", "partage-scheduler"):
        with suppress(AssertionError):
            eventually("all is used", lambda name=name: not unused(name))
        assert unused(name) == set()
    assert SELDOM.keys() <= stack.rights("partage-scheduler")
