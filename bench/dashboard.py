"""Loading time of the dashboard, and its cost for the scheduler service, on a large cluster.

    .venv/bin/python bench/dashboard.py [NODES [PODS]]

Starts `partage up` with NODES nodes of eight cards and some pods, and a headless Chromium if there is one. Prints
the time from the request for the page to the drawn view (median of several loads, on loopback), and for each
document its size and the time of a new answer and of a 304, both as a ratio to `GET /healthz` in the same run.

Then bound pods arrive and leave at 60 changes a second at an API server with the scheduler service alone, on top of
PODS that stay (default 30,000), three of four on the 24 nodes that the page of nodes shows. A client in its own
process filters pods as kube-scheduler does, without and with an open page, in turns. Prints, by view, the longest
tasks of the page's main thread after it was drawn, in wall and processor time (other work on the machine affects the
former; Chromium calls tasks above 50 ms long), the time from a key to the next frame, and the delay of a timer of
the page. For the service it prints ratios of with to without: the time of a filter, the processor time of its process
(with the API server's), and the most of it between two looks 5 ms apart, which is the time that a verb may have to
wait.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from extender import Client
from extender import pod as asking

sys.path.extend(
    str(Path(__file__).parents[1] / "tests" / name) for name in ("embedded", "daemon", "tools")
)

from browser import PROGRAM, Page, browsing
from daemon_world import World as BareWorld
from daemon_world import pod as bare_pod
from daemon_world import world as bare_world
from up_world import PODS, World, node, pod, running

from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.extender.server import Faces
from partage.serving.access import Access
from partage.vendors import names

LOADS = 7
CHURN = 15.0
"""Seconds of churn on each view."""
SETTLED = 4.0
"""Seconds of churn after a page was opened and before it is measured."""
SPREAD = (("median", 0.5), ("95th percentile", 0.95), ("99th", 0.99), ("most", 1.0))
ALIVE = 60
"""The number of changing pods at a time; each exists for two seconds."""
FILTERS = 25
"""Filters a second."""
ASKED = {"koordinator.sh/gpu-core": "60", "koordinator.sh/gpu-memory-ratio": "60"}
"""A filtered pod's request; a card has room for one such pod and one of the changing pods."""
KEYS = 8
"""Keys a second."""
RATE = 60
"""Changes a second: each creates or deletes a pod."""
REQUESTS = 15
DOCUMENTS = ("/api/overview", "/api/fleet", "/api/nodes", "/api/nodes?order=used", "/api/pods")
PROBE = """
(() => {
  window.lags = []; window.keys = []; window.drawn = 0;
  let due = performance.now() + 20;
  setInterval(() => { const now = performance.now(); window.lags.push(Math.max(0, now - due)); due = now + 20; }, 20);
  new MutationObserver(() => { window.drawn += 1; }).observe(document.querySelector('#view'), { childList: true, subtree: true, characterData: true, attributes: true });
  addEventListener('keydown', (event) => requestAnimationFrame(() => setTimeout(() => window.keys.push(performance.now() - event.timeStamp))));
})()
"""
VIEWS = ("#/", "#/fleet", "#/nodes", "#/pods", "#/node/n0")


async def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    print(f"{given.nodes} nodes x 8 cards, load average {os.getloadavg()[0]:.1f}", flush=True)
    if not given.churn_only:
        await standing(given.nodes)
    if PROGRAM is not None:
        await under_churn(given.nodes, given.pods)


async def standing(nodes: int) -> None:
    """Measure documents and page loads of a cluster at rest."""
    async with running([node(f"n{i}", cards=8) for i in range(nodes)]) as world:
        half = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}
        for i in range(200):
            await world.create(PODS, pod(f"p{i}", half))
        await documents(world)
        if PROGRAM is None:
            print("no chromium here: page loads are not measured")
        else:
            await loads(world)


async def documents(world: World) -> None:
    """Measure the documents by HTTP alone."""
    async with aiohttp.ClientSession(world.cluster.addresses.dashboard) as http:
        plain, _, _ = await timed(http, "/healthz", {})
        print(f"{'GET /healthz':32} {plain * 1e3:8.2f} ms")
        for path in DOCUMENTS:
            await asyncio.sleep(1.1)  # the service keeps an overview for a second
            fresh, size, tag = await timed(http, path, {}, 1)
            same, _, _ = await timed(http, path, {"If-None-Match": tag})
            print(
                f"{path:32} {fresh * 1e3:8.2f} ms new, {size / 1024:.0f} KiB; {same * 1e3:.2f} ms "
                f"unchanged, {same / plain:.1f} times /healthz"
            )


async def timed(
    http: aiohttp.ClientSession, path: str, headers: dict[str, str], times: int = REQUESTS
) -> tuple[float, int, str]:
    """The median seconds of an answer, its size in bytes, and its tag."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        async with http.get(path, headers=headers) as answer:
            body = await answer.read()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken), len(body), answer.headers.get("ETag", "")


async def loads(world: World) -> None:
    """Measure loads of the page in a browser, from the request to the drawn view."""
    url = world.cluster.addresses.dashboard
    drawn = (
        "new Promise(done => { const look = () => {"
        " const v = document.querySelector('#view');"
        " if (v && v.dataset.shows === location.hash) done(performance.now());"
        " else setTimeout(look, 2); }; look(); })"
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with browsing(Path(folder)) as page:
            for view in VIEWS:
                taken = []
                for number in range(LOADS):
                    await page.open(f"{url}/?{number}{view}", "true")
                    taken.append(await page.value(drawn))
                print(
                    f"page {view:12} drawn after {statistics.median(taken):6.0f} ms "
                    f"({json.dumps([round(t) for t in taken])})"
                )
            if page.problems:
                sys.exit(f"the page complains: {page.problems}")


async def under_churn(nodes: int, pods: int) -> None:
    """Measure the page while bound pods change at the API server; nothing else runs in the process."""
    async with bare_world(nodes, cards=8) as world:
        await stay(world, pods)
        options = SchedulerOptions(faces=Faces(Access(plain=True)))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with (
                SchedulerDaemon(await world.client(), options) as daemon,
                browsing(Path(folder)) as page,
            ):
                gc.collect()
                gc.freeze()  # do not measure the API server's objects
                print(f"{pods} pods bound, load average {os.getloadavg()[0]:.1f}", flush=True)
                for view in (
                    "#/",
                    "#/fleet",
                    "#/nodes",
                    "#/nodes?order=used",
                    "#/pods",
                    "#/node/n0",
                ):
                    await page.open("about:blank", "true")
                    without = await churned(world, daemon.url)
                    await page.open(
                        f"{daemon.url}/{view}",
                        f"document.querySelector('#view')?.dataset.shows === '{view}'",
                    )
                    settling = asyncio.create_task(churn(world, SETTLED, f"s{view[2:4]}"))
                    await settling
                    await page.value(PROBE)
                    await page.trace()
                    with_ = await churned(world, daemon.url, page)
                    await told(page, view, without, with_)
                if page.problems:
                    sys.exit(f"the page complains: {page.problems}")


async def stay(world: BareWorld, pods: int) -> None:
    """Create bound pods of a tenth of a card that stay, spread over all cards but the first of each node."""
    shares = {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10"}
    for number in range(pods):
        place, minor = world.names[number % len(world.names)], 1 + number // len(world.names) % 7
        await world.api.create("pods", bound(f"stays{number}", place, minor, shares), "default")


def bound(name: str, place: str, minor: int, shares: dict[str, str]) -> dict[str, object]:
    """A pod on a card."""
    made = bare_pod(name, shares, nodeName=place)
    record = json.dumps({"gpu": [{"minor": minor, "resources": shares}]})
    made["metadata"]["annotations"] = {names.DEVICE_ALLOCATED: record}
    return made


@dataclass(frozen=True)
class Cost:
    """The churn's cost for the service.

    Attributes:
        filters: seconds of each filter.
        share: the part of a core that the process used.
        turns: processor milliseconds between two looks.
    """

    filters: list[float]
    share: float
    turns: list[float]


async def churned(world: BareWorld, url: str, page: Page | None = None) -> Cost:
    """The cost for the service while pods change; on an open page keys are pressed meanwhile."""
    changes = asyncio.create_task(churn(world, CHURN, "p" if page else "q"))
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--client",
        url.rpartition(":")[2].rstrip("/"),
        str(CHURN),
        str(len(world.names)),
        stdout=asyncio.subprocess.PIPE,
    )
    reading = asyncio.create_task(client.communicate())
    keys = asyncio.create_task(pressed(page, changes)) if page else None
    turns, used, began = [], time.process_time(), time.perf_counter()
    while not changes.done():
        start = time.thread_time()
        await asyncio.sleep(0.005)
        turns.append(1e3 * (time.thread_time() - start))
    share = (time.process_time() - used) / (time.perf_counter() - began)
    if keys is not None:
        await keys
    text, _ = await reading
    return Cost([float(one) for one in text.split()], share, turns)


async def pressed(page: Page, changes: asyncio.Task[None]) -> None:
    """Press keys until the churn is over."""
    while not changes.done():
        await page.press("Shift", 16)
        await asyncio.sleep(1 / KEYS)


async def told(page: Page, view: str, without: Cost, with_: Cost) -> None:
    """Print one view's figures."""
    lags, keys, drawn = await page.value("[window.lags, window.keys, window.drawn]")
    tasks = await page.tasks()
    wall, spent = sorted(one[0] for one in tasks)[-5:], sorted(one[1] for one in tasks)[-5:]
    print(
        f"{view}: drawn {drawn} times; {len(tasks)} tasks, the longest by the clock "
        f"{_row(wall)}, of processor time {_row(spent)} ms, "
        f"{sum(one[1] for one in tasks) / CHURN / 10:.1f} % of a core; "
        f"key to frame {_spread(keys)} ms of {len(keys)}; timer late {_spread(lags)} ms"
    )
    p99 = [_at(one.filters, 0.99) for one in (without, with_)]
    middle = [statistics.median(one.filters) for one in (without, with_)]
    print(
        f"  filter without the page: median {1e3 * middle[0]:.2f}, 99th {1e3 * p99[0]:.1f} ms of "
        f"{len(without.filters)}; with it {middle[1] / middle[0]:.2f} and {p99[1] / p99[0]:.2f} "
        f"times that; process {without.share:.2f} of a core, with it "
        f"{with_.share / without.share:.2f} times that; between looks 99th "
        f"{_at(without.turns, 0.99):.1f}, most {max(without.turns):.1f} ms, with it "
        f"{_at(with_.turns, 0.99):.1f} and {max(with_.turns):.1f}; "
        f"load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def _row(figures: list[float]) -> str:
    return " ".join(f"{one:.0f}" for one in figures)


def _at(figures: list[float], part: float) -> float:
    return sorted(figures)[min(len(figures) - 1, int(len(figures) * part))]


def filtering(port: int, seconds: float, nodes: int) -> None:
    """Filter at a steady rate, and print the time of each."""
    client, began = Client(port), time.perf_counter()
    among = json.dumps([f"n{number}" for number in range(nodes)])
    for number in range(int(seconds * FILTERS)):
        time.sleep(max(0.0, began + number / FILTERS - time.perf_counter()))
        document = json.dumps(asking(number, ask=ASKED))
        body = f'{{"Pod":{document},"Nodes":null,"NodeNames":{among}}}'.encode()
        taken, _ = client.post("/scheduler/filter", body)
        print(taken)


def _spread(taken: list[float]) -> str:
    ordered = sorted(taken)
    parts = ((n, ordered[min(len(ordered) - 1, int(p * len(ordered)))]) for n, p in SPREAD)
    return ", ".join(f"{name} {value:.0f}" for name, value in parts)


async def churn(world: BareWorld, seconds: float, prefix: str) -> None:
    """Create and delete bound pods at `RATE` for this time, most of them on the page's nodes."""
    begun, done = time.perf_counter(), 0
    made: list[str] = []
    shares = {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10"}
    shown = sorted(world.names)[:24]
    while (now := time.perf_counter() - begun) < seconds:
        if done / RATE > now:
            await asyncio.sleep(0.002)
        elif done % 2 and len(made) > ALIVE:
            await world.delete(made.pop(0))
            done += 1
        else:
            among = shown if done % 4 else world.names
            name = f"{prefix}{done}".replace("/", "")
            place = among[done // 2 % len(among)]
            await world.api.create("pods", bound(name, place, 0, shares), "default")
            made.append(name)
            done += 1
    for name in made:
        await world.delete(name)


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("nodes", type=int, nargs="?", default=1000)
    parser.add_argument("pods", type=int, nargs="?", default=30_000)
    parser.add_argument("--churn-only", action="store_true", help="no loads, no documents")
    parser.add_argument("--client", type=float, nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    given = options()
    if given.client:
        filtering(int(given.client[0]), given.client[1], int(given.client[2]))
    else:
        asyncio.run(main(given))
