"""What comes on a connection is bounded on the wire: pieces, chunks, lines, parameters, and what follows an answer.

A client that splits its request finely, sends on after its answer, or asks a thousand things at once has its connection
ended, or waits its turn; an honest one notices nothing.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import trustme
from aiohttp import web

from partage.serving.framing import Framing, Refused
from partage.serving.limits import Limits, guard, read_body
from partage.serving.site import Site
from partage.serving.tls import ServerTls

PATIENCE: Final = 240.0
LIMITS: Final = Limits()
POST: Final = b"POST /body HTTP/1.1\r\nHost: x\r\n"
GET: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
CHUNKED: Final = POST + b"Transfer-Encoding: chunked\r\n\r\n"
VERB: Final = b"POST /verb HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Served:
    """A site with a plain port, and what its handlers were asked."""

    site: Site
    asked: list[str]
    client: ssl.SSLContext | None = None

    async def open(self) -> Streams:
        """A connection."""
        name = "localhost" if self.client else None
        return await asyncio.open_connection(
            "127.0.0.1", self.site.port, ssl=self.client, server_hostname=name
        )


@contextlib.asynccontextmanager
async def served(folder: Path | None = None) -> AsyncIterator[Served]:
    """A site, by TLS where it has a folder for its certificate."""
    asked: list[str] = []

    async def healthy(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.Response(text="ok")

    async def body(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await read_body(request, LIMITS))))

    async def early(_request: web.Request) -> web.Response:
        return web.Response(status=403, text="no")

    async def verb(request: web.Request) -> web.Response:
        asked.append((await read_body(request, LIMITS)).decode())
        return web.json_response({})

    app = web.Application(middlewares=[guard()])
    app.add_routes([web.get("/healthz", healthy), web.post("/body", body)])
    app.add_routes([web.post("/early", early), web.post("/verb", verb)])
    tls = client = None
    if folder is not None:
        authority = trustme.CA()
        pair = authority.issue_cert("localhost")
        pair.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        pair.private_key_pem.write_to_path(folder / "key.pem")
        client = ssl.create_default_context()
        authority.configure_trust(client)
        tls = ServerTls(folder / "cert.pem", folder / "key.pem")
    site = Site(app, LIMITS, tls)
    await site.start()
    try:
        yield Served(site, asked, client)
    finally:
        await site.stop()


async def status(reader: asyncio.StreamReader) -> int:
    """Of the next answer; 0 where the connection ended."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            if line := await reader.readline():
                return int(line.split()[1])
    return 0


async def ended(reader: asyncio.StreamReader) -> None:
    """The server has ended the connection."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while await reader.read(2**16):
                pass


SPLIT: Final = {
    "chunks of a byte": CHUNKED + b"1\r\nx\r\n" * 2000,
    "chunks of a byte and of many": CHUNKED + (b"1\r\nx\r\n" * 4 + b"400\r\n" + b"x" * 1024 + b"\r\n") * 200,
    "chunks with extensions": CHUNKED + b"1;a=b\r\nx\r\n",
    "a size without an end": CHUNKED + b"0" * 100,
    "no size": CHUNKED + b"\r\n\r\n",
    "a negative size": CHUNKED + b"-1\r\nx\r\n",
    "trailers": CHUNKED + b"1\r\nx\r\n0\r\nA: b\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("how", SPLIT)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_body_in_small_pieces_ends_its_connection(
    tmp_path: Path, how: str, *, tls: bool
) -> None:
    """The server closes it before its end, which never comes here."""
    async with served(tmp_path if tls else None) as at:
        reader, writer = await at.open()
        writer.write(SPLIT[how])
        await ended(reader)
        writer.close()


HEADS: Final = {
    "a thousand headers": (GET + b"".join(b"X%d: a\r\n" % n for n in range(1000)) + b"\r\n", 431),
    "a large head": (GET + b"X: " + b"a" * 2**17 + b"\r\n\r\n", 431),
    "a head that does not end": (GET + b"X: " + b"a" * 2**17, 431),
    "lines that do not end": (GET + b"X: a\r\n" * 20_000, 431),
    "a thousand parameters": (b"GET /healthz?a" + b"&a" * 1000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    "a long path": (b"GET /" + b"a" * 2**15 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400),
    "length and chunks": (POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "another encoding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
    "no text": (POST + b"Content-Encoding: \xff\r\nContent-Length: 0\r\n\r\n", 400),
    "chunked twice": (CHUNKED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n", 400),
    "a tunnel": (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nGET /x", 405),
    "another expectation": (POST + b"Expect: wonders\r\nContent-Length: 1\r\n\r\nx", 417),
}  # fmt: skip


@pytest.mark.parametrize(
    "before", [b"", GET + b"\r\n", VERB], ids=["first", "second", "after a verb"]
)
@pytest.mark.parametrize("how", HEADS)
async def test_a_head_that_costs_too_much_is_refused(how: str, before: bytes) -> None:
    """The refusal has a reason, nothing of the head reaches a handler, and the connection ends."""
    head, code = HEADS[how]
    async with served() as at:
        reader, writer = await at.open()
        if before:
            writer.write(before)
            assert await status(reader) == 200
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
        asked = len(at.asked)
        writer.write(head)
        assert await status(reader) == code
        await ended(reader)
        writer.close()
        assert len(at.asked) == asked


@pytest.mark.parametrize(
    "head",
    [
        b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n",
        b"POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"30000000\r\n",
        b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n",
        b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n",
        b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n",
        b"POST /verb HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n",
        GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 900000000\r\n\r\n",
    ],
    ids=["length", "chunked", "nowhere", "HEAD", "too large", "verb", "upgrade"],
)
async def test_hardly_anything_is_read_after_an_early_answer(head: bytes) -> None:
    """The client has its answer, and then a reset or a server that does not read."""
    async with served() as at:
        reader, writer = await at.open()
        writer.write(head)
        assert await status(reader) >= 200
        sent = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while sent < 2**28:
                    writer.write(b"x" * 2**16)
                    await writer.drain()
                    sent += 2**16
        writer.close()
        assert sent < 2**26


@pytest.mark.parametrize("request_", [GET + b"\r\n", VERB], ids=["page", "verb"])
async def test_who_asks_a_thousand_things_at_once_lets_others_ask_between(request_: bytes) -> None:
    """One request of a connection is served at a time, however many came in one piece."""
    async with served() as at:
        many = await at.open()
        one = await at.open()
        many[1].write(request_ * 3000)
        one[1].write(GET.replace(b"/healthz", b"/healthz?one") + b"\r\n")
        assert await status(one[0]) == 200
        assert at.asked.index("/healthz?one") < 100
        for _ in range(3000):
            assert await status(many[0]) == 200
            while (await many[0].readline()).strip():
                pass
            await many[0].readexactly(2)
        many[1].close()
        one[1].close()


HONEST: Final = {
    "length": (POST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 10**6, b"1000000"),
    "chunks": (CHUNKED + (b"4000\r\n" + b"x" * 2**14 + b"\r\n") * 64 + b"0\r\n\r\n", b"1048576"),
    "a few small chunks": (CHUNKED + b"1\r\nx\r\n" * 200 + b"0\r\n\r\n", b"200"),
    "GET with a body": (GET + b"Content-Length: 4\r\n\r\nabcd", b"ok"),
    "upgrade that is declined": (GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", b"ok"),
    "an empty line before": (b"\r\n" + GET + b"\r\n", b"ok"),
    "fifty headers": (GET + b"".join(b"X-%d: value\r\n" % n for n in range(50)) + b"\r\n", b"ok"),
    "sixty parameters": (b"GET /healthz?a=b" + b"&a=b" * 60 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"ok"),
}  # fmt: skip


@pytest.mark.parametrize("how", HONEST)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_an_honest_request_is_served_three_times(
    tmp_path: Path, how: str, *, tls: bool
) -> None:
    """They are answered on one connection, each after the answer before, and all at once."""
    request, answer = HONEST[how]
    async with served(tmp_path if tls else None) as at:
        reader, writer = await at.open()
        for times in (1, 1, 3):
            writer.write(request * times)
            for _ in range(times):
                assert await status(reader) == 200
                while (await reader.readline()).strip():
                    pass
                assert await reader.readexactly(len(answer)) == answer
        writer.close()


async def test_who_waits_for_a_word_to_go_on_gets_it() -> None:
    """Curl does, with bodies of a megabyte."""
    async with served() as at:
        reader, writer = await at.open()
        writer.write(POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert await status(reader) == 100
        await reader.readline()
        writer.write(b"abc")
        assert await status(reader) == 200
        writer.close()


def pieces(data: bytes, size: int) -> int:
    """How many reads of this size are taken before the request is refused, or all of it is."""
    framing = Framing(LIMITS)
    for number, at in enumerate(range(0, len(data), size)):
        try:
            framing.came(data[at : at + size])
            framing.take()
        except Refused:
            return number
    assert framing.whole
    return -1


@pytest.mark.parametrize("size", [1, 2, 16, 100])
def test_segments_of_a_few_bytes_are_refused(size: int) -> None:
    """This holds for heads and bodies; reads are counted, since a kernel joins what waits."""
    assert 0 < pieces(GET + b"X: " + b"a" * 60_000 + b"\r\n\r\n", size) < 1000
    assert 0 < pieces(POST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 10**6, size) < 1000
    assert 0 < pieces(CHUNKED + (b"4000\r\n" + b"x" * 2**14 + b"\r\n") * 64 + b"0\r\n\r\n", size) < 1000  # fmt: skip


@pytest.mark.parametrize("size", [500, 1460, 2**16])
def test_packets_of_slow_networks_are_taken(size: int) -> None:
    """A body may be split into packets anywhere, between chunks too."""
    for data, _ in HONEST.values():
        assert pieces(data, size) == -1
    assert pieces(GET + b"\r\n", 1) == -1  # of a person who types
