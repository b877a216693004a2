"""The hot loops node by node, compiled where numba (the extra `fast`) is installed.

They give the numbers of `kernel`, `baselines` and `fragmentation`, bit for bit (a law under test):
the same checks, the same floating-point operations in the same order. Without numba the functions
are plain Python, which is how the law is tried where numba is missing; nobody else calls them then.

Importing this module imports numba, which takes half a second: only drivers that decide a lot ask
for it.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from partage.inventory.plane import Bools, Ints
from partage.model.policy import Strategy

__all__ = [
    "COMPILED",
    "STRATEGIES",
    "Asked",
    "Cards",
    "Counts",
    "Measured",
    "Places",
    "Room",
    "Shapes",
    "card_points",
    "measure",
    "rescore",
]

F = TypeVar("F", bound=Callable[..., Any])
Floats = NDArray[np.float64]
Index = NDArray[np.intp]

try:
    from numba import njit
except ImportError:
    COMPILED = False
else:
    COMPILED = True

_FIRST_FIT, _BESTFIT, _DOTPROD, _PACKING, _CLUSTERING, _FGD = range(6)
STRATEGIES: Final = {
    Strategy.FIRST_FIT: _FIRST_FIT,
    Strategy.BESTFIT: _BESTFIT,
    Strategy.DOTPROD: _DOTPROD,
    Strategy.GPUPACKING: _PACKING,
    Strategy.GPUCLUSTERING: _CLUSTERING,
    Strategy.FGD: _FGD,
}
"""Strategies that `rescore` knows, and their numbers."""

_CEILING: Final = 2**34
_RANKS: Final = 2**20
_OFFSET: Final = 1 << 32
_MOST: Final = (1 << 33) - 1
_UNKNOWN: Final = 2**61


class Cards(NamedTuple):
    """Columns of the plane of GPUs, and by node which kinds of pod it hosts."""

    open: Bools
    core_free: Ints
    memory_free: Ints
    memory_total: Ints
    slots_free: Ints
    tenants: Ints
    kind: Ints
    hosted: Ints


class Places(NamedTuple):
    """Nodes: whether they are there and in question, how much preferred, in which order."""

    present: Bools
    allowed: Bools
    preference: Ints
    rank: Ints


class Room(NamedTuple):
    """Ordinary resources: four columns with what is asked of each, and CPU once more."""

    columns: tuple[Ints, Ints, Ints, Ints]
    needs: tuple[int, int, int, int]
    cpu_free: Ints
    cpu_asked: int


class Asked(NamedTuple):
    """A plain request and the strategy; cards 0 for a pod without any, sharers -1 for no limit."""

    strategy: int
    cards: int
    whole: bool
    alone: bool
    core: int
    memory: int
    memory_milli: int
    sharers: int
    claims: bool


class Counts(NamedTuple):
    """A gauge's columns: `left` by card and node, `fit` and `small` by node and threshold."""

    left: Ints
    fit: Ints
    small: Ints
    total: Ints
    frag: Floats


class Shapes(NamedTuple):
    """A lens; see there."""

    cpu: Ints
    cards: Ints
    chance: Floats
    thresholds: Ints
    row: Index
    allowed: Bools
    plain_cpu: Ints
    plain_chance: Floats
    points: Floats


class Measured(NamedTuple):
    """A gauge; empty for strategies that look at none."""

    counts: Counts
    shapes: Shapes


def _compiled(function: F) -> F:
    if not COMPILED:
        return function
    return cast("F", njit(cache=True)(function))


# Inner functions take every array by itself: in compiled code, taking an array out of a tuple
# counts a reference, which in a loop costs more than the arithmetic.


@_compiled
def _expected(
    cpu: int, total: int, kind: int, idle: int, before: int, after: int, fit: Ints, small: Ints,
    s_cpu: Ints, s_cards: Ints, chance: Floats, thresholds: Ints, row: Index, allowed: Bools,
    p_cpu: Ints, p_chance: Floats,
) -> float:  # fmt: skip
    """Fragmentation of a node once `idle` idle cards, or one card's `before` - `after`, are taken.

    `fit` and `small` are the node's; `before` is -1 where no card is shared.
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


@_compiled
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


@_compiled
def measure(nodes: Index, cards: Cards, cpu_free: Ints, counts: Counts, shapes: Shapes) -> None:
    """Write a gauge's columns of some nodes."""
    open_, core_free, _, _, _, _, kind, _ = cards
    left, fit, small, totals, frag = counts
    s_cpu, s_cards, chance, thresholds, row, allowed, p_cpu, p_chance, _ = shapes
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
        frag[i] = _expected(
            cpu_free[i], total, kind[0, i], 0, -1, -1, fit[i], small[i], s_cpu, s_cards, chance,
            thresholds, row, allowed, p_cpu, p_chance,
        )  # fmt: skip


@_compiled
def card_points(
    i: int, rows: Index, milli: int, cpu: int, kind: int, counts: Counts, shapes: Shapes
) -> Ints:
    """FGD's score of taking `milli` from each of some cards; `cpu` is left then."""
    left, fit, small, totals, frag = counts
    s_cpu, s_cards, chance, thresholds, row, allowed, p_cpu, p_chance, steps = shapes
    result = np.zeros(rows.size, np.int64)
    for n in range(rows.size):
        before = left[rows[n], i]
        after = _expected(
            cpu, totals[i] - milli, kind, 0, before, before - milli, fit[i], small[i], s_cpu,
            s_cards, chance, thresholds, row, allowed, p_cpu, p_chance,
        )  # fmt: skip
        result[n] = _points(frag[i] - after, steps)
    return result


@_compiled
def _packing(left: Ints, present: int, count: int, milli: int) -> int:
    """GpuPacking; `left` is scratch, one entry a card position."""
    free = fresh = rest = taken = 0
    for g in range(left.size):
        free += left[g] >= 1000
    if free == present:
        return max(33 - free, free)
    while taken < count:  # tightest first
        best = -1
        for g in range(left.size):
            if left[g] >= milli and (best < 0 or left[g] < left[best]):
                best = g
        if best < 0:
            break
        fresh += left[best] >= 1000
        rest += left[best] * 100 // 1000
        left[best] = -1
        taken += 1
    return max(50 - fresh, 33) if fresh > 0 else max(100 - rest // 10, 50)


@_compiled
def _clustering(hosted: int, mine: int, total: int) -> int:
    score = max(25 * (8000 - total), 0) // 8000
    if hosted & mine:
        return score + (75 if hosted == mine else 50)
    return score + (25 if hosted == 0 else 0)


@_compiled
def _norm(strategy: int, cpu: int, cpu_asked: int, total: int, milli: int) -> int:
    """BestFit and DotProd; `milli` is what all cards together shall give."""
    told = 0 if cpu >= _UNKNOWN else cpu
    if strategy == _BESTFIT:
        rest = (told - cpu_asked) / 128000.0 * 0.5
        rest += (total - milli) / 8000.0 * 0.5
        score = int((1 - rest) * 100.0)
    else:
        product = (told / 128000.0) * (cpu_asked / 128000.0)
        product += (total / 8000.0) * (milli / 8000.0)
        score = int(100.0 * (1 - product / 2.0))
    return min(max(score + _OFFSET, 0), _MOST)


@_compiled
def rescore(
    nodes: Index, value: Ints, places: Places, room: Room, asked: Asked, suits: Bools,
    cards: Cards, measured: Measured,
) -> None:  # fmt: skip
    """Write the value of some nodes for one class of plain requests."""
    present, allowed, preference, rank = places
    (column0, column1, column2, column3), (need0, need1, need2, need3), cpu_free, cpu_asked = room
    strategy, count, whole, alone, core, memory, part, sharers, claims = asked
    open_, core_free, memory_free, memory_total, slots_free, tenants, kind, hosted = cards
    counts, shapes = measured
    _, fit, small, totals, frag = counts
    s_cpu, s_cards, chance, thresholds, row, accepts, p_cpu, p_chance, steps = shapes
    size = open_.shape[0]
    usable, have = np.zeros(size, np.bool_), np.zeros(size, np.int64)
    milli = 1000 if whole else core
    mine = 1 << min(count, 62) if whole else 1
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
        # 1. `kernel.fitting`, card by card; what rules out most cards is looked at first.
        fits = total = known = score = 0
        for g in range(size):
            usable[g], have[g] = False, 0
            known += kind[g, i] > 0
            if not open_[g, i]:
                continue
            have[g] = core_free[g, i]
            total += have[g]
            if count == 0 or not suits[g, i] or slots_free[g, i] <= 0:
                continue
            if (whole or alone) and tenants[g, i] != 0:
                continue
            if whole:
                if memory_free[g, i] < memory_total[g, i]:
                    continue
            else:
                need = memory_total[g, i] * part // 1000 if part else memory
                if have[g] < core or (need and memory_free[g, i] < need):
                    continue
                if (sharers >= 0 and tenants[g, i] >= sharers) or (claims and have[g] <= 0):
                    continue
            usable[g] = True
            fits += 1
        if fits < count:
            continue
        # 2. The strategy's score.
        if strategy in (_BESTFIT, _DOTPROD):
            score = _norm(strategy, cpu_free[i], cpu_asked, total, count * milli)
        elif strategy == _PACKING and count:
            score = _packing(have, known, count, milli)
        elif strategy == _CLUSTERING and count:
            score = _clustering(hosted[i], mine, total)
        elif strategy == _FGD and (whole or count == 0):
            after = _expected(
                cpu_free[i] - cpu_asked, totals[i] - count * 1000, kind[0, i], count, -1, -1,
                fit[i], small[i], s_cpu, s_cards, chance, thresholds, row, accepts, p_cpu,
                p_chance,
            )  # fmt: skip
            score = _points(frag[i] - after, steps)
        elif strategy == _FGD:
            for g in range(size):
                fresh = usable[g]
                for other in range(g):  # cards with as much left score the same
                    fresh = fresh and not (usable[other] and have[other] == have[g])
                if fresh:
                    after = _expected(
                        cpu_free[i] - cpu_asked, totals[i] - milli, kind[0, i], 0, have[g],
                        have[g] - milli, fit[i], small[i], s_cpu, s_cards, chance, thresholds,
                        row, accepts, p_cpu, p_chance,
                    )  # fmt: skip
                    score = max(score, _points(frag[i] - after, steps))
        score += preference[i] * _CEILING
        value[i] = score * _RANKS + (_RANKS - 1 - rank[i])
