"""One request of a connection by HTTP/2: what was asked, and what has come of it."""

from collections.abc import Iterable
from typing import NamedTuple

from partage.serving.exchange import Exchange, Header
from partage.serving.hot import HotRoute

__all__ = ["Asked", "Rest", "Stream", "asked_by"]


class Stream:
    """One request: what has come of it, and what is to be sent."""

    __slots__ = (
        "answered", "away", "body", "deadline", "exchange", "handler", "head", "id", "out", "path",
        "unread", "whole", "wound_up",
    )  # fmt: skip

    def __init__(self, number: int, deadline: float) -> None:
        self.id = number
        self.deadline = deadline
        self.away = False  # no request is taken after this one
        self.handler: HotRoute | None = None
        self.head = b""
        self.body = bytearray()
        self.unread = 0  # bytes of the flow control that were not given back
        self.whole = False  # all of the request is here
        self.exchange: Exchange | None = None
        self.path = ""
        self.answered = False  # the head of the answer is sent
        self.out = bytearray()
        self.wound_up = False  # all of the answer is in `out`


class Rest:
    """What comes of a request that was answered before it was whole: borne with for a while."""

    __slots__ = ("deadline", "size")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.size = 0


class Asked(NamedTuple):
    """The head of a request."""

    method: bytes
    path: bytes
    host: bytes
    authorization: bytes
    length: int
    plain: bool
    waits: bool
    headers: list[Header]


def asked_by(given: Iterable[Header]) -> Asked:
    """The head, where the library has seen to it that it is one."""
    parts = {
        b":method": b"",
        b":path": b"",
        b":authority": b"",
        b"host": b"",
        b"authorization": b"",
    }
    length, plain, waits = 0, True, False
    headers: list[Header] = []
    for name, value in given:
        if name in parts:
            parts[name] = value
        if name == b"content-length":
            length = int(value) if value.isdigit() and len(value) <= 12 else 0
            continue
        if name[:1] != b":":
            headers.append((name, value))
            plain = plain and name != b"content-encoding"
            waits = waits or (name == b"expect" and value.lower() == b"100-continue")
    method, path, authority, host, authorization = parts.values()
    return Asked(method, path, authority or host, authorization, length, plain, waits, headers)
