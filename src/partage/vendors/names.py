"""Every key that Partage reads or writes: resource names, labels and annotations.

No other module of the package spells out such a key. Sources: the four published documents;
docs/sources/koordinator.md, docs/sources/hami.md, docs/sources/qgpu.md.
"""

from typing import Final

# --- Partage -------------------------------------------------------------------------------
ALLOCATION: Final = "partage.io/allocation"
PERMIT: Final = "partage.io/permit"
"""Annotation of a pod beside its record: the wishes that an operator's rule grants it."""
NODE_POLICY: Final = "partage.io/node-policy"
CARD_POLICY: Final = "partage.io/card-policy"
ORIGINAL_REQUEST: Final = "partage.io/original-request"
MIG_PROFILE: Final = "partage.io/mig-profile"
PCI_PRODUCT: Final = "partage.io/pci-product"
MIG_MODE: Final = "partage.io/mig-mode"
"""Label of a device in a Device object: the card is switched to hardware instances."""
MIG_ENABLED: Final = "enabled"
FOREIGN_INSTANCES: Final = "partage.io/foreign-instances"
"""Annotation of a Device object: instances on its cards that Partage did not make."""
MIG_PROFILES: Final = "partage.io/mig-profiles"
"""Annotation of a Device object: the instances that its cards' own driver reports as possible."""
WOKEN: Final = "partage.io/woken"
TRACEPARENT: Final = "partage.io/traceparent"
"""The trace of a pod's spans; written if traces are on, and by users that already have one."""
AGENT: Final = "partage.io/agent"
"""Label of a node agent's Lease."""
AGENT_SILENT: Final = "partage.io/agent-silent"
"""Annotation of a node whose agent is away: since when, and the seconds after which that counts."""
AGENT_NOTES: Final = "partage.io/agent-notes"
"""Annotation of a node: facts about its agent for operators that cause no refusal."""
ISOLATION_PROVIDER: Final = "partage.io/isolation-provider"
"""Label of a node with NVIDIA cards: the provider that keeps software shares to their amounts."""
ISOLATION_MEMORY: Final = "partage.io/isolation-memory"
"""Label of a node: `true` if that provider limits memory to the grant, else `false`."""
ISOLATION_COMPUTE: Final = "partage.io/isolation-compute"
"""Label of a node: `true` if that provider limits compute to policy and quota, else `false`."""
LEADER: Final = "partage.io/leader"
LEASE_DEADLINE: Final = "partage.io/lease-deadline"
"""Annotation of the Lease: the moment of a renewal, and the seconds after which its holder stops."""
LEASE_ELECTED: Final = "partage.io/lease-elected-by"
"""Annotation of the Lease: the moment of a renewal, and kube-scheduler's Lease by which its holder was elected."""
CONDITION: Final = "partage.io/DeviceProblem"
"""Condition of bound pods whose devices differ from the books."""
LIMITS_CONDITION: Final = "partage.io/LimitsInForce"
"""Condition of pods that hold shares: whether they are kept to their limits, and why not."""
COMPUTE_POLICY: Final = "partage.io/compute-policy"
MEMORY_BEYOND: Final = "partage.io/memory-beyond-grant"
SERVED: Final = "partage.io/served"
ADJUST: Final = "partage.io/adjust"
ENFORCED: Final = "partage.io/enforced"
ADJUSTED_CONDITION: Final = "partage.io/SharesAdjusted"
"""Annotation of a container in the runtime's own data: the agent's answer arrived."""
DRA_DRIVER: Final = "gpu.partage.io"
"""The DRA driver: of ResourceSlices, of allocated claims, and of attributes and taints of its devices."""
SHARE_CLASS: Final = "share.gpu.partage.io"  # spelled out, for a mask of snapshots
MIG_CLASS: Final = "mig.gpu.partage.io"
"""DeviceClasses of the driver's devices, as the chart creates them: parts of cards, and hardware instances."""
CLAIM_FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Kubernetes' own: kube-scheduler sets it before it writes a claim's allocation, and it is removed with the allocation.
"""
OUTDATED: Final = "partage.io/outdated"
"""Label of a claim: the leader that wrote it, and when, so that a write with an older version fails."""
CLAIMS_LABEL: Final = "partage.io/claims"
"""Label of a namespace whose new pods ask by ResourceClaims, if they can; also of the templates made for them."""
CLAIMS_TRANSLATE: Final = "translate"
TRANSLATED: Final = "partage.io/translated"
"""Annotation of a pod whose requests became claims: of each container the claim's shape, and its author's request."""
NOT_TRANSLATED: Final = "partage.io/not-translated"
"""Annotation of a pod that keeps its protocol although others ask by claims: why."""
# The embedded cluster's simulated nodes only.
SIMULATE_LIFETIME: Final = "simulate.partage.io/lifetime"
SIMULATE_UNHEALTHY: Final = "simulate.partage.io/unhealthy"

# --- Kubernetes ----------------------------------------------------------------------------
HOSTNAME: Final = "kubernetes.io/hostname"

# --- Koordinator, and the vendors it adapts to ----------------------------------------------
# Device resources; every one but `gpu.shared` has an alias of v1.4 in the other domain.
KOORDINATOR_DOMAIN: Final = "koordinator.sh/"
KUBERNETES_DOMAIN: Final = "kubernetes.io/"
KOORD_GPU: Final = "koordinator.sh/gpu"
KOORD_GPU_CORE: Final = "koordinator.sh/gpu-core"
KOORD_GPU_MEMORY: Final = "koordinator.sh/gpu-memory"
KOORD_GPU_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
KOORD_GPU_SHARED: Final = "koordinator.sh/gpu.shared"
KOORD_RDMA: Final = "koordinator.sh/rdma"
KOORD_FPGA: Final = "koordinator.sh/fpga"
# Counts of whole cards, which Koordinator reads if no other owns them.
COUNT_NVIDIA: Final = "nvidia.com/gpu"
COUNT_AMD: Final = "amd.com/gpu"
COUNT_HYGON: Final = "dcu.com/gpu"
# Pod annotations and labels.
DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
DEVICE_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
DEVICE_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
GPU_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"
GANG_NAME: Final = "gang.scheduling.koordinator.sh/name"
POD_GROUP: Final = "pod-group.scheduling.sigs.k8s.io"
QUOTA_NAME: Final = "quota.scheduling.koordinator.sh/name"
RESERVATION_AFFINITY: Final = "scheduling.koordinator.sh/reservation-affinity"
NUMA_TOPOLOGY_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"
BIND_TIMESTAMP: Final = "scheduling.koordinator.sh/bind-timestamp"
GPU_MINORS: Final = "scheduling.koordinator.sh/gpu-minors"
GPU_ISOLATION_PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"
VGPU_NODE: Final = "hami.io/vgpu-node"
# Labels and annotations of nodes and Device objects.
GPU_VENDOR: Final = "node.koordinator.sh/gpu-vendor"
GPU_MODEL: Final = "node.koordinator.sh/gpu-model"
GPU_DRIVER_VERSION: Final = "node.koordinator.sh/gpu-driver-version"
GPU_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
NUMA_TOPOLOGY_POLICY: Final = "node.koordinator.sh/numa-topology-policy"
GPU_PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"
# Huawei: native units, the plugin's trigger, and the keys that its plugin reads.
NPU_CORE: Final = "huawei.com/npu-core"
NPU_CPU: Final = "huawei.com/npu-cpu"
NPU_DVPP: Final = "huawei.com/npu-dvpp"
ASCEND_310P: Final = "huawei.com/Ascend310P"
PREDICATE_TIME: Final = "predicate-time"
# Cambricon (the first annotation is misspelt by its plugin, so it is here).
SMLU_VCORE: Final = "cambricon.com/mlu.smlu.vcore"
SMLU_VMEMORY: Final = "cambricon.com/mlu.smlu.vmemory"
DSMLU_ASSIGNED: Final = "CAMBRICON_DSMLU_ASSIGHED"
DSMLU_PROFILE: Final = "CAMBRICON_DSMLU_PROFILE"
DSMLU_LOCK: Final = "cambricon.com/dsmlu.lock"
# MetaX.
SGPU: Final = "metax-tech.com/sgpu"
METAX_GPU: Final = "metax-tech.com/gpu"
SGPU_QOS_POLICY: Final = "metax-tech.com/sgpu-qos-policy"
METAX_DEVICES_ALLOCATED: Final = "metax-tech.com/gpu-devices-allocated"
METAX_LOCK: Final = "hami.io/mutex.lock"

# --- HAMi ----------------------------------------------------------------------------------
# Resource names are settings (`HamiSettings`), because HAMi lets operators rename them.
HAMI_VGPU_MODE: Final = "nvidia.com/vgpu-mode"
HAMI_USE_TYPE: Final = "nvidia.com/use-gputype"
HAMI_AVOID_TYPE: Final = "nvidia.com/nouse-gputype"
HAMI_USE_UUID: Final = "nvidia.com/use-gpuuuid"
HAMI_AVOID_UUID: Final = "nvidia.com/nouse-gpuuuid"
HAMI_NUMA_BIND: Final = "nvidia.com/numa-bind"
HAMI_NODE_POLICY: Final = "hami.io/node-scheduler-policy"
HAMI_CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
HAMI_WEIGHTS: Final = "hami.io/device-scoring-weights"
HAMI_POD_NODE: Final = "hami.io/vgpu-node"
HAMI_POD_TIME: Final = "hami.io/vgpu-time"
HAMI_TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
HAMI_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
HAMI_MIG_ALLOCATIONS: Final = "hami.io/vgpu-mig-allocations"
HAMI_BIND_PHASE: Final = "hami.io/bind-phase"
HAMI_BIND_TIME: Final = "hami.io/bind-time"
HAMI_REGISTER: Final = "hami.io/node-nvidia-register"
HAMI_SCORE: Final = "hami.io/node-nvidia-score"
HAMI_CORDON: Final = "hami.io/device-cordon"

# --- Tencent qGPU --------------------------------------------------------------------------
QGPU_CORE: Final = "tke.cloud.tencent.com/qgpu-core"
QGPU_MEMORY: Final = "tke.cloud.tencent.com/qgpu-memory"
QGPU_GREEDY: Final = "tke.cloud.tencent.com/qgpu-core-greedy"
QGPU_APP_CLASS: Final = "tke.cloud.tencent.com/app-class"
QGPU_POLICY: Final = "tke.cloud.tencent.com/qgpu-schedule-policy"
QGPU_ENABLE: Final = "qgpu-device-enable"
QGPU_ALLOCATED: Final = "tke.cloud.tencent.com/qgpu"
QGPU_CARDS: Final = "tke.cloud.tencent.com/qgpu-pgpu-"
"""Prefix; the container's name follows."""
QGPU_DRIVER_LABELS: Final = (
    "node.koordinator.sh/gpu-driver-version",
    "nvidia.com/cuda.driver-version.full",
)
"""Node labels that hold a whole driver version."""
QGPU_DRIVER_PARTS: Final = (
    (
        "nvidia.com/cuda.driver-version.major",
        "nvidia.com/cuda.driver-version.minor",
        "nvidia.com/cuda.driver-version.revision",
    ),
    ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev"),
)
"""Node labels that hold a driver version in three parts."""
QGPU_MODEL_LABELS: Final = ("nvidia.com/gpu.product", "node.koordinator.sh/gpu-model")
"""Node labels that name the model of the node's cards."""
