"""With prices and reserves, or usual requests, too, a decision follows from the books, not from how they came about."""

from hypothesis import given
from hypothesis import strategies as st
from learnt import tables
from ledgers import allocations
from worlds import node_lists, pods

from answers import feasible
from drawn import sampled
from fakes.builders import make_pod, share
from partage.model.node import Node
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.placement.node import BEYOND_SCORES
from partage.placement.tables import Tables
from partage.scheduler.classes import RANKS
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, PodGone, TablesChanged


def engine_of(nodes: list[Node], known: Tables) -> Engine:
    """A fresh engine with these tables."""
    engine = Engine(Policy())
    for node in nodes:
        engine.handle(NodeSeen(node))
    engine.handle(TablesChanged(known))
    return engine


@given(st.data())
def test_scores_and_flags_kept_up_to_date_are_those_of_a_fresh_scan(data: st.DataObject) -> None:
    """An engine that has decided and released much decides as one that starts now."""
    nodes = data.draw(node_lists())
    names = [node.name for node in nodes]
    known = data.draw(tables)
    engine = engine_of(nodes, known)
    wishes = [data.draw(pods(f"class-{i}")) for i in range(3)] + [make_pod("s", share(30))]

    for i in range(data.draw(st.integers(1, 8))):
        held = list(engine.ledger.allocations())
        step = data.draw(sampled(["schedule", "schedule", "gone", "fact"]))
        if step == "gone" and held:
            engine.handle(PodGone(data.draw(sampled(held)).uid))
        elif step == "fact":
            engine.ledger.apply(data.draw(allocations(f"fact-{i}", names)))
        elif step == "schedule":
            engine.evaluate(data.draw(sampled(wishes)))
            found = engine.evaluate(pod := data.draw(pods(f"pod-{i}")))
            if isinstance(found, Placement) and pod.uid not in engine.ledger:
                engine.ledger.apply(found.allocation)

    fresh = engine_of(nodes, known)
    for allocation in engine.ledger.allocations():
        fresh.ledger.apply(allocation)
    for wish in wishes:
        mine, theirs = engine.evaluate(wish), fresh.evaluate(wish)
        if isinstance(mine, Refusal):
            assert isinstance(theirs, Refusal)
            assert mine.code is theirs.code
        else:
            assert mine == theirs
        assert feasible(engine, wish) == feasible(fresh, wish)


@given(st.data())
def test_scores_leave_room_for_the_order_of_nodes(data: st.DataObject) -> None:
    """Scores are at least 0 and below the ceiling, tiers included."""
    nodes = data.draw(node_lists())
    engine = engine_of(nodes, data.draw(tables))
    pod = data.draw(pods("a"))

    if pod.request.fault is None:
        for score in feasible(engine, pod).values():
            assert 0 <= score % BEYOND_SCORES < BEYOND_SCORES
            assert score * RANKS < 2**63
