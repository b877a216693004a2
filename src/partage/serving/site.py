"""Serves an application on a port, or two.

The log has one line a minute with the number of requests that are no HTTP. aiohttp answers each with 400 and writes a
traceback, with which a stranger could fill a disk.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from partage.serving.connections import Connection, Connections, allow_files
from partage.serving.guarded import Guarded, noticed
from partage.serving.limits import Limits, guard
from partage.serving.listener import Listener, end_listening
from partage.serving.local import no_stranger
from partage.serving.tls import ServerTls
from partage.serving.turns import TURNS, Turns, pages_in_turn

_LINGER = 1.0
"""Seconds for the open requests when a service stops."""
_SENT = 2**17
"""Bytes that the kernel keeps of a connection's answers; Linux doubles it for its own use. Left to itself it may keep megabytes."""
_CAME = {True: 2**15, False: 2**17}
"""The same of requests. By TLS it is also what TLS reads at once, and keeps some times over."""
_BACKLOG = 1024
_AT_ONCE = 4
"""Pages in the making at a time; the verbs have their turn between the steps of the pages."""
_PORTS = 2
"""One by TLS or plain, and one for reading."""
_OF_PROBES: Final = Limits(
    body=2**10, head=2**13, patience=5.0, idle=30.0, connections=64, per_address=48, held=2**20
)
"""Probes have a port of their own, so that no caller of another port keeps the kubelet waiting."""


class Site:
    """One application on one port.

    Attributes:
        port: its port; 0 before `start`.
        read_port: the second port, with or without TLS; 0 before `start_second`.
        url: without a trailing slash.
    """

    def __init__(
        self,
        app: web.Application,
        limits: Limits,
        tls: ServerTls | None = None,
        *,
        here: bool = False,
    ) -> None:
        """A site that does not listen yet.

        `tls`: certificates; None serves without. `here`: refuses requests that pages of other origins send by a
        browser; for ports of this machine alone.
        """
        app.middlewares.insert(0, noticed())
        app[TURNS] = Turns(_AT_ONCE, _PORTS * limits.connections, limits.connections)
        app.middlewares.append(pages_in_turn())
        if here:
            app.middlewares.append(no_stranger())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=quiet_logger("partage.serving.http"),
            keepalive_timeout=limits.idle,
            shutdown_timeout=_LINGER,
            max_line_size=limits.head,
            max_field_size=limits.head,
            auto_decompress=False,  # a megabyte may inflate to a gigabyte, even without a request for compression
        )
        self._app = app
        self._limits = limits
        self._tls = tls
        self._listening: list[asyncio.Server | Listener] = []
        self._open: list[Connections] = []
        self.port = self.read_port = 0
        self._host = ""

    @property
    def url(self) -> str:
        """The URL of the application."""
        scheme = "https" if self._tls else "http"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self.port}"

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and path of every route; parts in braces match any text."""
        return [
            (route.method, route.resource.canonical)
            for route in self._app.router.routes()
            if route.resource is not None
        ]

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes any free one. Raises `OSError`: the port is taken; `InvalidValue`: a bad TLS file."""
        allow_files(_PORTS * self._limits.connections)
        await self._runner.setup()
        self._host = host
        self.port = await self._listen(host, port)

    async def start_second(self, host: str, port: int) -> None:
        """Listen on a second port, after `start`. Its callers show no certificate and may do without TLS.

        Raises `OSError`: the port is taken.
        """
        self.read_port = await self._listen(host, port, second=True)

    async def _listen(self, host: str, port: int, *, second: bool = False) -> int:
        limits, answers = self._limits, self._runner.server
        assert answers is not None  # noqa: S101 # set up by `start`
        # The connections of one port do not count on another.
        connections = Connections(limits.connections, limits.per_address, limits.held)
        self._open.append(connections)

        def served() -> Guarded:
            return Guarded(limits, connections, answers)

        server = await asyncio.get_running_loop().create_server(
            served, host, port, backlog=_BACKLOG, start_serving=False
        )
        for listening in server.sockets:
            # Connections inherit this.
            came = _CAME[self._tls is not None]
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, came)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT)
        bound: int = server.sockets[0].getsockname()[1]
        if self._tls is None:
            self._listening.append(server)
            await server.start_serving()
            return bound
        tls = self._tls
        _ = tls.context  # report a missing or broken file before a port listens
        sockets = [socket.socket(fileno=os.dup(one.fileno())) for one in server.sockets]
        server.close()
        listener = Listener(sockets, connections, tls, limits.patience, served, plain=second)
        self._listening.append(listener)
        listener.start()
        return bound

    def connections(self) -> Iterator[Connection]:
        """The open connections of all ports."""
        return chain.from_iterable(self._open)

    async def stop(self) -> None:
        """Accept no more connections, let requests end, and close."""
        if not self._listening:
            return
        for listening in self._listening:
            if isinstance(listening, Listener):
                listening.close()
            else:
                await end_listening(listening)
        for connection in self.connections():
            connection.finish()
        await self._runner.cleanup()
        if left := [connection.closed for connection in self.connections()]:
            await asyncio.wait(left, timeout=_LINGER)
        for connection in self.connections():
            connection.abort()
        self._open.clear()
        self._listening.clear()


_TELL: Final = 60.0
"""Seconds between two lines."""


class _Rarely(logging.Filter):
    """Counts records of requests that are no HTTP, and passes one of them now and then.

    It passes no record of a client that went away, and all others.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._next = float("-inf")
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError):
            return False  # the client closed the connection before its answer
        if not isinstance(error, HttpProcessingError):
            return True
        self._count += 1
        now = self._clock()
        if now < self._next:
            return False
        # Without the error's own text, because the stranger wrote it.
        record.msg = (
            "refused as no HTTP since the last such line: %d requests; the last is from %s: %s"
        )
        record.args = (self._count, *(record.args or ("?",)), type(error).__name__)
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.exc_info = record.exc_text = None
        self._next, self._count = now + _TELL, 0
        return True


def quiet_logger(name: str, clock: Callable[[], float] = time.monotonic) -> logging.Logger:
    """A logger for aiohttp with this filter, by a `clock` in seconds."""
    logger = logging.getLogger(name)
    for known in list(logger.filters):
        logger.removeFilter(known)
    logger.addFilter(_Rarely(clock))
    return logger


def probe_site(routes: Iterable[web.RouteDef]) -> Site:
    """A port for probes, not started yet; it answers these routes and nothing else."""
    app = web.Application(middlewares=[guard()])
    app.add_routes(routes)
    return Site(app, _OF_PROBES)
