"""Fragmentation of nodes against the usual requests, and the strategy that lets it grow least.

From "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023).
A node's fragmentation is the part of its free compute, in milli, that a request drawn from the usual mix is expected
not to be able to use. FGD places a pod where that sum grows least. It needs the mix (a `Workload`); without one it
scores all places equally.

Sums are made in the published order (shape after shape, six buckets, then bucket after bucket). Scores are truncated to
integers, and another order of the same additions changes some of them.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp
from typing import Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Floats, Index, Ints
from partage.model.device import MILLI, DeviceType
from partage.placement.baselines import left_of
from partage.placement.incremental_columns import CardScores

_COVERED: Final = 95  # percent of the pods that the usual shapes must cover
_MOST: Final = 256
"""Most usual shapes, twice as many as cover any published trace: each costs time on every node, and any user may make
pods that all differ."""
_DEFAULT_CPU: Final = 100  # milli; Kubernetes counts it for a pod that asks for none
_POINTS: Final = 100
_KEPT: Final = 8192  # states of a node whose fragmentation is kept
_FEW: Final = 4
"""Nodes looked up one by one: between two decisions one gets a pod, and the watch shows the Binding of another."""
UNNAMED: Final = "(unnamed)"
"""In a list of models: cards that report no model."""
_WIDTH: Final = 512  # nodes at a time, and
_CELLS: Final = 32_768  # shapes times nodes at a time: the capacity of a core's cache


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """One usual request.

    Attributes:
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
        """Whether a card of the model is accepted; empty for a card that reports none."""
        names = [name for name in self.models.split("|") if name]
        return not names or (model or UNNAMED) in names


@dataclass(frozen=True, slots=True)
class Workload:
    """The usual requests and how likely each is, most frequent first."""

    shapes: tuple[Shape, ...] = ()
    chances: tuple[float, ...] = ()

    @staticmethod
    def of(seen: Iterable[Shape]) -> "Workload":
        """The most frequent shapes that together cover 95 % of the shapes seen; a fixed number at most."""
        return Workload.counted(Counter(seen))

    @staticmethod
    def counted(counts: Mapping[Shape, int]) -> "Workload":
        """The same, for shapes that are already counted."""
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
            if not covered < _COVERED * total / 100.0 or len(kept) == _MOST:
                break
            covered += merged[shape]
            kept.append(shape)
        whole = len(kept) == len(order)
        chances = [
            merged[s] / total if whole else (merged[s] / total) / (covered / total) for s in kept
        ]
        return Workload(tuple(kept), tuple(chances))

    def cut(self, most: int) -> "Workload":
        """The most frequent of them, as if no others were usual."""
        if len(self.shapes) <= most:
            return self
        whole = sum(self.chances[:most])
        return Workload(self.shapes[:most], tuple(one / whole for one in self.chances[:most]))


@dataclass(frozen=True, slots=True)
class Lens:
    """A workload as columns, for the kinds of card in a ledger.

    Attributes:
        cpu, milli, count, chance: of the shapes that ask for cards.
        thresholds: the distinct values of `milli`, ascending.
        row: position of each shape's `milli` in `thresholds`.
        allowed: (shapes, kinds), whether the shape accepts a card of that kind.
        plain_cpu, plain_chance: of the shapes without cards.
        choosy: whether any shape limits the models.
        points: least drop in fragmentation that earns 1, 2, … points.
    """

    cpu: Ints
    milli: Ints
    count: Ints
    chance: Floats
    thresholds: Ints
    row: Index
    allowed: Bools
    plain_cpu: Ints
    plain_chance: Floats
    choosy: bool
    points: Floats

    @staticmethod
    def of(workload: Workload, models: Sequence[str]) -> "Lens":
        """The columns of a workload, for kinds of card of the given models."""
        pairs = list(zip(workload.shapes, workload.chances, strict=True))
        cards = [(s, p) for s, p in pairs if s.core_milli]
        plain = [(s, p) for s, p in pairs if not s.core_milli]
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
            points=score_steps(),
        )


class Gauge(CardScores):
    """Fragmentation of every node, updated with the ledger; shared by all classes.

    Everything in it follows from the ledger and the workload.

    Attributes:
        lens: the workload, for the kinds of card in the books.
        left: compute left by card and node, milli.
        fit, small: by threshold and node, cards that reach it, and the sum that the others have left.
        total: compute left by node.
        frag: fragmentation by node, milli.
    """

    def __init__(self, workload: Workload, ledger: Ledger) -> None:
        self.workload = workload
        super().__init__(ledger)

    def allocate(self) -> None:
        """Make room for the nodes and cards in the books."""
        self.lens = Lens.of(self.workload, self.ledger.models)
        self._work = _Work(self.lens)
        cards, size = self.ledger.planes[DeviceType.GPU].open.shape
        steps = self.lens.thresholds.size
        self.left: Ints = np.zeros((cards, size), np.int64)
        self.fit: Ints = self.blank(steps, size)
        self.small: Ints = self.blank(steps, size)
        self.total: Ints = np.zeros(size, np.int64)
        self.frag: Floats = np.zeros(size)

    def blank(self, steps: int, size: int) -> Ints:
        """An empty column for each threshold."""
        return np.zeros((steps, size), np.int64)

    def write(self, nodes: Index) -> None:
        """Write the columns of some nodes."""
        left = left_of(self.ledger.planes[DeviceType.GPU], nodes)
        fit, small = _counted(self.lens, left)
        total = left.sum(axis=0)
        self.left[:, nodes] = left
        self.fit[:, nodes] = fit
        self.small[:, nodes] = small
        self.total[nodes] = total
        cpu, kind = self._cpu(nodes), self._kind(nodes)
        self.frag[nodes] = self._work.expected(cpu, total, fit, small, kind)

    # --- inside ----------------------------------------------------------------------------------

    def _cpu(self, nodes: Index) -> Ints:
        cpu: Ints = self.ledger.host_free["cpu"][nodes]
        return cpu

    def _kind(self, nodes: Index) -> Ints:
        kind: Ints = self.ledger.planes[DeviceType.GPU].kind[0, nodes]
        return kind

    def codes(self, nodes: Index | int) -> Ints:
        """Cards with as much left score the same."""
        return self.left[:, nodes]

    def settled(
        self, host: Mapping[str, int], nodes: Index, count: int, _fits: Bools | None
    ) -> Ints:
        """Scores of whole cards, or of a pod without cards."""
        after = self._work.expected(
            self._cpu(nodes) - host.get("cpu", 0),
            self.total[nodes] - count * MILLI,
            self.fit[:, nodes] - count,
            self.small[:, nodes],
            self._kind(nodes),
        )
        return _points_of(self.lens, self.frag[nodes] - after)

    def shared(
        self, host: Mapping[str, int], nodes: Index, codes: Ints, asked: tuple[int, int]
    ) -> Ints:
        """Scores of taking a share of a card."""
        milli, card = asked[1], codes
        rest = card - milli
        low_before = card < self.lens.thresholds[:, None]
        low_after = rest < self.lens.thresholds[:, None]
        after = self._work.expected(
            self._cpu(nodes) - host.get("cpu", 0),
            self.total[nodes] - milli,
            self.fit[:, nodes] - (low_before ^ low_after),
            self.small[:, nodes] + np.where(low_before, -milli, np.where(low_after, rest, 0)),
            self._kind(nodes),
        )
        return _points_of(self.lens, self.frag[nodes] - after)


def fragmentation(lens: Lens, cpu: Ints, left: Ints, kind: Ints) -> Floats:
    """Fragmentation of nodes in milli.

    Args:
        cpu: CPU left, milli, shape (nodes,).
        left: compute left, milli, shape (cards, nodes); 0 for no card.
        kind: the nodes' kind of card.
    """
    fit, small = _counted(lens, left)
    return _Work(lens).expected(cpu, left.sum(axis=0), fit, small, kind)


def _counted(lens: Lens, left: Ints) -> tuple[Ints, Ints]:
    """For each threshold and node: cards that reach it, and the sum that the others have left."""
    if left.shape[1] <= _FEW:  # the usual case: few steps cost more than few additions
        nodes: list[list[int]] = left.T.tolist()
        steps: list[int] = lens.thresholds.tolist()
        shape = len(steps), len(nodes)
        reached = [[sum(card >= step for card in cards) for cards in nodes] for step in steps]
        below = [
            [sum([card for card in cards if card < step]) for cards in nodes] for step in steps
        ]
        return np.array(reached, np.int64).reshape(shape), np.array(below, np.int64).reshape(shape)
    fit: Ints = np.zeros((lens.thresholds.size, left.shape[1]), np.int64)
    small: Ints = np.zeros_like(fit)
    for card in left:
        reaches = card >= lens.thresholds[:, None]
        fit += reaches
        small += np.where(reaches, 0, card)
    return fit, small


class _Work:
    """Sums up fragmentation, some nodes at a time, in arrays that are reused.

    New arrays of (shapes, nodes) for every step would cost more in memory pages than the arithmetic.
    """

    def __init__(self, lens: Lens) -> None:
        self.lens = lens
        shapes = max(lens.cpu.size, lens.plain_cpu.size, 1)
        self.width = max(2, min(_WIDTH, _CELLS // shapes))
        cells = (lens.cpu.size, self.width)
        self._all: Floats = np.zeros(cells)
        self._part: Floats = np.zeros(cells)
        self._sum: Floats = np.zeros(cells)
        self._ints: Ints = np.zeros(cells, np.int64)
        self._enough: Bools = np.zeros(cells, np.bool_)
        self._roomy: Bools = np.zeros(cells, np.bool_)
        self._mask: Bools = np.zeros(cells, np.bool_)
        self._cpu_steps: list[int] = np.union1d(lens.cpu, lens.plain_cpu).tolist()
        self._kept: dict[tuple[int, int, bytes, bytes, int], Floats] = {}
        self._plain: Floats = np.zeros((lens.plain_cpu.size, self.width))
        self._plain_sum: Floats = np.zeros((lens.plain_cpu.size, self.width))

    def expected(self, cpu: Ints, total: Ints, fit: Ints, small: Ints, kind: Ints) -> Floats:
        """Fragmentation in milli, from the counts for each threshold."""
        if cpu.size == 1:
            return self._known(cpu, total, fit, small, kind)
        result = np.empty(cpu.size)
        if cpu.size <= _FEW:
            for at in range(cpu.size):
                one = slice(at, at + 1)
                here = (cpu[one], total[one], fit[:, one], small[:, one], kind[one])
                result[one] = self._known(*here)
            return result
        for low in range(0, cpu.size, self.width):
            part = slice(low, min(low + self.width, cpu.size))
            here = (cpu[part], total[part], fit[:, part], small[:, part], kind[part])
            result[part] = self._chunk(*here)
        return result

    def _known(self, cpu: Ints, total: Ints, fit: Ints, small: Ints, kind: Ints) -> Floats:
        """The fragmentation of one node, which is kept: nodes take few different states, again and again."""
        reached = bisect_right(self._cpu_steps, int(cpu[0]))
        key = reached, int(total[0]), fit.tobytes(), small.tobytes(), int(kind[0])
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            found = self._kept[key] = self._chunk(cpu, total, fit, small, kind)
            found.flags.writeable = False
        return found

    def _chunk(self, cpu: Ints, total: Ints, fit: Ints, small: Ints, kind: Ints) -> Floats:
        lens, size = self.lens, cpu.size
        everything, part, term = self._all[:, :size], self._part[:, :size], self._sum[:, :size]
        enough, roomy, mask = self._enough[:, :size], self._roomy[:, :size], self._mask[:, :size]
        ints = self._ints[:, :size]
        np.greater_equal(cpu, lens.cpu[:, None], out=roomy)
        np.take(fit, lens.row, axis=0, out=ints, mode="clip")
        np.greater_equal(ints, lens.count[:, None], out=enough)
        np.multiply(lens.chance[:, None], total, out=everything)
        np.take(small, lens.row, axis=0, out=ints, mode="clip")
        np.multiply(lens.chance[:, None], ints, out=part)
        np.logical_not(enough, out=mask)
        np.copyto(part, everything, where=mask)
        barred = None
        if lens.choosy:
            allowed = lens.allowed.take(kind, axis=1, mode="clip")
            np.copyto(term, everything)
            np.copyto(term, 0.0, where=allowed)
            barred = summed(term)
            np.logical_not(allowed, out=mask)
            np.copyto(part, 0.0, where=mask)
            np.copyto(everything, 0.0, where=mask)
        np.copyto(everything, 0.0, where=roomy)
        np.logical_not(roomy, out=mask)
        np.copyto(part, 0.0, where=mask)
        stranded = summed(part)
        np.copyto(term, everything)
        np.copyto(term, 0.0, where=enough)
        lacking = summed(term)
        np.logical_not(enough, out=mask)
        np.copyto(everything, 0.0, where=mask)
        starved = summed(everything)
        idle, blocked = self._without_cards(cpu, total)
        result = (((lacking + stranded) + starved) + idle) + blocked
        return result if barred is None else result + barred

    def _without_cards(self, cpu: Ints, total: Ints) -> tuple[Floats, Floats]:
        """Fragmentation by shapes without cards: on nodes with CPU enough for them, and on others."""
        lens = self.lens
        everything, term = self._plain[:, : cpu.size], self._plain_sum[:, : cpu.size]
        plenty = cpu >= lens.plain_cpu[:, None]
        np.multiply(lens.plain_chance[:, None], total, out=everything)
        np.copyto(term, everything)
        np.copyto(term, 0.0, where=plenty)
        np.copyto(everything, 0.0, where=~plenty)
        return summed(everything), summed(term)


def summed(terms: Floats) -> Floats:
    """Sums down the columns, one term after another.

    NumPy adds rows in turn when it sums over the outer axis. It would sum a single column in pairs, which rounds
    differently.
    """
    if terms.shape[1] > 1 or not terms.shape[0]:
        result: Floats = np.add.reduce(terms, axis=0)
        return result
    single: Floats = np.add.accumulate(terms, axis=0)[-1]
    return single


def _points_of(lens: Lens, drop: Floats) -> Ints:
    """Score of a drop in fragmentation (negative for growth): 0 to 100."""
    return np.searchsorted(lens.points, drop, side="right").astype(np.int64)


@cache
def score_steps() -> Floats:
    """The least drop in fragmentation that earns 1, 2, … 100 points.

    The published score is trunc(100 / (1 + exp(-drop / 1000))). Steps found once by bisection give exactly its values,
    rounding included, without an exponential for each card.
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
