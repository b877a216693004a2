"""The Device object: what the agent writes is what the scheduler reads."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from partage.agent.device_document import LOST, device_document
from partage.agent.discovery.found import Found, Inventory
from partage.agent.discovery.models import MODELS
from partage.agent.discovery.simulated import SimulatedHardware, simulate
from partage.agent.registration import hami_annotations, node_labels
from partage.embedded.manifests import decoded
from partage.model.device import Device, DeviceType, Topology, VirtualFunction
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import HamiNodeSettings, HamiSettings, Settings
from partage.wire.context import Context
from partage.wire.device_objects import translate_devices
from partage.wire.nodes import translate_node

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
A100 = SimulatedHardware("n1", "A100-SXM4-80GB", MODELS["A100-SXM4-80GB"], 2, nics=1, functions=2)

places = st.builds(
    Topology,
    numa=st.integers(-1, 15),
    pcie=st.from_regex(r"pci[0-9a-f]{4}:[0-9a-f]{2}", fullmatch=True),
    bus=st.from_regex(r"[0-9a-f]{4}:[0-9a-f]{2}:00\.0", fullmatch=True),
    socket=st.integers(-1, 3),
)
words = st.text("abcdefgh", min_size=1, max_size=6)
function_labels = st.dictionaries(words, words, max_size=1)


@st.composite
def founds(draw: st.DrawFn) -> tuple[Found, ...]:
    """Devices with numbers and identities of their own, cards of one make."""
    kinds = draw(st.lists(st.sampled_from(list(DeviceType)), max_size=6))
    result = []
    for minor, kind in enumerate(kinds):
        is_card, healthy = kind is DeviceType.GPU, draw(st.booleans())
        functions = [
            VirtualFunction(index, f"0000:{minor:02x}:00.{index}", draw(function_labels))
            for index in range(draw(st.integers(0, 3)) if kind is DeviceType.RDMA else 0)
        ]
        extras = draw(st.dictionaries(st.just("huawei.com/npu-core"), st.integers(0, 99)))
        device = Device(
            type=kind,
            minor=minor,
            uuid=f"id-{minor}",
            vendor="acme" if is_card else "",
            model="M1" if is_card else "",
            healthy=healthy,
            memory_bytes=draw(st.integers(1, 2**45)) if is_card else 0,
            extras=tuple(sorted(extras.items())) if is_card else (),
            labels=draw(function_labels),
            topology=draw(st.none() | places),
            functions=tuple(functions),
            health_detail="" if healthy else draw(words),
        )
        result.append(Found(device, percent=draw(st.booleans())))
    return tuple(result)


@given(founds())
def test_what_is_written_is_what_is_read(found: tuple[Found, ...]) -> None:
    """The scheduler reads exactly the devices that were found, and nothing is odd."""
    document = decoded("Device", device_document("n1", Inventory(found), None, NOW))

    devices, notes = translate_devices(document, document.labels)

    assert notes == []
    assert list(devices) == sorted(
        (one.device for one in found), key=lambda one: (one.type, one.minor)
    )


@given(founds(), founds())
def test_nothing_is_written_twice(before: tuple[Found, ...], after: tuple[Found, ...]) -> None:
    """The object made of the same facts at a later time is the same object."""
    first = device_document("n1", Inventory(before), None, THEN)
    second = device_document("n1", Inventory(after), first, THEN)

    again = device_document("n1", Inventory(after), second, NOW)

    assert again == second


def test_the_object_is_as_the_seed_prints_it() -> None:
    """The MetaX document's C500, with the Node as owner as in the Koordinator document."""
    hardware = SimulatedHardware("n1", "C500", MODELS["C500"], 1)

    document = device_document("n1", simulate(hardware), None, NOW, uid="u")

    (card,) = document["spec"]["devices"]
    assert document["metadata"]["labels"] == {names.GPU_VENDOR: "metax", names.GPU_MODEL: "C500"}
    assert card["resources"] == {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "64Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    assert card["conditions"] == [
        {
            "type": "Healthy",
            "status": "True",
            "reason": "DeviceHealthy",
            "message": "device is healthy",
            "lastTransitionTime": NOW,
        }
    ]
    assert document["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert document["status"] == {}


def test_a_condition_is_as_old_as_its_status() -> None:
    """Another reason keeps the time; another status takes the new one."""
    well = device_document("n1", simulate(A100), None, THEN)

    ill = device_document("n1", simulate(A100, {("gpu", 0)}, "Xid 79"), well, NOW)
    worse = device_document("n1", simulate(A100, {("gpu", 0)}, "Xid 48"), ill, "later")

    times = [one["conditions"][0]["lastTransitionTime"] for one in ill["spec"]["devices"]]
    assert times == [NOW, THEN, THEN]
    assert worse["spec"]["devices"][0]["conditions"][0]["lastTransitionTime"] == NOW
    assert worse["spec"]["devices"][0]["conditions"][0]["message"] == "Xid 48"


def test_a_lost_card_stays_and_is_closed() -> None:
    """A card that fell off the bus is not a card that never was."""
    whole = simulate(A100)
    before = device_document("n1", whole, None, THEN)
    rest = Inventory(tuple(one for one in whole.found if one.device.minor != 1))

    document = decoded("Device", device_document("n1", rest, before, NOW))
    devices, _ = translate_devices(document, document.labels)

    assert [(one.minor, one.healthy) for one in devices if one.type is DeviceType.GPU] == [
        (0, True),
        (1, False),
    ]
    assert LOST in str(device_document("n1", rest, before, NOW))


def test_another_card_takes_the_place_of_a_lost_one() -> None:
    """A replaced card has the number of the old one, or its own; the old one is forgotten."""
    before = device_document("n1", simulate(A100), None, THEN)
    other = simulate(replace(A100, name="n2"))

    document = device_document("n1", other, before, NOW)

    assert {one["id"] for one in document["spec"]["devices"]} == {d.uuid for d in other.devices}


def test_hami_reads_its_registration() -> None:
    """Split, scaling and filtered cards of the node's own configuration; links as scores."""
    found = simulate(A100)
    one, two = (card.uuid for card in found.devices if card.type is DeviceType.GPU)
    own = HamiNodeSettings("n1", memory_scaling=1.5, split_count=7, filter_indexes=(1,))
    hami = HamiSettings(nodes={"n1": own})

    said = hami_annotations(replace(found, links={(one, two): 4}), hami, "n1")

    manifest = {"metadata": {"name": "n1", "annotations": said}, "status": {"allocatable": {}}}
    context = Context.of(Settings(hami=hami), FAMILIES)
    (card,) = translate_node(decoded("Node", manifest), None, context).node.devices
    assert (card.uuid, card.slots, card.memory_bytes) == (one, 7, 120 * 2**30)
    assert f'"uuid":"{one}","score":{{"{two}":400}}' in said[names.HAMI_SCORE]


def test_a_registration_ends_with_the_last_card() -> None:
    """Its readers would allocate cards that are not there; a node without a registration gets no annotation."""
    found = simulate(A100)
    one, two = (card.uuid for card in found.devices if card.type is DeviceType.GPU)
    known = hami_annotations(replace(found, links={(one, two): 4}), HamiSettings(), "n1")

    said = hami_annotations(Inventory(), HamiSettings(), "n1", {**known, "other": "x"})

    manifest = {"metadata": {"name": "n1", "annotations": said}, "status": {"allocatable": {}}}
    read = translate_node(decoded("Node", manifest), None, Context.of(Settings(), FAMILIES))
    assert said.keys() == known.keys()
    assert (read.node.devices, read.node.links) == ((), {})
    assert hami_annotations(found, HamiSettings(), "n1", known)[names.HAMI_SCORE] == "[]"
    assert not hami_annotations(Inventory(), HamiSettings(), "n1")


def test_a_card_in_mig_mode_is_registered_as_such() -> None:
    """It cannot be shared by software, whatever mode the other cards have."""
    found = simulate(A100)
    cut = replace(found, found=(replace(found.found[0], mig=True), *found.found[1:]))

    said = hami_annotations(cut, HamiSettings(), "n1")

    modes = [one["mode"] for one in json.loads(said[names.HAMI_REGISTER])]
    assert modes == ["mig", "hami-core"]


def test_labels_are_set_where_they_differ() -> None:
    """Make, model and driver follow what was found; what others decide is only filled in."""
    found = simulate(A100)

    fresh = node_labels(found, {names.QGPU_ENABLE: "disable"}, qgpu=True)

    assert fresh[names.GPU_MODEL] == "A100-SXM4-80GB"
    assert names.QGPU_ENABLE not in fresh
    assert node_labels(found, {**fresh, names.QGPU_ENABLE: "disable"}, qgpu=True) == {}
