"""Faults drawn from a seed, one after another, with time to recover in between."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from bed import Bed, until
from faulty_wire import Fault
from instances import Spawned

from partage.vendors import names

__all__ = ["STEADY", "Trouble"]

STEADY = "steady"
"""The instance that is never killed, so that its memory can be watched."""
_LONG = 600.0
_PEACE_SECONDS = 90.0
"""A new leader is left alone for this long. Each loss costs a Lease, a time-out and a fence in
which nothing is bound: lost more often, a cluster does nothing but wait for leaders."""
REQUESTS: tuple[dict[str, Any], ...] = (
    {"status": 409, "reason": "Conflict"},
    {"status": 429, "reason": "TooManyRequests", "retry_after": "1"},
    {"status": 500, "reason": "InternalError"},
    {"status": 504, "reason": "Timeout"},
    {"status": 504, "reason": "Timeout", "executed": True},
    {"drop": True},
    {"drop": True, "executed": True},
    {"delay": 1.0},
)


class Trouble:
    """What goes wrong on one bed.

    Attributes:
        made: how often which fault was made.
        wanted: instances that are down because we took them down.
        gaps: seconds from the loss of a leader to the next Binding.
    """

    def __init__(
        self,
        cluster: Bed,
        chance: random.Random,
        nodes: int,
        only: str = "",
        peace: float = _PEACE_SECONDS,
    ) -> None:
        """Nothing goes wrong yet.

        Args:
            cluster: what is broken.
            chance: draws what happens.
            nodes: how many there are, named n0 and on.
            only: faults whose name holds this text; all of them when it is empty.
            peace: seconds that a new leader is left alone.
        """
        self._only = only
        self._peace = peace
        self._led_since = -peace
        self.made: Counter[str] = Counter()
        self.wanted: set[str] = set()
        self.gaps: list[float] = []
        self._cluster = cluster
        self._chance = chance
        self._nodes = nodes
        self._end = 0.0

    async def run(self, seconds: float) -> None:
        """Break something now and then."""
        kinds: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "requests fail": (6, self._requests),
            "watches are cut": (3, self._cut),
            "watches are told 410": (2, self._gone),
            "no request gets through": (2, self._outage),
            "events come late": (2, self._late),
            "events come twice": (2, self._twice),
            "a card is ill": (3, self._ill),
            "the leader is killed": (1, self._kill_leader),
            "the leader stands still": (1, self._pause_leader),
            "a follower is killed": (1, self._kill_follower),
        }
        kinds = {name: kind for name, kind in kinds.items() if self._only in name}
        weights = [weight for weight, _ in kinds.values()]
        self._end = time.monotonic() + seconds
        while not self._over:
            await self._wait(1.0, 6.0)
            name = self._chance.choices(list(kinds), weights)[0]
            if name.startswith("the leader") and time.monotonic() < self._led_since + self._peace:
                continue
            self.made[name] += 1
            await kinds[name][1]()
        self._cluster.wire.heal()

    @property
    def _over(self) -> bool:
        return time.monotonic() >= self._end

    async def _wait(self, least: float, most: float) -> None:
        await asyncio.sleep(self._chance.uniform(least, most))

    # --- the wire ----------------------------------------------------------------------------

    async def _requests(self) -> None:
        share = self._chance.uniform(0.05, 0.4)

        def draw(request: Any) -> Fault | None:
            if "watch" in request.query or self._chance.random() >= share:
                return None
            return Fault(**self._chance.choice(REQUESTS))

        self._cluster.wire.chance = draw
        await self._wait(1.0, 5.0)
        self._cluster.wire.heal()

    async def _cut(self) -> None:
        self._cluster.wire.cut_watches()

    async def _gone(self) -> None:
        await self._cluster.wire.expire_watches()

    async def _outage(self) -> None:
        with self._cluster.wire.outage():
            await self._wait(0.5, 2.0)

    async def _late(self) -> None:
        self._cluster.wire.hold_back()
        await self._wait(0.5, 3.0)
        self._cluster.wire.let_go()

    async def _twice(self) -> None:
        self._cluster.wire.distort = lambda event: [event, event]
        await self._wait(1.0, 5.0)
        self._cluster.wire.heal()

    # --- nodes and instances -----------------------------------------------------------------

    async def _ill(self) -> None:
        name = f"n{self._chance.randrange(self._nodes)}"
        await self._cluster.patch(name, _ill("0,1"), "nodes")
        await self._wait(0.5, 3.0)
        await self._cluster.patch(name, _ill(None), "nodes")

    async def _kill_leader(self) -> None:
        found = self._cluster.spawned.get(self._cluster.leader())
        if found is not None:
            await self._taken(found, kill=found.name != STEADY)

    async def _pause_leader(self) -> None:
        found = self._cluster.spawned.get(self._cluster.leader())
        if found is not None:
            await self._taken(found, kill=False)

    async def _kill_follower(self) -> None:
        leader = self._cluster.leader()
        others = [s for s in self._cluster.spawned.values() if s.name not in {leader, STEADY}]
        if not others:
            return
        found = self._chance.choice(others)
        self.wanted.add(found.name)
        await found.kill()
        await found.start()
        self.wanted.discard(found.name)

    async def _taken(self, found: Spawned, *, kill: bool) -> None:
        """Take the leader away, wait until another one binds, and give it back."""
        self.wanted.add(found.name)
        started = time.monotonic()
        if kill:
            await found.kill()
        else:
            found.pause()
        await until(lambda: self._cluster.leader() != found.name, "another leads", _LONG)
        before = self._cluster.kube.bound
        await until(lambda: self._cluster.kube.bound > before or self._over, "it binds", _LONG)
        self._led_since = time.monotonic()
        if not self._over:
            self.gaps.append(self._led_since - started)
        if kill:
            await found.start()
        else:
            found.go_on()
        self.wanted.discard(found.name)


def _ill(cards: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {names.SIMULATE_UNHEALTHY: cards}}}
