"""Cost of the controllers for a leader: the first look at a large cluster, and the heartbeats after it.

The controllers read and check a cluster at rest (NODES nodes of eight cards, PODS bound pods, all in their intended
state). Then every kubelet renews its heartbeat RUNS times. The benchmark prints seconds of this process's CPU time
for: reading the facts, the first look, a look at one object, a round of heartbeats, and the same round with a look at
every heartbeat (a new version and a new annotation), with the ratio of the two. The program fails if a controller
writes anything.

    python bench/controllers.py [--nodes 5000] [--pods 40000] [--runs 3]
"""

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

from partage.controllers.manager import Controllers
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.events import EventRecorder
from partage.kube.recorder import Regarding
from partage.wire.documents import Document, decode

CARDS = 8
Manifest = dict[str, Any]


class Silent(EventRecorder):
    """Receives events, and ends the program at the first one, because a cluster at rest has none."""

    def __init__(self) -> None:
        """It needs no client."""

    def normal(self, regarding: Regarding, reason: str, message: str) -> None:
        """See `EventRecorder`."""
        raise SystemExit(f"{regarding.name}: {reason}: {message}")

    warning = normal


def documents(manifests: list[Manifest]) -> tuple[Document, ...]:
    return decode("bench", json.dumps({"kind": "List", "items": manifests}).encode()).documents


def node(index: int, version: int = 1, **annotations: str) -> Manifest:
    per_card = {"gpu": "100", "gpu-core": "100", "gpu-memory-ratio": "100"}
    totals = {"cpu": "64", "koordinator.sh/gpu.shared": str(100 * CARDS)}
    for domain in ("koordinator.sh", "kubernetes.io"):
        totals |= {f"{domain}/{name}": str(100 * CARDS) for name in per_card}
        totals[f"{domain}/gpu-memory"] = f"{80 * CARDS}Gi"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"n{index}",
            "uid": f"node-{index}",
            "resourceVersion": str(version),
            "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"},
            "annotations": annotations,
        },
        "status": {"allocatable": totals, "capacity": totals},
    }


def device(index: int) -> Manifest:
    amounts = {"gpu-core": "100", "gpu-memory": "80Gi", "gpu-memory-ratio": "100"}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": f"n{index}", "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}},
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": f"GPU-{index}-{minor}",
                    "minor": minor,
                    "health": True,
                    "resources": {f"koordinator.sh/{k}": v for k, v in amounts.items()},
                }
                for minor in range(CARDS)
            ]
        },
    }


def pod(index: int, nodes: int) -> Manifest:
    place, minor = index % nodes, index // nodes % CARDS
    grant = {
        "type": "gpu",
        "minor": minor,
        "uuid": f"GPU-{place}-{minor}",
        "milli": 100,
        "bytes": 8 * 2**30,
        "mode": "share",
        "protocol": "koordinator",
    }
    record = {
        "v": 1,
        "uid": f"pod-{index}",
        "node": f"n{place}",
        "containers": [{"name": "main", "phase": "main", "devices": [grant]}],
    }
    asked = {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"p{index}",
            "namespace": "bench",
            "uid": f"pod-{index}",
            "resourceVersion": "1",
            "annotations": {"partage.io/allocation": json.dumps(record)},
        },
        "spec": {
            "nodeName": f"n{place}",
            "containers": [{"name": "main", "resources": {"limits": asked, "requests": asked}}],
        },
        "status": {"phase": "Running"},
    }


async def at_rest(controllers: Controllers) -> None:
    while not controllers.idle:  # noqa: ASYNC110 # nothing signals rest
        await asyncio.sleep(0.01)


async def heartbeats(controllers: Controllers, nodes: tuple[Document, ...]) -> float:
    """CPU seconds of one round of heartbeats."""
    started = time.process_time()
    for one in nodes:
        controllers.changed(one)
    await at_rest(controllers)
    return time.process_time() - started


async def measure(nodes: int, pods: int, runs: int) -> None:
    facts = [documents([make(i) for i in range(nodes)]) for make in (node, device)]
    bound = documents([pod(i, nodes) for i in range(pods)])
    async with Client(Config(ClusterConfig("http://127.0.0.1:1"))) as client:
        controllers = Controllers(client, Silent())
        started = time.process_time()
        for document in facts[0]:
            controllers.changed(document)
        for document in facts[1]:
            controllers.changed(document)
        for document in bound:
            controllers.changed(document)
        taken_in = time.process_time() - started
        started, wall = time.process_time(), time.perf_counter()
        task = asyncio.create_task(controllers.run())
        await asyncio.sleep(0)
        await at_rest(controllers)
        looked, waited = time.process_time() - started, time.perf_counter() - wall
        quiet, busy = [], []
        for run in range(runs):
            known = {"run": str(run - 1)} if run else {}
            again = documents([node(i, 2 + 2 * run, **known) for i in range(nodes)])
            other = documents([node(i, 3 + 2 * run, run=str(run)) for i in range(nodes)])
            quiet.append(await heartbeats(controllers, again))
            busy.append(await heartbeats(controllers, other))
        written = controllers.meters.registry.get_sample_value(
            "partage_controller_writes_total", {"what": "node_status", "outcome": "done"}
        )
        if written:
            raise SystemExit(f"{written} writes to a cluster at rest")
        task.cancel()
    print(f"{nodes} nodes, {pods} pods; CPU seconds")
    print(f"  facts taken in                {taken_in:8.3f}")
    print(f"  first look at everything      {looked:8.3f}   ({waited:.1f} s of wall time)")
    print(f"  one object                    {1000 * looked / (nodes + pods):8.3f} ms")
    one, two = statistics.median(quiet), statistics.median(busy)
    print(f"  a round of heartbeats         {one:8.3f}")
    print(f"  the same, every one looked at {two:8.3f}   ratio {two / one:.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=40000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    asyncio.run(measure(given.nodes, given.pods, given.runs))
