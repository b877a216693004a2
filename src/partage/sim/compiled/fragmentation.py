"""FGD: fragmentation of nodes, and how much it grows; see `placement.fragmentation`."""

from typing import Final

from partage.inventory.plane import Bools, Floats, Index, Ints
from partage.placement.jit import compiled
from partage.sim.compiled.columns import Counts, Found, Shapes, Wanted

_RANKS: Final = 2**20


@compiled
def _expected(
    cpu: int,
    total: int,
    kind: int,
    change: tuple[int, int, int],
    fit: Ints,
    small: Ints,
    shapes: Shapes,
) -> float:
    """Fragmentation of a node after so many idle cards, or a part of one card, are taken.

    Args:
        change: idle cards taken; what the shared card had left, -1 for none; and what it has left then.
        fit: the node's counts before, as `small`.
    """
    s_cpu, s_cards, chance, thresholds, row, allowed, p_cpu, p_chance, _ = shapes
    idle, before, after = change
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
        nothing = 0, -1, -1
        frag[i] = _expected(cpu_free[i], total, kind[0, i], nothing, fit[i], small[i], shapes)


@compiled
def card_points(
    i: int, milli: int, cpu: int, kind: int, counts: Counts, shapes: Shapes, result: Ints
) -> None:
    """Write FGD's score of taking `milli` from each card of a node that has as much; the given CPU is left then."""
    left, fit, small, totals, frag = counts
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
        change = 0, before, before - milli
        after = _expected(cpu, totals[i] - milli, kind, change, fit[i], small[i], shapes)
        result[g] = _points(frag[i] - after, shapes[8])


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
            after = _expected(cpu, rest, model, (count, -1, -1), fit[i], small[i], shapes)
            score = _points(frag[i] - after, steps)
        else:
            for g in range(left.shape[0]):
                have = left[g, i]
                fresh = usable[n, g]
                for other in range(g):  # cards with as much left score the same
                    fresh = fresh and not (usable[n, other] and left[other, i] == have)
                if fresh:
                    rest, change = totals[i] - milli, (0, have, have - milli)
                    after = _expected(cpu, rest, model, change, fit[i], small[i], shapes)
                    score = max(score, _points(frag[i] - after, steps))
        value[i] += score * _RANKS
