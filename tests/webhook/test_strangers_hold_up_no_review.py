"""Where API servers call from is unknown, so strangers may send reviews, by as many connections as the port takes."""

import asyncio
import json
import threading
from collections import Counter

import pytest
from reviews import container, context, pod, review

from partage.serving.limits import Limits
from partage.serving.site import Site
from partage.webhook import server
from partage.webhook.mutating import mutate
from partage.webhook.review import LARGEST, Review, Verdict, namespace_of
from partage.webhook.server import make_app
from partage.webhook.settings import Admission
from partage.wire.context import Context

STRANGER, API_SERVER = "127.0.0.2", "127.0.0.3"
PATIENCE = 240.0


def body_of(uid: str, size: int = 0, namespace: str = "team") -> bytes:
    """A review of a pod, which is so large at least."""
    notes = {"annotations": {"x": "y" * size}}
    asked = review(pod(container(limits={"nvidia.com/gpu": "1"}), meta=notes), namespace=namespace)
    asked["request"]["uid"] = uid
    return json.dumps(asked).encode()


async def asked(port: int, address: str, body: bytes, times: int = 1) -> list[int]:
    """The codes of the answers to the same review, sent again and again by one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    codes: list[int] = []
    try:
        for _ in range(times):
            writer.write(
                b"POST /webhook/mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            codes.append(int(head.split()[1]))
            length = next(
                line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            await reader.readexactly(int(length.split(b":")[1]))
    finally:
        writer.close()
    return codes


def test_a_review_comes_after_few_of_a_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred connections that send reviews without an end, and one of the API server."""
    order: list[str] = []
    begun = asyncio.Event()

    def noted(asked: Review, read: Context, admission: Admission) -> Verdict:
        order.append(asked.uid)
        if len(order) > 150:
            begun.set()
        return mutate(asked, read, admission)

    monkeypatch.setattr(server, "mutating", lambda _tracer: noted)

    async def story() -> None:
        site = Site(make_app(context), Limits())
        await site.start("0.0.0.0")  # noqa: S104 # loopback's addresses are several
        try:
            large = body_of("stranger", 50_000)
            crowd = [asyncio.create_task(asked(site.port, STRANGER, large, 5)) for _ in range(100)]
            await asyncio.wait_for(begun.wait(), PATIENCE)
            before = len(order)
            assert await asked(site.port, API_SERVER, body_of("honest")) == [200]
            assert order.index("honest") - before < 150
            assert {code for codes in await asyncio.gather(*crowd) for code in codes} == {200}
            assert Counter(order) == {"stranger": 500, "honest": 1}
        finally:
            await site.stop()

    asyncio.run(story())


def test_large_reviews_of_a_stranger_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are too many are its own."""
    go_on = threading.Event()

    def slow(asked: Review, read: Context, admission: Admission) -> Verdict:
        assert go_on.wait(PATIENCE)
        return mutate(asked, read, admission)

    monkeypatch.setattr(server, "mutating", lambda _tracer: slow)
    large = body_of("stranger", 100_000)
    monkeypatch.setattr(server, "_HELD", LARGEST + 15 * len(large))

    async def story() -> None:
        site = Site(make_app(context), Limits())
        await site.start("0.0.0.0")  # noqa: S104 # as above
        try:
            crowd = [asyncio.create_task(asked(site.port, STRANGER, large)) for _ in range(40)]
            done: set[asyncio.Task[list[int]]] = set()
            while len(done) < 24:
                done, _ = await asyncio.wait(crowd, timeout=0.05)
            honest = [
                asyncio.create_task(asked(site.port, API_SERVER, body_of("honest", 100_000)))
                for _ in range(4)
            ]
            more = len(done)
            while len(done) < more + 4:
                done, _ = await asyncio.wait(crowd, timeout=0.05)
            go_on.set()
            assert await asyncio.gather(*honest) == [[200]] * 4
            codes = Counter(code for codes in await asyncio.gather(*crowd) for code in codes)
            assert codes == {200: 12, 503: 28}
        finally:
            go_on.set()
            await site.stop()

    asyncio.run(story())


@pytest.mark.parametrize("namespaces", [1, 8])
def test_large_reviews_of_one_tenant_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch, namespaces: int
) -> None:
    """The API server asks for both by one address, and the other's is decided after one of each namespace."""
    go_on = threading.Event()
    order: list[str] = []

    def slow(asked: Review, read: Context, admission: Admission) -> Verdict:
        assert go_on.wait(PATIENCE)
        order.append(asked.namespace)
        return mutate(asked, read, admission)

    monkeypatch.setattr(server, "mutating", lambda _tracer: slow)
    large = body_of("r", 200_000, "mallory-0")
    monkeypatch.setattr(server, "_HELD", LARGEST + 16 * len(large))

    async def story() -> None:
        site = Site(make_app(context), Limits())
        await site.start("127.0.0.1")
        try:
            crowd = [
                asyncio.create_task(
                    asked(
                        site.port, API_SERVER, body_of("r", 200_000, f"mallory-{n % namespaces}")
                    )
                )
                for n in range(48)
            ]
            done: set[asyncio.Task[list[int]]] = set()
            while len(done) < 31:
                done, _ = await asyncio.wait(crowd, timeout=0.05)
            other = asyncio.create_task(
                asked(site.port, API_SERVER, body_of("r", 150_000, "other"))
            )
            while len(done) < 32 and not other.done():
                done, _ = await asyncio.wait(crowd, timeout=0.05)
            go_on.set()
            assert await other == [200]
            codes = Counter(code for codes in await asyncio.gather(*crowd) for code in codes)
            assert codes == {200: 16, 503: 32}
            assert order.index("other") <= 1 + namespaces  # the one in work, and a turn of each
        finally:
            go_on.set()
            await site.stop()

    asyncio.run(story())


def test_a_large_review_of_a_client_that_went_away_is_not_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server gives up after some seconds, and those that it still waits for come next."""
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(asked: Review, read: Context, admission: Admission) -> Verdict:
        order.append(asked.uid)
        begun.set()
        assert go_on.wait(PATIENCE)
        return mutate(asked, read, admission)

    monkeypatch.setattr(server, "mutating", lambda _tracer: slow)
    came: asyncio.Queue[str] = asyncio.Queue()

    def noticed(body: bytes) -> str:
        came.put_nowait(namespace_of(body))
        return "team"

    monkeypatch.setattr(server, "namespace_of", noticed)

    async def story() -> None:
        site = Site(make_app(context), Limits())
        await site.start("127.0.0.1")
        try:
            first = asyncio.create_task(asked(site.port, API_SERVER, body_of("first", 100_000)))
            await asyncio.wait_for(came.get(), PATIENCE)
            assert await asyncio.to_thread(begun.wait, PATIENCE)
            gone = asyncio.create_task(asked(site.port, API_SERVER, body_of("gone", 100_000)))
            await asyncio.wait_for(came.get(), PATIENCE)
            gone.cancel()
            last = asyncio.create_task(asked(site.port, API_SERVER, body_of("last", 100_000)))
            await asyncio.wait_for(came.get(), PATIENCE)
            go_on.set()
            assert await first == await last == [200]
            assert order == ["first", "last"]
        finally:
            go_on.set()
            await site.stop()

    asyncio.run(story())
