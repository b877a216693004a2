"""Whether the books hold what the API server says that pods hold: nothing leaked, nothing missing.

Leaked is what the books keep and no pod holds any more; missing is what a pod holds and the books
have not counted. Both are 0 in a sound service. Reservations whose Binding is on its way are
neither, nor are pods of which the API server has not told yet that they are bound.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from partage.extender.books import Books
from partage.extender.translation import PodEntry
from partage.model.allocation import Allocation
from partage.model.errors import InvalidDocument, LedgerError
from partage.scheduler.engine import State, fact_of
from partage.wire.documents import Document

__all__ = ["DIMENSIONS", "Audit", "audit"]

DIMENSIONS: Final = ("core_milli", "memory_bytes", "slots")
"""What is counted, in base units."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    Attributes:
        leaked: units by dimension that the books hold and no pod does.
        missing: units by dimension that a pod holds and the books do not.
        pods: the pods behind these, by uid.
        broken: a law of the ledger that does not hold; empty when all do.
    """

    leaked: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    pods: tuple[str, ...] = ()
    broken: str = ""

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.pods and not self.broken


def audit(books: Books, pods: Iterable[Document] | None = None) -> Audit:
    """Compare the books with pods.

    Args:
        books: the books.
        pods: a fresh list of the API server; None takes the pods as they were last seen.
    """
    leaked: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    found: set[str] = set()
    expected = _expected(books, pods)
    in_flight = (State.HELD, State.RESERVED, State.UNKNOWN)
    for held in books.engine.ledger.allocations():
        seen = books.intake.pod(held.uid)
        unconfirmed = seen is not None and seen.pod.node is None
        if unconfirmed or books.engine.states.get(held.uid) in in_flight:
            expected.pop(held.uid, None)
            continue
        wanted = expected.pop(held.uid, None)
        if wanted is not None and _same(wanted, held):
            continue
        found.add(held.uid)
        _count(leaked, held)
        if wanted is not None:
            _count(missing, wanted)
    for wanted in expected.values():
        found.add(wanted.uid)
        _count(missing, wanted)
    broken = ""
    try:
        books.engine.ledger.validate()
    except LedgerError as error:
        broken = str(error)
    return Audit(dict(leaked), dict(missing), tuple(sorted(found)), broken)


def _expected(books: Books, pods: Iterable[Document] | None) -> dict[str, Allocation]:
    entries: Iterable[PodEntry] = books.intake.pods().values()
    if pods is not None:
        entries = _read(books, pods)
    return {
        entry.pod.uid: fact_of(entry.pod)[0]
        for entry in entries
        if entry.pod.node is not None and not entry.pod.finished
    }


def _read(books: Books, pods: Iterable[Document]) -> Iterable[PodEntry]:
    translation, ledger = books.intake.translation, books.engine.ledger
    for document in pods:
        if not translation.concerns(document):
            continue
        try:
            entry = translation.read(document)
        except InvalidDocument:
            continue  # told by the intake; what it held stays booked
        index = ledger.index.get(entry.pod.node or "")
        yield translation.with_record(entry, None if index is None else ledger.node_at(index))


def _same(one: Allocation, other: Allocation) -> bool:
    return one.node == other.node and one.charges == other.charges


def _count(total: Counter[str], allocation: Allocation) -> None:
    for charge in allocation.charges:
        for dimension in DIMENSIONS:
            total[dimension] += getattr(charge, dimension)
