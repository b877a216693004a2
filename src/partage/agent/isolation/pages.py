"""The shared memory of the enforcement library: a page for each card, an account for each container.

The layout is that of `native/include/page.h`. Fields are words of eight bytes that are true by themselves, so
reading needs no lock; a reader that meets a writer sees an old or a new value. Whatever a tenant wrote is
taken as a statement: numbers are clamped here and never used as positions.
"""

import os
import struct
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from typing import Final

from partage.model.errors import InvalidDocument

__all__ = [
    "Holding",
    "Process",
    "Seat",
    "State",
    "make_account",
    "make_page",
    "read_account",
    "read_page",
    "reset_seat",
    "set_overhead",
]

CARD_MAGIC: Final = 0x3145474150545250
ACCOUNT_MAGIC: Final = 0x3154434341545250
VERSION: Final = 1
PAGE_BYTES: Final = 4096
CARDS: Final = 16
PLACES: Final = 1024
EXPORTS: Final = 512
_SEAT: Final = 64
_BOOKS: Final = 64
_PLACE: Final = 576
_HOLDING: Final = 32
_PLACES_AT: Final = 64 + CARDS * _BOOKS + EXPORTS * 16
_INNER_AT: Final = _PLACES_AT + PLACES * _PLACE + 3008
ACCOUNT_BYTES: Final = _INNER_AT + CARDS * PAGE_BYTES
_WORD: Final = struct.Struct("<Q")
_MOST: Final = 2**62


class State(IntFlag):
    """What a process says is in force in it."""

    LIMITED = 1
    GATED = 2
    FAULT = 4


@dataclass(frozen=True, slots=True)
class Seat:
    """What a container says of itself on a card page."""

    slot: int
    container: int
    beat_ns: int
    """Last sign of life, CLOCK_MONOTONIC."""
    has_work: bool
    served_ns: int
    """Device time received since the seat was made."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory of a process on a card, in bytes."""

    counted: int
    allowance: int
    overhead: int
    swapped: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process that uses cards, as it entered itself."""

    place: int
    pid: int
    """In its own pid namespace."""
    start: int
    """Clock ticks since boot; with the pid it names a process for good."""
    space: int
    """Inode of the pid namespace."""
    state: State
    cards: tuple[Holding, ...]


def _make(path: Path, size: int, magic: int, mode: int) -> None:
    """Make a file whole or not at all; one that exists is kept, whoever maps it goes on with it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    content = bytearray(size)
    _WORD.pack_into(content, 0, magic)
    draft.write_bytes(content)
    draft.chmod(mode)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def make_page(path: Path) -> None:
    """Make the page of a card, unless there is one.

    Raises:
        OSError: The folder cannot be written.
    """
    _make(path, PAGE_BYTES, CARD_MAGIC, 0o666)


def make_account(path: Path) -> None:
    """Make the account of a container, unless there is one.

    Raises:
        OSError: The folder cannot be written.
    """
    _make(path, ACCOUNT_BYTES, ACCOUNT_MAGIC, 0o666)


def _open(path: Path, size: int, magic: int, *, write: bool) -> int:
    """Open a shared file and check what it is.

    It is never mapped: whoever shares it may cut it off at any time, and a mapping would end this process then.
    """
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    problem = ""
    if os.fstat(descriptor).st_size != size:
        problem = f"not of {size} bytes; it was cut off or added to"
    elif os.pread(descriptor, 8, 0) != _WORD.pack(magic):
        problem = f"not of version {VERSION}; it was written over"
    if problem:
        os.close(descriptor)
        raise InvalidDocument(f"{path}: {problem}")
    return descriptor


def _content(path: Path, size: int, magic: int) -> bytes:
    descriptor = _open(path, size, magic, write=False)
    try:
        return os.pread(descriptor, size, 0).ljust(size, b"\0")
    finally:
        os.close(descriptor)


def _word(memory: bytes, at: int) -> int:
    value: int = _WORD.unpack_from(memory, at)[0]
    return value


def read_page(path: Path) -> tuple[Seat, ...]:
    """The seats on a card's page.

    Raises:
        InvalidDocument: The file is not a page of this version.
        OSError: It cannot be opened.
    """
    memory = _content(path, PAGE_BYTES, CARD_MAGIC)
    return tuple(
        Seat(
            slot=slot,
            container=_word(memory, at),
            beat_ns=_word(memory, at + 8),
            has_work=_word(memory, at + 16) != 0,
            served_ns=_word(memory, at + 40),
        )
        for slot, at in enumerate(range(_SEAT, PAGE_BYTES, _SEAT))
        if _word(memory, at)
    )


def reset_seat(path: Path, slot: int) -> None:
    """Free a seat, before its slot is given to another container.

    Raises:
        InvalidDocument: The file is not a page of this version.
        OSError: It cannot be opened for writing.
    """
    descriptor = _open(path, PAGE_BYTES, CARD_MAGIC, write=True)
    try:
        os.pwrite(descriptor, bytes(_SEAT), _SEAT * (slot + 1))
    finally:
        os.close(descriptor)


def read_account(path: Path) -> tuple[Process, ...]:
    """The processes of a container that use cards; one that died without a word is still there.

    Raises:
        InvalidDocument: The file is not an account of this version.
        OSError: It cannot be opened.
    """
    memory = _content(path, ACCOUNT_BYTES, ACCOUNT_MAGIC)
    places = ((place, _PLACES_AT + place * _PLACE) for place in range(PLACES))
    return tuple(
        _process(memory, place, at)
        for place, at in places
        if _word(memory, at) and not _word(memory, at) & 1
    )


def _process(memory: bytes, place: int, at: int) -> Process:
    owner = _word(memory, at)
    cards = tuple(
        Holding(*(min(_word(memory, card + 8 * i), _MOST) for i in range(4)))
        for card in range(at + 32, at + 32 + CARDS * _HOLDING, _HOLDING)
    )
    state = State(_word(memory, at + 24) & 7)
    return Process(
        place, owner >> 42, owner >> 1 & (2**41 - 1), _word(memory, at + 8), state, cards
    )


def set_overhead(path: Path, process: Process, card: int, overhead_bytes: int) -> None:
    """Record what a process uses on a card beyond what it counted, as NVML says.

    Nothing is written when the place has another owner by now.

    Raises:
        InvalidDocument: The file is not an account of this version.
        OSError: It cannot be opened for writing.
    """
    descriptor = _open(path, ACCOUNT_BYTES, ACCOUNT_MAGIC, write=True)
    try:
        at = _PLACES_AT + process.place * _PLACE
        owner = _WORD.pack(process.pid << 42 | process.start << 1)
        if os.pread(descriptor, 8, at) == owner:
            overhead = min(max(overhead_bytes, 0), _MOST)
            os.pwrite(descriptor, _WORD.pack(overhead), at + 32 + card * _HOLDING + 16)
    finally:
        os.close(descriptor)
