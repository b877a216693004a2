"""In force: yes or no, and why, for each container."""

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from native_world import MIB, Tenant, World, uuid

from one_look import look
from partage.agent.isolation.account import PLACES_AT, State, make_account, read_account
from partage.agent.isolation.amounts import NAME
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.elf import Reach
from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.library import as_mapped, install
from partage.agent.isolation.limits import CardLimits, ContainerLimits, write
from partage.agent.isolation.node_scan import ProcessView, Seen, Sight, files_of, read_room
from partage.agent.isolation.overhead import Overheads
from partage.agent.isolation.processes import numbers_of
from partage.agent.isolation.seats import give_seat, make_seats, seat_file
from partage.agent.isolation.statements import Cause, judge
from partage.vendors.wishes import Policy

LIMITS = ContainerLimits(1, (CardLimits("GPU-1", "card-0", 0, 2**30, 300),))


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A container's room as the agent leaves it."""
    built = tmp_path / "built.so"
    built.write_bytes(b"the library")
    make_account(tmp_path / "account")
    write(tmp_path / "limits", LIMITS)
    seats = tmp_path / "seats"
    seats.mkdir()
    make_seats(seats / "GPU-1")
    give_seat(seats / "GPU-1", LIMITS.cards[0], HeldFiles())
    library = install(built, tmp_path)
    return Room(tmp_path, "/state", library.name, LIMITS, seats, tmp_path / "account")


def process(room: Room) -> ProcessView:
    """A process as it should be."""
    preload = f"/run/partage/{room.library}\n"
    return ProcessView(
        pid=7, uses_card=True, has_library=True, preload=preload, reach=Reach.REACHED
    )


def test_a_container_as_it_should_be_is_in_force(room: Room) -> None:
    """Nothing wrong: yes."""
    assert not judge(room, read_room(room), (process(room),))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"preload": ""}, Cause.PRELOAD),
        ({"preload": "/opt/other.so"}, Cause.PRELOAD),
        ({"has_library": False}, Cause.OUTSIDE),
        ({"has_library": False, "covered": True}, Cause.OUTSIDE),
        ({"has_library": False, "reach": Reach.STATIC}, Cause.OUTSIDE),
        ({"has_library": False, "reach": Reach.MUSL}, Cause.OUTSIDE),
        ({"taken_first": "/opt/x.so, which defines dlsym"}, Cause.OUTSIDE),
    ],
    ids=["no preload", "another preload", "outside", "covered", "static", "musl", "another first"],
)
def test_a_process_outside_is_named(room: Room, change: dict[str, object], cause: Cause) -> None:
    """The process and the reason are in the message."""
    odd = replace(process(room), **change)  # type: ignore[arg-type]

    faults = judge(room, read_room(room), (odd,))

    assert [fault.cause for fault in faults] == [cause]
    assert faults[0].message.startswith("process 7")


@pytest.mark.parametrize(
    "change", [{"reach": Reach.STATIC}, {"preload": ""}], ids=["static", "in a root of its own"]
)
def test_a_process_that_uses_no_card_may_be_anything(
    room: Room, change: dict[str, object]
) -> None:
    """A static helper, or a program that a server starts for a stranger, who could otherwise have the pod evicted."""
    helper = replace(process(room), uses_card=False, has_library=False, **change)  # type: ignore[arg-type]

    assert not judge(room, read_room(room), (helper,))


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("limits", Cause.LIMITS),
        ("account", Cause.ACCOUNT),
        ("library", Cause.LIBRARY),
        ("seat", Cause.SEAT),
    ],
)
@pytest.mark.parametrize("act", ["removed", "changed"])
def test_tampering_with_a_file_is_seen(room: Room, name: str, cause: Cause, act: str) -> None:
    """Each file that the agent mounted is compared with what it was."""
    path = {
        "library": room.folder / room.library,
        "seat": seat_file(room.seats / "GPU-1", 0),
    }.get(name, room.folder / name)
    path.unlink()
    if act == "changed":
        path.write_bytes(b"something else")

    faults = judge(room, read_room(room), ())

    assert [fault.cause for fault in faults] == [cause]


def test_a_refusal_of_the_library_is_reported(world: World) -> None:
    """A process whose seat is gone says so in the account, and it stays there after its end."""
    tenant = world.tenant()
    (tenant.folder / "card-0").unlink()

    tenant.run("memory", "show")

    account = tenant.folder / "account"
    room = Room(tenant.folder, "", "", LIMITS, world.folder, account)
    faults = judge(room, read_room(room), ())
    assert Cause.REFUSED in {fault.cause for fault in faults}


def test_a_running_process_is_looked_at(world: World) -> None:
    """The kernel's own tables tell what is mapped."""
    tenant = world.tenant()
    running = tenant.holding("plain", 64 * MIB)

    shipped = as_mapped(tenant.library)
    seen = look(running.pid, str(tenant.library), shipped)
    running.communicate(timeout=240)

    assert seen is not None
    assert shipped
    assert (seen.uses_card, seen.has_library, seen.taken_first) == (True, True, "")
    assert seen.reach is Reach.REACHED
    assert look(running.pid, str(tenant.library)) is None
    own = look(os.getpid(), str(tenant.library), shipped)
    assert own is not None
    assert not own.uses_card


def test_a_file_mounted_over_the_library_is_not_the_library(world: World) -> None:
    """The kernel tells which file is mapped, whatever a mount namespace shows at its path."""
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no user and mount namespaces of one's own here")
    tenant = world.tenant()
    other = world.folder / "other.so"
    shutil.copyfile(tenant.library, other)
    mount = f"mount --bind {other} {tenant.library}; exec env LD_PRELOAD={tenant.library} $0 $@"
    program = [str(tenant.programs / "memory"), "plain", str(64 * MIB), "dlsym", "hold"]
    environment = {**os.environ, **tenant.environment}
    del environment["LD_PRELOAD"]
    with subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", mount, *program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        while not running.stdout.readline().startswith("total"):
            assert running.poll() is None

        seen = look(running.pid, str(tenant.library), as_mapped(tenant.library))
        by_path = look(running.pid, str(tenant.library))
        running.communicate(timeout=240)

    assert seen is not None
    assert by_path is not None
    assert (seen.uses_card, seen.has_library, seen.covered) == (True, False, True)
    assert by_path.has_library


@pytest.mark.parametrize("name", ["limits", NAME, "account"])
def test_a_file_mounted_over_one_that_the_library_reads_is_seen(world: World, name: str) -> None:
    """The agent's own file is as it was; the process has the amounts that its tenant wrote."""
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no user and mount namespaces of one's own here")
    tenant = world.tenant(memory=64 * MIB, core=200, policy=Policy.FIXED_SHARE)
    card = CardLimits(uuid(0), "card-0", 0, 64 * MIB, 200, Policy.FIXED_SHARE)
    room = Room(
        tenant.folder,
        "",
        tenant.library.name,
        ContainerLimits(1, (card,)),
        world.folder,
        tenant.folder / "account",
    )
    other = world.folder / "other"
    shutil.copyfile(tenant.folder / name, other)
    mount = f"mount --bind {other} {tenant.folder / name}; exec $0 $@"
    program = [str(tenant.programs / "memory"), "plain", str(64 * MIB), "dlsym", "hold"]
    judged = []
    for within in ([], ["unshare", "-rm", "sh", "-c", mount]):
        with subprocess.Popen(
            [*within, *program],
            env=tenant.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout is not None
            while not running.stdout.readline().startswith("total"):
                assert running.poll() is None
            shipped = as_mapped(tenant.library)
            seen = look(running.pid, str(tenant.library), shipped, files=files_of(room))
            assert seen is not None
            judged.append([one.message for one in judge(room, read_room(room), (seen,))])
            running.communicate(timeout=240)

    told = f"has another file at the path of {name}"
    assert [any(one.endswith(told) for one in found) for found in judged] == [False, True]


# --- memory beyond the cap ---------------------------------------------------------------------

CAP, SLACK, CONTEXT = 512, 400, 300
"""MiB: of the container, of the agent, and what a context of the modelled card takes."""
STEPS = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
word, held = ctypes.c_uint64, []
context, free, total = ctypes.c_void_p(), word(), word()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print("ready", flush=True)
for line in sys.stdin:
    act, mib = line.split()
    if act == "take":
        pointer = word()
        result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(mib) << 20))
        held += [pointer] if result == 0 else []
    elif act == "give":
        result = cuda.cuMemFree_v2(held.pop())
    else:
        assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        result = free.value >> 20
    print(result, flush=True)
"""


class Grower:
    """A container with a process that takes memory step by step, and an agent that looks at it."""

    HELLO, TAKE, INFO = 1, 2, 4  # native/fake/wire.h

    def __init__(self, world: World, tenant: Tenant) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", STEPS],
            env=tenant.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"
        # The driver itself, in the name of that process: the library does not count what it takes.
        self._driver = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._driver.connect(str(world.socket))
        self._ask(self.HELLO, self.process.pid)
        card = CardLimits(uuid(0), "card-0", 0, CAP * MIB, 500)
        self.room = Room(
            tenant.folder,
            "",
            "",
            ContainerLimits(1, (card,)),
            world.folder,
            tenant.folder / "account",
        )
        self.overheads = Overheads(SLACK * MIB)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _ask(self, kind: int, argument: int = 0) -> int:
        self._driver.send(struct.pack("<IIQQQQ", kind, 0, 0, 0, argument, self.process.pid))
        result, _, _, second = struct.unpack("<iIQQ", self._driver.recv(24))
        assert result == 0
        used: int = second
        return used

    def does(self, act: str, mib: int = 0) -> int:
        """A step: what the driver answered, or MiB that are free."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{act} {mib}\n")
        self.process.stdin.flush()
        return int(self._line())

    def fills(self, mib: int) -> int:
        """MiB that it takes in such steps until it is refused."""
        taken = 0
        while self.does("take", mib) == 0:
            taken += mib
        return taken

    def driver_takes(self, mib: int) -> None:
        """Memory of the process that the library does not see."""
        self._ask(self.TAKE, mib * MIB)

    def used(self) -> int:
        """MiB of the card in use: it is alone there."""
        return self._ask(self.INFO) // MIB

    def looks(self, times: int) -> None:
        """The agent looks so often, each time with a new sample."""
        pid = self.process.pid
        for _ in range(times):
            seen = Seen(pid, numbers_of(pid), has_memory_device=True, view=None)
            sight = Sight({"c": read_room(self.room, (seen,))}, {"c": (seen,)})
            self.overheads.look({"c": self.room}, {uuid(0): {pid: self.used() * MIB}}, sight)

    def overhead(self) -> int:
        """MiB that are written down."""
        (process,) = read_account(self.room.account)
        return process.cards[0].overhead // MIB

    def close(self) -> None:
        """End it."""
        self._driver.close()
        self.process.communicate(timeout=240)


@pytest.fixture
def grower(world: World) -> Iterator[Grower]:
    """A container that filled its memory, and was looked at."""
    one = Grower(world, world.tenant(memory=CAP * MIB))
    try:
        assert one.fills(32) == CAP
        one.looks(3)
        yield one
    finally:
        one.close()


def test_a_program_that_filled_its_memory_may_have_its_context(grower: Grower) -> None:
    """Beyond the cap by the driver's word, and no alarm; it keeps what it has and gets no more until there is room."""
    assert grower.used() == CAP + CONTEXT
    assert not grower.overheads.above
    assert grower.overheads.grown
    assert grower.overhead() == CONTEXT

    assert grower.does("take", 2) != 0
    assert grower.does("free") == 0
    for _ in range(9):
        assert grower.does("give") == 0
    assert grower.does("take", 2) != 0  # 224 counted, and the context
    assert grower.does("give") == 0
    assert grower.does("free") == CAP - 192 - CONTEXT
    assert grower.fills(4) == CAP - 192 - CONTEXT


def test_growth_is_charged_and_no_alarm(grower: Grower) -> None:
    """Kernels loaded late, stacks: up to the slack it is the container's own room that they take."""
    grower.driver_takes(SLACK - CONTEXT)
    grower.looks(3)

    assert grower.used() == CAP + SLACK
    assert not grower.overheads.above
    assert grower.overhead() == SLACK
    for _ in range(12):
        grower.does("give")
    assert grower.does("take", 2) != 0  # 128 counted
    grower.does("give")
    assert grower.fills(2) == CAP - SLACK - 96


def _bypasses(grower: Grower) -> None:
    grower.driver_takes(SLACK - CONTEXT + 4)


def _spoils(grower: Grower) -> None:
    with grower.room.account.open("r+b") as file:
        for at in (0, 16):  # counted, and what the agent measured
            file.seek(PLACES_AT + 32 + at)
            file.write(bytes(8))
    assert grower.fills(32) == CAP


@pytest.mark.parametrize("harm", [_bypasses, _spoils])
def test_what_is_beyond_the_slack_is_found(grower: Grower, harm: Callable[[Grower], None]) -> None:
    """The third look finds memory past the library, and a container that wrote its own count down."""
    harm(grower)
    grower.looks(2)
    assert not grower.overheads.above
    grower.looks(1)

    assert f"use {grower.used() * MIB} bytes" in grower.overheads.above["c"]
    assert grower.does("take", 2) != 0


def test_calls_that_are_refused_take_one_place(world: World) -> None:
    """A program may ask again and again; the agent reads of one place that the library refuses."""
    tenant = world.tenant(memory=2**30)
    seat_file(tenant.folder / "card-0", 0).unlink()
    script = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
print({driver.cuInit(0) for _ in range(20)}, flush=True)
input()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=tenant.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "{800}\n"

    account = read_account(tenant.folder / "account")

    process.communicate("\n")
    assert [place.state for place in account] == [State.FAULT]
