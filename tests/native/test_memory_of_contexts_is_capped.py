"""Contexts: what they and their settings cost, and that what was made in them ends with them."""

import subprocess
import sys

import pytest
from native_world import MIB, WAIT, World

from partage.agent.isolation.account import read_account, set_overhead

CAP = 1024 * MIB
STEPS = {
    # what is set: what one step of it takes, by the modelled card of 16 processors with 2,048 threads each
    "stack": 32 * MIB,
    "printf": 32 * MIB,
    "heap": 32 * MIB,
    "depth": 64 * MIB,
}

ENDS = """
import ctypes, sys
cuda, other, primary = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0) == 0
for end in (lambda: cuda.cuCtxDestroy_v2(other), lambda: cuda[sys.argv[1]](0)):
    print("ready", flush=True)
    input()
    assert end() == 0
    print("ended", flush=True)
sys.stdin.read()
"""
"""Two contexts that end one after the other; the process, whose end gives its place back, stays until it is waited for."""


def numbers(text: str, word: str) -> list[list[int]]:
    """The numbers of each line that begins with `word`."""
    return [
        [int(part) for part in line.split()[1:]]
        for line in text.splitlines()
        if line.startswith(word)
    ]


@pytest.mark.parametrize("what", STEPS)
def test_what_a_context_is_set_to_take_counts(world: World, what: str) -> None:
    """Raised until the cap it is refused, and what it is set back to counts then."""
    step = STEPS[what]

    done = world.tenant(memory=CAP).run("contexts", what)

    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout, "refused") == [[2, CAP // step]]
    # What was measured counts until it is set back to what any context has: the fall alone is sure.
    less = CAP if what == "depth" else step
    assert numbers(done.stdout, "used") == [[CAP], [less], [0]]


@pytest.mark.parametrize("what", ["gl", "gl-old", "vdpau", "vdpau-old"])
def test_contexts_for_graphics_and_video_count(world: World, what: str) -> None:
    """They count as any other context does: three fit beside the primary one."""
    done = world.tenant(memory=CAP, context=256 * MIB).run("contexts", what)

    assert numbers(done.stdout, "refused") == [[2, 3]], done.stderr


def test_a_context_made_after_its_process_was_measured_counts(world: World) -> None:
    """It counts by the estimate beside the measurement; what ends takes its part of both, and the last one all."""
    tenant = world.tenant(memory=CAP, context=256 * MIB)
    process = tenant.start("contexts", "measured")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (entered,) = read_account(tenant.folder / "account")

    set_overhead(tenant.folder / "account", entered, 0, 100 * MIB)
    process.stdin.write("\n")
    process.stdin.flush()
    said = [process.stdout.readline() for _ in range(4)]
    (left,) = read_account(tenant.folder / "account")
    _, error = process.communicate(timeout=240)

    # 868 MiB of four contexts, of which three end: a quarter, a third and half of what is left.
    assert said == [
        "refused 2 3\n",
        f"used {868 * MIB}\n",
        f"used {217 * MIB}\n",
        "released\n",
    ], error
    assert (left.cards[0].allowance, left.cards[0].overhead) == (0, 0)


@pytest.mark.parametrize("how", ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2"])
def test_what_was_measured_of_a_process_ends_with_its_last_context(world: World, how: str) -> None:
    """This includes contexts without an estimate; the driver reports nothing of the process from then on."""
    tenant = world.tenant(memory=CAP)
    process = subprocess.Popen(
        [sys.executable, "-c", ENDS, how],
        env=tenant.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    overheads = []
    for _ in range(2):
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=WAIT)[1]
        set_overhead(
            tenant.folder / "account", *read_account(tenant.folder / "account"), 0, 300 * MIB
        )
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n", process.communicate(timeout=WAIT)[1]
        (left,) = read_account(tenant.folder / "account")
        overheads.append(left.cards[0].overhead // MIB)
    _, error = process.communicate(timeout=WAIT)

    assert overheads == [300, 0], error


def test_a_pool_gives_way_to_a_context(world: World) -> None:
    """What it holds without use is released before a context is refused."""
    done = world.tenant(memory=CAP, context=256 * MIB).run("contexts", "pooled")

    assert numbers(done.stdout, "used") == [[512 * MIB]], done.stderr


def test_a_context_that_is_given_the_name_of_another_keeps_its_memory(world: World) -> None:
    """Threads make and end contexts with memory and settings in them: all is free in the end."""
    done = world.tenant(memory=CAP, context=16 * MIB).run("contexts", "again")

    assert numbers(done.stdout, "used") == [[16 * MIB]], done.stderr


def test_a_context_counts_until_its_last_user_detaches(world: World) -> None:
    """It and its memory, which a second destruction does not release again."""
    done = world.tenant(memory=CAP, context=16 * MIB).run("contexts", "attach")

    assert numbers(done.stdout, "used") == [[132 * MIB]] * 3 + [[16 * MIB]], done.stderr
    assert numbers(done.stdout, "detached") == [[201]]


def test_a_reset_ends_what_there_is_and_nobodys_hold(world: World) -> None:
    """The primary context is there again once it is retained, until it was released as often as retained in all."""
    done = world.tenant(memory=CAP, context=16 * MIB).run("contexts", "reset")

    used = [132, 16, 32, 32, 32, 16]
    assert numbers(done.stdout, "used") == [[one * MIB] for one in used], done.stderr
    assert numbers(done.stdout, "released") == [[201]]


def test_memory_of_a_green_context_ends_with_the_primary_one(world: World) -> None:
    """It outlives the green one, as it does in the driver."""
    done = world.tenant(memory=CAP, context=16 * MIB).run("contexts", "green")

    assert numbers(done.stdout, "used") == [[132 * MIB], [132 * MIB], [16 * MIB]], done.stderr
