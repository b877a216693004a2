"""Which nodes and which of their cards fit a plain request, and which node is the best."""

from typing import Final

from partage.inventory.plane import Bools, Index, Ints
from partage.placement.jit import compiled
from partage.sim.compiled.columns import Asked, Cards, Found, Places, Room

_RANKS: Final = 2**20
_CEILING: Final = 2**34


@compiled
def fit(
    nodes: Index,
    value: Ints,
    places: Places,
    room: Room,
    asked: Asked,
    suits: Bools,
    cards: Cards,
    found: Found,
) -> int:
    """Find the nodes that fit, each once; value -1 for the others.

    Args:
        nodes: nodes to check; they may repeat.
        value: of each node; for fitting nodes it holds their preference and order.
        suits: cards that the request accepts regardless of their free amounts.

    Returns:
        How many fit.
    """
    present, allowed, preference, rank = places
    (column0, column1, column2, column3), (need0, need1, need2, need3) = room
    count, whole, alone, core, memory, part, sharers, claims = asked
    open_, core_free, memory_free, memory_total, slots_free, tenants = cards
    chosen, usable = found
    size, many = open_.shape[0], 0
    for i in nodes:
        value[i] = -2
    for i in nodes:
        if value[i] != -2:  # a node that changed twice is done already
            continue
        value[i] = -1
        if not (present[i] and allowed[i]) or column0[i] < need0 or column1[i] < need1:
            continue
        if column2[i] < need2 or column3[i] < need3:
            continue
        # `kernel.fitting`, card by card; the check that excludes most cards comes first.
        fits = 0
        for g in range(size if count else 0):
            usable[many, g] = False
            if not open_[g, i] or not suits[g, i] or slots_free[g, i] <= 0:
                continue
            if (whole or alone) and tenants[g, i] != 0:
                continue
            if whole:
                if memory_free[g, i] < memory_total[g, i]:
                    continue
            else:
                have = core_free[g, i]
                if have < core or (claims and have <= 0):
                    continue
                need = memory_total[g, i] * part // 1000 if part else memory
                if need and memory_free[g, i] < need:
                    continue
                if sharers >= 0 and tenants[g, i] >= sharers:
                    continue
            usable[many, g] = True
            fits += 1
        if fits < count:
            continue
        value[i] = preference[i] * (_CEILING * _RANKS) + (_RANKS - 1 - rank[i])
        chosen[many] = i
        many += 1
    return many


@compiled
def best(value: Ints, flags: Ints, tight: int, step: int) -> int:
    """The first of the best nodes, -1 for none.

    Nodes with one of the bits of `tight` in their flags have a value reduced by `step`.
    """
    chosen, most = -1, -1
    for i in range(value.size):
        worth = value[i]
        if worth < 0:
            continue
        if flags[i] & tight:
            worth -= step
        if worth > most:
            chosen, most = i, worth
    return chosen
