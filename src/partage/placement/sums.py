"""The sum of all groups of a pod, asked of every node at once before any search.

Each check is necessary, never sufficient: a node that fails one cannot host the pod, whichever cards are chosen.
Containers with equal requests are one kind here, so the cost grows with the number of different requests, not with the
number of containers.

Init containers and requests for all devices of a type are left out. A card that may serve by instances is left out too:
its node always passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from partage.inventory.card import CEILING
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints, Plane
from partage.model.request import DeviceRequest, Kind
from partage.placement.kernel import Nodes, at, needs

_MOST_SUBSETS: Final = 6
"""The most sets of kinds that are compared with the room of the cards, in each order."""
_DIVIDED: Final = 2**10
"""Above this many groups amounts are divided, because their products with a card's memory would overflow."""
_WIDE: Final = 2**40
"""More than any card has: for nodes without a card that serves, which have failed already."""


def room_together(
    ledger: Ledger, kinds: Sequence[Kind], fits: Sequence[Bools], nodes: Nodes
) -> Bools:
    """Nodes whose cards may have room for all groups that run at the same time.

    Args:
        fits: for each kind, the cards that serve one of it; shape (cards, nodes).
    """
    room: Bools = np.ones(ledger.present[nodes].shape, np.bool_)
    for type_ in {kind.request.type for kind in kinds}:
        mine = [
            (kind, cards)
            for kind, cards in zip(kinds, fits, strict=True)
            if kind.request.type is type_ and kind.copies and not kind.request.every
        ]
        if sum(kind.copies for kind, _ in mine) > 1:
            room &= _of_type(ledger, ledger.planes[type_], mine, nodes)
    if ledger.cut_nodes and any(kind.request.instances for kind in kinds):
        cut = np.zeros(ledger.present.shape, np.bool_)
        cut[list(ledger.cut_nodes)] = True
        room |= cut[nodes]
    return room


def _of_type(
    ledger: Ledger, plane: Plane, mine: Sequence[tuple[Kind, Bools]], nodes: Nodes
) -> Bools:
    taken = [_taken(plane, kind.request, cards, nodes) for kind, cards in mine]
    any_card = np.logical_or.reduce([cards for _, cards in mine])
    core_free, memory_free = at(plane.core_free, nodes), at(plane.memory_free, nodes)
    room: Bools = np.ones(any_card.shape[1], np.bool_)
    # 1. Sums of all groups against the free amounts, in each dimension.
    for free, which in ((core_free, 0), (memory_free, 1)):
        total = sum(
            least[which] * (kind.copies * kind.request.count)
            for (kind, _), least in zip(mine, taken, strict=True)
        )
        room &= np.where(any_card, np.maximum(free, 0), 0).sum(axis=0) >= total
    units: dict[str, int] = {}
    for kind, _ in mine:
        for unit, amount in () if kind.request.whole else kind.request.extras:
            many = kind.copies * kind.request.count
            units[unit] = units.get(unit, 0) + min(amount, CEILING) * many
    for unit, asked in units.items():
        free = at(plane.unit_columns(unit)[1], nodes)
        room &= np.where(any_card, np.maximum(free, 0), 0).sum(axis=0) >= min(asked, 2**62)
    # 2. Each card serves only so many of the groups above a size. Only the remaining nodes are asked.
    if room.any():
        left = slice(None) if room.all() else np.flatnonzero(room)
        room[left] = _by_size(ledger, plane, mine, taken, left, nodes)
    return room


def _by_size(
    ledger: Ledger,
    plane: Plane,
    mine: Sequence[tuple[Kind, Bools]],
    taken: Sequence[tuple[Ints | int, Ints | int]],
    left: Nodes,
    nodes: Nodes,
) -> Bools:
    """The given nodes whose cards serve as many groups of each size as there are.

    Args:
        mine: the kinds that ask for it, and the cards that serve them; shape (cards, nodes).
        taken: the least that each takes.
        left: positions of the nodes of the question, among `nodes`.
        nodes: the nodes of `mine`'s columns.
    """
    columns = plane.core_free, plane.memory_free, plane.slots_free, plane.tenants
    core_free, memory_free, slots, tenants = (at(at(column, nodes), left) for column in columns)
    free = np.maximum(core_free, 0), np.maximum(memory_free, 0), np.maximum(slots, 0), tenants
    least = [(_of(core, left), _of(memory, left)) for core, memory in taken]
    limits = [
        None if kind.request.registrar in ledger.registrars else kind.request.sharers
        for kind, _ in mine
    ]
    room: Bools = np.ones(tenants.shape[1], np.bool_)
    for which in (0, 1):
        order = sorted(range(len(mine)), key=lambda i: _size(mine[i][0].request, which))[::-1]
        ends = sorted(
            {len(order), *np.linspace(1, len(order), _MOST_SUBSETS).astype(int).tolist()}
        )
        begin, so_far = 0, _Subset(np.zeros(tenants.shape, np.bool_), _WIDE, _WIDE)
        for end in ends:
            if not room.any():
                return room
            for i in order[begin:end]:
                kind, cards = mine[i]
                so_far.add((kind, at(cards, left)), least[i], limits[i])
            begin = end
            room &= _enough(so_far, free)
    return room


def _of(amount: Ints | int, left: Nodes) -> Ints | int:
    """An amount, common to all nodes or one per node, for some nodes."""
    return amount if isinstance(amount, int) else amount[left]


@dataclass(slots=True)
class _Subset:
    """Common properties of the largest groups of a pod.

    Attributes:
        cards: those that serve any of them; shape (cards, nodes).
        core: the least compute that any takes, for all nodes or by node.
        memory: the same of memory.
        groups: how many there are.
        asked: cards that they ask for.
        most: the most tenants of a card that any allows; None if one has no such limit.
        alone: each needs its cards alone.
    """

    cards: Bools
    core: Ints | int
    memory: Ints | int
    groups: int = 0
    asked: int = 0
    most: int | None = 0
    alone: bool = True

    def add(
        self, one: tuple[Kind, Bools], taken: tuple[Ints | int, Ints | int], limit: int | None
    ) -> None:
        """Add one more kind."""
        kind, cards = one
        self.cards |= cards
        self.core, self.memory = _less(self.core, taken[0]), _less(self.memory, taken[1])
        self.groups += kind.copies
        self.asked += kind.copies * kind.request.count
        self.most = None if limit is None or self.most is None else max(self.most, limit)
        self.alone = self.alone and (kind.request.whole or kind.request.exclusive)


def _less(one: Ints | int, other: Ints | int) -> Ints | int:
    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    found: Ints = np.minimum(one, other)
    return found


def _size(request: DeviceRequest, which: int) -> tuple[int, int]:
    """A request's size on a card, for comparison with others of the pod."""
    if which == 0:
        return int(request.whole), request.core_milli
    return int(request.whole), request.memory_bytes or request.memory_milli


def _taken(
    plane: Plane, request: DeviceRequest, cards: Bools, nodes: Nodes
) -> tuple[Ints | int, Ints | int]:
    """The least compute and memory that the request takes of any card that serves it, by node."""
    core, memory = needs(plane, request, nodes)

    def least(amount: Ints | int) -> Ints | int:
        if isinstance(amount, int | np.integer):
            return int(amount)  # nodes without a card that serves have failed already
        found: Ints = np.where(cards, amount, _WIDE).min(axis=0, initial=_WIDE)
        return found

    return least(core), least(memory)


def _at_most(serves: Ints, left: Ints, least: Ints | int, groups: int) -> Ints:
    """The smaller of `serves` and of how often `least` fits into the free amount; a `least` of 0 does not limit.

    Most cards have enough for all, and a product shows that in a tenth of the time of a division.
    """
    if isinstance(least, int):
        least = np.array([least])
    if groups > _DIVIDED:
        fewer: Ints = np.where(least > 0, np.minimum(serves, left // np.maximum(least, 1)), serves)
        return fewer
    short = left < serves * least
    if short.any():
        serves[short] = left[short] // np.broadcast_to(least, left.shape)[short]
    return serves


def _enough(subset: _Subset, free: tuple[Ints, Ints, Ints, Ints]) -> Bools:
    """Nodes whose cards would serve all groups if each were as small as the smallest.

    A card serves a group only once, because a group needs different cards.

    Args:
        free: compute, memory and slots left of each card, none below 0, and its tenants; shape (cards, nodes).
    """
    core_free, memory_free, slots, tenants = free
    serves = np.minimum(slots, subset.groups)
    if subset.most is not None:
        serves = np.minimum(serves, np.maximum(subset.most - tenants, 0))
    for left, least in ((core_free, subset.core), (memory_free, subset.memory)):
        serves = _at_most(serves, left, least, subset.groups)
    if subset.alone:
        serves = np.minimum(serves, 1)
    enough: Bools = np.where(subset.cards, serves, 0).sum(axis=0) >= subset.asked
    return enough
