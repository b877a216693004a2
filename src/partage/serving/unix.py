"""A unix socket for one trusted caller: frames of bytes, with the caller's identity checked.

A frame is four bytes of length, the most significant first, and so many bytes. The kernel reports
the user at the other end (SO_PEERCRED); every other user is turned away before a byte is
read. The socket's folder is the second lock, because only the two containers have it.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, Protocol, cast

from partage.model.errors import InvalidDocument
from partage.serving.listener import end_listening

_LOG = logging.getLogger("partage.serving")
_HEAD: Final = 4
_CREDENTIALS: Final = struct.Struct("3i")
"""The kernel's report of a peer: process, user, group."""
_MOST_LINKS: Final = 64
"""Connections at a time. kube-scheduler has a few, and each may have an incomplete frame."""
_TELL: Final = 60.0
"""Seconds between two log lines about callers that are turned away."""
_MOST_UNSENT: Final = 32 * 2**20
"""Bytes that a caller may leave unread before its connection ends."""


class Talk(Protocol):
    """The handler of one connection."""

    def took(self, frame: bytes) -> None:
        """Handle a frame. An exception ends the connection."""

    def ended(self) -> None:
        """Handle the end of the connection."""


class Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: "UnixServer") -> None:
        self._server = server
        self._talk: Talk | None = None
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()

    def send(self, frame: bytes) -> None:
        """Send a frame, unless the connection is over."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(len(frame).to_bytes(_HEAD, "big") + frame)
        if transport.get_write_buffer_size() > _MOST_UNSENT:
            _LOG.warning("a connection of the unix socket is left unread; it ends")
            transport.abort()

    def close(self) -> None:
        """End the connection after all sent data is out."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the user at the other end."""
        stream = cast("asyncio.Transport", transport)  # uvloop's is none, and does the same
        given = transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        _, user, _ = _CREDENTIALS.unpack(given)
        if not self._server.lets_in(user):
            stream.abort()
            return
        self._transport = stream
        self._server.links.add(self)
        self._talk = self._server.begin(self)

    def data_received(self, data: bytes) -> None:
        """Handle the complete frames."""
        self._held += data
        while self._talk is not None and (frame := self._frame()) is not None:
            try:
                self._talk.took(frame)
            except (ValueError, InvalidDocument) as error:
                self._broken(str(error))
            except Exception:  # noqa: BLE001 # logged; a fault of ours ends this connection alone
                _LOG.exception("a frame could not be processed")
                self._broken("a fault of ours")

    def _frame(self) -> bytes | None:
        """The next complete frame."""
        held = self._held
        if len(held) < _HEAD:
            return None
        end = _HEAD + int.from_bytes(held[:_HEAD], "big")
        if end > _HEAD + self._server.most:
            self._broken(f"a frame of {end - _HEAD} bytes; {self._server.most} at most")
            return None
        if len(held) < end:
            return None
        frame = bytes(held[_HEAD:end])
        del held[:end]
        return frame

    def _broken(self, why: str) -> None:
        """End the connection, because its data cannot be understood."""
        _LOG.warning("the connection of the unix socket ends: %s", why)
        self.close()
        self.connection_lost(None)

    def connection_lost(self, _: Exception | None) -> None:
        """Handle the loss of the other end."""
        self._server.links.discard(self)
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.ended()


class UnixServer:
    """Listens at a path; `links` are the open connections."""

    def __init__(
        self, path: Path, begin: Callable[[Link], Talk], users: Collection[int], most: int
    ) -> None:
        """A server that does not listen yet.

        Args:
            path: of the socket; a leftover of another run is removed.
            begin: makes the handler of a new connection.
            users: the users that may connect, by user id.
            most: bytes of one frame.
        """
        self._path, self._users = path, frozenset(users)
        self.begin, self.most = begin, most
        self.links: set[Link] = set()
        self._quiet = 0.0
        self._server: asyncio.Server | None = None

    def lets_in(self, user: int) -> bool:
        """Whether to serve a user's new connection; now and then logs the reason for a refusal."""
        why = ""
        if user not in self._users:
            why = f"user {user} is not one of the users that may connect: {sorted(self._users)}"
        elif len(self.links) >= _MOST_LINKS:
            why = f"{_MOST_LINKS} connections are open already"
        now = asyncio.get_running_loop().time()
        if why and now >= self._quiet:
            self._quiet = now + _TELL
            _LOG.warning("a caller of the unix socket is refused: %s", why)
        return not why

    async def start(self) -> None:
        """Listen. Raises `OSError`: the path has something else, or cannot be written."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise FileExistsError(17, "is there and is no socket", str(self._path))
            self._path.unlink()
        before = os.umask(0o117)  # the owner and the folder's group may connect
        try:  # no other task runs meanwhile, since whatever it makes would have this mask
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: Link(self), self._path, start_serving=False
            )
        finally:
            os.umask(before)
        await self._server.start_serving()

    async def stop(self) -> None:
        """Accept no more connections, and end the open ones."""
        if self._server is None:
            return
        await end_listening(self._server)
        for link in list(self.links):
            link.close()
        self._server = None
        with contextlib.suppress(OSError):
            self._path.unlink()
