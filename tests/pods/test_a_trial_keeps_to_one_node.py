"""The trial on one node of docs/how-to/install.md, step by step: what the other node and its pods see, and what is left.

A DaemonSet stands in for NVIDIA's plugin, and the agent's cards are simulated.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pods_cluster
import pytest
from pods_cluster import SYSTEM, Cluster

pytestmark = pytest.mark.timeout(1800)
NODE, OTHER = "b", "a"
LABELS = ("nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.mig-manager")
Json = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The nodes, with nothing of Partage's on them."""
    folder = Path(tempfile.mkdtemp(prefix="trial-", dir="/tmp"))  # its sockets need a short path
    try:
        with pods_cluster.cluster(folder) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def apply(cluster: Cluster, body: Json) -> None:
    """`kubectl apply`."""
    path = cluster.folder / "applied.json"
    path.write_text(json.dumps(body))
    cluster.kubectl("apply", "-f", str(path))


def sleeping(limits: dict[str, str], **spec: Any) -> Json:
    """The spec of a pod that runs until it is ended."""
    container = {
        "name": "main",
        "image": "busybox",
        "imagePullPolicy": "Never",
        "command": ["sleep", "100000"],
        "resources": {"limits": limits},
    }
    return {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}


def device_pod(name: str, **spec: Any) -> Json:
    """A pod that asks for a share by HAMi's names."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": sleeping(limits, **spec),
    }


def plugins_on(cluster: Cluster) -> set[str]:
    """Nodes where a pod of the substitute for NVIDIA's plugin runs."""
    found = cluster.pods("app%3Dplugin", "kube-system")
    return {one["spec"]["nodeName"] for one in found if one["status"]["phase"] == "Running"}


def agents_on(cluster: Cluster) -> set[str]:
    """Nodes with an agent."""
    found = cluster.pods("app.kubernetes.io/component%3Dagent")
    return {one["spec"].get("nodeName", "") for one in found}


def test_the_steps_of_the_page_lead_there_and_back(cluster: Cluster) -> None:
    """Only the node of the trial has cards of Partage, and afterwards NVIDIA's plugin is back on it."""
    apply(
        cluster,
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "plugin", "namespace": "kube-system"},
            "spec": {
                "selector": {"matchLabels": {"app": "plugin"}},
                "template": {
                    "metadata": {"labels": {"app": "plugin"}},
                    "spec": sleeping(
                        {}, tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]
                    ),
                },
            },
        },
    )
    cluster.eventually("the plugin runs", lambda: plugins_on(cluster) == {NODE, OTHER})

    pods_cluster.installed(
        cluster,
        "--set",
        "webhook.convertDefault=false",
        "--set",
        "agent.nodeSelector.gpu-agent=yes",
    )
    assert not agents_on(cluster)
    apply(cluster, device_pod("others"))
    (others,) = cluster.pods(namespace="default")
    assert others["spec"]["schedulerName"] == "default-scheduler"

    cluster.kubectl("taint", "node", NODE, "trial=partage:NoSchedule")
    cluster.kubectl("drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=4m")
    cluster.kubectl("label", "node", NODE, "gpu-agent=yes", *(f"{one}=false" for one in LABELS))
    cluster.kubectl("uncordon", NODE)
    here = f"--field-selector=spec.nodeName={NODE}"
    cluster.kubectl("delete", "pod", "-n", "kube-system", "-l", "app=plugin", here)
    cluster.eventually("the agent is there", lambda: agents_on(cluster) == {NODE})

    toleration = {"key": "trial", "value": "partage", "effect": "NoSchedule"}
    apply(
        cluster, device_pod("tried", schedulerName="partage-scheduler", tolerations=[toleration])
    )
    cluster.kubectl("wait", "pod/tried", "--for=condition=Ready", "--timeout=4m")
    found = {one["metadata"]["name"]: one for one in cluster.pods(namespace="default")}
    assert found["tried"]["spec"]["nodeName"] == NODE
    assert "partage.io/allocation" in found["tried"]["metadata"]["annotations"]
    assert "partage.io/allocation" not in found["others"]["metadata"].get("annotations", {})
    assert plugins_on(cluster) == {OTHER}

    cluster.kubectl("delete", "pod", "-n", "default", "--all")
    cluster.helm("uninstall", "partage", "--wait", "--timeout", "4m")
    cluster.kubectl("label", "node", NODE, "gpu-agent-", *(f"{one}-" for one in LABELS))
    cluster.kubectl("taint", "node", NODE, "trial-")
    cluster.eventually("the plugin is back", lambda: plugins_on(cluster) == {NODE, OTHER})
    assert not cluster.pods(namespace=SYSTEM)
