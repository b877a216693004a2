"""The adjustment that a running pod asks for its shares: annotation `partage.io/adjust`.

    compute=60,memory=12Gi          of the only container with shares
    main/memory=12Gi,side/compute=20

Compute in percent of each of the container's cards, memory in bytes of each. Unnamed amounts stay. The webhook checks
the form alone; scheduler and node agent read it beside the pod's record, by the same functions.

Source: docs/decisions/0028.
"""

import re
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from partage.model.adjustment import Grants, adjustable
from partage.model.device import MILLI
from partage.model.errors import InvalidQuantity, InvalidValue
from partage.model.quantity import Quantity
from partage.vendors import names

_LONGEST: Final = 2048
_SHOWN: Final = 64
_MIB: Final = 2**20
_MOST: Final = 2**50
_PERCENT: Final = MILLI // 100
_PERCENTAGE: Final = re.compile(r"[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Change:
    """One requested amount.

    Attributes:
        container: its name; empty for the only one that has shares.
        core_milli: compute of each of its cards; 0 if it stays.
        memory_bytes: memory of each; 0 if it stays.
    """

    container: str
    core_milli: int = 0
    memory_bytes: int = 0


def read_changes(text: str) -> tuple[Change, ...]:
    """An annotation's changes, in order. Raises `InvalidValue`: a wrong form, or an amount out of its range."""
    if len(text) > _LONGEST:
        raise _wrong(f"it is longer than {_LONGEST} characters")
    found: dict[tuple[str, str], Change] = {}
    for part in text.split(","):
        who, _, amount = part.strip().rpartition("/")
        what, equals, value = amount.partition("=")
        if not equals or what not in ("compute", "memory"):
            raise _wrong(
                f"{part.strip()[:_SHOWN]!r} is not compute=PERCENT or memory=BYTES, with CONTAINER/ before it where "
                "several containers have shares"
            )
        if (who, what) in found:
            raise _wrong(f"{what} of {who or 'the container'} is asked twice")
        found[who, what] = (
            Change(who, core_milli=_compute(value))
            if what == "compute"
            else Change(who, memory_bytes=_memory(value))
        )
    return tuple(found.values())


def asked(text: str, grants: Grants) -> Grants:
    """A pod's grants with the requested amounts. Raises `InvalidValue`: unreadable, or no change of these grants."""
    for change in read_changes(text):
        grants = _changed(change, grants)
    return grants


def _changed(change: Change, grants: Grants) -> Grants:
    cards = [one for one in grants if change.container in ("", one.container)]
    mine = {one.container for one in cards if adjustable(one)}
    if not change.container and len(mine) > 1:
        raise _wrong(
            f"several containers have shares ({', '.join(sorted(mine))}): name one, as in main/memory=8Gi"
        )
    if not mine:
        raise _wrong(
            f"container {change.container or 'of the pod'} has no share of a card: whole cards, hardware instances and "
            "claims cannot be adjusted"
        )
    found = []
    for one in grants:
        if one.container not in mine or not adjustable(one):
            found.append(one)
            continue
        for what, new, now in (
            ("compute", change.core_milli, one.core_milli),
            ("memory", change.memory_bytes, one.memory_bytes),
        ):
            if new and not now:
                why = f"has no amount of {what} that could be changed"
                raise _wrong(f"container {one.container} {why}")
        found.append(
            replace(
                one,
                core_milli=change.core_milli or one.core_milli,
                memory_bytes=change.memory_bytes or one.memory_bytes,
            )
        )
    return tuple(found)


def _compute(value: str) -> int:
    if not _PERCENTAGE.fullmatch(value) or not 0 < int(value) <= 100:
        raise _wrong(f"compute={value[:_SHOWN]} is not a whole percentage of a card, 1 to 100")
    return int(value) * _PERCENT


def _memory(value: str) -> int:
    try:
        amount = Quantity.parse(value).floor()
    except InvalidQuantity as error:
        raise _wrong(f"memory={value[:_SHOWN]}: {error}") from error
    if not 0 < amount <= _MOST or amount % _MIB:
        raise _wrong(f"memory={value[:_SHOWN]} is not a whole number of MiB from 1Mi to 1Pi")
    return amount


def _wrong(why: str) -> InvalidValue:
    return InvalidValue(f"annotation {names.ADJUST}: {why}")
