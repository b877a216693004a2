"""A pod that wants its surroundings for itself neither comes beside others nor lets them come."""

import pytest

from fakes.builders import f1_devices, make_node, make_pod, share, whole
from partage.model.device import DeviceType
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import (
    CardFilter,
    ContainerAsk,
    DeviceRequest,
    Joint,
    PodRequest,
    RequestGroup,
    Scope,
)
from partage.model.selector import Operator, Requirement, Selector
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, PodGone

RDMA = DeviceType.RDMA


def f1_engine() -> Engine:
    """An engine with the well-known server."""
    engine = Engine()
    engine.handle(NodeSeen(make_node(devices=f1_devices())))
    return engine


def rdma(core: int = 10, **fields: object) -> DeviceRequest:
    """A little of a network card."""
    return DeviceRequest(RDMA, core_milli=core, **fields)  # type: ignore[arg-type]


def placed(engine: Engine, name: str, *requests: DeviceRequest, **fields: object) -> list[int]:
    """Minors of the devices a pod was given."""
    found = engine.schedule(make_pod(name, *requests, **fields))
    assert isinstance(found, Placement), found
    return [grant.minor for grant in found.allocation.grants]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [(Scope.DEVICE, 1), (Scope.PCIE, 2), (Scope.NUMA, 4), (Scope.NODE, None)],
    ids=["device", "pcie", "numa", "node"],
)
def test_a_fenced_request_avoids_used_surroundings(scope: Scope, expected: int | None) -> None:
    """With card 0 in use, the fenced pod goes outside the scope around it, or waits."""
    engine = f1_engine()
    placed(engine, "first", share(10, 1))

    found = engine.schedule(make_pod("fenced", whole(scope_exclusive=scope)))

    if expected is None:
        assert isinstance(found, Refusal)
        assert found.code is ReasonCode.TOPOLOGY_SCOPE
    else:
        assert isinstance(found, Placement)
        assert found.allocation.grants[0].minor == expected


def test_others_stay_out_of_a_fence_until_its_owner_is_gone() -> None:
    """A pod fenced within its NUMA node sends later pods to the other one."""
    engine = f1_engine()
    assert placed(engine, "fenced", share(10, 1, scope_exclusive=Scope.NUMA)) == [0]

    assert placed(engine, "next", share(10, 1)) == [4]

    engine.handle(PodGone("uid-fenced"))
    assert placed(engine, "later", whole(2)) == [6, 7]
    assert placed(engine, "last", whole(4)) == [0, 1, 2, 3]


def test_an_open_fence_names_itself_in_the_reason() -> None:
    """Where a fence is all that keeps a pod away, the reason says so."""
    engine = f1_engine()
    placed(engine, "fenced", share(10, 1, scope_exclusive=Scope.NODE))

    found = engine.schedule(make_pod("next", share(10, 1)))

    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.CARD_NOT_IDLE


def test_a_request_for_every_device_wants_their_surroundings_idle_too() -> None:
    """All network cards fenced: one of them in use is one too many."""
    engine = f1_engine()
    first = placed(engine, "first", rdma())

    found = engine.schedule(make_pod("all", rdma(every=True, scope_exclusive=Scope.PCIE)))

    assert first == [1]
    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.TOPOLOGY_SCOPE
    engine.handle(PodGone("uid-first"))
    assert placed(engine, "again", rdma(every=True, scope_exclusive=Scope.PCIE)) == [1, 2, 3, 4]


def test_a_mate_of_a_joint_allocation_wants_its_surroundings_idle_too() -> None:
    """The network card beside the GPU is in use, so the fenced one goes to the next switch."""
    engine = f1_engine()
    placed(engine, "first", rdma())
    joint = PodRequest(
        (
            RequestGroup("koordinator", whole(), (ContainerAsk("c"),)),
            RequestGroup("koordinator", rdma(scope_exclusive=Scope.PCIE), (ContainerAsk("c"),)),
        ),
        Joint((DeviceType.GPU, RDMA), same_pcie=True),
    )

    assert placed(engine, "joint", request=joint) == [2, 2]


def test_a_fence_looks_at_all_devices_of_the_type() -> None:
    """Devices that the filter would not accept count as neighbours all the same."""
    engine = f1_engine()
    only = Selector((Requirement("type", Operator.NOT_IN, ("fakeW",)),))
    placed(engine, "first", share(10, 1, filter=CardFilter(use_uuids=("GPU-3",))))
    wanted = CardFilter(use_uuids=("GPU-2",), selector=only)

    found = engine.schedule(make_pod("x", whole(filter=wanted, scope_exclusive=Scope.PCIE)))

    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.TOPOLOGY_SCOPE
