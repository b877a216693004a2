"""Vendors' locks whose release failed, and locks whose pod never arrives."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from world import (
    DONE,
    REFUSED,
    UNKNOWN,
    World,
    document,
    metax_world,
    pod,
    run,
    sgpu,
)

from partage.extender.bindings import BindLimits
from partage.extender.node_locks import Fate, Left, Whereabouts, abandoned, fate
from partage.scheduler.engine import State
from partage.vendors import names

KEY = names.METAX_LOCK
THEIRS = {KEY: "2026-01-01T00:00:00Z,team,other"}


async def left(*more: str, lost: int = 1) -> World:
    """The Binding of pod `web` was refused, and the release of its lock failed so often."""
    world = await metax_world("n1", *more)
    world.create(pod("web", sgpu()))
    world.api.answers.append(REFUSED)
    world.api.unlock_faults += [OSError("down")] * lost
    assert "refused" in await world.bind("web")
    assert world.api.locks["n1"][KEY].endswith(",team,web")
    return world


async def ticks(world: World, seconds: int) -> None:
    """Time passes, with a tick every second."""
    for _ in range(seconds):
        world.clock.pass_time(1.0)
        await world.service.tick()


@run
async def test_a_lock_is_given_back_when_the_api_server_is() -> None:
    """It goes with the next tick, not five minutes later by the controller."""
    world = await left()
    assert "uid-web" not in world.service.books.engine.ledger

    await ticks(world, 1)

    assert world.api.locks == {}
    await ticks(world, 400)
    assert len(world.api.given_back) == 2, "and nothing is asked for any more"


@run
async def test_tries_become_rare_and_end() -> None:
    """Tries follow after 1, 2, 4 … 30 seconds; after five minutes the controller removes the lock."""
    world = await left(lost=1000)

    await ticks(world, 1000)

    when = [at - world.api.given_back[0] for at in world.api.given_back]
    waits = [later - earlier for earlier, later in pairwise(when)]
    assert waits[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert set(waits[5:]) == {30.0}
    assert when[-1] < 300.0


@run
async def test_what_others_wrote_meanwhile_stays() -> None:
    """The plugin, a person or another scheduler may have removed our lock, and theirs is not touched."""
    world = await left()
    world.api.locks["n1"] = THEIRS

    await ticks(world, 400)

    assert world.api.locks["n1"] == THEIRS


@pytest.mark.parametrize("name", ["web", "next"])
def test_whoever_binds_there_next_waits_for_no_tick(name: str) -> None:
    """This holds for a retry of the same pod and for another pod."""

    @run
    async def story() -> None:
        world = await left()
        if name != "web":
            world.create(pod(name, sgpu()))

        assert await world.bind(name) == ""

        assert world.clock.slept == []
        assert world.api.locks["n1"][KEY].endswith(f",team,{name}")
        kept = dict(world.api.locks)
        await ticks(world, 400)
        assert world.api.locks == kept, "what was left is not taken for what is there now"

    story()


@run
async def test_a_lock_that_cannot_come_off_stops_its_node_alone() -> None:
    """While its state is unknown, no pod is bound on its node; not every tick asks about it."""
    world = await left("n2", lost=1000)
    world.create(pod("next", sgpu()))

    assert "not released yet" in await world.bind("next")
    assert len(world.api.given_back) <= 4
    assert await world.bind("next", "n2") == ""


@run
async def test_a_lock_that_arrives_late_comes_off_too() -> None:
    """Its write had no answer, and it did not exist yet when it was released."""
    world = await metax_world()
    world.create(pod("web", sgpu()))
    world.api.locks_late, world.api.lock_faults = True, [OSError("reset")]
    assert "OSError: reset" in await world.bind("web")
    assert world.api.locks == {}
    world.api.locks |= world.api.late

    await ticks(world, int(BindLimits().late) + 1)

    assert world.api.locks == {}


@pytest.mark.parametrize("arrives", [True, False])
def test_a_lock_stays_while_its_binding_may_arrive(arrives: bool) -> None:  # noqa: FBT001
    """Otherwise the plugin would not find the pod, or would find another."""

    @run
    async def story() -> None:
        world = await metax_world()
        world.create(pod("web", sgpu()))
        world.api.answers.append(UNKNOWN)
        world.api.takes.append(False)
        assert "not known" in await world.bind("web")
        held = dict(world.api.locks)

        await ticks(world, 3)
        assert world.api.locks == held
        if arrives:
            world.api._write(world.api.sent[0])
        await ticks(world, int(BindLimits().late) + 2)

        assert world.api.locks == (held if arrives else {})

    story()


def _asked(world: World) -> None:
    world.filter(world.create(pod("old", sgpu())))


def _on(node: str) -> Callable[[World], None]:
    def bound(world: World) -> None:
        _asked(world)
        world.api.pods["old"] = pod("old", sgpu(), nodeName=node)  # no watch has reported it yet

    return bound


def _unread(world: World) -> None:
    _asked(world)
    world.api.reads += [OSError("down")] * 9


HOLDERS: dict[str, tuple[Callable[[World], Any], bool]] = {
    "ours, and it has no node": (_asked, True),
    "gone": (lambda _: None, True),
    "over": (lambda w: w.create(pod("old", sgpu(), status={"phase": "Failed"})), True),
    "on another node": (_on("n2"), True),
    "on this node": (_on("n1"), False),
    "of a scheduler that is not ours": (lambda w: w.create(pod("old", sgpu())), False),
    "not to be read": (_unread, False),
}


@pytest.mark.parametrize(("prepare", "free"), HOLDERS.values(), ids=HOLDERS)
def test_a_leader_finds_a_lock_that_it_did_not_write(
    prepare: Callable[[World], Any],
    free: bool,  # noqa: FBT001
) -> None:
    """It takes over at once a lock that no pod on its node needs, and otherwise waits for it."""

    @run
    async def story() -> None:
        world = await metax_world("n1", "n2")
        prepare(world)
        before = {KEY: "2025-12-31T23:59:00Z,team,old"}
        world.api.locks["n1"] = dict(before)
        world.create(pod("web", sgpu()))

        problem = await world.bind("web")

        if free:
            assert (problem, world.clock.slept) == ("", [])
            assert world.api.locks["n1"][KEY].endswith(",team,web")
        else:
            assert "is locked" in problem
            assert world.api.locks["n1"] == before

    story()


@run
async def test_a_pod_finds_its_own_lock() -> None:
    """An earlier leader wrote the lock and could not bind the pod."""
    world = await metax_world()
    world.create(pod("web", sgpu()))
    world.api.locks["n1"] = {KEY: "2025-12-31T23:59:00Z,team,web"}

    assert await world.bind("web") == ""

    assert world.clock.slept == []
    assert world.api.locks["n1"][KEY].startswith("2026-01-01T")


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00Z", "locked", ""])
def test_a_lock_that_names_no_pod_is_left_to_the_controller(text: str) -> None:
    """Its owner is unknown."""

    @run
    async def story() -> None:
        world = await metax_world()
        world.create(pod("web", sgpu()))
        world.api.locks["n1"] = {KEY: text}

        assert "is locked" in await world.bind("web")
        assert world.api.locks["n1"] == {KEY: text}

    story()


@run
async def test_nothing_is_remembered_into_another_reign() -> None:
    """Another leader may have written the same text for the same pod in between."""
    world = await left(lost=1)
    kept = dict(world.api.locks)
    world.service.follow()
    await ticks(world, 5)
    assert world.api.locks == kept, "who does not lead takes nothing off"

    world.service.lead()
    await ticks(world, 400)

    assert world.api.locks == kept
    world.create(pod("next", sgpu()))
    world.filter(pod("web", sgpu()))
    world.api.answers.append(DONE)
    assert await world.bind("next") == ""


FATES = {
    "bound there": (State.BOUND, "n1", 0.0, Fate.FORGET),
    "bound elsewhere": (State.BOUND, "n2", 0.0, Fate.GIVE_BACK),
    "its Binding may arrive there": (State.UNKNOWN, "n1", 1000.0, Fate.KEEP),
    "its Binding may arrive elsewhere": (State.UNKNOWN, "n2", 0.0, Fate.GIVE_BACK),
    "nowhere": (None, "", 299.0, Fate.GIVE_BACK),
    "nowhere, for long": (None, "", 300.0, Fate.FORGET),
}


@pytest.mark.parametrize(("state", "node", "passed", "expected"), FATES.values(), ids=FATES)
def test_what_becomes_of_a_lock_that_was_left(
    state: State | None, node: str, passed: float, expected: Fate
) -> None:
    """It depends on the place of its pod."""
    lock = Left(THEIRS, "uid", 100.0, 110.0, 100.0)

    assert fate(lock, "n1", Whereabouts(state, node), 100.0 + passed) is expected


def test_a_pod_of_ours_that_has_its_node_keeps_its_lock() -> None:
    """This holds for anything else that is known of it."""
    here = document(pod("web", sgpu(), nodeName="n1"))

    assert not abandoned(here, "n1", ours=True)
    assert abandoned(here, "n2", ours=False)
