"""What was written down is there whatever the disk does; what was lost is written down again, or closes cards."""

import dataclasses
import errno
import fcntl
import gc
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.agent import journal as journal_module
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.isolation.container_dirs import Rooms
from partage.agent.isolation.providers import Isolation, NoIsolation, OwnLibrary, Provider
from partage.agent.journal import Entry, Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Container, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.agent.seal import sealed, unsealed
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import encode

GIB = 2**30
NODE = Node(
    "n1",
    devices=tuple(
        model.Device(DeviceType.GPU, minor, f"GPU-{minor}", vendor="nvidia", memory_bytes=16 * GIB)
        for minor in range(2)
    ),
)
SHARE = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, 4 * GIB, GrantMode.SHARE, protocol="qgpu")
WHOLE = msgspec.structs.replace(
    SHARE, mode=GrantMode.WHOLE, core_milli=1000, memory_bytes=16 * GIB
)


def entry(container: str) -> Entry:
    """An entry of a container that needs no pod."""
    return Entry(container, "u", "team/p", "main", "a record")


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str, calls: int = 0) -> Iterator[None]:
    """A call to the system that fails after so many, as a full or broken disk lets it."""
    genuine, left = getattr(os, name), calls

    def call(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return genuine(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, call)
        yield


_HOLD = """
import sys
from pathlib import Path
from partage.agent.journal import Journal
journal = Journal(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


# --- the file --------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", range(3), ids=lambda calls: f"after {calls} flushes")
def test_what_is_given_after_a_failed_rewrite_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The file is rewritten and the disk fails at any flush: later lines do not go to a file without a name."""
    journal = Journal(tmp_path)
    journal.give(entry("c1"))
    journal.give(entry("c2"))

    with failing(monkeypatch, "fsync", calls):
        try:
            journal.keep({"c2"})
            failed = False
        except OSError:
            failed = True
    journal.give(entry("c3"))

    assert failed == (calls < 2)
    assert set(Journal(tmp_path).entries) - {"c1"} == {"c2", "c3"}
    assert list(journal.entries) == ["c2", "c3"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    image, mounted = tmp_path / "image", tmp_path / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(40 << 20)
    if not _run("mkfs.ext4", "-q", image) or not _run("mount", "-o", "loop", image, mounted):
        pytest.skip("no images can be mounted here")
    yield mounted
    assert _run("umount", mounted)


def _run(program: str, *given: str | Path) -> bool:
    found = shutil.which(program)
    return found is not None and not subprocess.run([found, *given], check=False).returncode


def test_a_file_system_that_failed_is_written_to_once_it_is_mounted_again(disk: Path) -> None:
    """Nothing of it stays open, and the one lock is of the file system that is there."""
    journal = Journal(disk / "agent")
    journal.give(entry("c1"))
    folder = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(folder, 0x8004587D, struct.pack("I", 2))  # it is shut down
    os.close(folder)
    for name in ("c2", "c3"):
        with pytest.raises(OSError, match="Input/output error"):
            journal.give(entry(name))

    assert _run("umount", disk)
    _run("fsck.ext4", "-y", disk.with_name("image"))
    assert _run("mount", "-o", "loop", disk.with_name("image"), disk)
    journal.give(entry("c4"))
    second = subprocess.run(
        [sys.executable, "-c", _HOLD, disk / "agent"], capture_output=True, text=True, check=False
    )
    journal.close()

    assert "another agent uses it" in second.stderr
    again = Journal(disk / "agent")
    again.close()
    assert list(again.entries) == ["c1", "c4"]


def test_half_a_line_that_cannot_be_cut_off_swallows_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes half a line and then fails, even to cut it off: the journal cuts it off before the next line."""
    journal, genuine = Journal(tmp_path), os.write
    journal.give(entry("c1"))

    with failing(monkeypatch, "ftruncate"), monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: genuine(file, data[: len(data) // 2]))
        with failing(patch, "write", 1), pytest.raises(OSError, match="No space"):
            journal.give(entry("c2"))
    journal.give(entry("c3"))

    again = Journal(tmp_path)
    assert again.damaged == 0
    assert list(again.entries) == ["c1", "c3"]


def test_the_file_does_not_grow_with_the_containers_that_were(tmp_path: Path) -> None:
    """Thousands come and go while two stay: the file stays within its bound, and holds those two."""
    journal = Journal(tmp_path, spare=4000)
    journal.give(entry("old"))
    sizes = []
    for number in range(500):
        journal.give(entry(f"c{number}"))
        journal.end(f"c{number}")
        sizes.append((tmp_path / "containers.jsonl").stat().st_size)
    journal.give(entry("new"))

    assert max(sizes) < 5000
    assert list(Journal(tmp_path).entries) == ["old", "new"]


def test_a_full_disk_at_the_rewrite_forgets_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal writes what has ended before it rewrites the file; a failed rewrite has no effect on it."""
    journal = Journal(tmp_path, spare=0)
    journal.give(entry("stays"))
    journal.give(entry("goes"))

    with failing(monkeypatch, "fsync", 1):
        journal.end("goes")

    assert list(Journal(tmp_path).entries) == ["stays"]


def test_a_second_agent_is_told_of_the_first(tmp_path: Path) -> None:
    """Two agents would overwrite each other's lines; a first one that was killed is no hindrance."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        with pytest.raises(InvalidDocument, match="another agent uses it"):
            Journal(tmp_path)
        first.kill()
        first.wait()
        Journal(tmp_path).close()


def test_what_is_written_after_the_end_is_an_error(tmp_path: Path) -> None:
    """Never a line in whatever file has the number by then."""
    journal = Journal(tmp_path / "journal")
    journal.close()
    with (tmp_path / "other").open("w") as other:
        with pytest.raises(OSError, match="Bad file descriptor"):
            journal.give(entry("c1"))

        assert os.fstat(other.fileno()).st_size == 0
    journal.close()


# --- the keeper ------------------------------------------------------------------------------


def pod_of(name: str, grant: Grant = SHARE, record: str = "") -> PodSandbox:
    """A pod with a grant."""
    text = record or encode(Allocation(f"uid-{name}", "team", name, "n1", (grant,)))
    return PodSandbox(
        f"s-{name}", name, f"uid-{name}", "team", annotations={names.ALLOCATION: text}
    )


def container_of(name: str, served: str = "") -> Container:
    """Its container, as the runtime describes it."""
    said = {names.SERVED: served} if served else {}
    return Container(f"c-{name}", f"s-{name}", "main", annotations=said)


class World:
    """A node whose agents start and end."""

    def __init__(self, folder: Path, provider: Provider) -> None:
        self.folder, self.provider = folder, provider
        (folder / "host/dev").mkdir(parents=True)
        for minor in range(2):
            (folder / f"host/dev/nvidia{minor}").symlink_to("/dev/null")
        boot = folder / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("one\n")
        (folder / "built.so").write_bytes(b"the library")

    def agent(self) -> Keeper:
        """One that starts."""
        facts = HostFacts(lambda _pod, _card, _mig: Instance(), provider=self.provider)
        place = Place(NODE, Settings(), FAMILIES, facts)
        own = isinstance(self.provider, OwnLibrary)
        rooms = Rooms(self.folder / "built.so", self.folder / "host/state", "/state", self.folder)
        return Keeper(
            lambda: place,
            Host(self.folder / "host"),
            Journal(self.folder / "journal"),
            Tallies(),
            Isolation(rooms) if own else None,
        )

    @property
    def file(self) -> Path:
        """The journal's."""
        return self.folder / "journal/containers.jsonl"


def test_no_pod_says_that_it_was_served(tmp_path: Path) -> None:
    """The agent was away, and the runtime gives containers their pod's annotations."""
    world = World(tmp_path, OwnLibrary(compute=True))
    keeper = world.agent()
    pod = pod_of("a")
    said = dataclasses.replace(pod, annotations={**pod.annotations, names.SERVED: "partage"})

    keeper.synchronize((said,), (container_of("a", "partage"),))

    assert "while the agent was away" in str(keeper.unprotected["c-a"].why)
    assert list(keeper.journal.entries) == []
    assert list(keeper.books.held) == ["c-a"]


def test_a_served_container_that_the_journal_lost_is_written_down_again(tmp_path: Path) -> None:
    """The runtime has it as served and its pod has the record: it is no stranger, and keeps its room."""
    world = World(tmp_path, OwnLibrary(compute=True))
    world.agent().create(pod_of("a"), container_of("a"))
    world.file.unlink()
    again = world.agent()

    again.synchronize((pod_of("a"),), (container_of("a", "partage"),))

    assert again.unprotected == {}
    assert list(again.journal.entries) == list(again.rooms) == ["c-a"]
    assert again.journal.entries["c-a"].limits == "partage"
    assert list(world.agent().books.held) == ["c-a"]


def test_a_room_under_another_name_is_found_again(tmp_path: Path) -> None:
    """Behind the proxy a room bears the name from before the container had an identity."""
    world = World(tmp_path, OwnLibrary(compute=True))
    before = world.agent()
    before.create(pod_of("a"), Container("cri-s-a-main-0", "s-a", "main"))
    before.rename("cri-s-a-main-0", "c-a")
    world.file.unlink()
    again = world.agent()

    again.rename("cri-s-a-main-0", "c-a")
    again.synchronize((pod_of("a"),), (container_of("a", "partage"),))

    assert list(again.rooms) == ["c-a"]
    assert again.rooms["c-a"].folder.is_dir()


def test_without_a_record_nothing_is_made_up(tmp_path: Path) -> None:
    """A container that claims to be served while its pod has no record of this node stays a stranger."""
    world = World(tmp_path, NoIsolation())
    agent = world.agent()

    agent.synchronize((pod_of("a", record="{}"),), (container_of("a", "none"),))

    assert list(agent.unprotected) == ["c-a"]
    assert agent.journal.entries == {}


def test_a_repair_that_cannot_be_written_holds_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the container is known, its card is not free, and the runtime is answered."""
    world = World(tmp_path, NoIsolation())
    agent = world.agent()

    with failing(monkeypatch, "write"):
        agent.synchronize((pod_of("a", WHOLE),), (container_of("a", "whole"),))

    assert agent.unprotected == {}
    with pytest.raises(Refused, match="CardFull"):
        agent.create(pod_of("b"), container_of("b"))


def test_a_full_disk_at_the_rename_leaves_the_card_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two lines cannot be written, the next look finds the container and holds its card."""
    for calls in (0, 1):
        world = World(tmp_path / str(calls), NoIsolation())
        agent = world.agent()
        agent.create(pod_of("a", WHOLE), Container("before", "s-a", "main"))
        with failing(monkeypatch, "write", calls), pytest.raises(OSError, match="No space"):
            agent.rename("before", "c-a")

        agent.rename("before", "c-a")
        agent.synchronize((pod_of("a", WHOLE),), (container_of("a", "whole"),))

        assert list(agent.books.held) == ["c-a"]
        assert "c-a" in world.agent().books.held
        with pytest.raises(Refused, match="CardFull"):
            agent.create(pod_of("b"), container_of("b"))


def test_what_cannot_be_read_of_the_journal_closes_the_cards(tmp_path: Path) -> None:
    """An agent older than the writer: no other container gets a card until that container has ended."""
    world = World(tmp_path, NoIsolation())
    world.agent().create(pod_of("a"), container_of("a"))
    lines = [unsealed(line) for line in world.file.read_bytes().splitlines()]
    later = [line.replace(rb"{\"v\":1", rb"{\"v\":9") for line in lines]
    world.file.write_bytes(b"".join(sealed(line) + b"\n" for line in later))
    agent = world.agent()
    agent.synchronize((pod_of("a"), pod_of("b")), (container_of("a", "none"),))
    other = msgspec.structs.replace(SHARE, minor=1, uuid="GPU-1")

    with pytest.raises(Refused, match=r"team/a, container main.*UnknownHeld"):
        agent.create(pod_of("b", other), container_of("b"))
    stranger = dataclasses.replace(pod_of("d", other), namespace="else")
    with pytest.raises(Refused, match=r"UnknownHeld") as told:
        agent.create(stranger, container_of("d"))
    assert "team/a" not in str(told.value), "it is of another namespace"
    plain = agent.create(PodSandbox("s-c", "c", "u-c", "team"), container_of("c"))
    assert plain is not None
    assert [(one.key, one.value) for one in plain.env] == [("NVIDIA_VISIBLE_DEVICES", "void")]
    agent.remove(container_of("a"))

    assert agent.create(pod_of("b", other), container_of("b")) is not None


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(msgspec.structs.replace(SHARE, memory_bytes=8 * GIB), id="more"),
        pytest.param(msgspec.structs.replace(SHARE, minor=1, uuid="GPU-1"), id="another card"),
        pytest.param(None, id="gone"),
    ],
)
def test_a_record_that_changed_while_its_pod_lives_is_refused(
    tmp_path: Path, record: Grant | None
) -> None:
    """The journal counts by the record that was bound: a further container of the pod cannot widen it."""
    agent = World(tmp_path, NoIsolation()).agent()
    agent.create(pod_of("a"), container_of("a"))
    changed = PodSandbox("s-a", "a", "uid-a", "team") if record is None else pod_of("a", record)

    with pytest.raises(Refused, match="RecordChanged"):
        agent.create(changed, Container("c-a-1", "s-a", "main"))
    assert list(agent.books.held) == ["c-a"]
    assert agent.create(pod_of("a"), Container("c-a-2", "s-a", "main")) is not None


def test_names_of_any_bytes_are_refused_in_words(tmp_path: Path) -> None:
    """What cannot be written down is not given, and ends no look at what runs."""
    agent = World(tmp_path, OwnLibrary(compute=True)).agent()
    odd = Container("c-\udcef", "s-a", "main")

    with pytest.raises(Refused, match=r"pod team/a, container main.*\(Host\)"):
        agent.create(pod_of("a"), odd)
    served = dataclasses.replace(odd, annotations={names.SERVED: "partage"})
    agent.synchronize((pod_of("a"),), (served, container_of("b")))
    assert agent.create(pod_of("c"), container_of("c")) is not None


def test_starts_leave_nothing_behind(tmp_path: Path) -> None:
    """No file, no byte and no descriptor stays, however often an agent is started over the same state."""
    world = World(tmp_path, OwnLibrary(compute=True))
    first = world.agent()
    first.create(pod_of("a"), container_of("a"))
    first.journal.close()
    seen = set()
    gc.collect()
    gc.freeze()  # what other tests left is not searched fifty times
    for _ in range(50):
        agent = world.agent()
        agent.synchronize((pod_of("a"),), (container_of("a", "partage"),))
        assert list(agent.books.held) == list(agent.rooms) == ["c-a"]
        agent.journal.close()
        del agent
        gc.collect()
        files = tuple(sorted(tmp_path.rglob("*")))
        sizes = sum(path.stat().st_size for path in files if path.is_file())
        seen.add((files, sizes, len(os.listdir("/proc/self/fd"))))  # noqa: PTH208 # of a process
    assert len(seen) == 1


# --- pods of many containers -----------------------------------------------------------------


def _version(file: Path) -> int:
    version = msgspec.json.decode(unsealed(file.read_bytes().splitlines()[0]))["v"]
    assert isinstance(version, int)
    return version


def test_a_pod_of_many_containers_has_its_record_in_the_file_and_in_memory_once(
    tmp_path: Path,
) -> None:
    """512 containers and a record of 64 of them: 6 MB for a pod, 70 for a node, and four times as much at each start."""
    file = tmp_path / "containers.jsonl"
    journal = Journal(tmp_path)
    for number in range(512):
        record = "".join(["r"] * 12_000)  # of a message of its own
        journal.give(Entry(f"c{number}", "u", "team/p", f"c{number}", record))
        if number == 50:
            assert _version(file) == 1, "an earlier release reads it"

    assert _version(file) == 3
    assert file.stat().st_size < 200_000
    journal.close()
    again = Journal(tmp_path)
    assert again.entries == journal.entries
    for one in (journal, again):
        assert len({id(entry.record) for entry in one.entries.values()}) == 1
    again.keep({f"c{number}" for number in range(40, 100)})
    assert _version(file) == 1
    again.close()
    assert list(Journal(tmp_path).entries) == [f"c{number}" for number in range(40, 100)]


_PODS = st.integers(0, 2)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), _PODS, st.integers(0, 9), st.integers(0, 1)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("rename"), st.integers(0, 9), st.integers(10, 14)),
        st.tuples(st.just("adjust"), _PODS),
        st.tuples(st.just("keep"), st.sets(st.integers(0, 14))),
        st.tuples(st.just("open")),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(_STEPS, st.sampled_from([-1, 3, 20, 1 << 20]))
def test_shared_records_are_those_that_were_given(steps: list[Any], long: int) -> None:
    """Whatever is given, ended, renamed and changed, and wherever the agent starts again."""
    with TemporaryDirectory() as folder, patch.object(journal_module, "_LONG_BYTES", long):
        journal, there = Journal(Path(folder)), dict[str, Entry]()
        for what, *given_ in steps:
            if what == "give":
                pod, number, record = given_
                one = Entry(f"c{number}", f"u{pod}", "team/p", "main", f"record {record}")
                journal.give(one)
                there[one.container] = one
            elif what == "end":
                journal.end(f"c{given_[0]}")
                there.pop(f"c{given_[0]}", None)
            elif what == "rename" and f"c{given_[0]}" in there:
                before, after = f"c{given_[0]}", f"c{given_[1]}"
                one = there.pop(before)
                there[after] = msgspec.structs.replace(one, container=after)
                journal.give(there[after])
                journal.end(before)
            elif what == "adjust":
                journal.adjust(f"u{given_[0]}", "changed")
                for key, one in there.items():
                    if one.uid == f"u{given_[0]}":
                        there[key] = msgspec.structs.replace(one, record="changed")
            elif what == "keep":
                kept = {f"c{number}" for number in given_[0]}
                journal.keep(kept)
                there = {key: one for key, one in there.items() if key in kept}
            elif what == "open":
                journal.close()
                journal = Journal(Path(folder))
            assert journal.entries == there
        journal.close()
        again = Journal(Path(folder))
        assert (again.entries, again.damaged) == (there, 0)
        again.close()


def test_a_line_whose_record_a_disk_took_closes_the_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of another container had it: what this one holds is unknown, and nothing counts as free."""
    monkeypatch.setattr(journal_module, "_LONG_BYTES", 0)
    world = World(tmp_path, NoIsolation())
    agent = world.agent()
    two = container_of("a2")
    agent.create(pod_of("a"), container_of("a"))
    agent.create(pod_of("a"), two)
    lines = world.file.read_bytes().splitlines(keepends=True)
    assert b'"like":"' in lines[-1]
    lines[-2] = lines[-2].replace(b"GPU-0", b"GPU-9")
    world.file.write_bytes(b"".join(lines))
    agent = world.agent()
    other = msgspec.structs.replace(SHARE, minor=1, uuid="GPU-1")

    assert agent.journal.damaged == 1
    with pytest.raises(Refused, match="UnknownHeld"):
        agent.create(pod_of("b", other), container_of("b"))
