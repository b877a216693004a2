"""The bytes of a watch into its events; no socket, no clock, no task.

A watch is a stream of JSON documents, one a line, which the network cuts anywhere. The decoder
receives the pieces and returns the complete events. An object that is not of the caller's type
becomes a `Malformed` event, so that one odd object does not end the watch for all. A line that is
no event at all is a ProtocolError, since nothing after it can be trusted.
"""

from typing import Any, Final, Generic, TypeVar

import msgspec

from partage.kube.decoding import OnlyMeta
from partage.kube.errors import ProtocolError, Status
from partage.kube.lenient import UNDECODABLE, decode
from partage.kube.objects import HasMeta, Undecodable

T = TypeVar("T")
H = TypeVar("H", bound=HasMeta)

_LONGEST_LINE: Final = 2**25
"""Bytes; the API server's own limit on an object is far below."""


class Added(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag="ADDED"):
    """An object that is new to this watch."""

    object: T


class Modified(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag="MODIFIED"):
    """An object that changed."""

    object: T


class Deleted(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag="DELETED"):
    """An object that is gone, or left the selection; its last state."""

    object: T


class _BookmarkMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _BookmarkObject(msgspec.Struct, frozen=True):
    metadata: _BookmarkMeta


class Bookmark(msgspec.Struct, frozen=True, tag_field="type", tag="BOOKMARK"):
    """Everything up to this version has been sent."""

    object: _BookmarkObject

    @property
    def resource_version(self) -> str:
        """The version to go on from."""
        return self.object.metadata.resource_version


class Failed(msgspec.Struct, frozen=True, tag_field="type", tag="ERROR"):
    """The server ends the watch and gives the reason."""

    object: Status


class Malformed(msgspec.Struct, frozen=True):
    """An event about an object that is not of the caller's type."""

    object: Undecodable
    deleted: bool


Frame = Added[H] | Modified[H] | Deleted[H] | Bookmark | Failed | Malformed


class _Probe(msgspec.Struct, frozen=True):
    type: str
    object: OnlyMeta


_PROBE: Final = msgspec.json.Decoder(_Probe)
_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


class LineSplitter:
    """Cuts bytes into whole lines, each byte copied once."""

    def __init__(self, longest: int = _LONGEST_LINE) -> None:
        self._longest = longest
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes, without ends and empty ones. Raises `ProtocolError`: one is too long."""
        lines = piece.split(b"\n")
        last = lines.pop()
        if lines and self._pieces:
            lines[0] = b"".join((*self._pieces, lines[0]))
            self._pieces.clear()
            self._held = 0
        if last:
            self._pieces.append(last)
            self._held += len(last)
        if self._held > self._longest or any(len(line) > self._longest for line in lines):
            raise ProtocolError(f"a line of the watch is longer than {self._longest} bytes")
        return [line for line in lines if line and not line.isspace()]


class WatchDecoder(Generic[H]):
    """Reads bytes as events of a caller's type."""

    def __init__(self, into: type[H], longest_line: int = _LONGEST_LINE) -> None:
        kinds: tuple[Any, ...] = (Added, Modified, Deleted)
        events = [kind[into] for kind in kinds]
        union: Any = events[0] | events[1] | events[2] | Bookmark | Failed
        self._decoder: msgspec.json.Decoder[Frame[H]] = msgspec.json.Decoder(union)
        self._lines = LineSplitter(longest_line)

    def feed(self, piece: bytes) -> list[Frame[H]]:
        """The events that this piece completes, in order. Raises `ProtocolError`: a line that is not an event."""
        return [self._frame(line) for line in self._lines.feed(piece)]

    def _frame(self, line: bytes) -> Frame[H]:
        try:
            return decode(self._decoder, line)
        except UNDECODABLE as error:
            return _malformed(line, error)


def _malformed(line: bytes, error: Exception) -> Malformed:
    try:
        probe = decode(_PROBE, line)
    except UNDECODABLE:
        raise ProtocolError(f"not a watch event: {error}") from error
    if probe.type not in _CHANGES:
        raise ProtocolError(f"not a watch event: {error}") from error
    return Malformed(Undecodable(probe.object.metadata, str(error)), probe.type == "DELETED")
