"""Cases of the HAMi document: HAMi's dynamic MIG, as far as this release goes."""

from typing import Final

from published.case import Case, Elsewhere, Expectation, Misprint
from published.parts import exits, join, node, node_says, placed, pod, pod_says

__all__ = ["CASES", "ELSEWHERE", "MISPRINTS"]

_MIB: Final = 2**20
_FIRST: Final = "GPU-936619fc-f6a1-74a8-0bc6-ecf6b3269313"
_SECOND: Final = "GPU-30f90f49-43ab-0a78-bf5c-93ed41ef2da2"

_NODE_CONFIG: Final = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: hami-device-plugin
  namespace: kube-system
data:
  config.json: |
    {
      "nodeconfig": [
        {
          "name": "MIG-NODE-A",
          "operatingmode": "mig",
          "filterdevices": {
            "uuid": [],
            "index": []
          }
        }
      ]
    }
"""
_DEVICE_CONFIG: Final = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: hami-scheduler-device
  namespace: kube-system
data:
  device-config.yaml: |
    nvidia:
      resourceCountName: nvidia.com/gpu
      resourceMemoryName: nvidia.com/gpumem
      resourceMemoryPercentageName: nvidia.com/gpumem-percentage
      resourceCoreName: nvidia.com/gpucores
      resourcePriorityName: nvidia.com/priority
      overwriteEnv: false
      defaultMemory: 0
      defaultCores: 0
      defaultGPUNum: 1
      deviceSplitCount: 10
      deviceMemoryScaling: 1
      deviceCoreScaling: 1
      knownMigGeometries:
      - models: [ "A30" ]
        allowedGeometries:
          -
            - name: 1g.6gb
              memory: 6144
              count: 4
          -
            - name: 2g.12gb
              memory: 12288
              count: 2
          -
            - name: 4g.24gb
              memory: 24576
              count: 1
      - models: [ "A100-SXM4-40GB", "A100-40GB-PCIe", "A100-PCIE-40GB", "A100-SXM4-40GB" ]
        allowedGeometries:
          -
            - name: 1g.5gb
              memory: 5120
              count: 7
          -
            - name: 2g.10gb
              memory: 10240
              count: 3
            - name: 1g.5gb
              memory: 5120
              count: 1
          -
            - name: 3g.20gb
              memory: 20480
              count: 2
          -
            - name: 7g.40gb
              memory: 40960
              count: 1
      - models: [ "A100-SXM4-80GB", "A100-80GB-PCIe", "A100-PCIE-80GB"]
        allowedGeometries:
          -
            - name: 1g.10gb
              memory: 10240
              count: 7
          -
            - name: 2g.20gb
              memory: 20480
              count: 3
            - name: 1g.10gb
              memory: 10240
              count: 1
          -
            - name: 3g.40gb
              memory: 40960
              count: 2
          -
            - name: 7g.79gb
              memory: 80896
              count: 1
"""


def _node(name: str, *uuids: str, mode: str = "hami-core") -> str:
    cards = ",".join(
        f'{{"id":"{uuid}","index":{index},"count":10,"devmem":40960,"devcore":100,'
        f'"type":"NVIDIA A100-SXM4-40GB","mode":"{mode}","health":true}}'
        for index, uuid in enumerate(uuids)
    )
    return node(
        name,
        {"nvidia.com/gpu": str(10 * len(uuids))},
        annotations={"hami.io/node-nvidia-register": f"[{cards}]"},
    )


def _published(name: str = "gpu-pod", *, mode: str = "mig") -> str:
    annotations = f'  annotations:\n    nvidia.com/vgpu-mode: "{mode}"\n' if mode else ""
    return f"""
apiVersion: v1
kind: Pod
metadata:
  name: {name}
{annotations}spec:
  containers:
    - name: ubuntu-container
      image: ubuntu:18.04
      command: ["bash", "-c", "sleep 86400"]
      resources:
        limits:
          nvidia.com/gpu: 2
          nvidia.com/gpumem: 8000
"""


def _one(name: str, mib: int) -> str:
    return pod(
        name,
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib)},
        annotations={"nvidia.com/vgpu-mode": "mig"},
    )


def _running(name: str, devices: str, *, phase: str = "Running") -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations:
    hami.io/vgpu-node: MIG-NODE-A
    hami.io/vgpu-devices-allocated: "{devices}"
spec:
  nodeName: MIG-NODE-A
  containers:
    - name: main
      resources:
        limits:
          nvidia.com/gpu: 1
          nvidia.com/gpumem: 4000
status:
  phase: {phase}
"""


def _instance(
    name: str, position: int, uuid: str, profile: str, start: int, mib: int
) -> Expectation:
    size = {"1g": 1, "2g": 2, "3g": 4}[profile.partition(".")[0]]
    return pod_says(
        name,
        "allocations",
        position,
        value={
            "uuid": uuid,
            "mode": "mig",
            "memory_bytes": mib * _MIB,
            "mig": {"profile": profile, "start": start, "size": size},
        },
    )


CASES: Final[tuple[Case, ...]] = (
    Case(
        id="002-node-config",
        printed='`config.json`: MIG-NODE-A has `"operatingmode": "mig"` and hides no card',
        documents=join(
            _NODE_CONFIG,
            _node("MIG-NODE-A", "GPU-a", "GPU-b"),
            _node("aio-node15", _FIRST, _SECOND),
            _published("software", mode="hami-core"),
            _published("software-too", mode="hami-core"),
        ),
        expected=(
            exits(0),
            placed("software", "aio-node15"),
            placed("software-too", "aio-node15"),
            node_says(
                "MIG-NODE-A",
                "devices",
                1,
                value={"uuid": "GPU-b", "healthy": True, "closed": None},
            ),
        ),
        how="the node's cards are MIG cards: pods that want hami-core go to other nodes",
        misprint="a node's name has no capitals",
    ),
    Case(
        id="002-mode-mismatch",
        printed="annotation `nvidia.com/vgpu-mode` chooses between MIG and hami-core",
        documents=join(
            _NODE_CONFIG,
            _node("MIG-NODE-A", "GPU-a", "GPU-b"),
            _published("software", mode="hami-core"),
        ),
        expected=(
            exits(3),
            pod_says("software", "reason", "nodes", "MIG-NODE-A", "code", value="ModeMismatch"),
        ),
    ),
    Case(
        id="002-device-config",
        printed="`device-config.yaml` with resource names, defaults, split count and `knownMigGeometries`",
        documents=join(
            _DEVICE_CONFIG.replace("nvidia.com/gpumem\n", "example.com/mem\n").replace(
                "defaultCores: 0", "defaultCores: 30"
            ),
            _node("aio-node15", _FIRST, _SECOND),
            pod(
                "renamed",
                {"nvidia.com/gpu": "1", "example.com/mem": "3000"},
                scheduler="hami-scheduler",
            ),
        ),
        expected=(
            exits(0),
            pod_says(
                "renamed", "allocations", 0, value={"memory_bytes": 3000 * _MIB, "core_milli": 300}
            ),
        ),
        how="the printed table is read; a renamed resource and another default show that the table applies",
        misprint="it is printed as a chart template; the values are where the chart puts them",
    ),
    Case(
        id="002-pool",
        printed="a pod without a mode may get a hami-core share: one pool",
        documents=join(
            _NODE_CONFIG,
            _DEVICE_CONFIG,
            _node("aio-node15", _FIRST, _SECOND),
            _published(mode=""),
        ),
        expected=(
            exits(0),
            placed("gpu-pod", "aio-node15"),
            pod_says(
                "gpu-pod", "allocations", 0, value={"memory_bytes": 8000 * _MIB, "mode": "share"}
            ),
            pod_says(
                "gpu-pod", "allocations", 1, value={"memory_bytes": 8000 * _MIB, "mode": "share"}
            ),
        ),
        how="two different cards, 8000 MiB each",
    ),
    Case(
        id="002-no-mig-names",
        printed="no MIG resource name (`nvidia.com/mig-1g.10gb`) on the node",
        documents=join(_NODE_CONFIG, _DEVICE_CONFIG, _node("MIG-NODE-A", "GPU-a", "GPU-b")),
        expected=(
            node_says(
                "MIG-NODE-A",
                "allocatable",
                value={
                    "nvidia.com/gpu": "20",
                    "nvidia.com/mig-1g.10gb": None,
                    "nvidia.com/mig-1g.5gb": None,
                },
            ),
        ),
    ),
    Case(
        id="002-mig-pod",
        printed="the pod: `vgpu-mode: mig`, gpu 2, gpumem 8000: two instances of at least 8 GB",
        documents=join(
            _NODE_CONFIG, _DEVICE_CONFIG, _node("MIG-NODE-A", "GPU-a", "GPU-b"), _published()
        ),
        expected=(
            exits(0),
            placed("gpu-pod", "MIG-NODE-A"),
            _instance("gpu-pod", 0, "GPU-a", "2g.10gb", 4, 10240),
            _instance("gpu-pod", 1, "GPU-a", "2g.10gb", 2, 10240),
            pod_says(
                "gpu-pod",
                "annotations",
                value={
                    "hami.io/vgpu-devices-allocated": "GPU-a[1-0],NVIDIA,10240,28:"
                    "GPU-a[1-1],NVIDIA,10240,28:;"
                },
            ),
        ),
        how="one card: the second geometry is the first with an entry of 8000 MiB; slots 0 and 1",
    ),
    Case(
        id="002-one-card",
        printed="two instances where the node has one card",
        documents=join(_NODE_CONFIG, _DEVICE_CONFIG, _node("MIG-NODE-A", "GPU-a"), _published()),
        expected=(
            exits(0),
            _instance("gpu-pod", 0, "GPU-a", "2g.10gb", 4, 10240),
            _instance("gpu-pod", 1, "GPU-a", "2g.10gb", 2, 10240),
        ),
        how="an early gate of HAMi 2.5 refuses this; the document does not",
    ),
    Case(
        id="002-templates-in-order",
        printed="templates are searched in order until one can run the task",
        documents=join(
            _NODE_CONFIG,
            _DEVICE_CONFIG,
            _node("MIG-NODE-A", "GPU-a"),
            _one("small", 5000),
            _one("medium", 9000),
            _one("large", 20000),
        ),
        expected=(
            exits(3),
            _instance("small", 0, "GPU-a", "1g.5gb", 6, 5120),
            _instance("medium", 0, "GPU-a", "2g.10gb", 4, 10240),
            pod_says("large", "reason", "code", value="MigPlacement"),
        ),
        how="1g is of the first geometry; with 2g the card is of the second, which keeps the 1g "
        "where it is; no geometry has 3g beside them",
    ),
    Case(
        id="002-layout-changes",
        printed="the layout of a card follows its pods and new demand",
        documents=join(
            _NODE_CONFIG,
            _DEVICE_CONFIG,
            _node("MIG-NODE-A", "GPU-a"),
            _running("old", "GPU-a[0-0],NVIDIA,5120,14:;", phase="Succeeded"),
            _running("kept", "GPU-a[2-0],NVIDIA,20480,42:;"),
            _one("more", 20000),
        ),
        expected=(
            exits(0),
            _instance("more", 0, "GPU-a", "3g.20gb", 0, 20480),
            pod_says(
                "more",
                "annotations",
                value={"hami.io/vgpu-devices-allocated": "GPU-a[2-1],NVIDIA,20480,42:;"},
            ),
        ),
        how="a pod that has ended holds nothing; the running instance stays where its record says",
    ),
    Case(
        id="002-any-layout",
        printed="without a template of the model: instances as the task needs them",
        documents=join(
            _NODE_CONFIG,
            _node("MIG-NODE-A", "GPU-a"),
            _one("a", 4000),
            _one("b", 9000),
            _one("c", 19000),
            _one("d", 15000),
        ),
        expected=(
            exits(3),
            _instance("a", 0, "GPU-a", "1g.5gb", 6, 4864),
            _instance("b", 0, "GPU-a", "2g.10gb", 4, 9856),
            pod_says(
                "c",
                "annotations",
                value={
                    "hami.io/vgpu-mig-allocations": '[{"containerIndex":0,"deviceIndex":0,'
                    '"gpuUUID":"GPU-a","profile":"3g.20gb","placement":{"start":0,"size":4}}]'
                },
            ),
            pod_says(
                "d",
                "reason",
                "nodes",
                "MIG-NODE-A",
                "cards",
                0,
                value={
                    "detail": "needs 3g.20gb (start 0 or 4), blocked by 3g.20gb at 0, "
                    "2g.10gb at 4, 1g.5gb at 6"
                },
            ),
        ),
        how="any layout that the card can have; written as HAMi 2.10 does",
    ),
    Case(
        id="002-before-ampere",
        printed="cards before Ampere cannot be used in mode MIG",
        documents=join(
            _NODE_CONFIG,
            _node("MIG-NODE-A", "GPU-a").replace("NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-32GB"),
            _one("a", 4000),
        ),
        expected=(
            exits(3),
            pod_says(
                "a",
                "reason",
                "nodes",
                "MIG-NODE-A",
                "cards",
                0,
                value={
                    "code": "MigPlacement",
                    "detail": "Tesla V100-SXM2-32GB cannot be cut into instances",
                },
            ),
        ),
    ),
)

ELSEWHERE: Final[tuple[Elsewhere, ...]] = (
    Elsewhere(
        "002",
        "instances are made and removed on the card",
        "the node agent",
        "test_a_bound_pod_gets_its_instances_and_gives_them_back",
    ),
    Elsewhere(
        "002",
        "restart of two pods after a change of configuration",
        "never: a change is an event and acts at once",
    ),
)

MISPRINTS: Final[tuple[Misprint, ...]] = (
    Misprint(
        "002",
        "manifests without indentation",
        "YAML",
        "indentation restored by hand in the inputs",
    ),
    Misprint(
        "002",
        "`kubectl describe cm` as the way to change it",
        "`kubectl edit cm`",
        "the ConfigMap is read",
    ),
    Misprint("002", "node name MIG-NODE-A", "a lower-case name", "names are compared as written"),
    Misprint(
        "002",
        "A100-SXM4-40GB stands twice in one list of models",
        "once",
        "the second mention has no effect",
    ),
    Misprint(
        "002",
        "7g.79gb for 80 GB cards",
        "NVIDIA calls it 7g.80gb",
        "either name: the card's own profile is meant",
    ),
    Misprint(
        "002",
        "HELP text of nodeGPUMigInstance describes the sharing mode",
        "whether an instance is used",
        "the printed text, so that its readers keep working",
    ),
)
