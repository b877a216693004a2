"""Ordinary resources and rules of nodes: the columns say what asking node by node says."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from partage.embedded.room_columns import MOST
from partage.embedded.rooms import Rooms
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Selector,
    Taint,
    Toleration,
)

NAMES = [f"n{number}" for number in range(3)]
ZONE = Requirement("zone", Operator.IN, ("a",))
CONSTRAINTS = [
    NodeConstraint(),
    NodeConstraint(Selector((ZONE,))),
    NodeConstraint(Selector((Requirement("zone", Operator.DOES_NOT_EXIST),))),
    NodeConstraint(
        terms=(NodeTerm(fields=(Requirement("metadata.name", Operator.IN, ("n1", "n2")),)),)
    ),
    NodeConstraint(terms=()),
]
AMOUNTS = st.one_of(st.integers(0, 8), st.sampled_from([MOST, MOST + 1, 2**70]))
HOSTS = st.dictionaries(st.sampled_from(["cpu", "memory", "pods"]), AMOUNTS, max_size=3)
NODES = st.builds(
    Node,
    name=st.sampled_from(NAMES),
    labels=st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]),
    taints=st.sampled_from([(), (Taint("k", "v", "NoSchedule"),)]),
    unschedulable=st.booleans(),
    allocatable=HOSTS,
)
PODS = st.builds(
    Pod,
    uid=st.just("asks"),
    namespace=st.just("default"),
    name=st.just("asks"),
    host=HOSTS,
    constraint=st.sampled_from(CONSTRAINTS),
    tolerations=st.sampled_from([(), (Toleration("k"),), (Toleration(""),)]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("node"), NODES),
        st.tuples(st.just("gone"), st.sampled_from(NAMES)),
        st.tuples(st.just("place"), st.sampled_from("abcd"), st.sampled_from(NAMES), HOSTS),
        st.tuples(st.just("leave"), st.sampled_from("abcd")),
        st.tuples(st.just("ask"), PODS),
    ),
    max_size=60,
)


@given(STEPS)
@settings(deadline=None, max_examples=300)
def test_columns_say_what_asking_node_by_node_says(steps: list[tuple[object, ...]]) -> None:
    """After any events: the same nodes in the same order, refused for the same reasons."""
    rooms = Rooms()
    for step in steps:
        match step:
            case ("node", Node() as node):
                rooms.node_seen(node)
            case ("gone", str() as name):
                rooms.node_gone(name)
            case ("place", str() as uid, str() as name, dict() as host):
                rooms.place(uid, name, host)
            case ("leave", str() as uid):
                rooms.leave(uid)
            case ("ask", Pod() as pod):
                agree(rooms, pod)


def agree(rooms: Rooms, pod: Pod) -> None:
    """Both ways, and the sentences made of them."""
    quick, plain = rooms.survey(pod), rooms.survey_plainly(pod)
    assert quick == plain
    assert (quick.summary(), quick.shortages()) == (plain.summary(), plain.shortages())


def test_places_of_nodes_that_went_are_used_again() -> None:
    """Most of many nodes go and others come: those that are left keep their order and amounts."""
    rooms, pod = Rooms(), Pod("u", "default", "p", host={"cpu": 2})
    for number in range(300):
        rooms.node_seen(Node(f"n{number}", allocatable={"cpu": number % 4}))
    rooms.place("x", "n299", {"cpu": 2})
    agree(rooms, pod)
    for number in range(280):
        rooms.node_gone(f"n{number}")
        agree(rooms, pod)
    rooms.node_seen(Node("n3", allocatable={"cpu": 3}))
    agree(rooms, replace(pod, constraint=CONSTRAINTS[1]))
    agree(rooms, pod)
    assert rooms.survey(pod).fitting[-1] == "n3"


def test_more_kinds_of_pods_than_are_remembered_are_answered_rightly() -> None:
    """Verdicts that were forgotten are made again."""
    rooms = Rooms()
    rooms.node_seen(Node("n0", labels={"k": "7"}, allocatable={"cpu": 4}))
    for round_ in range(2):
        for number in range(100):
            wanted = Selector((Requirement("k", Operator.IN, (str(number),)),))
            pod = Pod("u", "default", "p", constraint=NodeConstraint(wanted))
            agree(rooms, pod)
            assert bool(rooms.survey(pod).fitting) == (number == 7), round_


def test_a_node_that_offers_less_than_before_is_believed() -> None:
    """A resource that it does not name any more is gone, and what a pod holds of it is owed."""
    rooms, pod = Rooms(), Pod("u", "default", "p", host={"cpu": 1})
    rooms.node_seen(Node("n0", allocatable={"cpu": 4, "memory": 4}))
    rooms.place("x", "n0", {"memory": 1})
    assert rooms.survey(pod).fitting == ["n0"]
    rooms.node_seen(Node("n0", allocatable={"memory": 4}))
    assert rooms.survey(pod).short == {"cpu": 1}
    agree(rooms, pod)
    agree(rooms, replace(pod, host={"memory": 4}))
