"""A plan moves only what may be restarted, as little as will do, and its end is valid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.mig import MigSlice
from partage.placement.layouts import tabulate
from partage.placement.mig import choose
from partage.placement.repack import Plan, repack
from partage.vendors.mig import MIG_CARDS

A100 = MIG_CARDS["A100-80GB"].axis
TABLES = tabulate(A100)


def _card(text: str) -> frozenset[MigSlice]:
    parts = [part.split("@") for part in text.split()]
    return frozenset(A100.profile(name).at(int(start)) for name, start in parts)


def _plan(cards: list[str], wish: str, fixed: str = "", most: int = 3) -> Plan | None:
    held = [_card(text) for text in cards]
    states = np.array([TABLES.state(one) for one in held], np.int32)
    return repack(TABLES, states, [one - _card(fixed) for one in held], (wish,), most)


def _told(plan: Plan | None) -> list[str] | None:
    if plan is None:
        return None
    return [
        *(
            f"{m.card}:{m.instance.profile}@{m.instance.start}>{m.to_card}:{m.to.start}"
            for m in plan.moves
        ),
        f"{plan.choice.card}:{plan.choice.instance.profile}@{plan.choice.instance.start}",
    ]


@pytest.mark.parametrize(
    ("cards", "wish", "told"),
    [
        (["1g.10gb@0"], "4g.40gb", ["0:1g.10gb@0>0:6", "0:4g.40gb@0"]),
        (
            ["1g.10gb@6", "1g.10gb@6"],
            "7g.80gb",
            ["0:1g.10gb@6>1:5", "0:7g.80gb@0"],
        ),
        (
            ["2g.20gb@0 2g.20gb@4", "3g.40gb@0 1g.10gb@4"],
            "3g.40gb",
            ["1:1g.10gb@4>0:6", "1:3g.40gb@4"],
        ),
        (["7g.80gb@0"], "1g.10gb", None),
        ([""], "7g.80gb", ["0:7g.80gb@0"]),
    ],
    ids=["within", "consolidate", "across", "full", "room"],
)
def test_the_smallest_plan_is_found(cards: list[str], wish: str, told: list[str] | None) -> None:
    """Fewest instances, then fewest units; nothing where there is room already."""
    assert _told(_plan(cards, wish)) == told


def test_what_may_not_restart_stays() -> None:
    """Without permission there is no plan."""
    assert _plan(["1g.10gb@0"], "4g.40gb", fixed="1g.10gb@0") is None


def test_no_more_moves_than_allowed() -> None:
    """Two instances in the way need two moves."""
    cards = ["1g.10gb@0 1g.10gb@1", "7g.80gb@0"]

    assert _plan(cards, "4g.40gb", most=1) is None
    plan = _plan(cards, "4g.40gb", most=2)
    assert plan is not None
    assert len(plan.moves) == 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_plan_can_be_carried_out(data: st.DataObject) -> None:
    """When everything that moves has ended, all of it and the new instance find their places."""
    numbers = st.integers(0, len(TABLES.masks) - 1)
    states = data.draw(st.lists(numbers, min_size=1, max_size=3))
    held = [frozenset(TABLES.instances(state)) for state in states]
    may = [frozenset(one for one in card if data.draw(st.booleans())) for card in held]
    wish = (data.draw(st.sampled_from([p.name for p in A100.profiles])),)
    rows = np.array(states, np.int32)

    plan = repack(TABLES, rows, may, wish, most=2)

    assert rows.tolist() == states
    if plan is None:
        assert choose(TABLES, rows, wish) is None
        return
    cards = [set(card) for card in held]
    for move in plan.moves:
        assert move.instance in may[move.card]
        assert move.instance.profile == move.to.profile
        cards[move.card].remove(move.instance)
    for move in plan.moves:
        cards[move.to_card].add(move.to)
    cards[plan.choice.card].add(plan.choice.instance)
    assert sum(map(len, cards)) == sum(map(len, held)) + 1
    assert all(A100.valid(card) for card in cards)
