"""Records a step that has begun on a card, so that it can be continued or undone after a crash.

Each card has one small file, replaced as a whole at every step: written beside, flushed to disk, renamed. It is
either the old one or the new one. A file that cannot be read stops work on its card, because a guess about
ownership could destroy another tool's instance.
"""

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from partage.agent.seal import sealed, unsealed
from partage.model.errors import UNREADABLE, InvalidDocument, InvalidRecord
from partage.model.mig import MigSlice

_VERSION: Final = 1


class Stage(StrEnum):
    """The progress of an instance; each stage is written when the driver has been seen to agree."""

    INTENT = "intent"
    GPU_INSTANCE = "gpu-instance"
    COMPUTE_INSTANCE = "compute-instance"
    CDI = "cdi"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Entry:
    """One instance of ours.

    Attributes:
        instance: the instance, in the words of the pod's record.
        owner: UID of the pod.
        epoch: run of the driver in which it was created; none of our instances outlives it.
        gpu, compute: the driver's numbers, once seen.
        uuid: of the MIG device, once seen.
    """

    instance: MigSlice
    owner: str
    stage: Stage
    epoch: str
    gpu: int | None = None
    compute: int | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class CardJournal:
    """All entries of one card; `mode` is the run of the driver in which we turned MIG mode on, or empty."""

    card: str
    entries: tuple[Entry, ...] = ()
    mode: str = ""

    def with_entry(self, entry: Entry) -> "CardJournal":
        """The same with that entry instead of the one of the same instance and owner."""
        return replace(self, entries=(*self._others(entry), entry))

    def without(self, entry: Entry) -> "CardJournal":
        """The same without the entry of that instance and owner."""
        return replace(self, entries=self._others(entry))

    def _others(self, entry: Entry) -> tuple[Entry, ...]:
        key = (entry.instance, entry.owner)
        return tuple(one for one in self.entries if (one.instance, one.owner) != key)


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    journal: CardJournal


class FileJournals:
    """Journals as files of a folder that outlives a reboot, such as `/var/lib/partage/mig`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, card: str) -> Path:
        """The file of a card."""
        return self._folder / f"{card}.json"

    def load(self, card: str) -> CardJournal:
        """A card's journal, empty without one. Raises `InvalidRecord`: unreadable, or of another version or card."""
        path = self.path(card)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return CardJournal(card)
        except OSError as error:
            raise InvalidRecord(f"journal {path}: {error.strerror or error}") from None
        try:
            document = msgspec.json.decode(unsealed(text), type=_Document)
        except (InvalidDocument, *UNREADABLE) as error:
            raise InvalidRecord(
                f"journal {path} cannot be read: {error}. See what is on the card (nvidia-smi mig "
                "-lgi), then move the file away: all instances there then count as foreign"
            ) from None
        if document.v != _VERSION or document.journal.card != card:
            raise InvalidRecord(
                f"journal {path} is of version {document.v} and card {document.journal.card!r}, "
                f"not of version {_VERSION} and card {card!r}"
            )
        return document.journal

    def save(self, journal: CardJournal) -> None:
        """Replace it atomically."""
        self._folder.mkdir(parents=True, exist_ok=True)
        text = sealed(msgspec.json.encode(_Document(_VERSION, journal)))
        replace_file(self.path(journal.card), text)


def replace_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace a file atomically, even if the machine stops meanwhile.

    The temporary name starts with a dot and has no suffix that a reader of the folder watches.
    """
    beside = path.with_name(f".{path.name}.new")
    with open(beside, "wb", opener=lambda name, how: os.open(name, how, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Make the names of a folder, new and removed ones, survive a machine's stop."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
