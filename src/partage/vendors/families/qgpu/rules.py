"""qGPU's published rules for one container's request.

Rules have the numbers of docs/sources/qgpu.md 1.2; messages cite them in words. The engine checks rules 7 and 9
(nothing beyond the remaining share; whole cards only from idle ones), rule 6 is a limit in the request, and the caller
checks rule 12 (no second protocol in the container). Every function raises `RuleBroken` for its own rule.
"""

from dataclasses import dataclass
from typing import Final

from partage.model.quantity import NANO, Quantity
from partage.vendors import names
from partage.vendors.base import ContainerView

ONLINE: Final = "online"
OFFLINE: Final = "offline"
CARD: Final = 100
"""Percent of one card."""

STEP: Final = 5
"""Smallest share of a card's compute, and the step between shares, in percent."""

MOST_CARDS: Final = 2
"""The most cards that a multi-card share may span."""

SHARERS: Final = 16
"""The most sharers of a card."""

GIB: Final = 1 << 30
_MOST_GIB: Final = 2**20  # more than any node has: a larger amount was written in bytes (`5Gi`)
_MOST_CORE: Final = 2**31 - 1
_RESOURCES: Final = (names.QGPU_CORE, names.QGPU_MEMORY, names.QGPU_GREEDY)


class RuleBroken(Exception):
    """A container breaks a rule; the message names resource, value and rule."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One container's request, by card.

    Attributes:
        core: percent of each card; 0 if no compute is guaranteed.
        memory: GiB of each card; 0 for all of it.
        note: the effect of rounding, for people.
    """

    cards: int
    core: int
    memory: int
    whole: bool = False
    note: str = ""


def ask_of(container: ContainerView, app_class: str) -> Ask | None:
    """The container's request; None if all its amounts are 0 or missing.

    `app_class` is the pod's: `online`, `offline` or empty. Raises `RuleBroken`: with the broken rule.
    """
    _check_requests_equal_limits(container)
    core, memory, greedy = (container.ask(name) for name in _RESOURCES)
    if not any(value is not None and value.nano for value in (core, memory, greedy)):
        return None
    if app_class == OFFLINE:
        return _offline(core, memory, greedy)
    if app_class == ONLINE:
        return _online(core, memory, greedy)
    if greedy is not None:
        raise RuleBroken(
            f"{names.QGPU_GREEDY}: {greedy} is for offline pods only; "
            f"they carry the annotation {names.QGPU_APP_CLASS}: {OFFLINE}"
        )
    return _ordinary(core, memory)


def _check_requests_equal_limits(container: ContainerView) -> None:
    """Rule 5: requests equal limits; either may be left out completely."""
    if container.limits.keys().isdisjoint(_RESOURCES):
        return
    for name in (one for one in _RESOURCES if one in container.requests):
        request, limit = container.requests[name], container.limits.get(name)
        if limit is None or limit.nano != request.nano:
            shown = "missing" if limit is None else limit
            raise RuleBroken(
                f"{name}: the request {request} must equal the limit, which is {shown}"
            )


def _ordinary(core: Quantity | None, memory: Quantity | None) -> Ask:
    """Rules 1 to 4 and 10: a share of one card, whole cards, or a share of several cards."""
    if core is None:
        raise RuleBroken(
            f"a share needs both {names.QGPU_CORE} and {names.QGPU_MEMORY}; {names.QGPU_CORE} is missing"
        )
    percent = _core_percent(core)
    if memory is None:
        return _whole_cards(percent)
    gib = _memory_gib(memory)
    return Ask(1, percent, gib) if percent <= CARD else _several_cards(percent, gib)


def _core_percent(core: Quantity) -> int:
    """Rule 1: whole percent, at least 5, in steps of 5 up to 100."""
    name = names.QGPU_CORE
    if not core.integral or core.nano > _MOST_CORE * NANO:
        raise RuleBroken(f"{name}: {core} must be a whole number of percent")
    percent = core.floor()
    if percent < STEP or (percent <= CARD and percent % STEP):
        raise RuleBroken(
            f"{name}: {core} must be at least {STEP} and a multiple of {STEP} up to {CARD}"
        )
    return percent


def _memory_gib(memory: Quantity) -> int:
    """Rule 2: whole GiB, at least 1."""
    if not memory.integral or not NANO <= memory.nano <= _MOST_GIB * NANO:
        raise RuleBroken(
            f"{names.QGPU_MEMORY}: {memory} must be a whole number of GiB from 1 to {_MOST_GIB}, "
            "without a size suffix"
        )
    return memory.floor()


def _whole_cards(percent: int) -> Ask:
    """Rules 3 and 4: without memory, compute is a multiple of 100, and the cards are taken whole."""
    if percent % CARD:
        raise RuleBroken(
            f"{names.QGPU_CORE}: {percent} is a share and needs {names.QGPU_MEMORY} as well; "
            f"without memory it must be a multiple of {CARD} for whole cards"
        )
    return Ask(percent // CARD, CARD, 0, whole=True)


def _several_cards(percent: int, gib: int) -> Ask:
    """Rule 10, a later addition: a share over two cards, each with the whole part of its half.

    The step of 5 does not bind the halves: the published example makes 60 of 121. The remainder of the division is
    dropped.
    """
    cards = -(-percent // CARD)
    if cards > MOST_CARDS:
        raise RuleBroken(
            f"{names.QGPU_CORE}: {percent} with memory is a share of {cards} cards; "
            f"a share spans at most {MOST_CARDS}"
        )
    if gib < cards:
        raise RuleBroken(
            f"{names.QGPU_MEMORY}: {gib} leaves less than 1 GiB for each of {cards} cards"
        )
    note = f"{percent} % and {gib} GiB over {cards} cards: {percent // cards} % and {gib // cards} GiB each"
    return Ask(cards, percent // cards, gib // cards, note=note)


def _offline(core: Quantity | None, memory: Quantity | None, greedy: Quantity | None) -> Ask:
    """Rule 11: an offline pod asks greedy compute (1 to 100) and memory, of one card.

    Greedy compute is the compute that others do not use. Nothing is guaranteed, so nothing is charged.
    """
    if core is not None or greedy is None or memory is None:
        raise RuleBroken(
            f"an offline pod asks {names.QGPU_GREEDY} and {names.QGPU_MEMORY}, and nothing else of qGPU"
        )
    if not greedy.integral or not NANO <= greedy.nano <= CARD * NANO:
        raise RuleBroken(
            f"{names.QGPU_GREEDY}: {greedy} must be a whole number of percent from 1 to {CARD}"
        )
    return Ask(1, 0, _memory_gib(memory))


def _online(core: Quantity | None, memory: Quantity | None, greedy: Quantity | None) -> Ask:
    """Rule 11: an online pod asks memory of one card and may use all of its compute."""
    if core is not None or greedy is not None or memory is None:
        raise RuleBroken(f"an online pod asks {names.QGPU_MEMORY}, and nothing else of qGPU")
    return Ask(1, 0, _memory_gib(memory))
