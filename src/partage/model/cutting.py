"""How one card may be cut into instances: its axis, and the bounds that an operator set.

Without bounds every layout is allowed. A list of allowed profiles limits the instances. A list of geometries limits the
layouts. The instances on a card must be part of one geometry, and the first suitable one is taken (the HAMi document:
the templates are searched in order).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from partage.model.mig import MigAxis, MigProfile, MigSlice

Layout = tuple[MigSlice, ...]


@dataclass(frozen=True, slots=True)
class Geometry:
    """One layout that an operator allows.

    Attributes:
        number: its place in the operator's list, from 0.
        slots: (profile, how many), in the order written.
        layouts: every way to arrange them on the axis; the first is the usual one.
    """

    number: int
    slots: tuple[tuple[str, int], ...]
    layouts: tuple[Layout, ...]

    @property
    def usual(self) -> Layout:
        """The usual arrangement as numbered slots: in the order written, from the highest start.

        The first instance of a kind is made at the highest possible start, so it has the first number.
        """
        return self.numbered(self.layouts[0])

    def numbered(self, layout: Layout) -> Layout:
        """The instances of an arrangement in the order of their slots."""
        return tuple(
            one
            for name in dict.fromkeys(name for name, _count in self.slots)
            for one in sorted(layout, key=lambda one: -one.start)
            if one.profile == name
        )


@dataclass(frozen=True)
class Cutting:
    """The instances into which one card may be cut.

    Attributes:
        axis: its profiles, with memory and compute as this card counts them.
        offered: names of profiles that may be chosen by amounts; others only by name.
        allowed: names of profiles that may be made at all; empty for every one.
        geometries: allowed layouts, in order of preference; empty for any layout.
    """

    axis: MigAxis
    offered: frozenset[str]
    allowed: frozenset[str] = frozenset()
    geometries: tuple[Geometry, ...] = ()

    def __hash__(self) -> int:
        """The hash of its parts, computed once because the ledger needs it for every change of a card."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.axis, self.offered, self.allowed, self.geometries))

    def may_make(self, profile: MigProfile) -> bool:
        """Whether the operator allows the profile."""
        return not self.allowed or profile.name in self.allowed

    def stage(self, instances: Layout) -> int | None:
        """The first geometry that has room for all the instances; None if none has.

        Without geometries every valid layout is stage 0.
        """
        if not self.geometries:
            return 0
        held = set(instances)
        for number, geometry in enumerate(self.geometries):
            if any(held <= set(layout) for layout in geometry.layouts):
                return number
        return None


def arrangements(axis: MigAxis, slots: Iterable[tuple[str, int]]) -> tuple[Layout, ...]:
    """Every way to put these numbers of instances of each profile on one card, lowest starts first."""
    wanted = [name for name, count in slots for _ in range(count)]
    # The largest first: they have the fewest starts.
    wanted.sort(key=lambda name: (-axis.profile(name).size, name))
    found = (sorted(layout, key=lambda one: one.start) for layout in _arranged(axis, wanted, ()))
    return tuple(dict.fromkeys(map(tuple, found)))


def _arranged(axis: MigAxis, wanted: list[str], so_far: Layout) -> Iterator[Layout]:
    if not wanted:
        yield so_far
        return
    name, *rest = wanted
    profile = axis.profile(name)
    same = [one.start for one in so_far if one.profile == name]
    for start in profile.starts:
        if same and start <= max(same):
            continue  # equal instances in ascending order: each set of positions once
        longer = (*so_far, profile.at(start))
        if axis.valid(longer):
            yield from _arranged(axis, rest, longer)
