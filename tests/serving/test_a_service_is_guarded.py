"""Tokens, certificates and limits. Not covered: the routes behind them (tests/extender)."""

import asyncio
import logging
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from partage.model.errors import InvalidValue
from partage.serving.access import Access, TokenFile
from partage.serving.limits import Limits, guard, read_body
from partage.serving.site import Site
from partage.serving.tls import ServerTls

TOKEN = "a-token-of-some-length"  # noqa: S105 # of this test


class Now:
    """A clock that is set."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.time


def test_tokens_are_read_again_when_the_file_changes(tmp_path: Path) -> None:
    """Rotation needs no restart; the file is looked at every few seconds."""
    file, now = tmp_path / "tokens", Now()
    file.write_text(f"# who\n\n{TOKEN}-1\n{TOKEN}-2\n")
    tokens = TokenFile(file, now)
    assert tokens.accepts(f"{TOKEN}-1".encode())
    assert tokens.accepts(f"{TOKEN}-2".encode())
    assert not tokens.accepts(b"")

    file.write_text(f"{TOKEN}-3\n")
    os.utime(file, ns=(1, 1))
    assert not tokens.accepts(f"{TOKEN}-3".encode())
    now.time = 10.0

    assert tokens.accepts(f"{TOKEN}-3".encode())
    assert not tokens.accepts(f"{TOKEN}-1".encode())


def test_tokens_that_are_replaced_while_they_are_read_are_read_again(tmp_path: Path) -> None:
    """A Secret may be rotated at any moment; what it no longer holds opens nothing."""

    class Rotating(type(tmp_path)):  # type: ignore[misc] # the class of the platform's paths
        def open(self, *args: Any, **more: Any) -> Any:
            opened = super().open(*args, **more)
            newer = Path(f"{self}.newer")
            newer.write_text(f"{TOKEN}-new\n")
            newer.replace(self)
            return opened

    file, now = Rotating(tmp_path / "tokens"), Now()
    Path(file).write_text(f"{TOKEN}-old\n")
    tokens = TokenFile(file, now)
    now.time = 10.0

    assert tokens.accepts(f"{TOKEN}-new".encode())
    assert not tokens.accepts(f"{TOKEN}-old".encode())


@pytest.mark.parametrize("damage", ["gone", "empty", "short"])
def test_a_damaged_file_keeps_the_tokens_that_were_good(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Half-written secrets must not lock the scheduler out; the log says so."""
    file, now = tmp_path / "tokens", Now()
    file.write_text(f"{TOKEN}\n")
    tokens = TokenFile(file, now)
    if damage == "gone":
        file.unlink()
    else:
        file.write_text("" if damage == "empty" else "short\n")
        os.utime(file, ns=(1, 1))
    now.time = 10.0

    with caplog.at_level(logging.WARNING):
        assert tokens.accepts(TOKEN.encode())
    assert "last good tokens" in caplog.text


@pytest.mark.parametrize("content", [None, "", "# only a comment\n", "short\n"])
def test_a_service_does_not_start_with_a_bad_token_file(
    tmp_path: Path, content: str | None
) -> None:
    """No file, no token, or one that can be guessed."""
    file = tmp_path / "tokens"
    if content is not None:
        file.write_text(content)

    with pytest.raises(InvalidValue, match="token"):
        TokenFile(file, Now())


def test_nothing_is_open_unless_it_is_told_to_be() -> None:
    """A service that was given neither tokens nor certificates refuses."""
    with pytest.raises(InvalidValue, match="privileged routes"):
        Access()
    assert Access(plain=True).allows("", None)
    assert Access(certificates=True).allows("", {"subject": ()})
    assert not Access(certificates=True).allows(f"Bearer {TOKEN}", None)


class Certificates:
    """An authority, and a server's pair on disk that can be replaced."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.folder = folder
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.issue(1)

    def issue(self, stamp: int) -> None:
        """A new pair, with a time and an end of its own."""
        self.end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=stamp)
        pair = self.authority.issue_cert("localhost", not_after=self.end)
        pair.cert_chain_pems[0].write_to_path(self.folder / "cert.pem")
        pair.private_key_pem.write_to_path(self.folder / "key.pem")
        for name in ("cert.pem", "key.pem"):
            os.utime(self.folder / name, ns=(stamp, stamp))

    def tls(self, *, clients: bool = False, required: bool = False) -> ServerTls:
        """The server's side."""
        authority = self.folder / "ca.pem" if clients else None
        return ServerTls(self.folder / "cert.pem", self.folder / "key.pem", authority, required)

    def client(self, *, certificate: bool = False) -> ssl.SSLContext:
        """The client's side."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if certificate:
            self.authority.issue_cert("kube-scheduler").configure_cert(context)
        return context


async def _call(port: int, context: ssl.SSLContext, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    request = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"
    try:
        writer.write(request.encode())
        line = await reader.readline()
        if not line:
            raise ConnectionError("no answer")
        serial = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
    return int(line.split(b" ")[1]), serial


async def _page(request: web.Request) -> web.Response:
    body = await read_body(request, Limits())
    return web.Response(body=body)


def test_a_server_shows_its_new_certificate_without_a_restart(tmp_path: Path) -> None:
    """New connections see what was read last; a pair that does not fit changes nothing."""
    pairs = Certificates(tmp_path)
    tls = pairs.tls(clients=True, required=True)

    async def scene() -> None:
        site = Site(web.Application(), Limits(), tls)
        await site.start()
        client = pairs.client(certificate=True)
        _, first = await _call(site.port, client, "/")
        assert not tls.refresh()
        assert tls.end == pairs.end.timestamp()
        pairs.issue(2)
        assert tls.refresh()
        assert tls.end == pairs.end.timestamp()
        _, second = await _call(site.port, client, "/")
        (tmp_path / "key.pem").write_text("half")
        assert not tls.refresh()
        _, third = await _call(site.port, client, "/")
        await site.stop()
        assert first != second
        assert second == third

    asyncio.run(scene())


def test_an_authority_that_was_removed_is_trusted_no_more(tmp_path: Path) -> None:
    """Its clients are refused from the next look at the files on; those of the new one get their answers."""
    pairs = Certificates(tmp_path)
    tls = pairs.tls(clients=True, required=True)

    async def scene() -> None:
        site = Site(web.Application(), Limits(), tls)
        await site.start()
        old = pairs.client(certificate=True)
        assert (await _call(site.port, old, "/"))[0] == 404
        other = trustme.CA()
        other.cert_pem.write_to_path(tmp_path / "ca.pem")
        os.utime(tmp_path / "ca.pem", ns=(2, 2))
        assert tls.refresh()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await _call(site.port, old, "/")
        new = pairs.client()
        other.issue_cert("kube-scheduler").configure_cert(new)
        assert (await _call(site.port, new, "/"))[0] == 404
        await site.stop()

    asyncio.run(scene())


def test_a_handshake_issues_nothing_that_nobody_takes_up(tmp_path: Path) -> None:
    """Tickets for sessions cost a third of a handshake; Go's clients keep none."""
    context = Certificates(tmp_path).tls(clients=True).context

    assert context.num_tickets == 0


def test_missing_tls_files_are_told_at_the_start(tmp_path: Path) -> None:
    """The error does not wait for the first connection."""
    with pytest.raises(InvalidValue, match="TLS files"):
        _ = ServerTls(tmp_path / "none.pem", tmp_path / "none.key").context


def test_what_a_handler_does_not_catch_is_logged_and_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller learns nothing of the inside, and the connection lives on."""

    async def page(_request: web.Request) -> web.Response:
        raise ValueError("secret")

    async def scene() -> list[bytes]:
        app = web.Application(middlewares=[guard()])
        app.router.add_post("/page", page)
        site = Site(app, Limits())
        await site.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        answers = []
        for _ in range(3):
            writer.write(b"POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            answers.append(head.split(b" ")[1] + await reader.readexactly(length))
        writer.close()
        await site.stop()
        return answers

    answers = asyncio.run(scene())

    assert [answer[:3] for answer in answers] == [b"500"] * 3
    assert not any(b"secret" in answer for answer in answers)
    assert caplog.text.count("ValueError: secret") == 3


def test_a_stopping_service_ends_what_it_began() -> None:
    """A request that is being answered gets its answer; idle connections are closed."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        began.set()
        await may_end.wait()
        return web.Response(body=b"done")

    async def scene() -> tuple[bytes, bytes]:
        app = web.Application()
        app.router.add_post("/slow", slow)
        site = Site(app, Limits())
        await site.start()
        idle, other = await asyncio.open_connection("127.0.0.1", site.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await began.wait()
        stopping = asyncio.create_task(site.stop())
        asyncio.get_running_loop().call_soon(may_end.set)
        answer = await reader.read()
        await stopping
        rest = await idle.read()
        for one in (writer, other):
            one.close()
        return answer, rest

    answer, rest = asyncio.run(scene())

    assert answer.endswith(b"done")
    assert rest == b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n", 400),
        (b"POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n", 400),
        (b"POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n", 400),
        (b"POST /page HTTP/1.1\r\nHost: x\r\nno colon\r\n", 400),
        (b"NONSENSE\r\n", 400),
        (b"POST /page HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70000 + b"\r\n", 431),
    ],
    ids=["two lengths", "negative", "no number", "no header", "no request", "too long"],
)
def test_a_head_that_makes_no_sense_is_refused(head: bytes, status: int) -> None:
    """The library aiohttp, which knows all of HTTP, refuses it, unless it is too large to be looked at."""

    async def scene() -> bytes:
        app = web.Application(middlewares=[guard()])
        app.router.add_post("/page", _page)
        site = Site(app, Limits())
        await site.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(head + b"\r\n")
        line = await reader.readline()
        writer.close()
        await site.stop()
        return line

    assert int(asyncio.run(scene()).split(b" ")[1]) == status


def test_what_a_client_sends_ahead_stays_with_it() -> None:
    """While one request is answered, one read is kept of what follows."""
    hold = asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        await hold.wait()
        return web.Response()

    async def scene() -> tuple[int, bytes]:
        limits = Limits(body=1000, head=1000)
        app = web.Application()
        app.router.add_post("/slow", slow)
        site = Site(app, limits)
        await site.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"x" * 2**25)
        transport = writer.transport
        before = -1
        while before != transport.get_write_buffer_size():
            before = transport.get_write_buffer_size()
            await asyncio.sleep(1)
        hold.set()
        line = await reader.readline()
        writer.close()
        await site.stop()
        return before, line

    left, line = asyncio.run(scene())
    assert left > 2**23
    assert line.split()[1] == b"200"


def test_a_port_that_is_taken_is_told() -> None:
    """The start raises the system's own error."""

    async def scene() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            site = Site(web.Application(), Limits())
            with pytest.raises(OSError, match="address already in use"):
                await site.start("127.0.0.1", taken.getsockname()[1])
            await site.stop()

    asyncio.run(scene())


async def test_a_client_that_goes_away_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An answer that its client does not read to the end is not logged as an error."""
    caplog.set_level(logging.DEBUG, logger="partage")
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b"x" * 2**16)
                await asyncio.sleep(0)
        finally:
            ended.set()

    app = web.Application(middlewares=[guard()])
    app.add_routes([web.get("/", endless)])
    site = Site(app, Limits())
    await site.start()
    host, port = site.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.read(100)
    writer.close()
    async with asyncio.timeout(240):
        await ended.wait()
    await site.stop()

    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_closed_routes_answer_nobody() -> None:
    """A certificate or a token does not help."""
    closed = Access(closed=True)
    assert not closed.allows("Bearer x", object())
    assert not closed.allows("", None)
