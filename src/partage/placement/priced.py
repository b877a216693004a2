"""The default strategy once it has learnt prices: place where the node loses least value.

A node's value is the least, over pairs of prices for CPU and memory, of what its free CPU and
memory cost plus what the remainders of its cards are worth at those prices (see `prices`). The
loss is rounded to bins, so that near-equal places are equal; among those the fullest node wins,
then the tightest card, then the order of nodes. Prices look at compute only: card memory decides
what fits, not what is better.

Sums are made card after card and pair after pair: a node scored alone gets the same bits as one
scored among many.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from partage.inventory.ledger import UNCHECKED, Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.device import MILLI, DeviceType
from partage.model.request import DeviceRequest
from partage.placement.baselines import demand, left_of
from partage.placement.fragmentation import Index
from partage.placement.guard import Guard
from partage.placement.kernel import Nodes
from partage.placement.tables import UNITS, Floats, Prices

__all__ = ["TIER", "PriceGauge"]

TIER: Final = 2**33
"""Added to every score, so that a place that is better kept free can fall below all others."""

_BIN: Final = 15.0  # milli of loss that count as equal
_OFFSET: Final = 128  # bins; a placement can raise the value of a node a little
_MOST_BIN: Final = 2**10 - 1
_MOST_NODE: Final = 2**13 - 1  # milli left on a node that are told apart
_MOST_CARD: Final = 2**10 - 1
_PLENTY: Final = 1e6  # cores and GiB of nodes that do not tell
_SETS: Final = 20.0  # milli a card for a full set of idle cards, at full demand for sets
_SCARCE: Final = 0.1
_MIB: Final = 2**20


class PriceGauge:
    """Value of every node, kept up to date with the ledger; shared by all classes.

    It holds nothing that does not follow from the ledger and the prices.

    Attributes:
        prices: in force.
        left: compute left by card and node, milli.
        total: the same by node.
        idle: untouched cards by node.
    """

    def __init__(self, prices: Prices, ledger: Ledger) -> None:
        self.prices = prices
        self.ledger = ledger
        self._seen = self._seen_nodes = 0
        # The last row is for models that the prices do not know: worth their compute.
        models, units, pairs = prices.worth.shape
        self._worth: Floats = np.zeros((models + 1, units, pairs))
        self._worth[:models] = prices.worth
        self._worth[models] = (MILLI / UNITS * np.arange(units))[:, None]
        self._scarcity: Floats = np.append(prices.scarcity, 0.0)
        self._load()

    def refresh(self) -> None:
        """Bring the columns up to date with the ledger."""
        ledger = self.ledger
        if self._seen_nodes != len(ledger.node_changes) or self._seen > len(ledger.changes):
            self._load()
        elif self._seen < len(ledger.changes):
            changed = np.array(sorted(set(ledger.changes[self._seen :])), np.intp)
            self._seen = len(ledger.changes)
            self._write(changed)

    def node_scores(
        self, host: Mapping[str, int], request: DeviceRequest | None, fits: Bools | None,
        nodes: Nodes,
    ) -> Ints:  # fmt: skip
        """Scores from `TIER` up to twice that: of each node the best of its places."""
        index = np.arange(self.total.shape[0])[nodes]
        count, milli = demand(request)
        if request is None or fits is None or not count:
            return self._settled(host, index, 0, np.zeros(index.size, np.intp))
        if request.whole:
            model = self._model[fits.argmax(axis=0), index]
            return self._settled(host, index, count, model)
        # Cards of one node and model with as much left score the same: one of them will do.
        codes = self.left[:, index] * self._worth.shape[0] + self._model[:, index]
        ordered = np.sort(np.where(fits, codes, -1), axis=0)
        fresh = ordered >= 0
        fresh[1:] &= ordered[1:] != ordered[:-1]
        row, column = np.nonzero(fresh)
        left, model = np.divmod(ordered[row, column], self._worth.shape[0])
        score = self._shared(host, index[column], left, model, (count, milli))
        result: Ints = np.full(index.size, TIER, np.int64)
        np.maximum.at(result, column, score)
        return result

    def card_scores(
        self, host: Mapping[str, int], request: DeviceRequest, fits: Bools, index: int
    ) -> dict[int, int]:
        """Score of each fitting card of a node, by row; for shares."""
        rows = np.flatnonzero(fits[:, 0])
        nodes = np.full(rows.size, index)
        left, model = self.left[rows, index], self._model[rows, index]
        score = self._shared(host, nodes, left, model, demand(request))
        return dict(zip(rows.tolist(), score.tolist(), strict=True))

    def flags(
        self, host: Mapping[str, int], request: DeviceRequest | None, nodes: Nodes, scores: Ints
    ) -> Ints:
        """For each node, a bit for each reserve that loses a slot by the place scored best."""
        index = np.arange(self.total.shape[0])[nodes]
        count, milli = demand(request)
        idle = self.idle[index] - count
        if request is not None and not request.whole:
            rest = (2 * TIER - 1 - scores) & _MOST_CARD  # on the card that was scored best
            idle = self.idle[index] - ((rest < MILLI) & (rest + milli >= MILLI))
        cpu, memory = (
            self.ledger.host_free[name][index] - host.get(name, 0) for name in ("cpu", "memory")
        )
        return self._guard.flags(host, count, index, (cpu, memory, idle, self._model[0, index]))

    def tight(self) -> int:
        """A bit for each reserve that is short; see `Guard`."""
        self.refresh()
        return self._guard.tight(self._milli)

    # --- columns ---------------------------------------------------------------------------------

    def _load(self) -> None:
        ledger = self.ledger
        cards, size = ledger.planes[DeviceType.GPU].open.shape
        known = {name: row for row, name in enumerate(self.prices.models)}
        names = [device.model if device else "" for device in ledger.kinds]
        self._row = np.array([known.get(name, len(known)) for name in names], np.intp)
        shares = self.prices.sets
        self._bonus: Floats = np.array(
            [_SETS * sum(part * b * (f // b) for b, part in shares) for f in range(cards + 1)]
        )
        self.left: Ints = np.zeros((cards, size), np.int64)
        self.total: Ints = np.zeros(size, np.int64)
        self.idle: Ints = np.zeros(size, np.int64)
        self._model = np.zeros((cards, size), np.intp)
        self._sums: Floats = np.zeros((size, self.prices.pairs.shape[0]))
        self._value: Floats = np.zeros(size)
        self._guard = Guard(self.prices, size)
        self._milli = 0
        self._seen = len(ledger.changes)
        self._seen_nodes = len(ledger.node_changes)
        self._write(np.arange(size))

    def _write(self, nodes: Index) -> None:
        plane = self.ledger.planes[DeviceType.GPU]
        left = np.maximum(left_of(plane, nodes), 0)
        model = self._row[plane.kind[:, nodes]]
        sums = np.zeros((nodes.size, self._sums.shape[1]))
        for card in range(left.shape[0]):
            sums += self._worth[model[card], _units(left[card])]
        self.left[:, nodes] = left
        total = left.sum(axis=0)
        self._milli += int((total - self.total[nodes]).sum())
        self.total[nodes] = total
        self.idle[nodes] = (left >= MILLI).sum(axis=0)
        self._model[:, nodes] = model
        self._sums[nodes] = sums
        self._value[nodes] = self._least({}, nodes, sums)
        cpu, memory = (self.ledger.host_free[name][nodes] for name in ("cpu", "memory"))
        self._guard.write(nodes, cpu, memory, self.idle[nodes], model[0])

    def _least(self, host: Mapping[str, int], nodes: Index, sums: Floats) -> Floats:
        """Value of nodes once `host` is taken off them."""
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
        # Half the mark, since what pods asked has been taken off it.
        return np.where(free >= UNCHECKED // 2, _PLENTY, told)

    # --- losses ----------------------------------------------------------------------------------

    def _settled(self, host: Mapping[str, int], nodes: Index, count: int, model: Index) -> Ints:
        """Scores of whole cards, or of a pod without cards."""
        change = count * (self._worth[model, 0] - self._worth[model, UNITS])
        loss = self._value[nodes] - self._least(host, nodes, self._sums[nodes] + change)
        if count:
            idle = self.idle[nodes]
            loss += _SCARCE * self._scarcity[model] * (count * MILLI)
            loss += self._bonus[idle] - self._bonus[np.maximum(idle - count, 0)]
        rest = np.maximum(self.total[nodes] - count * MILLI, 0)
        return _packed(loss, rest, np.zeros(nodes.size, np.int64))

    def _shared(
        self, host: Mapping[str, int], nodes: Index, card: Ints, model: Index,
        asked: tuple[int, int],
    ) -> Ints:  # fmt: skip
        """Scores of taking a share of a card, for pairs of node and what that card has left."""
        count, milli = asked
        rest = np.maximum(card - milli, 0)
        change = self._worth[model, _units(rest)] - self._worth[model, _units(card)]
        loss = self._value[nodes] - self._least(host, nodes, self._sums[nodes] + change)
        loss += _SCARCE * self._scarcity[model] * (count * milli)
        idle = self.idle[nodes]
        taken = (card >= MILLI) & (rest < MILLI)
        loss += self._bonus[idle] - self._bonus[np.maximum(idle - taken, 0)]
        return _packed(loss, np.maximum(self.total[nodes] - count * milli, 0), rest)


def _units(left: Ints) -> Ints:
    return np.minimum(left * UNITS // MILLI, UNITS)


def _packed(loss: Floats, node: Ints, card: Ints) -> Ints:
    """One number for the loss in bins, then what the node and what the card have left."""
    bins = np.floor(loss / _BIN + 0.5).astype(np.int64) + _OFFSET
    key = np.clip(bins, 0, _MOST_BIN) << 23
    key |= np.minimum(node, _MOST_NODE) << 10
    key |= np.minimum(card, _MOST_CARD)
    result: Ints = TIER + (TIER - 1 - key)
    return result
