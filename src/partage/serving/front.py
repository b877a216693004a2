"""A fast way in for a few hot routes, on the same port as everything else.

aiohttp spends more time on a small request than the decision behind it takes. So a connection
first meets a protocol that knows just enough of HTTP/1.1 for `POST` requests with a plain
`Content-Length` to the hot paths; at the first head of a request that is anything else, the
connection is handed to aiohttp with all that was read, and stays there. Aiohttp serves the hot paths too, by the
same handlers, so which of the two answers cannot be seen but in time.

Limits are those of the service: a request that does not come in time closes its connection, too
large a body is answered with 413, and no more connections than allowed are open.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from partage.serving.connections import address_of
from partage.serving.handed import Handed
from partage.serving.hot import AWAY, FAULT, Answer, HotRoute, HotRoutes, message

_LOG = logging.getLogger("partage.serving")

_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    413: b"Content Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
_END: Final = b"\r\n\r\n"
_UNUSUAL: Final = (b"transfer-encoding", b"expect", b"upgrade", b"content-encoding", b"origin")
"""Headers of requests that aiohttp serves; the last is a browser's."""


class Front(asyncio.Protocol):
    """One connection."""

    def __init__(self, routes: HotRoutes) -> None:
        self._routes = routes
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._busy = False
        self._closing = self._last = self._stuck = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # TCP always is; uvloop's by shape
        if not self._routes.open.enter(self, address_of(transport)):
            self._transport.abort()
            return
        self._expect(self._routes.limits.patience)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self._routes.open.leave(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def waits(self) -> bool:
        """See `Connection`."""
        return not self._busy or self._stuck

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._last:
            return  # nothing more is answered on this connection
        if not self._buffer and not self._busy:
            self._deadline = self._loop.time() + self._routes.limits.patience
        self._buffer += data
        if not self._busy:
            self._advance()
            self._routes.open.holds(self, len(self._buffer))
        elif len(self._buffer) > self._routes.limits.body + self._routes.limits.head:
            self.abort()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`; the client has to read on before its time is over."""
        self._stuck = True
        self._deadline = self._loop.time() + self._routes.limits.patience

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._stuck = False
        self._deadline = self._loop.time() + self._routes.limits.idle

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`; what was asked is still answered."""
        return self._busy

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Close once the request that is being answered has its answer."""
        self._closing = True
        if not self._busy and self._transport is not None:
            self._transport.close()

    # --- requests ----------------------------------------------------------------------------

    def _advance(self) -> None:
        """Serve every whole request that has been read."""
        while not self._busy and not self._last and self._transport is not None:
            head = self._head
            if head is None:
                end = self._buffer.find(_END)
                if end < 0:
                    if len(self._buffer) > self._routes.limits.head:
                        self._hand_over()  # which answers that it is too large
                    return
                head = self._head = _parse(bytes(self._buffer[:end]), self._routes.handlers)
                if head is None:
                    self._hand_over()
                    return
                if not self._passes(head):
                    return
            size = head.start + head.length
            if len(self._buffer) < size:
                return
            body = bytes(memoryview(self._buffer)[head.start : size])
            del self._buffer[:size]
            self._head = None
            self._serve(head, body)

    def _passes(self, head: "_Head") -> bool:
        """Refuse early, before a body is read that nobody wants."""
        certificate = self._transport and self._transport.get_extra_info("peercert")
        if not self._routes.access.allows(head.authorization, certificate):
            self._answer(401, message("Unauthorized"), close=True)
            return False
        if head.length > self._routes.limits.body:
            self._answer(413, message("the body is too large"), close=True)
            return False
        return True

    def _serve(self, head: "_Head", body: bytes) -> None:
        try:
            answer = self._routes.handlers[head.path](body)
        except Exception:  # noqa: BLE001 # the last line of defence; logged with its traceback
            _LOG.exception("POST %s failed", head.path.decode())
            answer = FAULT
        if isinstance(answer, tuple):
            self._answer(*answer, close=head.close)
            return
        self._busy = True
        self._task = asyncio.ensure_future(self._later(head, answer))

    async def _later(self, head: "_Head", answer: Awaitable[Answer]) -> None:
        try:
            status, body = await answer
        except Exception:  # noqa: BLE001 # as above
            _LOG.exception("POST %s failed", head.path.decode())
            status, body = FAULT
        self._busy = False
        self._answer(status, body, close=head.close)
        self._advance()

    def _answer(self, status: int, body: bytes, *, close: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        close = close or self._closing or status == AWAY
        transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b"
            % (
                status,
                _REASONS[status],
                len(body),
                b"Connection: close\r\n" if close else b"",
                body,
            )
        )
        self._routes.open.used(self)
        if close:
            self._last = True
            self._buffer.clear()
            transport.close()
            self._deadline = self._loop.time() + self._routes.limits.patience
        else:
            limits = self._routes.limits
            wait = limits.patience if self._buffer else limits.idle
            self._deadline = self._loop.time() + wait

    # --- time and the other protocol ---------------------------------------------------------

    def _expect(self, seconds: float) -> None:
        """Close the connection when nothing whole came within its time; moved, not made anew."""
        self._deadline = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        left = self._deadline - self._loop.time()
        if self._busy and not self._stuck:
            left = self._routes.limits.patience
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        else:
            self.abort()

    def _hand_over(self) -> None:
        """Let aiohttp serve this connection from here on."""
        transport = self._transport
        if transport is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        data = bytes(self._buffer)
        self._buffer.clear()
        handed = Handed(self._routes.fallback(), self._routes, transport)
        self._routes.open.replace(self, handed)
        transport.set_protocol(handed)
        handed.connection_made(transport)
        handed.data_received(data)


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a request to a hot path: where its body starts, and how long that is."""

    path: bytes
    start: int
    length: int
    close: bool
    authorization: str


def _parse(head: bytes, handlers: Mapping[bytes, HotRoute]) -> _Head | None:
    """The head, where it is of the plain kind served here; None for everything else."""
    lines = head.split(b"\r\n")
    request = lines[0].split(b" ")
    if len(request) != 3 or request[0] != b"POST" or request[2] != b"HTTP/1.1":
        return None
    if request[1] not in handlers:
        return None
    length, close, authorization = -1, False, ""
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        name, value = name.lower(), value.strip()
        if not colon or name in _UNUSUAL or name != name.strip():
            return None
        if name == b"content-length":
            if length >= 0 or not value.isdigit() or len(value) > 12:
                return None
            length = int(value)
        elif name == b"connection":
            close = value.lower() == b"close"
        elif name == b"authorization":
            authorization = value.decode("latin-1")
    if length < 0:
        return None
    return _Head(request[1], len(head) + len(_END), length, close, authorization)
