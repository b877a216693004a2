"""Faults drawn from a seed, one after another, with time to recover in between."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from bed import DEVICES, Bed, until
from instances import Spawned

from fakes.wire import Fault
from partage.embedded.fleet import SimulatedNode
from partage.embedded.hardware import node_manifest
from partage.vendors import names

__all__ = ["STEADY", "WEBHOOK", "Trouble"]

WEBHOOK = "webhook"
STEADY = "steady"
"""The instance that is never killed, so that its memory can be watched."""
_LONG = 600.0
_PEACE_SECONDS = 90.0
"""A new leader is left alone for this long. Each loss costs a Lease, a time-out and a quiet period in
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


_CLOCKS = (0.0, 600.0, -600.0, 86_400.0)
"""Seconds by which the API server's clock may be wrong."""
_AFTER_SECONDS = 3.0
"""What a fault leaves behind is reported, read again and tried again within this long."""
KILLED, STOOD_STILL = "killed", "stood still"


class Trouble:
    """What goes wrong on one bed.

    Some faults are *announced*: nothing can be bound while they last, so no rate is asked for, nor
    until what waited meanwhile has been made up for, at most for as long again.

    Attributes:
        made: how often which fault was made.
        wanted: instances that are down because we took them down.
        gaps: seconds from the loss of a leader to the next Binding, by how it was lost.
        kinds: what may go wrong, with how often it is drawn.
        announced: how often an announced fault has begun or ended.
    """

    def __init__(
        self,
        cluster: Bed,
        chance: random.Random,
        nodes: Sequence[SimulatedNode],
        only: str = "",
        peace: float = _PEACE_SECONDS,
    ) -> None:
        """Nothing goes wrong yet.

        Args:
            cluster: what is broken.
            chance: draws what happens.
            nodes: those to which something may happen.
            only: faults whose name holds this text; all of them when it is empty.
            peace: seconds that a new leader is left alone.
        """
        self._peace = peace
        self._led_since = -peace
        self.made: Counter[str] = Counter()
        self.wanted: set[str] = set()
        self.gaps: dict[str, list[float]] = {KILLED: [], STOOD_STILL: []}
        self.announced = 0
        self._lasting = 0
        self._catching_up = 0.0
        self._broken = False
        self._well_since = -_AFTER_SECONDS
        self._cluster = cluster
        self._chance = chance
        self._nodes = nodes
        self._end = 0.0
        kinds: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "requests fail": (6, self._requests),
            "watches are cut": (3, self._cut),
            "watches get 410": (2, self._gone),
            "no request gets through": (2, self._outage),
            "events come late": (2, self._late),
            "events come twice": (2, self._twice),
            "watches begin with 410": (2, self._gone_at_start),
            "a card is ill": (3, self._ill),
            "a node goes and comes back": (2, self._node),
            "agents report again": (2, self._agents),
            "the clock is set": (2, self._clock),
            "the webhook is killed": (1, self._kill_webhook),
            "the webhook stands still": (1, self._pause_webhook),
            "the leader is killed": (1, self._kill_leader),
            "the leader stands still": (1, self._pause_leader),
            "a follower is killed": (1, self._kill_follower),
        }
        self.kinds = {name: kind for name, kind in kinds.items() if only in name}

    async def run(self, seconds: float) -> None:
        """Break something now and then; in the second half what never happened has its turn."""
        weights = [weight for weight, _ in self.kinds.values()]
        self._end = time.monotonic() + seconds
        half = self._end - seconds / 2
        while not self._over:
            await self._wait(1.0, 6.0)
            name = self._chance.choices(list(self.kinds), weights)[0]
            never = [one for one in self.kinds if not self.made[one]]
            if never and time.monotonic() > half and self._chance.random() < 0.5:
                name = self._chance.choice(never)
            if name.startswith("the leader") and time.monotonic() < self._led_since + self._peace:
                continue
            self.made[name] += 1
            self._broken = True
            try:
                await self.kinds[name][1]()
            finally:
                self._broken = False
                self._well_since = time.monotonic()
        self._cluster.wire.heal()

    def calm(self, waiting: int, few: int) -> bool:
        """Whether no announced fault lasts, and what it left behind has been made up for.

        Args:
            waiting: pods that wait now.
            few: so many wait on a good day.
        """
        if self._lasting:
            return False
        if waiting <= few:
            self._catching_up = 0.0
        return time.monotonic() >= self._catching_up

    def quiet(self) -> bool:
        """Whether nothing is broken, and has not been for a while."""
        return not self._broken and time.monotonic() >= self._well_since + _AFTER_SECONDS

    @contextlib.contextmanager
    def _announcing(self) -> Iterator[None]:
        """No rate is asked for as long as this lasts."""
        begun = time.monotonic()
        self._lasting += 1
        self.announced += 1
        try:
            yield
        finally:
            self._lasting -= 1
            self.announced += 1
            now = time.monotonic()
            self._catching_up = now + (now - begun)

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
        with self._announcing(), self._cluster.wire.outage():
            await self._wait(0.5, 2.0)

    async def _late(self) -> None:
        with self._announcing():
            self._cluster.wire.hold_back()
            await self._wait(0.5, 3.0)
            self._cluster.wire.let_go()

    async def _twice(self) -> None:
        self._cluster.wire.distort = lambda event: [event, event]
        await self._wait(1.0, 5.0)
        self._cluster.wire.heal()

    async def _gone_at_start(self) -> None:
        """New watches get 410 before their first event, so that all is listed again."""
        times = self._chance.randint(1, 12)
        self._cluster.wire.fail(Fault(status=410, reason="Expired", watch=True, times=times))
        self._cluster.wire.cut_watches()
        await self._wait(1.0, 3.0)
        self._cluster.wire.heal()

    # --- nodes, clocks and instances ---------------------------------------------------------

    async def _node(self) -> None:
        """A node is deleted, its pods and its Device object with it, and registers again."""
        found = self._chance.choice(self._nodes)
        await self._cluster.delete(found.name, "nodes")
        await self._wait(0.5, 3.0)
        await self._cluster.create(node_manifest(found), "nodes")

    async def _agents(self) -> None:
        """Device objects go, as with their agents, and are reported again."""
        for found in self._chance.sample(self._nodes, k=min(3, len(self._nodes))):
            await self._cluster.delete(found.name, DEVICES)

    async def _clock(self) -> None:
        """The API server's clock is set; it stays wrong until it is set again."""
        self._cluster.clock.wrong = self._chance.choice(_CLOCKS)

    async def _kill_webhook(self) -> None:
        found = self._cluster.spawned.get(WEBHOOK)
        if found is None:
            return
        self.wanted.add(WEBHOOK)
        await found.kill()
        await self._wait(0.5, 3.0)
        await found.start()
        self.wanted.discard(WEBHOOK)

    async def _pause_webhook(self) -> None:
        found = self._cluster.spawned.get(WEBHOOK)
        if found is not None:
            found.pause()
            await self._wait(1.0, 8.0)
            found.go_on()

    async def _ill(self) -> None:
        name = self._chance.choice(self._nodes).name
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
        kept = {leader, STEADY, WEBHOOK}
        others = [s for s in self._cluster.spawned.values() if s.name not in kept]
        if not others:
            return
        found = self._chance.choice(others)
        self.wanted.add(found.name)
        await found.kill()
        await found.start()
        self.wanted.discard(found.name)

    async def _taken(self, found: Spawned, *, kill: bool) -> None:
        """Take the leader away, wait until another one binds, and return it."""
        self.wanted.add(found.name)
        started = time.monotonic()
        with self._announcing():
            if kill:
                await found.kill()
            else:
                found.pause()
            await until(lambda: self._cluster.leader() != found.name, "another leads", _LONG)
            bound = self._cluster.watchman.bound
            before = len(bound)
            await until(lambda: len(bound) > before or self._over, "it binds", _LONG)
        self._led_since = time.monotonic()
        if not self._over:
            self.gaps[KILLED if kill else STOOD_STILL].append(self._led_since - started)
        if kill:
            await found.start()
        else:
            found.go_on()
        self.wanted.discard(found.name)


def _ill(cards: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {names.SIMULATE_UNHEALTHY: cards}}}
