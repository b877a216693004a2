"""However processes stand still, die and come back, and whatever is lost: one ledger at a time allows Bindings.

Instances are real electors (`daemon.leadership`) over played Leases, by both seams, and kube-schedulers that elect by
a Lease of their own. A process that stands still gets neither time nor answers; one that dies never goes on.
"""

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import msgspec
import pytest

from fakes.clock import SteppedClock
from partage.daemon.leadership import Leadership
from partage.daemon.options import ElectionOptions
from partage.daemon.plugin import PLUGIN_SEND
from partage.extender.bindings import BindLimits
from partage.kube.election import Lease
from partage.kube.errors import Conflict, Outcome, Status, TimedOut
from partage.kube.lease import Candidacy, LeaderElector
from partage.kube.objects import Annotated

COUNT = int(os.environ.get("PARTAGE_CASES", "100")) // 20
FIRST = int(os.environ.get("PARTAGE_SEED", "0")) * 1_000_003
STEP = 0.5
"""Seconds."""
STEPS, CALM = 300, 160
OWN, KUBE, RENAMED = "partage-scheduler", "partage-kube-scheduler", "renamed"
MIXES = [("", ""), (KUBE, KUBE), ("", KUBE), (KUBE, RENAMED)]
"""Of two instances kube-scheduler's Lease; empty with the extender."""


@dataclass
class World:
    """Two instances, and the store with their Leases."""

    chance: random.Random
    trouble: float = 0.15
    clock: SteppedClock = field(default_factory=SteppedClock)
    leases: dict[str, Lease] = field(default_factory=dict)
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    instances: list["Instance"] = field(default_factory=list)
    tasks: list[asyncio.Future[Any]] = field(default_factory=list)
    led: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in (OWN, KUBE, RENAMED):
            self.leases[name] = Lease(Annotated(resource_version=str(next(self.versions))))

    def write(self, name: str, body: Any) -> Lease:
        """Merge a change into a Lease, if it is still of that version."""
        old, metadata = self.leases[name], body["metadata"]
        if metadata["resourceVersion"] != old.metadata.resource_version:
            raise Conflict("PATCH", name, 409, Status())
        changed = {k: v for k, v in msgspec.structs.asdict(body["spec"]).items() if v is not None}
        marks = {**(old.metadata.annotations or {}), **metadata.get("annotations", {})}
        version = str(next(self.versions))
        self.leases[name] = Lease(
            Annotated(resource_version=version, annotations=marks),
            msgspec.structs.replace(old.spec, **changed),
        )
        return self.leases[name]

    def start(self, work: Any) -> "asyncio.Future[Any]":
        """Let something run until the end of the test."""
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    def check(self) -> None:
        """An instance that allows Bindings has listed the pods when nothing of any other could arrive any more."""
        engines = [one for slot in self.instances for one in slot.engines]
        allowing = [one for one in engines if one.allows]
        for one in allowing:
            one.sent = self.clock.monotonic()
        for one in allowing:
            for other in engines:
                late = other.sent + other.send - one.listed
                if other is not one and late > 0:
                    self.wrong.append(f"{other.name} may be {late:.1f} s late for {one.name}")


@dataclass
class Process:
    """A program with a clock and a client: what waits for either goes on only if the process does."""

    world: World
    going: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.going.set()

    @property
    def clock(self) -> Self:
        """See `kube.client.Client`, also below."""
        return self

    def insistent(self, _longest: float) -> Self:
        """The same."""
        return self

    def chance(self) -> float:
        """For the jitter of retries."""
        return self.world.chance.random()

    def monotonic(self) -> float:
        """See `kube.clock.Clock`, also below."""
        return self.world.clock.monotonic()

    def now(self) -> datetime:
        """The wall clock."""
        return self.world.clock.now()

    async def sleep(self, seconds: float) -> None:
        """Wait, and then until the process goes on."""
        await self.world.clock.sleep(seconds)
        await self.going.wait()

    async def get(self, _resource: object, name: str, **_more: Any) -> Lease:
        """Read a Lease."""
        return await self._asked(lambda: self.world.leases[name])

    async def patch(self, _resource: object, name: str, body: Any, **_more: Any) -> Lease:
        """Change a Lease."""
        return await self._asked(lambda: self.world.write(name, body))

    async def list_all(self, *_scope: object, **_more: object) -> None:
        """No watch: then electors look every two seconds."""
        await asyncio.Event().wait()

    async def _asked(self, carry_out: Callable[[], Lease]) -> Lease:
        """Carry out a request, sooner or later or not at all, and answer, or not."""
        chance, trouble = self.world.chance, self.world.trouble
        slow = chance.choice([1.0, 3.0, 9.0]) if chance.random() < trouble else 0.0
        before, lost = chance.uniform(0, slow), chance.random()
        await self.world.clock.sleep(before)
        if lost < trouble / 2:
            await self.sleep(slow - before)
            raise TimedOut("", "", "the request is lost", Outcome.REFUSED)
        try:
            found = carry_out()
        finally:
            await self.sleep(slow - before)
        if lost < trouble:
            raise TimedOut("", "", "the answer is lost", Outcome.UNKNOWN)
        return found


class Engine:
    """One process of the service.

    Attributes:
        listed: when it listed the pods for this lead.
        sent: when it last could allow a Binding.
    """

    def __init__(self, world: World, name: str, kube: str) -> None:
        self.world, self.name = world, name
        self.process = Process(world)
        self.send = PLUGIN_SEND if kube else BindLimits().send
        self.serving, self.over = False, False
        self.listed, self.sent = 0.0, -1e9
        self.lead = Leadership(
            self.process,  # type: ignore[arg-type]
            name,
            ElectionOptions(name=OWN),
            self._lead,
            settled=lambda: self.over and self.process.monotonic() >= self.sent + self.send,
            went_back=lambda: None,
            send=self.send,
            followed=kube or None,
        )
        self.running = world.start(self.lead.run())

    @property
    def allows(self) -> bool:
        """Whether it allows Bindings now; see `SchedulerDaemon.may_bind`."""
        return self.process.going.is_set() and self.serving and self.lead.leading

    async def _lead(self) -> None:
        """As the scheduler does, without its books."""
        self.over = False
        await self.lead.predecessor_over()
        self.over, self.serving = True, True
        self.listed = self.process.monotonic()
        self.world.led += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.serving = False
            await self.process.sleep(self.world.chance.choice([0.0, 1.5, self.send]))


class Instance:
    """A pod: the service, and with the plugin kube-scheduler; each may be another process later."""

    def __init__(self, world: World, name: str, kube: str) -> None:
        self.world, self.name, self.kube = world, name, kube
        self.numbers = itertools.count()
        self.engines: list[Engine] = []
        self.holds = False
        self.scheduler: Process | None = None
        self.electing: asyncio.Future[Any] | None = None
        self.start_engine()
        if kube:
            self.start_kube()

    @property
    def processes(self) -> list[Process]:
        """Those that live."""
        beside = [self.scheduler] if self.scheduler is not None else []
        return [self.engines[-1].process, *beside]

    def start_engine(self) -> None:
        """A new process of the service; kube-scheduler connects to it."""
        name = f"{self.name}{next(self.numbers)}"
        self.engines.append(Engine(self.world, name, self.kube))
        self.tell()

    def start_kube(self) -> None:
        """A new kube-scheduler."""
        self.holds, self.scheduler = False, Process(self.world)
        self.tell()
        name = f"{self.name}-kube{next(self.numbers)}"

        async def lead() -> None:
            self.holds = True
            self.tell()
            try:
                await asyncio.Event().wait()
            finally:
                self.holds = False
                self.tell()

        elector = LeaderElector(
            self.scheduler,  # type: ignore[arg-type]
            Candidacy("default", self.kube, name),
            lead,
        )
        self.electing = self.world.start(elector.run())

    def tell(self) -> None:
        """kube-scheduler reports whether it holds its Lease, once the service goes on."""
        engine = self.engines[-1]

        async def arrive() -> None:
            await engine.process.going.wait()
            engine.lead.claim(self.holds)

        self.world.start(arrive())

    def strike(self) -> None:
        """Something happens to it."""
        chance, engine = self.world.chance, self.engines[-1]
        what = chance.choice(["still", "still", "kill", "end", "kube killed", "kube ends"])
        if what == "still":
            process = chance.choice(self.processes)
            process.going.clear()
            self.world.start(self._go_on(process, chance.choice([3.0, 12.0, 20.0, 45.0])))
        elif what == "kill":
            engine.process.going.clear()
            self.start_engine()
        elif what == "end":
            engine.running.cancel()
            self.start_engine()
        elif self.scheduler is not None and self.electing is not None:
            if what == "kube killed":
                self.scheduler.going.clear()
            else:
                self.electing.cancel()
            self.start_kube()

    async def _go_on(self, process: Process, seconds: float) -> None:
        await self.world.clock.sleep(seconds)
        if process in self.processes:
            process.going.set()
            self.world.check()  # before any of its tasks has noticed


async def played(seed: int, mix: tuple[str, str]) -> World:
    """One history of two instances; ends with an instance that leads."""
    world = World(random.Random(seed))  # noqa: S311 # repeatable
    world.instances = [Instance(world, name, kube) for name, kube in zip("ab", mix, strict=True)]
    try:
        for _ in range(STEPS):
            if world.chance.random() < 0.04:
                world.chance.choice(world.instances).strike()
            await world.clock.advance(STEP)
            world.check()
            if world.wrong:
                return world
        world.trouble = 0.0
        for process in [one for instance in world.instances for one in instance.processes]:
            process.going.set()
        for _ in range(CALM):
            await world.clock.advance(STEP)
            world.check()
        if not any(one.allows for instance in world.instances for one in instance.engines):
            world.wrong.append("none leads in the end")
    finally:
        for task in world.tasks:
            task.cancel()
        for one in (one for instance in world.instances for one in instance.engines):
            one.process.going.set()
        while not all(task.done() for task in world.tasks):
            for instance in world.instances:
                for process in instance.processes:
                    process.going.set()
            await world.clock.advance(60.0)
    return world


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(one or "extender" for one in mix))
async def test_at_most_one_allows_bindings_and_in_the_end_one_does(mix: tuple[str, str]) -> None:
    """And it has listed the pods when no Binding of another could arrive any more."""
    histories = [await played(FIRST + seed, mix) for seed in range(COUNT)]
    assert [one.wrong for one in histories if one.wrong] == []
    assert sum(one.led for one in histories) > 2 * COUNT


async def _no_wait(_self: Leadership) -> None:
    """What a leader before has sent does not count."""


PLANTED: dict[str, tuple[type, str, Any]] = {
    "a new leader waits for nothing": (Leadership, "predecessor_over", _no_wait),
    "a leader that stood still does not look": (Leadership, "leading", True),
    "the holder of the Lease is passed over": (LeaderElector, "_quiet", lambda _self: True),
}


@pytest.mark.parametrize("fault", PLANTED)
async def test_a_fault_of_ours_would_be_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is needed: without it some history breaks the law."""
    monkeypatch.setattr(*PLANTED[fault])
    for seed in range(40):
        if any("late" in wrong for wrong in (await played(seed, MIXES[2])).wrong):
            return
    pytest.fail("no history broke the law")
