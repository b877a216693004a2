"""A Node and its Device object become one node; what is odd about a device is never free."""

from typing import Any

import pytest
from manifests import Manifest, card, cluster, config_map, container, device, node, pod

from partage.model.device import Device, Topology
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.reason import ReasonCode
from partage.model.selector import Taint
from partage.sim.offline import schedule
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.nodes import translate_node

VENDOR, MODEL = "node.koordinator.sh/gpu-vendor", "node.koordinator.sh/gpu-model"
REGISTER = "hami.io/node-nvidia-register"
CARDS = "GPU-a,10,16384,100,NVIDIA A100,0,true:"


def one(*manifests: Any) -> Node:
    """The one node of these manifests."""
    (found,) = cluster(*manifests).nodes
    return found


def cards(*devices: Manifest, meta: Manifest | None = None) -> tuple[Device, ...]:
    """The devices of a node whose Device object lists these."""
    return one(device("n1", *devices, meta=meta), node()).devices


@pytest.mark.parametrize("domain", ["koordinator.sh", "kubernetes.io"])
def test_both_dialects_of_resources(domain: str) -> None:
    """Compute in milli, memory in bytes."""
    (found,) = cards(card(3, "24Gi", domain))

    assert (found.minor, found.uuid, found.healthy) == (3, "GPU-3", True)
    assert (found.core_milli, found.memory_bytes, found.extras) == (1000, 24 * 2**30, ())


def test_todays_name_wins() -> None:
    """Both dialects are given."""
    resources = {"kubernetes.io/gpu-memory": "1Gi", "koordinator.sh/gpu-memory": "2Gi"}

    assert cards(card(0, resources=resources))[0].memory_bytes == 2**31


def test_devices_of_every_type() -> None:
    """RDMA with virtual functions, FPGA, native units of an NPU; ordered by type and minor."""
    groups = [
        {
            "labels": {"type": "a"},
            "vfs": [
                {"minor": 4, "busID": "0:1"},
                {"busID": "0:2"},
                {"minor": 9},
                {"busID": "0:1"},
            ],
        },
        {"labels": None, "vfs": None},
    ]
    rdma = {
        "type": "rdma",
        "id": "0000:1f:00.0",
        "minor": 1,
        "health": True,
        "resources": {"koordinator.sh/rdma": 100},
        "vfGroups": groups,
        "labels": {"x": None},
    }
    fpga = {
        "type": "fpga",
        "id": "F",
        "minor": 0,
        "health": True,
        "resources": {"kubernetes.io/fpga": "100"},
    }
    npu = card(
        0,
        resources={
            "huawei.com/npu-core": 8,
            "huawei.com/npu-cpu": 7,
            "koordinator.sh/gpu-memory": "21Gi",
        },
    )
    labels = {VENDOR: "Huawei", MODEL: "Ascend-310P"}

    found = cards(rdma, npu, fpga, meta={"labels": labels})

    assert [(d.type.value, d.minor, d.vendor, d.model) for d in found] == [
        ("fpga", 0, "", ""),
        ("gpu", 0, "huawei", "Ascend-310P"),
        ("rdma", 1, "", ""),
    ]
    assert found[1].extras == (("huawei.com/npu-core", 8), ("huawei.com/npu-cpu", 7))
    assert [(f.minor, f.bus_id, f.labels) for f in found[2].functions] == [
        (4, "0:1", {"type": "a"}),
        (1, "0:2", {"type": "a"}),
    ]
    assert found[2].labels == {"x": ""}


@pytest.mark.parametrize(
    ("given", "topology"),
    [
        pytest.param(None, None, id="absent"),
        pytest.param(
            {"socketID": -1, "nodeID": 3, "pcieID": "p", "busID": "b"},
            Topology(3, "p", "b"),
            id="the MetaX document",
        ),
        pytest.param(
            {"socketID": 1, "nodeID": -1}, Topology(-1, "", "", 1), id="unknown NUMA node"
        ),
        pytest.param({}, Topology(-1, ""), id="empty"),
    ],
)
def test_topology(given: Manifest | None, topology: Topology | None) -> None:
    """What is unknown is -1 or empty."""
    assert cards(card(0, topology=given))[0].topology == topology


@pytest.mark.parametrize(
    ("entry", "detail"),
    [
        pytest.param(
            card(
                0,
                health=False,
                conditions=[{"type": "Healthy", "status": "False", "message": "XID 79"}],
            ),
            "XID 79",
            id="condition",
        ),
        pytest.param(
            card(
                0,
                health=False,
                conditions=[{"type": "Healthy", "status": "False", "reason": "Xid"}],
            ),
            "Xid",
            id="reason",
        ),
        pytest.param(card(0, health=False), "", id="no condition"),
        pytest.param(card(0, health=None), "", id="not said to be healthy"),
        pytest.param(
            card(0, resources={"koordinator.sh/gpu-memory": "-1Gi"}),
            "koordinator.sh/gpu-memory: -1Gi is not from 0",
            id="negative",
        ),
        pytest.param(
            card(0, resources={"koordinator.sh/gpu-core": "9E"}),
            "koordinator.sh/gpu-core: 9E is not from 0",
            id="huge",
        ),
        pytest.param(
            card(0, resources={"koordinator.sh/gpu-core": "100"}),
            "it reports no koordinator.sh/gpu-memory",
            id="no memory, of which 80 percent would be free any number of times",
        ),
        pytest.param(
            card(0, resources=None), "it reports no koordinator.sh/gpu-memory", id="no amounts"
        ),
    ],
)
def test_unhealthy_devices_say_why(entry: Manifest, detail: str) -> None:
    """The device is there and closed."""
    (found,) = cards(entry)

    assert not found.healthy
    assert found.health_detail.startswith(detail)


def test_a_repeated_number_closes_the_device() -> None:
    """The second one is left out; the others stay."""
    found = cluster(device("n1", card(0), card(1), card(0, id="GPU-x")), node())

    assert [(d.minor, d.uuid, d.healthy) for d in found.nodes[0].devices] == [
        (0, "GPU-0", False),
        (1, "GPU-1", True),
    ]
    assert found.nodes[0].devices[0].health_detail == "minor 0 is listed twice"
    assert any("gpu 0 is listed twice" in note for note in found.notes)


def test_a_repeated_identity_closes_both() -> None:
    """They cannot be distinguished."""
    found = cluster(device("n1", card(0, id="X"), card(1, id="X"), card(2)), node())

    assert [d.healthy for d in found.nodes[0].devices] == [False, False, True]
    assert sum("id X is used twice" in note for note in found.notes) == 2


def test_a_device_without_identity_gets_one() -> None:
    """It is unique in the cluster."""
    assert cards(card(2, id=None))[0].uuid == "n1-gpu-2"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        pytest.param(card(0, type="npu"), "type 'npu' is not one of gpu, rdma, fpga", id="type"),
        pytest.param({**card(0), "minor": None}, "its minor is missing", id="no minor"),
        pytest.param(card(-1), "minor -1 is not a number from 0", id="negative minor"),
        pytest.param(card(2**31), "minor 2147483648", id="huge minor"),
    ],
)
def test_what_cannot_be_addressed_is_left_out(entry: Manifest, why: str) -> None:
    """A note names the field."""
    found = cluster(device("n1", entry, card(5)), node())

    assert [d.minor for d in found.nodes[0].devices] == [5]
    assert any("field spec.devices[0]: left out: " + why in note for note in found.notes)


def test_a_device_that_does_not_say_whether_it_is_healthy_says_so() -> None:
    """Its author may have misspelt the field, and no other text names it."""
    entry = {**card(0), "healthy": True}
    del entry["health"]

    (closed,) = cards(entry)

    assert (closed.healthy, closed.health_detail) == (False, "its health is missing")


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        pytest.param(
            device("n1", card(0, resources={"koordinator.sh/gpu-core": "many"})),
            "field spec.devices[0].resources.koordinator.sh/gpu-core: 'many'",
            id="device",
        ),
        pytest.param(
            node(allocatable={"cpu": "lots"}),
            "(Node n1): field status.allocatable.cpu: 'lots'",
            id="allocatable",
        ),
        pytest.param(
            {**node(), "status": {"capacity": {"cpu": "lots"}}},
            "field status.capacity.cpu",
            id="capacity",
        ),
        pytest.param(
            {**node(), "spec": {"unschedulable": "yes"}}, "field spec.unschedulable", id="type"
        ),
        pytest.param(
            device("n1", card("zero")), "field spec.devices[0].minor: expected int", id="minor"
        ),  # type: ignore[arg-type] # the point
    ],
)
def test_amounts_that_are_none_are_errors(manifest: Manifest, field: str) -> None:
    """The document cannot be decoded as its kind."""
    with pytest.raises(InvalidDocument) as caught:
        cluster(manifest)

    assert field in str(caught.value)


def test_the_node_itself() -> None:
    """Labels, taints, cordon and totals; names that families own are left to the ledger."""
    spec = {
        "unschedulable": True,
        "taints": [{"key": "k", "effect": "NoSchedule"}, {"key": "l", "value": "v"}],
    }
    manifest = node(
        "n1",
        {"a": "b"},
        spec,
        allocatable={
            "cpu": "1500m",
            "memory": "1Ki",
            "nvidia.com/gpu": 2,
            "metax-tech.com/sgpu": 16,
            "foo/x": -1,
        },
    )
    found = one(manifest, device("n1", meta={"labels": {VENDOR: "nvidia", "other": "x"}}))

    assert found.labels == {"a": "b", VENDOR: "nvidia"}
    assert found.taints == (Taint("k", "", "NoSchedule"), Taint("l", "v", ""))
    assert found.unschedulable
    assert found.allocatable == {
        "cpu": 1500,
        "memory": 1024,
        "metax-tech.com/sgpu": 16,
        "foo/x": 0,
    }


def test_capacity_stands_in_for_allocatable() -> None:
    """The node does not report what is allocatable."""
    assert one({**node(), "status": {"capacity": {"cpu": 4}}}).allocatable == {"cpu": 4000}
    assert one({**node(), "status": None}).allocatable == {}


def test_a_device_object_may_stand_alone() -> None:
    """Its node's ordinary resources are not checked, and a note says so."""
    found = cluster(device("a"), node("b"), device("c"), node("a"), pod())

    assert [n.name for n in found.nodes] == ["b", "c", "a"]
    assert found.nodes[1].allocatable == {}
    assert [len(n.devices) for n in found.nodes] == [0, 2, 2]
    assert any("(Device c): no Node document" in note for note in found.notes)


def test_some_document_is_needed() -> None:
    """A node of nothing is a mistake of the caller."""
    with pytest.raises(ValueError, match="needs a Node or a Device"):
        translate_node(None, None, Context.of(Settings(), ()))


@pytest.mark.parametrize(
    ("manifests", "registrar"),
    [
        pytest.param([node()], "", id="nobody"),
        pytest.param([node(), device()], "koordinator", id="device object"),
        pytest.param(
            [{**node(), "metadata": {"name": "n1", "annotations": {REGISTER: CARDS}}}],
            "hami",
            id="hami",
        ),
        pytest.param(
            [
                node(
                    "n1",
                    {"tke.cloud.tencent.com/qgpu-schedule-policy": "fs"},
                    allocatable={
                        "tke.cloud.tencent.com/qgpu-core": 200,
                        "tke.cloud.tencent.com/qgpu-memory": 32,
                    },
                )
            ],
            "qgpu",
            id="qgpu",
        ),
    ],
)
def test_who_registered_the_node(manifests: list[Manifest], registrar: str) -> None:
    """The first family that says so."""
    assert one(*manifests).registrar == registrar


def test_registered_cards_become_devices() -> None:
    """A node without a Device object has the cards that HAMi's annotation lists."""
    found = one({**node(), "metadata": {"name": "n1", "annotations": {REGISTER: CARDS}}})

    assert [(d.uuid, d.memory_bytes, d.slots) for d in found.devices] == [("GPU-a", 2**34, 10)]


def test_a_card_hidden_from_the_registrar_is_hidden_from_undecided_pods() -> None:
    """They would become the registrar's."""
    hidden = '{"nodeconfig":[{"name":"n1","filterdevices":{"uuid":["GPU-a"]}}]}'
    registered = {**node(), "metadata": {"name": "n1", "annotations": {REGISTER: CARDS}}}

    found = one(registered, config_map("hami-device-plugin", config__json=hidden))

    assert found.devices[0].hidden_from == {"hami", "nvidia"}


def test_an_unreadable_registration_is_told() -> None:
    """The note names the node."""
    found = cluster({**node(), "metadata": {"name": "n1", "annotations": {REGISTER: "??"}}})

    assert any("(Node n1): " in note and REGISTER in note for note in found.notes)


PARTITIONS = '{"2":[{"minors":[0,1],"gpuLinkType":"NVLink","ringBusBandwidth":"400Gi","allocationScore":"1"}]}'
TABLE = "scheduling.koordinator.sh/gpu-partitions"
POLICY = "node.koordinator.sh/gpu-partition-policy"


def test_partitions_are_the_nodes_own_or_the_built_in_ones() -> None:
    """The annotation wins; a Hopper machine without one has a table of its own."""
    labels = {VENDOR: "nvidia", MODEL: "H100"}
    own = one(node(), device("n1", meta={"labels": labels, "annotations": {TABLE: PARTITIONS}}))
    built_in = one(node(), device("n1", meta={"labels": labels}))

    assert [(size, [p.minors for p in table]) for size, table in own.partitions.items()] == [
        (2, [(0, 1)])
    ]
    assert sorted(built_in.partitions) == [1, 2, 4, 8]


def test_a_malformed_table_is_told() -> None:
    """The node then has no partitions at all."""
    found = cluster(
        node(),
        device(
            "n1", meta={"annotations": {TABLE: "{"}, "labels": {VENDOR: "nvidia", MODEL: "H100"}}
        ),
    )

    assert found.nodes[0].partitions == {}
    assert any(TABLE in note and "has no partitions" in note for note in found.notes)


@pytest.mark.parametrize(
    ("on_device", "on_node", "honoured"),
    [
        ("Honor", None, True),
        (None, "Honor", True),
        ("Prefer", "Honor", False),
        (None, None, False),
    ],
)
def test_the_partition_policy(
    on_device: str | None, on_node: str | None, *, honoured: bool
) -> None:
    """A label of the Device object, else of the node."""
    labels = {POLICY: on_node} if on_node else {}
    meta = {"labels": {POLICY: on_device} if on_device else {}}

    assert one(node("n1", labels), device("n1", meta=meta)).honour_partitions is honoured


def test_templates_are_those_of_the_model() -> None:
    """Published, or the operator's."""
    npu = device("n1", meta={"labels": {VENDOR: "huawei", MODEL: "Ascend-310P"}})
    own = config_map(
        "gpu-shared-resource-templates",
        data__yaml="huawei-Ascend-310P: {tiny: {huawei.com/npu-core: 1, koordinator.sh/gpu-memory: 1Gi}}",
    )

    assert "vir02" in one(node(), npu).templates
    assert one(node(), npu, own).templates == {
        "tiny": (("huawei.com/npu-core", 1), ("memory", 2**30))
    }


def test_totals_of_koordinators_document() -> None:
    """Two 16Gi cards in both dialects; the node's own count stays."""
    allocatable = {
        "cpu": "6",
        "memory": "59274552Ki",
        "nvidia.com/gpu": "2",
        "pods": "220",
        "kubernetes.io/batch-cpu": "8",
        "kubernetes.io/gpu": "100",
        "koordinator.sh/fpga": "100",
    }
    found = cluster(
        node("n1", allocatable=allocatable),
        device("n1", card(0, domain="kubernetes.io"), card(1, domain="kubernetes.io")),
    )

    totals = found.totals(found.nodes[0])

    expected = {"gpu": "200", "gpu-core": "200", "gpu-memory": "32Gi", "gpu-memory-ratio": "200"}
    assert totals == {
        "cpu": "6",
        "memory": "59274552Ki",
        "nvidia.com/gpu": "2",
        "pods": "220",
        "kubernetes.io/batch-cpu": "8",
        "koordinator.sh/gpu.shared": "200",
        **{
            f"{domain}/{name}": value
            for name, value in expected.items()
            for domain in ("koordinator.sh", "kubernetes.io")
        },
    }


def test_totals_of_other_protocols() -> None:
    """Given where the node reports the names or registers with the protocol, and nowhere else."""
    hami = {**node("h"), "metadata": {"name": "h", "annotations": {REGISTER: CARDS}}}
    qgpu = node(
        "q",
        allocatable={
            "tke.cloud.tencent.com/qgpu-core": "999",
            "tke.cloud.tencent.com/qgpu-memory": "1",
        },
    )
    found = cluster(
        hami, qgpu, device("q"), node("k"), device("k", card(0, id="GPU-k0"), card(1, id="GPU-k1"))
    )

    totals = {n.name: found.totals(n) for n in found.nodes}

    assert totals["h"]["nvidia.com/gpu"] == "10"
    assert totals["q"]["tke.cloud.tencent.com/qgpu-core"] == "200"
    assert totals["q"]["tke.cloud.tencent.com/qgpu-memory"] == "32"
    assert not any("qgpu" in name or name.startswith("nvidia") for name in totals["k"])


@pytest.mark.parametrize(
    ("policy", "single", "told"),
    [
        pytest.param("SingleNUMANode", True, False, id="single"),
        pytest.param("Restricted", False, False, id="only a preference for devices"),
        pytest.param("BestEffort", False, False, id="best effort"),
        pytest.param("singlenumanode", False, True, id="misspelt"),
        pytest.param(None, False, False, id="no label"),
    ],
)
def test_the_numa_policy_of_a_node(policy: str | None, *, single: bool, told: bool) -> None:
    """Koordinator's label stands for the annotation of every pod there."""
    labels = {} if policy is None else {"node.koordinator.sh/numa-topology-policy": policy}

    found = cluster(node("n1", labels), device("n1"))

    assert found.nodes[0].single_numa is single
    assert any("numa-topology-policy" in note for note in found.notes) is told


READY = "node.kubernetes.io/not-ready"
GONE = "node.kubernetes.io/unreachable"


@pytest.mark.parametrize(
    ("status", "taints", "keys"),
    [
        pytest.param("True", [], [], id="ready"),
        pytest.param("False", [], [READY], id="not ready"),
        pytest.param(
            "Unknown",
            [{"key": "k", "effect": "NoSchedule"}],
            ["k", READY],
            id="unknown, beside another taint",
        ),
        pytest.param(
            "Unknown",
            [{"key": GONE, "effect": "NoSchedule"}],
            [GONE],
            id="tainted by Kubernetes already",
        ),
        pytest.param(
            "False",
            [{"key": READY, "effect": "NoExecute"}],
            [READY, READY],
            id="tainted to evict only",
        ),
    ],
)
def test_a_node_that_is_not_ready_is_tainted(
    status: str, taints: list[Manifest], keys: list[str]
) -> None:
    """Kubernetes taints it so; a note says so too."""
    manifest = node("n1", spec={"taints": taints})
    manifest["status"]["conditions"] = [
        {"type": "DiskPressure", "status": "False"},
        {"type": "Ready", "status": status},
    ]

    found = cluster(manifest, device("n1"))

    assert [taint.key for taint in found.nodes[0].taints] == keys
    assert any(f"condition Ready is {status}" in note for note in found.notes) is (
        status != "True"
    )


def test_pods_wait_for_a_node_to_be_ready() -> None:
    """A pod that tolerates the taint does not."""
    manifest = node("n1")
    manifest["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    tolerant = pod("b", tolerations=[{"key": READY, "operator": "Exists"}])

    waiting, placed = schedule(cluster(manifest, pod("a"), tolerant)).pods

    assert waiting.refusal is not None
    assert waiting.refusal.code is ReasonCode.TAINT
    assert placed.allocation is not None


def test_an_unreadable_registration_closes_the_node_to_devices() -> None:
    """What the node has is not known; ordinary pods still go there."""
    manifest = {**node("n1"), "metadata": {"name": "n1", "annotations": {REGISTER: "[{"}}}
    asking = pod("a", container(limits={"koordinator.sh/gpu": "50"}))

    waiting, placed = schedule(cluster(manifest, asking, pod("b"))).pods

    assert waiting.refusal is not None
    assert waiting.refusal.code is ReasonCode.QUARANTINED
    assert (
        f"annotation {REGISTER} cannot be read: malformed JSON"
        in waiting.refusal.nodes["n1"].message
    )
    assert placed.allocation is not None


@pytest.mark.parametrize(
    ("totals", "beside", "told"),
    [
        pytest.param({"nvidia.com/gpu": "2"}, [], True, id="a count"),
        pytest.param({"koordinator.sh/gpu-core": "200"}, [], True, id="koordinator's totals"),
        pytest.param({"nvidia.com/gpu": "0"}, [], False, id="none"),
        pytest.param({"koordinator.sh/rdma": "100"}, [], False, id="no cards"),
        pytest.param({"nvidia.com/gpu": "2"}, [device("n1")], False, id="described"),
    ],
)
def test_cards_that_nothing_describes_are_told(
    totals: Manifest, beside: list[Manifest], *, told: bool
) -> None:
    """A count says nothing of identity or memory, so no card can be allocated."""
    notes = cluster(node("n1", allocatable={"cpu": "1", **totals}), *beside).notes

    assert any("no Device object or registration describes" in note for note in notes) is told


def test_one_identity_on_two_nodes_is_closed_on_both() -> None:
    """Records name cards by UUID, and which node has it is not known."""
    network = {"type": "rdma", "minor": 0, "health": True, "id": "0000:1f:00.0"}
    found = cluster(
        device("a", card(0), card(1, id="GPU-a1"), network), device("b", card(0), network)
    )

    first, second = found.nodes

    assert [(d.uuid, d.healthy) for d in first.devices] == [
        ("GPU-0", False),
        ("GPU-a1", True),
        ("0000:1f:00.0", True),
    ]
    assert first.devices[0].health_detail == "uuid is also on node b"
    assert second.devices[0].health_detail == "uuid is also on node a"
    assert "uuid GPU-0 is on nodes a, b; these cards are closed" in found.notes


@pytest.mark.parametrize("address", ["0000:03:00.0", "03:00.0"])
def test_a_pci_address_is_on_as_many_nodes_as_have_such_a_slot(address: str) -> None:
    """Cards without an identity of their own have it: some of AMD, and all that sysfs alone shows."""
    first, second = cluster(
        device("a", card(0, id=address)), device("b", card(0, id=address))
    ).nodes

    assert first.devices[0].healthy
    assert second.devices[0].healthy
