"""Every byte of every file that the agent reads back may be another one: it says so, goes on, and gives nothing twice."""

import errno
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_the_journal_is_trusted_and_mended import SHARE, World, container_of, entry, pod_of

from partage.agent.container_admission import Keeper
from partage.agent.differences import read_findings, write_findings
from partage.agent.discovery.found import Roots
from partage.agent.dra.allocated import Allocated, Part
from partage.agent.dra.prepared import Claims
from partage.agent.isolation.node_scan import see
from partage.agent.isolation.providers import OwnLibrary
from partage.agent.journal import Entry as Given
from partage.agent.journal import Journal
from partage.agent.mig.cdi import Specs
from partage.agent.mig.journal import CardJournal, Entry, FileJournals, Stage
from partage.agent.nri.plugin import Refused
from partage.agent.seal import sealed, unsealed
from partage.daemon.discovering import DiscoveryOptions, NodeDiscovery
from partage.model.allocation import Allocation
from partage.model.errors import InvalidDocument, InvalidRecord
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.vendors import names

Body = dict[str, Any]
MASKS = (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80)


def changed(data: bytes, masks: tuple[int, ...] = MASKS) -> Iterator[bytes]:
    """Each byte with other bits, each length, each line twice, gone, or in the place of the next one."""
    for at in range(len(data)):
        for mask in masks:
            yield data[:at] + bytes((data[at] ^ mask,)) + data[at + 1 :]
    for length in range(len(data)):
        yield data[:length]
    lines = data.splitlines(keepends=True)
    for at in range(len(lines)):
        yield b"".join((*lines[: at + 1], *lines[at:]))
        yield b"".join((*lines[:at], *lines[at + 1 :]))
        yield b"".join((*lines[:at], *lines[at + 1 : at + 2], lines[at], *lines[at + 2 :]))


@given(st.binary(max_size=200).map(lambda text: text + b"}"), st.data())
def test_a_seal_is_broken_by_any_change(text: bytes, data: st.DataObject) -> None:
    """What a reader takes for the document is it, or nothing."""
    whole = sealed(text)
    assert unsealed(whole) == text
    assert unsealed(text) == text
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = whole[:at] + bytes((whole[at] ^ data.draw(st.sampled_from(MASKS)),)) + whole[at + 1 :]
    try:
        found = unsealed(broken)
    except InvalidDocument:
        return
    # The last sign is none any more, so all of it is the document: such is no JSON.
    assert found == broken
    assert at == len(whole) - 1


def test_the_journal_says_what_was_written_or_that_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No change makes an entry of what was never written, or stops the agent."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    journal = Journal(tmp_path)
    journal.give(entry("a"))
    journal.give(_given("b"))
    journal.adjust("u", "adjusted")
    journal.give(_given("c"))
    journal.close()
    path = tmp_path / "containers.jsonl"
    written, known = path.read_bytes(), dict(journal.entries)

    for text in changed(written):
        path.write_bytes(text)
        again = Journal(tmp_path)
        again.close()
        assert again.entries.items() <= known.items()
        assert again.adjusted.items() <= {"u": "adjusted"}.items()


def _given(container: str) -> Given:
    """An entry of another pod."""
    return msgspec.structs.replace(
        entry(container), record=f"of {container}", uid=f"u-{container}"
    )


class TwoRun(World):
    """A node with two containers that run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, OwnLibrary(compute=True))
        first = self.agent()
        for name in ("a", "b"):
            first.create(pod_of(name), container_of(name))
        first.journal.close()
        self.slots = {key: room.limits.cards[0].slot for key, room in first.rooms.items()}

    def next(self) -> Keeper:
        """An agent that starts, and receives what runs."""
        keeper = self.agent()
        there = (container_of("a", "partage"), container_of("b", "partage"))
        keeper.synchronize((pod_of("a"), pod_of("b")), there)
        return keeper


def _gives_nothing_away(world: TwoRun, text: str) -> None:
    keeper = world.next()
    try:
        assert set(keeper.books.held) == {"c-a", "c-b"}, text
        for grant in (
            msgspec.structs.replace(SHARE, core_milli=401, memory_bytes=1),
            msgspec.structs.replace(SHARE, core_milli=1, memory_bytes=9 * 2**30),
        ):
            with pytest.raises(Refused, match=r"CardFull|UnknownHeld"):
                keeper.create(pod_of("late", grant), container_of("late"))
        keeper.create(pod_of("c"), container_of("c"))
        slot = keeper.rooms["c-c"].limits.cards[0].slot
        assert slot not in world.slots.values(), text
        assert keeper.isolation is not None
        keeper.isolation.rooms.mend()
        see(keeper.rooms)
        keeper.remove(container_of("c"))
    finally:
        keeper.journal.close()


@pytest.mark.long(60)
@pytest.mark.parametrize(
    "file",
    [
        "journal/containers.jsonl",
        "host/state/containers/c-a/limits",
        "host/state/containers/c-a/digest",
        "host/state/containers/c-b/amounts",
        "host/state/containers/c-b/preload",
        "host/state/boot",
        "host/state/boot.2",
        "host/state/private/c-a/account",
        "host/state/seats/GPU-0/seat-0",
        "host/state/seats/GPU-0/terms",
    ],
)
def test_nothing_counts_as_free_for_a_byte(tmp_path: Path, file: str) -> None:
    """Cards, memory and seats of running containers stay taken, whichever file has changed when an agent starts."""
    world = TwoRun(tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if _plain(path)}
    path = tmp_path / file
    data = kept[path]
    tries = list(changed(data[:1024], (0x01, 0x04, 0x80)))
    chosen = random.Random(7).sample(tries, min(len(tries), 60))  # noqa: S311 # of tests

    for text in chosen:
        _as_kept(tmp_path, kept)
        _written(path, text + data[1024:] if len(data) > 1024 else text)
        _gives_nothing_away(world, f"{file}: {text!r}")


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _written(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode if path.exists() else 0o644
    path.touch()
    path.chmod(0o644)
    path.write_bytes(text)
    path.chmod(mode & 0o7777)


def _as_kept(folder: Path, kept: dict[Path, bytes]) -> None:
    for path in folder.rglob("*"):
        if _plain(path) and path not in kept:
            path.unlink()
    for path, data in kept.items():
        if not path.exists() or path.read_bytes() != data:
            _written(path, data)


@contextmanager
def _words(error: type[Exception], path: Path) -> Iterator[None]:
    """It may be refused, in words that name the file."""
    told = ""
    try:
        yield
    except error as refused:
        told = str(refused)
    assert not told or str(path) in told


def test_the_journal_of_a_card_is_what_was_written_or_refused(tmp_path: Path) -> None:
    """Another digit of an instance's number would end an instance of others."""
    journals, specs = FileJournals(tmp_path), Specs(tmp_path)
    slice_ = MigSlice("1g.10gb", 3, 1)
    mine = Entry(slice_, "uid-1", Stage.READY, "boot/7", 4, 0, "MIG-1")
    known = CardJournal("GPU-0", (mine,))
    journals.save(known)
    path = journals.path("GPU-0")
    written = path.read_bytes()

    for text in changed(written):
        path.write_bytes(text)
        with _words(InvalidRecord, path):
            assert journals.load("GPU-0") == known
    path.unlink()
    assert journals.load("GPU-0") == CardJournal("GPU-0")
    assert specs.present("GPU-0") == ()


def test_a_prepared_claim_is_what_was_written_or_closes_the_node(tmp_path: Path) -> None:
    """Another digit of its record would free what its containers have."""
    uid = "3f1f1c6e-0000-4000-8000-000000000001"
    held = Allocation(uid, "team", "half", "n", (SHARE,))
    folders = tmp_path / "claims", tmp_path / "cdi", "n", lambda: "token"
    first = Claims(*folders)
    first.put(Allocated((Part("r", "n", "gpu-0"),), held))
    path = tmp_path / "claims" / f"{uid}.json"
    written = path.read_bytes()

    for text in changed(written, (0x01, 0x04, 0x80)):
        path.write_bytes(text)
        again = Claims(*folders)
        assert again.closed() or again.prepared == first.prepared, text
    path.write_bytes(unsealed(written))  # an older agent's
    assert Claims(*folders).allocations == [held]


@pytest.mark.parametrize("closed", ["claims", "cdi"])
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the devices of prepared claims would be free, and instances would lose their specifications."""

    def denied(listed: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".") -> Any:
            if Path(path) == tmp_path / closed:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return listed(path)

        return call

    held = Allocation("uid-1", "team", "half", "n", (SHARE,))
    folders = tmp_path / "claims", tmp_path / "cdi", "n", lambda: "token"
    Claims(*folders).put(Allocated((Part("r", "n", "gpu-0"),), held))
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, denied(getattr(os, name)))

    with pytest.raises(PermissionError):
        Claims(*folders)
    with pytest.raises(PermissionError):
        Specs(tmp_path / closed).present("GPU-0")


def test_specifications_may_hold_anything(tmp_path: Path) -> None:
    """A specification of an instance belongs to another one, or the error names the file; the agent rewrites it."""
    specs = Specs(tmp_path)
    node = {"path": "/dev/nvidia0", "major": 195, "minor": 0}
    device = {"name": "MIG-1", "containerEdits": {"deviceNodes": [node]}}
    document = {"cdiVersion": "0.3.0", "kind": "partage.io/mig", "devices": [device]}
    specs.write("GPU-0", 0, json.dumps(document).encode())
    path = specs.path("GPU-0", 0)
    written = path.read_bytes()
    for text in changed(written, (0x01, 0x80)):
        path.write_bytes(text)
        specs.present("GPU-0")
        with _words(InvalidDocument, path):
            specs.nodes("GPU-0", 0, "MIG-1")


def test_findings_may_hold_anything(tmp_path: Path) -> None:
    """`partage doctor` names the file."""
    write_findings(tmp_path, [], "2026-01-01T00:00:00Z")
    path = tmp_path / "findings.json"
    for text in changed(path.read_bytes()):
        path.write_bytes(text)
        with _words(InvalidDocument, path):
            read_findings(path)


@pytest.fixture
def kept(tmp_path: Path) -> tuple[DiscoveryOptions, Body]:
    """A node with a card, and what was last known of it."""
    hardware = tmp_path / "devices.yaml"
    hardware.write_text("{model: Tesla-T4, cards: 1}")
    options = DiscoveryOptions(Roots(simulated=hardware), (), kept=tmp_path)
    NodeDiscovery("n1", options, lambda _node: None, None)
    known: Body = json.loads((tmp_path / "node.json").read_bytes())
    known["node"]["metadata"]["labels"] = {names.QGPU_POLICY: "fixed-share"}
    return options, known


def _started(options: DiscoveryOptions, text: bytes) -> Node:
    taken: list[Node] = []
    (options.kept / "node.json").write_bytes(text)
    NodeDiscovery("n1", options, taken.append, None)
    (one,) = taken
    return one


def test_what_was_last_known_of_the_node_may_be_anything(
    kept: tuple[DiscoveryOptions, Body],
) -> None:
    """It is what was written, or as if there were none."""
    options, known = kept
    written = sealed(json.dumps(known).encode())
    usual, without = _started(options, written), _started(options, b"")
    assert usual != without

    for text in random.Random(3).sample(list(changed(written)), 400):  # noqa: S311 # of tests
        assert _started(options, text) in (usual, without), text


def test_what_an_older_agent_knew_may_have_any_shape(kept: tuple[DiscoveryOptions, Body]) -> None:
    """It has no check; the agent starts whatever stands there."""
    options, known = kept
    devices = _started(options, b"").devices
    for odd in _odd(known):
        found = _started(options, json.dumps(odd).encode())
        assert [one.uuid for one in found.devices] == [one.uuid for one in devices]


def _odd(value: Any) -> Iterator[Any]:
    """The same with each part replaced by something of another kind."""
    yield from (None, 1, "x", [], {}, [None], [[]], {"metadata": 1}, 1e400)
    parts: Any = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else parts:
        for one in _odd(part):
            copy = value.copy()
            copy[key] = one
            yield copy
