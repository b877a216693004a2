"""Folders that HAMi's library writes to: gone with their container, and nothing else is ever touched."""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import stat
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.isolation.folders import Folders
from partage.agent.isolation.providers import HamiCore
from partage.agent.journal import Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Container, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import encode

GIB = 2**30
HOME = "/usr/local/vgpu/containers"
CARD = model.Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", memory_bytes=16 * GIB)
NODE = Node("n1", devices=(CARD,))
SHARE = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, 4 * GIB, GrantMode.SHARE, protocol="qgpu")


def uid(number: int) -> str:
    """A pod's UID, as an API server makes them."""
    return f"{number:08x}-0000-4000-8000-000000000000"


class World:
    """A node whose shares HAMi's library keeps, with a clock that is set by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "host"
        self.home = self.root / HOME.lstrip("/")
        self.apart = self.home / ".partage-gone"
        (self.root / "dev").mkdir(parents=True)
        (self.root / "dev/nvidia0").symlink_to("/dev/null")
        (self.root / "usr/local/vgpu").mkdir(parents=True)
        (self.root / "usr/local/vgpu/libvgpu.so").write_bytes(b"the library")
        self.later = 0.0
        self.start()

    def start(self) -> None:
        """An agent that starts."""
        host = Host(self.root)
        facts = HostFacts(lambda _pod, _card, _mig: Instance(), provider=HamiCore())
        place = Place(NODE, Settings(), FAMILIES, facts)
        self.folders = Folders(HOME, host.at, self._clock)
        self.keeper = Keeper(
            lambda: place, host, Journal(self.folder / "journal"), Tallies(), None, self.folders
        )

    def _clock(self) -> float:
        return (self.root / "dev").stat().st_ctime + self.later

    def pod(self, number: int) -> PodSandbox:
        """A pod with a share of 30 %."""
        record = encode(Allocation(uid(number), "team", f"p{number}", "n1", (SHARE,)))
        return PodSandbox(
            f"s{number}", f"p{number}", uid(number), "team", annotations={names.ALLOCATION: record}
        )

    def container(self, number: int, attempt: int = 0) -> Container:
        """Its container, as the runtime describes it once it runs."""
        said = {names.SERVED: "hami-core"}
        return Container(f"c{number}-{attempt}", f"s{number}", "main", annotations=said)

    def create(self, number: int, attempt: int = 0) -> Path:
        """Make a container; its folder."""
        self.keeper.create(self.pod(number), self.container(number, attempt))
        return self.home / f"{uid(number)}_main"

    def left(self) -> list[str]:
        """What is in the folder of all, or given up, after everything pending is removed."""
        while self.folders.pending:
            self.folders.sweep()
        found = [*self.home.iterdir(), *self.apart.iterdir()]
        return sorted(one.name for one in found if one != self.apart)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A node."""
    return World(tmp_path)


def test_a_folder_goes_with_its_container(world: World) -> None:
    """Others keep theirs, with what is in it."""
    first, second = world.create(1), world.create(2)
    for folder in (first, second):
        (folder / "main.cache").write_text("state")

    world.keeper.remove(world.container(1))

    assert world.left() == [second.name]
    assert (second / "main.cache").read_text() == "state"


def test_the_next_attempt_keeps_the_folder(world: World) -> None:
    """Behind a proxy the agent learns of the first end after the second start; both have one folder."""
    folder = world.create(1, 0)
    world.create(1, 1)

    world.keeper.remove(world.container(1, 0))

    assert world.left() == [folder.name]
    world.keeper.remove(world.container(1, 1))
    assert world.left() == []


def test_an_attempt_that_ended_unheard_leaves_the_next_ones_folder(world: World) -> None:
    """The same, by the runtime's own list."""
    folder = world.create(1, 0)
    world.create(1, 1)

    world.keeper.synchronize((world.pod(1),), (world.container(1, 1),))

    assert world.left() == [folder.name]


def test_what_ended_while_the_agent_was_away_is_removed_at_its_start(world: World) -> None:
    """A running container still has its folder."""
    world.create(1)
    kept = world.create(2)
    world.start()

    world.keeper.synchronize((world.pod(2),), (world.container(2),))

    assert world.left() == [kept.name]


def test_a_container_that_was_never_made_leaves_nothing(world: World) -> None:
    """Its folder is there before its other mounts are looked at, and is given up when one is missing."""
    (world.root / "usr/local/vgpu/libvgpu.so").unlink()

    with pytest.raises(Refused, match=r"libvgpu\.so cannot be mounted"):
        world.create(1)

    assert world.left() == []
    assert not world.keeper.books.held


def test_folders_of_pods_that_are_gone_are_removed_once_they_are_old(world: World) -> None:
    """Name and age decide where the journal knows nothing: a pod that the runtime has keeps its own."""
    for number in (1, 2, 3):
        world.create(number)
    shutil.rmtree(world.folder / "journal")
    world.start()
    running = (world.pod(2),)  # between two attempts: no container of it runs

    world.keeper.synchronize(running, ())
    assert len(world.left()) == 3
    world.later = 301
    world.keeper.synchronize(running, ())

    assert world.left() == [f"{uid(2)}_main"]


OTHERS = (
    "main",
    "_main",
    "notes.txt",
    f"{uid(7)}",
    f"{uid(7)}_",
    f"{uid(7)}_Main",
    f"{uid(7)}_a_b",
    f"{uid(7)}_main.old",
    f"x{uid(7)}_main",
    "00000007_main",
    ".hidden",
    f"{uid(7)}_" + "a" * 64,
    ".partage-gone-",
    ".partage-gone-x",
    ".partage-gone-1.old",
)


def test_what_is_not_ours_is_left_alone(world: World) -> None:
    """Names of another shape, files, and links in the place of folders."""
    world.home.mkdir(parents=True)
    treasure = world.folder / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("gold")
    for name in OTHERS:
        (world.home / name).mkdir()
        (world.home / name / "kept").write_text("kept")
    (world.home / f"{uid(8)}_main").symlink_to(treasure)
    (world.home / f"{uid(9)}_main").write_text("a file")
    before = sorted(os.listdir(world.home))  # noqa: PTH208 # names
    world.later = 10**6

    world.keeper.synchronize((), ())

    assert world.left() == before
    assert (treasure / "gold").read_text() == "gold"
    assert all((world.home / name / "kept").exists() for name in OTHERS)


def test_nothing_outside_is_reached_through_what_a_tenant_wrote(world: World) -> None:
    """Links to files and folders, with a name of ours or below it: they go, what they point at stays."""
    treasure = world.folder / "treasure"
    (treasure / "chest").mkdir(parents=True)
    (treasure / "chest/gold").write_text("gold")
    folder = world.create(1)
    (folder / "deep").mkdir()
    for at in (folder, folder / "deep"):
        (at / "to-folder").symlink_to(treasure)
        (at / "to-file").symlink_to(treasure / "chest/gold")
        (at / "up").symlink_to("../../../..")
        (at / ".partage-gone-1").mkdir()
    os.mkfifo(folder / "pipe")

    world.keeper.remove(world.container(1))

    assert world.left() == []
    assert (treasure / "chest/gold").read_text() == "gold"


def test_a_folder_of_all_that_is_a_link_is_not_entered(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The link may lead to any place; the agent logs it once."""
    treasure = world.folder / "treasure"
    (treasure / f"{uid(1)}_main").mkdir(parents=True)
    world.home.symlink_to(treasure)
    world.later = 10**6

    with caplog.at_level(logging.WARNING):
        world.keeper.synchronize((), ())
        world.keeper.synchronize((), ())

    assert (treasure / f"{uid(1)}_main").is_dir()
    assert caplog.text.count("cannot be looked at") == 1


def test_a_folder_of_all_that_cannot_be_listed_stops_nothing(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails: the runtime's list is taken all the same, and its containers are watched."""
    world.create(1)
    genuine = os.scandir

    def failing(place: int | str) -> object:
        if isinstance(place, int):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return genuine(place)

    monkeypatch.setattr(os, "scandir", failing)
    stranger = Container("c9", "s9", "main")
    pod = PodSandbox("s9", "p9", uid(9), "team", annotations=world.pod(9).annotations)

    world.keeper.synchronize((world.pod(1), pod), (world.container(1), stranger))

    assert set(world.keeper.unprotected) == {"c9"}
    assert "cannot be brought up to date: [Errno 5]" in caplog.text


def test_no_depth_stops_it(world: World) -> None:
    """Folders in folders beyond what recursion or open files would bear."""
    folder = world.create(1)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)  # of a descriptor
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)

    world.keeper.remove(world.container(1))

    assert world.left() == []


def _marked(path: Path, marks: int) -> bool:
    """Mark a file or folder as `chattr` does; with 0x10 even root cannot remove it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.ioctl(descriptor, 0x40086602, struct.pack("l", marks))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_nothing_stays_that_was_made_unchangeable(world: World) -> None:
    """Files, folders, and the folder of all, among many others, with names of any bytes and of any kind."""
    folder = world.create(1)
    for number in range(20):
        (folder / f"f{number}").touch()
    os.mkfifo(folder / "pipe")
    with contextlib.suppress(PermissionError):
        os.mknod(folder / "node", 0o600 | stat.S_IFCHR, os.makedev(10, 130))
    (folder / "link").symlink_to("/")
    os.mknod(folder / "socket", 0o600 | stat.S_IFSOCK)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff" + b"x" * 254)).touch()
    with (folder / "hole").open("wb") as hole:
        hole.truncate(2**43)
    (folder / "d/e").mkdir(parents=True)
    (folder / "d/e/f").touch()
    paths = [folder / name for name in ("d/e/f", "d/e", "d", "f7", "hole")]
    try:
        if not all([_marked(path, 0x10) for path in (*paths, folder)]):  # noqa: C419 # all of them are
            pytest.skip("this file system has no such files")
        world.keeper.remove(world.container(1))

        assert not folder.exists()
        assert world.left() == []
    finally:
        for path in (folder, *paths[::-1]):
            _marked(path, 0)


def test_what_stays_keeps_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One file of many cannot be removed: the others are, and the next sweep has nothing to do."""
    folder = world.create(1)
    for number in range(20):
        (folder / f"f{number}").touch()
    genuine = os.unlink

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        if path == "f3":
            raise OSError(errno.EIO, "Input/output error")
        genuine(path, dir_fd=dir_fd)

    world.keeper.remove(world.container(1))
    monkeypatch.setattr(os, "unlink", unlink)
    (left,) = world.left()

    assert os.listdir(world.apart / left) == ["f3"]  # noqa: PTH208 # names
    assert "cannot be removed: Input/output error" in caplog.text
    monkeypatch.undo()
    world.start()
    assert world.left() == []


def test_a_sweep_is_bounded(world: World) -> None:
    """Many files take several sweeps; in between the agent may end, and the next one goes on."""
    folder = world.create(1)
    for number in range(25):
        (folder / f"f{number}").touch()
    world.keeper.remove(world.container(1))

    world.folders.sweep(most=10)
    left = [len(list(one.iterdir())) for one in world.apart.iterdir()]
    assert world.folders.pending
    world.start()

    assert left == [15]
    assert world.left() == []


def test_who_decides_lists_nothing_that_a_tenant_made(world: World) -> None:
    """Folders in folders are moved up to be removed, and there may be millions: they do not go to the folder of all."""
    folder = world.create(1)
    for number in range(50):
        (folder / f"d{number}").mkdir()
    world.keeper.remove(world.container(1))

    world.folders.sweep(most=40)

    assert len(list(world.apart.iterdir())) > 10
    assert list(world.home.iterdir()) == [world.apart]
    assert world.left() == []


def test_names_of_an_earlier_agent_are_not_tried(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have left millions, and the runtime waits."""
    folder = world.create(1)
    for number in range(50):
        (folder / f"d{number}").mkdir()
    world.keeper.remove(world.container(1))
    world.folders.sweep(most=40)
    world.create(2)
    world.later = 1.0
    world.start()
    genuine, looks = os.stat, []
    monkeypatch.setattr(
        os, "stat", lambda path, **options: looks.append(path) or genuine(path, **options)
    )

    world.keeper.synchronize((), ())

    assert len([one for one in looks if str(one).startswith(".partage-gone-")]) == 1


def test_a_disk_that_takes_no_folder_is_emptied_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may have used up its inodes: then what is given up stays beside the others."""
    folder = world.create(1)
    (folder / "deep/er").mkdir(parents=True)

    def mkdir(_path: str, *_mode: int, **_options: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "mkdir", mkdir)
    world.keeper.remove(world.container(1))
    while world.folders.pending:
        world.folders.sweep()

    assert list(world.home.iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exactly_the_running_have_folders(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any sequence of starts, ends, crashes of containers and of the agent, against a plain model."""
    world = World(tmp_path_factory.mktemp("node"))
    running: dict[tuple[int, int], bool] = {}
    attempts = {1: 0, 2: 0, 3: 0}
    for _ in range(data.draw(st.integers(1, 12))):
        what = data.draw(st.sampled_from(["create", "remove", "die", "restart", "look"]))
        number = data.draw(st.sampled_from([1, 2, 3]))
        mine = [key for key in running if key[0] == number]
        if what == "create":
            if any(running[key] for key in mine):
                continue  # the kubelet makes the next attempt after the end of the one before
            attempts[number] += 1
            world.create(number, attempts[number])
            running[number, attempts[number]] = True
        elif what == "remove" and mine:
            world.keeper.remove(world.container(*mine[0]))
            del running[mine[0]]
        elif what == "die":
            running.update(dict.fromkeys(mine, False))  # without an event
        else:
            if what == "restart":
                world.start()
            alive = [key for key, runs in running.items() if runs]
            world.keeper.synchronize(
                tuple(world.pod(key[0]) for key in alive),
                tuple(world.container(*key) for key in alive),
            )
            running = dict.fromkeys(alive, True)
        known = sorted({f"{uid(number)}_main" for number, _ in running})
        if world.home.exists():
            assert world.left() == known
