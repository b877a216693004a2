"""Which classes are scored in compiled loops, and by which loop.

Importing this module imports numba, where that is installed.
"""

from partage.inventory.ledger import Ledger
from partage.model.policy import Strategy
from partage.placement.baselines import demand
from partage.placement.fragmentation import Gauge, Workload
from partage.placement.priced import PriceGauge
from partage.placement.tables import Prices
from partage.scheduler.classes import RequestClass
from partage.sim.compiled.columns import STRATEGIES
from partage.sim.compiled.repricing import FastPriceGauge, by_prices
from partage.sim.compiled.rescoring import FastGauge, Finish, Rescorer, Scratch, by_books, by_gauge


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
        finish: Finish | None = by_books(ledger, strategy)
        if strategy is Strategy.FGD:
            if not isinstance(group.gauge, FastGauge):
                return None
            finish = by_gauge(group.gauge)
        elif strategy is Strategy.PARTAGE and group.priced is not None:
            if not isinstance(group.priced, FastPriceGauge):
                return None
            cards, _ = demand(request.groups[0].request if request.groups else None)
            finish = by_prices(group.priced, host, cards)
        elif strategy is Strategy.FIRST_FIT:
            finish = None
        return Rescorer(request, host, ledger, self._scratch, finish)
