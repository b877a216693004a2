"""From a node's pods to ready instances, each card in its own turn."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from mig_world import CARD, World, want

from fakes.clock import InstantClock, SteppedClock
from partage.agent.mig.plan import wanted_by
from partage.agent.mig.runner import Outcome
from partage.agent.mig.service import Instances
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.mig import MigSlice
from partage.model.request import Phase
from partage.vendors import names
from partage.wire import record, shapes

PATIENCE = 240.0


def grant(start: int, container: str = "main", phase: Phase = Phase.MAIN) -> Grant:
    """One instance of a container."""
    return Grant(
        container,
        DeviceType.GPU,
        0,
        CARD,
        0,
        0,
        GrantMode.MIG,
        phase,
        mig=MigSlice("1g.10gb", start, 1),
    )


def pod(uid: str, *grants: Grant, node: str = "n", age: str = "1", phase: str = "") -> shapes.Pod:
    """A bound pod with a record."""
    text = record.encode(Allocation(uid, "default", uid, "n", grants))
    return shapes.Pod(
        metadata=shapes.Metadata(
            name=uid, uid=uid, annotations={names.ALLOCATION: text}, creation_timestamp=age
        ),
        spec=shapes.PodSpec(node_name=node, containers=[shapes.Container(name="main")]),
        status=shapes.PodStatus(phase=phase or None),
    )


def test_records_say_what_is_wanted() -> None:
    """Older pods first; one instance of two containers counts once; others' pods not at all."""
    pods = [
        pod("late", grant(1), age="2"),
        pod("early", grant(0, "init", Phase.INIT), grant(0), grant(5)),
        pod("elsewhere", grant(2), node="m"),
        pod("over", grant(3), phase="Succeeded"),
        shapes.Pod(),
    ]

    found = wanted_by(pods, "n")

    assert [(one.owner, one.instance.start) for one in found[CARD]] == [
        ("early", 0),
        ("early", 5),
        ("late", 1),
    ]


def test_a_pod_being_deleted_keeps_its_instance_until_it_ends() -> None:
    """The deletion timestamp alone frees nothing."""
    leaving = pod("a", grant(0))
    stamped = shapes.Pod(
        metadata=shapes.Metadata(
            name="a",
            uid="a",
            annotations=(leaving.metadata or shapes.Metadata()).annotations,
            deletion_timestamp="2026-01-01T00:00:00Z",
        ),
        spec=leaving.spec,
        status=leaving.status,
    )

    assert wanted_by([stamped], "n") == wanted_by([leaving], "n")


def test_a_record_that_cannot_be_trusted_wants_nothing() -> None:
    """A record of another pod makes no instance."""
    copied = pod("a", grant(0))
    other = shapes.Pod(
        metadata=shapes.Metadata(
            name="b", uid="b", annotations=(copied.metadata or shapes.Metadata()).annotations
        ),
        spec=copied.spec,
    )

    assert wanted_by([other], "n") == {}


@pytest.mark.parametrize("key", [names.HAMI_ALLOCATED, names.HAMI_MIG_ALLOCATIONS])
def test_a_pod_with_hamis_record_alone_wants_nothing(key: str) -> None:
    """HAMi made its instance, which is there: another would have no place, and it is not ours to end."""
    world = World()
    made = world.nvml.foreign("1g.10gb", 3)
    placement = {
        "containerIndex": 0,
        "deviceIndex": 0,
        "gpuUUID": CARD,
        "profile": "1g.10gb",
        "placement": {"start": 3, "size": 1},
        "migUUID": "MIG-1",
        "gpuInstanceID": made.id,
        "computeInstanceID": 0,
    }
    texts = {
        names.HAMI_ALLOCATED: f"{CARD}[0-3],NVIDIA,9728,14:;",
        names.HAMI_MIG_ALLOCATIONS: json.dumps([placement]),
    }
    theirs = pod("a", grant(3))
    taken_over = msgspec.structs.replace(
        theirs,
        metadata=msgspec.structs.replace(
            theirs.metadata or shapes.Metadata(), annotations={key: texts[key]}
        ),
    )

    wanted = wanted_by([taken_over], "n")
    during = world.converge(wanted.get(CARD, []))
    after = world.converge([])

    assert wanted == {}
    assert during.foreign == after.foreign == (made,) == world.nvml.instances(CARD)
    assert not world.log


async def at_once(call: Callable[[], Outcome]) -> Outcome:
    """No thread: the fake driver does not block."""
    return call()


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until it holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 # any condition, on a clock that stands
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def world_of() -> AsyncIterator[tuple[World, Instances]]:
    """A service over one card, for the length of a test; its time does not pass by itself."""
    world = World()
    service = Instances({CARD: world.runner}, SteppedClock(), in_thread=at_once)
    task = asyncio.create_task(service.run())
    yield world, service
    task.cancel()
    await asyncio.wait([task])


async def test_a_bound_pod_finds_its_instance_ready() -> None:
    """None until everything of the pod is there; then UUIDs, from memory; then gone."""
    async with world_of() as (world, service):
        both = [want(world, "1g.10gb", 0, "a"), want(world, "2g.20gb", 2, "a")]
        assert service.ready("a") == ()
        service.want({CARD: both})
        assert service.ready("a") is None
        await until(lambda: service.ready("a") is not None)
        assert len({one.uuid for one in service.ready("a") or ()}) == 2
        service.want({})
        await until(lambda: not world.nvml.instances(CARD))
        assert service.ready("a") == ()


async def test_nothing_is_touched_before_pods_are_listed() -> None:
    """An agent that has not listed yet must not take running pods for gone."""
    async with world_of() as (world, service):
        world.converge([want(world, "1g.10gb", 0)])
        before = world.effects
        for _ in range(50):
            await asyncio.sleep(0)
        assert world.effects == before
        service.want({})
        await until(lambda: not world.nvml.instances(CARD))


async def test_refused_steps_are_taken_up_again_by_themselves() -> None:
    """The driver is busy for a while: the service tries again without a new request."""
    world, told = World(), list[str]()
    world.nvml.card().clients = 1
    clock = InstantClock()
    service = Instances({CARD: world.runner}, clock, told.append, at_once)
    task = asyncio.create_task(service.run())
    service.want({CARD: [want(world, "1g.10gb", 0, "a")]})
    await until(lambda: len(clock.slept) > 3)
    assert service.ready("a") is None
    assert service.hindrances("a")
    world.nvml.card().clients = 0
    await until(lambda: bool(service.ready("a")))
    assert not service.hindrances("a")
    assert told[0] == CARD
    task.cancel()
    await asyncio.wait([task])


async def test_instances_that_are_not_ours_are_reported() -> None:
    """The reporter of the card's state finds them in its outcome."""
    async with world_of() as (world, service):
        foreign = world.nvml.foreign("1g.10gb", 4)
        service.want({})
        await until(lambda: service.outcome(CARD) is not None)
        outcome = service.outcome(CARD)
        assert outcome is not None
        assert outcome.foreign == (foreign,)
