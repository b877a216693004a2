"""Hardware instances in the ledger: which ones a card has, and whether more are allowed.

A card has one use at a time: shares, or instances, or one pod that has all of it. The charges on a card determine its
instances. Every combination that occurs gets a number, so that a column can hold it and questions about it are answered
once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from partage.model.allocation import Charge
from partage.model.cutting import Cutting
from partage.model.device import Device, SliceMode
from partage.model.mig import MigSlice, in_order
from partage.model.reason import ReasonCode

_REMEMBERED: Final = 1 << 14
"""Combinations of instances for which the books remember whether they are a layout."""

CUT: Final = (ReasonCode.CARD_NOT_IDLE, "it is cut into instances")
"""Why a card that takes either shares or instances takes no share now."""


_OTHERS: Final = (ReasonCode.CARD_NOT_IDLE, "it is cut into instances that partage did not make")
_INSTANCES_ONLY: Final = (None, CUT, _OTHERS)
"""Reasons that close a card to shares and to whole cards, but not to instances."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A card's cutting, and the instances on it by start, foreign ones included."""

    cutting: Cutting
    instances: tuple[MigSlice, ...]


class Cuts:
    """The combinations of instances that occur, numbered from 1.

    If many no longer occur, the books start another list with other numbers.
    """

    def __init__(self) -> None:
        self.known: list[Cut | None] = [None]
        self._numbers: dict[Cut, int] = {}

    def number(self, cutting: Cutting, instances: tuple[MigSlice, ...]) -> int:
        """The number of a combination; it never changes in this list."""
        cut = Cut(cutting, instances)
        found = self._numbers.get(cut)
        if found is None:
            found = self._numbers[cut] = len(self.known)
            self.known.append(cut)
        return found


def held(charges: Iterable[Charge]) -> tuple[MigSlice, ...]:
    """The instances in some charges of one card, by start."""
    return in_order(one for charge in charges for one in charge.instances)


def strangers(device: Device, tenants: Mapping[str, Charge]) -> tuple[MigSlice, ...]:
    """Foreign instances on a card that match no pod in the books, by start.

    An instance that equals the one in a pod's record is that pod's: HAMi made it before Partage was installed.
    """
    booked = frozenset(held(tenants.values()))
    return in_order(one.instance for one in device.foreign if one.instance not in booked)


def taken_by(cutting: Cutting, instances: Iterable[MigSlice]) -> tuple[int, int]:
    """Compute (milli) and memory (bytes) of instances; both 0 for an unknown profile."""
    sizes = {profile.name: profile for profile in cutting.axis.profiles}
    found = [sizes[one.profile] for one in instances if one.profile in sizes]
    return sum(one.core_milli for one in found), sum(one.memory_bytes for one in found)


def cut_by_others(device: Device) -> tuple[ReasonCode, str] | None:
    """Why foreign instances close a card to shares and to whole-card pods; None if there are none.

    A card that gives only instances stays open for them.
    """
    return _OTHERS if device.foreign and device.mode is not SliceMode.MIG else None


def misfit(device: Device, tenants: Mapping[str, Charge]) -> str:
    """Why the booked instances cannot all be on a card; empty if they can."""
    on_it = held(tenants.values())
    if not on_it:
        return ""
    if device.cutting is None:
        return f"a pod holds instance {on_it[0].profile} on it, but it is not cut into instances"
    if not all(charge.instances for charge in tenants.values()):
        return "shares and instances are allocated on it at once"
    others = strangers(device, tenants) if device.foreign else ()
    if not others:
        return _fault(device.cutting, on_it)
    fault = _fault(device.cutting, in_order((*on_it, *others)))
    return fault and f"{fault}; partage did not make {_told(others)}"


def _told(instances: Iterable[MigSlice]) -> str:
    return ", ".join(f"{one.profile} at {one.start}" for one in instances)


@lru_cache(maxsize=_REMEMBERED)
def _fault(cutting: Cutting, instances: tuple[MigSlice, ...]) -> str:
    return cutting.axis.fault(instances)


def joinable(
    device: Device, tenants: Mapping[str, Charge], closed: tuple[ReasonCode, str] | None
) -> tuple[MigSlice, ...] | None:
    """The instances beside which another may be made; None if none may."""
    if device.cutting is None or closed not in _INSTANCES_ONLY:
        return None
    if any(not charge.instances for charge in tenants.values()):
        return None
    on_it = held(tenants.values())
    return in_order((*on_it, *strangers(device, tenants))) if device.foreign else on_it


def taken(device: Device, tenants: Mapping[str, Charge]) -> tuple[ReasonCode, str] | None:
    """Why a card on which one pod is alone, or has an instance, is closed; None if it is open."""
    wrong = misfit(device, tenants)
    if wrong:
        return ReasonCode.QUARANTINED, wrong
    if any(charge.exclusive for charge in tenants.values()):
        return ReasonCode.CARD_NOT_IDLE, "held by one pod alone"
    return CUT if device.mode is SliceMode.EITHER else None
