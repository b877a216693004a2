"""Turns of callers at costly work, so that no caller's flood delays the others by more than one turn.

An asker is an address, or a user with a valid token. Networks are served in turn, and in each network its askers,
however many of them there are and however many of their requests wait. An asker may have half of the places at a time,
and a network three quarters. If an asker passes on requests of several owners, such as an API server, its owners are
served in turn as well. When too many wait, the network with most requests loses one of them: of its asker with most,
and of this asker's owner with most.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from partage.model.errors import PartageError
from partage.serving.guarded import connection_of

_A_ROUND: Final = 4
"""Callers that go on in one round; the work of each may take some milliseconds."""


class Pace:
    """Callers that go on in their order of arrival, few in each round of the event loop.

    Otherwise, hundreds of requests that are read in one round would all be worked on in the next. Later
    requests, such as a probe of the server's health, would wait for the end of that round.
    """

    def __init__(self, a_round: int = _A_ROUND) -> None:
        """Let so many go on in each round."""
        self._a_round = a_round
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait for a round."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(self._a_round, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # else its caller is gone
                turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)


@contextmanager
def counted(those: Counter[str], key: str, number: int = 1) -> Iterator[None]:
    """Count so many more of a key, for the context; keys with none are not kept."""
    those[key] += number
    try:
        yield
    finally:
        those[key] -= number
        if not those[key]:
            del those[key]


class TooMany(PartageError):
    """Too many requests of one asker, or of its network, wait."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """One request that waits for its turn.

    `counted`: what its size counts for, the most important first when one must go.
    """

    asker: str
    owner: str
    size: int
    counted: tuple[tuple[str, ...], ...]
    turn: asyncio.Future[None]


_Askers = OrderedDict[str, OrderedDict[str, list[_Waiting]]]
"""Waiting requests by asker and owner, the next turn first."""


class Turns:
    """Waiting requests, and those that have a place.

    Attributes:
        at_work: requests that have a place, by identity, with their askers.
        waiting: the size of the waiting requests.
        pace: of requests that have a place, and are worked on without a pause.
    """

    def __init__(self, together: int, waiting: int, of_one: int) -> None:
        """Every place is free; requests of the size `waiting` may wait at a time, and of `of_one` for each owner."""
        self.at_work: dict[int, str] = {}
        self.waiting = 0
        self.pace = Pace(1)
        self._together = together
        self._most = waiting
        self._of_one = of_one
        # By network, asker and owner, the next turn first.
        self._rows: OrderedDict[str, _Askers] = OrderedDict()
        self._sizes: Counter[tuple[str, ...]] = Counter()  # of the waiting requests, by `counted`
        self._has: Counter[str] = Counter()  # places, by asker
        self._networks: Counter[str] = Counter()  # places, by network

    @asynccontextmanager
    async def turn(self, asker: str, owner: str = "", size: int = 1) -> AsyncIterator[None]:
        """Wait for a place, and keep it for the context. Raises `TooMany`."""
        await self.take(asker, owner, size)
        try:
            yield
        finally:
            self.give(asker)

    async def take(self, asker: str, owner: str = "", size: int = 1) -> None:
        """Wait for a place, which must be released. Raises `TooMany`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        network = _network(asker)
        counted = (network,), (network, asker), (network, asker, owner)
        if self._sizes[counted[-1]] + size > self._of_one:
            raise TooMany("too many requests of this caller wait already; try again")
        one = _Waiting(asker, owner, size, counted, future)
        askers = self._rows.setdefault(network, OrderedDict())
        askers.setdefault(asker, OrderedDict()).setdefault(owner, []).append(one)
        self._count(one, size)
        while self.waiting > self._most:
            gone = self._heaviest()[-1]
            self._out(gone)
            if not gone.turn.done():  # else its caller is gone, and has not run since
                gone.turn.set_exception(TooMany("too many requests wait; try again"))
        self._advance()
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._out(one)
            elif future.exception() is None:
                self.give(asker)
            raise

    def give(self, asker: str) -> None:
        """Release a place."""
        for has, key in ((self._has, asker), (self._networks, _network(asker))):
            has[key] -= 1
            if not has[key]:
                del has[key]
        self._advance()

    def _advance(self) -> None:
        """Give free places to the next askers."""
        while self._has.total() < self._together:
            found = self._next()
            if found is None:
                return
            network, asker = found
            self._rows.move_to_end(network)
            askers = self._rows[network]
            askers.move_to_end(asker)
            owners = askers[asker]
            owner = next(iter(owners))
            owners.move_to_end(owner)
            one = owners[owner][0]
            self._out(one)
            if not one.turn.done():
                self._has[asker] += 1
                self._networks[network] += 1
                one.turn.set_result(None)

    def _next(self) -> tuple[str, str] | None:
        """The network and the asker that have the next turn; None if all that wait have as many places as they may."""
        half, most = max(1, self._together // 2), self._together - self._together // 4
        for network, askers in self._rows.items():
            if self._networks[network] < most:
                for asker in askers:
                    if self._has[asker] < half:
                        return network, asker
        return None

    def _heaviest(self) -> list[_Waiting]:
        """The row that loses a request; of equal ones the last in turn, so that those before it are served."""
        rows = (
            row
            for askers in reversed(self._rows.values())
            for owners in reversed(askers.values())
            for row in reversed(owners.values())
        )
        return max(rows, key=lambda row: [self._sizes[one] for one in row[0].counted])

    def _count(self, one: _Waiting, size: int) -> None:
        self.waiting += size
        for counted in one.counted:
            self._sizes[counted] += size
            if not self._sizes[counted]:
                del self._sizes[counted]

    def _out(self, one: _Waiting) -> None:
        """Remove a request that no longer waits."""
        network = one.counted[0][0]
        askers = self._rows.get(network, OrderedDict())
        owners = askers.get(one.asker, OrderedDict())
        row = owners.get(one.owner, [])
        if one not in row:
            return
        row.remove(one)
        self._count(one, -one.size)
        if not row:
            del owners[one.owner]
        if not owners:
            del askers[one.asker]
        if not askers:
            del self._rows[network]


TURNS: Final = web.AppKey("turns", Turns)
"""The turns at an application's pages."""


@lru_cache(4096)
def _network(asker: str) -> str:
    """The network of an address, as one owner usually has it; any other asker is its own network."""
    try:
        address = ip_address(asker)
    except ValueError:
        return asker
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    bits = 24 if address.version == 4 else 64
    return str(ip_network((address, bits), strict=False))


def pages_in_turn() -> Middleware:
    """A middleware that gives requests for pages turns, by address; others get theirs when they are complete."""

    @web.middleware
    async def wait(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return await handler(request)
        async with at_work(request):
            return await handler(request)

    return wait


@asynccontextmanager
async def at_work(request: web.Request) -> AsyncIterator[None]:
    """Have a turn for a request, if its application has turns. Raises `web.HTTPTooManyRequests`: too many wait."""
    turns = request.app.get(TURNS)
    if turns is None:
        yield
        return
    asker = request.remote or ""
    connection = connection_of(request)
    if connection is not None:
        connection.lined = True  # if the port is full, it may be closed like an idle one
    try:
        await _again(turns, asker)
    finally:
        if connection is not None:
            connection.lined = False
    turns.at_work[id(request)] = asker
    try:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError  # no work for a client that went away
        yield
    finally:
        if turns.at_work.pop(id(request), None) is not None:
            turns.give(asker)


@asynccontextmanager
async def waiting_elsewhere(request: web.BaseRequest) -> AsyncIterator[None]:
    """Free the place while a request waits for another server's answer, or for its client to read on."""
    turns = request.app.get(TURNS) if isinstance(request, web.Request) else None
    asker = turns.at_work.pop(id(request), None) if turns is not None else None
    if turns is None or asker is None:
        yield
        return
    turns.give(asker)
    try:
        yield
    finally:
        await _again(turns, asker)
        turns.at_work[id(request)] = asker


async def _again(turns: Turns, asker: str) -> None:
    """Wait for a place, and for the round after the last page: most pages are made in one piece."""
    try:
        await turns.take(asker)
    except TooMany as error:
        headers = {"Retry-After": "1"}
        raise web.HTTPTooManyRequests(text=str(error), headers=headers) from error
    try:
        await turns.pace.turn()
    except asyncio.CancelledError:
        turns.give(asker)
        raise
