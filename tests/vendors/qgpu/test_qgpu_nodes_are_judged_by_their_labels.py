"""Cards from a node's totals, and which nodes qGPU refuses."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.device import Device, DeviceType
from partage.model.quantity import Quantity
from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.vendors.base import NodeView, Registration
from partage.vendors.families.qgpu import FAMILY
from partage.vendors.families.qgpu.registration import totals
from partage.vendors.families.qgpu.support import DRIVERS, architecture_of
from partage.vendors.settings import Settings

GIB = 1 << 30
FULL = "nvidia.com/cuda.driver-version.full"
PRODUCT = "nvidia.com/gpu.product"
KNOWN = {FULL: "525.60.13", PRODUCT: "Tesla-V100-SXM2-32GB"}


def card(**fields: object) -> Device:
    """A V100 of 32 GiB that a Device object describes."""
    base = Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", model="V100", memory_bytes=32 * GIB)
    return replace(base, **fields)  # type: ignore[arg-type]


def register(
    labels: Mapping[str, str] | None = None,
    *devices: Device,
    core: str | int | None = None,
    memory: str | int | None = None,
) -> Registration:
    """The registration of a node with these labels, devices and totals."""
    allocatable = {
        name: Quantity.parse(value)
        for name, value in ((names.QGPU_CORE, core), (names.QGPU_MEMORY, memory))
        if value is not None
    }
    view = NodeView("n", labels=labels or {}, allocatable=allocatable, devices=devices)
    return FAMILY.register(view, Settings())


def test_cards_come_from_totals() -> None:
    """400 percent are four cards; memory is shared equally, in whole GiB."""
    registration = register(KNOWN, core=400, memory=129)

    assert registration.registrar == "qgpu"
    assert registration.devices is not None
    assert [d.minor for d in registration.devices] == [0, 1, 2, 3]
    assert len({d.uuid for d in registration.devices}) == 4
    first = registration.devices[0]
    assert (first.memory_bytes, first.slots, first.core_milli) == (32 * GIB, 16, 1000)
    assert (first.vendor, first.model) == ("nvidia", "Tesla-V100-SXM2-32GB")
    assert registration.notes == ()


def test_a_described_node_keeps_its_devices() -> None:
    """Totals say nothing that a Device object does not say better."""
    registration = register(KNOWN, card(), core=400, memory=128)

    assert registration.devices is None
    assert registration.registrar == "qgpu"


@pytest.mark.parametrize(
    ("core", "memory", "cards", "note"),
    [
        pytest.param(250, 64, 2, "is not 100 a card", id="half-a-card"),
        pytest.param("100.5", 64, 1, "is not 100 a card", id="fraction"),
        pytest.param(50, 64, 0, "is not 100 a card", id="less-than-a-card"),
        pytest.param("10G", 64, 0, "is not 100 a card", id="absurd"),
        pytest.param(200, None, 2, "missing or below", id="no-memory"),
        pytest.param(200, 1, 2, "missing or below", id="too-little-memory"),
        pytest.param(200, -4, 2, "missing or below", id="negative-memory"),
        pytest.param(0, 64, 0, "", id="no-card"),
        pytest.param(-100, 64, 0, "", id="negative"),
    ],
)
def test_odd_totals(core: str | int, memory: int | None, cards: int, note: str) -> None:
    """Nothing is made up, and a note informs the operator."""
    registration = register(KNOWN, core=core, memory=memory)

    assert len(registration.devices or ()) == cards
    assert bool(registration.notes) is bool(note)
    assert note in "".join(registration.notes)


def test_a_node_without_cards_is_not_judged() -> None:
    """A node whose cards are of another vendor is not judged either."""
    labels = {names.QGPU_POLICY: "nonsense"}

    assert register(labels) == Registration()
    assert register(labels, card(vendor="huawei")) == Registration()


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        (None, "best-effort"),
        ("", "best-effort"),
        ("best-effort", "best-effort"),
        ("be", "best-effort"),
        ("fixed-share", "fixed-share"),
        ("fs", "fixed-share"),
        ("burst-share", "burst-share"),
        ("bs", "burst-share"),
    ],
)
def test_the_policy_by_full_name_or_abbreviation(text: str | None, policy: str) -> None:
    """Absent means best-effort."""
    labels = KNOWN if text is None else {**KNOWN, names.QGPU_POLICY: text}

    registration = register(labels, card())

    assert registration.properties == {"qgpu-policy": policy}
    assert registration.verdicts == ()


@pytest.mark.parametrize("text", ["fixed", "FS", "fixed_share", "exclusive"])
def test_an_unknown_policy_is_an_objection(text: str) -> None:
    """It names the value and the allowed ones, abbreviations included."""
    (verdict,) = register({**KNOWN, names.QGPU_POLICY: text}, card()).verdicts

    assert (verdict.protocol, verdict.code) == ("qgpu", ReasonCode.NODE_POLICY)
    for part in (repr(text), "best-effort (be)", "fixed-share (fs)", "burst-share (bs)"):
        assert part in verdict.message


DRIVER_CASES = [
    ("450.102.04", True),
    ("450.102.05", False),
    ("450.80.02", True),
    ("450.119.03", False),
    ("470.161.03", True),
    ("470.161.04", False),
    ("470.57.02", True),
    ("515.65.01", True),
    ("515.65.07", False),
    ("515.86.01", False),
    ("525.89.02", True),
    ("525.105.17", False),
    ("525.60", True),
    ("535.161.08", True),
    ("550.54.15", True),
    ("570.86.10", True),
    ("545.23.08", False),
    ("418.67", False),
]


@pytest.mark.parametrize(("version", "supported"), DRIVER_CASES)
def test_driver_branches(version: str, supported: bool) -> None:  # noqa: FBT001
    """The whole triple within a branch; a branch that is not listed is not supported."""
    registration = register({**KNOWN, FULL: version}, card())

    codes = [verdict.code for verdict in registration.verdicts]
    assert codes == ([] if supported else [ReasonCode.DRIVER_UNSUPPORTED])
    assert all(version in verdict.message for verdict in registration.verdicts)


def test_branches_are_the_published_ones() -> None:
    """The document's four with their bounds; later ones have none."""
    assert {branch: last for branch, last in DRIVERS.items() if last} == {
        450: (450, 102, 4),
        470: (470, 161, 3),
        515: (515, 65, 1),
        525: (525, 89, 2),
    }
    assert {branch for branch, last in DRIVERS.items() if not last} == {535, 550, 570}


@pytest.mark.parametrize(
    "labels",
    [
        {"node.koordinator.sh/gpu-driver-version": "470.161.04"},
        {
            "nvidia.com/cuda.driver-version.major": "470",
            "nvidia.com/cuda.driver-version.minor": "161",
            "nvidia.com/cuda.driver-version.revision": "04",
        },
        {
            "nvidia.com/cuda.driver.major": "470",
            "nvidia.com/cuda.driver.minor": "161",
            "nvidia.com/cuda.driver.rev": "04",
        },
    ],
    ids=["koordinator", "feature-discovery", "older-feature-discovery"],
)
def test_whichever_label_tells_the_driver(labels: dict[str, str]) -> None:
    """Versions in one label or in three."""
    (verdict,) = register(labels, card()).verdicts

    assert "470.161.04 is newer than 470.161.03" in verdict.message


@pytest.mark.parametrize("text", ["", "unknown", "470", "470.x.1", "1.2.3.4", "470.1.1-open"])
def test_an_unreadable_driver_is_admitted_with_a_warning(text: str) -> None:
    """What is unknown is not refused."""
    registration = register({**KNOWN, FULL: text}, core=100, memory=16)

    assert registration.verdicts == ()
    assert "driver version unknown" in registration.properties["qgpu-warning"]
    assert "driver version unknown" in registration.notes[0]


def test_warnings_are_not_told_of_nodes_that_do_not_publish_qgpu() -> None:
    """They stay a property, for questions about a qGPU pod."""
    registration = register({}, card())

    assert registration.notes == ()
    assert registration.registrar == ""
    assert "qgpu-warning" in registration.properties


@pytest.mark.parametrize(
    ("model", "architecture"),
    [
        ("Tesla V100-SXM2-32GB", "Volta"),
        ("Tesla-T4", "Turing"),
        ("NVIDIA-GeForce-RTX-2080-Ti", "Turing"),
        ("NVIDIA A100-SXM4-80GB", "Ampere"),
        ("NVIDIA-A10", "Ampere"),
        ("NVIDIA A10G", "Ampere"),
        ("NVIDIA L40S", "Ada"),
        ("NVIDIA RTX 6000 Ada Generation", "Ada"),
        ("NVIDIA H100 80GB HBM3", "Hopper"),
        ("Tesla P100-PCIE-16GB", "Pascal"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "Blackwell"),
        ("A1000", None),
        ("", None),
    ],
)
def test_architectures_by_model(model: str, architecture: str | None) -> None:
    """Whole words of the model name decide."""
    assert architecture_of(model) == architecture


@pytest.mark.parametrize("model", ["Tesla V100", "T4", "A100", "A10", "L40", "NVIDIA L40S"])
def test_listed_architectures_are_admitted(model: str) -> None:
    """The document's three and the later page's one."""
    assert register(KNOWN, card(model=model)).verdicts == ()


@pytest.mark.parametrize("model", ["Tesla P100", "NVIDIA H100 80GB HBM3"])
def test_other_architectures_are_refused(model: str) -> None:
    """Known and outside the table, whether a Device object or a label tells."""
    (described,) = register(KNOWN, card(model=model)).verdicts
    (labelled,) = register({**KNOWN, PRODUCT: model}, core=100, memory=16).verdicts
    (filled,) = register({**KNOWN, PRODUCT: model}, card(model="")).verdicts

    assert described.code is ReasonCode.DRIVER_UNSUPPORTED
    assert described.message == labelled.message == filled.message
    assert model in described.message
    assert not described.sharing_only


def test_an_unknown_model_is_admitted_with_a_warning() -> None:
    """Named in the warning."""
    registration = register(KNOWN, card(model="Whatever 9"))

    assert registration.verdicts == ()
    assert "'Whatever 9'" in registration.properties["qgpu-warning"]


@pytest.mark.parametrize("text", ["disable", "false", "False"])
def test_sharing_can_be_switched_off(text: str) -> None:
    """Whole cards are still allowed."""
    (verdict,) = register({**KNOWN, names.QGPU_ENABLE: text}, card()).verdicts

    assert (verdict.code, verdict.sharing_only) == (ReasonCode.NOT_SHAREABLE, True)
    assert repr(text) in verdict.message


@pytest.mark.parametrize("text", ["enable", "true", ""])
def test_sharing_is_on_otherwise(text: str) -> None:
    """Any other value of the label leaves it on."""
    assert register({**KNOWN, names.QGPU_ENABLE: text}, card()).verdicts == ()


def test_totals_are_sums_over_cards() -> None:
    """A T4 of 15843721216 bytes counts 14 GiB, each card rounded down on its own."""
    cards = [card(minor=i, memory_bytes=15843721216) for i in range(4)]

    found = {name: str(value) for name, value in totals(cards).items()}

    assert found == {names.QGPU_CORE: "400", names.QGPU_MEMORY: "56", names.QGPU_GREEDY: "400"}


def test_totals_leave_out_what_qgpu_cannot_use() -> None:
    """Unhealthy cards, hidden ones, other vendors, other devices."""
    others = [
        card(healthy=False),
        card(hidden_from=frozenset({"qgpu"})),
        card(vendor="huawei"),
        card(type=DeviceType.RDMA),
    ]

    assert totals(others) == {}
    assert totals([*others, card()])[names.QGPU_CORE].floor() == 100


QUANTITIES = st.integers(-(10**18), 10**18).map(Quantity.parse)
LABELS = st.sampled_from(
    [
        names.QGPU_POLICY,
        names.QGPU_ENABLE,
        *names.QGPU_DRIVER_LABELS,
        *names.QGPU_MODEL_LABELS,
        *(name for parts in names.QGPU_DRIVER_PARTS for name in parts),
    ]
)


@given(
    labels=st.dictionaries(LABELS, st.text(max_size=20)),
    allocatable=st.dictionaries(st.sampled_from([names.QGPU_CORE, names.QGPU_MEMORY]), QUANTITIES),
    model=st.text(max_size=20),
)
def test_any_node_is_judged(
    labels: dict[str, str], allocatable: dict[str, Quantity], model: str
) -> None:
    """Nothing raises."""
    for devices in ((), (card(model=model),)):
        registration = FAMILY.register(NodeView("n", labels, {}, allocatable, devices), Settings())
        assert all(verdict.protocol == "qgpu" for verdict in registration.verdicts)
