"""Random worlds for the laws: nodes with devices, and pods that ask all kinds of things of them.

Worlds are small on purpose (few nodes, few cards, few distinct amounts): collisions are what the
laws are about.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

from hypothesis import strategies as st

from drawn import sampled
from fakes.builders import GIB
from partage.model.cutting import Cutting, Geometry, arrangements
from partage.model.device import (
    Device,
    DeviceType,
    ForeignInstance,
    Partition,
    SliceMode,
    Topology,
    VirtualFunction,
)
from partage.model.mig import Engines, MigAttribute, MigAxis, MigProfile, MigSlice
from partage.model.node import Node, Verdict
from partage.model.pod import Pod
from partage.model.policy import CardOrder, CardWeights, Policy, Scoring, Strategy
from partage.model.reason import ReasonCode
from partage.model.request import (
    CardFilter,
    ContainerAsk,
    DeviceRequest,
    Joint,
    PartitionAsk,
    Phase,
    PodRequest,
    RequestGroup,
    Scope,
    at_most,
)
from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Selector,
    Taint,
)

__all__ = [
    "device_requests",
    "node_lists",
    "nodes",
    "pod_requests",
    "pods",
    "policies",
]

_AXIS: Final = MigAxis(
    "quarters",
    (
        MigProfile("1g.2gb", 1, 1, (0, 1, 2, 3), 2 * GIB, 250, 4),
        MigProfile(
            "1g.2gb+me",
            1,
            1,
            (0, 1, 2, 3),
            2 * GIB,
            250,
            1,
            Engines(jpeg=1),
            attributes=frozenset({MigAttribute.MEDIA}),
        ),
        MigProfile("2g.4gb", 2, 2, (0, 2), 4 * GIB, 500, 2),
        MigProfile("4g.8gb", 4, 4, (0,), 8 * GIB, 1000, 1, Engines(jpeg=1)),
    ),
)
_PLAIN: Final = frozenset({"1g.2gb", "2g.4gb", "4g.8gb"})
_SLOTS: Final = ((("1g.2gb", 4),), (("2g.4gb", 1), ("1g.2gb", 2)), (("4g.8gb", 1),))
CUTTINGS: Final = (
    None,
    Cutting(_AXIS, _PLAIN),
    Cutting(_AXIS, _PLAIN),
    Cutting(_AXIS, _PLAIN, allowed=frozenset({"1g.2gb", "4g.8gb"})),
    Cutting(
        _AXIS,
        _PLAIN,
        geometries=tuple(
            Geometry(number, slots, arrangements(_AXIS, slots))
            for number, slots in enumerate(_SLOTS)
        ),
    ),
)
"""Ways to cut the smallest card there is here, which holds 8 GiB."""

FOREIGN: Final = (
    *((),) * 8,
    (ForeignInstance(MigSlice("1g.2gb", 3, 1)),),
    (ForeignInstance(MigSlice("2g.4gb", 0, 2), ("MIG-a",)),),
    (ForeignInstance(MigSlice("1g.2gb+me", 0, 1)), ForeignInstance(MigSlice("2g.4gb", 2, 2))),
)
"""Instances on such a card that Partage did not make."""

PROTOCOLS: Final = ("koordinator", "hami", "qgpu")
_GENERAL = Selector((Requirement("type", Operator.IN, ("general",)),))
_FAST = Selector((Requirement("speed", Operator.IN, ("fast",)),))

Draw = Callable[[st.SearchStrategy[object]], object]


def _rarely(value: object, usual: object = None) -> st.SearchStrategy[object]:
    return sampled([usual] * 5 + [value])


@cache
def _topologies() -> st.SearchStrategy[Topology]:
    return st.builds(
        lambda numa, switch: Topology(numa, f"{numa}{switch}"),
        st.integers(0, 1),
        sampled("ab"),
    )


@cache
@st.composite
def gpus(draw: st.DrawFn, node: str, minor: int, *, known: bool) -> Device:
    """One card."""
    vendor = draw(sampled(["", "nvidia", "nvidia", "huawei"]))
    mode = draw(sampled([SliceMode.SHARE] * 4 + [SliceMode.MIG, SliceMode.EITHER]))
    cutting = None if mode is SliceMode.SHARE else draw(sampled(CUTTINGS))
    if cutting is None and mode is SliceMode.EITHER:
        mode = SliceMode.SHARE
    return Device(
        DeviceType.GPU,
        minor,
        f"{node}-GPU-{minor}",
        vendor=vendor,
        model=draw(sampled(["NVIDIA A100", "Tesla T4"])),
        healthy=draw(_rarely(False, True)),
        cordoned=draw(_rarely(True, False)),
        core_milli=draw(sampled([1000, 1000, 1000, 2000])),
        memory_bytes=draw(sampled([8 * GIB, 16 * GIB, 24 * GIB + 1])),
        slots=draw(sampled([100, 100, 16, 2])),
        extras=(("npu-core", 8),) if vendor == "huawei" else (),
        labels={"speed": draw(sampled(["fast", "slow"]))},
        topology=draw(_topologies()) if known else None,
        mode=mode,
        cutting=cutting,
        foreign=draw(sampled(FOREIGN)),
        doubt=draw(_rarely("what is on it is not known", "")),
        hidden_from=draw(_rarely(frozenset({"hami"}), frozenset())),
        vendor_cut=vendor == "huawei",
        seated=draw(st.booleans()),
    )


@cache
@st.composite
def nics(draw: st.DrawFn, node: str, minor: int, *, known: bool) -> Device:
    """One network card."""
    return Device(
        DeviceType.RDMA,
        minor,
        f"{node}-NIC-{minor}",
        healthy=draw(_rarely(False, True)),
        labels={"speed": draw(sampled(["fast", "slow"]))},
        topology=draw(_topologies()) if known else None,
        functions=tuple(
            VirtualFunction(i, f"{node}-{minor}.{i}", {"type": "general"})
            for i in range(draw(st.integers(0, 2)))
        ),
    )


@cache
@st.composite
def nodes(draw: st.DrawFn, name: str, version: int = 0) -> Node:
    """One node with up to four cards and two network cards."""
    known = draw(st.booleans())
    count = draw(st.integers(0, 4))
    cards = [draw(gpus(name, i, known=known)) for i in range(count)]
    network = [draw(nics(name, i + 1, known=known)) for i in range(draw(st.integers(0, 2)))]
    tables = {1: tuple(Partition((i,)) for i in range(count)), 2: _pairs(draw, count)}
    return Node(
        name,
        labels={"zone": draw(sampled(["a", "b"]))},
        taints=draw(_rarely((Taint("maintenance", "", "NoSchedule"),), ())),
        unschedulable=draw(_rarely(True, False)),
        allocatable=draw(
            sampled(
                [
                    {},
                    {"cpu": 4000, "memory": 8 * GIB, "pods": 6},
                    {"cpu": 4000, "example.com/x": 2},
                ]
            )
        ),
        devices=(*cards, *network),
        partitions=draw(_rarely(tables, {})),
        honour_partitions=draw(_rarely(True, False)),
        templates=draw(_rarely({"vir02": (("npu-core", 2), ("memory", GIB))}, {})),
        links=_links(draw, cards) if draw(st.booleans()) else {},
        verdicts=draw(
            _rarely((Verdict("qgpu", ReasonCode.DRIVER_UNSUPPORTED, "no", sharing_only=True),), ())
        ),
        version=version,
    )


def _pairs(draw: st.DrawFn, count: int) -> tuple[Partition, ...]:
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    return (
        tuple(
            Partition(pair, score=draw(st.integers(1, 2)))
            for pair in draw(st.lists(sampled(pairs), max_size=3, unique=True))
        )
        if pairs
        else ()
    )


def _links(draw: st.DrawFn, cards: list[Device]) -> dict[tuple[str, str], int]:
    return {
        tuple(sorted((a.uuid, b.uuid))): draw(st.integers(0, 3))  # type: ignore[misc]
        for i, a in enumerate(cards)
        for b in cards[i + 1 :]
    }


@cache
@st.composite
def node_lists(draw: st.DrawFn, most: int = 3) -> list[Node]:
    """Some nodes with different names."""
    return [draw(nodes(f"node-{i}")) for i in range(draw(st.integers(1, most)))]


@cache
@st.composite
def device_requests(draw: st.DrawFn, type_: DeviceType = DeviceType.GPU) -> DeviceRequest:
    """One request of a type; everything that a request can say occurs."""
    if type_ is DeviceType.RDMA:
        every = draw(_rarely(True, False))
        return DeviceRequest(
            type_,
            draw(st.integers(1, 2)),
            draw(sampled([10, 500, 1000])),
            every=bool(every),
            filter=CardFilter(
                selector=draw(_rarely(_FAST)),
                functions=None if every else draw(sampled([None, _GENERAL, Selector()])),
            ),
            scope_exclusive=draw(_rarely(draw(st.sampled_from(Scope)))),
        )
    if draw(st.booleans()):
        return draw(plain_requests())
    count = draw(sampled([1, 1, 1, 2, 3]))
    scope = draw(_rarely(draw(sampled([Scope.NODE, Scope.NUMA, Scope.PCIE]))))
    fence = draw(_rarely(draw(st.sampled_from(Scope))))
    wanted = draw(card_filters())
    if draw(st.integers(0, 3)) == 0:
        return DeviceRequest(
            type_,
            count,
            1000,
            memory_milli=1000,
            whole=True,
            filter=wanted,
            scope=scope,
            scope_exclusive=fence,
            instances=fence is None and draw(st.booleans()),
        )
    npu = draw(_rarely(True, False))
    memory = draw(sampled(["none", "bytes", "milli"]))
    amount = draw(sampled([1, 2, 5, 8]))
    return DeviceRequest(
        type_,
        count,
        0 if npu else draw(sampled([0, 50, 200, 500, 1000])),
        memory_bytes=amount * GIB if memory == "bytes" else 0,
        memory_milli=amount * 125 if memory == "milli" else 0,
        unused=bool(draw(_rarely(True, False))),
        exclusive=bool(draw(_rarely(True, False))),
        claims_core=bool(draw(_rarely(True, False))),
        sharers=draw(sampled([None, None, 16, 2, 1])),
        registrar=draw(sampled(["", "hami"])),
        extras=(("npu-core", draw(st.integers(1, 4))),) if npu else (),
        core_unit="npu-core" if npu else "",
        instances=not npu and fence is None and draw(st.booleans()),
        templated=bool(npu and draw(_rarely(True, False))),
        filter=wanted,
        scope=scope,
        scope_exclusive=fence,
    )


def plain_requests() -> st.SearchStrategy[DeviceRequest]:
    """What most pods ask: a whole card or a share of one, without conditions."""
    return sampled(
        [
            DeviceRequest(DeviceType.GPU, 1, 1000, memory_milli=1000, whole=True),
            DeviceRequest(DeviceType.GPU, 2, 1000, memory_milli=1000, whole=True),
            DeviceRequest(DeviceType.GPU, 1, 500, memory_milli=500),
            DeviceRequest(DeviceType.GPU, 1, 500, memory_bytes=8 * GIB, sharers=2),
            DeviceRequest(DeviceType.GPU, 1, 0, memory_bytes=GIB, sharers=10, claims_core=True),
            DeviceRequest(DeviceType.GPU, 2, 300, memory_bytes=5 * GIB),
            DeviceRequest(DeviceType.GPU, 1, 1000, memory_bytes=3 * GIB, exclusive=True),
            DeviceRequest(DeviceType.GPU, 1, 50, memory_milli=333),
            DeviceRequest(DeviceType.GPU, 1, 0, memory_bytes=GIB, instances=True),
            DeviceRequest(DeviceType.GPU, 2, 0, memory_bytes=2 * GIB, instances=True),
            DeviceRequest(DeviceType.GPU, 1, 300, memory_milli=250, instances=True),
            DeviceRequest(DeviceType.GPU, 1, 1000, memory_milli=1000, whole=True, instances=True),
            DeviceRequest(
                DeviceType.GPU,
                1,
                0,
                memory_bytes=1,
                profile="1g.2gb+me",
                filter=CardFilter(modes=(SliceMode.MIG,)),
                instances=True,
            ),
        ]
    )


@cache
@st.composite
def card_filters(draw: st.DrawFn) -> CardFilter:
    """Mostly no filter at all."""
    if draw(st.integers(0, 2)):
        return CardFilter()
    uuids = tuple(f"node-{n}-GPU-{i}" for n in range(3) for i in range(2))
    return CardFilter(
        use_types=draw(_rarely(("a100",), ())),  # type: ignore[arg-type]
        avoid_types=draw(_rarely(("T4",), ())),  # type: ignore[arg-type]
        use_uuids=draw(_rarely(uuids, ())),  # type: ignore[arg-type]
        avoid_uuids=draw(_rarely(uuids[:1], ())),  # type: ignore[arg-type]
        vendors=draw(_rarely(("nvidia",), ())),  # type: ignore[arg-type]
        modes=draw(sampled([()] * 4 + [(SliceMode.SHARE,), (SliceMode.MIG,)])),  # type: ignore[arg-type]
        selector=draw(_rarely(_FAST)),  # type: ignore[arg-type]
    )


@cache
@st.composite
def pod_requests(draw: st.DrawFn, most: int = 3) -> PodRequest:
    """Up to `most` groups, INIT ones last; at times GPU and RDMA together."""
    groups: list[RequestGroup] = []
    for i in range(draw(st.integers(0, most))):
        phase = draw(sampled([Phase.MAIN] * 4 + [Phase.SIDECAR, Phase.INIT]))
        type_ = draw(sampled([DeviceType.GPU] * 4 + [DeviceType.RDMA]))
        request = draw(device_requests(type_))
        groups.append(
            RequestGroup(
                draw(sampled(PROTOCOLS)),
                request,
                draw(_containers(i, phase, request)),
                phase,
            )
        )
    groups = _positioned(draw, groups)
    groups.sort(key=lambda group: group.phase is Phase.INIT)
    types = tuple(dict.fromkeys(group.request.type for group in groups))
    if draw(st.booleans()):
        types = types[::-1]
    joint = Joint(types, draw(st.booleans())) if len(types) > 1 and draw(st.booleans()) else None
    return PodRequest(
        tuple(groups),
        joint,
        partition=draw(_rarely(PartitionAsk())),
        node_strategy=draw(_rarely(draw(st.sampled_from(Strategy)))),
        card_order=draw(sampled([CardOrder()] * 3 + [draw(_card_orders())])),
        scoring=draw(sampled([Scoring(), *(Scoring(**{name: True}) for name in _SCORED)])),
    )


_SCORED = ("sharers", "left", "topology")


def _positioned(draw: st.DrawFn, groups: list[RequestGroup]) -> list[RequestGroup]:
    """Init containers and sidecars in any order, main containers after them."""
    everyone = [c for group in groups for c in group.containers]
    early = draw(st.permutations([c.name for c in everyone if c.phase is not Phase.MAIN]))
    order = [*early, *(c.name for c in everyone if c.phase is Phase.MAIN)]
    return [
        replace(
            group,
            request=replace(group.request, beside=_together(group, order) - 1),
            containers=tuple(replace(c, position=order.index(c.name)) for c in group.containers),
        )
        for group in groups
    ]


def _together(group: RequestGroup, order: list[str]) -> int:
    """How many of a group's containers there are at a moment."""
    containers = sorted(group.containers, key=lambda container: order.index(container.name))
    return at_most((container.phase, {"": 1}) for container in containers)[""]


@cache
@st.composite
def _containers(
    draw: st.DrawFn, position: int, phase: Phase, request: DeviceRequest
) -> tuple[ContainerAsk, ...]:
    if phase is not Phase.MAIN or draw(st.integers(0, 3)):
        return (ContainerAsk(f"c{position}", phase),)
    mates = draw(st.lists(st.sampled_from(Phase), min_size=1, max_size=2))
    phases = sorted([Phase.MAIN, *mates], key=lambda p: p is Phase.MAIN)
    core = max(1, request.core_milli * request.count // len(phases))
    return tuple(ContainerAsk(f"c{position}-{i}", p, core) for i, p in enumerate(phases))


def _card_orders() -> st.SearchStrategy[CardOrder]:
    return st.builds(
        CardOrder,
        sampled([None, *Strategy]),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        sampled([None, CardWeights(1, 2, 3)]),
    )


@cache
@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    """A pending pod."""
    wish = NodeTerm((Requirement("zone", Operator.IN, ("b",)),))
    return Pod(
        uid,
        "default",
        f"name-of-{uid}",
        request=draw(pod_requests()),
        host=draw(sampled([{}, {"cpu": 1000, "pods": 1}, {"memory": GIB}, {"example.com/x": 1}])),
        constraint=draw(
            sampled(
                [NodeConstraint()] * 4
                + [NodeConstraint(terms=(wish,)), NodeConstraint(preferred=((70, wish),))]
            )
        ),
        quota=draw(sampled([{}, {"requests.example.com/gpu": 2}])),
    )


def policies() -> st.SearchStrategy[Policy]:
    """Any policy."""
    return st.builds(Policy, st.sampled_from(Strategy), st.sampled_from(Strategy))
