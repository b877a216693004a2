"""Sums of all cards' allocations by the pod's protocol, node by node.

The module also knows which protocol each card serves. It sums a node again when the node's books changed, in
pieces between which other tasks run. Pods on an unknown node count as nothing here.
"""

import asyncio
from collections import Counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from partage.inventory.columns import distinct
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools
from partage.model.device import DeviceType

SEVERAL: Final = 255
"""More than one protocol on a card, or one beyond the number that a byte holds."""

_PIECE: Final = 32
"""Nodes summed before other tasks run."""
_Sums = Counter[tuple[str, str]]
"""Pods, thousandths of cards, and bytes, by protocol and quantity."""


class Holdings:
    """Sums of one service's books.

    Attributes:
        protocols: all known ones, in the order of their numbers, which start at 1.
        served: by card and node the number of its pods' protocol, 0 without any;
            shape (cards, nodes).
    """

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._seen = 0
        self._nodes: dict[int, _Sums] = {}
        self._sums: _Sums = Counter()
        self.protocols: dict[str, int] = {}
        self.served: NDArray[np.uint8] = np.zeros((0, 0), np.uint8)

    async def refresh(self, ledger: Ledger) -> None:
        """Take in changes since the last time; one call at a time."""
        changed = ledger.changes.since(self._seen) if ledger is self._ledger else None
        if changed is None:
            self._ledger, self._nodes, self._sums = None, {}, Counter()
            self._seen = ledger.changes.count
            await self._take(list(ledger.index.values()), ledger)
            self._ledger = ledger
        while (changed := ledger.changes.since(self._seen)) is not None and changed.size:
            seen = self._seen + changed.size
            await self._take(distinct(changed).tolist(), ledger)
            self._seen = seen
        self._grow(ledger)

    def document(self) -> list[dict[str, Any]]:
        """Sums by protocol, in the order of their names."""
        return [
            {
                "protocol": name,
                "pods": pods,
                "core_milli": self._sums[name, "core_milli"],
                "memory_bytes": self._sums[name, "memory_bytes"],
            }
            for (name, what), pods in sorted(self._sums.items())
            if what == "pods" and pods
        ]

    def serves(self, protocol: str) -> Bools:
        """Nodes with a card that a pod of the protocol uses; shape (nodes,)."""
        number = self.protocols.get(protocol, 0)
        found: Bools = np.zeros(self.served.shape[1], np.bool_)
        if number:
            found |= (self.served == number).any(axis=0)
        for index in np.flatnonzero((self.served == SEVERAL).any(axis=0)).tolist():
            found[index] = (protocol, "pods") in self._nodes.get(index, {})
        return found

    async def _take(self, nodes: list[int], ledger: Ledger) -> None:
        for number, index in enumerate(nodes, 1):
            node = ledger.nodes[index]
            self._sums.subtract(self._nodes.pop(index, {}))
            self._serve(ledger, index)
            if node is not None:
                mine = self._nodes[index] = _summed(ledger, node.name)
                self._sums.update(mine)
            if not number % _PIECE:
                await asyncio.sleep(0)

    def _serve(self, ledger: Ledger, index: int) -> None:
        """Update the protocol of each card of a node."""
        self._grow(ledger)
        self.served[:, index] = 0
        node = ledger.nodes[index]
        for held in ledger.on_node(node.name) if node is not None else ():
            for grant in held.grants:
                number = self.protocols.setdefault(grant.protocol, len(self.protocols) + 1)
                for type_, place, row in ledger.at_uuid(grant.uuid):
                    if type_ is DeviceType.GPU and place == index:
                        known = self.served[row, index]
                        self.served[row, index] = number if known in (0, number) else SEVERAL

    def _grow(self, ledger: Ledger) -> None:
        cards, nodes = ledger.planes[DeviceType.GPU].core_total.shape
        have = self.served.shape
        if cards > have[0] or nodes > have[1]:
            served = np.zeros((max(cards, have[0]), max(nodes, have[1])), np.uint8)
            served[: have[0], : have[1]] = self.served
            self.served = served


def _summed(ledger: Ledger, name: str) -> _Sums:
    sums: _Sums = Counter()
    for held in ledger.on_node(name):
        for protocol in {grant.protocol for grant in held.grants}:
            sums[protocol, "pods"] += 1
        for grant in held.grants:
            if grant.type is DeviceType.GPU:
                sums[grant.protocol, "core_milli"] += grant.core_milli
                sums[grant.protocol, "memory_bytes"] += grant.memory_bytes
    return sums
