"""A service on a real socket in a thread of its own, and a client that sends raw HTTP."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from aiohttp import web
from world import Manifest, World

from partage.extender.server import Faces, Readers, scheduler_site
from partage.serving.access import Access
from partage.serving.limits import Limits
from partage.serving.site import Site
from partage.serving.tls import ServerTls

T = TypeVar("T")
Reply = tuple[int, dict[str, str], bytes]


class Running:
    """A world whose service is reached over loopback.

    Attributes:
        world: what is behind it.
        port: where it listens.
    """

    def __init__(
        self,
        *manifests: Manifest,
        access: Access | None = None,
        limits: Limits | None = None,
        pod_series: bool = False,
        readers: Readers | None = None,
        routes: Sequence[web.RouteDef] = (),
        tls: ServerTls | None = None,
    ) -> None:
        self.world = World()
        self._manifests = manifests
        self._faces = Faces(access or Access(plain=True), limits or Limits(), pod_series, readers)
        self._routes, self._tls = routes, tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._site: Site | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        await self.world.start(*self._manifests)
        service = self.world.service
        self._site = scheduler_site(service, self._faces, self._routes, self._tls)
        await self._site.start()
        self.port = self._site.port

    async def _stop(self) -> None:
        if self._site is not None:
            await self._site.stop()
        await self.world.service.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # as `asyncio.run` does at its end
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something where the service runs."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(240)

    def connect(self, context: ssl.SSLContext | None = None) -> socket.socket:
        """A connection."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=240)
        return context.wrap_socket(plain, server_hostname="localhost") if context else plain

    def get(self, path: str, **headers: str) -> Reply:
        """GET a path on a connection of its own."""
        return self.send(_request("GET", path, b"", headers))

    def post(self, path: str, body: bytes | Manifest, **headers: str) -> Reply:
        """POST a body on a connection of its own."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send(_request("POST", path, data, headers))

    def send(self, data: bytes, context: ssl.SSLContext | None = None) -> Reply:
        """Send bytes as they are, and read one answer; status 0 when there is none."""
        with self.connect(context) as connection:
            with contextlib.suppress(OSError):  # refused before all was sent; the answer says why
                connection.sendall(data)
            return read(connection)


def _request(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read(connection: socket.socket) -> Reply:
    """One answer of a connection."""
    with connection.makefile("rb") as file:
        try:
            first = file.readline().split(b" ")
        except OSError:
            return 0, {}, b""
        if len(first) < 2:
            return 0, {}, b""
        headers: dict[str, str] = {}
        while (line := file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(file.readline(), 16):
                body += file.read(size)
                file.readline()
        else:
            body = file.read(int(headers.get("content-length", "0")))
        return int(first[1]), headers, body
