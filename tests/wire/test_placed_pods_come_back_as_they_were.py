"""A pod's printed annotations, read back as a bound pod's, make the same books again."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from manifests import Manifest, card, cluster, container, device, node, pod

from partage.inventory.card import Card
from partage.model.device import DeviceType
from partage.model.request import Scope
from partage.sim.offline import Outcome, schedule
from partage.vendors import names

KOORDINATOR = [
    {"koordinator.sh/gpu": "33"},
    {"kubernetes.io/gpu": "100"},
    {"koordinator.sh/gpu-core": "20", "koordinator.sh/gpu-memory": "3Gi"},
    {"koordinator.sh/gpu-memory-ratio": "15"},
    {
        "koordinator.sh/gpu.shared": "2",
        "koordinator.sh/gpu-core": "40",
        "koordinator.sh/gpu-memory": "6Gi",
    },
]
QGPU = [
    {"tke.cloud.tencent.com/qgpu-core": "20", "tke.cloud.tencent.com/qgpu-memory": "2"},
    {"tke.cloud.tencent.com/qgpu-core": "100"},
]
HAMI = [
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1554"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "33", "nvidia.com/gpucores": "15"},
    {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "7", "nvidia.com/gpucores": "10"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000", "nvidia.com/gpucores": "100"},
]
NOBODYS = [{"nvidia.com/gpu": "1"}, {}]
NODES = [node(), device("n1", card(0, "40Gi"), card(1, "83201216Ki"))]

ASKS = st.sampled_from([*KOORDINATOR, *QGPU, *HAMI, *NOBODYS])
INITIAL = st.tuples(ASKS, st.sampled_from([{}, {"restartPolicy": "Always"}]))
PODS = st.tuples(st.lists(INITIAL, max_size=3), st.lists(ASKS, min_size=1, max_size=2))
Asked = tuple[list[tuple[Manifest, Manifest]], list[Manifest]]

INIT: Manifest = {}
SIDECAR: Manifest = {"restartPolicy": "Always"}


def written(asked: Asked) -> Manifest:
    """The pod."""
    initial, mains = asked
    containers = [container(f"c{i}", limits=limits) for i, limits in enumerate(mains)]
    inits = [container(f"i{i}", limits=limits, **more) for i, (limits, more) in enumerate(initial)]
    return pod("p", *containers, initContainers=inits)


def bound(manifest: Manifest, first: Outcome, *, without: str = "") -> Manifest:
    """The same pod with what was written on it, on its node."""
    (placed,) = first.pods
    annotations = {k: v for k, v in placed.rendering.annotations.items() if k != without}
    metadata = {**manifest["metadata"], "uid": placed.pod.pod.uid, "annotations": annotations}
    return {**manifest, "metadata": metadata, "spec": {**manifest["spec"], "nodeName": "n1"}}


def cards(outcome: Outcome) -> list[Card]:
    """The state of the node's cards."""
    return outcome.ledger.cards(DeviceType.GPU, outcome.ledger.index["n1"])


FIRST_REPORT: Asked = (
    [(HAMI[0], INIT), (HAMI[0], SIDECAR)],
    [{"tke.cloud.tencent.com/qgpu-core": "20", "tke.cloud.tencent.com/qgpu-memory": "2"}],
)


@given(asked=PODS)
@example(asked=FIRST_REPORT)
@example(asked=([(HAMI[1], INIT), (HAMI[1], SIDECAR)], [KOORDINATOR[0]]))
@example(asked=([(NOBODYS[0], INIT)], [KOORDINATOR[0]]))
def test_our_record_rebuilds_the_books_exactly(asked: Asked) -> None:
    """This holds for any mix of protocols and for any phase of the containers."""
    manifest = written(asked)
    first = schedule(cluster(*NODES, manifest))
    if first.waiting:
        return

    second = schedule(cluster(*NODES, bound(manifest, first)))

    (read_back,) = second.pods
    record = read_back.pod.pod.record
    assert record is None or record.problem == ""
    assert cards(second) == cards(first)


@given(asked=PODS)
@example(asked=FIRST_REPORT)
@example(asked=([(HAMI[1], INIT), (KOORDINATOR[0], SIDECAR)], [KOORDINATOR[2]]))
@example(asked=([(HAMI[1], INIT), (NOBODYS[0], SIDECAR)], [KOORDINATOR[2]]))
def test_other_records_never_come_to_less_than_was_charged(asked: Asked) -> None:
    """A pod taken over without our record holds at least what it was given."""
    manifest = written(asked)
    first = schedule(cluster(*NODES, manifest))
    if first.waiting:
        return

    second = schedule(cluster(*NODES, bound(manifest, first, without=names.ALLOCATION)))

    (read_back,) = second.pods
    record = read_back.pod.pod.record
    assert record is None or record.problem == ""
    for then, now in zip(cards(first), cards(second), strict=True):
        assert now.core_free <= then.core_free
        assert now.memory_free <= then.memory_free
        assert now.slots_free <= then.slots_free


@pytest.mark.parametrize(
    ("percentage", "memory"),
    [
        pytest.param("33", 40 * 2**30 * 33 // 100, id="cut to MiB in the annotation"),
        pytest.param("10", 4 * 2**30, id="whole MiB"),
    ],
)
def test_shares_of_memory_come_back_exactly(percentage: str, memory: int) -> None:
    """Hami writes whole MiB; what it cut off is known from the request."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": percentage}
    manifest = pod("p", container(limits=limits))
    first = schedule(cluster(*NODES, manifest))

    second = schedule(cluster(*NODES, bound(manifest, first, without=names.ALLOCATION)))

    assert 40 * 2**30 - cards(second)[0].memory_free == memory


def test_a_count_beside_a_share_keeps_both_amounts() -> None:
    """A lone `nvidia.com/gpu` has a request of its own, and the annotation holds both."""
    manifest = written(([], [KOORDINATOR[0], NOBODYS[0]]))

    (placed,) = schedule(cluster(*NODES, manifest)).pods

    record = json.loads(placed.rendering.annotations[names.DEVICE_ALLOCATED])
    assert sorted(e["resources"][names.KOORD_GPU_CORE] for e in record["gpu"]) == ["100", "33"]


@pytest.mark.parametrize(
    ("limits", "fence"), [(KOORDINATOR[1], Scope.PCIE), (KOORDINATOR[0], None)]
)
def test_an_exclusive_scope_is_taken_over(limits: dict[str, str], fence: Scope | None) -> None:
    """The pod's own hint still tells what its device-allocated record does not; a share has none."""
    hint = '{"gpu":{"exclusivePolicy":"PCIeLevel"}}'
    manifest = pod(
        "p",
        container(limits=limits),
        meta={"annotations": {names.DEVICE_ALLOCATE_HINT: hint}},
    )
    first = schedule(cluster(*NODES, manifest))
    again = bound(manifest, first, without=names.ALLOCATION)
    again["metadata"]["annotations"][names.DEVICE_ALLOCATE_HINT] = hint

    (read_back,) = schedule(cluster(*NODES, again)).pods

    record = read_back.pod.pod.record
    assert record is not None
    assert [grant.fence for grant in record.grants] == [fence]
