"""Notes: facts about a node's agent that an operator must know, though nothing is refused for them.

A part of the agent reports a fact, and reports again, or clears it, when it changes. An annotation of the node contains
its current notes, and `partage doctor` reads them there; a metric shows them too. A fact about one pod only is
reported in the pod's condition instead.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from partage.model.errors import UNREADABLE

_MOST: Final = 16
_LONGEST: Final = 400


class Code(StrEnum):
    """The subject of a note; stable, because a metric has them as labels."""

    DRIVER_UNTRIED = "DriverUntried"
    ISOLATION_FILES = "IsolationFiles"
    JOURNAL_DAMAGED = "JournalDamaged"
    DISCOVERY = "Discovery"
    DISAGREEMENT = "Disagreement"
    INSTANCES = "Instances"
    UNITS_LEFT_OUT = "UnitsLeftOut"
    OTHER_PLUGIN = "OtherPlugin"
    MPS = "Mps"
    RESOURCE_SLICES = "ResourceSlices"
    DEVICE_FIELDS = "DeviceFields"


class Note(msgspec.Struct, frozen=True, order=True):
    """One note; `code` is one of `Code`, or one of a newer agent."""

    code: str
    message: str


class Notes:
    """The current notes of one node. Written and read from any thread."""

    def __init__(self) -> None:
        self._said: Mapping[str, tuple[Note, ...]] = {}

    def say(self, who: str, code: Code, messages: Iterable[str]) -> None:
        """Replace all notes of one author; an empty list clears them."""
        notes = tuple(Note(code.value, message[:_LONGEST]) for message in messages)
        self._said = {**self._said, who: notes}

    @property
    def said(self) -> tuple[Note, ...]:
        """All current notes, each once."""
        return tuple(sorted({note for notes in self._said.values() for note in notes}))

    @property
    def counted(self) -> dict[str, int]:
        """The number of notes of each code."""
        counts = Counter(note.code for note in self.said)
        return {code.value: counts[code.value] for code in Code}

    @property
    def text(self) -> str:
        """The annotation's text: the first few notes; empty without any."""
        notes = self.said
        return msgspec.json.encode(notes[:_MOST]).decode() if notes else ""


def read_notes(text: str) -> tuple[Note, ...]:
    """Notes of an annotation, which any client may have written; none if it cannot be read."""
    try:
        return tuple(msgspec.json.decode(text, type=list[Note]))
    except UNREADABLE:
        return ()
