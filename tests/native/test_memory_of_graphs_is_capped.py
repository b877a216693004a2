"""Memory that graphs allocate themselves: counted before a launch takes it, however the graph came about."""

import pytest
from native_world import MIB, Tenant, World

CAP = 1032 * MIB
"""1 GiB, and the module that the program loads."""


def answers(tenant: Tenant, *steps: str, way: str = "dlsym") -> list[int]:
    """What each step of the program said (native/tests/graphs.c)."""
    done = tenant.run("graphs", way, *steps)

    assert done.returncode == 0, done.stdout + done.stderr
    return [int(line.split()[-1]) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("make", ["i", "o"], ids=["flags", "old"])
@pytest.mark.parametrize("graph", ["a=K300,K300,K300,K300", "c=K300,K300,K300,K300"])
def test_a_graph_is_judged_by_the_sum_of_its_nodes(world: World, graph: str, make: str) -> None:
    """Four nodes that fit one by one and not together are refused before anything is taken."""
    tenant = world.tenant(memory=CAP)

    assert answers(tenant, graph, f"{make}:{graph[0]}", "m") == [2, 8]


def test_a_node_that_can_never_fit_is_refused_when_it_is_added(world: World) -> None:
    """The program learns it from the call that asks for it."""
    done = world.tenant(memory=CAP).run("graphs", "dlsym", "a=K1100")

    assert "cuGraphAddMemAllocNode: driver error 2" in done.stderr


@pytest.mark.parametrize("way", ["dlsym", "proc", "linked"])
def test_a_launch_is_refused_where_memory_is_held(world: World, way: str) -> None:
    """A graph or another program may hold it; the launch passes when it was freed."""
    steps = [
        "a=K600",
        "b=K600",
        "i:a",
        "i:b",
        "l:a",
        "l:b",
        "p:600",
        "m",
        "f:a",
        "l:b",
        "f:b",
        "p:600",
        "l:a",
    ]

    got = answers(world.tenant(memory=CAP), *steps, way=way)

    assert got == [0, 0, 0, 2, 2, 608, 0, 0, 0, 0, 2]


def test_what_an_instance_left_counts_when_it_is_gone(world: World) -> None:
    """Allocations outlive the instance that made them."""
    steps = ["a=K300,K300", "b=K600", "i:a", "i:b", "l:a", "d:a", "m", "l:b", "f:a", "l:b", "m"]

    assert answers(world.tenant(memory=CAP), *steps) == [0, 0, 0, 0, 608, 2, 0, 0, 608]


def test_memory_used_twice_in_a_graph_counts_once(world: World) -> None:
    """Ten allocations one after the other share an address; a launch again adds nothing."""
    parts = ",".join(["T300"] * 10)

    got = answers(world.tenant(memory=CAP), f"a={parts}", "i:a", "l:a", "m", "l:a", "m")
    captured = answers(world.tenant(1, memory=CAP), f"c={parts}", "i:c", "l:c", "m", "l:c", "m")

    assert got == captured == [0, 0, 308, 0, 308]


def test_graphs_take_turns_at_the_cap(world: World) -> None:
    """Each waits for the work before it on its stream, and takes the memory that this released."""
    steps = [
        "a=T600",
        "b=T600",
        "i:a",
        "i:b",
        "l:a",
        "w:30",
        "l:b",
        "w:30",
        "l:a",
        "w:30",
        "l:b",
        "m",
    ]

    got = answers(world.tenant(memory=CAP), *steps)

    assert got == [0] * 9 + [608]


def test_other_memory_is_had_from_graphs_that_do_not_run(world: World) -> None:
    """What a graph keeps for its next launch goes first when the container is at its cap."""
    steps = ["a=T600", "i:a", "l:a", "s", "m", "p:600", "m", "l:a", "x", "l:a"]

    assert answers(world.tenant(memory=CAP), *steps) == [0, 0, 0, 608, 0, 608, 2, 0, 0]


def test_a_child_graph_is_part_of_its_parent(world: World) -> None:
    """Memory of both counts at the launch of the outer one."""
    tenant = world.tenant(memory=CAP)

    assert answers(tenant, "b=K600", "a=K600,Gb", "i:a", "m") == [2, 8]
    fits = ["b=K300", "a=K300,Gb", "i:a", "l:a", "m", "p:600", "f:a", "f:b", "p:600"]
    assert answers(tenant, *fits) == [0, 0, 608, 2, 0, 0, 0]


@pytest.mark.parametrize("way", ["dlsym", "proc"])
def test_an_upload_is_counted_as_a_launch(world: World, way: str) -> None:
    """Its own call does it, or the instance; until the graph is launched, other memory goes before it."""
    tenant = world.tenant(memory=CAP)

    by_call = answers(
        tenant, "a=K600", "i:a", "p:600", "u:a", "x", "u:a", "m", "l:a", "m", way=way
    )
    assert by_call == [0, 0, 2, 0, 0, 608, 0, 608]
    at_once = answers(tenant, "a=K600", "p:600", "I:a", "x", "I:a", "m", "p:600", way=way)
    assert at_once == [0, 2, 0, 0, 608, 0]


def test_an_upload_waits_for_the_stream_of_its_thread(world: World) -> None:
    """The legacy stream is idle meanwhile; the memory is free when the other graph has ended."""
    steps = ["a=T600", "b=T600", "i:a", "i:b", "O", "l:a", "w:200", "U:b", "m"]

    assert answers(world.tenant(memory=CAP), *steps) == [0] * 6 + [608]


def test_a_graph_that_frees_what_it_kept_launches_again(world: World) -> None:
    """Its memory is its own already; without that flag the driver refuses it itself."""
    tenant = world.tenant(memory=CAP)

    assert answers(tenant, "a=K600", "A:a", "l:a", "l:a", "m") == [0, 0, 0, 608]
    assert answers(tenant, "a=K600", "i:a", "l:a", "l:a", "m") == [0, 0, 1, 608]


@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
def test_threads_that_launch_at_once_stay_below_the_cap(world: World, *, slow: bool) -> None:
    """Three of eight graphs of 300 MiB are launched, in any order; a launch in progress does not count twice."""
    letters = "abdefghj"
    steps = [f"{letter}=K300" for letter in letters] + [f"i:{letter}" for letter in letters]

    for slot in range(5):
        tenant = world.tenant(slot, memory=CAP)
        if slow:
            tenant.environment["FAKE_GPU_SLOW"] = "1"
        got = answers(tenant, *steps, f"T:{letters}", "m")
        assert got == [0] * 8 + [3, 908]


def test_all_processes_of_a_container_share_the_cap_of_graphs(world: World) -> None:
    """What one process' graphs hold another cannot have."""
    tenant = world.tenant(memory=CAP)
    first = tenant.holding("capture", 300 * MIB)

    got = answers(tenant, "a=K300", "i:a", "l:a", "m")
    first.communicate(timeout=240)

    assert got == [0, 2, 908]


def test_graphs_without_a_cap_are_left_alone(world: World) -> None:
    """Zero is no cap."""
    assert answers(world.tenant(memory=0), "a=K3000,K3000", "i:a", "l:a") == [0, 0]
