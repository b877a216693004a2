"""Which running instances would have to move so that one more fits: a plan, never an act.

An instance cannot be moved while it exists; a move means that its pod is restarted elsewhere. So
only instances that their owner calls restartable are considered, and an operator approves the plan.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from partage.model.mig import MigSlice
from partage.placement.layouts import NOWHERE, Layouts, Wish
from partage.placement.mig import Choice, choose, choose_all

_MOST_OUTSETS: Final = 500
"""Ways to make room that are tried before giving up."""


@dataclass(frozen=True, slots=True)
class Move:
    """One instance that ends in one place and begins in another.

    Attributes:
        card, instance: where it runs now.
        to_card, to: where it would run; the profile is the same.
    """

    card: int
    instance: MigSlice
    to_card: int
    to: MigSlice


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves that make room, all of which end before any begins anew.

    Attributes:
        moves: by card and start; none when there is room already.
        choice: where the new instance then goes.
    """

    moves: tuple[Move, ...]
    choice: Choice


@dataclass(frozen=True, slots=True, order=True)
class _Outset:
    """A way to make room on one card; ordered by what it disturbs, then by what the place costs."""

    moved: int
    units: int
    cost: int
    card: int
    bit: int
    instances: tuple[tuple[str, int, int], ...]


def repack(
    layouts: Layouts,
    states: NDArray[np.int32],
    restartable: Sequence[frozenset[MigSlice]],
    wish: Wish,
    most: int = 3,
) -> Plan | None:
    """The plan that moves the fewest instances, then the fewest memory units; None without any.

    Args:
        layouts: tables of the cards' model.
        states: the state of each card.
        restartable: by card: the instances that may move.
        wish: profiles that will do, the preferred one first.
        most: instances that may move in all, at least 1; more than 3 is slow.

    Raises:
        InvalidValue: the model lacks a profile of the wish.
    """
    there = choose(layouts, states, wish)
    if there is not None:
        return Plan((), there)
    outsets = sorted(set(_outsets(layouts, states, restartable, wish, most)))
    for outset in outsets[:_MOST_OUTSETS]:
        plan = _carried(layouts, states, outset)
        if plan is not None:
            return plan
    return None


def _outsets(
    layouts: Layouts,
    states: NDArray[np.int32],
    restartable: Sequence[frozenset[MigSlice]],
    wish: Wish,
    most: int,
) -> Iterator[_Outset]:
    """Every way to make room on one card; of cards that are alike only the first counts."""
    costs = layouts.costs(wish)
    seen: set[tuple[int, frozenset[MigSlice]]] = set()
    for card, (state, may) in enumerate(zip(states.tolist(), restartable, strict=True)):
        if (state, may) in seen:
            continue
        seen.add((state, may))
        movable = [one for one in layouts.instances(state) if one in may]
        for count in range(1, min(most, len(movable)) + 1):
            for chosen in combinations(movable, count):
                left = state
                for one in chosen:
                    left = layouts.without(left, one)
                told = tuple((one.profile, one.start, one.size) for one in chosen)
                units = sum(one.size for one in chosen)
                for bit in np.flatnonzero(costs[left] < NOWHERE).tolist():
                    yield _Outset(count, units, int(costs[left, bit]), card, bit, told)


def _carried(layouts: Layouts, states: NDArray[np.int32], outset: _Outset) -> Plan | None:
    """The plan that begins like this, if what was moved away finds other places."""
    after = states.copy()
    gone = [MigSlice(*one) for one in outset.instances]
    state = int(states[outset.card])
    for one in gone:
        state = layouts.without(state, one)
    state = int(layouts.after[state, outset.bit])
    after[outset.card] = state
    found = choose_all(layouts, after, [(one.profile,) for one in gone])
    if found is None:
        return None
    moves = tuple(
        Move(outset.card, one, place.card, place.instance)
        for one, place in zip(gone, found, strict=True)
    )
    choice = Choice(outset.card, layouts.positions[outset.bit], outset.cost, state)
    return Plan(moves, choice)
