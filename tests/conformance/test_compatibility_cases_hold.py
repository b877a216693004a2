"""Cases of docs/compatibility hold from manifest to decision, through the real command."""

import pytest
from original_manifests import (
    HINT,
    NICS,
    PARTITION,
    SAME_SWITCH,
    TOGETHER,
    asks,
    machine,
    outcomes,
    registered,
    slice_,
)

from published.case import Case
from published.parts import device_object, join, node, pod
from published.program import run

H800 = {"gpu_vendor": "nvidia", "gpu_model": "H800", "gpu_partition_policy": "Honor"}
EVERY = '{"rdma":{"allocateStrategy":"ApplyForAll","selector":{"matchLabels":{"type":"%s"}}}}'
COUNTED = '{"rdma":{"allocateStrategy":"RequestsAsCount"}}'
ONE, TWO, THREE, FOUR = (f"rdma{n}@{bus[:-1]}2" for n, bus in enumerate(NICS, start=1))


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        pytest.param(
            join(machine(), pod("p", {"nvidia.com/gpu": "2"})), "gpu0 gpu1", id="1-two-cards"
        ),
        pytest.param(join(machine(), asks("p", gpu="50")), "gpu0", id="3-half"),
        pytest.param(join(machine(), asks("p", gpu="101")), "InvalidRequest", id="4-unit"),
        pytest.param(join(machine(), asks("p", gpu_core="100")), "InvalidRequest", id="6-alone"),
        pytest.param(
            join(machine(), asks("p", gpu_memory_ratio="101")), "InvalidRequest", id="7-ratio"
        ),
        pytest.param(
            join(machine(), asks("p", shared="2", gpu_memory_ratio="100")),
            "gpu0 gpu1",
            id="9-halves",
        ),
        pytest.param(
            join(machine(), asks("p", shared="2", gpu_memory_ratio="101")),
            "InvalidRequest",
            id="9-uneven",
        ),
        pytest.param(join(machine(), asks("p", rdma="201")), "InvalidRequest", id="13-rdma"),
        pytest.param(join(machine(), asks("p", fpga="101")), "InvalidRequest", id="13-fpga"),
        pytest.param(join(machine(), asks("p", rdma="200")), "rdma1 rdma2", id="13-two"),
        pytest.param(join(machine(), asks("p", TOGETHER, rdma="1")), ONE, id="17-function"),
        pytest.param(
            join(machine(), asks("p", TOGETHER, gpu="100", rdma="1")), f"gpu0 {ONE}", id="18-one"
        ),
        pytest.param(
            join(machine(), asks("p", TOGETHER, gpu="200", rdma="1")),
            f"gpu0 gpu1 {ONE}",
            id="18-two",
        ),
        pytest.param(
            join(machine(), asks("p", TOGETHER, gpu="300", rdma="1")),
            f"gpu0 gpu1 gpu2 {ONE} {TWO}",
            id="18-three",
        ),
        pytest.param(
            join(machine(), asks("p", TOGETHER, gpu="600", rdma="1")),
            f"gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 {ONE} {TWO} {THREE}",
            id="18-six",
        ),
        pytest.param(
            join(machine(), asks("p", TOGETHER, gpu="800", rdma="1")),
            f"gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7 {ONE} {TWO} {THREE} {FOUR}",
            id="18-eight",
        ),
        pytest.param(
            join(machine(nics=(3,)), asks("p", SAME_SWITCH, gpu="400", rdma="1")),
            "JointAllocation",
            id="21-same-switch",
        ),
        pytest.param(
            join(machine(), asks("p", {HINT: EVERY % "fakeW"}, rdma="1")),
            "rdma1 rdma2 rdma3 rdma4",
            id="23-every",
        ),
        pytest.param(
            join(machine(), asks("p", {HINT: EVERY % "none"}, rdma="1")),
            "InsufficientDevices",
            id="23-none",
        ),
        pytest.param(
            join(machine(), asks("p", {HINT: COUNTED}, rdma="4")),
            "rdma1 rdma2 rdma3 rdma4",
            id="24-counted",
        ),
        pytest.param(
            join(machine(cards=1, **H800), asks("p", gpu="300")), "Partition", id="29-three"
        ),
        pytest.param(
            join(machine(cards=1, **H800), asks("p", gpu="400")),
            "gpu0 gpu1 gpu2 gpu3",
            id="29-four",
        ),
        pytest.param(
            join(machine(cards=1, **H800), asks("p", {PARTITION: "{"}, gpu="200")),
            "InvalidRequest",
            id="32-malformed",
        ),
    ],
)
def test_a_koordinator_case_holds(documents: str, expected: str) -> None:
    """One pod on the eight-card machine gets the devices, or the code, that is listed."""
    assert outcomes(documents) == {"p": expected}


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        pytest.param(
            join(
                device_object("q", [("c", "24Gi")], {}),
                node("q"),
                asks("a", gpu_memory="3Gi"),
                asks("b", gpu_memory="3Gi"),
                asks("c", gpu_memory_ratio="76"),
            ),
            {"a": "gpu0", "b": "gpu0", "c": "InsufficientMemory"},
            id="Q3-memory-is-one-number",
        ),
        pytest.param(
            join(
                machine(),
                asks("a", {HINT: '{"gpu":{"exclusivePolicy":"PCIeLevel"}}'}, gpu="100"),
                asks("b", gpu="100"),
            ),
            {"a": "gpu0", "b": "gpu2"},
            id="Q4-exclusive-switch",
        ),
        pytest.param(
            join(
                machine(),
                asks("a", {HINT: '{"gpu":{"exclusivePolicy":"PCIeLevel"}}'}, gpu="1"),
                asks("b", gpu="99"),
            ),
            {"a": "gpu0", "b": "gpu0"},
            id="Q4-a-share-closes-nothing",
        ),
        pytest.param(
            join(
                machine(),
                asks("a", rdma="100"),
                asks("b", SAME_SWITCH, gpu="100", rdma="1"),
            ),
            {"a": "rdma1", "b": f"gpu2 {TWO}"},
            id="Q15-looks-at-both",
        ),
        pytest.param(
            join(
                device_object("q", [(f"c{n}", "16Gi") for n in range(70)], {}),
                node("q"),
                asks("a", gpu="6900"),
                asks("b", gpu="100"),
            ),
            {"a": " ".join(f"gpu{n}" for n in range(69)), "b": "gpu69"},
            id="Q16-seventy-cards",
        ),
    ],
)
def test_a_koordinator_fault_is_fixed(documents: str, expected: dict[str, str]) -> None:
    """What upstream gets wrong, and what happens here."""
    assert outcomes(documents) == expected


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        pytest.param(
            join(registered({}), slice_("p", gpu="1", gpumem_percentage="101")),
            "InvalidRequest",
            id="5-percentage",
        ),
        pytest.param(
            join(registered({}), slice_("p", gpu="1", gpumem="8Gi")), "InvalidRequest", id="7-gi"
        ),
        pytest.param(
            join(registered({"devmem": 128}), slice_("p", gpu="1", gpumem="512")),
            "InsufficientMemory",
            id="12-memory",
        ),
        pytest.param(
            join(
                registered({}),
                slice_("p", {"nvidia.com/use-gputype": "a100"}, gpu="1", gpumem="1"),
            ),
            "gpu0",
            id="15-type",
        ),
        pytest.param(
            join(
                registered({}),
                slice_("p", {"nvidia.com/nouse-gputype": "a100"}, gpu="1", gpumem="1"),
            ),
            "TypeMismatch",
            id="15-other-type",
        ),
        pytest.param(
            join(
                registered({}),
                slice_("p", {"nvidia.com/use-gpuuuid": "GPU-x"}, gpu="1", gpumem="1"),
            ),
            "UuidMismatch",
            id="16-uuid",
        ),
        pytest.param(
            join(registered({"count": 0}), slice_("p", gpu="1", gpumem="1")),
            "InsufficientSlots",
            id="17-slots",
        ),
        pytest.param(
            join(registered({"health": False}), slice_("p", gpu="1", gpumem="1")),
            "Unhealthy",
            id="19-unhealthy",
        ),
        pytest.param(
            join(
                registered({}, {}, device_cordon="GPU-0,GPU-1"), slice_("p", gpu="1", gpumem="1")
            ),
            "Cordoned",
            id="19-cordoned",
        ),
        pytest.param(
            join(registered({}, {}), slice_("p", gpu="3", gpumem="1")),
            "InsufficientCards",
            id="too-many-cards",
        ),
        pytest.param(
            join(
                registered({}),
                slice_("p", {"hami.io/device-scoring-weights": "slot=1"}, gpu="1", gpumem="1"),
            ),
            "InvalidRequest",
            id="26-weights",
        ),
    ],
)
def test_a_hami_case_holds(documents: str, expected: str) -> None:
    """One pod on a registered node gets the card, or the code, that is listed."""
    assert outcomes(documents) == {"p": expected}


@pytest.mark.parametrize(
    ("nodes", "cards", "expected"),
    [
        ("binpack", "binpack", ("node2", "device4")),
        ("binpack", "spread", ("node2", "device3")),
        ("spread", "binpack", ("node1", "device1")),
        ("spread", "spread", ("node1", "device2")),
    ],
)
def test_hamis_matrix_of_policies_holds(nodes: str, cards: str, expected: tuple[str, str]) -> None:
    """Case 21: a quarter of device1 and three quarters of device4 are used; 20 % come."""

    def two(name: str, first: int) -> str:
        half = {"devmem": 8000}
        text = registered({"id": f"device{first}", **half}, {"id": f"device{first + 1}", **half})
        return text.replace("name: n\n", f"name: {name}\n")

    def used(name: str, uuid: str, memory: str, cores: str) -> str:
        wish = {"nvidia.com/use-gpuuuid": uuid}
        return slice_(name, wish, gpu="1", gpumem=memory, gpucores=cores)

    policy = {"hami.io/node-scheduler-policy": nodes, "hami.io/gpu-scheduler-policy": cards}
    documents = join(
        two("node1", 1),
        two("node2", 3),
        used("a", "device1", "2000", "25"),
        used("b", "device4", "6000", "75"),
        slice_("p", policy, gpu="1", gpumem="1000", gpucores="20"),
    )

    output = run(Case("x", "", documents, ()))

    grant = output["pods"][2]["allocations"][0]
    assert (grant["node"], grant["uuid"]) == expected


def test_a_record_that_contradicts_the_node_closes_its_cards() -> None:
    """Case 41: a MIG record on a node without MIG cards; no other pod gets a card there."""
    running = """
apiVersion: v1
kind: Pod
metadata:
  name: old
  annotations:
    hami.io/vgpu-node: n
    hami.io/vgpu-devices-allocated: "GPU-0[1-1],NVIDIA,10240,28:;"
spec:
  nodeName: n
  containers:
    - name: main
      resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 8000}}
"""
    found = outcomes(join(registered({}, {}), running, slice_("p", gpu="1", gpumem="1")))

    assert found["p"] == "Quarantined"
