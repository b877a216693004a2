"""Speed of the embedded API server, over HTTP on loopback: creates, large lists, watch fan-out.

Run `python bench/apiserver.py`. Server and clients share one process and one core, so the figures
are a lower bound.
"""

import argparse
import asyncio
import json
import resource
import time
from typing import Any

import aiohttp

from partage.apiserver import ApiServer, serve


def pod(number: int) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "1Gi", "example.com/card": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "labels": {"app": "bench"}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "image:1",
                    "env": [{"name": "A", "value": "1"}],
                    "resources": {"limits": amounts, "requests": amounts},
                }
            ]
        },
    }


def node(number: int) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "example.com/card": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"node-{number}",
            "labels": {f"example.com/label-{i}": f"value-{i}" for i in range(20)},
            "annotations": {"example.com/note": "x" * 1500},
        },
        "status": {
            "capacity": amounts,
            "conditions": [
                {"type": kind, "status": "True", "reason": "Because", "message": "all is well"}
                for kind in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
            ],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Linux", "machineID": "0" * 32},
        },
    }


async def post_all(session: aiohttp.ClientSession, url: str, bodies: list[bytes]) -> float:
    async def worker(share: list[bytes]) -> None:
        for body in share:
            async with session.post(
                url, data=body, headers={"Content-Type": "application/json"}
            ) as response:
                await response.read()
                if response.status != 201:
                    raise SystemExit(await response.text())

    begun = time.perf_counter()
    await asyncio.gather(*(worker(bodies[i::16]) for i in range(16)))
    return time.perf_counter() - begun


async def watcher(session: aiohttp.ClientSession, url: str, wanted: int) -> None:
    seen = 0
    async with session.get(url) as response:
        async for line in response.content:
            seen += line.startswith(b'{"type":"ADDED"')
            if seen == wanted:
                return


async def measure(pods: int, nodes: int, watchers: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    server = ApiServer()
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        serve(server) as url,
        aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=2**22) as session,
    ):
        of_pods = f"{url}/api/v1/namespaces/default/pods"
        bodies = [json.dumps(pod(i)).encode() for i in range(pods)]
        begun = time.process_time()
        figures["pods_per_second"] = pods / await post_all(session, of_pods, bodies)
        figures["pods_per_cpu_second"] = pods / (time.process_time() - begun)
        many = [json.dumps(node(i)).encode() for i in range(nodes)]
        seconds = await post_all(session, f"{url}/api/v1/nodes", many)
        figures["nodes_per_second"] = nodes / seconds
        for name, accept in (
            ("list_seconds", "application/json"),
            ("list_again_seconds", "application/json"),
            ("table_seconds", "application/json;as=Table;v=v1;g=meta.k8s.io"),
        ):
            if name == "list_seconds":
                for record in server.store.all("nodes"):
                    record.texts.clear()
            begun, spent = time.perf_counter(), time.process_time()
            async with session.get(f"{url}/api/v1/nodes", headers={"Accept": accept}) as answer:
                size = len(await answer.read())
            figures[name] = time.perf_counter() - begun
            figures[name.replace("seconds", "cpu_seconds")] = time.process_time() - spent
            figures[name.replace("seconds", "megabytes")] = size / 1e6
        since = server.store.revision
        path = f"{url}/api/v1/namespaces/fan/configmaps?watch=1&resourceVersion={since}"
        await server.create("namespaces", {"metadata": {"name": "fan"}})
        tasks = [asyncio.create_task(watcher(session, path, 1000)) for _ in range(watchers)]
        await asyncio.sleep(0.5)
        begun = time.perf_counter()
        for i in range(1000):
            value = {"metadata": {"name": f"c{i}"}, "data": {"text": "x" * 1500}}
            await server.create("configmaps", value, "fan")
            if i % 10 == 9:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        figures["watch_events_per_second"] = watchers * 1000 / (time.perf_counter() - begun)
    figures["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return figures


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pods", type=int, default=5000)
    options.add_argument("--nodes", type=int, default=5000)
    options.add_argument("--watchers", type=int, default=50)
    chosen = options.parse_args()
    figures = asyncio.run(measure(chosen.pods, chosen.nodes, chosen.watchers))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))


if __name__ == "__main__":
    main()
