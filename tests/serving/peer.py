"""The other end of a connection by HTTP/2, without a socket: the library's client, and what it was told."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)

from partage.serving.access import Access
from partage.serving.connections import Connections
from partage.serving.frames import Frames
from partage.serving.hot import HotRoute, HotRoutes
from partage.serving.limits import Limits, guard


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, certificate: object) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = self.aborted = False
        self._certificate = certificate

    def write(self, data: "bytes | bytearray | memoryview[int]") -> None:
        """Keep it."""
        assert not self.closed, "written after it was closed"
        self.written += data

    def close(self) -> None:
        """No more is written."""
        self.closed = True

    def abort(self) -> None:
        """As if it broke off."""
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The certificate of the caller."""
        return self._certificate if name == "peercert" else default


@dataclass
class Answer:
    """What came for one request."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None
    told: list[int] = field(default_factory=list)


class Peer:
    """A caller.

    Attributes:
        wire: between both.
        frames: the end under test.
        http: this end.
        goodbye: error code and last request of the GOAWAY, once it came.
    """

    def __init__(
        self, routes: HotRoutes, certificate: object = None, *, takes: bool = True
    ) -> None:
        self.wire = Wire(certificate)
        self.frames = Frames(routes)
        self.http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.answers: dict[int, Answer] = {}
        self.goodbye: tuple[int, int] | None = None
        self._takes = takes
        self.frames.connection_made(self.wire)
        self.http.initiate_connection()

    def ask(
        self,
        path: str,
        body: bytes = b"",
        *,
        method: str = "POST",
        headers: Sequence[tuple[bytes, bytes]] = (),
        ends: bool = True,
    ) -> int:
        """Begin a request, and end it unless told otherwise."""
        number = self.http.get_next_available_stream_id()
        head = [
            (b":method", method.encode()), (b":scheme", b"https"), (b":authority", b"localhost"),
            (b":path", path.encode()), *headers,
        ]  # fmt: skip
        self.http.send_headers(number, head, end_stream=ends and not body)
        self.answers[number] = Answer()
        if body:
            self.body(number, body, ends=ends)
        else:
            self.exchange()
        return number

    def body(self, number: int, body: bytes, *, ends: bool = True) -> None:
        """Send a body, as far as the windows let it."""
        while body:
            self.exchange()
            room = min(
                self.http.local_flow_control_window(number), self.http.max_outbound_frame_size
            )
            if room == 0:
                raise BlockingIOError(len(body))
            part, body = body[:room], body[room:]
            self.http.send_data(number, part, end_stream=ends and not body)
        self.exchange()

    def exchange(self) -> None:
        """What either end has to say reaches the other."""
        while True:
            data, self.wire.written = bytes(self.wire.written), bytearray()
            self._take(self.http.receive_data(data) if data else [])
            mine = self.http.data_to_send()
            if not self.wire.closed and mine:
                self.frames.data_received(mine)
            if not self.wire.written:
                return

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, ConnectionTerminated):
                self.goodbye = (int(event.error_code or 0), event.last_stream_id or 0)
                continue
            found = self.answers.get(getattr(event, "stream_id", None) or 0)
            if found is None:
                continue
            if isinstance(event, ResponseReceived):
                found.headers = dict(event.headers)
                found.status = int(found.headers.pop(b":status"))
            elif isinstance(event, InformationalResponseReceived):
                found.told.append(int(dict(event.headers)[b":status"]))
            elif isinstance(event, DataReceived):
                found.body += event.data or b""
                if self._takes and event.flow_controlled_length:
                    number = event.stream_id
                    self.http.acknowledge_received_data(event.flow_controlled_length, number)
            elif isinstance(event, StreamEnded):
                found.ended = True
            elif isinstance(event, StreamReset):
                found.reset = int(event.error_code or 0)

    async def answer(self, number: int) -> Answer:
        """The answer, once it has ended one way or the other."""
        found = self.answers[number]
        async with asyncio.timeout(240):
            while not found.ended and found.reset is None:
                await asyncio.sleep(0)
                self.exchange()
        return found

    def gone(self) -> None:
        """The connection is lost, as the transport tells."""
        self.wire.closed = True
        self.frames.connection_lost(None)


@asynccontextmanager
async def routes(
    hot: Mapping[bytes, HotRoute],
    *pages: web.RouteDef,
    access: Access | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[HotRoutes]:
    """Hot routes, and an application that answers everything else."""
    app = web.Application(middlewares=[guard()], client_max_size=2**30)
    app.add_routes(pages)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    assert runner.server is not None
    made: Callable[[], asyncio.Protocol] = runner.server
    bounds = limits or Limits()
    connections = Connections(bounds.connections, bounds.per_address, bounds.held)
    yield HotRoutes(hot, access or Access(plain=True), bounds, made, connections)
    await runner.cleanup()
