"""A bound that no policy without migration can exceed: cutting stock on the compute of cards alone.

CPU, memory, the borders of nodes and models are left out, so the bound is generous. Every pod that arrives before a
given load must get its place, later ones may, so the bound holds for every policy that placed all of them. Column
generation solves it: patterns of shares that fit one card together. Sizes are rounded down to hundredths of a card, so
it stays a bound.

Needs `highspy` (the extra `solver`).
"""

from collections import Counter
from collections.abc import Sequence as Several
from typing import Any, Final

import numpy as np

from partage.model.device import MILLI
from partage.model.errors import PartageError
from partage.placement.prices import knapsack, solver, taken
from partage.sim.openb import PodRow, Sequence, Trace
from partage.sim.replay import Run

PLACED: Final = 0.9
"""Load up to which every pod must get its place, unless another is given."""
_UNIT: Final = 10  # milli
_ROUNDS: Final = 500
_BETTER: Final = 1e-6
_FORBIDDEN: Final = 1e7


def ceiling(trace: Trace, sequence: Sequence, placed: float = PLACED) -> float:
    """The most compute that can be allocated at the end of a sequence, percent of the cluster's.

    `placed`: part of the cluster's compute that arrives before a pod may be refused. Raises `SolverMissing`: no solver
    is installed; `PartageError`: this part cannot be placed at all.
    """
    pods = [trace.pods[row] for row in sequence.pods]
    arrived = np.cumsum([pod.demand for pod in pods]) / max(trace.capacity, 1)
    early = int(np.searchsorted(arrived, placed, side="right"))
    must, may = _cards(pods[:early]), _cards(pods)
    sizes = np.array(sorted(may), np.int64)
    if not sizes.size or not trace.capacity:
        return 0.0
    lower, upper = ([float(cards[size]) for size in sizes.tolist()] for cards in (must, may))
    value, missing = _solved(sizes, lower, upper, trace.capacity // MILLI)
    if missing > _BETTER:
        raise PartageError(
            f"no placement holds all pods that arrive before {placed:.0%} load; try a lower one"
        )
    return min(100.0 * value / trace.capacity, 100.0)


def over(runs: Several[Run]) -> float:
    """The bound on some runs: every pod that arrived before the first refusal in any of them is placed.

    No run can exceed it. The runs are of one trace and sequence, and no pod ends in them. Raises `SolverMissing`: no
    solver is installed.
    """
    trace, sequence = runs[0].trace, runs[0].sequence
    demand = np.array([trace.pods[row].demand for row in sequence.pods], np.int64)
    refused = [np.flatnonzero((run.node < 0) & (demand > 0)) for run in runs]
    first = min((int(found[0]) for found in refused if found.size), default=demand.size)
    return ceiling(trace, sequence, float(demand[:first].sum()) / max(trace.capacity, 1))


def _cards(pods: list[PodRow]) -> Counter[int]:
    """Number of cards asked, by the request of each."""
    counts: Counter[int] = Counter()
    for pod in pods:
        if pod.demand:
            counts[pod.milli] += pod.cards
    return counts


def _solved(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]],
    lower: list[float],
    upper: list[float],
    cards: int,
) -> tuple[float, float]:
    """The most compute served, milli, and how many required shares are not served."""
    units = np.maximum(sizes // _UNIT, 1)
    kinds = sizes.size
    highspy = solver()
    h: Any = highspy.Highs()
    h.silent()
    none = np.array([], np.int32), np.array([], np.float64)
    # Served at most the amount cut, but shares below a hundredth need no room; cards.
    limits = np.where(sizes < _UNIT, highspy.kHighsInf, 0.0).tolist()
    for limit in (*limits, float(cards)):
        h.addRow(-highspy.kHighsInf, limit, 0, *none)
    for kind, size in enumerate(sizes.tolist()):
        h.addCol(-float(size), lower[kind], upper[kind], 1, np.array([kind], np.int32), np.ones(1))
    # Extra shares keep it solvable; they cost more than anything earns.
    rows = np.arange(kinds, dtype=np.int32)
    h.addCol(_FORBIDDEN, 0.0, highspy.kHighsInf, kinds, rows, -np.ones(kinds))
    for kind, unit in enumerate(units.tolist()):
        _add(highspy, h, kinds, {kind: 100 // unit})
    for _ in range(_ROUNDS):
        h.run()
        dual = -np.array(h.getSolution().row_dual)
        best, last = knapsack(units, dual[None, :kinds])
        if best[100, 0] <= dual[kinds] + _BETTER:
            break
        _add(highspy, h, kinds, taken(units, last[:, 0]))
    solution = np.array(h.getSolution().col_value)
    return float((solution[:kinds] * sizes).sum()), float(solution[kinds])


def _add(highspy: Any, h: Any, kinds: int, pattern: dict[int, int]) -> None:
    parts = sorted(pattern.items())
    rows = np.array([*(kind for kind, _ in parts), kinds], np.int32)
    values = np.array([*(-float(n) for _, n in parts), 1.0])
    h.addCol(0.0, 0.0, highspy.kHighsInf, rows.size, rows, values)
