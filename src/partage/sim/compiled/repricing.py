"""The default strategy's values and reserves in compiled loops; see `priced` and `slot_reservation`."""

from collections.abc import Mapping

import numpy as np

from partage.inventory.plane import Bools, Index, Ints
from partage.model.device import DeviceType
from partage.model.request import DeviceRequest
from partage.placement.baselines import demand
from partage.placement.priced import PriceGauge, told
from partage.placement.slot_reservation import MARGIN
from partage.sim.compiled.columns import Found, Guarded, PriceTable, Valued, Wanted
from partage.sim.compiled.fitting import best
from partage.sim.compiled.prices import card_values, count_slots, node_values, price, shortage
from partage.sim.compiled.rescoring import Finish


class FastPriceGauge(PriceGauge):
    """A price gauge whose columns are written, and whose cards are scored, by compiled loops.

    Attributes:
        valued: the columns, for the loops.
        table: the prices, for the loops.
        guarded: the reserves, for the loops.
    """

    repeats = True

    def allocate(self) -> None:
        """Make room for the nodes and cards in the books."""
        super().allocate()
        pairs = np.ascontiguousarray(self.prices.pairs.T)
        self.valued: Valued = (self.left, self.total, self.idle, self.model, self.sums, self.value)
        self.table: PriceTable = (self.worth, pairs[0], pairs[1], self.scarcity, self.bonus)
        guard = self.guard
        self.guarded: Guarded = (guard.cards, guard.cpu, guard.memory, guard.slots.T)

    def write(self, nodes: Index) -> None:
        """Write the columns of some nodes."""
        plane, free, guard = self.ledger.planes[DeviceType.GPU], self.ledger.host_free, self.guard
        cpu, memory = free["cpu"], free["memory"]
        self.milli += price(
            nodes,
            plane.open,
            plane.core_free,
            plane.kind,
            cpu,
            memory,
            self.row,
            self.valued,
            self.table,
        )
        asked = (guard.cards, guard.cpu, guard.memory, guard.allowed)
        count_slots(nodes, cpu, memory, self.idle, self.model, asked, guard.slots.T, guard.supply)

    def card_scores(
        self, host: Mapping[str, int], request: DeviceRequest, fits: Bools | None, index: int
    ) -> dict[int, int]:
        """Score of each card of a node, by row; for shares. See `PriceGauge.card_scores`.

        Cards with less compute than asked may be among them.
        """
        if fits is not None:
            return super().card_scores(host, request, fits, index)
        points = np.zeros(self.left.shape[0], np.int64)
        room = told(self.ledger, host, index)
        card_values(index, room, demand(request), self.valued, self.table, points)
        return dict(enumerate(points.tolist()))

    def tight(self) -> int:
        """A bit for each reserve that is short; see `Guard`."""
        self.refresh()
        guard = self.guard
        return shortage(guard.need, guard.supply, MARGIN, self.milli / guard.per_pod)

    def best(self, value: Ints, flags: Ints, step: int) -> int:
        """The first node with the highest offer, -1 if all are below 0."""
        return best(value, flags, self.tight(), step)


def by_prices(gauge: FastPriceGauge, host: Mapping[str, int], cards: int) -> Finish:
    """For the default strategy once it has prices, and pods that ask for these resources and so many cards."""
    exempt = gauge.guard.exempt(host, cards)

    def finish(wanted: Wanted, many: int, found: Found, value: Ints, flags: Ints) -> None:
        gauge.refresh()
        cpu, memory = (gauge.ledger.host_free[name] for name in ("cpu", "memory"))
        tables = gauge.valued, gauge.table, gauge.guarded
        node_values(many, found, value, flags, wanted, cpu, memory, *tables, exempt)

    return finish
