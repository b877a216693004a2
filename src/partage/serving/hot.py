"""What the protocols of one port share: the hot routes, who may call them, and who is there."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import msgspec

from partage.serving.access import Access
from partage.serving.connections import Connections
from partage.serving.limits import Limits

Answer = tuple[int, bytes]
HotRoute = Callable[[bytes], Answer] | Callable[[bytes], Awaitable[Answer]]

AWAY: Final = 503
"""Who does not serve any more must not keep its callers: the next connection is for who does."""


@dataclass(slots=True)
class Tally:
    """How many requests of all connections that carry several are under way."""

    requests: int = 0


@dataclass(frozen=True, slots=True)
class HotRoutes:
    """The hot paths and what all of them share.

    Attributes:
        handlers: path to what answers its body; a coroutine function may take its time.
        access: who may call them.
        limits: of requests.
        fallback: makes the protocol that serves everything else.
        open: the connections of the port.
        tally: of requests.
    """

    handlers: Mapping[bytes, HotRoute]
    access: Access
    limits: Limits
    fallback: Callable[[], asyncio.Protocol]
    open: Connections
    tally: Tally = field(default_factory=Tally)


def message(text: str) -> bytes:
    """The body of an answer that is no document."""
    return msgspec.json.encode({"message": text})


def refusal(status: int, text: str) -> bytes:
    """A whole answer, the last of its connection, to a request that nothing looks at."""
    body = message(text)
    return (
        b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
        % (status, HTTPStatus(status).phrase.encode(), len(body), body)
    )


FAULT: Final = (500, message("internal error; see the log"))
