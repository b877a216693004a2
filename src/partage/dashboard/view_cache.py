"""Figures of one service's books, kept between two looks, so a look costs only the changes."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec

from partage.dashboard.catalogue import Catalogue
from partage.dashboard.fragments import Fragments
from partage.dashboard.holdings import Holdings
from partage.dashboard.roster import Roster
from partage.extender.books import Books

_TEXTS: Final = 32 << 20
"""Bytes of documents that are kept: those of 5,000 nodes of eight cards take half of it."""


class Texts:
    """Documents as JSON text, each made again after a change of its content."""

    def __init__(self, most: int = _TEXTS) -> None:
        """No documents yet; at most `most` bytes are kept, and the least recently used goes first."""
        self._most = most
        self._bytes = 0
        self._kept: OrderedDict[object, tuple[tuple[object, ...], msgspec.Raw]] = OrderedDict()

    def of(
        self, key: object, state: tuple[object, ...], make: Callable[[], dict[str, Any]]
    ) -> msgspec.Raw:
        """The document; `state` is everything that it depends on."""
        known = self._kept.get(key)
        if known is None or known[0] != state:
            before = len(memoryview(known[1])) if known else 0
            known = self._kept[key] = state, msgspec.Raw(msgspec.json.encode(make()))
            self._bytes += len(memoryview(known[1])) - before
        self._kept.move_to_end(key)
        while self._bytes > self._most:
            self._bytes -= len(memoryview(self._kept.popitem(last=False)[1][1]))
        return known[1]


class Standing:
    """All kept figures of one service's books; `texts` are of nodes and pods as JSON, None if answers are plain values."""

    def __init__(self, texts: Texts | None = None) -> None:
        """No figures yet; `texts` keep documents of nodes and pods as JSON."""
        self.catalogue = Catalogue()
        self.roster = Roster()
        self.holdings = Holdings()
        self.fragments = Fragments()
        self.texts = texts
        self._turn = asyncio.Lock()

    async def nodes(self, books: Books) -> None:
        """Take in changes of nodes and cards."""
        async with self._turn:
            await self.catalogue.refresh(books.engine.ledger)

    async def pods(self, books: Books) -> None:
        """Take in changes of pods."""
        async with self._turn:
            await self.roster.refresh(books.cluster_cache)

    async def all(self, books: Books) -> None:
        """Take in all changes."""
        async with self._turn:
            await self.roster.refresh(books.cluster_cache)
            await self.holdings.refresh(books.engine.ledger)
            await self.catalogue.refresh(books.engine.ledger)
