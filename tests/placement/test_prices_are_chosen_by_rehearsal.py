"""The choice among candidates weighs what is gained against who pays for it."""

import sys
from dataclasses import replace

import pytest

from fakes.builders import card, make_node
from partage.model.policy import Strategy
from partage.placement.learning import Due, due, fits_history, in_sight, refreshed
from partage.placement.mix import Ask, Mix, Stock
from partage.placement.price_candidates import CANDIDATES
from partage.placement.prices import solver_there
from partage.placement.rehearsal import Outcome
from partage.placement.selection import chosen, excess, learned, merit
from partage.placement.tables import Tables

needs_solver = pytest.mark.skipif(not solver_there(), reason="highspy is not installed")
FGD = Outcome(90.0, 92.0, (10, 100, 100, 4), (1000, 1000, 1000, 50), 90.0)
MINE = replace(FGD, at_full=91.0, at_end=93.0)
SEEN = {
    Ask(2000, 8192, 1, 460): 60,
    Ask(4000, 16384, 1, 1000): 30,
    Ask(8000, 32768, 2, 1000): 5,
    Ask(1000, 4096, 1, 200, ("T4",)): 10,
    Ask(4000, 4096): 20,
}


def stock() -> Stock:
    """Twelve nodes of two models."""
    room = {"cpu": 32_000, "memory": 128 * 2**30, "pods": 100}
    return Stock.of(
        make_node(
            f"{model}{i}",
            [card(g, prefix=f"{model}{i}", model=model) for g in range(4)],
            allocatable=room,
        )
        for model in ("A100", "T4")
        for i in range(6)
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(MINE, 93 + 91 / 4 - 3 * 0.3, id="equal-failures-cost-a-little"),
        pytest.param(
            replace(MINE, failed=(20, 50, 50, 4)), 93 + 91 / 4 - 1.3, id="pods-without-cards-pay"
        ),
        pytest.param(
            replace(MINE, failed=(0, 50, 50, 6)), 93 + 91 / 4 - 0.4, id="pods-of-many-cards-pay"
        ),
        pytest.param(
            replace(MINE, failed=(0, 50, 50, 4), first_refused=80.0),
            93 + 91 / 4 - 0.14,
            id="refused-too-early",
        ),
        pytest.param(
            replace(FGD, failed=(0, 50, 50, 4)),
            92 + 90 / 4 - 0.4,
            id="not-ahead",
        ),
    ],
)
def test_merit_is_allocation_less_what_others_pay(found: Outcome, expected: float) -> None:
    """FGD and first fit did equally well."""
    assert merit(found, FGD, FGD) == pytest.approx(expected)


def test_excess_is_in_percent_of_the_kind() -> None:
    """Ten more of a thousand are one percent; two of fifty are four."""
    more = excess(replace(MINE, failed=(20, 90, 100, 6)), FGD)

    assert more == pytest.approx((1.0, -1.0, 0.0, 4.0))


def test_the_list_of_candidates_stays() -> None:
    """Numbers in logs name tables; a changed list would make results unrepeatable."""
    assert len(CANDIDATES) == 48
    assert [c.seed for c in CANDIDATES] == list(range(48))
    assert CANDIDATES[41].scenarios in (1, 4, 8)


@needs_solver
def test_the_choice_is_the_same_with_compiled_loops_and_without() -> None:
    """And the same again."""
    mix = Mix.of(SEEN, stock())

    fast, plain = (chosen(mix, stock(), fast=fast) for fast in (True, False))

    assert fast is not None
    assert plain is not None
    assert (fast.candidate, fast.stand_in) == (plain.candidate, plain.stand_in)


def test_without_a_solver_a_stand_in_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables say which, and know the usual requests where it is FGD."""
    monkeypatch.setitem(sys.modules, "highspy", None)

    found = learned(Tables(), SEEN, stock(), fast=False)

    assert found is not None
    assert found.prices is None
    assert found.version == 1
    assert found.stand_in in (Strategy.FGD, Strategy.FIRST_FIT)
    assert bool(found.workload.shapes) == (found.stand_in is Strategy.FGD)
    first, fgd = (
        refreshed(replace(found, stand_in=s), SEEN, stock())
        for s in (Strategy.FIRST_FIT, Strategy.FGD)
    )
    assert first is None
    assert fgd is not None
    assert (fgd.version, bool(fgd.workload.shapes)) == (2, True)


def test_nothing_is_learnt_where_nobody_asks_for_cards() -> None:
    """Nor on a cluster without any."""
    plain = {Ask(4000, 4096): 20}
    bare = Stock.of([make_node("n", allocatable={"cpu": 8000, "memory": 2**33})])

    assert learned(Tables(), plain, stock()) is None
    assert learned(Tables(), SEEN, bare) is None


@pytest.mark.parametrize(
    ("arrived", "cards", "what"),
    [
        pytest.param(0, 6000, Due.NOTHING, id="at-the-start"),
        pytest.param(299, 6000, Due.NOTHING, id="before"),
        pytest.param(300, 6000, Due.PRICES, id="first-prices"),
        pytest.param(450, 6000, Due.RESERVES, id="reserves-between"),
        pytest.param(6000, 6000, Due.PRICES, id="last-of-the-start"),
        pytest.param(40_000, 6000, Due.PRICES, id="for-ever-after"),
        pytest.param(0, 8, Due.NOTHING, id="small-at-the-start"),
        pytest.param(1, 8, Due.RESERVES, id="small-from-the-first-pod"),
        pytest.param(6, 8, Due.PRICES, id="small-first-prices"),
        pytest.param(213, 3408, Due.PRICES, id="as-much-as-tells-of-so-many-cards"),
        pytest.param(213, 3409, Due.NOTHING, id="too-little-for-so-many-cards"),
        pytest.param(300, 8, Due.PRICES, id="later-as-large-ones"),
    ],
)
def test_tables_are_due_after_so_many_arrivals(arrived: int, cards: int, what: Due) -> None:
    """Seldom, and more seldom the longer it runs; on small clusters from few pods on."""
    assert due(arrived, cards) is what


def test_before_anything_is_chosen_fgd_knows_the_requests_in_sight() -> None:
    """Small clusters have it from their first pod on; nothing is known of pods to come."""
    found = refreshed(Tables(), {Ask(2000, 8192, 1, 460): 1}, stock())

    assert found is not None
    assert (found.settled(Strategy.PARTAGE), found.prices) == (Strategy.FGD, None)
    assert {shape.core_milli for shape in found.workload.shapes} == {460, 1000}


def test_what_if_asks_what_the_requests_in_sight_teach() -> None:
    """Of 48 cards three pods tell something; what was learnt already stays."""
    one = {Ask(2000, 8192, 1, 460): 1}
    few = {Ask(2000, 8192, 1, 460): 3}

    assert in_sight(Tables(), one, stock()).stand_in is None
    assert in_sight(Tables(), few, stock()).stand_in is Strategy.FGD
    learnt = Tables(stand_in=Strategy.FIRST_FIT)
    assert in_sight(learnt, few, stock()) is learnt


@pytest.mark.parametrize(
    ("seen", "fits"),
    [
        pytest.param({ask: n * 4 for ask, n in SEEN.items()}, True, id="the-same-mix"),
        pytest.param({Ask(2000, 8192, 1, 460): 300}, False, id="one-of-its-kinds"),
        pytest.param({Ask(1, 1, 8, 1000): 300}, False, id="never-seen-before"),
        pytest.param({}, True, id="nothing-yet"),
    ],
)
def test_a_history_fits_what_could_be_its_sample(seen: dict[Ask, int], fits: bool) -> None:  # noqa: FBT001
    """Against a mix of five kinds."""
    assert fits_history(SEEN, seen) is fits
