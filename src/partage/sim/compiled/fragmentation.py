"""FGD: fragmentation of nodes, and how much it grows; see `placement.fragmentation`."""

from typing import Final

import numpy as np

from partage.inventory.plane import Bools, Floats, Index, Ints
from partage.placement.jit import compiled
from partage.sim.compiled.columns import Counts, Found, Shapes, Wanted

_RANKS: Final = 2**20

# Inner functions take every array by itself, because compiled code counts a reference when it takes an array out of a
# tuple. In a loop this costs more than the arithmetic.


@compiled
def _expected(
    cpu: int,
    total: int,
    kind: int,
    idle: int,
    before: int,
    after: int,
    fit: Ints,
    small: Ints,
    s_cpu: Ints,
    s_cards: Ints,
    chance: Floats,
    thresholds: Ints,
    row: Index,
    allowed: Bools,
    p_cpu: Ints,
    p_chance: Floats,
    _steps: Floats,
) -> float:
    """Fragmentation of a node after `idle` idle cards, or one card's `before` - `after`, are taken.

    `fit` and `small` are the node's; `before` is -1 if no card is shared.
    """
    both = lacking = starved = spare = blocked = barred = 0.0
    for k in range(s_cpu.size):
        everything = chance[k] * total
        if not allowed[k, kind]:
            barred += everything
            continue
        d = row[k]
        cards, rest = fit[d] - idle, small[d]
        if before >= 0:
            if before < thresholds[d]:
                rest += after - before
            elif after < thresholds[d]:
                cards -= 1
                rest += after
        enough = cards >= s_cards[k]
        if cpu >= s_cpu[k]:
            lacking += chance[k] * rest if enough else everything
        elif enough:
            starved += everything
        else:
            both += everything
    for k in range(p_cpu.size):
        everything = p_chance[k] * total
        if cpu >= p_cpu[k]:
            spare += everything
        else:
            blocked += everything
    return ((((both + lacking) + starved) + spare) + blocked) + barred


@compiled
def _points(drop: float, steps: Floats) -> int:
    """How many of the ascending steps are at most `drop`."""
    low, high = 0, steps.size
    while low < high:
        middle = (low + high) // 2
        if steps[middle] <= drop:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def measure(
    nodes: Index,
    open_: Bools,
    core_free: Ints,
    kind: Ints,
    cpu_free: Ints,
    counts: Counts,
    shapes: Shapes,
) -> None:
    """Write a gauge's columns of some nodes."""
    left, fit, small, totals, frag = counts
    thresholds = shapes[3]
    for i in nodes:
        total = 0
        fit[i, :] = 0
        small[i, :] = 0
        for g in range(open_.shape[0]):
            free = core_free[g, i] if open_[g, i] else 0
            left[g, i] = free
            total += free
            for d in range(thresholds.size):
                if free >= thresholds[d]:
                    fit[i, d] += 1
                else:
                    small[i, d] += free
        totals[i] = total
        frag[i] = _expected(cpu_free[i], total, kind[0, i], 0, -1, -1, fit[i], small[i], *shapes)


@compiled
def card_points(i: int, milli: int, cpu: int, kind: int, counts: Counts, shapes: Shapes) -> Ints:
    """FGD's score of taking `milli` from each card of a node, 0 for a card with less.

    The given CPU is left then.
    """
    left, fit, small, totals, frag = counts
    steps = shapes[8]
    result = np.zeros(left.shape[0], np.int64)
    for g in range(left.shape[0]):
        before = left[g, i]
        if before < milli:
            continue
        twin = g
        for other in range(g):  # cards with as much left score the same
            if left[other, i] == before:
                twin = other
        if twin < g:
            result[g] = result[twin]
            continue
        after = _expected(
            cpu, totals[i] - milli, kind, 0, before, before - milli, fit[i], small[i], *shapes
        )
        result[g] = _points(frag[i] - after, steps)
    return result


@compiled
def node_points(
    many: int,
    found: Found,
    value: Ints,
    wanted: Wanted,
    cpu_free: Ints,
    kind: Ints,
    counts: Counts,
    shapes: Shapes,
) -> None:
    """Add the score of the first `many` nodes found to their value."""
    chosen, usable = found
    count, milli, whole, cpu_asked, _ = wanted
    left, fit, small, totals, frag = counts
    steps = shapes[8]
    for n in range(many):
        i = chosen[n]
        cpu, model = cpu_free[i] - cpu_asked, kind[0, i]
        score = 0
        if whole or not count:
            rest = totals[i] - count * 1000
            after = _expected(cpu, rest, model, count, -1, -1, fit[i], small[i], *shapes)
            score = _points(frag[i] - after, steps)
        else:
            for g in range(left.shape[0]):
                have = left[g, i]
                fresh = usable[n, g]
                for other in range(g):  # cards with as much left score the same
                    fresh = fresh and not (usable[n, other] and left[other, i] == have)
                if fresh:
                    rest, now = totals[i] - milli, have - milli
                    after = _expected(cpu, rest, model, 0, have, now, fit[i], small[i], *shapes)
                    score = max(score, _points(frag[i] - after, steps))
        value[i] += score * _RANKS
