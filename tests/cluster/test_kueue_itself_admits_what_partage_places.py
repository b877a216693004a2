"""Kueue admits by the totals of deploy/integrations/kueue.yaml, and Partage places what it let go: genuine both.

In one of two namespaces pods ask by ResourceClaims instead of the names that their Jobs have. Kueue counts Jobs.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stack as partage_stack
import yaml
from neighbours import Kueue, program
from stack import Layout, Stack, documents, eventually, own_address

from partage.agent.discovery.found import Inventory
from partage.agent.dra.publishing import Publisher
from partage.agent.metrics import Tallies
from partage.agent.notes import Notes
from partage.kube.client import Client
from partage.kube.loading import load_config
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.quantity import Quantity
from partage.vendors.names import CLAIMS_LABEL, CLAIMS_TRANSLATE

ROOT = Path(__file__).parents[2]
RECORD = "partage.io/allocation"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/workloads"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
SPACES = ("default", "claims")
LAYOUT = Layout(
    plugged=True,
    options=(
        "--set",
        "agent.enabled=true,agent.dra.enabled=true,agent.nodeSelector.nowhere=here",
        "--set",
        "scheduler.claims=true,scheduler.claimTemplates=true",
    ),
)
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
    with partage_stack.stack(folder, flags=flags, layout=LAYOUT) as made:
        made.add_nodes(documents(ROOT / "examples" / "koordinator" / "host05.yaml"))
        asyncio.run(offered(made, "host05"))
        labels = {CLAIMS_LABEL: CLAIMS_TRANSLATE}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "claims"}}
        space["metadata"]["labels"] = labels
        made.create(space)
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
            *(
                {
                    "apiVersion": api,
                    "kind": "LocalQueue",
                    "metadata": {"name": "team", "namespace": one},
                    "spec": {"clusterQueue": "all"},
                }
                for one in SPACES
            ),
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


async def offered(stack: Stack, node: str) -> None:
    """Publish the slices that the agent of a node would."""
    where = f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{node}"
    told = [
        one for one in stack.plane.call("GET", where)["spec"]["devices"] if one["type"] == "gpu"
    ]
    cards = tuple(
        Device(
            DeviceType.GPU,
            one["minor"],
            one["id"],
            "nvidia",
            "Tesla-T4",
            memory_bytes=Quantity.parse(one["resources"]["koordinator.sh/gpu-memory"]).floor(),
        )
        for one in told
    )
    async with Client(load_config({}, kubeconfig=stack.plane.kubeconfig())) as client:
        own = Publisher(client, node, Inventory, Tallies(), Notes(), instances=False)
        await own.once(Node(node, devices=cards))


def job(stack: Stack, space: str, name: str, limits: dict[str, str]) -> None:
    """A Job of one pod in the queue."""
    container = {"name": "main", "image": "example", "resources": {"limits": limits}}
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    head = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "team"}}
    body = {"metadata": head, "spec": {"suspend": True, "template": {"spec": spec}}}
    stack.plane.call("POST", JOBS.format(space), body)


def placed(stack: Stack, space: str, name: str) -> tuple[int, ...]:
    """Compute in percent and memory in bytes that a Job's pod has, once it has a node: by its record or its claim."""

    def ask() -> Any:
        query = f"?labelSelector=batch.kubernetes.io/job-name%3D{name}"
        found = stack.plane.call("GET", f"/api/v1/namespaces/{space}/pods{query}")["items"]
        bound = [one for one in found if one["spec"].get("nodeName")]
        return bound[0] if bound else None

    pod = eventually(f"the pod of {name} is placed", ask)
    if space == "claims":
        (status,) = pod["status"]["resourceClaimStatuses"]
        where = f"{CLAIMS.format(space)}/{status['resourceClaimName']}"
        (result,) = stack.plane.call("GET", where)["status"]["allocation"]["devices"]["results"]
        taken = result["consumedCapacity"]
        return tuple(Quantity.parse(taken[one]).floor() for one in ("cores", "memory"))
    record = json.loads(pod["metadata"]["annotations"][RECORD])
    ((device,),) = (one["devices"] for one in record["containers"])
    return device["milli"] // 10, device["bytes"]


def charged(stack: Stack, space: str, name: str) -> dict[str, str] | None:
    """What Kueue charges for a Job; None while it is not admitted."""
    for one in stack.plane.call("GET", WORKLOADS.format(space))["items"]:
        if one["metadata"]["ownerReferences"][0]["name"] == name and "admission" in one["status"]:
            (found,) = one["status"]["admission"]["podSetAssignments"]
            return dict(found["resourceUsage"])
    return None


@pytest.mark.parametrize("space", SPACES)
def test_kueue_admits_by_card_totals_and_partage_places_the_shares(
    stack: Stack, space: str
) -> None:
    """Three protocols share one quota; a Job beyond it waits suspended, and comes when another ends."""
    job(
        stack,
        space,
        "qgpu",
        {"tke.cloud.tencent.com/qgpu-core": "50", "tke.cloud.tencent.com/qgpu-memory": "10"},
    )
    job(stack, space, "koordinator", {"koordinator.sh/gpu": "50"})
    job(
        stack,
        space,
        "hami",
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10240", "nvidia.com/gpucores": "50"},
    )
    assert placed(stack, space, "qgpu") == (50, 10 * 2**30)
    assert placed(stack, space, "koordinator") == (50, 40 * 2**30)
    assert placed(stack, space, "hami") == (50, 10 * 2**30)
    assert charged(stack, space, "qgpu") == {
        "partage.io/card-percent": "50",
        "partage.io/card-memory": str(10 * 2**30),
    }
    assert charged(stack, space, "koordinator") == {
        "partage.io/card-percent": "50",
        "partage.io/card-memory-percent": "50",
    }
    assert charged(stack, space, "hami") == {
        "partage.io/card-percent": "50",
        "partage.io/card-memory": str(10 * 2**30),
        "partage.io/devices": "1",
    }

    job(stack, space, "late", {"koordinator.sh/gpu": "20"})
    workloads = WORKLOADS.format(space)
    eventually("it is in the queue", lambda: len(stack.plane.call("GET", workloads)["items"]) == 4)
    late = next(
        one
        for one in stack.plane.call("GET", workloads)["items"]
        if one["metadata"]["ownerReferences"][0]["name"] == "late"
    )

    def says_why() -> Any:
        where = f"{workloads}/{late['metadata']['name']}"
        conditions = stack.plane.call("GET", where).get("status", {}).get("conditions", ())
        return [c["message"] for c in conditions if c["type"] == "QuotaReserved"]

    (why,) = eventually("Kueue says why it waits", says_why)
    assert "partage.io/card-percent" in why
    jobs = JOBS.format(space)
    assert stack.plane.call("GET", f"{jobs}/late")["spec"]["suspend"] is True
    stack.plane.call("DELETE", f"{jobs}/qgpu?propagationPolicy=Background")
    assert placed(stack, space, "late") == (20, 16 * 2**30)

    stack.plane.call("DELETE", f"{jobs}?propagationPolicy=Background")
    for path in (workloads, f"/api/v1/namespaces/{space}/pods", CLAIMS.format(space)):
        eventually(
            f"{path} is empty", lambda path=path: not stack.plane.call("GET", path)["items"]
        )
