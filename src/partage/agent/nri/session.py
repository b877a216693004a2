"""One NRI connection without any input or output: from bytes to calls and answers, and back.

The runtime calls the plugin on connection 1, the plugin calls the runtime on connection 2. Everything
else on either is an error, and so is an answer to a call that was not made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from partage.agent.nri.frames import FrameReader, Kind, TtrpcMessage, TtrpcReader, framed
from partage.agent.nri.messages import RUNTIME, Request, Response, Status
from partage.agent.protobuf import Message
from partage.wire.protobuf import Malformed

OK: Final = 0
UNKNOWN: Final = 2
"""The code of errors with a text of ours."""
UNIMPLEMENTED: Final = 12
"""The method does not exist here: the runtime then falls back to an older one, or continues without it."""
_TO_PLUGIN: Final = 1
_TO_RUNTIME: Final = 2
_LONGEST_ERROR: Final = 2000


@dataclass(frozen=True, slots=True)
class Called:
    """The runtime calls the plugin and waits.

    Attributes:
        service: in full.
        timeout: seconds after which the runtime stops waiting; 0 if it does not report them.
    """

    stream: int
    service: str
    method: str
    payload: bytes
    timeout: float


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

    def receive(self, data: bytes) -> Iterator[Called | Answered]:
        """Calls and answers that the bytes complete. Raises `Malformed`: the connection is useless then."""
        for connection, payload in self._frames.feed(data):
            reader = self._readers.get(connection)
            if reader is None:
                raise Malformed(f"a frame on connection {connection}; there are 1 and 2")
            for message in reader.feed(payload):
                if connection == _TO_PLUGIN:
                    yield self._called(message)
                else:
                    yield self._answered(message)

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
    def _called(message: TtrpcMessage) -> Called:
        if message.kind is not Kind.REQUEST:
            raise Malformed(f"a {message.kind.name.lower()} where the runtime calls")
        request = Request.decode(message.payload)
        return Called(
            message.stream,
            request.service,
            request.method,
            request.payload,
            max(request.timeout_nano, 0) / 1e9,
        )

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
