"""Which instances a card may be cut into, under the operator's configuration for its model.

The node's PCI product id identifies the card, or its name if there is none. A table's entry is then matched against
that model, so a stock `NVIDIA H100 80GB HBM3` matches the tables' `H100-SXM5-80GB`. The report of the node's own driver
goes before the built-in table.

Source: the HAMi document (`knownMigGeometries`); docs/sources/hami.md 2.2, 2.3 and 3 (`migProfiles`);
docs/sources/mig.md 1.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Final

from partage.model.cutting import Cutting, Geometry, arrangements
from partage.model.device import MILLI, ForeignInstance
from partage.model.errors import InvalidValue
from partage.model.mig import MigAxis, MigProfile, layouts
from partage.vendors.families.hami.cards import RegisteredProfile
from partage.vendors.mig import MIG_CARDS, MigCard, find_card, find_profile, for_driver
from partage.vendors.settings import HamiSettings, MigGeometry
from partage.vendors.traits import NVIDIA

_MIB: Final = 1 << 20
_GIGABYTES: Final = re.compile(r"[0-9]+gb")
_MOST_UNITS: Final = 32
_MOST_POSITIONS: Final = 64
_MOST_LAYOUTS: Final = 4_000
"""More than any card has; larger placement tables cannot be built, and even the count of layouts would take seconds."""
_COMPUTE: Final = re.compile(r"([0-9]{1,2})g\.")
_Table = tuple[tuple[tuple[str, int, int], ...], ...]


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The facts of a card that determine its instances.

    Attributes:
        model: its driver's name for it.
        product: PCI product id, empty when unknown.
        memory_bytes: memory of the whole card.
        branch: first number of the driver's version, 0 when unknown.
        profiles: the driver's instances as HAMi's plugin reports them; empty for none.
        axis: the same from our own agent, which overrides them; None for none.
    """

    model: str
    product: str
    memory_bytes: int
    core_milli: int
    branch: int = 0
    profiles: tuple[RegisteredProfile, ...] = ()
    axis: MigAxis | None = None


def cutting_of(card: CardFacts, settings: HamiSettings) -> tuple[Cutting | None, str]:
    """The card's cutting, and notes for the operator; None if it cannot be cut."""
    return _cutting(card, settings.geometries, settings.mig_allowlist)


@lru_cache(maxsize=256)
def _cutting(
    card: CardFacts,
    geometries: tuple[MigGeometry, ...],
    allowlist: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...],
) -> tuple[Cutting | None, str]:
    known = find_card(card.model, card.product)
    axis = _by_driver(card, known) or (known.axis if known is not None else None)
    if axis is None:
        return None, (
            f"{card.model or 'a card of unknown model'} is not known to support MIG, which needs "
            "Ampere or newer; the card takes no instance"
        )
    if not axis.length:
        return None, f"where instances of {axis.model} may start is not published"
    if card.branch:
        axis = for_driver(axis, card.branch)
    table = next((e.layouts for e in geometries if _named(e.models, card.model, known)), None)
    allowed = next((p for models, p in allowlist if _named(models, card.model, known)), ())
    axis, called, unknown = _renamed(axis, table or (), allowed)
    slots = None
    if table is not None:
        slots = [[(called.get(name, name), count) for name, _, count in one] for one in table]
    kept = {called.get(name, name) for name in allowed}
    return _bounded(_measured(axis, card), slots, kept, unknown)


def foreign_of(
    cutting: Cutting, instances: tuple[ForeignInstance, ...]
) -> tuple[tuple[ForeignInstance, ...], str]:
    """Foreign instances in this card's names of profiles, and why they are impossible; else empty.

    The operator's bounds do not count: an existing instance is a fact.
    """
    found = []
    for one in instances:
        profile = find_profile(cutting.axis, one.instance.profile)
        called = one.instance.profile if profile is None else profile.name
        found.append(replace(one, instance=replace(one.instance, profile=called)))
    fault = cutting.axis.fault(one.instance for one in found)
    return tuple(found), fault and f"instances that partage did not make are not possible: {fault}"


def _bounded(
    axis: MigAxis, table: list[list[tuple[str, int]]] | None, allowed: set[str], unknown: list[str]
) -> tuple[Cutting | None, str]:
    notes = [f"{axis.model} has no profile {name}" for name in unknown]
    names = {profile.name for profile in axis.profiles}
    kept = names & allowed
    offered = kept | {profile.name for profile in axis.profiles if profile.plain}
    if allowed and not kept:
        return None, "; ".join([*notes, "migProfileAllowlist names no profile that it has"])
    found: list[Geometry] = []
    for number, slots in enumerate(table or ()):
        try:
            ways = arrangements(axis, tuple(slots))
        except InvalidValue:
            continue  # reported above: a profile that the card does not have
        if ways:
            found.append(Geometry(number, tuple(slots), ways))
        else:
            notes.append(f"geometry {number} of knownMigGeometries cannot be made on one card")
        offered |= {name for name, _count in slots}
    if table is not None and not found:
        return None, "; ".join([*notes, "no geometry of knownMigGeometries can be made on it"])
    if kept:
        offered &= kept
    return Cutting(axis, frozenset(offered), frozenset(kept), tuple(found)), "; ".join(notes)


def _by_driver(card: CardFacts, known: MigCard | None) -> MigAxis | None:
    """The axis that the card's own driver reports; None if it reports nothing usable.

    Profiles at the published places keep their published names, because records contain them. Drivers round gigabytes
    differently, and a newer driver must not make running instances unknown.
    """
    told = card.axis if card.axis is not None and card.axis.length else _reported(card)
    if told is None or told.length > _MOST_UNITS:
        return None
    if sum(len(one.starts) for one in told.profiles) > _MOST_POSITIONS:
        return None
    table = known.axis if known is not None else MigAxis("", ())
    found = {
        same.name: _as_published(profile, same)
        for profile in told.profiles
        if (same := find_profile(table, profile.name)) is not None
        and (same.size, same.starts) == (profile.size, profile.starts)
    }
    if len(found) == len(told.profiles):
        return MigAxis(table.model, tuple(found.values()))
    return None if _boundless(told.shape) else told


@lru_cache(maxsize=256)
def _boundless(shape: MigAxis) -> bool:
    """Whether there are too many layouts for tables."""
    return any(islice(layouts(shape), _MOST_LAYOUTS, None))


def _as_published(told: MigProfile, same: MigProfile) -> MigProfile:
    """A profile with the driver's amounts, and published ones for those that it may not report."""
    return replace(
        told,
        name=same.name,
        count=min(told.count, same.count),
        engines=told.engines if same.engines is None else same.engines,
        attributes=told.attributes or same.attributes,
    )


def _reported(card: CardFacts) -> MigAxis | None:
    """The axis that the node's driver reports; engines are unknown then."""
    profiles = []
    for told in card.profiles:
        starts = tuple(sorted({place.start for place in told.places}))
        if not starts:
            continue
        compute = _COMPUTE.match(told.name)
        profiles.append(
            MigProfile(
                name=told.name,
                compute=told.slices or (int(compute[1]) if compute else 1),
                size=told.places[0].size,
                starts=starts,
                memory_bytes=told.memory_mib * _MIB,
                core_milli=min(told.cores, 100) * MILLI // 100,
                count=len(starts),
            )
        )
    names = {profile.name for profile in profiles}
    if not profiles or len(names) < len(profiles):
        return None
    return MigAxis(card.model, tuple(profiles))


def _renamed(
    axis: MigAxis, table: _Table, allowed: tuple[str, ...]
) -> tuple[MigAxis, dict[str, str], list[str]]:
    """The axis with the operator's names and amounts, and the names that match none of its profiles.

    The operator may spell one profile in several ways. The last counts, and the second value has it for each of them.
    """
    told = {name: memory for layout in table for name, memory, _count in layout}
    told |= {name: told.get(name, 0) for name in allowed}
    found = {name: find_profile(axis, name) for name in told}
    new = {profile.name: profile for profile in axis.profiles}
    for name, profile in found.items():
        if profile is not None:
            before = new[profile.name]
            memory = told[name] * _MIB or before.memory_bytes
            new[profile.name] = replace(before, name=name, memory_bytes=memory)
    called = {name: new[p.name].name for name, p in found.items() if p is not None}
    apart = tuple((new[one].name, new[other].name) for one, other in axis.apart)
    unknown = [name for name, profile in found.items() if profile is None]
    return replace(axis, profiles=tuple(new.values()), apart=apart), called, unknown


def _measured(axis: MigAxis, card: CardFacts) -> MigAxis:
    """The axis with amounts whose sum never exceeds the card's own, however it is cut.

    No instance counts for more memory than its part of the axis. One whose memory is not published counts for exactly
    that.
    """

    def measured(profile: MigProfile) -> MigProfile:
        part = card.memory_bytes * profile.size // axis.length
        memory = min(profile.memory_bytes, part) if profile.memory_bytes else part
        core = profile.core_milli
        if card.core_milli != MILLI:
            core = core * card.core_milli // MILLI
        return replace(profile, memory_bytes=memory, core_milli=core)

    return replace(axis, profiles=tuple(measured(profile) for profile in axis.profiles))


def _named(models: tuple[str, ...], model: str, card: MigCard | None) -> bool:
    if any(name.casefold() in model.casefold() for name in models):
        return True
    return card is not None and any(_means(name, card) for name in models)


def _means(name: str, card: MigCard) -> bool:
    """Whether an operator's name for a model, such as `H100-SXM5-80GB`, matches the card."""
    found = find_card(name)
    if found is not None:
        return found.name == card.name
    words, sizes = _words(name)
    alike = [c for c in MIG_CARDS.values() if not sizes or _words(c.name)[1] == sizes]
    if card not in alike:
        return False
    longest = max((len(own) for c in alike for own in _names(c) if own <= words), default=0)
    return any(own <= words and len(own) == longest for own in _names(card))


def _names(card: MigCard) -> list[frozenset[str]]:
    """The words of the card's names without the size of its memory."""
    return [own for name in (card.name, *card.aliases) if (own := _words(name)[0])]


def _words(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of a model's name, and those of them that are a size of memory."""
    words = {word for word in re.split(r"[\s\-_/]+", name.casefold()) if word} - {NVIDIA.name}
    sizes = {word for word in words if _GIGABYTES.fullmatch(word)}
    return frozenset(words - sizes), frozenset(sizes)
