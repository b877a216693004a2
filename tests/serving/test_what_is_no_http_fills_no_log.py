"""A stranger who sends what is no HTTP is answered, and the log has a line a minute of it."""

import asyncio
import gc
import logging
import socket
import ssl
import struct

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadStatusLine

from partage.serving.limits import Limits, guard
from partage.serving.site import Site, quiet_logger

SENT = (
    b"GET \x00/x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /x HTTP/9.9\r\n\r\n",
    b"GET /x HTTP/1.1\r\nBad Header: x\r\n\r\n",
    b"GET http://[::1/x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x16\x03\x01 no hello\r\n\r\n",
)


async def test_each_is_answered_and_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The line has no traceback, and no word of theirs."""
    app = web.Application(middlewares=[guard()])
    site = Site(app, Limits())
    await site.start()
    try:
        for sent in SENT * 5:
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(sent)
            assert b" 400 Bad Request" in await reader.readline()
            writer.close()
    finally:
        await site.stop()

    told = [one for one in caplog.records if one.name != "asyncio"]
    assert [(one.name, one.levelname, one.exc_info) for one in told] == [
        ("partage.serving.http", "WARNING", None)
    ]
    assert (
        told[0].getMessage().startswith("refused as no HTTP since the last such line: 1 requests")
    )


@pytest.mark.parametrize(
    "line", [b"GET /x ", b"CONNECT  ", b"GET /x HTTP/0.9", b"GET /x HTTP/2.0"]
)
async def test_a_request_without_a_known_version_is_refused(
    line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """At some of them, the task that serves the connection would end with a traceback."""
    site = Site(web.Application(middlewares=[guard()]), Limits())
    await site.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(line + b"\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(Limits().patience / 2):
            assert b" 400 Bad Request" in await reader.readline()
        writer.close()
    finally:
        await site.stop()
    gc.collect()
    await asyncio.sleep(0)
    assert not caplog.records


async def test_a_client_that_goes_before_its_refusal_is_not_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """This holds for a refused request, and for a client that waits for leave to send its body."""

    async def body(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application(middlewares=[guard()])
    app.add_routes([web.post("/x", body)])
    site = Site(app, Limits())
    await site.start()
    post = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    expects = post.replace(b"Length: 0", b"Length: 9\r\nExpect: 100-continue")
    reset = struct.pack("ii", 1, 0)
    try:
        for sent in (expects, post + b"no HTTP\r\n\r\n", b"no HTTP\r\n\r\n") * 20:
            one = socket.create_connection(("127.0.0.1", site.port))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            one.sendall(sent)
            one.close()
            await asyncio.sleep(0.01)
    finally:
        await site.stop()
    gc.collect()
    await asyncio.sleep(0)
    assert not caplog.records


async def test_a_client_of_tls_knows_at_once() -> None:
    """An `https://` for a plain port: its handshake fails, and does not wait for a time to be over."""
    site = Site(web.Application(middlewares=[guard()]), Limits())
    await site.start()
    try:
        async with asyncio.timeout(Limits().patience / 2):
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(
                    "127.0.0.1", site.port, ssl=ssl.create_default_context()
                )
    finally:
        await site.stop()


def test_the_next_line_counts_what_came_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    """Faults of ours are logged as before."""
    now = 0.0
    logger = quiet_logger("partage.serving.tried", lambda: now)

    def refused() -> None:
        logger.error(
            "Error handling request from %s", "10.0.0.9", exc_info=BadStatusLine("\x1b[2J")
        )

    for _ in range(100):
        refused()
        now += 0.5
    now = 60.0
    refused()
    logger.error("a fault", exc_info=ValueError("ours"))

    first, second, fault = caplog.records
    assert (first.levelno, second.levelno) == (logging.WARNING, logging.WARNING)
    assert second.getMessage() == (
        "refused as no HTTP since the last such line: 100 requests; the last is from 10.0.0.9: "
        "BadStatusLine"
    )
    assert fault.levelno == logging.ERROR
    assert fault.exc_info is not None
