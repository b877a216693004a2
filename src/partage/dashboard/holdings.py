"""What is held of all cards, by the protocol that asked for it, summed up node by node.

A node whose books changed is summed again, in pieces between which others get their turn. Pods on
a node that is not known hold nothing here.
"""

import asyncio
from collections import Counter
from typing import Any, Final

from partage.inventory.changes import distinct
from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType

__all__ = ["Holdings"]

_PIECE: Final = 32
"""Nodes that are summed before others get their turn."""
_Sums = Counter[tuple[str, str]]
"""Pods, thousandths of cards and bytes: by protocol and by which of them it is."""


class Holdings:
    """Sums of one service's books."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._seen = 0
        self._nodes: dict[int, _Sums] = {}
        self._sums: _Sums = Counter()

    async def refresh(self, ledger: Ledger) -> None:
        """Take in what changed since the last time; one call at a time."""
        changed = ledger.changes.since(self._seen) if ledger is self._ledger else None
        if changed is None:
            self._ledger, self._nodes, self._sums = None, {}, Counter()
            self._seen = len(ledger.changes)
            await self._take(list(ledger.index.values()), ledger)
            self._ledger = ledger
        while (changed := ledger.changes.since(self._seen)) is not None and changed.size:
            seen = self._seen + changed.size
            await self._take(distinct(changed).tolist(), ledger)
            self._seen = seen

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

    async def _take(self, nodes: list[int], ledger: Ledger) -> None:
        for number, index in enumerate(nodes, 1):
            node = ledger.nodes[index]
            self._sums.subtract(self._nodes.pop(index, {}))
            if node is not None:
                mine = self._nodes[index] = _summed(ledger, node.name)
                self._sums.update(mine)
            if not number % _PIECE:
                await asyncio.sleep(0)


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
