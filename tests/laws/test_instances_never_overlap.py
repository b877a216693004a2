"""Whatever comes and goes, the instances on a card are a layout that it can have."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from worlds import CUTTINGS, plain_requests

from answers import feasible
from fakes.builders import card
from partage.model.allocation import GrantMode
from partage.model.device import DeviceType, SliceMode
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.policy import Policy, Strategy
from partage.model.request import ContainerAsk, Phase, PodRequest, RequestGroup
from partage.placement import instances
from partage.placement.pod import place
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, PodGone, PodSeen


def _nodes(data: st.DataObject) -> list[Node]:
    modes = st.sampled_from([SliceMode.MIG, SliceMode.MIG, SliceMode.EITHER])
    return [
        Node(
            f"node-{n}",
            devices=tuple(
                card(
                    i,
                    memory=8,
                    prefix=f"node-{n}",
                    mode=data.draw(modes),
                    cutting=data.draw(st.sampled_from(CUTTINGS[1:])),
                )
                for i in range(data.draw(st.integers(1, 2)))
            ),
        )
        for n in range(2)
    ]


def _pod(data: st.DataObject, number: int) -> Pod:
    phases = st.sampled_from([Phase.MAIN, Phase.MAIN, Phase.INIT])
    groups = [
        RequestGroup(
            "hami",
            replace(data.draw(plain_requests()), instances=True),
            (ContainerAsk(f"c{i}", phase, position=i),),
            phase,
        )
        for i, phase in enumerate(data.draw(st.lists(phases, min_size=1, max_size=3)))
    ]
    groups.sort(key=lambda group: group.phase is Phase.INIT)
    return Pod(f"uid-{number}", "default", f"pod-{number}", request=PodRequest(tuple(groups)))


def _check(engine: Engine) -> None:
    engine.audit()
    for index in engine.ledger.index.values():
        for found in engine.ledger.cards(DeviceType.GPU, index):
            cutting = found.device.cutting
            assert cutting is not None
            assert cutting.axis.valid(found.instances)
            assert cutting.stage(found.instances) is not None
            assert len(found.instances) == len(found.holders)
            if found.device.mode is SliceMode.MIG or found.instances:
                assert found.tenants >= bool(found.instances)
            assert found.closed is None or not found.takes_instances or found.instances


@given(st.data())
def test_decisions_keep_every_card_a_layout(data: st.DataObject) -> None:
    """Pods are placed, bound by their own record, and go; the books always equal a rebuild."""
    strategies = (Strategy.PARTAGE, Strategy.BINPACK, Strategy.SPREAD)
    strategy = data.draw(st.sampled_from(strategies))
    engine = Engine(Policy(strategy, strategy))
    for node in _nodes(data):
        engine.handle(NodeSeen(node))
    there: list[Pod] = []

    for number in range(data.draw(st.integers(1, 8))):
        if there and data.draw(st.integers(0, 3)) == 0:
            gone = there.pop(data.draw(st.integers(0, len(there) - 1)))
            engine.handle(PodGone(gone.uid))
        pod = _pod(data, number)
        names = feasible(engine, pod)
        foreseen = engine.evaluate(pod)
        if isinstance(foreseen, Placement):
            index = engine.ledger.index[foreseen.allocation.node]
            cards = {DeviceType.GPU: engine.ledger.cards(DeviceType.GPU, index)}
            plainly = place(engine.ledger.node_at(index), cards, pod.request, strategy)
            assert foreseen.allocation.grants == plainly
        placement = engine.schedule(pod)
        assert isinstance(placement, Placement) == bool(names)
        if isinstance(placement, Placement):
            given_ = placement.allocation
            bound = replace(pod, node=given_.node, record=Record(given_.grants, "partage"))
            engine.handle(PodSeen(bound))
            assert engine.ledger.suspicion(pod.uid) is None
            there.append(bound)
        _check(engine)


@given(st.data())
def test_one_instance_is_refused_only_where_no_card_has_a_place(data: st.DataObject) -> None:
    """A request for one instance is placed exactly when some card has a place for it."""
    engine = Engine()
    for node in _nodes(data):
        engine.handle(NodeSeen(node))
    for number in range(data.draw(st.integers(0, 6))):
        engine.schedule(_pod(data, number))
    request = replace(data.draw(plain_requests()), instances=True, count=1)
    group = RequestGroup("hami", request, (ContainerAsk("main"),))

    decision = engine.evaluate(Pod("x", "default", "x", request=PodRequest((group,))))

    cards = [c for i in (0, 1) for c in engine.ledger.cards(DeviceType.GPU, i)]
    room = any(instances.refusal(found, request, "hami") is None for found in cards)
    by_instance = isinstance(decision, Placement) and all(
        grant.mode is GrantMode.MIG for grant in decision.allocation.grants
    )
    assert by_instance <= room
    assert isinstance(decision, Placement) or not room
