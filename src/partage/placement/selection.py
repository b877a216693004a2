"""Chooses prices by rehearsal, and reports when no prices beat the strategies that need none.

The worth of a table is a stable property of it, but no theory predicts it. So candidates play the same synthetic
arrivals. All of them play on a small part of the cluster, then the best on larger parts, and the last on the whole
cluster, from the current books. A candidate's gain is compared with its cost: kinds of pod that fail more often than
under FGD are charged. In the last round both are known well, so only failures beyond a limit are charged, but steeply.

Follows docs/design/rehearsed-prices.md, section 2.5. Runs off the decision path and is deterministic. Importing this
module imports numba where it is installed, which takes a second, so a deciding service does this in a separate process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from partage.model.device import MILLI
from partage.model.policy import Strategy
from partage.placement.fragmentation import Workload
from partage.placement.jit import COMPILED
from partage.placement.mix import Ask, Mix, Standing, Stock, workload_of
from partage.placement.price_candidates import CANDIDATES
from partage.placement.prices import Learner, SolverMissing
from partage.placement.rehearsal import Course, Outcome, Theatre, dressed, thinned
from partage.placement.tables import Prices, Tables

_ROUNDS: Final = ((4, 12, 4), (2, 5, 3))
"""Rounds: every n-th node; the numbers that continue for their merit, and for their strict merit."""
_RACE: Final = ((2, 4), (3, 3), (5, 1))
"""Runs on the whole cluster, and the candidates that remain after so many of them."""
_EARLY: Final = 2000  # pods; below this number there are
_FEW: Final = 16  # only so many candidates
_LARGE: Final = 8_000  # cards; a rehearsal never uses many more
_AT_FULL: Final = 0.25
_AHEAD: Final = 0.2  # points by which allocation must exceed FGD and first fit
_UNCHARGED: Final = -0.3  # percent of its kind that may fail beyond FGD
_MANY: Final = 0.1
_REFUSED: Final = 0.02
_REFUSED_LATER: Final = 3.0
_HARM: Final = 1.0  # percent of a kind: a table with a higher cost is not used
_STRICT: Final = 3.0
"""Points charged for each percent under the strict merit."""
_LIMIT: Final = 0.4
"""On the whole cluster, percent of a kind that may fail more often than under FGD without a charge."""
_SLOPE: Final = 3.0
"""Points of allocation that each percent beyond the limit costs."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of the rehearsals.

    Attributes:
        prices: the best; None if none is better than the fallback.
        stand_in: the fallback, the better of FGD and first fit.
    """

    prices: Prices | None
    stand_in: Strategy


@dataclass(frozen=True, slots=True, eq=False)
class _Stage:
    """A course with the outcomes for comparison."""

    course: Course
    fgd: Outcome
    first_fit: Outcome


def excess(found: Outcome, fgd: Outcome) -> tuple[float, ...]:
    """For each kind of pod, how many more fail than under FGD, in percent of the kind."""
    return tuple(
        100.0 * (mine - its) / max(1, came)
        for mine, its, came in zip(found.failed, fgd.failed, fgd.came, strict=True)
    )


def merit(found: Outcome, fgd: Outcome, first_fit: Outcome, slope: float = 1.0) -> float:
    """The merit of an outcome: points of allocation, less the charges for failed kinds of pod."""
    more = excess(found, fgd)
    paid = slope * sum(max(0.0, each - _UNCHARGED) for each in more[:3])
    paid += _MANY * max(0.0, more[3])
    for mine, others in (
        (found.at_full, max(fgd.at_full, first_fit.at_full)),
        (found.at_end, max(fgd.at_end, first_fit.at_end)),
    ):
        paid += max(0.0, others + _AHEAD - mine)
    paid += _REFUSED * max(0.0, fgd.first_refused - _REFUSED_LATER - found.first_refused)
    return found.at_end + _AT_FULL * found.at_full - paid


def _ranked(stage: _Stage, outcomes: Mapping[int, Outcome], slope: float) -> list[int]:
    """The numbers of the outcomes by falling merit."""
    worth = {n: merit(o, stage.fgd, stage.first_fit, slope) for n, o in outcomes.items()}
    return sorted(worth, key=lambda n: (-worth[n], n))


class _Tried:
    """A strategy's mean results in the last round.

    Attributes:
        plain: its allocation, at the end and to a quarter at full load.
        most_excess: the most that any kind of pod fails more than under FGD, percent of the kind.
        merit: see `merit`, with charges on the mean excess beyond the limit.
    """

    def __init__(self, stages: Sequence[_Stage], outcomes: Sequence[Outcome]) -> None:
        pairs = list(zip(stages, outcomes, strict=True))
        self.plain = float(np.mean([o.at_end + _AT_FULL * o.at_full for o in outcomes]))
        more = np.mean([excess(found, stage.fgd) for stage, found in pairs], axis=0)
        self.most_excess = float(more.max())
        worth = np.mean([merit(o, stage.fgd, stage.first_fit, 0.0) for stage, o in pairs])
        paid = np.maximum(more[:3] - _LIMIT, 0.0).sum()
        self.merit = float(worth - _SLOPE * paid)


class _Selection:
    """One choice: the candidates, and the stages on which they play."""

    def __init__(self, mix: Mix, stock: Stock) -> None:
        self.mix, self.stock = mix, stock
        self.theatre = Theatre(mix, stock)
        self.thinner = max(1, round(stock.capacity / MILLI / _LARGE))

    def narrowed(self, candidates: dict[int, Prices]) -> dict[int, Prices]:
        """The candidates that remain after the small rounds."""
        for every, best, careful in _ROUNDS:
            if len(candidates) <= best + careful:
                continue
            stage = self._stage(thinned(self.mix, self.stock, every * self.thinner, 0))
            outcomes = {n: self._priced(stage, prices) for n, prices in candidates.items()}
            kept = _ranked(stage, outcomes, 1.0)[:best]
            kept += [n for n in _ranked(stage, outcomes, _STRICT) if n not in kept][:careful]
            candidates = {n: candidates[n] for n in kept}
        return candidates

    def best(self, candidates: dict[int, Prices], standing: Standing | None) -> Choice:
        """The last round, in which FGD and first fit take part."""
        runs = range(_RACE[-1][0])
        if self.thinner > 1:
            courses = [thinned(self.mix, self.stock, self.thinner, 1 + n) for n in runs]
        else:
            courses = [dressed(self.mix, self.stock, standing, n) for n in runs]
        stages = [self._stage(course) for course in courses]
        fallbacks = Strategy.FGD, Strategy.FIRST_FIT
        played = {what: [self._continued(one, what) for one in stages] for what in fallbacks}
        found: dict[int, list[Outcome]] = {n: [] for n in sorted(candidates)}
        for count, kept in _RACE:
            for n, mine in found.items():
                mine += [self._priced(s, candidates[n]) for s in stages[len(mine) : count]]
            tried = {n: _Tried(stages[:count], mine) for n, mine in found.items()}
            fgd, first = (_Tried(stages[:count], played[what][:count]) for what in fallbacks)
            ahead = max(fgd.plain, first.plain)
            fine = {n for n, t in tried.items() if t.plain > ahead and t.most_excess <= _HARM}
            ranked = sorted((n not in fine, -tried[n].merit, n) for n in found)
            found = {n: found[n] for n in sorted(n for *_, n in ranked[:kept])}
        name = Strategy.FIRST_FIT if first.merit > fgd.merit else Strategy.FGD
        number = next(iter(found), None)
        if number is None or not (
            number in fine or tried[number].merit > max(fgd.merit, first.merit)
        ):
            return Choice(None, name)
        return Choice(candidates[number], name)

    def _priced(self, stage: _Stage, prices: Prices) -> Outcome:
        course = stage.course
        return self.theatre.outcome(course, self.theatre.prices(course, prices))

    def _continued(self, stage: _Stage, what: Strategy) -> Outcome:
        """The outcome of a fallback from the current books."""
        course, theatre = stage.course, self.theatre
        if not course.placed:  # the reference started from the same books
            return stage.fgd if what is Strategy.FGD else stage.first_fit
        play = theatre.fragmentation if what is Strategy.FGD else theatre.first_fit
        return theatre.outcome(course, play(course, anew=False))

    def _stage(self, course: Course) -> _Stage:
        theatre = self.theatre
        fgd, first_fit = theatre.fragmentation(course), theatre.first_fit(course)
        return _Stage(course, theatre.outcome(course, fgd), theatre.outcome(course, first_fit))


def chosen(mix: Mix, stock: Stock, standing: Standing | None = None) -> Choice | None:
    """The best prices for a mix, refused requests included, by rehearsal; without a solver only FGD or first fit.

    None if the mix has no request for cards, the cluster no cards, or numba is missing.
    """
    if not (COMPILED and mix.demand.any() and stock.cards.any()):
        return None
    selection = _Selection(mix, stock)
    try:
        learner = Learner(mix, stock)
    except SolverMissing:
        return selection.best({}, standing)
    configs = CANDIDATES[:_FEW] if mix.counts.sum() < _EARLY else CANDIDATES
    candidates = {n: learner.prices(config) for n, config in enumerate(configs)}
    return selection.best(selection.narrowed(candidates), standing)


def learned(
    tables: Tables, seen: Mapping[Ask, int], stock: Stock, standing: Standing | None = None
) -> Tables | None:
    """The tables in force, with the best prices for the requests seen or the best fallback; None as for `chosen`."""
    mix = Mix.of(seen, stock)
    choice = chosen(mix, stock, standing)
    if choice is None:
        return None
    return replace(
        tables,
        version=tables.version + 1,
        workload=workload_of(mix),
        prices=choice.prices,
        stand_in=choice.stand_in,
        expected=Workload(),
    )
