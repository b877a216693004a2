"""Annotations and labels of a pod say how its devices are chosen, or why they cannot be."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.device import DeviceType
from partage.model.quantity import Quantity
from partage.model.reason import ReasonCode
from partage.model.request import Joint, PartitionAsk, Scope
from partage.vendors.base import ContainerView, PodView, Reading
from partage.vendors.families.koordinator import FAMILY
from partage.vendors.settings import Settings

HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
NUMA = "scheduling.koordinator.sh/numa-topology-spec"
ISOLATION = "koordinator.sh/gpu-isolation-provider"
GPU = "koordinator.sh/gpu"
RDMA = "koordinator.sh/rdma"


def read(
    annotations: dict[str, object],
    labels: dict[str, str] | None = None,
    **asks: str,
) -> Reading:
    """What Koordinator reads out of a pod of one container with these annotations."""
    amounts = {f"koordinator.sh/{name}": Quantity.parse(q) for name, q in asks.items()}
    view = ContainerView("main", requests=amounts)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in annotations.items()}
    pod = PodView("default", "pod", annotations=texts, labels=labels or {}, containers=(view,))
    return FAMILY.read(pod, (view,), Settings())


def hinted(kind: str, hint: dict[str, object], **asks: str) -> Reading:
    """The same with one allocate hint, which must be accepted."""
    reading = read({HINT: {kind: hint}}, **asks)
    assert reading.fault is None
    return reading


@pytest.mark.parametrize(
    ("key", "value", "path", "near"),
    [
        (
            HINT,
            {"gpu": {"requiredTopologyScop": "X"}},
            "gpu.requiredTopologyScop",
            "requiredTopologyScope",
        ),
        (HINT, {"gpu": {"zzz": 1}}, "gpu.zzz", ""),
        (
            HINT,
            {"gpu": {"selector": {"matchLabel": {}}}},
            "gpu.selector.matchLabel",
            "matchLabels",
        ),
        (JOINT, {"deviceTypes": ["gpu"], "requiredScop": "X"}, "requiredScop", "requiredScope"),
        (PARTITION, {"allocationPolicy": "X"}, "allocationPolicy", "allocatePolicy"),
        (NUMA, {"numaTopologyPolcy": "X"}, "numaTopologyPolcy", "numaTopologyPolicy"),
    ],
)
def test_a_field_that_is_not_known_is_told(
    key: str, value: dict[str, object], path: str, near: str
) -> None:
    """It does nothing, here as upstream; so its author gets less than was meant, and a note says so."""
    (note,) = read({key: value}, gpu="100").notes

    hint = f"; did you mean {near}?" if near else ""
    assert note == f"annotation {key}: field {path} is not known and does nothing{hint}"


def test_fields_may_be_written_in_any_case() -> None:
    """Upstream reads them in Go; labels stay as they are."""
    labels = {"Values": "a"}
    hint = {"RequiredTopologyScope": "NUMANode", "Selector": {"MatchLabels": labels}}

    reading = read({HINT: {"gpu": hint}, JOINT: {"devicetypes": ["gpu", "rdma"]}}, gpu="200")

    (group,) = reading.groups
    assert reading.notes == ()
    assert group.request.scope is Scope.NUMA
    assert group.request.filter.selector is not None
    assert group.request.filter.selector.matches(labels)
    assert not group.request.filter.selector.matches({"values": "a"})


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("gang.scheduling.koordinator.sh/name", "a gang"),
        ("pod-group.scheduling.sigs.k8s.io", "a gang"),
        ("quota.scheduling.koordinator.sh/name", "a quota tree"),
        ("scheduling.koordinator.sh/reservation-affinity", "a reservation"),
    ],
)
def test_what_only_koordinators_scheduler_does_is_told(key: str, what: str) -> None:
    """The pod would run without what its author relies on, and not say so."""
    said = f"{key}: {what} of Koordinator's scheduler; Partage places the pod without it"

    assert read({key: "x"}, gpu="50").notes == (f"annotation {said}",)
    assert read({}, {key: "x"}, gpu="50").notes == (f"label {said}",)


def test_memory_without_a_suffix_is_told_in_bytes() -> None:
    """Elsewhere a plain number is MiB or GiB."""
    asks = {"gpu-core": "10", "gpu-memory": "8"}
    odd, sound = read({}, **asks), read({}, **{**asks, "gpu-memory": "1Mi"})

    assert odd.notes == (
        "koordinator.sh/gpu-memory: 8 bytes a card; its unit is the byte, so write a suffix, such as Gi",
    )
    assert sound.notes == ()


def test_a_few_of_many_unknown_fields_are_told() -> None:
    """An annotation may hold thousands, with names of any length."""
    fields: dict[str, object] = {f"{'x' * 500}{number}": 1 for number in range(2000)}

    notes = read({HINT: {"gpu": fields}}, gpu="100").notes

    assert len(notes) == 8
    assert all(len(note) < 200 for note in notes)


def test_apply_for_all_takes_every_matching_device() -> None:
    """Each device that the selector accepts gives the amount asked."""
    reading = hinted(
        "rdma",
        {"allocateStrategy": "ApplyForAll", "selector": {"matchLabels": {"type": "fakeW"}}},
        rdma="1",
    )

    request = reading.groups[0].request
    assert (request.every, request.core_milli) == (True, 10)
    assert request.filter.selector is not None
    assert request.filter.selector.matches({"type": "fakeW"})
    assert not request.filter.selector.matches({"type": "other"})


def test_requests_as_count_reads_the_amount_as_devices() -> None:
    """Four are four devices of one unit each."""
    request = hinted("rdma", {"allocateStrategy": "RequestsAsCount"}, rdma="4").groups[0].request

    assert (request.count, request.core_milli, request.whole) == (4, 10, False)


def test_requests_as_count_with_device_level_takes_whole_devices() -> None:
    """Exclusive devices are asked with all their units, and the container with all of them."""
    hint = {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}

    group = hinted("rdma", hint, rdma="4").groups[0]

    assert (group.request.count, group.request.core_milli) == (4, 1000)
    assert group.request.scope_exclusive is Scope.DEVICE
    assert group.containers[0].core_milli == 4000


def test_whole_devices_by_percent_come_before_the_hint() -> None:
    """300 are three devices whatever the strategy."""
    request = hinted("rdma", {"allocateStrategy": "ApplyForAll"}, rdma="300").groups[0].request

    assert (request.count, request.every, request.whole) == (3, False, True)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("Device", Scope.DEVICE),
        ("PCIe", Scope.PCIE),
        ("NUMANode", Scope.NUMA),
        ("Node", Scope.NODE),
    ],
)
def test_the_required_scope_is_passed_on(name: str, scope: Scope) -> None:
    """Every published scope has its counterpart."""
    request = hinted("gpu", {"requiredTopologyScope": name}, gpu="200").groups[0].request

    assert request.scope is scope
    assert request.scope_code is ReasonCode.TOPOLOGY_SCOPE


def test_pcie_exclusivity_is_enforced() -> None:
    """Upstream reads it and does nothing; here it is a rule."""
    request = hinted("gpu", {"exclusivePolicy": "PCIeLevel"}, gpu="100").groups[0].request

    assert request.scope_exclusive is Scope.PCIE


@pytest.mark.parametrize("policy", ["DeviceLevel", "PCIeLevel"])
@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("gpu", {"gpu-core": "1", "gpu-memory-ratio": "1"}),
        ("gpu", {"gpu": "50"}),
        ("rdma", {"rdma": "1"}),
    ],
)
def test_a_share_closes_nothing(policy: str, kind: str, limits: dict[str, str]) -> None:
    """One percent of a card would close all cards of its switch to other tenants."""
    reading = hinted(kind, {"exclusivePolicy": policy}, **limits)

    assert reading.groups[0].request.scope_exclusive is None
    assert (
        f"{HINT}: exclusivePolicy does nothing for a share; ask for a whole {kind} device"
        in "".join(reading.notes)
    )


def test_virtual_functions_are_selected_by_label() -> None:
    """An expression on the function's group; `{}` accepts any."""
    selector = {"matchExpressions": [{"key": "type", "operator": "In", "values": ["general"]}]}

    functions = (
        hinted("rdma", {"vfSelector": selector}, rdma="1").groups[0].request.filter.functions
    )
    anything = hinted("rdma", {"vfSelector": {}}, rdma="1").groups[0].request.filter.functions

    assert functions is not None
    assert functions.matches({"type": "general"})
    assert not functions.matches({})
    assert anything is not None
    assert anything.matches({})


@pytest.mark.parametrize("hint", [{"rdma": None}, {"rdma": {}}, None])
def test_an_empty_hint_is_no_hint(hint: object) -> None:
    """Null and `{}` change nothing."""
    assert read({HINT: hint}, rdma="1") == read({}, rdma="1")


def test_a_hint_for_an_unknown_type_is_told() -> None:
    """It has no effect, and a note says so."""
    reading = read({HINT: {"npu": {}}}, rdma="1")

    assert reading.fault is None
    assert any("'npu'" in note for note in reading.notes)


ALLOCATE = "invalid DeviceAllocateHint annotation, err: "
BROKEN = {
    "hint, no JSON": ({HINT: "{"}, ALLOCATE),
    "hint, a list": ({HINT: "[]"}, ALLOCATE),
    "hint, text for a selector": ({HINT: {"rdma": {"selector": "x"}}}, ALLOCATE),
    "hint, endless nesting": ({HINT: "[" * 100_000}, ALLOCATE),
    "hint, half a surrogate": ({HINT: "\ud800"}, ALLOCATE),
    "hint, unknown scope": (
        {HINT: {"rdma": {"requiredTopologyScope": "Rack"}}},
        ALLOCATE + "requiredTopologyScope 'Rack'",
    ),
    "hint, unknown strategy": (
        {HINT: {"rdma": {"allocateStrategy": "All"}}},
        ALLOCATE + "allocateStrategy 'All'",
    ),
    "hint, unknown exclusivity": (
        {HINT: {"rdma": {"exclusivePolicy": "Node"}}},
        ALLOCATE + "exclusivePolicy 'Node'",
    ),
    "selector, unknown operator": (
        {HINT: {"rdma": {"selector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}}},
        "invalid Selector of DeviceHint, deviceType: rdma, err: 'Gt'",
    ),
    "selector, In without values": (
        {HINT: {"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}},
        "invalid Selector of DeviceHint, deviceType: gpu, err: ",
    ),
    "vf selector, Exists with values": (
        {
            HINT: {
                "rdma": {
                    "vfSelector": {
                        "matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]
                    }
                }
            }
        },
        "invalid VFSelector of DeviceHint, deviceType: rdma, err: ",
    ),
    "vf selector, many conditions": (
        {HINT: {"rdma": {"vfSelector": {"matchLabels": {f"k{i}": "v" for i in range(9)}}}}},
        "invalid VFSelector of DeviceHint, deviceType: rdma, err: 9 conditions, 8 at most",
    ),
    "joint, no JSON": ({JOINT: "gpu"}, "invalid DeviceJointAllocate annotation, err: "),
    "joint, unknown scope": (
        {JOINT: {"deviceTypes": ["gpu"], "requiredScope": "SameRack"}},
        "invalid DeviceJointAllocate annotation, err: requiredScope 'SameRack'",
    ),
    "partition, no JSON": ({PARTITION: "invalid"}, "invalid GPUPartitionSpec annotation, err: "),
    "partition, unknown policy": (
        {PARTITION: {"allocatePolicy": "Best"}},
        "invalid GPUPartitionSpec annotation, err: allocatePolicy 'Best'",
    ),
    "partition, bandwidth": (
        {PARTITION: {"ringBusBandwidth": "fast"}},
        "invalid GPUPartitionSpec annotation, err: ringBusBandwidth ",
    ),
    "numa, no JSON": ({NUMA: "{]"}, "invalid NUMATopologySpec annotation, err: "),
    "numa, unknown policy": (
        {NUMA: {"numaTopologyPolicy": "One"}},
        "invalid NUMATopologySpec annotation, err: numaTopologyPolicy 'One'",
    ),
}


@pytest.mark.parametrize(("annotations", "message"), BROKEN.values(), ids=BROKEN)
def test_a_malformed_annotation_is_refused_by_name(
    annotations: dict[str, object], message: str
) -> None:
    """The pod waits with upstream's text and the reason."""
    reading = read(annotations, gpu="100", rdma="1")

    assert reading.groups == ()
    assert reading.fault is not None
    assert reading.fault.code is ReasonCode.INVALID_REQUEST
    assert reading.fault.message.startswith(message)


def test_a_malformed_annotation_of_a_pod_without_devices_is_nobodys_business() -> None:
    """No device requested, so nothing is checked."""
    assert read({HINT: "{"}) == Reading()


@pytest.mark.parametrize(
    ("joint", "hint", "asks", "expected"),
    [
        pytest.param(
            {"deviceTypes": ["gpu", "rdma"]},
            {},
            {"gpu": "100", "rdma": "1"},
            Joint((DeviceType.GPU, DeviceType.RDMA)),
            id="primary first",
        ),
        pytest.param(
            {"deviceTypes": ["rdma", "gpu"], "requiredScope": "SamePCIe"},
            {},
            {"gpu": "100", "rdma": "1"},
            Joint((DeviceType.RDMA, DeviceType.GPU), same_pcie=True),
            id="same pcie",
        ),
        pytest.param({"deviceTypes": ["gpu", "rdma"]}, {}, {"rdma": "1"}, None, id="one asked"),
        pytest.param(
            {"deviceTypes": ["gpu", "rdma"]},
            {"rdma": {"allocateStrategy": "ApplyForAll"}},
            {"gpu": "100", "rdma": "1"},
            None,
            id="all of one type",
        ),
        pytest.param(
            {"deviceTypes": ["gpu", "npu", "rdma", "gpu"]},
            {},
            {"gpu": "100", "rdma": "1"},
            Joint((DeviceType.GPU, DeviceType.RDMA)),
            id="unknown and doubled",
        ),
        pytest.param(None, {}, {"gpu": "100", "rdma": "1"}, None, id="null"),
    ],
)
def test_joint_allocation_is_of_the_types_asked(
    joint: object, hint: dict[str, object], asks: dict[str, str], expected: Joint | None
) -> None:
    """Types that a pod does not ask, or takes all of, drop out; one alone is not joint. A note names an unknown one."""
    reading = read({JOINT: joint, HINT: hint}, **asks)

    assert reading.joint == expected
    strangers = [f"annotation {JOINT}: no device type 'npu'"] if "npu" in str(joint) else []
    assert [*reading.notes] == strangers


@pytest.mark.parametrize(
    ("spec", "asks", "expected"),
    [
        pytest.param({}, {"gpu": "200"}, PartitionAsk(), id="empty is best effort"),
        pytest.param(
            {"allocatePolicy": "Restricted", "ringBusBandwidth": "200Gi"},
            {"gpu": "200"},
            PartitionAsk(restricted=True, bandwidth=200 * 2**30),
            id="restricted",
        ),
        pytest.param({"allocatePolicy": "BestEffort"}, {"gpu": "50"}, None, id="shares skip it"),
        pytest.param({}, {"rdma": "50"}, None, id="no cards"),
    ],
)
def test_the_partition_wish_is_for_whole_cards(
    spec: dict[str, object], asks: dict[str, str], expected: PartitionAsk | None
) -> None:
    """Presence alone makes partitions mandatory, for whole cards only."""
    assert read({PARTITION: spec}, **asks).partition == expected


def test_single_numa_brings_each_types_devices_to_one_numa_node() -> None:
    """The closer of both scopes holds; a wish that cannot be met is reported as NUMA."""
    reading = read(
        {
            NUMA: {"numaTopologyPolicy": "SingleNUMANode", "singleNUMANodeExclusive": "Required"},
            HINT: {"rdma": {"requiredTopologyScope": "PCIe"}},
        },
        gpu="200",
        rdma="1",
    )

    gpu, rdma = (group.request for group in reading.groups)
    assert (gpu.scope, gpu.scope_code) == (Scope.NUMA, ReasonCode.NUMA_MISMATCH)
    assert (rdma.scope, rdma.scope_code) == (Scope.PCIE, ReasonCode.NUMA_MISMATCH)
    assert reading.notes


@pytest.mark.parametrize("policy", ["BestEffort", "Restricted", "None", None])
def test_other_numa_policies_leave_the_choice_free(policy: str | None) -> None:
    """They are preferences."""
    reading = read({NUMA: {"numaTopologyPolicy": policy}}, gpu="200")

    assert reading.fault is None
    assert reading.groups[0].request.scope is None


@pytest.mark.parametrize(
    ("asks", "labels", "rules"),
    [
        pytest.param({"gpu": "50"}, {ISOLATION: "HAMi-core"}, 1, id="share"),
        pytest.param({"gpu-memory": "1Gi"}, {ISOLATION: "HAMi-core"}, 1, id="bytes"),
        pytest.param({"gpu": "100"}, {ISOLATION: "HAMi-core"}, 0, id="whole card"),
        pytest.param({"rdma": "1"}, {ISOLATION: "HAMi-core"}, 0, id="no card"),
        pytest.param({"gpu": "50"}, {ISOLATION: ""}, 0, id="empty label"),
        pytest.param({"gpu": "50"}, {}, 0, id="no label"),
    ],
)
def test_the_isolation_provider_is_required_of_nodes_for_shares(
    asks: dict[str, str], labels: dict[str, str], rules: int
) -> None:
    """A share that names its isolation goes only where the node's label says the same."""
    found = read({}, labels, **asks).node_labels

    assert len(found) == rules
    for rule in found:
        assert (rule.key, rule.value) == (ISOLATION, "HAMi-core")
        assert rule.code is ReasonCode.ISOLATION_PROVIDER
        assert rule.message.startswith("GPUIsolationProviderHAMICore not found on the node")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["gpu", "rdma", "selector", "vfSelector", "matchExpressions", "key"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)  # the first example pays for imports on a shared machine
@given(
    st.dictionaries(
        st.sampled_from([HINT, JOINT, PARTITION, NUMA]),
        JSON.map(json.dumps) | st.text(max_size=20),
    )
)
def test_any_annotation_is_read_or_refused(annotations: dict[str, object]) -> None:
    """The reading has either a fault or groups."""
    reading = read(annotations, gpu="100", rdma="1")

    assert bool(reading.fault) != bool(reading.groups)
