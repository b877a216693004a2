"""How fast the dashboard opens, and what it costs the scheduler service, on a large cluster.

    .venv/bin/python bench/dashboard.py [NODES]

Starts `partage up` with so many nodes of eight cards and some pods, and a headless Chromium where
there is one. Printed are the time from asking for the page to the drawn view (median of several
loads, on loopback), and for each document its size and the time of an answer anew and of a 304, the
latter two as a ratio to `GET /healthz` in the same run. Then bound pods come and go at 60 changes a
second at an API server with the scheduler service alone, and printed is how late a timer of the open
page fires (what a click would wait), how often it was drawn, and how late one of the service's own
process fires.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

sys.path.append(str(Path(__file__).parents[1] / "tests/embedded"))
sys.path.append(str(Path(__file__).parents[1] / "tests/daemon"))

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
SPREAD = (("median", 0.5), ("95th percentile", 0.95), ("most", 1.0))
RATE = 60
"""Changes a second: a pod that is made, or one that is deleted."""
REQUESTS = 15
DOCUMENTS = ("/api/overview", "/api/nodes", "/api/nodes?order=used", "/api/pods")
PROBE = """
(() => {
  window.lags = []; window.drawn = 0;
  let due = performance.now() + 20;
  window.probe && clearInterval(window.probe);
  window.probe = setInterval(() => { const now = performance.now(); window.lags.push(Math.max(0, now - due)); due = now + 20; }, 20);
  window.watch && window.watch.disconnect();
  window.watch = new MutationObserver(() => { window.drawn += 1; });
  window.watch.observe(document.querySelector('#view'), { childList: true });
})()
"""
VIEWS = ("#/", "#/nodes", "#/pods", "#/node/n0")


async def main(nodes: int) -> None:
    """Measure and print."""
    print(f"{nodes} nodes x 8 cards")
    async with running([node(f"n{i}", cards=8) for i in range(nodes)]) as world:
        half = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}
        for i in range(200):
            await world.create(PODS, pod(f"p{i}", half))
        await documents(world)
        if PROGRAM is None:
            print("no chromium here: page loads are not measured")
        else:
            await loads(world)
    if PROGRAM is not None:
        await under_churn(nodes)


async def documents(world: World) -> None:
    """Answers by HTTP alone."""
    async with aiohttp.ClientSession(world.cluster.addresses.dashboard) as http:
        plain, _, _ = await timed(http, "/healthz", {})
        print(f"{'GET /healthz':32} {plain * 1e3:8.2f} ms")
        for path in DOCUMENTS:
            await asyncio.sleep(1.1)  # an overview is kept for a second
            fresh, size, tag = await timed(http, path, {}, 1)
            same, _, _ = await timed(http, path, {"If-None-Match": tag})
            print(
                f"{path:32} {fresh * 1e3:8.2f} ms anew, {size / 1024:.0f} KiB; {same * 1e3:.2f} ms "
                f"unchanged, {same / plain:.1f} times /healthz"
            )


async def timed(
    http: aiohttp.ClientSession, path: str, headers: dict[str, str], times: int = REQUESTS
) -> tuple[float, int, str]:
    """Median seconds of an answer, its bytes and its tag."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        async with http.get(path, headers=headers) as answer:
            body = await answer.read()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken), len(body), answer.headers.get("ETag", "")


async def loads(world: World) -> None:
    """Whole loads of the page in a browser, from nothing to the drawn view."""
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
                print(f"page {view:12} drawn after {statistics.median(taken):6.0f} ms "
                      f"({json.dumps([round(t) for t in taken])})")  # fmt: skip
            if page.problems:
                sys.exit(f"the page complains: {page.problems}")


async def under_churn(nodes: int) -> None:
    """The page while bound pods come and go at the API server, with nothing else in the process."""
    async with bare_world(nodes, cards=8) as world:
        options = SchedulerOptions(faces=Faces(Access(plain=True)))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with (
                SchedulerDaemon(await world.client(), options) as daemon,
                browsing(Path(folder)) as page,
            ):
                for view in ("#/", "#/nodes?order=used", "#/pods"):
                    await churned(world, page, daemon.url, view)
                if page.problems:
                    sys.exit(f"the page complains: {page.problems}")


async def churned(world: BareWorld, page: Page, url: str, view: str) -> None:
    """How an open view does meanwhile."""
    await page.open(
        f"{url}/{view}", f"document.querySelector('#view')?.dataset.shows === '{view}'"
    )
    await page.value(PROBE)
    changes = asyncio.create_task(churn(world))
    late: list[float] = []
    while not changes.done():
        start = time.perf_counter()
        await asyncio.sleep(0.02)
        late.append(1e3 * (time.perf_counter() - start - 0.02))
    done = await changes
    lags, drawn = await page.value("[window.lags, window.drawn]")
    print(f"{view:20} {done / CHURN:.0f} changes/s: page late by {_spread(lags)} ms, drawn {drawn} "
          f"times in {CHURN:.0f} s; service late by {_spread(late)} ms")  # fmt: skip


def _spread(taken: list[float]) -> str:
    ordered = sorted(taken)
    parts = ((n, ordered[min(len(ordered) - 1, int(p * len(ordered)))]) for n, p in SPREAD)
    return ", ".join(f"{name} {value:.0f}" for name, value in parts)


async def churn(world: BareWorld) -> int:
    """Make and delete bound pods at `RATE` until `CHURN` is over; how many changes were made."""
    begun, done = time.perf_counter(), 0
    shares = {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10"}
    record = json.dumps({"gpu": [{"minor": 0, "resources": shares}]})
    while (now := time.perf_counter() - begun) < CHURN:
        if done / RATE > now:
            await asyncio.sleep(0.002)
            continue
        name = f"c{done // 2}"
        if done % 2:
            await world.delete(name)
        else:
            made = bare_pod(name, shares, nodeName=world.names[done % len(world.names)])
            made["metadata"]["annotations"] = {names.DEVICE_ALLOCATED: record}
            await world.api.create("pods", made, "default")
        done += 1
    return done


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
