"""Learns prices: the worth of remainders of cards for a mix of requests on an empty cluster.

A linear programme fills the cluster with cutting patterns of cards, so that the mix is served as evenly as possible.
Its dual values price each request, and an unbounded knapsack over those prices gives the worth of every remainder.
Prices are averaged over scenarios, mixes drawn around the one that was seen, because duals of one programme are
degenerate and over-fit.

Runs off the decision path. Needs `highspy` (the extra `solver`); without it `learn` raises, and the default strategy
continues without prices.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from partage.inventory.plane import Bools, Floats, Ints
from partage.model.device import MILLI
from partage.model.errors import PartageError
from partage.placement.jit import compiled
from partage.placement.mix import Mix, Stock
from partage.placement.reserves import reserves_of
from partage.placement.tables import UNITS, Prices

_BREAKS: Final = np.array([0, 0.87, 0.9, 0.92, 0.94, 0.96, 0.98, 1, 1.02, 1.05, 1.1, 1.2, 1.4, 2])
_KNEE: Final = 0.88
_CORE_PRICES: Final = (0.0, 5.0, 10.0, 16.0, 25.0, 40.0, 60.0, 90.0, 150.0)
_GIB_PRICES: Final = (0.0, 1.5, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0)
PAIRS: Final = np.array([(core, gib) for core in _CORE_PRICES for gib in _GIB_PRICES])
_BETTER: Final = 1e-12
_WORTHWHILE: Final = 0.5  # milli that a new pattern must gain
_ROUNDS: Final = 60
_SETS: Final = (2, 4, 8)
_MOST_SCARCE: Final = 1.5
_LITTLE: Final = 1e-9


class SolverMissing(PartageError):
    """The linear programming solver is not installed."""


@dataclass(frozen=True, slots=True)
class Config:
    """How prices are made from a mix.

    Attributes:
        alpha: how evenly requests are served; 0 for most compute, higher for more even.
        cpu_weight: the value in milli of a core for pods without cards.
        scenarios: mixes to average over.
        concentration: how close they are to the mix seen.
        seed: that of their draws.
        cpu_part, memory_part: the usable part of CPU and memory.
        load: demand over capacity.
    """

    alpha: float = 1.0
    cpu_weight: float = 58.0
    scenarios: int = 12
    concentration: float = 200.0
    seed: int = 1
    cpu_part: float = 1.0
    memory_part: float = 1.0
    load: float = 1.1

    @property
    def weights(self) -> Floats:
        """Value of one more milli served, by step of the amount already served."""
        middle = (_BREAKS[1:] + _BREAKS[:-1]) / 2
        result: Floats = np.maximum(middle, _KNEE) ** -self.alpha
        return result


@dataclass(frozen=True, slots=True)
class Items:
    """Requests for one card, alike ones merged.

    Attributes:
        size: hundredths of a card.
        cores, gib: mean CPU and memory beside it.
        allowed: (models, items).
        of_ask: the item of each ask; -1 for pods without cards.
    """

    size: Ints
    cores: Floats
    gib: Floats
    allowed: Bools
    of_ask: Ints

    @staticmethod
    def of(mix: Mix) -> "Items":
        """Asks with similar CPU and memory a card, and the same models, become one item."""
        keys: dict[object, int] = {}
        of_ask = np.full(mix.counts.size, -1, np.int64)
        sizes, allowed = [], []
        used = np.flatnonzero(mix.cards > 0)
        cores = mix.cpu / 1000 / np.maximum(mix.cards, 1)
        gib = mix.memory / 1024 / np.maximum(mix.cards, 1)
        for ask in used.tolist():
            size = max(1, min(UNITS, -(-int(mix.milli[ask]) * UNITS // MILLI)))
            mask = tuple(mix.allowed[ask].tolist())
            key = (size, mask, round(float(cores[ask])), round(float(gib[ask]) / 4))
            if key not in keys:
                keys[key] = len(keys)
                sizes.append(size)
                allowed.append(mask)
            of_ask[ask] = keys[key]
        weight = (mix.counts * mix.cards)[used].astype(np.float64)
        total = np.bincount(of_ask[used], weight, len(keys))
        return Items(
            np.array(sizes, np.int64),
            np.bincount(of_ask[used], weight * cores[used], len(keys)) / total,
            np.bincount(of_ask[used], weight * gib[used], len(keys)) / total,
            np.array(allowed, np.bool_).reshape(len(keys), mix.allowed.shape[1]).T.copy(),
            of_ask,
        )


def knapsack(size: Ints, profit: Floats) -> tuple[Floats, Ints]:
    """Best value of 0 to 100 hundredths for each row of profits, and the item taken last.

    Args:
        size: hundredths of each item, at least 1.
        profit: (rows, items); items without profit are never taken.

    Returns:
        (101, rows) values, and as many items; -1 if a hundredth is unused.
    """
    order = np.argsort(size, kind="stable")
    sizes, gains = size[order], np.where(profit > 0, profit, -1.0)[:, order]
    best = np.zeros((gains.shape[0], UNITS + 1))
    last = np.full(best.shape, -1, np.int64)
    useful = np.zeros(sizes.size, np.int64)
    _knapsack(sizes, np.ascontiguousarray(gains), _BETTER, best, last, useful)
    return best.T, np.where(last >= 0, order[last], -1).T


@compiled
def _knapsack(
    size: Ints, gain: Floats, least: float, best: Floats, last: Ints, useful: Ints
) -> None:
    """`knapsack` of ascending sizes; an item must be worth `least` more than an unused hundredth.

    Args:
        best, last: (rows, 101), zeros and -1; written.
        useful: for the function's own use, one entry an item.
    """
    (rows, items), units = gain.shape, best.shape[1] - 1
    for row in range(rows):
        mine, count, most = best[row], 0, 0.0
        for item in range(items):  # a larger item that gains no more is never better
            if gain[row, item] > most:
                most, useful[count] = gain[row, item], item
                count += 1
        for room in range(1, units + 1):
            top, found = -np.inf, -1
            for item in useful[:count]:
                if size[item] > room:
                    break
                value = mine[room - size[item]] + gain[row, item]
                if value > top:
                    top, found = value, item
            mine[room] = mine[room - 1]
            if found >= 0 and top > mine[room] + least:
                mine[room] = top
                last[row, room] = found


def solver() -> Any:
    """The solver's module. Raises `SolverMissing`: it is not installed."""
    try:
        import highspy  # noqa: PLC0415 # an optional extra
    except ImportError:
        message = "prices need the package highspy; install partage[solver]"
        raise SolverMissing(message) from None
    return highspy


class _Programme:
    """The linear programme; between scenarios only bounds and costs change, patterns stay."""

    def __init__(self, mix: Mix, stock: Stock, items: Items) -> None:
        self.mix, self.items = mix, items
        self.cards = stock.by_model(stock.cards)
        self.cpu = stock.by_model(stock.cpu) / 1000
        self.memory = stock.by_model(stock.memory) / 1024
        plain = mix.cards == 0
        self.plain_cores = plain * mix.cpu / 1000
        cores = float((mix.counts * self.plain_cores).sum())
        gib = float((mix.counts * plain * mix.memory).sum()) / 1024
        self.plain_gib = gib / max(_LITTLE, cores)
        self._patterns: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
        self._build()

    def _build(self) -> None:
        highspy = solver()
        h = self._h = highspy.Highs()
        h.silent()
        for option, value in (("threads", 1), ("parallel", "off")):
            h.setOptionValue(option, value)
        self._inf = highspy.kHighsInf
        kinds, models, steps = self.items.size.size, self.cards.size, _BREAKS.size - 1
        none = np.array([], np.int32), np.array([], np.float64)
        for _ in range(kinds + 1):
            h.addRow(-self._inf, 0.0, 0, *none)  # served at most the amount produced
        for cap in (*self.cards, *self.cpu, *self.memory):
            h.addRow(-self._inf, float(cap), 0, *none)
        self._served = served = (kinds + 1) * steps
        rows = np.repeat(np.arange(kinds + 1, dtype=np.int32), steps)
        starts = np.arange(served, dtype=np.int32)
        zero = np.zeros(served)
        h.addCols(served, zero, zero, zero, served, starts, rows, np.ones(served))
        for model in range(models):  # cores for pods without cards
            where = [kinds, kinds + 1 + models + model, kinds + 1 + 2 * models + model]
            values = [-1.0, 1.0, self.plain_gib]
            h.addCol(0.0, 0.0, self._inf, 3, np.array(where, np.int32), np.array(values))
        for model in range(models):
            for item in np.flatnonzero(self.items.allowed[model]).tolist():
                self._add(model, {item: UNITS // int(self.items.size[item])})

    def _add(self, model: int, pattern: dict[int, int]) -> bool:
        """Add one more way to cut a card of a model; False if it is known."""
        parts = sorted(pattern.items())
        key = (model, tuple(parts))
        if key in self._patterns:
            return False
        self._patterns.add(key)
        first, models = self.items.size.size + 1, self.cards.size
        cores = sum(n * float(self.items.cores[item]) for item, n in parts)
        gib = sum(n * float(self.items.gib[item]) for item, n in parts)
        where = [item for item, _ in parts]
        where += [first + model, first + models + model, first + 2 * models + model]
        values = [-float(n) for _, n in parts] + [1.0, cores, gib]
        self._h.addCol(
            0.0, 0.0, self._inf, len(where), np.array(where, np.int32), np.array(values)
        )
        return True

    def configure(self, config: Config) -> None:
        """Use another configuration's utility and limits."""
        self.load = config.load
        sizes = np.append(self.items.size * (MILLI / UNITS), config.cpu_weight)
        every = np.arange(self._served, dtype=np.int32)
        self._h.changeColsCost(self._served, every, -np.outer(sizes, config.weights).ravel())
        first, models = self.items.size.size + 1, self.cards.size
        for model in range(models):
            cpu, memory = (
                self.cpu[model] * config.cpu_part,
                self.memory[model] * config.memory_part,
            )
            self._h.changeRowBounds(first + models + model, -self._inf, float(cpu))
            self._h.changeRowBounds(first + 2 * models + model, -self._inf, float(memory))

    def solve(self, chances: Floats) -> Floats:
        """Prices of the items for given chances of the asks; an average item is worth its size."""
        items, kinds = self.items, self.items.size.size
        with_cards = items.of_ask >= 0
        cards = (chances * self.mix.cards)[with_cards]
        each = np.bincount(items.of_ask[with_cards], cards, kinds)
        milli = float((each * items.size).sum()) * (MILLI / UNITS)
        pods = float(self.cards.sum()) * MILLI / milli * self.load
        plain = float((chances * self.plain_cores).sum())
        upper = np.outer(np.append(each, plain) * pods, np.diff(_BREAKS)).ravel()
        every = np.arange(self._served, dtype=np.int32)
        self._h.changeColsBounds(self._served, every, np.zeros(self._served), upper)
        price = self._duals()
        for _ in range(_ROUNDS):
            if not self._improve(price):
                break
            price = self._duals()
        prices = price[:kinds]
        result: Floats = prices * milli / max(_LITTLE, float((each * prices).sum()))
        return result

    def _duals(self) -> Floats:
        self._h.run()
        return -np.array(self._h.getSolution().row_dual)

    def _improve(self, price: Floats) -> bool:
        """Add the best pattern of each model if it gains something; False if none does."""
        items, kinds, models = self.items, self.items.size.size, self.cards.size
        per_card, per_core, per_gib = price[kinds + 1 :].reshape(3, models)
        profit = price[:kinds] - per_core[:, None] * items.cores - per_gib[:, None] * items.gib
        best, last = knapsack(items.size, np.where(items.allowed, profit, 0.0))
        added = False
        for model in range(models):
            if best[UNITS, model] > per_card[model] + _WORTHWHILE:
                added |= self._add(model, taken(items.size, last[:, model]))
        return added


def taken(size: Ints, last: Ints) -> dict[int, int]:
    """The pattern that a knapsack chose for a whole card."""
    pattern: dict[int, int] = {}
    room = UNITS
    while room > 0:
        item = int(last[room])
        if item < 0:
            room -= 1
        else:
            pattern[item] = pattern.get(item, 0) + 1
            room -= int(size[item])
    return pattern


class Learner:
    """Makes prices for one mix, in any number of configurations."""

    def __init__(self, mix: Mix, stock: Stock) -> None:
        """Prepare the programme. Raises `SolverMissing`: no solver is installed."""
        self.mix, self.stock = mix, stock
        self.items = Items.of(mix)
        self._programme = _Programme(mix, stock, self.items)
        self._chances: Floats = mix.counts / mix.counts.sum()
        self._reserves = reserves_of(mix, stock)
        # Models for which the same items are allowed have the same worth.
        masks, of_model = np.unique(self.items.allowed, axis=0, return_inverse=True)
        self._masks = masks, of_model.ravel()
        # The mix's own patterns exist from the first candidate on.
        self._programme.configure(Config())
        self._programme.solve(self._chances)

    def prices(self, config: Config) -> Prices:
        """The prices of one configuration."""
        self._programme.configure(config)
        chance = np.random.default_rng(config.seed)
        shape = (len(self.stock.models), UNITS + 1, PAIRS.shape[0])
        worth: Floats = np.zeros(shape)
        for _ in range(config.scenarios):
            drawn = chance.gamma(np.maximum(config.concentration * self._chances, 1e-12))
            worth += self._worth(self._programme.solve(drawn / drawn.sum()))
        return Prices(
            self.stock.models,
            PAIRS,
            worth / config.scenarios,
            scarcity(self.mix, self.stock),
            sets_of(self.mix),
            float(self.mix.demand.sum() / self.mix.counts.sum()),
            self._reserves,
        )

    def _worth(self, price: Floats) -> Floats:
        """Worth of remainders by model, hundredths and pair."""
        items = self.items
        net = price - PAIRS[:, :1] * items.cores - PAIRS[:, 1:] * items.gib
        masks, of_model = self._masks
        profit = np.where(masks[:, None, :], net, 0.0).reshape(-1, items.size.size)
        best, _ = knapsack(items.size, profit)
        result: Floats = best.T.reshape(-1, PAIRS.shape[0], UNITS + 1)[of_model]
        return result.transpose(0, 2, 1)


def scarcity(mix: Mix, stock: Stock) -> Floats:
    """Demand by model of requests that do not accept every card, over the model's fair share."""
    cards = stock.by_model(stock.cards)
    demand = mix.demand.astype(np.float64)
    result: Floats = np.zeros(cards.size)
    for ask in np.flatnonzero(~mix.allowed.all(axis=1) & (demand > 0)).tolist():
        part = demand[ask] / max(1.0, demand.sum())
        mine = mix.allowed[ask]
        result[mine] += part * cards.sum() / max(1.0, cards[mine].sum())
    return np.minimum(_MOST_SCARCE, result)


def sets_of(mix: Mix) -> tuple[tuple[int, float], ...]:
    """Share of the demand for sets of 2, 4 and 8 cards."""
    total = max(1.0, float(mix.demand.sum()))
    return tuple((b, float(mix.demand[mix.cards == b].sum()) / total) for b in _SETS)
