"""Odd facts, such as a vanished card or an absurd amount, never stop the engine."""

import pytest

from answers import feasible
from fakes.builders import GIB, card, make_node, make_pod, share, whole
from partage.model.allocation import Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.reason import ReasonCode, Refusal
from partage.model.selector import NodeConstraint, NodeTerm, Operator, Requirement
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, PodGone, PodSeen, Quarantined

GPU = DeviceType.GPU
ONLY_FIRST = NodeConstraint(
    terms=(NodeTerm(fields=(Requirement("metadata.name", Operator.IN, ("node-1",)),)),)
)


def engine_of(*nodes: Node) -> Engine:
    """An engine that has seen these nodes."""
    engine = Engine()
    for node in nodes:
        engine.handle(NodeSeen(node))
    return engine


def bound(uid: str, node: str, *grants: Grant, **fields: object) -> Pod:
    """A pod that the API server shows on a node with a trusted record."""
    base = {"record": Record(grants), "version": 1} | fields
    return Pod(uid, "default", uid, node=node, **base)  # type: ignore[arg-type]


def grant(minor: int, uuid: str, **fields: object) -> Grant:
    """Half a card."""
    base = {"core_milli": 500, "memory_bytes": 8 * GIB, "mode": GrantMode.SHARE} | fields
    return Grant("c", GPU, minor, uuid, **base)  # type: ignore[arg-type]


def test_a_record_of_a_vanished_card_does_not_break_known_classes() -> None:
    """A ghost row appears between two decisions of one class, and goes away again."""
    cards = [card(0), card(1)]
    engine = engine_of(make_node(devices=cards), make_node("node-2", devices=cards))
    assert isinstance(engine.evaluate(make_pod("a", share(10, 1))), Placement)

    engine.handle(PodSeen(bound("b", "node-1", grant(7, "GPU-gone"), grant(8, "GPU-too"))))

    assert isinstance(engine.evaluate(make_pod("a", share(10, 1))), Placement)
    engine.handle(PodGone("b"))
    assert isinstance(engine.schedule(make_pod("a", share(10, 1))), Placement)
    engine.audit()


@pytest.mark.parametrize(
    "twin", [card(1, uuid="GPU-0"), card(0, uuid="GPU-1")], ids=["one uuid", "one minor"]
)
def test_cards_that_cannot_be_told_apart_are_closed(twin: Device) -> None:
    """Devices that share a UUID or minor may be one card reported twice: no pod gets them."""
    engine = engine_of(make_node(devices=[card(0), twin, card(2)]))

    first = engine.schedule(make_pod("a", whole()))
    second = engine.schedule(make_pod("b", share(1)))

    assert isinstance(first, Placement)
    assert first.allocation.grants[0].minor == 2
    assert isinstance(second, Refusal)
    (reason,) = second.nodes.values()
    assert [c.code for c in reason.cards].count(ReasonCode.QUARANTINED) == 2
    engine.audit()


@pytest.mark.parametrize("amount", [2**62, 2**63 - 1, 10**30])
def test_absurd_amounts_of_ordinary_resources_are_only_refused(amount: int) -> None:
    """Pods that ask or hold more than any node has neither overflow nor free anything."""
    engine = engine_of(
        make_node(devices=[card(0)], allocatable={"cpu": 10**22, "memory": 8 * GIB}),
        make_node("node-2"),
    )
    asking = make_pod("a", host={"memory": amount, "cpu": amount}, constraint=ONLY_FIRST)

    refusal = engine.schedule(asking)
    for i in range(5):
        engine.handle(PodSeen(bound(f"b{i}", "node-1", host={"memory": amount, "cpu": amount})))
        engine.handle(PodSeen(bound(f"c{i}", "node-2", host={"memory": amount, "x": amount})))

    assert isinstance(refusal, Refusal)
    assert refusal.code is ReasonCode.NODE_RESOURCES
    assert isinstance(engine.evaluate(make_pod("d", host={"memory": GIB})), Placement)
    engine.audit()
    for i in range(5):
        engine.handle(PodGone(f"b{i}"))
        engine.handle(PodGone(f"c{i}"))
    assert isinstance(engine.evaluate(make_pod("e", host={"memory": 8 * GIB})), Placement)
    engine.audit()


@pytest.mark.parametrize("amount", [2**53, 2**63 - 1, 10**30])
def test_absurd_amounts_of_devices_are_only_refused(amount: int) -> None:
    """Requests, records and devices beyond all measure are refused or closed, never an error."""
    engine = engine_of(
        make_node(devices=[card(0), card(1, memory_bytes=amount, core_milli=amount, slots=amount)])
    )
    everything = {"core_milli": amount, "memory_bytes": amount, "extras": (("npu", amount),)}

    refused = [
        engine.evaluate(make_pod("a", share(memory=1, memory_bytes=amount))),
        engine.evaluate(make_pod("b", share(core_milli=amount))),
        engine.evaluate(make_pod("c", share(extras=(("npu", amount),), core_unit="npu"))),
    ]
    engine.handle(PodSeen(bound("d", "node-1", grant(0, "GPU-0", slots=amount, **everything))))

    assert {type(decision) for decision in refused} == {Refusal}
    found = engine.schedule(make_pod("e", share(1, 1)))
    assert isinstance(found, Placement)
    assert found.allocation.grants[0].minor == 1
    engine.audit()
    engine.handle(PodGone("d"))
    assert len(feasible(engine, make_pod("f", whole()))) == 1
    engine.audit()


@pytest.mark.parametrize(
    "fields",
    [{"core_milli": -1}, {"memory_bytes": -1}, {"slots": -1}, {"extras": (("npu", -1),)}],
    ids=str,
)
def test_a_record_that_gives_instead_of_taking_is_not_trusted(fields: dict[str, object]) -> None:
    """Negative amounts in a record close the node's cards instead of adding to them."""
    engine = engine_of(make_node(devices=[card(0)]))

    engine.handle(PodSeen(bound("a", "node-1", grant(0, "GPU-0", **fields))))

    refused = engine.schedule(make_pod("b", share(1)))
    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.QUARANTINED
    assert "a record that cannot be trusted" in refused.nodes["node-1"].message
    suspicion = engine.ledger.suspicion("a")
    assert suspicion is not None
    assert "holds a negative amount" in suspicion.message
    engine.audit()


def test_a_node_preferred_more_wins_however_much() -> None:
    """Weights of preferred terms add up beyond a hundred and still tell nodes apart."""

    def zone(value: str, weight: int) -> tuple[int, NodeTerm]:
        return weight, NodeTerm((Requirement("zone", Operator.IN, (value,)),))

    wish = NodeConstraint(
        preferred=(zone("a", 100), zone("b", 100), zone("b", 100), zone("c", 99))
    )
    engine = engine_of(*(make_node(z, devices=[card(0)], labels={"zone": z}) for z in "cab"))

    found = engine.evaluate(make_pod("a", share(1), constraint=wish))

    assert isinstance(found, Placement)
    assert found.allocation.node == "b"


def test_pods_that_collide_on_a_card_are_named() -> None:
    """Two records for more than a card close it, and the event says whose they are."""
    engine = engine_of(make_node(devices=[card(0)]))
    half = grant(0, "GPU-0", memory_bytes=9 * GIB)

    told = [
        *engine.handle(PodSeen(bound("one", "node-1", half))),
        *engine.handle(PodSeen(bound("two", "node-1", half))),
    ]

    messages = [action.message for action in told if isinstance(action, Quarantined)]
    assert messages == ["GPU-0 is over-committed by default/one and default/two"]
