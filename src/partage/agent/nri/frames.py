"""The bytes of an NRI connection: frames of a multiplexer, and ttrpc messages inside its streams.

Multiplexer frame: connection and length, 32 bits each, big endian, then the payload. Messages of ttrpc:
length and stream, 32 bits each, big endian, type and flags, 8 bits each, then the payload. A message may
lie across frames, and a frame may hold several messages.

Source: docs/sources/kubernetes.md 1.4 and 1.5 (read in containerd's source, and tried on both generations).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from partage.wire.protobuf import Malformed

LARGEST_PAYLOAD: Final = 4096
"""Of a frame that the plugin sends. The runtime reads through a buffer of this size; one byte more breaks the
connection, and the container is then started without its adjustment."""
LARGEST_MESSAGE: Final = 4 << 20
"""Of a ttrpc message."""
_FRAME: Final = struct.Struct(">II")
_HEAD: Final = struct.Struct(">IIBB")
_KINDS: Final = frozenset({1, 2, 3})


class Kind(IntEnum):
    """The kind of a ttrpc message."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


@dataclass(frozen=True, slots=True)
class TtrpcMessage:
    """One message of ttrpc.

    Attributes:
        stream: odd, chosen by the caller; the answer has the same.
        kind: request, response or data.
        flags: 0 for calls with one answer.
    """

    stream: int
    kind: Kind
    payload: bytes
    flags: int = 0

    def encode(self) -> bytes:
        """The message with its head. Raises `Malformed`: it is larger than a message may be."""
        if len(self.payload) > LARGEST_MESSAGE:
            raise Malformed(
                f"a message of {len(self.payload)} bytes; ttrpc takes {LARGEST_MESSAGE} at most"
            )
        head = _HEAD.pack(len(self.payload), self.stream, self.kind, self.flags)
        return head + self.payload


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

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Connection and payload of every complete frame. Raises `Malformed`: one is larger than a message may be."""
        self._held += data
        while len(self._held) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._held)
            if length > LARGEST_MESSAGE + _HEAD.size:
                raise Malformed(f"a frame of {length} bytes on connection {connection}")
            end = _FRAME.size + length
            if len(self._held) < end:
                return
            payload = bytes(self._held[_FRAME.size : end])
            del self._held[:end]
            yield connection, payload


@dataclass(slots=True)
class TtrpcReader:
    """Extracts messages from the bytes of one connection."""

    _held: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[TtrpcMessage]:
        """Every complete message. Raises `Malformed`: it is larger than it may be, or of an unknown kind."""
        self._held += data
        while len(self._held) >= _HEAD.size:
            length, stream, kind, flags = _HEAD.unpack_from(self._held)
            if length > LARGEST_MESSAGE:
                raise Malformed(f"a ttrpc message of {length} bytes; {LARGEST_MESSAGE} at most")
            if kind not in _KINDS:
                raise Malformed(f"a ttrpc message of kind {kind}")
            end = _HEAD.size + length
            if len(self._held) < end:
                return
            payload = bytes(self._held[_HEAD.size : end])
            del self._held[:end]
            yield TtrpcMessage(stream, Kind(kind), payload, flags)
