"""Bounds that no policy without migration can exceed: cutting stock on the compute of cards.

`ceiling` leaves out CPU, memory, the borders of nodes and models, so it is generous. `ceiling_with_cpu` has CPU, memory
and models too, and pods without cards, but sums over equal nodes. Pods that arrive early must get their place, later
ones may, so a bound holds for every policy that placed all early ones. Column generation solves it: patterns of shares
that fit one card together. Sizes are rounded down to hundredths of a card, so it stays a bound.

Needs `highspy` (the extra `solver`).
"""

from collections import Counter
from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any, Final

import numpy as np

from partage.model.device import MILLI
from partage.model.errors import PartageError
from partage.placement.mix import Ask
from partage.placement.prices import knapsack, solver, taken
from partage.sim.openb import NodeRow, PodRow, Sequence, Trace
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
    if not may or not trace.capacity:
        return 0.0
    everything = NodeRow("", 0, 0, trace.capacity // MILLI, "")
    value, missing = _Programme(Counter([everything]), may, must).solved()
    if missing > _BETTER:
        raise PartageError(
            f"no placement holds all pods that arrive before {placed:.0%} load; try a lower one"
        )
    return min(100.0 * value / trace.capacity, 100.0)


def ceiling_with_cpu(trace: Trace, sequence: Sequence, early: int) -> float:
    """The most compute that can be allocated at the end of a sequence, percent of the cluster's, within CPU and memory.

    `early`: the first pods of the sequence that must get their place. Raises `SolverMissing`: no solver is installed;
    `PartageError`: these pods cannot all be placed.
    """
    asks = [trace.pods[row].ask for row in sequence.pods]
    sorts = Counter(replace(node, name="") for node in trace.nodes)
    value, missing = _Programme(sorts, Counter(asks), Counter(asks[:early])).solved()
    if missing > _BETTER:
        raise PartageError(f"no placement holds the first {early} pods; try fewer")
    return min(100.0 * value / max(trace.capacity, 1), 100.0)


def unrefused(run: Run) -> int:
    """The number of pods before the first refusal."""
    refused = np.flatnonzero(run.node < 0)
    return int(refused[0]) if refused.size else int(run.node.size)


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


def _cards(pods: list[PodRow]) -> Counter[Ask]:
    """Number of cards asked, by the compute asked of each."""
    counts: Counter[Ask] = Counter()
    for pod in pods:
        if pod.demand:
            counts[Ask(0, 0, 1, pod.milli)] += pod.cards
    return counts


class _Programme:
    """Pods of each ask on each sort of node, and patterns on its cards."""

    def __init__(self, sorts: Counter[NodeRow], may: Counter[Ask], must: Counter[Ask]) -> None:
        self.sorts = list(sorts.items())
        milli = {ask.milli for ask in may if ask.count} or {MILLI}
        self.sizes = np.array(sorted(milli), np.int64)
        self.units = np.maximum(self.sizes // _UNIT, 1)
        self.highspy = solver()
        self.h: Any = self.highspy.Highs()
        self.h.silent()
        self.value: list[int] = []
        asks = sorted(may)
        for ask in asks:
            self._row(float(must[ask]), float(may[ask]))
        self.first = len(asks)
        # Rows of a sort: CPU, memory, cards, and shares of each size.
        self.width = 3 + self.sizes.size
        for sort, nodes in self.sorts:
            for amount in (sort.cpu_milli, sort.memory_mib, sort.cards):
                self._row(-self.highspy.kHighsInf, float(amount * nodes))
            for size in self.sizes.tolist():  # a share below a hundredth needs no room
                self._row(-self.highspy.kHighsInf, self.highspy.kHighsInf if size < _UNIT else 0.0)
        for row in range(len(asks)):
            self._add(_FORBIDDEN, {row: 1.0})
        for row, ask in enumerate(asks):
            for at, (sort, _) in enumerate(self.sorts):
                if _hosts(sort, ask):
                    self._pods(row, at, ask)
        for at in range(len(self.sorts)):
            for kind, unit in enumerate(self.units.tolist()):
                self._pattern(at, {kind: 100 // unit})

    def solved(self) -> tuple[float, float]:
        """The most compute served, milli, and how many required pods have no place."""
        for _ in range(_ROUNDS):
            self.h.run()
            dual = -np.array(self.h.getSolution().row_dual)[self.first :]
            dual = dual.reshape(len(self.sorts), self.width)
            best, last = knapsack(self.units, np.ascontiguousarray(dual[:, 3:]))
            better = np.flatnonzero(best[100] > dual[:, 2] + _BETTER)
            if not better.size:
                break
            for at in better.tolist():
                self._pattern(at, taken(self.units, last[:, at]))
        used = np.array(self.h.getSolution().col_value)
        earned = np.array(self.value, np.float64)
        return float((used * earned).sum()), float(used[: self.first].sum())

    def _pods(self, row: int, at: int, ask: Ask) -> None:
        base = self.first + at * self.width
        needs = {row: 1.0, base: float(ask.cpu_milli), base + 1: float(ask.memory_mib)}
        if ask.count:
            kind = int(np.searchsorted(self.sizes, ask.milli))
            needs[base + 3 + kind] = float(ask.count)
        self._add(-float(ask.count * ask.milli), needs)

    def _pattern(self, at: int, pattern: dict[int, int]) -> None:
        base = self.first + at * self.width
        self._add(
            0.0, {base + 2: 1.0} | {base + 3 + kind: -float(n) for kind, n in pattern.items()}
        )

    def _row(self, least: float, most: float) -> None:
        self.h.addRow(least, most, 0, np.array([], np.int32), np.array([], np.float64))

    def _add(self, cost: float, needs: dict[int, float]) -> None:
        some = sorted((row, need) for row, need in needs.items() if need)
        rows, values = (np.array(column) for column in zip(*some, strict=True))
        most = self.highspy.kHighsInf
        self.h.addCol(cost, 0.0, most, rows.size, rows.astype(np.int32), values)
        self.value.append(0 if cost > 0 else -int(cost))


def _hosts(node: NodeRow, ask: Ask) -> bool:
    """Whether such a node, empty, has all that a pod asks for."""
    enough = node.cpu_milli >= ask.cpu_milli and node.memory_mib >= ask.memory_mib
    return enough and node.cards >= ask.count and (not ask.models or node.model in ask.models)
