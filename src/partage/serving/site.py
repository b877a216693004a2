"""Serves an application on a port: everything by aiohttp, a few hot routes by the fast way in."""

import asyncio
import socket
from collections.abc import Callable, Mapping

from aiohttp import web

from partage.serving.access import Access
from partage.serving.front import Front
from partage.serving.hot import Connection, HotRoute, HotRoutes
from partage.serving.limits import Limits
from partage.serving.tls import HTTP2, ServerTls

__all__ = ["Site"]

_LINGER = 5.0
_BUFFER = 2**20


class Site:
    """One application on one port.

    Attributes:
        port: where it listens; 0 before `start`.
        url: without a trailing slash.
    """

    def __init__(
        self,
        app: web.Application,
        access: Access,
        limits: Limits,
        hot: Mapping[bytes, HotRoute] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=limits.idle, shutdown_timeout=_LINGER,
            max_line_size=limits.head, max_field_size=limits.head,
        )  # fmt: skip
        self._app = app
        self._access = access
        self._limits = limits
        self._hot = dict(hot or {})
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._second: asyncio.Server | None = None
        self._open: set[Connection] = set()
        self.port = 0
        self._host = ""

    @property
    def url(self) -> str:
        """Where it is reached."""
        scheme = "https" if self._tls else "http"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self.port}"

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and path of everything that is served; parts in braces stand for any text."""
        return [
            (route.method, route.resource.canonical)
            for route in self._app.router.routes()
            if route.resource is not None
        ]

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes any that is free.

        Raises:
            OSError: the port is taken.
            InvalidValue: a TLS file is missing or broken.
        """
        await self._runner.setup()
        fallback = self._runner.server
        assert fallback is not None  # noqa: S101 # set up above
        routes = HotRoutes(self._hot, self._access, self._limits, fallback, self._open)
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol(routes), host, port,
            ssl=self._tls.context if self._tls else None, backlog=1024, start_serving=False,
        )  # fmt: skip
        for listening in self._server.sockets:
            # Connections inherit this: a list of five thousand names then comes in one piece.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        await self._server.start_serving()
        self._host = host
        self.port = self._server.sockets[0].getsockname()[1]

    async def start_plain(self, host: str, port: int) -> None:
        """Listen on a second port without TLS, after `start`; nobody shows a certificate there.

        Raises:
            OSError: the port is taken.
        """
        fallback = self._runner.server
        assert fallback is not None  # noqa: S101 # `start` comes first
        routes = HotRoutes(self._hot, self._access, self._limits, fallback, self._open)
        self._second = await asyncio.get_running_loop().create_server(
            lambda: Front(routes), host, port, backlog=1024
        )

    def _protocol(self, routes: HotRoutes) -> Callable[[], asyncio.Protocol]:
        """What meets a connection."""
        if self._tls is None or HTTP2 not in self._tls.protocols:
            return lambda: Front(routes)
        # Beside the extra it needs: nobody else has to have it.
        from partage.serving.frames import Frames  # noqa: PLC0415

        return lambda: _Agreed(routes, Frames)

    async def stop(self) -> None:
        """Take no more connections, let requests end, and close."""
        if self._server is None:
            return
        self._server.close()
        if self._second is not None:
            self._second.close()
        for front in list(self._open):
            front.finish()
        await self._runner.cleanup()
        if self._open:
            await asyncio.wait([front.closed for front in self._open], timeout=_LINGER)
        for front in list(self._open):
            front.abort()
        self._server = self._second = None


class _Agreed(asyncio.Protocol):
    """Hands a connection to who speaks what the TLS handshake agreed on."""

    def __init__(self, routes: HotRoutes, frames: Callable[[HotRoutes], asyncio.Protocol]) -> None:
        self._routes = routes
        self._frames = frames

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        agreed = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        protocol = self._frames(self._routes) if agreed == HTTP2 else Front(self._routes)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
