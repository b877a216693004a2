"""Scores plain requests in compiled loops: gathers their inputs, and decides when they apply.

Everything else (several groups, joint placement, draws by lot) takes the NumPy way; the caller cannot distinguish the
results.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from partage.inventory.card import CEILING
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Index, Ints
from partage.model.device import DeviceType
from partage.model.policy import Strategy
from partage.model.request import DeviceRequest, PodRequest
from partage.placement.baselines import demand
from partage.placement.fragmentation import Gauge
from partage.placement.kernel import Nodes, is_plain
from partage.sim.compiled.columns import (
    STRATEGIES,
    Asked,
    Cards,
    Counts,
    Found,
    Host,
    Places,
    Room,
    Shapes,
    Used,
    Wanted,
)
from partage.sim.compiled.fitting import fit
from partage.sim.compiled.fragmentation import card_points, measure, node_points
from partage.sim.compiled.scores import node_scores

_MOST: Final = 2**62


class FastGauge(Gauge):
    """A gauge whose columns are written, and whose cards are scored, by compiled loops.

    Attributes:
        counts: the columns, for the loops.
        shapes: the lens, for the loops.
    """

    repeats = True

    def allocate(self) -> None:
        """Make room for the nodes and cards in the books."""
        super().allocate()
        lens = self.lens
        self.counts: Counts = (self.left, self.fit.T, self.small.T, self.total, self.frag)
        with_cards = lens.cpu, lens.count, lens.chance, lens.thresholds, lens.row, lens.allowed
        self.shapes: Shapes = (*with_cards, lens.plain_cpu, lens.plain_chance, lens.points)

    def blank(self, steps: int, size: int) -> Ints:
        """Node by node in memory, as the loops read it."""
        return np.zeros((size, steps), np.int64).T

    def write(self, nodes: Index) -> None:
        """Write the columns of some nodes."""
        plane, cpu = self.ledger.planes[DeviceType.GPU], self.ledger.host_free["cpu"]
        measure(nodes, plane.open, plane.core_free, plane.kind, cpu, self.counts, self.shapes)

    def card_scores(
        self, host: Mapping[str, int], request: DeviceRequest, fits: Bools | None, index: int
    ) -> dict[int, int]:
        """Score of each card of a node, by row; for shares. See `Gauge.card_scores`.

        Cards with less compute than asked may be among them.
        """
        if fits is not None:
            return super().card_scores(host, request, fits, index)
        _, milli = demand(request)
        cpu = int(self.ledger.host_free["cpu"][index]) - host.get("cpu", 0)
        kind = int(self.ledger.planes[DeviceType.GPU].kind[0, index])
        points = np.zeros(self.left.shape[0], np.int64)
        card_points(index, milli, cpu, kind, self.counts, self.shapes, points)
        return dict(enumerate(points.tolist()))


class Scratch:
    """Room for the fitting nodes, which all classes use in turn."""

    def __init__(self) -> None:
        self._found: Found = (np.zeros(0, np.intp), np.zeros((0, 0), np.bool_))

    def found(self, shape: tuple[int, ...]) -> Found:
        """Room for so many cards and nodes."""
        cards, nodes = shape
        if self._found[1].shape != (nodes, cards):
            self._found = (np.zeros(nodes, np.intp), np.zeros((nodes, cards), np.bool_))
        return self._found


Finish = Callable[[Wanted, int, Found, Ints, Ints], None]
"""Adds the strategy's score for these amounts to the value of so many first nodes found; may write their flags."""


class Rescorer:
    """Writes the scores of one class of plain requests; without a `finish` all nodes score alike."""

    def __init__(
        self,
        request: PodRequest,
        host: Mapping[str, int],
        ledger: Ledger,
        scratch: Scratch,
        finish: Finish | None = None,
    ) -> None:
        """Prepare the constant inputs; `request` is plain, or without devices."""
        self._finish = finish
        needs = {name: min(amount, _MOST) for name, amount in host.items() if amount > 0}
        self._names = (*needs, "cpu", "cpu", "cpu", "cpu")[:4]
        amounts = (*needs.values(), -_MOST, -_MOST, -_MOST, -_MOST)
        self._needs = (amounts[0], amounts[1], amounts[2], amounts[3])
        self._scratch = scratch
        self._asked = _asked(request)
        self._room: Room | None = None
        self._places: Places | None = None
        self._ledger = ledger
        asked = request.groups[0].request if request.groups else None
        self._registrar = asked.registrar if asked is not None else ""
        self._wanted: Wanted = (
            *demand(asked),
            asked is not None and asked.whole,
            host.get("cpu", 0),
            host.get("memory", 0),
        )

    @staticmethod
    def applies(request: PodRequest, host: Mapping[str, int]) -> bool:
        """Whether the loops can score such requests: plain, with at most four ordinary resources."""
        plain = not request.groups or is_plain(request)
        return plain and sum(amount > 0 for amount in host.values()) <= 4

    def score(
        self,
        suits: Bools | None,
        eligible: tuple[Bools, Ints],
        rank: Ints,
        value: Ints,
        flags: Ints,
        nodes: Nodes,
    ) -> bool:
        """Write `value` and `flags` of some nodes; False if only NumPy can.

        This is so if a resource is not in the books, or if cards have their own number of sharers.
        """
        ledger = self._ledger
        if self._registrar in ledger.registrars:
            return False
        plane = ledger.planes[DeviceType.GPU]
        places, room = self._places, self._room
        if places is None or places[0] is not ledger.present:
            places = self._places = None
            room = self._room = self._columns()
        if room is None:
            return False
        if places is None or places[1] is not eligible[0] or places[3] is not rank:
            places = self._places = (ledger.present, *eligible, rank)
        memory = plane.memory_free, plane.memory_total
        cards: Cards = (plane.open, plane.core_free, *memory, plane.slots_free, plane.tenants)
        found = self._scratch.found(plane.open.shape)
        many = fit(
            np.arange(value.size) if isinstance(nodes, slice) else nodes,
            value,
            places,
            room,
            self._asked,
            plane.open if suits is None else suits,
            cards,
            found,
        )
        if many and self._finish is not None:
            self._finish(self._wanted, many, found, value, flags)
        return True

    def _columns(self) -> Room | None:
        free = self._ledger.host_free
        one, two, three, four = map(free.get, self._names)
        if one is None or two is None or three is None or four is None:
            return None
        return (one, two, three, four), self._needs


def by_books(ledger: Ledger, strategy: Strategy) -> Finish:
    """For strategies that use only the books."""

    def finish(wanted: Wanted, many: int, found: Found, value: Ints, _flags: Ints) -> None:
        plane = ledger.planes[DeviceType.GPU]
        free, total = ledger.host_free, ledger.host_total
        host: Host = free["cpu"], total["cpu"], free["memory"], total["memory"]
        memory = plane.memory_free, plane.memory_total
        cards: Used = (plane.open, plane.core_free, plane.core_total, *memory, plane.kind)
        nodes, left = (ledger.hosted, ledger.bare), np.zeros(plane.cards, np.int64)
        node_scores(many, found, value, STRATEGIES[strategy], wanted, host, *nodes, cards, left)

    return finish


def by_gauge(gauge: FastGauge) -> Finish:
    """For FGD."""

    def finish(wanted: Wanted, many: int, found: Found, value: Ints, _flags: Ints) -> None:
        gauge.refresh()
        cpu, kind = gauge.ledger.host_free["cpu"], gauge.ledger.planes[DeviceType.GPU].kind
        node_points(many, found, value, wanted, cpu, kind, gauge.counts, gauge.shapes)

    return finish


def _asked(request: PodRequest) -> Asked:
    if not request.groups:
        return 0, False, False, 0, 0, 0, -1, False
    asked = request.groups[0].request
    return (
        asked.count,
        asked.whole,
        asked.unused or asked.exclusive,
        min(asked.core_milli, CEILING + 1),
        min(asked.memory_bytes, CEILING + 1),
        asked.memory_milli,
        -1 if asked.sharers is None else asked.sharers,
        asked.claims_core and not asked.core_milli,
    )
