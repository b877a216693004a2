"""A stranger who sends what is no HTTP is answered, and the log has a line a minute of it."""

import asyncio
import logging
import ssl

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
    """Without a traceback, and without a word of theirs."""
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
    """And faults of ours are logged as ever."""
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
