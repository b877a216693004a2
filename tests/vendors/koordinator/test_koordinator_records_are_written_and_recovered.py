"""An allocation becomes Koordinator's record in the pod's dialect, and the record grants again."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType, VirtualFunction
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.quantity import Quantity
from partage.model.request import Phase, PodRequest
from partage.vendors.base import ContainerView, PlacedPod, PodView, Rendering
from partage.vendors.families.koordinator import FAMILY
from partage.vendors.settings import Settings

GI = 2**30
NOW = 1_700_000_000_123_456_789
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
TIMESTAMP = "scheduling.koordinator.sh/bind-timestamp"
MINORS = "scheduling.koordinator.sh/gpu-minors"
ISOLATION = "koordinator.sh/gpu-isolation-provider"
VFS = (VirtualFunction(0, "0000:1f:00.2"), VirtualFunction(1, "0000:1f:00.3"))


def gpu(minor: int, memory: int = 32 * GI, **other: object) -> Device:
    """A card with 100 percent of compute."""
    return Device(DeviceType.GPU, minor, f"GPU-{minor}", memory_bytes=memory, **other)


def nic(minor: int = 1) -> Device:
    """A network card with two virtual functions."""
    return Device(DeviceType.RDMA, minor, "0000:1f:00.0", functions=VFS)


def container(name: str, asks: dict[str, str], phase: Phase = Phase.MAIN) -> ContainerView:
    """A container asking by full names."""
    return ContainerView(name, phase, {k: Quantity.parse(v) for k, v in asks.items()})


def pod(*containers: ContainerView, labels: dict[str, str] | None = None) -> PodView:
    """A pod of these containers."""
    return PodView("default", "pod", "uid", labels=labels or {}, containers=containers)


def grant(device: Device, core: int, memory: int, name: str = "main", **other: object) -> Grant:
    """A share of a device for one container."""
    return Grant(
        name,
        device.type,
        device.minor,
        device.uuid,
        core,
        memory,
        **{"mode": GrantMode.SHARE, "protocol": "koordinator", **other},
    )


def whole(device: Device, name: str = "main", **other: object) -> Grant:
    """A device entirely for one container."""
    return grant(
        device, device.core_milli, device.memory_bytes, name, mode=GrantMode.WHOLE, **other
    )


def render(view: PodView, devices: tuple[Device, ...], *grants: Grant) -> Rendering:
    """What Koordinator writes for these grants of the pod."""
    reading = FAMILY.read(view, view.containers, Settings())
    assert reading.fault is None
    placed = PlacedPod(
        pod=view,
        request=PodRequest(groups=reading.groups),
        allocation=Allocation("uid", "default", "pod", "node-1", grants),
        node=Node("node-1", devices=devices),
        now=NOW,
    )
    return FAMILY.render(placed, Settings())


def test_the_v14_page_is_reproduced() -> None:
    """The Koordinator document: v1.4 names, minor and resources, nothing else on the pod."""
    card = gpu(0, 12508288 * 1024)
    view = pod(container("curlimage", {"kubernetes.io/gpu": "100"}))

    assert render(view, (card,), whole(card, "curlimage")).annotations == {
        ALLOCATED: '{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"100",'
        '"kubernetes.io/gpu-memory":"12508288Ki","kubernetes.io/gpu-memory-ratio":"100"}}]}'
    }


def test_todays_record_is_exact() -> None:
    """Types in order, minor then resources then id, keys sorted, compact."""
    cards = (gpu(0, 16 * GI), gpu(1, 16 * GI), nic())
    view = pod(container("main", {"koordinator.sh/gpu": "200", "koordinator.sh/rdma": "100"}))

    written = render(view, cards, whole(cards[1]), whole(cards[2]), whole(cards[0]))

    half = '"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"16Gi","koordinator.sh/gpu-memory-ratio":"100"}'
    assert written.annotations == {
        ALLOCATED: '{"gpu":[{"minor":0,'
        + half
        + ',"id":"GPU-0"},{"minor":1,'
        + half
        + ',"id":"GPU-1"}],"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"100"},"id":"0000:1f:00.0"}]}',
        TIMESTAMP: str(NOW),
        MINORS: "0,1",
    }
    assert written.labels == {}


def test_a_pod_without_cards_gets_the_bind_time_alone() -> None:
    """FPGA only: a record and a time, no minors, no environment."""
    device = Device(DeviceType.FPGA, 0, "")
    view = pod(container("main", {"koordinator.sh/fpga": "50"}))

    written = render(view, (device,), grant(device, 500, 0))

    assert written.annotations == {
        ALLOCATED: '{"fpga":[{"minor":0,"resources":{"koordinator.sh/fpga":"50"}}]}',
        TIMESTAMP: str(NOW),
    }
    assert written.env == {}


def test_virtual_functions_and_templates_are_an_extension() -> None:
    """A function's minor is left out when 0, as Go leaves it."""
    view = pod(container("main", {"koordinator.sh/rdma": "1"}))
    card = nic()

    first = render(view, (card,), grant(card, 10, 0, function=(0, VFS[0].bus_id)))
    second = render(view, (card,), grant(card, 10, 0, function=(1, VFS[1].bus_id)))

    assert first.annotations[ALLOCATED].endswith(
        '"id":"0000:1f:00.0","extension":{"vfs":[{"busID":"0000:1f:00.2"}]}}]}'
    )
    assert second.annotations[ALLOCATED].endswith(
        ',"extension":{"vfs":[{"minor":1,"busID":"0000:1f:00.3"}]}}]}'
    )


def test_a_shared_npu_tells_its_units_and_template() -> None:
    """Native units appear under their own names, beside memory in both forms."""
    units = (("huawei.com/npu-core", 4), ("huawei.com/npu-cpu", 4), ("huawei.com/npu-dvpp", 50))
    card = gpu(0, 24 * GI, extras=(("huawei.com/npu-core", 8),))
    asks = {name: str(amount) for name, amount in units}
    view = pod(
        container(
            "main", {**asks, "koordinator.sh/gpu.shared": "1", "koordinator.sh/gpu-memory": "12Gi"}
        )
    )

    written = render(view, (card,), grant(card, 500, 12 * GI, extras=units, template="vir04"))

    assert json.loads(written.annotations[ALLOCATED]) == {
        "gpu": [
            {
                "minor": 0,
                "resources": {
                    "huawei.com/npu-core": "4",
                    "huawei.com/npu-cpu": "4",
                    "huawei.com/npu-dvpp": "50",
                    "koordinator.sh/gpu-memory": "12Gi",
                    "koordinator.sh/gpu-memory-ratio": "50",
                },
                "id": "GPU-0",
                "extension": {"gpuSharedResourceTemplate": "vir04"},
            }
        ]
    }


@pytest.mark.parametrize(
    ("asks", "total", "core", "memory", "ratio"),
    [
        pytest.param({"core": "50", "ratio": "50"}, 32 * GI, "50", "16Gi", "50", id="half"),
        pytest.param(
            {"core": "50", "memory": "16Gi"}, 32 * GI, "50", "16Gi", "50", id="half, bytes"
        ),
        pytest.param({"memory": "3Gi"}, 24 * GI, None, "3Gi", "12", id="12.5 is cut to 12"),
        pytest.param({"memory": "1Gi"}, 80 * GI, None, "1Gi", "1", id="1.25 is cut to 1"),
        pytest.param({"memory": "1Mi"}, 80 * GI, None, "1Mi", "0", id="below one percent"),
        pytest.param({"memory": "29"}, 100, None, "29", "28", id="29 as floating point has it"),
        pytest.param({"memory": "57"}, 100, None, "57", "56", id="57 as floating point has it"),
        pytest.param({"ratio": "76"}, 24 * GI, None, "19585050869", "76", id="bytes rounded down"),
        pytest.param({"ratio": "100"}, 24 * GI, None, "24Gi", "100", id="core not asked"),
    ],
)
def test_memory_is_told_in_bytes_and_percent(
    asks: dict[str, str], total: int, core: str | None, memory: str, ratio: str
) -> None:
    """What was asked in one form is worked out in the other, the way upstream rounds."""
    short = {"core": "gpu-core", "memory": "gpu-memory", "ratio": "gpu-memory-ratio"}
    view = pod(container("main", {f"koordinator.sh/{short[k]}": v for k, v in asks.items()}))
    card = gpu(0, total)

    written = render(view, (card,), grant(card, 500, 1))

    resources = json.loads(written.annotations[ALLOCATED])["gpu"][0]["resources"]
    assert resources.get("koordinator.sh/gpu-core") == core
    assert resources["koordinator.sh/gpu-memory"] == memory
    assert resources["koordinator.sh/gpu-memory-ratio"] == ratio


def test_containers_of_one_card_are_one_entry_and_keep_their_limits() -> None:
    """Two containers share the pod's card: one entry, and each its own part in the environment."""
    card = gpu(0)
    view = pod(
        container("a", {"koordinator.sh/gpu": "20"}),
        container("b", {"koordinator.sh/gpu": "30"}),
        labels={ISOLATION: "HAMi-core"},
    )

    written = render(
        view,
        (card,),
        grant(card, 200, 6 * GI, "a"),
        grant(card, 300, 10 * GI, "b", slots=0),
    )

    (entry,) = json.loads(written.annotations[ALLOCATED])["gpu"]
    assert entry["resources"]["koordinator.sh/gpu-core"] == "50"
    assert written.labels == {"hami.io/vgpu-node": "node-1"}
    assert {name: env["CUDA_DEVICE_SM_LIMIT"] for name, env in written.env.items()} == {
        "a": "20",
        "b": "30",
    }


def test_hami_core_shares_are_limited_by_environment() -> None:
    """Half of a 32Gi card under HAMi-core: visible card, memory, compute, library."""
    card = gpu(0)
    view = pod(
        container("main", {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "16Gi"}),
        labels={ISOLATION: "HAMi-core"},
    )

    assert render(view, (card,), grant(card, 500, 16 * GI)).env == {
        "main": {
            "NVIDIA_VISIBLE_DEVICES": "0",
            "CUDA_DEVICE_MEMORY_LIMIT": "17179869184",
            "CUDA_DEVICE_SM_LIMIT": "50",
            "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
        }
    }


def test_no_compute_asked_is_no_compute_limit() -> None:
    """Memory alone limits memory alone."""
    card = gpu(0)
    view = pod(
        container("main", {"koordinator.sh/gpu-memory": "1Gi"}), labels={ISOLATION: "HAMi-core"}
    )

    env = render(view, (card,), grant(card, 0, GI)).env["main"]

    assert "CUDA_DEVICE_SM_LIMIT" not in env
    assert env["CUDA_DEVICE_MEMORY_LIMIT"] == str(GI)


@pytest.mark.parametrize("labels", [{}, {ISOLATION: "HAMi-core"}])
def test_whole_cards_are_only_made_visible(labels: dict[str, str]) -> None:
    """Minors 0 and 1, in order, with or without an isolation label."""
    cards = (gpu(0), gpu(1))
    view = pod(container("main", {"nvidia.com/gpu": "2"}), labels=labels)

    written = render(view, cards, whole(cards[1]), whole(cards[0]))

    assert written.env == {"main": {"NVIDIA_VISIBLE_DEVICES": "0,1"}}


def test_v14_pods_on_adapted_vendors_cards_get_what_the_plugin_reads() -> None:
    """A vendor's plugin needs the bind time whatever dialect the pod used."""
    card = gpu(0, vendor="huawei")
    view = pod(container("main", {"kubernetes.io/gpu": "100"}))

    written = render(view, (card,), whole(card))

    assert set(written.annotations) == {ALLOCATED, TIMESTAMP, MINORS}


def test_other_protocols_grants_are_not_told() -> None:
    """Nothing of ours granted, nothing written."""
    card = gpu(0)
    view = pod(container("main", {"koordinator.sh/gpu": "100"}))

    assert render(view, (card,), whole(card, protocol="qgpu")) == Rendering()


def test_a_grant_without_its_request_is_told_by_its_amounts() -> None:
    """A record taken over from elsewhere has grants only."""
    card, other = gpu(0), Device(DeviceType.RDMA, 3, "")
    placed = PlacedPod(
        pod=pod(),
        request=PodRequest(),
        allocation=Allocation(
            "uid", "default", "pod", "node-1", (grant(card, 500, 8 * GI), grant(other, 0, 0))
        ),
        node=Node("node-1"),
        now=NOW,
    )

    document = json.loads(FAMILY.render(placed, Settings()).annotations[ALLOCATED])

    assert document["gpu"][0]["resources"] == {
        "koordinator.sh/gpu-core": "50",
        "koordinator.sh/gpu-memory": "8Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    assert document["rdma"] == [{"minor": 3, "resources": None}]


# --- recovering ------------------------------------------------------------------------------


NODE = Node("node-1", devices=(gpu(0), gpu(1), nic()))


def recover(record: object, view: PodView | None = None, node: Node = NODE) -> Record | None:
    """What the record says."""
    text = record if isinstance(record, str) else json.dumps(record)
    view = view or pod(container("main", {"koordinator.sh/gpu": "50"}))
    return FAMILY.recover(replace(view, annotations={ALLOCATED: text}), node, Settings())


def entry(minor: int = 0, **resources: object) -> dict[str, object]:
    """An entry with today's names: `core`, `memory`, `ratio`."""
    short = {"core": "gpu-core", "memory": "gpu-memory", "ratio": "gpu-memory-ratio"}
    named = {f"koordinator.sh/{short.get(k, k)}": v for k, v in resources.items()}
    return {"minor": minor, "resources": named}


@pytest.mark.parametrize(
    ("resources", "core", "memory", "mode"),
    [
        pytest.param(
            {"core": "50", "memory": "16Gi", "ratio": "50"}, 500, 16 * GI, "share", id="share"
        ),
        pytest.param(
            {"core": 50, "memory": 16 * GI, "ratio": 50}, 500, 16 * GI, "share", id="numbers"
        ),
        pytest.param({"memory": "3Gi", "ratio": "9"}, 0, 3 * GI, "share", id="no core"),
        pytest.param({"core": "50", "ratio": "50"}, 500, 16 * GI, "share", id="no bytes"),
        pytest.param(
            {"core": "100", "memory": "32Gi", "ratio": "100"}, 1000, 32 * GI, "whole", id="whole"
        ),
        pytest.param({"ratio": "100"}, 1000, 32 * GI, "whole", id="whole by ratio alone"),
        pytest.param(
            {"core": "100", "memory": "32Gi"}, 1000, 32 * GI, "whole", id="whole by bytes"
        ),
        pytest.param(
            {"core": "50", "ratio": "100"},
            500,
            32 * GI,
            "share",
            id="half the compute, all memory",
        ),
        pytest.param(
            {"memory": "0", "ratio": "50"}, 0, 16 * GI, "share", id="a ratio and no bytes"
        ),
    ],
)
def test_amounts_are_recovered(
    resources: dict[str, object], core: int, memory: int, mode: str
) -> None:
    """Strings or numbers, one form of memory or both."""
    record = recover({"gpu": [entry(**resources)]})

    assert record is not None
    assert record.problem == ""
    (found,) = record.grants
    assert (found.core_milli, found.memory_bytes, found.mode) == (core, memory, mode)
    assert (found.uuid, found.container, found.protocol) == ("GPU-0", "main", "koordinator")


def test_records_of_v14_are_taken_over() -> None:
    """Old keys, no id; where both keys stand, today's wins."""
    old = {
        "kubernetes.io/gpu-core": "100",
        "kubernetes.io/gpu-memory": "12508288Ki",
        "kubernetes.io/gpu-memory-ratio": "100",
    }
    both = {**old, "koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory-ratio": "40"}

    first = recover({"gpu": [{"minor": 0, "resources": old}]})
    second = recover({"gpu": [{"minor": 0, "resources": both}]})

    assert first is not None
    assert first.grants[0].mode is GrantMode.WHOLE
    assert first.grants[0].memory_bytes == 32 * GI
    assert second is not None
    assert second.grants[0].core_milli == 300


def test_functions_templates_and_units_are_recovered() -> None:
    """The extension and native units come back; compute follows from the units."""
    npu = gpu(0, 24 * GI, extras=(("huawei.com/npu-core", 8),), vendor_cut=True)
    node = Node("node-1", devices=(npu, nic()))
    card = entry(memory="12Gi")
    card["resources"]["huawei.com/npu-core"] = "4"
    card["extension"] = {"gpuSharedResourceTemplate": "vir04"}
    network = entry(1, rdma="1") | {"extension": {"vfs": [{"busID": VFS[1].bus_id}]}}

    record = recover({"gpu": [card], "rdma": [network]}, node=node)

    assert record is not None
    assert record.problem == ""
    first, second = record.grants
    assert (first.core_milli, first.template, first.mode) == (500, "vir04", GrantMode.VENDOR)
    assert first.extras == (("huawei.com/npu-core", 4),)
    assert (second.function, second.core_milli) == ((1, VFS[1].bus_id), 10)


def test_units_of_a_card_that_tells_none_are_all_of_it() -> None:
    """The card is closed; otherwise it might be allocated twice."""
    card = entry(memory="12Gi")
    card["resources"]["huawei.com/npu-core"] = "4"

    record = recover({"gpu": [card]})

    assert record is not None
    assert record.grants[0].core_milli == 1000


@pytest.mark.parametrize(
    ("containers", "owner", "phase"),
    [
        pytest.param(
            [("a", {}, Phase.MAIN), ("b", {"koordinator.sh/gpu": "1"}, Phase.MAIN)],
            "b",
            Phase.MAIN,
            id="who asks",
        ),
        pytest.param(
            [
                ("i", {"koordinator.sh/gpu": "1"}, Phase.INIT),
                ("m", {"koordinator.sh/gpu": "1"}, Phase.MAIN),
            ],
            "m",
            Phase.MAIN,
            id="not the init container",
        ),
        pytest.param(
            [("i", {"kubernetes.io/gpu": "1"}, Phase.INIT), ("m", {}, Phase.MAIN)],
            "i",
            Phase.INIT,
            id="init alone",
        ),
        pytest.param(
            [("r", {"koordinator.sh/rdma": "1"}, Phase.MAIN)],
            "r",
            Phase.MAIN,
            id="who asks anything",
        ),
        pytest.param([("m", {}, Phase.MAIN)], "", Phase.MAIN, id="nobody"),
    ],
)
def test_the_grant_is_booked_on_a_container_that_asks(
    containers: list[tuple[str, dict[str, str], Phase]], owner: str, phase: Phase
) -> None:
    """The record names no container; the first that asks for the type stands for the pod."""
    view = pod(*(container(name, asks, when) for name, asks, when in containers))

    record = recover({"gpu": [entry(core="50", ratio="50")]}, view)

    assert record is not None
    assert (record.grants[0].container, record.grants[0].phase) == (owner, phase)


PROBLEMS = {
    "no JSON": ("{", ""),
    "a list": ("[]", ""),
    "endless": ("[" * 100_000, ""),
    "unknown type": ({"npu": []}, "no device type 'npu'"),
    "unknown minor": ({"gpu": [entry(7)]}, "no gpu with minor 7"),
    "negative minor": ({"gpu": [entry(-1)]}, "no gpu with minor -1"),
    "minor as text": ({"gpu": [{"minor": "0"}]}, "minor"),
    "no minor": ({"gpu": [{"resources": {}}]}, "minor"),
    "listed twice": ({"gpu": [entry(0, ratio="50"), entry(0)]}, "gpu 0 is listed twice"),
    "other id": ({"gpu": [entry(0) | {"id": "GPU-1"}]}, "gpu 0 is GPU-0 on the node, not GPU-1"),
    "unknown id": ({"gpu": [entry(0) | {"id": "GPU-9"}]}, "not GPU-9"),
    "negative": ({"gpu": [entry(core="-5")]}, "negative"),
    "huge": ({"gpu": [entry(core="9E")]}, "more than any device has"),
    "beyond 64 bits": ({"gpu": [entry(memory="9999999999999999999999")]}, "2**63"),
    "no quantity": ({"gpu": [entry(memory="lots")]}, "not a quantity"),
    "true for a number": ({"gpu": [entry(core=True)]}, "bool"),
    "unknown function": (
        {"rdma": [entry(1, rdma="1") | {"extension": {"vfs": [{"minor": 9, "busID": "x"}]}}]},
        "no virtual function 'x'",
    ),
    "nothing": ({"gpu": [entry()]}, "minor 0 has no amount of memory"),
    "no memory": ({"gpu": [entry(core="50")]}, "minor 0 has no amount of memory"),
    "two functions": (
        {"rdma": [entry(1, rdma="1") | {"extension": {"vfs": [{"minor": 0}, {"minor": 1}]}}]},
        "2 virtual functions",
    ),
}


@pytest.mark.parametrize(("record", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_cannot_be_trusted_is_a_problem(record: object, problem: str) -> None:
    """A record that contradicts itself or the node is a problem, with no grants."""
    found = recover(record)

    assert found is not None
    assert found.grants == ()
    assert found.problem.startswith(f"annotation {ALLOCATED}: ")
    assert problem in found.problem


@pytest.mark.parametrize("record", [{}, {"gpu": []}, {"gpu": None}])
def test_an_empty_record_says_nothing(record: object) -> None:
    """No device, no record."""
    assert recover(record) is None


def test_no_record_says_nothing() -> None:
    """A pod without the annotation has none."""
    assert FAMILY.recover(pod(), NODE, Settings()) is None


@given(
    percent=st.integers(1, 100),
    core=st.integers(0, 100),
    old=st.booleans(),
    total=st.integers(100, 2**40),
)
@settings(deadline=None)
def test_a_record_written_is_the_record_read(
    percent: int, core: int, total: int, *, old: bool
) -> None:
    """Write and recover: the same card, amounts and mode, in both dialects."""
    domain = "kubernetes.io/" if old else "koordinator.sh/"
    card = gpu(0, total)
    asks = {f"{domain}gpu-memory-ratio": str(percent)}
    if core:
        asks[f"{domain}gpu-core"] = str(core)
    view = pod(container("main", asks))
    entire = percent == 100 and core in (0, 100)
    given_ = whole(card) if entire else grant(card, core * 10, total * percent // 100)

    text = render(view, (card,), given_).annotations[ALLOCATED]
    record = recover(text, view, Node("node-1", devices=(card,)))

    assert record == Record((given_,), "koordinator")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["gpu", "minor", "resources", "id", "koordinator.sh/gpu-core"]),
                inner,
                max_size=3,
            )
        ),
    ).map(json.dumps)
    | st.text(max_size=20)
)
@settings(deadline=None)
def test_no_text_breaks_recovery(text: str) -> None:
    """Any annotation gives a record, a problem or nothing."""
    record = recover(text)

    assert record is None or bool(record.problem) != bool(record.grants)
