"""One card with a queue before it: how soon after a release the next waiting pod is bound."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from bed import WHOLE, Bed

from partage.vendors import names

__all__ = ["LANE", "Lane"]

LANE = "lane"
"""Name and label of the node with the card; a taint keeps all other pods away."""
_QUEUE = 4
_LIFETIME = "0.5s"


class Lane:
    """Pods that ask for the same whole card, one after another.

    Attributes:
        gaps: seconds from the moment at which the API shows that the card is free to the one at
            which it shows the next Binding; only of those that `counts` allows at both.
        released: all releases.
    """

    def __init__(self, cluster: Bed, counts: Callable[[], bool]) -> None:
        """No pod queues yet.

        Args:
            cluster: where; it has a node of this name, label and taint.
            counts: whether nothing is broken on purpose at this moment.
        """
        self.gaps: list[float] = []
        self.released = 0
        self._cluster = cluster
        self._counts = counts
        self._number = 0
        self._holds = ""
        self._freed: float | None = None
        self._waits: set[str] = set()
        self._over: asyncio.Queue[str] = asyncio.Queue()
        cluster.watchman.listeners.append(self._heard)

    async def run(self, seconds: float) -> None:
        """Keep the queue filled for so long, then wait until it is empty."""
        loop = asyncio.get_running_loop()
        end, there = loop.time() + seconds, 0
        while there or loop.time() < end:
            while there < _QUEUE + 1 and loop.time() < end:
                await self._make()
                there += 1
            await self._cluster.delete(await self._over.get())
            there -= 1

    async def _make(self) -> None:
        self._number += 1
        name = f"{LANE}-{self._number}"
        meta = {"annotations": {names.SIMULATE_LIFETIME: _LIFETIME}}
        taint = {"key": LANE, "operator": "Exists", "effect": "NoSchedule"}
        await self._cluster.pod(
            name, WHOLE, meta=meta, nodeSelector={LANE: "yes"}, tolerations=[taint]
        )

    def _heard(self, kind: str, item: Mapping[str, Any]) -> None:
        """What the watchman sees."""
        name = item["metadata"]["name"]
        if not name.startswith(f"{LANE}-"):
            return
        status = item.get("status") or {}
        over = kind == "DELETED" or status.get("phase") in {"Succeeded", "Failed"}
        if over:
            self._waits.discard(name)
            if name == self._holds:
                self._release(name)
        elif not item["spec"].get("nodeName"):
            if any(c["type"] == "PodScheduled" for c in status.get("conditions") or ()):
                self._waits.add(name)
        elif name != self._holds:
            self._take(name)

    def _release(self, name: str) -> None:
        self.released += 1
        self._holds = ""
        asked = bool(self._waits) and self._counts()
        self._freed = asyncio.get_running_loop().time() if asked else None
        self._over.put_nowait(name)

    def _take(self, name: str) -> None:
        self._waits.discard(name)
        self._holds = name
        if self._freed is not None and self._counts():
            self.gaps.append(asyncio.get_running_loop().time() - self._freed)
        self._freed = None
