"""How fast the dashboard opens, and what it costs the scheduler service, on a large cluster.

    .venv/bin/python bench/dashboard.py [NODES]

Starts `partage up` with so many nodes of eight cards and some pods, and a headless Chromium where
there is one. Printed are the time from asking for the page to the drawn view (median of several
loads, on loopback), and for each document its size and the time of an answer anew and of a 304, the
latter two as a ratio to `GET /healthz` in the same run.
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

from browser import PROGRAM, browsing
from up_world import PODS, World, node, pod, running

LOADS = 7
REQUESTS = 15
DOCUMENTS = ("/api/overview", "/api/nodes", "/api/nodes?order=used", "/api/pods")
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


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
