"""HTTP/2 for callers that agreed on it in the TLS handshake.

kube-scheduler keeps two idle connections to an extender: by HTTP/1.1 nearly each of many Bindings at a time costs
a handshake, by HTTP/2 none. The hot routes are answered here; everything else by the application
that answers it by HTTP/1.1 (`exchange`), so that no route depends on the protocol.

Limits are those of the service, and hold for a connection of many requests as for many of one: bodies that are
not whole yet take no more memory than one (flow control), and those of all connections no more than the port
may hold; requests of all connections together are no more than connections may be, and a request that was taken back counts until its work is over. Frames
without a request behind them, and requests taken back, are borne with up to a bound.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    UnknownFrameReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

from partage.serving.connections import address_of
from partage.serving.exchange import Exchange, Header, request_head
from partage.serving.hot import AWAY, FAULT, Answer, HotRoute, HotRoutes, message
from partage.serving.streams import Rest, Stream, asked_by

__all__ = ["Frames"]

_LOG = logging.getLogger("partage.serving")

_STREAMS: Final = 256
_PREFACE: Final = 24
"""Bytes before the first frame."""
_HEAD: Final = 9
"""Bytes of the head of a frame, which begins with its length in three."""
_FRAME: Final = 2**17
"""The largest frame: five thousand names come in one."""
_WINDOW: Final = 2**16 - 1
"""What a connection's window is before anybody opens it."""
_SLACK: Final = 2**16
_CRUMB: Final = 1024
"""A window smaller than this is waited for to grow."""
_RESETS: Final = 512
"""Requests taken back, over those that were answered."""
_NOISE: Final = 1024
"""Frames without a request behind them, one after the other."""
_NEVER: Final = float("inf")


class Frames(asyncio.Protocol):
    """One connection."""

    def __init__(self, routes: HotRoutes) -> None:
        self._routes = routes
        self._limits = routes.limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._certificate: object = None
        self._http = H2Connection(
            H2Configuration(
                client_side=False, header_encoding=None,
                validate_outbound_headers=False, normalize_outbound_headers=False,
            )
        )  # fmt: skip
        self._streams: dict[int, Stream] = {}
        self._rests: dict[int, Rest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = -1  # the last request that is served, once no more are
        self._owed = self._held = 0
        self._rest, self._head = _PREFACE, b""
        self._resets = self._noise = 0
        self._paused = self._flushing = False
        self._over = False  # the library sends nothing more
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = _NEVER
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._does: dict[type[Event], Callable[[Any], None]] = {
            RequestReceived: self._begun,
            DataReceived: self._goes_on,
            StreamEnded: self._ended,
            WindowUpdated: self._opened,
            RemoteSettingsChanged: self._settled,
            PingReceived: self._heard,
            PriorityUpdated: self._heard,
            UnknownFrameReceived: self._heard,
            ConnectionTerminated: self._left,
        }

    # --- the connection ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        if not self._routes.open.enter(self, address_of(transport)):
            self._transport.abort()
            return
        self._certificate = transport.get_extra_info("peercert")
        http, body = self._http, self._limits.body
        http.initiate_connection()
        http.decoder.max_header_list_size = self._limits.head
        wide = min(2 * body + 4 * _SLACK, 2**31 - 1)
        http.update_settings(
            {
                SettingCodes.MAX_CONCURRENT_STREAMS: _STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: self._limits.head,
                SettingCodes.MAX_FRAME_SIZE: _FRAME,
                SettingCodes.INITIAL_WINDOW_SIZE: min(body + 1, 2**31 - 1),
            }
        )
        # Twice, as what comes for a request that was refused is given back by halves.
        http.increment_flow_control_window(wide - _WINDOW)
        self._flush()
        self._deadline = self._loop.time() + self._limits.patience
        self._timer = self._loop.call_later(self._limits.patience, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self._transport = None
        self._routes.open.leave(self)
        for stream in [*self._streams.values()]:
            self._drop(stream)
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    def eof_received(self) -> None:
        """See `asyncio.Protocol`; under TLS there is no half of a connection."""

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = False
        self._pump_all()
        self._flush()

    @property
    def waits(self) -> bool:
        """See `Connection`."""
        return not any(one.whole and not one.answered for one in self._streams.values())

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Take no further request, and close once all have their answers."""
        self._leave()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._too_long(data):
            # The library would first take up all of it.
            self._http.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            self._give_up()
            return
        try:
            events = self._http.receive_data(data)
            self._take(events)
        except ProtocolError as error:
            _LOG.debug("a caller does not keep to HTTP/2: %s", error)
            self._give_up()
            return
        except Exception:  # noqa: BLE001 # the last line of defence; logged with its traceback
            _LOG.exception("a connection by HTTP/2 is given up")
            self._give_up()
            self.abort()
            return
        if not events and not self._streams:
            # A part of a frame. What it begins must come in time, like any request.
            self._deadline = min(self._deadline, self._loop.time() + self._limits.patience)
        if (self._resets > _RESETS or self._noise > _NOISE) and not self._over:
            self._http.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self._give_up()
        self._flush()

    def _too_long(self, data: bytes) -> bool:
        """Whether a frame of what came is longer than was allowed."""
        at = 0
        while at < len(data):
            if self._rest:
                step = min(self._rest, len(data) - at)
                self._rest -= step
                at += step
                continue
            step = _HEAD - len(self._head)
            self._head += data[at : at + step]
            at += step
            if len(self._head) == _HEAD:
                self._rest = int.from_bytes(self._head[:3], "big")
                self._head = b""
                if self._rest > _FRAME:
                    return True
        return False

    def _take(self, events: Sequence[Event]) -> None:
        """What came at once. What was taken back in the same breath is not even begun."""
        gone = {event.stream_id for event in events if isinstance(event, StreamReset)}
        for event in events:
            if isinstance(event, StreamReset):
                self._taken_back(event)
        for event in events:
            does = self._does.get(type(event))
            if does is not None and (not gone or getattr(event, "stream_id", 0) not in gone):
                does(event)

    def _give_up(self) -> None:
        """Say what the library has to say, which sends nothing more afterwards."""
        self._over = True
        for stream in [*self._streams.values()]:
            self._drop(stream)
        if self._transport is not None:
            self._transport.write(self._http.data_to_send())
            self._transport.close()

    def _flush(self) -> None:
        """Send what is to be sent; close where all is answered and nothing more is taken."""
        self._flushing = False
        transport = self._transport
        if transport is None or self._over:
            return
        if self._owed >= _SLACK:
            self._http.increment_flow_control_window(self._owed)
            self._owed = 0
        data = self._http.data_to_send()
        if data:
            transport.write(data)
        if self._last >= 0 and not self._streams:
            transport.close()

    def _flush_soon(self) -> None:
        """Send with what else comes to its end in this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _leave(self) -> None:
        """Say that no request after those that have come is served here."""
        if self._last >= 0 or self._transport is None or self._over:
            return
        self._last = self._http.highest_inbound_stream_id
        # Not by `close_connection`, after which the library sends no answer any more.
        frame = GoAwayFrame(0, last_stream_id=self._last, error_code=ErrorCodes.NO_ERROR)
        self._transport.write(self._http.data_to_send() + frame.serialize())

    def _check(self) -> None:
        """Give up what took too long, and the connection where nothing was asked for too long."""
        now = self._loop.time()
        for stream in [*self._streams.values()]:
            if stream.deadline > now or (stream.answered and not stream.out):
                continue  # in time, or the application takes its time to say more
            if stream.answered or stream.whole:
                self._reset(stream, ErrorCodes.CANCEL)
            else:
                self._answer(stream, 408, message("the request did not come in time"))
        for number, rest in [*self._rests.items()]:
            if rest.deadline <= now:
                self._no_more(number)
        if not self._streams and now >= self._deadline:
            if self._last >= 0 or self._over:
                self.abort()  # was told, and does not go
                return
            self._leave()
            self._deadline = now + self._limits.patience
        self._flush()
        soonest = min([s.deadline for s in self._streams.values()], default=self._deadline)
        wait = min(max(soonest - now, 0.0), self._limits.patience)
        self._timer = self._loop.call_later(wait or self._limits.patience, self._check)

    # --- requests ----------------------------------------------------------------------------

    def _begun(self, event: RequestReceived) -> None:
        number, tally = event.stream_id, self._routes.tally
        late = -1 < self._last < number
        if late or len(self._tasks) >= _STREAMS or tally.requests >= self._limits.connections:
            self._http.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        stream = Stream(number, self._loop.time() + self._limits.patience)
        self._streams[number] = stream
        tally.requests += 1
        asked = asked_by(event.headers)
        if asked.plain and asked.method == b"POST" and asked.path in self._routes.handlers:
            stream.handler = self._routes.handlers[asked.path]
            stream.path = asked.path.decode()
            authorization = asked.authorization.decode("latin-1")
            if not self._routes.access.allows(authorization, self._certificate):
                self._answer(stream, 401, message("Unauthorized"))
                return
        else:
            try:
                stream.head = request_head(asked.method, asked.path, asked.host, asked.headers)
            except ValueError:
                self._answer(stream, 400, message("the request cannot be read"))
                return
        if asked.length > self._limits.body:
            self._answer(stream, 413, message("the body is too large"))
        elif asked.waits:
            self._http.send_headers(number, [(b":status", b"100")])

    def _goes_on(self, event: DataReceived) -> None:
        size = event.flow_controlled_length or 0
        stream = self._streams.get(event.stream_id)
        if not event.data and event.stream_ended is None:
            self._noise += 1
        if stream is None or stream.answered:
            self._owed += size
            rest = self._rests.get(event.stream_id)
            if rest is not None:
                rest.size += size
                if rest.size > self._limits.body:
                    self._no_more(event.stream_id)
            return
        stream.unread += size
        stream.body += event.data or b""
        self._held += len(event.data or b"")
        if len(stream.body) > self._limits.body:
            self._answer(stream, 413, message("the body is too large"))
        self._routes.open.holds(self, self._held)

    def _ended(self, event: StreamEnded) -> None:
        self._rests.pop(event.stream_id, None)
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        stream.whole = True
        body = bytes(stream.body)
        self._forget_body(stream)
        if stream.answered:
            return
        stream.deadline = _NEVER
        if stream.handler is not None:
            self._serve(stream, stream.handler, body)
        else:
            self._pass_on(stream, body)

    def _serve(self, stream: Stream, handler: HotRoute, body: bytes) -> None:
        try:
            answer = handler(body)
        except Exception:  # noqa: BLE001 # the last line of defence; logged with its traceback
            _LOG.exception("POST %s failed", stream.path)
            answer = FAULT
        if isinstance(answer, tuple):
            self._answer(stream, *answer)
            return
        task = asyncio.ensure_future(self._later(stream, answer))
        # Counted until it is over, whether anybody waits for it or not.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _later(self, stream: Stream, answer: Awaitable[Answer]) -> None:
        try:
            status, body = await answer
        except Exception:  # noqa: BLE001 # as above
            _LOG.exception("POST %s failed", stream.path)
            status, body = FAULT
        if self._streams.get(stream.id) is stream:
            self._answer(stream, status, body)
            self._flush_soon()

    def _pass_on(self, stream: Stream, body: bytes) -> None:
        """Have the application answer."""
        transport = cast("asyncio.Transport", self._transport)
        length = b"\r\nContent-Length: %d" % len(body) if body else b""
        request = b"%b%b\r\n\r\n%b" % (stream.head, length, body)
        answering = _Answering(self, stream)
        stream.exchange = Exchange(self._routes.fallback(), answering, transport.get_extra_info)
        stream.exchange.ask(request, bodiless=stream.head.startswith(b"HEAD "))

    # --- answers -----------------------------------------------------------------------------

    def _answer(self, stream: Stream, status: int, body: bytes) -> None:
        """A whole answer."""
        kind = (b"content-type", b"application/json")
        length = (b"content-length", b"%d" % len(body))
        self.head(stream, status, [kind, length], closes=status == AWAY)
        stream.out += body
        stream.wound_up = True
        self._pump(stream)

    def head(
        self, stream: Stream, status: int, headers: Sequence[Header], *, closes: bool
    ) -> None:
        """The head of an answer; whether no request is taken after it."""
        stream.answered = True
        stream.deadline = self._loop.time() + self._limits.idle
        self._http.send_headers(stream.id, [(b":status", b"%d" % status), *headers])
        stream.away = closes

    def more(self, stream: Stream, part: bytes) -> None:
        """A part of the body of an answer of the application."""
        if not stream.out:
            stream.deadline = self._loop.time() + self._limits.idle
        stream.out += part
        self._pump(stream)
        self._flush_soon()

    def wound_up(self, stream: Stream, *, whole: bool) -> None:
        """The application has no more of its answer."""
        stream.exchange = None
        if not whole:
            self._reset(stream, ErrorCodes.INTERNAL_ERROR)
        else:
            stream.wound_up = True
            self._pump(stream)
        self._flush_soon()

    def has(self, stream: Stream) -> bool:
        """Whether anybody still waits for the answer."""
        return self._transport is not None and self._streams.get(stream.id) is stream

    def _pump(self, stream: Stream) -> None:
        """Send of an answer what the caller takes now."""
        http, number = self._http, stream.id
        while not self._paused:
            left = len(stream.out)
            if not left and not stream.wound_up:
                break
            if left:
                window = min(http.local_flow_control_window(number), http.max_outbound_frame_size)
                if window < min(left, _CRUMB):
                    break
                part = bytes(memoryview(stream.out)[:window])
                del stream.out[:window]
            else:
                part = b""
            end = stream.wound_up and not stream.out
            http.send_data(number, part, end_stream=end)
            self._noise = 0
            stream.deadline = self._loop.time() + self._limits.idle
            if end:
                self._resets = max(self._resets - 1, 0)
                if not stream.whole:
                    self._rests[number] = Rest(self._loop.time() + self._limits.patience)
                self._drop(stream)
                if stream.away:
                    self._leave()
                return
        if stream.exchange is not None:
            stream.exchange.waiting(len(stream.out))

    def _pump_all(self) -> None:
        for stream in [*self._streams.values()]:
            if stream.answered:
                self._pump(stream)

    def _reset(self, stream: Stream, code: ErrorCodes) -> None:
        self._http.reset_stream(stream.id, code)
        self._drop(stream)

    def _no_more(self, number: int) -> None:
        """Who has the answer and still sends the request is told that nobody reads it."""
        del self._rests[number]
        self._http.reset_stream(number, ErrorCodes.NO_ERROR)

    def _drop(self, stream: Stream) -> None:
        """The request is over."""
        del self._streams[stream.id]
        self._routes.tally.requests -= 1
        self._routes.open.used(self)
        self._forget_body(stream)
        if stream.exchange is not None:
            stream.exchange.abort()
        self._deadline = self._loop.time() + self._limits.idle

    def _forget_body(self, stream: Stream) -> None:
        self._owed += stream.unread
        stream.unread = 0
        if stream.body:
            self._held -= len(stream.body)
            self._routes.open.holds(self, self._held)
            stream.body = bytearray()

    # --- what else the caller says -----------------------------------------------------------

    def _taken_back(self, event: StreamReset) -> None:
        if event.remote_reset:
            self._resets += 1
        else:  # the library's, for what came after the end
            self._noise += 1
        self._rests.pop(event.stream_id, None)
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            self._drop(stream)

    def _opened(self, event: WindowUpdated) -> None:
        self._noise += 1
        if event.stream_id:
            stream = self._streams.get(event.stream_id)
            if stream is not None and stream.answered:
                self._pump(stream)
        else:
            self._pump_all()

    def _settled(self, event: RemoteSettingsChanged) -> None:
        del event
        self._noise += 1
        self._pump_all()

    def _heard(self, event: Event) -> None:
        del event
        self._noise += 1

    def _left(self, event: ConnectionTerminated) -> None:
        """After the caller's own good-bye the library sends nothing."""
        del event
        self._give_up()


class _Answering:
    """Tells a connection of the application's answer to one of its requests."""

    def __init__(self, frames: Frames, stream: Stream) -> None:
        self._frames = frames
        self._stream = stream

    def answer_begun(self, status: int, headers: Sequence[Header], *, closes: bool) -> None:
        """See `Listener`."""
        if self._frames.has(self._stream):
            self._frames.head(self._stream, status, headers, closes=closes)

    def answer_goes_on(self, part: bytes) -> None:
        """See `Listener`."""
        if self._frames.has(self._stream):
            self._frames.more(self._stream, part)

    def answer_ended(self, *, whole: bool) -> None:
        """See `Listener`."""
        if self._frames.has(self._stream):
            self._frames.wound_up(self._stream, whole=whole)
