"""Cases of the MetaX document: MetaX sGPU through Koordinator."""

from typing import Final

from published.case import Case, Elsewhere, Misprint
from published.parts import (
    device_object,
    exits,
    join,
    node,
    node_says,
    placed,
    pod,
    pod_says,
    waits,
)

__all__ = ["CASES", "ELSEWHERE", "MISPRINTS"]

_GIB: Final = 2**30
_UUID: Final = "89033010-2354-0000-0000-000000000000"
_VENDOR: Final = "metax-tech.com/gpu-devices-allocated"
_QOS: Final = "metax-tech.com/sgpu-qos-policy"
_LABELS: Final = {
    "node.koordinator.sh/gpu-model": "C500",
    "node.koordinator.sh/gpu-vendor": "metax",
}

_CONFIG: Final = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: metax-device-config
data:
  version: v1
  cluster-config: |
    mode: "native" # sgpu/shared/vgpu, cluster scope
  nodes-config: |
    - nodeName: "sample-node1"
      mode: "sgpu" # sgpu/shared/vgpu, node scope
"""
_DEVICE: Final = """
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: Device
metadata:
  labels:
    node.koordinator.sh/gpu-model: C500 # The model of the Cambricon card.
    node.koordinator.sh/gpu-vendor: metax # The vendor of the card.
  name: sample-node1
spec:
  devices:
    - health: true
      id: 89033010-2354-0000-0000-000000000000 # The UUID of the Metax card (mocked value).
      minor: 0 # The minor number of the Cambricon card.
      resources:
        koordinator.sh/gpu-core: "100" # The total compute capacity of the Cambricon card in percentage.
        koordinator.sh/gpu-memory: "64Gi" # The total GPU memory of the Cambricon card.
        koordinator.sh/gpu-memory-ratio: "100" # The total GPU memory ratio in percentage.
      topology:
        busID: 0000:38:00.0 # The PCI bus ID.
        nodeID: 3 # The NUMA node ID.
        pcieID: pci0000:3a # The PCI root ID.
        socketID: -1
      type: gpu
      conditions:
        - lastTransitionTime: "20256-03-15T10:00:00Z"
          message: device is healthy
          reason: DeviceHealthy
          status: "True"
          type: Healthy
status: {}
"""
_NODE: Final = node("sample-node1", {"metax-tech.com/sgpu": "16"})
_POD: Final = """
apiVersion: v1
kind: Pod
metadata:
  labels:
    app: demo-sleep
  name: test-metax-sGPU
  namespace: default
  annotations:
    metax-tech.com/sgpu-qos-policy: "fixed-share" # fixed-share/best-effort/burst-share
spec:
  containers:
    - command:
        - sleep
        - infinity
      image: ubuntu:22.04
      imagePullPolicy: IfNotPresent
      name: demo-sleep
      resources:
        limits:
          cpu: "32"
          memory: 64Gi
          koordinator.sh/gpu.shared: "1"
          koordinator.sh/gpu-memory: "1Gi"
          koordinator.sh/gpu-core: "10"
          metax-tech.com/sgpu: "1"
        requests:
          cpu: "32"
          memory: 64Gi
          koordinator.sh/gpu.shared: "1"
          koordinator.sh/gpu-memory: "1Gi"
          koordinator.sh/gpu-core: "10"
          metax-tech.com/sgpu: "1"
"""


def _share(name: str, *, core: str = "5", shared: str = "1", policy: str = "") -> str:
    limits = {
        "koordinator.sh/gpu.shared": shared,
        "koordinator.sh/gpu-core": core,
        "koordinator.sh/gpu-memory": "2Gi",
        "metax-tech.com/sgpu": shared,
    }
    return pod(name, limits, annotations={_QOS: policy} if policy else None)


CASES: Final[tuple[Case, ...]] = (
    Case(
        id="000-config",
        printed="`metax-device-config`: the cluster is `native`, sample-node1 is `sgpu`",
        documents=join(
            _CONFIG,
            _DEVICE,
            _NODE,
            device_object("other-node", [("other-card", "64Gi")], _LABELS),
            node("other-node", {"metax-tech.com/gpu": "1", "metax-tech.com/sgpu": "16"}),
            _share("one", core="60"),
            _share("two", core="60"),
        ),
        expected=(
            exits(3),
            placed("one", "sample-node1"),
            pod_says("two", "reason", "nodes", "other-node", "code", value="NotShareable"),
            pod_says("two", "reason", "nodes", "sample-node1", "code", value="InsufficientCore"),
        ),
        how="shares go to the sgpu node only",
    ),
    Case(
        id="000-device",
        printed="`kubectl get device`: vendor metax, model C500, 64Gi, healthy, PCI address, NUMA node 3",
        documents=join(_CONFIG, _DEVICE, _NODE),
        expected=(
            exits(0),
            node_says(
                "sample-node1",
                "devices",
                0,
                value={
                    "type": "gpu",
                    "minor": 0,
                    "uuid": _UUID,
                    "vendor": "metax",
                    "model": "C500",
                    "healthy": True,
                    "core_milli": {"total": 1000, "used": 0},
                    "memory_bytes": {"total": 64 * _GIB, "used": 0},
                    "slots": {"total": 16, "used": 0},
                },
            ),
        ),
        misprint="the condition's time has the year 20256, and the comments name another vendor",
    ),
    Case(
        id="000-node-totals",
        printed="node allocatable: gpu.shared 100, gpu-core 100, gpu-memory 64Gi, gpu-memory-ratio 100, sgpu 16",
        documents=join(_CONFIG, _DEVICE, _NODE),
        expected=(
            node_says(
                "sample-node1",
                "allocatable",
                value={
                    "koordinator.sh/gpu.shared": "100",
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": "64Gi",
                    "koordinator.sh/gpu-memory-ratio": "100",
                    "metax-tech.com/sgpu": "16",
                },
            ),
        ),
        how="computed from the Device; every printed line of allocatable is equal",
        misprint="capacity is printed with 24Gi",
    ),
    Case(
        id="000-pod",
        printed="pod test-metax-sGPU: gpu.shared 1, gpu-core 10, gpu-memory 1Gi, sgpu 1, `fixed-share`",
        documents=join(_CONFIG, _DEVICE, _NODE, _POD),
        expected=(
            exits(0),
            placed("test-metax-sGPU", "sample-node1"),
            pod_says(
                "test-metax-sGPU",
                "allocations",
                0,
                value={
                    "container": "demo-sleep",
                    "uuid": _UUID,
                    "minor": 0,
                    "core_milli": 100,
                    "memory_bytes": _GIB,
                    "mode": "vendor",
                },
            ),
            pod_says(
                "test-metax-sGPU",
                "annotations",
                value={
                    _VENDOR: f'[[{{"uuid":"{_UUID}","compute":10,"vRam":1024}}]]',
                    _QOS: "fixed-share",
                    "scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0,"resources":'
                    '{"koordinator.sh/gpu-core":"10","koordinator.sh/gpu-memory":"1Gi",'
                    f'"koordinator.sh/gpu-memory-ratio":"1"}},"id":"{_UUID}"}}]}}',
                },
            ),
        ),
        how="what the vendor's plugin reads, as text",
        misprint="the pod's name has capitals, which Kubernetes refuses",
    ),
    Case(
        id="000-sixteen",
        printed="up to 16 virtual GPUs on one physical GPU",
        documents=join(
            _CONFIG,
            _DEVICE,
            _NODE.replace("metax-tech.com/sgpu: '16'", "metax-tech.com/sgpu: '100'"),
            *(_share(f"share-{number:02}") for number in range(1, 18)),
        ),
        expected=(
            exits(3),
            placed("share-16", "sample-node1"),
            waits("share-17", "InsufficientSlots"),
            node_says("sample-node1", "devices", 0, "slots", value={"total": 16, "used": 16}),
        ),
        how="seventeen shares of 5 %; the node's own sgpu total is raised so that the card decides",
    ),
    Case(
        id="000-sixteen-node",
        printed='the node reports `metax-tech.com/sgpu: "16"`',
        documents=join(
            _CONFIG, _DEVICE, _NODE, *(_share(f"share-{number:02}") for number in range(1, 18))
        ),
        expected=(
            exits(3),
            placed("share-16", "sample-node1"),
            waits("share-17", "NodeResources"),
        ),
        how="the plugin's own total is honoured as well",
    ),
    Case(
        id="000-one-card",
        printed="MetaX does not support virtualisation over several cards",
        documents=join(_CONFIG, _DEVICE, _NODE, _share("two-cards", core="20", shared="2")),
        expected=(exits(3), waits("two-cards", "InvalidRequest")),
    ),
    Case(
        id="000-qos",
        printed="annotation `metax-tech.com/sgpu-qos-policy`: fixed-share, best-effort or burst-share",
        documents=join(
            _CONFIG,
            _DEVICE,
            _NODE,
            *(_share(name, policy=name) for name in ("fixed-share", "best-effort", "burst-share")),
            _share("plural", policy="burst-shares"),
            _share("default"),
            _share("unknown", policy="fair"),
        ),
        expected=(
            exits(3),
            pod_says("fixed-share", "annotations", _QOS, value="fixed-share"),
            pod_says("best-effort", "annotations", _QOS, value="best-effort"),
            pod_says("burst-share", "annotations", _QOS, value="burst-share"),
            pod_says("plural", "annotations", _QOS, value="burst-share"),
            pod_says("default", "annotations", _QOS, value="best-effort"),
            waits("unknown", "InvalidRequest"),
        ),
        misprint="the prose runs the names into `sGPU`, as if they had a plural",
    ),
)

ELSEWHERE: Final[tuple[Elsewhere, ...]] = (
    Elsewhere(
        "000",
        "`ls /dev/mx*` in the container shows the card",
        "the vendor's own plugin, by the annotation that is written for it",
        "test_two_metax_cards_are_one_list",
    ),
    Elsewhere(
        "000",
        "`Device` reported by the node's components",
        "the node agent",
        "test_devices_are_reported_and_containers_are_served",
    ),
    Elsewhere(
        "000",
        "feature gate `DevicePluginAdaption=true`",
        "`--feature-gates`, `scheduler.featureGates`; on by default",
        "test_a_gate_that_is_not_known_is_refused",
    ),
)

MISPRINTS: Final[tuple[Misprint, ...]] = (
    Misprint(
        "000",
        "manifests without indentation",
        "YAML",
        "indentation restored by hand in the inputs",
    ),
    Misprint(
        "000",
        '`lastTransitionTime: "20256-03-15T10:00:00Z"`',
        "the year 2025",
        "times of conditions are texts and not read",
    ),
    Misprint(
        "000", "capacity 24Gi beside allocatable 64Gi", "64Gi", "totals follow the Device: 64Gi"
    ),
    Misprint(
        "000",
        "`metadata.annoations`",
        "`metadata.annotations`",
        "the misspelt field is no field of a pod and is not read",
    ),
    Misprint(
        "000",
        "`fixed-sharesGPU`, `best-effortsGPU`, `burst-sharesGPU`",
        "the policy's name, then sGPU",
        "`fixed-share`, `best-effort`, `burst-share`; a final s is accepted and removed",
    ),
    Misprint("000", "comments name a Cambricon card", "MetaX", "comments are not read"),
    Misprint(
        "000",
        "pod name `test-metax-sGPU`",
        "a lower-case name",
        "accepted offline, because the name does not concern devices",
    ),
)
