"""ResourceSlices of a node: names, amounts and limits that the API has, and counters that are the card's own rules."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.agent.discovery.found import Found, Inventory
from partage.agent.dra.slices import Offered, resource_slices
from partage.model.cutting import Cutting, Geometry
from partage.model.device import Device, DeviceType, ForeignInstance, SliceMode, Topology
from partage.model.mig import MigAxis, MigSlice, layouts
from partage.model.node import Node
from partage.model.quantity import Quantity
from partage.vendors.mig import MIG_CARDS, for_driver
from partage.wire.claims import instance_name, share_name

GIB = 2**30
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
ALL = Offered(instances=True)
NOTHING = Inventory()
CUT = ("A100-80GB", "H100-80GB", "H200-141GB")


def card(minor: int, axis: MigAxis | None = None, **others: Any) -> Device:
    """A card of NVIDIA; with an axis, one that serves shares and instances."""
    given = {
        "uuid": f"GPU-{minor}",
        "vendor": "nvidia",
        "model": "A100-SXM4-80GB",
        "memory_bytes": 80 * GIB,
        "mode": SliceMode.SHARE if axis is None else SliceMode.EITHER,
        "cutting": None if axis is None else Cutting(axis, frozenset()),
    }
    return Device(type=DeviceType.GPU, minor=minor, **(given | others))


def slices(
    devices: Iterable[Device], offered: Offered = ALL, inventory: Inventory = NOTHING
) -> list[dict[str, Any]]:
    """Slices of a node with these devices."""
    node = Node("worker-1", devices=tuple(devices))
    return list(resource_slices(node, inventory, "u-1", 3, offered))


def named(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Devices of slices by name, each there once."""
    listed = [one for part in found for one in part["spec"].get("devices", [])]
    assert len({one["name"] for one in listed}) == len(listed)
    return {one["name"]: one for one in listed}


def counters(found: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Counters of slices by set and name."""
    return {
        one["name"]: {name: int(count["value"]) for name, count in one["counters"].items()}
        for part in found
        for one in part["spec"].get("sharedCounters", [])
    }


def together(found: list[dict[str, Any]], names: Iterable[str]) -> bool:
    """Whether counters let an allocator give all of some devices, as its own rule says."""
    left = {name: Counter(one) for name, one in counters(found).items()}
    known = named(found)
    for name in names:
        for taken in known[name].get("consumesCounters", []):
            for counter, amount in taken["counters"].items():
                left[taken["counterSet"]][counter] -= int(amount["value"])
    return all(count >= 0 for one in left.values() for count in one.values())


@pytest.mark.parametrize("model", CUT)
def test_eight_cards_are_within_every_limit_of_the_api(model: str) -> None:
    """Every name, number and list is one that the API server takes."""
    axis = MIG_CARDS[model].axis
    found = slices(card(minor, axis) for minor in range(8))
    assert len(named(found)) == 8 * (1 + len(axis.positions))
    assert len({part["metadata"]["name"] for part in found}) == len(found)
    for part in found:
        spec = part["spec"]
        assert SUBDOMAIN.fullmatch(part["metadata"]["name"])
        assert spec["driver"] == "gpu.partage.io"
        assert spec["nodeName"] == spec["pool"]["name"] == "worker-1"
        assert spec["pool"] == {
            "name": "worker-1",
            "generation": 3,
            "resourceSliceCount": len(found),
        }
        assert ("devices" in spec) != ("sharedCounters" in spec)
        assert len(spec.get("devices", [])) <= 64
        assert len(spec.get("sharedCounters", [])) <= 8
        for one in spec.get("sharedCounters", []):
            assert len(one["counters"]) <= 32
            assert all(LABEL.fullmatch(name) for name in (one["name"], *one["counters"]))
        for one in spec.get("devices", []):
            assert LABEL.fullmatch(one["name"])
            assert len(one["attributes"]) + len(one["capacity"]) <= 32
            assert all(len(name) <= 32 for name in (*one["capacity"],))
            assert [part["counterSet"] for part in one["consumesCounters"]] == [
                one["name"].partition("-mig-")[0]
            ]
    assert set(counters(found)) == {f"gpu-{minor}" for minor in range(8)}


def test_a_node_of_nine_cards_has_a_second_slice_of_counters() -> None:
    """Eight sets a slice are the most."""
    axis = MIG_CARDS["A100-80GB"].axis
    found = slices(card(minor, axis) for minor in range(9))
    sets = [len(part["spec"].get("sharedCounters", [])) for part in found]
    assert [one for one in sets if one] == [8, 1]


def test_a_card_that_cannot_be_cut_has_its_shares_alone() -> None:
    """Nothing consumes a counter where none is."""
    (part,) = slices([card(0, model="Tesla-T4", memory_bytes=15 * GIB)])
    (one,) = part["spec"]["devices"]
    assert one["name"] == "gpu-0"
    assert one["allowMultipleAllocations"] is True
    assert "consumesCounters" not in one
    assert one["capacity"] == {
        "cores": {
            "value": "100",
            "requestPolicy": {
                "default": "100",
                "validRange": {"min": "0", "max": "100", "step": "1"},
            },
        },
        "memory": {
            "value": "15Gi",
            "requestPolicy": {
                "default": "15Gi",
                "validRange": {"min": "1Mi", "max": "15Gi", "step": "1Mi"},
            },
        },
        "sharers": {
            "value": "100",
            "requestPolicy": {"default": "1", "validValues": ["1"]},
        },
    }
    assert part["metadata"]["ownerReferences"][0]["uid"] == "u-1"


@pytest.mark.parametrize("model", CUT)
def test_shares_and_instances_of_one_card_exclude_each_other(model: str) -> None:
    """The share device takes every counter, and no counter is spared by all instances."""
    axis = MIG_CARDS[model].axis
    found = slices([card(0, axis), card(1, axis)])
    assert together(found, ["gpu-0"])
    for one in axis.positions:
        assert not together(found, ["gpu-0", instance_name(0, one)])
        assert together(found, ["gpu-0", instance_name(1, one)])


@pytest.mark.parametrize("model", [*CUT, "A30-24GB", "RTX-PRO-6000-Blackwell-96GB"])
@given(data=st.data())
def test_counters_hold_what_the_card_holds(model: str, data: st.DataObject) -> None:
    """Any set of instances is possible by counters exactly where the card's own rules have it."""
    axis = MIG_CARDS[model].axis
    some = data.draw(st.lists(st.sampled_from(axis.positions), max_size=8, unique=True))
    found = slices([card(0, axis)])
    assert together(found, [instance_name(0, one) for one in some]) == axis.valid(some)


def test_counters_allow_every_layout_there_is() -> None:
    """Each of the layouts of one card, so that chance has not missed the large ones."""
    axis = MIG_CARDS["A30-24GB"].axis
    found = slices([card(0, axis)])
    for layout in layouts(axis):
        assert together(found, [instance_name(0, one) for one in layout])


def test_profiles_that_an_older_driver_keeps_apart_are_apart() -> None:
    """R470 makes no 4g beside a 3g; two 3g are fine."""
    axis = for_driver(MIG_CARDS["A100-40GB"].axis, 470)
    found = slices([card(0, axis)])
    low, high = MigSlice("3g.20gb", 0, 4), MigSlice("3g.20gb", 4, 4)
    assert together(found, [instance_name(0, low), instance_name(0, high)])
    assert not together(
        found, [instance_name(0, MigSlice("4g.20gb", 0, 4)), instance_name(0, high)]
    )


def test_names_of_profiles_stay_apart() -> None:
    """A profile with media engines and one without are two devices."""
    axis = MIG_CARDS["RTX-PRO-6000-Blackwell-96GB"].axis
    names = {instance_name(0, one) for one in axis.positions}
    assert len(names) == len(axis.positions)
    assert instance_name(3, MigSlice("1g.10gb", 4, 1)) == "gpu-3-mig-1g-10gb-4"
    assert share_name(3) == "gpu-3"


def test_the_mode_of_a_card_says_what_is_offered() -> None:
    """The modes are those for pods of the four protocols: shares, instances, or either."""
    axis = MIG_CARDS["A100-80GB"].axis
    kinds = {
        mode: {
            one["attributes"]["kind"]["string"]
            for one in named(slices([card(0, axis, mode=mode)])).values()
        }
        for mode in SliceMode
    }
    assert kinds[SliceMode.SHARE] == {"share"}
    assert kinds[SliceMode.MIG] == {"mig"}
    assert kinds[SliceMode.EITHER] == {"share", "mig"}
    without = slices([card(0, axis)], Offered(instances=False))
    assert list(named(without)) == ["gpu-0"]
    assert counters(without) == {}


def test_layouts_that_counters_cannot_say_are_not_offered() -> None:
    """An operator's list of layouts, and profiles that are not allowed."""
    axis = MIG_CARDS["A100-80GB"].axis
    listed = Geometry(0, (("7g.80gb", 1),), ((MigSlice("7g.80gb", 0, 8),),))
    cut = Cutting(axis, frozenset(), geometries=(listed,))
    assert list(named(slices([card(0, axis, cutting=cut)]))) == ["gpu-0"]
    few = Cutting(axis, frozenset(), allowed=frozenset({"7g.80gb"}))
    assert list(named(slices([card(0, axis, cutting=few)]))) == ["gpu-0", "gpu-0-mig-7g-80gb-0"]


def test_instances_of_others_take_their_counters() -> None:
    """Where an instance of others is, neither shares nor an instance is allocated."""
    axis = MIG_CARDS["A100-80GB"].axis
    low = MigSlice("3g.40gb", 0, 4)
    found = slices([card(0, axis, foreign=(ForeignInstance(low),))])
    assert not together(found, ["gpu-0"])
    possible = [one for one in axis.positions if together(found, [instance_name(0, one)])]
    assert possible == [one for one in axis.positions if axis.valid([low, one])]


def test_an_ill_card_is_marked() -> None:
    """Its name stays, so that its holders stay known; where marks are not kept it is left out."""
    axis = MIG_CARDS["A100-80GB"].axis
    ill = card(0, axis, healthy=False, health_detail="fell off")
    inventory = Inventory((Found(ill, reason="XidCritical"), Found(card(1))))
    found = slices([ill, card(1)], inventory=inventory)
    marked = named(found)
    taint = {"key": "gpu.partage.io/unhealthy", "value": "XidCritical", "effect": "NoSchedule"}
    assert all(one["taints"] == [taint] for name, one in marked.items() if name != "gpu-1")
    assert "taints" not in marked["gpu-1"]
    assert list(named(slices([ill, card(1)], replace(ALL, taints=False)))) == ["gpu-1"]
    lost = named(slices([ill]))["gpu-0"]["taints"]
    assert lost[0]["value"] == "DeviceLost"
    shut = named(slices([card(0, cordoned=True), card(1, doubt="two pods: one (odd) card")]))
    assert shut["gpu-0"]["taints"] == [{"key": "gpu.partage.io/cordoned", "effect": "NoSchedule"}]
    assert shut["gpu-1"]["taints"][0]["value"] == "two-pods-one-odd-card"


def test_what_is_known_of_a_card_is_there_to_select_by() -> None:
    """Standard names where there are any; a version is a semantic one; what is not known is absent."""
    one = card(0, topology=Topology(numa=1, pcie="pci0000:3a"))
    other = card(1)
    inventory = Inventory(
        (
            Found(
                one, product="NVIDIA A100-SXM4-80GB", driver="535.104.05", architecture="Ampere"
            ),
            Found(other),
        ),
        links={("GPU-0", "GPU-1"): 12},
    )
    known = named(slices([one, other, card(2)], inventory=inventory))
    assert known["gpu-0"]["attributes"] == {
        "kind": {"string": "share"},
        "uuid": {"string": "GPU-0"},
        "index": {"int": 0},
        "productName": {"string": "NVIDIA A100-SXM4-80GB"},
        "model": {"string": "A100-SXM4-80GB"},
        "vendor": {"string": "nvidia"},
        "architecture": {"string": "Ampere"},
        "memory": {"int": 80 * GIB},
        "driverVersion": {"version": "535.104.5"},
        "numaNode": {"int": 1},
        "nvlinkDomain": {"int": 0},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
    }
    assert known["gpu-1"]["attributes"]["nvlinkDomain"] == {"int": 0}
    assert "nvlinkDomain" not in known["gpu-2"]["attributes"]
    part = named(slices([card(0, MIG_CARDS["A100-80GB"].axis)]))["gpu-0-mig-3g-40gb-4"]
    assert part["attributes"]["profile"] == {"string": "3g.40gb"}
    assert part["attributes"]["start"] == {"int": 4}
    assert Quantity.parse(part["capacity"]["memory"]["value"]).floor() == 40192 * 2**20


def domains(inventory: Inventory, *minors: int) -> list[int | None]:
    """The NVLink domain of each card; None: it has none."""
    known = named(slices([card(minor) for minor in minors], inventory=inventory))
    told = [known[f"gpu-{minor}"]["attributes"].get("nvlinkDomain") for minor in minors]
    return [None if one is None else one["int"] for one in told]


def test_cards_that_reach_one_switch_are_one_domain() -> None:
    """Behind an NVSwitch no card has a link to another one; a card that is not offered joins none."""
    switches = {f"GPU-{minor}": frozenset({"s1", "s2"}) for minor in (1, 2, 3)}
    assert domains(Inventory(switches=switches), 0, 1, 2, 3) == [None, 1, 1, 1]
    assert domains(Inventory(switches=switches), 0, 3) == [None, None]

    apart = {"GPU-0": frozenset({"s1"}), "GPU-1": frozenset({"s1"}), "GPU-3": frozenset({"s2"})}
    assert domains(Inventory(switches=apart), 0, 1, 2, 3) == [0, 0, None, None]
    joined = Inventory(switches=apart, links={("GPU-1", "GPU-3"): 4})
    assert domains(joined, 0, 1, 2, 3) == [0, 0, None, 0]


def test_attributes_are_as_short_in_bytes_as_the_api_wants() -> None:
    """One that is too long would have the server refuse the whole slice; no character is cut in two."""
    known = named(slices([card(0, model="卡" * 40), card(1, model="x" * 80)]))
    assert known["gpu-0"]["attributes"]["model"] == {"string": "卡" * 21}
    assert known["gpu-1"]["attributes"]["model"] == {"string": "x" * 64}


def test_a_cards_size_stays_whatever_pods_hold_of_it() -> None:
    """Amounts are what is left; the attribute is what the card has, by which claims choose its size."""
    node = Node("worker-1", devices=(card(0, memory_bytes=10 * GIB), card(1)))
    (part,) = resource_slices(node, NOTHING, "u-1", 3, ALL, (), {0: 80 * GIB})
    first, second = part["spec"]["devices"]
    assert first["capacity"]["memory"]["value"] == "10Gi"
    assert first["attributes"]["memory"] == second["attributes"]["memory"] == {"int": 80 * GIB}


def test_cards_that_the_driver_cannot_give_are_left_out() -> None:
    """Those that a vendor's plugin cuts, those without known files, those without percent of compute."""
    own = card(0, vendor="metax", vendor_cut=True)
    unknown = card(1, vendor="nobody")
    units = card(2, vendor="huawei")
    network = Device(type=DeviceType.RDMA, minor=0, uuid="0000:01:00.0")
    inventory = Inventory((Found(units, percent=False),))
    assert slices([own, unknown, units, network], inventory=inventory) == []


@pytest.mark.parametrize("slots", [10, 100])
def test_sharers_are_counted_from_the_first_on(slots: int) -> None:
    """A third amount, of which everyone takes one: pods that come later may bring a limit for all that are there."""
    capacity = named(slices([card(0, slots=slots)]))["gpu-0"]["capacity"]
    assert capacity["sharers"] == {
        "value": str(slots),
        "requestPolicy": {"default": "1", "validValues": ["1"]},
    }


def test_a_long_name_of_a_node_is_shortened_and_stays_its_own() -> None:
    """Names of slices have at most 253 characters."""
    long = [f"{'n' * 61}." * 4 + tail for tail in ("alpha", "bravo")]
    names = [
        part["metadata"]["name"]
        for name in long
        for part in resource_slices(Node(name, devices=(card(0),)), Inventory(), "u", 1)
    ]
    assert len(set(names)) == 2
    assert all(len(one) <= 253 and SUBDOMAIN.fullmatch(one) for one in names)


def test_the_same_node_gives_the_same_slices() -> None:
    """The order in which its devices come does not matter."""
    axis = MIG_CARDS["H100-80GB"].axis
    cards = [card(minor, axis) for minor in range(4)]
    assert slices(cards) == slices(reversed(cards))
