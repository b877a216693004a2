"""The rules of `instances`, asked of every node at once.

For each card the ledger keeps a number that identifies its set of instances. The answer to a request is worked out once
for each number. After that, one look-up answers for all nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import structs

from partage.inventory.instances import Cuts
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.allocation import Grant
from partage.model.device import SliceMode
from partage.model.policy import Strategy
from partage.model.reason import ReasonCode
from partage.model.request import DeviceRequest, RequestGroup
from partage.placement import kernel
from partage.placement.instances import Place, most, places, sized
from partage.placement.kernel import Nodes, at
from partage.placement.reasons import RANK
from partage.placement.split import by_instance

ALIKE: Final = frozenset({Strategy.BINPACK, Strategy.SPREAD, Strategy.FIRST_FIT, Strategy.RANDOM})
"""Strategies that compare shares and instances by use. Others prefer shares, because these round nothing up, and
compare instances by their cost to the card."""

_COST: Final = 1 << 20
_MEMORY: Final = 1 << 9
_GIB: Final = 1 << 30
SHARES_FIRST: Final = 1 << 33
"""The advantage of a share over any instance, if shares are preferred."""


class InstanceTable:
    """One request's answers for cards, by the number of the card's set of instances."""

    def __init__(self, request: DeviceRequest) -> None:
        self._request = request
        self._asked = sized(request)
        self._forget()

    def _forget(self, cuts: Cuts | None = None) -> None:
        self._cuts = cuts
        self._room: Ints = np.zeros(1, np.int64)
        self._worth: Ints = np.zeros(1, np.int64)
        self._best: list[Place | None] = [None]

    def room(self, ledger: Ledger, suits: Bools, nodes: Nodes) -> Ints:
        """How many instances each card has room for, up to the number asked.

        Args:
            suits: the cards that it accepts (`kernel.suited` by instance), for `nodes`.
        """
        self._learn(ledger)
        plane = ledger.planes[self._request.type]
        room: Ints = np.where(suits, self._room[at(plane.cut, nodes)], 0)
        if self._request.unused and not self._request.exclusive:
            room[at(plane.tenants, nodes) > 0] = 0
        return room

    def worth(self, ledger: Ledger, suits: Bools, nodes: Nodes) -> Ints:
        """How good the best place on each node is, more is better; 0 if there is none.

        The least memory decides, then the least cost.
        """
        self._learn(ledger)
        plane = ledger.planes[self._request.type]
        worth: Ints = np.where(suits, self._worth[at(plane.cut, nodes)], 0).max(axis=0, initial=0)
        return worth

    def best(self, ledger: Ledger, numbers: Sequence[int]) -> tuple[int, Place] | None:
        """The best place on some cards, by their instances, with the card's position.

        It equals the first one that `instances.choices` tries for one instance.
        """
        self._learn(ledger)
        found: tuple[int, Place] | None = None
        least: tuple[int, ...] = ()
        for row, number in enumerate(numbers):
            place = self._best[number]
            if place is not None:
                key = (place.memory_bytes, place.core_milli, place.cost)
                if found is None or key < least:
                    found, least = (row, place), key
        return found

    def _learn(self, ledger: Ledger) -> None:
        if ledger.cuts is not self._cuts:  # the numbers are of another list
            self._forget(ledger.cuts)
        known = ledger.cuts.known
        if len(known) == self._room.size:
            return
        room, worth = self._room.tolist(), self._worth.tolist()
        # A card with only foreign instances has no tenant of ours, but it is in use.
        alone = self._request.unused and not self._request.exclusive
        for cut in known[len(room) :]:
            if cut is None:
                continue
            found = places(cut.cutting, cut.instances, self._asked)
            limit = 0 if alone and cut.instances else self._request.count
            room.append(most(cut.cutting, cut.instances, self._asked, limit))
            self._best.append(found[0] if found else None)
            if not found:
                worth.append(0)
                continue
            best = found[0]
            score = _MEMORY - 1 - min(best.memory_bytes // _GIB, _MEMORY - 2)
            worth.append(score * _COST + _COST - 1 - min(best.cost, _COST - 1))
        self._room, self._worth = np.array(room, np.int64), np.array(worth, np.int64)


@dataclass(frozen=True, slots=True)
class CutView:
    """One group's view of the cards that are cut into instances.

    Attributes:
        table: the request's answers for cards.
        suits: the cards that the request accepts regardless of their instances, for all nodes.
    """

    count: int
    table: InstanceTable
    suits: Bools

    def fits(self, ledger: Ledger, nodes: Nodes) -> Bools:
        """Nodes whose cards have room for all instances asked."""
        room = self.table.room(ledger, at(self.suits, nodes), nodes)
        enough: Bools = room.sum(axis=0) >= self.count
        return enough

    def choose(self, ledger: Ledger, group: RequestGroup, index: int) -> tuple[Grant, ...]:
        """The grant for one instance on a node, as `pod.place` gives it; empty if `pod.place` must be asked.

        For requests that `kernel.is_plain` passes, if no card of the node gives a share.
        """
        request, container = group.request, group.containers[0]
        if self.count != 1 or request.unused:
            return ()
        numbers = np.where(self.suits[:, index], ledger.planes[request.type].cut[:, index], 0)
        found = self.table.best(ledger, numbers.tolist())
        if found is None:
            return ()
        device = ledger.devices(request.type, index)[found[0]]
        grant = by_instance(group, device, found[1])
        return (structs.replace(grant, container=container.name, phase=container.phase),)

    def worth(self, ledger: Ledger, nodes: Nodes) -> Ints:
        """See `InstanceTable.worth`."""
        return self.table.worth(ledger, at(self.suits, nodes), nodes)


def pool_ranks(
    ledger: Ledger,
    request: DeviceRequest,
    protocol: str,
    ranks: kernel.Codes,
    judged: kernel.Judged,
    nodes: kernel.Nodes = slice(None),
) -> kernel.Codes:
    """Ranks of `kernel.classify` of some nodes, for a request that instances may also serve.

    The twin of `picks.pool_reason`, for many nodes. A card that takes no instance keeps its own rank. On a node without
    cards that can be cut, cards have the ranks for shares.
    """
    plane = ledger.planes[request.type]
    told = np.full_like(ranks, RANK[ReasonCode.MIG_PLACEMENT])
    cuts = kernel.at(plane.cut, nodes)
    if request.unused and not request.exclusive:
        # Foreign instances have no tenant here, but the card is in use.
        cut = np.array([one is not None and bool(one.instances) for one in ledger.cuts.known])
        used = (kernel.at(plane.tenants, nodes) > 0) | cut[cuts]
        told[used] = RANK[ReasonCode.CARD_NOT_IDLE]
    closed = cuts == 0
    told[closed] = RANK[ReasonCode.CARD_NOT_IDLE]
    kernel.shut(told, np.where(closed, kernel.at(plane.closed, nodes), 0).astype(np.int8))
    wrong = kernel.unsuited_anywhere(ledger, request, protocol, judged, by_instance=True)
    wrong = kernel.at(wrong, nodes)
    told = np.where(wrong < kernel.FITS, wrong, told)
    modes = np.array(
        [card is not None and card.mode is not SliceMode.SHARE for card in ledger.kinds]
    )
    shared = ~modes[kernel.at(plane.kind, nodes)].any(axis=0)
    by_share = (ranks < 0) | (ranks == kernel.FITS) | shared
    by_share |= told == RANK[ReasonCode.MODE_MISMATCH]
    result: kernel.Codes = np.where(by_share, ranks, told)
    return result


def cut_views(ledger: Ledger, groups: Sequence[RequestGroup]) -> list[CutView | None]:
    """A view for each group that instances may serve, on books with cards that are cut; empty if there is none."""
    if not any(group.request.instances for group in groups):
        return []
    judged: kernel.Judged = {}

    def suits(group: RequestGroup) -> Bools:
        request, protocol = group.request, group.protocol
        wrong = kernel.unsuited_anywhere(ledger, request, protocol, judged, by_instance=True)
        suited: Bools = wrong == kernel.FITS
        return suited

    return [
        CutView(group.request.count, InstanceTable(group.request), suits(group))
        if group.request.instances
        else None
        for group in groups
    ]
