"""The chart's policies keep its own accounts off what no program of Partage's changes, whatever their roles let them patch."""

import copy
from functools import cache
from typing import Any

import pytest
import yaml

from charts import HELM, generate, needs_helm

celpy = pytest.importorskip("celpy", reason="cel-python is not installed: CEL is not evaluated")
pytestmark = needs_helm

Json = dict[str, Any]
SCHEDULER = "system:serviceaccount:partage-system:partage-scheduler"
AGENT = "system:serviceaccount:partage-system:partage-agent"
NODE: Json = {
    "kind": "Node",
    "metadata": {
        "name": "n1",
        "labels": {"zone": "a", "partage.io/isolation-memory": "true"},
        "annotations": {"a": "b"},
    },
    "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    "status": {"capacity": {"cpu": "8"}},
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
    text = generate.rendered(str(HELM), "default", "--set", "agent.enabled=true")
    return {
        one["metadata"]["name"].removeprefix("partage-"): one["spec"]
        for one in yaml.safe_load_all(text)
        if one and one["kind"] == "ValidatingAdmissionPolicy"
    }


def refused(user: str, after: Json, before: Json, resource: str) -> list[str]:
    """What the policy of an account says against an update by it."""
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
                "operation": "UPDATE",
            }
        ),
    }

    def holds(expression: str) -> bool:
        environment = celpy.Environment()
        return bool(environment.program(environment.compile(expression)).evaluate(bound))

    spec = policies()[name]
    listed = [
        kind for rule in spec["matchConstraints"]["resourceRules"] for kind in rule["resources"]
    ]
    if resource not in listed or not all(
        holds(one["expression"]) for one in spec["matchConditions"]
    ):
        return []
    # Whose node it is takes optional fields, which this library does not know; a genuine server is asked about that.
    return [
        one["message"]
        for one in spec["validations"]
        if "variables" not in one["expression"] and not holds(one["expression"])
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
        [{"type": "partage.io/LimitsInForce"}],
    ),
}
STEERING = {
    "a zone": (NODE, "nodes", ("metadata", "labels", "zone"), "b"),
    "no zone": (NODE, "nodes", ("metadata", "labels", "zone"), None),
    "a role": (
        NODE,
        "nodes",
        ("metadata", "labels", "node-role.kubernetes.io/control-plane"),
        "x",
    ),
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


@pytest.mark.parametrize(("before", "resource", "path", "to"), STEERING.values(), ids=STEERING)
def test_a_node_draws_no_pods_by_its_agents_token(
    before: Json, resource: str, path: tuple[Any, ...], to: Any
) -> None:
    """Labels by which others choose nodes are not the agent's."""
    assert refused(AGENT, changed(before, *path, to=to), before, resource)


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
    totals = changed(NODE, "status", "capacity", to={"koordinator.sh/gpu": "100"})

    assert not refused(SCHEDULER, woken, POD, "pods")
    assert not refused(SCHEDULER, nominated, POD, "pods/status")
    assert not refused(SCHEDULER, totals, NODE, "nodes/status")
