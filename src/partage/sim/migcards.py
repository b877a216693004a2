"""Cards that are cut into instances under one policy: ours, and the baselines to compare it with.

Our policy uses the same tables that place live instances. Most baselines differ from it only in the cost of a place, so
they are tables of costs over the same states. Three are different: templates, which cut an idle card once and for all,
claims, which follow the agent's order of devices, and the bound that may move instances within a card. The baselines
are rebuilt from descriptions (docs/sources/mig.md 4 and docs/sources/hami.md 5); none is another project's code.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from partage.agent.dra.ordering import Room, arranged
from partage.model.cutting import Layout
from partage.model.errors import InvalidValue
from partage.model.mig import MigAxis, MigSlice, in_order
from partage.placement.layouts import NOWHERE, Column, Layouts, column_of, tabulate
from partage.wire.claims import instance_name

Place = tuple[int, object]
"""A card, and the pool's data for removing the instance again."""

_Costs = NDArray[np.int64]
_Weights = Mapping[str, float]
_WIDE: Final = 1 << 10
"""More than any number of units, starts or positions of a card."""
_FINE: Final = 1 << 10


class Pool(Protocol):
    """Cards of one model under one policy."""

    def place(self, profile: str) -> Place | None:
        """Make an instance, or None if the policy has no room for it."""

    def remove(self, place: Place) -> None:
        """Remove an instance."""


class _Cells:
    """Cards by state; the place is the cheapest of a column."""

    def __init__(self, layouts: Layouts, cards: int, columns: Mapping[str, Column]) -> None:
        self._layouts = layouts
        self._columns = columns
        self._states = np.zeros(cards, np.int32)

    def place(self, profile: str) -> Place | None:
        found = self._layouts.cheapest(self._states, self._columns[profile])
        if found is None:
            return None
        card, one, self._states[found[0]] = found
        return card, one

    def remove(self, place: Place) -> None:
        card, one = place
        assert isinstance(one, MigSlice)  # noqa: S101 # what `place` returned
        self._states[card] = self._layouts.without(int(self._states[card]), one)


# --- baselines that only cost differently --------------------------------------------------------


def _by_card(layouts: Layouts, order: str) -> _Costs:
    """The rule between cards: `spread` takes the emptiest, `binpack` the fullest, else the first."""
    used = layouts.used.astype(np.int64)
    if order == "spread":
        return used
    if order == "binpack":
        free: _Costs = layouts.axis.length - used
        return free
    return np.zeros_like(used)


def _starts(layouts: Layouts) -> _Costs:
    starts = [one.start for one in layouts.positions]
    return np.tile(np.array(starts, np.int64), (len(layouts.masks), 1))


def _first_fit(layouts: Layouts, _: _Weights) -> _Costs:
    """The lowest start: the DRA scheduler takes devices in the order of their numbers."""
    return _starts(layouts)


def _hami_210(layouts: Layouts, _: _Weights) -> _Costs:
    """HAMi 2.10: 1g and 3g from the high start down, all others from the low start up."""
    starts = _starts(layouts)
    compute = np.array([layouts.axis.profile(one.profile).compute for one in layouts.positions])
    turned: _Costs = np.where(np.isin(compute, (1, 3))[None, :], _WIDE - 1 - starts, starts)
    return turned


def _hami_run(layouts: Layouts, _: _Weights) -> _Costs:
    """HAMi after 2.10: the longest remaining free run, then the most remaining positions."""
    runs = np.array([_longest(layouts, state) for state in range(len(layouts.masks))], np.int64)
    left = (layouts.after >= 0).sum(axis=1)
    cost: _Costs = (_WIDE - runs[layouts.after]) * _WIDE + _WIDE - left[layouts.after]
    return cost * _WIDE + _starts(layouts)


def _longest(layouts: Layouts, state: int) -> int:
    longest = end = 0
    for one in layouts.instances(state):
        longest, end = max(longest, one.start - end), one.start + one.size
    return max(longest, layouts.axis.length - end)


def _least_lost(layouts: Layouts, _: _Weights) -> _Costs:
    """The fewest maximal layouts lost, then the fuller card, then the high start."""
    masks, full = layouts.masks, (layouts.after < 0).all(axis=1)
    maximal = masks[full]
    within = np.array([int(((maximal & mask) == mask).sum()) for mask in masks], np.int64)
    lost = within[:, None] - within[layouts.after] + _WIDE * _WIDE
    return (
        (lost * _WIDE + _by_card(layouts, "binpack")[:, None]) * _WIDE + _WIDE - _starts(layouts)
    )


def _mfi(layouts: Layouts, _: _Weights) -> _Costs:
    """Least growth of fragmentation, for any request (after arXiv 2511.18906).

    A state's fragmentation: units of every position that is blocked although the card has as many units free as it
    takes.
    """
    sizes = np.array([one.size for one in layouts.positions])
    free = layouts.axis.length - layouts.used
    blocked = (layouts.after < 0) & (sizes[None, :] <= free[:, None])
    return _growth(layouts, (blocked * sizes[None, :]).sum(axis=1) * _FINE)


def _fgd(layouts: Layouts, weights: _Weights) -> _Costs:
    """Least growth of expected fragmentation, knowing the mix (after FGD, ATC 2023).

    A state's fragmentation: free units that a profile drawn from the mix could not use.
    """
    free = (layouts.axis.length - layouts.used).astype(np.float64)
    total = np.zeros(len(free))
    for name, weight in weights.items():
        usable = np.zeros((len(free), layouts.axis.length), np.bool_)
        for bit, one in enumerate(layouts.positions):
            if one.profile == name:
                usable[:, one.start : one.start + one.size] |= (layouts.after[:, bit] >= 0)[
                    :, None
                ]
        total += weight * (free - usable.sum(axis=1))
    return _growth(layouts, np.rint(total * _FINE).astype(np.int64))


def _growth(layouts: Layouts, fragments: _Costs) -> _Costs:
    growth = fragments[layouts.after] - fragments[:, None] + _WIDE * _FINE
    return (growth * _WIDE + _by_card(layouts, "binpack")[:, None]) * _WIDE + _starts(layouts)


# --- baselines that work otherwise ---------------------------------------------------------------


class _Templates:
    """HAMi up to 2.9: an idle card takes the first template with an entry that is large enough.

    The template stays until no instance is in use; a slot serves any request for at most its memory.
    """

    def __init__(self, axis: MigAxis, cards: int, order: str) -> None:
        self._sizes = {profile.name: profile.size for profile in axis.profiles}
        self._templates = _templates(axis)
        self._slots: list[list[int]] = [[] for _ in range(cards)]
        self._taken: list[set[int]] = [set() for _ in range(cards)]
        self._used = [0] * cards
        self._order = 1 if order == "spread" else -1

    def place(self, profile: str) -> Place | None:
        size = self._sizes[profile]
        for card in sorted(range(len(self._used)), key=lambda c: (self._order * self._used[c], c)):
            if not self._taken[card]:
                self._slots[card] = next((t for t in self._templates if max(t) >= size), [])
            for slot, room in enumerate(self._slots[card]):
                if room >= size and slot not in self._taken[card]:
                    self._taken[card].add(slot)
                    self._used[card] += room
                    return card, slot
        return None

    def remove(self, place: Place) -> None:
        card, slot = place
        assert isinstance(slot, int)  # noqa: S101 # what `place` returned
        self._taken[card].remove(slot)
        self._used[card] -= self._slots[card][slot]


def _templates(axis: MigAxis) -> list[list[int]]:
    """HAMi 2.9's table for the axis, as sizes: all 1g; three 2g and one 1g; two 3g; the card."""
    sizes = {p.compute: p.size for p in axis.profiles if p.plain}
    counts: Sequence[Sequence[tuple[int, int]]]
    if 7 in sizes:
        counts = ([(1, 7)], [(1, 1), (2, 3)], [(3, 2)], [(7, 1)])
    else:
        counts = [[(p.compute, p.count)] for p in axis.profiles if p.plain]
    return [[sizes[c] for c, times in template for _ in range(times)] for template in counts]


class _Movable:
    """A bound: instances may move within their card at any time; takes the fullest card with room."""

    def __init__(self, layouts: Layouts, cards: int) -> None:
        names = [profile.name for profile in layouts.axis.profiles]
        self._columns = {name: i for i, name in enumerate(names)}
        self._sizes = [profile.size for profile in layouts.axis.profiles]
        self._possible = {
            tuple(Counter(one.profile for one in layouts.instances(state))[name] for name in names)
            for state in range(len(layouts.masks))
        }
        self._held = [(0,) * len(names)] * cards

    def place(self, profile: str) -> Place | None:
        column = self._columns[profile]
        best: tuple[int, int] | None = None
        for card, held in enumerate(self._held):
            if _changed(held, column, 1) in self._possible:
                used = sum(n * size for n, size in zip(held, self._sizes, strict=True))
                best = max(best or (-1, 0), (used, -card))
        if best is None:
            return None
        card = -best[1]
        self._held[card] = _changed(self._held[card], column, 1)
        return card, column

    def remove(self, place: Place) -> None:
        card, column = place
        assert isinstance(column, int)  # noqa: S101 # what `place` returned
        self._held[card] = _changed(self._held[card], column, -1)


def _changed(held: tuple[int, ...], column: int, by: int) -> tuple[int, ...]:
    return (*held[:column], held[column] + by, *held[column + 1 :])


class _Published:
    """ResourceClaims: each takes the first instance that fits; the agent publishes its order after every change."""

    def __init__(self, axis: MigAxis, cards: int) -> None:
        self._axis = axis
        self._places = {
            instance_name(card, one): (card, one)
            for card in range(cards)
            for one in axis.positions
        }
        self._made: list[Layout] = [()] * cards
        self._order: list[str] = []
        self._publish()

    def place(self, profile: str) -> Place | None:
        for name in self._order:
            card, one = self._places.get(name, (0, None))
            if one is not None and one.profile == profile:
                made = in_order((*self._made[card], one))
                if self._axis.valid(made):
                    self._made[card] = made
                    self._publish()
                    return card, one
        return None

    def remove(self, place: Place) -> None:
        card, one = place
        self._made[card] = tuple(made for made in self._made[card] if made != one)
        self._publish()

    def _publish(self) -> None:
        length = self._axis.length
        left = {
            card: Room(not made, length - sum(one.size for one in made), self._axis, made)
            for card, made in enumerate(self._made)
        }
        self._order = arranged(self._order, left)


# --- the policies --------------------------------------------------------------------------------

_COSTS: Final[Mapping[str, tuple[Callable[[Layouts, _Weights], _Costs], str]]] = MappingProxyType(
    {
        "first-fit": (_first_fit, "first"),
        "first-fit-binpack": (_first_fit, "binpack"),
        "first-fit-spread": (_first_fit, "spread"),
        "hami-2.10": (_hami_210, "spread"),
        "hami-2.10-binpack": (_hami_210, "binpack"),
        "hami-run": (_hami_run, "spread"),
        "hami-run-binpack": (_hami_run, "binpack"),
        "least-lost": (_least_lost, ""),
        "mfi": (_mfi, ""),
        "fgd": (_fgd, ""),
    }
)

POLICIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "partage": "the policy of the engine",
        "hami-2.9": "HAMi 2.9's default: templates, emptiest card first",
        "hami-2.9-binpack": "the same, fullest card first",
        "hami-2.10": "HAMi 2.10's default: fixed starts, emptiest card first",
        "hami-2.10-binpack": "the same, fullest card first",
        "hami-run": "HAMi after 2.10: longest free run, emptiest card first",
        "hami-run-binpack": "the same, fullest card first",
        "claims": "ResourceClaims: the first in the agent's order of devices",
        "first-fit": "lowest card, lowest start, as the DRA scheduler does",
        "first-fit-binpack": "fullest card, lowest start",
        "first-fit-spread": "emptiest card, lowest start",
        "least-lost": "fewest maximal layouts lost",
        "mfi": "least growth of fragmentation, mix unknown",
        "fgd": "least growth of expected fragmentation, mix known",
        "movable": "a bound, not a policy: instances may move on their card",
    }
)
"""The policies by name."""


def pools(
    policy: str, axis: MigAxis, profiles: Sequence[str], weights: _Weights | None = None
) -> Callable[[int], Pool]:
    """A maker of idle pools with a given number of cards; tables are computed once.

    `policy`: a name of `POLICIES`. `weights`: frequencies, for policies that know the mix; equal by default. Raises
    `InvalidValue`: there is no such policy, or the model lacks a profile or known positions.
    """
    if policy not in POLICIES:
        raise InvalidValue(f"no policy {policy!r}; there are {', '.join(POLICIES)}")
    for name in profiles:
        axis.profile(name)
    if not axis.length:
        raise InvalidValue(f"{axis.model}: where its instances may start is not published")
    wanted = tuple(p for p in axis.profiles if p.plain or p.name in profiles)
    own = replace(axis, profiles=wanted)
    if policy.startswith("hami-2.9"):
        order = "binpack" if policy.endswith("binpack") else "spread"
        return lambda cards: _Templates(own, cards, order)
    if policy == "claims":
        return lambda cards: _Published(own, cards)
    layouts = tabulate(own)
    if policy == "movable":
        return lambda cards: _Movable(layouts, cards)
    if policy == "partage":
        columns = {name: layouts.column((name,)) for name in profiles}
    else:
        cost, order = _COSTS[policy]
        costs = cost(layouts, weights or dict.fromkeys(profiles, 1 / max(len(profiles), 1)))
        columns = {name: _column(layouts, costs, name, order) for name in profiles}
    return lambda cards: _Cells(layouts, cards, columns)


def _column(layouts: Layouts, costs: _Costs, name: str, order: str) -> Column:
    """Costs of one profile as a column; if an order is given, only the order decides between cards."""
    fits = np.array([one.profile == name for one in layouts.positions])[None, :]
    column = column_of(np.where(fits & (layouts.after >= 0), costs, NOWHERE))
    if not order:
        return column
    between = np.where(column.cost == NOWHERE, NOWHERE, _by_card(layouts, order))
    return Column(between, column.position)
