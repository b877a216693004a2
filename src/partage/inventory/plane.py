"""Columns of one device type: a row a card position, a column a node.

Nodes lie on the fast axis, so a kernel that asks every node one question reads memory in order; this layout is twelve
times faster. Free amounts are stored, not derived, and only the ledger writes them.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from partage.model.reason import ReasonCode

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Index = NDArray[np.intp]
Bools = NDArray[np.bool_]

T = TypeVar("T", bound=np.generic)

_AMOUNTS: Final = 9
_AT_A_TIME: Final = 2**21
"""Bytes of nodes that are compared at a time."""

STATE: Final = 6
"""The number of columns that decide between cards."""

ABSENT_KIND: Final = 0
"""Kind of a position that holds no card."""

CLOSED: Final = (
    None,
    ReasonCode.UNHEALTHY,
    ReasonCode.CORDONED,
    ReasonCode.QUARANTINED,
    ReasonCode.CARD_NOT_IDLE,
)
"""Why a card takes no pod, by its number in the column `closed`; 0 if it takes pods."""


def texts(columns: Sequence[Ints | Bools], nodes: Ints) -> Iterator[bytes]:
    """The columns' values of each of the nodes as bytes: equal for equal nodes.

    Only few are made at a time, so a node with very many cards needs little memory. `columns`: of shape (cards, nodes).
    """
    width = sum(column.shape[0] * column.itemsize for column in columns)
    many = max(1, _AT_A_TIME // max(width, 1))
    for begin in range(0, nodes.size, many):
        some = nodes[begin : begin + many]
        rows = [
            np.ascontiguousarray(column.take(some, axis=1).T).view(np.uint8) for column in columns
        ]
        text = np.concatenate(rows, axis=1).tobytes()
        for at in range(some.size):
            yield text[width * at : width * (at + 1)]


class Plane:
    """The columns of one device type; every array has shape (cards, nodes).

    Attributes:
        amounts: one array with all columns of integers, which are views of it, the first `STATE` in the order below.
        cards: positions for cards on each node.
        core_total: compute offered, milli.
        core_free: compute left, milli; negative only on an overbooked card.
        memory_total: memory offered, bytes.
        memory_free: memory left, bytes.
        slots_free: sharers it may still take, under the tightest limit of its tenants.
        tenants: sharers it has.
        slots_total: sharers the card may have by itself.
        open: whether it takes new pods at all.
        closed: why it takes none, as a position in `CLOSED`.
        kind: the kind of card (an index into `Ledger.kinds`); 0 for no card.
        cut: the set of instances on the card (an index into `Ledger.cuts`); 0 if no instance can be made.
        extras: native units by name: (total, free).
    """

    def __init__(self, cards: int, nodes: int) -> None:
        self.extras: dict[str, tuple[Ints, Ints]] = {}
        self.open: Bools = np.zeros((cards, nodes), np.bool_)
        self.closed: NDArray[np.int8] = np.zeros((cards, nodes), np.int8)
        self.lay_out(np.zeros((_AMOUNTS, cards, nodes), np.int64))

    def grow(self, cards: int, nodes: int) -> None:
        """Make room for at least these numbers of positions and nodes; existing values stay."""
        have = self.open.shape
        if cards <= have[0] and nodes <= have[1]:
            return
        wanted = (max(cards, have[0]), max(nodes, have[1]))
        self.open, self.closed = _grown(self.open, wanted), _grown(self.closed, wanted)
        for unit, (total, free) in self.extras.items():
            self.extras[unit] = (_grown(total, wanted), _grown(free, wanted))
        self.lay_out(_grown(self.amounts, wanted))

    def first(self, cards: int) -> "Plane":
        """A read-only view of the first positions; it ignores the others."""
        part = Plane(0, 0)
        part.extras = {unit: (t[:cards], f[:cards]) for unit, (t, f) in self.extras.items()}
        part.open, part.closed = self.open[:cards], self.closed[:cards]
        part.lay_out(self.amounts[:, :cards])
        return part

    def lay_out(self, columns: Ints) -> None:
        """Set the named columns as views of one array."""
        self.amounts, self.cards = columns, int(columns.shape[1])
        self.core_total, self.core_free, self.memory_total, self.memory_free = columns[:4]
        self.slots_free, self.tenants, self.slots_total, self.kind, self.cut = columns[4:]

    def totals(self, nodes: Ints) -> Iterator[bytes]:
        """The kinds and totals of the cards of each of the nodes, for comparison with other nodes."""
        columns = (self.core_total, self.memory_total, self.slots_total, self.kind)
        return texts(columns, nodes)

    def unit_columns(self, unit: str) -> tuple[Ints, Ints]:
        """Total and free columns of a native unit; zero for cards without it."""
        columns = self.extras.get(unit)
        if columns is None:
            columns = (np.zeros(self.open.shape, np.int64), np.zeros(self.open.shape, np.int64))
            self.extras[unit] = columns
        return columns

    def clear(self, node: int) -> None:
        """Forget every card of a node."""
        for columns in (self.amounts, self.open, self.closed):
            columns[..., node] = 0
        for unit, (total, free) in list(self.extras.items()):
            total[:, node] = 0
            free[:, node] = 0
            if not total.any() and not free.any():
                del self.extras[unit]  # a node may name another unit each time


def _grown(old: NDArray[T], wanted: tuple[int, int]) -> NDArray[T]:
    """A larger array with the same values in its corner."""
    new = np.zeros((*old.shape[:-2], *wanted), old.dtype)
    new[..., : old.shape[-2], : old.shape[-1]] = old
    return new
