"""Files that containers may write lie on memory of fixed size, so no container fills the node's disk through them.

Each story runs in a mount namespace of its own, where it may mount; it skips where that is not allowed.
"""

import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from partage.agent.isolation import memory
from partage.agent.isolation.files import TenantFiles
from partage.agent.isolation.reading import LOOK

BEGIN = """
import errno, os, sys
from pathlib import Path
from partage.agent.isolation import memory
from partage.agent.isolation.limits import Policy
from partage.model.device import SEATS
from partage.agent.isolation.account import ACCOUNT_BYTES
from partage.agent.isolation.container_dirs import CardQuota, Rooms
from partage.agent.isolation.seats import SEAT_BYTES, seat_file

folder = Path(sys.argv[1])
root = folder / "root"
(root / "proc/sys/kernel/random").mkdir(parents=True)
(root / "proc/sys/kernel/random/boot_id").write_text("one")
(root / "proc/1").symlink_to("/proc/self")
(folder / "built.so").write_bytes(b"the library")
QUOTA = (CardQuota("GPU-0", 2**30, 300, Policy.FIXED_SHARE),)

def agent():
    return Rooms(folder / "built.so", folder / "state", str(folder / "state"), root)

def grow(path, size=2**20):
    "What another program may do with a file that it may write; the bytes that it got."
    done = 0
    with path.open("r+b", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        try:
            while done < size:
                done += file.write(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
    return done
"""
GROWN = """
rooms = agent()
assert not rooms.problems, rooms.problems
first, second = rooms.open("container-a", QUOTA), rooms.open("container-b", QUOTA)
seats = first.seats / "GPU-0"
assert os.path.ismount(seats)
assert os.path.ismount(first.account.parent)
assert grow(seat_file(seats, 0)) <= SEATS * SEAT_BYTES + SEAT_BYTES  # what former files of the seats may need
rooms.mend()
assert grow(first.account) <= ACCOUNT_BYTES  # it was sparse, and has its own size at most
assert second.account.stat().st_blocks * 512 < ACCOUNT_BYTES
second.account.write_bytes(bytes(ACCOUNT_BYTES))
"""
STOLEN = """
rooms = agent()
rooms.open("container-a", QUOTA)
rooms.open("container-b", QUOTA)
seats = rooms.rooms["container-a"].seats / "GPU-0"
os.truncate(seat_file(seats, 0), 0)
assert grow(seat_file(seats, 1)) > SEATS * SEAT_BYTES  # with the block that the first gave up
rooms.close("container-a")
room = rooms.open("container-c", QUOTA)
assert room.limits.cards[0].slot == 0
assert {seat_file(seats, slot).stat().st_size for slot in range(63)} == {SEAT_BYTES}
seat_file(seats, 0).write_bytes(bytes(SEAT_BYTES))
"""
FORMER = """
from partage.model.errors import InvalidValue

def fill(descriptor):
    "Through a descriptor that its tenant handed on."
    os.lseek(descriptor, 0, os.SEEK_END)
    try:
        while os.write(descriptor, b"x" * 4096):
            pass
    except OSError as error:
        assert error.errno == errno.ENOSPC, error

rooms = agent()
rooms.open("container-a", QUOTA)
seats = rooms.rooms["container-a"].seats / "GPU-0"
kept = {}
for number in range(100):
    try:
        room = rooms.open(f"container-{number}", QUOTA)
    except OSError as error:
        assert error.errno == errno.ENOSPC
        break
    slot = room.limits.cards[0].slot
    assert number > 5 or slot == 1  # its memory grows, for a time; then come those that no one had
    seat = seat_file(seats, slot)
    assert seat.read_bytes() == bytes(SEAT_BYTES)
    descriptor = os.open(seat, os.O_RDWR)
    kept[seat.stat().st_ino] = descriptor
    rooms.close(f"container-{number}")
    fill(descriptor)
    if number == 3:
        rooms = agent()
    if number == 5:
        memory._MOST = os.statvfs(seats).f_blocks * 4096
assert slot == 62
assert len(kept) == number < 99, (len(kept), number)  # a file each
assert os.statvfs(seats).f_blocks * 4096 == memory._MOST
for descriptor in kept.values():
    os.close(descriptor)
assert rooms.open("container-b", QUOTA).limits.cards[0].slot == 1
"""
ATTRIBUTES = """
def spoil(file):
    "Attributes until there is no room for a file, or of megabytes and more than the kernel lists."
    for size, count in ((60_000, 100), (600, 100), (1, 6_000)):
        for number in range(count):
            try:
                os.setxattr(file, f"user.{size}.{number}", b"x" * size)
            except OSError as error:
                if error.errno == errno.ENOTSUP:
                    print("no attributes")
                    sys.exit()
                assert error.errno == errno.ENOSPC, error
                break

def former():
    "Files without a name that the agent has open."
    return [one for one in Path("/proc/self/fd").iterdir() if one.is_symlink() and "seat-1 (deleted)" in os.readlink(one)]

rooms = agent()
rooms.open("container-a", QUOTA)
seats = rooms.rooms["container-a"].seats / "GPU-0"
memory._MOST = os.statvfs(seats).f_blocks * 4096
for number in range(3):
    spoil(seat_file(seats, 0))
    assert rooms.open(f"container-{number}", QUOTA).limits.cards[0].slot == 1
    rooms.close(f"container-{number}")
(file,) = former()
kept = os.open(file, os.O_RDWR)
spoil(kept)  # through a descriptor that its tenant passed on
os.close(kept)
rooms.mend()
assert not former()  # its attributes are memory that belongs to no container any more
rooms.open("container-b", QUOTA)
spoil(seat_file(seats, 1))
rooms.close("container-b")
assert not former()
"""
AGAIN = """
agent().open("container-a", QUOTA)
rooms = agent()
room = rooms.rooms["container-a"]
assert os.path.ismount(room.account.parent)
rooms.open("container-b", QUOTA)
rooms.close("container-a")
assert not room.account.parent.exists()
rooms.keep(())
(root / "proc/sys/kernel/random/boot_id").write_text("two")
assert not agent().rooms
assert " " + str(folder) not in Path("/proc/self/mountinfo").read_text()
"""
UNSEEN = """
(root / "proc/1").unlink()
(root / "proc/1").mkdir()
(root / "proc/1/mountinfo").write_text("")
rooms = agent()
assert "the host does not see" in rooms.problems[0], rooms.problems
room = rooms.open("container-a", QUOTA)
assert not os.path.ismount(room.account.parent)
assert room.account.stat().st_size == ACCOUNT_BYTES
assert " " + str(folder) not in Path("/proc/self/mountinfo").read_text()
"""
STAYS = """
import ctypes
from partage.agent.isolation import files
from partage.agent.isolation.memory import unbind

BIND = 4096
rooms = agent()
room = rooms.open("container-a", QUOTA)
theirs = folder / "theirs"
theirs.mkdir()
(theirs / "kept").write_text("of others")
inner = folder / "state/private/old/inner"
inner.mkdir(parents=True)
done = ctypes.CDLL(None).mount(os.fsencode(theirs), os.fsencode(inner), None, ctypes.c_ulong(BIND), None)
assert done == 0 and not os.path.ismount(inner)  # of the same file system: no device tells

def refused(folder):
    raise OSError(errno.EPERM, "not allowed", str(folder))

files.unbind = refused
rooms.close("container-a")
assert room.account.stat().st_size == ACCOUNT_BYTES
files.unbind = unbind
agent()  # which tidies
assert (theirs / "kept").read_text() == "of others"
assert inner.exists()
assert not room.account.parent.exists()
"""


@pytest.mark.parametrize(
    "story",
    [GROWN, STOLEN, FORMER, ATTRIBUTES, AGAIN, UNSEEN, STAYS],
    ids=[
        "nothing grows",
        "a block that was given up",
        "files of former tenants",
        "attributes of files",
        "restart and boot",
        "unseen by the host",
        "a mount that stays",
    ],
)
def test_nobody_fills_the_node(tmp_path: Path, story: str) -> None:
    """No tenant takes another's room: growing ends at once, and a spoilt seat is whole for the next tenant."""
    enter = ["unshare", "--mount", "--propagation", "private"]
    try:
        allowed = subprocess.run(
            [*enter, "mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("unshare is missing")
    if allowed.returncode:
        pytest.skip("mounting is not allowed here")

    done = subprocess.run(
        [*enter, sys.executable, "-c", BEGIN + textwrap.dedent(story), str(tmp_path / "n ode")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    if done.stdout == "no attributes\n":
        pytest.skip("this kernel has no attributes on files in memory")


@pytest.mark.parametrize(
    ("points", "kept"),
    [
        (["/", "/elsewhere"], False),
        (["{folder}x"], False),
        (["{folder}"], True),
        (["{folder}/inner\\040one"], True),
        (None, True),
    ],
    ids=["none", "beside", "on it", "below", "not known"],
)
def test_nothing_is_removed_through_a_mount(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    points: list[str] | None,
    kept: bool,  # noqa: FBT001
) -> None:
    """The agent does not remove what lies behind a mount that stays, or anything where it cannot read the mounts."""

    def refused(folder: Path, room_bytes: int, files: int) -> None:
        raise OSError(errno.EPERM, f"not {files} files of {room_bytes} bytes", str(folder))

    monkeypatch.setattr("partage.agent.isolation.files.bound", refused)
    files = TenantFiles(tmp_path, str(tmp_path), tmp_path / "mountinfo")
    folder = tmp_path / "private" / "old one"
    folder.mkdir()
    (folder / "file").touch()
    spelled = str(folder).replace(" ", r"\040")
    lines = [
        f"1 2 0:3 / {point.format(folder=spelled)} rw - ext4 x rw\n" for point in points or ()
    ]
    if points is not None:
        (tmp_path / "mountinfo").write_text("".join(lines))
    monkeypatch.setattr(memory, "_OWN", tmp_path / "mountinfo")

    files.close_account("old one")

    assert (folder / "file").exists() is kept


@pytest.mark.parametrize("seen", [True, False])
def test_a_host_with_many_mounts_sees_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, seen: bool
) -> None:
    """Pods with thousands of long subPaths make the host's table of mounts longer than one look reads."""
    monkeypatch.setattr("partage.agent.isolation.files.bound", lambda *_: None)
    here, host = tmp_path / "here", tmp_path / "proc/1"
    (here / "private/.probe").mkdir(parents=True)
    host.mkdir(parents=True)
    line = f"1 2 0:3 /{'s' * 4000} /var/lib/kubelet/pods/p/volume-subpaths/v/c/1 rw - ext4 x rw\n"
    (host / "mountinfo").write_text(line * (LOOK // len(line) + 1))
    if seen:
        (host / "root").symlink_to("/")
    else:
        other = host / "root" / str(here / "private/.probe").lstrip("/")
        other.mkdir(parents=True)

    assert TenantFiles(here, str(here), host / "mountinfo").in_memory is seen


@pytest.mark.parametrize(
    ("page_bytes", "expected"), [(4096, 64 * 4096), (65536, 64 * 65536)], ids=["4 KiB", "64 KiB"]
)
def test_there_is_room_for_every_file_whatever_a_page_is(page_bytes: int, expected: int) -> None:
    """A file takes whole pages: a card's 64 files would not fit in four pages of 64 KiB."""
    assert memory.room(4096, 64, page_bytes) == expected
    assert memory.room(4097, 1, page_bytes) == (8192 if page_bytes == 4096 else 65536)
