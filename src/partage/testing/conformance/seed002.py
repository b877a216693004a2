"""Cases of seed 002: HAMi's dynamic MIG, as far as this release goes."""

from typing import Final

from partage.testing.conformance.case import Case, Later, Misprint
from partage.testing.conformance.parts import exits, join, node, node_says, placed, pod, pod_says

__all__ = ["CASES", "LATER", "MISPRINTS"]

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
        how="the node's cards are MIG cards: pods that want hami-core go elsewhere",
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
        how="the printed table is read; a renamed resource and another default show that it rules",
        misprint="it is printed as a chart template; the values stand where the chart puts them",
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
        id="002-mig-pod-waits",
        printed="the pod: `vgpu-mode: mig`, gpu 2, gpumem 8000: two instances of at least 8 GB",
        documents=join(
            _NODE_CONFIG, _DEVICE_CONFIG, _node("MIG-NODE-A", "GPU-a", "GPU-b"), _published()
        ),
        expected=(
            exits(3),
            pod_says("gpu-pod", "reason", "nodes", "MIG-NODE-A", "code", value="MigPlacement"),
        ),
        how="only that it waits with this reason; placing it is in the table below",
    ),
)

LATER: Final[tuple[Later, ...]] = (
    Later(
        "002",
        "the pod gets two MIG instances, created as needed",
        "exact MIG placement",
        "waits with MigPlacement",
    ),
    Later(
        "002",
        "templates are searched in order until one can run the pod",
        "exact MIG placement",
        "the table is read",
    ),
    Later(
        "002",
        "the layout of a card changes with its pods and new demand",
        "exact MIG placement and the node agent",
    ),
    Later("002", "metrics `nodeGPUMigInstance{…}` on port 31993", "the scheduler service"),
    Later("002", "cards before Ampere cannot be in mode mig", "exact MIG placement"),
    Later(
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
        "indentation restored by hand in the inputs below",
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
        "the second has no effect",
    ),
    Misprint(
        "002",
        "7g.79gb for 80 GB cards",
        "NVIDIA calls it 7g.80gb",
        "either name, by MIG placement",
    ),
    Misprint(
        "002",
        "HELP text of nodeGPUMigInstance describes the sharing mode",
        "whether an instance is used",
        "comes with the metrics",
    ),
)
