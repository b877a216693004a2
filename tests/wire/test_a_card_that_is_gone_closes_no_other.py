"""A card that its node does not report any more: only its own pods are concerned, if it is certain which card that is."""

import json
from typing import Any

import pytest
from manifests import Manifest, card, cluster, config_map, container, device, node, pod

from partage.inventory.card import Card
from partage.model.device import DeviceType
from partage.model.pod import Record
from partage.model.reason import ReasonCode
from partage.sim.offline import schedule
from partage.vendors import names

KOORDINATOR = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}
V14 = {"kubernetes.io/gpu": "50"}
WHOLE = {"koordinator.sh/gpu": "100"}
RATIO = {"koordinator.sh/gpu-memory-ratio": "30"}
HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
PERCENT = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "33"}
LONE = {"nvidia.com/gpu": "1"}
QGPU = {names.QGPU_CORE: "20", names.QGPU_MEMORY: "2"}
MANY = {"koordinator.sh/gpu": "200"}
EVERY = [KOORDINATOR, V14, WHOLE, RATIO, HAMI, PERCENT, LONE, QGPU]


def placed(asked: Manifest, *cards_: Manifest, more: Any = ()) -> Manifest:
    """A pod that Partage bound to the one card there, with all that it wrote."""
    manifest = pod("p", container(limits=asked))
    (one,) = schedule(cluster(node(), device("n1", *cards_), *more, manifest)).pods
    assert one.allocation is not None
    metadata = {
        **manifest["metadata"],
        "uid": one.pod.pod.uid,
        "annotations": dict(one.rendering.annotations),
    }
    return {**manifest, "metadata": metadata, "spec": {**manifest["spec"], "nodeName": "n1"}}


def without(manifest: Manifest, *keys: str) -> Manifest:
    """The pod without some annotations."""
    kept = {k: v for k, v in manifest["metadata"]["annotations"].items() if k not in keys}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": kept}}


def seen(manifest: Manifest, *cards_: Manifest, more: Any = ()) -> tuple[Record, list[Card]]:
    """The pod's record, and the cards, where the node reports these."""
    outcome = schedule(cluster(node(), device("n1", *cards_), *more, manifest))
    (found,) = outcome.pods
    record = found.pod.pod.record
    assert record is not None
    outcome.ledger.validate()
    return record, outcome.ledger.cards(DeviceType.GPU, outcome.ledger.index["n1"])


def open_(cards_: list[Card]) -> list[int]:
    """The numbers of the cards that take pods."""
    return [one.device.minor for one in cards_ if one.closed is None]


@pytest.mark.parametrize("asked", EVERY)
def test_only_the_pods_of_that_card_keep_something_closed(asked: Manifest) -> None:
    """They keep their allocation; it is in force again when the card is back."""
    manifest = placed(asked, card(3))

    record, cards_ = seen(manifest, card(0), card(1), card(2))
    back, again = seen(manifest, card(0), card(3))

    assert (record.problem, back.problem) == ("", "")
    assert [one.uuid for one in record.grants] == ["GPU-3"]
    assert open_(cards_) == [0, 1, 2]
    (ghost,) = [one for one in cards_ if one.device.uuid == "GPU-3"]
    assert (ghost.closed, ghost.core_free) != (None, 1000)
    assert again[0].core_free == 1000
    assert again[1].tenants == 1


def test_of_two_cards_one_may_be_gone() -> None:
    """The other is still the pod's."""
    manifest = placed(MANY, card(2), card(3))

    record, cards_ = seen(manifest, card(0), card(2))

    assert record.problem == ""
    assert open_(cards_) == [0]


def test_an_instance_on_it_stays_an_instance() -> None:
    """Its place is in our record."""
    mig = config_map(
        "hami-device-plugin",
        config__json='{"nodeconfig": [{"name": "n1", "operatingmode": "mig"}]}',
    )
    a100 = {"labels": {names.GPU_VENDOR: "nvidia", names.GPU_MODEL: "NVIDIA-A100-SXM4-80GB"}}
    asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}
    manifest = pod("p", container(limits=asked))
    large = [card(minor, "81920Mi") for minor in range(2)]
    (one,) = schedule(cluster(node(), device("n1", large[1], meta=a100), mig, manifest)).pods
    annotations = dict(one.rendering.annotations)
    manifest["metadata"] |= {"uid": one.pod.pod.uid, "annotations": annotations}
    manifest["spec"]["nodeName"] = "n1"

    outcome = schedule(cluster(node(), device("n1", large[0], meta=a100), mig, manifest))

    (found,) = outcome.pods
    record = found.pod.pod.record
    assert record is not None
    assert record.problem == ""
    assert open_(outcome.ledger.cards(DeviceType.GPU, 0)) == [0]


@pytest.mark.parametrize("asked", [KOORDINATOR, WHOLE])
@pytest.mark.parametrize(
    "now",
    [
        pytest.param([card(0), card(1, id="GPU-3")], id="numbered anew"),
        pytest.param([card(0), card(3, id="GPU-new")], id="swapped"),
    ],
)
def test_cards_that_were_numbered_anew_or_swapped_close_all(
    asked: Manifest, now: list[Manifest]
) -> None:
    """Koordinator's readers go by the number, so it is unknown which card the pod uses."""
    record, cards_ = seen(placed(asked, card(3)), *now)

    assert names.DEVICE_ALLOCATED in record.problem
    assert open_(cards_) == []


@pytest.mark.parametrize("asked", [KOORDINATOR, HAMI, QGPU])
def test_a_card_that_only_another_schedulers_record_names_closes_all(asked: Manifest) -> None:
    """Nothing confirms that the node ever had it."""
    record, cards_ = seen(without(placed(asked, card(3)), names.ALLOCATION), card(0))

    assert record.problem
    assert open_(cards_) == []


@pytest.mark.parametrize("identity", ["0000:3b:00.0", "3", ""])
def test_an_identity_that_another_card_may_have_closes_all(identity: str) -> None:
    """The card may be there under another one."""
    record, cards_ = seen(placed(KOORDINATOR, card(3, id=identity)), card(0))

    assert record.problem
    assert open_(cards_) == []


def test_a_node_that_no_longer_tells_identities_closes_all() -> None:
    """The card may be there, under another number."""
    record, cards_ = seen(placed(KOORDINATOR, card(3)), card(0, id=""))

    assert record.problem
    assert open_(cards_) == []


def test_a_protocols_record_of_another_card_still_contradicts() -> None:
    """It says that the pod is on a card that is there."""
    manifest = placed(KOORDINATOR, card(3))
    text = manifest["metadata"]["annotations"][names.DEVICE_ALLOCATED]
    other = json.loads(text)
    other["gpu"][0] |= {"minor": 0, "id": "GPU-0"}
    manifest["metadata"]["annotations"][names.DEVICE_ALLOCATED] = json.dumps(other)

    record, cards_ = seen(manifest, card(0), card(1))

    assert "records disagree" in record.problem
    assert open_(cards_) == []


def test_a_card_that_is_gone_is_unhealthy_for_those_who_ask() -> None:
    """The reason names no pod."""
    _, cards_ = seen(placed(WHOLE, card(3)), card(0))

    ghost = cards_[-1]
    assert ghost.closed is ReasonCode.UNHEALTHY
    assert ghost.closed_detail == "the device is gone while a pod holds it"
