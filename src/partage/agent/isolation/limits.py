"""Writes the limits file: what a container may use on its cards. The library reads it at the first driver call.

The format is that of `native/src/limits.h`: lines of a key, one blank and a value, all keys required, in order.
The library refuses a file that it cannot read in full, so `write` makes the same checks first.
"""

import os
import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from partage.model.device import SEATS
from partage.model.errors import InvalidDocument, InvalidValue
from partage.vendors.wishes import Policy, Priority

VERSION: Final = 2
"""The version that is written now."""
_SEATS_KEY: Final = {1: "page", 2: "seats"}
"""The key of the card's shared memory, by version; version 1 is of containers of an older agent."""
_CARDS: Final = 16
_BYTES: Final = 16384
_MOST: Final = (2**64 - 1) // 4
_NAME: Final = re.compile(r"[!-.0-~]{1,63}")
_UUID: Final = re.compile(r"[!-~]{1,63}")
_CARD_LINES: Final = 9


@dataclass(frozen=True, slots=True)
class CardLimits:
    """One card of a container. Raises `InvalidValue`: a field is out of its range."""

    uuid: str
    seats: str
    """Folder of the card's seats, beside the limits."""
    slot: int
    """The container's own seat, 0 to 62; no two containers that take turns on a card share one."""
    memory_bytes: int
    """Hard cap over all processes of the container; 0 means no cap."""
    core_milli: int
    """Quota in thousandths of the card."""
    policy: Policy = Policy.FIXED_SHARE
    priority: Priority = Priority.ORDINARY
    swap_bytes: int = 0
    """Bytes beyond the cap that may be served from host memory."""
    context_bytes: int = 0
    """The estimate of one context until the agent has measured it."""

    def __post_init__(self) -> None:
        if not _UUID.fullmatch(self.uuid):
            raise InvalidValue(f"card {self.uuid!r}: 1 to 63 printed characters without blanks")
        _check_name(self.seats)
        _check_range("slot", self.slot, SEATS - 1)
        _check_range("core", self.core_milli, 1000)
        _check_range("memory", self.memory_bytes, _MOST)
        _check_range("swap", self.swap_bytes, _MOST)
        _check_range("context", self.context_bytes, _MOST)
        if not self.core_milli and self.policy in {Policy.FIXED_SHARE, Policy.BURST_SHARE}:
            raise InvalidValue(f"card {self.uuid}: {self.policy} needs a quota above 0")


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """All cards of a container. Raises `InvalidValue`: a number out of range, a card twice, or too many cards."""

    container: int
    """Identifies the container on its cards; not zero, below 2^64."""
    cards: tuple[CardLimits, ...]
    account: str = "account"
    """File name of the container's account, beside the limits."""
    version: int = VERSION
    """Version of the format, and so of the library that reads it."""

    def __post_init__(self) -> None:
        if not 0 < self.container < 2**64:
            raise InvalidValue(f"container {self.container}: 1 to 2^64 - 1")
        _check_name(self.account)
        if len(self.cards) > _CARDS:
            raise InvalidValue(f"{len(self.cards)} cards: at most {_CARDS}")
        if len({card.uuid for card in self.cards}) < len(self.cards):
            raise InvalidValue("a card is named twice")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise InvalidValue(f"file name {name!r}: 1 to 63 printed characters, not hidden, no '/'")


def _check_range(key: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise InvalidValue(f"{key} {value}: 0 to {most}")


def render(limits: ContainerLimits) -> str:
    """The text of a limits file."""
    lines = [
        f"partage-limits {limits.version}",
        f"container {limits.container:x}",
        f"account {limits.account}",
    ]
    for card in limits.cards:
        lines += [
            f"card {card.uuid}",
            f"{_SEATS_KEY[limits.version]} {card.seats}",
            f"slot {card.slot}",
            f"memory {card.memory_bytes}",
            f"core {card.core_milli}",
            f"policy {card.policy}",
            f"priority {card.priority}",
            f"swap {card.swap_bytes}",
            f"context {card.context_bytes}",
        ]
    return "\n".join([*lines, "end"]) + "\n"


def write(path: Path, limits: ContainerLimits) -> None:
    """Write the whole file or nothing; a running container keeps the limits that it read. Raises `OSError`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(render(limits), encoding="ascii")
    draft.chmod(0o444)
    draft.replace(path)


def read(text: str, source: str = "limits") -> ContainerLimits:
    """Read a limits file as the library does. Raises `InvalidDocument`: the library would refuse it."""
    lines = text[: _BYTES + 1].split("\n")
    values = [line.partition(" ")[2] for line in lines]
    at = 1
    try:
        version, container, account = int(values[0]), int(values[1], 16), values[2]
        if version not in _SEATS_KEY:
            raise InvalidValue(f"version {version} is not known")
        cards = []
        for at in range(4, len(lines) - 1, _CARD_LINES):
            uuid, seats, slot, memory, core, policy, priority, swap, context = values[
                at - 1 : at - 1 + _CARD_LINES
            ]
            wish = Policy(policy), Priority(priority)
            most = int(slot), int(memory), int(core)
            cards.append(CardLimits(uuid, seats, *most, *wish, int(swap), int(context)))
        limits = ContainerLimits(container, tuple(cards), account, version)
    except (IndexError, ValueError) as error:
        why = error if isinstance(error, InvalidValue) else "not what an agent writes there"
        raise InvalidDocument(f"{source}, line {at}: {why}") from error
    # Every value has one form, and the library takes no other.
    expected = render(limits).split("\n")
    for number, (line, right) in enumerate(zip_longest(lines, expected), 1):
        if line != right:
            raise InvalidDocument(f"{source}, line {number}: {right!r} is expected")
    return limits
