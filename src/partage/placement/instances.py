"""Where a hardware instance may go: on one card, and on the cards of a node.

The smallest sufficient profile serves a request, at the place that costs its card least (`placement.layouts`, the same
tables that simulation uses). If the operator listed geometries, the first one with room comes before all else (the HAMi
document).

Everything about one card follows from its cutting and its instances, so it is computed once for each combination and
remembered.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from partage.inventory.card import Card
from partage.inventory.plane import Ints
from partage.model.cutting import Cutting
from partage.model.device import MILLI
from partage.model.mig import MigAxis, MigProfile, MigSlice, in_order
from partage.model.policy import CardOrder, Strategy
from partage.model.quantity import binary
from partage.model.reason import CardReason, ReasonCode
from partage.model.request import DeviceRequest, Scope
from partage.placement.card import MOST_A_NODE, Need, Work, unsuitable
from partage.placement.layouts import NOWHERE, Allowed, Layouts, Wish, tabulate

_REMEMBERED: Final = 1 << 16

A_LOOK: Final = 3
"""Units of work to find the room for instances on one card."""

Instances = tuple[MigSlice, ...]


@dataclass(frozen=True, slots=True)
class Sized:
    """The part of a request of each instance that decides which instances are sufficient.

    Attributes:
        profile: the profile's name or its compute part; empty if amounts decide.
        memory_bytes: least memory.
        memory_milli: least part of the card's memory, in thousandths of its memory units.
        core_milli: least compute, in thousandths of a card.
    """

    profile: str
    memory_bytes: int
    memory_milli: int
    core_milli: int


@dataclass(frozen=True, slots=True)
class Place:
    """A sufficient instance, where it can be made now; less `cost` is better, among cards that are cut alike."""

    instance: MigSlice
    memory_bytes: int
    core_milli: int
    cost: int


def sized(request: DeviceRequest) -> Sized:
    """The part of a request that decides which instances are sufficient."""
    return Sized(request.profile, request.memory_bytes, request.memory_milli, request.core_milli)


def places(cutting: Cutting, instances: Instances, asked: Sized) -> tuple[Place, ...]:
    """Every place on a card for a sufficient instance, best first.

    If there are geometries, only those of the first that has room. Then the least memory and compute, then the least
    cost.
    """
    return _places(cutting, instances, wished(cutting, asked))


@lru_cache(maxsize=_REMEMBERED)
def _places(cutting: Cutting, instances: Instances, wish: Wish) -> tuple[Place, ...]:
    """`places`, by its relevant inputs: requests of many sizes accept the same few profiles."""
    if not wish or cutting.axis.fault(instances):
        return ()
    layouts = tables_of(cutting)
    costs = _costs(layouts, wish)
    row = costs[layouts.state(instances)]
    found: list[Place] = []
    for bit in np.flatnonzero(row >= 0).tolist():
        one = layouts.positions[bit]
        profile = cutting.axis.profile(one.profile)
        found.append(Place(one, profile.memory_bytes, profile.core_milli, int(row[bit])))
    found.sort(key=lambda place: place.cost)
    return tuple(found)


@lru_cache(maxsize=_REMEMBERED)
def wished(cutting: Cutting, asked: Sized) -> Wish:
    """Names of the sufficient profiles on a card, the smallest first."""
    return tuple(profile.name for profile in _suitable(cutting, asked))


def tables_of(cutting: Cutting) -> Layouts:
    """The tables of a cutting (`placement.layouts`), which simulation also uses."""
    geometries = tuple(geometry.slots for geometry in cutting.geometries)
    return _tables(cutting.axis.shape, Allowed(cutting.allowed or None, geometries or None))


@lru_cache(maxsize=256)
def _tables(shape: MigAxis, allowed: Allowed) -> Layouts:
    """Made once for all cards of a shape, regardless of their memory, because it takes a tenth of a second."""
    return tabulate(shape, allowed)


@lru_cache(maxsize=1024)
def _costs(layouts: Layouts, wish: Wish) -> Ints:
    """The cost of each position in each state, as small numbers in the same order; -1 for none."""
    costs = layouts.costs(wish)
    known = costs != NOWHERE
    small = np.full(costs.shape, -1, np.int64)
    small[known] = np.unique(costs[known], return_inverse=True)[1]
    return small


def most(cutting: Cutting, instances: Instances, asked: Sized, limit: int) -> int:
    """How many sufficient instances can be made together on a card; no more than `limit`."""
    limit = min(limit, cutting.axis.length)
    return _most_of(cutting, instances, wished(cutting, asked), limit)


@lru_cache(maxsize=_REMEMBERED)
def _most_of(cutting: Cutting, instances: Instances, wish: Wish, limit: int) -> int:
    best = 0
    if limit > 0:
        for place in _places(cutting, instances, wish):
            after = in_order((*instances, place.instance))
            best = max(best, 1 + _most_of(cutting, after, wish, limit - 1))
            if best >= limit:
                break
    return best


def _suitable(cutting: Cutting, asked: Sized) -> list[MigProfile]:
    """Sufficient profiles, the smallest first.

    Only profiles that the operator allows; plain ones, unless one is named.
    """
    found: list[MigProfile] = []
    for profile in cutting.axis.profiles:
        if not cutting.may_make(profile) or not _meant(cutting, profile, asked.profile):
            continue
        if not profile.starts:
            continue
        if profile.memory_bytes < asked.memory_bytes or profile.core_milli < asked.core_milli:
            continue
        if profile.size * MILLI >= cutting.axis.length * asked.memory_milli:
            found.append(profile)
    return sorted(found, key=lambda profile: (profile.memory_bytes, profile.core_milli))


def _meant(cutting: Cutting, profile: MigProfile, name: str) -> bool:
    if not name:
        return profile.name in cutting.offered
    return profile.name == name or (profile.plain and profile.name.startswith(f"{name}."))


# --- one card ------------------------------------------------------------------------------------


def fits(card: Card, request: DeviceRequest, protocol: str) -> bool:
    """Whether some instance on the card can serve the request now; see `refusal`."""
    cutting = card.device.cutting
    if cutting is None or not _open(card) or _taken(card, request):
        return False
    if unsuitable(card.device, request.filter, protocol, by_instance=True) is not None:
        return False
    return bool(places(cutting, card.occupied, sized(request)))


def refusal(card: Card, request: DeviceRequest, protocol: str) -> CardReason | None:
    """Why no instance on the card can serve the request now, or None if one can."""
    minor, cutting = card.device.minor, card.device.cutting
    reason = unsuitable(card.device, request.filter, protocol, by_instance=True)
    if reason is not None or cutting is None:
        return reason
    if not _open(card):
        code = card.closed or ReasonCode.CARD_NOT_IDLE
        return CardReason(code, minor, detail=card.closed_detail or "shares are on it")
    if _taken(card, request):
        return CardReason(ReasonCode.CARD_NOT_IDLE, minor, detail="an instance is on it")
    if places(cutting, card.occupied, sized(request)):
        return None
    return CardReason(ReasonCode.MIG_PLACEMENT, minor, detail=_hindrance(card, cutting, request))


def too_few(card: Card, request: DeviceRequest) -> CardReason:
    """Why a card that could serve one instance does not serve the request."""
    asked, cutting, minor = sized(request), card.device.cutting, card.device.minor
    room = _most(card, card.occupied, asked, request.count)
    wanted = _suitable(cutting, asked) if cutting is not None else []
    name = _least(cutting, wanted).name if wanted and cutting is not None else "instance"
    detail = f"{room} of {request.count} {name} fit on card {minor}"
    return CardReason(ReasonCode.MIG_PLACEMENT, minor, detail=detail)


def _least(cutting: Cutting, wanted: Sequence[MigProfile]) -> MigProfile:
    """The smallest of these profiles that a geometry of the card has; if none has one, the smallest."""
    return next(
        (
            one
            for one in wanted
            if any(cutting.stage((one.at(start),)) is not None for start in one.starts)
        ),
        wanted[0],
    )


def _taken(card: Card, request: DeviceRequest) -> bool:
    """Whether the request needs a card without tenants, and this one has some.

    A request for all compute of a share is alone on its instance anyway.
    """
    used = card.tenants > 0 or bool(card.foreign)
    return request.unused and not request.exclusive and used


def _open(card: Card) -> bool:
    """Whether instances may be made on the card, including those taken for this decision."""
    return card.takes_instances and (card.tenants == 0 or bool(card.instances))


def _hindrance(card: Card, cutting: Cutting, request: DeviceRequest) -> str:
    """The obstacle, such as `needs 3g.20gb (start 0 or 4), blocked by 1g.5gb at 4`.

    Pods of other namespaces read it, so it names no pod.
    """
    asked = sized(request)
    wanted = _suitable(cutting, asked)
    if not wanted:
        return _nothing_like_it(cutting, asked)
    least = _least(cutting, wanted)
    starts = " or ".join(str(start) for start in least.starts)
    need = f"needs {least.name} (start {starts})"
    before, own = card.instances[: len(card.holders)], card.instances[len(card.holders) :]
    there = [(one, one.profile) for one in before]
    there += [(one, f"this pod's own {one.profile}") for one in own]
    there += [(one, "an instance that partage did not make") for one in card.foreign]
    free = [
        start
        for start in least.starts
        if not any(one.overlaps(least.at(start)) for one, _ in there)
    ]
    if not free:
        at = {
            (what, one.start): None
            for one, what in there
            if any(one.overlaps(least.at(start)) for start in least.starts)
        }
        return f"{need}, blocked by {_blocked(at)}"
    after = (cutting.axis.fault(in_order((*card.occupied, least.at(start)))) for start in free)
    why = next((fault for fault in after if fault), "")
    return f"{need}: {why}" if why else f"{need}: no geometry has it beside what is there"


def _blocked(blockers: Iterable[tuple[str, int]]) -> str:
    """The instances and their places, such as `1g.5gb at 0 and 4`."""
    at: dict[str, list[str]] = {}
    for what, start in blockers:
        at.setdefault(what, []).append(str(start))
    return ", ".join(f"{what} at {' and '.join(starts)}" for what, starts in at.items())


def _nothing_like_it(cutting: Cutting, asked: Sized) -> str:
    model = cutting.axis.model
    if asked.profile:
        made = [p for p in cutting.axis.profiles if cutting.may_make(p)]
        named = next((p for p in made if _meant(cutting, p, asked.profile) and p.starts), None)
        if named is not None:
            return (
                f"profile {named.name} of {model} has {binary(named.memory_bytes)} and "
                f"{named.core_milli // 10}% of the compute, which is less than is asked beside it"
            )
        known = ", ".join(profile.name for profile in made)
        return f"{model} offers no profile {asked.profile}; it has {known}"
    return f"no instance of {model} has as much as is asked"


def take(card: Card, place: Place) -> Need:
    """Make an instance on a scratch copy of a card; returns the changes (see `card.give`)."""
    card.core_free -= place.core_milli
    card.memory_free -= place.memory_bytes
    card.slots_free -= 1
    card.tenants += 1
    card.instances = (*card.instances, place.instance)
    return Need(place.core_milli, place.memory_bytes, instance=place.instance)


def serves(card: Card, place: Place, request: DeviceRequest) -> bool:
    """Whether an instance that the pod already has would serve another of its requests."""
    cutting = card.device.cutting
    return cutting is not None and place.instance.profile in wished(cutting, sized(request))


# --- several cards -------------------------------------------------------------------------------


def choices(
    cards: Sequence[Card],
    request: DeviceRequest,
    order: CardOrder,
    strategy: Strategy,
    work: Work | None = None,
) -> Iterator[list[tuple[Card, Place]]]:
    """Ways to serve a request by instances of some cards, best first; one card may give several.

    Args:
        cards: those that `refusal` passes.
        order: the pod's own order of cards.
        strategy: between cards, unless the pod has its own.
        work: the limit of work; None for that of one node.
    """
    work = work or Work(MOST_A_NODE)
    sets: Iterable[Sequence[Card]] = [cards]
    if request.scope is not None and request.scope is not Scope.NODE and request.count > 1:
        sets = _by_scope(cards, request.scope)
    for near in sets:
        there = {card.row: card.occupied for card in near}
        yield from _sets(near, request, order.strategy or strategy, there, work)


def _by_scope(cards: Sequence[Card], scope: Scope) -> Iterable[list[Card]]:
    """The cards of each NUMA node or PCIe switch; each alone for the closest scope."""
    near: dict[object, list[Card]] = {}
    for card in cards:
        there = card.device.topology
        if scope is Scope.DEVICE or there is None:
            key: object = card.row
        else:
            key = (there.numa, there.pcie) if scope is Scope.PCIE else there.numa
        near.setdefault(key, []).append(card)
    return near.values()


def _sets(
    cards: Sequence[Card],
    request: DeviceRequest,
    strategy: Strategy,
    there: Mapping[int, Instances],
    work: Work,
    missing: int | None = None,
) -> Iterator[list[tuple[Card, Place]]]:
    asked = sized(request)
    missing = request.count if missing is None else missing
    if missing == 0:
        yield []
        return
    work.done += A_LOOK * len(cards)
    if work.spent:
        return
    room = sum(_most(card, there[card.row], asked, missing) for card in cards)
    if room < missing:
        return
    options = [
        (card, place)
        for card in cards
        if card.device.cutting is not None
        for place in places(card.device.cutting, there[card.row], asked)
    ]
    options.sort(key=lambda option: _key(option[0], option[1], there[option[0].row], strategy))
    for card, place in options:
        after = {**there, card.row: in_order((*there[card.row], place.instance))}
        for others in _sets(cards, request, strategy, after, work, missing - 1):
            yield [(card, place), *others]


def _most(card: Card, there: Instances, asked: Sized, limit: int) -> int:
    cutting = card.device.cutting
    return 0 if cutting is None else most(cutting, there, asked, limit)


def _key(card: Card, place: Place, there: Instances, strategy: Strategy) -> tuple[int, ...]:
    """How good a place is, less is better."""
    used = sum(one.size for one in there)
    cost = (place.memory_bytes, place.core_milli, place.cost)
    minor = card.device.minor
    if strategy is Strategy.FIRST_FIT:
        return (minor, *cost)
    if strategy is Strategy.SPREAD:
        return (used, *cost, minor)
    if strategy is Strategy.BINPACK:
        return (-used, *cost, minor)
    return (*cost, minor)
