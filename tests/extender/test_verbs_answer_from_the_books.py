"""The four verbs over the engine. Not covered: HTTP, the API server, clocks (the service)."""

from partage.extender.verbs import Verbs
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.model.request import Fault, PodRequest
from partage.scheduler.engine import Engine, State
from partage.scheduler.events import NodeSeen, Placement
from partage.testing.builders import card, make_node, make_pod, share, whole

NAMES = ["a", "b", "c"]


def _verbs(policy: str = "partage") -> Verbs:
    engine = Engine(Policy.parse(policy))
    for name in NAMES:
        engine.handle(NodeSeen(make_node(name, [card(0, prefix=name), card(1, prefix=name)])))
    return Verbs(engine, hold=10.0)


def test_a_pod_without_devices_passes_everywhere_at_once() -> None:
    """Pods without devices never depend on the books."""
    verbs = _verbs()

    answer = verbs.filter(make_pod("plain"), ["x", "a"], None, 0.0, one=True)

    assert list(answer.names) == ["x", "a"]
    assert not verbs.holds


def test_a_pod_without_soft_constraints_gets_one_node_and_a_hold() -> None:
    """One node is answer enough, and its room is kept."""
    verbs = _verbs()
    names, among = verbs.nodes_of(b'["a","b"]', ["a", "b"])

    answer = verbs.filter(make_pod("one", whole(2)), names, among, 0.0, one=True)
    other = verbs.filter(make_pod("two", whole(2)), names, among, 0.0, one=True)

    assert list(answer.names) == ["a"]
    assert list(other.names) == ["b"]
    assert verbs.engine.states["uid-one"] is State.HELD


def test_a_pod_with_soft_constraints_gets_every_node_that_fits() -> None:
    """Its own hold does not count against it; another pod's does."""
    verbs = _verbs()
    verbs.filter(make_pod("other", whole(2)), NAMES, None, 0.0, one=True)

    answer = verbs.filter(make_pod("one", whole(2)), NAMES, None, 0.0, one=False)

    assert sorted(answer.names) == ["b", "c"]
    assert "uid-one" in verbs.holds


def test_only_nodes_asked_about_are_answered() -> None:
    """The answer is a subset of the question, unknown names included."""
    verbs = _verbs()
    names, among = verbs.nodes_of(b'["c","nobody"]', ["c", "nobody"])

    answer = verbs.filter(make_pod("one", whole()), names, among, 0.0, one=False)

    assert list(answer.names) == ["c"]


def test_a_list_of_names_is_looked_up_once_until_nodes_change() -> None:
    """The cache is keyed by the bytes as they came."""
    verbs = _verbs()
    raw = b'["a","d"]'
    verbs.nodes_of(raw, ["a", "d"])

    assert verbs.is_known(raw)
    verbs.engine.handle(NodeSeen(make_node("d", [card(0, prefix="d")])))
    assert not verbs.is_known(raw)
    _, among = verbs.nodes_of(raw, ["a", "d"])
    assert among.sum() == 2


def test_a_refusal_names_every_node_and_whether_evicting_helps() -> None:
    """Capacity is resolvable by preemption; a broken request is not."""
    verbs = _verbs()

    full = verbs.filter(make_pod("big", share(10, 99)), NAMES, None, 0.0, one=True)
    broken = make_pod("broken", request=PodRequest(fault=Fault("no such share")))
    hopeless = verbs.filter(broken, NAMES, None, 0.0, one=True)

    assert set(full.failed) == set(NAMES)
    assert full.failed["a"].startswith("InsufficientMemory: ")
    assert set(hopeless.unresolvable) == set(NAMES)
    assert verbs.refusals.keys() == {"uid-big", "uid-broken"}


def test_scores_are_integers_from_0_to_10_with_the_held_node_best() -> None:
    """kube-scheduler drops floats silently, and must pick the node that is held."""
    verbs = _verbs("binpack")
    verbs.engine.schedule(make_pod("first", share(50, 8)))
    pod = make_pod("one", share(10, 1))
    verbs.filter(pod, NAMES, None, 0.0, one=False)

    scores = dict(verbs.prioritize(pod, [*NAMES, "unknown"], None))

    assert scores["a"] == 10
    assert scores["unknown"] == 0
    assert all(isinstance(score, int) and 0 <= score <= 10 for score in scores.values())
    assert verbs.engine.states["uid-one"] is State.HELD


def test_bind_takes_the_hold_or_refuses_with_the_reason() -> None:
    """What bind refuses is remembered for explain."""
    verbs = _verbs()
    pod = make_pod("one", whole(2))
    verbs.filter(pod, NAMES, None, 0.0, one=True)

    bound = verbs.bind(pod, "a")
    refused = verbs.bind(make_pod("two", whole(2)), "a")

    assert isinstance(bound, Placement)
    assert isinstance(refused, Refusal)
    assert verbs.refusals.keys() == {"uid-two"}
    assert not verbs.holds


def test_a_hold_ends_when_its_time_is_over() -> None:
    """The end is reported, so that whoever was refused because of it can be woken."""
    verbs = _verbs()
    verbs.filter(make_pod("one", whole(2)), NAMES, None, 0.0, one=True)

    assert verbs.expire(9.9) == []
    assert len(verbs.expire(10.0)) == 1
    assert "uid-one" not in verbs.engine.ledger


def test_preemption_keeps_nodes_where_room_appears_and_reprieves_the_others() -> None:
    """Only victims that are needed are evicted, the least important first."""
    verbs = _verbs("first-fit")
    for name, percent in (("low", 40), ("high", 40)):
        verbs.engine.schedule(make_pod(name, share(percent, 4)))
    candidates = {"a": ["uid-low", "uid-high"], "b": []}

    kept = verbs.preempt(
        make_pod("one", share(60, 4, count=2)), candidates, {"uid-high": 10, "uid-low": 1}
    )
    nothing = verbs.preempt(make_pod("huge", share(1, 99)), candidates, {})

    assert kept == {"a": ("uid-low",)}
    assert nothing == {}
