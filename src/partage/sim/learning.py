"""Learns prices while a trace runs: counts what arrives, and makes new tables now and then.

Tables reach the engine as `TablesChanged`, as they would in a cluster. Without a recorded history
the first pods are placed without prices.
"""

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Final

from partage.placement.mix import Ask, Mix, Stock
from partage.placement.prices import SolverMissing, learn
from partage.placement.reserves import reserves_of
from partage.placement.tables import Prices, Tables
from partage.sim.openb import PodRow

__all__ = ["Learning", "ask_of"]

_REBUILD: Final = frozenset({300, 1000, 3000})
_REFRESH: Final = frozenset({450, 700, 1500, 2200, 4000, 5500, 7500, 10_000})


def ask_of(row: PodRow) -> Ask:
    """What a pod of a trace asks."""
    if not row.cards:
        return Ask(row.cpu_milli, row.memory_mib)
    models = tuple(sorted({model for model in row.models.split("|") if model}))
    return Ask(row.cpu_milli, row.memory_mib, row.cards, row.milli, models)


class Learning:
    """What has been learnt so far.

    Attributes:
        counts: pods seen, failed ones included; whoever counts sets it.
        seconds: wall time spent on tables.
        built: how often prices were made.
        solver: whether there is one; prices are not learnt without.
    """

    def __init__(self, stock: Stock, history: Mapping[Ask, int] | None = None) -> None:
        self.stock = stock
        self.warm = bool(history)
        self.counts: Mapping[Ask, int] = dict(history or {})
        self.seconds = 0.0
        self.built = 0
        self.solver = True

    def wants(self, arrived: int) -> bool:
        """Whether new tables are due after so many arrivals."""
        if self.warm:
            return arrived == 0
        return arrived in _REBUILD or arrived in _REFRESH

    def due(self, arrived: int, tables: Tables) -> Tables | None:
        """New tables before the next arrival, or None where the old ones stay.

        Args:
            arrived: pods that have come so far.
            tables: in force.
        """
        start = perf_counter()
        prices = self._prices(arrived, tables.prices)
        self.seconds += perf_counter() - start
        if prices is None:
            return None
        return replace(tables, version=tables.version + 1, prices=prices)

    def _prices(self, arrived: int, known: Prices | None) -> Prices | None:
        if not self.wants(arrived):
            return None
        if self.warm or arrived in _REBUILD:
            return self._learn()
        if known is not None:
            mix = Mix.of(self.counts, self.stock)
            milli = float(mix.demand.sum() / mix.counts.sum())
            return replace(known, reserves=reserves_of(mix, self.stock), milli_per_pod=milli)
        return None

    def _learn(self) -> Prices | None:
        if not self.solver:
            return None
        try:
            prices = learn(Mix.of(self.counts, self.stock), self.stock)
        except SolverMissing:
            self.solver = False
            return None
        self.built += prices is not None
        return prices
