"""Trouble of the kernel or the disk that passes: it ends one round, is logged once, and says nothing of a container."""

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from test_the_journal_is_trusted_and_mended import World

from one_look import look
from partage.agent.discovery.found import Roots
from partage.agent.isolation import node_scan, processes
from partage.agent.isolation.lookers import Lookers
from partage.agent.isolation.node_scan import see
from partage.agent.isolation.providers import NoIsolation
from partage.agent.isolation.statements import Answer, Statement, unseen
from partage.agent.reporting import ReportingSettings
from partage.agent.trouble import Rounds
from partage.daemon.discovering import DiscoveryOptions, NodeDiscovery
from partage.daemon.reconciling import Reconciling
from partage.model.node import Node


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in (24, 23, 12, 5, 11, 4, 30, 28, 116)),
        MemoryError(),
        RuntimeError("can't start new thread"),
    ],
    ids=repr,
)
def test_the_next_round_comes_and_the_words_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Five rounds fail alike, one does not, one fails again."""
    rounds = Rounds("cards cannot be looked for")
    with caplog.at_level(logging.WARNING):
        for number in range(7):
            with rounds:
                if number != 5:
                    raise error
            assert rounds.failed == (0 if number == 5 else number % 6 + 1 if number < 5 else 1)
    told = [one.message for one in caplog.records]
    assert told == [f"cards cannot be looked for: {str(error) or 'MemoryError'}; trying again"] * 2


@pytest.mark.parametrize("error", [ValueError("a fault"), RuntimeError("a fault"), KeyError("x")])
def test_a_fault_of_ours_ends_the_loop(error: Exception) -> None:
    """Otherwise the fault would stay hidden."""
    with pytest.raises(type(error)), Rounds("anything"):
        raise error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_the_agent_lacks_is_not_the_containers_fault(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A look without a free descriptor says nothing of any container's limits: it ends with an error."""

    def fails(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    pid = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        with pytest.raises(OSError, match=os.strerror(number)):
            processes.container_of(f"/proc/{pid}/cgroup", ("container-a",), node_scan.Work())
        with pytest.raises(OSError, match=os.strerror(number)):
            processes.numbers_of(pid)
        with pytest.raises(OSError, match=os.strerror(number)):
            look(pid, "/a/library")
    assert see({}).processes == {}


def test_a_program_that_cannot_be_opened_is_no_process_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may serve the file system of its program itself, and let it answer anything."""
    home = tmp_path / "7"
    home.mkdir()
    (home / "stat").write_text("7 (a) S")
    (home / "exe").symlink_to("/a/program")
    genuine = os.open
    for number in (errno.EMFILE, errno.EIO, errno.ENOENT, errno.ENOTCONN):

        def answers(path: str, *more: int, answer: int = number) -> int:
            if path.endswith("exe"):
                raise OSError(answer, os.strerror(answer))
            return genuine(path, *more)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", answers)
            with pytest.raises(node_scan.TooMuch):
                node_scan._program(str(home))
    (home / "exe").unlink()
    with pytest.raises(FileNotFoundError):
        node_scan._program(str(home))


def test_nothing_is_said_of_limits_that_nobody_could_look_at() -> None:
    """The answer is neither yes nor no, except for limits that other parts enforce."""
    held = Statement("a", "u", "team/a", "main", "partage", Answer.YES, "InForce", "held")
    other = Statement("b", "u", "team/b", "main", "mig", Answer.YES, "HardwareInstance", "kept")

    mine, theirs = unseen([held, other], "Too many open files")

    assert (mine.answer, mine.cause) == (Answer.UNKNOWN, "NotSeen")
    assert "Too many open files" in mine.message
    assert theirs == other


def test_looks_go_on_once_there_is_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look finds no thread; the next one does not count as one whose files do not answer."""
    lookers: Lookers[int] = Lookers()

    def fails(_thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError):
            lookers.look("a", lambda: 1)
    assert lookers.look("a", lambda: 2) == 2


async def test_the_loop_that_answers_the_runtime_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not answer would keep it from refusing containers in time, and they would start unchecked."""
    hardware = tmp_path / "devices.yaml"
    hardware.write_text("{model: Tesla-T4, cards: 1}")
    settings = ReportingSettings(period=0.01)
    options = DiscoveryOptions(Roots(simulated=hardware), (), settings, kept=tmp_path)
    taken: list[Node] = []
    discovery = NodeDiscovery("n1", options, taken.append, None)
    keeper = World(tmp_path, NoIsolation()).agent()
    comparing = Reconciling(keeper, tmp_path / "journal")
    comparing.take(keeper._place())
    writers: set[str] = set()

    def noted(genuine: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            writers.add(threading.current_thread().name)
            return genuine(*given)

        return call

    monkeypatch.setattr(os, "replace", noted(os.replace))
    monkeypatch.setattr(os, "fsync", noted(os.fsync))
    before = (tmp_path / "node.json").read_bytes()
    searching = asyncio.create_task(discovery.run())
    hardware.write_text("{model: Tesla-T4, cards: 2}")
    while (tmp_path / "node.json").read_bytes() == before:  # noqa: ASYNC110 # a file has no event
        await asyncio.sleep(0.01)
    searching.cancel()
    await asyncio.wait((searching,))
    await comparing.look()
    keeper.journal.close()

    assert len(taken) == 2
    assert (tmp_path / "journal/findings.json").exists()
    assert writers
    assert threading.main_thread().name not in writers
