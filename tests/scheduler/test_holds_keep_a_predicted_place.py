"""Holds: what an extender's filter keeps until bind. Not covered: how long (the driver's clock)."""

from dataclasses import replace

import numpy as np

from answers import feasible
from fakes.builders import card, make_node, make_pod, share, whole
from partage.model.reason import Refusal
from partage.model.selector import NodeConstraint, NodeTerm, Operator, Requirement
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import HoldEnded, NodeSeen, Placement, PodGone


def _engine(*names: str) -> Engine:
    engine = Engine()
    for name in names:
        engine.handle(NodeSeen(make_node(name, [card(0, prefix=name)])))
    return engine


def test_two_pods_filtered_together_do_not_get_the_same_card() -> None:
    """A hold counts like a reservation for all other pods."""
    engine = _engine("a", "b")

    first, second = engine.hold(make_pod("one", whole())), engine.hold(make_pod("two", whole()))

    assert isinstance(first, Placement)
    assert isinstance(second, Placement)
    assert first.allocation.node != second.allocation.node
    assert isinstance(engine.hold(make_pod("three", whole())), Refusal)
    engine.audit()


def test_bind_on_the_held_node_takes_the_hold_as_it_is() -> None:
    """The cards predicted by filter are the cards bound."""
    engine = _engine("a")
    held = engine.hold(make_pod("one", share(30, 4)))

    bound = engine.place_on(make_pod("one", share(30, 4)), "a")

    assert isinstance(held, Placement)
    assert isinstance(bound, Placement)
    assert bound.allocation == held.allocation
    assert engine.states["uid-one"] is State.RESERVED


def test_bind_elsewhere_moves_the_hold() -> None:
    """The node that kube-scheduler picks wins; the predicted place is free again."""
    engine = _engine("a", "b")
    engine.hold(make_pod("one", whole()))

    moved = engine.place_on(make_pod("one", whole()), "b")
    other = engine.schedule(make_pod("two", whole()))

    assert isinstance(moved, Placement)
    assert moved.allocation.node == "b"
    assert isinstance(other, Placement)
    assert other.allocation.node == "a"
    engine.audit()


def test_bind_where_nothing_fits_gives_the_hold_up_and_says_why() -> None:
    """A refused bind leaves nothing behind."""
    engine = _engine("a", "b")
    engine.schedule(make_pod("full", whole(), constraint=_only("b")))
    engine.hold(make_pod("one", whole()))

    refused = engine.place_on(make_pod("one", whole()), "b")

    assert isinstance(refused, Refusal)
    assert refused.message.startswith("node b: ")
    assert "uid-one" not in engine.ledger
    assert isinstance(engine.schedule(make_pod("two", whole())), Placement)


def test_a_hold_ends_with_its_time_and_frees_its_room() -> None:
    """The end of a hold is a release that others may be waiting for; a second end is nothing."""
    engine = _engine("a")
    engine.hold(make_pod("one", whole()))

    actions = engine.handle(HoldEnded("uid-one"))

    assert [action.node for action in actions if hasattr(action, "node")] == ["a"]
    assert engine.handle(HoldEnded("uid-one")) == []
    assert isinstance(engine.schedule(make_pod("two", whole())), Placement)


def test_a_bound_pod_outlives_the_end_of_its_hold() -> None:
    """A late timer does not release what has been bound since."""
    engine = _engine("a")
    engine.hold(make_pod("one", whole()))
    engine.place_on(make_pod("one", whole()), "a")

    engine.handle(HoldEnded("uid-one"))

    assert "uid-one" in engine.ledger


def test_a_hold_goes_with_its_pod() -> None:
    """No hold without a live owner."""
    engine = _engine("a")
    engine.hold(make_pod("one", whole()))

    engine.handle(PodGone("uid-one"))

    assert "uid-one" not in engine.ledger
    engine.audit()


def _only(name: str) -> NodeConstraint:
    wanted = Requirement("metadata.name", Operator.IN, (name,))
    return NodeConstraint(terms=(NodeTerm(fields=(wanted,)),))


def test_feasible_nodes_are_those_asked_about_that_fit() -> None:
    """The answer is a subset of the question, in node order."""
    engine = _engine("a", "b", "c")
    engine.schedule(make_pod("full", whole(), constraint=_only("b")))
    among = np.array([False, True, True] + [False] * 13)

    everywhere = feasible(engine, make_pod("one", whole()))
    asked = feasible(engine, make_pod("one", whole()), among)

    assert list(everywhere) == ["a", "c"]
    assert list(asked) == ["c"]


def test_a_hold_stays_among_the_nodes_it_may_use() -> None:
    """Nodes that kube-scheduler filtered out are never held."""
    engine = _engine("a", "b")
    among = np.array([False, True] + [False] * 14)

    decision = engine.hold(make_pod("one", whole()), among)

    assert isinstance(decision, Placement)
    assert decision.allocation.node == "b"


def test_preemption_is_tried_on_the_books_and_leaves_them_as_they_were() -> None:
    """Room that victims would leave counts card by card."""
    engine = _engine("a")
    engine.schedule(make_pod("half", share(50, 8)))
    engine.schedule(make_pod("quarter", share(25, 4)))
    before = engine.ledger.picture()

    assert engine.grants_without(make_pod("one", share(60, 2)), "a", ["uid-quarter"]) is None
    assert engine.grants_without(make_pod("one", share(60, 2)), "a", ["uid-half"]) is not None
    assert (
        engine.grants_without(make_pod("w", whole()), "a", ["uid-half", "uid-quarter"]) is not None
    )
    assert engine.grants_without(make_pod("w", whole()), "nowhere", []) is None
    assert engine.ledger.picture() == before


def test_what_pods_take_beside_devices_is_taken_in_alone() -> None:
    """The columns are those of a ledger that had it from the start, and a hold books devices alone from then on."""
    there = make_node("n1", [card(0), card(1)], allocatable={"cpu": 8000, "pods": 10}, version=1)
    engine = Engine()
    engine.handle(NodeSeen(there))
    assert isinstance(
        engine.schedule(make_pod("offline", share(50), host={"cpu": 1000})), Placement
    )
    changes, room = engine.ledger.node_changes.count, engine.ledger.made_room
    told = replace(there, taken={"cpu": 3000, "pods": 4}, version=2)
    assert engine.handle(NodeSeen(told)) == []
    assert engine.ledger.node_changes.count == changes, "its labels are not judged again"
    assert engine.ledger.host_left(0, ("cpu", "pods")) == {"cpu": 4000, "pods": 6}
    assert engine.ledger.made_room == room, "refused classes need no new look"
    engine.ledger.validate()

    decision = engine.hold(make_pod("web", share(50), host={"cpu": 4000}))
    assert isinstance(decision, Placement)
    assert decision.allocation.host == {}
    assert engine.ledger.host_left(0, ("cpu",)) == {"cpu": 4000}
    assert isinstance(engine.hold(make_pod("more", share(50), host={"cpu": 5000})), Refusal)
    engine.handle(NodeSeen(replace(told, taken={}, version=3)))
    assert engine.ledger.host_left(0, ("cpu", "pods")) == {"cpu": 7000, "pods": 10}
    assert engine.ledger.made_room > room
    engine.ledger.validate()
