"""A card with unknown device files is refused when a pod is placed, and not allocated without them."""

import pytest
from manifests import card, cluster, container, device, node, pod

from partage.model.reason import ReasonCode
from partage.sim.offline import PodOutcome, schedule
from partage.vendors import names

NETWORK = {
    "type": "rdma",
    "health": True,
    "minor": 0,
    "id": "0000:1f:00.0",
    "resources": {"koordinator.sh/rdma": "100"},
}


def on(vendor: str, **limits: str) -> PodOutcome:
    """What becomes of a pod on a node with cards of a vendor and a network card."""
    labels = {names.GPU_VENDOR: vendor} if vendor else {}
    place = device("n1", card(0, "24Gi"), NETWORK, meta={"labels": labels})
    asked = {name.replace("_", "/"): amount for name, amount in limits.items()}
    (outcome,) = schedule(cluster(node("n1"), place, pod("p", container(limits=asked)))).pods
    return outcome


@pytest.mark.parametrize("vendor", ["acme", "habana", "enflame"])
@pytest.mark.parametrize("amount", ["100", "50"])
def test_a_card_of_a_vendor_without_known_files_is_refused(vendor: str, amount: str) -> None:
    """The refusal has a code and names the vendor, for whole cards and shares alike."""
    refusal = on(vendor, **{"koordinator.sh_gpu": amount}).refusal

    assert refusal is not None
    assert refusal.nodes["n1"].code is ReasonCode.DEVICE_FILES_UNKNOWN
    assert f"cards of {vendor} is not known" in refusal.nodes["n1"].message
    assert "device files unknown" in refusal.message


def test_other_devices_of_the_node_are_given() -> None:
    """Its network card has its files, for any maker of its cards."""
    assert on("acme", **{"koordinator.sh_rdma": "100"}).refusal is None


@pytest.mark.parametrize("vendor", ["", "nvidia", "NVIDIA", "amd", "hygon", "dcu", "kunlun"])
def test_known_vendors_are_placed(vendor: str) -> None:
    """A card without a vendor counts as NVIDIA's."""
    assert on(vendor, **{"koordinator.sh_gpu": "100"}).refusal is None
