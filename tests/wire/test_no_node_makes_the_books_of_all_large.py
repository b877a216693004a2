"""An account of one node may write anything of that node, and the books have room for all nodes alike."""

import itertools
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from partage.extender.metrics import _pool
from partage.inventory.ledger import Ledger
from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, SliceMode, Topology
from partage.model.mig import MigAxis, MigProfile
from partage.model.node import Node
from partage.model.request import DeviceRequest
from partage.placement.fragmentation import Gauge, Shape, Workload
from partage.placement.instance_kernel import InstanceTable
from partage.placement.instances import tables_of
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Unserviceable
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.mig import MIG_CARDS
from partage.vendors.settings import Settings
from partage.wire import device_objects
from partage.wire.context import Context
from partage.wire.documents import Document, decode
from partage.wire.mig_profiles import encode_axes
from partage.wire.nodes import TranslatedNode, translate_node

Manifest = dict[str, Any]
CONTEXT = Context.of(Settings(), FAMILIES)
MEMORY = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi"}


def document(manifest: Manifest) -> Document:
    """A document of the manifest."""
    (found,) = decode("test.json", json.dumps(manifest).encode()).documents
    return found


def read(devices: list[Manifest], **annotations: str) -> TranslatedNode:
    """A node with such a Device object and annotations."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n0", "annotations": annotations},
        "status": {"allocatable": {"cpu": "8"}},
    }
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "n0"},
        "spec": {"devices": devices},
    }
    return translate_node(document(node), document(device), CONTEXT)


def card(minor: int, **extras: str) -> Manifest:
    """One card."""
    return {
        "type": "gpu",
        "id": f"GPU-{minor}",
        "minor": minor,
        "health": True,
        "resources": MEMORY | extras,
    }


def test_a_node_has_so_many_devices_of_a_type_and_no_more() -> None:
    """Fifteen thousand cards on one of five thousand nodes took gigabytes."""
    found = read([card(minor) for minor in reversed(range(15_000))])
    assert [one.minor for one in found.node.devices] == list(range(80))
    assert any("14920 devices" in note for note in found.notes)
    ledger = Ledger()
    ledger.upsert_node(found.node)
    assert ledger.planes[DeviceType.GPU].cards == 80
    assert found.node.left_out == 14_920


def test_a_registration_by_annotation_has_the_same_bound() -> None:
    """Each 60 bytes of it are a card."""
    listed = ":".join(f"GPU-{n},10,16384,100,NVIDIA-A100,0,true" for n in range(4000)) + ":"
    found = read([], **{names.HAMI_REGISTER: listed})
    assert len(found.node.devices) == 80
    assert found.node.left_out


def test_amounts_of_other_names_have_a_bound() -> None:
    """A device with thousands of them is closed."""
    odd = card(0, **{f"koordinator.sh/x{n}": "1" for n in range(10_000)})
    (one,) = read([odd]).node.devices
    assert not one.healthy
    assert not one.extras


@pytest.mark.parametrize(("groups", "each"), [(1, 20_000), (5, 1)])
def test_functions_of_a_network_card_have_a_bound(groups: int, each: int) -> None:
    """Each was compared with all before it, so that twenty thousand took seconds; a card with as many is closed."""
    listed = [
        {"vfs": [{"busID": f"0000:{group}:{one}", "minor": one} for one in range(each)]}
        for group in range(groups)
    ]
    odd = {"type": "rdma", "id": "0000:1f:00.0", "minor": 1, "health": True, "vfGroups": listed}
    (closed,) = read([odd]).node.devices
    assert not closed.healthy
    assert not closed.functions
    assert "virtual functions" in closed.health_detail
    most = {"vfs": [{"busID": f"0000:1f:{one}"} for one in range(256)]}
    (sound,) = read([odd | {"vfGroups": [most]}]).node.devices
    assert sound.healthy
    assert [one.minor for one in sound.functions] == list(range(256))


@pytest.mark.parametrize("others", [0, 3])
def test_names_that_no_card_has_any_more_leave_the_books(others: int) -> None:
    """A node that names other ones with each report."""
    ledger = Ledger()
    numbers = itertools.count()
    for index in range(others):
        ledger.upsert_node(
            Node(
                f"other-{index}",
                devices=read([card(0, **{"koordinator.sh/kept": "1"})]).node.devices,
            )
        )
    for _ in range(100):
        fresh = {f"koordinator.sh/x{next(numbers)}": "1" for _ in range(10)}
        ledger.upsert_node(read([card(0, **fresh)]).node)
    assert len(ledger.planes[DeviceType.GPU].extras) == 10 + (others > 0)
    ledger.validate()


def test_kinds_of_card_that_are_gone_leave_the_books() -> None:
    """A node that calls its cards something else in each report: every request looks at all kinds."""
    ledger = Ledger()
    for index in range(3):
        ledger.upsert_node(replace(read([card(0)]).node, name=f"other-{index}"))
    for number in range(400):
        cards = [card(minor) | {"labels": {f"odd-{number}": str(minor)}} for minor in range(8)]
        ledger.upsert_node(read(cards).node)
    assert len(ledger.kinds) <= 256
    plane = ledger.planes[DeviceType.GPU]
    for name, index in ledger.index.items():
        for row, device in enumerate(ledger.devices(DeviceType.GPU, index)):
            kind = ledger.kinds[plane.kind[row, index]]
            assert kind is not None, name
            assert kind.labels == device.labels
    ledger.validate()


def test_kinds_that_take_the_number_of_others_are_judged_afresh() -> None:
    """Data kept by the number of a kind are written again where a number is another's."""
    ledger, workload = Ledger(), Workload((Shape(1000, 500, 1, "B"),), (1.0,))
    ledger.upsert_node(Node("n0", devices=(Device(DeviceType.GPU, 0, "GPU-0", model="A"),)))
    gauge = Gauge(workload, ledger)
    for number in range(2000):
        model = "B" if number % 2 else f"odd-{number}"
        ledger.upsert_node(Node("n0", devices=(Device(DeviceType.GPU, 0, "GPU-0", model=model),)))
        if number % 100 == 99:
            gauge.refresh()
            fresh = Gauge(workload, ledger)
            assert gauge.frag.tolist() == fresh.frag.tolist()


def test_resources_that_no_node_has_any_more_leave_the_books() -> None:
    """A node that names others in each status; a pod that asks for one still finds none."""
    ledger = Ledger()
    for number in range(200):
        amounts = {"cpu": 8000, **{f"odd.example/{number}-{one}": 1 for one in range(20)}}
        ledger.upsert_node(Node("n0", allocatable=amounts))
    assert len(ledger.host_free) <= 256
    index = ledger.index["n0"]
    assert ledger.host_left(index, {"odd.example/0-0": 1})["odd.example/0-0"] == 0
    assert ledger.host_left(index, {"odd.example/199-0": 1})["odd.example/199-0"] == 1
    ledger.validate()


def test_a_node_has_so_many_resources_and_no_more() -> None:
    """Kubernetes' own names come first."""
    given = {f"odd.example/{one}": "1" for one in range(5000)} | {"cpu": "8", "memory": "1Gi"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n0"},
        "status": {"allocatable": given},
    }
    found = translate_node(document(node), None, CONTEXT)
    assert len(found.node.allocatable) == 256
    assert {"cpu", "memory"} <= found.node.allocatable.keys()
    assert any("4746 resources" in note for note in found.notes)


def told(number: int) -> MigAxis:
    """A table of a model that is not published."""
    size = 2 + number
    return MigAxis("X", (MigProfile("1g.5gb", 1, 1, tuple(range(size)), 5 << 30, 100, size),))


def test_cards_of_a_node_tell_so_many_tables_of_instances_and_no_more() -> None:
    """Tables of each take time: the cards beyond are cut as is published."""
    uuids = {f"GPU-{minor}": told(minor) for minor in range(8)}
    text = json.dumps(
        [
            {"id": one, "count": 1, "devmem": 40960, "devcore": 100, "type": "X", "mode": "mig"}
            for one in uuids
        ]
    )
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n0", "annotations": {names.HAMI_REGISTER: text}},
    }
    cards = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "n0", "annotations": {names.MIG_PROFILES: encode_axes(uuids)}},
        "spec": {"devices": [card(minor) for minor in range(8)]},
    }
    found = translate_node(document(node), document(cards), CONTEXT)
    cut = [one.minor for one in found.node.devices if one.cutting is not None]
    assert cut == [0, 1, 2, 3]
    assert any("4 cards have other MIG profiles" in note for note in found.notes)


FAR: dict[str, list[tuple[int, int]]] = {
    "far apart": [(64 * place, 64) for place in range(64)],
    "of one unit": [(place, 1) for place in range(64)],
    "thousands": [(place, 1) for place in range(4000)],
    "beyond numbers": [(2**31 - 1 - place, 1) for place in range(8)],
}


@pytest.mark.parametrize("how", FAR)
def test_places_of_instances_that_no_card_has_are_not_counted(how: str) -> None:
    """The layouts of four such cards were counted for eight seconds, while all others waited."""
    places = [{"start": start, "size": size} for start, size in FAR[how]]
    told = [
        {
            "id": f"GPU-{number}",
            "index": number,
            "count": 1,
            "devmem": 40960,
            "devcore": 100,
            "type": f"odd-{number}",
            "mode": "mig",
            "health": True,
            "migProfiles": [{"name": f"1g.{number}gb", "placements": places}],
        }
        for number in range(4)
    ]
    begun = time.thread_time()
    found = read([], **{names.HAMI_REGISTER: json.dumps(told)})
    assert time.thread_time() - begun < 0.5
    assert len(found.node.devices) == 4
    assert all(one.cutting is None for one in found.node.devices)


def test_devices_beyond_the_bound_are_compared_with_no_registration() -> None:
    """Fifteen thousand cards, each of which was looked for among four thousand registered ones."""
    listed = ":".join(f"GPU-x{n},10,16384,100,NVIDIA-A100,0,true" for n in range(4000)) + ":"
    begun = time.thread_time()
    found = read([card(minor) for minor in range(15_000)], **{names.HAMI_REGISTER: listed})
    assert time.thread_time() - begun < 1.5
    assert len(found.node.devices) == 80
    assert found.node.left_out == 14_920


def test_a_node_has_so_many_partitions_and_no_more() -> None:
    """Each was compared with each in every decision on whole cards: two seconds for three thousand."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}}
    cards = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {
            "name": "n0",
            "annotations": {names.GPU_PARTITIONS: json.dumps({"1": [{"minors": [0]}] * 9000})},
        },
        "spec": {"devices": [card(minor) for minor in range(8)]},
    }
    found = translate_node(document(node), document(cards), CONTEXT)
    assert found.node.partitions == {}
    assert any("9000 partitions; 256 at most" in note for note in found.notes)


def test_tables_of_instances_are_made_once_for_cards_that_differ_in_memory_alone() -> None:
    """A node that reports another memory each time causes no new tables."""
    axis = MIG_CARDS["A100-80GB"].axis
    less = tuple(replace(one, memory_bytes=one.memory_bytes - 1) for one in axis.profiles)
    cuttings = [Cutting(one, frozenset()) for one in (axis, replace(axis, profiles=less))]
    assert cuttings[0] != cuttings[1]
    assert tables_of(cuttings[0]) is tables_of(cuttings[1])


def mig_card(number: int) -> Device:
    """A card whose profiles have another memory each time."""
    axis = MIG_CARDS["A100-80GB"].axis
    less = tuple(replace(p, memory_bytes=p.memory_bytes - number) for p in axis.profiles)
    return Device(
        DeviceType.GPU, 0, "GPU-0", core_milli=1000, memory_bytes=80 << 30, mode=SliceMode.MIG,
        cutting=Cutting(replace(axis, profiles=less), frozenset()),
    )  # fmt: skip


def test_instances_that_are_gone_leave_the_books() -> None:
    """A node that has another table in each report; a request for instances finds what there is now."""
    ledger = Ledger()
    ledger.upsert_node(Node("other", devices=(replace(mig_card(0), uuid="GPU-1"),)))
    asked = DeviceRequest(DeviceType.GPU, profile="1g.10gb", instances=True)
    table, nodes = InstanceTable(asked), slice(0, 2)
    for number in range(1, 2001):
        ledger.upsert_node(Node("n0", devices=(mig_card(number),)))
        if number % 100 == 0:
            suits = np.ones((ledger.planes[DeviceType.GPU].cards, 2), np.bool_)
            fresh = InstanceTable(asked)
            assert table.room(ledger, suits, nodes).sum() == 2
            assert (table.worth(ledger, suits, nodes) == fresh.worth(ledger, suits, nodes)).all()
            ledger.validate()
    assert len(ledger.cuts.known) <= 256
    assert ledger.devices(DeviceType.GPU, ledger.index["other"])


def test_ways_in_which_cards_lie_leave_the_books() -> None:
    """A node that has other switches in each report."""
    ledger = Ledger()
    for number in range(1000):
        lie = [Topology(0, f"switch-{number >> bit & 1}") for bit in range(10)]
        cards = [Device(DeviceType.GPU, n, f"GPU-{n}", topology=one) for n, one in enumerate(lie)]
        ledger.upsert_node(Node("n0", devices=tuple(cards)))
    assert len(ledger._known_trees) <= 256  # shown nowhere
    assert ledger.index["n0"] in ledger.trees


def test_devices_that_are_left_out_are_told_and_counted() -> None:
    """An operator reads that a report is too large, and of which node."""
    engine = Engine()
    actions = engine.handle(NodeSeen(read([card(minor) for minor in range(86)]).node))

    assert [one for one in actions if isinstance(one, Unserviceable)] == [
        Unserviceable(
            "n0",
            "6 devices beyond the most that a node may have of a type are left out, and serve no pod",
        )
    ]
    (family,) = (one for one in _pool(engine.ledger) if one.name == "partage_devices")
    found = {tuple(one.labels.values()): one.value for one in family.samples}
    assert found == {("gpu", "open"): 80, ("any", "left_out"): 6}


LONG = "x" * 300_000
ODD: dict[str, Manifest] = {
    "an id": {"id": LONG},
    "a switch": {"topology": {"pcieID": LONG}},
    "an address": {"topology": {"busID": LONG}},
    "a label": {"labels": {"a": LONG}},
    "a label's name": {"labels": {LONG: "a"}},
    "an amount's name": {"resources": {**MEMORY, f"koordinator.sh/{LONG}": "1"}},
    "an impossible amount": {"resources": {**MEMORY, f"koordinator.sh/{LONG}": "-1"}},
    "a function's address": {"vfGroups": [{"vfs": [{"busID": LONG}]}]},
    "a label of functions": {"vfGroups": [{"labels": {"a": LONG}, "vfs": [{"busID": "0"}]}]},
    "labels": {"labels": {f"a{n}": "b" for n in range(1000)}},
    "labels of functions": {
        "vfGroups": [{"labels": {f"a{n}": "b" for n in range(1000)}, "vfs": [{"busID": "0"}]}]
    },
}


@pytest.mark.parametrize("what", ODD)
def test_a_device_with_texts_that_no_real_one_has_is_closed(what: str) -> None:
    """Its id went into records: a pod that got it was never bound, however often it was tried."""
    (one,) = read([card(0) | ODD[what]]).node.devices
    assert not one.healthy
    assert "at most" in one.health_detail
    assert len(repr(one)) < 2_000


def test_what_a_device_says_of_itself_is_cut() -> None:
    """Each refusal of its node repeated the message."""
    said = [{"type": "Healthy", "status": "False", "message": LONG}]
    (one,) = read([card(0) | {"health": False, "conditions": said}]).node.devices
    assert len(one.health_detail) == 1024
    assert read([card(0) | {"type": LONG}]).node.devices == ()


def test_only_the_devices_that_are_kept_are_read() -> None:
    """Fifteen thousand with amounts of their own, or of one number, were read for 0.4 s with each change."""
    looked = []
    found = [card(minor) | {"id": "GPU-x"} for minor in range(8_000)]
    found += [card(0) | {"id": f"GPU-{n}"} for n in range(8_000)] + [{"type": "odd"}] * 3_000
    with pytest.MonkeyPatch.context() as patch:
        made = device_objects._device
        patch.setattr(device_objects, "_device", lambda *a: looked.append(a) or made(*a))
        read_ = read(found)
    assert len(looked) == 80
    assert not any(one.healthy for one in read_.node.devices)
    assert read_.node.left_out == 16_000 - 80
    assert len(read_.notes) <= 65


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"id": LONG, "count": 1}]),
        json.dumps([{"id": "GPU-0", "count": 1, "type": LONG}]),
        json.dumps([{"id": "GPU-0", "count": 1, "mode": LONG}]),
        f"{LONG},10,16384,100,NVIDIA-A100,0,true:",
        f"GPU-0,10,16384,100,{LONG},0,true:",
    ],
)
def test_a_registration_with_such_texts_is_not_read(text: str) -> None:
    """The node takes no pods with devices until it is mended."""
    found = read([], **{names.HAMI_REGISTER: text})
    assert not found.node.devices
    assert found.node.verdicts
    assert sum(map(len, found.notes)) < 2_000
