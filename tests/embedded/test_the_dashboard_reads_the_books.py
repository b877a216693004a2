"""What the dashboard loads: the page itself, and documents with ETag, paging and readers' rights."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from up_world import PODS, World, eventually, node, pod, run, running

from partage.dashboard.nodes import nodes_document
from partage.dashboard.queries import NodeQuery
from partage.dashboard.routes import document_routes
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.serving.limits import guard

MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(")
NAMESPACES = [
    f"http://www.w3.org/{name}" for name in ("2000/svg", "1999/xhtml", "1998/Math/MathML")
]
PREACT = "bdcbd9abdf2c77c5c45326eab42191e949222d479d0d5f69467387a77040cb55"
"""Of Preact 11.2.0 as npm has it (`npm pack preact@11.2.0`, `dist/preact.mjs`)."""
HALF = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}


async def fetch(
    world: World, path: str, headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], str]:
    """Code, headers and text."""
    url = world.cluster.addresses.dashboard + path
    async with world.http.get(url, headers=headers) as answer:
        return answer.status, answer.headers, await answer.text()


def test_the_page_and_what_it_loads_come_from_here_alone() -> None:
    """Each file is served with a policy that allows nothing from elsewhere, and none refers there."""

    async def story() -> None:
        async with running([node()]) as world:
            scripts = [
                f"/dashboard/{name}.js"
                for name in (
                    "app",
                    "api",
                    "cards",
                    "compare",
                    "draw",
                    "fleet",
                    "format",
                    "nodes",
                    "overview",
                    "parts",
                    "picture",
                    "pods",
                )
            ]
            library = "/dashboard/vendor/preact.mjs"
            for path in ("/", "/dashboard/style.css", "/dashboard/icon.svg", library, *scripts):
                code, headers, text = await fetch(world, path)
                assert code == 200, path
                assert "default-src 'none'" in headers["Content-Security-Policy"]
                assert "unsafe" not in headers["Content-Security-Policy"]
                assert headers["X-Content-Type-Options"] == "nosniff"
                for name in NAMESPACES:
                    text = text.replace(name, "")
                assert "http://" not in text
                assert "https://" not in text
                if path != library:
                    assert not MARKUP.search(text), path  # what others named becomes text
                again, _, _ = await fetch(world, path, {"If-None-Match": headers["ETag"]})
                assert again == 304

    run(story())


def test_the_library_is_the_published_one() -> None:
    """It is not edited, and its licence comes with it."""
    folder = files("partage.dashboard").joinpath("static", "vendor")
    found = hashlib.sha256(folder.joinpath("preact.mjs").read_bytes()).hexdigest()
    assert found == PREACT
    assert "The MIT License" in folder.joinpath("preact.LICENSE").read_text("utf-8")


def test_the_fleet_comes_as_a_byte_a_card() -> None:
    """In natural order; use, protocol and state have values of their own."""

    async def story() -> None:
        nodes = [node("n10", cards=1), node("n2", cards=2), node("n1", cards=0)]
        async with running(nodes) as world:
            await world.create(PODS, pod("fits", HALF))
            await world.phase("fits", "Running")
            await world.patch("/api/v1/nodes/n10", {"spec": {"unschedulable": True}})

            async def look() -> dict[str, Any]:
                return dict(json.loads((await fetch(world, "/api/fleet"))[2]))

            def cells(seen: dict[str, Any], key: str) -> list[int]:
                return list(base64.b64decode(seen[key]))

            seen = await eventually(look, lambda seen: 4 in cells(seen, "state"))  # Cordoned
            assert seen["nodes"] == ["n1", "n2", "n10"]
            assert cells(seen, "cards") == [0, 2, 1]
            assert sorted(cells(seen, "compute")) == [0, 0, 50]
            used = cells(seen, "compute").index(50)
            assert seen["protocols"][cells(seen, "protocol")[used]] == "koordinator"
            assert cells(seen, "memory")[used] == 50
            assert [seen["states"][one] for one in cells(seen, "state")][2] == "Cordoned"
            assert seen["kinds"][cells(seen, "kind")[0]]["model"] == "A100-SXM4-80GB"
            code, headers, _ = await fetch(world, "/api/fleet")
            assert (code, headers["Partage-State"]) == (200, "leader")

    run(story())


def test_ways_to_fit_are_proven_and_change_nothing() -> None:
    """Less of what is asked, another node, or the end of a pod; each tried on the live books."""

    async def story() -> None:
        tainted = {"spec": {"taints": [{"key": "for", "value": "others", "effect": "NoSchedule"}]}}
        async with running([node("n0", cards=1), node("n1", cards=2)]) as world:
            await world.patch("/api/v1/nodes/n1", tainted)
            await world.heard()
            await world.create(PODS, pod("first", HALF))
            await world.phase("first", "Running")
            share = {"koordinator.sh/gpu-core": 80, "koordinator.sh/gpu-memory-ratio": 50}
            await world.create(PODS, pod("waits", share))
            await world.refused("waits")
            before = (await fetch(world, "/api/nodes"))[2]
            found = json.loads((await fetch(world, "/api/ways/default/waits"))[2])["ways"]
            assert [
                (one["text"], one["node"], [p["name"] for p in one["pods"]]) for one in found
            ] == [
                ("ask 50% of compute instead of 80%", "n0", []),
                ("tolerate for=others:NoSchedule", "n1", []),
                ("wait until this pod ends", "n0", ["first"]),
            ]
            assert (await fetch(world, "/api/nodes"))[2] == before
            assert json.loads((await fetch(world, "/api/ways/default/first"))[2]) == {"ways": []}
            assert (await fetch(world, "/api/ways/default/nope"))[0] == 404

    run(story())


def test_documents_tell_what_is_there_and_cost_nothing_twice() -> None:
    """Sums, nodes with who is on each card, pods with reasons; 304 while nothing changes."""

    async def story() -> None:
        async with running([node("n0", cards=1), node("n1", cards=2)]) as world:
            await world.create(PODS, pod("fits", HALF))
            await world.phase("fits", "Running")
            await world.create(PODS, pod("waits", {"koordinator.sh/gpu": 300}))
            await world.refused("waits")

            code, headers, text = await fetch(world, "/api/nodes?limit=1&offset=1")
            page = json.loads(text)
            assert (code, page["total"], len(page["nodes"])) == (200, 2, 1)
            tag = {"If-None-Match": headers["ETag"]}
            assert (await fetch(world, "/api/nodes?limit=1&offset=1", tag))[0] == 304
            waiting = json.loads((await fetch(world, "/api/pods?state=waiting"))[2])
            assert [p["name"] for p in waiting["pods"]] == ["waits"]
            assert waiting["pods"][0]["code"] == "InsufficientCards"
            used = json.loads((await fetch(world, "/api/nodes?only=used"))[2])["nodes"]
            assert [t["name"] for n in used for c in n["cards"] for t in c["tenants"]] == ["fits"]
            seen = json.loads((await fetch(world, "/api/overview"))[2])
            assert seen["cards"] == {"total": 3, "idle": 2, "shared": 1, "whole": 0, "closed": 0}
            assert seen["core_milli"] == {"total": 3000, "used": 500}
            assert seen["pods"] == {"placed": 1, "waiting": 1, "waiting_by_claims": 0}

            daemon = world.cluster._daemon
            assert daemon is not None
            masked = await nodes_document(daemon.service.books, NodeQuery(), names=False)
            assert "fits" in json.dumps(await nodes_document(daemon.service.books, NodeQuery()))
            assert "fits" not in json.dumps(masked)

    run(story())


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("/api/nodes?limit=x", 400, "must be a number"),
        ("/api/nodes?limit=-1", 400, "must be a number"),
        ("/api/nodes?offset=%C2%B2", 400, "must be a number"),
        ("/api/nodes?only=mine", 400, "must be one of"),
        ("/api/nodes?order=age", 400, "must be one of"),
        ("/api/pods?colour=red", 400, "there is no parameter colour"),
        ("/api/pods?text=" + "x" * 254, 400, "longer than"),
        ("/api/node/nope", 404, "there is no node nope"),
    ],
    ids=["text", "negative", "superscript", "choice", "order", "unknown", "long", "node"],
)
def test_a_wrong_question_is_answered_with_a_sentence(path: str, code: int, says: str) -> None:
    """4xx with what is wrong, never a fault."""

    async def story() -> None:
        async with serving(None) as (url, http), http.get(url + path) as answer:
            assert answer.status == code
            assert says in (await answer.json())["message"]

    run(story())


class Team:
    """Readers of one namespace, by a token."""

    async def may_read(self, authorization: str, namespace: str, address: str = "") -> bool:
        """See `Readers`."""
        del address
        return authorization == "Bearer team" and namespace == "team"


class Source:
    """Books without anything in them."""

    def __init__(self) -> None:
        self.books = Books(ClusterCache(), Hooks())
        self.leading = self.rebuilt = True


class serving:  # noqa: N801 # reads as a verb
    """The documents on a port, for some readers."""

    def __init__(self, readers: Any) -> None:
        app = web.Application(middlewares=[guard()])
        app.add_routes(document_routes(Source(), readers, lambda: 0.0))
        self._runner = web.AppRunner(app)
        self._http = aiohttp.ClientSession()

    async def __aenter__(self) -> tuple[str, aiohttp.ClientSession]:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}", self._http

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()
        await self._runner.cleanup()


def test_names_follow_the_readers_rights() -> None:
    """A reader of one namespace gets its pods, and sums without names of the rest."""

    async def story() -> None:
        async with serving(Team()) as (url, http):
            mine = {"Authorization": "Bearer team"}
            for path, headers, code in (
                ("/api/pods", mine, 403),
                ("/api/pods?namespace=other", mine, 403),
                ("/api/pods?namespace=team", mine, 200),
                ("/api/pods?namespace=team", {}, 403),
                ("/api/overview", {}, 200),
                ("/api/nodes", {}, 200),
            ):
                async with http.get(url + path, headers=headers) as answer:
                    assert answer.status == code, path
            async with http.get(url + "/api/overview", headers=mine) as answer:
                assert (await answer.json())["names"] is False

    run(story())
