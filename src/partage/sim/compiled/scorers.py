"""Which classes are scored in compiled loops, and by which loop.

Importing this module imports numba, where that is installed.
"""

from partage.inventory.ledger import Ledger
from partage.model.policy import Strategy
from partage.placement.fragmentation import Gauge, Workload
from partage.placement.priced import PriceGauge
from partage.placement.tables import Prices
from partage.scheduler.classes import RequestClass
from partage.sim.compiled.columns import STRATEGIES
from partage.sim.compiled.repricing import FastPriceGauge, PriceRescorer
from partage.sim.compiled.rescoring import (
    BookRescorer,
    FastGauge,
    GaugeRescorer,
    Rescorer,
    Scratch,
)


class CompiledScorers:
    """Makes gauges and rescorers that use compiled loops."""

    def __init__(self) -> None:
        self._scratch = Scratch()

    def gauge(self, workload: Workload, ledger: Ledger) -> Gauge:
        """A gauge of fragmentation."""
        return FastGauge(workload, ledger)

    def price_gauge(self, prices: Prices, ledger: Ledger) -> PriceGauge:
        """A gauge of values."""
        return FastPriceGauge(prices, ledger)

    def rescorer(self, group: RequestClass, ledger: Ledger) -> Rescorer | None:
        """The scorer of the class; None if only NumPy can score it."""
        request, host, strategy = group.pod.request, group.pod.host, group.node_strategy
        if strategy not in STRATEGIES or not Rescorer.applies(request, host):
            return None
        scoring = request.scoring
        if strategy in (Strategy.BINPACK, Strategy.SPREAD) and (scoring.sharers or scoring.left):
            return None
        if strategy is Strategy.FGD:
            if not isinstance(group.gauge, FastGauge):
                return None
            return GaugeRescorer(request, host, group.gauge, self._scratch)
        if strategy is Strategy.PARTAGE and isinstance(group.priced, FastPriceGauge):
            return PriceRescorer(request, host, group.priced, self._scratch)
        if strategy is Strategy.PARTAGE and group.priced is not None:
            return None
        if strategy is Strategy.FIRST_FIT:
            return Rescorer(request, host, ledger, self._scratch)
        return BookRescorer(request, host, ledger, self._scratch, strategy)
