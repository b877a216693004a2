"""Columns by node that follow the ledger: written again for the nodes that changed, and no others."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from partage.inventory.changes import distinct
from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType


class Followed(ABC):
    """What is kept of every node of a ledger; its keeper says how it is made and written.

    Attributes:
        ledger: that is followed.
        repeats: whether `write` may be given a node twice; it costs less than telling them apart.
    """

    repeats: ClassVar[bool] = False

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._seen = -1
        self._shape = (0, 0, 0)
        self.refresh()

    def refresh(self) -> None:
        """Bring the columns up to date with the ledger."""
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
    def write(self, nodes: NDArray[np.intp]) -> None:
        """Write the columns of some nodes."""
