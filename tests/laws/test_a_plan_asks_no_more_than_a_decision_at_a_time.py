"""Preemption for pods of many containers: each step within one decision's work, the whole within a plan's, and the books as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.builders import card, make_node, make_pod, share
from partage.placement.card import MOST, Work
from partage.scheduler.engine import Engine
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement
from partage.scheduler.preemption import MOST_A_PLAN, Bystanders, Occupant, Plan, planning

PARTS = (21, 22, 23, 24, 26, 27, 28, 29, 31, 33, 34, 36, 37, 38, 39, 41, 43, 44, 46)
SHAPES = {
    "six": [30 + 7 * i for i in range(6)],
    "eight": [20 + 9 * i for i in range(8)],
    "twelve": [15 + 5 * i for i in range(12)],
    "no two together": [51 + i for i in range(8)],
    "hardly": [PARTS[i % 19] for i in range(24)],
    "sixty-four": [5 + i % 7 for i in range(64)],
}


def crowded(sizes: list[int], cards: int = 8) -> tuple[Engine, list[Occupant]]:
    """A node with as many pods of these sizes as fit."""
    engine = Engine()
    engine.handle(NodeSeen(make_node("n", [card(minor) for minor in range(cards)])))
    occupants = []
    for number, size in enumerate(sizes):
        pod = make_pod(f"p{number}", share(size, 1), priority=number % 3)
        if isinstance(engine.schedule(pod), Placement):
            engine.handle(BindSucceeded(pod.uid))
            occupants.append(Occupant(pod.uid, number % 3, float(number)))
    return engine, occupants


def planned(
    engine: Engine, asks: list[int], occupants: list[Occupant]
) -> tuple[Plan | None, list[int]]:
    """The plan, and the work of each step; the books are looked at between any two."""
    pod, work = make_pod("vip", *(share(size, 1) for size in asks), priority=9), Work(MOST_A_PLAN)
    before, steps, done = engine.ledger.picture(), [], 0
    run = planning(engine, pod, "n", occupants, {}, Bystanders(), work)
    while True:
        try:
            next(run)
        except StopIteration as end:
            steps.append(work.done - done)
            assert engine.ledger.picture() == before
            return end.value, steps
        steps.append(work.done - done)
        done = work.done
        assert engine.ledger.picture() == before


@pytest.mark.parametrize("sizes", [[9] * 88, [19] * 40, [45] * 16], ids=["80", "40", "16"])
@pytest.mark.parametrize("asks", SHAPES.values(), ids=SHAPES)
def test_no_step_takes_more_than_a_decision(asks: list[int], sizes: list[int]) -> None:
    """Any number of containers may ask, and there may be any number of pods to weigh."""
    engine, occupants = crowded(sizes)
    _, steps = planned(engine, asks, occupants)
    assert max(steps) <= MOST + MOST // 2
    assert sum(steps) <= MOST_A_PLAN + MOST


@given(
    asks=st.lists(st.integers(1, 100), min_size=1, max_size=24),
    sizes=st.lists(st.sampled_from([5, 9, 19, 33, 45, 50, 100]), min_size=1, max_size=60),
    cards=st.integers(1, 8),
)
def test_nor_does_that_of_any_pod(asks: list[int], sizes: list[int], cards: int) -> None:
    """The plan makes room, and evicts no pod that can be spared at the first try."""
    engine, occupants = crowded(sizes, cards)
    plan, steps = planned(engine, asks, occupants)
    assert max(steps) <= MOST + MOST // 2
    assert sum(steps) <= MOST_A_PLAN + MOST
    if plan is None:
        return
    pod = make_pod("vip", *(share(size, 1) for size in asks), priority=9)
    victims = [one.uid for one in plan.victims]
    assert engine.grants_without(pod, "n", victims) is not None
    if sum(steps) > MOST_A_PLAN // 3:
        return  # found by first choices
    for uid in victims:
        rest = [other for other in victims if other != uid]
        assert engine.grants_without(pod, "n", rest) is None


def test_a_pod_of_eight_containers_gets_its_room_among_eighty() -> None:
    """Ordinary pods of several containers get victims as pods of one container do."""
    engine, occupants = crowded([9] * 88)
    for asks in ([50] * 6, [25] * 8, SHAPES["six"], SHAPES["eight"]):
        plan, _ = planned(engine, asks, occupants)
        assert plan is not None
        pod = make_pod("vip", *(share(size, 1) for size in asks), priority=9)
        assert engine.grants_without(pod, "n", [one.uid for one in plan.victims]) is not None
    _, steps = planned(engine, [100] * 8, occupants)
    assert sum(steps) <= MOST_A_PLAN
