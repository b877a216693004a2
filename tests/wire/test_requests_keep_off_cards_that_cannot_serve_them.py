"""A generic request in a mixed pool goes only where the container gets its device."""

import pytest
from manifests import Manifest, card, cluster, container, device, node, pod

from partage.model.reason import ReasonCode
from partage.sim.offline import PodOutcome, schedule
from partage.vendors import names

HUAWEI = {
    "type": "gpu",
    "health": True,
    "minor": 0,
    "id": "NPU-0",
    "resources": {
        "huawei.com/npu-core": "8",
        "huawei.com/npu-cpu": "7",
        "huawei.com/npu-dvpp": "100",
        "koordinator.sh/gpu-memory": "24Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    },
}
MIB_256 = 256 * 2**20
PLUGINS = {names.SGPU: "32", names.SMLU_VCORE: "200", names.SMLU_VMEMORY: "192"}
"""What vendors' plugins report of the node."""


def on(vendor: str, limits: Manifest, *, beside_nvidia: bool = False) -> PodOutcome:
    """What becomes of a pod on a node of this vendor."""
    cards = [HUAWEI] if vendor == "huawei" else [card(0, "24Gi"), card(1, "24Gi")]
    totals = {"cpu": "32", "memory": "64Gi", "pods": "110", **PLUGINS}
    documents = [
        node("n1", allocatable=totals),
        device("n1", *cards, meta={"labels": {names.GPU_VENDOR: vendor}}),
    ]
    if beside_nvidia:
        other = [card(n, "24Gi", id=f"GPU-n2-{n}") for n in range(2)]
        documents += [
            node("n2"),
            device("n2", *other, meta={"labels": {names.GPU_VENDOR: "nvidia"}}),
        ]
    (outcome,) = schedule(cluster(*documents, pod("p", container(limits=limits)))).pods
    return outcome


def koordinator(**amounts: str) -> Manifest:
    """Today's names; `_` stands for `-`, `shared` for `gpu.shared`."""
    return {
        f"koordinator.sh/{'gpu.shared' if k == 'shared' else k.replace('_', '-')}": v
        for k, v in amounts.items()
    }


REFUSED = [
    pytest.param(
        "metax",
        koordinator(shared="2", gpu_core="20", gpu_memory="2Gi"),
        id="metax: several cards",
    ),
    pytest.param("metax", koordinator(gpu_memory="1Gi"), id="metax: no compute"),
    pytest.param(
        "metax", koordinator(shared="1", gpu_core="10", gpu_memory="1Gi"), id="metax: a share"
    ),
    pytest.param("metax", koordinator(gpu="50"), id="metax: half a card"),
    pytest.param("metax", {"kubernetes.io/gpu": "50"}, id="metax: v1.4 names"),
    pytest.param(
        "cambricon",
        koordinator(shared="2", gpu_core="10", gpu_memory="2Gi"),
        id="cambricon: several cards",
    ),
    pytest.param("cambricon", koordinator(gpu_memory="1Gi"), id="cambricon: no compute"),
    pytest.param(
        "cambricon", koordinator(gpu_core="5", gpu_memory="1Gi"), id="cambricon: a share"
    ),
    pytest.param("cambricon", koordinator(gpu="100"), id="cambricon: a whole card"),
    pytest.param("huawei", koordinator(gpu="50"), id="huawei: percent"),
    pytest.param("huawei", koordinator(gpu="100"), id="huawei: a whole card in percent"),
    pytest.param("huawei", koordinator(gpu_core="50", gpu_memory="1Gi"), id="huawei: compute"),
    pytest.param("huawei", koordinator(gpu_memory="12Gi"), id="huawei: memory"),
    pytest.param("huawei", {"kubernetes.io/gpu": "50"}, id="huawei: v1.4 names"),
]


@pytest.mark.parametrize(("vendor", "limits"), REFUSED)
def test_what_the_plugin_cannot_serve_is_refused(vendor: str, limits: Manifest) -> None:
    """Kubelet asks the plugin only for its own resource, so the pod would start without a device."""
    refusal = on(vendor, limits).refusal

    assert refusal is not None
    assert "serves only pods that name its own resource" in str(refusal)
    assert refusal.nodes["n1"].code is ReasonCode.TYPE_MISMATCH or set(refusal.counts) == {
        ReasonCode.TYPE_MISMATCH
    }


@pytest.mark.parametrize(("vendor", "limits"), REFUSED)
def test_the_same_request_goes_to_other_cards(vendor: str, limits: Manifest) -> None:
    """The request is sound; only those cards are not for it."""
    allocation = on(vendor, limits, beside_nvidia=True).allocation

    assert allocation is not None
    assert allocation.node == "n2"


@pytest.mark.parametrize(
    ("vendor", "limits"),
    [
        pytest.param(
            "metax",
            koordinator(gpu_core="5", gpu_memory="1Mi") | {names.SGPU: "1"},
            id="metax: a share",
        ),
        pytest.param("metax", koordinator(gpu="200"), id="metax: whole cards"),
        pytest.param(
            "cambricon",
            koordinator(gpu_core="5", gpu_memory=str(MIB_256))
            | {names.SMLU_VCORE: "5", names.SMLU_VMEMORY: "1"},
            id="cambricon: from 256 MiB",
        ),
        pytest.param(
            "huawei",
            {"huawei.com/npu-core": "8", "koordinator.sh/gpu-memory-ratio": "100"},
            id="huawei: cores",
        ),
        pytest.param("kunlun", koordinator(gpu_memory="1Gi"), id="a vendor without rules"),
    ],
)
def test_what_the_plugin_can_serve_is_placed(vendor: str, limits: Manifest) -> None:
    """The plugin's part, or a whole card whose device files the agent gives."""
    assert on(vendor, limits).allocation is not None


def test_rules_are_for_cards_only() -> None:
    """A network device has no vendor's plugin."""
    network = {
        "type": "rdma",
        "health": True,
        "minor": 1,
        "id": "0000:1f:00.0",
        "resources": {"koordinator.sh/rdma": "100"},
    }
    documents = [node(), device("n1", network, meta={"labels": {names.GPU_VENDOR: "huawei"}})]

    (outcome,) = schedule(
        cluster(*documents, pod("p", container(limits=koordinator(rdma="50"))))
    ).pods

    assert outcome.allocation is not None
