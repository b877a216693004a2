"""The choice among candidates weighs what is gained against the pods that pay for it."""

import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest

from answers import SOLVER_THERE
from fakes.builders import card, make_node
from partage.inventory.plane import Ints
from partage.model.policy import Strategy
from partage.placement import selection
from partage.placement.fragmentation import Workload
from partage.placement.learning import (
    Arrivals,
    Due,
    due,
    fits_history,
    in_sight,
    refreshed,
    tables_due,
)
from partage.placement.mix import Ask, Mix, Stock
from partage.placement.price_candidates import CANDIDATES
from partage.placement.rehearsal import Course, Outcome, Theatre
from partage.placement.selection import chosen, excess, learned, merit
from partage.placement.tables import Prices, Tables
from partage.scheduler.classes import settled

needs_solver = pytest.mark.skipif(not SOLVER_THERE, reason="highspy is not installed")
FGD = Outcome(90.0, 92.0, (10, 100, 100, 4), (1000, 1000, 1000, 50), 90.0)
MINE = replace(FGD, at_full=91.0, at_end=93.0)
SEEN = {
    Ask(2000, 8192, 1, 460): 60,
    Ask(4000, 16384, 1, 1000): 30,
    Ask(8000, 32768, 2, 1000): 5,
    Ask(1000, 4096, 1, 200, ("T4",)): 10,
    Ask(4000, 4096): 20,
}


def stock(each: int = 6) -> Stock:
    """So many nodes of each of two models."""
    room = {"cpu": 32_000, "memory": 128 * 2**30, "pods": 100}
    return Stock.of(
        make_node(
            f"{model}{i}",
            [card(g, prefix=f"{model}{i}", model=model) for g in range(4)],
            allocatable=room,
        )
        for model in ("A100", "T4")
        for i in range(each)
    )


LARGE = stock(430)


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
def test_the_choice_is_the_same_again() -> None:
    """A second learner of prices gets those of the record."""
    mix = Mix.of(SEEN, stock())

    once, again = (chosen(mix, stock()) for _ in range(2))

    assert once is not None
    assert again is not None
    assert once.stand_in is again.stand_in
    assert once.prices is not None
    assert again.prices is not None
    assert once.prices.worth.tobytes() == again.prices.worth.tobytes()


@needs_solver
def test_candidates_that_are_behind_do_not_play_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of the eight in the last round play a third run, and three play all five."""
    whole, mix = stock(), Mix.of(SEEN, stock())
    nodes: list[int] = []
    play = Theatre.prices

    def counted(theatre: Theatre, course: Course, prices: Prices) -> Ints:
        nodes.append(course.stock.cpu.size)
        return play(theatre, course, prices)

    monkeypatch.setattr(Theatre, "prices", counted)
    assert chosen(mix, whole) is not None
    assert nodes.count(whole.cpu.size) == 8 * 2 + 4 + 3 * 2


def test_without_numba_nothing_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal would take minutes; FGD goes on with the requests in sight."""
    monkeypatch.setattr(selection, "COMPILED", False)

    assert learned(Tables(), SEEN, stock()) is None


def test_without_a_solver_a_stand_in_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables say which, and know the usual requests."""
    monkeypatch.setitem(sys.modules, "highspy", None)

    found = learned(Tables(), SEEN, stock())

    assert found is not None
    assert found.prices is None
    assert found.version == 1
    assert found.stand_in in (Strategy.FGD, Strategy.FIRST_FIT)
    assert found.workload == Workload.counted({ask.shape: n for ask, n in SEEN.items()})
    for choice in (Strategy.FIRST_FIT, Strategy.FGD):
        later = refreshed(replace(found, stand_in=choice), {ONE: 1}, LARGE)
        assert (later.version, later.stand_in, later.workload.shapes) == (2, choice, (ONE.shape,))


def test_nothing_is_learnt_where_nobody_asks_for_cards() -> None:
    """There are none on a cluster without cards either."""
    plain = {Ask(4000, 4096): 20}
    bare = Stock.of([make_node("n", allocatable={"cpu": 8000, "memory": 2**33})])

    assert learned(Tables(), plain, stock()) is None
    assert learned(Tables(), SEEN, bare) is None


@pytest.mark.parametrize(
    ("arrived", "cards", "what"),
    [
        pytest.param(0, 6000, Due.NOTHING, id="at-the-start"),
        pytest.param(32, 6000, Due.RESERVES, id="first-usual-requests"),
        pytest.param(299, 6000, Due.NOTHING, id="before"),
        pytest.param(300, 6000, Due.PRICES, id="first-prices"),
        pytest.param(450, 6000, Due.RESERVES, id="reserves-between"),
        pytest.param(6000, 6000, Due.PRICES, id="last-of-the-start"),
        pytest.param(40_000, 6000, Due.PRICES, id="for-ever-after"),
        pytest.param(0, 0, Due.NOTHING, id="no-cards"),
        pytest.param(0, 8, Due.RESERVES, id="small-at-the-start"),
        pytest.param(63, 1600, Due.RESERVES, id="small-after-every-pod"),
        pytest.param(0, 3409, Due.NOTHING, id="no-longer-small"),
        pytest.param(65, 8, Due.NOTHING, id="later-after-every-other"),
        pytest.param(66, 8, Due.RESERVES, id="of-two"),
        pytest.param(300, 8, Due.NOTHING, id="small-gets-no-prices"),
        pytest.param(1024, 8, Due.RESERVES, id="of-thirty-two"),
    ],
)
def test_tables_are_due_after_so_many_arrivals(arrived: int, cards: int, what: Due) -> None:
    """Seldom, and more seldom the longer it runs; on small clusters from the start."""
    assert due(arrived, cards) is what


ONE = Ask(2000, 8192, 1, 460)


@pytest.mark.parametrize(
    ("pods", "size", "deciding"),
    [
        pytest.param(214, 430, Strategy.PARTAGE, id="too-few"),
        pytest.param(215, 430, Strategy.FGD, id="one-for-16-cards"),
        pytest.param(299, 700, Strategy.PARTAGE, id="too-few-for-many-cards"),
        pytest.param(300, 700, Strategy.FGD, id="where-prices-are-due"),
    ],
)
def test_before_anything_is_chosen_fgd_knows_the_requests_in_sight(
    pods: int, size: int, deciding: Strategy
) -> None:
    """In a large cluster it stands in for the default once enough pods were seen."""
    found = refreshed(Tables(), {ONE: pods}, stock(size))

    assert (settled(Strategy.PARTAGE, found), found.prices) == (deciding, None)
    assert found.workload.shapes == (ONE.shape,)


def test_a_small_cluster_expects_what_came_and_generic_requests() -> None:
    """Generic requests stand for pods to come, and weigh more while sizes grow. Prices and stand-ins end."""
    former = Tables(version=4, stand_in=Strategy.FIRST_FIT)
    few, many = (
        refreshed(former, {ONE: count}, stock(), trend) for count, trend in ((5, -0.2), (20, 0.6))
    )

    for found, part in ((few, 5 / 9), (many, 20 / 110)):
        assert found.workload.shapes == (ONE.shape,)
        assert (found.version, found.stand_in, found.chosen) == (5, None, "capacity")
        assert settled(Strategy.PARTAGE, found) is Strategy.PARTAGE
        chances = {
            (s.count, s.core_milli): chance
            for s, chance in zip(found.expected.shapes, found.expected.chances, strict=True)
        }
        assert chances[1, 460] == pytest.approx(part, rel=0.06)  # the rarest are left out
        assert chances[1, 1000] > chances[1, 250]
        assert (8, 1000) not in chances  # nodes have four cards
    cpu = {s.core_milli: s.cpu_milli for s in few.expected.shapes if s.count == 1}
    assert (cpu[1000], cpu[250]) == (4000, 1000)  # half of a card's part of the node


def test_a_cluster_that_grows_gives_up_its_usual_requests() -> None:
    """It gets the tables of larger ones."""
    small = refreshed(Tables(), {ONE: 300}, stock())

    assert refreshed(small, {ONE: 300}, LARGE).chosen == "fgd"


@pytest.mark.parametrize(
    ("sizes", "trend"),
    [
        pytest.param([300, 500, 700], 1.0, id="too-few-to-tell"),
        pytest.param([300, 300, 500, 700], 1.0, id="grow"),
        pytest.param([700, 500, 300, 300], -1.0, id="shrink"),
        pytest.param([300] * 8, 0.0, id="equal"),
        pytest.param([300, 500, 300, 500], 0.0, id="in-turn"),
        pytest.param([300, 500, 500, 500], 0.5, id="half-of-the-pairs"),
        pytest.param([300, 500, 700, 400, 600], 2 / 3, id="of-odd-number"),
        pytest.param([*range(1, 401), *range(401, 1001)], 1.0, id="many"),
    ],
)
def test_a_trend_tells_whether_requests_grow(sizes: list[int], trend: float) -> None:
    """Pods without cards have no size."""
    arrivals = Arrivals()
    arrivals.add([Ask(1000, 1024), *(Ask(1000, 1024, 1, milli) for milli in sizes)])

    assert arrivals.trend == pytest.approx(trend)


def test_pods_that_all_differ_make_no_large_mix() -> None:
    """The time of prices grows with the asks; frequent ones stay, whether they came early or late."""
    arrivals = Arrivals({ONE: 2})
    arrivals.add(Ask(1000 + i, 1024, 1, 500) for i in range(10_000))
    arrivals.add([Ask(1, 1, 2, 1000)] * 2)

    assert len(arrivals.counts) == 512
    assert arrivals.counts[ONE] == arrivals.counts[Ask(1, 1, 2, 1000)] == 2
    assert arrivals.total == 10_002


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(Ask(1000, 1024, 1_000_000, 1000), id="cards"),
        pytest.param(Ask(2**61, 1024, 1, 1000), id="processors"),
        pytest.param(Ask(1000, 2**41, 1, 1000), id="memory"),
        pytest.param(Ask(1000, 1024, 1, 1000, ("H100",)), id="a model that is not there"),
    ],
)
def test_nothing_is_learnt_from_a_pod_that_no_node_hosts(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One such pod is more than all others, and would leave no prices to any pod."""
    told: list[Mapping[Ask, int]] = []

    def noted(tables: Tables, counts: Mapping[Ask, int], *_more: object) -> Tables:
        told.append(counts)
        return tables

    monkeypatch.setattr(selection, "learned", noted)
    mix = {**SEEN, Ask(2**61, 0, elsewhere=True): 3}

    tables_due(Due.PRICES, Tables(), {**mix, ask: 1}, LARGE)

    assert told == [mix]
    of = [refreshed(Tables(), counts, LARGE) for counts in (mix, {**mix, ask: 1000})]
    assert of[0] == of[1]


def test_what_if_asks_what_the_requests_in_sight_teach() -> None:
    """What was learnt already stays; of a large cluster a few pods tell nothing."""
    few = Arrivals()
    few.add([ONE] * 3)
    no_cards = Stock.of([make_node("n", allocatable={"cpu": 8000, "memory": 2**33})])

    found = in_sight(Tables(), few, stock())

    assert found.chosen == "capacity"
    assert in_sight(found, few, stock()) is found
    assert [in_sight(Tables(), few, s).chosen for s in (LARGE, no_cards)] == [
        "first-fit",
        "fgd",
    ]
    learnt = in_sight(Tables(stand_in=Strategy.FIRST_FIT), few, LARGE)
    assert (learnt.stand_in, learnt.workload.shapes) == (Strategy.FIRST_FIT, (ONE.shape,))
    assert in_sight(learnt, Arrivals(), LARGE) is learnt


def test_a_history_of_a_small_cluster_counts_until_it_does_not_fit() -> None:
    """It is known before the first pod."""
    arrivals = Arrivals({ONE: 100})

    assert arrivals.due(8) is Due.RESERVES
    arrivals.add([ONE] * 20)
    assert (arrivals.due(8), arrivals.counts[ONE]) == (Due.RESERVES, 120)
    arrivals.add([Ask(8000, 32768, 2, 1000)] * 40)
    assert (arrivals.due(8), arrivals.counts[ONE]) == (Due.RESERVES, 20)
    assert not arrivals.history


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
