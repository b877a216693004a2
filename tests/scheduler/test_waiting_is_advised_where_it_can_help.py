"""Whether waiting can help a pod: the exact rule over nodes that are taken to be idle, healthy and open."""

import re
from collections.abc import Mapping

import pytest

from fakes.builders import card, f1_devices, make_node, make_pod, share, whole
from partage.model.node import Node, Verdict
from partage.model.pod import Pod
from partage.model.reason import ReasonCode
from partage.model.request import CardFilter, Scope
from partage.model.selector import NodeConstraint, NodeTerm, Operator, Requirement, Selector, Taint
from partage.placement.card import Work
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement
from partage.scheduler.idle import fits_when_idle
from partage.wire.advice import ADVICE, CHOSEN, PASSING, advice

TREE = make_node("tree", devices=f1_devices())
EIGHT = make_node("eight", devices=[card(minor) for minor in range(8)])
TAINT = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
OWN = Taint("team", "a", "NoSchedule")
SILENT = Verdict("", ReasonCode.AGENT_SILENT, "the agent is away")
SMALL = make_node("small", devices=[card(0)], labels={"pool": "small"})
IN_SMALL = NodeConstraint(Selector((Requirement("pool", Operator.IN, ("small",)),)))


def asked(pod: Pod, *nodes: Node) -> bool | None:
    """Whether a node would host the pod once it is idle."""
    engine = Engine()
    for node in nodes:
        engine.handle(NodeSeen(node))
    return fits_when_idle(engine, pod)


@pytest.mark.parametrize(
    ("pod", "nodes", "may_help"),
    [
        pytest.param(make_pod("p", whole(8)), (EIGHT,), True, id="all"),
        pytest.param(make_pod("p", whole(16)), (EIGHT, EIGHT), False, id="more-cards-than-a-node"),
        pytest.param(make_pod("p", share(10, memory=17)), (EIGHT,), False, id="memory"),
        pytest.param(make_pod("p", whole(4, scope=Scope.NUMA)), (TREE,), True, id="near"),
        pytest.param(make_pod("p", whole(8, scope=Scope.NUMA)), (TREE,), False, id="too-near"),
        pytest.param(make_pod("p", *[share(60)] * 8), (EIGHT,), True, id="containers"),
        pytest.param(make_pod("p", *[share(60)] * 9), (EIGHT,), False, id="containers-together"),
        pytest.param(
            make_pod("p", share(60), share(60), constraint=IN_SMALL),
            (EIGHT, SMALL),
            False,
            id="only-on-the-small-node",
        ),
        pytest.param(
            make_pod("p", share(10, filter=CardFilter(use_uuids=("GPU-7",)))),
            (EIGHT,),
            True,
            id="a-card-by-name",
        ),
        pytest.param(
            make_pod("p", share(10), host={"cpu": 9000}),
            (make_node("n", devices=[card(0)], allocatable={"cpu": 8000}),),
            False,
            id="cpu",
        ),
        pytest.param(
            make_pod("p", share(10)),
            (make_node("n", devices=[card(0)], taints=(TAINT,)),),
            True,
            id="a-taint-that-passes",
        ),
        pytest.param(
            make_pod("p", share(10)),
            (make_node("n", devices=[card(0)], taints=(OWN,)),),
            False,
            id="a-taint-that-stays",
        ),
        pytest.param(
            make_pod("p", whole(1)),
            (
                make_node(
                    "n", devices=[card(0, healthy=False)], unschedulable=True, verdicts=(SILENT,)
                ),
            ),
            True,
            id="cordoned-sick-and-silent",
        ),
    ],
)
def test_it_is_what_an_idle_node_would_say(
    pod: Pod,
    nodes: tuple[Node, ...],
    may_help: bool,  # noqa: FBT001 # a case
) -> None:
    """What passes by itself, or by a repair, does not count as too small."""
    named = [
        node
        if number == 0
        else make_node(f"{node.name}-{number}", node.devices, labels=node.labels)
        for number, node in enumerate(nodes)
    ]
    assert asked(pod, *named) is may_help


def test_what_others_hold_does_not_count() -> None:
    """The books are full; the answer is that of the empty node."""
    engine = Engine()
    engine.handle(NodeSeen(EIGHT))
    for number in range(8):
        assert isinstance(engine.schedule(make_pod(f"p{number}", whole(1))), Placement)

    assert fits_when_idle(engine, make_pod("p", whole(8))) is True


def test_too_many_kinds_of_node_are_not_tried() -> None:
    """A person's question is bounded too; then the usual advice stands."""
    nodes = [make_node(f"n{n}", devices=[card(0, memory=n + 1)]) for n in range(70)]

    assert asked(make_pod("p", share(10, memory=100)), *nodes) is None
    assert asked(make_pod("p", share(10, memory=100)), *nodes[:60]) is False


def many(pod: Pod, nodes: int) -> int:
    """The units that the question costs whether a node of many that are equal but for their names hosts a pod."""
    engine, work = Engine(), Work()
    for number in range(nodes):
        engine.handle(NodeSeen(make_node(f"n{number}", (card(0),), labels={"at": str(number)})))
    assert fits_when_idle(engine, pod, work) is False
    return work.taken


def test_each_node_that_is_looked_at_is_paid_for() -> None:
    """A person may ask at any rate."""
    few, more = (many(make_pod("p", whole(2)), nodes) for nodes in (400, 2_000))
    assert more == few + 400


def test_nodes_that_the_pod_excludes_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred terms that no node meets, and one that a single node does, on a thousand nodes."""
    asked, plain = list[str](), NodeConstraint.matches

    def counted(constraint: NodeConstraint, name: str, labels: Mapping[str, str]) -> bool:
        asked.append(name)
        return plain(constraint, name, labels)

    monkeypatch.setattr(NodeConstraint, "matches", counted)
    own = NodeTerm((Requirement("at", Operator.IN, ("7",)),))
    others = [NodeTerm((Requirement("at", Operator.GT, (str(5_000 + n),)),)) for n in range(100)]
    constraint = NodeConstraint(terms=(own, *others))

    assert many(make_pod("p", whole(2), constraint=constraint), 1_000) < 10
    assert not asked


BY_OTHERS = {
    ReasonCode.SCHEDULING_GATED,
    ReasonCode.AGENT_SILENT,
    ReasonCode.SEARCH_DEFERRED,
    ReasonCode.SELECTOR_MISMATCH,
}
"""What passes by a controller, an agent, the namespace's allowance or a driver, whatever runs on the nodes."""


def test_advice_never_says_to_wait_for_what_cannot_come() -> None:
    """It may help where room is missing, or devices close together; other codes have other remedies."""
    for code in ReasonCode:
        never = advice(code.value, never=True)
        assert ("waiting does not help" in never) is (code in PASSING)
        assert code in PASSING | CHOSEN or never == ADVICE[code]
        assert ("ask for less too" in never) is (code in CHOSEN)
        assert code in PASSING | BY_OTHERS or not re.search(r"\bwait\b", ADVICE[code])
