"""A fast way in for a few hot routes, on the same port as everything else.

aiohttp spends more time on a small request than the decision behind it takes. So a connection
first meets a protocol that knows just enough of HTTP/1.1 for `POST` requests with a plain
`Content-Length` to the hot paths; at the first head of a request that is anything else, the
connection is handed to aiohttp with all that was read, and stays there. Aiohttp serves the hot paths too, by the
same handlers, so which of the two answers cannot be seen but in time.

Limits are those of the service and of [framing](framing.py): a request that does not come in time closes its
connection, too large a body is answered with 413, and no more connections than allowed are open. One request of
a connection is served in a turn of the loop, and what it sends meanwhile waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from partage.serving.connections import address_of
from partage.serving.framing import END, Framing, Refused, leave_to_itself
from partage.serving.handed import Handed
from partage.serving.hot import AWAY, FAULT, Answer, HotRoute, HotRoutes, message, refusal

_LOG = logging.getLogger("partage.serving")

_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    413: b"Content Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
_UNUSUAL: Final = (b"transfer-encoding", b"expect", b"upgrade", b"content-encoding", b"origin")
"""Headers of requests that aiohttp serves; the last is a browser's."""


class Front(asyncio.Protocol):
    """One connection."""

    def __init__(self, routes: HotRoutes) -> None:
        self._routes = routes
        self._transport: asyncio.Transport | None = None
        self._framing = Framing(routes.limits)
        self._head: _Head | None = None
        self._busy = False  # with a request, or with others between two
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
        framing = self._framing
        if self._busy:
            framing.held += data
            if self._transport is not None:
                self._transport.pause_reading()  # until the request before has its answer
            return
        if not framing.held:
            self._deadline = self._loop.time() + self._routes.limits.patience
        try:
            framing.came(data)
            self._advance()
        except Refused as error:
            self._refuse(error)
        self._routes.open.holds(self, len(framing.held))

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
        """Serve the request if it is whole.

        Raises:
            Refused: it costs too much.
        """
        framing = self._framing
        head = self._head
        if head is None:
            text = framing.head()
            if text is None:
                return
            head = self._head = _parse(text[: -len(END)], self._routes.handlers)
            if head is None:
                self._hand_over()
                return
            if not self._passes(head):
                return
        size = head.start + head.length
        if len(framing.held) < size:
            return
        body = bytes(memoryview(framing.held)[head.start : size])
        del framing.held[:size]
        self._head = None
        self._serve(head, body)

    def _next(self) -> None:
        """The request has its answer; serve what came behind it, after other connections' work."""
        self._framing.next()
        self._busy = bool(self._framing.held) and not self._last
        if self._busy:
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._busy = False
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        try:
            self._advance()
        except Refused as error:
            self._refuse(error)

    def _refuse(self, error: Refused) -> None:
        if self._transport is not None:
            self._transport.write(refusal(error.status, error.text))
            self._last = True
            leave_to_itself(self._transport, self)

    def _passes(self, head: "_Head") -> bool:
        """Refuse early, before a body is read that nobody wants."""
        certificate = self._transport and self._transport.get_extra_info("peercert")
        if not self._routes.access.allows(head.authorization, certificate):
            self._answer(401, message("Unauthorized"), close=True, early=True)
            return False
        if head.length > self._routes.limits.body:
            self._answer(413, message("the body is too large"), close=True, early=True)
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
            self._next()
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
        self._next()

    def _answer(self, status: int, body: bytes, *, close: bool, early: bool = False) -> None:
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
            self._end(early=early)
        else:
            limits = self._routes.limits
            wait = limits.patience if self._framing.held else limits.idle
            self._deadline = self._loop.time() + wait

    def _end(self, *, early: bool) -> None:
        """Close once what was written is out, early where the client may still be sending."""
        self._last = True
        if self._transport is not None:
            if early:
                self._framing.take()  # the head, and what came of the body
                leave_to_itself(self._transport, self, self._framing)
            else:
                self._transport.close()
        self._deadline = self._loop.time() + self._routes.limits.patience

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
        handed = Handed(self._routes.fallback(), self._routes, transport, self._framing)
        self._routes.open.replace(self, handed)
        transport.set_protocol(handed)
        handed.begin()


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
    return _Head(request[1], len(head) + len(END), length, close, authorization)
