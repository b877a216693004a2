"""Amounts that were changed while a pod runs: kept for as long as the pod, and refused by an agent that does not know them."""

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from test_the_journal_is_trusted_and_mended import (
    SHARE,
    World,
    container_of,
    entry,
    failing,
    pod_of,
)

from partage.agent.isolation.providers import OwnLibrary
from partage.agent.journal import Entry, Journal

PATH = "journal/containers.jsonl"


def first_line(folder: Path) -> dict[str, int]:
    """The version that the file says."""
    line = (folder / PATH).read_bytes().splitlines()[0]
    found: dict[str, int] = msgspec.json.decode(line)
    return found


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that does not finish the next flush before the end of this; the event is set when it is reached."""
    genuine, reached, go = os.fsync, threading.Event(), threading.Event()

    def fsync(descriptor: int) -> None:
        if not reached.is_set():
            reached.set()
            assert go.wait(240)
        genuine(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        try:
            yield reached
        finally:
            go.set()


def reopened(folder: Path) -> Journal:
    """The journal as the next agent reads it."""
    return Journal(folder / "journal")


def test_a_pods_amounts_stay_when_its_container_is_gone(tmp_path: Path) -> None:
    """The next one of the pod gets them; once the pod is gone the file is as any agent reads it."""
    journal = reopened(tmp_path)
    journal.give(entry("a"))
    assert first_line(tmp_path) == {"v": 1}
    journal.adjust("u", "another record")
    journal.end("a")
    journal.close()

    journal = reopened(tmp_path)
    assert journal.adjusted == {"u": "another record"}
    assert journal.entries == {}
    assert first_line(tmp_path) == {"v": 2}
    journal.pods({"u"})
    assert journal.adjusted
    journal.pods({"others"})
    journal.close()

    assert first_line(tmp_path) == {"v": 1}
    journal = reopened(tmp_path)
    assert journal.adjusted == {}
    journal.close()


def test_containers_of_the_pod_have_the_same_amounts(tmp_path: Path) -> None:
    """Those of others stay as they are."""
    journal = reopened(tmp_path)
    for name in ("a", "b"):
        journal.give(entry(name))
    journal.give(Entry("c", "other", "team/q", "main", "a record"))
    journal.adjust("u", "another record")
    journal.close()

    journal = reopened(tmp_path)
    found = {key: one.record for key, one in journal.entries.items()}
    journal.close()
    assert found == {"a": "another record", "b": "another record", "c": "a record"}


@pytest.mark.parametrize("flushed", range(6))
def test_memory_says_what_the_file_says(
    tmp_path: Path, flushed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever flush fails, and those of the next tries too: an agent that starts again knows the same."""
    journal = reopened(tmp_path)
    journal.give(entry("a"))
    failures = 0
    with failing(monkeypatch, "fsync", flushed):
        for record in ("second", "third", "fourth"):
            try:
                journal.adjust("u", record)
            except OSError:
                failures += 1
            copy = tmp_path / f"copy-{record}"
            shutil.copytree(tmp_path / "journal", copy / "journal")
            assert _as_read(copy) == (journal.adjusted, journal.entries["a"].record)
    assert failures == 3 - flushed // 2

    journal.give(entry("b"))
    assert list(journal.entries) == ["a", "b"]
    found = dict(journal.entries), dict(journal.adjusted)
    journal.close()
    again = reopened(tmp_path)
    assert (dict(again.entries), dict(again.adjusted)) == found
    again.close()


def _as_read(folder: Path) -> tuple[dict[str, str], str]:
    lines = (folder / PATH).read_bytes().splitlines()[1:]
    adjusted = [msgspec.json.decode(one)["adjusted"] for one in lines if b'{"adjusted"' in one]
    given = [msgspec.json.decode(one)["given"] for one in lines if b'{"given"' in one]
    return {one["uid"]: one["record"] for one in adjusted}, given[-1]["record"]


def test_nothing_is_answered_while_the_files_name_may_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder could not be flushed after a rewrite: the next line, and the next look, flush it first or fail."""
    journal = reopened(tmp_path)
    journal.give(entry("a"))
    with failing(monkeypatch, "fsync", 1), pytest.raises(OSError, match="No space"):
        journal.adjust("u", "another record")
    with failing(monkeypatch, "fsync", 1), pytest.raises(OSError, match="No space"):
        journal.give(entry("b"))
    with failing(monkeypatch, "fsync"), pytest.raises(OSError, match="No space"):
        journal.pods({"u"})
    assert list(journal.entries) == ["a"]

    journal.pods({"u"})
    with failing(monkeypatch, "fsync"):
        journal.pods({"u"})  # nothing is left to do
    assert journal.adjusted == {"u": "another record"}
    journal.close()


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_full_disk_changes_nothing(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory and disk stay as they are: what was enforced before counts."""
    journal = reopened(tmp_path)
    journal.give(entry("a"))
    name = "replace" if call == "rename" else call
    with failing(monkeypatch, name), pytest.raises(OSError, match="No space"):
        journal.adjust("u", "another record")
    assert journal.adjusted == {}
    assert journal.entries["a"].record == "a record"
    journal.close()

    journal = reopened(tmp_path)
    assert journal.adjusted == {}
    assert journal.entries["a"].record == "a record"
    journal.close()


def test_what_is_given_while_amounts_change_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread changes them and rewrites the file; a list that is being read stays as it is."""
    journal = reopened(tmp_path)
    journal.give(entry("a"))
    before = journal.entries
    with ThreadPoolExecutor(2) as threads:
        with held_up(monkeypatch) as reached:
            given = threads.submit(journal.give, entry("b"))
            assert reached.wait(240)
            changed = threads.submit(journal.adjust, "u", "another record")
        given.result()
        changed.result()

    assert list(before) == ["a"]
    assert list(journal.entries) == ["a", "b"]
    journal.close()
    journal = reopened(tmp_path)
    assert list(journal.entries) == ["a", "b"]
    journal.close()


def test_a_container_that_ends_while_its_amounts_change_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its cards stay full until the runtime is connected again."""
    keeper = World(tmp_path, OwnLibrary(compute=True)).agent()
    keeper.create(pod_of("a"), container_of("a"))
    less = msgspec.structs.replace(SHARE, core_milli=100)
    with ThreadPoolExecutor(2) as threads:
        with held_up(monkeypatch) as reached:
            changed = threads.submit(keeper.write_down, "uid-a", (less,))
            assert reached.wait(240)
            ended = threads.submit(keeper.remove, container_of("a"))
            with pytest.raises(TimeoutError):
                ended.result(0.2)
        changed.result()
        ended.result()

    assert keeper.books.held == {}
    assert keeper.rooms == {}
    keeper.journal.close()
