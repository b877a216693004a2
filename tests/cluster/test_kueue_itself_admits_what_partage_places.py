"""Kueue admits by the totals of deploy/integrations/kueue.yaml, and Partage places what it let go: genuine both."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stack as partage_stack
import yaml
from neighbours import Kueue, program
from stack import Layout, Stack, documents, eventually, own_address

ROOT = Path(__file__).parents[2]
RECORD = "partage.io/allocation"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
QUOTA = {
    "partage.io/card-percent": 150,
    "partage.io/card-memory": "30Gi",
    "partage.io/card-memory-percent": 100,
    "partage.io/devices": 4,
}
"""Of one queue, on a node of eight cards: it holds before the cards do."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A cluster with Partage, a node of eight cards, and Kueue with a queue."""
    program("kueue")
    own = own_address()
    if not own or own.startswith("127."):
        pytest.skip("this machine has no address but loopback's, which no EndpointSlice may name")
    folder = tmp_path_factory.mktemp("kueue")
    flags = ("--enable-aggregator-routing=true",)
    with partage_stack.stack(folder, flags=flags, layout=Layout(plugged=True)) as made:
        made.add_nodes(documents(ROOT / "examples" / "koordinator" / "host05.yaml"))
        printed = yaml.safe_load((ROOT / "deploy/integrations/kueue.yaml").read_text())
        Kueue(made, own).start(printed["resources"])
        covered = [{"name": name, "nominalQuota": amount} for name, amount in QUOTA.items()]
        flavor = {"name": "cards", "resources": covered}
        group = {"coveredResources": list(QUOTA), "flavors": [flavor]}
        api = "kueue.x-k8s.io/v1beta2"
        queues = [
            {"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "cards"}},
            {
                "apiVersion": api,
                "kind": "ClusterQueue",
                "metadata": {"name": "all"},
                "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
            },
            {
                "apiVersion": api,
                "kind": "LocalQueue",
                "metadata": {"name": "team", "namespace": "default"},
                "spec": {"clusterQueue": "all"},
            },
        ]
        path = folder / "queues.yaml"
        path.write_text(yaml.safe_dump_all(queues))

        def applied() -> bool:
            try:
                made.shell(f"kubectl apply -f {path}")
            except AssertionError:  # its webhook does not listen yet
                return False
            return True

        eventually("Kueue takes the queues", applied)
        yield made


def job(stack: Stack, name: str, limits: dict[str, str]) -> None:
    """A Job of one pod in the queue."""
    container = {"name": "main", "image": "example", "resources": {"limits": limits}}
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    head = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "team"}}
    body = {"metadata": head, "spec": {"suspend": True, "template": {"spec": spec}}}
    stack.plane.call("POST", JOBS, body)


def placed(stack: Stack, name: str) -> dict[str, Any]:
    """The pod of a Job once it has a node: its only device, by its record."""

    def ask() -> Any:
        query = f"?labelSelector=batch.kubernetes.io/job-name%3D{name}"
        found = stack.plane.call("GET", f"/api/v1/namespaces/default/pods{query}")["items"]
        bound = [one for one in found if one["spec"].get("nodeName")]
        return bound[0] if bound else None

    pod = eventually(f"the pod of {name} is placed", ask)
    record = json.loads(pod["metadata"]["annotations"][RECORD])
    ((device,),) = (one["devices"] for one in record["containers"])
    return dict(device)


def charged(stack: Stack, name: str) -> dict[str, str] | None:
    """What Kueue charges for a Job; None while it is not admitted."""
    for one in stack.plane.call("GET", WORKLOADS)["items"]:
        if one["metadata"]["ownerReferences"][0]["name"] == name and "admission" in one["status"]:
            (found,) = one["status"]["admission"]["podSetAssignments"]
            return dict(found["resourceUsage"])
    return None


def test_kueue_admits_by_card_totals_and_partage_places_the_shares(stack: Stack) -> None:
    """Of three protocols in one quota; what is over it waits suspended, and comes when another ends."""
    job(
        stack,
        "qgpu",
        {"tke.cloud.tencent.com/qgpu-core": "50", "tke.cloud.tencent.com/qgpu-memory": "10"},
    )
    job(stack, "koordinator", {"koordinator.sh/gpu": "50"})
    job(
        stack,
        "hami",
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10240", "nvidia.com/gpucores": "50"},
    )
    assert placed(stack, "qgpu")["milli"] == 500
    assert placed(stack, "koordinator")["milli"] == 500
    assert placed(stack, "hami")["bytes"] == 10 * 2**30
    assert charged(stack, "qgpu") == {
        "partage.io/card-percent": "50",
        "partage.io/card-memory": str(10 * 2**30),
    }
    assert charged(stack, "koordinator") == {
        "partage.io/card-percent": "50",
        "partage.io/card-memory-percent": "50",
    }
    assert charged(stack, "hami") == {
        "partage.io/card-percent": "50",
        "partage.io/card-memory": str(10 * 2**30),
        "partage.io/devices": "1",
    }

    job(stack, "late", {"koordinator.sh/gpu": "20"})
    eventually("it is in the queue", lambda: len(stack.plane.call("GET", WORKLOADS)["items"]) == 4)
    late = next(
        one
        for one in stack.plane.call("GET", WORKLOADS)["items"]
        if one["metadata"]["ownerReferences"][0]["name"] == "late"
    )

    def says_why() -> Any:
        where = f"{WORKLOADS}/{late['metadata']['name']}"
        conditions = stack.plane.call("GET", where).get("status", {}).get("conditions", ())
        return [c["message"] for c in conditions if c["type"] == "QuotaReserved"]

    (why,) = eventually("Kueue says why it waits", says_why)
    assert "partage.io/card-percent" in why
    assert stack.plane.call("GET", f"{JOBS}/late")["spec"]["suspend"] is True
    stack.plane.call("DELETE", f"{JOBS}/qgpu?propagationPolicy=Background")
    assert placed(stack, "late")["milli"] == 200
