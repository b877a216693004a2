"""Ordinary resources and rules of nodes: the books of nodes without devices say what asking node by node says."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import sampled
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
from partage.placement.node import objection, shortage

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
AMOUNTS = st.one_of(st.integers(0, 8), st.just(2**40))
HOSTS = st.dictionaries(sampled(["cpu", "memory", "pods"]), AMOUNTS, max_size=3)
NODES = st.builds(
    Node,
    name=sampled(NAMES),
    labels=sampled([{}, {"zone": "a"}, {"zone": "b"}]),
    taints=sampled([(), (Taint("k", "v", "NoSchedule"),)]),
    unschedulable=st.booleans(),
    allocatable=HOSTS,
)
PODS = st.builds(
    Pod,
    uid=st.just("asks"),
    namespace=st.just("default"),
    name=st.just("asks"),
    host=HOSTS,
    constraint=sampled(CONSTRAINTS),
    tolerations=sampled([(), (Toleration("k"),), (Toleration(""),)]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("node"), NODES),
        st.tuples(st.just("gone"), sampled(NAMES)),
        st.tuples(st.just("place"), sampled("abcd"), sampled(NAMES), HOSTS),
        st.tuples(st.just("leave"), sampled("abcd")),
        st.tuples(st.just("ask"), PODS),
    ),
    max_size=60,
)


@given(STEPS)
@settings(deadline=None, max_examples=300)
def test_columns_say_what_asking_node_by_node_says(steps: list[tuple[object, ...]]) -> None:
    """After any events: the same nodes, and others refused for the same reasons."""
    rooms, nodes, held = Rooms(), {}, {}
    for step in steps:
        match step:
            case ("node", Node() as node):
                rooms.node_seen(node)
                nodes[node.name] = node
            case ("gone", str() as name):
                rooms.node_gone(name)
                nodes.pop(name, None)
            case ("place", str() as uid, str() as name, dict() as host):
                rooms.place(Pod(uid, "default", uid, host=host), name)
                if held.get(uid, ("", {}))[0] != name:
                    held[uid] = name, host
            case ("leave", str() as uid):
                assert rooms.leave(uid) is (held.pop(uid, None) is not None)
            case ("ask", Pod() as pod):
                agree(rooms, pod, nodes, held)


def agree(
    rooms: Rooms,
    pod: Pod,
    nodes: Mapping[str, Node],
    held: Mapping[str, tuple[str, Mapping[str, int]]],
) -> None:
    """The books, and `placement.node` asked node by node."""
    fitting: list[str] = []
    objecting, short = 0, Counter[str]()
    for name, node in nodes.items():
        free = Counter(node.allocatable)
        for where, host in held.values():
            free.subtract(host if where == name else {})
        lacking = None if objection(node, pod) else shortage(pod.host, free)
        if objection(node, pod):
            objecting += 1
        elif lacking is not None:
            short[lacking.brief.partition(":")[0]] += 1
        else:
            fitting.append(name)
    found = rooms.survey(pod)
    assert sorted(rooms.names(found)) == sorted(fitting)
    assert (sum(found.objections.values()), found.short) == (objecting, short)


def test_a_refusal_counts_its_reasons_in_kube_schedulers_words() -> None:
    """Rules first, then what is short."""
    rooms = Rooms()
    rooms.node_seen(Node("n0", allocatable={"cpu": 4}, taints=(Taint("k", "v", "NoSchedule"),)))
    rooms.node_seen(Node("n1", allocatable={"cpu": 1}))
    rooms.node_seen(Node("n2", allocatable={"cpu": 1}, unschedulable=True))

    found = rooms.survey(Pod("u", "default", "p", host={"cpu": 2}))

    assert found.summary() == (
        "0/3 nodes are available: 1 Insufficient cpu, "
        "1 node(s) had untolerated taint {k=v:NoSchedule}, 1 node(s) were unschedulable."
    )
    assert found.shortages() == "1 insufficient cpu"


def test_the_idlest_node_is_the_one_with_most_left() -> None:
    """CPU and memory count, in parts of what each node has."""
    rooms = Rooms()
    for number in range(3):
        rooms.node_seen(Node(f"n{number}", allocatable={"cpu": 4, "memory": 8}))
    rooms.place(Pod("x", "default", "x", host={"cpu": 2}), "n0")
    rooms.place(Pod("y", "default", "y", host={"memory": 3}), "n1")
    rooms.place(Pod("z", "default", "z", host={"cpu": 1, "memory": 2}), "n2")

    assert rooms.idlest(["n0", "n1", "n2"]) == "n1"
    assert rooms.idlest(["n0", "n2"]) in ("n0", "n2")


def test_more_kinds_of_pods_than_are_remembered_are_answered_rightly() -> None:
    """The nodes that they leave are judged again."""
    rooms = Rooms()
    rooms.node_seen(Node("n0", labels={"k": "7"}, allocatable={"cpu": 4}))
    for round_ in range(2):
        for number in range(100):
            wanted = Selector((Requirement("k", Operator.IN, (str(number),)),))
            pod = Pod("u", "default", "p", constraint=NodeConstraint(wanted))
            assert bool(rooms.names(rooms.survey(pod))) == (number == 7), round_


def test_a_node_that_offers_less_than_before_is_believed() -> None:
    """A resource that it does not name any more is gone, and what a pod holds of it is owed."""
    rooms, pod = Rooms(), Pod("u", "default", "p", host={"cpu": 1})
    rooms.node_seen(Node("n0", allocatable={"cpu": 4, "memory": 4}))
    rooms.place(Pod("x", "default", "x", host={"memory": 1}), "n0")
    assert rooms.names(rooms.survey(pod)) == ["n0"]
    rooms.node_seen(Node("n0", allocatable={"memory": 4}))
    assert rooms.survey(pod).short == {"cpu": 1}
    assert rooms.survey(Pod("v", "default", "q", host={"memory": 2**70})).short == {"memory": 1}
