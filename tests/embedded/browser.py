"""A headless Chromium, driven over its debugging protocol; only for tests of pages."""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE = 240.0
"""Seconds for what must come; a loaded machine may take long."""

PROGRAM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
"""The browser, or None where there is none."""

AXE = (
    Path(os.environ.get("PARTAGE_TOOLS", "~/.cache/partage/tools")).expanduser()
    / "axe-core/node_modules/axe-core/axe.min.js"
)
"""Deque's rules of accessibility, as `tests/tools/watching/fetch` brings them."""

CONTRASTS = """
(() => {
  const rgba = (text) => {
    const [r, g, b, a = 1] = (text.match(/[\\d.]+/g) || []).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((v, i) => a * v + (1 - a) * below[i]);
  const light = ([r, g, b]) => {
    const one = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * one(r) + 0.7152 * one(g) + 0.0722 * one(b);
  };
  const ground = (element) => {
    if (!element) return [255, 255, 255];
    const colour = rgba(getComputedStyle(element).backgroundColor);
    return colour[3] === 1 ? colour.slice(0, 3) : over(colour, ground(element.parentElement));
  };
  const opacity = (element) => element ? getComputedStyle(element).opacity * opacity(element.parentElement) : 1;
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest('.hidden, .skip, :disabled')) continue;
    if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const below = ground(element);
    const [r, g, b, a] = rgba(getComputedStyle(element).color);
    const [one, other] = [light(over([r, g, b, a * opacity(element)], below)), light(below)];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push(`${element.className || element.tagName}: ${element.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
})()
"""
"""Texts whose contrast to their ground is below 4.5, what shines through counted; hidden texts are left out."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--window-size=1300,900",
)


class Page:
    """One page of the browser.

    Attributes:
        problems: what the page wrote to its console as an error, threw, or was refused.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.problems: list[str] = []
        self._traced: list[dict[str, Any]] = []
        self._told = asyncio.Event()

    async def listen(self) -> None:
        """Take in what the browser says, until the connection ends."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                future = self._waiting.pop(said["id"])
                if not future.done():
                    future.set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded":
                if said["params"]["entry"]["level"] in ("error", "warning"):
                    self.problems.append(str(said["params"]["entry"]))
            elif said["method"] == "Tracing.dataCollected":
                self._traced += said["params"]["value"]
            elif said["method"] == "Tracing.tracingComplete":
                self._told.set()
            elif said["method"] == "Runtime.consoleAPICalled":
                self.problems.append(str(said["params"]["args"]))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A method of the protocol."""
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(future, PATIENCE)
        assert "error" not in answer, (method, answer)
        return dict(answer["result"])

    async def trace(self) -> None:
        """Write down every task of the page's threads from now on."""
        self._traced.clear()
        self._told.clear()
        await self.call("Tracing.start", categories="toplevel,__metadata")

    async def tasks(self) -> list[tuple[float, float]]:
        """Milliseconds and processor milliseconds of each task of the page's main thread since then."""
        await self.call("Tracing.end")
        await asyncio.wait_for(self._told.wait(), PATIENCE)
        main = {
            (one["pid"], one["tid"])
            for one in self._traced
            if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
        }
        return [
            (one["dur"] / 1e3, one.get("tdur", 0) / 1e3)
            for one in self._traced
            if one["name"].endswith("RunTask")
            and "dur" in one  # one that was not over has none
            and (one["pid"], one["tid"]) in main
        ]

    async def value(self, script: str) -> Any:
        """What an expression comes to, promises awaited."""
        found = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not await self.value(f"Boolean({script})"):
            assert time.monotonic() < end, (
                f"{script} did not come true: {await self.value('document.body.innerText')}"
            )
            await asyncio.sleep(0.05)

    async def open(self, url: str, ready: str, *, loading: bool = False) -> None:
        """Open an address and wait until an expression is true there, of a view that does not load any more.

        Args:
            loading: it may load yet.
        """
        await self.call("Page.navigate", url=url)
        rested = "true" if loading else "document.querySelector('#view')?.ariaBusy !== 'true'"
        await self.until(f"document.readyState === 'complete' && {rested} && ({ready})")

    async def axe(self) -> list[str]:
        """What axe-core finds on the page: the rule, its fix, and the first elements that break it.

        All its rules count, best practices too. Incomplete results do not: a person has to judge these.
        """
        if await self.value("typeof axe") == "undefined":
            await self.value(f"{AXE.read_text(encoding='utf-8')}; 0")
        found = await self.value("axe.run({ resultTypes: ['violations'] })")
        assert found["passes"], "axe looked at nothing"
        return [
            f"{one['id']}: {one['help']}: {', '.join(str(it['target']) for it in one['nodes'][:3])}"
            for one in found["violations"]
        ]

    async def picture(self, style: str) -> str:
        """The window as a data URL of a PNG, drawn with rules of style beside the page's own.

        They are not the document's, so a page that forbids styles from elsewhere shows them, too.
        """
        await self.value(
            f"(() => {{ const sheet = new CSSStyleSheet(); sheet.replaceSync({json.dumps(style)});"
            " document.adoptedStyleSheets = [sheet]; })()"
        )
        await self.value(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        drawn = await self.call("Page.captureScreenshot", format="png")
        await self.value("(() => { document.adoptedStyleSheets = []; })()")
        return f"data:image/png;base64,{drawn['data']}"

    async def press(self, key: str, code: int, text: str = "") -> None:
        """A key, down and up."""
        for kind in ("keyDown", "keyUp"):
            given = {"text": text} if text and kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **given,
            )


@contextlib.asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Page]:
    """A new browser with one page.

    Args:
        folder: of its own, for the browser's files.
    """
    assert PROGRAM is not None
    process = subprocess.Popen(  # noqa: ASYNC220 # ended below; starting it takes no time
        [PROGRAM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = await _port(folder / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (found,) = [one for one in await answer.json() if one["type"] == "page"]
            url = found["webSocketDebuggerUrl"]
            async with http.ws_connect(url, max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen(), name="browser")
                for domain in ("Page", "Runtime", "Log", "Accessibility"):
                    await page.call(f"{domain}.enable")
                yield page
                await page.call("Browser.close")
                listening.cancel()
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, PATIENCE)


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    """The debugging port, once the browser has written it down."""
    end = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, "the browser ended at once"
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((await asyncio.to_thread(file.read_text)).splitlines()[0])
        assert time.monotonic() < end, "the browser does not start"
        await asyncio.sleep(0.05)
