"""Memory: a hard cap over every path, over all processes, visible as the cap."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_world import MIB, SANITIZERS, Tenant, World, sanitized

from native_build import built
from partage.agent.isolation.account import read_account, set_overhead

CAP = 1024 * MIB
PATHS = {
    # path: chunk, bytes that fit below a cap of 1 GiB
    "plain": (32 * MIB, 1024 * MIB),
    "pitch": (32 * MIB, 1024 * MIB),
    "managed": (32 * MIB, 1024 * MIB),
    "handle": (32 * MIB, 1024 * MIB),
    "pool": (32 * MIB, 1024 * MIB),
    "newpool": (32 * MIB, 1024 * MIB),
    "array": (32 * MIB, 1024 * MIB),
    "import": (32 * MIB, 1024 * MIB),
    "heap": (32 * MIB, 1024 * MIB),
    "module": (8 * MIB, 1024 * MIB),
    "graph": (32 * MIB, 1024 * MIB),
    "node": (32 * MIB, 1024 * MIB),
    "capture": (32 * MIB, 1024 * MIB),
}


def lines(text: str, word: str) -> list[list[int]]:
    """The numbers of each line that begins with `word`."""
    return [
        [int(part) for part in line.split()[1:]]
        for line in text.splitlines()
        if line.split()[0] == word
    ]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_refused_at_the_cap_and_gives_all_back(world: World, path: str) -> None:
    """Out of memory is the driver's own 2, to the granule, and the second round equals the first."""
    chunk, fits = PATHS[path]

    done = world.tenant(memory=CAP).run("memory", path, str(chunk))

    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, "refused") == [[2], [2]]
    assert lines(done.stdout, "total") == [[fits], [fits]]
    first, last = lines(done.stdout, "info")
    assert first == [CAP, CAP, CAP]
    assert last == first


@pytest.mark.parametrize("path", ["plain", "node", "capture"])
@pytest.mark.parametrize("way", ["dlsym", "proc", "linked"])
def test_no_way_to_the_driver_leads_past_the_cap(world: World, way: str, path: str) -> None:
    """dlsym, cuGetProcAddress and direct calls meet the same cap."""
    done = world.tenant(memory=CAP).run("memory", path, str(64 * MIB), way)

    assert lines(done.stdout, "total") == [[CAP], [CAP]], done.stderr


@pytest.mark.parametrize(
    ("size", "fit"),
    [(4096, 1024), (350 * 1024, 10), (700 * 1024, 4), (MIB, 4), (MIB + 512, 2), (3 * MIB, 1)],
)
def test_allocations_count_as_the_blocks_that_they_lie_in(
    world: World, size: int, fit: int
) -> None:
    """None lies in two blocks of 2 MiB: five of 350 KiB fill one, and two of 700."""
    done = world.tenant(memory=4 * MIB).run("memory", "small", str(size))

    assert lines(done.stdout, "total") == [[fit * size], [fit * size]], done.stderr


BLOCKS = """
import ctypes
cuda, context, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
free, total = ctypes.c_size_t(), ctypes.c_size_t()

def take(size):
    address = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    assert code in (0, 2), code
    return address if code == 0 else None

def fill(size):
    held = []
    while (one := take(size)) is not None:
        held.append(one)
    return held

def give(held):
    assert not any(cuda.cuMemFree_v2(one) for one in held)

def left():
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value >> 20

cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cuda.cuCtxSetCurrent(context)
"""


def blocks(world: World, program: str) -> str:
    """What a program says that has 8 MiB."""
    tenant = world.tenant(memory=8 * MIB)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS + program],
        env=tenant.environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_block_counts_until_its_last_allocation_is_freed(world: World) -> None:
    """Holes are no room for others, and are for small allocations of the program itself, at the cap too."""
    program = """
held = fill(2**20)
print(len(held), left(), end=" ")
give(held[::2])
print(left(), end=" ")
again = fill(2**20)
print(len(again), left(), end=" ")
give(held[1::2])
give(again)
print(left(), len(fill(2**21)))
"""
    assert blocks(world, program) == "8 0 0 4 0 8 4"


def test_a_byte_a_block_is_no_way_past_the_cap(world: World) -> None:
    """The card has no more for others, however little of it the program uses."""
    program = """
held, rest = fill(2**20), []
for one in held[::2]:
    give([one])
    byte, more = take(1), take(2**20 - 512)
    rest.append(more)
give(held[1::2] + rest)
print(left(), take(2**21), len(fill(2**20)))
"""
    assert blocks(world, program) == "0 None 4"


def test_threads_that_fill_the_last_block_stay_within_the_cap(world: World) -> None:
    """One that is refused had its block for a moment, and another may have been laid beside it."""
    program = """
import threading

def thread(mine):
    cuda.cuCtxSetCurrent(context)
    for _ in range(3):
        mine += fill(2**19)

for _ in range(20):
    parts = [[] for _ in range(4)]
    threads = [threading.Thread(target=thread, args=(part,)) for part in parts]
    [one.start() for one in threads]
    [one.join() for one in threads]
    # While a refused thread stands still it has its block, so all others may be refused too.
    held = sum(parts, []) + fill(2**19)
    assert len(held) == 16 and left() == 0, (len(held), left())
    give(held)
    assert left() == 8, left()
print("held")
"""
    assert blocks(world, program) == "held"


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**46 + 1])
def test_sizes_that_no_card_has_are_refused_and_leave_nothing(world: World, size: int) -> None:
    """Several threads at once are refused too, even if their sum overflows."""
    program = f"""
import threading
threads = [threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(context), take({size}))) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
pitch, address = ctypes.c_size_t(), ctypes.c_uint64()
wide = [cuda.cuMemAllocPitch_v2(ctypes.byref(address), ctypes.byref(pitch), *map(ctypes.c_size_t, one), 4)
        for one in ((2**40, 2**40), (2**63, 2), (1, 2**62))]
print(wide, left(), len(fill(2**21)))
"""
    assert blocks(world, program) == "[2, 2, 2] 8 4"


def test_what_a_large_one_leaves_of_its_last_block_is_room(world: World) -> None:
    """It was counted with the large one, and counts on when that is freed first."""
    program = """
large = take(3 * 2**20)
small = [take(2**19), take(2**19)]
print(left(), end=" ")
give([large])
print(left(), end=" ")
give(small)
print(left())
"""
    assert blocks(world, program) == "4 6 8"


def test_blocks_end_with_their_context(world: World) -> None:
    """Another context has blocks of its own."""
    program = """
held, second = take(2**19), ctypes.c_void_p()
cuda.cuCtxCreate_v2(ctypes.byref(second), 0, device)
mine = [take(2**19), take(3 * 2**20)]
print(left(), end=" ")
cuda.cuCtxDestroy_v2(second)
cuda.cuCtxSetCurrent(context)
print(left(), end=" ")
give([held])
print(left())
"""
    assert blocks(world, program) == "0 6 8"


def test_a_context_counts_as_the_limits_say(world: World) -> None:
    """Before the agent has measured, a context costs its allowance."""
    tenant = world.tenant(memory=CAP, context=256 * MIB)

    done = tenant.run("memory", "context", "1")

    assert lines(done.stdout, "info")[0] == [CAP, CAP - 256 * MIB, CAP]
    assert lines(done.stdout, "total") == [[3], [3]], done.stderr


def test_all_processes_of_a_container_share_the_cap(world: World) -> None:
    """The second process gets what the first left; both see it."""
    tenant = world.tenant(memory=CAP)
    first = tenant.holding("plain", 300 * MIB)

    second = tenant.run("memory", "plain", str(4 * MIB))
    first.communicate(timeout=240)

    left = CAP - 900 * MIB
    assert lines(second.stdout, "info")[0] == [CAP, left, CAP]
    assert lines(second.stdout, "total") == [[left], [left]], second.stderr


def test_memory_of_a_killed_process_is_free_again(world: World) -> None:
    """SIGKILL leaves no count behind."""
    tenant = world.tenant(memory=CAP)
    first = tenant.holding("handle", 300 * MIB)

    first.kill()
    first.communicate()
    second = tenant.run("memory", "plain", str(32 * MIB))

    assert lines(second.stdout, "total") == [[CAP], [CAP]], second.stderr


def test_what_a_process_gives_back_as_it_ends_is_not_taken_from_the_next(world: World) -> None:
    """Its place is another's when its destructors run: that one's count stays."""
    tenant = world.tenant(memory=CAP)
    first = tenant.start("odd", "late")
    assert first.stdout is not None
    assert first.stdout.readline() == "left\n"
    second = tenant.holding("plain", 1024 * MIB)

    _, error = first.communicate(timeout=240)
    third = tenant.run("memory", "show")
    second.communicate(timeout=240)

    assert first.returncode == 0, error
    assert lines(third.stdout, "info")[0] == [CAP, 0, CAP], third.stderr


def test_what_the_agent_measured_replaces_the_estimate(world: World) -> None:
    """Overhead from NVML counts instead of the allowance."""
    tenant = world.tenant(memory=CAP, context=64 * MIB)
    first = tenant.holding("plain", 512 * MIB)
    (process,) = read_account(tenant.folder / "account")

    set_overhead(tenant.folder / "account", process, 0, 300 * MIB)
    second = tenant.run("memory", "show")
    first.communicate(timeout=240)

    assert process.cards[0].counted == 512 * MIB
    assert lines(second.stdout, "info")[0][1] == CAP - 512 * MIB - 300 * MIB - 64 * MIB


def test_oversubscription_is_a_mode_of_its_own(world: World) -> None:
    """Beyond the cap, as many bytes as the limits allow come from managed memory."""
    done = world.tenant(memory=CAP, swap=256 * MIB).run("memory", "plain", str(64 * MIB))

    assert lines(done.stdout, "total") == [[CAP + 256 * MIB]] * 2, done.stderr


def test_memory_without_a_cap_is_left_alone(world: World) -> None:
    """Zero is no cap: the card itself is the limit."""
    done = world.tenant(memory=0).run("memory", "plain", str(1024 * MIB))

    assert lines(done.stdout, "info")[0][0] == 16 * 2**30
    assert lines(done.stdout, "total") == [[15 * 2**30]] * 2, done.stderr


def test_nvml_shows_the_cap_as_well(world: World) -> None:
    """Both forms of the memory query: total is the cap, used is the container's."""
    done = world.tenant(memory=CAP).run("odd", "nvml")

    assert lines(done.stdout, "nvml") == [[CAP, 100 * MIB, CAP - 100 * MIB]] * 2, done.stderr


def test_both_queries_show_no_more_free_than_the_card_has(
    build: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Caps may be more than the card: a neighbour's memory is not shown as free, by NVML neither."""
    world = World(tmp_path_factory.mktemp("w"), build, memory_bytes=2 * CAP)
    neighbour = world.tenant(1, memory=CAP + 200 * MIB).holding("plain", CAP + 200 * MIB)

    done = world.tenant(memory=CAP).run("odd", "nvml")
    neighbour.kill()
    neighbour.communicate()
    world.close()

    ((_, free),) = lines(done.stdout, "info")
    assert free < CAP - 100 * MIB, done.stderr
    assert lines(done.stdout, "nvml") == [[CAP, CAP - free, free], [CAP, 100 * MIB, free]]
    assert lines(done.stdout, "reserved") == [[CAP - free - 100 * MIB]]


@pytest.mark.parametrize(
    ("when", "child", "parent"),
    [("fork", 128, 0), ("fork-after", 192, 64)],
    ids=["before", "after"],
)
def test_a_child_counts_for_itself(world: World, when: str, child: int, parent: int) -> None:
    """A child does not inherit its parent's count, and leaves none of its own when it ends."""
    done = world.tenant(memory=CAP).run("odd", when)

    assert lines(done.stdout, "child") == [[child * MIB]], done.stderr
    assert lines(done.stdout, "parent") == [[parent * MIB]], done.stderr


def test_a_child_of_a_bare_clone_leaves_its_parent_counted(world: World) -> None:
    """It has its parent's handlers at the end, and does not know that it is another process."""
    done = world.tenant(memory=CAP).run("odd", "clone")

    assert lines(done.stdout, "parent") == [[64 * MIB]], done.stderr


@pytest.mark.parametrize(
    ("what", "said", "used"),
    [
        pytest.param("ipc", "passed\n", 256, id="a handle"),
        pytest.param("much", f"used {200 * MIB}\n", 200, id="many handles, a mark for each"),
        pytest.param("pool", "passed\n", 256, id="a pointer of a pool"),
    ],
)
def test_memory_passed_within_a_container_counts_once(
    world: World, what: str, said: str, used: int
) -> None:
    """What the container exported itself adds nothing where it is opened."""
    tenant = world.tenant(memory=CAP)
    path = str(tenant.folder / "passed")
    parent = tenant.start("odd", f"{what}-parent", path)
    assert parent.stdout is not None
    assert parent.stdout.readline() == said

    child = tenant.run("odd", f"{what}-child", path)
    parent.communicate(timeout=240)

    assert lines(child.stdout, "used") == [[used * MIB]], child.stderr
    assert child.returncode == 0


def test_memory_of_the_pool_of_another_container_counts(world: World) -> None:
    """Refused at the cap, and released by either way to free it."""
    done = world.tenant(memory=CAP).run("odd", "import")

    assert lines(done.stdout, "refused") == [[2]], done.stderr
    assert lines(done.stdout, "used") == [[CAP], [0]]


def test_a_process_goes_on_where_it_was(world: World) -> None:
    """After a checkpoint, on another card of its container, its memory would count on the card that it left."""
    done = world.tenant(memory=CAP).run("odd", "restore")

    assert lines(done.stdout, "stays") == [[0, 0, 0]], done.stderr
    assert lines(done.stdout, "moves") == [[801]]


@pytest.mark.parametrize("how", ["together", "apart"])
def test_a_pointer_of_a_pool_imported_twice_counts_once(world: World, how: str) -> None:
    """It counts until the last of both is freed, whether the driver gives one address or two."""
    done = world.tenant(memory=CAP).run("odd", "twice", how)

    assert lines(done.stdout, "apart") == [[how == "apart"]], done.stderr
    assert lines(done.stdout, "used") == [[128 * MIB], [128 * MIB], [0]]


@pytest.mark.parametrize("where", ["kept", "kept-inside"])
def test_memory_freed_by_its_exporter_counts_for_who_has_it_open(world: World, where: str) -> None:
    """Its container pays once as long as the exporter has it, and on when others keep it; any pointer into it exports it."""
    done = world.tenant(memory=CAP).run("odd", where)

    assert lines(done.stdout, "used") == [[256 * MIB], [256 * MIB], [0]], done.stderr


def test_memory_of_a_pool_freed_by_its_exporter_counts_for_who_has_it_open(world: World) -> None:
    """The exporter lives on, and the next of its memory counts beside it."""
    done = world.tenant(memory=CAP).run("odd", "kept-pool")

    assert lines(done.stdout, "used") == [[64 * MIB], [128 * MIB], [192 * MIB]], done.stderr


def test_memory_of_an_ended_process_counts_for_who_has_it_open(world: World) -> None:
    """The driver keeps it for that one."""
    tenant = world.tenant(memory=CAP)
    path = str(tenant.folder / "passed")
    first = tenant.start("odd", "ipc-parent", path)
    assert first.stdout is not None
    assert first.stdout.readline() == "passed\n"
    second = tenant.start("odd", "kept", path)
    assert second.stdout is not None
    before = second.stdout.readline()

    first.communicate(timeout=240)
    out, error = second.communicate("\n", timeout=240)

    assert before == f"used {256 * MIB}\n"
    assert lines(out, "used") == [[256 * MIB], [0]], error


@pytest.mark.parametrize("program", ["sh", "odd"])
def test_memory_of_a_former_program_counts_for_who_has_it_open(world: World, program: str) -> None:
    """The process that exported it lives on with another program, which uses a card itself or not."""
    tenant = world.tenant(memory=CAP)
    path = str(tenant.folder / "passed")
    idle = (str(world.build / "odd"), "idle")
    then = ("sh", "-c", "echo idle; read _") if program == "sh" else idle
    first = tenant.start("odd", "ipc-parent", path, *then)
    assert first.stdout is not None
    assert first.stdin is not None
    assert first.stdout.readline() == "passed\n"
    second = tenant.start("odd", "kept", path)
    assert second.stdout is not None
    before = second.stdout.readline()

    first.stdin.write("\n")
    first.stdin.flush()
    assert first.stdout.readline().startswith("idle")
    out, error = second.communicate("\n", timeout=240)
    first.kill()
    first.communicate()

    assert before == f"used {256 * MIB}\n"
    assert lines(out, "used") == [[256 * MIB], [0]], error


def test_memory_whose_size_is_unknown_is_not_opened(world: World) -> None:
    """What the library cannot count it refuses."""
    done = world.tenant(memory=CAP).run("odd", "sizeless")

    assert lines(done.stdout, "refused") == [[801]], done.stderr
    assert lines(done.stdout, "used") == [[0]]


@pytest.mark.parametrize(
    ("how", "result", "used"), [("many", 0, [128, 0]), ("array", 801, [0, 0])]
)
def test_an_imported_handle_counts_wherever_it_is_used(
    world: World, how: str, result: int, used: list[int]
) -> None:
    """What is bound of it counts; an array whose part of it is unknown does not get it before it was mapped."""
    done = world.tenant(memory=CAP).run("odd", "imported", how)

    assert lines(done.stdout, "result") == [[result]], done.stderr
    assert lines(done.stdout, "used") == [[one * MIB] for one in used]


@pytest.mark.parametrize(
    ("image", "result", "counted"),
    [
        ("900", 0, 900),
        ("2000", 2, 0),
        ("8+500", 0, 8),
        ("8+2000", 0, 8),
        ("300+5000", 0, 300),
    ],
    ids=["large", "too-large", "beside-a-neighbour", "at-the-cap", "both"],
)
def test_a_module_counts_whatever_its_size(
    world: World, image: str, result: int, counted: int
) -> None:
    """The least of several measurements of a large load counts, without a neighbour's."""
    done = world.tenant(memory=CAP).run("odd", "load", image)

    assert lines(done.stdout, "loaded") == [[result]], done.stderr
    assert lines(done.stdout, "used") == [[counted * MIB], [0]]


def test_a_name_given_again_belongs_to_its_new_owner(world: World) -> None:
    """Threads end arrays, mipmaps and external memory while others are given the same names: all is free in the end."""
    done = world.tenant(memory=CAP).run("odd", "names")

    assert lines(done.stdout, "used") == [[0]], done.stderr


@pytest.mark.parametrize(
    ("how", "used"),
    [
        ("deferred", [0, 128, 128, 0]),
        ("mipmap", [0, 128, 128, 0]),
        ("sparse", [0, 256, 128, 0]),
        ("context", [0, 128, 128, 0]),
        ("failed", [0, 0, 0]),
        ("plain", [64, 64, 0]),
    ],
)
def test_an_array_without_memory_of_its_own_counts_as_what_is_mapped_to_it(
    world: World, how: str, used: list[int]
) -> None:
    """The mapped memory counts without its handle too, until it is replaced or unmapped, or the array is gone."""
    done = world.tenant(memory=CAP).run("arrays", how)

    assert lines(done.stdout, "used") == [[one * MIB] for one in used], done.stderr


def test_a_mipmap_counts_all_its_levels(world: World) -> None:
    """Those of an array with one side to halve take as much again as the first, beyond the third of a square one."""
    done = world.tenant(memory=CAP).run("arrays", "flat")

    first, second, after = (used for (used,) in lines(done.stdout, "used"))
    assert 64 * MIB <= first == second <= 66 * MIB, done.stderr
    assert after == 0


def test_a_handle_opened_often_counts_once(world: World) -> None:
    """The driver gives the same memory each time: it counts until the last of the openings is closed."""
    done = world.tenant(memory=CAP).run("odd", "often")

    assert lines(done.stdout, "used") == [[128 * MIB]] * 3 + [[0], [0]], done.stderr
    assert lines(done.stdout, "closed") == [[1]]


def test_threads_that_are_cancelled_leave_nothing_counted(world: World) -> None:
    """No call of the library is where a thread may be cancelled."""
    done = world.tenant(memory=100 * MIB).run("odd", "cancelled")

    assert (done.stdout, done.returncode) == ("used 64 64\n", 0), done.stderr


def test_memory_freed_in_stream_order_is_given_back(world: World) -> None:
    """This includes memory that was not allocated so, which the driver accepts."""
    done = world.tenant(memory=CAP).run("odd", "ordered")

    assert lines(done.stdout, "used") == [[130 * MIB], [0]], done.stderr


def test_memory_freed_in_stream_order_counts_until_its_stream_reaches_the_free(
    world: World,
) -> None:
    """Until then it is in use: what needs it waits, and no other gets it."""
    done = world.tenant(memory=CAP).run("odd", "behind")

    assert lines(done.stdout, "kept") == [[1]], done.stderr
    assert lines(done.stdout, "ended") == [[1]]
    assert lines(done.stdout, "used") == [[400 * MIB]]


def test_frees_in_stream_order_take_no_event_each(world: World) -> None:
    """Those that are over give theirs back, at the next ones."""
    done = world.tenant(memory=CAP).run("odd", "freed-often")

    assert lines(done.stdout, "used") == [[0]], done.stderr


def test_a_free_whose_event_is_the_next_ones_is_given_back(world: World) -> None:
    """The watch ends an event, and the driver gives its handle to another free before the call returns."""
    tenant = world.tenant(memory=CAP)
    tenant.environment["FAKE_GPU_SLOW"] = "1"

    done = tenant.run("odd", "freed-often")

    assert lines(done.stdout, "used") == [[0]], done.stderr


def test_threads_that_share_pools_leave_no_count(world: World) -> None:
    """Each takes of the card's pool, makes and destroys pools with memory in use, and maps handles, all at once."""
    done = world.tenant(memory=CAP).run("odd", "mixed")

    assert lines(done.stdout, "used") == [[0]], done.stderr


def test_memory_of_the_card_mapped_beside_the_hosts_is_given_back(world: World) -> None:
    """One call unmaps both, of which only the card's counts."""
    done = world.tenant(memory=CAP).run("odd", "both")

    assert lines(done.stdout, "used") == [[64 * MIB], [0]], done.stderr


def test_a_destroyed_pool_counts_until_its_memory_is_free(world: World) -> None:
    """Destroying a pool does not release what was allocated of it; freeing that does, in either way."""
    done = world.tenant(memory=CAP).run("odd", "pools")

    assert lines(done.stdout, "refused") == [[2]], done.stderr
    assert lines(done.stdout, "own") == [[1]]
    assert lines(done.stdout, "count") == [[3]]
    assert lines(done.stdout, "used") == [[960 * MIB], [640 * MIB], [0]], done.stderr


@pytest.mark.parametrize(
    ("keeps", "first", "least"),
    [({}, 0, 0), ({"FAKE_GPU_KEEPS": "1"}, 32, 2)],
    ids=["gives-all-back", "keeps-some"],
)
def test_a_destroyed_pool_of_which_nothing_is_in_use_ends(
    world: World, keeps: dict[str, str], first: int, least: int
) -> None:
    """It ends after some seconds with a driver that keeps memory for a pool as long as it exists."""
    tenant = world.tenant(memory=CAP)
    tenant.environment.update(keeps)

    done = tenant.run("odd", "unused-pool")

    assert lines(done.stdout, "used") == [[first * MIB], [0]], done.stderr
    assert least <= lines(done.stdout, "seconds")[0][0]


def test_a_kernel_s_fault_is_not_told_as_a_lack_of_memory(world: World) -> None:
    """The driver's own error is returned where it does not answer how large a pool is."""
    done = world.tenant(memory=CAP).run("odd", "faulty")

    assert lines(done.stdout, "result") == [[700, 700]], done.stderr


@pytest.mark.parametrize("how", ["m", "m2", "a", "a2"])
def test_memory_bound_to_a_multicast_object_counts_without_its_handle(
    world: World, how: str
) -> None:
    """It stays as long as it is bound, by handle or address, with the device named (CUDA 13.1) or not."""
    done = world.tenant(memory=CAP).run("odd", "many", how)

    assert lines(done.stdout, "used") == [[128 * MIB], [0]], done.stderr


def test_a_bind_that_waits_for_a_device_holds_up_no_other_thread(world: World) -> None:
    """The driver lets a bind wait until another thread has added the last device."""
    done = world.tenant(memory=CAP).run("odd", "early")

    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, "used") == [[64 * MIB]]


def test_a_green_context_counts_the_primary_one_once(world: World) -> None:
    """Two of them keep one context, until the second is gone; what counts then is the one that asks."""
    done = world.tenant(memory=CAP, context=64 * MIB).run("odd", "green")

    assert lines(done.stdout, "used") == [[64 * MIB]] * 3, done.stderr


def test_what_a_module_seems_to_take_counts_until_the_process_is_measured(world: World) -> None:
    """Up to 256 MiB a neighbour's memory may be in it: the agent corrects it downwards, and what is unloaded is free."""
    tenant = world.tenant(memory=CAP)
    script = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
context, module = ctypes.c_void_p(), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert not driver.cuInit(0) and not driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
assert not driver.cuModuleLoadData(ctypes.byref(module), b"8+150")
for step in ("loaded", "measured", "unloaded"):
    if step == "unloaded":
        assert not driver.cuModuleUnload(module)
    assert not driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print(step, total.value - free.value, flush=True)
    input()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=tenant.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = [process.stdout.readline()]
    (entry,) = read_account(tenant.folder / "account")
    assert (entry.cards[0].counted, entry.cards[0].allowance) == (0, 158 * MIB)
    set_overhead(tenant.folder / "account", entry, 0, 8 * MIB)
    for _ in range(2):
        process.stdin.write("\n")
        process.stdin.flush()
        said.append(process.stdout.readline())
    process.communicate("\n")

    assert said == [f"loaded {158 * MIB}\n", f"measured {8 * MIB}\n", "unloaded 0\n"]


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tenant]]:
    """A tenant of the library as it is, and one of it under the address sanitizer, each on a card of its own."""
    worlds, tenants = [], {}
    for kind, build in (("", built()), ("asan", built("native-asan", SANITIZERS["asan"]))):
        worlds.append(World(tmp_path_factory.mktemp("w"), build))
        tenants[kind] = worlds[-1].tenant(memory=64 * MIB)
        sanitized(tenants[kind], kind)
    yield tenants
    for one in worlds:
        one.close()


NAMES = st.one_of(
    st.sampled_from(
        [
            "CUDA_DEVICE_MEMORY_LIMIT",
            "CUDA_MEM_LIMIT",
            "CUDA_MODULE_LOADING",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "CUDA_VISIBLE_DEVICES_",
            "GLIBC_TUNABLES",
            "GPU_CORE_UTILIZATION_POLICY",
            "HOME",
            "LD_BIND_NOW",
            "LD_DYNAMIC_WEAK",
            "LD_ORIGIN_PATH",
            "LIBCUDA_LOG_LEVEL",
            "MALLOC_ARENA_MAX",
            "NVIDIA_VISIBLE_DEVICES",
            "PARTAGE_LIMITS",
            "PARTAGE_MEMORY",
            "PATH",
            "TMPDIR",
        ]
    ),
    st.text(
        st.characters(codec="utf-8", exclude_characters="=\0"), min_size=1, max_size=40
    ).filter(lambda name: not name.startswith(("LD_", "FAKE_"))),
)
VALUES = st.one_of(
    st.sampled_from(["", "0", "1", "-1", str(2**64), "/", "/proc/self/mem", "x" * 100_000]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200),
)


@pytest.mark.parametrize("kind", ["", "asan"])
@settings(max_examples=25)
@given(variables=st.dictionaries(NAMES, VALUES, max_size=12), alone=st.booleans())
def test_no_variable_moves_a_cap(
    capped: dict[str, Tenant], kind: str, variables: dict[str, str], *, alone: bool
) -> None:
    """Limits come from the agent's files: whatever a program's environment holds, or with nothing else in it."""
    tenant = capped[kind]
    kept = ("LD_", "FAKE_", "ASAN_")
    own = {
        name: text
        for name, text in tenant.environment.items()
        if not alone or name.startswith(kept)
    }
    tenant = replace(tenant, environment={**variables, **own})

    done = tenant.run(
        "memory", "plain", str(8 * MIB), "linked"
    )  # a sanitizer has a dlsym of its own

    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, "total") == [[64 * MIB], [64 * MIB]]
    assert lines(done.stdout, "info") == [[64 * MIB] * 3] * 2
