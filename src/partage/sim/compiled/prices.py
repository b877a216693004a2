"""Values of nodes at learnt prices, losses of value, and slots of reserves.

See `placement.priced` and `placement.slot_reservation`.
"""

from math import floor, sqrt
from typing import Final

import numpy as np

from partage.inventory.plane import Bools, Floats, Index, Ints
from partage.placement.jit import compiled
from partage.sim.compiled.columns import Found, Guarded, PriceTable, Valued, Wanted

_RANKS: Final = 2**20
_UNKNOWN: Final = 2**61
_TIER: Final = 2**33
_MANY: Final = 2**20
_GIB: Final = 2**30

# Inner functions take every array by itself, because compiled code counts a reference when it takes an array out of a
# tuple. In a loop this costs more than the arithmetic.


@compiled
def _told(free: int, asked: int, unit: int) -> float:
    """Cores or GiB left after `asked` is taken."""
    return 1e6 if free >= _UNKNOWN else (free - asked) / unit


@compiled
def _least(
    cores: float,
    gib: float,
    sums: Floats,
    times: int,
    after: Floats,
    before: Floats,
    core_price: Floats,
    gib_price: Floats,
) -> float:
    """Value of a node, with the worth of `times` cards changed."""
    least = np.inf
    for p in range(sums.size):
        worth = (core_price[p] * cores + gib_price[p] * gib) + (
            sums[p] + times * (after[p] - before[p])
        )
        least = min(least, worth)
    return least


@compiled
def _packed(loss: float, node: int, card: int) -> int:
    """Score of a loss, then of the free amounts of the node and of the card."""
    bins = min(max(floor(loss / 15.0 + 0.5) + 128, 0), 1023)
    return _TIER + (_TIER - 1 - ((bins << 23) | (min(node, 8191) << 10) | min(card, 1023)))


@compiled
def _settled(
    cores: float,
    gib: float,
    count: int,
    total: int,
    idle: int,
    model: int,
    value: float,
    sums: Floats,
    worth: Floats,
    core_price: Floats,
    gib_price: Floats,
    scarcity: Floats,
    bonus: Floats,
) -> int:
    """Score of whole cards, or of a pod without cards."""
    last = worth.shape[1] - 1
    loss = value - _least(
        cores, gib, sums, count, worth[model, 0], worth[model, last], core_price, gib_price
    )
    if count:
        loss += 0.1 * scarcity[model] * (count * 1000)
        loss += bonus[idle] - bonus[max(idle - count, 0)]
    return _packed(loss, max(total - count * 1000, 0), 0)


@compiled
def _shared(
    cores: float,
    gib: float,
    card: int,
    count: int,
    milli: int,
    total: int,
    idle: int,
    model: int,
    value: float,
    sums: Floats,
    worth: Floats,
    core_price: Floats,
    gib_price: Floats,
    scarcity: Floats,
    bonus: Floats,
) -> int:
    """Score of taking a share of a card that has `card` left."""
    last = worth.shape[1] - 1
    rest = max(card - milli, 0)
    after, before = min(rest * last // 1000, last), min(card * last // 1000, last)
    loss = value - _least(
        cores, gib, sums, 1, worth[model, after], worth[model, before], core_price, gib_price
    )
    loss += 0.1 * scarcity[model] * (count * milli)
    taken = card >= 1000 and rest < 1000
    loss += bonus[idle] - bonus[max(idle - taken, 0)]
    return _packed(loss, max(total - count * milli, 0), rest)


@compiled
def price(
    nodes: Index,
    open_: Bools,
    core_free: Ints,
    kind: Ints,
    cpu_free: Ints,
    memory_free: Ints,
    row: Index,
    valued: Valued,
    table: PriceTable,
) -> int:
    """Write a price gauge's columns of some nodes; returns the growth of the compute left."""
    left, totals, idle, models, sums, value = valued
    worth, core_price, gib_price, _, _ = table
    last, grown = worth.shape[1] - 1, 0
    for i in nodes:
        sums[i, :] = 0.0
        total = free = 0
        for g in range(open_.shape[0]):
            have = max(core_free[g, i], 0) if open_[g, i] else 0
            left[g, i] = have
            model = models[g, i] = row[kind[g, i]]
            total += have
            free += have >= 1000
            units = min(have * last // 1000, last)
            for p in range(core_price.size):
                sums[i, p] += worth[model, units, p]
        grown += total - totals[i]
        totals[i], idle[i] = total, free
        cores, gib = _told(cpu_free[i], 0, 1000), _told(memory_free[i], 0, _GIB)
        none = worth[0, 0]
        value[i] = _least(cores, gib, sums[i], 0, none, none, core_price, gib_price)
    return grown


@compiled
def card_values(
    i: int, count: int, milli: int, cores: float, gib: float, valued: Valued, table: PriceTable
) -> Ints:
    """Score of taking `milli` from each card of a node, 0 for a card with less.

    The best `count` cards are wanted; the given CPU and memory are left then.
    """
    left, totals, idle, models, sums, value = valued
    worth, core_price, gib_price, scarcity, bonus = table
    result = np.zeros(left.shape[0], np.int64)
    for g in range(left.shape[0]):
        if left[g, i] >= milli:
            result[g] = _shared(
                cores,
                gib,
                left[g, i],
                count,
                milli,
                totals[i],
                idle[i],
                models[g, i],
                value[i],
                sums[i],
                worth,
                core_price,
                gib_price,
                scarcity,
                bonus,
            )
    return result


@compiled
def count_slots(
    nodes: Index,
    cpu_free: Ints,
    memory_free: Ints,
    idle: Ints,
    models: Index,
    asked: tuple[Ints, Ints, Ints, Bools],
    slots: Ints,
    supply: Ints,
) -> None:
    """Recount the slots of every reserve on some nodes."""
    cards, cpu, memory, allowed = asked
    for i in nodes:
        for r in range(cards.size):
            room = _MANY if allowed[r, models[0, i]] else 0
            if cards[r] > 0:
                room = min(room, idle[i] // cards[r])
            if room > 0 and cpu[r] > 0:
                room = min(room, max(cpu_free[i], 0) // cpu[r])
            if room > 0 and memory[r] > 0:
                room = min(room, max(memory_free[i], 0) // memory[r])
            supply[r] += room - slots[i, r]
            slots[i, r] = room


@compiled
def shortage(need: Floats, supply: Ints, margin: float, times: float) -> int:
    """A bit for each reserve that has fewer slots than it will need; see `Guard.tight`."""
    bits = 0
    for r in range(need.size):
        wanted = need[r] * times
        if wanted > 0 and supply[r] <= wanted + margin * sqrt(wanted):
            bits |= 1 << r
    return bits


@compiled
def _lost(
    cpu: int,
    memory: int,
    idle: int,
    slots: Ints,
    exempt: Bools,
    r_cards: Ints,
    r_cpu: Ints,
    r_memory: Ints,
) -> int:
    """A bit for each reserve of a node that loses a slot if only these amounts are left."""
    bits = 0
    for r in range(slots.size):
        have = slots[r]
        if have > 0 and not exempt[r]:
            # The quotient is below `have` exactly if the dividend is below `have` times the divisor.
            few = r_cards[r] > 0 and idle < have * r_cards[r]
            few = few or (r_cpu[r] > 0 and cpu < have * r_cpu[r])
            if few or (r_memory[r] > 0 and memory < have * r_memory[r]):
                bits |= 1 << r
    return bits


@compiled
def node_values(
    many: int,
    found: Found,
    value: Ints,
    flags: Ints,
    wanted: Wanted,
    cpu_free: Ints,
    memory_free: Ints,
    valued: Valued,
    table: PriceTable,
    guarded: Guarded,
    exempt: Bools,
) -> None:
    """Add the score of the first `many` nodes found to their value, and write their flags.

    `exempt`: by reserve, whether the pod may take its slots.
    """
    chosen, usable = found
    count, milli, whole, cpu_asked, memory_asked = wanted
    left, totals, idle, models, sums, worths = valued
    worth, core_price, gib_price, scarcity, bonus = table
    r_cards, r_cpu, r_memory, slots = guarded
    for n in range(many):
        i = chosen[n]
        cores = _told(cpu_free[i], cpu_asked, 1000)
        gib = _told(memory_free[i], memory_asked, _GIB)
        score, free = 0, idle[i] - count
        if whole or not count:
            model = 0
            for g in range(left.shape[0]):
                if count and usable[n, g]:
                    model = models[g, i]
                    break
            score = _settled(
                cores,
                gib,
                count,
                totals[i],
                idle[i],
                model,
                worths[i],
                sums[i],
                worth,
                core_price,
                gib_price,
                scarcity,
                bonus,
            )
        else:
            for g in range(left.shape[0]):
                have, model = left[g, i], models[g, i]
                fresh = usable[n, g]
                for other in range(g):  # cards of a model with as much left score the same
                    if usable[n, other] and left[other, i] == have and models[other, i] == model:
                        fresh = False
                if fresh:
                    points = _shared(
                        cores,
                        gib,
                        have,
                        count,
                        milli,
                        totals[i],
                        idle[i],
                        model,
                        worths[i],
                        sums[i],
                        worth,
                        core_price,
                        gib_price,
                        scarcity,
                        bonus,
                    )
                    score = max(score, points)
            rest = (2 * _TIER - 1 - score) & 1023
            free = idle[i] - (rest < 1000 and rest + milli >= 1000)
        value[i] += score * _RANKS
        flags[i] = _lost(
            max(cpu_free[i] - cpu_asked, 0),
            max(memory_free[i] - memory_asked, 0),
            max(free, 0),
            slots[i],
            exempt,
            r_cards,
            r_cpu,
            r_memory,
        )
