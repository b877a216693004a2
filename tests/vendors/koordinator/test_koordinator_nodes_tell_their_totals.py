"""A node's devices become its totals in both dialects, its partitions, templates and objections."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.device import Device, DeviceType, Partition
from partage.model.errors import InvalidValue
from partage.model.reason import ReasonCode
from partage.vendors.base import NodeView, Registration
from partage.vendors.families.koordinator import FAMILY
from partage.vendors.families.koordinator.partitions import (
    honoured,
    parse_partitions,
    partitions_of,
)
from partage.vendors.families.koordinator.templates import template_equal, templates_of
from partage.vendors.families.koordinator.totals import totals
from partage.vendors.settings import KoordinatorSettings, Settings

GI = 2**30
POLICY = "node.koordinator.sh/gpu-partition-policy"
VENDOR = "node.koordinator.sh/gpu-vendor"
MODEL = "node.koordinator.sh/gpu-model"


def gpu(minor: int, gib: int = 16, **other: object) -> Device:
    """A card with so many GiB."""
    return Device(DeviceType.GPU, minor, f"GPU-{minor}", memory_bytes=gib * GI, **other)


def texts(devices: list[Device], vendor: str = "", *domain: str) -> dict[str, str]:
    """Totals as they are printed, of these domains, or of all."""
    found = totals(devices, vendor)
    return {name: str(q) for name, q in found.items() if name.startswith(domain or "")}


def test_the_v14_page_is_reproduced() -> None:
    """The Koordinator document: two cards of 16Gi."""
    assert texts([gpu(0), gpu(1)], "", "kubernetes.io/") == {
        "kubernetes.io/gpu": "200",
        "kubernetes.io/gpu-core": "200",
        "kubernetes.io/gpu-memory": "32Gi",
        "kubernetes.io/gpu-memory-ratio": "200",
    }


def test_the_metax_page_is_reproduced() -> None:
    """The MetaX document: one C500, `gpu.shared` beside, no `gpu` because the vendor is not NVIDIA."""
    assert texts([gpu(0, 64)], "metax", "koordinator.sh/") == {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "64Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
        "koordinator.sh/gpu.shared": "100",
    }


def test_both_dialects_are_given_by_default() -> None:
    """Every today's name with its older one, `gpu.shared` alone."""
    names = set(texts([gpu(0)], "nvidia"))

    assert "koordinator.sh/gpu" in names
    assert {n.replace("koordinator.sh/", "kubernetes.io/") for n in names} - names == {
        "kubernetes.io/gpu.shared"
    }


def test_amounts_follow_the_devices() -> None:
    """Scaled compute and memory count as the devices have them; ratio and shared by card."""
    found = texts([gpu(i, 32, core_milli=1500) for i in range(10)], "", "koordinator.sh/")

    assert found == {
        "koordinator.sh/gpu": "1500",
        "koordinator.sh/gpu-core": "1500",
        "koordinator.sh/gpu-memory": "320Gi",
        "koordinator.sh/gpu-memory-ratio": "1k",
        "koordinator.sh/gpu.shared": "1k",
    }


def test_unhealthy_devices_drop_out() -> None:
    """One card of two is left; with none, no name of cards is."""
    sick = gpu(1, healthy=False)

    assert texts([gpu(0), sick], "", "koordinator.sh/")["koordinator.sh/gpu-core"] == "100"
    assert texts([sick]) == {}
    assert texts([]) == {}


def test_network_cards_and_fpgas_are_counted_apart() -> None:
    """A hundred a healthy device, whatever becomes of the cards."""
    others = [
        Device(DeviceType.RDMA, 0, "a"),
        Device(DeviceType.RDMA, 1, "b", healthy=False),
        Device(DeviceType.RDMA, 2, "c"),
        Device(DeviceType.FPGA, 0, "d"),
    ]

    assert texts(others) == {
        "koordinator.sh/fpga": "100",
        "koordinator.sh/rdma": "200",
        "kubernetes.io/fpga": "100",
        "kubernetes.io/rdma": "200",
    }


def test_npus_count_their_own_units() -> None:
    """Cards that count AI cores have no gpu-core."""
    units = (("huawei.com/npu-core", 8), ("huawei.com/npu-dvpp", 100))

    assert texts(
        [gpu(0, 24, extras=units), gpu(1, 24, extras=units)],
        "huawei",
        "koordinator.sh/",
        "huawei.com/",
    ) == {
        "huawei.com/npu-core": "16",
        "huawei.com/npu-dvpp": "200",
        "koordinator.sh/gpu-memory": "48Gi",
        "koordinator.sh/gpu-memory-ratio": "200",
        "koordinator.sh/gpu.shared": "200",
    }


def test_cards_without_known_memory_publish_none() -> None:
    """A name that would be 0 is left out."""
    assert "koordinator.sh/gpu-memory" not in texts([gpu(0, 0)])


# --- register --------------------------------------------------------------------------------


def register(node: NodeView, **options: object) -> Registration:
    """What Koordinator says of the node."""
    return FAMILY.register(node, Settings(**options))


def test_devices_make_koordinator_the_registrar() -> None:
    """Vendor and model are the device's, else the label's."""
    labels = {
        MODEL: "A100",
        VENDOR: "nvidia",
        "koordinator.sh/gpu-isolation-provider": "HAMi-core",
    }

    found = register(NodeView("n", labels=labels, devices=(gpu(0, vendor="metax"),)))

    assert found.registrar == "koordinator"
    assert found.properties == {
        "vendor": "metax",
        "model": "A100",
        "isolation-provider": "HAMi-core",
    }
    assert found.verdicts == ()


def test_a_node_without_devices_is_not_ours() -> None:
    """Nothing registered, nothing claimed."""
    assert register(NodeView("n")) == Registration()


def test_a_model_that_cannot_be_shared_refuses_shares_only() -> None:
    """The message quotes model and vendor; whole cards pass."""
    card = gpu(0, vendor="huawei", model="Ascend-310P3-300I-DUO")

    (verdict,) = register(NodeView("n", devices=(card,))).verdicts

    assert verdict.code is ReasonCode.NOT_SHAREABLE
    assert verdict.sharing_only
    assert verdict.message == (
        'model "Ascend-310P3-300I-DUO" of vendor "huawei" does not support GPU Share'
    )


def test_an_operator_may_allow_sharing() -> None:
    """The list is a setting."""
    card = gpu(0, vendor="huawei", model="Ascend-310P3-300I-DUO")
    anything = KoordinatorSettings(unshareable_models=())

    assert register(NodeView("n", devices=(card,)), koordinator=anything).verdicts == ()


# --- partitions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "model", "vendor", "known"),
    [
        pytest.param({MODEL: "H800"}, "", "", True, id="label"),
        pytest.param({}, "H20", "nvidia", True, id="device"),
        pytest.param({}, "H100-80GB-HBM3", "nvidia", True, id="long name"),
        pytest.param({MODEL: "H100", VENDOR: "nvidia"}, "", "", True, id="vendor label"),
        pytest.param({}, "H100-PCIe", "nvidia", False, id="no link"),
        pytest.param({}, "H100-NVL", "nvidia", False, id="bridge"),
        pytest.param({}, "H100", "metax", False, id="another vendor"),
        pytest.param({}, "A100-SXM4-80GB", "nvidia", False, id="another model"),
        pytest.param({MODEL: "A100"}, "H100", "nvidia", False, id="label wins"),
        pytest.param({}, "", "", False, id="unknown"),
    ],
)
def test_hopper_machines_have_a_table(
    labels: dict[str, str], model: str, vendor: str, *, known: bool
) -> None:
    """Only boards behind one link have partitions."""
    assert bool(partitions_of(labels, model, vendor)) is known


def test_the_hopper_table_is_the_published_one() -> None:
    """Ones, pairs, halves, all; every score 1."""
    table = partitions_of({}, "H800", "")

    assert {size: [p.minors for p in parts] for size, parts in table.items()} == {
        1: [(i,) for i in range(8)],
        2: [(0, 1), (2, 3), (4, 5), (6, 7)],
        4: [(0, 1, 2, 3), (4, 5, 6, 7)],
        8: [(0, 1, 2, 3, 4, 5, 6, 7)],
    }
    assert {p.score for parts in table.values() for p in parts} == {1}


def test_a_table_is_read_leniently() -> None:
    """Quoted scores as the published examples have them, missing ones are 1."""
    text = json.dumps(
        {
            "2": [
                {
                    "minors": [1, 0],
                    "gpuLinkType": "HCCS",
                    "ringBusBandwidth": "400Gi",
                    "allocationScore": "3",
                },
                {"minors": [2, 3], "future": 1},
            ],
            "1": [{"minors": [0], "allocationScore": 2}],
        }
    )

    assert parse_partitions(text) == {
        1: (Partition((0,), score=2),),
        2: (Partition((0, 1), score=3, bandwidth=400 * GI), Partition((2, 3))),
    }


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="no JSON"),
        pytest.param("[]", id="a list"),
        pytest.param('{"two":[]}', id="key no number"),
        pytest.param('{"0":[]}', id="no cards"),
        pytest.param('{"99999999999":[]}', id="huge key"),
        pytest.param('{"2":[{"minors":[0]}]}', id="too few cards"),
        pytest.param('{"2":[{"minors":[0,0]}]}', id="one card twice"),
        pytest.param('{"1":[{"minors":[-1]}]}', id="negative card"),
        pytest.param('{"1":[{"minors":[0],"allocationScore":"high"}]}', id="score no number"),
        pytest.param('{"1":[{"minors":[0],"ringBusBandwidth":"fast"}]}', id="bandwidth"),
        pytest.param('{"1":[{}]}', id="no minors"),
    ],
)
def test_a_broken_table_is_refused_by_name(text: str) -> None:
    """The message names the annotation."""
    with pytest.raises(
        InvalidValue, match=r"^annotation scheduling\.koordinator\.sh/gpu-partitions: "
    ):
        parse_partitions(text)


@given(st.text(max_size=30))
@settings(deadline=None)
def test_no_text_breaks_the_table(text: str) -> None:
    """Any text is a table or an InvalidValue."""
    with contextlib.suppress(InvalidValue):
        assert all(size > 0 for size in parse_partitions(text))


@pytest.mark.parametrize(
    ("device", "node", "expected"),
    [
        pytest.param({POLICY: "Honor"}, {}, True, id="device"),
        pytest.param({}, {POLICY: "Honor"}, True, id="node"),
        pytest.param({POLICY: "Prefer"}, {POLICY: "Honor"}, False, id="device wins"),
        pytest.param({}, {POLICY: "honor"}, False, id="anything else is Prefer"),
        pytest.param({}, {}, False, id="absent"),
    ],
)
def test_honor_is_the_only_binding_policy(
    device: dict[str, str], node: dict[str, str], *, expected: bool
) -> None:
    """Whole cards must take a partition only where a label says Honor."""
    assert honoured(device, node) is expected


# --- templates -------------------------------------------------------------------------------


def test_the_published_templates_are_known_by_model() -> None:
    """Seven cuts of the 310P; unknown models have none."""
    default = KoordinatorSettings()

    assert sorted(templates_of("huawei", "Ascend-310P3", default)) == [
        "vir01",
        "vir02",
        "vir02_1c",
        "vir04",
        "vir04_3c",
        "vir04_3c_ndvpp",
        "vir04_4c_dvpp",
    ]
    assert len(templates_of("huawei", "Ascend-910B4", default)) == 4
    assert templates_of("nvidia", "A100", default) == {}


def test_a_template_matches_exactly() -> None:
    """Cores, CPUs, DVPP and memory all equal; one more core matches nothing."""
    table = templates_of("huawei", "Ascend-310P3", KoordinatorSettings())
    units = (("huawei.com/npu-core", 4), ("huawei.com/npu-cpu", 3))

    assert template_equal(table, units, 12 * GI) == "vir04_3c_ndvpp"
    assert template_equal(table, (*units, ("huawei.com/npu-dvpp", 50)), 12 * GI) == "vir04_3c"
    assert template_equal(table, units, 13 * GI) == ""
