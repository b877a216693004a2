"""The hot loops node by node, compiled where numba (the extra `fast`) is installed.

They give the numbers of `kernel`, `baselines` and `fragmentation`, bit for bit (a law under test):
the same checks, the same floating-point operations in the same order. Without numba the functions
are plain Python, which is how the law is tried where numba is missing; nobody else calls them then.

Importing this module imports numba, which takes half a second: only drivers that decide a lot ask
for it.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

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
    result: F = njit(cache=True)(function)
    return result


class Change(NamedTuple):
    """What a placement does to a node: idle cards taken, or one card's compute going down."""

    idle: int
    before: int
    after: int


@_compiled
def _expected(
    i: int, cpu: int, total: int, kind: int, change: Change, counts: Counts, shapes: Shapes
) -> float:
    """Fragmentation of one node after a change."""
    both = lacking = starved = idle = blocked = barred = 0.0
    for k in range(shapes.cpu.size):
        everything = shapes.chance[k] * total
        if not shapes.allowed[k, kind]:
            barred += everything
            continue
        d = shapes.row[k]
        cards, rest = counts.fit[i, d] - change.idle, counts.small[i, d]
        if change.before >= 0:
            if change.before < shapes.thresholds[d]:
                rest += change.after - change.before
            elif change.after < shapes.thresholds[d]:
                cards -= 1
                rest += change.after
        enough = cards >= shapes.cards[k]
        if cpu >= shapes.cpu[k]:
            lacking += shapes.chance[k] * rest if enough else everything
        elif enough:
            starved += everything
        else:
            both += everything
    for k in range(shapes.plain_cpu.size):
        everything = shapes.plain_chance[k] * total
        if cpu >= shapes.plain_cpu[k]:
            idle += everything
        else:
            blocked += everything
    return ((((both + lacking) + starved) + idle) + blocked) + barred


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
    nothing = Change(0, -1, -1)
    for i in nodes:
        total = 0
        counts.fit[i, :] = 0
        counts.small[i, :] = 0
        for g in range(cards.open.shape[0]):
            free = cards.core_free[g, i] if cards.open[g, i] else 0
            counts.left[g, i] = free
            total += free
            for d in range(shapes.thresholds.size):
                if free >= shapes.thresholds[d]:
                    counts.fit[i, d] += 1
                else:
                    counts.small[i, d] += free
        counts.total[i] = total
        kind = cards.kind[0, i]
        counts.frag[i] = _expected(i, cpu_free[i], total, kind, nothing, counts, shapes)


@_compiled
def _share_points(
    i: int, g: int, milli: int, cpu: int, kind: int, counts: Counts, shapes: Shapes
) -> int:
    """FGD's score of taking `milli` from card `g` of node `i`."""
    before = counts.left[g, i]
    change = Change(0, before, before - milli)
    after = _expected(i, cpu, counts.total[i] - milli, kind, change, counts, shapes)
    return _points(counts.frag[i] - after, shapes.points)


@_compiled
def card_points(
    i: int, rows: Index, milli: int, cpu: int, kind: int, counts: Counts, shapes: Shapes
) -> Ints:
    """FGD's score of taking `milli` from each of some cards; `cpu` is left then."""
    result = np.zeros(rows.size, np.int64)
    for n in range(rows.size):
        result[n] = _share_points(i, rows[n], milli, cpu, kind, counts, shapes)
    return result


@_compiled
def _usable(i: int, g: int, suits: Bools, asked: Asked, cards: Cards) -> bool:
    """`kernel.fitting` of one card."""
    if not cards.open[g, i] or not suits[g, i] or cards.slots_free[g, i] <= 0:
        return False
    if (asked.whole or asked.alone) and cards.tenants[g, i] != 0:
        return False
    if asked.whole:
        return bool(cards.memory_free[g, i] >= cards.memory_total[g, i])
    need = asked.memory
    if asked.memory_milli:
        need = cards.memory_total[g, i] * asked.memory_milli // 1000
    if cards.memory_free[g, i] < need or cards.core_free[g, i] < asked.core:
        return False
    if asked.sharers >= 0 and cards.tenants[g, i] >= asked.sharers:
        return False
    return not (asked.claims and cards.core_free[g, i] <= 0)


@_compiled
def _packing(i: int, count: int, milli: int, cards: Cards) -> int:
    left = np.empty(cards.kind.shape[0], np.int64)
    present = free = fits = 0
    for g in range(cards.kind.shape[0]):
        have = cards.core_free[g, i] if cards.open[g, i] else 0
        if cards.kind[g, i] > 0:
            present += 1
            free += have >= 1000
        if have >= milli:
            left[fits] = have
            fits += 1
    if free == present:
        return max(33 - free, free)
    tight = np.sort(left[:fits])
    fresh = rest = 0
    for n in range(min(count, fits)):
        fresh += tight[n] >= 1000
        rest += tight[n] * 100 // 1000
    return max(50 - fresh, 33) if fresh > 0 else max(100 - rest // 10, 50)


@_compiled
def _clustering(i: int, total: int, asked: Asked, cards: Cards) -> int:
    score = max(25 * (8000 - total), 0) // 8000
    mine = 1 << min(asked.cards, 62) if asked.whole else 1
    if cards.hosted[i] & mine:
        return score + (75 if cards.hosted[i] == mine else 50)
    return score + (25 if cards.hosted[i] == 0 else 0)


@_compiled
def _norm(strategy: int, i: int, total: int, milli: int, room: Room) -> int:
    """BestFit and DotProd; `milli` is what all cards together shall give."""
    told = 0 if room.cpu_free[i] >= _UNKNOWN else room.cpu_free[i]
    if strategy == _BESTFIT:
        rest = (told - room.cpu_asked) / 128000.0 * 0.5
        rest += (total - milli) / 8000.0 * 0.5
        score = int((1 - rest) * 100.0)
    else:
        product = (told / 128000.0) * (room.cpu_asked / 128000.0)
        product += (total / 8000.0) * (milli / 8000.0)
        score = int(100.0 * (1 - product / 2.0))
    return min(max(score + _OFFSET, 0), _MOST)


@_compiled
def _gradient(
    i: int, usable: Bools, milli: int, asked: Asked, kind: int, room: Room, measured: Measured
) -> int:
    """FGD; cards with as much left score the same, so one of them is looked at."""
    counts, shapes = measured.counts, measured.shapes
    cpu = room.cpu_free[i] - room.cpu_asked
    if asked.whole or asked.cards == 0:
        change = Change(asked.cards, -1, -1)
        total = counts.total[i] - asked.cards * 1000
        after = _expected(i, cpu, total, kind, change, counts, shapes)
        return _points(counts.frag[i] - after, shapes.points)
    best = 0
    for g in range(usable.size):
        fresh = usable[g]
        for other in range(g):
            if usable[other] and counts.left[other, i] == counts.left[g, i]:
                fresh = False
        if fresh:
            best = max(best, _share_points(i, g, milli, cpu, kind, counts, shapes))
    return best


@_compiled
def rescore(
    nodes: Index, value: Ints, places: Places, room: Room, asked: Asked, suits: Bools,
    cards: Cards, measured: Measured,
) -> None:  # fmt: skip
    """Write the value of some nodes for one class of plain requests."""
    usable = np.zeros(cards.open.shape[0], np.bool_)
    milli = 1000 if asked.whole else asked.core
    columns, needs = room.columns, room.needs
    for i in nodes:
        value[i] = -1
        if not (places.present[i] and places.allowed[i]):
            continue
        short = columns[0][i] < needs[0] or columns[1][i] < needs[1]
        if short or columns[2][i] < needs[2] or columns[3][i] < needs[3]:
            continue
        fits = total = score = 0
        for g in range(usable.size):
            usable[g] = asked.cards > 0 and _usable(i, g, suits, asked, cards)
            fits += usable[g]
            total += cards.core_free[g, i] if cards.open[g, i] else 0
        if fits < asked.cards:
            continue
        if asked.strategy in (_BESTFIT, _DOTPROD):
            score = _norm(asked.strategy, i, total, asked.cards * milli, room)
        elif asked.strategy == _FGD:
            score = _gradient(i, usable, milli, asked, cards.kind[0, i], room, measured)
        elif asked.strategy == _PACKING and asked.cards:
            score = _packing(i, asked.cards, milli, cards)
        elif asked.strategy == _CLUSTERING and asked.cards:
            score = _clustering(i, total, asked, cards)
        score += places.preference[i] * _CEILING
        value[i] = score * _RANKS + (_RANKS - 1 - places.rank[i])
