"""Many hard pods at once in a live cluster, and an ordinary pod of another namespace right after them.

    python bench/crowds.py [--pods 240] [--shape "24 that hardly fit"] [--namespaces 1] [--deployments 0]
    python bench/crowds.py --overload --nodes 1000 --pods 20000 --waiting 5000

The cluster is `partage up` in this process: 40 nodes of eight cards. API server, webhook, kube-scheduler's stand-in
and the service share one core, so creating the pods takes most of the time. It reports the time until the ordinary
pod is bound, the slowest answer of `/healthz`, asked every 30 ms, and the steps of the loop that took more than
100 ms of processor time. `bench/hostile.py` has the shapes; every pod asks other amounts.

`--overload` sends small pods and pods that never fit, each of the latter with another request, as fast as the API
server accepts them. It reports the services' own requests to the API server by kind in the busiest second and ten
seconds, the process's memory, and the time after which an ordinary pod of another namespace is bound within a second.
"""

import argparse
import asyncio
import gc
import json
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from hostile import hami, shapes
from partage.apiserver.router import Router
from partage.embedded.cluster import EmbeddedCluster, Plan
from partage.embedded.fleet import node_of

MODEL = "A100-SXM4-80GB"
LONG = 0.1
"""The least processor time of a reported step, in seconds."""


def hard(shape: str, seed: int) -> dict[str, Any]:
    """One pod of a shape."""
    found = next(pod for name, pod in shapes(seed) if name == shape)
    del found["metadata"], found["status"], found["spec"]["priority"]
    return found


def watched() -> list[float]:
    """A list to which every long step of the loop is added from now on."""
    plain, steps = asyncio.Handle._run, list[float]()  # noqa: SLF001 # every step calls it

    def timed(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        plain(handle)
        if (took := time.thread_time() - begun) > LONG:
            steps.append(round(took, 3))

    asyncio.Handle._run = timed  # type: ignore[method-assign,assignment] # noqa: SLF001 # only in this program
    return steps


class Crowd:
    """A user of the cluster who creates many pods."""

    def __init__(self, cluster: EmbeddedCluster, http: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.http = http
        self.answers: list[float] = []

    async def create(self, path: str, body: dict[str, Any]) -> None:
        """Create an object."""
        url = self.cluster.addresses.api + path
        async with self.http.post(
            url, data=json.dumps(body), headers={"Content-Type": "application/json"}
        ) as answer:
            if answer.status != 201:
                raise SystemExit(f"{path}: {answer.status} {await answer.text()}")

    async def ask_health(self) -> None:
        """Ask `/healthz` every 30 ms until cancelled."""
        while True:
            begun = time.monotonic()
            async with self.http.get(f"{self.cluster.addresses.scheduler}/healthz") as answer:
                await answer.read()
            self.answers.append(time.monotonic() - begun)
            await asyncio.sleep(0.03)

    async def send(self, given: argparse.Namespace) -> None:
        """Create the crowd's namespaces, and its pods or Deployments."""
        for number in range(given.namespaces):
            await self.create("/api/v1/namespaces", {"metadata": {"name": f"bad{number}"}})
        for number in range(given.deployments or given.pods):
            one = hard(given.shape, number + 1)
            space, name = f"bad{number % given.namespaces}", f"hard-{number}"
            if not given.deployments:
                one["metadata"] = {"name": name}
                await self.create(f"/api/v1/namespaces/{space}/pods", one)
                continue
            labels = {"app": name}
            template = {"metadata": {"labels": labels}, "spec": one["spec"]}
            body = {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name},
                "spec": {
                    "replicas": given.pods // given.deployments,
                    "selector": {"matchLabels": labels},
                    "template": template,
                },
            }
            await self.create(f"/apis/apps/v1/namespaces/{space}/deployments", body)

    async def ordinary(self) -> None:
        """Create a pod with one card, and return when it is bound."""
        limits = {"koordinator.sh/gpu": "100"}
        containers = [{"name": "main", "image": "x", "resources": {"limits": limits}}]
        path = "/api/v1/namespaces/default/pods"
        spec = {"containers": containers}
        name = f"ordinary-{time.monotonic_ns()}"
        await self.create(path, {"metadata": {"name": name}, "spec": spec})
        while True:
            async with self.http.get(f"{self.cluster.addresses.api}{path}/{name}") as answer:
                if (await answer.json())["spec"].get("nodeName"):
                    return
            await asyncio.sleep(0.02)


async def measure(given: argparse.Namespace) -> None:
    """Send the crowd and an ordinary pod, and print the figures."""
    nodes = tuple(node_of(f"n{i}", MODEL, 8) for i in range(given.nodes))
    async with EmbeddedCluster(Plan(simulated=nodes)) as cluster, aiohttp.ClientSession() as http:
        crowd, steps = Crowd(cluster, http), watched()
        asking = asyncio.create_task(crowd.ask_health())
        begun, cpu = time.monotonic(), time.process_time()
        await crowd.send(given)
        print(
            f"sent in {time.monotonic() - begun:.2f} s, {time.process_time() - cpu:.2f} s of CPU"
        )
        begun, cpu = time.monotonic(), time.process_time()
        await crowd.ordinary()
        print(
            f"ordinary pod bound after {time.monotonic() - begun:.2f} s, {time.process_time() - cpu:.2f} s of CPU"
        )
        await asyncio.sleep(given.seconds)
        asking.cancel()
        print(f"/healthz: at most {max(crowd.answers):.3f} s, asked {len(crowd.answers)} times")
        print(f"steps of more than {LONG} s of CPU: {sorted(steps, reverse=True)[:10]}")


class Requests:
    """The services' requests to the API server, by second."""

    def __init__(self) -> None:
        self.seconds: dict[int, Counter[str]] = {}
        plain = Router.handle

        async def counted(router: Router, request: web.BaseRequest) -> web.StreamResponse:
            if request.headers.get("User-Agent") != "bench":
                parts = [part for part in request.path.split("/") if part]
                kind = "pods/" + parts[-1] if "pods" in parts[:-2] else parts[-1]
                if request.method in ("POST", "PATCH", "PUT", "DELETE"):
                    kind = next(
                        (
                            one
                            for one in ("events", "pods", "nodes", "devices", "leases")
                            if one in parts
                        ),
                        kind,
                    )
                    kind += "/status" * (parts[-1] == "status") + "/binding" * (
                        parts[-1] == "binding"
                    )
                else:
                    kind = "reads"
                self.seconds.setdefault(int(time.monotonic()), Counter())[
                    f"{request.method} {kind}"
                ] += 1
            return await plain(router, request)

        Router.handle = counted  # type: ignore[method-assign,assignment] # only in this program

    def most(self, window: int) -> tuple[float, dict[str, float]]:
        """Requests a second, with their kinds, in the busiest period of the given seconds."""
        best: Counter[str] = Counter()
        for first in self.seconds:
            now: Counter[str] = Counter()
            for second in range(first, first + window):
                now.update(self.seconds.get(second, Counter()))
            best = max(best, now, key=lambda one: one.total())
        return best.total() / window, {kind: count / window for kind, count in best.most_common(6)}


def resident() -> int:
    """Present memory of the process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


async def overload(given: argparse.Namespace) -> None:
    """Print the cost and duration of a burst."""
    nodes = tuple(node_of(f"n{i}", MODEL, 8) for i in range(given.nodes))
    requests = Requests()
    async with (
        EmbeddedCluster(Plan(simulated=nodes)) as cluster,
        aiohttp.ClientSession(headers={"User-Agent": "bench"}) as http,
    ):
        crowd, steps = Crowd(cluster, http), watched()
        await crowd.create("/api/v1/namespaces", {"metadata": {"name": "burst"}})
        await asyncio.sleep(15)
        requests.seconds.clear()
        before = resident()
        print(f"{given.nodes} nodes: {before} MiB", flush=True)
        waiting = [
            {"nvidia.com/gpu": "9", "nvidia.com/gpumem": str(100 + i)}
            for i in range(given.waiting)
        ]
        asks = iter([*waiting, *[hami(1, 1000, 10)] * given.pods])
        numbers = iter(range(10**9))

        async def send() -> None:
            for ask in asks:
                containers = [{"name": "main", "image": "x", "resources": {"limits": ask}}]
                body = {
                    "metadata": {"name": f"p{next(numbers)}"},
                    "spec": {"containers": containers},
                }
                await crowd.create("/api/v1/namespaces/burst/pods", body)

        begun, cpu = time.monotonic(), time.process_time()
        asking = asyncio.create_task(crowd.ask_health())
        await asyncio.gather(*(send() for _ in range(16)))
        ended = time.monotonic()
        print(
            f"sent in {ended - begun:.1f} s, {time.process_time() - cpu:.1f} s of CPU; {resident()} MiB; /healthz: at most {max(crowd.answers):.2f} s",
            flush=True,
        )
        took, crowd.answers = 10.0, []
        while took > 1.0:
            since = time.monotonic()
            await crowd.ordinary()
            took = time.monotonic() - since
            print(
                f"{time.monotonic() - ended:6.1f} s after the burst: an ordinary pod took {took:.2f} s; /healthz: at most {max(crowd.answers):.2f} s",
                flush=True,
            )
            crowd.answers = [0.0]
        await asyncio.sleep(given.seconds)
        asking.cancel()
        bound = sum(
            bool(one.value["spec"].get("nodeName")) for one in cluster.server.store.all("pods")
        )
        print(
            f"bound: {bound}; memory: at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB, now {resident()} MiB"
        )
        for window in (1, 10):
            rate, kinds = requests.most(window)
            print(f"requests a second in the busiest {window} s: {rate:.0f}; {kinds}")
        print(f"steps of more than {LONG} s of CPU: {sorted(steps, reverse=True)[:10]}")


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--pods", type=int, default=240)
    parser.add_argument("--namespaces", type=int, default=1)
    parser.add_argument("--deployments", type=int, default=0)
    parser.add_argument("--shape", default="64 distinct shares")
    parser.add_argument("--overload", action="store_true", help="see above")
    parser.add_argument(
        "--waiting", type=int, default=5000, help="pods that never fit, with --overload"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="that it goes on afterwards")
    given = parser.parse_args()
    gc.set_threshold(50_000)  # as `partage up` does
    asyncio.run(overload(given) if given.overload else measure(given))


if __name__ == "__main__":
    main()
