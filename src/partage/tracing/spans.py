"""A span as a value, and every kind of span; docs/reference/traces.md has their attributes, events and meanings.

A part that has decided something reports it with a `Span` of facts that it has anyway. Another part sends it.
Spans hold names, amounts and codes: no environment, no command line, no header, no content of a Secret. Texts are
cut, lists are short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

Value = str | int | bool | Sequence[str]
_LONGEST: Final = 256


class Role(StrEnum):
    """The role of the span's owner."""

    SERVER = "server"  # a caller asked it
    CLIENT = "client"  # it asks a server
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of span."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Event:
    """A moment within a span; `at` is in nanoseconds since 1970."""

    name: str
    at: int
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """An operation with a duration.

    Attributes:
        start: nanoseconds since 1970.
        end: the same.
        problem: reason of a failure; empty on success.
        id: 16 hexadecimal digits; empty for any.
        parent: id of the span that it is part of; empty for none.
    """

    kind: Kind
    start: int
    end: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    problem: str = ""
    events: tuple[Event, ...] = ()
    children: tuple["Span", ...] = ()
    id: str = ""
    parent: str = ""


def cut(text: str) -> str:
    """A text from another program, short enough for an attribute."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


ADMIT: Final = Kind("partage.admit", Role.SERVER)
VALIDATE: Final = Kind("partage.validate", Role.SERVER)
SCHEDULE: Final = Kind("partage.schedule", Role.INTERNAL)
FILTER: Final = Kind("partage.filter", Role.SERVER)
PRIORITIZE: Final = Kind("partage.prioritize", Role.SERVER)
PREEMPT: Final = Kind("partage.preempt", Role.SERVER)
BIND: Final = Kind("partage.bind", Role.SERVER)
LOCK: Final = Kind("partage.lock", Role.CLIENT)
SEND: Final = Kind("partage.send", Role.CLIENT)
READ_BACK: Final = Kind("partage.read_back", Role.CLIENT)
MAKE_ROOM: Final = Kind("partage.make_room", Role.INTERNAL)
INSTANCE: Final = Kind("partage.instance", Role.INTERNAL)
ALLOCATE: Final = Kind("partage.allocate", Role.SERVER)
INJECT: Final = Kind("partage.inject", Role.SERVER)
