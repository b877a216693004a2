"""Where instances go: over all cards of one model and every legal start, exactly.

Cards come as an array of states (`placement.layouts`), so that a decision is one look-up a card and
one minimum. Cards in use come before idle ones, which stay whole for those who need them. Best is
the place that takes the least of what its card's room is worth; among equals the fuller card, then
the higher start, then the card that comes first. `tests/tools/plain_instances.py` says the same in plain words,
and a law under test keeps both equal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from partage.model.mig import MigSlice
from partage.placement.layouts import NOWHERE, Column, Layouts, Wish

_MOST_TRIES: Final = 20_000
"""Places tried for one request of several instances; then it is refused."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where one instance goes.

    Attributes:
        card: index into the cards that were given.
        instance: what is made there.
        cost: what it costs; lower is better, comparable between decisions on one `Layouts`.
        state: the card's state with the instance.
    """

    card: int
    instance: MigSlice
    cost: int
    state: int


def choose(
    layouts: Layouts,
    states: NDArray[np.int32],
    wish: Wish,
    usable: NDArray[np.bool_] | None = None,
) -> Choice | None:
    """The best place for one instance, or None when no card has room.

    Args:
        layouts: tables of the cards' model.
        states: the state of each card; earlier cards win ties.
        wish: profiles that will do, the preferred one first.
        usable: cards that may be used; all by default.

    Raises:
        InvalidValue: the model lacks a profile of the wish.
    """
    return pick(layouts, states, layouts.column(wish), usable)


def pick(
    layouts: Layouts,
    states: NDArray[np.int32],
    column: Column,
    usable: NDArray[np.bool_] | None = None,
) -> Choice | None:
    """The cheapest place of a column, or None when no card has room; arguments as of `choose`."""
    if not len(states):
        return None
    costs = column.cost[states]
    if usable is not None:
        costs = np.where(usable, costs, NOWHERE)
    card = int(costs.argmin())
    cost = int(costs[card])
    if cost == NOWHERE:
        return None
    state = int(states[card])
    bit = int(column.position[state])
    return Choice(card, layouts.positions[bit], cost, int(layouts.after[state, bit]))


def choose_all(
    layouts: Layouts,
    states: NDArray[np.int32],
    wishes: Sequence[Wish],
) -> tuple[Choice, ...] | None:
    """Places for several instances of one request, in the order of the wishes; None if not all fit.

    The wish with the fewest legal starts is placed first; where a later one finds no room, earlier
    ones move on to their next best place. Instances may share cards. After 20,000 tries the
    request counts as not fitting.

    Args:
        layouts: tables of the cards' model.
        states: the state of each card; earlier cards win ties.
        wishes: one a instance: profiles that will do, the preferred one first.

    Raises:
        InvalidValue: the model lacks a profile of a wish.
    """
    if not wishes:
        return ()
    if len(wishes) == 1:
        single = choose(layouts, states, wishes[0])
        return None if single is None else (single,)
    order = sorted(range(len(wishes)), key=lambda i: (_freedom(layouts, wishes[i]), wishes[i], i))
    found = _search(layouts, states.copy(), [wishes[i] for i in order])
    if found is None:
        return None
    placed = dict(zip(order, found, strict=True))
    return tuple(placed[i] for i in range(len(wishes)))


def _freedom(layouts: Layouts, wish: Wish) -> int:
    return sum(one.profile in wish for one in layouts.positions)


def _search(
    layouts: Layouts, states: NDArray[np.int32], wishes: Sequence[Wish]
) -> list[Choice] | None:
    """Depth first; `states` is changed while searching, -1 marks cards that may not be used."""
    tries = 0
    chosen: list[Choice] = []
    left: list[Iterator[Choice]] = [_places(layouts, states, wishes[0])]
    while left:
        if len(chosen) == len(left):
            undone = chosen.pop()
            states[undone.card] = layouts.without(undone.state, undone.instance)
        tries += 1
        place = next(left[-1], None) if tries <= _MOST_TRIES else None
        if place is None:
            left.pop()
            continue
        states[place.card] = place.state
        chosen.append(place)
        if len(chosen) == len(wishes):
            return chosen
        left.append(_places(layouts, states, wishes[len(chosen)]))
    return None


def _places(layouts: Layouts, states: NDArray[np.int32], wish: Wish) -> Iterator[Choice]:
    """Every different place, best first; of cards in one state only the first counts."""
    kinds, firsts = np.unique(states, return_index=True)
    costs = layouts.costs(wish)
    found: list[tuple[int, int, int, int]] = []
    for kind, first in zip(kinds.tolist(), firsts.tolist(), strict=True):
        if kind >= 0:
            row = costs[kind]
            found.extend(
                (int(row[bit]), first, bit, kind) for bit in np.flatnonzero(row < NOWHERE).tolist()
            )
    for cost, card, bit, kind in sorted(found):
        yield Choice(card, layouts.positions[bit], cost, int(layouts.after[kind, bit]))
