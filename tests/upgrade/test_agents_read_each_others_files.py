"""What agents of two releases find of each other on a node, in an upgrade and in a roll-back.

An agent is replaced under running pods, so its files are all that the next one knows of them. What
0.1.0 wrote is frozen in `0.1.0/agent`: later agents must read it, and must either write the same
or raise the version, which an older agent refuses by name without touching anything.
"""

import shutil
from pathlib import Path

import agent_files
import pytest

from partage.agent.isolation import limits
from partage.agent.journal import Journal
from partage.agent.mig.journal import FileJournals
from partage.model.errors import PartageError

FROZEN = Path(__file__).parent / "0.1.0" / "agent"
CARD = agent_files.CARDS[0].card
CONTAINERS, CARDS, LIMITS = "containers.jsonl", f"mig/{CARD}.json", "limits"
FILES = (CONTAINERS, CARDS, LIMITS)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's folder as an agent of 0.1.0 left it."""
    return shutil.copytree(FROZEN, tmp_path / "agent")


def opened(folder: Path, file: str) -> object:
    """What an agent of today makes of a file."""
    if file == CONTAINERS:
        return tuple(Journal(folder).entries.values())
    if file == CARDS:
        return (FileJournals(folder / "mig").load(CARD),)
    return limits.read((folder / LIMITS).read_text())


def test_what_the_release_left_is_taken_up(node: Path) -> None:
    """Every container and instance, with every field; a container that has ended is forgotten."""
    journal = Journal(node)

    assert tuple(journal.entries.values()) == agent_files.CONTAINERS
    assert journal.damaged == 0
    assert (FileJournals(node / "mig").load(CARD),) == agent_files.CARDS
    assert limits.read((node / LIMITS).read_text()) == agent_files.LIMITS


@pytest.mark.parametrize("file", FILES)
def test_what_is_written_now_is_what_the_release_wrote(file: str, tmp_path: Path) -> None:
    """It is the same to the byte, so that it can be read after a roll-back; another form needs another version.

    The checks at the ends of lines, which are white space, are left out.
    """
    agent_files.write(tmp_path)

    written = (tmp_path / file).read_bytes()
    assert b"\n".join(line.rstrip(b" \t") for line in written.split(b"\n")) == (
        (FROZEN / file).read_bytes()
    )


@pytest.mark.parametrize("file", FILES)
def test_what_a_later_version_wrote_is_refused_and_left_alone(file: str, node: Path) -> None:
    """Each says which version it found; nothing is guessed, nothing is written over."""
    now = (node / file).read_text()
    later = now.replace('"v":1', '"v":4', 1).replace("partage-limits 1", "partage-limits 3")
    (node / file).write_text(later)

    with pytest.raises(PartageError, match="version"):
        opened(node, file)

    assert (node / file).read_text() == later


def test_a_journal_that_became_later_on_the_way_is_refused_too(node: Path) -> None:
    """A roll-forward that only appended: the mark may be any line."""
    with (node / CONTAINERS).open("a") as file:
        file.write('{"v":4}\n{"given":{"container":"c9"},"new":1}\n')

    with pytest.raises(PartageError, match="is of version 4, which another release wrote"):
        Journal(node)


def test_a_journal_from_before_it_was_marked_is_version_1(node: Path) -> None:
    """It is marked as soon as it is opened."""
    marked = (node / CONTAINERS).read_text()
    (node / CONTAINERS).write_text(marked.removeprefix('{"v":1}\n'))

    assert opened(node, CONTAINERS) == agent_files.CONTAINERS
    assert (node / CONTAINERS).read_text().splitlines()[0].rstrip() == '{"v":1}'
