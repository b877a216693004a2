"""Whatever a tenant makes its processes and files look like, a look takes bounded work and memory, and there is an answer.

What a look takes is counted (`Work`), and its memory is measured in a process of its own.
"""

import contextlib
import ctypes
import errno
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from one_look import look
from partage.agent.isolation import account, node_scan
from partage.agent.isolation.account import ACCOUNT_BYTES, PLACES_AT, make_account, read_account
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.elf import OF_DRIVER, defined
from partage.agent.isolation.folders import Folders
from partage.agent.isolation.images import judge_image
from partage.agent.isolation.limits import ContainerLimits
from partage.agent.isolation.lookers import Lookers
from partage.agent.isolation.mappings import variables
from partage.agent.isolation.node_scan import Seen, Sight, see
from partage.agent.isolation.preloads import taken_first
from partage.agent.isolation.processes import CROWD, container_of, numbers_of, processes_of
from partage.agent.isolation.reading import LOOK, TooMuch, Work, file_below, start
from partage.agent.isolation.statements import Answer, Cause, survey
from partage.agent.journal import Entry
from partage.model.errors import InvalidDocument
from partage.vendors.traits import NVIDIA

MIB = 2**20
HERE = Path(__file__).parent
HOSTILE, HONEST = "a" * 64, "b" * 64
FILES = ("maps", "fd", "environ", "exe", "root", "status", "stat", "task")
SHOWN = "7f0000000000-7f0000001000 r-xp 00000000 fd:01 12 /opt/libcuda.so.1\n"


class Node:
    """Containers and their processes, as the host's procfs shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.rooms: dict[str, Room] = {}
        self.seen = Sight()

    def container(self, identity: str) -> str:
        """One that holds a card."""
        home = self.folder / identity
        home.mkdir()
        (home / "lib.so").write_bytes(b"text")
        self.rooms[identity] = Room(
            home, str(home), "lib.so", ContainerLimits(1, ()), self.folder, home / "account"
        )
        return identity

    def process(self, pid: int, container: str = HOSTILE, real: int = 0) -> Path:
        """A process of a container; one that runs where `real` says its number."""
        home = self.proc / str(pid)
        home.mkdir()
        (home / "cgroup").write_text(f"0::/kubepods/{container}\n")
        if real:
            for name in FILES:
                (home / name).symlink_to(f"/proc/{real}/{name}")
            return home
        (home / "fd").mkdir()
        (home / "root/etc").mkdir(parents=True)
        (home / "maps").write_text(SHOWN)
        (home / "environ").write_bytes(b"A=b\0")
        (home / "exe").write_bytes(b"")
        (home / "status").write_text(f"State:\tS\nNSpid:\t{pid}\t1\n")
        (home / "stat").write_text(f"{pid} (a) S {'0 ' * 16}1 0 5 0\n")
        return home

    def look(self) -> Sight:
        """The next look."""
        self.seen = see(self.rooms, self.proc, self.seen)
        return self.seen

    def refused(self) -> str:
        """What there is too much of."""
        found = self.look().excess[HOSTILE]
        assert self.seen.costs[HOSTILE] <= LOOK + MIB
        assert HOSTILE not in self.seen.processes
        return found.what


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with a hostile container."""
    found = Node(tmp_path)
    found.container(HOSTILE)
    return found


@contextlib.contextmanager
def running(kind: str, count: int, folder: Path) -> Iterator[int]:
    """A process that does it."""
    command = [sys.executable, str(HERE / "hostile_process.py"), kind, str(count), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def sparse(path: Path, length: int = 2**30) -> Path:
    """A file of that length that takes no room on the disk."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(length)
    return path


_GROWTH = """
import resource, sys
from pathlib import Path
sys.path[:0] = [{here!r}, {here!r} + "/../tools"]
from test_no_tenant_costs_the_agent_its_memory import HOSTILE, Node
node = Node(Path({folder!r}))
node.container(HOSTILE)
node.look()
node.process(7, HOSTILE, {pid})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(3):
    node.look()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, HOSTILE in node.seen.excess)
"""


@pytest.mark.parametrize(
    ("kind", "count", "told"),
    [
        pytest.param("mappings", 65_000, True, id="mappings of long paths"),
        pytest.param("descriptors", 100_000, None, id="open files of long paths"),
        pytest.param("threads", 10_000, False, id="threads"),
    ],
)
def test_a_process_costs_no_memory(
    tmp_path: Path, kind: str, count: int, *, told: bool | None
) -> None:
    """The agent's memory grows by less than 64 MiB; how many open files there may be is the machine's to say."""
    (tmp_path / "home").mkdir()
    with running(kind, count, tmp_path) as pid:
        script = _GROWTH.format(here=str(HERE), folder=str(tmp_path / "home"), pid=pid)
        out = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
    assert int(out[0]) * 1024 < 64 * MIB
    assert told is None or out[1] == str(told)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("maps", "mappings"),
        ("environ", "environment"),
        ("status", "processes"),
        ("stat", "processes"),
    ],
)
def test_what_the_kernel_tells_may_be_as_long_as_it_likes(
    node: Node, name: str, what: str
) -> None:
    """A GiB without an end of a line."""
    sparse(node.process(7) / name)
    tracemalloc.start()
    try:
        assert node.refused() == what
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_many_short_lines_are_too_much_as_well(node: Node) -> None:
    """Code of many files, a variable that is there a thousand times, groups."""
    home = node.process(7)
    (home / "maps").write_text(
        "".join(f"{n:x}000-{n:x}001 r-xp 0 0:1 {n} /{n:0200}\n" for n in range(6000))
    )
    assert node.refused() == "mappings"
    (home / "maps").write_text(SHOWN)
    (home / "environ").write_bytes(b"LD_PRELOAD=a b c d e f g h i j k l m n o p\0" * 4000)
    node.seen = Sight()
    assert node.refused() == "environment"
    (home / "environ").write_bytes(b"A=b\0" * 100_000)
    (home / "status").write_text(f"Groups:\t{'4294967294 ' * 60_000}\nNSpid:\t7\t1\n")
    node.seen = Sight()
    assert HOSTILE in node.look().processes


def test_empty_variables_cost_no_step_each(tmp_path: Path) -> None:
    """A process may fill its environment with ends of variables, or with variables without a value."""
    steps = 0

    def step(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return step

    for filling in (b"\0", b"A=\0"):
        (tmp_path / "environ").write_bytes(filling * 2**20)
        sys.settrace(step)
        try:
            with contextlib.suppress(TooMuch):
                variables(str(tmp_path), [b"A"], Work())
        finally:
            sys.settrace(None)

    assert steps < 2**18


@given(
    st.lists(st.sampled_from([b"A=", b"AB=", b"=A", b"", b"A", b"A=b", b"B=A=", b"AB=c"])),
    st.booleans(),
)
def test_variables_are_those_between_the_ends(pieces: list[bytes], ended: bool) -> None:  # noqa: FBT001
    """The result is the same as by splitting all of it."""
    text = b"\0".join(pieces) + (b"\0" if ended else b"")
    expected: dict[bytes, list[str]] = {b"A": [], b"AB": []}
    for piece in text.split(b"\0"):
        name, _, value = piece.partition(b"=")
        if name in expected and b"=" in piece:
            expected[name].append(value.decode())

    with tempfile.TemporaryDirectory() as home:
        Path(home, "environ").write_bytes(text)
        assert variables(home, [b"A", b"AB"], Work()) == expected


def test_a_crowd_is_not_looked_into(node: Node) -> None:
    """A container with more processes than it may have: the agent reads nothing of them but their groups."""
    for pid in range(CROWD + 50):
        home = node.proc / str(pid)
        home.mkdir()
        (home / "cgroup").write_text(f"0::/{HOSTILE}\n")

    assert node.refused() == "processes"
    assert len(processes_of({HOSTILE}, node.proc)[HOSTILE]) == CROWD + 1


def test_a_group_that_lies_deep_costs_its_own_process_only(node: Node) -> None:
    """A file of groups without an end: that process belongs to no container."""
    sparse(node.process(7) / "cgroup")
    node.process(8)

    assert [one.pid for one in node.look().processes[HOSTILE]] == [8]


def test_a_process_is_of_the_container_whose_group_holds_the_others(tmp_path: Path) -> None:
    """A tenant that may make groups of its own names them after its neighbours' containers."""
    own, others = "a" * 64, ["bcdef012"[number] * 64 for number in range(8)]
    for pid, other in enumerate(others, 100):
        (tmp_path / str(pid)).mkdir()
        group = f"0::/kubepods/cri-containerd-{own}.scope/cri-containerd-{other}.scope\n"
        (tmp_path / str(pid) / "cgroup").write_text(group)

    assert processes_of({own, *others}, tmp_path) == {own: tuple(range(100, 108))}


def test_names_of_groups_cost_few_comparisons(tmp_path: Path) -> None:
    """A container that may create groups can name each one of dashes alone, for each of its processes."""

    class Asked(set[str]):
        count = 0

        def __contains__(self, one: object) -> bool:
            self.count += 1
            return super().__contains__(one)

    wanted = Asked({HONEST})
    group = tmp_path / "cgroup"
    group.write_text("0::/kubepods/" + "/".join(f"{'-' * 200}{n}" for n in range(18)))

    assert container_of(str(group), wanted, Work()) == ""
    assert wanted.count < 200


def test_a_number_that_a_neighbour_took_over_is_not_the_containers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process ends between the list and the look at it, and another tenant's gets its number."""
    node.container(HONEST)
    node.process(7, HONEST)
    taken = node.process(8, HONEST)
    plain = node_scan._looked

    def looked(pids: tuple[int, ...], room: Room, proc: Path, work: Work) -> tuple[Seen, ...]:
        (taken / "cgroup").write_text(f"0::/kubepods/{HOSTILE}\n")
        return plain(pids, room, proc, work)

    monkeypatch.setattr(node_scan, "_looked", looked)

    assert [one.pid for one in node.look().processes[HONEST]] == [7]


# --- files of a container --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sparse", "pipe", "device", "link", "circle", "folder"])
def test_a_list_of_the_loader_may_be_anything(node: Node, kind: str) -> None:
    """It is not the one that was mounted, so limits are not in force; nothing waits or is opened."""
    path = node.process(7) / "root/etc/ld.so.preload"
    match kind:
        case "sparse":
            sparse(path)
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")  # below the root there is none
        case "link":
            path.symlink_to("/proc/self/environ")
        case "circle":
            path.symlink_to("ld.so.preload")
        case _:
            path.mkdir()

    (seen,) = node.look().processes[HOSTILE]
    assert seen.view is not None
    assert seen.view.preload == ""
    assert node.seen.costs[HOSTILE] < MIB


def test_nothing_but_regular_files_is_opened(tmp_path: Path) -> None:
    """Opening a watchdog's file arms it, and opening a pipe lets its writer go on."""
    opened: list[tuple[str, int]] = []
    on = True

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if on and event == "open" and isinstance(arguments[2], int):
            opened.append((str(arguments[0]), arguments[2]))

    root = tmp_path / "root"
    (root / "dev").mkdir(parents=True)
    os.mkfifo(root / "dev/pipe")
    with contextlib.suppress(PermissionError):
        os.mknod(root / "dev/null", 0o600 | 0o020000, os.makedev(1, 3))
    sys.addaudithook(hear)  # there is no taking it away again
    try:
        for name in ("dev/pipe", "dev/null", "/dev/../dev/pipe"):
            assert start((root,), name, 1, Work()) is None
    finally:
        on = False

    assert opened
    # By whatever name: what a descriptor leads to is opened by its number below /proc.
    assert [one for one in opened if not one[1] & os.O_PATH] == []


def test_no_file_of_the_kernel_is_read(tmp_path: Path) -> None:
    """A read can have an effect: `/proc/kmsg` gives each line of the node's log to one reader only."""
    for name in ("/proc/version", "proc/self/status", "/sys/kernel/notes"):
        if not Path("/", name).exists():
            continue
        with (
            pytest.raises(OSError, match="not a regular file"),
            file_below((Path("/"),), name, Work()),
        ):
            pass
    told = {b"LD_PRELOAD": ["/proc/version"], b"LD_AUDIT": [], b"LD_LIBRARY_PATH": []}
    program = os.open("/proc/self/exe", os.O_RDONLY)
    try:
        said = taken_first(Path("/"), told, [], "/ours.so", program, Work())
    finally:
        os.close(program)
    assert said == "by LD_PRELOAD /proc/version, which cannot be read (not a regular file)"
    (tmp_path / "file").write_text("on a disk")
    assert start((tmp_path,), "file", 99, Work()) == b"on a disk"


def test_no_race_leads_out_of_a_root(tmp_path: Path) -> None:
    """A tenant swaps a folder and a link to the host's all the time."""
    root, host = tmp_path / "root", tmp_path / "host"
    (root / "etc").mkdir(parents=True)
    (root / "etc/file").write_bytes(b"inside")
    host.mkdir()
    (host / "file").write_bytes(b"outside")
    (root / "other").symlink_to(host)
    swap = """
import ctypes, sys
libc, (a, b) = ctypes.CDLL(None), (name.encode() for name in sys.argv[1:])
print(libc.renameat2(-100, a, -100, b, 2), flush=True)
while True:
    libc.renameat2(-100, a, -100, b, 2)
"""
    command = [sys.executable, "-c", swap, str(root / "etc"), str(root / "other")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"0\n":
                pytest.skip("this file system does not swap names")
            found: set[bytes | None] = set()
            tries = 0
            while tries < 4000 or b"inside" not in found:  # who swaps may not run all the while
                found.add(start((root,), "etc/file", 9, Work()))
                tries += 1
        finally:
            process.kill()
    assert b"inside" in found
    assert found <= {b"inside", None}


def test_a_maze_of_links_ends(tmp_path: Path) -> None:
    """Links that lead to longer and longer paths, up and down again, in one layer and in many."""
    layers = []
    for number in range(20):
        layer = tmp_path / str(number)
        (layer / "a/b/c").mkdir(parents=True)
        layers.append(layer)
    for number in range(39):
        target = f"/{'a/b/c/../../../' * 250}l{number + 1}"
        (layers[0] / f"l{number}").symlink_to(target)
    (layers[0] / "l39").write_bytes(b"there")

    for root in (layers[:1], layers):
        work = Work()
        with (
            contextlib.suppress(TooMuch),
            contextlib.suppress(OSError),
            file_below(root, "l0", work),
        ):
            pass
        assert work.spent <= LOOK + MIB


def test_names_of_objects_lead_to_bounded_work(tmp_path: Path) -> None:
    """Sixteen names, looked for in thousands of folders."""
    told = {
        b"LD_PRELOAD": [" ".join(f"lib{n}.so" for n in range(16))],
        b"LD_AUDIT": [""],
        b"LD_LIBRARY_PATH": [":".join(f"/a/b/c/{n}" for n in range(5000))],
    }
    (tmp_path / "a/b/c").mkdir(parents=True)
    program = os.open("/proc/self/exe", os.O_RDONLY)
    try:
        with pytest.raises(TooMuch, match="files"):
            taken_first(tmp_path, told, [], "/lib.so", program, Work())
    finally:
        os.close(program)


def test_an_object_may_have_tables_without_an_end(tmp_path: Path) -> None:
    """Each chain of its hash table has as many links as are allowed: all of them are counted."""
    made = tmp_path / "libx.so"
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-Wl,--hash-style=gnu",
        "-x",
        "c",
        "-",
        "-o",
        str(made),
    ]
    try:
        subprocess.run(command, input=b"int f(void) { return 0; }", check=True)
    except FileNotFoundError:
        pytest.skip("gcc is missing")
    descriptor = os.open(made, os.O_RDONLY)
    try:
        work = Work()
        assert defined(OF_DRIVER, descriptor, work) == ""
        spent = work.spent
        with pytest.raises(TooMuch):
            defined(OF_DRIVER, descriptor, Work(spent - 1))
    finally:
        os.close(descriptor)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400))
def test_anything_at_all_is_an_answer(content: bytes) -> None:
    """As mappings, environment, status, list of the loader."""
    import tempfile  # noqa: PLC0415 # a folder for each example

    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        node.container(HOSTILE)
        home = node.process(7)
        for name in ("maps", "environ", "status", "stat", "root/etc/ld.so.preload"):
            (home / name).write_bytes(content)
        assert set(node.look().processes) == {HOSTILE}


def test_an_image_full_of_versions_is_judged_in_little_memory(tmp_path: Path) -> None:
    """A C library that names a million of them; a search path of thousands of folders."""
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libc.so.6").write_bytes(b"\0GLIBC_2.17\0" * 1_400_000)
    tracemalloc.start()
    try:
        found = judge_image((tmp_path,), ("true",), {"PATH": "/bin:" * 100_000})
        assert tracemalloc.get_traced_memory()[1] < 48 * MIB
    finally:
        tracemalloc.stop()
    assert found.loads


def test_an_account_tells_of_the_containers_cards_only(tmp_path: Path) -> None:
    """A tenant takes every place."""
    path = tmp_path / "account"
    make_account(path)
    with path.open("r+b") as file:
        for place in range(1024):
            file.seek(PLACES_AT + place * 576)
            file.write((place + 1 << 42 | 2).to_bytes(8, "little") + b"\xfe" * 568)
    tracemalloc.start()
    try:
        found = read_account(path, 1)
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()
    assert len(found) == 1024
    assert {len(one.cards) for one in found} == {1}
    sparse(path, ACCOUNT_BYTES * 1000)
    with pytest.raises(InvalidDocument):
        read_account(path, 1)


def _enter(path: Path, place: int, pid: int, start: int, holding: bytes = b"") -> None:
    with path.open("r+b") as file:
        file.seek(PLACES_AT + place * 576)
        file.write((pid << 42 | start << 1).to_bytes(8, "little"))
        file.seek(PLACES_AT + place * 576 + 24)
        file.write(holding)


def test_of_an_account_only_processes_that_are_seen_are_kept(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant invents an owner for every place; what that costs counts as work of the look."""
    path = node.rooms[HOSTILE].account
    make_account(path)
    node.process(7)
    idle = node.look().costs[HOSTILE]
    for place in range(1024):
        _enter(path, place, place + 1, 5)
    made, genuine = [], account._process

    def counted(*asked: Any) -> Any:
        made.append(asked)
        return genuine(*asked)

    monkeypatch.setattr(account, "_process", counted)

    seen = node.look()

    assert len(made) == 1
    found = seen.rooms[HOSTILE].account
    assert not isinstance(found, str)
    assert [(one.pid, one.start) for one in found.processes] == [(1, 5)]
    assert seen.costs[HOSTILE] >= idle + 1024 * 576


def test_an_account_is_summed_whether_its_processes_are_seen_or_not(tmp_path: Path) -> None:
    """A process in a time namespace wrote another start. Refused ones are named though they have ended, as many as are shown."""
    path = tmp_path / "account"
    make_account(path)
    words = [0, 10, 20, 30, 40, 1, 2, 3, 4]
    holding = b"".join(word.to_bytes(8, "little") for word in words)
    for place, identity in enumerate([(7, 3), (7, 5), (7, 5), (8, 9), (8, 10), (9, 1)]):
        _enter(path, place, *identity, holding)
    for place in range(100, 200):
        _enter(path, place, place, 1, b"\4" + holding[1:])

    found = account.read_seen(path, 2, [(7, 5), (8, 1)])

    assert [one.place for one in found.processes[:2]] == [1, 3]
    assert len(found.processes) == 2 + 16
    everything = read_account(path, 2)
    for card in range(2):
        mine = [one.cards[card] for one in found.processes]
        every = [one.cards[card] for one in everything]
        assert sum(one.counted for one in mine) + found.counted[card] == sum(
            one.counted for one in every
        )
        assert sum(one.overhead for one in mine) + found.overhead[card] == sum(
            one.overhead for one in every
        )


def test_folders_that_tenants_left_are_not_listed_at_once(tmp_path: Path) -> None:
    """A tenant made thousands in its own; they are moved up, and removed a bounded number at a time."""
    for number in range(20_000):
        (tmp_path / f".partage-gone-{number}").mkdir()
    folders = Folders(str(tmp_path), Path, lambda: 0.0)
    tracemalloc.start()
    try:
        folders.forsake((), ())
        folders.sweep(10)
        assert tracemalloc.get_traced_memory()[1] < MIB // 2
    finally:
        tracemalloc.stop()
    assert folders.pending


# --- threads ---------------------------------------------------------------------------------


def test_a_process_outlives_its_first_thread(tmp_path: Path, node: Node) -> None:
    """It is looked at by another: it has the driver mapped, and not the library."""
    with running("headless", 1, tmp_path) as pid:
        end = time.monotonic() + 240
        while (told := numbers_of(pid, Path("/proc"), Work())) is None or not told.is_over:
            assert time.monotonic() < end
            time.sleep(0.01)
        view = look(pid, "/usr/lib/ours.so")
        node.process(pid, HOSTILE, pid)
        (seen,) = node.look().processes[HOSTILE]

    for one in (view, seen.view):
        assert one is not None
        assert one.uses_card
        assert not one.has_library


def test_open_files_of_a_threads_own_table_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that keeps the driver's device to itself is found by it."""
    monkeypatch.setattr(node_scan, "NVIDIA", replace(NVIDIA, memory=str(tmp_path / "device")))
    with running("aside", 1, tmp_path) as pid:
        if ctypes.CDLL(None).syscall(node_scan._KCMP, pid, pid, 2, 0, 0) != 0:
            pytest.skip("this kernel does not compare tables of open files")
        assert node_scan._seen(
            pid, "/usr/lib/ours.so", None, Path("/proc"), Work()
        ).has_memory_device


def test_a_device_file_below_endless_folders_is_seen(tmp_path: Path) -> None:
    """The kernel shows no path of more than a page."""
    try:
        os.mknod(tmp_path / "zero", stat.S_IFCHR | 0o600, os.makedev(1, 5))
        os.close(os.open(tmp_path / "zero", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"no device files here: {error}")
    with running("buried", 1, tmp_path) as pid:
        cards = node_scan._opened(f"/proc/{pid}", {1: "nvidia"}, Work())

    assert cards == (True, False, True)


def test_a_program_below_endless_folders_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its path nor its content can be read."""

    def fails(path: str, *_: object) -> NoReturn:
        error = errno.ENAMETOOLONG if path.endswith("exe") else errno.ENOENT
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "readlink", fails)
    with pytest.raises(TooMuch, match="programs that cannot be read"):
        node_scan._program(str(tmp_path))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_a_file_system_of_a_tenant_may_answer_with_any_error(
    node: Node, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is no lack of the agent's, which would end the looks at all others, and no process that has ended."""
    (node.process(7) / "root/usr/lib").mkdir(parents=True)
    node.container(HONEST)
    node.process(8, HONEST)
    root, program = node.proc / "7/root", (node.proc / "7/exe").stat().st_ino
    files = {"limits": (1, 2)}
    told = {b"LD_PRELOAD": ["/usr/lib/x.so"], b"LD_AUDIT": [], b"LD_LIBRARY_PATH": []}
    opens, reads = os.open, os.pread

    def opened(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise OSError(number, os.strerror(number), path)
        return opens(path, flags, *more)

    def read(descriptor: int, length: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == program:
            raise OSError(number, os.strerror(number))
        return reads(descriptor, length, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        assert node_scan._hidden(root, "/usr/lib/ours.so", files, Work()) == "limits"
        assert start((root,), "usr/lib/x.so", 1, Work()) is None
        with (node.proc / "8/exe").open("rb") as other:
            said = taken_first(root, told, (), "/usr/lib/ours.so", other.fileno(), Work())
        assert "x.so, which cannot be read" in said
    monkeypatch.setattr(os, "pread", read)
    assert node.refused() == "programs that cannot be read"
    assert [one.pid for one in node.seen.processes[HONEST]] == [8]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_the_agent_lacks_is_no_content_of_an_image(
    node: Node, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An image without a C library runs without limits."""
    root = node.process(7) / "root"

    def fails(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(OSError, match=os.strerror(number)):
        judge_image((root,), ("/bin/program",), {})


# --- others ----------------------------------------------------------------------------------


def test_the_others_are_judged_at_each_look(node: Node) -> None:
    """A container that costs too much is looked at less and less often; it is not in force all the while."""
    node.container(HONEST)
    node.process(8, HONEST)
    home = node.process(7)
    sparse(home / "maps")
    read = []
    for _ in range(80):
        node.look()
        read.append(node.seen.excess[HOSTILE].wait == node.seen.excess[HOSTILE].rest)
        assert [one.pid for one in node.seen.processes[HONEST]] == [8]
        assert HOSTILE in node.seen.excess
    assert sum(read) <= 7
    (home / "maps").write_text(SHOWN)
    for _ in range(40):
        node.look()
    assert [one.pid for one in node.seen.processes[HOSTILE]] == [7]


def test_files_that_do_not_answer_hold_up_nobody_elses_look(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that hangs is given up once, and made again when its files answered; others are judged at each look."""
    stuck, answers = threading.Event(), threading.Event()
    late, honest = ["d" * 64, HOSTILE], node.container(HONEST)
    node.container(late[0])
    for number, container in enumerate((honest, *late)):
        node.process(8 + number, container)
    plain = node_scan._looked

    def looked(pids: tuple[int, ...], room: Room, proc: Path, work: Work) -> tuple[Seen, ...]:
        if room is not node.rooms[HONEST]:
            stuck.set()
            answers.wait(240)
        return plain(pids, room, proc, work)

    def waits(look: Future[tuple[Seen, ...]]) -> bool:
        end = time.monotonic() + 240
        while not wait((look,), 0.005).done:
            assert time.monotonic() < end
            if stuck.is_set():
                stuck.clear()
                return False
        return True

    monkeypatch.setattr(node_scan, "_looked", looked)
    lookers: Lookers[tuple[Seen, ...]] = Lookers(waits)
    before = threading.active_count()
    for _ in range(12):
        node.seen = see(node.rooms, node.proc, node.seen, lookers)
        assert [one.pid for one in node.seen.processes[HONEST]] == [8]
        assert {*node.seen.excess} == {*late}
        assert "do not answer in time" in str(node.seen.excess[HOSTILE])
    assert (
        threading.active_count() <= before + 3
    )  # one for each that does not come back, and one that looks
    answers.set()
    end = time.monotonic() + 240
    while node.seen.excess:
        assert time.monotonic() < end
        node.seen = see(node.rooms, node.proc, node.seen, lookers)
        time.sleep(0.01)
    assert sorted(one.pid for name in late for one in node.seen.processes[name]) == [9, 10]


def test_attempts_without_an_end_leave_others_their_looks() -> None:
    """Each attempt of a container is another one, and each may wait for a file: those of one tenant have a bound."""
    answers = threading.Event()
    lookers: Lookers[str] = Lookers(lambda look: bool(wait((look,), 0.01 if busy else 240).done))
    before, given_up = threading.active_count(), 0
    busy = True
    for number in range(100):
        with pytest.raises(TooMuch):
            lookers.look(f"{number}", lambda: str(answers.wait(240)), "hostile")
        given_up = threading.active_count() - before

    busy = False
    assert lookers.look("honest", lambda: "seen", "honest") == "seen"

    assert given_up <= 33
    answers.set()


def test_nobody_is_blamed_for_files_of_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tenants of many namespaces have all looks wait, the others' state is that of the last look, or unknown."""
    node.process(8, node.container(HONEST))
    lookers: Lookers[tuple[Seen, ...]] = Lookers()
    monkeypatch.setattr("partage.agent.isolation.lookers._MOST", 1)
    first = see(node.rooms, node.proc, None, lookers)
    answers = threading.Event()
    lookers._waits = lambda _look: False
    with pytest.raises(TooMuch):
        lookers.look("stuck", lambda: (answers.wait(240), ())[1], "hostile")

    again = see(node.rooms, node.proc, first, lookers)
    anew = see(node.rooms, node.proc, None, lookers)

    answers.set()
    assert again.processes == first.processes
    assert not again.excess
    assert not anew.excess
    assert anew.unseen == {HONEST}


def test_looks_that_take_long_are_few() -> None:
    """While others wait, a tenant's looks have a time limit together; time that passes restores it."""
    now = 0.0

    def slow() -> str:
        nonlocal now
        now += 0.4
        return "seen"

    def looks(tenant: str) -> int:
        for number in range(200):
            try:
                lookers.look(f"{now}", slow, tenant)
            except TooMuch:
                return number
        return 200

    lookers: Lookers[str] = Lookers(credit=4.0, clock=lambda: now)
    first, second = looks("hostile"), looks("honest")
    now += 12.0
    assert 8 < first == second < 13
    assert 0 < looks("hostile") < first


def test_what_a_look_raises_is_raised() -> None:
    """A fault is no late answer."""
    with pytest.raises(KeyError, match="ours"):
        Lookers[None]().look("a", lambda: {}["ours"])


def test_many_who_cost_nearly_too_much_share_a_bound(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All together take no more than a look has; each has its turn, and what was seen of it counts until then."""
    monkeypatch.setattr(node_scan, "_ALL", 2 * MIB)
    names = [f"{number:064}" for number in range(12)]
    for number, name in enumerate(names):
        node.container(name)
        (node.process(100 + number, name) / "maps").write_text(SHOWN * 10_000)
    node.container(HONEST)
    node.process(8, HONEST)
    fresh: set[str] = set()
    before = Sight()
    for _ in range(12):
        seen = node.look()
        done = {one for one in names if seen.processes.get(one) is not before.processes.get(one)}
        assert seen.unseen == set(names) - seen.processes.keys()  # and not without a process
        spent = sum(seen.costs[one] for one in done)
        assert spent <= 2 * MIB + MIB
        assert [one.pid for one in seen.processes[HONEST]] == [8]
        fresh |= {one for one in done if seen.processes[one]}
        before = seen
    assert fresh == set(names)


def test_it_is_said_once_and_in_the_same_words(node: Node) -> None:
    """The container is not in force, with a cause of its own; the words do not change while it lasts."""
    home = node.process(7)
    sparse(home / "maps")
    entry = Entry(HOSTILE, "u", "team/web", "main", "{}", "partage")
    said = set()
    for _ in range(6):
        (one,) = survey({HOSTILE: entry}, node.rooms, node.look())
        said.add((one.answer, one.cause, one.message))
    assert said == {
        (
            Answer.NO,
            Cause.EXCESS.value,
            "its processes have more mappings than one look can go through, so what they do is unknown",
        )
    }
