"""What is between a program and the API server, and everything that can go wrong there.

A proxy that passes everything on while no fault is set; the first that matches a request hits it. Watches can be
cut, expired as too old, held back, and distorted event by event; reads can be answered with what was
true before.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from partage.serving.listener import end_listening

Distortion = Callable[[bytes], list[bytes]]
"""From one event of a watch to those that are sent in its place."""


@dataclass(slots=True)
class Fault:
    """What goes wrong with requests that match, and how often.

    Attributes:
        method: only requests of this method; empty for any.
        path: only paths that contain this text.
        watch: only watches (True) or only others (False).
        times: how many requests are hit before it is spent.
        executed: do what was asked first, and fail afterwards.
        delay: seconds before anything happens.
        under_way: seconds until what is executed arrives, even if its sender is gone by then.
        status: answer with this; with `reason`, `message`, `retry_after` and `causes`.
        drop: cut the connection without an answer.
        body: answer 200 with these bytes.
        half: send only half of the answer, then cut the connection.
        trickle: send the answer in pieces of so many bytes.
    """

    method: str = ""
    path: str = ""
    watch: bool | None = None
    times: int = 1
    executed: bool = False
    delay: float = 0.0
    under_way: float = 0.0
    status: int = 0
    reason: str = ""
    message: str = ""
    retry_after: str | None = None
    causes: tuple[str, ...] = ()
    drop: bool = False
    body: bytes | None = None
    half: bool = False
    trickle: int = 0


class Wire:
    """The proxy; use it as an async context manager.

    Attributes:
        url: where it listens.
        chance: asked for a fault where none that was set matches; for random faults.
        distort: what becomes of each event of a watch of pods; None leaves them.
        hit: how often a fault of which kind hit a request.
        struck: method and path of each of these.
        gather: seconds for which what watches bring is kept together; a write costs much.
    """

    def __init__(
        self, target: str, trust: ssl.SSLContext | None = None, own: ssl.SSLContext | None = None
    ) -> None:
        """A proxy that does not listen yet.

        Args:
            target: URL of the API server.
            trust: of its certificate, where it speaks TLS.
            own: the certificate that is shown; None listens without TLS.
        """
        self.target = target
        self._trust, self._own = trust, own
        self.url = ""
        self.chance: Callable[[web.Request], Fault | None] = lambda _: None
        self.distort: Distortion | None = None
        self.hit: dict[str, int] = {}
        self.struck: list[tuple[str, str]] = []
        self.gather = 0.0
        self._faults: list[Fault] = []
        self._frozen: dict[str, tuple[int, bytes]] = {}
        self._watches: dict[asyncio.Task[Any], tuple[web.Request, web.StreamResponse]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._loud = asyncio.Event()
        self._loud.set()
        self._late: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._session = ClientSession(timeout=ClientTimeout(None), connector=self._connector())
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._pass)
        app.on_response_prepare.append(self._begun)
        self._runner = web.AppRunner(
            app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server, "127.0.0.1", 0, ssl=self._own
        )
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http{'s' if self._own else ''}://{host}:{port}"
        return self

    def _connector(self) -> TCPConnector:
        return TCPConnector(limit=0, ssl=True if self._trust is None else self._trust)

    async def __aexit__(self, *error: object) -> None:
        self._loud.set()
        await end_listening(self._server)
        self.cut_watches()
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._runner.cleanup()
        await self._session.close()

    # --- what goes wrong ---------------------------------------------------------------------

    def fail(self, *faults: Fault) -> None:
        """Add faults."""
        self._faults += faults

    def heal(self) -> None:
        """No faults any more, of any kind."""
        self._faults.clear()
        self._frozen.clear()
        self.distort = None
        self.chance = lambda _: None
        self._loud.set()
        self._open.set()

    @property
    def cut(self) -> bool:
        """Nothing gets through, and open watches are dropped."""
        return not self._open.is_set()

    @cut.setter
    def cut(self, value: bool) -> None:
        if value:
            self._open.clear()
            self.cut_watches()
        else:
            self._open.set()

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Nothing gets through for a while."""
        self.cut = True
        try:
            yield
        finally:
            self.cut = False

    def cut_watches(self) -> None:
        """Drop every open watch."""
        for task, (request, _) in list(self._watches.items()):
            task.cancel()
            if request.transport is not None:
                request.transport.abort()

    async def expire_watches(self) -> None:
        """Say in every open watch's stream that its version is too old."""
        await self.send_raw(EXPIRED)
        for task in list(self._watches):
            task.cancel()

    async def send_raw(self, data: bytes) -> None:
        """Send these bytes to every open watch."""
        for _, response in list(self._watches.values()):
            with contextlib.suppress(ConnectionError, RuntimeError):
                await response.write(data)

    @property
    def watches(self) -> set[str]:
        """Paths of the open watches."""
        return {request.path for request, _ in self._watches.values()}

    def hold_back(self) -> None:
        """Keep what watches bring from here on, until `let_go`; the connections stay open."""
        self._loud.clear()

    def let_go(self) -> None:
        """Send what was held back."""
        self._loud.set()

    async def freeze(self, path: str) -> None:
        """Answer reads of this path with what is true now, whatever happens."""
        async with self._session.get(self.target + path) as answer:
            self._frozen[path] = (answer.status, await answer.read())

    # --- passing on --------------------------------------------------------------------------

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        watching = request.query.get("watch") in {"true", "1"}
        fault = self._fault(request, watching=watching)
        if fault is not None:
            self._count(fault)
            self.struck.append((request.method, request.path))
            if fault.delay:
                await asyncio.sleep(fault.delay)
            if fault.executed:
                # Shielded: what was sent arrives, even if the sender has given up meanwhile.
                await asyncio.shield(self._sent(request, body, fault.under_way))
            if fault.status:
                return _told(fault)
            if fault.drop:
                return _dropped(request)
            if fault.body is not None:
                return await _in_pieces(request, fault.body, fault)
            if fault.half or fault.trickle:
                answer = await asyncio.shield(self._sent(request, body))
                return await _in_pieces(
                    request, answer.body if isinstance(answer.body, bytes) else b"", fault
                )
        if self.cut:
            return _dropped(request)
        if request.method == "GET" and not watching and request.path_qs in self._frozen:
            code, data = self._frozen[request.path_qs]
            return web.Response(status=code, body=data, content_type="application/json")
        try:
            if watching:
                return await self._watch(request)
            return await asyncio.shield(self._sent(request, body))
        except (ClientError, OSError):
            return _dropped(request)

    def _fault(self, request: web.Request, *, watching: bool) -> Fault | None:
        for fault in self._faults:
            if (
                fault.times > 0
                and fault.method in {"", request.method}
                and fault.path in request.path
                and fault.watch in {None, watching}
            ):
                fault.times -= 1
                return fault
        return self.chance(request)

    def _count(self, fault: Fault) -> None:
        kind = f"{fault.status or ('dropped' if fault.drop else 'delayed')}"
        kind += " though done" if fault.executed else ""
        self.hit[kind] = self.hit.get(kind, 0) + 1

    def _sent(
        self, request: web.Request, body: bytes, under_way: float = 0.0
    ) -> asyncio.Task[web.Response]:
        async def arrive() -> web.Response:
            await asyncio.sleep(under_way)
            return await self._forward(request, body)

        task = asyncio.ensure_future(arrive())
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return task

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        async with self._session.request(
            request.method, self.target + request.path_qs, data=body, headers=_asked(request)
        ) as answer:
            return web.Response(
                status=answer.status, body=await answer.read(), headers=_kept(answer.headers)
            )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        async with self._session.get(
            self.target + request.path_qs, headers=_asked(request)
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
            await response.prepare(request)
            distorted = request.path.endswith("/pods")
            copying = asyncio.ensure_future(self._copy(answer.content, response, distorted))
            self._watches[copying] = request, response
            try:
                await asyncio.wait((copying,))
            finally:
                copying.cancel()
                self._watches.pop(copying, None)
            if not copying.cancelled() and copying.exception() is not None:
                return _dropped(request, response)
            return response

    async def _begun(self, request: web.Request, response: web.StreamResponse) -> None:
        """An answer begins."""

    async def _copy(self, source: Any, response: web.StreamResponse, distorted: bool) -> None:  # noqa: FBT001
        rest = b""
        async for piece in source.iter_any():
            await self._loud.wait()
            *whole, rest = (rest + piece).split(b"\n")
            distort = self.distort if distorted else None
            sent = whole if distort is None else [new for old in whole for new in distort(old)]
            if sent:
                await response.write(b"".join(one + b"\n" for one in sent))
            if self.gather:
                await asyncio.sleep(self.gather)


def _asked(request: web.Request) -> dict[str, str]:
    return {
        name: request.headers[name]
        for name in ("Content-Type", "Accept", "Authorization")
        if name in request.headers
    }


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: headers[name] for name in ("Content-Type", "Retry-After") if name in headers
    } or {"Content-Type": "application/json"}


def line(kind: str, item: Any) -> bytes:
    """One event of a watch."""
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _status(fault: Fault) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": fault.status,
        "reason": fault.reason,
        "message": fault.message,
        "details": {"causes": [{"reason": cause} for cause in fault.causes]},
    }


EXPIRED = line(
    "ERROR", _status(Fault(status=410, reason="Expired", message="too old resource version"))
)
"""What a watch brings whose version is too old."""


def _told(fault: Fault) -> web.Response:
    headers = {"Retry-After": fault.retry_after} if fault.retry_after is not None else {}
    return web.json_response(_status(fault), status=fault.status, headers=headers)


async def _in_pieces(request: web.Request, data: bytes, fault: Fault) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(data)
    await response.prepare(request)
    sent = data[: len(data) // 2] if fault.half else data
    size = fault.trickle or len(data) or 1
    for start in range(0, len(sent), size):
        await response.write(sent[start : start + size])
        await asyncio.sleep(0)
    return _dropped(request, response) if fault.half else response


def _dropped(
    request: web.Request, response: web.StreamResponse | None = None
) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return response or web.Response(status=500)
