"""A list of 100,000 pods, twice: at the start, and again when all watches get 410.

Scenario 13 of the fault tests at full size: 5,000 nodes of 8 cards, 80,000 pods that hold half a card each, and 20,000
without devices, about 4.5 kB a pod. An API server in a process of its own sends prepared pages. The scheduler's process
must continue to answer while it lists again. The program measures how long its loop keeps other tasks waiting, and the
memory of the second list on top of the first. It fails if a bound is broken, so that it shows a change that costs too
much.

    python bench/relist.py [--nodes 5000] [--pods 100000]
"""

import argparse
import asyncio
import json
import logging
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import ClientSession, web

from extender import device, node
from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from startup import COLLECTIONS, bound, child, memory, pages

READY_CPU_SECONDS = 20.0
RELIST_CPU_SECONDS = 20.0
PEAK_MB = 1500.0
LAG_SECONDS = 0.5
"""Longest wait for an answer during the second list."""
_IDLE_SECONDS = 1.0
_IDLE_CPU = 0.02


def plain(index: int, nodes: int) -> dict[str, Any]:
    """A pod without devices in its stored form."""
    found = bound(index, nodes)
    found["metadata"]["annotations"] = {}
    found["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
    return found


def serve(pipe: Connection, nodes: int, pods: int) -> None:
    """Run the API server's process; `/expire` makes all watches start again."""
    room = nodes * 16
    lists = {path: pages(kind, []) for path, kind in COLLECTIONS.items()}
    lists["/api/v1/nodes"] = pages("NodeList", map(node, range(nodes)))
    lists["/apis/scheduling.koordinator.sh/v1alpha1/devices"] = pages(
        "DeviceList", map(device, range(nodes))
    )
    lists["/api/v1/pods"] = pages(
        "PodList", (bound(i, nodes) if i < room else plain(i, nodes) for i in range(pods))
    )
    gone = {
        "type": "ERROR",
        "object": {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": 410,
            "reason": "Expired",
            "message": "too old resource version",
        },
    }
    expired, served = asyncio.Event(), {"pods": 0}

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/expire":
            expired.set()
            return web.Response()
        if request.path == "/served":
            return web.json_response(served)
        if "watch" in request.query:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            if not expired.is_set():
                await expired.wait()
                await response.write(json.dumps(gone).encode() + b"\n")
                return response
            await asyncio.sleep(3600)
            return response
        if request.path not in lists:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        place = int(request.query.get("continue") or 0)
        if request.path == "/api/v1/pods" and place + 1 == len(lists[request.path]):
            served["pods"] += 1
        return web.Response(body=lists[request.path][place], content_type="application/json")

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


async def lags(found: list[float]) -> None:
    """Measure repeatedly how long the loop keeps other tasks waiting."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        found.append(time.perf_counter() - began - 0.005)


async def relisted(url: str) -> tuple[float, float, list[float]]:
    """Make all watches start again, and wait until no work is left; returns CPU seconds, seconds and lags."""
    found: list[float] = []
    measuring = asyncio.create_task(lags(found))
    async with ClientSession() as http:
        began, used = time.perf_counter(), time.process_time()
        await http.get(f"{url}/expire")
        served = 1
        while served < 2:
            async with http.get(f"{url}/served") as answer:
                served = (await answer.json())["pods"]
            await asyncio.sleep(0.1)
        before = -1.0
        while time.process_time() - before > _IDLE_CPU * 10:
            before = time.process_time()
            await asyncio.sleep(_IDLE_SECONDS)
    measuring.cancel()
    cpu = time.process_time() - used
    return cpu, time.perf_counter() - began - _IDLE_SECONDS, sorted(found)


def schedule(pipe: Connection, url: str) -> None:
    """Run the scheduler's process."""
    logging.disable(logging.CRITICAL)

    async def run() -> None:
        began, used = time.perf_counter(), time.process_time()
        options = SchedulerOptions(controllers=None, learning=None)
        async with (
            Client(Config(ClusterConfig(url))) as client,
            SchedulerDaemon(client, options) as daemon,
        ):
            row = {
                "ready_s": time.perf_counter() - began,
                "ready_cpu_s": time.process_time() - used,
            }
            row |= {"resident_mb": memory("VmRSS"), "first_peak_mb": memory("VmHWM")}
            cpu, seconds, lag = await relisted(url)
            row |= {
                "relist_cpu_s": cpu,
                "relist_s": seconds,
                "peak_mb": memory("VmHWM"),
                "lag_p99_s": lag[int(0.99 * len(lag))],
                "lag_max_s": lag[-1],
                "held": sum(1 for _ in daemon.service.books.engine.ledger.allocations()),
                "clean": daemon.service.audit().clean,
            }
            pipe.send(row)

    asyncio.run(run())


def wrong(row: dict[str, Any], held: int) -> list[str]:
    """One sentence for each broken bound."""
    bounds = {
        "ready_cpu_s": READY_CPU_SECONDS,
        "relist_cpu_s": RELIST_CPU_SECONDS,
        "peak_mb": PEAK_MB,
        "lag_max_s": LAG_SECONDS,
    }
    found = [
        f"{key} {row[key]:.2f}, over {most:g}" for key, most in bounds.items() if row[key] > most
    ]
    if row["held"] != held:
        found.append(f"{row['held']} pods are in the books, not {held}")
    return found + ([] if row["clean"] else ["the audit is not clean"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=100_000)
    given = parser.parse_args()
    server, pipe = child(serve, given.nodes, given.pods)
    url = pipe.recv()
    process, answer = child(schedule, url)
    row = answer.recv()
    process.join()
    server.terminate()
    for key, value in row.items():
        print(f"{key:14s} {value:.2f}" if isinstance(value, float) else f"{key:14s} {value}")
    found = wrong(row, min(given.pods, given.nodes * 16))
    for sentence in found:
        print(f"FAILED: {sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
