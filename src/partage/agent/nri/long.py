"""Reads a message that is longer than ttrpc allows, as it arrives, and keeps no more of it than one part.

containerd 1.7 sends messages of any length: all pods and containers of a node in one, or a container with all that its
author wrote. If the plugin ended the connection, the runtime would start this container and the next ones unchanged. So
the parts of a list are passed on one by one, and of any other call only the fronts, which have the identities.
"""

from collections.abc import Generator, Iterator
from typing import Final

from partage.agent.nri.messages import Container
from partage.agent.protobuf import raw_fields
from partage.vendors.runtimes import VISIBLE
from partage.wire.protobuf import LENGTH, VARINT, Malformed, put_number, wrapped

LARGEST_PART: Final = 4 << 20
"""Bytes of a pod or a container that is read whole."""
_FRONT: Final = 1 << 20
"""Bytes that are read of a longer one."""
_NAMED: Final = 4096
"""Bytes that are read of a pod or a container that another call is about."""
_UNREAD: Final = Container(env=(f"{VISIBLE}=all",)).encode()
"""The rest of a longer container in a list counts as a request for every card."""
_LISTING: Final = "Synchronize"
_LONGEST_NAME: Final = 4096
_SERVICE, _METHOD, _PAYLOAD, _TIMEOUT = range(1, 5)
"""Fields of a call."""
_CONTAINERS: Final = 2
"""Field of a list."""


class LongMessage:
    """One call.

    Attributes:
        stream: of its answer.
        length: of all its bytes.
        missing: bytes that have not arrived.
        rest: of a list all but its parts, of another call its fronts.
        timeout: nanoseconds that the runtime waits.
    """

    def __init__(self, stream: int, length: int) -> None:
        """Start before the first byte."""
        self.stream = stream
        self.length = self.missing = length
        self.rest = bytearray()
        self.timeout = 0
        self._names = {_SERVICE: "", _METHOD: ""}
        self._held = bytearray()
        self._at = 0
        self._reading = self._read()

    @property
    def service(self) -> str:
        """The called service; empty if it was not told."""
        return self._names[_SERVICE]

    @property
    def method(self) -> str:
        """Its method; empty if it was not told."""
        return self._names[_METHOD]

    @property
    def lists(self) -> bool:
        """Whether it is a list of pods and containers."""
        return self.method == _LISTING

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next bytes, `missing` at most, and return each part as a list of its own. Raises `Malformed`."""
        self.missing -= len(data)
        self._held += data
        for part in self._reading:
            if part is None:
                return
            yield part

    def _read(self) -> Generator[bytes | None, None, None]:
        """The parts; None whenever bytes are missing."""
        while self._at < self.length:
            number, wire, value = yield from self._field(self.length)
            if wire == VARINT:
                self.timeout = value if number == _TIMEOUT else self.timeout
            elif number in self._names and value <= _LONGEST_NAME:
                name = yield from self._taken(value)
                self._names[number] = str(name, "utf-8", "replace")
            elif number == _PAYLOAD:
                yield from self._parts(value)
            else:
                yield from self._passed(value)

    def _parts(self, size: int) -> Generator[bytes | None, None, None]:
        end, listed = self._at + size, self.lists
        whole, front = (LARGEST_PART, _FRONT) if listed else (_NAMED, _NAMED)
        while self._at < end:
            number, wire, value = yield from self._field(end)
            if wire == VARINT:
                put_number(self.rest, number << 3 | VARINT)
                put_number(self.rest, value)
                continue
            part = yield from self._taken(value if value <= whole else front)
            if value > whole:
                yield from self._passed(value - front)
                part = _whole(part) + (_UNREAD if listed and number == _CONTAINERS else b"")
            if listed:
                yield wrapped(number, part)
            elif len(self.rest) < _FRONT:
                self.rest += wrapped(number, part)

    def _field(self, end: int) -> Generator[None, None, tuple[int, int, int]]:
        """Number and wire type of the next field, with its value or the length of its bytes."""
        key = yield from self._number()
        value = yield from self._number()
        number, wire = key >> 3, key & 7
        if wire not in (VARINT, LENGTH):
            raise Malformed(f"field {number} of a long message has wire type {wire}")
        if self._at + (value if wire == LENGTH else 0) > end:
            raise Malformed(f"field {number} of a long message goes beyond its end")
        return number, wire, value

    def _number(self) -> Generator[None, None, int]:
        value = shift = 0
        while True:
            (byte,) = yield from self._taken(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise Malformed("a number has more than ten bytes")

    def _taken(self, size: int) -> Generator[None, None, bytes]:
        yield from self._until(size)
        data = bytes(self._held[:size])
        del self._held[:size]
        self._at += size
        return data

    def _passed(self, size: int) -> Generator[None, None, None]:
        while size:
            yield from self._until(1)
            here = min(size, len(self._held))
            del self._held[:here]
            self._at += here
            size -= here

    def _until(self, size: int) -> Generator[None, None, None]:
        while len(self._held) < size:
            if not self.missing:
                raise Malformed("a long message is cut off")
            yield None


def _whole(front: bytes) -> bytes:
    """The fields of a message's beginning, without the one that is cut."""
    found = bytearray()
    try:
        for _, raw, _ in raw_fields(front):
            found += raw
    except Malformed:
        pass
    return bytes(found)
