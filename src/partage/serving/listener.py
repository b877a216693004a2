"""A port with TLS, and plain HTTP beside it if wanted, that counts a connection from the moment of its acceptance.

In the event loop's own handling, a handshake without an end holds a socket that no limit counts.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import Any, Final

from partage.serving.connections import Connections
from partage.serving.tls import ServerTls

_LOG: Final = logging.getLogger("partage.serving")
_HANDSHAKE: Final = b"\x16"
"""The first byte of TLS; no method of HTTP begins with it."""
# asyncio's TLS keeps a buffer of this size for each connection from its start; by default 256 KiB.
sslproto.SSLProtocol.max_size = 2**16
_AGAIN: Final = 1.0
"""Seconds until the next try if the process may not open more files."""
_GOODBYE: Final = 1.0
"""Seconds for the end of TLS."""


def cause(error: OSError) -> str:
    """The system's text for a failure to listen: asyncio puts the address and its own text into `strerror`."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


async def end_listening(server: asyncio.Server) -> None:
    """Accept no more; open connections go on.

    If `Server.close` alone is called in the turn of the loop that accepted a connection, that
    connection's socket stays open for ever: Python before 3.12 finds no server to attach it to.
    """
    for listening in server.sockets:
        server.get_loop().remove_reader(listening.fileno())
    await asyncio.sleep(0)
    server.close()


class Listener:
    """Listening sockets, and the handshakes of their connections."""

    def __init__(
        self,
        listening: list[socket.socket],
        connections: Connections,
        tls: ServerTls,
        patience: float,
        served: Callable[[], asyncio.Protocol],
        *,
        plain: bool = False,
    ) -> None:
        """Nothing is accepted yet.

        Args:
            listening: bound sockets, which are closed with this.
            tls: the TLS files, in their state at each connection.
            patience: seconds that a handshake may take.
            served: makes the protocol that serves a connection.
            plain: whether a caller may also start without TLS, and shows no certificate.
        """
        self.plain = plain
        self.connections = connections
        self.tls = tls
        self.patience = patience
        self.served = served
        self._listening = listening
        self._loop = asyncio.get_running_loop()

    def context(self) -> ssl.SSLContext:
        """The context of the next handshake, because the files may have changed."""
        return self.tls.reading if self.plain else self.tls.context

    def start(self) -> None:
        """Start accepting connections."""
        for one in self._listening:
            one.setblocking(False)
            one.listen(1024)
            self._loop.add_reader(one, self._accept, one)

    def close(self) -> None:
        """Accept no more; open connections go on."""
        for one in self._listening:
            self._loop.remove_reader(one)
            one.close()

    def _accept(self, listening: socket.socket) -> None:
        """Accept one connection, and no other before the loop's other work has had its turn.

        If hundreds arrive at once, the first ones then have their answers while the last still wait. Otherwise
        all would be late, because each handshake and request would wait for those of all others.
        """
        try:
            accepted, peer = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _LOG.warning("no connection can be accepted: %s", error.strerror)
            self._loop.remove_reader(listening)
            self._loop.call_later(_AGAIN, self._listen_again, listening)
            return
        accepted.setblocking(False)
        greeting = _Greeting(self, accepted)
        if self.connections.enter(greeting, peer[0]):
            greeting.begin()
        else:
            accepted.close()

    def _listen_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._accept, listening)


class _Greeting:
    """One connection until its handshake is over."""

    def __init__(self, listener: Listener, accepted: socket.socket) -> None:
        self._listener = listener
        self._socket = accepted
        self._task: asyncio.Task[None] | None = None
        self._made = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def waits(self) -> bool:
        """See `Connection`; a handshake always waits for the client."""
        return True

    def begin(self) -> None:
        """Begin the handshake."""
        self._task = asyncio.create_task(self._greet(), name="serving:tls")
        self._task.add_done_callback(self._ended)  # a task may be cancelled before it begins

    def finish(self) -> None:
        """See `Connection`."""
        self.abort()

    def abort(self) -> None:
        """See `Connection`."""
        if self._task is not None:
            self._task.cancel()

    async def _greet(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # also errors of TLS and of time: the client causes them, and gets the reason
            secure = not self._listener.plain or await self._begins_with_tls()
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Agreed(self.over, self._listener.served),
                self._socket,
                ssl=self._listener.context() if secure else None,
                ssl_handshake_timeout=self._listener.patience if secure else None,
                ssl_shutdown_timeout=_GOODBYE if secure else None,
            )
            self._made = True

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self.over()
        if not self._made:
            self._socket.close()

    async def _begins_with_tls(self) -> bool:
        """Whether the client's first byte is that of a handshake; the byte stays unread."""
        loop = asyncio.get_running_loop()
        came: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._socket, _came, came)
        try:
            async with asyncio.timeout(self._listener.patience):
                await came
        finally:
            loop.remove_reader(self._socket)
        first = self._socket.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionResetError
        return first == _HANDSHAKE

    def over(self) -> None:
        """Record the end of the handshake, successful or not."""
        self._listener.connections.leave(self)
        if not self.closed.done():
            self.closed.set_result(None)


class _Agreed(asyncio.Protocol):
    """Hands a connection over once the handshake has ended."""

    def __init__(self, over: Callable[[], None], served: Callable[[], asyncio.Protocol]) -> None:
        self._over = over
        self._served = served

    def connection_made(self, transport: Any) -> None:
        self._over()
        protocol = self._served()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _came(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
