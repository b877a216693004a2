"""A connection that aiohttp serves, under the limits of its port.

aiohttp bounds only the time between two requests, and parses all input. So this class requires that a head arrives, and
that an answer is read, within the client's time. aiohttp sees one request at a time, within the bounds of its
[framing](framing.py). A middleware of the application reports the requests and answers in between.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from partage.serving.connections import Connections, address_of
from partage.serving.framing import LATE, Framing, Refused, leave_to_itself
from partage.serving.limits import Limits

_PIECE: Final = 2**16
"""Bytes of an answer that are written at once. With more unread bytes a connection writes nothing; by default TLS keeps 512 KiB."""
_READ_TLS: Final = 3
"""Bytes that TLS keeps below a connection for each byte of the largest piece that it read, until the connection ends: its
read buffer, and encrypted bytes."""
_BELOW: Final = 2**16
"""Bytes that the event loop keeps below TLS before TLS keeps any; its transport does not count them."""


class Guarded(asyncio.Protocol):
    """One connection."""

    _transport: asyncio.Transport

    def __init__(
        self, limits: Limits, connections: Connections, serve: Callable[[], asyncio.Protocol]
    ) -> None:
        """A connection that is not open yet; `serve` makes its protocol when the head of a request has arrived."""
        self._serve = serve
        self._inner: asyncio.Protocol | None = None
        self._framing = Framing(limits)
        self._limits = limits
        self._open = connections
        self._loop = asyncio.get_running_loop()
        self._asked: web.BaseRequest | None = None
        self._begun = self._stuck = self._passed = False
        self._ready = False  # for the next request, once its client has read the last answer
        self._over = self._tls = False
        self._late = 0  # reads after the answer
        self._largest = 0  # bytes of one read
        self._counted = 0  # bytes of the present request or answer
        self.lined = False  # its request waits for its turn
        self._deadline = self._loop.time() + limits.patience
        self._timer = self._loop.call_later(limits.patience, self._check)
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # TCP always is; uvloop's by shape
        self._transport.set_write_buffer_limits(_PIECE)
        self._tls = transport.get_extra_info("sslcontext") is not None
        if self._tls:
            cast("Any", transport).set_read_buffer_limits(_PIECE)
        if not self._open.enter(self, address_of(transport)):
            self._transport.abort()

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`."""
        return None if self._inner is None else self._inner.eof_received()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._over:
            return
        if self._tls and len(data) > self._largest:
            self._largest = len(data)
            self._count_again()
        framing = self._framing
        if framing.whole:
            framing.held += data
            self._transport.pause_reading()  # until the request before has its answer
            self.holds(self._counted)
            return
        try:
            framing.came(data)
        except Refused as error:
            self._refuse(error)
            return
        if self._late:
            self._late += 1
            if self._late > LATE:
                self.abort()
                return
        self._go_on()
        if self._late and self._framing.whole:
            self._loop.call_soon(self._next)

    def _go_on(self) -> None:
        """Pass on the arrived bytes of the request, up to its end."""
        if self._over or self._transport.is_closing():
            return
        if not self._begun:
            self._begun = True
            self._deadline = self._loop.time() + self._limits.patience
        framing = self._framing
        try:
            data = framing.take()
        except Refused as error:
            self._refuse(error)
            return
        if data:
            if not self._passed:
                self.holds(0)
            self._passed = True
            if self._inner is None:
                self._inner = self._serve()
                self._inner.connection_made(self._transport)
            self._inner.data_received(data)
        if not self._passed:
            self.holds(len(framing.held))

    def _next(self) -> None:
        """Start the next request, because this one has its answer."""
        framing = self._framing
        if self._over or self._transport.is_closing():
            return
        if self._stuck and framing.whole:
            self._ready = True
            return
        if not framing.whole:
            self._late = 1  # aiohttp reads on for a while, so that the client gets the answer
            return
        self._late = 0
        framing.next()
        self._passed = False
        if framing.held:
            self._transport.resume_reading()
            self._go_on()

    def _refuse(self, error: Refused) -> None:
        """End the connection, with an answer if none has begun."""
        self._over = True
        if self._passed:
            self.abort()
        else:
            self._transport.write(_refusal(error))
            leave_to_itself(self._transport, self)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`; the client must read on before its time is over."""
        self._stuck = True
        self._deadline = self._loop.time() + self._limits.patience
        self._loop.call_soon(self._count_again)  # once all of it is written
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._stuck = False
        self._deadline = self._loop.time() + self._limits.idle
        self._count_again()
        if self._ready:
            self._ready = False
            self._loop.call_soon(self._next)
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._timer.cancel()
        self._open.leave(self)
        if not self.closed.done():
            self.closed.set_result(None)
        if self._inner is not None:
            self._inner.connection_lost(exc)

    @property
    def waits(self) -> bool:
        """See `Connection`."""
        asked = self._asked
        return self._stuck or self.lined or asked is None or not asked.content.is_eof()

    def finish(self) -> None:
        """See `Connection`; aiohttp closes its own."""
        if self._inner is None:
            self._transport.close()

    def abort(self) -> None:
        """See `Connection`."""
        self._transport.abort()

    def holds(self, size: int) -> None:
        """Count the kept bytes of an incomplete request or unread answer; adds what came ahead of its turn, the unread answers that were written, and what TLS keeps."""
        self._counted = size
        ahead = len(self._framing.held) if self._framing.whole else 0
        unread = 0
        if self._stuck and not self._transport.is_closing():
            unread = self._transport.get_write_buffer_size()
            if self._transport.get_extra_info("sslcontext") is not None:
                unread += _BELOW
        below = _READ_TLS * self._largest
        self._open.holds(self, size + ahead + unread + below)

    def _count_again(self) -> None:
        self.holds(self._counted)

    def asked(self, request: web.BaseRequest) -> None:
        """Record that the head of a request has arrived."""
        self._asked = request

    def answered(self) -> None:
        """Record that the request has its answer, which may not be sent yet."""
        self._asked = None
        self._begun = False
        self._open.used(self)
        wait = self._limits.patience if self._stuck else self._limits.idle
        self._deadline = self._loop.time() + wait
        self._loop.call_soon(self._next)  # once the answer is written

    def _check(self) -> None:
        left = self._deadline - self._loop.time()
        if self._asked is not None and not self._stuck:
            left = self._limits.patience  # a handler limits its own waits
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        else:
            self.abort()


def _refusal(error: Refused) -> bytes:
    """A complete answer, the last of its connection, to a request that no handler sees."""
    body = msgspec.json.encode({"message": error.text})
    return (
        b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
        % (error.status, HTTPStatus(error.status).phrase.encode(), len(body), body)
    )


@contextlib.contextmanager
def asking(request: web.BaseRequest) -> Iterator[None]:
    """Mark the request's connection as answering."""
    connection = connection_of(request)
    if connection is None:
        yield
        return
    connection.asked(request)
    try:
        yield
    finally:
        connection.answered()


@contextlib.contextmanager
def at_end_of(request: web.BaseRequest, call: Callable[[], object]) -> Iterator[None]:
    """Call if the connection of a request ends meanwhile, or has ended, because its client no longer waits."""
    if request.transport is None:
        call()
    connection = connection_of(request)
    if connection is None:
        yield
        return

    waiting = True

    def ended(_closed: asyncio.Future[None]) -> None:
        if waiting:
            call()

    connection.closed.add_done_callback(ended)
    try:
        yield
    finally:
        waiting = False
        connection.closed.remove_done_callback(ended)


def connection_of(request: web.BaseRequest) -> Guarded | None:
    """The connection of a request; None if it is gone, or none of ours."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, Guarded) else None


def noticed() -> Middleware:
    """A middleware that reports requests to their connections, and sends large answers; the outermost one."""

    @web.middleware
    async def tell(request: web.Request, handler: Handler) -> web.StreamResponse:
        with asking(request):
            return await in_pieces(request, await handler(request))

    return tell


async def in_pieces(request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
    """Send a large answer piece by piece; a small one, or one that no connection of ours counts, is left to aiohttp."""
    body = response.body if isinstance(response, web.Response) else None
    if not isinstance(body, bytes) or len(body) <= _PIECE or request.method == "HEAD":
        return response
    connection = connection_of(request)
    if connection is None:
        return response
    # aiohttp would write it at once. Then each connection would have a copy of its own, which no limit counts, and by
    # TLS no one would notice that its client does not read.
    sent = web.StreamResponse(
        status=response.status, reason=response.reason, headers=response.headers
    )
    sent.content_length = len(body)
    if response.keep_alive is False:
        sent.force_close()
    connection.holds(len(body))
    try:
        with contextlib.suppress(ConnectionError):  # the client closed the connection
            await sent.prepare(request)
            for start in range(0, len(body), _PIECE):
                await sent.write(body[start : start + _PIECE])
                await asyncio.sleep(0)  # others have their turn, and a lost connection is noticed
    finally:
        connection.holds(0)
    return sent
