"""The parts of Kubernetes documents that Partage reads, as typed shapes.

Decoding into a shape checks types and drops every field that is not named here, which makes large
lists fast. Kubernetes accepts `null` for any absent field, so every field may be None.
Quantities of a node or device are texts or numbers. Those of a pod stay undecoded, because a bad
device quantity is the pod's fault and not the document's.

Source: Kubernetes API v1.36, apps/v1, batch/v1, scheduling.k8s.io/v1; docs/sources/koordinator.md 1 (Device).
"""

from typing import Any

import msgspec

Amount = str | int | float | None
Texts = dict[str, str | None] | None


class _Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The base of every shape: immutable, no reference cycles, camelCase in documents."""


class Unread(_Part, frozen=True):
    """A part of which only the presence is read; as a dictionary it would take seven times its text."""


class Owner(_Part, frozen=True):
    """An owner reference."""

    kind: str | None = None
    name: str | None = None
    controller: bool | None = None


class Metadata(_Part, frozen=True):
    """The metadata of every object."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: Texts = None
    annotations: Texts = None
    owner_references: list[Owner] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    resource_version: str | None = None
    finalizers: list[str] | None = None


class LightMetadata(Metadata, frozen=True):
    """Metadata from which annotations that nothing reads were dropped; never decoded.

    `dropped`: their bytes, keys and values.
    """

    dropped: int = 0


class Shape(_Part, frozen=True):
    """A whole document; of a namespace only its existence is read."""

    metadata: Metadata | None = None


# --- Node ------------------------------------------------------------------------------------
class Taint(_Part, frozen=True):
    """A taint of a node or a device."""

    key: str | None = None
    value: str | None = None
    effect: str | None = None


class NodeSpec(_Part, frozen=True):
    """The operator's part of a node."""

    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeCondition(_Part, frozen=True):
    """A condition of a node; its readiness matters."""

    type: str | None = None
    status: str | None = None


class NodeStatus(_Part, frozen=True):
    """The kubelet's report of a node."""

    conditions: list[NodeCondition] | None = None
    allocatable: dict[str, Amount] | None = None
    capacity: dict[str, Amount] | None = None


class Node(Shape, frozen=True):
    """A v1 Node."""

    spec: NodeSpec | None = None
    status: NodeStatus | None = None


# --- Device ----------------------------------------------------------------------------------
class VirtualFunctionEntry(_Part, frozen=True):
    """One virtual function."""

    minor: int | None = None
    bus_id: str | None = msgspec.field(default=None, name="busID")


class VirtualFunctions(_Part, frozen=True):
    """A group of virtual functions with labels of its own."""

    labels: Texts = None
    functions: list[VirtualFunctionEntry] | None = msgspec.field(default=None, name="vfs")


class DeviceTopology(_Part, frozen=True):
    """The place of a device."""

    socket: int | None = msgspec.field(default=None, name="socketID")
    node: int | None = msgspec.field(default=None, name="nodeID")
    pcie: str | None = msgspec.field(default=None, name="pcieID")
    bus: str | None = msgspec.field(default=None, name="busID")


class Condition(_Part, frozen=True):
    """A condition; its times are texts and never read (the MetaX document prints the year 20256)."""

    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None


class DeviceEntry(_Part, frozen=True):
    """One device of a Device object."""

    type: str | None = None
    id: str | None = None
    minor: int | None = None
    health: bool | None = None
    labels: Texts = None
    resources: dict[str, Amount] | None = None
    topology: DeviceTopology | None = None
    groups: list[VirtualFunctions] | None = msgspec.field(default=None, name="vfGroups")
    conditions: list[Condition] | None = None


class DeviceSpec(_Part, frozen=True):
    """All devices of a node."""

    devices: list[DeviceEntry] | None = None


class Device(Shape, frozen=True):
    """A scheduling.koordinator.sh/v1alpha1 Device: everything one node reports."""

    spec: DeviceSpec | None = None


# --- Pod -------------------------------------------------------------------------------------
class Resources(_Part, frozen=True):
    """Requests and limits as written."""

    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class Port(_Part, frozen=True):
    """A port; only a host port matters to placement."""

    host_port: int | None = None


class Container(_Part, frozen=True):
    """A container or init container."""

    name: str | None = None
    resources: Resources | None = None
    restart_policy: str | None = None
    restart_policy_rules: list[Unread] | None = None
    ports: list[Port] | None = None


class Expression(_Part, frozen=True):
    """A requirement of a node selector."""

    key: str | None = None
    operator: str | None = None
    values: list[str] | None = None


class SelectorTerm(_Part, frozen=True):
    """A node selector term."""

    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(_Part, frozen=True):
    """Terms of which one must hold."""

    terms: list[SelectorTerm] | None = msgspec.field(default=None, name="nodeSelectorTerms")


class PreferredTerm(_Part, frozen=True):
    """A term and its weight."""

    weight: int | None = None
    preference: SelectorTerm | None = None


class NodeAffinity(_Part, frozen=True):
    """Node affinity."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class BetweenPods(_Part, frozen=True):
    """Affinity between pods."""

    required: list[Unread] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[Unread] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Part, frozen=True):
    """Affinity; of that between pods only the presence is read."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: BetweenPods | None = None
    pod_anti_affinity: BetweenPods | None = None


class Spread(_Part, frozen=True):
    """A constraint on the spreading of pods."""

    when_unsatisfiable: str | None = None


class PodToleration(_Part, frozen=True):
    """A toleration."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class Gate(_Part, frozen=True):
    """A scheduling gate."""

    name: str | None = None


class PodClaimStatus(_Part, frozen=True):
    """The ResourceClaim that was created for a pod, by the pod's name for it."""

    name: str | None = None
    resource_claim_name: str | None = None


class PodClaim(PodClaimStatus, frozen=True):
    """A ResourceClaim that a pod names, or the template of one."""

    resource_claim_template_name: str | None = None


class PodSpec(_Part, frozen=True):
    """The specification of a pod."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: Resources | None = None
    overhead: dict[str, Any] | None = None
    node_name: str | None = None
    node_selector: Texts = None
    affinity: Affinity | None = None
    tolerations: list[PodToleration] | None = None
    scheduler_name: str | None = None
    service_account_name: str | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    restart_policy: str | None = None
    scheduling_gates: list[Gate] | None = None
    spread: list[Spread] | None = msgspec.field(default=None, name="topologySpreadConstraints")
    resource_claims: list[PodClaim] | None = None


class Terminated(_Part, frozen=True):
    """How a container ended."""

    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None


class ContainerState(_Part, frozen=True):
    """The current state of a container."""

    terminated: Terminated | None = None


class ContainerStatus(_Part, frozen=True):
    """The kubelet's report of a container."""

    name: str | None = None
    state: ContainerState | None = None


class PodStatus(_Part, frozen=True):
    """The kubelet's report of a pod."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] | None = None
    nominated_node_name: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaimStatus] | None = None


class Pod(Shape, frozen=True):
    """A v1 Pod."""

    spec: PodSpec | None = None
    status: PodStatus | None = None


class WorkloadSpec(_Part, frozen=True):
    """The number of pods and their template, with the fields of a Job and of the other kinds."""

    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    suspend: bool | None = None
    template: Pod | None = None


class WorkloadStatus(_Part, frozen=True):
    """The progress of a Job, and whether it is over."""

    completion_time: str | None = None
    succeeded: int | None = None
    conditions: list[Condition] | None = None


class Workload(Shape, frozen=True):
    """A Deployment, ReplicaSet, StatefulSet or Job."""

    spec: WorkloadSpec | None = None
    status: WorkloadStatus | None = None


# --- The rest --------------------------------------------------------------------------------
class ConfigMap(Shape, frozen=True):
    """A v1 ConfigMap."""

    data: Texts = None


class QuotaSpec(_Part, frozen=True):
    """Limits of a namespace."""

    hard: dict[str, Amount] | None = None
    scopes: list[str] | None = None
    scope_selector: dict[str, Any] | None = None


class ResourceQuota(Shape, frozen=True):
    """A v1 ResourceQuota."""

    spec: QuotaSpec | None = None


class LabelSelector(_Part, frozen=True):
    """Labels that an object must have."""

    match_labels: Texts = None
    match_expressions: list[Expression] | None = None


class DisruptionMetadata(Metadata, frozen=True):
    """The metadata of a PodDisruptionBudget; a change of its spec raises `generation`."""

    generation: int | None = None


class DisruptionSpec(_Part, frozen=True):
    """The pods whose disruption is limited."""

    selector: LabelSelector | None = None


class DisruptionStatus(_Part, frozen=True):
    """The counts of the disruption controller."""

    disruptions_allowed: int | None = None
    disrupted_pods: dict[str, Any] | None = None
    observed_generation: int | None = None


class DisruptionBudget(Shape, frozen=True):
    """A policy/v1 PodDisruptionBudget."""

    metadata: DisruptionMetadata | None = None
    spec: DisruptionSpec | None = None
    status: DisruptionStatus | None = None


class PriorityClass(Shape, frozen=True):
    """A scheduling.k8s.io/v1 PriorityClass."""

    value: int | None = None
    global_default: bool | None = None


# --- Dynamic resource allocation -------------------------------------------------------------
class ResourceClaim(Shape, frozen=True):
    """A resource.k8s.io/v1 ResourceClaim; its allocation is read with care, field by field."""

    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class ClaimTemplateSpec(_Part, frozen=True):
    """The claim that a template makes."""

    spec: dict[str, Any] | None = None


class ResourceClaimTemplate(Shape, frozen=True):
    """A resource.k8s.io/v1 ResourceClaimTemplate."""

    spec: ClaimTemplateSpec | None = None


class CelSelector(_Part, frozen=True):
    """A CEL expression that is true for the intended devices."""

    expression: str = ""


class DeviceSelector(_Part, frozen=True):
    """The intended devices."""

    cel: CelSelector | None = None


class DeviceClassSpec(_Part, frozen=True):
    """The devices of a class."""

    selectors: list[DeviceSelector] | None = None


class DeviceClass(Shape, frozen=True):
    """A resource.k8s.io/v1 DeviceClass."""

    spec: DeviceClassSpec | None = None


class AmountRange(_Part, frozen=True):
    """The amounts that one share may have."""

    min: Amount = None
    max: Amount = None
    step: Amount = None


class AmountPolicy(_Part, frozen=True):
    """The amounts that one share takes."""

    default: Amount = None
    valid_values: list[Amount] | None = None
    valid_range: AmountRange | None = None


class DeviceCapacity(_Part, frozen=True):
    """An amount of a device or of a counter."""

    value: Amount = None
    request_policy: AmountPolicy | None = None


class CounterSet(_Part, frozen=True):
    """Counters from which devices of a pool take amounts."""

    name: str = ""
    counters: dict[str, DeviceCapacity] | None = None


class CountersTaken(_Part, frozen=True):
    """The amounts that a device takes of a set of counters."""

    counter_set: str = ""
    counters: dict[str, DeviceCapacity] | None = None


class SliceDevice(_Part, frozen=True):
    """One device of a ResourceSlice."""

    name: str = ""
    attributes: dict[str, dict[str, Any]] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: list[CountersTaken] | None = None
    taints: list[Taint] | None = None
    allow_multiple_allocations: bool | None = None
    node_name: str | None = None
    all_nodes: bool | None = None


class Pool(_Part, frozen=True):
    """The pool of a slice."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(_Part, frozen=True):
    """Devices of one driver."""

    driver: str = ""
    pool: Pool = Pool()
    node_name: str | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[SliceDevice] | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSlice(Shape, frozen=True):
    """A resource.k8s.io/v1 ResourceSlice."""

    spec: ResourceSliceSpec | None = None
