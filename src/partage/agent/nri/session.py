"""One NRI connection without any input or output: from bytes to calls and answers, and back.

The runtime calls the plugin on connection 1, the plugin calls the runtime on connection 2. Everything
else on either is an error, and so is an answer to a call that was not made.

The bytes are frames of a multiplexer, and ttrpc messages inside its streams. Multiplexer frame: connection and length,
32 bits each, big endian, then the payload. Messages of ttrpc: length and stream, 32 bits each, big endian, type and
flags, 8 bits each, then the payload. A message may lie across frames, and a frame may hold several messages.

Source: docs/sources/kubernetes.md 1.4 and 1.5 (read in containerd's source, and tried on both generations).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from partage.agent.nri.long import LongMessage
from partage.agent.nri.messages import RUNTIME, Request, Response, Status
from partage.agent.protobuf import Message
from partage.wire.protobuf import Malformed

LARGEST_PAYLOAD: Final = 4096
"""Of a frame that the plugin sends. The runtime reads through a buffer of this size; one byte more breaks the
connection, and the container is then started without its adjustment."""
LARGEST_MESSAGE: Final = 4 << 20
"""Of a ttrpc message that is sent, or read whole; containerd 1.7 sends longer ones."""
_LARGEST_FRAME: Final = 1 << 30
"""Of a frame that is read: containerd 1.7 sends a whole message in one."""
_FRAME: Final = struct.Struct(">II")
_HEAD: Final = struct.Struct(">IIBB")
_KINDS: Final = frozenset({1, 2, 3})
_ONE_ANSWER: Final = 0
"""Flags of a call with one answer; others do not occur."""
OK: Final = 0
UNKNOWN: Final = 2
"""The code of errors with a text of ours."""
UNIMPLEMENTED: Final = 12
"""The method does not exist here: the runtime then falls back to an older one, or continues without it."""
_TO_PLUGIN: Final = 1
_TO_RUNTIME: Final = 2
_LONGEST_ERROR: Final = 2000


class Kind(IntEnum):
    """The kind of a ttrpc message."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


@dataclass(frozen=True, slots=True)
class TtrpcMessage:
    """One message of ttrpc. `stream`: odd, chosen by the caller; the answer has the same."""

    stream: int
    kind: Kind
    payload: bytes

    def encode(self) -> bytes:
        """The message with its head. Raises `Malformed`: it is larger than a message may be."""
        if len(self.payload) > LARGEST_MESSAGE:
            raise Malformed(
                f"a message of {len(self.payload)} bytes; ttrpc takes {LARGEST_MESSAGE} at most"
            )
        return _HEAD.pack(len(self.payload), self.stream, self.kind, _ONE_ANSWER) + self.payload


def framed(connection: int, data: bytes) -> bytes:
    """Bytes of a connection, as frames that the runtime can read."""
    out = bytearray()
    for start in range(0, len(data), LARGEST_PAYLOAD):
        piece = data[start : start + LARGEST_PAYLOAD]
        out += _FRAME.pack(connection, len(piece)) + piece
    return bytes(out)


@dataclass(slots=True)
class FrameReader:
    """Extracts frames from the bytes of a socket, in pieces of any size."""

    _held: bytearray = field(default_factory=bytearray)
    _connection: int = 0
    _missing: int = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Connection and payload of every frame, of a long one in parts. Raises `Malformed`: one is longer than any."""
        self._held += data
        while self._missing or len(self._held) >= _FRAME.size:
            if not self._missing:
                self._connection, self._missing = _FRAME.unpack_from(self._held)
                del self._held[: _FRAME.size]
                if self._missing > _LARGEST_FRAME:
                    raise Malformed(
                        f"a frame of {self._missing} bytes on connection {self._connection}"
                    )
            part = bytes(self._held[: self._missing])
            del self._held[: len(part)]
            self._missing -= len(part)
            yield self._connection, part
            if not self._held:
                return


@dataclass(frozen=True, slots=True)
class Listed:
    """A part of a list that is too long for one message; the list's own call follows the last part."""

    payload: bytes


@dataclass(slots=True)
class TtrpcReader:
    """Extracts messages from the bytes of one connection."""

    _held: bytearray = field(default_factory=bytearray)
    _long: LongMessage | None = None

    def feed(self, data: bytes) -> Iterator[TtrpcMessage | Listed | LongMessage]:
        """Every message, and before a long one its parts. Raises `Malformed`: an unknown kind; a long one, no call."""
        self._held += data
        while self._long is not None or len(self._held) >= _HEAD.size:
            if self._long is not None:
                one = self._long
                piece = bytes(self._held[: one.missing])
                del self._held[: one.missing]
                yield from map(Listed, one.feed(piece))
                if one.missing:
                    return
                self._long = None
                yield one
                continue
            length, stream, kind, _ = _HEAD.unpack_from(self._held)
            if kind not in _KINDS:
                raise Malformed(f"a ttrpc message of kind {kind}")
            if length > LARGEST_MESSAGE:
                if kind != Kind.REQUEST:
                    raise Malformed(
                        f"a ttrpc message of {length} bytes; {LARGEST_MESSAGE} at most"
                    )
                del self._held[: _HEAD.size]
                self._long = LongMessage(stream, length)
                continue
            end = _HEAD.size + length
            if len(self._held) < end:
                return
            payload = bytes(self._held[_HEAD.size : end])
            del self._held[:end]
            yield TtrpcMessage(stream, Kind(kind), payload)


@dataclass(frozen=True, slots=True)
class Called:
    """The runtime calls the plugin and waits.

    Attributes:
        service: in full.
        timeout: seconds after which the runtime stops waiting; 0 if it does not report them.
        length: bytes of a call that is too long to be read, of which the payload has only the fronts; else 0.
    """

    stream: int
    service: str
    method: str
    payload: bytes
    timeout: float
    length: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """The runtime's answer to a call of ours; code 0 means success."""

    stream: int
    code: int
    message: str


class Session:
    """Both directions of one connection."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._readers = {_TO_PLUGIN: TtrpcReader(), _TO_RUNTIME: TtrpcReader()}
        self._open: set[int] = set()
        self._next = 1

    def receive(self, data: bytes) -> Iterator[Called | Answered | Listed]:
        """Calls and answers that the bytes complete. Raises `Malformed`: the connection is useless then."""
        for connection, payload in self._frames.feed(data):
            reader = self._readers.get(connection)
            if reader is None:
                raise Malformed(f"a frame on connection {connection}; there are 1 and 2")
            for message in reader.feed(payload):
                if connection == _TO_PLUGIN:
                    yield message if isinstance(message, Listed) else self._called(message)
                elif isinstance(message, TtrpcMessage):
                    yield self._answered(message)
                else:
                    raise Malformed("a request where the runtime answers")

    def call(self, method: str, argument: Message) -> tuple[int, bytes]:
        """Call the runtime: returns the stream of the answer, and the bytes to send."""
        stream = self._next
        self._next += 2
        self._open.add(stream)
        payload = Request(RUNTIME, method, argument.encode()).encode()
        return stream, _sent(_TO_RUNTIME, TtrpcMessage(stream, Kind.REQUEST, payload))

    def answer(self, stream: int, result: Message) -> bytes:
        """The bytes that answer a call. Raises `Malformed`: the result is larger than a message may be."""
        response = Response(Status(OK), result.encode())
        return _sent(_TO_PLUGIN, TtrpcMessage(stream, Kind.RESPONSE, response.encode()))

    def refuse(self, stream: int, code: int, why: str) -> bytes:
        """The bytes that answer a call with an error, cut to a size that fits in events."""
        status = Status(code, why[:_LONGEST_ERROR])
        return _sent(_TO_PLUGIN, TtrpcMessage(stream, Kind.RESPONSE, Response(status).encode()))

    @staticmethod
    def _called(message: TtrpcMessage | LongMessage) -> Called:
        if isinstance(message, LongMessage):
            names, rest = (message.service, message.method), bytes(message.rest)
            length = 0 if message.lists else message.length
            return Called(message.stream, *names, rest, message.timeout / 1e9, length)
        if message.kind is not Kind.REQUEST:
            raise Malformed(f"a {message.kind.name.lower()} where the runtime calls")
        request = Request.decode(message.payload)
        timeout = max(request.timeout_nano, 0) / 1e9
        return Called(message.stream, request.service, request.method, request.payload, timeout)

    def _answered(self, message: TtrpcMessage) -> Answered:
        if message.kind is not Kind.RESPONSE:
            raise Malformed(f"a {message.kind.name.lower()} where the runtime answers")
        if message.stream not in self._open:
            raise Malformed(f"an answer on stream {message.stream}, where nothing was asked")
        self._open.discard(message.stream)
        response = Response.decode(message.payload)
        status = response.status or Status()
        return Answered(message.stream, status.code, status.message)


def _sent(connection: int, message: TtrpcMessage) -> bytes:
    return framed(connection, message.encode())
