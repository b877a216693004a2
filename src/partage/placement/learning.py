"""When the default strategy learns, from what, and reserves for what has been seen since.

The service and replays learn by the same two steps: `Arrivals` counts pods and says what is due,
and `tables_due` makes it, off the decision path. The driver of the engine hands the tables to it as
an event. Prices themselves are made in `selection`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from math import pi, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.policy import Strategy
from partage.placement.baselines import demand
from partage.placement.kernel import suited
from partage.placement.mix import Ask, Mix, Standing, Stock, workload_of
from partage.placement.reserves import reserves_of
from partage.placement.tables import Tables

if TYPE_CHECKING:
    from partage.placement.selection import Rules

_LEARN: Final = frozenset({300, 1000, 3000, 6000})
_AGAIN: Final = 20_000
_EARLY: Final = (6, 9, 13, 19, 28, 42, 63, 95, 142, 213)
_CARDS_EACH: Final = 16
"""Cards of the cluster for each pod seen, beyond which so few pods tell nothing of it."""
_REFRESH: Final = frozenset({450, 700, 1500, 2200, 4000, 5500, 7500, 10_000})
_NOISE: Final = 1.5
_SLACK: Final = 0.05
_MIB: Final = 2**20


class Due(Enum):
    """What is to be made anew after so many arrivals."""

    NOTHING = "nothing"
    RESERVES = "reserves"
    PRICES = "prices"


def due(arrived: int, cards: int) -> Due:
    """What is due once so many pods have been seen: prices seldom, reserves more often.

    A small cluster is full before many pods have come, so it learns from few.

    Args:
        arrived: pods seen.
        cards: of the cluster.
    """
    if arrived in _LEARN or (arrived and arrived % _AGAIN == 0):
        return Due.PRICES
    if arrived * _CARDS_EACH >= cards:
        if arrived in _EARLY:
            return Due.PRICES
        if 0 < arrived < _EARLY[-1]:
            return Due.RESERVES
    return Due.RESERVES if arrived in _REFRESH else Due.NOTHING


def due_since(before: int, arrived: int, cards: int) -> Due:
    """What became due on the way from `before` arrivals to `arrived`."""
    became = {due(n, cards) for n in range(before + 1, arrived + 1)}
    return next((d for d in (Due.PRICES, Due.RESERVES) if d in became), Due.NOTHING)


class Arrivals:
    """Pods that came, and what they make due.

    A history that is known before counts beside them. Where it does not fit what came it is
    dropped, and learning goes on from what was seen.

    Attributes:
        history: how often each ask came before; empty where there is none, or once it is dropped.
        seen: how often each came since.
        total: pods seen.
    """

    def __init__(
        self, history: Mapping[Ask, int] | None = None, window: int | None = None
    ) -> None:
        """Begin to count.

        Args:
            history: the mix that is known before, which makes prices due before the first pod.
            window: pods that are remembered; beyond, all counts are halved. None for no end.
        """
        self.history = dict(history or {})
        self.seen: Counter[Ask] = Counter()
        self.total = 0
        self._window = window
        self._looked = -1 if self.history else 0

    @property
    def counts(self) -> Counter[Ask]:
        """What is known: the history where there is one, and what came."""
        return Counter(self.history) + self.seen

    def add(self, asks: Iterable[Ask]) -> None:
        """Count some more."""
        for ask in asks:
            self.seen[ask] += 1
            self.total += 1
        if self._window is not None and self.seen.total() > self._window:
            self.seen = Counter({ask: n // 2 for ask, n in self.seen.items() if n > 1})

    def due(self, cards: int) -> Due:
        """What became due since the last call, on a cluster of so many cards."""
        before, self._looked = self._looked, self.total
        if before < 0:
            return Due.PRICES
        what = due_since(before, self.total, cards)
        if what is not Due.NOTHING and self.history:
            if what is not Due.PRICES or fits_history(self.history, self.seen):
                return Due.NOTHING
            self.history = {}
        return what


def tables_due(
    what: Due,
    tables: Tables,
    counts: Mapping[Ask, int],
    stock: Stock,
    standing: Standing | None = None,
    *,
    rules: "Rules | None" = None,
    fast: bool | None = None,
) -> Tables | None:
    """The tables that are due; prices take seconds, and belong in a process of their own.

    Args:
        what: is due.
        tables: in force.
        counts: how often each ask came.
        stock: the empty cluster.
        standing: what is placed already; prices alone ask for it.
        rules: how gain and cost are weighed when prices are chosen.
        fast: use compiled loops; None for where numba is installed. The tables are the same.

    Returns:
        None where the old ones stay.
    """
    if what is Due.NOTHING:
        return None
    if what is Due.RESERVES:
        return refreshed(tables, counts, stock)
    from partage.placement.selection import learned  # noqa: PLC0415 # imports the compiled loops

    return learned(tables, counts, stock, standing, rules=rules, fast=fast)


def ask_of(pod: Pod, ledger: Ledger) -> Ask:
    """What a pod asks, as far as prices look at it: its largest request for cards.

    Models are those of the cards in the books that are the right ones for it; where all are, or
    none is, any will do. Requests without compute count as none for cards.
    """
    cpu, memory = pod.host.get("cpu", 0), -(-pod.host.get("memory", 0) // _MIB)
    groups = [g for g in pod.request.groups if all(demand(g.request))]
    if not groups:
        return Ask(cpu, memory)
    group = max(groups, key=lambda g: demand(g.request)[0] * demand(g.request)[1])
    cards, milli = demand(group.request)
    plane = ledger.planes[DeviceType.GPU]
    suits = suited(ledger, group.request, group.protocol, slice(None)) & (plane.kind > 0)
    fine, there = (set(np.unique(plane.kind[which]).tolist()) for which in (suits, plane.kind > 0))
    names = {kind: device.model for kind, device in enumerate(ledger.kinds) if device}
    models = {names[kind] for kind in fine}
    if not models or models == {names[kind] for kind in there}:
        return Ask(cpu, memory, cards, milli)
    return Ask(cpu, memory, cards, milli, tuple(sorted(models)))


def asks_of(pods: Iterable[Pod], ledger: Ledger) -> Iterator[Ask]:
    """What each pod asks.

    Copies of a template share their request; looking at every card for each of tens of thousands
    of pods would take a minute.
    """
    known: dict[tuple[int, int], Ask] = {}
    for pod in pods:
        alike = id(pod.request), id(pod.host)
        if alike not in known:
            known[alike] = ask_of(pod, ledger)
        yield known[alike]


def refreshed(tables: Tables, seen: Mapping[Ask, int], stock: Stock) -> Tables | None:
    """The same prices with reserves for what has been seen since, or the usual requests of FGD.

    Before anything was chosen FGD stands in. None where first fit was chosen to.
    """
    mix = Mix.of(seen, stock)
    if tables.prices is None:
        if tables.stand_in not in (None, Strategy.FGD):
            return None
        version, usual = tables.version + 1, workload_of(mix, stock)
        return replace(tables, version=version, workload=usual, stand_in=Strategy.FGD)
    milli = float(mix.demand.sum() / max(1, mix.counts.sum()))
    prices = replace(tables.prices, reserves=reserves_of(mix, stock), milli_per_pod=milli)
    return replace(tables, version=tables.version + 1, prices=prices)


def in_sight(tables: Tables, seen: Mapping[Ask, int], stock: Stock) -> Tables:
    """The tables, or, where nothing was learnt, what the first pods of a small cluster teach."""
    learnt = tables.prices is not None or tables.stand_in is not None
    if learnt or sum(seen.values()) * _CARDS_EACH < int(stock.cards.sum()):
        return tables
    return refreshed(tables, seen, stock) or tables


def fits_history(history: Mapping[Ask, int], seen: Mapping[Ask, int]) -> bool:
    """Whether what was seen can be a sample of the history.

    The distance between both mixes (half the sum of differences in share) is held against what a
    sample of that size would show on average, with some slack.
    """
    before, now = sum(history.values()), sum(seen.values())
    if not before or not now:
        return True
    distance = expected = 0.0
    for ask in history.keys() | seen.keys():
        share = history.get(ask, 0) / before
        distance += abs(share - seen.get(ask, 0) / now) / 2
        expected += sqrt(2 * share * (1 - share) / (pi * now)) / 2
    return distance <= _NOISE * expected + _SLACK
