"""On a small cluster a pod goes where the node loses least of what usual requests could use."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fakes.builders import card, make_node, make_pod, share, whole
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.request import DeviceRequest
from partage.placement.capacity import CapacityGauge
from partage.placement.fragmentation import Shape, Workload
from partage.placement.mix import Ask
from partage.placement.tables import Tables
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, TablesChanged

HALVES = Workload.of([Shape(1000, 500, 1)])


def engine_of(
    free: Mapping[str, Sequence[int]], expected: Workload, cpu: Mapping[str, int] | None = None
) -> Engine:
    """Nodes with so many percent free on each card, and so much CPU, 64 cores by default."""
    engine = Engine()
    for name, percents in free.items():
        cards = [card(i, prefix=name, model="A") for i in range(len(percents))]
        room = {"cpu": (cpu or {}).get(name, 64_000), "memory": 2**38, "pods": 100}
        engine.handle(NodeSeen(make_node(name, cards, allocatable=room)))
        for minor, percent in enumerate(percents):
            if percent < 100:
                uid = f"{name}-{minor}"
                grant = Grant(
                    "c", DeviceType.GPU, minor, uid, 10 * (100 - percent), 1, GrantMode.SHARE
                )
                engine.ledger.apply(Allocation(uid, "d", uid, name, (grant,)))
    engine.handle(TablesChanged(Tables(expected=expected)))
    return engine


@pytest.mark.parametrize(
    ("free", "asked", "expected"),
    [
        pytest.param({"x": [50], "y": [80]}, 30, ("y", 0), id="keeps-the-half"),
        pytest.param({"x": [100], "y": [90, 10]}, 40, ("y", 0), id="loses-nothing"),
        pytest.param({"x": [100, 100], "y": [60, 50]}, 50, ("y", 1), id="fuller-node"),
        pytest.param({"x": [90, 60]}, 10, ("x", 1), id="tighter-card"),
        pytest.param({"x": [60, 50, 90]}, 30, ("x", 2), id="best-card-within"),
        pytest.param({"x": [70], "y": [70]}, 20, ("x", 0), id="order-of-nodes"),
    ],
)
def test_a_share_goes_where_usual_requests_lose_least(
    free: Mapping[str, Sequence[int]], asked: int, expected: tuple[str, int]
) -> None:
    """Percents free by node, what is asked where halves are usual, and the place."""
    found = engine_of(free, HALVES).evaluate(make_pod("a", share(asked)))

    assert isinstance(found, Placement)
    assert (found.allocation.node, found.allocation.grants[0].minor) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        pytest.param({"cpu": 8000}, "rich", id="cpu-is-kept-beside-cards"),
        pytest.param({"cpu": 100}, "poor", id="but-not-more-than-they-want"),
    ],
)
def test_a_node_keeps_the_cpu_that_its_cards_want(host: Mapping[str, int], expected: str) -> None:
    """Three whole cards want 24 cores. FGD would not see that the poor node has CPU for two then."""
    usual = Workload.of([Shape(8000, 1000, 1)])
    free = {"rich": [100, 100, 100, 100], "poor": [100, 100, 100]}
    engine = engine_of(free, usual, {"rich": 64_000, "poor": 25_000})

    found = engine.evaluate(make_pod("a", host=host))

    assert isinstance(found, Placement)
    assert found.allocation.node == expected


def test_whole_cards_and_models_count() -> None:
    """A set counts once all its cards are idle; a request that accepts no card of the node does not."""
    usual = Workload((Shape(1000, 1000, 2), Shape(1000, 1000, 1, "B")), (0.5, 0.5))
    engine = engine_of({"x": [100, 100, 100], "y": [100, 100]}, usual)
    gauge = CapacityGauge(usual, engine.ledger)

    assert gauge.capacity.tolist()[:2] == [1000.0, 1000.0]
    found = engine.evaluate(make_pod("a", whole(1)))
    assert isinstance(found, Placement)
    assert found.allocation.node == "x"


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        pytest.param((), [1000.0, 1000.0], id="any"),
        pytest.param(("",), [1000.0, 0.0], id="unnamed-alone"),
        pytest.param(("", "A"), [1000.0, 1000.0], id="unnamed-too"),
        pytest.param(("A",), [0.0, 1000.0], id="a-model"),
    ],
)
def test_cards_that_report_no_model_serve_requests_that_accept_them(
    models: tuple[str, ...], expected: Sequence[float]
) -> None:
    """A request of their vendor's cards accepts them, and counts on them."""
    ledger = Ledger()
    for name, model in (("x", ""), ("y", "A")):
        ledger.upsert_node(make_node(name, [card(0, prefix=name, model=model)]))
    usual = Workload.of([Ask(1000, 0, 1, 1000, models).shape])

    assert CapacityGauge(usual, ledger).capacity.tolist()[:2] == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(share(30), 1, id="a-share-goes-beside-it"),
        pytest.param(share(0, 4), 1, id="so-does-another-without-compute"),
        pytest.param(share(0, 12), 0, id="unless-its-memory-is-short"),
    ],
)
def test_a_card_with_a_tenant_of_memory_alone_is_whole_no_more(
    asked: DeviceRequest, expected: int
) -> None:
    """All its compute is left, and whole cards are usual: what can share it does, and the idle one stays whole."""
    usual = Workload.of([Shape(1000, 1000, 1)])
    cards = [card(i, prefix="x", memory=16) for i in range(2)]
    engine = Engine()
    engine.handle(NodeSeen(make_node("x", cards)))
    tenant = Grant("c", DeviceType.GPU, 1, "x-1", 0, 2**33, GrantMode.SHARE)
    engine.ledger.apply(Allocation("t", "d", "t", "x", (tenant,)))
    engine.handle(TablesChanged(Tables(expected=usual)))

    assert CapacityGauge(usual, engine.ledger).capacity[0] == 1000.0
    found = engine.evaluate(make_pod("a", asked))
    assert isinstance(found, Placement)
    assert found.allocation.grants[0].minor == expected


def test_nodes_without_devices_take_pods_without() -> None:
    """Cards that such pods strand serve no pod."""
    engine = engine_of({"x": [100]}, HALVES)
    engine.handle(
        NodeSeen(make_node("bare", allocatable={"cpu": 64_000, "memory": 2**38, "pods": 9}))
    )

    found = engine.evaluate(make_pod("a", host={"cpu": 1000}))

    assert isinstance(found, Placement)
    assert found.allocation.node == "bare"


def test_a_cluster_without_cards_has_no_capacity() -> None:
    """Its pods without devices have places."""
    engine = Engine()
    engine.handle(
        NodeSeen(make_node("bare", allocatable={"cpu": 64_000, "memory": 2**38, "pods": 9}))
    )
    engine.handle(TablesChanged(Tables(expected=HALVES)))

    assert isinstance(engine.evaluate(make_pod("a", host={"cpu": 1000})), Placement)
    assert not np.any(CapacityGauge(HALVES, Ledger()).capacity)
