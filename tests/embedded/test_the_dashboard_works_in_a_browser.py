"""The page in a real browser: what it shows, by keyboard and to screen readers, in both schemes."""

import json
import os
import re
import tempfile
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from browser import AXE, CONTRASTS, PROGRAM, Page, browsing
from up_world import PODS, World, node, pod, run, running

from partage.agent.discovery.models import MODELS
from partage.dashboard.catalogue import plain_model
from partage.vendors import names

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine")

HALF = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}

HATCHED = "getComputedStyle(document.querySelector('%s')).backgroundImage.includes('gradient')"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
VIEWS = ("#/", "#/fleet", "#/nodes", "#/node/n0", "#/pods", "#/pod/default/waits", "#/compare")


def shown(view: str) -> str:
    """Whether this view is drawn."""
    return f"document.querySelector('#view h1') && document.querySelector('#view').dataset.shows === '{view}'"


def browse(tell: Callable[[World, Page, str], Awaitable[None]]) -> None:
    """A cluster with a pod on a card, one that waits and a hardware instance, and a browser."""

    async def story() -> None:
        nodes = [node("n0", cards=2), node("m0", cards=1, registers=("hami",), mode="mig")]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with running(nodes) as world, browsing(Path(folder)) as page:
                await world.create(PODS, pod("fits", HALF))
                await world.phase("fits", "Running")
                await world.create(PODS, pod("waits", {"koordinator.sh/gpu": 400}))
                await world.refused("waits")
                await tell(world, page, world.cluster.addresses.dashboard)
                assert page.problems == []

    run(story())


def test_every_view_shows_what_the_books_say() -> None:
    """Sums, picture, a node, workloads, an explanation; then a pod that comes while one looks."""

    async def tell(world: World, page: Page, url: str) -> None:
        await page.open(f"{url}/#/", shown("#/"))
        text = await page.value("document.querySelector('#view').innerText")
        assert "default/waits" in text
        assert "InsufficientCards" in text
        await page.open(f"{url}/#/nodes", "document.querySelectorAll('.part').length === 2")
        box = await page.value(
            "(() => { const p = document.querySelector('.lane.compute .part');"
            " return p.getBoundingClientRect().width / p.parentElement.getBoundingClientRect().width; })()"
        )
        assert box == pytest.approx(0.5, abs=0.02)
        await page.open(
            f"{url}/#/node/n0", "document.querySelector('#view h1')?.textContent === 'n0'"
        )
        assert "default/fits" in await page.value("document.querySelector('#view').innerText")
        await page.open(f"{url}/#/pod/default/waits", "document.querySelector('.reason')")
        text = await page.value("document.querySelector('#view').innerText")
        assert "Try: " in text
        assert "Why not there, the nearest first" in text
        await page.open(
            f"{url}/#/pods?state=placed",
            "document.querySelectorAll('#view tbody tr').length === 1",
        )
        await world.create(PODS, pod("later", HALF))
        await page.until("document.querySelector('#view').innerText.includes('default/later')")
        container = {"command": ["sh", "-c", "exit 3"]}
        await world.create(PODS, pod("ended", HALF, container=container, restartPolicy="Never"))
        await world.phase("ended", "Failed")
        await page.open(
            f"{url}/#/pod/default/ended",
            "document.querySelector('#view h1')?.textContent === 'default/ended'",
        )
        await page.until(
            "document.querySelector('#view tbody tr')?.innerText.startsWith('main\\t3\\tError')"
        )
        assert "has failed on node" in await page.value(
            "document.querySelector('#view').innerText"
        )

    browse(tell)


def test_the_overview_begins_with_what_needs_a_hand() -> None:
    """Closed cards with their reasons, cordoned nodes and waiting pods, each with a link; nothing when all is well."""

    async def story() -> None:
        panel = "document.querySelector('#view .attention')"
        says = f"{panel}.innerText"
        links = f"[...{panel}.querySelectorAll('a')].map((a) => a.hash)"
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with running([node("n0", cards=2)]) as world, browsing(Path(folder)) as page:
                url = world.cluster.addresses.dashboard
                await page.open(f"{url}/#/", shown("#/"))
                assert (await page.value(says)).strip() == "Nothing needs attention"
                ill = {"metadata": {"annotations": {names.SIMULATE_UNHEALTHY: "1=Xid 79"}}}
                await world.patch("/api/v1/nodes/n0", ill)
                await world.create(PODS, pod("waits", {"koordinator.sh/gpu": 400}))
                await page.until(f"{says}.includes('1 card takes no pod')")
                await page.until(f"{says}.includes('1 pod waiting')")
                text = await page.value(says)
                assert "n0 gpu 1 Unhealthy" in text
                assert "Xid 79" in text
                assert {"#/node/n0", "#/pods?state=waiting"} <= set(await page.value(links))
                assert await page.value(
                    f"{panel}.compareDocumentPosition(document.querySelector('.tiles'))"
                    " === Node.DOCUMENT_POSITION_FOLLOWING"
                )
                assert page.problems == []

    run(story())


def test_policies_and_a_cards_past_are_shown() -> None:
    """A row a policy; a history that stays unfolded while the page renews itself."""

    async def tell(world: World, page: Page, url: str) -> None:
        await page.open(f"{url}/#/compare", shown("#/compare"))
        text = await page.value("document.querySelector('#view').innerText")
        assert "as it is (partage)" in text
        assert "binpack" in text
        await page.open(f"{url}/#/node/n0", shown("#/node/n0"))
        await page.until("document.querySelector('details summary').textContent.includes('(1)')")
        await page.value("document.querySelector('details summary').click()")
        assert "default/fits" in await page.value("document.querySelector('details').innerText")
        await world.create(PODS, pod("later", HALF))
        await page.until("document.querySelector('details summary').textContent.includes('(2)')")
        assert "default/later" in await page.value("document.querySelector('details').innerText")

    browse(tell)


def test_an_instance_lies_where_it_is_on_the_card() -> None:
    """A slice of an A100 begins and ends at its memory units of eight."""

    async def tell(world: World, page: Page, url: str) -> None:
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}
        await world.create(
            PODS, pod("slice", limits, meta={"annotations": {"nvidia.com/vgpu-mode": "mig"}})
        )
        await world.phase("slice", "Running")
        found = await world.get("/api/pods?text=slice", scheduler=True)
        (grant,) = found["pods"][0]["allocations"]
        ready = (
            "document.querySelector('.lane.memory .tick') && document.querySelector('.part.hami')"
        )
        await page.open(f"{url}/#/node/{grant['node']}", ready)
        left, width = await page.value(
            "(() => { const p = document.querySelector('.lane.memory .part.hami').getBoundingClientRect();"
            " const l = document.querySelector('.lane.memory').getBoundingClientRect();"
            " return [(p.left - l.left) / l.width, p.width / l.width]; })()"
        )
        assert left == pytest.approx(grant["mig"]["start"] / 8, abs=0.02)
        assert width == pytest.approx(grant["mig"]["size"] / 8, abs=0.02)
        # HAMi's plugin registers its cards so; lists and the page name them alike.
        names = ("NVIDIA A100-SXM4-40GB", "nvidia-h100 80GB HBM3", "C500")
        plain = (
            "import(new URL('dashboard/format.js', document.baseURI)).then(({plainModel}) =>"
            f" {list(names)}.map(plainModel))"
        )
        assert await page.value(plain) == [plain_model(one) for one in names]

    browse(tell)


def test_texts_are_readable_in_light_and_dark() -> None:
    """Every text has a contrast of at least 4.5 to its ground, on every view, in both schemes."""

    async def tell(_world: World, page: Page, url: str) -> None:
        for scheme in ("light", "dark"):
            await page.call(
                "Emulation.setEmulatedMedia",
                features=[{"name": "prefers-color-scheme", "value": scheme}],
            )
            for view in VIEWS:
                await page.open(f"{url}/{view}", shown(view))
                assert await page.value(CONTRASTS) == [], (scheme, view)
        await page.value("document.querySelector('#view h1').style.setProperty('color', '#555')")
        assert len(await page.value(CONTRASTS)) == 1  # the measure sees what is hard to read

    browse(tell)


def test_the_page_is_told_in_roles_and_names() -> None:
    """Landmarks, one heading of the first level, named controls, meters, tables and lists."""

    async def tell(_world: World, page: Page, url: str) -> None:
        for view in VIEWS:
            await page.open(f"{url}/{view}", shown(view))
            tree = (await page.call("Accessibility.getFullAXTree"))["nodes"]
            seen = [(_value(n, "role"), _value(n, "name")) for n in tree if not n.get("ignored")]
            roles = [role for role, _name in seen]
            assert {"banner", "navigation", "main"} <= set(roles), view
            assert await page.value("document.querySelectorAll('h1').length") == 1
            needing = (
                "button",
                "link",
                "meter",
                "table",
                "searchbox",
                "combobox",
                "img",
                "region",
            )
            assert [one for one in seen if one[0] in needing and not one[1]] == [], view
        await page.open(f"{url}/#/", shown("#/"))
        meters = await page.value(
            "[...document.querySelectorAll('[role=meter]')].every(m => m.getAttribute('aria-valuetext'))"
        )
        assert meters is True

    browse(tell)


async def views(page: Page, url: str) -> AsyncIterator[tuple[str, int, str]]:
    """Open every view in three widths and both themes."""
    for width, theme in product((360, 1024, 1600), ("light", "dark")):
        await page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": theme}],
        )
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        for view in VIEWS:
            await page.open(f"{url}/{view}", shown(view))
            yield view, width, theme


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: tests/tools/watching/fetch brings it")
def test_axe_finds_nothing() -> None:
    """All rules of axe-core on every view, in three widths and both themes."""
    wrong = []

    async def tell(_world: World, page: Page, url: str) -> None:
        async for view, width, theme in views(page, url):
            wrong.extend((view, width, theme, one) for one in await page.axe())
        await page.value("document.querySelector('#view h1').remove()")
        assert await page.axe() != []  # the rules are asked

    browse(tell)
    assert wrong == [], "\n".join(map(str, wrong))


def _value(node: dict[str, Any], key: str) -> str:
    return str(node.get(key, {}).get("value", ""))


def test_it_is_used_with_the_keyboard_alone() -> None:
    """The skip link comes first, Enter follows links, `/` goes to the search, focus stays in sight."""

    async def tell(_world: World, page: Page, url: str) -> None:
        await page.open(f"{url}/#/", shown("#/"))
        await page.press("Tab", 9)
        assert await page.value("document.activeElement.className") == "skip"
        for _ in range(3):
            await page.press("Tab", 9)
        assert await page.value("document.activeElement.textContent") == "Nodes"
        assert await page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await page.press("Enter", 13, "\r")
        await page.until("document.querySelector('.filters') && document.querySelector('.nodes')")
        assert await page.value("document.activeElement.id") == "main"
        await page.press("/", 191, "/")
        assert await page.value("document.activeElement.name") == "text"
        await page.call("Input.insertText", text="m0")
        await page.until("document.querySelectorAll('.nodes > li').length === 1")
        assert await page.value("document.activeElement.value") == "m0"

    browse(tell)


def test_escape_closes_what_is_open() -> None:
    """A card's history, and the field for a token, which does not come back by itself."""

    async def tell(_world: World, page: Page, url: str) -> None:
        await page.open(f"{url}/#/node/n0", shown("#/node/n0"))
        await page.until("document.querySelector('details summary')")
        await page.value("document.querySelector('details summary').focus()")
        await page.press("Enter", 13, "\r")
        assert await page.value("document.querySelector('details').open")
        await page.press("Escape", 27)
        assert not await page.value("document.querySelector('details').open")
        assert await page.value("document.activeElement.tagName") == "SUMMARY"

        await page.open(f"{url}/#/", shown("#/"))
        await page.value(
            "(() => { const genuine = window.fetch; window.looks = 0; window.fetch = async (path) => {"
            " const body = await (await genuine(path)).json(); window.looks += 1;"
            " return new Response(JSON.stringify({ ...body, names: false })); }; })()"
        )
        await page.until("document.querySelector('#sign-in').checkVisibility()")
        await page.value("document.querySelector('#token').focus()")
        await page.press("Escape", 27)
        assert await page.value("document.activeElement.id") == "main"
        seen = await page.value("window.looks")
        await page.until(f"window.looks > {seen + 1}")
        assert not await page.value("document.querySelector('#sign-in').checkVisibility()")

    browse(tell)


def test_every_control_is_reached_by_tab_and_in_sight() -> None:
    """None is left out, none keeps the focus, and each shows that it has it."""
    controls = (
        "[...document.querySelectorAll('a[href], button:enabled, input, select, summary, [tabindex=\"0\"]')]"
        ".filter((one) => one.checkVisibility())"
    )
    sight = (
        "(() => { const one = document.activeElement, box = one.getBoundingClientRect();"
        " const { outlineStyle, outlineWidth } = getComputedStyle(one);"
        f" return [{controls}.indexOf(one), outlineStyle === 'solid' && outlineWidth === '3px' && box.width > 0"
        " && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth]; })()"
    )

    async def tell(_world: World, page: Page, url: str) -> None:
        for view in VIEWS:
            await page.open("about:blank", "true", loading=True)
            await page.open(f"{url}/{view}", shown(view))
            await page.value("document.querySelector('#live').click()")  # nothing comes or goes
            await page.value("document.querySelector('#live').blur()")
            await page.value("document.activeElement.blur()")
            walked = []
            for _ in range(await page.value(f"{controls}.length")):
                await page.press("Tab", 9)
                walked.append(await page.value(sight))
            assert sorted(number for number, _ in walked) == list(range(len(walked))), view
            assert all(seen for _, seen in walked), view

    browse(tell)


def test_what_has_not_changed_is_not_touched() -> None:
    """A pod comes to one node: its picture is drawn, the other's elements, focus and text stay."""

    async def tell(world: World, page: Page, url: str) -> None:
        await page.open(f"{url}/#/nodes", shown("#/nodes"))
        await page.value("document.querySelector('.nodes a[href=\"#/node/m0\"]').focus()")
        await page.value(
            "window.touched = new Set(); new MutationObserver((all) => all.forEach((one) => {"
            " const node = (one.target.closest || (() => null)).call(one.target, '.nodes > li');"
            " if (node) touched.add(node.querySelector('h2').textContent); }))"
            ".observe(document.querySelector('.nodes'), {subtree: true, childList: true, attributes: true})"
        )
        await world.create(PODS, pod("later", HALF))
        await page.until("document.querySelectorAll('.part').length === 4")
        assert await page.value("[...touched]") == ["n0"]
        assert await page.value("document.activeElement.textContent") == "m0"

    browse(tell)


def test_a_fleet_of_cells_is_walked_by_keys_and_links_to_the_card() -> None:
    """A cell a card; arrow keys say what each is, Enter opens its node at that card."""

    async def tell(_world: World, page: Page, url: str) -> None:
        await page.open(f"{url}/#/fleet?by=state", shown("#/fleet?by=state"))
        await page.until("document.querySelector('.cells canvas').height > 10")
        assert "shared: 1" in await page.value(
            "document.querySelector('.fleet .legend').innerText"
        )
        colours = (
            "(() => { const c = document.querySelector('.cells canvas');"
            " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            " const found = new Set(); for (let i = 0; i < d.length; i += 4)"
            " found.add(`${d[i]},${d[i + 1]},${d[i + 2]}`); return found.size; })()"
        )
        assert await page.value(colours) >= 3  # the ground, an idle card and a shared one
        await page.value("document.querySelector('.cells').focus()")
        says = "document.querySelector('.says').textContent"
        heard = []
        for _ in range(3):
            await page.press("ArrowRight", 39)
            heard.append((await page.value(says)).split(":")[0])
        assert heard == ["m0, card 1 of 1", "n0, card 1 of 2", "n0, card 2 of 2"]
        await page.press("Enter", 13, "\r")
        await page.until("document.querySelector('#meant')")
        assert await page.value("document.querySelector('#meant').dataset.card") == "gpu 1"
        await page.open(f"{url}/#/fleet?by=nothing", shown("#/fleet?by=nothing"))
        legend = await page.value("document.querySelector('.fleet .legend').innerText")
        assert "under 75%: 1" in legend, legend  # as without a choice

    browse(tell)


def test_both_lanes_name_pod_and_profile_in_one_order() -> None:
    """Instances that were made out of order lie in the same order on both lanes, each of a pod with two by itself."""

    async def tell(world: World, page: Page, url: str) -> None:
        for name, memory, cards in (("small", 4000, 1), ("large", 38000, 1), ("pair", 4000, 2)):
            asked = {"nvidia.com/gpu": cards, "nvidia.com/gpumem": memory}
            meta = {"annotations": {"nvidia.com/vgpu-mode": "mig"}}
            await world.create(PODS, pod(name, asked, meta=meta))
            await world.phase(name, "Running")
        parts = "[...document.querySelectorAll('.lane.{} .part')].map(p => p.textContent)"
        await page.open(
            f"{url}/#/node/m0", "document.querySelectorAll('.lane.memory .part').length === 4"
        )
        lanes = [await page.value(parts.format(kind)) for kind in ("compute", "memory")]
        names = [[part.split(" · ")[0] for part in lane] for lane in lanes]
        assert names[0] == names[1]
        assert sorted(names[0]) == ["large", "pair", "pair", "small"]
        assert all("g" in part.split(" · ")[1] for lane in lanes for part in lane)

    browse(tell)


def test_a_waiting_pod_shows_groups_and_ways_to_fit() -> None:
    """Equal nodes once, without empty columns, and the largest request that fits."""

    async def tell(_world: World, page: Page, url: str) -> None:
        await page.open(f"{url}/#/pod/default/waits", "document.querySelector('.ways li')")
        assert "ask 1 card instead of 4" in await page.value(
            "document.querySelector('.ways').innerText"
        )
        heads = await page.value(
            "[...document.querySelector('.stacked').querySelectorAll('th[scope=col]')].map(t => t.textContent)"
        )
        assert heads == ["nodes", "code", "why"]

    browse(tell)


def test_asked_and_free_differ_where_a_pod_does_not_fit() -> None:
    """By the numbers of `partage explain`, however little is missing: 40959 MiB of 40960 MiB are not `40Gi of 40Gi`."""

    def asking(name: str, memory: str) -> dict[str, Any]:
        return pod(name, {"koordinator.sh/gpu-core": 10, "koordinator.sh/gpu-memory": memory})

    async def tell(world: World, page: Page, url: str) -> None:
        text = "document.querySelector('#view').innerText"
        for name, memory in (("more", "40961Mi"), ("rest", "40960Mi")):
            await world.create(PODS, asking(name, memory))
            await world.phase(name, "Running")
        await world.create(PODS, asking("close", "40960Mi"))
        await world.refused("close")
        await page.open(f"{url}/#/pod/default/close", "document.querySelector('.stacked')")
        assert "40959Mi of 40Gi free" in await page.value(text)

    browse(tell)


def test_claims_are_shown_beside_pods() -> None:
    """They are on their card and in the sums; one that waits says why card by card, and what would never help."""

    def claim(name: str, cores: str, memory: str) -> dict[str, Any]:
        amounts = {"cores": cores, "memory": memory}
        exactly = {"deviceClassName": "share.gpu.partage.io", "capacity": {"requests": amounts}}
        spec = {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}
        return {"metadata": {"name": name}, "spec": spec}

    def user(name: str, claimed: str) -> dict[str, Any]:
        made = pod(name, {}, resourceClaims=[{"name": "card", "resourceClaimName": claimed}])
        made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
        return made

    async def tell(world: World, page: Page, url: str) -> None:
        for name, cores, memory in (("mine", "40", "8Gi"), ("large", "100", "900Gi")):
            await world.create(CLAIMS, claim(name, cores, memory))
            await world.create(PODS, user(f"has-{name}", name))
        await world.phase("has-mine", "Running")
        node_text = "document.querySelector('#view').innerText"
        await page.open(f"{url}/#/node/n0", f"{node_text}.includes('default/mine')")
        text = await page.value(node_text)
        assert "1 claim" in text
        assert "share (claim)" in text
        await page.open(f"{url}/#/pods?state=placed", f"{node_text}.includes('default/has-mine')")
        assert "40% + 8Gi" in await page.value(node_text)
        await page.open(f"{url}/#/pod/default/has-large", "document.querySelector('.reason')")
        text = await page.value(node_text)
        assert "claim large, request card: nearest gpu-" in text
        assert "900Gi asked, 80Gi left" in text
        assert "waiting does not help" in text
        assert "What would make it fit" not in text

    browse(tell)


def test_pictures_are_saved_to_be_sent_to_others() -> None:
    """A node, the fleet and a waiting pod as SVG that parses and as PNG."""

    async def tell(_world: World, page: Page, url: str) -> None:
        for view, says in (
            ("#/node/n0", "fits"),
            ("#/fleet", "Fleet by compute used"),
            ("#/pod/default/waits", "InsufficientCards"),
        ):
            await page.open(f"{url}/?{len(says)}{view}", shown(view))
            await page.until("document.querySelectorAll('.saving button').length === 2")
            await page.value(
                "window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return '#'; };"
                "HTMLAnchorElement.prototype.click = () => {};"
                "document.querySelectorAll('.saving button').forEach((b) => b.click())"
            )
            await page.until("saved.length === 2")
            text, kinds = await page.value(
                "saved[0].text().then((text) => [text, saved.map((blob) => blob.type)])"
            )
            assert kinds == ["image/svg+xml", "image/png"]
            assert says in "".join(ET.fromstring(text).itertext())  # noqa: S314 # ours

    browse(tell)


def test_what_has_no_colour_of_its_own_is_hatched() -> None:
    """Kinds after the eighth, on the page and in pictures; parts of other protocols, and closed cards."""

    async def story() -> None:
        nodes = [node(f"n{at}", model, 1) for at, model in enumerate(MODELS)]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with running(nodes) as world, browsing(Path(folder)) as page:
                url = world.cluster.addresses.dashboard
                await page.open(f"{url}/#/fleet?by=model", shown("#/fleet?by=model"))
                looks = await page.value(
                    "[...document.querySelectorAll('.fleet .legend i')].map(getComputedStyle)"
                    ".map((style) => style.backgroundColor + style.backgroundImage)"
                )
                assert len(set(looks)) == len(looks) == len(nodes) > 8
                boxes = (
                    "import(new URL('dashboard/picture.js', document.baseURI)).then(({box, paint, svgOf}) => {"
                    " const shapes = [0, 1, 2, 3].map((i) => box(30 * i, 0, 30, 30, 'set-0', null, false, i));"
                    " const picture = {width: 120, height: 30, title: '', shapes};"
                    " const canvas = document.createElement('canvas');"
                    " const context = canvas.getContext('2d', {willReadFrequently: true});"
                    " paint(context, picture);"
                    " return [svgOf(picture), ...[0, 30, 60, 90].map((x) =>"
                    " context.getImageData(x, 0, 30, 30).data.join())]; })"
                )
                svg, *painted = await page.value(boxes)
                assert re.findall(r"url\(#hatch-(\d)\)", svg) == ["1", "2", "3"]
                assert len(set(painted)) == 4
                await page.value(
                    "URL.createObjectURL = (blob) => { window.saved = blob; return '#'; };"
                    "HTMLAnchorElement.prototype.click = () => {};"
                    "document.querySelector('.saving button').click()"
                )
                svg = await page.value("saved.text()")
                assert svg.count("url(#hatch-1)") == 2 * (len(nodes) - 8)  # in legend and cells
                await page.open(f"{url}/#/nodes", shown("#/nodes"))
                assert await page.value(HATCHED % ".legend .other")
                await page.value(
                    "document.querySelector('.lane').append(document.createElement('b'));"
                    "document.querySelector('.lane b').className = 'part other'"
                )
                assert await page.value(HATCHED % ".part.other")
                await page.open(f"{url}/#/", shown("#/"))
                assert await page.value(HATCHED % ".stack .closed")
                assert await page.value(HATCHED % ".legend .closed")
                assert page.problems == []

    run(story())


def test_tables_are_sorted_and_filtered_by_the_address() -> None:
    """A head that is clicked sorts at the service; dropdowns offer what there is."""

    async def tell(world: World, page: Page, url: str) -> None:
        await world.create(
            PODS,
            pod("tiny", {"koordinator.sh/gpu-core": 10, "koordinator.sh/gpu-memory-ratio": 10}),
        )
        await world.phase("tiny", "Running")
        await page.open(
            f"{url}/#/pods?state=placed",
            "document.querySelectorAll('#view tbody tr').length === 2",
        )
        first = "document.querySelector('#view tbody tr').innerText"
        await page.value(
            "[...document.querySelectorAll('.sort')].find(b => b.textContent === 'compute').click()"
        )
        await page.until(
            "location.hash.includes('order=compute') && document.querySelector('[aria-sort=ascending]')?.textContent.startsWith('compute')"
        )
        assert "default/fits" in await page.value(first)
        await page.value(
            "[...document.querySelectorAll('.sort')].find(b => b.textContent.startsWith('compute')).click()"
        )
        await page.until(
            f"location.hash.includes('reverse=yes') && {first}.includes('default/tiny')"
        )
        await page.until(
            "[...document.querySelectorAll('select[name=code] option')].some(o => o.value === 'InsufficientCards')"
        )
        await page.open(f"{url}/#/pods?protocol=hami", shown("#/pods?protocol=hami"))
        assert "No pod matches." in await page.value("document.body.innerText")

    browse(tell)


def test_it_fits_a_phone_and_a_wall() -> None:
    """From 380 to 2,560 pixels no view scrolls sideways; only wide tables do, by themselves."""

    async def tell(_world: World, page: Page, url: str) -> None:
        for width in (380, 800, 2560):
            await page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=800,
                deviceScaleFactor=1,
                mobile=False,
            )
            for view in VIEWS:
                await page.open(f"{url}/{view}", shown(view))
                over = await page.value(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                assert over <= 0, (width, view)

    browse(tell)


def test_the_longest_names_fit_a_phone() -> None:
    """253 characters for a node and a pod: they are broken, and no view scrolls sideways."""

    async def story() -> None:
        name = ".".join(("n" * 63, "n" * 63, "n" * 63, "n" * 61))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with running([node(name)]) as world, browsing(Path(folder)) as page:
                url = world.cluster.addresses.dashboard
                await world.create(PODS, pod("p" * 253, HALF))
                await world.create(PODS, pod("q" * 253, {"koordinator.sh/gpu": 900}))
                await world.refused("q" * 253)
                views = (*VIEWS[:3], f"#/node/{name}", "#/pods")
                for width, view in product(
                    (380, 1300), (*views, *(f"#/pod/default/{c * 253}" for c in "pq"))
                ):
                    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
                    await page.call("Emulation.setDeviceMetricsOverride", **size)
                    await page.open(f"{url}/{view}", shown(view))
                    over = await page.value(
                        "Math.max(...[...document.querySelectorAll('html, h1, h2, h2 a, p a')].map((e) =>"
                        " e.getBoundingClientRect().right)) - document.documentElement.clientWidth"
                    )
                    assert over <= 0, (width, view)

    run(story())


def test_a_text_cannot_turn_what_is_beside_it() -> None:
    """A mark that turns the direction of writing is shown by its number, as on a terminal."""

    async def tell(world: World, page: Page, url: str) -> None:
        ill = {"metadata": {"annotations": {"simulate.partage.io/unhealthy": "0=a\u202ecba<b>"}}}
        await world.patch("/api/v1/nodes/n0", ill)

        await page.open(f"{url}/#/node/n0", "document.querySelector('#view .bad')")
        await page.until("document.querySelector('#view').innerText.includes('a\\\\u202ecba<b>')")

    browse(tell)


def test_what_was_typed_into_a_filter_stays_with_its_view() -> None:
    """A reader who follows a link right after typing is on the page of the link, at its address."""

    async def tell(_world: World, page: Page, url: str) -> None:
        await page.open(f"{url}/#/nodes", shown("#/nodes"))
        await page.value(
            "(() => { const field = document.querySelector('.filters input'); field.value = 'n';"
            " field.dispatchEvent(new Event('input', { bubbles: true })); location.hash = '#/node/n0'; })()"
        )
        await page.until(shown("#/node/n0"))
        await page.value("new Promise((done) => setTimeout(done, 600))")
        assert await page.value("location.hash") == "#/node/n0"

    browse(tell)


def test_what_is_not_there_is_said_with_a_way_on() -> None:
    """An unknown node, a list that matches nothing; the scheduler goes away and returns; a pod is deleted."""

    async def tell(world: World, page: Page, url: str) -> None:
        await page.open(f"{url}/#/node/nope", "document.querySelector('#view .alert')")
        text = await page.value("document.querySelector('#view').innerText")
        assert "there is no node nope." in text
        assert "Back to the overview" in text
        assert len(page.problems) >= 1  # the browser itself reports every 404
        page.problems.clear()
        for name in ("nope", "constructor"):
            await page.open(f"{url}/#/{name}", "document.querySelector('#view .alert')")
            told = await page.value("document.body.innerText")
            assert f"There is no page #/{name}." in told
        await page.open(f"{url}/#/nodes?text=nope", "document.querySelector('#view .empty')")
        assert "No node matches." in await page.value("document.body.innerText")

        await page.open(f"{url}/#/pods", shown("#/pods"))
        await page.value(
            "window.genuine = window.fetch; window.fetch = () => Promise.reject(new TypeError('gone'))"
        )
        await page.until("document.querySelector('#status.bad')")
        assert await page.value("document.querySelector('#live').textContent") == "No answer"
        assert "as of" in await page.value("document.querySelector('#status').textContent")
        assert "default/fits" in await page.value("document.querySelector('#view').innerText")
        await page.value("location.hash = '#/'")
        await page.until("document.querySelector('#view h1')?.textContent === 'No answer'")
        await page.value("window.fetch = window.genuine")
        await page.until("document.querySelector('#view h1')?.textContent === 'Overview'")
        await page.until("!document.querySelector('#status.bad')")
        assert await page.value("document.querySelector('#live').textContent") == "Live"
        assert "pods waiting" in await page.value("document.querySelector('#news').textContent")

        await page.open(f"{url}/#/node/n0", shown("#/node/n0"))
        await page.value("window.fetch = () => Promise.reject(new TypeError('gone'))")
        await page.until("document.querySelector('#status.bad')")
        await page.value("window.fetch = window.genuine")
        again = "document.querySelector('#news').textContent === 'the scheduler answers again'"
        await page.until(again)

        await page.open(f"{url}/#/compare", shown("#/compare"))
        await page.value(
            "(() => { const genuine = window.setTimeout; window.waits = []; window.setTimeout ="
            " (call, wait, ...more) => { if (wait !== 10000) window.waits.push(wait);"  # which is for an answer
            " return genuine(call, wait, ...more); }; })()"
        )
        await page.until("window.waits.some((one) => one >= 1000)")  # for the next look
        assert await page.value("Math.max(...window.waits)") == 2000

        await page.open(f"{url}/#/pod/default/fits", shown("#/pod/default/fits"))
        await world.send("DELETE", f"{PODS}/fits", {})
        await page.until("document.querySelector('#view h1').textContent === 'Not found'")
        assert "fits" in await page.value("document.querySelector('#view .alert').innerText")
        await page.open(f"{url}/#/", shown("#/"))
        page.problems.clear()  # as above

    browse(tell)


def test_an_empty_cluster_says_so() -> None:
    """No nodes, no pods: each view says what would have to come."""

    async def story() -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with running([]) as world, browsing(Path(folder)) as page:
                url = world.cluster.addresses.dashboard
                for view, says in (
                    ("#/", "There are no cards."),
                    ("#/nodes", "There are no nodes."),
                    ("#/pods", "No pod asks for a device."),
                ):
                    await page.open(f"{url}/{view}", shown(view))
                    assert says in await page.value("document.querySelector('#view').innerText")
                assert page.problems == []

    run(story())


LAYOUT = """
(() => {
  const wide = document.documentElement.clientWidth;
  const part = (box) => [Math.round(12 * box.left / wide), Math.round(12 * box.width / wide)];
  const places = [...document.querySelectorAll('header, .filters, .panel')].map((element) => {
    const title = element.querySelector('h2')?.textContent || element.className || element.tagName.toLowerCase();
    return [title, ...part(element.getBoundingClientRect())].join(' ');
  });
  const style = (name) => getComputedStyle(document.querySelector(name));
  return { places, colours: [style('body').backgroundColor, style('body').color, style('h1').color] };
})()
"""
"""Where each part lies, in twelfths of the window, in the order of reading; heights follow from fonts, so they are left out."""
LAYOUTS = Path(__file__).with_name("layouts.json")
LOOKS = Path(__file__).with_name("looks")
"""A picture of each view at a quarter of its size, as a person looked at it and accepted it."""
FONT = "* { font-family: 'Liberation Sans' !important; animation: none !important; transition: none !important }"
"""Of the same measures wherever it is: Debian's Chromium needs it."""
HAS_FONT = """
(() => {
  const context = document.createElement('canvas').getContext('2d');
  const width = (font) => { context.font = font; return context.measureText('Partage shares cards').width; };
  return width("40px 'Liberation Sans', monospace") !== width('40px monospace');
})()
"""
SMALLER = """
(async (source) => {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = Math.round(image.width / 4);
  canvas.height = Math.round(image.height / 4);
  const context = canvas.getContext('2d');
  context.imageSmoothingQuality = 'high';
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL('image/webp', 0.7);
})('%s')
"""
UNLIKE = """
(async (sources) => {
  const [one, other] = await Promise.all(sources.map(async (source) => {
    const image = new Image();
    image.src = source;
    await image.decode();
    const canvas = document.createElement('canvas');
    canvas.width = image.width;
    canvas.height = image.height;
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, image.width, image.height);
  }));
  if (one.width !== other.width || one.height !== other.height) return 1;
  let unlike = 0;
  for (let at = 0; at < one.data.length; at += 4) {
    const off = [0, 1, 2].map((i) => Math.abs(one.data[at + i] - other.data[at + i]));
    unlike += Math.max(...off) > 40;
  }
  return unlike / (one.width * one.height);
})(['%s', '%s'])
"""
"""The part of all points that are another colour: by more than 40 of 255 in red, green or blue."""
MOST_UNLIKE = 0.005
"""Ages and times that change were below 0.0025; a heading moved, other borders, links or padding, or a text that is gone, above in many views."""


def test_each_view_looks_as_it_was_looked_at(tmp_path: Path) -> None:
    """Three widths, two themes: the places of all parts, the colours, and the pictures by their points.

    `PARTAGE_LOOKED_AT=1` writes what is there: look at it first. A picture of what differs is left in the test's folder.
    """
    seen: dict[str, Any] = {}
    pictures: dict[str, str] = {}
    unlike: dict[str, str] = {}
    fonts = []

    async def tell(_world: World, page: Page, url: str) -> None:
        await page.call("Emulation.setScrollbarsHidden", hidden=True)
        async for view, width, theme in views(page, url):
            if view == "#/pod/default/waits":
                await page.until("document.querySelector('.ways li')")
            found = await page.value(LAYOUT)
            seen.setdefault(theme, found["colours"])
            assert seen[theme] == found["colours"], view
            places = seen.setdefault(f"{view} {width}", found["places"])
            assert places == found["places"], (view, width, theme)
            name = view.strip("#/").replace("/", "-") or "overview"
            pictures[f"{name}-{width}-{theme}"] = await page.picture(FONT)
        await page.open("about:blank", "true")
        fonts.append(await page.value(HAS_FONT))
        for name, picture in pictures.items():
            small = await page.value(SMALLER % picture)
            known, drawn = LOOKS / f"{name}.webp", tmp_path / f"{name}.webp"
            drawn.write_bytes(b64decode(small.partition(",")[2]))
            if os.environ.get("PARTAGE_LOOKED_AT"):
                known.write_bytes(drawn.read_bytes())
            before = b64encode(known.read_bytes()).decode()
            off = await page.value(UNLIKE % (f"data:image/webp;base64,{before}", small))
            if off > MOST_UNLIKE:
                unlike[name] = f"{off:.1%}: {drawn}"

    browse(tell)

    if os.environ.get("PARTAGE_LOOKED_AT"):
        LAYOUTS.write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    assert seen == json.loads(LAYOUTS.read_text(encoding="utf-8"))
    assert {one.stem for one in LOOKS.iterdir()} == set(pictures)
    if fonts == [False]:
        pytest.skip("the font Liberation Sans is not on this machine: no pictures compared")
    assert unlike == {}
