"""A proxy before the API server, which can hold, lose or refuse requests."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Self

from aiohttp import ClientSession, ClientTimeout, web

from partage.serving.listener import end_listening

_LISTS = re.compile(r"/(api|apis/[^/]+)/[^/]+(/namespaces/[^/]+)?/[a-z]+")
"""Paths of all objects of a kind."""


class Proxy:
    """Passes everything on, as long as nothing else is asked for.

    Attributes:
        url: where it listens.
        held: Bindings are held until this is set; they arrive even if the sender gives up.
        arrived: set when a Binding has come in.
        losing: what becomes of the next Bindings: "answer" carries one out and drops the
            connection, "request" drops it at once, "repeat" sends it twice and passes the second answer on.
        cut: nothing but Bindings gets through; open watches are dropped.
        unknown: paths that end so get a 404 of the proxy itself; empty for none.
        refused: how many have got one.
        memory: where lists and watches go; empty for where everything goes.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.held = asyncio.Event()
        self.held.set()
        self.arrived = asyncio.Event()
        self.losing: list[str] = []
        self.unknown: str | tuple[str, ...] = ""
        self.refused = 0
        self.memory = ""
        self.url = ""
        self._cut = asyncio.Event()
        self._late: set[asyncio.Task[Any]] = set()

    @property
    def cut(self) -> bool:
        """See the class."""
        return self._cut.is_set()

    @cut.setter
    def cut(self, value: bool) -> None:
        if value:
            self._cut.set()
        else:
            self._cut.clear()

    async def __aenter__(self) -> Self:
        """Listen."""
        self._session = ClientSession(timeout=ClientTimeout(None))
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        assert self._runner.server is not None
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server, "127.0.0.1", 0
        )
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close."""
        self.held.set()
        self._cut.set()
        await asyncio.gather(*self._late, return_exceptions=True)
        await end_listening(self._server)
        await self._runner.cleanup()
        await self._session.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path.endswith("/binding"):
            return await self._bind(request, body)
        if self.cut:
            return web.Response(status=503)
        if self.unknown and request.path.endswith(self.unknown):
            self.refused += 1
            return web.Response(status=404)
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        listed = request.method == "GET" and _LISTS.fullmatch(request.path)
        target = self.memory if self.memory and listed else self.target
        async with self._session.request(
            request.method, target + request.path_qs, data=body, headers=headers
        ) as answer:
            if "watch=true" not in request.query_string:
                return web.Response(
                    status=answer.status, body=await answer.read(), headers=_kept(answer.headers)
                )
            response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
            await response.prepare(request)
            copying = asyncio.ensure_future(_copy(answer.content, response))
            cutting = asyncio.ensure_future(self._cut.wait())
            await asyncio.wait((copying, cutting), return_when=asyncio.FIRST_COMPLETED)
            for task in (copying, cutting):
                task.cancel()
            if self.cut and request.transport is not None:
                request.transport.abort()
            return response

    async def _bind(self, request: web.Request, body: bytes) -> web.Response:
        lost = self.losing.pop(0) if self.losing else ""
        if lost == "repeat":
            await self._forward(request.method, request.path_qs, body)
            return await self._forward(request.method, request.path_qs, body)
        if lost != "request":
            self.arrived.set()
            # Shielded: what was sent arrives, even if the sender has given up meanwhile.
            task = asyncio.ensure_future(self._forward(request.method, request.path_qs, body))
            self._late.add(task)
            answer = await asyncio.shield(task)
        if lost and request.transport is not None:
            request.transport.abort()
            return web.Response(status=500)
        return answer

    async def _forward(self, method: str, path: str, body: bytes) -> web.Response:
        await self.held.wait()
        headers = {"Content-Type": "application/json"}
        async with self._session.request(
            method, self.target + path, data=body, headers=headers
        ) as answer:
            return web.Response(
                status=answer.status, body=await answer.read(), headers=_kept(answer.headers)
            )


async def _copy(source: Any, response: web.StreamResponse) -> None:
    async for piece in source.iter_any():
        await response.write(piece)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {"Content-Type": headers.get("Content-Type", "application/json")}
