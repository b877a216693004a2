"""Fragmentation of nodes against the usual requests, and the strategy that lets it grow least.

From "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023). A node's fragmentation is the compute, in milli, that a request drawn
from the usual mix is expected to find and not to be able to use. FGD places a pod where that sum
grows least. It needs the mix (a `Workload`); without one all places are equal to it.

Sums are made in the published order (shape after shape, six buckets, then bucket after bucket):
scores are truncated to integers, and another order of the same additions flips some of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp
from typing import Final

import numpy as np
from numpy.typing import NDArray

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.device import MILLI, DeviceType
from partage.model.request import DeviceRequest
from partage.placement.baselines import demand, left_of
from partage.placement.kernel import Nodes

__all__ = ["Lens", "Shape", "Workload", "card_scores", "fragmentation", "node_scores"]

Floats = NDArray[np.float64]

_COVERED: Final = 95  # percent of the pods that the usual shapes must cover
_DEFAULT_CPU: Final = 100  # milli; what Kubernetes counts for a pod that asks for none
_POINTS: Final = 100


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """One usual request.

    Attributes:
        cpu_milli: CPU asked.
        core_milli: compute asked of each card; 0 for a pod without cards.
        count: cards asked.
        models: acceptable card models, separated by `|`; empty accepts all. Differently written
            lists are different shapes, as published.
    """

    cpu_milli: int
    core_milli: int
    count: int
    models: str = ""

    def accepts(self, model: str) -> bool:
        """Whether a card of the model will do."""
        names = [name for name in self.models.split("|") if name]
        return not names or model in names


@dataclass(frozen=True, slots=True)
class Workload:
    """The usual requests and how likely each is, most frequent first."""

    shapes: tuple[Shape, ...] = ()
    chances: tuple[float, ...] = ()

    @staticmethod
    def of(seen: Iterable[Shape]) -> "Workload":
        """The most frequent shapes that together cover 95 % of those seen."""
        counts: dict[Shape, int] = {}
        for shape in seen:
            counts[shape] = counts.get(shape, 0) + 1
        merged: dict[Shape, int] = {}
        for shape, count in counts.items():
            cpu = shape.cpu_milli or _DEFAULT_CPU
            key = Shape(cpu, shape.core_milli, shape.count, shape.models)
            merged[key] = merged.get(key, 0) + count
        order = sorted(merged, key=lambda shape: (merged[shape], shape), reverse=True)
        total = float(sum(merged.values()))
        kept: list[Shape] = []
        covered = 0.0
        for shape in order:
            if not covered < _COVERED * total / 100.0:
                break
            covered += merged[shape]
            kept.append(shape)
        whole = len(kept) == len(order)
        chances = [
            merged[s] / total if whole else (merged[s] / total) / (covered / total) for s in kept
        ]
        return Workload(tuple(kept), tuple(chances))


@dataclass(frozen=True, slots=True)
class Lens:
    """A workload as columns, for the kinds of card that a ledger knows.

    Attributes:
        cpu, milli, count, chance: of the shapes that ask for cards.
        thresholds: the distinct values of `milli`, ascending.
        row: position of each shape's `milli` in `thresholds`.
        allowed: (shapes, kinds), whether the shape accepts a card of that kind.
        plain_cpu, plain_chance: of the shapes without cards.
        choosy: whether any shape is particular about models.
        points: least drop in fragmentation that earns 1, 2, … points.
    """

    cpu: Ints
    milli: Ints
    count: Ints
    chance: Floats
    thresholds: Ints
    row: NDArray[np.intp]
    allowed: Bools
    plain_cpu: Ints
    plain_chance: Floats
    choosy: bool
    points: Floats

    @staticmethod
    def of(workload: Workload, ledger: Ledger) -> "Lens":
        """The columns of a workload."""
        pairs = list(zip(workload.shapes, workload.chances, strict=True))
        cards = [(s, p) for s, p in pairs if s.core_milli]
        plain = [(s, p) for s, p in pairs if not s.core_milli]
        models = [device.model if device else "" for device in ledger.kinds]
        milli = np.array([s.core_milli for s, _ in cards], np.int64)
        thresholds, row = np.unique(milli, return_inverse=True)
        allowed = np.array(
            [[s.accepts(model) for model in models] for s, _ in cards], np.bool_
        ).reshape(len(cards), len(models))
        return Lens(
            cpu=np.array([s.cpu_milli for s, _ in cards], np.int64),
            milli=milli,
            count=np.array([s.count for s, _ in cards], np.int64),
            chance=np.array([p for _, p in cards], np.float64),
            thresholds=thresholds,
            row=row.astype(np.intp),
            allowed=allowed,
            plain_cpu=np.array([s.cpu_milli for s, _ in plain], np.int64),
            plain_chance=np.array([p for _, p in plain], np.float64),
            choosy=not bool(allowed.all()),
            points=_points(),
        )


def fragmentation(lens: Lens, cpu: Ints, left: Ints, kind: Ints) -> Floats:
    """Fragmentation of nodes in milli.

    Args:
        lens: the usual requests.
        cpu: CPU left, milli, shape (nodes,).
        left: compute left, milli, shape (cards, nodes); 0 where there is no card.
        kind: the nodes' kind of card.
    """
    fit, small = _counted(lens, left)
    return _expected(lens, cpu, left.sum(axis=0), fit, small, kind)


def node_scores(
    lens: Lens, ledger: Ledger, host: Mapping[str, int], request: DeviceRequest | None,
    fits: Bools | None, nodes: Nodes,
) -> Ints:  # fmt: skip
    """Scores 0 to 100: of each node the best among its cards, or that of its whole cards."""
    left, cpu, kind = _state(ledger, nodes)
    count, milli = demand(request)
    if request is None or request.whole or not count or fits is None:
        return _settled(lens, (left, cpu, kind), host.get("cpu", 0), count)
    # Cards of one node with as much left score the same: one of them will do.
    ordered = np.sort(np.where(fits, left, -1), axis=0)
    fresh = ordered >= 0
    fresh[1:] &= ordered[1:] != ordered[:-1]
    row, column = np.nonzero(fresh)
    score = _shared(
        lens, (left, cpu, kind), host.get("cpu", 0), milli, (column, ordered[row, column])
    )
    result: Ints = np.zeros(left.shape[1], np.int64)
    np.maximum.at(result, column, score)
    return result


def card_scores(
    lens: Lens, ledger: Ledger, host: Mapping[str, int], request: DeviceRequest, fits: Bools,
    nodes: Nodes,
) -> dict[int, int]:  # fmt: skip
    """Score of each fitting card, by row, of the only node; for shares."""
    left, cpu, kind = _state(ledger, nodes)
    _, milli = demand(request)
    row, column = np.nonzero(fits)
    score = _shared(
        lens, (left, cpu, kind), host.get("cpu", 0), milli, (column, left[row, column])
    )
    return dict(zip(row.tolist(), score.tolist(), strict=True))


# --- inside --------------------------------------------------------------------------------------

State = tuple[Ints, Ints, Ints]
"""Compute left by card, CPU left and kind of card, of some nodes."""


def _state(ledger: Ledger, nodes: Nodes) -> State:
    plane = ledger.planes[DeviceType.GPU]
    return left_of(plane, nodes), ledger.host_free["cpu"][nodes], plane.kind[0, nodes]


def _counted(lens: Lens, left: Ints) -> tuple[Ints, Ints]:
    """For each threshold and node: cards that reach it, and the sum of what the others have."""
    fit: Ints = np.zeros((lens.thresholds.size, left.shape[1]), np.int64)
    small: Ints = np.zeros_like(fit)
    for card in left:
        reaches = card >= lens.thresholds[:, None]
        fit += reaches
        small += np.where(reaches, 0, card)
    return fit, small


def _settled(lens: Lens, state: State, cpu_asked: int, count: int) -> Ints:
    """Scores of whole cards, or of a pod without cards."""
    left, cpu, kind = state
    fit, small = _counted(lens, left)
    total = left.sum(axis=0)
    before = _expected(lens, cpu, total, fit, small, kind)
    after = _expected(lens, cpu - cpu_asked, total - count * MILLI, fit - count, small, kind)
    return _points_of(lens, before - after)


def _shared(
    lens: Lens,
    state: State,
    cpu_asked: int,
    milli: int,
    pairs: tuple[NDArray[np.intp], Ints],
) -> Ints:
    """Scores of taking `milli` from a card, for pairs of node and what that card has left."""
    left, cpu, kind = state
    fit, small = _counted(lens, left)
    total = left.sum(axis=0)
    before = _expected(lens, cpu, total, fit, small, kind)
    node, card = pairs
    rest = card - milli
    low_before = card < lens.thresholds[:, None]
    low_after = rest < lens.thresholds[:, None]
    after = _expected(
        lens,
        (cpu - cpu_asked)[node],
        total[node] - milli,
        fit[:, node] - (low_before ^ low_after),
        small[:, node] + np.where(low_before, -milli, np.where(low_after, rest, 0)),
        kind[node],
    )
    return _points_of(lens, before[node] - after)


def _expected(lens: Lens, cpu: Ints, total: Ints, fit: Ints, small: Ints, kind: Ints) -> Floats:
    """Fragmentation in milli, from the counts for each threshold."""
    roomy = cpu >= lens.cpu[:, None]
    enough = fit[lens.row] >= lens.count[:, None]
    everything = lens.chance[:, None] * total
    usable = lens.chance[:, None] * small[lens.row]
    part = np.where(enough, usable, everything)
    short = ~roomy
    if lens.choosy:
        allowed = lens.allowed[:, kind]
        barred = _summed(np.where(allowed, 0.0, everything))
        roomy &= allowed
        short &= allowed
    lacking = _summed(np.where(short & ~enough, everything, 0.0))
    stranded = _summed(np.where(roomy, part, 0.0))
    starved = _summed(np.where(short & enough, everything, 0.0))
    plenty = cpu >= lens.plain_cpu[:, None]
    everything = lens.plain_chance[:, None] * total
    idle = _summed(np.where(plenty, everything, 0.0))
    blocked = _summed(np.where(plenty, 0.0, everything))
    result = (((lacking + stranded) + starved) + idle) + blocked
    return result + barred if lens.choosy else result


def _summed(terms: Floats) -> Floats:
    """Sums down the columns, one term after another (a plain sum would pair terms up)."""
    if not terms.shape[0]:
        return np.zeros(terms.shape[1])
    result: Floats = np.add.accumulate(terms, axis=0)[-1]
    return result


def _points_of(lens: Lens, drop: Floats) -> Ints:
    """Score of a drop in fragmentation (negative where it grows): 0 to 100."""
    return np.searchsorted(lens.points, drop, side="right").astype(np.int64)


@cache
def _points() -> Floats:
    """The least drop in fragmentation that earns 1, 2, … 100 points.

    The published score is trunc(100 / (1 + exp(-drop / 1000))). Steps found once by bisection
    give exactly its values, rounding included, without an exponential a card.
    """
    steps: list[float] = []
    for points in range(1, _POINTS + 1):
        low, high = -1e5, 1e5
        while True:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            if int(1.0 / (1.0 + exp(-(middle / 1000))) * 100.0) >= points:
                high = middle
            else:
                low = middle
        steps.append(high)
    if any(a >= b for a, b in pairwise(steps)):
        raise ArithmeticError("the score does not grow with the drop in fragmentation")
    return np.array(steps)
