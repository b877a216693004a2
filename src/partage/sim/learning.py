"""Learns prices while a trace runs: counts what arrives, and makes new tables now and then.

Tables reach the engine as `TablesChanged`, as they would in a cluster. Without a recorded history
the first pods are placed without prices. A history that does not fit what arrives is dropped, and
learning goes on from what was seen.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter

from partage.inventory.ledger import Ledger
from partage.model.policy import Strategy
from partage.placement.learning import Due, due, fits_history, refreshed
from partage.placement.mix import Ask, Standing, Stock
from partage.placement.selection import Rules, learned
from partage.placement.tables import Tables
from partage.sim.openb import PodRow, Trace


def ask_of(row: PodRow) -> Ask:
    """What a pod of a trace asks."""
    if not row.cards:
        return Ask(row.cpu_milli, row.memory_mib)
    models = tuple(sorted({model for model in row.models.split("|") if model}))
    return Ask(row.cpu_milli, row.memory_mib, row.cards, row.milli, models)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the default policy is told before a run.

    Attributes:
        history: the mix of requests that is known; empty where it is learnt on the way.
        rules: how gain and cost are weighed when prices are chosen.
        tables: made from the history already; None to make them before the first pod.
    """

    history: Mapping[Ask, int] = field(default_factory=dict)
    rules: Rules = Rules()
    tables: Tables | None = None


class Learning:
    """What has been learnt so far.

    Attributes:
        seen: pods that came, failed ones included; whoever counts adds to it.
        running: pods that have a place; the same.
        history: the mix that is known before; empty where there is none, or once it is dropped.
        seconds: wall time spent on tables.
        chosen: what was chosen each time: `prices`, or the strategy that stands in for them.
    """

    def __init__(
        self,
        trace: Trace,
        stock: Stock,
        lesson: Lesson,
        *,
        fast: bool | None = None,
    ) -> None:
        self.stock = stock
        self.history = dict(lesson.history)
        self.seen: Counter[Ask] = Counter()
        self.running: Counter[Ask] = Counter()
        self.seconds = 0.0
        self.chosen: list[str] = []
        self._names = [node.name for node in trace.nodes]
        self._lesson, self._fast = lesson, fast

    @property
    def counts(self) -> Counter[Ask]:
        """What is known: the history where there is one, and what came."""
        return Counter(self.history) + self.seen

    def next(self, arrived: int, tables: Tables, ledger: Ledger) -> Tables | None:
        """New tables before the next arrival, or None where the old ones stay.

        Args:
            arrived: pods that have come so far.
            tables: in force.
            ledger: the books.
        """
        what = (
            Due.PRICES
            if self.history and not arrived
            else due(arrived, int(self.stock.cards.sum()))
        )
        if what is Due.NOTHING:
            return None
        start = perf_counter()
        found = self._made(what, arrived, tables, ledger)
        self.seconds += perf_counter() - start
        return found

    def _made(self, what: Due, arrived: int, tables: Tables, ledger: Ledger) -> Tables | None:
        if self.history and arrived:
            if what is not Due.PRICES or fits_history(self.history, self.seen):
                return None
            self.history = {}
        if what is Due.RESERVES:
            return refreshed(tables, self.counts, self.stock)
        rules, standing = self._lesson.rules, None
        if arrived:
            standing = Standing.of(ledger, self._names, self.running)
        elif self._lesson.tables is not None:
            return self._lesson.tables
        found = learned(tables, self.counts, self.stock, standing, rules=rules, fast=self._fast)
        if found is not None:
            stand_in = found.stand_in or Strategy.FIRST_FIT
            self.chosen.append(stand_in.value if found.prices is None else "prices")
        return found
