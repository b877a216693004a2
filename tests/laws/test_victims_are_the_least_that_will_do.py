"""Laws of preemption on one node, against trying every set of victims."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.builders import card, make_node, make_pod, share, whole
from partage.model.pod import Pod
from partage.placement.card import Work
from partage.scheduler.engine import Engine
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement
from partage.scheduler.preemption import Occupant, least
from plans import plan_on

SIZES = (100, 50, 30)
asks = st.sampled_from([*SIZES, "whole"])


def _ask(name: str, size: object, priority: int) -> Pod:
    part = whole() if size == "whole" else share(int(str(size)), 1)
    return make_pod(name, part, priority=priority)


def _full(sizes: Sequence[tuple[object, int]]) -> tuple[Engine, list[Occupant]]:
    """A node of three cards with as many of these pods as fit."""
    engine = Engine()
    engine.handle(NodeSeen(make_node("n", [card(minor) for minor in range(3)])))
    occupants = []
    for number, (size, priority) in enumerate(sizes):
        pod = _ask(f"p{number}", size, priority)
        if isinstance(engine.schedule(pod), Placement):
            engine.handle(BindSucceeded(pod.uid))
            occupants.append(Occupant(pod.uid, priority, float(number)))
    return engine, occupants


@given(
    st.lists(st.tuples(asks, st.integers(0, 2)), min_size=1, max_size=8),
    asks,
    st.data(),
)
def test_nobody_goes_in_vain_and_the_important_stay(
    sizes: list[tuple[object, int]], asked: object, data: st.DataObject
) -> None:
    """Victims suffice, none can be spared, and no other set spares more important pods."""
    engine, occupants = _full(sizes)
    budgeted = data.draw(st.sets(st.sampled_from([one.uid for one in occupants])))
    occupants = [
        Occupant(t.uid, t.priority, t.born, ("b",) if t.uid in budgeted else ()) for t in occupants
    ]
    pod, before = _ask("vip", asked, 9), engine.ledger.picture()

    plan = plan_on(engine, pod, "n", occupants, {"b": 0})

    def fits(victims: Sequence[Occupant]) -> bool:
        return engine.grants_without(pod, "n", [one.uid for one in victims]) is not None

    enough = [
        some
        for count in range(len(occupants) + 1)
        for some in combinations(occupants, count)
        if fits(some)
    ]
    if plan is None:
        assert not enough
    else:
        assert fits(plan.victims)
        for one in plan.victims:
            assert not fits([other for other in plan.victims if other != one])
        assert set(plan.broken) == {one.uid for one in plan.victims if one.budgets}
        unbroken = [some for some in enough if not any(one.budgets for one in some)]
        assert not (unbroken and plan.broken)
        if not budgeted:
            highest = max((one.priority for one in plan.victims), default=-1)
            assert highest == min(max((t.priority for t in some), default=-1) for some in enough)
    assert engine.ledger.picture() == before
    engine.ledger.validate()


@given(st.lists(st.integers(0, 9), max_size=40), st.data())
def test_who_is_spared_is_who_would_be_one_by_one(sizes: list[int], data: st.DataObject) -> None:
    """Sparing many at a time gives the same result, and asks about each at most a few times."""
    need = data.draw(st.integers(0, sum(sizes)))
    given_up = [str(number) for number in range(len(sizes))]
    asked = 0

    def fits(gone: Collection[str]) -> bool:
        nonlocal asked
        asked += 1
        return sum(sizes[int(uid)] for uid in gone) >= need

    expected = given_up
    for uid in given_up:
        fewer = [other for other in expected if other != uid]
        if sum(sizes[int(other)] for other in fewer) >= need:
            expected = fewer

    assert least(given_up, fits) == expected
    assert asked <= 3 * len(sizes)


def test_as_few_of_many_small_pods_go_as_will_do() -> None:
    """A whole card is made free of eighty pods on eight cards: those of one card, and no others."""
    engine = Engine()
    engine.handle(NodeSeen(make_node("n", [card(minor) for minor in range(8)])))
    occupants = []
    for number in range(80):
        pod = make_pod(f"p{number}", share(9, 1), priority=0)
        assert isinstance(engine.schedule(pod), Placement)
        engine.handle(BindSucceeded(pod.uid))
        occupants.append(Occupant(pod.uid, 0, float(number)))
    fewest = min(Counter(c.uuid for a in engine.ledger.on_node("n") for c in a.charges).values())

    plan = plan_on(engine, _ask("vip", "whole", 9), "n", occupants, {})

    assert plan is not None
    assert len(plan.victims) == fewest


def test_a_plan_that_is_not_finished_is_none() -> None:
    """Some of its victims might be spared with more work."""
    engine, occupants = _full([(30, 0)] * 8)

    plan = plan_on(engine, _ask("vip", 100, 9), "n", occupants, {}, work=Work(300))

    assert plan is None


@pytest.mark.parametrize(
    ("budgets", "allowed", "goes"),
    [
        pytest.param([("a",), ("a",), ("a",)], {"a": 1}, "uid-p1", id="the least important"),
        pytest.param([("b",), ("a",), ("a",)], {"a": 1, "b": 1}, "uid-p1", id="of two budgets"),
        pytest.param([("a",), ("b",), ("a",)], {"a": 1}, "uid-p2", id="whose budget allows it"),
    ],
)
def test_what_a_budget_allows_is_not_kept_for_the_important(
    budgets: list[tuple[str, ...]], allowed: dict[str, int], goes: str
) -> None:
    """Any one of three would do: the least important that its budget allows is evicted."""
    engine, occupants = _full([(100, 2), (100, 0), (100, 1)])
    occupants = [
        Occupant(one.uid, one.priority, one.born, mine)
        for one, mine in zip(occupants, budgets, strict=True)
    ]

    plan = plan_on(engine, _ask("vip", 100, 9), "n", occupants, allowed)

    assert plan is not None
    assert ([one.uid for one in plan.victims], plan.broken) == ([goes], ())
