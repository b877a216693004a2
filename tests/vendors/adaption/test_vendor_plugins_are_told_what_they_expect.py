"""Vendors' plugins get the annotations they read, and pods they could not serve are refused."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.quantity import Quantity
from partage.model.reason import ReasonCode
from partage.model.request import DeviceRequest, Fault, Phase, PodRequest
from partage.vendors.base import (
    ContainerView,
    Family,
    NodeView,
    PlacedPod,
    PodView,
    Reading,
    Registration,
    Rendering,
)
from partage.vendors.families import cambricon, huawei, koordinator, metax
from partage.vendors.settings import MetaxSettings, Settings

GI = 2**30
MI = 2**20
NOW = 1_700_000_000_000_000_007
LOCK = "2023-11-14T22:13:20Z,default,pod"
QOS = "metax-tech.com/sgpu-qos-policy"
SGPU = "metax-tech.com/sgpu"
ALLOCATED = "metax-tech.com/gpu-devices-allocated"
VCORE = "cambricon.com/mlu.smlu.vcore"
SHORT = {
    "core": "koordinator.sh/gpu-core",
    "memory": "koordinator.sh/gpu-memory",
    "ratio": "koordinator.sh/gpu-memory-ratio",
    "shared": "koordinator.sh/gpu.shared",
    "rdma": "koordinator.sh/rdma",
    "npu": "huawei.com/npu-core",
    "cpu": "huawei.com/npu-cpu",
    "dvpp": "huawei.com/npu-dvpp",
    "sgpu": SGPU,
    "vcore": VCORE,
}


def pod(annotations: dict[str, str] | None = None, **asks: str) -> PodView:
    """A pod of one container that asks by short names."""
    amounts = {SHORT[key]: Quantity.parse(value) for key, value in asks.items()}
    return PodView(
        "default",
        "pod",
        "uid",
        annotations=annotations or {},
        containers=(ContainerView("main", requests=amounts, limits=amounts),),
    )


def read(view: PodView, family: Family) -> Reading:
    """The pod as Koordinator reads it and the vendor refines it."""
    ours = koordinator.FAMILY.owned(Settings())
    containers = tuple(c for c in view.containers if c.names & ours)
    reading = koordinator.FAMILY.read(view, containers, Settings())
    return family.refine(view, reading, Settings())


def request(view: PodView, family: Family) -> DeviceRequest:
    """The refined request, which must be valid."""
    reading = read(view, family)
    assert reading.fault is None
    return reading.groups[0].request


def card(minor: int, vendor: str, gib: int = 64, **other: object) -> Device:
    """A card of a vendor."""
    return Device(
        DeviceType.GPU, minor, f"GPU-{minor}", vendor=vendor, memory_bytes=gib * GI, **other
    )


def share(device: Device, core: int = 50, memory: int = GI, **other: object) -> Grant:
    """A Koordinator grant on a card."""
    return Grant(
        "main",
        device.type,
        device.minor,
        device.uuid,
        core,
        memory,
        **{"mode": GrantMode.VENDOR, "protocol": "koordinator", **other},
    )


def whole(device: Device) -> Grant:
    """A whole card by Koordinator."""
    return share(device, device.core_milli, device.memory_bytes, mode=GrantMode.WHOLE)


def render(
    family: Family, view: PodView, devices: tuple[Device, ...], *grants: Grant
) -> Rendering:
    """What the vendor's addition writes."""
    reading = koordinator.FAMILY.read(view, view.containers, Settings())
    assert reading.fault is None
    placed = PlacedPod(
        view,
        PodRequest(groups=reading.groups),
        Allocation("uid", "default", "pod", "node-1", grants),
        Node("node-1", devices=devices),
        NOW,
    )
    return family.render(placed, Settings())


# --- MetaX: the pod --------------------------------------------------------------------------

SEED = {"shared": "1", "core": "10", "memory": "1Gi", "sgpu": "1"}


def test_the_metax_pod_of_the_page_is_a_share_of_one_metax_card() -> None:
    """The MetaX document: a tenth of the compute and 1Gi, sixteen sharers, MetaX cards only."""
    found = request(pod({QOS: "fixed-share"}, **SEED), metax.FAMILY)

    assert (found.count, found.core_milli, found.memory_bytes) == (1, 100, GI)
    assert found.sharers == 16
    assert found.filter.vendors == ("metax",)


def test_whole_metax_cards_stay_allowed() -> None:
    """Two whole cards, no limit of sharers needed."""
    found = request(pod(core="200", ratio="200", sgpu="2"), metax.FAMILY)

    assert (found.count, found.whole, found.sharers) == (2, True, None)
    assert found.filter.vendors == ("metax",)


def test_other_devices_of_the_pod_are_left_alone() -> None:
    """A network card beside is not MetaX's."""
    reading = read(pod(rdma="1", **SEED), metax.FAMILY)

    assert reading.groups[1].request.filter.vendors == ()


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param({"shared": "1", "core": "10", "memory": "1Gi"}, id="no trigger"),
        pytest.param({"shared": "1", "core": "10", "memory": "1Gi", "sgpu": "0"}, id="none asked"),
    ],
)
def test_pods_that_do_not_wake_the_plugin_are_not_metaxs(asks: dict[str, str]) -> None:
    """An impossible quality of service is not ours to judge then either."""
    assert request(pod({QOS: "x"}, **asks), metax.FAMILY).filter.vendors == ()


@pytest.mark.parametrize("family", [metax.FAMILY, cambricon.FAMILY], ids=lambda one: one.name)
def test_a_pod_that_names_only_the_plugin_is_kube_schedulers(family: Family) -> None:
    """`explain` and the plugin's seam leave it to kube-scheduler, and so does everything else."""
    assert read(pod(sgpu="1", vcore="1"), family) == Reading()


def test_an_earlier_fault_stands() -> None:
    """A request that is broken already keeps its first reason."""
    reading = Reading(fault=Fault("first"))

    assert metax.FAMILY.refine(pod(**SEED), reading, Settings()) is reading
    assert cambricon.FAMILY.refine(pod(vcore="1"), reading, Settings()) is reading


METAX_FAULTS = {
    "unknown quality": (
        {QOS: "gold"},
        SEED,
        f"annotation {QOS}: 'gold' is not allowed; choose one of fixed-share, best-effort, burst-share",
    ),
    "empty quality": ({QOS: ""}, SEED, f"annotation {QOS}: ''"),
    "two cards": (
        {},
        SEED | {"shared": "2"},
        "does not support virtualisation over several cards",
    ),
    "no compute": (
        {},
        {"shared": "1", "memory": "1Gi", "sgpu": "1"},
        "gpu core resource is required",
    ),
    "less than 1Mi": (
        {},
        SEED | {"memory": "512Ki"},
        "gpu memory must not be less than 1048576 bytes",
    ),
    "more units than cards": (
        {},
        {"shared": "1", "core": "10", "memory": "1Gi", "sgpu": "2"},
        "write metax-tech.com/sgpu: 1",
    ),
    "less than a unit": (
        {},
        {"shared": "1", "core": "10", "memory": "1Gi", "sgpu": "500m"},
        "write metax-tech.com/sgpu: 1",
    ),
    "no card beside": (
        {},
        {"sgpu": "1", "rdma": "100"},
        "metax-tech.com/sgpu only wakes the vendor's plugin",
    ),
}


@pytest.mark.parametrize(
    ("annotations", "asks", "message"), METAX_FAULTS.values(), ids=METAX_FAULTS
)
def test_what_the_metax_plugin_cannot_do_is_refused(
    annotations: dict[str, str], asks: dict[str, str], message: str
) -> None:
    """The refusal has the reason, before anything is placed."""
    fault = read(pod(annotations, **asks), metax.FAMILY).fault

    assert fault is not None
    assert fault.code is ReasonCode.INVALID_REQUEST
    assert message in fault.message


# --- MetaX: the node -------------------------------------------------------------------------


def register(family: Family, node: NodeView, **options: object) -> Registration:
    """What the vendor says of a node."""
    return family.register(node, Settings(**options))


def metax_node(name: str = "node-1", **allocatable: str) -> NodeView:
    """A node with one C500."""
    totals = {f"metax-tech.com/{key}": Quantity.parse(v) for key, v in allocatable.items()}
    return NodeView(name, allocatable=totals, devices=(card(0, "metax"),))


SEED_MODES = MetaxSettings(cluster_mode="native", node_modes={"sample-node1": "sgpu"})


def test_an_sgpu_node_has_sixteen_slots_a_card() -> None:
    """The MetaX document: the node's own mode wins over the cluster's."""
    found = register(metax.FAMILY, metax_node("sample-node1"), metax=SEED_MODES)

    assert found.verdicts == ()
    assert found.properties == {"metax-mode": "sgpu"}
    assert found.devices is not None
    assert (found.devices[0].slots, found.devices[0].vendor_cut) == (16, True)


def test_a_native_node_gives_whole_cards_only() -> None:
    """The cluster's mode; shares of every protocol are refused."""
    found = register(metax.FAMILY, metax_node(), metax=SEED_MODES)

    (verdict,) = found.verdicts
    assert (verdict.code, verdict.sharing_only, verdict.protocol) == (
        ReasonCode.NOT_SHAREABLE,
        True,
        "",
    )
    assert "native" in verdict.message
    assert found.devices is None


@pytest.mark.parametrize("mode", ["shared", "vgpu", "what"])
def test_other_modes_are_refused_by_name(mode: str) -> None:
    """No request is served there, and the message says which mode it is."""
    found = register(metax.FAMILY, metax_node(), metax=MetaxSettings(cluster_mode=mode))

    (verdict,) = found.verdicts
    assert (verdict.code, verdict.sharing_only) == (ReasonCode.MODE_MISMATCH, False)
    assert f"mode {mode}" in verdict.message


@pytest.mark.parametrize(
    ("totals", "mode"),
    [
        pytest.param({"sgpu": "16"}, "sgpu", id="sgpu"),
        pytest.param({"gpu": "1"}, "native", id="native"),
        pytest.param({"sgpu": "0", "gpu": "1"}, "native", id="none left of the other"),
    ],
)
def test_without_a_configmap_the_plugins_totals_tell_the_mode(
    totals: dict[str, str], mode: str
) -> None:
    """A node that reports sGPUs is cut into them."""
    assert register(metax.FAMILY, metax_node(**totals)).properties == {"metax-mode": mode}


def test_a_node_of_unknown_mode_is_taken_for_an_sgpu_node() -> None:
    """A note says so; a pod that needs the plugin is checked on the node's totals anyway."""
    found = register(metax.FAMILY, metax_node())

    assert found.verdicts == ()
    assert found.notes
    assert found.devices is not None
    assert found.devices[0].slots == 16


def test_fewer_slots_stay_fewer() -> None:
    """Sixteen is the most, not the number."""
    node = replace(metax_node(sgpu="16"), devices=(card(0, "metax", slots=4),))

    found = register(metax.FAMILY, node).devices

    assert found is not None
    assert found[0].slots == 4


def test_the_nodes_label_names_the_vendor_where_devices_do_not() -> None:
    """A card without a vendor on a MetaX node is MetaX's; a network card never is."""
    node = NodeView(
        "n",
        labels={"node.koordinator.sh/gpu-vendor": "metax"},
        allocatable={SGPU: Quantity.parse("16")},
        devices=(card(0, ""), Device(DeviceType.RDMA, 0, "nic")),
    )

    found = register(metax.FAMILY, node).devices

    assert found is not None
    assert [device.vendor_cut for device in found] == [True, False]


@pytest.mark.parametrize("family", [metax.FAMILY, huawei.FAMILY, cambricon.FAMILY])
def test_other_vendors_nodes_are_left_alone(family: Family) -> None:
    """This holds under a cluster-wide mode too."""
    node = NodeView("n", devices=(card(0, "nvidia"),))

    assert register(family, node, metax=SEED_MODES) == Registration()


@pytest.mark.parametrize("family", [huawei.FAMILY, cambricon.FAMILY])
def test_vendors_cut_their_own_cards(family: Family) -> None:
    """Shares on them are the vendor's to cut; other devices are not."""
    node = NodeView(
        "n", devices=(card(0, family.name), card(1, ""), Device(DeviceType.RDMA, 0, ""))
    )

    found = register(family, node).devices

    assert found is not None
    assert [device.vendor_cut for device in found] == [True, False, False]


# --- MetaX: the result -----------------------------------------------------------------------


def test_two_metax_cards_are_one_list() -> None:
    """One outer element, one object a card, MiB rounded down."""
    cards = (card(0, "metax"), card(1, "metax"))
    view = pod(shared="2", core="10", memory="2Gi")

    written = render(metax.FAMILY, view, cards, share(cards[1]), share(cards[0]))

    assert written.annotations == {
        ALLOCATED: '[[{"uuid":"GPU-0","compute":5,"vRam":1024},{"uuid":"GPU-1","compute":5,"vRam":1024}]]'
    }
    assert written.node_annotations == {}


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("fixed-share", "fixed-share"),
        ("fixed-shares", "fixed-share"),
        ("best-efforts", "best-effort"),
        ("burst-shares", "burst-share"),
        (None, "best-effort"),
    ],
)
def test_the_quality_of_service_is_written_normalised(written: str | None, normal: str) -> None:
    """Plural spellings of the page's prose become the plugin's words; none is best-effort."""
    device = card(0, "metax")
    view = pod({} if written is None else {QOS: written}, **SEED)
    assert read(view, metax.FAMILY).fault is None

    found = render(metax.FAMILY, view, (device,), share(device, 100))

    assert found.annotations == {
        ALLOCATED: '[[{"uuid":"GPU-0","compute":10,"vRam":1024}]]',
        QOS: normal,
    }
    assert found.node_annotations == {"hami.io/mutex.lock": LOCK}


def test_a_whole_metax_card_is_all_its_compute() -> None:
    """This holds where only memory was asked, too; no quality of service is added."""
    device = card(0, "metax")

    found = render(metax.FAMILY, pod(ratio="100", sgpu="1"), (device,), whole(device))

    assert found.annotations == {ALLOCATED: '[[{"uuid":"GPU-0","compute":100,"vRam":65536}]]'}


@pytest.mark.parametrize("family", [metax.FAMILY, huawei.FAMILY, cambricon.FAMILY])
@pytest.mark.parametrize(
    ("vendor", "protocol"), [("nvidia", "koordinator"), ("", "koordinator"), (None, "qgpu")]
)
def test_vendors_write_on_their_own_cards_only(
    family: Family, vendor: str | None, protocol: str
) -> None:
    """Another vendor's card or another protocol's grant is not theirs."""
    device = card(0, family.name if vendor is None else vendor)
    view = pod(shared="1", core="5", memory="1Gi")

    assert render(family, view, (device,), share(device, protocol=protocol)) == Rendering()


def test_the_nodes_vendor_stands_in_for_the_devices() -> None:
    """A Device object without a vendor on a node whose label names one."""
    device = card(0, "")
    view = pod(**SEED)
    reading = koordinator.FAMILY.read(view, view.containers, Settings())
    placed = PlacedPod(
        view,
        PodRequest(groups=reading.groups),
        Allocation("uid", "default", "pod", "n", (share(device),)),
        Node("n", devices=(device,), properties={"vendor": "metax"}),
        NOW,
    )

    assert ALLOCATED in metax.FAMILY.render(placed, Settings()).annotations


# --- MetaX: taking over ----------------------------------------------------------------------

METAX_NODE = Node("node-1", devices=(card(0, "metax"),))


@pytest.mark.parametrize(
    ("compute", "memory", "expected"),
    [
        pytest.param(5, 1024, (50, GI, GrantMode.VENDOR), id="share"),
        pytest.param(100, 65536, (1000, 64 * GI, GrantMode.WHOLE), id="whole"),
    ],
)
def test_the_metax_record_is_recovered(
    compute: int, memory: int, expected: tuple[int, int, GrantMode]
) -> None:
    """It names cards by identity; the container is the one that asks for an sGPU."""
    text = f'[[{{"uuid":"GPU-0","compute":{compute},"vRam":{memory}}}]]'

    record = metax.FAMILY.recover(pod({ALLOCATED: text}, **SEED), METAX_NODE, Settings())

    assert record is not None
    assert record.problem == ""
    (found,) = record.grants
    assert (found.core_milli, found.memory_bytes, found.mode) == expected
    assert (found.container, found.protocol, found.phase) == ("main", "koordinator", Phase.MAIN)


def test_two_containers_of_a_metax_record_may_share_a_card() -> None:
    """It has a list for each container, and HAMi's scheduler keeps no container off the card of another."""
    text = (
        '[[{"uuid":"GPU-0","compute":20,"vRam":1024}],[{"uuid":"GPU-0","compute":30,"vRam":1024}]]'
    )

    record = metax.FAMILY.recover(pod({ALLOCATED: text}, **SEED), METAX_NODE, Settings())

    assert record is not None
    assert record.problem == ""
    assert [grant.core_milli for grant in record.grants] == [200, 300]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="no JSON"),
        pytest.param("[" * 100_000, id="endless"),
        pytest.param('[[{"uuid":"GPU-9","compute":5,"vRam":1}]]', id="unknown card"),
        pytest.param('[[{"uuid":"GPU-0","compute":-5,"vRam":1}]]', id="negative"),
        pytest.param('[[{"uuid":"GPU-0","compute":9000000000000000000,"vRam":1}]]', id="huge"),
        pytest.param('[[{"uuid":"GPU-0","compute":5,"vRam":65537}]]', id="too much memory"),
        pytest.param('[[{"uuid":"GPU-0","compute":"5"}]]', id="text"),
        pytest.param('[[{"uuid":"GPU-0"},{"uuid":"GPU-0"}]]', id="a card twice"),
    ],
)
def test_a_metax_record_that_cannot_be_trusted_is_a_problem(text: str) -> None:
    """Named by its annotation, with no grants."""
    record = metax.FAMILY.recover(pod({ALLOCATED: text}), METAX_NODE, Settings())

    assert record is not None
    assert record.grants == ()
    assert ALLOCATED in record.problem


@pytest.mark.parametrize("annotations", [{}, {ALLOCATED: "[]"}, {ALLOCATED: "[[]]"}])
def test_no_metax_record_says_nothing(annotations: dict[str, str]) -> None:
    """Absent or empty."""
    assert metax.FAMILY.recover(pod(annotations), METAX_NODE, Settings()) is None


@given(st.text(max_size=40))
@settings(deadline=None)
def test_no_text_breaks_metax(text: str) -> None:
    """Any annotation gives a record or nothing, any quality of service a reading."""
    view = pod({ALLOCATED: text, QOS: text}, **SEED)

    record = metax.FAMILY.recover(view, METAX_NODE, Settings())

    assert record is None or record.problem
    assert read(view, metax.FAMILY).fault is not None


# --- Cambricon -------------------------------------------------------------------------------

SMLU = {"shared": "1", "core": "5", "memory": "1Gi", "vcore": "1"}


def test_a_cambricon_share_is_a_profile_and_a_lock() -> None:
    """Minor, percent, units of 256Mi; the key is misspelt as the plugin reads it."""
    device = card(0, "cambricon")

    found = render(cambricon.FAMILY, pod(**SMLU), (device,), share(device))

    assert found.annotations == {
        "CAMBRICON_DSMLU_ASSIGHED": "false",
        "CAMBRICON_DSMLU_PROFILE": "0_5_4",
    }
    assert found.node_annotations == {"cambricon.com/dsmlu.lock": LOCK}


def test_no_cambricon_lock_without_its_plugin() -> None:
    """A lock that no plugin removes would stand for five minutes."""
    device = card(0, "cambricon")
    view = pod(shared="1", core="5", memory="1Gi")

    assert render(cambricon.FAMILY, view, (device,), share(device)).node_annotations == {}


def test_what_no_profile_can_say_is_not_written() -> None:
    """Several cards, or no compute."""
    cards = (card(0, "cambricon"), card(1, "cambricon"))
    two = pod(shared="2", core="10", memory="2Gi")
    idle = pod(shared="1", memory="1Gi")

    assert render(cambricon.FAMILY, two, cards, *map(share, cards)) == Rendering()
    assert render(cambricon.FAMILY, idle, cards, share(cards[0], 0)) == Rendering()


def test_a_cambricon_pod_keeps_to_its_vendors_cards() -> None:
    """The plugin's trigger decides."""
    assert request(pod(**SMLU), cambricon.FAMILY).filter.vendors == ("cambricon",)
    assert read(pod(rdma="1", **SMLU), cambricon.FAMILY).groups[1].request.filter.vendors == ()


CAMBRICON_FAULTS = {
    "two cards": (
        SMLU | {"shared": "2", "core": "10"},
        "multiple gpu share is not supported on device side",
    ),
    "whole card": ({"core": "100", "ratio": "100", "vcore": "1"}, "whole cards are not supported"),
    "no compute": (
        {"shared": "1", "memory": "1Gi", "vcore": "1"},
        "gpu core resource is required",
    ),
    "too little": (SMLU | {"memory": "255Mi"}, "gpu memory must not be less than 268435456 bytes"),
    "no card beside": ({"vcore": "1", "rdma": "100"}, "the sMLU resources only wake the plugin"),
}


@pytest.mark.parametrize(("asks", "message"), CAMBRICON_FAULTS.values(), ids=CAMBRICON_FAULTS)
def test_what_the_cambricon_plugin_cannot_do_is_refused(
    asks: dict[str, str], message: str
) -> None:
    """The refusal has upstream's words, before anything is placed."""
    fault = read(pod(**asks), cambricon.FAMILY).fault

    assert fault is not None
    assert fault.message.startswith(
        'failed to adapt for GPU device plugin of vendor "cambricon": ' + message
    )


# --- Huawei ----------------------------------------------------------------------------------

VIR02 = {"shared": "1", "npu": "2", "cpu": "2", "dvpp": "25", "memory": "6Gi"}


def test_whole_npus_are_named_by_minor() -> None:
    """Time of the decision and the minors in order."""
    cards = (card(0, "huawei"), card(1, "huawei"))

    found = render(huawei.FAMILY, pod(npu="16", ratio="200"), cards, *map(whole, cards))

    assert found.annotations == {"predicate-time": str(NOW), "huawei.com/npu-core": "0,1"}
    assert found.node_annotations == {}


def test_a_part_of_an_npu_is_named_by_its_template() -> None:
    """`0-vir02`."""
    device = card(0, "huawei")

    found = render(
        huawei.FAMILY, pod(**VIR02), (device,), share(device, 250, 6 * GI, template="vir02")
    )

    assert found.annotations["huawei.com/npu-core"] == "0-vir02"


def test_the_duo_has_its_own_key() -> None:
    """`Ascend310P-0,Ascend310P-1`, and no npu-core annotation."""
    cards = tuple(card(i, "huawei", model="Ascend-310P3-300I-DUO") for i in (0, 1))

    found = render(huawei.FAMILY, pod(npu="16", ratio="200"), cards, *map(whole, cards))

    assert found.annotations == {
        "predicate-time": str(NOW),
        "huawei.com/Ascend310P": "Ascend310P-0,Ascend310P-1",
    }


def test_a_share_without_a_template_is_not_named() -> None:
    """The plugin would take a bare minor for the whole card."""
    device = card(0, "huawei")
    view = pod(shared="1", core="5", memory="1Gi")

    found = render(huawei.FAMILY, view, (device,), share(device))

    assert set(found.annotations) == {"predicate-time"}


def test_triggers_are_the_vendors() -> None:
    """Names that only wake a plugin are checked on the node's totals."""
    assert metax.FAMILY.triggers == {SGPU}
    assert cambricon.FAMILY.triggers == {VCORE, "cambricon.com/mlu.smlu.vmemory"}
    assert huawei.FAMILY.triggers == {"huawei.com/Ascend310P"}
