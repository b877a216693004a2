"""The plain twin of `placement.layouts`: the same rule, said with sets.

It knows cards by their instances and asks the model what is valid; no numbers for states, no
tables. It is slow, and only there to be compared with.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache

from partage.model.mig import MigAxis, MigSlice, layouts
from partage.placement.layouts import Allowed, Wish

Instances = frozenset[MigSlice]


class Plain:
    """One model of card and one configuration."""

    def __init__(self, axis: MigAxis, allowed: Allowed) -> None:
        self.axis = axis
        self.allowed = allowed
        self._earned = lru_cache(maxsize=None)(self._earns)
        names = {p.name for p in axis.profiles}
        if allowed.profiles is not None:
            names &= allowed.profiles
        if allowed.geometries is not None:
            names &= {name for geometry in allowed.geometries for name, _ in geometry}
        self._names = names
        plain = {p.name for p in axis.profiles if p.plain} & names
        self._imagined = sorted(plain or names)

    def choose(self, cards: Sequence[Instances], wish: Wish) -> tuple[int, MigSlice] | None:
        """The card and the instance to make there, or None."""
        places = [
            (wish.index(one.profile), not card, lost, -used, -one.start, number, one)
            for number, card in enumerate(cards)
            for one in self.open(card, wish)
            for lost in (self.worth(card) - self.worth(card | {one}),)
            for used in (sum(other.size for other in card),)
        ]
        if not places:
            return None
        *_, number, one = min(places, key=lambda place: place[:-1])
        return number, one

    def open(self, card: Instances, wish: Wish) -> list[MigSlice]:
        """Places for the wish on one card: those of its first geometry that has any."""
        fitting = [
            one
            for one in self.axis.positions
            if one.profile in wish and self.geometry(card, one) is not None
        ]
        first = min((self.geometry(card, one) or 0 for one in fitting), default=0)
        return [one for one in fitting if self.geometry(card, one) == first]

    def geometry(self, card: Instances, one: MigSlice) -> int | None:
        """Number of the first geometry that holds the card with one more instance."""
        there = card | {one}
        if one in card or one.profile not in self._names or not self.axis.valid(there):
            return None
        if self.allowed.geometries is None:
            return 0
        for number, geometry in enumerate(self.allowed.geometries):
            wanted: Counter[str] = Counter()
            for name, times in geometry:
                wanted[name] += times
            if self._completes(there, wanted - Counter(i.profile for i in there), wanted):
                return number
        return None

    def _completes(self, card: Instances, missing: Counter[str], wanted: Counter[str]) -> bool:
        """Whether the card's instances are part of an arrangement of the geometry."""
        if Counter(one.profile for one in card) - wanted:
            return False
        if not missing:
            return True
        name = min(missing)
        return any(
            self._completes(card | {one}, missing - Counter([name]), wanted)
            for one in self.axis.positions
            if one.profile == name and one not in card and self.axis.valid(card | {one})
        )

    def worth(self, card: Instances) -> int:
        """What the card's room is worth, in steps of which an idle card's units have 2,048."""
        return round(self._earned(card) / max(self.axis.length, 1) * 2_048)

    def _earns(self, card: Instances) -> float:
        """Memory units that a stream of requests still gets; another follows with chance 0.9."""
        gains, refused = 0.0, 0
        for name in self._imagined:
            follow = [
                self._earned(card | {one})
                for one in self.axis.positions
                if one.profile == name and self.geometry(card, one) is not None
            ]
            if follow:
                gains += self.axis.profile(name).size + max(follow)
            else:
                refused += 1
        share = 0.9 / len(self._imagined)
        return share * gains / (1 - share * refused) if gains else 0.0


def maximal_layouts(
    axis: MigAxis, profiles: Collection[str] | None = None
) -> tuple[tuple[MigSlice, ...], ...]:
    """The layouts to which no further instance can be added.

    Args:
        axis: the model of card.
        profiles: names that may be used; None for all.
    """
    usable = [p for p in axis.positions if profiles is None or p.profile in profiles]
    return tuple(
        found
        for found in layouts(axis, profiles)
        if not any(axis.valid((*found, one)) for one in usable if one not in found)
    )
