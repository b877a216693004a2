"""Pods with claims that a genuine kube-scheduler binds a second: claims of our driver, and of slices like NVIDIA's.

    tests/cluster/build                                     once: the genuine control plane
    python bench/claims_rate.py [--nodes 40] [--pods 200] [--rounds 3]

One cluster with Partage by its chart. As in production, the webhook asks the leader about our driver's claims before
one is stored; no program asks about the others. Each arm has its own nodes of eight cards. The first arm has slices of
whole devices with the attributes that NVIDIA's driver publishes. The other two have our slices with amounts; one uses
the cluster's own kube-scheduler, the other one the kube-scheduler with the plugin. Rounds of the arms take turns. The
program creates the arm's DeviceClass when all pods and claims wait for it. It measures the time from then to the last
Binding, and the processor time of every process.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.extend(
    str(Path(__file__).parents[1] / name) for name in ("deploy", "tests/cluster", "tests/tools")
)

import stack as partage_stack
from control_plane import Process, missing
from stack import Layout, Stack, eventually, pod

from partage.agent.discovery.found import Inventory
from partage.agent.dra.publishing import Publisher
from partage.agent.metrics import Tallies
from partage.agent.notes import Notes
from partage.kube.client import Client
from partage.kube.loading import load_config
from partage.model.device import Device, DeviceType
from partage.model.node import Node

API = "/apis/resource.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
CARDS, MEMORY = 8, "16Gi"
THEIRS, OURS = "gpu.nvidia.com", "share.gpu.partage.io"
PATIENCE = 600.0
TICKS = os.sysconf("SC_CLK_TCK")
LAYOUT = Layout(options=("--set", "agent.enabled=true,agent.dra.enabled=true,scheduler.claims=true",
                         "--set", "agent.nodeSelector.nowhere=here"), plugged=True, lease=15)  # fmt: skip
PROCESSES = (
    "default-scheduler",
    "kube-scheduler",
    "kube-apiserver",
    "etcd",
    "scheduler",
    "webhook",
)
CALM = 5.0
"""Seconds after which kube-scheduler retries a refused pod at once."""


@dataclass(frozen=True)
class Arm:
    """The nodes and DeviceClass of its pods, and its kube-scheduler."""

    nodes: str
    class_: str
    scheduler: str


ARMS = {
    "theirs": Arm("theirs", THEIRS, "default-scheduler"),
    "ours": Arm("ours", OURS, "default-scheduler"),
    "ours, plugin": Arm("plugin", OURS, "partage-scheduler"),
}


def whole_card(node: str, index: int) -> dict[str, Any]:
    """A card in the form of NVIDIA's driver: all of it or nothing."""
    texts = {
        "uuid": f"GPU-{node}-{index}",
        "type": "gpu",
        "productName": "Tesla T4",
        "brand": "Tesla",
        "architecture": "Turing",
        "resource.kubernetes.io/pciBusID": f"0000:{index:02x}:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
    }
    versions = {
        "cudaComputeCapability": "7.5.0",
        "driverVersion": "580.65.6",
        "cudaDriverVersion": "13.0.0",
    }
    return {
        "name": f"gpu-{index}",
        "attributes": {
            **{key: {"string": text} for key, text in texts.items()},
            **{key: {"version": text} for key, text in versions.items()},
            "addressingMode": {"string": "HMM"},
        },
        "capacity": {"memory": {"value": MEMORY}},
    }


def device(node: str) -> dict[str, Any]:
    """The Device of a node of ours."""
    amounts = {"gpu-core": "100", "gpu-memory": MEMORY, "gpu-memory-ratio": "100"}
    resources = {f"koordinator.sh/{name}": value for name, value in amounts.items()}
    cards = [
        {"type": "gpu", "id": f"GPU-{n}", "minor": n, "health": True, "resources": resources}
        for n in range(CARDS)
    ]
    head = {"name": node, "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": head,
        "spec": {"devices": cards},
    }


async def prepared(stack: Stack, count: int) -> None:
    """Create the nodes of all arms with their slices, classes and templates."""
    selector = {"cel": {"expression": f"device.driver == '{THEIRS}'"}}
    class_ = {"metadata": {"name": THEIRS}, "spec": {"selectors": [selector]}}
    stack.plane.call("POST", f"{API}/deviceclasses", class_)
    amounts = {"capacity": {"requests": {"cores": "100", "memory": MEMORY}}}
    for name, more in ((THEIRS, {}), (OURS, amounts)):
        request = {"name": "card", "exactly": {"deviceClassName": name, **more}}
        spec = {"spec": {"devices": {"requests": [request]}}}
        template = {"metadata": {"name": name}, "spec": spec}
        stack.plane.call("POST", f"{API}/namespaces/default/resourceclaimtemplates", template)
    offers = {"cpu": "640", "memory": "5Ti", "pods": "500"}
    async with Client(load_config({}, kubeconfig=stack.plane.kubeconfig())) as client:
        for number in range(count):
            for arm in ARMS.values():
                name = f"{arm.nodes}-{number}"
                head = {"name": name, "labels": {"arm": arm.nodes}}
                node = {"apiVersion": "v1", "kind": "Node", "metadata": head}
                stack.add_nodes([{**node, "status": {"allocatable": offers}}])
            theirs = f"theirs-{number}"
            slice_ = {
                "metadata": {"name": theirs},
                "spec": {
                    "driver": THEIRS,
                    "nodeName": theirs,
                    "pool": {"name": theirs, "generation": 1, "resourceSliceCount": 1},
                    "devices": [whole_card(theirs, index) for index in range(CARDS)],
                },
            }
            stack.plane.call("POST", f"{API}/resourceslices", slice_)
            cards = tuple(
                Device(DeviceType.GPU, n, f"GPU-{n}", "nvidia", "Tesla-T4", memory_bytes=2**34)
                for n in range(CARDS)
            )
            for name in (f"{arm.nodes}-{number}" for arm in ARMS.values() if arm.class_ == OURS):
                stack.create(device(name))
                own = Publisher(client, name, Inventory, Tallies(), Notes(), instances=False)
                await own.once(Node(name, devices=cards))


def processor(process: Process) -> float:
    """Seconds that a process has used."""
    assert process.popen is not None  # noqa: S101 # it runs
    fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def listed(stack: Stack, path: str) -> list[dict[str, Any]]:
    """The present objects of a collection."""
    found: list[dict[str, Any]] = stack.plane.call("GET", path)["items"]
    return found


def bound(stack: Stack, since: str, count: int) -> float:
    """Wait until the given number of pods have a node, counted from a revision of the cluster; returns the time.

    Raises:
        RuntimeError: fewer pods were bound in time.
    """
    plane, there = stack.plane, set[str]()
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        request = urllib.request.Request(  # noqa: S310 # loopback, by https
            f"{plane.url}{PODS}?watch=true&resourceVersion={since}",
            headers={"Authorization": f"Bearer {plane.admin}"},
        )
        with urllib.request.urlopen(request, context=plane.trust, timeout=PATIENCE) as answer:  # noqa: S310 # the same
            for line in answer:
                told = json.loads(line)["object"]
                since = told["metadata"]["resourceVersion"]
                if told["spec"].get("nodeName"):
                    there.add(told["metadata"]["name"])
                if len(there) == count:
                    return time.monotonic()
    raise RuntimeError(f"{len(there)} of {count} pods were bound within {PATIENCE:g} s")


def played(stack: Stack, arm: Arm, count: int) -> tuple[float, dict[str, float]]:
    """Seconds until the given number of pods are bound, and each process's processor time; then deletes all pods."""
    processes = {name: stack.plane.processes[name] for name in PROCESSES}
    classes = f"{API}/deviceclasses"
    class_ = stack.plane.call("GET", f"{classes}/{arm.class_}")
    stack.plane.call("DELETE", f"{classes}/{arm.class_}")
    for number in range(count):
        one = pod(f"{arm.nodes}-{number}", {}, nodeSelector={"arm": arm.nodes})
        one["spec"]["schedulerName"] = arm.scheduler
        one["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimTemplateName": arm.class_}]
        one["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
        stack.create(one)
    made = lambda: all("resourceClaimStatuses" in one["status"] for one in listed(stack, PODS))  # noqa: E731
    eventually("claims are made", made, PATIENCE)
    time.sleep(CALM)
    since = stack.revision()
    before = {name: processor(one) for name, one in processes.items()}
    began = time.monotonic()
    stack.plane.call("POST", classes, {"metadata": {"name": arm.class_}, "spec": class_["spec"]})
    took = bound(stack, since, count) - began
    used = {name: processor(one) - before[name] for name, one in processes.items()}
    stack.plane.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    claims = f"{API}/namespaces/default/resourceclaims"
    eventually("all pods are gone", lambda: not listed(stack, PODS), PATIENCE)
    eventually("all claims are gone", lambda: not listed(stack, claims), PATIENCE)
    return took, used


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--nodes", type=int, default=40, help="of each arm")
    options.add_argument("--pods", type=int, default=200, help="of each round")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    if missing():
        print(f"skipped: {missing()}")
        return
    if given.pods > given.nodes * CARDS:
        options.error(f"{given.nodes} nodes have {given.nodes * CARDS} cards")
    with (
        tempfile.TemporaryDirectory() as folder,
        partage_stack.stack(Path(folder), layout=LAYOUT) as stack,
    ):
        asyncio.run(prepared(stack, given.nodes))
        print("slices         bound a second   ms of processor time a pod", flush=True)
        for _ in range(given.rounds):
            for name, arm in ARMS.items():
                took, used = played(stack, arm, given.pods)
                each = ", ".join(
                    f"{one} {1000 * spent / given.pods:.1f}" for one, spent in used.items()
                )
                print(f"{name:15}{given.pods / took:14.1f}   {each}", flush=True)


if __name__ == "__main__":
    main()
