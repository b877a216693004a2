"""Records the pictures of the page for README and documentation: one still, and one that moves.

    .venv/bin/python bench/pictures.py

Starts a simulated cluster in this process with pods of several protocols, and a headless Chromium that loads the
page. Writes `docs/images/dashboard.png`, and `docs/images/page.png`, an animated PNG, which browsers play.
"""

import asyncio
import base64
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

sys.path.extend(str(Path(__file__).parents[1] / "tests" / name) for name in ("embedded", "tools"))

from browser import PROGRAM, Page, browsing
from up_world import PODS, World, node, pod, running

IMAGES: Final = Path(__file__).parents[1] / "docs/images"
WIDTH, HEIGHT = 1200, 760
SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
SCENES: Final = (
    ("#/", 3000),
    ("#/fleet", 2500),
    ("#/fleet?by=protocol", 2500),
    ("#/nodes?only=used&order=free", 3000),
    ("#/node/mig-1", 3500),
    ("#/pods?state=waiting", 2500),
    ("#/pod/default/large", 4500),
)
"""Views, each with the milliseconds for which it is shown."""


def shares(percent: int) -> dict[str, int]:
    """A part of a card in Koordinator's names."""
    return {"koordinator.sh/gpu-core": percent, "koordinator.sh/gpu-memory-ratio": percent}


def scene() -> Iterator[dict[str, Any]]:
    """Pods of three protocols, some of which must wait."""
    for number in range(11):
        yield pod(f"serve-{number}", shares((50, 30, 20)[number % 3]))
    for number in range(3):
        yield pod(f"train-{number}", {"koordinator.sh/gpu": 400})
    for number in range(9):
        asked = {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30, "nvidia.com/gpumem": 16000}
        yield pod(f"notebook-{number}", asked)
    for number in range(5):
        yield pod(
            f"embed-{number}",
            {"tke.cloud.tencent.com/qgpu-core": 25, "tke.cloud.tencent.com/qgpu-memory": 12},
        )
    for number, memory in enumerate((4000, 18000, 9000, 4000, 9000)):
        yield pod(
            f"slice-{number}",
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory},
            meta={"annotations": {"nvidia.com/vgpu-mode": "mig"}},
        )
    yield pod("full", {"koordinator.sh/gpu": 800})
    yield pod("large", {"koordinator.sh/gpu": 800})


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and content of each part of a PNG."""
    at = len(SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += size + 12


def chunk(name: bytes, content: bytes) -> bytes:
    """One part of a PNG."""
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)


def animated(frames: list[tuple[bytes, int]]) -> bytes:
    """Join PNGs of one size and kind, each with its milliseconds, into one PNG that plays in a loop."""
    (head,) = {content for png, _ in frames for name, content in chunks(png) if name == b"IHDR"}
    made = SIGNATURE + chunk(b"IHDR", head) + chunk(b"acTL", struct.pack(">II", len(frames), 0))
    count = 0
    for number, (png, pause) in enumerate(frames):
        control = (
            struct.pack(">I", count) + head[:8] + struct.pack(">IIHHBB", 0, 0, pause, 1000, 0, 0)
        )
        made += chunk(b"fcTL", control)
        count += 1
        for name, content in chunks(png):
            if name == b"IDAT" and number == 0:
                made += chunk(b"IDAT", content)
            elif name == b"IDAT":
                made += chunk(b"fdAT", struct.pack(">I", count) + content)
                count += 1
    return made + chunk(b"IEND", b"")


async def shot(page: Page, url: str, view: str) -> bytes:
    """A screenshot of a view."""
    await page.open(
        f"{url}/?{len(view)}{view}", f"document.querySelector('#view')?.dataset.shows === '{view}'"
    )
    if "/pod/" in view:
        await page.until("document.querySelector('.ways li, .ways .empty')")
    await asyncio.sleep(0.5)
    found = await page.call("Page.captureScreenshot", format="png")
    return base64.b64decode(found["data"])


async def settled(world: World) -> None:
    """Wait until every pod has a place or a reason."""
    while True:
        seen = await world.get("/api/pods?limit=500", scheduler=True)
        if all(one["node"] or one["code"] for one in seen["pods"]):
            return
        await asyncio.sleep(0.2)


async def main() -> None:
    """Record both pictures."""
    if PROGRAM is None:
        sys.exit("there is no chromium here")
    nodes = [node(f"a100-{number}", cards=8) for number in range(1, 5)]
    nodes += [
        node(f"t4-{number}", model="Tesla-T4", cards=4, registers=("qgpu",)) for number in (1, 2)
    ]
    nodes += [node("mig-1", model="A100-SXM4-40GB", cards=2, registers=("hami",), mode="mig")]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with running(nodes) as world, browsing(Path(folder)) as page:
            for one in scene():
                await world.create(PODS, one)
            await settled(world)
            sick = {"simulate.partage.io/unhealthy": "3=Xid 79"}
            await world.patch("/api/v1/nodes/a100-4", {"metadata": {"annotations": sick}})
            await asyncio.sleep(32)  # the charts over time get a point every half minute
            await page.call(
                "Emulation.setDeviceMetricsOverride",
                width=WIDTH,
                height=HEIGHT,
                deviceScaleFactor=1,
                mobile=False,
            )
            await page.call("Emulation.setScrollbarsHidden", hidden=True)
            url = world.cluster.addresses.dashboard
            frames = [(await shot(page, url, view), pause) for view, pause in SCENES]
    IMAGES.joinpath("page.png").write_bytes(animated(frames))
    IMAGES.joinpath("dashboard.png").write_bytes(frames[3][0])
    for name in ("page.png", "dashboard.png"):
        print(f"{IMAGES / name}: {IMAGES.joinpath(name).stat().st_size // 1024} KiB")


if __name__ == "__main__":
    asyncio.run(main())
