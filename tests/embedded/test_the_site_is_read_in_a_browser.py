"""The documentation as a site in a real browser: colours, tables and the search, as a reader has them."""

import asyncio
import functools
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

import pytest
from browser import AXE, CONTRASTS, PROGRAM, Page, browsing

from site_build import built

pytest.importorskip("material", reason="mkdocs-material is not installed (group docs)")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine")

PAGES = (
    "index",
    "how-to/ask-for-half-a-gpu",
    "reference/annotations",
    "isolation",
    "performance",
)
SCHEMES = {"light": "default", "dark": "slate"}
"""What a reader's system prefers, and the scheme of the theme."""
BROKEN = """
[...document.querySelectorAll('th code, td code')]
  .filter((code) => code.getClientRects().length > 1)
  .map((code) => code.textContent)
"""
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
NO_SEARCH = "window.Worker = class extends EventTarget { postMessage() {} terminate() {} };"
"""The search's thread reads the index of all pages on each page, which is a third of what a browser does there."""
TYPED = "document.activeElement.dispatchEvent(new KeyboardEvent('keyup'))"
"""After it the page reads what is in its field, as after the last key of a word."""
ASKED = {
    "half a card": "how-to/ask-for-half-a-gpu.html",
    "half a GPU": "how-to/ask-for-half-a-gpu.html",
    "nvidia-smi": "how-to/ask-for-half-a-gpu.html",
    "change memory of running pod": "how-to/change-a-running-share.html",
    "why does my pod wait": "how-to/find-out-why-a-pod-waits.html",
    "pod pending reason": "how-to/find-out-why-a-pod-waits.html",
    "uninstall": "how-to/uninstall.html",
    "upgrade running jobs": "how-to/upgrade.html",
    "CPU and memory requests sizing": "how-to/size-it.html",
    "agent down alert": "how-to/react-to-an-alert.html",
    "nvidia device plugin same cluster": "how-to/beside-the-gpu-operator.html",
    "1g.10gb": "how-to/use-hardware-instances.html",
    "kubernetes version supported": "reference/versions.html",
    "ports firewall": "faq.html",
    "restrict egress network policy": "how-to/restricted-clusters.html",
    "recover lost namespace": "how-to/stay-available.html",
    "exclude namespace": "faq.html",
    "webhook down": "faq.html",
    "backup": "faq.html",
    "choose gpu model": "faq.html",
    "failing card out of service": "faq.html",
    "gang scheduling": "faq.html",
    "limit a team quota": "faq.html",
    "log level": "faq.html",
    "out of memory": "faq.html",
    "security other tenants": "faq.html",
    "verify limits are enforced": "faq.html",
    "how do I take a card out of service?": "faq.html",
    "what if a node is lost": "faq.html",
    "is it a security boundary": "faq.html",
    "can I use it on EKS": "faq.html",
    "smallest share of a gpu": "faq.html",
    "chargeback": "faq.html",
    "overcommit": "faq.html",
    "Xid 79 card fell off the bus": "faq.html",
    "two linked GPUs NVLink": "faq.html",
    "stolen token": "faq.html",
    "how much memory does the scheduler need": "faq.html",
    "mig": "how-to/use-hardware-instances.html",
    "disable mig": "how-to/use-hardware-instances.html",
    "priority preemption": "how-to/go-before-others.html",
    "ContainerCreating": "how-to/troubleshoot.html",
    "CUDA_VISIBLE_DEVICES": "how-to/ask-for-half-a-gpu.html",
    "two replicas leader election": "faq.html",
    "split brain": "faq.html",
    "rollback version": "faq.html",
    "offline air-gapped cluster": "faq.html",
    "migrate from hami rollback": "from/hami.html",
    "8 GiB and 30 percent": "how-to/ask-for-half-a-gpu.html",
    "which cards were tested on real hardware": "faq.html",
}
"""What readers type, and the page that answers."""


VOID = ("br", "hr", "img", "input", "link", "meta")
"""Elements without an end."""


class _Shapes(HTMLParser):
    """What rules of accessibility tell apart on a page.

    Each element with its classes and attributes below its parent, the empty ones, steps between headings, ids that come twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[object] = set()
        self._open: list[tuple[str, ...]] = []
        self._filled: list[bool] = []
        self._heading = ""
        self._ids: set[str | None] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the element below its parent."""
        given = dict(attrs)
        if "id" in given and given["id"] in self._ids:
            self.found.add(("twice", given["id"]))
        self._ids.add(given.get("id"))
        own = (tag, *sorted((given.pop("class", "") or "").split()), *sorted(given))
        self.found.add((*self._open[-1:], own))
        self._fill()
        if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.found.add((self._heading, tag))
            self._heading = tag
        if tag not in VOID:
            self._open.append(own)
            self._filled.append(False)

    def handle_data(self, data: str) -> None:
        """Note that the element is not empty."""
        if data.strip():
            self._fill()

    def handle_endtag(self, tag: str) -> None:
        """Close it, and those in it that have no end of their own."""
        while tag in (own[0] for own in self._open):
            own = self._open.pop()
            if not self._filled.pop():
                self.found.add(("empty", own))
            if own[0] == tag:
                break

    def _fill(self) -> None:
        self._filled[-1:] = [True for _ in self._filled[-1:]]


def examples(folder: Path) -> list[str]:
    """Few pages that have among them every shape that any page has."""
    left: dict[str, set[object]] = {}
    for page in sorted(folder.rglob("*.html")):
        shapes = _Shapes()
        shapes.feed(page.read_text(encoding="utf-8"))
        left[page.relative_to(folder).as_posix()] = shapes.found
    chosen: list[str] = []
    while any(left.values()):
        most = max(left, key=lambda name: len(left[name]))
        chosen.append(most)
        seen = left.pop(most)
        left = {name: found - seen for name, found in left.items()}
    return chosen


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the base's name
        """Say nothing of each file."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as it is built now."""
    made = built(tmp_path_factory)
    assert made.code == 0, made.said
    return made.folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    """Its address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def browse(tell: Callable[[Page], Awaitable[None]]) -> None:
    """A browser without a cluster."""

    async def story() -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with browsing(Path(folder)) as page:
                await tell(page)
                assert page.problems == []

    asyncio.run(story())


def test_pages_are_readable_on_a_phone_and_a_desk_in_both_schemes(site: str) -> None:
    """Texts have a contrast of at least 4.5, code in tables stays in one piece, and no page scrolls sideways."""
    wrong = []

    async def tell(page: Page) -> None:
        await page.call(  # a page would keep the scheme that was chosen first
            "Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.clear(); {NO_SEARCH}"
        )
        for (scheme, drawn), width in product(SCHEMES.items(), (360, 1280)):
            await page.call(
                "Emulation.setEmulatedMedia",
                features=[{"name": "prefers-color-scheme", "value": scheme}],
            )
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            await page.call("Emulation.setDeviceMetricsOverride", **size)
            for name in PAGES:
                ready = f"document.body.dataset.mdColorScheme === '{drawn}'"
                await page.open(f"{site}/{name}.html", ready)
                found = {
                    "poor": await page.value(CONTRASTS),
                    "broken": await page.value(BROKEN),
                    "sideways": max(0, await page.value(SIDEWAYS)),
                }
                wrong.extend(
                    (name, scheme, width, what, is_) for what, is_ in found.items() if is_
                )

    browse(tell)
    assert wrong == [], "\n".join(map(str, wrong))


@pytest.mark.long(20)
@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: tests/tools/watching/fetch brings it")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_axe_finds_nothing(folder: Path, site: str, scheme: str, width: int) -> None:
    """All rules of axe-core, on pages with all that any page has: on a desk in light, and on a phone in dark."""
    pages = examples(folder)
    wrong = []

    async def tell(page: Page) -> None:
        await page.call(
            "Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.clear(); {NO_SEARCH}"
        )
        await page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        for name in pages:
            ready = f"document.body.dataset.mdColorScheme === '{SCHEMES[scheme]}'"
            await page.open(f"{site}/{name}", ready)
            wrong.extend((name, one) for one in await page.axe())

    browse(tell)
    assert wrong == [], "\n".join(map(str, wrong))


def test_the_search_finds(site: str) -> None:
    """What a reader types leads to the page among the first three."""
    missed = {}

    async def tell(page: Page) -> None:
        # The index of all pages is read once, as it takes a second: each question begins with an empty field.
        await page.open(f"{site}/index.html", "document.querySelector('.md-search__input')")
        for words, leads_to in ASKED.items():
            await page.value("document.querySelector('.md-search__input').select()")
            await page.call("Input.insertText", text="")
            await page.value(TYPED)
            await page.until("!document.querySelector('.md-search-result__item')")
            await page.call("Input.insertText", text=words)
            await page.value(TYPED)
            await page.until("document.querySelector('.md-search-result__item')")
            found = await page.value(
                "[...document.querySelectorAll('.md-search-result__item')].slice(0, 8).map("
                "(item) => new URL(item.querySelector('a').href).pathname.slice(1))"
            )
            if leads_to not in found[:3]:
                missed[words] = found

    browse(tell)
    assert missed == {}
