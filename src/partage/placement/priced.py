"""The default strategy with learnt prices: place where the node loses least value.

At one pair of prices for CPU and memory, a node is worth the cost of its free CPU and memory plus the worth of its
cards' remainders (see `prices`). Its value is the least over all pairs. The loss is rounded to bins, so near-equal
places are equal; among those the fullest node wins, then the tightest card, then the order of nodes. Prices consider
only compute: card memory decides what fits, not what is better.

Sums are made card after card and pair after pair, so a node scored alone gets the same bits as one scored among many.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from partage.inventory.columns import UNCHECKED
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Floats, Index, Ints
from partage.model.device import MILLI, DeviceType
from partage.model.request import DeviceRequest
from partage.placement.baselines import demand, left_of
from partage.placement.incremental_columns import CardScores
from partage.placement.kernel import Nodes
from partage.placement.slot_reservation import Guard
from partage.placement.tables import UNITS, Prices

TIER: Final = 2**33
"""Added to every score, so that a place to keep free can fall below all others."""

_BIN: Final = 15.0  # milli of loss that count as equal
_OFFSET: Final = 128  # bins; a placement can raise the value of a node a little
_MOST_BIN: Final = 2**10 - 1
_MOST_NODE: Final = 2**13 - 1  # milli left on a node that are distinguished
_MOST_CARD: Final = 2**10 - 1
_PLENTY: Final = 1e6  # cores and GiB of nodes that do not report them
_SETS: Final = 20.0  # milli a card for a full set of idle cards, at full demand for sets
SCARCE: Final = 0.1
"""Milli lost for each milli taken of a model whose demand equals its supply."""
_MIB: Final = 2**20


class PriceGauge(CardScores):
    """Value of every node, updated with the ledger; shared by all classes.

    Everything in it follows from the ledger and the prices.

    Attributes:
        left: compute left by card and node, milli.
        total: the same by node.
        idle: untouched cards by node.
        model: row of the card's model in the prices, by card and node.
        sums: worth of all cards of a node, by node and pair of prices.
        value: total of the node.
        guard: slots of reserves.
        worth, scarcity: as in the prices, with one more row for unknown models.
        bonus: the worth of keeping so many untouched cards together.
        row: row of the model, by kind of card.
        milli: compute left in the cluster.
    """

    least = TIER

    def __init__(self, prices: Prices, ledger: Ledger) -> None:
        self.prices = prices
        # The last row is for models that are not in the prices: they are worth their compute.
        models, units, pairs = prices.worth.shape
        self.worth: Floats = np.zeros((models + 1, units, pairs))
        self.worth[:models] = prices.worth
        self.worth[models] = (MILLI / UNITS * np.arange(units))[:, None]
        self.scarcity: Floats = np.append(prices.scarcity, 0.0)
        super().__init__(ledger)

    def flags(
        self, host: Mapping[str, int], request: DeviceRequest | None, nodes: Nodes, scores: Ints
    ) -> Ints:
        """For each node, a bit for each reserve that loses a slot by the best-scored place."""
        index = np.arange(self.total.shape[0])[nodes]
        count, milli = demand(request)
        idle = self.idle[index] - count
        if request is not None and not request.whole:
            rest = (2 * TIER - 1 - scores) & _MOST_CARD  # on the best-scored card
            idle = self.idle[index] - ((rest < MILLI) & (rest + milli >= MILLI))
        cpu, memory = (
            self.ledger.host_free[name][index] - host.get(name, 0) for name in ("cpu", "memory")
        )
        return self.guard.flags(host, count, index, (cpu, memory, idle, self.model[0, index]))

    def offer(self, value: Ints, flags: Ints, step: int) -> Ints:
        """The values; those of places that take a slot from a short reserve are reduced by `step`."""
        tight = self.tight()
        return np.where(flags & tight, value - step, value) if tight else value

    def best(self, value: Ints, flags: Ints, step: int) -> int:
        """The first node with the highest offer, -1 if all are below 0."""
        offer = self.offer(value, flags, step)
        index = int(offer.argmax())
        return index if offer[index] >= 0 else -1

    def tight(self) -> int:
        """A bit for each reserve that is short; see `Guard`."""
        self.refresh()
        return self.guard.tight(self.milli)

    def allocate(self) -> None:
        """Make room for the nodes and cards in the books."""
        ledger = self.ledger
        cards, size = ledger.planes[DeviceType.GPU].open.shape
        known = {name: row for row, name in enumerate(self.prices.models)}
        self.row = np.array([known.get(name, len(known)) for name in ledger.models], np.intp)
        self.bonus: Floats = set_bonus(self.prices, cards)
        self.left: Ints = np.zeros((size, cards), np.int64).T  # cards of a node lie together
        self.total: Ints = np.zeros(size, np.int64)
        self.idle: Ints = np.zeros(size, np.int64)
        self.model: Index = np.zeros((size, cards), np.intp).T
        self.sums: Floats = np.zeros((size, self.prices.pairs.shape[0]))
        self.value: Floats = np.zeros(size)
        self.guard = Guard(self.prices, size)
        self.milli = 0

    def write(self, nodes: Index) -> None:
        """Write the columns of some nodes, each once."""
        plane = self.ledger.planes[DeviceType.GPU]
        left = np.maximum(left_of(plane, nodes), 0)
        model = self.row[plane.kind[:, nodes]]
        sums = np.zeros((nodes.size, self.sums.shape[1]))
        for card in range(left.shape[0]):
            sums += self.worth[model[card], _units(left[card])]
        self.left[:, nodes] = left
        total = left.sum(axis=0)
        self.milli += int((total - self.total[nodes]).sum())
        self.total[nodes] = total
        self.idle[nodes] = (left >= MILLI).sum(axis=0)
        self.model[:, nodes] = model
        self.sums[nodes] = sums
        self.value[nodes] = self._least({}, nodes, sums)
        cpu, memory = (self.ledger.host_free[name][nodes] for name in ("cpu", "memory"))
        self.guard.write(nodes, cpu, memory, self.idle[nodes], model[0])

    def _least(self, host: Mapping[str, int], nodes: Index, sums: Floats) -> Floats:
        """Value of nodes after `host` is taken off them."""
        cores = self._told("cpu", host, nodes, 1000)
        gib = self._told("memory", host, nodes, 1024 * _MIB)
        pairs = self.prices.pairs
        terms = pairs[:, 0] * cores[:, None] + pairs[:, 1] * gib[:, None]
        terms += sums
        result: Floats = terms.min(axis=1)
        return result

    def _told(self, name: str, host: Mapping[str, int], nodes: Index, unit: int) -> Floats:
        free = self.ledger.host_free[name][nodes]
        told: Floats = (free - host.get(name, 0)) / unit
        # Half the mark, because the pods' requests are already subtracted from it.
        return np.where(free >= UNCHECKED // 2, _PLENTY, told)

    def codes(self, nodes: Index | int) -> Ints:
        """Cards of one model with as much left score the same."""
        codes: Ints = self.left[:, nodes] * self.worth.shape[0] + self.model[:, nodes]
        return codes

    def settled(
        self, host: Mapping[str, int], nodes: Index, count: int, fits: Bools | None
    ) -> Ints:
        """Scores of whole cards, or of a pod without cards."""
        if fits is None or not count:
            count, model = 0, np.zeros(nodes.size, np.intp)
        else:
            model = self.model[fits.argmax(axis=0), nodes]
        change = count * (self.worth[model, 0] - self.worth[model, UNITS])
        loss = self.value[nodes] - self._least(host, nodes, self.sums[nodes] + change)
        if count:
            idle = self.idle[nodes]
            loss += SCARCE * self.scarcity[model] * (count * MILLI)
            loss += self.bonus[idle] - self.bonus[np.maximum(idle - count, 0)]
        rest = np.maximum(self.total[nodes] - count * MILLI, 0)
        return packed(loss, rest, np.zeros(nodes.size, np.int64))

    def shared(
        self, host: Mapping[str, int], nodes: Index, codes: Ints, asked: tuple[int, int]
    ) -> Ints:
        """Scores of taking a share of a card."""
        (count, milli), (card, model) = asked, np.divmod(codes, self.worth.shape[0])
        rest = np.maximum(card - milli, 0)
        change = self.worth[model, _units(rest)] - self.worth[model, _units(card)]
        loss = self.value[nodes] - self._least(host, nodes, self.sums[nodes] + change)
        loss += SCARCE * self.scarcity[model] * (count * milli)
        idle = self.idle[nodes]
        taken = (card >= MILLI) & (rest < MILLI)
        loss += self.bonus[idle] - self.bonus[np.maximum(idle - taken, 0)]
        return packed(loss, np.maximum(self.total[nodes] - count * milli, 0), rest)


def told(ledger: Ledger, host: Mapping[str, int], index: int) -> tuple[float, float]:
    """Cores and GiB that a node has left after `host` is taken off it."""
    cpu, memory = int(ledger.host_free["cpu"][index]), int(ledger.host_free["memory"][index])
    cores = (cpu - host.get("cpu", 0)) / 1000
    gib = (memory - host.get("memory", 0)) / (1024 * _MIB)
    unknown = UNCHECKED // 2
    return _PLENTY if cpu >= unknown else cores, _PLENTY if memory >= unknown else gib


def _units(left: Ints) -> Ints:
    return np.minimum(left * UNITS // MILLI, UNITS)


def packed(loss: Floats, node: Ints, card: Ints) -> Ints:
    """One number for the loss in bins, then the free amounts of the node and of the card."""
    bins = np.floor(loss / _BIN + 0.5).astype(np.int64) + _OFFSET
    key = np.clip(bins, 0, _MOST_BIN) << 23
    key |= np.minimum(node, _MOST_NODE) << 10
    key |= np.minimum(card, _MOST_CARD)
    result: Ints = TIER + (TIER - 1 - key)
    return result


def set_bonus(prices: Prices, cards: int) -> Floats:
    """The worth of 0 to `cards` idle cards of one node as sets, milli."""
    return np.array(
        [_SETS * sum(part * b * (f // b) for b, part in prices.sets) for f in range(cards + 1)]
    )
