"""The page of a large fleet, over time, while it loads and on a phone, in a real browser."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from browser import PROGRAM, Page, browsing
from test_the_dashboard_works_in_a_browser import browse, shown
from up_world import PODS, World, node, pod, run, running

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine")

MANY = 5_000
CARDS = 8
SIZES = ((1024, 768), (1300, 900), (1600, 900))
PHONE = (380, 800)
FLEET = """
(() => {
  const bytes = (many, of) => {
    let text = '';
    for (let i = 0; i < many; i += 1) text += String.fromCharCode(of(i));
    return btoa(text);
  };
  const [nodes, cards] = [%d, %d];
  const all = nodes * cards;
  window.answers = { 'api/fleet': {
    nodes: Array.from({length: nodes}, (_, i) => `gpu-node-${i + 1}`), cards: bytes(nodes, () => cards),
    compute: bytes(all, (i) => i %% 101), memory: bytes(all, (i) => i %% 97), protocol: bytes(all, () => 0),
    state: bytes(all, () => 0), kind: bytes(all, () => 0), protocols: [''], states: ['idle', 'shared', 'whole'],
    kinds: [{vendor: 'nvidia', model: 'A100-SXM4-80GB'}] } };
})()
"""
INSTEAD = """
(() => {
  const genuine = window.fetch;
  window.fetch = async (url, more) => {
    if (window.silent) await new Promise((go) => { (window.kept ||= []).push(go); });
    const path = Object.keys(window.answers || {}).find((one) => String(url).includes(one));
    const answer = path && window.answers[path].nodes ? null : await genuine(url, more);
    const body = path && JSON.stringify({...(answer ? await answer.json() : {}), ...window.answers[path]});
    return path ? new Response(body, {headers: answer ? answer.headers : {'Partage-State': 'leader'}}) : answer;
  };
})()
"""
"""Answers that take long to come about: of 5,000 nodes, of an hour; the others are the service's own."""


async def sized(page: Page, width: int, height: int) -> None:
    """The window, so large."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    await page.call("Emulation.setDeviceMetricsOverride", **size)


async def before(page: Page, *scripts: str) -> None:
    """What runs before the page's own scripts from now on."""
    for script in (INSTEAD, *scripts):
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=script)


def test_five_thousand_nodes_are_on_one_screen() -> None:
    """A cell for each of 40,000 cards, all in sight, each distinct from its neighbours; keys reach the last."""

    async def tell(_world: World, page: Page, url: str) -> None:
        await before(page, FLEET % (MANY, CARDS))
        for width, height in SIZES:
            await sized(page, width, height)
            await page.open(f"{url}/?{width}#/fleet", shown("#/fleet"))
            await page.until("document.querySelector('.cells canvas').height > 100")
            text = await page.value("document.querySelector('.fleet').innerText")
            assert "40,000 cards on 5,000 nodes" in text
            right, bottom, steps = await page.value(
                "(() => { const c = document.querySelector('.cells canvas'); const r = c.getBoundingClientRect();"
                " const d = c.getContext('2d').getImageData(0, 0, c.width, 2).data; let steps = 0;"
                " for (let i = 4; i < 4 * c.width; i += 4) steps += d[i] !== d[i - 4] || d[i + 1] !== d[i - 3];"
                " return [r.right, r.bottom, steps]; })()"
            )
            assert right <= width, (width, height)
            assert bottom <= height, (width, height)
            assert steps > width // 20, (width, height)  # cells, and not one grey area
            await page.value("document.querySelector('.cells').focus()")
            await page.press("End", 35)
            said = await page.value("document.querySelector('.says').textContent")
            assert said.startswith("gpu-node-5000, card 8 of 8: ")
        await sized(page, *PHONE)
        await page.open(f"{url}/?phone#/fleet", shown("#/fleet"))
        over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.value(over) <= 0

    browse(tell)


GROUPS = "[...document.querySelectorAll('.stacked tbody tr')].map((row) => row.cells[0].innerText)"


def test_nodes_that_say_the_same_are_one_row_and_near_misses_come_first() -> None:
    """Four idle nodes of small cards in one row; before them the one that lacks least."""

    async def story() -> None:
        near = [node("near", cards=1), node("far", cards=1)]
        small = [node(f"t4-{n}", "Tesla-T4", cards=1) for n in range(1, 5)]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with running([*near, *small]) as world, browsing(Path(folder)) as page:
                for place, core in (("near", 20), ("far", 60)):
                    half = {"koordinator.sh/gpu-core": core, "koordinator.sh/gpu-memory-ratio": 10}
                    where = {"nodeSelector": {"kubernetes.io/hostname": place}}
                    await world.create(PODS, pod(f"on-{place}", half, **where))
                    await world.phase(f"on-{place}", "Running")
                large = {"koordinator.sh/gpu-core": 90, "koordinator.sh/gpu-memory": "40Gi"}
                await world.create(PODS, pod("waits", large))
                await world.refused("waits")
                for width, height in (PHONE, *SIZES):
                    await sized(page, width, height)
                    view = "#/pod/default/waits"
                    await page.open(
                        f"{world.cluster.addresses.dashboard}/?{width}{view}", shown(view)
                    )
                    rows = await page.value(GROUPS)
                    assert rows[:2] == ["near", "far"], (width, rows)
                    assert rows[2] == "4 nodes: t4-1, t4-2, t4-3, t4-4", (width, rows)
                assert page.problems == []

    run(story())


def test_nodes_that_a_pod_does_not_want_come_last() -> None:
    """Before any number of them comes the one that it wants, whose card is not idle."""

    async def story() -> None:
        nodes = [node(f"n{number}", cards=1) for number in range(5)]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with running(nodes) as world, browsing(Path(folder)) as page:
                label = {"metadata": {"labels": {"pool": "a"}}}
                await world.patch("/api/v1/nodes/n3", label)
                where = {"nodeSelector": {"pool": "a"}}
                share = {"koordinator.sh/gpu-core": 20, "koordinator.sh/gpu-memory-ratio": 10}
                await world.create(PODS, pod("holds", share, **where))
                await world.phase("holds", "Running")
                await world.create(PODS, pod("waits", {"koordinator.sh/gpu": 100}, **where))
                await world.refused("waits")
                view = "#/pod/default/waits"
                await page.open(f"{world.cluster.addresses.dashboard}/{view}", shown(view))

                rows = await page.value(GROUPS)
                assert rows[:2] == ["n3", "4 nodes: n0, n1, n2, n4"]

    run(story())


def test_the_overview_shows_an_hour_or_a_day() -> None:
    """Lines with words for those who do not see them; the choice is in the address, and a pod says since when it waits."""
    keys = ("core_milli", "memory_bytes", "idle", "waiting")
    hour: dict[str, Any] = {"step": 30, "kept": 120, "until": None}
    hour |= {key: [1000, 3000, 2000] for key in keys}
    day = {**hour, "step": 600, "waiting": [7, 7, 7, 7]}
    trend = json.dumps({"api/overview": {"trend": {"hour": hour, "day": day}}})
    lines = "[...document.querySelectorAll('.spark')].map((s) => s.getAttribute('aria-label'))"

    async def tell(_world: World, page: Page, url: str) -> None:
        await before(page, f"window.answers = {trend}")
        await page.open(f"{url}/#/", f"{shown('#/')} && document.querySelector('.spark')")
        said = await page.value(lines)
        assert len(said) == 4
        assert "from 1 card to 2 cards, least 1 card, most 3 cards" in said[1]
        await page.value("[...document.querySelectorAll('.choice')][1].click()")
        await page.until("location.hash === '#/?span=day'")
        await page.until(f"{lines}.some((one) => one.includes('Waiting pods: from 7 to 7'))")
        pressed = "document.querySelector('.choice[aria-pressed=true]').textContent"
        assert await page.value(pressed) == "a day"
        waits = "document.querySelector('#view time[datetime]')"
        for view in ("#/", "#/pods?state=waiting", "#/pod/default/waits"):
            await page.open(f"{url}/{view}", shown(view))
            assert await page.value(f"Date.now() - Date.parse({waits}.dateTime) < 600000"), view
            assert (await page.value(f"{waits}.textContent"))[-1] in "sm", view

    browse(tell)


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_reader_with_a_wrong_clock_sees_true_ages(hours: int) -> None:
    """A pod that waits since a moment ago does so by the service's clock."""
    wrong = f"(() => {{ const now = Date.now, off = {hours} * 3600000; Date.now = () => now() + off; }})()"

    async def tell(_world: World, page: Page, url: str) -> None:
        await before(page, wrong)
        await asyncio.sleep(1.1)  # no pod is 0 s old any more
        for view in ("#/", "#/pod/default/waits"):
            await page.open(f"{url}/?{hours}{view}", shown(view))
            told = await page.value("document.querySelector('#view time[datetime]').textContent")
            assert told != "0s"
            assert told[-1] in "sm"
            assert told[-1] == "s" or int(told[:-1]) < 60

    browse(tell)


def test_a_view_that_loads_says_what_it_will_be() -> None:
    """Its name and that it loads, busy for screen readers and not yet live; then the view itself."""

    async def tell(_world: World, page: Page, url: str) -> None:
        await before(page, "window.silent = true")
        for view, title in (("#/", "Overview"), ("#/pods", "Workloads"), ("#/node/n0", "n0")):
            await page.open(
                f"{url}/?{len(view)}{view}", "document.querySelector('#view')", loading=True
            )
            assert await page.value("document.querySelector('#view').ariaBusy") == "true"
            text = await page.value("document.querySelector('#view').innerText")
            assert text.split() == [title, "Loading…"]
            assert await page.value("document.querySelector('#live').dataset.state") == "stale"
            await page.value("window.silent = false; window.kept.forEach((go) => go()); 0")
            await page.until("document.querySelector('#view').ariaBusy === 'false'")
            assert "Loading" not in await page.value("document.querySelector('#view').innerText")
            assert not await page.value("document.querySelector('#live').dataset.state")

    browse(tell)


def test_a_service_that_hangs_is_not_called_live() -> None:
    """It takes the question and gives no answer; with the answer the page is live again."""

    async def tell(_world: World, page: Page, url: str) -> None:
        await before(page)
        await page.open(f"{url}/#/pods", shown("#/pods"))
        live = "document.querySelector('#live').textContent"
        assert await page.value(live) == "Live"
        await page.value("window.silent = true; 0")
        await page.until(f"{live} === 'No answer'")
        assert await page.value("document.querySelectorAll('#view tbody tr').length") == 2
        await page.value("window.silent = false; window.kept.forEach((go) => go()); 0")
        await page.until(f"{live} === 'Live'")

    browse(tell)


def test_a_phone_shows_why_a_pod_waits() -> None:
    """List, overview and the pod's page show it within the screen's width, over most of it and without scrolling."""
    inside = (
        "(() => { const found = [...document.querySelectorAll('#view td, #view .reason p')].filter((e) => e.innerText.includes('%s'));"
        " return found.length && found.every((e) => { const r = e.getBoundingClientRect();"
        " return r.left >= 0 && r.right <= innerWidth && r.width > innerWidth / 2 && e.scrollWidth <= e.clientWidth + 1; }); })()"
    )

    cut = (
        "[...document.querySelectorAll('#view table')].filter((e) => e.getBoundingClientRect().right > innerWidth)"
        ".map((e) => e.innerText)"
    )

    async def tell(_world: World, page: Page, url: str) -> None:
        await sized(page, *PHONE)
        for view in ("#/", "#/pods?state=waiting", "#/pod/default/waits"):
            await page.open(f"{url}/?{len(view)}{view}", shown(view))
            assert await page.value(inside % "insufficient cards"), view
            assert await page.value(cut) == [], view
        top = "document.querySelector('.reason').getBoundingClientRect().bottom"
        assert await page.value(top) < PHONE[1]  # before anything is scrolled

    browse(tell)


def test_a_cluster_without_cards_is_no_good_news() -> None:
    """The overview says what is missing, and the fleet names no card to point at and no picture to save."""

    async def story() -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with running([]) as world, browsing(Path(folder)) as page:
                url = world.cluster.addresses.dashboard
                await page.open(f"{url}/#/", shown("#/"))
                hand = await page.value("document.querySelector('.attention').innerText")
                assert "Nothing" not in hand
                assert "No cards" in hand
                assert "once the agent" in hand
                await page.open(f"{url}/?fleet#/fleet", shown("#/fleet"))
                fleet = await page.value("document.querySelector('.fleet').innerText")
                assert "There are no cards" in fleet
                assert "Point at" not in fleet
                assert "Save" not in fleet

    run(story())
