"""Hardware instances of a card: profiles, the axis they are cut from, and the valid sets.

A card is an axis of memory units with counters of engines. A profile takes a run of units from one of its legal starts;
an instance (`MigSlice`) is a profile at a start. A set of instances is a layout if their runs are disjoint and every
shared counter suffices. An instance never moves while it exists, so layouts differ by position (docs/sources/mig.md 2
and 3, the HAMi document).

The profiles determine the length of the axis: cards with 4, 8 and 12 units exist.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

from partage.model.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A hardware instance: profile name, first memory unit, units taken."""

    profile: str
    start: int
    size: int

    def overlaps(self, other: "MigSlice") -> bool:
        """Whether both take one unit of the same card."""
        return self.start < other.start + other.size and other.start < self.start + self.size


def in_order(instances: Iterable[MigSlice]) -> tuple[MigSlice, ...]:
    """The instances by start, which makes equal sets equal tuples."""
    return tuple(sorted(instances, key=lambda one: (one.start, one.size, one.profile)))


ENGINES: Final = ("copy", "decoder", "encoder", "jpeg", "ofa")
"""Counters of a card that its instances share, by name."""


@dataclass(frozen=True, slots=True)
class Engines:
    """How many engines of each kind: copy, video decode and encode, JPEG, optical flow."""

    copy: int = 0
    decoder: int = 0
    encoder: int = 0
    jpeg: int = 0
    ofa: int = 0

    def __add__(self, other: "Engines") -> "Engines":
        """The sum of both."""
        return Engines(  # written out: it is most of the time of reading a card's layouts
            self.copy + other.copy,
            self.decoder + other.decoder,
            self.encoder + other.encoder,
            self.jpeg + other.jpeg,
            self.ofa + other.ofa,
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers in the order of `ENGINES`."""
        return self.copy, self.decoder, self.encoder, self.jpeg, self.ofa

    def missing(self, within: "Engines") -> str:
        """Name of the first kind of which `within` has too few; empty if it has enough."""
        for name, wanted, there in zip(ENGINES, self.counts, within.counts, strict=True):
            if wanted > there:
                return name
        return ""


class MigAttribute(StrEnum):
    """A difference of a profile from the plain one with as many compute slices."""

    MEDIA = "media"  # one set of the media engines
    ALL_MEDIA = "all-media"  # every media engine of the card
    NO_MEDIA = "no-media"  # none of them
    GRAPHICS = "graphics"  # may draw
    DOUBLE_MEMORY = "double-memory"  # twice the memory


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One size in which instances of a card can be made.

    Attributes:
        name: the name of the card's driver, such as `1g.10gb+me`.
        compute: compute slices.
        size: memory units taken.
        starts: legal first units, ascending; empty when they are not known.
        memory_bytes: memory of an instance; 0 when it is not known.
        core_milli: compute of an instance in thousandths of the card, rounded down.
        count: the most instances of it that the driver makes on one card.
        engines: engines of an instance; None when they are not known.
        id: the number that creating an instance takes; it means nothing on another model.
        kind: the driver's constant for asking about the profile.
        attributes: its differences; empty for a plain profile.
        since: the first driver branch that has it; 0 for all.
    """

    name: str
    compute: int
    size: int
    starts: tuple[int, ...]
    memory_bytes: int
    core_milli: int
    count: int
    engines: Engines | None = None
    id: int = 0
    kind: int = 0
    attributes: frozenset[MigAttribute] = frozenset()
    since: int = 0

    def __post_init__(self) -> None:
        if not self.name or self.size < 1 or self.count < 1:
            raise InvalidValue(f"MIG profile {self.name!r}: name, size and count must be given")
        if any(start < 0 for start in self.starts) or list(self.starts) != sorted(
            set(self.starts)
        ):
            raise InvalidValue(f"MIG profile {self.name!r}: starts must ascend from 0 or more")

    @property
    def plain(self) -> bool:
        """Whether it has only compute and memory; only such profiles are chosen by amounts."""
        return not self.attributes

    def at(self, start: int) -> MigSlice:
        """The instance at a start. Raises `InvalidValue`: the start is not legal."""
        if start not in self.starts:
            raise InvalidValue(
                f"{self.name} cannot start at unit {start}, only at {_or(self.starts)}"
            )
        return MigSlice(self.name, start, self.size)


@dataclass(frozen=True)
class MigAxis:
    """The instances into which one model of card can be cut.

    Attributes:
        model: short name of the model, for people.
        profiles: every size, in the driver's order.
        apart: pairs of profile names that may not be on one card together.
    """

    model: str
    profiles: tuple[MigProfile, ...]
    apart: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, times in Counter(profile.name for profile in self.profiles).items():
            if times > 1:
                raise InvalidValue(f"{self.model}: MIG profile {name} is listed {times} times")

    def __hash__(self) -> int:
        """The hash of its parts, computed once because it is used for every card of a node."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.model, self.profiles, self.apart))

    @cached_property
    def shape(self) -> "MigAxis":
        """The same without amounts. It determines the layouts, and is equal for cards that differ only in amounts."""
        return replace(
            self, profiles=tuple(replace(p, memory_bytes=0, core_milli=0) for p in self.profiles)
        )

    @cached_property
    def length(self) -> int:
        """Memory units of the card; 0 when no position is known."""
        return max((s + p.size for p in self.profiles for s in p.starts), default=0)

    @cached_property
    def engines(self) -> Engines | None:
        """Engines of the card: those of the profile that is the whole card; None if unknown."""
        whole = (p.engines for p in self.profiles if p.size == self.length)
        found = [engines for engines in whole if engines is not None]
        return max(found, key=lambda engines: engines.counts, default=None)

    @cached_property
    def positions(self) -> tuple[MigSlice, ...]:
        """Every (profile, start), by profile, then by start."""
        return tuple(profile.at(start) for profile in self.profiles for start in profile.starts)

    @cached_property
    def _by_name(self) -> dict[str, MigProfile]:
        return {profile.name: profile for profile in self.profiles}

    def profile(self, name: str) -> MigProfile:
        """The profile of that name. Raises `InvalidValue`: the model has none; the message lists its profiles."""
        found = self._by_name.get(name)
        if found is None:
            known = ", ".join(self._by_name)
            raise InvalidValue(f"{self.model} has no MIG profile {name!r}; it has {known}")
        return found

    def fault(self, instances: Iterable[MigSlice]) -> str:
        """Why the instances are no layout of this card; empty if they are one."""
        taken: dict[int, MigSlice] = {}
        counts: Counter[str] = Counter()
        used: Engines | None = Engines()
        for one in instances:
            profile = self._by_name.get(one.profile)
            if profile is None:
                return f"{self.model} has no MIG profile {one.profile!r}"
            if one.start not in profile.starts or one.size != profile.size:
                return f"{one.profile} cannot take {one.size} units from unit {one.start}"
            for unit in range(one.start, one.start + one.size):
                if unit in taken:
                    other = taken[unit]
                    return (
                        f"{one.profile} at {one.start} and {other.profile} at {other.start} "
                        f"both take unit {unit}"
                    )
                taken[unit] = one
            counts[one.profile] += 1
            used = None if used is None or profile.engines is None else used + profile.engines
        return self.overdrawn(counts, used)

    def overdrawn(self, counts: Mapping[str, int], used: Engines | None) -> str:
        """Why a card has fewer instances of a profile, or engines, than these; empty if it has enough."""
        for name, times in counts.items():
            most = self._by_name[name].count
            if times > most:
                return f"{times} instances of {name}, of which a card has {most} at most"
        if used is not None and self.engines is not None:
            kind = used.missing(self.engines)
            if kind:
                return f"together they need more engines of kind {kind} than the card has"
        for one, other in self.apart:
            if one in counts and other in counts:
                return f"{one} and {other} cannot be on one card with this driver"
        return ""

    def valid(self, instances: Iterable[MigSlice]) -> bool:
        """Whether the instances can exist on one card together."""
        return not self.fault(instances)


def layouts(
    axis: MigAxis, profiles: Collection[str] | None = None
) -> Iterator[tuple[MigSlice, ...]]:
    """Every layout but the empty one, by position, instances by start. `profiles`: usable names; None for all."""
    usable = [p for p in axis.positions if profiles is None or p.profile in profiles]
    yield from _longer(axis, sorted(usable, key=lambda one: one.start), (), {}, Engines())


def _longer(
    axis: MigAxis,
    usable: list[MigSlice],
    so_far: tuple[MigSlice, ...],
    counts: Mapping[str, int],
    used: Engines | None,
) -> Iterator[tuple[MigSlice, ...]]:
    """The layouts that begin with these instances; each is a legal one behind the last, so their units are disjoint."""
    end = so_far[-1].start + so_far[-1].size if so_far else 0
    for one in usable:
        if one.start < end:
            continue
        more = {**counts, one.profile: counts.get(one.profile, 0) + 1}
        engines = axis.profile(one.profile).engines
        together = None if used is None or engines is None else used + engines
        if not axis.overdrawn(more, together):
            found = (*so_far, one)
            yield found
            yield from _longer(axis, usable, found, more, together)


def _or(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers)) or "positions that no vendor published"
