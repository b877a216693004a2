"""The node label that keeps all devices of a pod on one NUMA node binds every request there."""

from answers import feasible
from fakes.builders import f1_devices, make_node, make_pod, share, whole
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import CardFilter
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement


def _engine(*, single_numa: bool) -> Engine:
    """The eight-card server with card 0 and card 4 taken, so that each NUMA node has three."""
    engine = Engine()
    engine.handle(NodeSeen(make_node(devices=f1_devices(), single_numa=single_numa)))
    for uuid in ("GPU-0", "GPU-4"):
        only = whole(filter=CardFilter(use_uuids=(uuid,)))
        assert isinstance(engine.schedule(make_pod(uuid, only)), Placement)
    return engine


def test_whole_cards_stay_on_one_numa_node() -> None:
    """Four cards fit the node, but no NUMA node has four left."""
    free, bound = _engine(single_numa=False), _engine(single_numa=True)
    wide, narrow = make_pod("w", whole(4)), make_pod("n", whole(3))

    assert isinstance(free.schedule(wide), Placement)
    refused = bound.schedule(wide)
    placed = bound.schedule(narrow)

    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.NUMA_MISMATCH
    assert list(feasible(bound, make_pod("w2", whole(4)))) == []
    assert isinstance(placed, Placement)
    assert {grant.minor // 4 for grant in placed.allocation.grants} == {0}


def test_shares_of_several_cards_stay_on_one_numa_node() -> None:
    """Shares are bound as whole cards are; one device is always on one NUMA node."""
    bound = _engine(single_numa=True)

    placed = bound.schedule(make_pod("s", share(10, 1, count=3)))

    assert isinstance(placed, Placement)
    assert len({grant.minor // 4 for grant in placed.allocation.grants}) == 1
    assert isinstance(bound.schedule(make_pod("one", share(10, 1))), Placement)
