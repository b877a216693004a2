"""One try at all groups of a pod, the largest first, each with its first choice, for every node at once.

If a search needs more work than a decision may take, this module reports which nodes take the pod without a search. It
is a hint: requests that are bound to a scope, a partition or other devices are judged by amounts alone, and `pod.place`
decides. For all other requests both agree (a law under test).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from partage.inventory.card import CEILING
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints, Plane, texts
from partage.model.device import MILLI, DeviceType
from partage.model.policy import Strategy
from partage.model.request import DeviceRequest, Kind
from partage.placement.kernel import Nodes, at, claims_core, most_tenants, needs, slots_of

_USUAL: Final = 2**36
"""Memory of a card, in bytes, for the comparison of memory with compute to find the largest group."""

_MILLION: Final = 1_000_000
_LAST: Final = 2**62


def largest_first(request: DeviceRequest) -> tuple[int, ...]:
    """The key that sorts a pod's groups, the largest first."""
    memory = request.memory_milli or request.memory_bytes * MILLI // _USUAL
    return -int(request.whole), -request.count, -max(request.core_milli, memory)


def roomiest(request: DeviceRequest) -> Strategy:
    """The strategy between cards that leaves most room for other groups of the same pod.

    A group on one card takes the card with least left afterwards. A group on several cards takes the cards with most
    left, because groups of several cards run out of different cards first.
    """
    return Strategy.PARTAGE if request.count == 1 else Strategy.SPREAD


@dataclass(slots=True)
class _Left:
    """The free amounts of one type's cards, while groups take their parts; shape (cards, nodes)."""

    ledger: Ledger
    plane: Plane
    nodes: Nodes
    core: Ints
    memory: Ints
    slots: Ints
    tenants: Ints
    units: dict[str, Ints] = field(default_factory=dict)

    @staticmethod
    def of(ledger: Ledger, type_: DeviceType, nodes: Nodes) -> "_Left":
        plane = ledger.planes[type_]
        columns = plane.core_free, plane.memory_free, plane.slots_free, plane.tenants
        core, memory, slots, tenants = (at(column, nodes).copy() for column in columns)
        return _Left(ledger, plane, nodes, core, memory, slots, tenants)

    def unit(self, name: str) -> Ints:
        """The free amount of a native unit."""
        if name not in self.units:
            self.units[name] = at(self.plane.unit_columns(name)[1], self.nodes).copy()
        return self.units[name]

    def take(self, request: DeviceRequest, suits: Bools) -> Bools:
        """Let a group take its first choice; returns the nodes that have one."""
        plane, nodes = self.plane, self.nodes
        limit = most_tenants(self.ledger, plane, request, nodes)
        slots = slots_of(self.ledger, plane, request, nodes)
        fits = suits & at(plane.open, nodes) & (self.slots >= slots)
        if request.whole or request.unused or request.exclusive:
            fits &= self.tenants == 0
        total = at(plane.core_total, nodes), at(plane.memory_total, nodes)
        core, memory = needs(plane, request, nodes)
        fits &= self.memory >= memory
        if not request.whole:
            fits &= self.core >= core
            if claims_core(request):
                fits &= self.core > 0
            if limit is not None:
                fits &= self.tenants <= limit - slots
        for unit, amount in request.extras:
            fits &= self.unit(unit) >= amount
        chosen = _first(request, fits, self._order(request, (core, memory), total))
        self.core -= np.where(chosen, core, 0)
        self.memory -= np.where(chosen, memory, 0)
        after = self.slots - slots
        if request.whole:
            after = np.minimum(after, 0)
        elif limit is not None:
            after = np.minimum(after, limit - self.tenants - slots)
        self.slots = np.where(chosen, after, self.slots)
        self.tenants += np.where(chosen, slots, 0)
        for unit, amount in () if request.whole else request.extras:
            self.unit(unit)[chosen] -= min(amount, CEILING)
        found: Bools = chosen.sum(axis=0) == request.count
        return found

    def _order(
        self,
        request: DeviceRequest,
        asked: tuple[Ints | int, Ints | int],
        total: tuple[Ints, Ints],
    ) -> Ints:
        """The lower, the better, as in `order.ordered`."""
        if request.count > 1:
            used = (
                have - left for have, left in zip(total, (self.core, self.memory), strict=True)
            )
            shares = (
                np.where(have > 0, part * _MILLION // np.maximum(have, 1), 0)
                for part, have in zip(used, total, strict=True)
            )
            spread: Ints = sum(shares, np.zeros_like(total[0]))
            return spread
        if request.whole:
            return total[1]
        spare = (self.memory - asked[1]) * MILLI // np.maximum(total[1], 1)
        tight: Ints = self.core - asked[0] + np.where(total[1] > 0, spare, 0)
        return tight


def _first(request: DeviceRequest, fits: Bools, order: Ints) -> Bools:
    """The first fitting cards, as many as are asked; none if too few fit."""
    order = np.where(fits, order, _LAST)
    chosen = np.zeros(fits.shape, np.bool_)
    everywhere = np.arange(fits.shape[1])
    for _ in range(min(request.count, fits.shape[0])):
        best = order.argmin(axis=0)
        chosen[best, everywhere] = order[best, everywhere] < _LAST
        order[best, everywhere] = _LAST
    enough = fits.sum(axis=0) >= request.count
    chosen &= enough
    return chosen


def taking_all(
    ledger: Ledger, kinds: Sequence[Kind], suits: Sequence[Bools], nodes: Ints
) -> Bools:
    """Nodes on which all groups that run at the same time find cards at the first try.

    Args:
        suits: for each kind, the cards that it accepts; shape (cards, nodes of the ledger).
    """
    nodes, like = _distinct(ledger, kinds, suits, nodes)
    found: Bools = np.ones(nodes.size, np.bool_)
    left: dict[DeviceType, _Left] = {}
    numbered = sorted(range(len(kinds)), key=lambda i: largest_first(kinds[i].request))
    for number in numbered:
        kind = kinds[number]
        type_ = kind.request.type
        if type_ not in left:
            left[type_] = _Left.of(ledger, type_, nodes)
        right = at(suits[number], nodes)
        for _ in range(0 if kind.request.every else kind.copies):
            found &= left[type_].take(kind.request, right)
    return found[like]


def _distinct(
    ledger: Ledger, kinds: Sequence[Kind], suits: Sequence[Bools], nodes: Ints
) -> tuple[Ints, Ints]:
    """One node of each set of nodes that are equal for this question; and for each node, the position of its one."""
    columns: list[Ints | Bools] = [*{id(one): one for one in suits}.values()]
    for type_ in {kind.request.type for kind in kinds}:
        plane = ledger.planes[type_]
        columns += [*plane.amounts, plane.open]
        units = {unit for kind in kinds for unit, _ in kind.request.extras}
        columns += [column for unit in sorted(units) for column in plane.unit_columns(unit)]
    first: dict[bytes, int] = {}
    told = texts(columns, nodes)
    like = np.array([first.setdefault(text, len(first)) for text in told], np.intp)
    return nodes[np.unique(like, return_index=True)[1]], like
