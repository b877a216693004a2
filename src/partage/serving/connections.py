"""The connections of one port: their limit, and the choice of a connection to close beyond it.

Each port counts its own connections. A full port closes only connections that keep the service waiting: their client
has sent no whole request, or does not read its answer. Of these, the address with most connections loses its least
recently used one. So a client that only holds connections loses its own, and a later probe, scrape or scheduler is
still served. Memory has a similar rule: incomplete requests and unread answers have a bound over all connections, beyond
which the address with most of these bytes loses a connection.
"""

import asyncio
import resource
from collections.abc import Iterator
from typing import Final, Protocol

_FREE: Final = 2**14
"""Bytes of one connection that are not counted."""
_OWN_FILES: Final = 512
"""Descriptors that a service opens besides the connections of its ports."""


def allow_files(connections: int) -> None:
    """Raise the process's soft limit of open files, so that the ports reach their own limit of `connections` first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OWN_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connection(Protocol):
    """One connection of any server; `closed` is done when it is closed."""

    closed: asyncio.Future[None]

    @property
    def waits(self) -> bool:
        """Whether it waits for its client: no complete request of it is being answered."""

    def finish(self) -> None:
        """Close after the current answer."""

    def abort(self) -> None:
        """Close at once."""


def address_of(transport: asyncio.BaseTransport) -> str:
    """The client's address; empty if the transport has none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


class Connections:
    """The open connections of one port."""

    def __init__(self, most: int, per_address: int, most_bytes: int = 2**26) -> None:
        """No connection is open.

        `per_address`: the most connections of one client address at a time. `most_bytes`: the most bytes of incomplete
        requests and unread answers, over all connections.
        """
        self._most_bytes = most_bytes
        self._held: dict[Connection, int] = {}
        self._bytes = 0
        self._most = most
        self._per_address = per_address
        self._addresses: dict[Connection, str] = {}
        self._of: dict[str, dict[Connection, None]] = {}  # each address's, least used first

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[Connection]:
        return iter([*self._addresses])

    def enter(self, connection: Connection, address: str) -> bool:
        """Count a new connection of an address; False if it must be closed at once."""
        if len(self._of.get(address, ())) >= self._per_address and not self._gives_up(address):
            return False
        if len(self) >= self._most and not any(map(self._gives_up, self._by_number())):
            return False
        self._addresses[connection] = address
        self._of.setdefault(address, {})[connection] = None
        return True

    def used(self, connection: Connection) -> None:
        """Record an answered request of a connection."""
        of = self._of.get(self._addresses.get(connection, ""), {})
        if connection in of:
            of[connection] = of.pop(connection)

    def holds(self, connection: Connection, size: int) -> None:
        """Count a connection's bytes of an incomplete request or unread answer; may close others for it, or it itself.

        An answer may be larger than the bound, while no other connection has any.
        """
        size = size if size > _FREE and connection in self._addresses else 0
        self._bytes += size - self._held.pop(connection, 0)
        if size:
            self._held[connection] = size
        while self._bytes > self._most_bytes and len(self._held) > 1:
            sums: dict[str, int] = {}
            for one, held in self._held.items():
                sums[self._addresses[one]] = sums.get(self._addresses[one], 0) + held
            most = max(sums, key=sums.__getitem__)
            mine = (one for one in self._held if self._addresses[one] == most)
            gone = max(mine, key=self._held.__getitem__)
            self.leave(gone)
            gone.abort()

    def leave(self, connection: Connection) -> None:
        """Record that a connection is closed."""
        self._bytes -= self._held.pop(connection, 0)
        address = self._addresses.pop(connection, None)
        if address is not None:
            of = self._of[address]
            del of[connection]
            if not of:
                del self._of[address]

    def _by_number(self) -> list[str]:
        """The addresses, the one with most connections first, then the oldest first."""
        return sorted(self._of, key=lambda address: -len(self._of[address]))

    def _gives_up(self, address: str) -> bool:
        """Close a connection of this address that waits for its client; False if there is none."""
        for connection in self._of[address]:
            if connection.waits:
                self.leave(connection)
                connection.abort()
                return True
        return False
