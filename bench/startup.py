"""Time and memory of the scheduler's start: 5,000 nodes of 8 cards, and 40,000 pods that hold half a card each.

An API server in a process of its own sends prepared pages, with as many bytes a pod as a genuine one (about 4.5 kB,
managed fields included). The program measures time, CPU time and resident memory of the scheduler's process, from its
start to `/readyz`. For comparison it also measures a plain program: `json` into dictionaries, and a loop that adds up
each card's grants over all pods' records. The plain program checks no rules and keeps nothing for decisions.

    python bench/startup.py [--nodes 5000] [--pods 40000] [--runs 3]
"""

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from aiohttp import web

from extender import device, node, pod
from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config

PAGE = 1000
_NOTHING = 0.0005
ASK = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
MEMORY = 40 * 2**30
COLLECTIONS = {
    "/api/v1/nodes": "NodeList",
    "/api/v1/pods": "PodList",
    "/apis/scheduling.koordinator.sh/v1alpha1/devices": "DeviceList",
    "/api/v1/configmaps": "ConfigMapList",
    "/api/v1/resourcequotas": "ResourceQuotaList",
}


def bound(index: int, nodes: int) -> dict[str, Any]:
    """A pod that holds half of a card, in its stored form."""
    place, minor = index % nodes, index // nodes % 8
    name, uuid = f"node-{place:05d}", f"GPU-{place:08x}-0000-0000-0000-{minor:012x}"
    found = pod(index, ask=ASK)
    found["spec"]["nodeName"] = name
    found["status"] = {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "PodScheduled")],
        "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {}}}],
    }
    grant = {
        "type": "gpu",
        "minor": minor,
        "uuid": uuid,
        "milli": 500,
        "bytes": MEMORY,
        "mode": "share",
        "protocol": "koordinator",
    }
    record = {
        "v": 1,
        "uid": found["metadata"]["uid"],
        "node": name,
        "containers": [{"name": "main", "phase": "main", "devices": [grant]}],
    }
    amounts = {
        "koordinator.sh/gpu-core": "50",
        "koordinator.sh/gpu-memory": "40Gi",
        "koordinator.sh/gpu-memory-ratio": "50",
    }
    allocated = {"gpu": [{"minor": minor, "resources": amounts, "id": uuid}]}
    found["metadata"] |= {
        "resourceVersion": str(index + 10),
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "annotations": {
            "partage.io/allocation": json.dumps(record, separators=(",", ":")),
            "scheduling.koordinator.sh/device-allocated": json.dumps(allocated),
            "scheduling.koordinator.sh/bind-timestamp": "1795213543118129000",
            "scheduling.koordinator.sh/gpu-minors": str(minor),
        },
        "managedFields": [
            {"manager": "kubelet", "fieldsV1": {f"f:field-{n}": {} for n in range(60)}}
        ],
    }
    return found


def pages(kind: str, items: Iterable[dict[str, Any]]) -> list[bytes]:
    """A list in the form of an API server's pages."""
    texts = [json.dumps(item, separators=(",", ":")) for item in items]
    cut = [texts[start : start + PAGE] for start in range(0, len(texts), PAGE)] or [[]]
    return [
        json.dumps(
            {
                "kind": kind,
                "apiVersion": "v1",
                "metadata": {
                    "resourceVersion": "999999",
                    "continue": str(number + 1) if number + 1 < len(cut) else "",
                },
                "items": "ITEMS",
            }
        )
        .replace('"ITEMS"', f"[{','.join(part)}]")
        .encode()
        for number, part in enumerate(cut)
    ]


def serve(pipe: Connection, nodes: int, pods: int) -> None:
    """Run the API server's process."""
    lists = {path: pages(kind, []) for path, kind in COLLECTIONS.items()}
    lists["/api/v1/nodes"] = pages("NodeList", map(node, range(nodes)))
    lists["/apis/scheduling.koordinator.sh/v1alpha1/devices"] = pages(
        "DeviceList", map(device, range(nodes))
    )
    lists["/api/v1/pods"] = pages("PodList", (bound(i, nodes) for i in range(pods)))

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            return response
        if request.path not in lists:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        body = lists[request.path][int(request.query.get("continue") or 0)]
        return web.Response(body=body, content_type="application/json")

    async def run() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.sleep(3600)

    asyncio.run(run())


def memory(field: str) -> float:
    """A memory figure of this process, in megabytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


async def audit(daemon: SchedulerDaemon) -> str:
    """Measure the CPU time of an audit at once, of one in pieces, and of its pieces."""
    began = time.process_time()
    clean = daemon.service.audit().clean
    whole = time.process_time() - began
    pieces: list[float] = []

    async def watch() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0)
            last, before = time.process_time(), last
            pieces.append(last - before)

    pods = daemon._feed.documents("Pod")  # noqa: SLF001 # its own audit reads these
    watcher = asyncio.create_task(watch())
    began = time.process_time()
    found = await daemon.service.audit_gently(lambda: pods)
    gently = time.process_time() - began
    watcher.cancel()
    clean = clean and found is not None and found.clean
    longest = sorted(pieces)[-3:]
    return (
        f"audit clean {clean}: at once {whole:.2f} s of CPU time, in pieces {gently:.2f} s,"
        f" median piece {statistics.median(p for p in pieces if p > _NOTHING) * 1e3:.0f} ms,"
        f" longest {', '.join(f'{piece * 1e3:.0f}' for piece in longest)} ms"
    )


def schedule(pipe: Connection, url: str) -> None:
    """Run the scheduler's process."""
    # A daemonic process may have no children, so it logs that it cannot learn prices.
    logging.disable(logging.CRITICAL)

    async def run() -> None:
        began, used = time.perf_counter(), time.process_time()
        options = SchedulerOptions(controllers=None)
        async with (
            Client(Config(ClusterConfig(url))) as client,
            SchedulerDaemon(client, options) as daemon,
        ):
            ready = time.perf_counter() - began
            cpu = time.process_time() - used
            held = sum(1 for _ in daemon.service.books.engine.ledger.allocations())
            audited = await audit(daemon)
            pipe.send((ready, cpu, memory("VmRSS"), memory("VmHWM"), held, audited))

    asyncio.run(run())


def plain(pipe: Connection, url: str) -> None:
    """Run the simplest implementation."""
    began, used = time.perf_counter(), time.process_time()
    objects: dict[str, list[Any]] = {}
    for path in COLLECTIONS:
        following = "?limit=1000"
        while following:
            with urlopen(url + path + following) as answer:  # noqa: S310 # our own server
                page = json.load(answer)
            objects.setdefault(path, []).extend(page["items"])
            token = page["metadata"]["continue"]
            following = f"?limit=1000&continue={token}" if token else ""
    taken: Counter[tuple[str, str]] = Counter()
    for one in objects["/api/v1/pods"]:
        record = json.loads(one["metadata"]["annotations"]["partage.io/allocation"])
        for container in record["containers"]:
            for grant in container["devices"]:
                taken[record["node"], grant["uuid"]] += grant["milli"]
    ready, cpu = time.perf_counter() - began, time.process_time() - used
    pipe.send(
        (ready, cpu, memory("VmRSS"), memory("VmHWM"), len(objects["/api/v1/pods"]), "no audit")
    )


def child(function: Any, *arguments: Any) -> tuple[Any, Any]:
    """Start a process with a pipe to it; returns both."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()  # otherwise the end of a process that failed goes unnoticed
    return process, ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=40000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    server, pipe = child(serve, given.nodes, given.pods)
    url = pipe.recv()
    found: dict[str, list[float]] = {}
    for _ in range(given.runs):
        for name, function in (("partage", schedule), ("plain", plain)):
            process, answer = child(function, url)
            ready, cpu, resident, peak, held, audited = answer.recv()
            process.join()
            found.setdefault(name, []).append(cpu)
            print(
                f"{name:8s} ready in {ready:5.2f} s, CPU {cpu:5.2f} s, resident {resident:4.0f} MB"
                f" (peak {peak:4.0f}), {held} pods, {audited}",
                flush=True,
            )
    ratio = statistics.median(found["plain"]) / statistics.median(found["partage"])
    print(f"CPU time of the plain way over ours: {ratio:.2f}")
    server.terminate()


if __name__ == "__main__":
    main()
