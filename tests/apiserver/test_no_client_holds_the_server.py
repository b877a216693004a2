"""Clients that hold connections, or send without an end, keep no other client from the server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from partage.apiserver import ApiServer, Settings, serve
from partage.serving.limits import Limits

PATIENCE = 240.0
FEW = Settings(limits=Limits(connections=8, per_address=8, patience=1.0, idle=1.0))
PLENTY = Settings(limits=Limits(connections=8, per_address=8, patience=3600.0, idle=3600.0))
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = b"POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HOLDS = {
    "nothing": b"",
    "half a head": b"GET /api/v1/pods HT",
    "a head without an end": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "half a body": POST + b"Content-Length: 100\r\n\r\n{",
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n64\r\n{",
    "a request, and no more": HEALTH,
}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[int]:
    """A server's port."""
    async with serve(ApiServer(settings)) as url, asyncio.timeout(PATIENCE):
        yield int(url.rpartition(":")[2])


async def opened(port: int, data: bytes) -> Streams:
    """A connection that has sent this."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("held", HOLDS.values(), ids=HOLDS)
async def test_who_comes_later_is_served(held: bytes) -> None:
    """Three times as many as the limit: connections that keep the server waiting make room."""
    async with served(PLENTY) as port:
        holders = [await opened(port, held) for _ in range(24)]
        reader, writer = await opened(port, HEALTH)

        assert (await reader.readline()).split()[1] == b"200"
        for _, one in (*holders, (reader, writer)):
            one.close()


@pytest.mark.parametrize("held", HOLDS.values(), ids=HOLDS)
async def test_who_does_not_go_on_is_closed(held: bytes) -> None:
    """It may get an answer or none, even when no other client needs the place."""
    async with served(FEW) as port:
        reader, writer = await opened(port, held)

        await reader.read()
        writer.close()


async def test_a_body_without_an_end_is_not_kept() -> None:
    """It is refused once it is larger than any object may be, with or without a length in its head."""
    async with served(PLENTY) as port:
        for head in (
            b"Content-Length: 99999999999\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n",
        ):
            reader, writer = await opened(port, POST + head)
            with contextlib.suppress(ConnectionError):
                for _ in range(64):  # of 64 KiB, more than 3 MiB
                    writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
                    await writer.drain()

            line = await reader.readline()
            assert line.split()[1] == b"413", line
            writer.close()


@pytest.mark.parametrize(
    "head",
    [b"X: " + b"a" * 300_000, b"\r\n".join(b"X%d: a" % one for one in range(50_000))],
    ids=["one", "many"],
)
async def test_a_huge_head_is_refused(head: bytes) -> None:
    """The server refuses it before it makes a request of it."""
    async with served(PLENTY) as port:
        reader, writer = await opened(port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        with contextlib.suppress(ConnectionError):
            writer.write(head + b"\r\n\r\n")
            await writer.drain()
            line = await reader.readline()
            assert not line or line.split()[1] == b"431", line
        writer.close()


async def test_a_watch_ends_with_its_client() -> None:
    """It ends at once, without an event for it: otherwise clients could fill the memory with old watches."""
    async with served(PLENTY) as port:
        before = asyncio.all_tasks()
        watch = b"GET /api/v1/nodes?watch=true HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for _ in range(5):
            reader, writer = await opened(port, watch)
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        while asyncio.all_tasks() - before:  # noqa: ASYNC110 # what is waited for has no event
            await asyncio.sleep(0.001)


async def test_a_probe_of_health_passes_a_crowd_of_requests() -> None:
    """The server works on a few requests in each round of the loop, so that others come in between."""
    crowd, order = 60, []
    body = b'{"metadata": {"generateName": "a-"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}'
    asked = POST + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"

    async def answered(name: str, reader: asyncio.StreamReader) -> None:
        assert (await reader.readline()).split()[1] in (b"200", b"201")
        order.append(name)

    async with served(Settings()) as port:
        opening = [await asyncio.open_connection("127.0.0.1", port) for _ in range(crowd + 1)]
        for _, writer in opening[1:]:
            writer.write(asked % (len(body), body))
        opening[0][1].write(HEALTH)
        async with asyncio.TaskGroup() as group:
            for number, (reader, _) in enumerate(opening):
                group.create_task(answered("pod" if number else "health", reader))
        for _, writer in opening:
            writer.close()

    assert order.index("health") < crowd / 2, order


async def test_lists_that_nobody_reads_have_a_bound_together() -> None:
    """The server has no copy of its own for each connection, and one that reads gets all of its list."""
    limits = Limits(connections=64, per_address=64, held=2**23, patience=2 * PATIENCE)
    server = ApiServer(Settings(limits=limits))
    get = b"GET /api/v1/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    async with serve(server) as url, asyncio.timeout(PATIENCE):
        for number in range(6):
            data = {"a": "x" * 700_000}
            await server.create(
                "configmaps", {"metadata": {"name": f"c{number}"}, "data": data}, "default"
            )
        held = []
        for _ in range(6):
            reader, writer = await opened(int(url.rpartition(":")[2]), get)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            held.append((reader, writer))
        while len(server._open) > 2**23 // 4_200_000 + 1:  # noqa: ASYNC110 # nothing else shows it
            await asyncio.sleep(0.01)
        for _, writer in held:
            writer.transport.abort()
        reader, writer = await opened(int(url.rpartition(":")[2]), get)
        assert len(await reader.read()) > 4_200_000
        writer.close()


async def test_requests_that_are_no_http_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line of all, without their text and without a traceback."""
    async with served(Settings()) as port:
        for head in (b"", b"Host: a\r\nHost: b\r\n", b"Host: a\r\nX : y\r\n") * 3:
            reader, writer = await opened(port, b"GET /healthz HTTP/1.1\r\n" + head + b"\r\n")
            assert b" 400 Bad Request" in await reader.readline()
            writer.close()

    (told,) = (one for one in caplog.records if one.name != "asyncio")
    assert told.getMessage().startswith("refused as no HTTP")
    assert not told.exc_info
