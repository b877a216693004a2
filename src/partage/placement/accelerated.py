"""Scores plain requests through `compiled`: gathers what its loops need, and when they apply.

Everything else (several groups, joint placement, strategies that are not compiled) takes the
NumPy way; the caller cannot tell the results apart.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from partage.inventory.ledger import CEILING, Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.device import DeviceType
from partage.model.policy import Strategy
from partage.model.request import DeviceRequest, PodRequest
from partage.placement.baselines import demand
from partage.placement.compiled import (
    STRATEGIES,
    Asked,
    Cards,
    Counts,
    Measured,
    Places,
    Room,
    Shapes,
    card_points,
    measure,
    rescore,
)
from partage.placement.fast import is_plain
from partage.placement.fragmentation import Gauge, Index
from partage.placement.kernel import Nodes

__all__ = ["FastGauge", "Rescorer"]

_MOST: Final = 2**62
_NO_INTS: Final = np.zeros(0, np.int64)
_NO_FLOATS: Final = np.zeros(0)
_NO_TABLE: Final = np.zeros((1, 0), np.int64)
_NO_COUNTS: Final = Counts(_NO_TABLE, _NO_TABLE, _NO_TABLE, _NO_INTS, _NO_FLOATS)
_NO_SHAPES: Final = Shapes(
    _NO_INTS, _NO_INTS, _NO_FLOATS, _NO_INTS, np.zeros(0, np.intp), np.zeros((0, 1), np.bool_),
    _NO_INTS, _NO_FLOATS, _NO_FLOATS,
)  # fmt: skip
_NOTHING: Final = Measured(_NO_COUNTS, _NO_SHAPES)


class FastGauge(Gauge):
    """A gauge whose columns are written, and whose cards are scored, by compiled loops.

    Attributes:
        counts: the columns, for the loops.
        shapes: the lens, for the loops.
        measured: both together.
    """

    def allocate(self) -> None:
        """Make room for the nodes and cards in the books."""
        super().allocate()
        lens = self.lens
        self.counts = Counts(self.left, self.fit.T, self.small.T, self.total, self.frag)
        self.shapes = Shapes(
            lens.cpu, lens.count, lens.chance, lens.thresholds, lens.row, lens.allowed,
            lens.plain_cpu, lens.plain_chance, lens.points,
        )  # fmt: skip
        self.measured = Measured(self.counts, self.shapes)

    def blank(self, steps: int, size: int) -> Ints:
        """Node by node in memory, as the loops read it."""
        return np.zeros((size, steps), np.int64).T

    def write(self, nodes: Index) -> None:
        """Write the columns of some nodes."""
        cpu = self.ledger.host_free["cpu"]
        measure(nodes, _cards(self.ledger), cpu, self.counts, self.shapes)

    def card_scores(
        self, host: Mapping[str, int], request: DeviceRequest, fits: Bools | None, index: int
    ) -> dict[int, int]:
        """Score of each card of a node, by row; for shares. See `Gauge.card_scores`."""
        _, milli = demand(request)
        usable = self.left[:, index] >= milli if fits is None else fits[:, 0]
        rows = np.flatnonzero(usable)
        cpu = int(self.ledger.host_free["cpu"][index]) - host.get("cpu", 0)
        kind = int(self.ledger.planes[DeviceType.GPU].kind[0, index])
        points = card_points(index, rows, milli, cpu, kind, self.counts, self.shapes)
        return dict(zip(rows.tolist(), points.tolist(), strict=True))


class Rescorer:
    """Writes the scores of one class of plain requests."""

    def __init__(
        self,
        request: PodRequest,
        host: Mapping[str, int],
        strategy: Strategy,
        gauge: FastGauge | None,
    ) -> None:
        needs = {name: min(amount, _MOST) for name, amount in host.items() if amount > 0}
        self._names = (*needs, "cpu", "cpu", "cpu", "cpu")[:4]
        amounts = (*needs.values(), -_MOST, -_MOST, -_MOST, -_MOST)
        self._needs = (amounts[0], amounts[1], amounts[2], amounts[3])
        self._cpu = host.get("cpu", 0)
        self._gauge = gauge
        self._asked = _asked(STRATEGIES[strategy], request)

    @staticmethod
    def applies(
        request: PodRequest, host: Mapping[str, int], strategy: Strategy, gauge: Gauge | None
    ) -> bool:
        """Whether the loops know such requests: plain, with at most four ordinary resources."""
        return (
            strategy in STRATEGIES
            and (not request.groups or is_plain(request))
            and sum(amount > 0 for amount in host.values()) <= 4
            and (strategy is not Strategy.FGD or isinstance(gauge, FastGauge))
        )

    def score(
        self,
        ledger: Ledger,
        suits: Bools | None,
        eligible: tuple[Bools, Ints],
        rank: Ints,
        value: Ints,
        nodes: Nodes,
    ) -> bool:
        """Write `value` for some nodes; False where a resource is not in the books."""
        free = ledger.host_free
        one, two, three, four = map(free.get, self._names)
        if one is None or two is None or three is None or four is None:
            return False
        measured = _NOTHING
        if self._gauge is not None:
            self._gauge.refresh()
            measured = self._gauge.measured
        cards = _cards(ledger)
        rescore(
            np.arange(value.size) if isinstance(nodes, slice) else nodes,
            value,
            Places(ledger.present, *eligible, rank),
            Room((one, two, three, four), self._needs, free["cpu"], self._cpu),
            self._asked,
            cards.open if suits is None else suits,
            cards,
            measured,
        )
        return True


def _cards(ledger: Ledger) -> Cards:
    plane = ledger.planes[DeviceType.GPU]
    return Cards(
        plane.open, plane.core_free, plane.memory_free, plane.memory_total, plane.slots_free,
        plane.tenants, plane.kind, ledger.hosted,
    )  # fmt: skip


def _asked(strategy: int, request: PodRequest) -> Asked:
    if not request.groups:
        return Asked(strategy, 0, False, False, 0, 0, 0, -1, False)
    asked = request.groups[0].request
    return Asked(
        strategy=strategy,
        cards=asked.count,
        whole=asked.whole,
        alone=asked.unused or asked.exclusive,
        core=min(asked.core_milli, CEILING + 1),
        memory=min(asked.memory_bytes, CEILING + 1),
        memory_milli=asked.memory_milli,
        sharers=-1 if asked.sharers is None else asked.sharers,
        claims=asked.claims_core and not asked.core_milli,
    )
