"""What a tenant can do to another through what they share: it can cost it time on the card, and nothing else.

A neighbour that means harm may write its own seat and read the others'. Each attack runs while another tenant
works; that one must end well, with its quota and its cap as they were.
"""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from native_world import MIB, SANITIZERS, WAIT, Tenant, World, attempts, sanitized, within

from native_build import built
from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.limits import read
from partage.agent.isolation.seats import SEAT_BYTES, SEAT_MAGIC, free_seat, give_seat, seat_file
from partage.vendors.wishes import Policy, Priority

HOSTILE = 7
"""Its slot."""


def _seat(world: World) -> Path:
    return seat_file(world.folder / "card-0", HOSTILE)


def _cut_off(path: Path) -> None:
    os.truncate(path, 0)
    os.truncate(path, SEAT_BYTES)


def _cut_and_left(path: Path) -> None:
    os.truncate(path, 0)


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(os.urandom(SEAT_BYTES))
    other.replace(path)


def _a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _a_folder(path: Path) -> None:
    if not path.is_dir():
        path.unlink(missing_ok=True)
        path.mkdir()


def _grown(path: Path) -> None:
    os.truncate(path, 2**40)


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(SEAT_BYTES))


def _lies(path: Path, slot: int = HOSTILE) -> None:
    """Its turn since now and for ever, online, first of all; and the bell rings all the time."""
    now = time.monotonic_ns()
    words = [
        SEAT_MAGIC,
        99,
        now,
        1,
        0,
        2 << 40 | 1 << 32 | 1000,
        0,
        now,
        now // 64 << 8 | slot + 1,
        now + 30_000_000,
        2**62,
        now & 0xFFFFFFFF,
    ]
    with path.open("r+b", buffering=0) as file:
        file.write(b"".join(word.to_bytes(8, "little") for word in words))


ATTACKS = {
    "cut off and mended": _cut_off,
    "cut off": _cut_and_left,
    "replaced": _replaced,
    "a pipe": _a_pipe,
    "a folder": _a_folder,
    "grown": _grown,
    "garbage": _garbage,
    "lies": _lies,
}


@pytest.fixture(autouse=True)
def _deaf() -> Iterator[None]:
    """SIGIO tells the holder of a lease that another opens the file; it ends a process that does not handle it."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


@contextmanager
def _attacked(path: Path, attack: Callable[[Path], None]) -> Iterator[None]:
    """The attack again and again, as fast as this process can, or every so often."""
    over = threading.Event()

    def again() -> None:
        while not over.is_set():
            attack(path)
            over.wait(0.0005)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A modelled card, all built with the address and undefined-behaviour sanitizers."""
    world = World(tmp_path_factory.mktemp("h"), built("native-asan", SANITIZERS["asan"]))
    yield world
    world.close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_seat_under_attack_costs_its_neighbours_time_alone(checked: World, attack: str) -> None:
    """A neighbour may do anything to its own seat meanwhile: the tenant works on, and ends well."""
    slot = list(ATTACKS).index(attack) + 10
    tenant = checked.tenant(slot, memory=512 * MIB, core=400, policy=Policy.BURST_SHARE)
    sanitized(tenant, "asan")
    path = _seat(checked)

    with _attacked(path, ATTACKS[attack]):
        done = tenant.run("load", "--way", "linked", "--seconds", "1.5", "--depth", "2")
        memory = tenant.run("memory", "plain", str(32 * MIB), "linked")
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_bytes(bytes(SEAT_BYTES))

    assert done.returncode == 0, done.stderr
    assert "Sanitizer" not in done.stderr
    assert int(done.stdout.split()[done.stdout.split().index("done") + 1]) > 0
    assert "total 536870912" in memory.stdout, memory.stderr


def _next_tenant(world: World, tenant: Tenant, slot: int) -> None:
    """The same container once more, as a tenant of its seat that comes after another one."""
    folder = world.folder / "card-0"
    card = read((tenant.folder / "limits").read_text(), "limits").cards[0]
    free_seat(folder, slot, HeldFiles())
    give_seat(folder, card, HeldFiles())


def test_a_seat_that_a_former_tenant_kept_open_is_no_one_elses(checked: World) -> None:
    """The seat's next tenant runs, whatever comes through a descriptor that the former one handed on."""
    tenant = checked.tenant(41, memory=512 * MIB, core=400, policy=Policy.BURST_SHARE)
    sanitized(tenant, "asan")
    seat = seat_file(checked.folder / "card-0", 41)
    handed_on = os.open(seat, os.O_RDWR)
    _next_tenant(checked, tenant, 41)

    def attack(path: Path) -> None:
        _lies(path, 41)
        os.ftruncate(handed_on, 0)

    with _attacked(Path(f"/proc/self/fd/{handed_on}"), attack):
        done = tenant.run("load", "--way", "linked", "--seconds", "1.5", "--depth", "2")
    os.close(handed_on)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[done.stdout.split().index("done") + 1]) > 0
    assert seat.stat().st_size == SEAT_BYTES


@pytest.mark.parametrize("sanitizer", ["", "tsan"])
def test_neighbours_hear_the_next_tenant_of_a_seat_and_no_former_one(
    build: Path, tmp_path_factory: pytest.TempPathFactory, sanitizer: str
) -> None:
    """A program that ran before sees the seat's new file, and gives way to its present tenant."""
    if sanitizer:
        build = built(f"native-{sanitizer}", SANITIZERS[sanitizer])
    world = World(tmp_path_factory.mktemp("n"), build)
    tenants = [
        world.tenant(slot, core=500, policy=Policy.BURST_SHARE, priority=priority)
        for slot, priority in enumerate((Priority.OFFLINE, Priority.ONLINE))
    ]
    for tenant in tenants:
        sanitized(tenant, sanitizer)
    first = tenants[0].start("load", "--seconds", "600", "--depth", "1")
    world.meter.until(50e6, first)
    seat = seat_file(world.folder / "card-0", 1)
    handed_on = os.open(seat, os.O_RDWR)
    _next_tenant(world, tenants[1], 1)
    former = Path(f"/proc/self/fd/{handed_on}")

    with _attacked(former, lambda path: _lies(path, 1)):
        if not sanitizer:  # which slows the programs too much for it
            world.meter.some_span(0.5, lambda part: part > 0.5, first)
        second = tenants[1].start("load", "--seconds", "600", "--depth", "1")
        world.meter.until(20e6, second)
        if not sanitizer:
            world.meter.some_span(0.5, lambda one, other: 4 * one < other, first, second)
    os.close(handed_on)
    for process in (first, second):
        assert process.poll() is None
        process.kill()
        _, error = process.communicate()
        assert "Sanitizer" not in error
    world.close()


def test_a_quota_holds_whatever_a_neighbour_says(world: World) -> None:
    """A fixed share is kept by its own books: neither more nor another's word changes it."""
    tenant = world.tenant(core=200, policy=Policy.FIXED_SHARE)

    with _attacked(_seat(world), _lies):
        done = tenant.run("load", "--seconds", "1.5", "--depth", "1")

    words = done.stdout.split()
    count, span = (int(words[words.index("done") + i]) for i in (1, 2))
    within(0.2, count * 1e6, span / 1e9)


LIARS = (3, 11, 29, 62)


@pytest.mark.parametrize("policy", [Policy.FIXED_SHARE, Policy.BURST_SHARE])
def test_several_that_claim_every_turn_leave_a_tenant_its_quota(
    world: World, policy: Policy
) -> None:
    """Four tenants with a hundredth of the card each, who launch nothing; they had left one with 40 % some 2 % at most."""
    tenant = world.tenant(core=400, policy=policy)
    for slot in LIARS:
        world.tenant(slot, core=10, policy=Policy.BURST_SHARE)
    folder = world.folder / "card-0"

    def attack(_: Path) -> None:
        for slot in LIARS:
            _lies(seat_file(folder, slot), slot)

    with _attacked(folder, attack):
        process = tenant.start("load", "--seconds", "600", "--depth", "0")
        world.meter.some_span(1, lambda part: part > 0.2, process)
        process.kill()
        process.communicate()


def test_locks_hold_nobody_up(world: World) -> None:
    """Every lock and lease that a reader may take on what is shared: others neither wait nor fail."""
    tenant = world.tenant(core=400, policy=Policy.BURST_SHARE)
    folder = world.folder / "card-0"
    held = []
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        held.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        fcntl.lockf(descriptor, fcntl.LOCK_SH)
        for lease in (fcntl.F_WRLCK, fcntl.F_RDLCK):
            try:
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, lease)
                break
            except OSError:
                continue  # not its owner, or another process has it open
    # A lease delays an open of the file, by a process that may wait, for so long.
    broken = int(Path("/proc/sys/fs/lease-break-time").read_text())
    begun = time.monotonic()

    done = tenant.run("load", "--seconds", "0.3", "--depth", "1")
    took = time.monotonic() - begun
    for descriptor in held:
        os.close(descriptor)

    assert done.returncode == 0, done.stderr
    assert took < broken


def test_a_seat_that_opens_late_is_taken_up(world: World) -> None:
    """A neighbour's lease on a seat keeps its tenant unheard for as long as the lease lasts, not longer."""
    tenant = world.tenant(core=400, policy=Policy.BURST_SHARE)
    seat = seat_file(world.folder / "card-0", 0)
    descriptor = os.open(seat, os.O_RDONLY)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        os.close(descriptor)
        pytest.skip(f"no leases here: {error}")
    running = tenant.start("load", "--seconds", "600", "--depth", "1")
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    assert not any(seat.read_bytes()[:8])
    os.close(descriptor)

    for _ in attempts():
        assert running.poll() is None
        if int.from_bytes(seat.read_bytes()[:8], "little") == SEAT_MAGIC:
            break
        time.sleep(0.01)
    running.kill()
    running.communicate()


def test_the_library_leaves_no_file_open_but_the_account(world: World) -> None:
    """A program may close every descriptor and get the numbers for files of its own: this one is far from them."""
    tenant = world.tenant(core=400, policy=Policy.BURST_SHARE)
    running = tenant.start("load", "--seconds", "600", "--depth", "1")
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"

    opened = {one.name: str(one.readlink()) for one in Path(f"/proc/{running.pid}/fd").iterdir()}
    running.kill()
    running.communicate()

    ours = {number: name for number, name in opened.items() if str(world.folder) in name}
    assert ours == {"200": str(tenant.folder / "account")}


def test_seats_are_read_by_file_where_the_kernel_may_not_copy(world: World) -> None:
    """A filter of system calls may forbid process_vm_readv: the turn is shared all the same."""
    tenants = [world.tenant(i, core=500, policy=Policy.BURST_SHARE) for i in range(2)]

    begun = time.monotonic()
    running = [
        tenant.start("filtered", str(world.build / "load"), "--seconds", "1", "--depth", "0")
        for tenant in tenants
    ]
    done = [process.communicate(timeout=WAIT) for process in running]
    span = time.monotonic() - begun

    assert [process.returncode for process in running] == [0, 0], done
    counts = [int(out.split()[out.split().index("done") + 1]) for out, _ in done]
    assert min(counts) > 0
    assert (
        sum(counts) * 1e-3 < span + 0.05
    )  # a card has no more; unheld, they would have launched as fast as they can
