"""The agent asks a driver that refuses again, with growing pauses, and reports the reason."""

from mig_world import CARD, World, want

from fakes.nvml import Trouble
from partage.agent.mig.nvml import Failure, NvmlFailed
from partage.agent.mig.plan import Obstacle
from partage.agent.mig.runner import LONGEST, REST, wait


def test_a_card_rests_no_longer_than_the_trouble_lasted() -> None:
    """Waits double, up to a minute and for good: of a card in use they stay short for 40 s."""
    passed = 0.0
    for tries in range(1, 2000):
        other, busy = wait(tries, Failure.OTHER), wait(tries, Failure.IN_USE)
        assert other <= min(REST, max(0.25, passed + 0.25))
        assert busy == (min(LONGEST, other) if tries < 10 else REST)
        passed += other


def test_a_busy_card_is_told_and_served_later() -> None:
    """A profiler holds the card: the pod's hindrance names the call; then it ends."""
    world = World()
    wanted = [want(world, "1g.10gb", 0)]
    world.nvml.card().clients = 1

    first = world.runner.settle(wanted, 0.0)

    assert [h.obstacle for h in first.hindrances] == [Obstacle.DRIVER]
    assert "in use" in first.hindrances[0].message
    assert first.again == 0.25
    world.nvml.card().clients = 0
    assert not world.runner.settle(wanted, 0.2).ready
    assert [r.owner for r in world.runner.settle(wanted, 0.25).ready] == ["pod-a"]
    world.check(wanted)


def test_a_program_that_outlives_its_pod_keeps_its_instance() -> None:
    """Ending answers IN_USE until the program ends; nothing is forgotten meanwhile."""
    world = World()
    world.converge([want(world, "1g.10gb", 0)])
    world.nvml.card().busy.add(1)

    outcome = world.runner.settle([], 10.0)

    assert "nvmlComputeInstanceDestroy: in use" in outcome.hindrances[0].message
    assert len(world.journal.entries) == 1
    world.nvml.card().busy.clear()
    world.converge([])
    world.check([])


def test_a_place_taken_between_the_look_and_the_call_is_not_claimed() -> None:
    """The driver answers INSUFFICIENT: the agent takes the intent back and reports the instance there as foreign."""
    world = World()
    taken = []

    def before(call: str) -> Trouble | None:
        if not taken:
            taken.append(world.nvml.foreign("2g.20gb", 2, computes=0))
        return None

    world.nvml.before = before

    outcome = world.runner.settle([want(world, "2g.20gb", 2)], 0.0)

    assert outcome.foreign == tuple(taken)
    assert [h.obstacle for h in outcome.hindrances] == [Obstacle.FOREIGN]
    world.converge([])
    world.check([], taken)


def test_a_short_engine_is_told_apart_from_a_taken_place() -> None:
    """The place is free and the driver still refuses: its own words are reported."""
    world = World()
    world.nvml.foreign("1g.10gb+me", 0)

    outcome = world.runner.settle([want(world, "1g.10gb+me", 3)], 0.0)

    assert [h.obstacle for h in outcome.hindrances] == [Obstacle.DRIVER]
    assert "insufficient resources" in outcome.hindrances[0].message
    assert not world.journal.entries


def test_a_card_that_is_lost_is_looked_at_again() -> None:
    """The card does not answer: nothing is done, a fault is reported, and the next look comes."""
    world = World()

    def lost(_card: str) -> tuple[()]:
        raise NvmlFailed("nvmlDeviceGetGpuInstances", Failure.LOST)

    there, world.nvml.instances = world.nvml.instances, lost  # type: ignore[method-assign]

    outcome = world.runner.settle([want(world, "1g.10gb", 0)], 0.0)

    assert "lost" in outcome.fault
    assert outcome.again == 0.25
    assert not world.log
    world.nvml.instances = there  # type: ignore[method-assign]
    world.converge([want(world, "1g.10gb", 0)])
    assert len(world.nvml.instances(CARD)) == 1


def test_instances_that_vanish_are_made_again() -> None:
    """A reset of the card wipes what was ready: it is made again, under its new UUID."""
    world = World()
    wanted = [want(world, "3g.40gb", 4)]
    before = world.converge(wanted).ready[0].uuid
    world.nvml.card().instances.clear()

    after = world.converge(wanted).ready[0].uuid

    assert before != after
    world.check(wanted)


def test_a_compute_instance_that_vanishes_is_made_again() -> None:
    """Another program ended ours: the GPU instance stays, the rest is made again."""
    world = World()
    wanted = [want(world, "3g.40gb", 4)]
    world.converge(wanted)
    world.nvml.end_compute_instance(CARD, 1, 0)

    world.converge(wanted)

    world.check(wanted)
