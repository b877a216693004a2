"""Finds the end of a request on the wire, and limits its cost before any other code reads it.

A megabyte in single bytes, each in a chunk or segment of its own, costs a hundred times as much as in one piece. A
library that reads on after its answer wastes that time. So the service counts a request as it arrives: bytes and lines
of its head, parameters of its query, reads, and chunks. It refuses a request that costs more than honest clients need,
and closes the connection. Bytes after the request stay with the sender until the answer is made.
"""

import asyncio
from typing import Final

from partage.serving.limits import Limits

END: Final = b"\r\n\r\n"
_HELLO: Final = b"\x16\x03"
"""The first bytes of TLS; without an answer such a client would wait until its time is over."""
_LINES: Final = 128
"""Lines of a head, at most."""
_TARGET: Final = 2**14
"""Bytes of a head's first line, at most."""
_PARAMETERS: Final = 128
_PIECES: Final = 256
"""Reads, and chunks, that any request may have, even a small one."""
_PIECE: Final = 256
"""Bytes that each further read must bring, on average; a packet has 500 at least."""
_CHUNK: Final = 1024
"""Bytes that each further chunk must have, on average."""
_VERSIONS: Final = (b" HTTP/1.1", b" HTTP/1.0")
_SIZE: Final = 12
"""Bytes of the line before a chunk, which has only a number, and its end."""
_HEX: Final = b"0123456789abcdefABCDEF"
_GOODBYE: Final = 2.0
"""Seconds for the client to read its last answer; after that, further data is answered with a reset."""
LATE: Final = 64
"""Reads of data after the last answer; most clients send all before they read."""


class Refused(Exception):  # about a request, not about us
    """The service refuses a request, and its connection ends."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Framing:
    """The request that arrives on one connection.

    Attributes:
        held: bytes that arrived and were not taken yet.
        whole: whether the request was taken to its end.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held = bytearray()
        self.next()

    def next(self) -> None:
        """Start the next request with the held bytes."""
        self.whole = False
        self._reads = min(1, len(self.held))
        self._came = len(self.held)
        self._searched = 0
        self._head = False
        self._chunked = self._last = False
        self._chunks = self._sizes = 0
        self._left = 0

    def came(self, data: bytes) -> None:
        """Count the read bytes. Raises `Refused`: the request arrives in too many pieces."""
        self.held += data
        self._reads += 1
        self._came += len(data)
        if self._reads > _PIECES + self._came // _PIECE:
            raise Refused(400, f"the request comes in {self._reads} pieces of a few bytes")

    def head(self) -> bytes | None:
        """The head with its end, None until it is complete. Raises `Refused`: too large, or unsupported."""
        held = self.held
        if held.startswith(_HELLO):
            raise Refused(400, "this port speaks plain HTTP; ask by http://")
        if not self._searched and held.startswith(b"\r\n"):
            del held[:2]  # an empty line before a request is common
        end = held.find(END, max(0, self._searched - len(END)))
        if end < 0:
            self._searched = max(self._searched, len(held))
            if len(held) > self._limits.head:
                raise Refused(431, f"the head is larger than {self._limits.head} bytes")
            return None
        if end > self._limits.head:
            raise Refused(431, f"the head is larger than {self._limits.head} bytes")
        if held.count(b"\n", 0, end) > _LINES:
            raise Refused(431, f"the head has more than {_LINES} lines")
        first = held.find(b"\r\n")
        if first > _TARGET:
            raise Refused(414, f"the path is longer than {_TARGET} bytes")
        if held.count(b"&", 0, first) >= _PARAMETERS:
            raise Refused(414, f"the query has more than {_PARAMETERS} parameters")
        if not held.endswith(_VERSIONS, 0, first):
            # aiohttp takes some requests without a version, and then fails on them.
            raise Refused(400, "the first line of a request ends in HTTP/1.1 or HTTP/1.0")
        if held.startswith(b"CONNECT "):
            # aiohttp takes its body for the next request.
            raise Refused(405, "this is no proxy")
        head = bytes(held[: end + len(END)])
        try:
            head.decode()
        except UnicodeDecodeError:
            # aiohttp would make half a surrogate pair of such a byte, which no answer could quote.
            raise Refused(400, "the head of a request is UTF-8") from None
        return head

    def take(self) -> bytes:
        """The request's bytes that were not taken yet. Raises `Refused`: it costs too much, or has no clear end."""
        taken = b""
        if not self._head:
            head = self.head()
            if head is None:
                return b""
            self._read(head)
            del self.held[: len(head)]
            taken = head
        if self._chunked:
            size = self._to_take()
        else:
            size = min(self._left, len(self.held))
            self._left -= size
            self.whole = not self._left
        taken += self.held[:size]
        del self.held[:size]
        return taken

    def _read(self, head: bytes) -> None:
        """Read the end of the request from its head."""
        self._head = True
        length = -1
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            name, value = name.strip().lower(), value.strip().lower()
            if name == b"content-length":
                if length >= 0 or not value.isdigit() or len(value) > _SIZE:
                    raise Refused(400, "Content-Length is one number")
                length = int(value)
            elif name == b"transfer-encoding":
                if self._chunked or value != b"chunked":
                    raise Refused(400, "Transfer-Encoding: chunked alone is known here")
                self._chunked = True
            elif name == b"expect" and value != b"100-continue":
                raise Refused(417, "Expect: 100-continue alone is known here")
        if self._chunked and length >= 0:
            raise Refused(400, "either Content-Length or Transfer-Encoding, not both")
        self._left = max(0, length)

    def _to_take(self) -> int:
        """The number of held bytes that belong to chunks, counting only complete lines."""
        held, at = self.held, 0
        while not self.whole:
            step = min(self._left, len(held) - at)
            if self._last and bytes(held[at : at + step]) not in b"\r\n":
                raise Refused(400, "nothing is read behind the last chunk")
            self._left -= step
            at += step
            if self._left:
                break
            if self._last:
                self.whole = True
                break
            end = held.find(b"\r\n", at, at + _SIZE)
            if end < 0 and len(held) - at < _SIZE:
                break
            text = bytes(held[at:end])
            if end <= at or text.strip(_HEX):
                raise Refused(400, "before a chunk comes its size alone")
            size = int(text, 16)
            self._chunks += 1
            self._sizes += size
            if self._chunks > _PIECES + self._sizes // _CHUNK:
                raise Refused(400, f"the body comes in {self._chunks} chunks of a few bytes")
            self._left = size + 2  # with the end of its line
            self._last = not size
            at = end + 2
        return at


class _Leaving(asyncio.Protocol):
    """A connection after its last answer."""

    def __init__(self, transport: asyncio.Transport, last: asyncio.Protocol) -> None:
        self._transport = transport
        self._last = last
        self._reads = 0

    def data_received(self, _data: bytes) -> None:
        self._reads += 1
        if self._reads > LATE:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._last.connection_lost(exc)


def leave_to_itself(transport: asyncio.Transport, last: asyncio.Protocol) -> None:
    """End a connection whose client may still be sending; calls its protocol `last` when it is closed."""
    if transport.is_closing():
        return
    if not transport.can_write_eof():  # TLS
        transport.close()
        return
    transport.set_protocol(_Leaving(transport, last))
    try:
        transport.write_eof()
    except OSError:  # the client has gone already
        transport.abort()
        return
    asyncio.get_running_loop().call_later(_GOODBYE, transport.abort)
