"""On a genuine cluster: pods that queue up are bound where they were nominated ahead."""

import copy
import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_instance import instead
from stack import Stack, documents, eventually, pod

from partage.vendors import names

HOST = Path(__file__).parents[2] / "examples" / "koordinator" / "host05.yaml"
NODES = ("ahead-0", "ahead-1", "ahead-2")
PODS = "/api/v1/namespaces/default/pods"
COUNT = 150
ASK = {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10"}
CHOSEN = re.compile(r'partage_decisions_total{outcome="(\w+)",verb="ahead"} (\S+)')


@pytest.fixture(autouse=True)
def three_nodes(stack: Stack) -> Iterator[None]:
    """Three nodes of eight cards before, no pods and none of them afterwards."""
    for name in NODES:
        made = [copy.deepcopy(one) for one in documents(HOST)]
        for number, one in enumerate(made):
            one["metadata"]["name"] = name
            one["metadata"].get("labels", {})["kubernetes.io/hostname"] = name
            for card in one.get("spec", {}).get("devices", []):
                card["id"] = f"{card['id']}-{name}-{number}"
        stack.add_nodes(made)
    for name in NODES:
        path = f"/api/v1/nodes/{name}"
        eventually(
            "node totals are written",
            lambda path=path: (
                "koordinator.sh/gpu"
                in stack.plane.call("GET", path)["status"].get("allocatable", {})
            ),
        )
    yield
    stack.plane.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    eventually("all pods are gone", lambda: not stack.plane.call("GET", PODS)["items"])
    for name in NODES:
        stack.plane.call("DELETE", f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{name}")
        stack.plane.call("DELETE", f"/api/v1/nodes/{name}")


def chosen(stack: Stack, name: str) -> dict[str, float]:
    """What became of nodes that were chosen ahead, by the instance's own count."""
    url = f"http://127.0.0.1:{stack.instances[name][1]}/metrics"
    with urllib.request.urlopen(url) as answer:  # loopback
        return {key: float(count) for key, count in CHOSEN.findall(answer.read().decode())}


def test_a_queue_is_bound_where_it_was_nominated(stack: Stack) -> None:
    """kube-scheduler tries the nominated node first, nothing is given twice, nothing is left over."""
    beside = stack.plane.processes["kube-scheduler"]
    with instead(stack, "ahead", "--ahead-from=2"):
        beside.signal(signal.SIGSTOP)
        try:
            for number in range(COUNT):
                stack.create(pod(f"queued-{number}", ASK, schedulerName="partage-scheduler"))
        finally:
            beside.signal(signal.SIGCONT)
        eventually("all are bound", lambda: all(p["spec"].get("nodeName") for p in listed(stack)))
        counts = chosen(stack, "ahead")

    held: dict[str, int] = {}
    for found in listed(stack):
        assert not found["status"].get("nominatedNodeName")
        record = json.loads(found["metadata"]["annotations"][names.ALLOCATION])
        for device in record["containers"][0]["devices"]:
            held[device["uuid"]] = held.get(device["uuid"], 0) + device["milli"]
    assert sum(held.values()) == COUNT * 100
    assert max(held.values()) <= 1000, f"I1: {held}"
    assert counts["taken"] > 0, counts


def listed(stack: Stack) -> list[dict[str, dict[str, str]]]:
    """The pods as the API server has them."""
    found: list[dict[str, dict[str, str]]] = stack.plane.call("GET", PODS)["items"]
    return found
