"""A tenant may take a lease on a file, spoil its own and grow it: the next container still has a seat at once."""

import contextlib
import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_shares_get_rooms_of_their_own import QUOTA, Machine

from partage.agent.isolation.container_dirs import Rooms
from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.seats import SEAT_BYTES, files_of

_AT_ONCE = int(Path("/proc/sys/fs/lease-break-time").read_text())
"""Seconds that an open of a leased file waits, unless it is one that does not wait."""
_GET, _SET, _IMMUTABLE = 0x80086601, 0x40086602, 0x10


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A node's files."""
    return Machine(tmp_path)


@pytest.fixture(autouse=True)
def deaf() -> Iterator[None]:
    """The kernel sends SIGIO to the holder of a lease when another process opens the file."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


def _leased(path: Path) -> int | None:
    """A read lease, by a process that may only read; None where it gets none."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        pytest.skip(f"no leases here: {error}")
    return descriptor


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_nobody_gets_a_lease_on_what_others_need(machine: Machine) -> None:
    """A lease is refused on the terms and on free seats, while an agent runs."""
    rooms = machine.rooms()
    room = rooms.open("container-a", QUOTA)

    folder = room.seats / "GPU-0"
    assert [path.name for path in files_of(folder) if _leased(path) is not None] == []
    assert rooms.open("container-b", QUOTA).limits.cards[0].slot == 1


def test_leases_that_were_taken_while_no_agent_ran_are_broken(machine: Machine) -> None:
    """Until then the next container is refused at once, others do not wait, nor does the page of the running one."""
    rooms = machine.rooms()
    room = rooms.open("container-a", QUOTA)
    folder = room.seats / "GPU-0"
    rooms._files._held.let_go(folder)  # it ends
    leases = [_leased(path) for path in files_of(folder)]
    assert None not in leases
    began = time.monotonic()
    again = machine.rooms()
    with pytest.raises(BlockingIOError):
        again.open("container-b", QUOTA)
    again.mend()
    again.close("container-c")
    assert time.monotonic() < began + _AT_ONCE

    for lease in leases:
        os.close(lease or 0)
    _until(lambda: _given(again))
    assert [path.name for path in files_of(folder) if _leased(path) is not None] == []


def test_nobody_gets_a_lease_where_a_room_was_read_late(machine: Machine) -> None:
    """Its card is protected as those of other rooms are."""
    room = machine.rooms().open("container-a", QUOTA)
    (room.folder / "limits").rename(machine.folder / "limits")
    rooms = machine.rooms()
    (machine.folder / "limits").rename(room.folder / "limits")

    rooms.keep(("container-a",))

    assert rooms.rooms
    folder = machine.state / "seats/GPU-0"
    assert [path.name for path in files_of(folder) if _leased(path) is not None] == []


def _given(rooms: Rooms) -> bool:
    with contextlib.suppress(BlockingIOError):
        return rooms.open("container-b", QUOTA).limits.cards[0].slot == 1
    return False


def test_a_lease_on_ones_own_amounts_delays_no_other(machine: Machine) -> None:
    """Everything else waits while amounts change."""
    rooms = machine.rooms()
    room = rooms.open("container-a", QUOTA)
    lease = _leased(room.folder / "amounts")
    assert lease is not None
    began = time.monotonic()

    less = tuple(replace(card, core_milli=100) for card in room.amounts)
    with pytest.raises(BlockingIOError):
        rooms.adjust("container-a", less)
    assert time.monotonic() < began + _AT_ONCE
    assert rooms.rooms["container-a"].cards == room.amounts
    os.close(lease)
    rooms.adjust("container-a", less)


def test_a_seat_that_cannot_be_emptied_is_passed_over(machine: Machine) -> None:
    """Its tenant made it unchangeable; the next tenants get other seats."""
    rooms = machine.rooms()
    rooms.open("container-a", QUOTA)
    room = rooms.open("container-b", QUOTA)
    spoilt = room.seats / "GPU-0/seat-1"
    with _unchangeable(spoilt):
        rooms.close("container-b")

        assert rooms.open("container-c", QUOTA).limits.cards[0].slot == 2
        assert rooms.open("container-d", QUOTA).limits.cards[0].slot == 3
    assert rooms.open("container-e", QUOTA).limits.cards[0].slot == 1
    assert spoilt.read_bytes() == bytes(SEAT_BYTES)


@contextlib.contextmanager
def _unchangeable(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY)

    def flag(*, on: bool) -> None:
        (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _GET, bytes(8)))
        flags = flags | _IMMUTABLE if on else flags & ~_IMMUTABLE
        fcntl.ioctl(descriptor, _SET, struct.pack("l", flags))

    try:
        try:
            flag(on=True)
        except OSError as error:
            pytest.skip(f"no such flag here: {error}")
        try:
            yield
        finally:
            flag(on=False)
    finally:
        os.close(descriptor)


def test_what_is_held_is_let_go(tmp_path: Path) -> None:
    """A file in the place of a held one is another file; the agent releases what it does not want any more."""
    names = [tmp_path / "a", tmp_path / "b"]
    for path in names:
        path.write_bytes(b"1")
    held = HeldFiles()
    held.hold(names)
    (tmp_path / "a").unlink()
    (tmp_path / "a").write_bytes(b"2")
    with held.at(names[0]) as descriptor:
        assert os.pread(descriptor, 1, 0) == b"2"
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 # of a process
    held.again()
    held.let_go(tmp_path)
    held.again()
    assert len(os.listdir("/proc/self/fd")) == before - 1  # noqa: PTH208 # of a process
    with held.at(names[1]) as descriptor:
        os.pwrite(descriptor, b"3", 0)
    assert names[1].read_bytes() == b"3"


def test_a_file_that_took_anothers_name_is_held_and_never_cut_short(tmp_path: Path) -> None:
    """What had the name before is released when the name changes again, and no sooner."""
    path = tmp_path / "seat"
    path.write_bytes(b"1")
    held, files = HeldFiles(), [os.open(path, os.O_RDONLY)]
    held.hold([path])
    for content in (b"2", b"3"):
        draft = tmp_path / "draft"
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT)
        os.pwrite(descriptor, content, 0)
        draft.rename(path)
        if content == b"3":
            held.again()
            with held.at(path):
                pass  # another thread finds it first
        held.replaced(path, descriptor)
        files.append(os.open(path, os.O_RDONLY))
    assert [os.pread(descriptor, 1, 0) for descriptor in files] == [b"", b"2", b"3"]
    with held.at(path) as descriptor:
        assert os.pread(descriptor, 1, 0) == b"3"
    held.let_go(tmp_path)
    for descriptor in files:
        os.close(descriptor)
