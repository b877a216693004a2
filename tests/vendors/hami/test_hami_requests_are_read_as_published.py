"""What HAMi's resource names and annotations ask for, and which texts are refused."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.device import SliceMode
from partage.model.policy import CardOrder, CardWeights, Strategy
from partage.model.quantity import Quantity
from partage.model.reason import ReasonCode
from partage.model.request import Phase, Scope
from partage.vendors import names
from partage.vendors.base import ContainerView, PodView, Reading
from partage.vendors.families.hami import FAMILY
from partage.vendors.settings import HamiNodeSettings, HamiSettings, Settings

GPU, MEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
PERCENT, PRIORITY = "nvidia.com/gpumem-percentage", "nvidia.com/priority"
MIB = 1 << 20


def container(
    limits: Mapping[str, str | int] | None = None,
    *,
    name: str = "main",
    phase: Phase = Phase.MAIN,
    requests: Mapping[str, str | int] | None = None,
) -> ContainerView:
    """A container with these limits and requests."""
    limits, requests = limits or {}, requests or {}
    return ContainerView(
        name=name,
        phase=phase,
        requests={k: Quantity.parse(v) for k, v in requests.items()},
        limits={k: Quantity.parse(v) for k, v in limits.items()},
    )


def read(
    *containers: ContainerView, annotations: Mapping[str, str] | None = None, **hami: object
) -> Reading:
    """The reading of a pod of these containers under HAMi settings with these fields."""
    pod = PodView("ns", "pod", annotations=annotations or {}, containers=containers)
    settings = Settings(hami=replace(HamiSettings(), **hami))  # type: ignore[arg-type]
    return FAMILY.read(pod, containers, settings)


AMOUNTS = [
    pytest.param({GPU: 1}, {}, (1, 1000, 0, 1000, True), id="count-alone-is-a-whole-card"),
    pytest.param({GPU: 1, MEM: 3000}, {}, (1, 0, 3000, 0, False), id="memory-leaves-cores-at-0"),
    pytest.param({GPU: 1, PERCENT: 50}, {}, (1, 0, 0, 500, False), id="half-the-memory"),
    pytest.param({GPU: 1, PERCENT: 100}, {}, (1, 1000, 0, 1000, True), id="all-memory-by-percent"),
    pytest.param(
        {GPU: 1, PERCENT: 0}, {}, (1, 0, 0, 1000, False), id="percentage-0-claims-no-cores"
    ),
    pytest.param({GPU: 1, CORES: 0}, {}, (1, 0, 0, 1000, False), id="explicit-cores-0-stay"),
    pytest.param({GPU: 2, MEM: 8000}, {}, (2, 0, 8000, 0, False), id="the-seed's-two-instances"),
    pytest.param({GPU: 1, MEM: 3000, PERCENT: 50}, {}, (1, 0, 3000, 0, False), id="memory-wins"),
    pytest.param({GPU: 1, MEM: 0, PERCENT: 50}, {}, (1, 0, 0, 500, False), id="memory-0-yields"),
    pytest.param({GPU: 1, MEM: "4k", CORES: 30}, {}, (1, 300, 4000, 0, False), id="suffix-k"),
    pytest.param({MEM: 3000}, {}, (1, 0, 3000, 0, False), id="count-is-defaulted"),
    pytest.param(
        {CORES: 50}, {"default_count": 2}, (2, 500, 0, 1000, False), id="default-count-2"
    ),
    pytest.param(
        {GPU: 1}, {"default_memory": 5000}, (1, 1000, 5000, 0, False), id="default-memory"
    ),
    pytest.param({GPU: 1, MEM: 10}, {"memory_factor": 256}, (1, 0, 2560, 0, False), id="factor"),
    pytest.param(
        {GPU: 1, MEM: 10}, {"default_cores": 25}, (1, 250, 10, 0, False), id="default-cores"
    ),
    pytest.param(
        {GPU: 1, MEM: 10},
        {"default_cores": 250},
        (1, 1000, 10, 0, False),
        id="default-cores-clamp",
    ),
    pytest.param({GPU: 1, MEM: 10, CORES: 150}, {}, (1, 1000, 10, 0, False), id="cores-clamp"),
    pytest.param({GPU: 200}, {}, (2, 1000, 0, 1000, True), id="hundreds-alone-are-percent"),
    pytest.param({GPU: 100, MEM: 10}, {}, (100, 0, 10, 0, False), id="hundreds-with-memory"),
    pytest.param({GPU: 100, PRIORITY: 1}, {}, (100, 1000, 0, 1000, True), id="with-priority"),
]


@pytest.mark.parametrize(("limits", "hami", "expected"), AMOUNTS)
def test_amounts(
    limits: dict[str, str | int], hami: dict[str, object], expected: tuple[object, ...]
) -> None:
    """Count, compute, memory in MiB or thousandths, and whether whole cards are taken."""
    (group,) = read(container(limits), **hami).groups

    request = group.request
    found = (
        request.count,
        request.core_milli,
        request.memory_bytes / MIB,
        request.memory_milli,
        request.whole,
    )
    assert found == expected


REFUSED = [
    pytest.param({GPU: "1.5"}, GPU, "from 1", id="half-a-device"),
    pytest.param({GPU: -1}, GPU, "from 1", id="negative-count"),
    pytest.param({GPU: "4G"}, GPU, "2^31-1", id="huge-count"),
    pytest.param({GPU: 0, MEM: 10}, GPU, "from 1", id="count-0-with-memory"),
    pytest.param({GPU: 1, MEM: "8Gi"}, MEM, "without a size suffix", id="memory-in-bytes"),
    pytest.param({GPU: 1, MEM: "1.5"}, MEM, "plain whole number of MiB", id="memory-fraction"),
    pytest.param({GPU: 1, MEM: -1}, MEM, "from 0", id="negative-memory"),
    pytest.param({GPU: 1, PERCENT: 101}, PERCENT, "between 0 and 100", id="percentage-101"),
    pytest.param({GPU: 1, PERCENT: -1}, PERCENT, "between 0 and 100", id="percentage-negative"),
    pytest.param({GPU: 1, PERCENT: "0.5"}, PERCENT, "between 0 and 100", id="percentage-part"),
    pytest.param({GPU: 1, MEM: 10, PERCENT: 101}, PERCENT, "between 0 and 100", id="both"),
    pytest.param({GPU: 1, CORES: -5}, CORES, "from 0", id="negative-cores"),
    pytest.param({GPU: 1, CORES: "0.5"}, CORES, "whole number", id="cores-fraction"),
    pytest.param({GPU: 1, PRIORITY: "0.5"}, PRIORITY, "whole number", id="priority-fraction"),
]


@pytest.mark.parametrize(("limits", "resource", "rule"), REFUSED)
def test_a_broken_rule_is_told_with_its_container_and_value(
    limits: dict[str, str | int], resource: str, rule: str
) -> None:
    """Where upstream drops the request without a word, the pod waits with the reason."""
    fault = read(container(limits, name="trainer")).fault

    assert fault is not None
    assert fault.code is ReasonCode.INVALID_REQUEST
    value = str(Quantity.parse(limits[resource]))
    for part in ("container trainer", f"{resource}: {value}", rule):
        assert part in fault.message


def test_memory_is_bounded_by_the_factor() -> None:
    """The product of value and factor must stay within 32 bits, as published."""
    most = (2**31 - 1) // 256

    fits = read(container({GPU: 1, MEM: most}), memory_factor=256)
    beyond = read(container({GPU: 1, MEM: most + 1}), memory_factor=256)

    assert fits.fault is None
    assert fits.groups[0].request.memory_bytes == most * 256 * MIB
    assert beyond.fault is not None
    assert "units of 256 MiB" in beyond.fault.message


@pytest.mark.parametrize(
    ("limits", "hami"),
    [
        pytest.param({GPU: 0}, {}, id="count-0"),
        pytest.param({PRIORITY: 1}, {}, id="priority-alone"),
        pytest.param({MEM: 10}, {"default_count": 0}, id="no-default-count"),
    ],
)
def test_nothing_asked_is_no_group(limits: dict[str, str | int], hami: dict[str, object]) -> None:
    """A container without a count asks for no device, unless a default makes one."""
    reading = read(container(limits), annotations={names.HAMI_VGPU_MODE: "mps"}, **hami)

    assert reading.groups == ()
    assert reading.fault is None


def test_a_count_that_no_default_makes_is_noted() -> None:
    """A note mentions memory without a count, because it is likely a mistake."""
    (note,) = read(container({MEM: 10}), default_count=0).notes

    assert "main: nvidia.com/gpumem without nvidia.com/gpu asks for nothing" in note


def test_requests_stand_in_for_limits() -> None:
    """A value is looked up in limits first, then in requests."""
    (group,) = read(container({GPU: 1}, requests={GPU: 3, MEM: 500})).groups

    assert (group.request.count, group.request.memory_bytes) == (1, 500 * MIB)


def test_names_are_renameable() -> None:
    """Renamed resources are owned and read; the stock names are then foreign."""
    hami = {"count_name": "acme.io/gpu", "memory_name": "acme.io/mem", "memory_factor": 256}

    (group,) = read(container({"acme.io/gpu": 100, "acme.io/mem": 10}), **hami).groups
    (alone,) = read(container({"acme.io/gpu": 100}), **hami).groups
    owned = FAMILY.owned(Settings(hami=replace(HamiSettings(), **hami)))  # type: ignore[arg-type]

    assert group.request.memory_bytes == 2560 * MIB
    assert alone.request.count == 100
    assert {"acme.io/gpu", "acme.io/mem", CORES} <= owned
    assert MEM not in owned
    assert FAMILY.owned(Settings(hami=HamiSettings(memory_name=""))) == {
        GPU,
        PERCENT,
        CORES,
        PRIORITY,
    }


def test_all_compute_of_part_of_a_card_keeps_others_away() -> None:
    """Compute 100 with less memory needs a card without tenants and keeps others off it."""
    (group,) = read(container({GPU: 1, MEM: 3000, CORES: 100})).groups

    assert group.request.unused
    assert group.request.exclusive
    assert not group.request.claims_core


def test_a_tenant_without_compute_claims_some() -> None:
    """Compute 0 may not join a card whose compute is all taken; NVIDIA cards only, ten tenants."""
    (group,) = read(container({GPU: 1, MEM: 3000})).groups

    request = group.request
    assert request.claims_core
    assert not request.unused
    assert not request.exclusive
    assert request.filter.vendors == ("nvidia",)
    assert request.sharers == 10
    assert (group.protocol, group.containers[0].name) == ("hami", "main")


def test_the_greatest_split_count_of_any_node_bounds_a_request() -> None:
    """A node with a greater split count than the cluster's can use it."""
    nodes = {"a": HamiNodeSettings("a", split_count=20), "b": HamiNodeSettings("b")}

    (group,) = read(container({GPU: 1}), nodes=nodes).groups

    assert group.request.sharers == 20


def test_each_container_has_its_group_and_init_ones_come_last() -> None:
    """Containers are read apart, with their phases."""
    reading = read(
        container({GPU: 1, MEM: 5}, name="init", phase=Phase.INIT),
        container({}, name="plain"),
        container({GPU: 2, MEM: 7}, name="side", phase=Phase.SIDECAR),
        container({GPU: 1, MEM: 9}, name="main"),
    )

    found = [(g.containers[0].name, g.phase, g.request.count) for g in reading.groups]
    assert found == [
        ("side", Phase.SIDECAR, 2),
        ("main", Phase.MAIN, 1),
        ("init", Phase.INIT, 1),
    ]


def test_quota_counts_what_is_known_before_placement() -> None:
    """Explicit amounts times count; init containers by maximum, over the sidecars before them."""
    reading = read(
        container({GPU: 1, MEM: 100, CORES: 10}, name="side", phase=Phase.SIDECAR),
        container({GPU: 2, MEM: 500, CORES: 30}, name="init", phase=Phase.INIT),
        container({GPU: 2, MEM: 300, CORES: 40}, name="main"),
    )

    assert reading.quota == {"limits.nvidia.com/gpumem": 1100, "limits.nvidia.com/gpucores": 90}
    assert all(group.metered == () for group in reading.groups)


def test_quota_is_counted_in_the_units_of_the_resource() -> None:
    """With a memory factor the quota's key has the factor's unit, rounded up."""
    asked = read(container({GPU: 1, MEM: 10}), memory_factor=256)
    defaulted = read(container({GPU: 1}), memory_factor=256, default_memory=300)

    assert asked.quota == {"limits.nvidia.com/gpumem": 10}
    assert defaulted.quota == {"limits.nvidia.com/gpumem": 2, "limits.nvidia.com/gpucores": 100}


def test_memory_by_percentage_is_metered_when_a_card_is_chosen() -> None:
    """Only the card tells how much a percentage is."""
    reading = read(container({GPU: 1, PERCENT: 50, CORES: 20}))

    assert reading.quota == {"limits.nvidia.com/gpucores": 20}
    assert reading.groups[0].metered == (("limits.nvidia.com/gpumem", "memory", MIB),)
    assert read(container({GPU: 1, PERCENT: 50}), memory_name="").groups[0].metered == ()


def test_type_and_uuid_lists_filter_cards() -> None:
    """Comma lists are trimmed, and empty items are no constraint."""
    (group,) = read(
        container({GPU: 1}),
        annotations={
            names.HAMI_USE_TYPE: "A100, V100,",
            names.HAMI_AVOID_TYPE: "T4",
            names.HAMI_USE_UUID: "GPU-1, GPU-2",
            names.HAMI_AVOID_UUID: " , ",
        },
    ).groups

    wanted = group.request.filter
    assert wanted.use_types == ("A100", "V100")
    assert wanted.avoid_types == ("T4",)
    assert wanted.use_uuids == ("GPU-1", "GPU-2")
    assert wanted.avoid_uuids == ()


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        ("", ()),
        ("  ", ()),
        ("mig", (SliceMode.MIG,)),
        ("hami-core", (SliceMode.SHARE,)),
        ("mig,hami-core", (SliceMode.SHARE, SliceMode.MIG)),
        ("only mig please", (SliceMode.MIG,)),
        ("either", ()),
    ],
)
def test_a_mode_matches_as_a_substring(text: str, modes: tuple[SliceMode, ...]) -> None:
    """A card matches when the annotation contains its mode; absent or empty means any."""
    reading = read(container({GPU: 1}), annotations={names.HAMI_VGPU_MODE: text})

    assert reading.fault is None
    assert reading.groups[0].request.filter.modes == modes


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("migg", "mig"),
        ("mig hami-core", "hami-core or mig"),
        ("neither", "any mode"),
        ("mig", ""),
        ("hami-core, mig", ""),
        ("either", ""),
    ],
)
def test_a_mode_that_only_contains_one_is_told(text: str, counts: str) -> None:
    """It is probably misspelt, and decides all the same."""
    notes = read(container({GPU: 1}), annotations={names.HAMI_VGPU_MODE: text}).notes

    told = f"annotation {names.HAMI_VGPU_MODE} is {text!r}, which counts as {counts}"
    assert [one for one in notes if names.HAMI_VGPU_MODE in one] == [told] * bool(counts)


@pytest.mark.parametrize(
    ("text", "instances"),
    [("", True), ("mig", True), ("mig,hami-core", True), ("hami-core", False)],
)
def test_instances_will_do_unless_the_mode_says_otherwise(text: str, *, instances: bool) -> None:
    """An unmarked pod gets a share or an instance."""
    reading = read(container({GPU: 1}), annotations={names.HAMI_VGPU_MODE: text})

    assert reading.groups[0].request.instances is instances


def test_a_whole_card_in_mode_mig_is_an_instance_of_all_of_it() -> None:
    """All memory and compute, but not the card itself: that would never be in mode mig."""
    (group,) = read(container({GPU: 1}), annotations={names.HAMI_VGPU_MODE: "mig"}).groups

    assert not group.request.whole
    assert (group.request.core_milli, group.request.memory_milli) == (1000, 1000)


@pytest.mark.parametrize("profile", ["3g", "1g.10gb", "1g.10gb+me", "1g.24gb-me"])
def test_a_profile_may_be_named(profile: str) -> None:
    """Then shares will not do."""
    (group,) = read(container({GPU: 1}), annotations={names.MIG_PROFILE: profile}).groups

    assert group.request.profile == profile
    assert group.request.filter.modes == (SliceMode.MIG,)


@pytest.mark.parametrize(
    ("profile", "mode", "told"),
    [
        pytest.param("large", "", "must be a profile such as", id="no-profile"),
        pytest.param("3g", "hami-core", "allows hami-core only", id="shares-only"),
    ],
)
def test_a_profile_that_cannot_be_meant_is_a_fault(profile: str, mode: str, told: str) -> None:
    """The pod waits with the rule."""
    wishes = {names.MIG_PROFILE: profile, names.HAMI_VGPU_MODE: mode}

    fault = read(container({GPU: 1}), annotations=wishes).fault

    assert fault is not None
    assert fault.code is ReasonCode.INVALID_REQUEST
    assert told in fault.message


@pytest.mark.parametrize("text", ["mps", "MIG", "hami"])
def test_a_mode_that_no_card_has_is_a_fault(text: str) -> None:
    """A text with neither mode could never be placed; the pod waits with that reason."""
    fault = read(container({GPU: 1}), annotations={names.HAMI_VGPU_MODE: text}).fault

    assert fault is not None
    assert fault.code is ReasonCode.MODE_MISMATCH
    assert repr(text) in fault.message


@pytest.mark.parametrize(
    ("text", "count", "scope"),
    [
        ("true", 2, Scope.NUMA),
        ("1", 2, Scope.NUMA),
        ("T", 2, Scope.NUMA),
        ("true", 1, None),
        ("yes", 2, None),
        ("false", 2, None),
        ("", 2, None),
    ],
)
def test_numa_bind_is_a_scope_for_several_cards(
    text: str, count: int, scope: Scope | None
) -> None:
    """Go's texts for true bind; anything else counts as false, with a note where it is none of Go's for that."""
    reading = read(container({GPU: count, MEM: 5}), annotations={names.HAMI_NUMA_BIND: text})

    odd = "annotation nvidia.com/numa-bind is 'yes', which counts as false; write true"
    assert reading.notes == ((odd,) if text == "yes" else ())

    request = reading.groups[0].request
    assert request.scope is scope
    assert (request.scope_code is ReasonCode.NUMA_MISMATCH) is (scope is not None)


@pytest.mark.parametrize(
    ("text", "strategy", "noted"),
    [
        ("binpack", Strategy.BINPACK, False),
        ("spread", Strategy.SPREAD, False),
        ("", Strategy.BINPACK, True),
        ("pack", Strategy.BINPACK, True),
    ],
)
def test_the_node_policy(text: str, strategy: Strategy | None, noted: bool) -> None:  # noqa: FBT001
    """Unknown words behave as binpack, and are noted."""
    reading = read(container({GPU: 1}), annotations={names.HAMI_NODE_POLICY: text})

    assert reading.node_strategy is strategy
    assert bool(reading.notes) is noted


@pytest.mark.parametrize(
    ("text", "order", "unused"),
    [
        ("", CardOrder(Strategy.SPREAD), False),
        ("binpack", CardOrder(Strategy.BINPACK), False),
        ("spread", CardOrder(Strategy.SPREAD), False),
        ("mutex", CardOrder(Strategy.SPREAD), True),
        ("numa", CardOrder(Strategy.FIRST_FIT, by_numa=True), False),
        ("topology-aware", CardOrder(Strategy.SPREAD, by_links=True), False),
        (
            "binpack,numa,topology-aware",
            CardOrder(Strategy.BINPACK, then_numa=True, by_links=True),
            False,
        ),
        ("numa,spread,numa", CardOrder(Strategy.SPREAD, by_numa=True), False),
        ("numa, spread", CardOrder(Strategy.SPREAD, by_numa=True), False),
        ("spread,binpack,mutex", CardOrder(Strategy.SPREAD), True),
    ],
)
def test_the_card_policy_chain(text: str, order: CardOrder, unused: bool) -> None:  # noqa: FBT001
    """Sort keys in written order; mutex and topology-aware are filters."""
    reading = read(container({GPU: 1, MEM: 5}), annotations={names.HAMI_CARD_POLICY: text})

    assert reading.card_order == order
    assert reading.groups[0].request.unused is unused
    assert reading.notes == ()


def test_an_unknown_card_policy_is_noted() -> None:
    """A word that is no policy is left out, with a note."""
    reading = read(container({GPU: 1}), annotations={names.HAMI_CARD_POLICY: "spread,best"})

    assert reading.card_order == CardOrder(Strategy.SPREAD)
    assert "'best'" in reading.notes[0]


def test_numa_bind_orders_by_numa() -> None:
    """Binding makes the NUMA node the first sort key."""
    assert read(container({GPU: 2}), annotations={names.HAMI_NUMA_BIND: "true"}).card_order.by_numa


def test_scoring_weights() -> None:
    """All three keys, in any order."""
    text = " memory=3,slot=1, core=0"

    reading = read(container({GPU: 1}), annotations={names.HAMI_WEIGHTS: text})

    assert reading.card_order.weights == CardWeights(slot=1, core=0, memory=3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slot=1,core=1",
        "slot=-1,core=1,memory=1",
        "slot=0,core=0,memory=0",
        "slot=1,core=1,memory=1,extra=1",
        "slot=1,slot=1,core=1,memory=1",
        "slot=1,core=1,memory=x",
        "slot,core,memory",
        "slot=1,core=1,memory=\u0661",
        "slot=1,core=1,memory=9999999999",
    ],
)
def test_malformed_weights_are_a_fault(text: str) -> None:
    """Upstream fails the whole filter call; here the pod waits with the reason."""
    fault = read(container({GPU: 1}), annotations={names.HAMI_WEIGHTS: text}).fault

    assert fault is not None
    assert names.HAMI_WEIGHTS in fault.message


def test_a_broken_container_does_not_hide_the_others() -> None:
    """The first broken rule is the fault; good containers are still read."""
    reading = read(
        container({GPU: 1, MEM: "1.5"}, name="a"),
        container({GPU: 1, MEM: "2.5"}, name="b"),
        container({GPU: 1}, name="c"),
    )

    assert reading.fault is not None
    assert "container a" in reading.fault.message
    assert [g.containers[0].name for g in reading.groups] == ["c"]


QUANTITIES = st.one_of(
    st.integers(-(10**18), 10**18).map(Quantity.parse),
    st.sampled_from(["0", "1", "100", "101", "8Gi", "500m", "0.5", "1e3", "-0"]).map(
        Quantity.parse
    ),
)
KEYS = st.sampled_from([GPU, MEM, PERCENT, CORES, PRIORITY])
ANNOTATIONS = st.dictionaries(
    st.sampled_from([value for key, value in vars(names).items() if key.startswith("HAMI_")]),
    st.text(max_size=30),
)


@given(
    limits=st.dictionaries(KEYS, QUANTITIES),
    requests=st.dictionaries(KEYS, QUANTITIES),
    annotations=ANNOTATIONS,
    factor=st.integers(-1, 1000),
)
def test_any_pod_is_read_or_refused(
    limits: dict[str, Quantity],
    requests: dict[str, Quantity],
    annotations: dict[str, str],
    factor: int,
) -> None:
    """Nothing raises, and what is read is within bounds."""
    view = ContainerView("c", limits=limits, requests=requests)

    reading = read(view, annotations=annotations, memory_factor=factor)

    for group in reading.groups:
        assert 0 <= group.request.core_milli <= 1000
        assert group.request.memory_bytes < 2**52
        assert bool(group.request.memory_bytes) != bool(group.request.memory_milli)
