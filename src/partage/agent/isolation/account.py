"""Reads a container's account: which of its processes use cards, and the memory that each counted.

The layout is that of `native/include/page.h`. The reader does not trust bytes that a container wrote: it clamps
numbers and never uses them as positions.
"""

import os
import struct
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from typing import Final

from partage.agent.isolation.shared import make, opened, word
from partage.model.errors import InvalidDocument

_MAGIC: Final = 0x3254434341545250
_CARDS: Final = 16
_PLACES: Final = 1024
_EXPORTS: Final = 512
_BOOKS: Final = 64
_PLACE: Final = 576
_HOLDING: Final = 32
_OWNER: Final = struct.Struct(f"<Q{_PLACE - 8}x")
"""The first word of a place."""
PLACES_AT: Final = 64 + _CARDS * _BOOKS + _EXPORTS * 16
_INNER_AT: Final = PLACES_AT + _PLACES * _PLACE + 3008
ACCOUNT_BYTES: Final = _INNER_AT + _CARDS * 8192
_VERSIONS: Final = {
    _MAGIC: ACCOUNT_BYTES,
    0x3154434341545250: _INNER_AT + _CARDS * 4096,
}
"""Sizes of accounts with their places at the same position, by mark; 2, and 1 of older containers."""
_MOST: Final = 2**62


class State(IntFlag):
    """The state that a process reports as in force in it."""

    LIMITED = 1
    GATED = 2
    FAULT = 4


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory of a process on a card, in bytes."""

    counted: int
    allowance: int
    overhead: int
    swapped: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process that uses cards, by its own entry."""

    place: int
    pid: int
    """In its own pid namespace."""
    start: int
    """Clock ticks since boot; with the pid it identifies a process for good."""
    state: State
    cards: tuple[Holding, ...]


def make_account(path: Path, *, sparse: bool = False) -> None:
    """Make the account of a container, unless there is one. Raises `OSError`: The folder cannot be written.

    `sparse`: its folder has room for it and nothing else, so its blocks need not be allocated now.
    """
    make(path, ACCOUNT_BYTES, _MAGIC.to_bytes(8, "little"), sparse=sparse)


def _check(path: Path, descriptor: int) -> None:
    size = _VERSIONS.get(word(os.pread(descriptor, 8, 0), 0))
    if size is None:
        raise InvalidDocument(f"{path}: not of version 1 or 2; it was written over")
    if os.fstat(descriptor).st_size != size:
        raise InvalidDocument(f"{path}: not of {size} bytes; it was cut off or added to")


def read_account(path: Path, cards: int = _CARDS) -> tuple[Process, ...]:
    """The processes of a container that use cards; one that died without clearing its entry is included.

    Raises `InvalidDocument`: the file is not an account; `OSError`: it cannot be opened.
    """
    with opened(path) as descriptor:
        _check(path, descriptor)
        memory = os.pread(descriptor, _INNER_AT, 0).ljust(_INNER_AT, b"\0")
    places = memory[PLACES_AT : PLACES_AT + _PLACES * _PLACE]
    return tuple(
        _process(memory, place, PLACES_AT + place * _PLACE, cards)
        for place, (owner,) in enumerate(_OWNER.iter_unpack(places))
        if owner and not owner & 1
    )


def _process(memory: bytes, place: int, at: int, cards: int) -> Process:
    owner = word(memory, at)
    holdings = tuple(
        Holding(*(min(word(memory, card + 8 * i), _MOST) for i in range(4)))
        for card in range(at + 32, at + 32 + min(cards, _CARDS) * _HOLDING, _HOLDING)
    )
    state = State(word(memory, at + 24) & 7)
    return Process(place, owner >> 42, owner >> 1 & (2**41 - 1), state, holdings)


def set_overhead(path: Path, process: Process, card: int, overhead_bytes: int) -> None:
    """Record what a process uses on a card beyond its own count, by NVML.

    Nothing is written if the place has another owner by now. Raises `OSError`: it cannot be opened for writing.
    """
    with opened(path, write=True) as descriptor:
        _check(path, descriptor)
        at = PLACES_AT + process.place * _PLACE
        owner = process.pid << 42 | process.start << 1
        if word(os.pread(descriptor, 8, at), 0) == owner:
            overhead = min(max(overhead_bytes, 0), _MOST)
            os.pwrite(descriptor, overhead.to_bytes(8, "little"), at + 32 + card * _HOLDING + 16)
