"""Columns by node that follow the ledger and are rewritten only for changed nodes; and scores made of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from partage.inventory.columns import distinct
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Index, Ints
from partage.model.device import DeviceType
from partage.model.request import DeviceRequest
from partage.placement.baselines import demand
from partage.placement.kernel import Nodes


class Followed(ABC):
    """Data kept for every node of a ledger; its keeper defines how it is made and written.

    Attributes:
        repeats: whether `write` may get a node twice, which costs less than removing duplicates.
    """

    repeats: ClassVar[bool] = False

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._seen = -1
        self._shape = (0, 0, 0)
        self.refresh()

    def refresh(self) -> None:
        """Update the columns from the ledger."""
        ledger = self.ledger
        changes = ledger.changes.count
        if self._seen == changes:
            return
        shape = (ledger.kind_changes, *ledger.planes[DeviceType.GPU].open.shape)
        changed = ledger.changes.since(self._seen)
        self._seen = changes
        if changed is None or self._shape != shape:
            self._shape = shape
            self.allocate()
            changed = np.arange(shape[2])
        self.write(changed if self.repeats else distinct(changed))

    @abstractmethod
    def allocate(self) -> None:
        """Make room for the nodes and cards in the books."""

    @abstractmethod
    def write(self, nodes: Index) -> None:
        """Write the columns of some nodes."""


class CardScores(Followed):
    """Columns by which nodes are scored, each by the best of its cards.

    Attributes:
        left: compute left by card and node, milli.
        least: the score of a node without a fitting card.
    """

    left: Ints
    least: ClassVar[int] = 0

    def node_scores(
        self,
        host: Mapping[str, int],
        request: DeviceRequest | None,
        fits: Bools | None,
        nodes: Nodes,
    ) -> Ints:
        """Scores of nodes: that of the node's best card, or of its whole cards."""
        index = np.arange(self.left.shape[1])[nodes]
        count, milli = demand(request)
        if request is None or fits is None or not count or request.whole:
            return self.settled(host, index, count, fits)
        # Cards of one node that are alike score the same, so one of them is enough.
        ordered = np.sort(np.where(fits, self.codes(index), -1), axis=0)
        fresh = ordered >= 0
        fresh[1:] &= ordered[1:] != ordered[:-1]
        row, column = np.nonzero(fresh)
        score = self.shared(host, index[column], ordered[row, column], (count, milli))
        result: Ints = np.full(index.size, self.least, np.int64)
        np.maximum.at(result, column, score)
        return result

    def card_scores(
        self, host: Mapping[str, int], request: DeviceRequest, fits: Bools | None, index: int
    ) -> dict[int, int]:
        """Score of each card of a node, by row; for shares.

        Args:
            host: ordinary resources that the pod asks.
            fits: which cards fit; None for all that have enough compute.
        """
        asked = demand(request)
        rows = np.flatnonzero(self.left[:, index] >= asked[1] if fits is None else fits[:, 0])
        codes = self.codes(index)[rows]
        score = self.shared(host, np.full(rows.size, index), codes, asked)
        return dict(zip(rows.tolist(), score.tolist(), strict=True))

    @abstractmethod
    def codes(self, nodes: Index | int) -> Ints:
        """By card and node, a number from 0 that cards of one node share if they score the same."""

    @abstractmethod
    def settled(
        self, host: Mapping[str, int], nodes: Index, count: int, fits: Bools | None
    ) -> Ints:
        """Scores of `count` whole cards, or of a pod without cards."""

    @abstractmethod
    def shared(
        self, host: Mapping[str, int], nodes: Index, codes: Ints, asked: tuple[int, int]
    ) -> Ints:
        """Scores of taking a share of a card, for pairs of node and the card's code; `asked` as in `demand`."""
