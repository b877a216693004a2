"""Scenarios 2 and 7 together: two instances share an API server, and one loses its way to it.

Each has a wire of its own. The one that leads is cut off, wholly or in part, under a load that
always wants more than there is; the other takes over; the first comes back with what it knew, and
takes over again when the other is cut off in its turn.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from bed import HALF, Bed, Document, bed, node, told, until

from fakes.wire import Fault, Wire
from partage.vendors import names

CARDS = 4
ROOM = 2 * CARDS
"""Pods of half a card that have a place."""
ALIVE = ROOM + 4
"""Pods that there are at a time: at least one always waits."""
PACE = 0.3
"""Seconds between two; what is sent last before the Lease is lost arrives after it is."""


def cut(wire: Wire) -> None:
    """Nothing gets through, and what is open breaks."""
    wire.cut = True


def black_hole(wire: Wire) -> None:
    """Nothing gets through, and nothing breaks either: every request waits."""
    wire.hold_back()
    wire.chance = lambda _request: Fault(delay=12.0, drop=True)


def deaf(wire: Wire) -> None:
    """Whatever is sent is carried out, and no answer comes back."""
    wire.chance = _but_watches(Fault(executed=True, drop=True))


def late(wire: Wire) -> None:
    """Writes are carried out after their sender has given up; its Lease is lost."""
    # A Binding has 2 s here, the Lease 4 s, and the quiet period of the next leader is 2.4 s.
    wire.fail(Fault(path="/leases/", drop=True, times=10**9))
    wire.chance = _but_watches(Fault(delay=2.3, executed=True, drop=True))


def doubtful(wire: Wire) -> None:
    """Writes are carried out and answered with a time-out, and no watch sends an event; its Lease is lost."""
    wire.hold_back()
    timeout = Fault(status=504, reason="Timeout", executed=True)

    def chance(request: Any) -> Fault | None:
        if "/leases/" in request.path:
            return Fault(drop=True)
        return None if request.method == "GET" else timeout

    wire.chance = chance


def blind(wire: Wire) -> None:
    """No watch sends anything any more, though all stay open; its Lease is lost."""
    wire.hold_back()
    wire.fail(Fault(path="/leases/", drop=True, times=10**9))


def leaseless(wire: Wire) -> None:
    """All is well but its Lease."""
    wire.fail(Fault(path="/leases/", status=500, times=10**9))


def _but_watches(fault: Fault) -> Callable[[Any], Fault | None]:
    return lambda request: None if "watch" in request.query else fault


LOSSES = (cut, black_hole, deaf, late, doubtful, blind, leaseless)


@dataclass
class Load:
    """Pods of half a card that come and go, the oldest first.

    Attributes:
        cluster: where.
        alive: pods that are there.
        seen: node and record of all that were ever bound, by uid.
        made: how many there ever were.
    """

    cluster: Bed
    alive: list[str] = field(default_factory=list)
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.cluster.watchman.listeners.append(self.look)

    def look(self, _kind: str, pod: Document) -> None:
        """No pod's node or record changes once it is there."""
        where = pod["spec"].get("nodeName")
        if where:
            head = pod["metadata"]
            what = (where, head["annotations"].get(names.ALLOCATION))
            if self.seen.setdefault(head["uid"], what) != what:
                self.cluster.watchman.wrong.append(f"{head['name']} is bound again: {what}")

    async def run(self) -> None:
        """Pods come, and for each that is one too many the oldest goes; the slower, the longer no pod is bound."""
        pace = PACE
        while True:
            self.alive.append(f"p{self.made}")
            self.made += 1
            await self.cluster.pod(self.alive[-1], HALF)
            if len(self.alive) > ALIVE:
                await self.cluster.delete(self.alive.pop(0))
            # On a busy machine pods would go, over and over, before they could be bound.
            pace = PACE if any(map(self.cluster.placed, self.alive)) else pace * 1.1
            await asyncio.sleep(pace)

    async def end(self) -> None:
        """No pod is there any more, and the leader knows it."""
        for name in self.alive:
            await self.cluster.delete(name)
        self.alive.clear()
        await self.cluster.sound()

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """While this lasts; then every pod with room is bound."""
        running = asyncio.create_task(self.run())
        try:
            yield
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        while len(self.alive) > ROOM:
            await self.cluster.delete(self.alive.pop(0))
        await self.cluster.bound(*self.alive)


async def passes(load: Load, wire: Wire, loss: Callable[[Wire], None], to: str) -> float:
    """Cut off the leader, and wait until the other one leads and binds; seconds that took."""
    cluster = load.cluster
    await load.end()
    started = time.monotonic()
    async with load.going_on():
        # While there is room: what is sent at this moment gets no answer.
        await until(lambda: any(map(cluster.placed, load.alive)), "the first is bound")
        loss(wire)
        await until(lambda: cluster.leader() == to, f"{to} has the Lease")
        await cluster.led(to)
        before = load.made
        await until(lambda: any(cluster.placed(f"p{n}") for n in range(before, load.made)))
        took = time.monotonic() - started
        await asyncio.sleep(1.0)
    return took


@pytest.mark.long(20)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
async def test_who_is_cut_off_is_followed_and_comes_back(
    loss: Callable[[Wire], None], seam: str
) -> None:
    """Nothing is bound twice, and all five invariants hold, after each time the Lease passes on."""
    async with (
        bed(node(cards=CARDS), seam=seam) as cluster,
        Wire(cluster.url) as first,
        Wire(cluster.url) as second,
    ):
        one = await cluster.daemon("one", url=first.url, quiet_period=None)
        await cluster.led("one")
        two = await cluster.daemon("two", url=second.url, quiet_period=None)
        load = Load(cluster)

        took = await passes(load, first, loss, "two")

        told(f"2: its wire is {loss.__name__}: the other binds", took)
        await cluster.sound(f"2: its wire is {loss.__name__}")
        assert not one.service.leading
        assert first.struck or first.cut, "nothing was hit"
        first.heal()
        async with load.going_on():
            await asyncio.sleep(2.0)
        await cluster.sound(f"2: its wire was {loss.__name__}, back")
        assert (one.service.leading, two.service.leading) == (False, True)

        await passes(load, second, cut, "one")

        await cluster.sound(f"2: its wire was {loss.__name__}, leads again")
        assert (one.service.leading, two.service.leading) == (True, False)
        second.heal()
        assert len(load.seen) > 2 * ROOM
