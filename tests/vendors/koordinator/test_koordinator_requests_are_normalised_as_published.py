"""Koordinator's names become cards and amounts by the published table; the rest is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.quantity import Quantity
from partage.model.reason import ReasonCode
from partage.model.request import DeviceRequest, Phase
from partage.vendors.base import ContainerView, PodView, Reading
from partage.vendors.families.koordinator import FAMILY
from partage.vendors.settings import KoordinatorSettings, Settings

GI = 2**30
K = "koordinator.sh/"
OLD = "kubernetes.io/"


def container(name: str = "main", phase: Phase = Phase.MAIN, **asks: str) -> ContainerView:
    """A container that asks by short names: `core="50"`; requests and limits are equal."""
    amounts = {SHORT.get(key, key): Quantity.parse(value) for key, value in asks.items()}
    return ContainerView(name=name, phase=phase, requests=amounts, limits=amounts)


SHORT = {
    "gpu": K + "gpu",
    "core": K + "gpu-core",
    "memory": K + "gpu-memory",
    "ratio": K + "gpu-memory-ratio",
    "shared": K + "gpu.shared",
    "rdma": K + "rdma",
    "fpga": K + "fpga",
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "dcu": "dcu.com/gpu",
    "npu": "huawei.com/npu-core",
    "cpu": "huawei.com/npu-cpu",
    "dvpp": "huawei.com/npu-dvpp",
    "old_gpu": OLD + "gpu",
    "old_core": OLD + "gpu-core",
    "old_memory": OLD + "gpu-memory",
    "old_ratio": OLD + "gpu-memory-ratio",
    "old_rdma": OLD + "rdma",
    "old_fpga": OLD + "fpga",
}


def read(*containers: ContainerView, **options: object) -> Reading:
    """What Koordinator reads out of a pod of these containers."""
    pod = PodView(namespace="default", name="pod", containers=containers)
    return FAMILY.read(pod, containers, Settings(**options))


def ask(**asks: str) -> DeviceRequest:
    """The only request of a pod of one container."""
    reading = read(container(**asks))
    assert reading.fault is None
    assert len(reading.groups) == 1
    return reading.groups[0].request


def shape(request: DeviceRequest) -> tuple[int, int, int, int, bool]:
    """The numbers of a request: count, compute, memory as a share, in bytes, whole."""
    return (
        request.count,
        request.core_milli,
        request.memory_milli,
        request.memory_bytes,
        request.whole,
    )


VALID = {
    "nvidia, cards": ({"nvidia": "2"}, (2, 1000, 1000, 0, True)),
    "nvidia, percent as the v1.4 page writes it": ({"nvidia": "100"}, (1, 1000, 1000, 0, True)),
    "nvidia, percent of several": ({"nvidia": "300"}, (3, 1000, 1000, 0, True)),
    "nvidia, more than a hundred": ({"nvidia": "101"}, (101, 1000, 1000, 0, True)),
    "dcu": ({"dcu": "2"}, (2, 1000, 1000, 0, True)),
    "amd": ({"amd": "2"}, (2, 1000, 1000, 0, True)),
    "gpu, half": ({"gpu": "50"}, (1, 500, 500, 0, False)),
    "gpu, one": ({"gpu": "100"}, (1, 1000, 1000, 0, True)),
    "gpu, two": ({"gpu": "200"}, (2, 1000, 1000, 0, True)),
    "gpu, a fraction rounds up": ({"gpu": "50.5"}, (1, 510, 510, 0, False)),
    "memory": ({"memory": "8Gi"}, (1, 0, 0, 8 * GI, False)),
    "ratio, part": ({"ratio": "30"}, (1, 0, 300, 0, False)),
    "ratio, one": ({"ratio": "100"}, (1, 0, 1000, 0, True)),
    "ratio, three": ({"ratio": "300"}, (3, 0, 1000, 0, True)),
    "core and bytes": ({"core": "50", "memory": "16Gi"}, (1, 500, 0, 16 * GI, False)),
    "core over one card and bytes": (
        {"core": "200", "memory": "64Gi"},
        (1, 2000, 0, 64 * GI, False),
    ),
    "core and ratio": ({"core": "50", "ratio": "50"}, (1, 500, 500, 0, False)),
    "core and ratio, whole": ({"core": "100", "ratio": "100"}, (1, 1000, 1000, 0, True)),
    "core and ratio, two whole": ({"core": "200", "ratio": "200"}, (2, 1000, 1000, 0, True)),
    "half the compute, all memory": ({"core": "50", "ratio": "100"}, (1, 500, 1000, 0, False)),
    "shared and bytes": ({"shared": "2", "memory": "8Gi"}, (2, 0, 0, 4 * GI, False)),
    "shared and bytes, remainder dropped": ({"shared": "3", "memory": "10"}, (3, 0, 0, 3, False)),
    "shared and ratio": ({"shared": "2", "ratio": "100"}, (2, 0, 500, 0, False)),
    "shared and ratio, whole": ({"shared": "2", "ratio": "200"}, (2, 0, 1000, 0, True)),
    "shared, core, bytes": (
        {"shared": "2", "core": "60", "memory": "8Gi"},
        (2, 300, 0, 4 * GI, False),
    ),
    "shared, core, ratio": (
        {"shared": "1", "core": "50", "ratio": "50"},
        (1, 500, 500, 0, False),
    ),
    "zero amounts are not asked": (
        {"gpu": "50", "core": "0", "rdma": "0"},
        (1, 500, 500, 0, False),
    ),
    "v1.4 gpu": ({"old_gpu": "100"}, (1, 1000, 1000, 0, True)),
    "v1.4 core and ratio": ({"old_core": "100", "old_ratio": "100"}, (1, 1000, 1000, 0, True)),
    "v1.4 core and bytes": ({"old_core": "100", "old_memory": "16Mi"}, (1, 1000, 0, 2**24, False)),
    "both names: today's wins": ({"old_gpu": "100", "gpu": "50"}, (1, 500, 500, 0, False)),
    "rdma, part": ({"rdma": "50"}, (1, 500, 0, 0, False)),
    "rdma, one": ({"rdma": "100"}, (1, 1000, 0, 0, True)),
    "rdma, two": ({"rdma": "200"}, (2, 1000, 0, 0, True)),
    "fpga, two": ({"old_fpga": "200"}, (2, 1000, 0, 0, True)),
}


@pytest.mark.parametrize(("asks", "expected"), VALID.values(), ids=VALID)
def test_a_valid_combination_becomes_cards_and_amounts(
    asks: dict[str, str], expected: tuple[int, int, int, int, bool]
) -> None:
    """Every combination of the published table has one meaning."""
    assert shape(ask(**asks)) == expected


UNIT = "invalid resource unit "
COMBINATION = "invalid resource device requests: "

INVALID = {
    "gpu 101": ({"gpu": "101"}, UNIT + "koordinator.sh/gpu: 101"),
    "gpu 101 in v1.4": ({"old_gpu": "101"}, UNIT + "kubernetes.io/gpu: 101"),
    "gpu 101 beside others": ({"gpu": "101", "core": "1"}, UNIT + "koordinator.sh/gpu: 101"),
    "rdma 101": ({"rdma": "101"}, UNIT + "koordinator.sh/rdma: 101"),
    "rdma 201": ({"rdma": "201"}, UNIT + "koordinator.sh/rdma: 201"),
    "fpga 101": ({"fpga": "101"}, UNIT + "koordinator.sh/fpga: 101"),
    "negative": ({"gpu": "-1"}, UNIT + "koordinator.sh/gpu: -1"),
    "negative memory": ({"memory": "-1Gi"}, UNIT + "koordinator.sh/gpu-memory: -1Gi"),
    "half a card by count": ({"nvidia": "500m"}, UNIT + "nvidia.com/gpu: 500m"),
    "half a share": ({"shared": "1.5", "ratio": "30"}, UNIT + "koordinator.sh/gpu.shared: 1500m"),
    "huge percent": ({"core": "9E", "memory": "1Gi"}, UNIT + "koordinator.sh/gpu-core: 9E"),
    "huge memory": ({"memory": "7Ei"}, UNIT + "koordinator.sh/gpu-memory: 7Ei"),
    "core alone": (
        {"core": "100"},
        COMBINATION
        + "[koordinator.sh/gpu-core] (these names cannot be asked for together or alone; "
        "add koordinator.sh/gpu-memory, or koordinator.sh/gpu-memory-ratio)",
    ),
    "core alone in v1.4": (
        {"old_core": "100"},
        COMBINATION
        + "[kubernetes.io/gpu-core] (these names cannot be asked for together or alone; "
        "add kubernetes.io/gpu-memory, or kubernetes.io/gpu-memory-ratio)",
    ),
    "both and bytes": (
        {"gpu": "50", "memory": "1Gi"},
        COMBINATION
        + "[koordinator.sh/gpu koordinator.sh/gpu-memory] (these names cannot be asked "
        "for together or alone; leave out koordinator.sh/gpu, or koordinator.sh/gpu-memory)",
    ),
    "npu alone": ({"npu": "8"}, COMBINATION + "[huawei.com/npu-core]"),
    "ratio 101": ({"ratio": "101"}, COMBINATION + "[koordinator.sh/gpu-memory-ratio]"),
    "core 150 and bytes": (
        {"core": "150", "memory": "1Gi"},
        COMBINATION + "[koordinator.sh/gpu-core koordinator.sh/gpu-memory]",
    ),
    "nvidia with a koordinator name": (
        {"nvidia": "1", "core": "50"},
        COMBINATION + "[koordinator.sh/gpu-core nvidia.com/gpu]",
    ),
    "bytes and ratio": (
        {"memory": "1Gi", "ratio": "10"},
        COMBINATION + "[koordinator.sh/gpu-memory koordinator.sh/gpu-memory-ratio]",
    ),
    "npu and bytes, not shared": (
        {"npu": "4", "memory": "12Gi"},
        COMBINATION + "[huawei.com/npu-core koordinator.sh/gpu-memory]",
    ),
    "shared npu without cpu": ({"shared": "1", "npu": "4", "memory": "12Gi"}, COMBINATION),
    "shared npu over two": (
        {"shared": "2", "npu": "4", "cpu": "4", "dvpp": "50", "memory": "12Gi"},
        COMBINATION,
    ),
    "shared npu, dvpp 101": (
        {"shared": "1", "npu": "4", "cpu": "4", "dvpp": "101", "memory": "12Gi"},
        COMBINATION,
    ),
    "shared alone": ({"shared": "1"}, COMBINATION + "[koordinator.sh/gpu.shared]"),
    "shared 2, ratio 101": ({"shared": "2", "ratio": "101"}, COMBINATION),
    "shared 1, ratio 101": ({"shared": "1", "ratio": "101"}, COMBINATION),
    "shared 1, ratio 200": ({"shared": "1", "ratio": "200"}, COMBINATION),
    "shared 2, core 101": ({"shared": "2", "core": "101", "memory": "1Gi"}, COMBINATION),
    "shared 1, core 101": ({"shared": "1", "core": "101", "ratio": "50"}, COMBINATION),
    "memory that vanishes over cards": ({"shared": "3", "memory": "2"}, COMBINATION),
    "v1.4 names are quoted as written": (
        {"old_core": "1"},
        COMBINATION + "[kubernetes.io/gpu-core]",
    ),
}


@pytest.mark.parametrize(("asks", "message"), INVALID.values(), ids=INVALID)
def test_an_invalid_combination_is_refused_with_the_published_text(
    asks: dict[str, str], message: str
) -> None:
    """The refusal begins with upstream's text and then says the rule."""
    reading = read(container(**asks))

    assert reading.groups == ()
    assert reading.fault is not None
    assert reading.fault.code is ReasonCode.INVALID_REQUEST
    assert reading.fault.message.startswith(message)
    assert "(" in reading.fault.message


def test_a_pod_without_amounts_asks_nothing() -> None:
    """Zero amounts are no request at all."""
    assert read(container(gpu="0", rdma="0")) == Reading()


def test_percent_by_nvidia_count_is_told() -> None:
    """A count that is read as percent leaves a note for `explain`."""
    reading = read(container(nvidia="200"))

    assert reading.notes == (
        "container main: nvidia.com/gpu: 200 is read as percent, 2 whole cards",
    )


@pytest.mark.parametrize(
    ("asks", "vendors"),
    [
        pytest.param({"nvidia": "1"}, ("nvidia",), id="nvidia"),
        pytest.param({"amd": "1"}, ("amd",), id="amd"),
        pytest.param({"dcu": "1"}, ("hygon", "dcu"), id="dcu"),
        pytest.param({"npu": "8", "ratio": "100"}, ("huawei",), id="npu"),
        pytest.param({"gpu": "100"}, (), id="anybody's"),
    ],
)
def test_a_vendors_name_keeps_to_its_cards(asks: dict[str, str], vendors: tuple[str, ...]) -> None:
    """A count in a vendor's name does not take another vendor's cards."""
    assert ask(**asks).filter.vendors == vendors


def test_whole_npus_keep_their_native_units() -> None:
    """Sixteen AI cores over two cards are eight of each."""
    request = ask(npu="16", ratio="200")

    assert (request.count, request.whole, request.templated) == (2, True, False)
    assert request.extras == (("huawei.com/npu-core", 8),)
    assert request.core_unit == "huawei.com/npu-core"


def test_a_shared_npu_asks_for_a_template() -> None:
    """A part of an NPU names its native units and must equal a template."""
    request = ask(shared="1", memory="12Gi", npu="4", cpu="4", dvpp="50")

    assert request.templated
    assert request.memory_bytes == 12 * GI
    assert request.extras == (
        ("huawei.com/npu-core", 4),
        ("huawei.com/npu-cpu", 4),
        ("huawei.com/npu-dvpp", 50),
    )


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param(
            {"shared": "1", "memory": "12Gi", "npu": "5", "cpu": "4", "dvpp": "50"}, id="core 5"
        ),
        pytest.param({"npu": "4", "ratio": "50"}, id="part by ratio"),
    ],
)
def test_a_shared_npu_that_no_model_offers_is_refused(asks: dict[str, str]) -> None:
    """Nothing between the templates can be cut."""
    fault = read(container(**asks)).fault

    assert fault is not None
    assert fault.code is ReasonCode.TEMPLATE_MISMATCH
    assert fault.message == "no matched GPU shared resource template"


def test_an_operators_templates_replace_the_published_ones() -> None:
    """With a table of one's own, the published sizes are gone and the own ones are there."""
    own = KoordinatorSettings(
        templates={
            "huawei-X": {
                "half": (("huawei.com/npu-core", 5), ("huawei.com/npu-cpu", 1), ("memory", GI))
            }
        }
    )

    assert read(container(shared="1", memory="1Gi", npu="5", cpu="1"), koordinator=own).groups
    assert read(container(shared="1", memory="3Gi", npu="1", cpu="1"), koordinator=own).fault


@pytest.mark.parametrize(
    ("containers", "dialect"),
    [
        pytest.param([{"old_gpu": "100"}], "v1.4", id="old"),
        pytest.param([{"gpu": "100"}], "", id="today's"),
        pytest.param([{"nvidia": "1"}], "", id="count"),
        pytest.param([{"old_core": "50"}, {"memory": "1Gi"}], "", id="mixed"),
        pytest.param([{"old_gpu": "50"}, {"gpu": "50"}], "", id="one name both ways"),
        pytest.param([{"gpu": "50"}, {"old_gpu": "50"}], "", id="one name both ways, new first"),
        pytest.param([{"old_rdma": "50"}], "v1.4", id="rdma"),
    ],
)
def test_the_dialect_is_the_pods_own(containers: list[dict[str, str]], dialect: str) -> None:
    """Only a pod that writes nothing but v1.4 names is answered in v1.4."""
    reading = read(*(container(f"c{i}", **asks) for i, asks in enumerate(containers)))

    assert {group.dialect for group in reading.groups} == {dialect}


def test_containers_add_up_to_one_request() -> None:
    """Two halves are one whole card for the pod, each container with its part."""
    reading = read(container("a", gpu="50"), container("b", gpu="50"))

    (group,) = reading.groups
    assert shape(group.request) == (1, 1000, 1000, 0, True)
    assert [(c.name, c.core_milli, c.memory_milli) for c in group.containers] == [
        ("a", 500, 500),
        ("b", 500, 500),
    ]
    assert (group.protocol, group.phase) == ("koordinator", Phase.MAIN)


def test_percent_counts_are_read_by_container() -> None:
    """100 and 100 are two cards, and so are 100 and 1."""
    assert (
        read(container("a", nvidia="100"), container("b", nvidia="1")).groups[0].request.count == 2
    )


def test_init_containers_count_by_maximum_with_sidecars_before_them() -> None:
    """An init container of 60 beside a sidecar of 20 outweighs 20 + 30."""
    reading = read(
        container("side", Phase.SIDECAR, gpu="20"),
        container("init", Phase.INIT, gpu="60"),
        container("main", gpu="30"),
    )

    (group,) = reading.groups
    assert group.request.core_milli == 800
    assert [(c.name, c.phase) for c in group.containers] == [
        ("side", Phase.SIDECAR),
        ("init", Phase.INIT),
        ("main", Phase.MAIN),
    ]
    assert group.phase is Phase.MAIN


def test_a_request_of_init_containers_alone_is_an_init_request() -> None:
    """What only init containers ask is placed as such."""
    reading = read(container("init", Phase.INIT, gpu="60"), container("main"))

    assert reading.groups[0].phase is Phase.INIT
    assert len(reading.groups[0].containers) == 1


def test_each_device_type_is_a_group_of_its_askers() -> None:
    """GPU first, then RDMA, then FPGA, each with the containers that named it."""
    reading = read(container("a", gpu="50", fpga="100"), container("b", rdma="20"))

    assert [(g.request.type, [c.name for c in g.containers]) for g in reading.groups] == [
        ("gpu", ["a"]),
        ("rdma", ["b"]),
        ("fpga", ["a"]),
    ]


@pytest.mark.parametrize(
    ("request_", "limit", "name", "valid"),
    [
        pytest.param("50", "50", K + "gpu", True, id="equal"),
        pytest.param("50", "60", K + "gpu", False, id="extended, apart"),
        pytest.param("50", "60", OLD + "gpu", True, id="v1.4, request below limit"),
        pytest.param("60", "50", OLD + "gpu", False, id="v1.4, request above limit"),
    ],
)
def test_requests_and_limits_agree_as_kubernetes_wants(
    request_: str, limit: str, name: str, *, valid: bool
) -> None:
    """Kubernetes refuses unequal extended resources; so do we, offline."""
    view = ContainerView(
        "main", requests={name: Quantity.parse(request_)}, limits={name: Quantity.parse(limit)}
    )

    reading = read(view)

    assert (reading.fault is None) is valid
    if reading.fault:
        assert (
            f"container main: {name} has request {request_} and limit {limit}"
            in reading.fault.message
        )
    else:
        assert reading.groups[0].request.core_milli == 500


@pytest.mark.parametrize("side", ["requests", "limits"])
def test_one_side_is_enough(side: str) -> None:
    """Requests alone or limits alone say the same."""
    view = ContainerView("main", **{side: {K + "gpu": Quantity.parse("50")}})

    assert read(view).groups[0].request.core_milli == 500


def test_all_names_are_owned_and_triggers_are_not() -> None:
    """The names of sections 2.1, both dialects; vendors' triggers belong to the vendors."""
    owned = FAMILY.owned(Settings())

    assert owned == frozenset(SHORT.values())
    assert "metax-tech.com/sgpu" not in owned


@settings(deadline=None)  # the first example pays for imports on a shared machine
@given(
    st.dictionaries(
        st.sampled_from(sorted(SHORT)),
        st.one_of(
            st.integers(-5, 500).map(str),
            st.sampled_from(["1Gi", "9E", "7Ei", "-3Gi", "0.5", "1n", "9223372036854775807"]),
        ),
        max_size=5,
    )
)
def test_whatever_is_asked_is_read_or_refused(asks: dict[str, str]) -> None:
    """Any amounts give groups within the numbers that fit 64 bits, or a fault, never an error."""
    reading = read(container(**asks))

    assert bool(reading.fault) or all(
        0 < g.request.count < 2**40
        and g.request.core_milli < 2**40
        and g.request.memory_bytes <= 2**60
        for g in reading.groups
    )
