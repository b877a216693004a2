"""Helm upgrades and rolls back a release whose programs run and whose pods have devices: nothing is lost.

What the running programs wrote into the release's own objects (certificates, their authority in the webhook
configurations) must outlive both. The API server finds the webhook by its Service, as in production, so that helm's
fields of it are as the chart has them. And on this API server a Binding's labels are not copied to the pod, as before
Kubernetes 1.35 (`PodTopologyLabelsAdmission`): they come all the same.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stack as partage_stack
from chart import CHART, helm
from stack import RELEASE, SYSTEM, Layout, Stack, documents, eventually, own_address, pod

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORD = "partage.io/allocation"
QGPU = {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "5"}
LABEL = "tke.cloud.tencent.com/qgpu"
FLAGS = (
    "--enable-aggregator-routing=true",
    "--feature-gates=PodTopologyLabelsAdmission=false",
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A cluster of its own, with a node of eight cards."""
    own = own_address()
    if not own or own.startswith("127."):
        pytest.skip("this machine has no address but loopback's, which no EndpointSlice may name")
    folder = tmp_path_factory.mktemp("cluster")
    with partage_stack.stack(folder, flags=FLAGS, layout=Layout(routed=own)) as made:
        made.add_nodes(documents(EXAMPLES / "koordinator" / "host05.yaml"))
        path = "/api/v1/nodes/host05"
        eventually(
            "node totals are written",
            lambda: (
                "kubernetes.io/gpu-core" in made.plane.call("GET", path)["status"]["allocatable"]
            ),
        )
        yield made


def written(stack: Stack) -> dict[str, Any]:
    """What the programs wrote into objects of the release."""
    found: dict[str, Any] = {}
    for kind in ("mutating", "validating"):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/partage"
        (webhook,) = stack.plane.call("GET", path)["webhooks"]
        assert webhook["clientConfig"]["service"]["name"] == "partage-webhook"
        found[kind] = webhook["clientConfig"]["caBundle"]
    for name in ("partage-webhook-tls", "partage-scheduler-tls"):
        secret = stack.plane.call("GET", f"/api/v1/namespaces/{SYSTEM}/secrets/{name}")
        found[name] = secret["data"]
    return found


def record(stack: Stack, name: str) -> str:
    """A pod's record."""
    return str(stack.bound(name)["metadata"]["annotations"][RECORD])


def rolled_out(stack: Stack) -> None:
    """What the Deployments' controller does after a change: end the programs, start what they say now."""
    for name in ("scheduler", "webhook", "kube-scheduler"):
        stack.plane.processes[name].stop()
    stack.start_scheduler_service("scheduler")
    stack.start_webhook()
    stack.start_beside()
    eventually("the scheduler service is ready", stack.ready)
    eventually("the webhook is trusted", stack.admits)


def arguments(stack: Stack) -> list[str]:
    """What the scheduler service's Deployment gives it."""
    path = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/partage-scheduler"
    (container,) = stack.plane.call("GET", path)["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


def test_labels_that_a_binding_does_not_carry_come_afterwards(stack: Stack) -> None:
    """On Kubernetes 1.34 and before, a pod is bound without labels, and the controllers add them."""
    since = stack.revision()
    stack.create(pod("labelled", QGPU))
    stack.bound("labelled")
    assert LABEL not in stack.first_bound("labelled", since)["metadata"].get("labels", {})
    eventually(
        "the label is there",
        lambda: stack.pod("labelled")["metadata"].get("labels", {}).get(LABEL) == "true",
    )


def test_upgrade_and_rollback_leave_pods_and_certificates_alone(stack: Stack) -> None:
    """Records stay as they are, the webhook is trusted throughout, and pods are placed before, between and after."""
    stack.create(pod("before", QGPU))
    kept, certificates, given = record(stack, "before"), written(stack), arguments(stack)
    others = len(stack.plane.call("GET", "/api/v1/namespaces/default/pods")["items"]) - 1
    namespaced = ("-n", SYSTEM)

    helm(
        stack.plane,
        "upgrade",
        RELEASE,
        str(CHART),
        *namespaced,
        "--reset-then-reuse-values",
        "--set",
        "scheduler.auditSeconds=33,placement.policy=binpack",
    )
    assert "--audit=33" in arguments(stack)
    assert written(stack) == certificates
    assert stack.admits()
    rolled_out(stack)
    stack.create(pod("between", QGPU))
    between = record(stack, "between")

    helm(stack.plane, "rollback", RELEASE, "1", *namespaced)
    assert arguments(stack) == given
    assert written(stack) == certificates
    assert stack.admits()
    rolled_out(stack)
    stack.create(pod("after", QGPU))
    after = record(stack, "after")

    assert (record(stack, "before"), record(stack, "between")) == (kept, between)
    summary = stack.get("/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/host05")
    assert len(summary["allocateSet"]["gpu"]) == others + len([kept, between, after])
    held: dict[str, int] = {}
    for text in (kept, between, after):
        for device in json.loads(text)["containers"][0]["devices"]:
            held[device["uuid"]] = held.get(device["uuid"], 0) + device["milli"]
    assert max(held.values()) <= 1000
