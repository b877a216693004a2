"""Tables of one model of card for decisions on instances, computed once.

A *state* is a layout, numbered; state 0 is the idle card. For every state and position the tables hold the next state,
whether an operator's configuration permits it, and its cost. The cost is the loss in the worth of the card's room. Room
is worth the memory units that it would earn from a stream of requests. The stream ends by chance, all plain profiles
are equally likely, and each is put where it leaves the most. This refuses less than counting the maximal layouts that
stay within reach, and needs no knowledge of the future (docs/performance.md).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from partage.inventory.plane import Bools, Floats, Ints
from partage.model.errors import InvalidValue
from partage.model.mig import Engines, MigAxis, MigSlice

Wish = tuple[str, ...]
"""One wanted instance: its accepted profiles, the preferred one first."""

Geometry = tuple[tuple[str, int], ...]
"""A layout without positions: how many instances of which profile."""

NOWHERE: Final = np.iinfo(np.int64).max
"""The cost if nothing fits."""

_MOST_STATES: Final = 50_000
_MOST_POSITIONS: Final = 64
_GOES_ON: Final = 0.9
"""Chance of one more request in the imagined stream."""
_STEPS: Final = 1 << 11
"""Steps in which a card's worth is counted; a smaller difference is a tie."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which layouts an operator permits; by default every valid one.

    Attributes:
        profiles: names that may be made; None for all (HAMi's `migProfileAllowlist`).
        geometries: tried in order; a card takes the first that holds the new and the running instances, in any
            arrangement, because a geometry fixes only numbers (HAMi's `knownMigGeometries`). None for any layout.
    """

    profiles: frozenset[str] | None = None
    geometries: tuple[Geometry, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The best position for one wish, by state.

    Attributes:
        cost: lower is better; `NOWHERE` if the wish does not fit.
        position: index into `Layouts.positions`; -1 if it does not fit.
    """

    cost: Ints
    position: NDArray[np.int16]


@dataclass(frozen=True, slots=True, eq=False)
class Layouts:
    """Tables of one model and one configuration; made by `tabulate`.

    Attributes:
        positions: every (profile, start), in the order of the columns.
        masks: by state: its instances as bits, numbered like `positions`.
        after: by state and position: the next state; -1 if the card has no room.
        geometry: by state and position: the first permitted geometry (0 if any layout is permitted); -1 if none is, or
            the card has no room.
        used: by state: memory units taken.
        worth: by state: the future earnings of the card's room, in steps.
    """

    axis: MigAxis
    positions: tuple[MigSlice, ...]
    masks: NDArray[np.uint64]
    after: NDArray[np.int32]
    geometry: NDArray[np.int16]
    used: NDArray[np.int16]
    worth: Ints
    _bits: Mapping[MigSlice, int]
    _states: Mapping[int, int]
    _columns: dict[Wish, Column] = field(default_factory=dict)

    def state(self, instances: Iterable[MigSlice]) -> int:
        """The number of the state that the instances make. Raises `InvalidValue`: they are no layout of this card."""
        there = tuple(instances)
        mask = 0
        for one in there:
            mask |= 1 << self._bits.get(one, _MOST_POSITIONS)
        found = self._states.get(mask)
        if found is None or mask.bit_count() != len(there):
            why = self.axis.fault(there) or "they cannot be made in any order"
            raise InvalidValue(f"{self.axis.model}: not a layout: {why}")
        return found

    def without(self, state: int, instance: MigSlice) -> int:
        """The state without one of its instances. Raises `InvalidValue`: the state has no such instance."""
        bit, mask = self._bits.get(instance), int(self.masks[state])
        if bit is None or not mask >> bit & 1:
            raise InvalidValue(f"{self.axis.model}: no {instance.profile} at {instance.start}")
        return self._states[mask & ~(1 << bit)]

    def instances(self, state: int) -> tuple[MigSlice, ...]:
        """The instances of a state, by start."""
        mask = int(self.masks[state])
        found = (one for bit, one in enumerate(self.positions) if mask >> bit & 1)
        return tuple(sorted(found, key=lambda one: one.start))

    def column(self, wish: Wish) -> Column:
        """The best position for the wish in every state, and its cost. Raises `InvalidValue`."""
        known = self._columns.get(wish)
        if known is None:
            known = self._columns[wish] = column_of(self.costs(wish))
        return known

    def cheapest(
        self, states: NDArray[np.int32], column: Column
    ) -> tuple[int, MigSlice, int] | None:
        """The card whose state serves a column's wish best, the instance, and the card's next state."""
        costs = column.cost[states]
        card = int(costs.argmin()) if len(costs) else -1
        if card < 0 or costs[card] == NOWHERE:
            return None
        state = int(states[card])
        bit = int(column.position[state])
        return card, self.positions[bit], int(self.after[state, bit])

    def costs(self, wish: Wish) -> Ints:
        """The cost of each position for a wish, by state; `NOWHERE` if it is impossible.

        A preferred profile comes before a cheaper place. If geometries are given, a card's first geometry that can run
        the wish comes before both. Then a card in use, the least loss of worth, the fuller card, the higher start.
        """
        rank = {name: place for place, name in reversed(list(enumerate(wish)))}
        for name in wish:
            self.axis.profile(name)
        ranks = np.array([rank.get(one.profile, -1) for one in self.positions], np.int64)
        fits = (ranks >= 0) & (self.geometry >= 0)
        first = np.where(fits, self.geometry, np.iinfo(np.int16).max).min(axis=1, initial=0x7FFF)
        fits &= self.geometry == first[:, None]
        lost = self.worth[:, None] - self.worth[self.after] + _STEPS
        starts = np.array([one.start for one in self.positions], np.int64)
        idle = np.where(self.used == 0, 1, 0)[:, None]
        costs = (ranks * 2 + idle) * 64 * _STEPS + lost
        costs = (costs * 64 + self.axis.length - self.used[:, None]) * 64 + 63 - starts
        return np.where(fits, costs, NOWHERE)


def column_of(costs: Ints) -> Column:
    """The cheapest position by state, from the cost of each position; the first among equals."""
    best = costs.argmin(axis=1) if costs.shape[1] else np.zeros(len(costs), np.int64)
    cost = costs.min(axis=1, initial=NOWHERE)
    return Column(cost, np.where(cost == NOWHERE, -1, best).astype(np.int16))


def tabulate(axis: MigAxis, allowed: Allowed | None = None) -> Layouts:
    """The tables of a model under a configuration.

    Raises:
        InvalidValue: a geometry or an allowlist names a profile that the model lacks, or there are too many layouts for
            tables.
    """
    allowed = allowed or Allowed()
    named = {name for geometry in allowed.geometries or () for name, _ in geometry}
    for name in sorted(named | (allowed.profiles or frozenset())):
        axis.profile(name)
    states, after = _states(axis)
    masks = np.array(list(states), np.uint64)
    names = allowed.profiles if allowed.profiles is not None else {p.name for p in axis.profiles}
    permitted = np.array([one.profile in names for one in axis.positions], np.bool_)
    geometry = np.where(after >= 0, 0, -1).astype(np.int16)
    if allowed.geometries is not None:
        geometry, names = _bounded(allowed.geometries, axis, masks, after), names & named
    geometry[:, ~permitted] = -1
    plain = [p.name for p in axis.profiles if p.plain and p.name in names]
    counted = plain or sorted(names)
    earned = _earned(axis, after, geometry >= 0, counted)
    used = [sum(one.size for one in _of(axis, mask)) for mask in states]
    return Layouts(
        axis,
        axis.positions,
        masks,
        after,
        geometry,
        np.array(used, np.int16),
        np.rint(earned / max(axis.length, 1) * _STEPS).astype(np.int64),
        {one: bit for bit, one in enumerate(axis.positions)},
        states,
    )


def _states(axis: MigAxis) -> tuple[dict[int, int], NDArray[np.int32]]:
    """Every layout as bits, numbered so that an added instance leads to a higher number."""
    positions = axis.positions
    if len(positions) > _MOST_POSITIONS:
        raise InvalidValue(f"{axis.model}: {len(positions)} positions; {_MOST_POSITIONS} at most")
    beside = [
        sum(1 << j for j, two in enumerate(positions) if i != j and axis.valid((one, two)))
        for i, one in enumerate(positions)
    ]
    states: dict[int, int] = {0: 0}
    engines = [axis.profile(one.profile).engines for one in positions]
    order: list[tuple[int, int, Mapping[str, int], Engines | None]] = [
        (0, (1 << len(positions)) - 1, {}, Engines())
    ]
    steps: list[list[int]] = []
    invalid: set[int] = set()
    while len(steps) < len(order):
        mask, open_, counts, used = order[len(steps)]
        row = [-1] * len(positions)
        for bit, one in enumerate(positions):
            larger = mask | 1 << bit
            if not open_ >> bit & 1 or larger in invalid:
                continue
            if larger not in states:
                more = {**counts, one.profile: counts.get(one.profile, 0) + 1}
                own = engines[bit]
                together = None if used is None or own is None else used + own
                if axis.overdrawn(more, together):  # all of its pairs are possible
                    invalid.add(larger)
                    continue
                states[larger] = len(states)
                order.append((larger, open_ & beside[bit], more, together))
            row[bit] = states[larger]
        steps.append(row)
        if len(states) > _MOST_STATES:
            raise InvalidValue(
                f"{axis.model}: more than {_MOST_STATES} layouts; name fewer profiles"
            )
    return states, np.array(steps, np.int32).reshape(len(states), len(positions))


def _bounded(
    geometries: tuple[Geometry, ...],
    axis: MigAxis,
    masks: NDArray[np.uint64],
    after: NDArray[np.int32],
) -> NDArray[np.int16]:
    """By state and position: the first geometry that holds the running instances and the new one.

    A geometry fixes numbers, not positions; the card may be in any arrangement of it.
    """
    counts = [Counter(one.profile for one in _of(axis, int(mask))) for mask in masks]
    first = np.full(len(masks), -1, np.int16)
    for number, geometry in reversed(list(enumerate(geometries))):
        wanted: Counter[str] = Counter()
        for name, times in geometry:
            wanted[name] += times
        for row, found in enumerate(counts):
            if found == wanted:
                first[(masks & ~masks[row]) == 0] = number
    return np.where(after >= 0, first[after], -1).astype(np.int16)


def _of(axis: MigAxis, mask: int) -> tuple[MigSlice, ...]:
    return tuple(one for bit, one in enumerate(axis.positions) if mask >> bit & 1)


def _earned(
    axis: MigAxis, after: NDArray[np.int32], fits: Bools, counted: Sequence[str]
) -> Floats:
    """By state: memory units that the imagined stream still gets, each at its best position.

    From a request on, the room earns the request's units and the worth of the remaining room. If the request does not
    fit, it earns the present worth. Each time another request follows with the same chance. Next states have higher
    numbers, so one backward pass solves it.
    """
    columns = [
        [bit for bit, one in enumerate(axis.positions) if one.profile == name] for name in counted
    ]
    sizes = [axis.profile(name).size for name in counted]
    rows, open_ = after.tolist(), fits.tolist()
    earned = [0.0] * len(rows)
    for state in range(len(rows) - 1, -1, -1):
        gains, refused = 0.0, 0
        for size, bits in zip(sizes, columns, strict=True):
            follow = [earned[rows[state][bit]] for bit in bits if open_[state][bit]]
            if follow:
                gains += size + max(follow)
            else:
                refused += 1
        if gains:
            share = _GOES_ON / len(counted)
            earned[state] = share * gains / (1.0 - share * refused)
    return np.array(earned)
