"""What registration annotations, settings and cordons make of a node's cards."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.device import Device, DeviceType, SliceMode, Topology
from partage.model.errors import InvalidRecord
from partage.vendors import names
from partage.vendors.base import NodeView, Registration
from partage.vendors.families.hami import FAMILY
from partage.vendors.families.hami.cards import decode_cards, decode_scores
from partage.vendors.settings import HamiNodeSettings, HamiSettings, Settings

MIB = 1 << 20
A100 = "NVIDIA A100-SXM4-40GB"
SEVEN = f"GPU-a,10,40960,100,{A100},1,true:"
NINE = f"GPU-b,7,40960,100,{A100},0,false,3,mig:"
JSON = json.dumps(
    [
        {
            "id": "GPU-c",
            "count": 10,
            "devmem": 40960,
            "devcore": 100,
            "type": A100,
            "mode": "hami-core",
            "health": True,
        }
    ]
)


def card(**fields: object) -> Device:
    """A 40 GiB card that a Device object describes."""
    base = Device(DeviceType.GPU, 0, "GPU-c", vendor="nvidia", memory_bytes=40960 * MIB)
    return replace(base, **fields)  # type: ignore[arg-type]


def register(
    text: str | None = None,
    *devices: Device,
    annotations: dict[str, str] | None = None,
    own: HamiNodeSettings | None = None,
    **hami: object,
) -> Registration:
    """The registration of a node called n."""
    written = dict(annotations or {})
    if text is not None:
        written[names.HAMI_REGISTER] = text
    settings = replace(HamiSettings(nodes={"n": own} if own else {}), **hami)  # type: ignore[arg-type]
    view = NodeView("n", annotations=written, devices=devices)
    return FAMILY.register(view, Settings(hami=settings))


def only(registration: Registration) -> Device:
    """The node's only device."""
    assert registration.devices is not None
    (device,) = registration.devices
    return device


def test_the_text_with_seven_fields() -> None:
    """Mode hami-core, number 0; MiB become bytes and percent thousandths."""
    registration = register(SEVEN)

    assert registration.registrar == "hami"
    assert only(registration) == Device(
        DeviceType.GPU,
        0,
        "GPU-a",
        vendor="nvidia",
        model=A100,
        core_milli=1000,
        memory_bytes=40960 * MIB,
        slots=10,
        topology=Topology(1, ""),
    )


def test_the_text_with_nine_fields() -> None:
    """Index and mode are given; an unhealthy card says who reported it."""
    device = only(register(NINE))

    assert (device.minor, device.mode, device.slots) == (3, SliceMode.MIG, 7)
    assert not device.healthy
    assert names.HAMI_REGISTER in device.health_detail


def test_json_leaves_out_zeros() -> None:
    """Absent index and NUMA node are 0."""
    device = only(register(JSON))

    assert (device.minor, device.topology, device.healthy) == (0, Topology(0, ""), True)


def test_json_without_health_is_unhealthy() -> None:
    """Absent health means false; unknown keys are passed over."""
    device = only(register('[{"id": "GPU-z", "migProfiles": [{"name": "1g.5gb"}]}]'))

    assert not device.healthy
    assert (device.memory_bytes, device.core_milli, device.slots) == (0, 0, 0)


def test_cards_without_distinct_indexes_are_numbered_as_listed() -> None:
    """The old text has no index, and every card needs a number of its own."""
    registration = register(SEVEN + SEVEN.replace("GPU-a", "GPU-b"))

    assert registration.devices is not None
    assert [(d.minor, d.uuid) for d in registration.devices] == [(0, "GPU-a"), (1, "GPU-b")]


def test_cards_are_ordered_by_index() -> None:
    """The order in which the plugin listed them does not matter."""
    text = '[{"id": "GPU-1", "index": 1}, {"id": "GPU-0"}]'

    registration = register(text)

    assert registration.devices is not None
    assert [d.uuid for d in registration.devices] == ["GPU-0", "GPU-1"]


MALFORMED = [
    "",
    "GPU-a,10",
    "GPU-a,10,1,1:",
    SEVEN + "x",
    SEVEN.replace("true", "yes"),
    SEVEN.replace("40960", "-1"),
    SEVEN.replace("40960", "1.5"),
    SEVEN.replace("40960", "9999999999"),
    SEVEN.replace("GPU-a", ""),
    SEVEN + SEVEN,
    "[",
    "[1]",
    '[{"id": ""}]',
    '[{"count": 1}]',
    '[{"id": "a", "count": -1}]',
    '[{"id": "a", "devmem": 1e99}]',
    '[{"id": "a", "health": "true"}]',
    '[{"id": "a"}, {"id": "a"}]',
    "[" * 20000,
    '["\ud800"]',
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_registration_is_a_note(text: str) -> None:
    """No devices, no registrar, and a note for the operator."""
    registration = register(text)

    assert registration.devices is None
    assert registration.registrar == ""
    assert names.HAMI_REGISTER in registration.notes[0]


def test_an_empty_registration_is_readable() -> None:
    """A plugin that found no card registered none."""
    registration = register("[]")

    assert (registration.devices, registration.registrar) == (None, "hami")


def test_a_node_without_hami_is_left_alone() -> None:
    """Default settings change no card that a Device object describes, whatever its type."""
    nic = Device(DeviceType.RDMA, 1, "0000:1f:00.0")

    assert register(None, card(), nic) == Registration()


def test_a_described_card_takes_its_sharing_from_the_registration() -> None:
    """Matched by UUID: slots, mode, scaled memory and compute, health, and what was unknown."""
    text = json.dumps(
        [
            {
                "id": "GPU-c",
                "count": 4,
                "devmem": 81920,
                "devcore": 200,
                "type": A100,
                "numa": 1,
                "mode": "mig",
            }
        ]
    )

    device = only(register(text, card(), memory_scaling=3.0, core_scaling=3.0, split_count=2))

    assert (device.slots, device.mode) == (4, SliceMode.MIG)
    assert (device.core_milli, device.memory_bytes) == (2000, 81920 * MIB)
    assert (device.model, device.topology) == (A100, Topology(1, ""))
    assert not device.healthy
    assert device.health_detail


def test_a_registered_card_that_no_device_object_describes_is_noted() -> None:
    """The Device object says which cards there are; the described ones stay as they were."""
    registration = register(SEVEN, card())

    assert (registration.devices, registration.registrar) == (None, "hami")
    assert "GPU-a" in registration.notes[0]


def test_a_registration_does_not_shave_off_part_of_a_mib() -> None:
    """Memory stays exact where the two agree in whole MiB."""
    assert only(register(JSON, card(memory_bytes=40960 * MIB + 5))).memory_bytes == 40960 * MIB + 5


def test_an_unhealthy_device_keeps_its_own_detail() -> None:
    """Healthy to HAMi is not healthy to the Device object."""
    device = only(register(JSON, card(healthy=False, health_detail="XID 79")))

    assert (device.healthy, device.health_detail) == (False, "XID 79")


def test_scaling_multiplies_described_cards() -> None:
    """Exact decimals, rounded down; other vendors' cards and annotations are not scaled."""
    huawei = card(minor=1, uuid="N", vendor="huawei")

    registration = register(
        None, card(memory_bytes=10), huawei, memory_scaling=1.1, core_scaling=1.5
    )

    assert registration.devices is not None
    assert (registration.devices[0].memory_bytes, registration.devices[0].core_milli) == (11, 1500)
    assert registration.devices[1] == huawei
    assert only(register(SEVEN, memory_scaling=2.0)).memory_bytes == 40960 * MIB


def test_the_nodes_own_scaling_goes_first() -> None:
    """Missing fields keep the global value."""
    own = HamiNodeSettings("n", memory_scaling=2.0)

    device = only(register(None, card(vendor=""), own=own, memory_scaling=4.0, core_scaling=3.0))

    assert (device.memory_bytes, device.core_milli) == (81920 * MIB, 3000)


@pytest.mark.parametrize("scaling", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scaling_that_is_no_factor_counts_as_1(scaling: float) -> None:
    """Nothing is offered that is not there."""
    assert register(None, card(), memory_scaling=scaling).devices is None


def test_operating_mode_mig_switches_every_card_of_the_node() -> None:
    """The node's name selects it; instances are not scaled."""
    own = HamiNodeSettings("n", operating_mode="mig")

    device = only(register(None, card(), own=own, memory_scaling=2.0))

    assert (device.mode, device.memory_bytes) == (SliceMode.MIG, 40960 * MIB)
    assert register(None, card(), nodes={"other": own}).devices is None


def test_the_configured_mode_goes_before_the_registered_one() -> None:
    """The operator's word counts, and a note has the difference."""
    registration = register(JSON, own=HamiNodeSettings("n", operating_mode="mig"))

    assert only(registration).mode is SliceMode.MIG
    assert "registered as hami-core" in registration.notes[0]


def test_an_unknown_mode_is_noted() -> None:
    """Such a card is shared by software."""
    registration = register(JSON.replace("hami-core", "mps"))

    assert only(registration).mode is SliceMode.SHARE
    assert "'mps'" in registration.notes[0]


@pytest.mark.parametrize(
    ("own", "total", "slots"),
    [
        pytest.param(None, 10, 100, id="default-binds-hami-only"),
        pytest.param(5, 10, 5, id="smaller-on-the-node"),
        pytest.param(20, 10, 100, id="greater-on-the-node"),
        pytest.param(None, 200, 200, id="more-than-percent"),
    ],
)
def test_split_count_of_described_cards(own: int | None, total: int, slots: int) -> None:
    """HAMi's default split count must not limit the sharers of other protocols."""
    settings = HamiNodeSettings("n", split_count=own)

    registration = register(None, card(), own=settings, split_count=total)

    assert (registration.devices or (card(),))[0].slots == slots


@pytest.mark.parametrize(
    "own",
    [
        HamiNodeSettings("n", filter_uuids=("GPU-c",)),
        HamiNodeSettings("n", filter_indexes=(0,)),
    ],
    ids=["uuid", "index"],
)
def test_filtered_devices_are_hidden_from_hami(own: HamiNodeSettings) -> None:
    """Either list suffices; other protocols still see the card."""
    assert only(register(JSON, own=own)).hidden_from == {"hami"}
    assert only(register(None, card(hidden_from=frozenset({"x"})), own=own)).hidden_from == {
        "hami",
        "x",
    }


def test_cordoned_cards_are_closed() -> None:
    """The UUID selects a card, wherever it is known from."""
    annotations = {names.HAMI_CORDON: "GPU-x, GPU-c"}

    assert only(register(JSON, annotations=annotations)).cordoned
    assert only(register(None, card(), annotations=annotations)).cordoned
    assert not only(register(SEVEN, annotations=annotations)).cordoned


def test_link_scores() -> None:
    """Pairs with the smaller UUID first; of two sides the lower counts, a card has none to itself."""
    text = json.dumps(
        [
            {"uuid": "b", "score": {"a": 110, "b": 5}},
            {"uuid": "a", "score": {"b": 100, "c": 20}},
            {"uuid": "d"},
        ]
    )

    links = register(None, annotations={names.HAMI_SCORE: text}).links

    assert links == {("a", "b"): 100, ("a", "c"): 20}


def test_malformed_scores_are_a_note() -> None:
    """They give no links."""
    registration = register(None, annotations={names.HAMI_SCORE: '{"a": 1}'})

    assert registration.links == {}
    assert names.HAMI_SCORE in registration.notes[0]


SCRAPS = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="GPU,:0123truefals-", max_size=80),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["id", "uuid", "score", "count", "index"]), inner)
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps([value])),
)


@given(text=SCRAPS)
def test_any_text_is_read_or_noted(text: str) -> None:
    """No annotation raises anything but the documented error."""
    for decode in (decode_cards, decode_scores):
        with contextlib.suppress(InvalidRecord):
            decode(text)
    register(text, annotations={names.HAMI_SCORE: text, names.HAMI_CORDON: text})
    register(text, card(), annotations={names.HAMI_SCORE: text})
