"""The answers to the four verbs over the engine. Other tests cover HTTP, the API server and clocks (the service)."""

import json

import pytest

from fakes.builders import card, make_node, make_pod, share, whole
from partage.extender.cycle import Cycle
from partage.extender.preemption import proposed
from partage.model.errors import LedgerError
from partage.model.policy import Policy
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import Fault, PodRequest
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement
from partage.wire.extender import decode_filter, refused_reply

NAMES = ["a", "b", "c"]
_ASKED = decode_filter(b'{"Pod": {"metadata": {"name": "one"}}}')


def _cycle(policy: str = "partage") -> Cycle:
    engine = Engine(Policy.parse(policy))
    for name in NAMES:
        engine.handle(NodeSeen(make_node(name, [card(0, prefix=name), card(1, prefix=name)])))
    return Cycle(engine, hold=10.0)


def test_a_pod_without_devices_passes_everywhere_at_once() -> None:
    """Pods without devices never depend on the books."""
    cycle = _cycle()

    _, names, _ = cycle.filter(make_pod("plain"), ["x", "a"], 0.0, one=True)

    assert list(names) == ["x", "a"]
    assert not cycle.holds


def test_a_pod_without_soft_constraints_gets_one_node_and_a_hold() -> None:
    """The answer has one node, and its room is reserved."""
    cycle = _cycle()
    listed = ["a", "b"]

    _, mine, _ = cycle.filter(make_pod("one", whole(2)), listed, 0.0, one=True)
    _, other, _ = cycle.filter(make_pod("two", whole(2)), listed, 0.0, one=True)

    assert list(mine) == ["a"]
    assert list(other) == ["b"]
    assert cycle.engine.states["uid-one"] is State.HELD


def test_a_pod_with_soft_constraints_gets_every_node_that_fits() -> None:
    """Its own hold does not count against it; another pod's does."""
    cycle = _cycle()
    cycle.filter(make_pod("other", whole(2)), NAMES, 0.0, one=True)

    _, names, _ = cycle.filter(make_pod("one", whole(2)), NAMES, 0.0, one=False)

    assert sorted(names) == ["b", "c"]
    assert "uid-one" in cycle.holds


def test_only_nodes_asked_about_are_answered() -> None:
    """The answer is a subset of the question, unknown names included."""
    cycle = _cycle()
    listed = ["c", "unknown"]

    _, names, _ = cycle.filter(make_pod("one", whole()), listed, 0.0, one=False)

    assert list(names) == ["c"]


def test_a_list_of_names_is_looked_up_as_the_books_are_now() -> None:
    """It includes a node that appeared since."""
    cycle = _cycle()
    _, _, before = cycle.filter(make_pod("plain"), ["a", "d"], 0.0, one=True)
    cycle.engine.handle(NodeSeen(make_node("d", [card(0, prefix="d")])))

    assert before.sum() == 1
    _, _, after = cycle.filter(make_pod("plain"), ["a", "d"], 0.0, one=True)
    assert after.sum() == 2


def test_a_refusal_names_every_node_and_whether_evicting_helps() -> None:
    """Preemption can resolve a lack of capacity, but not a broken request."""
    cycle = _cycle()

    full, fitting, _ = cycle.filter(make_pod("big", share(10, 99)), NAMES, 0.0, one=True)
    broken = make_pod("broken", request=PodRequest(fault=Fault("no such share")))
    hopeless, _, _ = cycle.filter(broken, NAMES, 0.0, one=True)

    assert full is not None
    assert full.code is ReasonCode.INSUFFICIENT_MEMORY
    assert not fitting
    told = json.loads(refused_reply(_ASKED, NAMES, full))["FailedNodes"]
    assert set(told) == set(NAMES)
    assert told["a"].startswith("InsufficientMemory: ")
    assert hopeless is not None
    assert hopeless.code is ReasonCode.INVALID_REQUEST
    told = json.loads(refused_reply(_ASKED, NAMES, hopeless))["FailedAndUnresolvableNodes"]
    assert set(told) == set(NAMES)


def test_scores_are_integers_from_0_to_10_with_the_held_node_best() -> None:
    """kube-scheduler drops floats silently, and must choose the held node."""
    cycle = _cycle("binpack")
    cycle.engine.schedule(make_pod("first", share(50, 8)))
    pod = make_pod("one", share(10, 1))
    cycle.filter(pod, NAMES, 0.0, one=False)

    scores = cycle.prioritize(pod, [*NAMES, "unknown"], 0.0).tolist()

    assert scores[0] == 10
    assert scores[3] == 0
    assert all(isinstance(score, int) and 0 <= score <= 10 for score in scores)
    assert cycle.engine.states["uid-one"] is State.HELD


def test_bind_takes_the_hold_or_refuses_with_the_reason() -> None:
    """The reservation ends the hold."""
    cycle = _cycle()
    pod = make_pod("one", whole(2))
    cycle.filter(pod, NAMES, 0.0, one=True)

    bound = cycle.reserve(pod, "a")
    refused = cycle.reserve(make_pod("two", whole(2)), "a")

    assert isinstance(bound, Placement)
    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.INSUFFICIENT_CARDS
    assert not cycle.holds


def test_a_hold_ends_when_its_time_is_over() -> None:
    """The end is reported, so that pods refused because of it can be woken."""
    cycle = _cycle()
    cycle.filter(make_pod("one", whole(2)), NAMES, 0.0, one=True)

    assert cycle.expire(9.9) == []
    assert len(cycle.expire(10.0)) == 1
    assert "uid-one" not in cycle.engine.ledger


def _bound(cycle: Cycle, name: str, percent: int, **fields: object) -> None:
    pod = make_pod(name, share(percent, 4), **fields)  # type: ignore[arg-type]
    cycle.reserve(pod, "a")
    cycle.engine.handle(BindSucceeded(pod.uid))


def test_preemption_keeps_nodes_where_room_appears() -> None:
    """kube-scheduler's victims all stay in the answer; a node where nothing helps is dropped."""
    cycle = _cycle("first-fit")
    for name in ("low", "high"):
        _bound(cycle, name, 40)
    candidates = {"a": ["uid-low", "uid-high"], "b": []}

    kept = proposed(cycle, make_pod("one", whole(2)), candidates, {}.get, 0.0)
    nothing = proposed(cycle, make_pod("huge", share(1, 99)), candidates, {}.get, 0.0)
    plain = proposed(cycle, make_pod("plain"), candidates, {}.get, 0.0)

    assert kept == {"a": ("uid-low", "uid-high")}
    assert nothing == {}
    assert plain == {"a": ("uid-low", "uid-high"), "b": ()}


def test_preemption_adds_the_least_important_pods_that_make_room_on_a_card() -> None:
    """Totals may suffice although no single card does; pods of equal and higher priority are spared."""
    cycle = _cycle("spread")
    for name in ("p1", "p2", "p3", "p4"):
        _bound(cycle, name, 50)
    mates: dict[int, list[str]] = {}
    for held in cycle.engine.ledger.allocations():
        mates.setdefault(held.grants[0].minor, []).append(held.uid)
    (mine, mate), (third, spared) = mates.values()
    priorities = {mine: 1, mate: 5, third: 3, spared: 9}

    kept = proposed(
        cycle, make_pod("one", whole(), priority=9), {"a": [mine]}, priorities.get, 0.0
    )
    none = proposed(
        cycle, make_pod("two", whole(), priority=1), {"a": [mine]}, priorities.get, 0.0
    )

    assert kept == {"a": (mine, mate)}
    assert none == {}


def test_a_pod_whose_binding_is_on_its_way_is_not_filtered_again() -> None:
    """A pod can never have two reservations."""
    cycle = _cycle()
    pod = make_pod("one", whole())
    cycle.reserve(pod, "a")

    with pytest.raises(LedgerError, match="placed already"):
        cycle.filter(pod, NAMES, 0.0, one=True)


@pytest.mark.parametrize("one", [True, False], ids=["one node", "every node"])
def test_a_hold_that_moves_tells_where_room_appeared(one: bool) -> None:  # noqa: FBT001
    """Pods refused because of it can be woken."""
    cycle = _cycle("first-fit")
    pod = make_pod("one", whole())
    cycle.filter(pod, ["a"], 0.0, one=one)

    cycle.filter(pod, ["b"], 0.0, one=one)

    assert cycle.vacated == {"a"}
    held = cycle.engine.ledger.allocation(pod.uid)
    assert held is not None
    assert held.node == "b"


def test_a_nominated_pod_keeps_room_on_its_node() -> None:
    """The room of evicted pods is not for the next pod that asks; without room, nothing is reserved."""
    cycle = _cycle()
    cycle.engine.schedule(make_pod("full", whole(2)))  # takes node a
    pod = make_pod("one", whole(2))

    assert not cycle.nominate(pod, "a", 0.0)
    assert not cycle.nominate(pod, "unknown", 0.0)
    assert cycle.nominate(pod, "b", 0.0)
    assert not cycle.nominate(pod, "b", 0.0)
    _, names, _ = cycle.filter(make_pod("two", whole(2)), NAMES, 0.0, one=True)
    assert list(names) == ["c"]


def test_scores_are_zero_where_nothing_fits_or_nothing_is_asked() -> None:
    """A broken request, a pod without devices and a full cluster all score 0 everywhere."""
    cycle = _cycle()
    broken = make_pod("broken", request=PodRequest(fault=Fault("no such share")))

    for pod in (broken, make_pod("plain"), make_pod("huge", share(1, 99))):
        assert cycle.prioritize(pod, NAMES, 0.0).tolist() == [0, 0, 0]
