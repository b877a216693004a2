"""The chart's policies keep its own accounts off what no program of Partage's changes, whatever their roles let them patch."""

import copy
from functools import cache
from typing import Any

import own_fields
import pytest

from charts import HELM, generate, needs_helm, objects_of
from partage.agent.discovery.found import Found, Inventory
from partage.agent.dra.slices import PCIE_ROOT, Offered, resource_slices
from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, SliceMode, Topology
from partage.model.node import Node
from partage.vendors.mig import MIG_CARDS

celpy = pytest.importorskip("celpy", reason="cel-python is not installed: CEL is not evaluated")
cel = pytest.importorskip("partage.wire.cel")
pytestmark = needs_helm

Json = dict[str, Any]
MOST = 10**9
"""Steps of an evaluation: none of these comes near."""
SCHEDULER = "system:serviceaccount:partage-system:partage-scheduler"
AGENT = "system:serviceaccount:partage-system:partage-agent"
NODE: Json = {
    "kind": "Node",
    "metadata": {
        "name": "n1",
        "labels": {"zone": "a", "partage.io/isolation-memory": "true"},
        "annotations": {"a": "b", "flannel.alpha.coreos.com/public-ip": "10.0.0.1"},
    },
    "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"cpu": "8", "koordinator.sh/gpu": "100"},
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    },
}
POD: Json = {
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "a",
        "labels": {"a": "b"},
        "finalizers": ["x/y"],
        "ownerReferences": [{"uid": "u", "name": "job"}],
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "a"}]},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "containerStatuses": [{"name": "c", "ready": True}],
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
SLICE: Json = {
    "kind": "ResourceSlice",
    "metadata": {"name": "n1-gpu.partage.io-devices-0"},
    "spec": {
        "driver": "gpu.partage.io",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "card-0",
                "attributes": {"kind": {"string": "share"}, "memory": {"int": 2**34}},
                "capacity": {"cores": {"value": "100"}, "memory": {"value": "16Gi"}},
            },
            {
                "name": "card-0-1g",
                "attributes": {"kind": {"string": "mig"}, "profile": {"string": "1g.5gb"}},
            },
        ],
    },
}


def changed(given: Json, *path: Any, to: Any = None) -> Json:
    """A copy with one place changed; None takes it away."""
    found = copy.deepcopy(given)
    at: Any = found
    for step in path[:-1]:
        at = at.setdefault(step, {}) if isinstance(at, dict) else at[step]
    if to is None:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return found


@cache
def policies() -> dict[str, Json]:
    """The chart's policies by the end of their names."""
    options = "agent.enabled=true,agent.dra.enabled=true,scheduler.claims=true"
    text = generate.rendered(str(HELM), "extender", "--set", options)
    return {
        one["metadata"]["name"].removeprefix("partage-"): one["spec"]
        for one in objects_of(text)
        if one and one["kind"] == "ValidatingAdmissionPolicy"
    }


@cache
def compiled(expression: str) -> celpy.Runner:
    """A rule, read once for all that it is asked about."""
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def refused(
    user: str, after: Json | None, before: Json | None, resource: str, *, dry: bool = False
) -> list[str]:
    """What the policy of an account says against what it writes: None before is a new object, None after is a deletion."""
    operation = "CREATE" if before is None else "DELETE" if after is None else "UPDATE"
    name = "scheduler-own-fields" if user == SCHEDULER else "agent-own-node"
    kind, _, sub = resource.partition("/")
    bound = {
        "object": celpy.json_to_cel(after),
        "oldObject": celpy.json_to_cel(before),
        "request": celpy.json_to_cel(
            {
                "userInfo": {"username": user},
                "resource": {"resource": kind},
                "subResource": sub,
                "operation": operation,
                "dryRun": dry,
            }
        ),
        "variables": celpy.json_to_cel({"node": "n1"}),
    }

    def holds(expression: str) -> bool:
        return bool(cel.counted(compiled(expression), bound, [MOST]))

    spec = policies()[name]
    listed = [
        kind
        for rule in spec["matchConstraints"]["resourceRules"]
        for kind in rule["resources"]
        if operation in rule["operations"]
    ]
    if resource not in listed or not all(
        holds(one["expression"]) for one in spec["matchConditions"]
    ):
        return []
    # Whose node it is takes optional fields, which this library does not know; a genuine server is asked about that.
    return [
        one["message"]
        for one in spec["validations"]
        if ".?" not in one["expression"] and not holds(one["expression"])
    ]


TAKEN = {
    "an image": (POD, "pods", ("spec", "containers", 0, "image"), "evil"),
    "a deadline": (POD, "pods", ("spec", "activeDeadlineSeconds"), 1),
    "a toleration": (POD, "pods", ("spec", "tolerations"), [{"operator": "Exists"}]),
    "a gate": (POD, "pods", ("spec", "schedulingGates"), [{"name": "a"}]),
    "no finalizer": (POD, "pods", ("metadata", "finalizers"), None),
    "a finalizer": (POD, "pods", ("metadata", "finalizers"), ["x/y", "z/z"]),
    "no owner": (POD, "pods", ("metadata", "ownerReferences"), None),
    "an owner": (POD, "pods", ("metadata", "ownerReferences"), [{"uid": "v", "name": "mine"}]),
    "a phase": (POD, "pods/status", ("status", "phase"), "Failed"),
    "no phase": (POD, "pods/status", ("status", "phase"), None),
    "an address": (POD, "pods/status", ("status", "podIP"), "10.0.0.2"),
    "a container's state": (
        POD,
        "pods/status",
        ("status", "containerStatuses", 0, "ready"),
        False,
    ),
    "an end of a pod": (POD, "pods/status", ("status", "reason"), "Evicted"),
    "further addresses": (POD, "pods/status", ("status", "podIPs"), [{"ip": "fd00::1"}]),
    "a host": (POD, "pods/status", ("status", "hostIP"), "10.0.0.2"),
    "another state": (
        POD,
        "pods/status",
        ("status", "ephemeralContainerStatuses"),
        [{"name": "x"}],
    ),
    "a field of tomorrow": (POD, "pods/status", ("status", "new"), "x"),
    "that a pod is not ready": (
        POD,
        "pods/status",
        ("status", "conditions", 0, "status"),
        "False",
    ),
    "that nothing is known": (POD, "pods/status", ("status", "conditions"), None),
    "a condition of others": (
        POD,
        "pods/status",
        ("status", "conditions"),
        [*POD["status"]["conditions"], {"type": "example.com/Serves", "status": "True"}],
    ),
    "an annotation of a network": (
        NODE,
        "nodes",
        ("metadata", "annotations", "flannel.alpha.coreos.com/public-ip"),
        "10.0.0.2",
    ),
    "no annotation of a network": (
        NODE,
        "nodes",
        ("metadata", "annotations", "flannel.alpha.coreos.com/public-ip"),
        None,
    ),
    "a zone": (NODE, "nodes", ("metadata", "labels", "zone"), "b"),
    "no zone": (NODE, "nodes", ("metadata", "labels", "zone"), None),
    "a role": (
        NODE,
        "nodes",
        ("metadata", "labels", "node-role.kubernetes.io/control-plane"),
        "x",
    ),
    "no driver": (NODE, "nodes", ("metadata", "labels", "nvidia.com/gpu.deploy.driver"), "false"),
    "a taint": (NODE, "nodes", ("spec", "taints"), [{"key": "b", "effect": "NoExecute"}]),
    "no taint": (NODE, "nodes", ("spec", "taints"), None),
    "cordon": (NODE, "nodes", ("spec", "unschedulable"), True),
}
NEEDED = {
    "a note": (NODE, "nodes", ("metadata", "annotations", "partage.io/agent-notes"), "[]"),
    "a card's model": (
        NODE,
        "nodes",
        ("metadata", "labels", "node.koordinator.sh/gpu-model"),
        "T4",
    ),
    "a product": (NODE, "nodes", ("metadata", "labels", "nvidia.com/gpu.product"), "T4"),
    "isolation": (NODE, "nodes", ("metadata", "labels", "partage.io/isolation-memory"), "false"),
    "qGPU": (NODE, "nodes", ("metadata", "labels", "qgpu-device-enable"), "enable"),
    "a condition": (
        POD,
        "pods/status",
        ("status", "conditions"),
        [*POD["status"]["conditions"], {"type": "partage.io/SharesAdjusted"}],
    ),
}
BY_THE_SCHEDULER = {
    "a kubelet's address": (("status", "addresses", 0, "address"), "10.0.0.2"),
    "a kubelet's port": (("status", "daemonEndpoints", "kubeletEndpoint", "Port"), 1),
    "that a node is not ready": (("status", "conditions", 0, "status"), "False"),
    "no conditions": (("status", "conditions"), None),
    "CPU": (("status", "capacity", "cpu"), "1000"),
    "no CPU": (("status", "capacity", "cpu"), None),
    "memory": (("status", "allocatable"), {"memory": "1Ti"}),
}


@pytest.mark.parametrize("user", [SCHEDULER, AGENT], ids=["scheduler", "agent"])
@pytest.mark.parametrize(("before", "resource", "path", "to"), TAKEN.values(), ids=TAKEN)
def test_no_stolen_token_takes_this(
    user: str, before: Json, resource: str, path: tuple[Any, ...], to: Any
) -> None:
    """What pods run, where nodes take pods, and what kubelets say."""
    if user == AGENT and resource == "pods":
        pytest.skip("the agent has no right to change pods beside their status")
    assert refused(user, changed(before, *path, to=to), before, resource)
    assert not refused(
        "system:serviceaccount:partage-system:else",
        changed(before, *path, to=to),
        before,
        resource,
    )


@pytest.mark.parametrize("user", [SCHEDULER, AGENT], ids=["scheduler", "agent"])
@pytest.mark.parametrize(("before", "resource", "path", "to"), NEEDED.values(), ids=NEEDED)
def test_what_the_programs_write_passes(
    user: str, before: Json, resource: str, path: tuple[Any, ...], to: Any
) -> None:
    """Labels and annotations of theirs, and conditions."""
    assert not refused(user, changed(before, *path, to=to), before, resource)


@pytest.mark.parametrize(("path", "to"), BY_THE_SCHEDULER.values(), ids=BY_THE_SCHEDULER)
def test_a_node_is_where_and_what_its_kubelet_says(path: tuple[Any, ...], to: Any) -> None:
    """The scheduler's account writes only amounts of devices in its status."""
    assert refused(SCHEDULER, changed(NODE, *path, to=to), NODE, "nodes/status")


@pytest.mark.parametrize(
    "path",
    [
        ("annotations", "partage.io/allocation"),
        ("annotations", "partage.io/permit"),
        ("annotations", "cluster-autoscaler.kubernetes.io/safe-to-evict"),
        ("labels", "a"),
        ("labels", "app"),
    ],
)
@pytest.mark.parametrize("to", ["other", None])
def test_an_agent_writes_what_it_enforces_and_nothing_else_on_pods(
    path: tuple[str, str], to: str | None
) -> None:
    """No record, no permit, nothing by which others choose pods: new ones, changed ones, removed ones."""
    known = changed(POD, "metadata", path[0], to={path[1]: "this", "partage.io/enforced": "{}"})
    assert refused(AGENT, changed(known, "metadata", *path, to=to), known, "pods/status")
    bare = {"metadata": {"name": "p"}, "spec": POD["spec"], "status": POD["status"]}
    assert refused(AGENT, changed(bare, "metadata", *path, to="new"), bare, "pods/status")
    assert refused(AGENT, changed(known, "metadata", path[0]), known, "pods/status")

    for before in (POD, known) if path[0] == "annotations" else (POD,):
        said = changed(before, "metadata", "annotations", "partage.io/enforced", to="{1}")
        assert not refused(AGENT, said, before, "pods/status")


def test_the_scheduler_may_wake_pods_and_count_devices() -> None:
    """What it does all day."""
    woken = changed(POD, "metadata", "annotations", to={"partage.io/woken": "1"})
    nominated = changed(POD, "status", "nominatedNodeName", to="n1")
    totals = changed(NODE, "status", "capacity", "koordinator.sh/gpu", to="200")
    evicted = [*POD["status"]["conditions"], {"type": "DisruptionTarget", "status": "True"}]

    assert not refused(SCHEDULER, woken, POD, "pods")
    assert not refused(SCHEDULER, nominated, POD, "pods/status")
    assert not refused(SCHEDULER, totals, NODE, "nodes/status")
    assert not refused(
        SCHEDULER, changed(POD, "status", "conditions", to=evicted), POD, "pods/status"
    )
    for key in ("partage.io/leader", "hami.io/vgpu-node", "tke.cloud.tencent.com/qgpu-pgpu-main"):
        labelled = changed(POD, "metadata", "labels", key, to="x")
        assert not refused(SCHEDULER, labelled, POD, "pods")
        assert not refused(SCHEDULER, POD, labelled, "pods")


CLAIM: Json = {
    "kind": "ResourceClaim",
    "metadata": {
        "name": "c",
        "namespace": "a",
        "labels": {"a": "b"},
        "annotations": {"resource.kubernetes.io/pod-claim-name": "card"},
        "finalizers": ["resource.kubernetes.io/delete-protection"],
        "ownerReferences": [{"uid": "u", "name": "p"}],
    },
    "status": {"allocation": {"devices": {"results": []}}},
}
OF_CLAIMS = {
    "no protection": (("finalizers",), None),
    "an end that never comes": (("finalizers",), ["x/y"]),
    "an owner": (("ownerReferences",), [{"uid": "v", "name": "mine"}]),
    "no owner": (("ownerReferences",), None),
    "a label": (("labels", "a"), "c"),
    "another pod": (("annotations", "resource.kubernetes.io/pod-claim-name"), "other"),
    "no pod": (("annotations",), None),
}


@pytest.mark.parametrize(("path", "to"), OF_CLAIMS.values(), ids=OF_CLAIMS)
def test_a_claim_keeps_its_pod_and_its_protection(path: tuple[str, ...], to: Any) -> None:
    """What the scheduler's account writes of it is a note."""
    assert refused(SCHEDULER, changed(CLAIM, "metadata", *path, to=to), CLAIM, "resourceclaims")
    noted = changed(CLAIM, "metadata", "labels", "partage.io/outdated", to="now")
    assert not refused(SCHEDULER, noted, CLAIM, "resourceclaims")
    again = changed(CLAIM, "metadata", "labels", "partage.io/outdated", to="later")
    assert not refused(SCHEDULER, again, noted, "resourceclaims")


def test_a_claim_without_an_allocation_loses_kube_schedulers_finalizer_alone() -> None:
    """It is admitted again after kube-scheduler has begun to allocate it again."""
    ours = "resource.kubernetes.io/delete-protection"
    for status in ({}, None):
        free = changed(CLAIM, "status", to=status)
        both = changed(free, "metadata", "finalizers", to=["x/y", ours])
        for before, left in ((free, None), (free, []), (both, ["x/y"])):
            begins = changed(before, "metadata", "finalizers", to=left)
            assert not refused(SCHEDULER, begins, before, "resourceclaims")
            assert refused(SCHEDULER, before, begins, "resourceclaims")
        for left in ([ours], [], ["x/y", ours, "z/z"], ["z/z"]):
            other = changed(both, "metadata", "finalizers", to=left)
            assert refused(SCHEDULER, other, both, "resourceclaims")


@pytest.mark.parametrize("options", ["scheduler.seam=plugin,scheduler.claims=true", ""])
def test_no_policy_of_claims_is_in_kube_schedulers_way(options: str) -> None:
    """With the plugin it has the same account; and without claims there is no right to change one."""
    text = generate.rendered(str(HELM), "extender", *(["--set", options] if options else []))
    (policy,) = (
        one["spec"]
        for one in objects_of(text)
        if one
        and one["kind"] == "ValidatingAdmissionPolicy"
        and "own-fields" in str(one["metadata"])
    )
    assert "resourceclaims" not in str(policy["matchConstraints"])
    assert "resourceclaims" not in str(policy["validations"])


OFFERED = {
    "another node's pool": (("spec", "pool", "name"), "n2"),
    "another driver": (("spec", "driver"), "gpu.example.com"),
    "a name of its own": (("metadata", "name"), "x"),
    "another node's name": (("metadata", "name"), "n2-gpu.partage.io-devices-0"),
    "one of a thousand": (("metadata", "name"), "n1-gpu.partage.io-devices-100"),
    "a probe to stay": (("metadata", "name"), "n1-gpu.partage.io-probe-0"),
    "a device without a word": (("spec", "devices", 0, "attributes"), None),
    "no kind": (("spec", "devices", 0, "attributes", "kind"), None),
    "a number for a kind": (("spec", "devices", 0, "attributes", "kind"), {"int": 1}),
    "a kind of its own": (("spec", "devices", 0, "attributes", "kind"), {"string": "x"}),
    "a share without memory": (("spec", "devices", 0, "attributes", "memory"), None),
    "memory in words": (("spec", "devices", 0, "attributes", "memory"), {"string": "1"}),
    "a share without amounts": (("spec", "devices", 0, "capacity"), None),
    "a share without compute": (("spec", "devices", 0, "capacity", "cores"), None),
    "a number for a model": (("spec", "devices", 0, "attributes", "model"), {"int": 1}),
    "a text for a version": (
        ("spec", "devices", 0, "attributes", "driverVersion"),
        {"string": "535"},
    ),
    "an index in words": (("spec", "devices", 1, "attributes", "index"), {"string": "1"}),
    "an instance without profile": (("spec", "devices", 1, "attributes", "profile"), None),
    "a finalizer": (("metadata", "finalizers"), ["x/y"]),
}


@pytest.mark.parametrize(("path", "to"), OFFERED.values(), ids=OFFERED)
def test_an_agent_offers_its_own_cards_as_an_agent_does(path: tuple[Any, ...], to: Any) -> None:
    """A selector that names what one device lacks is an error for every pod with such a claim, wherever it could go."""
    assert refused(AGENT, changed(SLICE, *path, to=to), None, "resourceslices")
    assert not refused(AGENT, SLICE, None, "resourceslices")
    assert not refused(AGENT, SLICE, SLICE, "resourceslices")
    assert not refused(AGENT, None, SLICE, "resourceslices")


def test_what_an_agent_really_offers_passes() -> None:
    """Cards that serve shares and instances, of which all is known, and one of which little is."""
    axis = MIG_CARDS["A100-80GB"].axis
    both = Device(
        type=DeviceType.GPU,
        minor=0,
        uuid="GPU-0",
        vendor="nvidia",
        model="A100-SXM4-80GB",
        memory_bytes=80 * 2**30,
        mode=SliceMode.EITHER,
        cutting=Cutting(axis, frozenset()),
        topology=Topology(numa=1, pcie="pci0000:00"),
    )
    bare = Device(
        type=DeviceType.GPU, minor=1, uuid="GPU-1", vendor="nvidia", memory_bytes=2**30, slots=4
    )
    known = Found(both, product="NVIDIA A100", driver="535.104.05", architecture="Ampere")
    offered = resource_slices(
        Node("n1", devices=(both, bare)),
        Inventory((known,)),
        "u-1",
        3,
        Offered(instances=True, taints=True),
    )
    attributes = {
        name
        for part in offered
        for device in part["spec"].get("devices", ())
        for name in device["attributes"]
    }
    assert len(attributes) > 10
    for part in offered:
        assert not refused(AGENT, part, None, "resourceslices")
    # Which types there are is listed where the rules are made.
    assert attributes <= {one for those in own_fields.ATTRIBUTES.values() for one in those} | {
        PCIE_ROOT
    }


def test_an_agent_takes_no_slice_of_other_drivers_away() -> None:
    """The slice may be of the agent's own node."""
    others = changed(SLICE, "spec", "driver", to="gpu.example.com")
    assert refused(AGENT, None, others, "resourceslices")


def test_an_agent_may_ask_what_the_api_server_would_keep() -> None:
    """It may do so in dry runs, with a device that says nothing."""
    probe = changed(SLICE, "metadata", "name", to="n1-gpu.partage.io-probe-0")
    probe = changed(probe, "spec", "devices", to=[{"name": "probe"}])
    assert not refused(AGENT, probe, None, "resourceslices", dry=True)


@pytest.mark.parametrize(("many", "fine"), [(256, True), (257, False)])
def test_a_device_object_has_so_many_devices(many: int, fine: bool) -> None:  # noqa: FBT001 # a case
    """Every program that follows them reads them all at each change."""
    device = {"metadata": {"name": "n1"}, "spec": {"devices": [{"minor": 0}] * many}}
    bare = {"metadata": {"name": "n1"}, "spec": {}}
    assert (not refused(AGENT, device, bare, "devices")) is fine
    assert (not refused(AGENT, device, None, "devices")) is fine


@pytest.mark.parametrize("resource", ["devices", "leases"])
def test_an_agent_keeps_no_object_from_being_deleted(resource: str) -> None:
    """A Device or Lease with a finalizer would outlive the release."""
    plain = {"metadata": {"name": "n1"}, "spec": {}}
    held = {"metadata": {"name": "n1", "finalizers": ["x/y"]}, "spec": {}}
    assert refused(AGENT, held, None, resource)
    assert refused(AGENT, held, plain, resource)
    assert refused(AGENT, plain, held, resource)
    assert not refused(AGENT, held, held, resource)
