"""Changed amounts of shares whose containers run: comparison and combination of sets of grants.

One pod has several sets of grants at a time: the recorded one, the enforced one and the requested one. They name the
same places on the same cards and differ only in the amounts of shares. The enforced amounts must never exceed the
record, so this module compares amounts: the least of two, the most, and whether one is within another.

Source: docs/decisions/0028.
"""

from collections.abc import Callable

from msgspec.structs import replace

from partage.model.allocation import CLAIM, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.errors import InvalidValue

Grants = tuple[Grant, ...]


def adjustable(grant: Grant) -> bool:
    """Whether the amounts of a grant can change: only those of a recorded software share of a card can."""
    return (
        grant.type is DeviceType.GPU
        and grant.mode is GrantMode.SHARE
        and grant.protocol != CLAIM
        and not grant.template
        and not grant.extras
    )


def alike(one: Grants, other: Grants) -> bool:
    """Whether two sets of grants differ only in the amounts of shares."""
    return _bare(one) == _bare(other)


def least(one: Grants, other: Grants) -> Grants:
    """The smaller of two, by amount. Raises `InvalidValue`: they differ in more than amounts."""
    return _each(one, other, min)


def most(one: Grants, other: Grants) -> Grants:
    """The larger of two, by amount. Raises `InvalidValue`: they differ in more than amounts."""
    return _each(one, other, max)


def within(one: Grants, other: Grants) -> bool:
    """Whether no amount of the first exceeds that of the second, and nothing else differs."""
    return alike(one, other) and least(one, other) == one


def _bare(grants: Grants) -> Grants:
    return tuple(
        replace(one, core_milli=bool(one.core_milli), memory_bytes=bool(one.memory_bytes))
        if adjustable(one)
        else one
        for one in grants
    )


def _each(one: Grants, other: Grants, choose: Callable[[int, int], int]) -> Grants:
    if not alike(one, other):
        raise InvalidValue("they are grants of other devices, not other amounts of the same")
    return tuple(
        replace(
            mine,
            core_milli=choose(mine.core_milli, theirs.core_milli),
            memory_bytes=choose(mine.memory_bytes, theirs.memory_bytes),
        )
        for mine, theirs in zip(one, other, strict=True)
    )
