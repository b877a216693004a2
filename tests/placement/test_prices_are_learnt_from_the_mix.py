"""Prices follow from the mix and the cluster alone, and value what the mix can use."""

import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import SOLVER_THERE
from fakes.builders import card, make_node
from partage.placement.mix import Ask, Mix, Stock
from partage.placement.prices import (
    PAIRS,
    Config,
    Learner,
    SolverMissing,
    knapsack,
    scarcity,
    sets_of,
)
from partage.placement.reserves import reserves_of
from partage.placement.selection import chosen

needs_solver = pytest.mark.skipif(not SOLVER_THERE, reason="highspy is not installed")
ANY = PAIRS.tolist().index([0.0, 0.0])
QUICK = Config(scenarios=2)


def stock(nodes: int = 4, cards: int = 4) -> Stock:
    """Nodes of two models, 32 cores and 128 GiB each."""
    room = {"cpu": 32_000, "memory": 128 * 2**30, "pods": 100}
    return Stock.of(
        make_node(
            f"{model}{i}",
            [card(g, prefix=f"{model}{i}", model=model) for g in range(cards)],
            allocatable=room,
        )
        for model in ("A100", "T4")
        for i in range(nodes)
    )


SEEN = {
    Ask(2000, 8192, 1, 460): 60,
    Ask(4000, 16384, 1, 1000): 30,
    Ask(8000, 32768, 2, 1000): 5,
    Ask(1000, 4096, 1, 200, ("T4",)): 10,
    Ask(4000, 4096): 20,
}


def mix(seen: dict[Ask, int] | None = None) -> Mix:
    """A small mix of all kinds."""
    return Mix.of(seen or SEEN, stock())


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(-5, 100)), min_size=1, max_size=4),
    st.integers(0, 100),
)
def test_the_knapsack_is_the_best_filling(items: list[tuple[int, float]], room: int) -> None:
    """No choice of items that fits is worth more, for every capacity."""
    room = min(room, 6 * min(size for size, _ in items), 100)
    best, _ = knapsack(np.array([s for s, _ in items]), np.array([[p for _, p in items]]))

    tried = product(*(range(room // size + 1) for size, _ in items))
    values = [
        sum(n * max(profit, 0.0) for n, (_, profit) in zip(counts, items, strict=True))
        for counts in tried
        if sum(n * size for n, (size, _) in zip(counts, items, strict=True)) <= room
    ]

    assert best[room, 0] == pytest.approx(max(values))


@needs_solver
def test_equal_mixes_give_equal_prices() -> None:
    """The order in which requests came does not matter, to the last bit."""
    one = Learner(mix(), stock()).prices(QUICK)
    other = Learner(mix(dict(reversed(SEEN.items()))), stock()).prices(QUICK)

    assert (one.worth == other.worth).all()
    assert one.reserves == other.reserves


@needs_solver
def test_worth_grows_with_what_is_left() -> None:
    """Nothing is worth nothing, and more is never worth less; dearer CPU lowers it."""
    found = Learner(mix(), stock()).prices(QUICK)

    assert (found.worth[:, 0] == 0).all()
    assert (np.diff(found.worth, axis=1) >= 0).all()
    assert (found.worth <= found.worth[:, :, ANY : ANY + 1] + 1e-9).all()


@needs_solver
def test_a_remainder_that_nobody_asks_for_is_worth_nothing() -> None:
    """The smallest request is 20 hundredths, and only of a T4; others need 46."""
    found = Learner(mix(), stock()).prices(QUICK)

    a100, t4 = found.worth[:, :, ANY]
    assert a100[45] == 0 < a100[46]
    assert t4[19] == 0 <= t4[20]


def test_a_mix_without_cards_teaches_nothing() -> None:
    """Pods without cards alone set no price for cards."""
    assert chosen(mix({Ask(1000, 1024): 5}), stock()) is None


def test_without_a_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the package and the extra."""
    monkeypatch.setitem(sys.modules, "highspy", None)

    with pytest.raises(SolverMissing, match=r"partage\[solver\]"):
        Learner(mix(), stock())


def test_scarcity_and_sets_are_shares_of_the_demand() -> None:
    """A T4 is sought by 2 of 69.6 cards' worth, on half of the cards; pairs are 10 of them."""
    demand = 60 * 0.46 + 30 + 10 + 2

    assert scarcity(mix(), stock()).tolist() == pytest.approx([0, 2 / demand * 2])
    assert dict(sets_of(mix())) == pytest.approx({2: 10 / demand, 4: 0, 8: 0})


def test_reserves_are_for_sets_and_much_cpu() -> None:
    """Pairs and 24 cores without cards, and a little of each largest node."""
    found = reserves_of(mix({**SEEN, Ask(24_000, 4096): 1}), stock())

    assert {(r.count, r.cpu_milli, r.models) for r in found} == {
        (2, 8000, ()),
        (0, 24_000, ()),
        (4, 28_800, ("A100",)),
        (4, 28_800, ("T4",)),
    }
    pairs = next(r for r in found if r.count == 2)
    assert pairs.need > 5 / 126
