"""One request and its answer by a protocol that speaks HTTP/1, without a socket between.

What HTTP/2 carries beside the hot routes is served by the same aiohttp application as on a connection of
HTTP/1.1: it reads the request as bytes and writes its answer to a transport that is no more than
this object. An answer that breaks off is told from one that ended.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

__all__ = ["Exchange", "Header", "Listener", "request_head"]

Header = tuple[bytes, bytes]

_LINE: Final = b"\r\n"
_END: Final = _LINE + _LINE
_CLOSES: Final = (b"connection", b"close")
_CHUNKED: Final = (b"transfer-encoding", b"chunked")
_OF_THE_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_HIGH: Final = 2**18
"""Bytes that wait to be sent before the protocol is asked to pause."""


class Listener(Protocol):
    """Who asked."""

    def answer_begun(self, status: int, headers: Sequence[Header], *, closes: bool) -> None:
        """The head of the answer; whether the connection should be closed after it."""
        ...

    def answer_goes_on(self, part: bytes) -> None:
        """A part of its body."""
        ...

    def answer_ended(self, *, whole: bool) -> None:
        """There is no more of it; whether that is all that was to come."""
        ...


def request_head(method: bytes, path: bytes, host: bytes, headers: Sequence[Header]) -> bytes:
    """The head of a request, without its end.

    Raises:
        ValueError: a part would not be read as what it is.
    """
    if not method.isalpha() or any(mark <= 32 or mark == 127 for mark in path) or not path:
        raise ValueError("no method or path")
    lines = [b"%b %b HTTP/1.1" % (method, path), b"Host: %b" % host]
    lines += [
        b"%b: %b" % (name, value)
        for name, value in headers
        if name not in _OF_THE_CONNECTION and name not in {b"expect", b"host"}
    ]
    if any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines):
        raise ValueError("a line in a line")
    return b"\r\n".join(lines)


class Exchange(asyncio.Transport):
    """The transport of one request.

    Args:
        protocol: who answers; not connected yet.
        listener: who is told of the answer.
        about: facts of the connection that the request came by.
    """

    def __init__(
        self,
        protocol: asyncio.Protocol,
        listener: Listener,
        about: Callable[[str, Any], Any],
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self._listener = listener
        self._about = about
        self._data = bytearray()
        self._begun = self._ended = self._bodiless = False
        self._left: int | None = None  # bytes of a body of known length; None for one in chunks
        self._closing = False
        self._held = False

    def ask(self, request: bytes, *, bodiless: bool) -> None:
        """Have a whole request answered; a bodiless answer has no body, whatever its head says."""
        self._bodiless = bodiless
        self._protocol.connection_made(self)
        self._protocol.data_received(request)

    def waiting(self, size: int) -> None:
        """So many bytes wait to be sent: the protocol pauses or goes on."""
        if self._closing:
            return
        if size > _HIGH and not self._held:
            self._held = True
            self._protocol.pause_writing()
        elif size <= _HIGH // 4 and self._held:
            self._held = False
            self._protocol.resume_writing()

    # --- what the protocol does ---------------------------------------------------------------

    def write(self, data: "bytes | bytearray | memoryview[int]") -> None:
        """See `asyncio.Transport`."""
        if self._closing or self._ended:
            return
        self._data += data
        if not self._begun and not self._begins():
            return
        part, over = self._chunks() if self._left is None else self._plain()
        if part:
            self._listener.answer_goes_on(part)
        if over:
            self._end(whole=True)

    def _begins(self) -> bool:
        """Whether the head is there; told once."""
        end = self._data.find(_END)
        if end < 0:
            return False
        status, headers = _parsed(bytes(self._data[:end]))
        del self._data[: end + len(_END)]
        if self._bodiless or status in {204, 304}:
            self._left = 0
        elif _CHUNKED not in headers:
            self._left = int(dict(headers).get(b"content-length", b"0"))
        self._begun = True
        kept = [header for header in headers if header[0] not in _OF_THE_CONNECTION]
        self._listener.answer_begun(status, kept, closes=_CLOSES in headers)
        return True

    def _plain(self) -> tuple[bytes, bool]:
        """What there is of a body of known length, and whether that is all."""
        part = bytes(self._data[: self._left])
        self._data.clear()
        self._left = (self._left or 0) - len(part)
        return part, self._left == 0

    def _chunks(self) -> tuple[bytes, bool]:
        """What there is of a body in chunks, and whether that is all."""
        parts: list[bytes] = []
        while (end := self._data.find(_LINE)) >= 0:
            size = int(bytes(self._data[:end]).partition(b";")[0], 16)
            if size == 0:
                return b"".join(parts), True
            start = end + len(_LINE)
            if len(self._data) < start + size + len(_LINE):
                break
            parts.append(bytes(self._data[start : start + size]))
            del self._data[: start + size + len(_LINE)]
        return b"".join(parts), False

    def _end(self, *, whole: bool) -> None:
        if not self._ended:
            self._ended = True
            self._listener.answer_ended(whole=whole)
            self.close()  # no other request comes

    def close(self) -> None:
        """See `asyncio.Transport`."""
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._closed)

    def _closed(self) -> None:
        self._protocol.connection_lost(None)
        self._end(whole=False)

    def abort(self) -> None:
        """Nobody waits for the answer any more."""
        self._ended = True
        if not self._closing:
            self._closing = True
            self._protocol.connection_lost(None)

    def is_closing(self) -> bool:
        """See `asyncio.Transport`."""
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.Transport`; there is no socket to set options of."""
        return default if name == "socket" else self._about(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See `asyncio.Transport`."""
        return self._protocol

    def pause_reading(self) -> None:
        """Nothing more comes."""

    def resume_reading(self) -> None:
        """Nothing more comes."""


def _parsed(head: bytes) -> tuple[int, list[Header]]:
    """Status and headers."""
    line, *rest = head.split(b"\r\n")
    headers = []
    for one in rest:
        name, _, value = one.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    return int(line.split(b" ")[1]), headers
