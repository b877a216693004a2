"""Pods that come at a steady rate and go in every way there is."""

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bed import Bed

from partage.vendors import names

__all__ = ["Churn"]

SHAPES: tuple[dict[str, str], ...] = (
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    {"koordinator.sh/gpu": "100"},
    {"kubernetes.io/gpu-core": "25", "kubernetes.io/gpu-memory-ratio": "25"},
    {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "16"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "25"},
    {"koordinator.sh/gpu": "200"},
    {"cpu": "100m"},
)


@dataclass(slots=True)
class _Steps:
    """How far a pod has come."""

    bound: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Churn:
    """Pods of one cluster.

    Attributes:
        made: pods that were created.
        spared: pods that were not, because too many waited.
        waits: seconds from creation to Binding, of those that were bound.
    """

    def __init__(self, cluster: Bed, rate: float, chance: random.Random, most: int = 2000) -> None:
        """Nothing is made yet.

        Args:
            cluster: where.
            rate: pods a second.
            most: pods there may be; beyond, none is made until some have gone.
            chance: decides what they ask for and how they end.
        """
        self.made = 0
        self.spared = 0
        self._most = most
        self.waits: list[float] = []
        self._cluster = cluster
        self._rate = rate
        self._chance = chance
        self._steps: dict[str, _Steps] = {}
        self._ends: set[asyncio.Task[None]] = set()
        cluster.watchman.listener = self._heard

    async def run(self, seconds: float) -> None:
        """Create pods at the rate, whatever happens; a moment that was missed is made up for."""
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < seconds:
            while self.made + self.spared < int(passed * self._rate):
                if len(self._ends) < self._most:
                    await self._make(f"p{self.made}")
                else:
                    self.spared += 1
            await asyncio.sleep(0.01)

    async def emptied(self) -> None:
        """Wait until every pod has come to its end."""
        while self._ends:
            await asyncio.wait(set(self._ends))

    async def _make(self, name: str) -> None:
        self.made += 1
        seconds, how = self._chance.uniform(1.0, 5.0), self._chance.random()
        meta = {"annotations": {names.SIMULATE_LIFETIME: f"{seconds:.2f}s"}}
        uid = await self._cluster.pod(name, self._chance.choice(SHAPES), meta=meta)
        self._steps[uid] = _Steps()
        work = asyncio.create_task(self._end(name, uid, seconds, how))
        self._ends.add(work)
        work.add_done_callback(self._ends.discard)

    async def _end(self, name: str, uid: str, seconds: float, how: float) -> None:
        """Most pods end by themselves, some are deleted while they run, a few while they wait."""
        steps, born = self._steps[uid], asyncio.get_running_loop().time()
        bound = self._cluster.watchman.bound
        if how < 0.03:
            await asyncio.sleep(seconds / 4)
        else:
            await steps.bound.wait()
            self.waits.append(max(0.0, bound[uid] - born))
            await (asyncio.sleep(seconds / 2) if how < 0.3 else steps.ended.wait())
        await self._cluster.delete(name, grace=None if 0.03 <= how < 0.2 else 0)
        await steps.gone.wait()
        bound.pop(uid, None)
        del self._steps[uid]

    def _heard(self, kind: str, item: Mapping[str, Any]) -> None:
        """What the watchman sees."""
        steps = self._steps.get(item["metadata"]["uid"])
        if steps is None:
            return
        gone = kind == "DELETED"
        if gone:
            steps.gone.set()
        if gone or item["spec"].get("nodeName"):
            steps.bound.set()
        if gone or (item.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
            steps.ended.set()
