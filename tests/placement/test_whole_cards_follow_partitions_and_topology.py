"""Whole cards go to partitions where a node has them, and are packed into its topology."""

from collections.abc import Mapping, Sequence

import pytest

from fakes.builders import card, f1_devices, make_node, make_pod, share, whole
from partage.model.device import Device, Partition
from partage.model.node import Node
from partage.model.policy import Policy, Strategy
from partage.model.reason import NodeReason, ReasonCode, Refusal
from partage.model.request import (
    CardFilter,
    ContainerAsk,
    DeviceRequest,
    PartitionAsk,
    PodRequest,
    RequestGroup,
    Scope,
)
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
HOPPER: Mapping[int, tuple[Partition, ...]] = {
    1: tuple(Partition((i,)) for i in range(8)),
    2: tuple(Partition(pair) for pair in PAIRS),
    4: (Partition((0, 1, 2, 3)), Partition((4, 5, 6, 7))),
    8: (Partition(tuple(range(8))),),
}


def h800(*, honour: bool = True, tables: Mapping[int, tuple[Partition, ...]] = HOPPER) -> Node:
    """A server of eight linked cards."""
    return make_node(devices=f1_devices(), partitions=tables, honour_partitions=honour)


def engine_of(node: Node, policy: Policy | None = None) -> Engine:
    """An engine that has seen the node."""
    engine = Engine(policy)
    engine.handle(NodeSeen(node))
    return engine


def asking(request: DeviceRequest, partition: PartitionAsk | None = None) -> PodRequest:
    """A pod with one request and perhaps a wish for a partition."""
    group = RequestGroup("koordinator", request, (ContainerAsk("c"),))
    return PodRequest((group,), partition=partition)


def minors(engine: Engine, name: str, request: PodRequest | DeviceRequest) -> list[int]:
    """The cards that a pod gets."""
    asked = request if isinstance(request, PodRequest) else asking(request)
    found = engine.schedule(make_pod(name, request=asked))
    assert isinstance(found, Placement), found
    return [grant.minor for grant in found.allocation.grants]


def reason(engine: Engine, request: PodRequest | DeviceRequest) -> NodeReason:
    """Why a pod waits."""
    asked = request if isinstance(request, PodRequest) else asking(request)
    found = engine.schedule(make_pod("refused", request=asked))
    assert isinstance(found, Refusal), found
    (only,) = found.nodes.values()
    return only


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [0]), (2, [0, 1]), (4, [0, 1, 2, 3]), (8, list(range(8)))],
    ids=str,
)
def test_honoured_tables_give_partitions(count: int, expected: list[int]) -> None:
    """Case 29: one, two, four and eight cards come as partitions."""
    assert minors(engine_of(h800()), "a", whole(count)) == expected


@pytest.mark.parametrize("count", [3, 6])
def test_honoured_tables_refuse_other_sizes(count: int) -> None:
    """Case 29: three and six cards are no partition."""
    found = reason(engine_of(h800()), whole(count))

    assert found.code is ReasonCode.PARTITION
    assert "sizes are 1, 2, 4, 8" in found.message


def test_preferred_tables_are_tried_first_and_given_up() -> None:
    """Without honour, sizes outside the table and broken pairs are served by topology."""
    engine = engine_of(h800(honour=False))

    assert minors(engine, "a", whole(3)) == [0, 1, 2]
    assert minors(engine, "b", whole(2)) == [4, 5]
    assert minors(engine, "c", whole(2)) == [6, 7]
    found = reason(engine, whole(2))
    assert found.code is ReasonCode.INSUFFICIENT_CARDS


def test_a_pod_that_insists_is_never_served_by_topology() -> None:
    """The pod's own wish makes partitions mandatory on any node."""
    assert minors(engine_of(h800(honour=False)), "a", asking(whole(2), PartitionAsk())) == [0, 1]

    odd = reason(engine_of(h800(honour=False)), asking(whole(3), PartitionAsk()))
    bare = reason(engine_of(h800(tables={})), asking(whole(2), PartitionAsk()))

    assert odd.code is ReasonCode.PARTITION
    assert bare.code is ReasonCode.PARTITION
    assert "no partition table" in bare.message


def test_shares_do_not_look_at_partitions() -> None:
    """A share on an honouring node takes any card."""
    assert minors(engine_of(h800()), "a", asking(share(50, 8), PartitionAsk())) == [0]


def test_a_partition_in_use_is_not_free() -> None:
    """One share on a card closes every partition of that card, and the last pair is the last."""
    engine = engine_of(h800())
    minors(engine, "s", share(10, 1, filter=CardFilter(use_uuids=("GPU-5",))))

    assert minors(engine, "a", whole(4)) == [0, 1, 2, 3]
    assert minors(engine, "b", whole(2)) == [6, 7]
    found = reason(engine, whole(2))
    assert found.code is ReasonCode.INSUFFICIENT_CARDS or found.code is ReasonCode.CARD_NOT_IDLE


def test_no_free_partition_is_said() -> None:
    """Cards that are free but belong to no free partition are refused with that reason."""
    engine = engine_of(h800())
    for minor in (0, 2, 4, 6):
        minors(engine, f"s{minor}", share(10, 1, filter=CardFilter(use_uuids=(f"GPU-{minor}",))))

    found = reason(engine, whole(2))

    assert found.code is ReasonCode.PARTITION
    assert found.message == "no partition of 2 cards is free"


SCORED = {
    2: (
        Partition((0, 1), score=1, bandwidth=100),
        Partition((2, 3), score=3, bandwidth=200),
        Partition((4, 5), score=2, bandwidth=400),
        Partition((6, 7), score=3),
    )
}


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        pytest.param(PartitionAsk(), [[2, 3], [6, 7], [4, 5], [0, 1]], id="highest score first"),
        pytest.param(PartitionAsk(restricted=True), [[2, 3], [6, 7]], id="highest score only"),
        pytest.param(PartitionAsk(bandwidth=200), [[2, 3], [4, 5]], id="bandwidth"),
        pytest.param(PartitionAsk(restricted=True, bandwidth=200), [[2, 3]], id="both"),
        pytest.param(PartitionAsk(bandwidth=500), [], id="more than any"),
    ],
)
def test_scores_and_bandwidth_choose(ask: PartitionAsk, expected: list[list[int]]) -> None:
    """Partitions are taken from the highest score down, as far as the pod's wish allows (Q5)."""
    engine = engine_of(h800(tables=SCORED))

    taken = [minors(engine, f"p{i}", asking(whole(2), ask)) for i in range(len(expected))]

    assert taken == expected
    if len(expected) < 4:
        assert reason(engine, asking(whole(2), ask)).code is ReasonCode.PARTITION


def test_pairs_leave_the_four_whole() -> None:
    """The second pair goes beside the first, so that a partition of four stays free."""
    engine = engine_of(h800())
    first = minors(engine, "s", share(10, 1, filter=CardFilter(use_uuids=("GPU-6",))))

    assert first == [6]
    assert minors(engine, "a", whole(2)) == [4, 5]
    assert minors(engine, "b", whole(1)) == [7]
    assert minors(engine, "c", whole(4)) == [0, 1, 2, 3]


def test_one_numa_node_bounds_partitions_and_a_hint_does_not() -> None:
    """A partition across NUMA nodes serves a pod whose hint has a scope, not one that asked for one NUMA node."""
    tables = {2: (Partition((3, 4), score=9), Partition((5, 6)))}
    engine = engine_of(h800(tables=tables))
    same = whole(2, scope=Scope.NUMA, scope_code=ReasonCode.NUMA_MISMATCH)

    assert minors(engine, "a", same) == [5, 6]
    assert reason(engine, same).code is ReasonCode.PARTITION
    assert minors(engine, "b", whole(2, scope=Scope.PCIE)) == [3, 4]


# --- topology ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(Strategy)[:4], ids=str)
@pytest.mark.parametrize(
    ("taken", "count", "expected"),
    [
        pytest.param([], 2, [0, 1], id="a switch"),
        pytest.param([0], 2, [2, 3], id="a whole switch beside a used one"),
        pytest.param([0], 1, [1], id="a used switch first"),
        pytest.param([0], 4, [4, 5, 6, 7], id="a whole NUMA node"),
        pytest.param([0, 4], 3, [1, 2, 3], id="a NUMA node that holds three"),
        pytest.param([0, 4], 4, [1, 2, 3, 5], id="across NUMA nodes"),
        pytest.param([4], 1, [5], id="the used switch of the other NUMA node"),
    ],
)
def test_whole_cards_are_packed_into_the_tree(
    taken: Sequence[int], count: int, expected: list[int], policy: Strategy
) -> None:
    """The deepest scope that holds the request wins; used surroundings before idle ones."""
    engine = engine_of(make_node(devices=f1_devices()), Policy(policy, policy))
    for minor in taken:
        minors(engine, f"t{minor}", whole(filter=CardFilter(use_uuids=(f"GPU-{minor}",))))

    assert minors(engine, "a", whole(count)) == expected


@pytest.mark.parametrize(
    ("scope", "most"), [(Scope.PCIE, 2), (Scope.NUMA, 4), (Scope.NODE, 8)], ids=str
)
def test_a_scope_is_kept_or_refused(scope: Scope, most: int) -> None:
    """A request as large as the scope fits, one card more does not."""
    node = make_node(devices=f1_devices())
    code = ReasonCode.NUMA_MISMATCH if scope is Scope.NUMA else ReasonCode.TOPOLOGY_SCOPE

    assert minors(engine_of(node), "a", whole(most, scope=scope)) == list(range(most))
    if scope is not Scope.NODE:
        found = reason(engine_of(node), whole(most + 1, scope=scope, scope_code=code))
        assert found.code is code


def test_a_share_with_a_scope_stays_within_it() -> None:
    """Two half cards on one switch, also where the tighter cards are on different ones."""
    engine = engine_of(make_node(devices=f1_devices()))
    for minor in (0, 2):
        minors(engine, f"t{minor}", share(50, 40, filter=CardFilter(use_uuids=(f"GPU-{minor}",))))

    assert minors(engine, "a", share(50, 40, count=2)) == [0, 2]
    assert minors(engine, "b", share(50, 40, count=2, scope=Scope.PCIE)) == [4, 5]


def test_unknown_topology_refuses_a_scope() -> None:
    """Cards whose place is not known cannot promise to be close."""
    found = reason(engine_of(make_node(devices=[card(0), card(1)])), whole(2, scope=Scope.PCIE))

    assert found.code is ReasonCode.TOPOLOGY_SCOPE
    assert "not known" in found.message


def test_device_scope_serves_one_card_only() -> None:
    """The scope of a device holds one card."""
    node = make_node(devices=[card(0), card(1)])

    assert minors(engine_of(node), "a", whole(scope=Scope.DEVICE)) == [0]
    assert reason(engine_of(node), whole(2, scope=Scope.DEVICE)).code is ReasonCode.TOPOLOGY_SCOPE


def test_a_later_container_takes_an_earlier_choice_back() -> None:
    """Two of three cards behind one switch leave the one that the other container names."""
    devices: list[Device] = [d for d in f1_devices() if d.type.value == "gpu"][:1]
    place = devices[0].topology
    engine = engine_of(make_node(devices=[card(i, topology=place) for i in range(3)]))
    named = whole(filter=CardFilter(use_uuids=("GPU-0",)))

    found = engine.schedule(make_pod("a", whole(2), named))

    assert isinstance(found, Placement)
    assert [g.minor for g in found.allocation.grants] == [1, 2, 0]
