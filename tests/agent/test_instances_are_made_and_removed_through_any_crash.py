"""Kill the agent at every effect, let the driver refuse or lie at every call: it converges."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mig_world import CARD, Killed, World, want

from fakes.nvml import Trouble
from partage.agent.mig.plan import Obstacle, Wanted

Phases = Callable[[World], list[list[Wanted]]]


def one_pod(world: World) -> list[list[Wanted]]:
    """One instance comes and goes."""
    return [[want(world, "2g.20gb", 2)], []]


def busy(world: World) -> list[list[Wanted]]:
    """Two pods; then one ends, and its place and another are taken by two others."""
    return [
        [want(world, "3g.40gb", 0, "a"), want(world, "1g.10gb", 6, "b")],
        [
            want(world, "1g.10gb", 6, "b"),
            want(world, "2g.20gb", 0, "c"),
            want(world, "1g.10gb", 2, "d"),
        ],
    ]


def run(
    phases: Phases,
    kills: set[tuple[int, bool]] = frozenset(),  # type: ignore[assignment]
    troubles: dict[int, Trouble] | None = None,
    *,
    model: str = "A100-80GB",
    on: bool = True,
    reboots: bool = False,
) -> World:
    """All phases beside a foreign instance, checked after each."""
    world = World(model, on=on)
    foreign = [world.nvml.foreign("1g.10gb", 4)] if on else []
    world.kill, world.troubles = set(kills), dict(troubles or {})
    for wanted in phases(world):
        world.converge(wanted, reboots=reboots)
        left = [one for one in foreign if one in world.nvml.instances(CARD)]
        assert left == foreign or reboots, world.log
        world.check(wanted, left)
    assert not world.kill or reboots
    return world


def effects(phases: Phases, **options: bool | str) -> int:
    """How many effects there are when nothing goes wrong."""
    return run(phases, **options).effects  # type: ignore[arg-type]


@pytest.mark.parametrize("reboots", [False, True], ids=["restart", "reboot"])
@pytest.mark.parametrize("phases", [one_pod, busy])
def test_a_kill_at_any_effect_is_recovered_from(  # a row of the table
    phases: Phases,
    reboots: bool,  # noqa: FBT001
) -> None:
    """Before and after every effect, with or without a reboot: books equal device at the end."""
    for number in range(effects(phases)):
        for after in (False, True):
            run(phases, {(number, after)}, reboots=reboots)


@pytest.mark.parametrize("trouble", Trouble)
@pytest.mark.parametrize("phases", [one_pod, busy])
def test_trouble_at_any_call_is_got_over(phases: Phases, trouble: Trouble) -> None:
    """One call refuses, lies, or does its work and says otherwise."""
    for call in range(run(phases).calls):
        run(phases, troubles={call: trouble})


@pytest.mark.parametrize("trouble", Trouble)
@pytest.mark.parametrize("reboots", [False, True], ids=["restart", "reboot"])
def test_a_kill_and_trouble_together_are_recovered_from(
    trouble: Trouble,
    reboots: bool,  # noqa: FBT001
) -> None:
    """Every effect at which to be killed, combined with every call that goes wrong."""
    plain = run(one_pod)
    for number in range(plain.effects + 2):
        for call in range(plain.calls + 1):
            for after in (False, True):
                world = World()
                foreign = [world.nvml.foreign("1g.10gb", 4)]
                world.kill, world.troubles = {(number, after)}, {call: trouble}
                for wanted in one_pod(world):
                    world.converge(wanted, reboots=reboots)
                    left = [one for one in foreign if one in world.nvml.instances(CARD)]
                    assert left == foreign or reboots
                    world.check(wanted, left)


def test_a_second_kill_during_recovery_is_recovered_from() -> None:
    """Every pair of effects at which to be killed."""
    count = effects(one_pod)
    for first in range(count):
        for second in range(first + 1, count):
            run(one_pod, {(first, True), (second, False)})


def test_mode_is_turned_on_and_off_again_through_any_kill() -> None:
    """A card that does not keep its mode gets it for its first instance, and loses it after."""

    def phases(world: World) -> list[list[Wanted]]:
        return [[want(world, "1g.10gb", 0)], []]

    for number in range(effects(phases, model="H100-80GB", on=False)):
        for reboots in (False, True):
            world = run(phases, {(number, True)}, model="H100-80GB", on=False, reboots=reboots)
            assert not world.nvml.mode(CARD).current


def test_a_place_that_somebody_takes_meanwhile_is_left_to_them() -> None:
    """Killed before ours was made, or after it was removed: a foreign instance at the place is never touched."""
    tried = 0
    for number in range(effects(one_pod)):
        world = World()
        wanted, nothing = one_pod(world)
        world.kill = {(number, True)}
        try:
            world.runner.settle(wanted, 0.0)
            world.runner.settle(nothing, 0.0)
        except Killed:
            world.restarted()
        if world.nvml.instances(CARD):
            continue
        tried += 1
        foreign = world.nvml.foreign("2g.20gb", 2)

        outcome = world.converge(wanted)

        assert [h.obstacle for h in outcome.hindrances] == [Obstacle.FOREIGN]
        assert outcome.foreign == (foreign,)
        world.converge([])
        world.check([], [foreign])
    assert tried == 3  # intent; removed, forgotten


_PLACES = st.sampled_from(
    [("1g.10gb", s) for s in range(7)] + [("2g.20gb", s) for s in (0, 2, 4)] + [("3g.40gb", 4)]
)
_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), _PLACES),
        st.tuples(st.just("end"), st.integers(0, 7)),
        st.tuples(st.just("kill"), st.integers(0, 12), st.booleans()),
        st.tuples(st.just("trouble"), st.integers(0, 6), st.sampled_from(Trouble)),
        st.tuples(st.just("reboot")),
        st.tuples(st.just("half"), st.integers(0, 30)),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(_EVENTS)
def test_any_sequence_of_pods_kills_and_reboots_ends_well(
    events: list[tuple[object, ...]],
) -> None:
    """Pods come and go while the agent is killed, the driver lies and the machine reboots."""
    world = World()
    foreign = [world.nvml.foreign("1g.10gb", 3)]
    wanted: list[Wanted] = []
    for number, (kind, *rest) in enumerate(events):
        if kind == "pod":
            profile, start = rest[0]  # type: ignore[misc]
            one = want(world, profile, start, f"pod-{number}")
            there = [w.instance for w in wanted]
            axis = world.nvml.axis(CARD)
            if axis.valid([*there, one.instance, axis.profile("1g.10gb").at(3)]):
                wanted.append(one)
        elif kind == "end" and wanted:
            wanted.pop(int(str(rest[0])) % len(wanted))
        elif kind == "kill":
            world.kill.add((world.effects + int(str(rest[0])), bool(rest[1])))
        elif kind == "trouble":
            world.troubles[world.calls + int(str(rest[0]))] = Trouble(str(rest[1]))
        elif kind == "reboot":
            world.reboot()
            foreign = []
            world.restarted()
        elif kind == "half":
            _half(world, wanted, int(str(rest[0])))
    world.converge(wanted)
    world.check(wanted, foreign)


def _half(world: World, wanted: list[Wanted], effects_more: int) -> None:
    """Go on for some effects, then be killed."""
    world.kill.add((world.effects + effects_more, False))
    try:
        world.runner.settle(wanted, world.now)
    except Killed:
        world.restarted()
