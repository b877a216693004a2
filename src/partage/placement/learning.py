"""When the default strategy learns, from what, and reserves for what has been seen since.

Pure functions of what was counted; the engine's driver counts, calls them off the decision
path, and hands the tables to the engine as an event. Prices themselves are made in `selection`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from math import pi, sqrt
from typing import Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.policy import Strategy
from partage.placement.baselines import demand
from partage.placement.kernel import suited
from partage.placement.mix import Ask, Mix, Stock, workload_of
from partage.placement.reserves import reserves_of
from partage.placement.tables import Tables

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
