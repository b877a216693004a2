"""The measures of a run: the paper's metrics, and waiting times if pods end.

Published metrics are the authors': *arrived load* counts every request up to an event, refused ones included, in
percent of the cluster's compute; the value at load x is the mean over all events whose arrived load rounds to x.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from partage.inventory.plane import Floats, Ints
from partage.model.device import MILLI
from partage.placement.fragmentation import Lens, fragmentation
from partage.sim.replay import Run

LEVELS: Final = (80, 90, 100, 110, 120, 130)
"""Arrived loads at which results are given, percent."""
KINDS: Final = ("cpu-only", "fraction", "one-card", "many-cards")
_BATCH: Final = 2048


@dataclass(frozen=True, slots=True)
class Curves:
    """Metrics by arrived load, in whole percent; absent if no event falls on a load.

    Attributes:
        allocation: allocated compute, percent of the cluster's.
        frag: compute that the usual requests cannot use, percent of the cluster's.
        frag_ratio: the same in percent of the free compute.
        idle: unallocated compute, in cards.
    """

    allocation: dict[int, float]
    frag: dict[int, float]
    frag_ratio: dict[int, float]
    idle: dict[int, float]

    @staticmethod
    def at(curve: dict[int, float], levels: Iterable[int] = LEVELS) -> dict[str, float | None]:
        """A curve's values at some loads, None for a load without one."""
        return {str(level): curve.get(level) for level in levels}


def _demand(run: Run) -> Ints:
    return np.array([pod.demand for pod in run.arrived], np.int64)


def arrived_load(run: Run) -> Floats:
    """Arrived load after each event, percent."""
    return np.cumsum(_demand(run)) * 100.0 / max(run.trace.capacity, 1)


def allocation_of(run: Run) -> Floats:
    """Allocated compute after each event, percent of the cluster's, to two decimals as published."""
    taken = np.where(run.node >= 0, _demand(run), 0)
    return np.round(np.cumsum(taken) * 100.0 / max(run.trace.capacity, 1), 2)


def curves(run: Run) -> Curves:
    """All curves of a run of the published protocol."""
    level = np.round(arrived_load(run)).astype(np.int64)
    capacity = max(run.trace.capacity, 1)
    allocation = _means(level, allocation_of(run))
    stuck = _fragmentation(run)
    free = run.trace.capacity - np.cumsum(np.where(run.node >= 0, _demand(run), 0))
    amount = _means(level, np.round(stuck, 2))
    ratio = _means(level, 100.0 * stuck / np.maximum(free, 1))
    cards = run.trace.capacity / MILLI
    return Curves(
        allocation={x: _rounded(value) for x, value in allocation.items()},
        frag={x: _rounded(100.0 * value / capacity) for x, value in amount.items()},
        frag_ratio={x: _rounded(value) for x, value in ratio.items()},
        idle={x: _rounded((100.0 - value) * cards / 100.0) for x, value in allocation.items()},
    )


def _rounded(value: float) -> float:
    """Two decimals by NumPy's rule, which made the published table."""
    return float(np.round(value, 2))


def _means(level: Ints, values: Floats) -> dict[int, float]:
    """Mean of the values at each load."""
    return {int(x): float(values[level == x].mean()) for x in np.unique(level)}


def _fragmentation(run: Run) -> Floats:
    """Fragmentation of the cluster in milli after each event."""
    ledger = run.engine.ledger
    lens = Lens.of(run.workload, ledger.models)
    rows = [ledger.index[node.name] for node in run.trace.nodes]
    placed = np.flatnonzero(run.node >= 0)
    plane = next(iter(ledger.planes.values()))
    kind = plane.kind[0, rows]
    cpu = np.array([node.cpu_milli for node in run.trace.nodes], np.int64)
    left = plane.core_total[:, rows]
    current = _batched(lens, cpu, left, kind)
    total = float(current.sum())
    result = np.full(run.node.size, total)
    if not placed.size:
        return result
    nodes = run.node[placed]
    after = _batched(
        lens, np.array(run.cpu_left, np.int64), np.stack(run.card_left, axis=1), kind[nodes]
    )
    change = np.zeros(run.node.size)
    for event, node, value in zip(placed.tolist(), nodes.tolist(), after.tolist(), strict=True):
        change[event] = value - current[node]
        current[node] = value
    return result + np.cumsum(change)


def _batched(lens: Lens, cpu: Ints, left: Ints, kind: Ints) -> Floats:
    """Fragmentation of many states, some at a time to bound memory."""
    parts = [
        fragmentation(lens, cpu[i : i + _BATCH], left[:, i : i + _BATCH], kind[i : i + _BATCH])
        for i in range(0, cpu.size, _BATCH)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def failed_by_kind(run: Run) -> dict[str, int]:
    """The number of pods without a place, by kind of request."""
    nodes = run.node.tolist()
    failed = [pod.kind for pod, node in zip(run.arrived, nodes, strict=True) if node < 0]
    return {kind: failed.count(kind) for kind in KINDS}


def first_refused(run: Run, kind: str) -> float | None:
    """Arrived load in percent when the first pod of a kind is refused; None if none is."""
    load = arrived_load(run)
    for event, (pod, node) in enumerate(zip(run.arrived, run.node.tolist(), strict=True)):
        if node < 0 and pod.kind == kind:
            return round(float(load[event]), 2)
    return None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting in a run with ends.

    Attributes:
        at_once: share of pods that found a place on arrival.
        accepted: share that found one in the end.
        mean: mean wait of these, virtual seconds.
        percentiles: the 50th, 90th, 95th and 99th percentile of their waits.
        idle_mean: mean of free compute while pods arrive, in cards.
        idle: the same over time: 101 points from the first to the last arrival.
    """

    at_once: float
    accepted: float
    mean: float
    percentiles: dict[str, float]
    idle_mean: float
    idle: tuple[tuple[float, float], ...]


def waiting(run: Run, kinds: Sequence[str] = KINDS) -> Waiting:
    """The metrics of a run with ends, for some kinds of pod."""
    mine = np.array([pod.kind in kinds for pod in run.arrived], np.bool_)
    start = np.array([life.start for life in run.lives])
    wait = (run.started - start)[mine]
    placed = wait[~np.isnan(wait)]
    count = max(int(mine.sum()), 1)
    points = (50, 90, 95, 99)
    found = np.percentile(placed, points).tolist() if placed.size else [0.0] * len(points)
    times, free = _idle(run)
    return Waiting(
        at_once=round(int((placed == 0).sum()) / count, 6),
        accepted=round(placed.size / count, 6),
        mean=round(float(placed.mean()), 3) if placed.size else 0.0,
        percentiles={f"p{p}": round(v, 3) for p, v in zip(points, found, strict=True)},
        idle_mean=round(_mean_idle(times, free, start), 3),
        idle=_sampled(times, free, start),
    )


def _idle(run: Run) -> tuple[Floats, Floats]:
    """When free compute changed, and its value from then on, in cards."""
    begin = min((life.start for life in run.lives), default=0.0)
    times = np.array([begin, *(time for time, _ in run.idle)])
    free = np.array([run.trace.capacity, *(free for _, free in run.idle)]) / MILLI
    return times, free


def _mean_idle(times: Floats, free: Floats, start: Floats) -> float:
    end = float(start.max()) if start.size else 0.0
    spans = np.diff(np.append(np.minimum(times, end), end))
    length = float(spans.sum())
    return float((spans * free).sum() / length) if length else float(free[-1])


def _sampled(times: Floats, free: Floats, start: Floats) -> tuple[tuple[float, float], ...]:
    if not start.size:
        return ()
    when = np.linspace(float(start.min()), float(start.max()), 101)
    values = free[np.searchsorted(times, when, side="right") - 1]
    return tuple((round(float(t), 3), float(v)) for t, v in zip(when, values, strict=True))
