"""When the default strategy learns, from what, and reserves for what has been seen since.

Pure functions of what was counted; whoever drives the engine counts, calls them off the decision
path, and hands the tables to the engine as an event. Prices themselves are made in `lessons`.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from math import pi, sqrt
from typing import Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.placement.baselines import demand
from partage.placement.kernel import suited
from partage.placement.mix import Ask, Mix, Stock
from partage.placement.reserves import reserves_of
from partage.placement.tables import Tables

__all__ = ["Due", "ask_of", "due", "due_since", "fits_history", "refreshed"]

_LEARN: Final = frozenset({300, 1000, 3000, 6000})
_AGAIN: Final = 20_000
_REFRESH: Final = frozenset({450, 700, 1500, 2200, 4000, 5500, 7500, 10_000})
_NOISE: Final = 1.5
_SLACK: Final = 0.05
_MIB: Final = 2**20


class Due(Enum):
    """What is to be made anew after so many arrivals."""

    NOTHING = "nothing"
    RESERVES = "reserves"
    PRICES = "prices"


def due(arrived: int) -> Due:
    """What is due once so many pods have been seen: prices seldom, reserves more often."""
    if arrived in _LEARN or (arrived and arrived % _AGAIN == 0):
        return Due.PRICES
    return Due.RESERVES if arrived in _REFRESH else Due.NOTHING


def due_since(before: int, arrived: int) -> Due:
    """What became due on the way from `before` arrivals to `arrived`."""
    became = {due(n) for n in range(before + 1, arrived + 1)}
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


def refreshed(tables: Tables, seen: Mapping[Ask, int], stock: Stock) -> Tables | None:
    """The same prices with reserves for what has been seen since; None where there are none."""
    if tables.prices is None:
        return None
    mix = Mix.of(seen, stock)
    milli = float(mix.demand.sum() / max(1, mix.counts.sum()))
    prices = replace(tables.prices, reserves=reserves_of(mix, stock), milli_per_pod=milli)
    return replace(tables, version=tables.version + 1, prices=prices)


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
