"""Rehearsals: synthetic arrivals of a mix, replayed on arrays under prices, FGD or first fit.

A rehearsal runs off the decision path and changes nothing: it measures a set of prices. Arrivals follow the mix that
was seen, in random order. The cluster is the empty one, a part of it, or the current books. Pods that kube-scheduler
places always go to the nodes that its own scores prefer. They take CPU that cards need, so prices that do well where
the engine places every pod may do badly there.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from partage.inventory.plane import Bools, Index, Ints
from partage.model.device import MILLI
from partage.placement import rehearsal_loops
from partage.placement.fragmentation import Lens, Workload
from partage.placement.mix import Mix, Standing, Stock, workload_of
from partage.placement.priced import SCARCE, set_bonus
from partage.placement.rehearsal_loops import Asked, Books, Kept, Usual, Worth
from partage.placement.slot_reservation import MIB, Guard
from partage.placement.tables import Prices

LOAD: Final = 1.3
"""Compute that arrives in a rehearsal, as a multiple of the cluster's."""
_FULL: Final = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """One rehearsal: nodes in the order of preference, and the arrivals.

    Attributes:
        stock: the empty nodes.
        arrivals: rows of the mix.
        placed: so many of the first arrivals run already,
        books: the amounts left on the nodes then.
    """

    stock: Stock
    arrivals: Ints
    placed: int
    books: Books


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a rehearsal.

    Attributes:
        at_full: allocation when the arrivals equal the cluster's compute, percent.
        at_end: allocation at the end, percent.
        failed: pods without a place: without cards, fractions, one card, many cards.
        came: arrived pods of these kinds.
        first_refused: load in percent when the first pod of many cards is refused; that of the end if none is.
    """

    at_full: float
    at_end: float
    failed: tuple[int, int, int, int]
    came: tuple[int, int, int, int]
    first_refused: float


def thinned(mix: Mix, stock: Stock, every: int, number: int) -> Course:
    """A rehearsal on an empty cluster of every n-th node of each type.

    Args:
        every: 1 for all nodes.
        number: distinguishes rehearsals of one size; the same number draws the same.
    """
    chance = np.random.default_rng(100 * every + number)
    part = _part(stock, every)
    arrivals = _drawn(mix, part.capacity, LOAD, chance)
    part = _ordered(part, chance.permutation(part.cpu.size))
    return Course(part, arrivals, 0, _empty(part))


def dressed(mix: Mix, stock: Stock, standing: Standing | None, number: int) -> Course:
    """A rehearsal on the whole cluster, from the current books."""
    running = [standing.running.get(ask, 0) for ask in mix.asks] if standing is not None else []
    if standing is None or not any(running):
        return thinned(mix, stock, 1, number)
    chance = np.random.default_rng(100 + number)
    past = chance.permutation(np.repeat(np.arange(mix.counts.size), running))
    held = float((mix.cards * mix.milli)[past].sum()) / max(stock.capacity, 1)
    future = _drawn(mix, stock.capacity, max(LOAD - held, 0.0), chance)
    order = chance.permutation(stock.cpu.size)
    mine = _ordered(stock, order)
    books = Books(
        standing.cpu[order],
        standing.memory[order],
        standing.left[order],
        mine.cards,
        mine.model,
        mine.cpu,
        mine.memory,
    )
    return Course(mine, np.concatenate((past, future)), past.size, books)


def _part(stock: Stock, every: int) -> Stock:
    """Every n-th node of each type, the first of each included."""
    seen: dict[tuple[int, ...], int] = {}
    keep = []
    columns = (stock.cpu, stock.memory, stock.cards, stock.model)
    for row, type_ in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        seen[type_] = seen.get(type_, -1) + 1
        if seen[type_] % every == 0:
            keep.append(row)
    return _ordered(stock, np.array(keep, np.intp))


def _ordered(stock: Stock, rows: Index) -> Stock:
    columns = (stock.cpu[rows], stock.memory[rows], stock.cards[rows], stock.model[rows])
    return Stock(*columns, stock.models)


def _empty(stock: Stock) -> Books:
    width = int(stock.cards.max(initial=0))
    left: Ints = np.where(np.arange(width) < stock.cards[:, None], MILLI, 0)
    empty = stock.cpu, stock.memory
    return Books(*empty, left, stock.cards, stock.model, *empty)


def _drawn(mix: Mix, capacity: int, load: float, chance: np.random.Generator) -> Ints:
    """Arrivals that ask `load` times the cluster's compute, in random order.

    Each ask arrives in proportion to its share, with random rounding. If arrivals were drawn one by one, the CPU load
    alone would differ between runs by more than candidates do.
    """
    demand = mix.cards * mix.milli
    pods = load * capacity * float(mix.counts.sum()) / max(float(mix.demand.sum()), 1.0)
    wanted = mix.counts / max(float(mix.counts.sum()), 1.0) * (pods + 1)
    times = np.floor(wanted + chance.random(wanted.size)).astype(np.int64)
    arrivals = chance.permutation(np.repeat(np.arange(wanted.size), times))
    enough = int(np.searchsorted(np.cumsum(demand[arrivals]), load * capacity)) + 1
    result: Ints = arrivals[:enough].astype(np.int64)
    return result


class Theatre:
    """Plays courses for one mix and cluster."""

    def __init__(self, mix: Mix, stock: Stock) -> None:
        """Prepare for courses on `stock` or a part of it."""
        self.mix = mix
        milli = np.minimum(mix.milli, MILLI)
        self._asked = Asked(mix.cpu, mix.memory, mix.cards, milli, mix.allowed, mix.elsewhere)
        self._usual = _usual(workload_of(mix), stock)

    def prices(self, course: Course, prices: Prices) -> Ints:
        """Row of the node of each arrival under prices, -1 for none; 0 for already running pods."""
        worth, kept = _worth(prices, course.stock), _kept(prices, self.mix)
        arrivals, books, node, rest = _start(course, anew=False)
        pairs, reserves = worth.core.size, kept.need.size
        mine = rehearsal_loops.notes(arrivals, books, self._asked, pairs, reserves)
        rehearsal_loops.play_priced(arrivals, books, self._asked, worth, kept, mine, rest)
        return node

    def fragmentation(self, course: Course, *, anew: bool = True) -> Ints:
        """The same under FGD.

        Args:
            anew: from the empty cluster, with the running pods placed first; otherwise from the current books.
        """
        arrivals, books, node, rest = _start(course, anew=anew)
        mine = rehearsal_loops.notes(arrivals, books, self._asked, usual=self._usual.cpu.size)
        rehearsal_loops.play_fragmentation(arrivals, books, self._asked, self._usual, mine, rest)
        return node

    def first_fit(self, course: Course, *, anew: bool = True) -> Ints:
        """The same under first fit."""
        arrivals, books, node, rest = _start(course, anew=anew)
        mine = rehearsal_loops.notes(arrivals, books, self._asked)
        rehearsal_loops.play_first_fit(arrivals, books, self._asked, mine, rest)
        return node

    def outcome(self, course: Course, node: Ints) -> Outcome:
        """The outcome of a course's replay."""
        cards, milli = self._asked.cards[course.arrivals], self._asked.milli[course.arrivals]
        demand = cards * milli
        capacity = max(course.stock.capacity, 1)
        load = np.cumsum(demand) * _FULL / capacity
        used = np.cumsum(np.where(node >= 0, demand, 0)) * _FULL / capacity
        single, failed = cards == 1, node < 0
        kinds: list[Bools] = [
            cards == 0,
            single & (milli < MILLI),
            single & (milli >= MILLI),
            cards > 1,
        ]
        lost, came = (
            [int((kind & some).sum()) for kind in kinds] for some in (failed, cards >= 0)
        )
        refused = np.flatnonzero(failed & (cards > 1))
        full = max(int(np.searchsorted(load, _FULL)) - 1, 0)
        return Outcome(
            float(used[full]) if used.size else 0.0,
            float(used[-1]) if used.size else 0.0,
            (lost[0], lost[1], lost[2], lost[3]),
            (came[0], came[1], came[2], came[3]),
            float(load[refused[0]]) if refused.size else LOAD * _FULL,
        )


def _start(course: Course, *, anew: bool) -> tuple[Ints, Books, Ints, Ints]:
    """The pods to place, the nodes, the row of each arrival's node, and the part to write."""
    first = 0 if anew else course.placed
    node: Ints = np.zeros(course.arrivals.size, np.int64)
    begun = _empty(course.stock) if anew else course.books
    books = Books(*(column.copy() for column in begun))
    return course.arrivals[first:], books, node, node[first:]


def _worth(prices: Prices, stock: Stock) -> Worth:
    width = int(stock.cards.max(initial=0))
    return Worth(
        prices.worth,
        np.ascontiguousarray(prices.pairs[:, 0]),
        np.ascontiguousarray(prices.pairs[:, 1]),
        SCARCE * prices.scarcity,
        set_bonus(prices, width),
    )


def _kept(prices: Prices, mix: Mix) -> Kept:
    """The reserves as columns; the rule of `Guard` decides which asks may take their slots."""
    guard = Guard(prices, 0)
    known = guard.allowed[:, : len(prices.models)].copy()
    free = [
        guard.exempt({"cpu": cpu}, count)
        for cpu, count in zip(mix.cpu.tolist(), mix.cards.tolist(), strict=True)
    ]
    may_take = np.array(free, np.bool_).reshape(mix.cpu.size, len(prices.reserves))
    memory = guard.memory // MIB
    return Kept(guard.cards, guard.cpu, memory, known, may_take, guard.need, guard.per_pod)


def _usual(workload: Workload, stock: Stock) -> Usual:
    lens = Lens.of(workload, stock.models)
    with_cards = lens.cpu, lens.count, lens.chance, lens.milli, lens.allowed
    return Usual(*with_cards, lens.plain_cpu, lens.plain_chance, lens.points)
