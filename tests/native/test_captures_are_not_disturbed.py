"""Captures of streams: the library knows when there are any, and does nothing of itself that would spoil one.

The stand-in driver models what the documentation of captures forbids (native/fake/streams.c), and spoils the capture.
"""

import pytest
from native_world import MIB, World

from partage.vendors.wishes import Policy


def answers(world: World, *command: str, memory: int = 0) -> dict[str, int]:
    """What each line of the program says (native/tests/captures.c)."""
    tenant = world.tenant(core=500, policy=Policy.BURST_SHARE, memory=memory)

    done = tenant.run("captures", *command)

    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}


@pytest.mark.parametrize("own", ["", "-", "+"], ids=["busy", "dry", "per-thread"])
@pytest.mark.parametrize("how", ["old", "mode", "graph", "again", "list"])
def test_a_stream_that_has_work_can_be_captured(world: World, how: str, own: str) -> None:
    """No entry point makes a mark of ours on it any more, nor does a launch into it wait for a turn."""
    assert answers(world, "begin", how + own) == {"answer": 0}


@pytest.mark.parametrize("how", ["null", "legacy"])
def test_the_legacy_stream_is_left_alone_during_a_capture(world: World, how: str) -> None:
    """A question about it would already spoil a capture of a stream that waits for it."""
    assert answers(world, "legacy", how) == {"answer": 0}


def test_a_capture_takes_in_other_streams(world: World) -> None:
    """One that waits for an event of the capture is part of it, and the work that it had before is not marked then."""
    assert answers(world, "fork") == {"answer": 0}


@pytest.mark.parametrize(
    ("how", "refused"), [("stream", 1), ("thread", 908), ("begin", 1)], ids=str
)
def test_what_is_refused_ends_no_capture(world: World, how: str, refused: int) -> None:
    """The driver refuses to end one on another stream or thread, or to begin it twice; it goes on, and is known to."""
    assert answers(world, "strange", how) == {"refused": refused, "answer": 0}


@pytest.mark.parametrize("how", ["end", "spoilt", "destroyed", "context", "refused", "graphics"])
def test_a_capture_that_is_over_costs_nothing(world: World, how: str) -> None:
    """After any end of it, launches do not ask the driver about it any more."""
    assert answers(world, "over", how) == {"asked": 0}


@pytest.mark.parametrize(
    "what", ["launch", "module", "large-module", "memory", "large-memory", "graph"]
)
def test_own_calls_step_aside_of_captures(world: World, what: str) -> None:
    """What the library asks, frees and waits for around an allowed call is not forbidden, and spoils nothing."""
    got = answers(world, "call", what, memory=1032 * MIB)

    assert got == {"there": 0, "here": 0, "answer": 0}


@pytest.mark.parametrize("how", ["default", "pool"])
def test_captured_memory_is_not_taken_yet(world: World, how: str) -> None:
    """On the per-thread stream too, an allocation that is captured is not refused for what is in use meanwhile."""
    assert answers(world, "own", how, memory=1032 * MIB) == {"refused": 0, "answer": 0}


def test_captures_and_launches_of_other_threads_go_together(world: World) -> None:
    """None is spoilt by what the library does for the launches of another thread at the moment when it begins."""
    assert answers(world, "beside", "1500") == {"spoilt": 0}
