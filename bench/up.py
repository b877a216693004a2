"""The embedded cluster under load: many pods at once, and the time until freed room is used.

    python bench/up.py [--nodes 100] [--cards 8] [--pods 1000] [--releases 200]

First it creates PODS pods at once, four shapes in turn, and prints the time until every one has a node, with the number
of repeated Bindings. From the pods' own records it checks that nothing is granted twice. Then it fills the cluster, so
that many whole-card pods wait, and deletes one pod after another. It measures the time from a pod's deletion in the
API server to the next Binding. It also prints the CPU time as a multiple of a plain API server's (which creates as many
pods without listeners), because figures of a loaded machine compare only within one run.
"""

import argparse
import asyncio
import json
import resource
import time
from collections import Counter
from typing import Any

from partage.apiserver import ApiServer, Change, DeleteOptions, Settings, serve
from partage.embedded.cluster import EmbeddedCluster, Plan
from partage.embedded.fleet import node_of
from partage.vendors import names

SHAPES = (
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    {"tke.cloud.tencent.com/qgpu-core": "25", "tke.cloud.tencent.com/qgpu-memory": "16"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "25"},
    {"koordinator.sh/gpu": "100"},
)


def pod(name: str, limits: dict[str, str]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits}}]
        },
    }


def given(server: ApiServer) -> Counter[str]:
    """The thousandths of each card that the pods' records grant."""
    found: Counter[str] = Counter()
    for record in server.store.all("pods"):
        text = (record.metadata.get("annotations") or {}).get(names.ALLOCATION)
        for container in json.loads(text)["containers"] if text else ():
            for grant in container["devices"]:
                found[grant["uuid"]] += grant["milli"]
    return found


class Bound:
    """The times at which pods were bound and deleted, by name."""

    def __init__(self, server: ApiServer) -> None:
        self.at: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        self.changed = asyncio.Event()
        server.store.observers.append(self.saw)

    def saw(self, change: Change) -> None:
        """Note the Binding or deletion of a pod."""
        record = change.record
        if record.resource != "pods":
            return
        if change.kind == "DELETED":
            self.gone[record.name] = time.perf_counter()
        elif record.value["spec"].get("nodeName") and record.name not in self.at:
            self.at[record.name] = time.perf_counter()
        self.changed.set()

    async def until(self, count: int) -> None:
        """Wait until this many pods are bound."""
        while len(self.at) < count:
            self.changed.clear()
            await self.changed.wait()


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def plain(count: int) -> float:
    """CPU seconds of a plain API server for the same number of pods."""
    server = ApiServer(Settings())
    async with serve(server):
        started = cpu()
        for index in range(count):
            await server.create("pods", pod(f"p{index}", SHAPES[index % 4]), "default")
        return cpu() - started


async def burst(cluster: EmbeddedCluster, bound: Bound, count: int) -> None:
    server = cluster.server
    started, spent = time.perf_counter(), cpu()
    for index in range(count):
        await server.create("pods", pod(f"p{index}", SHAPES[index % 4]), "default")
    created = time.perf_counter() - started
    async with asyncio.timeout(300):
        await bound.until(count)
    took = time.perf_counter() - started
    spent = cpu() - spent
    most = max(given(server).values())
    alone = await plain(count)
    print(f"{count} pods: created in {created:.1f} s, all bound after {took:.1f} s")
    print(
        f"  {count / took:.0f} pods/s; CPU {spent:.1f} s, {spent / alone:.1f} x the API server's own"
    )
    print(f"  Bindings tried again: {cluster.conflicts}; fullest card: {most / 10:g} %")
    if most > 1000:
        raise SystemExit("a card was allocated twice")


async def releases(cluster: EmbeddedCluster, bound: Bound, cards: int, count: int) -> None:
    server = cluster.server
    for record in list(server.store.all("pods")):
        await server.delete("pods", "default", record.name, DeleteOptions(grace=0))
    whole = SHAPES[3]
    bound.at.clear()
    for index in range(cards + count):
        await server.create("pods", pod(f"w{index}", whole), "default")
    async with asyncio.timeout(300):
        await bound.until(cards)
    await cluster.settled(120)
    waits = []
    for _ in range(count):
        known = set(bound.at)
        victim = next(n for n in bound.at if n not in bound.gone)
        await server.delete("pods", "default", victim, DeleteOptions(grace=0))
        async with asyncio.timeout(60):
            await bound.until(len(known) + 1)
        (taken,) = set(bound.at) - known
        waits.append(bound.at[taken] - bound.gone[victim])
    waits.sort()
    at = {p: waits[min(len(waits) - 1, int(len(waits) * p / 100))] * 1000 for p in (50, 90, 99)}
    print(f"release to next bind, {count} times with {count} waiting pods:")
    print(
        f"  p50 {at[50]:.0f} ms, p90 {at[90]:.0f} ms, p99 {at[99]:.0f} ms, most {waits[-1] * 1000:.0f} ms"
    )


async def main(nodes: int, cards: int, pods: int, count: int) -> None:
    fleet = [node_of(f"n{i:03}", "A100-SXM4-80GB", cards) for i in range(nodes)]
    started = time.perf_counter()
    async with EmbeddedCluster(Plan(simulated=fleet)) as cluster:
        print(f"{nodes} nodes x {cards} cards ready after {time.perf_counter() - started:.1f} s")
        bound = Bound(cluster.server)
        await burst(cluster, bound, pods)
        await releases(cluster, bound, nodes * cards, count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--releases", type=int, default=200)
    given_ = parser.parse_args()
    asyncio.run(main(given_.nodes, given_.cards, given_.pods, given_.releases))
