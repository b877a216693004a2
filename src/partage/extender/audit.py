"""Compares the books with the pods of the API server: nothing leaked, nothing missing.

A leaked entry is in the books, but no pod holds it. A missing entry is held by a pod, but the books have not counted
it. Both counts are 0 in a sound service. They leave out reservations whose Binding is on its way, and pods that the API
server has not yet reported as bound.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partage.extender.books import Books
from partage.model.allocation import Allocation
from partage.model.errors import InvalidDocument, LedgerError
from partage.scheduler.engine import State
from partage.scheduler.facts import fact_of
from partage.wire.documents import Document
from partage.wire.translation import PodEntry

_IN_FLIGHT: Final = (State.HELD, State.RESERVED, State.UNKNOWN)

_PODS: Final = 500
"""Pods that `doubtful` checks before other tasks get their turn."""

_TOLD: Final = 5
"""Pods that an audit with findings describes."""

_NODES: Final = 50
"""Nodes that `doubtful` checks before other tasks get their turn; a node takes longer than a pod."""

DIMENSIONS: Final = ("core_milli", "memory_bytes", "slots")
"""The amounts that an audit compares, in base units."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings of an audit.

    Attributes:
        leaked: units by dimension that the books hold and no pod holds.
        missing: units by dimension that a pod holds and the books do not hold.
        pods: uids of the pods with such units.
        broken: an invariant of the ledger that does not hold; empty if all hold.
        told: descriptions of some of these pods, by the books and by the API server.
    """

    leaked: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    pods: tuple[str, ...] = ()
    broken: str = ""
    told: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.pods and not self.broken


def audit(books: Books, pods: Iterable[Document] | None = None) -> Audit:
    """Compare the books with a fresh list of the API server's pods; None takes the newest known documents."""
    leaked: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    found: set[str] = set()
    expected = _expected(books, pods)
    for held in books.engine.ledger.allocations():
        seen = books.cluster_cache.pods.get(held.uid)
        unconfirmed = books.untold(held.uid) if seen is None else seen.pod.node is None
        if unconfirmed or books.engine.states.get(held.uid) in _IN_FLIGHT:
            expected.pop(held.uid, None)
            continue
        wanted = expected.pop(held.uid, None)
        if wanted is not None and (_same(wanted, held) or _nowhere(books, wanted, held)):
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
    uids = tuple(sorted(found))
    told = tuple(_told(books, uid) for uid in uids[:_TOLD])
    return Audit(dict(leaked), dict(missing), uids, broken, told)


async def doubtful(
    books: Books, pods: Callable[[], Sequence[Document]], others: Callable[[], Awaitable[None]]
) -> bool:
    """Whether an audit might find something. This function checks the same, a piece at a time.

    An audit of tens of thousands of pods takes a second or two, and nothing else runs meanwhile.
    A change between two pieces may raise a doubt that an audit does not confirm. It never hides a finding.

    Args:
        pods: gives the pods of the API server at the moment of the call.
        others: lets other tasks have their turn.
    """
    known = pods()
    facts = books.cluster_cache.claims.facts()
    for fact in facts:
        held = books.engine.ledger.allocation(fact.uid)
        if held is None or not _same(fact_of(fact)[0], held):
            return True
    claimed = {fact.uid for fact in facts}
    absent: set[str] = set()
    for start in range(0, len(known), _PODS):
        for document in known[start : start + _PODS]:
            entry = books.cluster_cache.taken_in(document)
            if entry is None and books.cluster_cache.translation.concerns(document):
                # The pod has changed or gone since the list was made, or it was never taken in.
                uid = document.metadata.uid or ""
                entry = books.cluster_cache.pods.get(uid)
                if entry is None:
                    absent.add(uid)
            if entry is not None and not _agrees(books, entry):
                return True
        await others()
    there = {document.metadata.uid or "" for document in pods()}
    if any(books.cluster_cache.pods.get(uid) is None for uid in absent & there):
        return True
    for held in books.engine.ledger.allocations():
        if held.uid in there or held.uid in claimed or books.untold(held.uid):
            continue
        if books.engine.states.get(held.uid) not in _IN_FLIGHT:
            return True
    nodes = list(books.engine.ledger.index)
    for start in range(0, len(nodes), _NODES):
        try:
            books.engine.ledger.validate(nodes[start : start + _NODES])
        except LedgerError:
            return True
        await others()
    return False


def _told(books: Books, uid: str) -> str:
    """A pod's state by the books and by the API server, for the log."""
    held, seen = books.engine.ledger.allocation(uid), books.cluster_cache.pods.get(uid)
    state = books.engine.states.get(uid)
    name = f"{held.namespace}/{held.name}" if held else seen.pod.key if seen else uid
    mine = f"{state or 'held'} on {held.node}" if held else f"{state or 'nothing'}"
    if books.engine.is_gone(uid):
        mine += ", and it is gone"
    if seen is None:
        theirs = "gone" if uid in books.cluster_cache.deleted else "not known"
    else:
        theirs = f"on {seen.pod.node}" if seen.pod.node else "without a node"
        theirs += ", finished" if seen.pod.finished else ""
    return f"{name}: in the ledger {mine}; by the API server {theirs}"


def _agrees(books: Books, entry: PodEntry) -> bool:
    pod = entry.pod
    held = books.engine.ledger.allocation(pod.uid)
    if pod.node is None:
        return True  # reserved, or bound and not reported yet
    if pod.finished:
        return held is None
    return held is not None and _same(fact_of(pod)[0], held)


def _expected(books: Books, pods: Iterable[Document] | None) -> dict[str, Allocation]:
    entries: Iterable[PodEntry] = books.cluster_cache.pods.values()
    if pods is not None:
        entries = _read(books, pods)
    bound = {
        entry.pod.uid: fact_of(entry.pod)[0]
        for entry in entries
        if entry.pod.node is not None and not entry.pod.finished
    }
    return bound | {fact.uid: fact_of(fact)[0] for fact in books.cluster_cache.claims.facts()}


def _read(books: Books, pods: Iterable[Document]) -> Iterable[PodEntry]:
    translation, ledger = books.cluster_cache.translation, books.engine.ledger
    for document in pods:
        known = books.cluster_cache.taken_in(document)
        if known is not None:
            yield known
            continue
        if not translation.concerns(document):
            continue
        try:
            entry = translation.read(document)
        except InvalidDocument:
            continue  # the cluster cache reports it, and the pod keeps its devices
        index = ledger.index.get(entry.pod.node or "")
        yield translation.with_record(entry, None if index is None else ledger.node_at(index))


def _same(one: Allocation, other: Allocation) -> bool:
    # Grants are compared first, because charges are sums.
    return one.node == other.node and (one.grants == other.grants or one.charges == other.charges)


def _nowhere(books: Books, one: Allocation, other: Allocation) -> bool:
    """Whether both are on the same node, and the ledger has no such node: nothing is taken or free on it.

    A record cannot be read without the node's devices. It is read again when the node is back.
    """
    return one.node == other.node and one.node not in books.engine.ledger.index


def _count(total: Counter[str], allocation: Allocation) -> None:
    for charge in allocation.charges:
        for dimension in DIMENSIONS:
            total[dimension] += getattr(charge, dimension)
