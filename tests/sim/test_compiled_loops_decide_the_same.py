import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import feasible
from drawn import sampled
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.model.selector import NodeConstraint, NodeTerm, Operator, Requirement, Selector
from partage.placement.fragmentation import Shape, Workload
from partage.placement.tables import UNITS, Prices, Reserve, Tables
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeGone, NodeSeen, Placement, PodGone, TablesChanged
from partage.sim.compiled.columns import STRATEGIES
from partage.sim.compiled.scorers import CompiledScorers

GIB = 2**30
WORKLOAD = Workload.of(
    [
        *[Shape(4000, 500, 1)] * 7,
        *[Shape(8000, 1000, 1, "T4")] * 5,
        *[Shape(2000, 0, 0)] * 4,
        *[Shape(1000, 250, 1, "T4|G2")] * 3,
        *[Shape(16_000, 1000, 2)] * 2,
    ]
)

requests = st.one_of(
    st.none(),
    st.builds(
        DeviceRequest,
        type=st.just(DeviceType.GPU),
        core_milli=st.integers(0, 1000),
        memory_bytes=st.integers(0, 16).map(lambda n: n * GIB),
        unused=st.booleans(),
        exclusive=sampled([False, False, True]),
        claims_core=st.booleans(),
        sharers=sampled([None, None, 2]),
    ),
    st.builds(
        DeviceRequest,
        type=st.just(DeviceType.GPU),
        count=st.integers(1, 3),
        core_milli=st.integers(1, 1000),
        memory_milli=st.integers(0, 1000),
    ),
    st.builds(
        DeviceRequest,
        type=st.just(DeviceType.GPU),
        count=st.integers(1, 4),
        core_milli=st.just(1000),
        whole=st.just(value=True),
    ),
)
hosts = st.fixed_dictionaries(
    {"cpu": st.integers(0, 40_000)},
    optional={
        "memory": st.integers(0, 64).map(lambda n: n * GIB),
        "pods": st.just(1),
        "ephemeral-storage": st.integers(0, 5),
        "example.com/licence": st.integers(0, 3),
    },
)
LABEL = NodeTerm((Requirement("zone", Operator.IN, ("a",)),))
constraints = sampled(
    [
        NodeConstraint(),
        NodeConstraint(Selector(LABEL.labels)),
        NodeConstraint(preferred=((50, LABEL),)),
    ]
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    """A node of any size, with or without known resources."""
    model = draw(sampled(["T4", "G2"]))
    devices = tuple(
        Device(
            DeviceType.GPU,
            i,
            f"{name}/{i}",
            model=model,
            memory_bytes=16 * GIB,
            healthy=draw(sampled([True, True, True, False])),
        )
        for i in range(draw(st.integers(0, 8)))
    )
    room = {"cpu": draw(st.integers(1, 96)) * 1000, "memory": 128 * GIB, "pods": 10}
    room |= draw(sampled([{}, {"example.com/licence": 2}]))
    told = draw(sampled([True, True, True, False]))
    zone = {"zone": draw(sampled(["a", "b"]))}
    return Node(name, labels=zone, allocatable=room if told else {}, devices=devices)


@st.composite
def pods(draw: st.DrawFn, name: str) -> Pod:
    """A pod with one request, or none."""
    request = draw(requests)
    groups = (RequestGroup("test", request, (ContainerAsk("c"),)),) if request is not None else ()
    return Pod(
        name, "d", name, request=PodRequest(groups), host=draw(hosts), constraint=draw(constraints)
    )


@st.composite
def prices(draw: st.DrawFn) -> Prices:
    """Tables as a learner could make them: worth grows with what is left; some models unknown."""
    chance = np.random.default_rng(draw(st.integers(0, 999)))
    models = draw(sampled([("G2", "T4"), ("T4",), ("P100",)]))
    pairs = np.array([(core, gib) for core in (0.0, 5.0, 16.0) for gib in (0.0, 1.5, 8.0)])
    steps = chance.exponential(10.0, (len(models), UNITS + 1, len(pairs)))
    steps[:, 0] = 0.0
    needs = sampled([0.0, 0.01, 0.5, 9.0])
    reserves = (
        Reserve(2, 1000, 1024, (), draw(needs), 1000),
        Reserve(1, 0, 0, models[:1], draw(needs), 500),
        Reserve(0, 24_000, 0, (), draw(needs), 24_000),
        Reserve(4, 8_000, 32 * 1024, (), draw(needs), 4_000),
    )
    return Prices(
        models,
        pairs,
        steps.cumsum(axis=1),
        chance.random(len(models)),
        ((2, 0.4), (4, 0.1)),
        500.0,
        reserves[: draw(st.integers(0, 4))],
    )


@given(sampled(list(STRATEGIES)), st.data())
def test_any_history_leads_to_the_same_scores_and_places(
    strategy: Strategy, data: st.DataObject
) -> None:
    """Compiled loops and NumPy give every node the same value, after any events."""
    cards = sampled([strategy, Strategy.FGD, Strategy.PARTAGE])
    policy = Policy(strategy, data.draw(cards))
    fast, plain = Engine(policy, CompiledScorers()), Engine(policy)
    known = [data.draw(pods(f"kind-{i}")) for i in range(2)]
    tables = Tables(workload=WORKLOAD, prices=data.draw(st.none() | prices()))
    for engine in (fast, plain):
        engine.handle(TablesChanged(tables))
    for number in range(data.draw(st.integers(1, 4))):
        event = NodeSeen(data.draw(nodes(f"n{number}")))
        for engine in (fast, plain):
            engine.handle(event)

    for step in range(data.draw(st.integers(1, 8))):
        base = data.draw(sampled(known) | pods("new"))
        pod = Pod(
            f"p{step}", "d", "p", request=base.request, host=base.host, constraint=base.constraint
        )
        one, two = fast.schedule(pod, reasons=False), plain.schedule(pod, reasons=False)

        assert one == two
        mine, theirs = (engine._class_of(pod).offer for engine in (fast, plain))
        assert np.maximum(mine, -1).tolist() == np.maximum(theirs, -1).tolist()
        assert feasible(fast, pod) == feasible(plain, pod)
        events = [NodeSeen(data.draw(nodes("n0"))), NodeGone("n1"), PodGone(f"p{step}")]
        for event in data.draw(st.lists(sampled(events), max_size=1)):
            for engine in (fast, plain):
                engine.handle(event)
    fast.audit()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_plain_requests_do_take_the_loops(strategy: Strategy) -> None:
    """The law above is not about two NumPy engines."""
    engine = Engine(Policy(strategy, strategy), CompiledScorers())
    pairs = np.array([(0.0, 0.0), (5.0, 1.0)])
    worth = np.linspace(0, 1000, UNITS + 1)[None, :, None] * np.ones((1, 1, 2))
    prices = Prices(("T4",), pairs, worth, np.array([0.5]))
    engine.handle(TablesChanged(Tables(workload=WORKLOAD, prices=prices)))
    devices = (Device(DeviceType.GPU, 0, "g"),)
    engine.handle(NodeSeen(Node("n", allocatable={"cpu": 9000}, devices=devices)))
    group = RequestGroup("t", DeviceRequest(DeviceType.GPU, 1, 500), (ContainerAsk("c"),))
    pod = Pod("u", "d", "p", request=PodRequest((group,)), host={"cpu": 1000})

    decision = engine.schedule(pod)

    assert isinstance(decision, Placement)
    assert engine._class_of(pod).rescorer is not None


def test_requests_for_many_resources_take_the_other_way() -> None:
    """More than four ordinary resources, or one that no node has, still decide right."""
    engine = Engine(Policy.parse("bestfit"), CompiledScorers())
    many = {"cpu": 1, "memory": 1, "pods": 1, "ephemeral-storage": 1, "x/y": 1}
    engine.handle(NodeSeen(Node("n", allocatable={**many, "z/z": 0})))

    assert isinstance(engine.schedule(Pod("a", "d", "a", host=many)), Placement)
    assert not isinstance(engine.schedule(Pod("b", "d", "b", host={"u/v": 1})), Placement)
    assert isinstance(engine.schedule(Pod("c", "d", "c", host={"cpu": 0})), Placement)


def test_scores_do_not_depend_on_how_often_a_node_changed() -> None:
    """The loops are given a changed node twice; its value is written twice, not added."""
    engine = Engine(Policy.parse("first-fit"), CompiledScorers())
    for number in range(40):
        engine.handle(NodeSeen(Node(f"n{number}", allocatable={"cpu": 10_000, "pods": 9})))
    one = Pod("first", "d", "p", host={"cpu": 1})
    engine.schedule(one)
    for number in range(3):
        engine.schedule(Pod(f"{number}", "d", "p", host={"cpu": 2}))
    engine.schedule(Pod("again", "d", "p", host={"cpu": 1}))

    value = engine._class_of(one).value

    assert int(np.argmax(value)) == engine.ledger.index["n0"]
    assert int((value >= 0).sum()) == 40
