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


@compiled
def _told(free: int, asked: int, unit: int) -> float:
    """Cores or GiB left after `asked` is taken."""
    return 1e6 if free >= _UNKNOWN else (free - asked) / unit


@compiled
def _least(
    room: tuple[float, float],
    sums: Floats,
    times: int,
    after: Floats,
    before: Floats,
    table: PriceTable,
) -> float:
    """Value of a node with these cores and GiB, with the worth of `times` cards changed."""
    (cores, gib), (_, core_price, gib_price, _, _), least = room, table, np.inf
    for p in range(sums.size):
        worth = (core_price[p] * cores + gib_price[p] * gib) + (
            sums[p] + times * (after[p] - before[p])
        )
        least = min(least, worth)
    return least


@compiled
def _score(
    i: int,
    room: tuple[float, float],
    asked: tuple[int, int],
    model: int,
    card: int,
    valued: Valued,
    table: PriceTable,
) -> int:
    """Score of cards, and compute of each, taken from a node: its loss, then the free amounts of the node and the card.

    Args:
        room: cores and GiB left on the node then.
        card: left on the card of which a share is taken; -1 for whole cards, or none.
    """
    _, totals, idle, _, sums, value = valued
    worth, _, _, scarcity, bonus = table
    (count, milli), last = asked, worth.shape[1] - 1
    times, then, now, opened, rest = count, 0, last, count, 0
    if card >= 0:
        rest = max(card - milli, 0)
        times, then, now = 1, min(rest * last // 1000, last), min(card * last // 1000, last)
        opened = int(card >= 1000 and rest < 1000)
    loss = value[i] - _least(room, sums[i], times, worth[model, then], worth[model, now], table)
    loss += 0.1 * scarcity[model] * (count * milli)
    loss += bonus[idle[i]] - bonus[max(idle[i] - opened, 0)]
    bins = min(max(floor(loss / 15.0 + 0.5) + 128, 0), 1023)
    left = min(max(totals[i] - count * milli, 0), 8191)
    key: int = (bins << 23) | (left << 10) | min(rest, 1023)
    return 2 * _TIER - 1 - key


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
    worth = table[0]
    last, grown, none = worth.shape[1] - 1, 0, worth[0, 0]
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
            for p in range(sums.shape[1]):
                sums[i, p] += worth[model, units, p]
        grown += total - totals[i]
        totals[i], idle[i] = total, free
        room = _told(cpu_free[i], 0, 1000), _told(memory_free[i], 0, _GIB)
        value[i] = _least(room, sums[i], 0, none, none, table)
    return grown


@compiled
def card_values(
    i: int,
    room: tuple[float, float],
    asked: tuple[int, int],
    valued: Valued,
    table: PriceTable,
    result: Ints,
) -> None:
    """Write the score of each card of a node from which a share can be taken; see `_score`."""
    left, models = valued[0], valued[3]
    for g in range(left.shape[0]):
        if left[g, i] >= asked[1]:
            result[g] = _score(i, room, asked, models[g, i], left[g, i], valued, table)


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
    left: tuple[int, int, int], slots: Ints, exempt: Bools, guarded: tuple[Ints, Ints, Ints]
) -> int:
    """A bit for each reserve of a node that loses a slot if only these cards, CPU and memory are left."""
    (idle, cpu, memory), (r_cards, r_cpu, r_memory), bits = left, guarded, 0
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
    left, _, idle, models, _, _ = valued
    asked, slots = (count, milli), guarded[3]
    for n in range(many):
        i = chosen[n]
        cpu, memory = cpu_free[i], memory_free[i]
        room = _told(cpu, cpu_asked, 1000), _told(memory, memory_asked, _GIB)
        score, free = 0, idle[i] - count
        if whole or not count:
            model = 0
            for g in range(left.shape[0]):
                if count and usable[n, g]:
                    model = models[g, i]
                    break
            score = _score(i, room, asked, model, -1, valued, table)
        else:
            for g in range(left.shape[0]):
                have, model = left[g, i], models[g, i]
                fresh = usable[n, g]
                for other in range(g):  # cards of a model with as much left score the same
                    if usable[n, other] and left[other, i] == have and models[other, i] == model:
                        fresh = False
                if fresh:
                    score = max(score, _score(i, room, asked, model, have, valued, table))
            rest = (2 * _TIER - 1 - score) & 1023
            free = idle[i] - (rest < 1000 and rest + milli >= 1000)
        value[i] += score * _RANKS
        then = max(free, 0), max(cpu - cpu_asked, 0), max(memory - memory_asked, 0)
        flags[i] = _lost(then, slots[i], exempt, guarded[:3])
