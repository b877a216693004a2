"""Which combinations of GPU names are valid, and what they mean for one card.

This is Koordinator's normalisation (docs/sources/koordinator.md 2.3 and 2.4). A combination that is not in the table is
invalid; a valid one becomes a number of cards and an amount of each. Division over cards drops the remainder, as
upstream does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from partage.model.errors import InvalidValue
from partage.model.quantity import Quantity
from partage.vendors import names
from partage.vendors.families.koordinator.amounts import COUNTS, old_name
from partage.vendors.traits import HUAWEI, ROWS

_WHOLE: Final = 100

_CORE: Final = names.KOORD_GPU_CORE
_MEMORY: Final = names.KOORD_GPU_MEMORY
_RATIO: Final = names.KOORD_GPU_MEMORY_RATIO
_SHARED: Final = names.KOORD_GPU_SHARED

_VENDORS: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (row.name, *row.aliases) for row in ROWS for name in row.counts},
    names.NPU_CORE: (HUAWEI.name,),
}

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CardShape:
    """The request of a valid combination.

    Attributes:
        count: how many cards.
        core: percent of compute of each card; 0 if not asked.
        ratio: percent of memory of each card; 0 if asked in bytes.
        memory: bytes of each card; 0 if asked as a ratio.
        extras: native units of each card.
        shared: whether Koordinator calls this a share (anything less than a card's memory, or memory in bytes).
        vendors: makers of the cards that the names mean; empty for any.
    """

    count: int
    core: int
    ratio: int
    memory: int
    extras: tuple[tuple[str, int], ...]
    shared: bool
    vendors: tuple[str, ...]


_Rule = tuple[Callable[[Amounts], bool], str]
"""Whether it holds, and its words."""


def percentage(value: int) -> bool:
    """Whether a value is a valid percentage: at most one device, or whole devices."""
    return value <= _WHOLE or value % _WHOLE == 0


def _percent(name: str) -> _Rule:
    text = f"{name} must be at most 100 or a multiple of 100"
    return lambda amounts: percentage(amounts[name]), text


def _even(name: str) -> _Rule:
    def holds(amounts: Amounts) -> bool:
        value, cards = amounts[name], amounts[_SHARED]
        return value % cards == 0 and value // cards <= _WHOLE

    return holds, f"{name} must be a multiple of {_SHARED} and at most 100 a card"


_SINGLE: Final[_Rule] = (
    lambda amounts: amounts[_SHARED] <= 1,
    f"{_SHARED} must be 1 for a part of an NPU",
)
_DVPP: Final[_Rule] = (
    lambda amounts: amounts[names.NPU_DVPP] <= _WHOLE,
    f"{names.NPU_DVPP} must be at most 100",
)

_COMBINATIONS: Final[Mapping[frozenset[str], tuple[_Rule, ...]]] = {
    **{frozenset({name}): () for name in COUNTS},
    frozenset({names.KOORD_GPU}): (_percent(names.KOORD_GPU),),
    frozenset({_MEMORY}): (),
    frozenset({_RATIO}): (_percent(_RATIO),),
    frozenset({_CORE, _MEMORY}): (_percent(_CORE),),
    frozenset({_CORE, _RATIO}): (_percent(_CORE), _percent(_RATIO)),
    frozenset({names.NPU_CORE, _RATIO}): (_percent(_RATIO),),
    frozenset({_SHARED, _MEMORY}): (),
    frozenset({_SHARED, _RATIO}): (_even(_RATIO),),
    frozenset({_SHARED, _CORE, _MEMORY}): (_even(_CORE),),
    frozenset({_SHARED, _CORE, _RATIO}): (_even(_CORE), _even(_RATIO)),
    frozenset({_SHARED, names.NPU_CORE, names.NPU_CPU, _MEMORY}): (_SINGLE,),
    frozenset({_SHARED, *HUAWEI.units, _MEMORY}): (_SINGLE, _DVPP),
}


def shape_of(asked: Mapping[str, Quantity], written: Mapping[str, str]) -> CardShape:
    """The meaning of a pod's effective GPU amounts (today's names, none of them zero).

    `written`: today's name to the name that the pod used, for messages. Raises `InvalidValue`: `invalid resource unit
    <name>: <quantity>` for a `gpu` that is not a percentage, `invalid resource device requests: [<names>]` for
    everything else, each followed by the rule in brackets.
    """
    amounts = {name: quantity.ceil() for name, quantity in asked.items()}
    whole = amounts.get(names.KOORD_GPU, 0)
    if not percentage(whole):
        raise InvalidValue(
            f"invalid resource unit {written[names.KOORD_GPU]}: {asked[names.KOORD_GPU]}"
            " (a percentage must be at most 100 or a multiple of 100)"
        )
    rules = _COMBINATIONS.get(frozenset(amounts))
    if rules is None:
        raise _invalid(written, amounts, _misfit(frozenset(amounts), written))
    for holds, text in rules:
        if not holds(amounts):
            raise _invalid(written, amounts, text)
    shape = _convert(amounts)
    if shape.memory == 0 and shape.ratio == 0:
        raise _invalid(
            written, amounts, f"memory over {shape.count} cards leaves nothing for each"
        )
    return shape


def _misfit(asked: frozenset[str], written: Mapping[str, str]) -> str:
    """The message that a combination is invalid, and the fewest names to add, or else to leave out."""

    def listed(changes: list[frozenset[str]]) -> str:
        fewest = [sorted(one) for one in changes if len(one) == min(map(len, changes))]
        return ", or ".join(
            " and ".join(_as_written(name, written) for name in one) for one in sorted(fewest)
        )

    text = "these names cannot be asked for together or alone"
    more = [one - asked for one in _COMBINATIONS if asked < one]
    if more:
        return f"{text}; add {listed(more)}"
    fewer = [asked - one for one in _COMBINATIONS if one < asked]
    return f"{text}; leave out {listed(fewer)}" if fewer else text


def _as_written(name: str, written: Mapping[str, str]) -> str:
    """A name in the pod's own dialect."""
    if name in written:
        return written[name]
    old = all(one.startswith(names.KUBERNETES_DOMAIN) for one in written.values())
    return old_name(name) if old and name.startswith(names.KOORDINATOR_DOMAIN) else name


def _invalid(written: Mapping[str, str], amounts: Amounts, rule: str) -> InvalidValue:
    listed = " ".join(sorted(written[name] for name in amounts))
    return InvalidValue(f"invalid resource device requests: [{listed}] ({rule})")


def _convert(amounts: Amounts) -> CardShape:
    vendors = next((_VENDORS[name] for name in _VENDORS if name in amounts), ())
    for name in COUNTS:
        if name in amounts:
            return CardShape(amounts[name], _WHOLE, _WHOLE, 0, (), shared=False, vendors=vendors)
    both = amounts.get(names.KOORD_GPU, 0)
    core, ratio = amounts.get(_CORE, both), amounts.get(_RATIO, both)
    several = ratio // _WHOLE if ratio > _WHOLE and ratio % _WHOLE == 0 else 1
    count = amounts.get(_SHARED, 0) or several
    return CardShape(
        count=count,
        core=core // count,
        ratio=ratio // count,
        memory=amounts.get(_MEMORY, 0) // count,
        extras=tuple(
            (name, amounts[name] // count) for name in sorted(HUAWEI.units) if name in amounts
        ),
        shared=ratio // count < _WHOLE,
        vendors=vendors,
    )
