"""Pods of every protocol that come at a steady rate and go in every way there is."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bed import HALF, QUARTER, WHOLE, Bed

from partage.apiserver import ApiError
from partage.vendors import names

__all__ = ["ASKED", "SHAPES", "Churn", "Shape"]

ASKED = "asked"
"""Label of the pods about which the webhook is asked; one in eight, as each costs two calls."""
_ASKED_SHARE = 0.125
_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod may ask for.

    Attributes:
        main: limits of its first container.
        weight: how often it is drawn; MetaX's seldom, as one at a time may be served on a node.
        more: limits of further containers.
        first: limits of an init container.
        sidecar: limits of an init container that stays.
        notes: annotations.
    """

    main: Mapping[str, str]
    weight: int = 6
    more: tuple[Mapping[str, str], ...] = ()
    first: Mapping[str, str] | None = None
    sidecar: Mapping[str, str] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        """The containers of a pod."""

        def container(name: str, limits: Mapping[str, str], **more: Any) -> dict[str, Any]:
            return {"name": name, "image": "x", "resources": {"limits": dict(limits)}, **more}

        init = []
        if self.sidecar is not None:
            init.append(container("sidecar", self.sidecar, restartPolicy="Always"))
        if self.first is not None:
            init.append(container("first", self.first))
        rest = [container(f"more-{n}", limits) for n, limits in enumerate(self.more)]
        made: dict[str, Any] = {"containers": [container("main", self.main), *rest]}
        return made | ({"initContainers": init} if init else {})


HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "25"}
SHAPES = {
    "koordinator half": Shape(HALF),
    "koordinator whole": Shape(WHOLE),
    "koordinator v1.4": Shape(
        {"kubernetes.io/gpu-core": "25", "kubernetes.io/gpu-memory-ratio": "25"}
    ),
    "koordinator two cards": Shape({"koordinator.sh/gpu": "200"}, 4),
    "qgpu": Shape(
        {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "16"}
    ),
    "hami": Shape(HAMI),
    "hami mig": Shape(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000"},
        4,
        notes={names.HAMI_VGPU_MODE: "mig"},
    ),
    "metax": Shape({names.SGPU: "1", **HALF}, 1),
    "several containers": Shape(QUARTER, 4, more=(QUARTER, HAMI)),
    "init and sidecar": Shape(QUARTER, 4, more=(QUARTER,), first=HALF, sidecar=QUARTER),
    "no devices": Shape({"cpu": "100m"}, 4),
}


@dataclass(slots=True)
class _Steps:
    """How far a pod has come."""

    shape: str
    bound: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Churn:
    """Pods of one cluster.

    Attributes:
        made: pods that are due and were made, or are tried until admission lets them in.
        spared: pods that were not, because too many waited.
        refused: answers of admission that let a pod wait outside.
        bound: pods that got a node.
        bound_by_shape: the same by what they ask for.
        waits: seconds from creation to Binding, of those that were bound, by the same.
    """

    def __init__(
        self,
        cluster: Bed,
        rate: float,
        chance: random.Random,
        most: int = 2000,
        *,
        shapes: Mapping[str, Shape] = SHAPES,
        asked: bool = False,
    ) -> None:
        """Nothing is made yet.

        Args:
            cluster: where.
            rate: pods a second.
            most: pods there may be; beyond, none is made until some have gone.
            chance: decides what they ask for and how they end.
            shapes: what they may ask for.
            asked: whether the webhook is asked about some of them.
        """
        self.made = 0
        self.spared = 0
        self.refused = 0
        self.bound = 0
        self.bound_by_shape: Counter[str] = Counter()
        self._most = most
        self._asked = asked
        self._shapes = shapes
        self.waits: dict[str, list[float]] = {name: [] for name in shapes}
        self._cluster = cluster
        self._rate = rate
        self._chance = chance
        self._steps: dict[str, _Steps] = {}
        self._ends: set[asyncio.Task[None]] = set()
        cluster.watchman.listeners.append(self._heard)

    @property
    def waiting(self) -> int:
        """Pods that are there and have no node."""
        return sum(not one.bound.is_set() for one in self._steps.values())

    @property
    def waiting_shapes(self) -> Counter[str]:
        """What the pods that have no node ask for."""
        return Counter(one.shape for one in self._steps.values() if not one.bound.is_set())

    async def run(self, seconds: float) -> None:
        """Create pods at the rate, whatever happens; a moment that was missed is made up for."""
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < seconds:
            while self.made + self.spared < int(passed * self._rate):
                if len(self._ends) < self._most:
                    self._make(f"p{self.made}")
                else:
                    self.spared += 1
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)

    async def emptied(self) -> None:
        """Wait until every pod has come to its end."""
        while self._ends:
            done, _ = await asyncio.wait(set(self._ends))
            for task in done:
                task.result()

    def _make(self, name: str) -> None:
        self.made += 1
        work = asyncio.create_task(self._live(name))
        self._ends.add(work)
        work.add_done_callback(self._ends.discard)

    async def _live(self, name: str) -> None:
        """Most pods end by themselves, some are deleted while they run, a few while they wait."""
        seconds, how = self._chance.uniform(1.0, 5.0), self._chance.random()
        weights = [one.weight for one in self._shapes.values()]
        drawn = self._chance.choices(list(self._shapes), weights)[0]
        asked = self._asked and self._chance.random() < _ASKED_SHARE
        uid = await self._created(name, drawn, seconds, asked=asked)
        steps = self._steps[uid] = _Steps(drawn)
        born = asyncio.get_running_loop().time()
        bound = self._cluster.watchman.bound
        if how < 0.03:
            await asyncio.sleep(seconds / 4)
        else:
            await steps.bound.wait()
            self.waits[drawn].append(max(0.0, bound.get(uid, born) - born))
            await (asyncio.sleep(seconds / 2) if how < 0.3 else steps.ended.wait())
        await self._cluster.delete(name, grace=None if 0.03 <= how < 0.2 else 0)
        await steps.gone.wait()
        bound.pop(uid, None)
        del self._steps[uid]

    async def _created(self, name: str, drawn: str, seconds: float, *, asked: bool) -> str:
        """Create a pod, as often as a controller would where admission does not answer."""
        shape = self._shapes[drawn]
        notes = {names.SIMULATE_LIFETIME: f"{seconds:.2f}s", **shape.notes}
        meta = {"annotations": notes, "labels": {ASKED: "yes"} if asked else {}}
        while True:
            try:
                return await self._cluster.pod(name, meta=meta, **shape.spec())
            except ApiError as error:
                if not asked or "failed calling webhook" not in error.message:
                    raise
                self.refused += 1
                await asyncio.sleep(_AGAIN_SECONDS)

    def _heard(self, kind: str, item: Mapping[str, Any]) -> None:
        """What the watchman sees."""
        steps = self._steps.get(item["metadata"]["uid"])
        if steps is None:
            return
        gone = kind == "DELETED"
        placed = bool(item["spec"].get("nodeName"))
        if placed and not steps.bound.is_set():
            self.bound += 1
            self.bound_by_shape[steps.shape] += 1
        if gone:
            steps.gone.set()
        if gone or placed:
            steps.bound.set()
        if gone or (item.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
            steps.ended.set()
