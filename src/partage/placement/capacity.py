"""The default strategy on a small cluster: place where the node loses least capacity for usual requests.

A node's capacity for a request is the total compute of such pods that fit on it. The room on its cards and its CPU
limit their number. Its expected capacity is the mean over the usual requests (a `Workload`). FGD asks only whether one
more pod fits, so it notices a lack of CPU only when none is left. The loss is rounded to bins, as for prices. Among
nearly equal places the fullest node wins, then the tightest card, then the order of nodes.

Memory decides what fits, not what is better. But a card whose tenants hold only memory is no longer whole although all
its compute is left: no request for a whole card can use it.
"""

from collections.abc import Mapping

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Floats, Index, Ints
from partage.model.device import MILLI, DeviceType
from partage.placement.baselines import left_of
from partage.placement.fragmentation import Lens, Workload, summed
from partage.placement.incremental_columns import CardScores
from partage.placement.kernel import at
from partage.placement.priced import packed


class CapacityGauge(CardScores):
    """Expected capacity of every node, updated with the ledger; shared by all classes.

    Everything in it follows from the ledger and the usual requests.

    Attributes:
        lens: the usual requests, for the kinds of card in the books.
        left: compute left by card and node, milli.
        shared_cards: whether the card has a tenant, by card and node.
        slots: by threshold of the lens and node, how many such requests the cards have room for.
        total: compute left by node, milli.
        capacity: expected, by node, milli.
    """

    def __init__(self, workload: Workload, ledger: Ledger) -> None:
        self.workload = workload
        super().__init__(ledger)

    def allocate(self) -> None:
        """Make room for the nodes and cards in the books."""
        self.lens = Lens.of(self.workload, self.ledger.models)
        cards, size = self.ledger.planes[DeviceType.GPU].open.shape
        self.left: Ints = np.zeros((cards, size), np.int64)
        self.shared_cards: Bools = np.zeros((cards, size), np.bool_)
        self.slots: Ints = np.zeros((self.lens.thresholds.size, size), np.int64)
        self.total: Ints = np.zeros(size, np.int64)
        self.capacity: Floats = np.zeros(size)

    def write(self, nodes: Index) -> None:
        """Write the columns of some nodes."""
        plane = self.ledger.planes[DeviceType.GPU]
        left, shared = np.maximum(left_of(plane, nodes), 0), at(plane.tenants, nodes) > 0
        slots = np.zeros((self.lens.thresholds.size, nodes.size), np.int64)
        for card in zip(left, shared, strict=True):
            slots += self._slots(*card)
        self.left[:, nodes] = left
        self.shared_cards[:, nodes] = shared
        self.slots[:, nodes] = slots
        self.total[nodes] = left.sum(axis=0)
        self.capacity[nodes] = self._expected({}, nodes, slots)

    def codes(self, nodes: Index | int) -> Ints:
        """Cards that have as much left, and are all shared or all idle, score the same."""
        codes: Ints = 2 * self.left[:, nodes] + self.shared_cards[:, nodes]
        return codes

    def settled(
        self, host: Mapping[str, int], nodes: Index, count: int, _fits: Bools | None
    ) -> Ints:
        """Scores of whole cards, or of a pod without cards."""
        after = self.slots[:, nodes] - count * (MILLI // self.lens.thresholds)[:, None]
        loss = self.capacity[nodes] - self._expected(host, nodes, after)
        rest = np.maximum(self.total[nodes] - count * MILLI, 0)
        return packed(loss, rest, np.zeros(nodes.size, np.int64))

    def shared(
        self, host: Mapping[str, int], nodes: Index, codes: Ints, asked: tuple[int, int]
    ) -> Ints:
        """Scores of taking a share of a card."""
        (count, milli), left, shared = asked, codes >> 1, (codes & 1) > 0
        rest = np.maximum(left - milli, 0)
        after = (
            self.slots[:, nodes]
            - self._slots(left, shared)
            + self._slots(rest, np.ones_like(shared))
        )
        loss = self.capacity[nodes] - self._expected(host, nodes, after)
        return packed(loss, np.maximum(self.total[nodes] - count * milli, 0), rest)

    def _slots(self, left: Ints, shared: Bools) -> Ints:
        """By threshold and card, how many such requests fit on the card; never a whole card on a shared one."""
        steps = self.lens.thresholds[:, None]
        return left // steps * ~(shared & (steps >= MILLI))

    def _expected(self, host: Mapping[str, int], nodes: Index, slots: Ints) -> Floats:
        """Expected capacity after `host` is taken off the nodes, with these slots on their cards.

        A single node gets the same bits as one among many.
        """
        lens, free = self.lens, self.ledger.host_free["cpu"][nodes] - host.get("cpu", 0)
        kind = self.ledger.planes[DeviceType.GPU].kind[0, nodes]
        asked, count = lens.cpu[:, None], lens.count[:, None]
        pods = np.minimum(slots[lens.row] // count, free / asked)
        pods[(free < asked) | ~lens.allowed[:, kind]] = 0.0
        return summed((lens.chance * lens.count * lens.milli)[:, None] * pods)
