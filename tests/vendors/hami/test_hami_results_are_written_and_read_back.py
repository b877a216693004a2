"""What a placed pod carries for HAMi's plugin, and what such a pod is found to hold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from partage.model.allocation import Allocation, Grant, GrantMode, charges_of
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.quantity import Quantity
from partage.model.request import Phase, PodRequest
from partage.vendors import names
from partage.vendors.base import ContainerView, PlacedPod, PodView, Rendering
from partage.vendors.families.hami import FAMILY
from partage.vendors.settings import HamiNodeSettings, HamiSettings, Settings

MIB = 1 << 20
CARDS = tuple(
    Device(DeviceType.GPU, minor, f"GPU-{minor}", vendor="nvidia", memory_bytes=40960 * MIB + 7)
    for minor in range(2)
)
NODE = Node("n", devices=CARDS)


def grant(
    container: str = "main", minor: int = 0, cores: int = 30, mib: int = 3000, **fields: object
) -> Grant:
    """A share of a card."""
    base = Grant(
        container,
        DeviceType.GPU,
        minor,
        f"GPU-{minor}",
        cores * 10,
        mib * MIB,
        GrantMode.SHARE,
        protocol="hami",
        sharers=10,
    )
    return structs.replace(base, **fields)


def pod(*containers: str, init: tuple[str, ...] = (), **annotations: str) -> PodView:
    """A pod with these containers, init containers first."""
    views = [ContainerView(name, Phase.INIT) for name in init]
    views += [ContainerView(name) for name in containers]
    written = {getattr(names, key): value for key, value in annotations.items()}
    return PodView("ns", "pod", node="n", annotations=written, containers=tuple(views))


def render(view: PodView, *grants: Grant, hami: HamiSettings | None = None) -> Rendering:
    """What is written for these grants at second 7."""
    allocation = Allocation("u", "ns", "pod", "n", grants)
    placed = PlacedPod(view, PodRequest(), allocation, NODE, now=7_999_999_999)
    return FAMILY.render(placed, Settings(hami=hami or HamiSettings()))


def recover(view: PodView, node: Node = NODE) -> Record | None:
    """What the pod's annotations say."""
    return FAMILY.recover(view, node, Settings())


def test_annotations_label_and_times() -> None:
    """The published keys; both device texts are the same until the plugin consumes one."""
    rendering = render(pod("side", "main"), grant())

    text = ";GPU-0,NVIDIA,3000,30:;"
    assert rendering.annotations == {
        "hami.io/vgpu-node": "n",
        "hami.io/vgpu-time": "7",
        "hami.io/vgpu-devices-to-allocate": text,
        "hami.io/vgpu-devices-allocated": text,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "7",
    }
    assert rendering.labels == {"hami.io/vgpu-node": "n"}
    assert rendering.node_annotations == {}


def test_init_containers_come_first() -> None:
    """Each container has its slot, in the pod's order."""
    rendering = render(
        pod("main", init=("init",)), grant(), grant("init", 1, 0, 500, phase=Phase.INIT)
    )

    assert (
        rendering.annotations[names.HAMI_ALLOCATED] == "GPU-1,NVIDIA,500,0:;GPU-0,NVIDIA,3000,30:;"
    )


def test_the_environment_of_each_container() -> None:
    """Cards by UUID, memory of each in MiB, compute of the first."""
    rendering = render(pod("idle", "main"), grant(cores=0), grant(minor=1, cores=50, mib=500))

    assert rendering.env == {
        "main": {
            "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
            "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
            "CUDA_DEVICE_MEMORY_LIMIT_1": "500m",
            "CUDA_DEVICE_SM_LIMIT": "0",
        }
    }


def test_settings_and_priority_reach_the_environment() -> None:
    """Oversubscription by the node's own scaling, the core limit switched off, task priority."""
    hami = HamiSettings(
        disable_core_limit=True,
        nodes={"n": HamiNodeSettings("n", memory_scaling=1.5)},
    )
    view = pod("main")
    asked = {"nvidia.com/priority": Quantity.parse("1")}
    view = replace(view, containers=(replace(view.containers[0], limits=asked),))

    env = render(view, grant(), hami=hami).env["main"]

    assert env["CUDA_OVERSUBSCRIBE"] == "true"
    assert env["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert env["CUDA_TASK_PRIORITY"] == "1"


def test_a_whole_card_is_100_percent_however_it_is_scaled() -> None:
    """HAMi counts compute of a request in percent of a plain card."""
    rendering = render(pod("main"), grant(cores=150, mib=40960, mode=GrantMode.WHOLE))

    assert rendering.annotations[names.HAMI_ALLOCATED] == "GPU-0,NVIDIA,40960,100:;"
    assert rendering.env["main"]["CUDA_DEVICE_SM_LIMIT"] == "100"


def test_a_hardware_instance_gets_no_limits_by_environment() -> None:
    """The instance is its own limit."""
    assert render(pod("main"), grant(mode=GrantMode.MIG)).env == {}


def test_nothing_of_ours_is_nothing_written() -> None:
    """Grants of other protocols are not this family's."""
    assert render(pod("main"), grant(protocol="qgpu")) == Rendering()


GRANTS = st.lists(
    st.tuples(
        st.sampled_from(["init", "a", "b"]),
        st.integers(0, 1),
        st.integers(0, 99),
        st.integers(1, 40960),
    ),
    min_size=1,
    max_size=5,
)


@given(GRANTS)
def test_what_is_written_is_read_back(rows: list[tuple[str, int, int, int]]) -> None:
    """The same grants, so the same charges."""
    grants = [
        grant(name, minor, cores, mib, phase=Phase.INIT if name == "init" else Phase.MAIN)
        for name, minor, cores, mib in sorted(
            rows, key=lambda row: ("init", "a", "b").index(row[0])
        )
    ]
    view = pod("a", "b", init=("init",))

    record = recover(replace(view, annotations=render(view, *grants).annotations))

    assert record == Record(tuple(grants), "hami")


def test_a_whole_card_is_read_back_whole() -> None:
    """All compute and all MiB of the card make it whole, to the byte."""
    given_ = grant(cores=100, mode=GrantMode.WHOLE, memory_bytes=CARDS[0].memory_bytes)
    view = pod("main")

    record = recover(replace(view, annotations=render(view, given_).annotations))

    assert record is not None
    assert record.grants == (given_,)
    assert charges_of(record.grants) == charges_of([given_])


def test_all_compute_of_part_of_a_card_is_read_back_exclusive() -> None:
    """The request asked for it."""
    record = recover(pod("main", HAMI_ALLOCATED="GPU-0,NVIDIA,3000,100:;"))

    assert record == Record((grant(cores=100, exclusive=True),), "hami")


def test_old_records_leave_init_containers_out() -> None:
    """A text with one slot for each app container stands for those."""
    record = recover(pod("main", init=("init",), HAMI_ALLOCATED="GPU-0,NVIDIA,3000,30:;"))

    assert record == Record((grant(),), "hami", main_alone=True)


@pytest.mark.parametrize("text", ["", " ", ";", ";;"])
def test_no_device_is_no_record(text: str) -> None:
    """Empty slots say nothing."""
    assert recover(pod("main", HAMI_ALLOCATED=text)) is None
    assert recover(pod("main")) is None


PROBLEMS = [
    pytest.param("GPU-9,NVIDIA,1,1:;", "n", "GPU-9 is not on the node", id="unknown-card"),
    pytest.param("GPU-0,NVIDIA,1,1:;", "m", "made for node m", id="other-node"),
    pytest.param("GPU-0,NVIDIA,1:;", "n", "3 fields", id="malformed"),
    pytest.param("GPU-0,DCU,1,1:;", "n", "type DCU", id="other-vendor"),
    pytest.param(";GPU-0,NVIDIA,1,1:;", "n", "2 slots for 1 containers", id="too-many-slots"),
    pytest.param("GPU-0,NVIDIA,1,101:;", "n", "more than card", id="too-much-compute"),
    pytest.param("GPU-0,NVIDIA,40961,1:;", "n", "more than card", id="too-much-memory"),
    pytest.param("GPU-0[1-1],NVIDIA,1,1:;", "n", "not in mode mig", id="instance-on-shared-card"),
    pytest.param("GPU-0[1],NVIDIA,1,1:;", "n", "UUID[geometry-slot]", id="broken-suffix"),
]


@pytest.mark.parametrize(("text", "node", "problem"), PROBLEMS)
def test_what_does_not_fit_is_a_problem(text: str, node: str, problem: str) -> None:
    """Nothing of such a record is believed."""
    record = recover(pod("main", HAMI_ALLOCATED=text, HAMI_POD_NODE=node))

    assert record is not None
    assert record.grants == ()
    assert names.HAMI_ALLOCATED in record.problem
    assert problem in record.problem


@pytest.mark.parametrize("uuid", ["GPU-0[1-1]", "GPU-0"])
def test_an_instance_is_read_as_hardware(uuid: str) -> None:
    """Both generations of records on a card in mode mig; the position comes with MIG placement."""
    node = replace(NODE, devices=(replace(CARDS[0], mode=SliceMode.MIG),))

    record = recover(pod("main", HAMI_ALLOCATED=f"{uuid},NVIDIA,10240,28:;"), node)

    expected = grant(cores=28, mib=10240, mode=GrantMode.MIG)
    assert record == Record((expected,), "hami")


@given(st.one_of(st.text(max_size=60), st.text(alphabet="GPU-01NVIDIA,:;[]", max_size=60)))
def test_any_text_is_read_or_a_problem(text: str) -> None:
    """Recovery never raises."""
    record = recover(pod("main", HAMI_ALLOCATED=text))

    assert record is None or bool(record.grants) != bool(record.problem)
