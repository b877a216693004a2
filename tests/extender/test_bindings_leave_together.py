"""While pods queue up, Bindings wait for each other; nobody waits without a reason or too long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World, card, device, node, pod, run, whole

from partage.extender.bindings import BindLimits
from partage.extender.departures import Departures, Together
from partage.testing.clock import SteppedClock

SETTINGS = Together(most=4, behind=2, longest=1.0, pause=0.1)
CROWD = 10


class Yard:
    """Bindings that come at given moments, and who of them has left.

    Attributes:
        left: names with the moment at which they left.
    """

    def __init__(self, settings: Together) -> None:
        self.clock = SteppedClock()
        self.start = self.clock.monotonic()
        self.departures = Departures(self.clock, settings)
        self.left: dict[str, float] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def comes(self, name: str, behind: int = CROWD, after: float = 0.01) -> None:
        """A Binding comes some time after the one before."""
        await self.clock.advance(after)
        self.tasks.append(asyncio.create_task(self._one(name, behind)))
        await self.clock.advance(0)

    async def _one(self, name: str, behind: int) -> None:
        await self.departures.turn(behind)
        self.left[name] = self.clock.monotonic() - self.start


@asynccontextmanager
async def yard(settings: Together = SETTINGS) -> AsyncIterator[Yard]:
    """A yard that nobody is left in."""
    made = Yard(settings)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


@run
async def test_a_pod_that_comes_alone_never_waits() -> None:
    """Whatever queues up: the one before came long ago, or none did."""
    async with yard() as y:
        await y.comes("first")
        await y.comes("second", after=0.2)
        await y.comes("third", behind=0)
        assert [*y.left] == ["first", "second", "third"]


@run
async def test_enough_of_them_leave_at_once() -> None:
    """The first goes ahead, the next four together."""
    async with yard() as y:
        for name in ("a", "b", "c", "d"):
            await y.comes(name)
        assert [*y.left] == ["a"]
        await y.comes("e")
        assert {*y.left} == {"a", "b", "c", "d", "e"}
        assert len({y.left[name] for name in "bcde"}) == 1


@run
async def test_those_that_wait_leave_when_nobody_joins_them() -> None:
    """kube-scheduler does something else, or the rest of the queue is not for us."""
    async with yard() as y:
        for name in ("a", "b", "c"):
            await y.comes(name)
        await y.clock.advance(0.09)
        assert [*y.left] == ["a"]
        await y.clock.advance(0.02)
        assert [*y.left] == ["a", "b", "c"]


@run
async def test_none_waits_longer_than_a_second() -> None:
    """Others come just often enough to have the first ones wait on."""
    async with yard(Together(most=1000, behind=2, longest=1.0, pause=0.1)) as y:
        for number in range(40):
            await y.comes(f"{number}", after=0.09)
        assert y.left["1"] == pytest.approx(0.09 * 2 + 1.0)


@run
async def test_the_last_of_a_queue_takes_those_along_that_wait() -> None:
    """Nothing is gained by waiting for those who do not come."""
    async with yard() as y:
        await y.comes("a")
        await y.comes("b")
        await y.comes("c", behind=1)
        assert {*y.left} == {"a", "b", "c"}


@run
async def test_each_leaves_by_itself_where_that_is_wanted() -> None:
    """`--bind-together 0`."""
    async with yard(Together(most=0)) as y:
        for number in range(10):
            await y.comes(f"{number}", behind=1000)
            assert f"{number}" in y.left


@run
async def test_the_next_group_gathers_after_one_has_left() -> None:
    """And one that is given up does not keep the others."""
    async with yard() as y:
        for number in range(9):
            await y.comes(f"{number}")
        assert len(y.left) == 9
        await y.comes("late")
        await y.comes("later")
        y.tasks[-2].cancel()
        await y.clock.advance(0.2)
        assert "late" not in y.left
        assert "later" in y.left


@given(st.lists(st.tuples(st.floats(0.0, 0.3), st.integers(0, 4)), min_size=1, max_size=30))
def test_nobody_is_left_behind_or_waits_too_long(comings: list[tuple[float, int]]) -> None:
    """Whoever comes when, and however many queue up behind."""

    async def all_of_them() -> None:
        async with yard() as y:
            came: dict[str, float] = {}
            for number, (after, behind) in enumerate(comings):
                came[f"{number}"] = y.clock.monotonic() - y.start + after
                await y.comes(f"{number}", behind, after)
            await y.clock.advance(SETTINGS.pause + 0.001)
            assert y.left.keys() == came.keys()
            waited = [y.left[name] - moment for name, moment in came.items()]
            assert max(waited) <= SETTINGS.longest + 0.001
            lonely = [
                waited[at]
                for at, (after, behind) in enumerate(comings)
                if behind < SETTINGS.behind or after > SETTINGS.pause + 0.001 or at == 0
            ]
            assert max(lonely, default=0.0) < 1e-6

    asyncio.run(all_of_them())


@run
async def test_a_queue_is_bound_in_groups_by_the_service() -> None:
    """With everything between filter and the Binding as it is."""
    limits = BindLimits(together=Together(most=3, behind=2))
    world = World(limits=limits, clock=SteppedClock())
    await world.start(node("n0"), device("n0", *(card(minor) for minor in range(8))))
    names = [f"p{number}" for number in range(8)]
    for name in names:
        world.create(pod(name, whole(1)))
    sent: list[int] = []
    tasks = []
    for name in names:
        world.filter(pod(name, whole(1)))
        tasks.append(asyncio.create_task(world.bind(name, "n0")))
        for _ in range(5):
            await asyncio.sleep(0)
        sent.append(len(world.api.sent))
    assert await asyncio.gather(*tasks) == [""] * 8
    # One goes ahead, three leave together, and then too few queue up to wait for.
    assert sent == [1, 1, 1, 4, 4, 4, 7, 8]
