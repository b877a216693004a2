"""The four verbs over the engine. Other tests cover HTTP, the API server and clocks (the service)."""

import pytest

from fakes.builders import card, make_node, make_pod, share, whole
from partage.extender.cycle import Cycle
from partage.extender.verbs import Verbs
from partage.model.errors import LedgerError
from partage.model.policy import Policy
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import Fault, PodRequest
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement

NAMES = ["a", "b", "c"]


def _verbs(policy: str = "partage") -> Verbs:
    engine = Engine(Policy.parse(policy))
    for name in NAMES:
        engine.handle(NodeSeen(make_node(name, [card(0, prefix=name), card(1, prefix=name)])))
    return Verbs(Cycle(engine, hold=10.0))


def test_a_pod_without_devices_passes_everywhere_at_once() -> None:
    """Pods without devices never depend on the books."""
    verbs = _verbs()

    answer = verbs.filter(make_pod("plain"), ["x", "a"], 0.0, one=True)

    assert list(answer.names) == ["x", "a"]
    assert not verbs.cycle.holds


def test_a_pod_without_soft_constraints_gets_one_node_and_a_hold() -> None:
    """The answer has one node, and its room is reserved."""
    verbs = _verbs()
    listed = ["a", "b"]

    answer = verbs.filter(make_pod("one", whole(2)), listed, 0.0, one=True)
    other = verbs.filter(make_pod("two", whole(2)), listed, 0.0, one=True)

    assert list(answer.names) == ["a"]
    assert list(other.names) == ["b"]
    assert verbs.engine.states["uid-one"] is State.HELD


def test_a_pod_with_soft_constraints_gets_every_node_that_fits() -> None:
    """Its own hold does not count against it; another pod's does."""
    verbs = _verbs()
    verbs.filter(make_pod("other", whole(2)), NAMES, 0.0, one=True)

    answer = verbs.filter(make_pod("one", whole(2)), NAMES, 0.0, one=False)

    assert sorted(answer.names) == ["b", "c"]
    assert "uid-one" in verbs.cycle.holds


def test_only_nodes_asked_about_are_answered() -> None:
    """The answer is a subset of the question, unknown names included."""
    verbs = _verbs()
    listed = ["c", "nobody"]

    answer = verbs.filter(make_pod("one", whole()), listed, 0.0, one=False)

    assert list(answer.names) == ["c"]


def test_a_list_of_names_is_looked_up_as_the_books_are_now() -> None:
    """It includes a node that appeared since."""
    verbs = _verbs()
    before = verbs.filter(make_pod("plain"), ["a", "d"], 0.0, one=True)
    verbs.engine.handle(NodeSeen(make_node("d", [card(0, prefix="d")])))

    assert before.among.sum() == 1
    after = verbs.filter(make_pod("plain"), ["a", "d"], 0.0, one=True)
    assert after.among.sum() == 2


def test_a_refusal_names_every_node_and_whether_evicting_helps() -> None:
    """Preemption can resolve a lack of capacity, but not a broken request."""
    verbs = _verbs()

    full = verbs.filter(make_pod("big", share(10, 99)), NAMES, 0.0, one=True)
    broken = make_pod("broken", request=PodRequest(fault=Fault("no such share")))
    hopeless = verbs.filter(broken, NAMES, 0.0, one=True)

    assert set(full.failed) == set(NAMES)
    assert full.failed["a"].startswith("InsufficientMemory: ")
    assert set(hopeless.unresolvable) == set(NAMES)
    assert full.refusal is not None
    assert full.refusal.code is ReasonCode.INSUFFICIENT_MEMORY
    assert hopeless.refusal is not None
    assert hopeless.refusal.code is ReasonCode.INVALID_REQUEST


def test_scores_are_integers_from_0_to_10_with_the_held_node_best() -> None:
    """kube-scheduler drops floats silently, and must choose the held node."""
    verbs = _verbs("binpack")
    verbs.engine.schedule(make_pod("first", share(50, 8)))
    pod = make_pod("one", share(10, 1))
    verbs.filter(pod, NAMES, 0.0, one=False)

    scores = verbs.prioritize(pod, [*NAMES, "unknown"], 0.0).tolist()

    assert scores[0] == 10
    assert scores[3] == 0
    assert all(isinstance(score, int) and 0 <= score <= 10 for score in scores)
    assert verbs.engine.states["uid-one"] is State.HELD


def test_bind_takes_the_hold_or_refuses_with_the_reason() -> None:
    """The reservation ends the hold."""
    verbs = _verbs()
    pod = make_pod("one", whole(2))
    verbs.filter(pod, NAMES, 0.0, one=True)

    bound = verbs.cycle.reserve(pod, "a")
    refused = verbs.cycle.reserve(make_pod("two", whole(2)), "a")

    assert isinstance(bound, Placement)
    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.INSUFFICIENT_CARDS
    assert not verbs.cycle.holds


def test_a_hold_ends_when_its_time_is_over() -> None:
    """The end is reported, so that pods refused because of it can be woken."""
    verbs = _verbs()
    verbs.filter(make_pod("one", whole(2)), NAMES, 0.0, one=True)

    assert verbs.cycle.expire(9.9) == []
    assert len(verbs.cycle.expire(10.0)) == 1
    assert "uid-one" not in verbs.engine.ledger


def _bound(verbs: Verbs, name: str, percent: int, **fields: object) -> None:
    pod = make_pod(name, share(percent, 4), **fields)  # type: ignore[arg-type]
    verbs.cycle.reserve(pod, "a")
    verbs.engine.handle(BindSucceeded(pod.uid))


def test_preemption_keeps_nodes_where_room_appears() -> None:
    """kube-scheduler's victims all stay in the answer; a node where nothing helps is dropped."""
    verbs = _verbs("first-fit")
    for name in ("low", "high"):
        _bound(verbs, name, 40)
    candidates = {"a": ["uid-low", "uid-high"], "b": []}

    kept = verbs.preempt(make_pod("one", whole(2)), candidates, {}, 0.0)
    nothing = verbs.preempt(make_pod("huge", share(1, 99)), candidates, {}, 0.0)
    plain = verbs.preempt(make_pod("plain"), candidates, {}, 0.0)

    assert kept == {"a": ("uid-low", "uid-high")}
    assert nothing == {}
    assert plain == {"a": ("uid-low", "uid-high"), "b": ()}


def test_preemption_adds_the_least_important_pods_that_make_room_on_a_card() -> None:
    """Totals may suffice although no single card does; pods of equal and higher priority are spared."""
    verbs = _verbs("spread")
    for name in ("p1", "p2", "p3", "p4"):
        _bound(verbs, name, 50)
    mates: dict[int, list[str]] = {}
    for held in verbs.engine.ledger.allocations():
        mates.setdefault(held.grants[0].minor, []).append(held.uid)
    (mine, mate), (third, spared) = mates.values()
    priorities = {mine: 1, mate: 5, third: 3, spared: 9}

    kept = verbs.preempt(make_pod("one", whole(), priority=9), {"a": [mine]}, priorities, 0.0)
    none = verbs.preempt(make_pod("two", whole(), priority=1), {"a": [mine]}, priorities, 0.0)

    assert kept == {"a": (mine, mate)}
    assert none == {}


def test_a_pod_whose_binding_is_on_its_way_is_not_filtered_again() -> None:
    """A pod can never have two reservations."""
    verbs = _verbs()
    pod = make_pod("one", whole())
    verbs.cycle.reserve(pod, "a")

    with pytest.raises(LedgerError, match="placed already"):
        verbs.filter(pod, NAMES, 0.0, one=True)


@pytest.mark.parametrize("one", [True, False], ids=["one node", "every node"])
def test_a_hold_that_moves_tells_where_room_appeared(one: bool) -> None:  # noqa: FBT001
    """Pods refused because of it can be woken."""
    verbs = _verbs("first-fit")
    pod = make_pod("one", whole())
    verbs.filter(pod, ["a"], 0.0, one=one)

    verbs.filter(pod, ["b"], 0.0, one=one)

    assert verbs.cycle.vacated == {"a"}
    held = verbs.engine.ledger.allocation(pod.uid)
    assert held is not None
    assert held.node == "b"


def test_a_nominated_pod_keeps_room_on_its_node() -> None:
    """The room of evicted pods is not for the next pod that asks; without room, nothing is reserved."""
    verbs = _verbs()
    verbs.engine.schedule(make_pod("full", whole(2)))  # takes node a
    pod = make_pod("one", whole(2))

    assert not verbs.cycle.nominate(pod, "a", 0.0)
    assert not verbs.cycle.nominate(pod, "nobody", 0.0)
    assert verbs.cycle.nominate(pod, "b", 0.0)
    assert not verbs.cycle.nominate(pod, "b", 0.0)
    answer = verbs.filter(make_pod("two", whole(2)), NAMES, 0.0, one=True)
    assert list(answer.names) == ["c"]


def test_scores_are_zero_where_nothing_fits_or_nothing_is_asked() -> None:
    """A broken request, a pod without devices and a full cluster all score 0 everywhere."""
    verbs = _verbs()
    broken = make_pod("broken", request=PodRequest(fault=Fault("no such share")))

    for pod in (broken, make_pod("plain"), make_pod("huge", share(1, 99))):
        assert verbs.prioritize(pod, NAMES, 0.0).tolist() == [0, 0, 0]
