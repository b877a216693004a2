"""Reads a container's account: which of its processes use cards, and the memory that each counted.

The layout is that of `native/include/page.h`. The reader does not trust bytes that a container wrote: it clamps
numbers and never uses them as positions.
"""

import fcntl
import os
import struct
from collections import Counter
from collections.abc import Collection, Sequence
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
_LOCK: Final = struct.Struct("@hhqqi4x")
"""The kernel's `struct flock`."""
PLACES_AT: Final = 64 + _CARDS * _BOOKS + _EXPORTS * 16
_INNER_AT: Final = PLACES_AT + _PLACES * _PLACE + 3008
ACCOUNT_BYTES: Final = _INNER_AT + _CARDS * 8192
_VERSIONS: Final = {_MAGIC: ACCOUNT_BYTES, 0x3154434341545250: _INNER_AT + _CARDS * 4096}
"""Sizes of accounts with their places at the same position, by mark; 2, and 1 of older containers."""
_MOST: Final = 2**62
_REFUSED: Final = 16
"""Refused processes that are read though the agent does not see them: more than a statement names."""


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


@dataclass(frozen=True, slots=True)
class Account:
    """What a container's processes wrote, by what the agent sees of them.

    Attributes:
        processes: those that the agent sees, and some refused ones that it does not.
        counted: bytes of all others by card.
        overhead: their bytes beyond the count.
        work: bytes that were gone through.
    """

    processes: tuple[Process, ...]
    counted: tuple[int, ...]
    overhead: tuple[int, ...]
    work: int


def make_account(path: Path, *, sparse: bool = False) -> None:
    """Make the account of a container, unless there is one. `sparse`: nothing else can take its room."""
    make(path, ACCOUNT_BYTES, _MAGIC.to_bytes(8, "little"), sparse=sparse)


def _check(path: Path, descriptor: int) -> None:
    size = _VERSIONS.get(word(os.pread(descriptor, 8, 0), 0))
    if size is None:
        raise InvalidDocument(f"{path}: not of version 1 or 2; it was written over")
    if os.fstat(descriptor).st_size != size:
        raise InvalidDocument(f"{path}: not of {size} bytes; it was cut off or added to")


def read_account(path: Path, cards: int = _CARDS) -> tuple[Process, ...]:
    """The processes that use cards, dead ones too. Raises `InvalidDocument`: the file is no account; `OSError`."""
    memory = _read(path)
    return tuple(_process(memory, place, cards) for place, _ in _owners(memory))


def read_holders(
    path: Path, cards: int, alive: Collection[tuple[int, int]]
) -> tuple[Process, ...]:
    """The processes whose memory a card still has, as the library counts them.

    They are those of these numbers and starts, and ended ones whose forked child runs: the card keeps their memory, and
    the child keeps their lock. Raises as `read_account` does.
    """
    with opened(path) as descriptor:
        memory = _whole(path, descriptor)
        seen, others = _split(_owners(memory), alive)
        held = [place for place, owner in others if _is_held(descriptor, owner)]
    return tuple(_process(memory, place, cards) for place in sorted([*seen, *held]))


def _is_held(descriptor: int, owner: int) -> bool:
    """Whether a process, or a forked child of it, has the lock of this owner's place."""
    lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, owner >> 1, 1, 0)
    kind: int = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock))[0]
    return kind != fcntl.F_UNLCK


def read_seen(path: Path, cards: int, alive: Collection[tuple[int, int]]) -> Account:
    """The processes of these numbers and starts, and sums of the others: a container may write what it likes in all places.

    A process in a time namespace of its own writes another start. So an owner with the number alone counts if there
    is none with both. Raises as `read_account` does.
    """
    memory = _read(path)
    owners = _owners(memory)
    seen, others = _split(owners, alive)
    layout = struct.Struct("<" + "Q8xQ8x" * cards)  # counted and overhead
    refused = _REFUSED
    rest: list[tuple[int, ...]] = []
    for place, _ in others:
        at = PLACES_AT + place * _PLACE
        if refused and memory[at + 24] & State.FAULT:
            refused -= 1
            seen.append(place)
        else:
            rest.append(layout.unpack_from(memory, at + 32))
    sums = [min(sum(column), _MOST) for column in zip(*rest, strict=True)] or [0] * (2 * cards)
    processes = tuple(_process(memory, place, cards) for place in sorted(seen))
    return Account(processes, tuple(sums[0::2]), tuple(sums[1::2]), len(owners) * _PLACE)


def _split(
    owners: Sequence[tuple[int, int]], alive: Collection[tuple[int, int]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """The places whose owner is alive, and the others with their owners."""
    missing, numbers = set(alive), Counter(pid for pid, _ in alive)
    seen: list[int] = []
    unlike: list[tuple[int, int]] = []
    for place, owner in owners:
        identity = _identity(owner)
        if identity in missing:
            missing.remove(identity)
            numbers[identity[0]] -= 1
            seen.append(place)
        else:
            unlike.append((place, owner))
    others: list[tuple[int, int]] = []
    for place, owner in unlike:
        pid, _ = _identity(owner)
        if numbers[pid] > 0:
            numbers[pid] -= 1
            seen.append(place)
        else:
            others.append((place, owner))
    return seen, others


def _read(path: Path) -> bytes:
    with opened(path) as descriptor:
        return _whole(path, descriptor)


def _whole(path: Path, descriptor: int) -> bytes:
    _check(path, descriptor)
    return os.pread(descriptor, _INNER_AT, 0).ljust(_INNER_AT, b"\0")


def _owners(memory: bytes) -> list[tuple[int, int]]:
    """The places that have an owner, and its identity in one word."""
    places = memory[PLACES_AT : PLACES_AT + _PLACES * _PLACE]
    return [
        (place, owner)
        for place, (owner,) in enumerate(_OWNER.iter_unpack(places))
        if owner and not owner & 1
    ]


def _identity(owner: int) -> tuple[int, int]:
    return owner >> 42, owner >> 1 & (2**41 - 1)


def _process(memory: bytes, place: int, cards: int) -> Process:
    at = PLACES_AT + place * _PLACE
    pid, start = _identity(word(memory, at))
    holdings = tuple(
        Holding(*(min(word(memory, card + 8 * i), _MOST) for i in range(4)))
        for card in range(at + 32, at + 32 + min(cards, _CARDS) * _HOLDING, _HOLDING)
    )
    state = State(word(memory, at + 24) & 7)
    return Process(place, pid, start, state, holdings)


def set_overhead(path: Path, process: Process, card: int, overhead_bytes: int) -> None:
    """Record what a process uses beyond its count by NVML, unless its place has another owner by now."""
    with opened(path, write=True) as descriptor:
        _check(path, descriptor)
        at = PLACES_AT + process.place * _PLACE
        owner = process.pid << 42 | process.start << 1
        if word(os.pread(descriptor, 8, at), 0) == owner:
            overhead = min(max(overhead_bytes, 0), _MOST)
            os.pwrite(descriptor, overhead.to_bytes(8, "little"), at + 32 + card * _HOLDING + 16)
