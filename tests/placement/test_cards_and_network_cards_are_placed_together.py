"""Joint allocation on the well-known server: the cases that users of Koordinator rely on."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fakes.builders import f1_devices, make_node, make_pod, share, whole
from partage.model.allocation import Grant
from partage.model.device import Device, DeviceType
from partage.model.node import Node
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
from partage.scheduler.events import NodeSeen, Placement

GPU, RDMA, FPGA = DeviceType.GPU, DeviceType.RDMA, DeviceType.FPGA
GENERAL = Selector((Requirement("type", Operator.IN, ("general", "fakeG")),))
WITH_FUNCTION = CardFilter(functions=GENERAL)


def rdma(core: int = 10, **fields: object) -> DeviceRequest:
    """A request for network cards: so many thousandths of each."""
    return DeviceRequest(RDMA, core_milli=core, **fields)  # type: ignore[arg-type]


def joint(
    *requests: DeviceRequest, same: bool = False, types: Sequence[DeviceType] = (GPU, RDMA)
) -> PodRequest:
    """A pod that asks for devices together."""
    groups = tuple(RequestGroup("koordinator", r, (ContainerAsk("c"),)) for r in requests)
    return PodRequest(groups, Joint(tuple(types), same) if len(groups) > 1 else None)


def engine_of(*nodes: Node) -> Engine:
    """An engine that has seen these nodes."""
    engine = Engine()
    for node in nodes:
        engine.handle(NodeSeen(node))
    return engine


def place(engine: Engine, name: str, request: PodRequest) -> tuple[Grant, ...]:
    """The pod's grants; it must find a place."""
    found = engine.schedule(make_pod(name, request=request))
    assert isinstance(found, Placement), found
    return found.allocation.grants


def chosen(grants: Sequence[Grant], type_: DeviceType) -> list[int]:
    """Minors of one type."""
    return [grant.minor for grant in grants if grant.type is type_]


@pytest.mark.parametrize(
    ("cards", "gpus", "nics"),
    [
        pytest.param(0, [], [1], id="none"),
        pytest.param(1, [0], [1], id="one"),
        pytest.param(2, [0, 1], [1], id="two"),
        pytest.param(3, [0, 1, 2], [1, 2], id="three"),
        pytest.param(4, [0, 1, 2, 3], [1, 2], id="four"),
        pytest.param(6, [0, 1, 2, 3, 4, 5], [1, 2, 3], id="six"),
        pytest.param(8, list(range(8)), [1, 2, 3, 4], id="eight"),
    ],
)
@pytest.mark.parametrize("same", [False, True], ids=["anywhere", "SamePCIe"])
def test_every_switch_brings_its_network_card(
    cards: int, gpus: list[int], nics: list[int], *, same: bool
) -> None:
    """Cases 17 to 20: so many cards with `rdma: 1` get a virtual function beside each switch."""
    requests = [whole(cards)] if cards else []
    requests.append(rdma(filter=WITH_FUNCTION))

    grants = place(engine_of(make_node(devices=f1_devices())), "a", joint(*requests, same=same))

    assert chosen(grants, GPU) == gpus
    assert chosen(grants, RDMA) == nics
    buses = ("0000:1f:00.2", "0000:90:00.2", "0000:51:00.2", "0000:b9:00.2")
    functions = [g.function for g in grants if g.type is RDMA]
    assert functions == [(0, bus) for bus in buses[: len(nics)]]


def test_functions_are_handed_out_once() -> None:
    """Four pods on one network card get four functions; the fifth goes to the next card."""
    engine = engine_of(make_node(devices=f1_devices()))

    given = [place(engine, f"p{i}", joint(rdma(filter=WITH_FUNCTION)))[0] for i in range(5)]

    assert [(g.minor, g.function) for g in given] == [
        (1, (0, "0000:1f:00.2")),
        (1, (1, "0000:1f:00.3")),
        (1, (2, "0000:1f:00.4")),
        (1, (3, "0000:1f:00.5")),
        (2, (0, "0000:90:00.2")),
    ]


def test_a_function_that_nobody_has_is_refused() -> None:
    """Network cards without a matching function cannot serve a request for one."""
    engine = engine_of(make_node(devices=f1_devices(functions=0)))

    found = engine.schedule(make_pod("a", request=joint(rdma(filter=WITH_FUNCTION))))

    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.INSUFFICIENT_DEVICES


@pytest.mark.parametrize("same", [False, True], ids=["anywhere", "SamePCIe"])
def test_one_network_card_in_the_whole_node(*, same: bool) -> None:
    """Case 21: four cards and the only network card; with SamePCIe that is a refusal."""
    devices = [d for d in f1_devices() if d.type is GPU or d.minor == 1]
    engine = engine_of(make_node(devices=devices))

    found = engine.schedule(make_pod("a", request=joint(whole(4), rdma(), same=same)))

    if same:
        assert isinstance(found, Refusal)
        assert found.code is ReasonCode.JOINT_ALLOCATION
    else:
        assert isinstance(found, Placement)
        assert chosen(found.allocation.grants, GPU) == [0, 1, 2, 3]
        assert chosen(found.allocation.grants, RDMA) == [1]


def test_cards_are_chosen_where_network_cards_are_free() -> None:
    """Q15: with the first switch's network card full, the cards come from the next switch."""
    engine = engine_of(make_node(devices=f1_devices()))
    place(engine, "full", joint(rdma(1000, whole=True)))

    grants = place(engine, "a", joint(whole(2), rdma(), same=True))

    assert chosen(grants, GPU) == [2, 3]
    assert chosen(grants, RDMA) == [2]


@pytest.mark.parametrize("types", [(GPU, RDMA), (RDMA, GPU)], ids=["gpu first", "rdma first"])
@pytest.mark.parametrize("flip", [False, True], ids=["gpu listed first", "rdma listed first"])
def test_the_order_of_types_and_requests_does_not_matter(
    types: tuple[DeviceType, ...], *, flip: bool
) -> None:
    """Primary types and lists in both orders: both devices share a switch."""
    engine = engine_of(make_node(devices=f1_devices()))
    place(engine, "full", joint(rdma(1000, whole=True)))
    requests = [whole(), rdma()]

    grants = place(
        engine, "a", joint(*(reversed(requests) if flip else requests), same=True, types=types)
    )

    assert chosen(grants, RDMA) == [2]
    assert chosen(grants, GPU) == [2]
    assert [g.type for g in grants] == ([RDMA, GPU] if flip else [GPU, RDMA])


@pytest.mark.parametrize("strip", [GPU, RDMA], ids=["cards", "network cards"])
def test_unknown_places_are_never_the_same_switch(strip: DeviceType) -> None:
    """Devices without topology cannot prove that they share a switch."""
    devices = [replace(d, topology=None) if d.type is strip else d for d in f1_devices()]
    both = [replace(d, topology=None) for d in f1_devices()]

    for listed in (devices, both):
        engine = engine_of(make_node(devices=listed))
        strict = engine.schedule(make_pod("a", request=joint(whole(), rdma(), same=True)))
        loose = engine.schedule(make_pod("b", request=joint(whole(), rdma())))
        assert isinstance(strict, Refusal)
        assert strict.code is ReasonCode.JOINT_ALLOCATION
        assert isinstance(loose, Placement)


def test_more_network_cards_than_switches_are_filled_up() -> None:
    """`rdma: 2` as two cards beside one GPU: one beside it, one elsewhere."""
    engine = engine_of(make_node(devices=f1_devices()))

    grants = place(engine, "a", joint(whole(), rdma(count=2)))

    assert chosen(grants, RDMA) == [1, 2]


def test_two_network_cards_beside_one_switch() -> None:
    """SamePCIe with two network cards finds the one switch that has two."""
    extra = replace(f1_devices()[10], minor=9, uuid="0000:52:00.0")
    engine = engine_of(make_node(devices=[*f1_devices(), extra]))

    grants = place(engine, "a", joint(whole(), rdma(count=2), same=True))

    assert chosen(grants, GPU) == [4]
    assert chosen(grants, RDMA) == [3, 9]


def test_the_whole_of_case_23() -> None:
    """ApplyForAll takes every network card of the selector, one unit each, without functions."""
    engine = engine_of(make_node(devices=f1_devices()))
    fake = Selector((Requirement("type", Operator.IN, ("fakeW",)),))
    nothing = Selector((Requirement("type", Operator.IN, ("other",)),))

    grants = place(engine, "a", joint(whole(), rdma(every=True, filter=CardFilter(selector=fake))))
    refused = engine.schedule(
        make_pod("b", request=joint(rdma(every=True, filter=CardFilter(selector=nothing))))
    )

    assert chosen(grants, RDMA) == [1, 2, 3, 4]
    assert {(g.core_milli, g.function) for g in grants if g.type is RDMA} == {(10, None)}
    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.INSUFFICIENT_DEVICES


@pytest.mark.parametrize("broken", [True, False], ids=["unhealthy", "full"])
def test_one_bad_network_card_fails_a_request_for_all(*, broken: bool) -> None:
    """Every device means every device: a broken or full one is counted and refuses the node."""
    devices = [
        replace(d, healthy=False) if broken and (d.type, d.minor) == (RDMA, 3) else d
        for d in f1_devices()
    ]
    engine = engine_of(make_node(devices=devices))
    if not broken:
        place(engine, "full", joint(rdma(1000, whole=True)))

    found = engine.schedule(make_pod("a", request=joint(rdma(every=True))))

    assert isinstance(found, Refusal)
    assert found.code is (ReasonCode.UNHEALTHY if broken else ReasonCode.INSUFFICIENT_CORE)


@pytest.mark.parametrize("units", [10, 1000], ids=["a unit each", "whole ones"])
def test_requests_as_count(units: int) -> None:
    """Case 24: `rdma: 4` as a count takes four network cards."""
    engine = engine_of(make_node(devices=f1_devices()))

    grants = place(engine, "a", joint(rdma(units, count=4)))

    assert [(g.minor, g.core_milli) for g in grants] == [(i, units) for i in (1, 2, 3, 4)]
    five = engine.schedule(make_pod("b", request=joint(rdma(count=5))))
    assert isinstance(five, Refusal)
    assert five.code is ReasonCode.INSUFFICIENT_DEVICES


def test_no_network_card_left_refuses_the_pair() -> None:
    """With every network card full, cards alone are not given."""
    engine = engine_of(make_node(devices=f1_devices()))
    place(engine, "full", joint(rdma(1000, whole=True, count=4)))

    found = engine.schedule(make_pod("a", request=joint(whole(), rdma())))

    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.INSUFFICIENT_CORE


def test_three_types_share_a_switch() -> None:
    """A card, a network card and an FPGA behind one switch, found where all three are free."""
    fpga = Device(FPGA, 0, "fpga-0", topology=f1_devices()[6].topology)
    engine = engine_of(make_node(devices=[*f1_devices(), fpga]))
    request = joint(
        share(50, 8),
        rdma(),
        DeviceRequest(FPGA, core_milli=1000),
        same=True,
        types=(GPU, RDMA, FPGA),
    )

    grants = place(engine, "a", request)

    assert (chosen(grants, GPU), chosen(grants, RDMA), chosen(grants, FPGA)) == ([6], [4], [0])


@pytest.mark.parametrize("same", [False, True], ids=["anywhere", "SamePCIe"])
def test_network_cards_of_a_joint_allocation_keep_their_scope(*, same: bool) -> None:
    """Eight cards bring four network cards: too far apart for a scope of one NUMA node."""
    engine = engine_of(make_node(devices=f1_devices()))
    near = rdma(scope=Scope.NUMA, scope_code=ReasonCode.NUMA_MISMATCH)

    refused = engine.schedule(make_pod("a", request=joint(whole(8), near, same=same)))

    assert isinstance(refused, Refusal)
    assert refused.code is ReasonCode.NUMA_MISMATCH
    assert chosen(place(engine, "b", joint(whole(4), near, same=same)), RDMA) == [1, 2]
