"""Writes the page of amounts: what a container may use of its cards now, beside its limits, which never change.

Memory and compute of a share can be raised and lowered while its programs run. They have this page mapped, so a word
that is written in place is in force at once, also in processes that sleep. The layout is that of `struct amounts_page`
in `native/include/page.h`. Only the agent writes the page; the container has it read-only.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.shared import make, opened, word
from partage.model.errors import InvalidDocument, InvalidValue

NAME: Final = "amounts"
"""The file's name, beside the limits."""
_MAGIC: Final = 0x3153544D41545250
_BYTES: Final = 4096
_CARDS_AT: Final = 64
_CARD: Final = 16
_READABLE: Final = 0o444


def make_amounts(path: Path, cards: Iterable[CardLimits]) -> None:
    """Make the page of a container from its limits. Raises `OSError`."""
    words = b"".join(_words(card) for card in cards)
    head = _MAGIC.to_bytes(8, "little").ljust(_CARDS_AT, b"\0")
    make(path, _BYTES, head + words, mode=_READABLE)


def set_amounts(path: Path, index: int, card: CardLimits) -> None:
    """Put memory and compute of the card with this index in force. Raises `InvalidDocument`: no such page."""
    with opened(path, write=True) as descriptor:
        _check(path, descriptor)
        words = _words(card)
        for at in range(0, _CARD, 8):  # one by one: each is valid by itself
            os.pwrite(descriptor, words[at : at + 8], _CARDS_AT + index * _CARD + at)


def read_amounts(path: Path, cards: Iterable[CardLimits]) -> tuple[CardLimits, ...]:
    """A container's cards with the amounts in force. Raises `InvalidDocument`: not this container's page; `OSError`."""
    with opened(path) as descriptor:
        _check(path, descriptor)
        memory = os.pread(descriptor, _BYTES, 0)
    found = []
    for index, card in enumerate(cards):
        at = _CARDS_AT + index * _CARD
        try:
            now = replace(card, memory_bytes=word(memory, at), core_milli=word(memory, at + 8))
        except InvalidValue as error:
            raise InvalidDocument(f"{path}: {error}") from error
        capped, quoted = bool(card.memory_bytes), bool(card.core_milli)
        if (bool(now.memory_bytes), bool(now.core_milli)) != (capped, quoted):
            raise InvalidDocument(f"{path}: not the page of this container's limits")
        found.append(now)
    return tuple(found)


def _words(card: CardLimits) -> bytes:
    return card.memory_bytes.to_bytes(8, "little") + card.core_milli.to_bytes(8, "little")


def _check(path: Path, descriptor: int) -> None:
    head = word(os.pread(descriptor, 8, 0), 0)
    if head != _MAGIC or os.fstat(descriptor).st_size != _BYTES:
        raise InvalidDocument(f"{path}: no page of amounts; it was written over")
