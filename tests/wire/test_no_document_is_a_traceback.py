"""Whatever a document holds, documents or an `InvalidDocument` come out, and nothing else."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from manifests import card, config_map, container, device, node, pod

from drawn import sampled
from partage.model.errors import InvalidDocument
from partage.wire.cluster import Cluster, assemble
from partage.wire.documents import decode

ODD = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**31,
        2**63,
        10**30,
        "",
        " ",
        "1",
        "-1",
        "1e400",
        "100",
        "8Gi",
        "0x1",
        "{{ .V }}",
        "é\u2028",
        "\x00",
        "NaN",
        "9" * 70,
        [],
        {},
        [None],
        {"": None},
        [[]],
        {"a": {"b": []}},
        float("inf"),
    ]
)
TEXT = st.text(max_size=8)
ANYTHING = st.recursive(
    ODD | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ODD_OR_ANY = ODD | ANYTHING

ALLOCATED = '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50"}}]}'
POD = pod(
    "p",
    container(
        "a",
        limits={"cpu": 1, "nvidia.com/gpu": 1, "nvidia.com/gpumem": 100},
        ports=[{"hostPort": 1}],
    ),
    container(
        "b",
        limits={
            "koordinator.sh/gpu.shared": 1,
            "koordinator.sh/gpu-core": 10,
            "koordinator.sh/gpu-memory": "1Gi",
            "metax-tech.com/sgpu": 1,
        },
    ),
    container(
        "c",
        requests={"tke.cloud.tencent.com/qgpu-core": 30, "tke.cloud.tencent.com/qgpu-memory": 5},
    ),
    container(
        "d",
        limits={
            "huawei.com/npu-core": 4,
            "koordinator.sh/gpu-memory-ratio": 100,
            "cambricon.com/mlu.smlu.vcore": 1,
        },
    ),
    container("e", limits={"nvidia.com/gpu": "100"}),
    initContainers=[container("i", limits={"kubernetes.io/gpu": 50}, restartPolicy="Always")],
    nodeName="n1",
    nodeSelector={"a": "b"},
    overhead={"cpu": 1},
    resources={"limits": {"cpu": 1}},
    tolerations=[{"key": "a", "operator": "Exists"}],
    priorityClassName="x",
    affinity={
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}
                ]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {"matchFields": [{"key": "metadata.name", "operator": "In"}]},
                }
            ],
        }
    },
    meta={
        "uid": "u",
        "labels": {"koordinator.sh/gpu-isolation-provider": "HAMi-core"},
        "annotations": {
            "partage.io/allocation": '{"v":1,"uid":"u","node":"n1","containers":[]}',
            "partage.io/node-policy": "spread",
            "scheduling.koordinator.sh/device-allocated": ALLOCATED,
            "hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,100,0:;",
            "tke.cloud.tencent.com/qgpu": "true",
            "tke.cloud.tencent.com/qgpu-pgpu-c": "0",
            "metax-tech.com/gpu-devices-allocated": '[[{"uuid":"GPU-0","compute":5,"vRam":1024}]]',
            "metax-tech.com/sgpu-qos-policy": "fixed-share",
            "scheduling.koordinator.sh/device-allocate-hint": '{"gpu":{"selector":{"matchLabels":{"a":"b"}}}}',
            "scheduling.koordinator.sh/device-joint-allocate": '{"deviceTypes":["gpu","rdma"]}',
            "scheduling.koordinator.sh/gpu-partition-spec": "{}",
            "hami.io/device-scoring-weights": "slot=1,core=1,memory=3",
        },
    },
)
POD["status"] = {
    "phase": "Running",
    "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 0}}}],
}
NODE = node(
    "n1",
    {"tke.cloud.tencent.com/qgpu-schedule-policy": "fs"},
    {"taints": [{"key": "a", "effect": "NoSchedule"}], "unschedulable": False},
    allocatable={
        "cpu": "4",
        "nvidia.com/gpu": 2,
        "tke.cloud.tencent.com/qgpu-core": 100,
        "tke.cloud.tencent.com/qgpu-memory": 16,
        "metax-tech.com/sgpu": 16,
    },
)
NODE["metadata"]["annotations"] = {
    "hami.io/node-nvidia-register": '[{"id":"GPU-0","count":10,"devmem":1024,"devcore":100,"type":"A","health":true}]',
    "hami.io/node-nvidia-score": '[{"uuid":"GPU-0","score":{"GPU-1":110}}]',
    "hami.io/device-cordon": "GPU-1",
}
DEVICE = device(
    "n1",
    card(
        0,
        topology={"nodeID": 0, "pcieID": "a", "busID": "b", "socketID": 0},
        conditions=[{"type": "Healthy", "status": "False"}],
    ),
    {
        "type": "rdma",
        "minor": 0,
        "id": "x",
        "health": True,
        "vfGroups": [{"labels": {"a": "b"}, "vfs": [{"minor": 0, "busID": "c"}]}],
    },
    meta={
        "labels": {
            "node.koordinator.sh/gpu-vendor": "metax",
            "node.koordinator.sh/gpu-model": "H100",
            "node.koordinator.sh/gpu-partition-policy": "Honor",
        },
        "annotations": {
            "scheduling.koordinator.sh/gpu-partitions": '{"1":[{"minors":[0],"allocationScore":1}]}'
        },
    },
)
WORKLOAD = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d", "ownerReferences": [{"kind": "X", "name": "y", "controller": True}]},
    "spec": {"replicas": 2, "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}},
}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "j"},
    "spec": {
        "parallelism": 2,
        "completions": 1,
        "suspend": False,
        "template": {"spec": POD["spec"]},
    },
    "status": {"completionTime": "x"},
}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "q"},
    "spec": {"hard": {"limits.nvidia.com/gpumem": 5}, "scopes": []},
}
PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "x"},
    "value": 5,
    "globalDefault": True,
}
SEEDS = [POD, NODE, DEVICE, WORKLOAD, JOB, QUOTA, PRIORITY]


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [at]
    if isinstance(value, dict):
        found += [path for key, inner in value.items() for path in paths(inner, (*at, key))]
    elif isinstance(value, list):
        found += [path for index, inner in enumerate(value) for path in paths(inner, (*at, index))]
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The document with something else at one place."""
    if not path:
        return new
    head, *rest = path
    if isinstance(value, dict):
        return {**value, head: changed(value[head], tuple(rest), new)}
    return [changed(v, tuple(rest), new) if i == head else v for i, v in enumerate(value)]


def survive(data: bytes) -> Cluster | None:
    """The cluster, or None where the documents are refused; anything else is a failure."""
    try:
        found = assemble([decode("f", data)])
    except InvalidDocument as error:
        if not str(error).startswith("f"):
            raise
        return None
    for each in found.nodes:
        found.totals(each)
    return found


def test_the_seeds_themselves_are_read() -> None:
    """What is varied below is valid before it is varied."""
    found = survive(json.dumps({"kind": "List", "items": SEEDS}).encode())

    assert found is not None
    assert len(found.nodes) == 1
    assert len(found.pods) == 3


@st.composite
def variations(draw: st.DrawFn) -> Any:
    """A seed with one or two places replaced by something odd, among intact documents."""
    manifest = draw(sampled(SEEDS))
    for _ in range(draw(st.integers(1, 2))):
        manifest = changed(manifest, draw(sampled(paths(manifest))), draw(ODD_OR_ANY))
    return [manifest, *draw(st.lists(sampled(SEEDS), max_size=2))]


@given(variations())
def test_odd_values_in_json(manifests: list[Any]) -> None:
    """Every field of every kind takes any value."""
    text = json.dumps({"kind": "List", "items": manifests})

    survive(text.replace("Infinity", "1e999").replace("NaN", "0").encode(errors="surrogatepass"))


@given(variations())
def test_odd_values_in_yaml(manifests: list[Any]) -> None:
    """The same by the other decoder."""
    survive(yaml.safe_dump_all(manifests, allow_unicode=True).encode(errors="surrogatepass"))


@given(
    st.sampled_from(sorted(POD["metadata"]["annotations"])),
    TEXT | ANYTHING.map(lambda v: json.dumps(v, default=str)),
)
def test_odd_annotations_of_pods(key: str, text: str) -> None:
    """A malformed annotation is a fault or a record with a problem, never an error."""
    manifest = changed(POD, ("metadata", "annotations", key), text)

    assert survive(json.dumps({"kind": "List", "items": [manifest, NODE, DEVICE]}).encode())


@given(
    st.sampled_from(sorted(NODE["metadata"]["annotations"])),
    TEXT | ANYTHING.map(lambda v: json.dumps(v, default=str)),
)
def test_odd_annotations_of_nodes(key: str, text: str) -> None:
    """A malformed annotation is a note, never an error."""
    manifest = changed(NODE, ("metadata", "annotations", key), text)

    assert survive(json.dumps({"kind": "List", "items": [manifest, POD]}).encode())


@given(
    st.sampled_from(["requests", "limits"]),
    st.sampled_from(
        [
            "nvidia.com/gpu",
            "koordinator.sh/gpu",
            "kubernetes.io/gpu-memory",
            "tke.cloud.tencent.com/qgpu-core",
            "metax-tech.com/sgpu",
            "huawei.com/npu-core",
        ]
    ),
    ODD | ANYTHING,
)
def test_odd_device_amounts_are_faults(part: str, name: str, value: Any) -> None:
    """The pod is read whatever it asks of devices."""
    text = json.dumps(pod("p", container(**{part: {name: value}})))

    found = survive(
        text.replace("Infinity", "1e300").replace("NaN", "0").encode(errors="surrogatepass")
    )

    assert found is not None
    assert len(found.pods) == 1


CONFIG = [
    (
        "hami-scheduler-device",
        "device_config__yaml",
        "nvidia: {deviceSplitCount: 3, resourceCountName: a, knownMigGeometries: [{models: [a], allowedGeometries: [[{name: 1g.5gb, memory: 1, count: 1}]]}]}",
    ),
    (
        "hami-device-plugin",
        "config__json",
        '{"nodeconfig":[{"name":"n1","operatingmode":"mig","devicesplitcount":3,"filterdevices":{"uuid":["a"],"index":[0]}}]}',
    ),
    ("metax-device-config", "cluster_config", "mode: sgpu"),
    ("metax-device-config", "nodes_config", "[{nodeName: n1, mode: sgpu}]"),
    (
        "gpu-shared-resource-templates",
        "data__yaml",
        "metax-H100: {t: {koordinator.sh/gpu-memory: 1Gi}}",
    ),
    ("partage-config", "policy", "binpack"),
]


@given(st.sampled_from(CONFIG), st.data())
def test_odd_config_maps(config: tuple[str, str, str], data: st.DataObject) -> None:
    """A value anywhere in a ConfigMap's text is taken or refused by name."""
    name, key, text = config
    value = yaml.safe_load(text)
    place = data.draw(sampled(paths(value)))
    odd = changed(value, place, data.draw(ODD_OR_ANY))

    survive(
        json.dumps(
            {
                "kind": "List",
                "items": [
                    config_map(name, **{key: json.dumps(odd, default=str)}),
                    NODE,
                    DEVICE,
                    POD,
                ],
            }
        ).encode()
    )


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode(errors="surrogatepass"))
)
def test_any_bytes(data: bytes) -> None:
    """The bytes need not be text."""
    survive(data)


def test_a_wrong_label_before_bytes_that_are_no_text() -> None:
    """The key cannot be named where what follows cannot be read; the field can."""
    data = b'{"kind":"Pod","metadata":{"name":"a","labels":{"x":5},"annotations":{"k":"\xff"}}}'

    with pytest.raises(InvalidDocument, match=r"field metadata\.labels\[\.\.\.\]: expected str"):
        decode("a.json", data)


@given(st.data())
def test_damaged_texts(data: st.DataObject) -> None:
    """A manifest with some characters lost or added."""
    as_yaml = data.draw(st.booleans())
    manifest = data.draw(sampled(SEEDS))
    text = yaml.safe_dump(manifest) if as_yaml else json.dumps(manifest)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        text = (
            text[:at]
            + data.draw(st.text("{}[]&*:,-'\"\n !<>|?#%@`\\\t0e", max_size=3))
            + text[at + data.draw(st.integers(0, 3)) :]
        )

    survive(text.encode())


@pytest.mark.parametrize(
    "kind",
    [
        "Node",
        "Device",
        "Pod",
        "Deployment",
        "Job",
        "ConfigMap",
        "ResourceQuota",
        "PriorityClass",
        "Namespace",
        "NodeList",
        "List",
    ],
)
@given(value=ANYTHING)
def test_any_shape_of_any_kind(kind: str, value: Any) -> None:
    """A document that has nothing but its kind."""
    fields = (
        value
        if isinstance(value, dict)
        else {
            "spec": value,
            "status": value,
            "data": value,
            "metadata": {"name": "x"},
            "items": value,
        }
    )
    text = json.dumps({**fields, "kind": kind}, default=str)

    survive(text.replace("Infinity", "1e300").replace("NaN", "0").encode(errors="surrogatepass"))
