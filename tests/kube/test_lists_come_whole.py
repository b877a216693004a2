"""Pages, expired pages, and objects that are not what was asked for."""

import asyncio
import gzip
import json
from dataclasses import replace

import msgspec
import pytest
from kube_builders import PODS_PATH, Pod, client_of, put

from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.kube.errors import Expired, UndecodableAnswer
from partage.kube.resources import PODS, Scope

ALL = Scope(PODS)


async def test_pages_join_to_one_list() -> None:
    """Every object once, at the version of the first page."""
    async with KubeServer() as server, client_of(server, page_size=3) as client:
        for index in range(8):
            put(server, f"p{index}")

        listing = await client.list_all(ALL, into=Pod)

        assert [item.metadata.name for item in listing.items] == [f"p{i}" for i in range(8)]
        assert listing.resource_version == str(server.store.version)
        assert [request.query.get("limit") for request in server.requests] == ["3"] * 3


async def test_one_page_can_be_asked_for_at_a_time() -> None:
    """A limit and the token of the page before."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        put(server, "b")

        pages = [page async for page in client.pages(ALL, into=Pod, limit=1)]

        assert [len(page.items) for page in pages] == [1, 1]
        assert ["continue" in request.query for request in server.requests] == [False, True]


async def test_large_objects_come_in_smaller_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may create pods of a megabyte each; one page of many such pods would fill an agent's memory."""
    monkeypatch.setattr("partage.kube.client._PAGE", 4_000)
    async with KubeServer() as server, client_of(server, page_size=64) as client:
        for index in range(40):
            put(server, f"a{index:02}")
        for index in range(12):
            put(server, f"b{index:02}", nodeName="x" * 1_500)
        for index in range(40):
            put(server, f"c{index:02}")

        listing = await client.list_all(ALL, into=Pod)

        names = [
            f"{row}{i:02}" for row, many in (("a", 40), ("b", 12), ("c", 40)) for i in range(many)
        ]
        assert [item.metadata.name for item in listing.items] == names
        limits = [int(request.query["limit"]) for request in server.requests]
        assert {64, 16, 4, 1} >= set(limits)
        assert 1 in limits, "large ones are asked for one by one"
        assert limits[-1] > 1, "and small ones not"
        assert len(limits) < 60


async def test_an_empty_list_is_empty() -> None:
    """Some servers write null for no items."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(body=b'{"metadata":{"resourceVersion":"1"},"items":null}'))
        assert (await client.list_all(ALL, into=Pod)).items == ()


async def test_selectors_and_namespaces_narrow_the_list() -> None:
    """The server selects; so does the fake."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a", nodeName="n1")
        put(server, "b", nodeName="n2")
        put(server, "c", namespace="other", nodeName="n1")

        by_field = await client.list_all(Scope(PODS, fields="spec.nodeName=n1"), into=Pod)
        by_namespace = await client.list_all(Scope(PODS, "other"), into=Pod)
        by_label = await client.list_all(Scope(PODS, labels="x=y"), into=Pod)

        assert [item.metadata.name for item in by_field.items] == ["a", "c"]
        assert [item.metadata.name for item in by_namespace.items] == ["c"]
        assert by_label.items == ()


async def test_a_list_whose_pages_expired_is_read_at_once() -> None:
    """410 on the second page: the whole list again, in one piece and consistent."""
    async with KubeServer() as server, client_of(server, page_size=2) as client:
        for index in range(5):
            put(server, f"p{index}")
        server.fail(Fault(times=1, delay=0), Fault(status=410, reason="Expired"))

        listing = await client.list_all(ALL, into=Pod)

        assert len(listing.items) == 5
        assert "limit" not in server.requests[-1].query


async def test_a_list_that_expires_even_at_once_is_an_error() -> None:
    """The client lists once more and then raises it: the caller backs off."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(status=410, reason="Expired", times=2))

        with pytest.raises(Expired):
            await client.list_all(ALL, into=Pod)


async def test_one_odd_object_does_not_hide_the_others() -> None:
    """It is set aside with its metadata and what is wrong with it."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "good")
        server.store.create(
            PODS_PATH, "default", {"metadata": {"name": "odd"}, "spec": {"priority": "high"}}
        )

        listing = await client.list_all(ALL, into=Pod)

        assert [item.metadata.name for item in listing.items] == ["good"]
        assert listing.undecodable[0].meta.name == "odd"
        assert "Expected `int`, got `str` - at `$.spec.priority`" in listing.undecodable[0].problem


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{", id="not-json"),
        pytest.param(b"[]", id="not-a-list"),
        pytest.param(json.dumps({"metadata": {}, "items": [1]}).encode(), id="not-objects"),
        pytest.param(b'{"kind": "Status", "metadata": {}, "code": 500}', id="a-status"),
        pytest.param(b'{"metadata": {}, "items": []}', id="without-a-version"),
        pytest.param(b'{"metadata": {"resourceVersion": "abc"}}', id="a-version-that-is-none"),
        pytest.param('{"metadata": {"resourceVersion": "\uff11"}}'.encode(), id="other-digits"),
        pytest.param(b"<html><body>Please log in</body></html>", id="a-page"),
    ],
)
async def test_what_is_no_list_is_told(body: bytes) -> None:
    """A gateway's page, or half a document."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(body=body))

        with pytest.raises(UndecodableAnswer, match="GET /api/v1/pods"):
            await client.list_all(ALL, into=Pod)


def _page(name: str, following: str = "", version: int = 7, **head: object) -> Fault:
    """An answer with one pod, and the token of the next page."""
    metadata = {"resourceVersion": str(version), "continue": following, **head}
    items = [{"metadata": {"name": name, "uid": name, "resourceVersion": "3"}}]
    return Fault(body=json.dumps({"metadata": metadata, "items": items}).encode())


@pytest.mark.parametrize(
    ("pages", "told"),
    [
        ([_page("a", "x")] * 2, "leads back"),
        ([_page("a", "x"), _page("b", "y"), _page("c", "x")], "leads back"),
        ([_page("a", "x"), _page("b", version=6)], "a page at version 6 of a list at 7"),
        ([_page("a", "x"), _page("b", remainingItemCount=2)], "ends before 2 of its objects"),
        ([_page("a", remainingItemCount=1)], "ends before 1 of its objects"),
    ],
    ids=["itself", "an earlier page", "another version", "without the last", "without a token"],
)
async def test_pages_that_are_not_of_one_list_are_told(pages: list[Fault], told: str) -> None:
    """Caches and gateways answer so: taken for a list, the objects that it lacks would count as deleted."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(*map(replace, pages))

        with pytest.raises(UndecodableAnswer, match=told):
            await client.list_all(ALL, into=Pod)


async def test_a_page_may_be_empty_and_its_count_wrong() -> None:
    """Kubernetes promises neither objects in a page nor the number of those that follow, only the token."""
    empty = (
        b'{"metadata":{"resourceVersion":"7","continue":"y","remainingItemCount":0},"items":[]}'
    )
    pages = _page("a", "x", remainingItemCount=-1), Fault(body=empty), _page("b")
    async with KubeServer() as server, client_of(server) as client:
        server.fail(*pages)

        listing = await client.list_all(ALL, into=Pod)

        assert [item.metadata.name for item in listing.items] == ["a", "b"]


async def test_a_compressed_answer_is_not_inflated() -> None:
    """The client did not ask for one, and a small one may become of any size."""
    body = gzip.compress(b'{"metadata": {"resourceVersion": "1"}, "items": []}' + b" " * 2**20)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, client_of(f"http://{host}:{port}") as client:
        with pytest.raises(UndecodableAnswer):
            await client.list_all(ALL, into=Pod)


async def test_only_the_fields_of_the_type_are_kept() -> None:
    """The rest costs no memory."""

    class Thin(msgspec.Struct, frozen=True):
        metadata: msgspec.Raw

    async with KubeServer() as server, client_of(server) as client:
        put(server, "a", nodeName="n")

        listing = await client.list_all(ALL, into=Thin)  # type: ignore[type-var]

        assert b"nodeName" not in bytes(listing.items[0].metadata)
