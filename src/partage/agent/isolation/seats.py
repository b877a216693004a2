"""The seats of a card: one file a tenant, and the agent's own page with the terms of each.

    seats/<uuid>/seat-0 … seat-62     written by one container each, read by all of the card
    seats/<uuid>/terms                policy, priority, quota and number of files of each seat, written by the agent
                                      alone

The layout is that of `native/include/page.h`. Each field is a word of eight bytes that is valid by itself, so reading
needs no lock; a reader beside a writer sees an old or a new value. The reader does not trust words of a
tenant. All seats are created at once, so that tenants know each other's files in any order of arrival.

No two tenants get the same file. An ended tenant may have passed a descriptor to another container, which could
truncate the file of the next tenant or write in its name. A released seat therefore gets a new file under the same
name. Its number in `terms` changes, and each neighbour's library maps the file again. Seats of an older agent
have no numbers and keep their files, because the libraries beside them would not notice a change.

Functions raise `InvalidDocument` if a file is not the agent's, and `OSError` if it cannot be made, opened or written, or if
other tenants have taken its room.
"""

import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.shared import READABLE, WRITABLE, make, mend, opened, remake, word
from partage.model.device import SEATS
from partage.model.errors import InvalidDocument
from partage.vendors.wishes import Policy, Priority

SEAT_MAGIC: Final = 0x3254414553545250
SEAT_BYTES: Final = 4096
_SEAT: Final = 128
_TERMS: Final = "terms"
_POLICIES: Final = {
    Policy.BEST_EFFORT: 0,
    Policy.FIXED_SHARE: 1,
    Policy.BURST_SHARE: 2,
    Policy.NONE: 3,
}
_PRIORITIES: Final = {Priority.OFFLINE: 0, Priority.ORDINARY: 1, Priority.ONLINE: 2}
_GIVEN: Final = 1 << 56
"""Marks the terms of an allocated seat, whatever they are; the library ignores it."""
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Seat:
    """A container's own words on its seat of a card."""

    container: int
    has_work: bool
    served_ns: int
    """Device time received since the seat was made."""


def seat_file(folder: Path, slot: int) -> Path:
    """The path of a seat among the seats of its card."""
    return folder / f"seat-{slot}"


@lru_cache(maxsize=64)
def files_of(folder: Path) -> tuple[Path, ...]:
    """All files of a card; kept, because the agent asks for them with each container."""
    return (folder / _TERMS, *(seat_file(folder, slot) for slot in range(SEATS)))


def make_seats(folder: Path) -> None:
    """Make all seats of a card, and the terms. Existing seats stay, and processes that map them continue."""
    folder.mkdir(mode=0o755, exist_ok=True)
    remove_drafts(folder)
    terms, *seats = files_of(folder)
    if not terms.exists():
        head = bytes(SEATS * 8) + (1).to_bytes(8, "little") * SEATS
        make(terms, SEAT_BYTES, head, mode=READABLE)
    terms.chmod(READABLE)  # a kill may have prevented an older agent from this
    for path in seats:
        if not path.exists():
            make(path, SEAT_BYTES)


def remove_drafts(folder: Path) -> None:
    """Remove half-made files, which take the room of a seat. Raises `OSError`."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            path.unlink()


def give_seat(folder: Path, card: CardLimits, held: HeldFiles) -> None:
    """Allocate an empty seat to a new tenant, and write its terms."""
    terms, file = _said(folder, card.slot)
    if terms or not file:  # tenants have only read a fresh file
        _renew(folder, card.slot, file, held)
    tell_terms(folder, card, held)


def tell_terms(folder: Path, card: CardLimits, held: HeldFiles) -> None:
    """Write the terms of a tenant with a seat."""
    said = _POLICIES[card.policy] << 32 | _PRIORITIES[card.priority] << 40 | card.core_milli
    _say(folder, card.slot, said | _GIVEN, held)


def given_seats(folder: Path) -> frozenset[int]:
    """A card's allocated slots, by the agent's page."""
    terms = folder / _TERMS
    if not terms.exists() and (
        # A kill may have left drafts: the terms come before all seats.
        not folder.exists() or all(one.name.startswith(".") for one in folder.iterdir())
    ):
        return frozenset()
    with opened(terms) as descriptor:
        memory = os.pread(descriptor, SEATS * 8, 0)
    if len(memory) != SEATS * 8:
        raise InvalidDocument(f"{terms}: not of {SEAT_BYTES} bytes")
    return frozenset(slot for slot in range(SEATS) if word(memory, slot * 8))


def free_seat(folder: Path, slot: int, held: HeldFiles) -> None:
    """Release the seat of an ended tenant. If this fails, the seat stays allocated, without any right."""
    _say(folder, slot, _GIVEN, held)
    _renew(folder, slot, _said(folder, slot)[1], held)
    _say(folder, slot, 0, held)


def mend_seats(folder: Path, held: HeldFiles) -> tuple[int, ...]:
    """Restore size and permissions of all seats of a card; return the slots that were changed. Raises `OSError`.

    A tenant that is root may change the permissions of its seat, and tenants of other users would not see it.
    """
    changed = []
    for slot in range(SEATS):
        try:
            told = seat_file(folder, slot).lstat()
            if told.st_size == SEAT_BYTES and stat.S_IMODE(told.st_mode) == WRITABLE:
                continue
            with held.at(seat_file(folder, slot)) as descriptor:
                os.fchmod(descriptor, WRITABLE)
                mend(descriptor, SEAT_BYTES)
        except (OSError, InvalidDocument):
            pass  # no room yet: the next seat may free it
        changed.append(slot)
    return tuple(changed)


def read_seat(folder: Path, slot: int) -> Seat | None:
    """A seat's words; None if empty. Raises `InvalidDocument`: another size or version of the file; `OSError`."""
    path = seat_file(folder, slot)
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        memory = os.pread(descriptor, _SEAT, 0)
    if size != SEAT_BYTES:
        raise InvalidDocument(f"{path}: not of {SEAT_BYTES} bytes; it was cut off or added to")
    if not any(memory):
        return None
    if word(memory, 0) != SEAT_MAGIC:
        raise InvalidDocument(f"{path}: not of version 2; it was written over")
    return Seat(word(memory, 8), word(memory, 24) != 0, word(memory, 48))


def _renew(folder: Path, slot: int, file: int, held: HeldFiles) -> None:
    """Give a seat the file of its next tenant; a seat without a number is emptied."""
    path = seat_file(folder, slot)
    for attempt in range(_TRIES):
        try:
            if file:
                held.replaced(path, remake(path, SEAT_BYTES))
            else:
                with held.at(path) as descriptor:
                    mend(descriptor, SEAT_BYTES)
                    os.posix_fallocate(descriptor, 0, SEAT_BYTES)
                    os.pwrite(descriptor, bytes(SEAT_BYTES), 0)
            break
        except OSError:
            # A truncated seat lost its block, and another that grew may have it.
            if attempt == _TRIES - 1 or not mend_seats(folder, held):
                raise
    if file:
        _say(folder, SEATS + slot, file + 1, held)


def _said(folder: Path, slot: int) -> tuple[int, int]:
    """The terms of a seat and the number of its file; both are zero if there are none."""
    with opened(folder / _TERMS) as descriptor:
        words = os.pread(descriptor, 2 * SEATS * 8, 0)
    return word(words, slot * 8), word(words, (SEATS + slot) * 8)


def _say(folder: Path, place: int, said: int, held: HeldFiles) -> None:
    with held.at(folder / _TERMS) as descriptor:
        os.pwrite(descriptor, said.to_bytes(8, "little"), place * 8)
