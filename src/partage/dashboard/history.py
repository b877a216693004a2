"""Changes of each card since the service started: pods that arrived or left, and faults of the card itself.

The module also keeps the sums over time (`trend`), because both read the books at intervals.

It looks at changed books once a second, so no decision pays for it, and it misses a pod that arrives and leaves
between two looks. It keeps a bounded number of changes for the whole cluster, and forgets the oldest first.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from partage.dashboard.trend import Trend
from partage.extender.books import Books
from partage.inventory.columns import distinct
from partage.inventory.ledger import Ledger
from partage.inventory.plane import CLOSED, Index
from partage.model.device import DeviceType
from partage.model.reason import ReasonCode
from partage.wire.outcomes import closed_code

_LOG: Final = logging.getLogger("partage.dashboard")
KEPT: Final = 20_000
"""Most kept changes of all cards together."""
SHOWN: Final = 50
"""Most shown changes of one card, the newest first."""
_PIECE: Final = 8
"""Nodes read before other tasks run."""
_EVERY: Final = 1.0
_FAULTY: Final = frozenset(
    number for number, code in enumerate(CLOSED) if code not in (None, ReasonCode.CARD_NOT_IDLE)
)
"""Numbers of the column `closed` that have a `closed_code`."""


@dataclass(frozen=True, slots=True)
class _Tenant:
    """A pod on a card, with its amounts and its hardware instances, such as `1g.5gb at 6`."""

    namespace: str
    name: str
    protocol: str
    core_milli: int
    memory_bytes: int
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one card.

    Attributes:
        at: time at which it was seen.
        what: `given`, `given back`, `closed` or `opened`.
        tenant: the owner of the part; None if the card itself changed.
        code: reason why the card takes no pod; empty otherwise.
        detail: the fault's report, such as an Xid.
    """

    at: datetime
    node: str
    type: str
    minor: int
    what: str
    tenant: _Tenant | None = None
    code: str = ""
    detail: str = ""


_Key = tuple[str, DeviceType, int]
_Seen = tuple[Mapping[_Key, _Tenant], Mapping[tuple[DeviceType, int], tuple[str, str]]]


class History:
    """The latest changes of all cards; `trend` is use and waiting pods over time."""

    def __init__(self, now: Callable[[], datetime], kept: int = KEPT) -> None:
        """No changes yet; the first look's state is no change. At most `kept` changes are kept."""
        self._now = now
        self._changes: deque[Change] = deque(maxlen=kept)
        self._seen: dict[str, _Seen] = {}
        self._ledger: Ledger | None = None
        self._at = 0
        self._begun: datetime | None = None
        self.trend = Trend()

    async def follow(
        self, books: Callable[[], Books | None], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        """Look once a second, without end, at the `books`, which are None before they are complete."""
        while True:
            found = books()
            if found is not None:
                try:
                    await self.look(found)
                except Exception:  # noqa: BLE001 # a picture of the past must not end the service
                    _LOG.exception("the history of cards has a gap")
            await sleep(_EVERY)

    async def look(self, books: Books) -> None:
        """Take in changes since the last look."""
        await self.trend.look(books, self._now())
        ledger = books.engine.ledger
        first = self._begun is None
        if first:
            self._begun = self._now()
        changed = ledger.changes.since(self._at) if ledger is self._ledger else None
        names = self._all(ledger) if changed is None else self._named(ledger, changed.copy())
        self._ledger, self._at = ledger, ledger.changes.count
        for number, name in enumerate(names, 1):
            self._compare(books, name, told=not first)
            if not number % _PIECE:
                await asyncio.sleep(0)

    def of(self, node: str, *, names: bool = True) -> dict[str, Any]:
        """The latest changes of a node's cards, newest first, and the time of the oldest kept; `names` names pods."""
        found: dict[str, list[dict[str, Any]]] = {}
        for change in reversed(self._changes):
            if change.node == node:
                rows = found.setdefault(f"{change.type} {change.minor}", [])
                if len(rows) < SHOWN:
                    rows.append(_document(change, names=names))
        return {"since": _time(self._begun) if self._begun else None, "cards": found}

    def _all(self, ledger: Ledger) -> list[str]:
        return list({**dict.fromkeys(self._seen), **dict.fromkeys(ledger.index)})

    def _named(self, ledger: Ledger, changed: Index) -> list[str]:
        found = [ledger.nodes[index] for index in distinct(changed)]
        gone = [name for name in self._seen if name not in ledger.index]
        return [*gone, *(node.name for node in found if node is not None)]

    def _compare(self, books: Books, name: str, *, told: bool) -> None:
        before = self._seen.get(name, ({}, {}))
        after = _state(books, name)
        if name in books.engine.ledger.index:
            self._seen[name] = after
        else:
            self._seen.pop(name, None)
        if told:
            self._changes.extend(self._differences(name, before, after))

    def _differences(self, name: str, before: _Seen, after: _Seen) -> Iterator[Change]:
        now = self._now()
        for what, some, others in (("given back", before, after), ("given", after, before)):
            for key, tenant in some[0].items():
                if others[0].get(key) != tenant:
                    yield Change(now, name, key[1].value, key[2], what, tenant)
        for card, why in before[1].items():
            if card not in after[1]:
                yield Change(now, name, card[0].value, card[1], "opened", None, *why)
        for card, why in after[1].items():
            if before[1].get(card) != why:
                yield Change(now, name, card[0].value, card[1], "closed", None, *why)


def _state(books: Books, name: str) -> _Seen:
    """The tenants of a node's cards, and the closed cards."""
    ledger = books.engine.ledger
    index = ledger.index.get(name)
    if index is None:
        return {}, {}
    tenants: dict[_Key, _Tenant] = {}
    for held in ledger.on_node(name):
        for charge in held.charges:
            protocols = sorted({g.protocol for g in held.grants if g.uuid == charge.uuid})
            tenants[held.uid, charge.type, charge.minor] = _Tenant(
                held.namespace,
                held.name,
                next(iter(protocols), ""),
                charge.core_milli,
                charge.memory_bytes,
                tuple(f"{one.profile} at {one.start}" for one in charge.instances),
            )
    closed = {
        (card.device.type, card.device.minor): (code, card.closed_detail)
        for type_, plane in ledger.planes.items()
        if not _FAULTY.isdisjoint(
            plane.closed[:, index].tolist()
        )  # nearly never, and each card is copied
        for card in ledger.cards(type_, index)
        if (code := closed_code(card))
    }
    return tenants, closed


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _document(change: Change, *, names: bool) -> dict[str, Any]:
    tenant = change.tenant
    return {
        "at": _time(change.at),
        "what": change.what,
        "namespace": tenant.namespace if tenant and names else None,
        "name": tenant.name if tenant and names else None,
        "protocol": tenant.protocol if tenant else "",
        "core_milli": tenant.core_milli if tenant else 0,
        "memory_bytes": tenant.memory_bytes if tenant else 0,
        "instances": list(tenant.instances) if tenant else [],
        "code": change.code,
        "detail": change.detail,
    }
