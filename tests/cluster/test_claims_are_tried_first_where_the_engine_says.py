"""A genuine kube-scheduler with the plugin tries pods with claims on the engine's nodes first, and is kept from none.

The engine's nodes and the slices disagree on purpose: of one node they have larger cards than the engine knows of, of many
smaller ones, and most others have none.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from control_plane import control_plane
from plugin_stack import PLUGIN, Plugged

from partage.agent.discovery.found import Inventory
from partage.agent.dra.slices import Offered, resource_slices
from partage.extender.cycle import PROPOSED
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.sim.claims import OWN_CLASSES
from partage.vendors.names import SHARE_CLASS

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
FILLED = [f"filled-{number:02}" for number in range(PROPOSED + 1)]
"""Nodes that come first by binpack, more than one proposal has."""


def publish(cluster: Plugged, name: str, memory: int) -> None:
    """A node's cards are offered to claims."""
    cards = tuple(
        Device(DeviceType.GPU, n, f"GPU-{name}-{n}", memory_bytes=memory << 30) for n in range(2)
    )
    made = Node(name, devices=cards)
    uid = cluster.plane.call("GET", f"/api/v1/nodes/{name}")["metadata"]["uid"]
    for body in resource_slices(made, Inventory(), uid, 1, Offered(instances=False)):
        cluster.plane.call("POST", f"{API}/resourceslices", body)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """Two idle nodes, many with a share each, and one more, which alone offers its cards to claims."""
    if not (PLUGIN / "kube-scheduler").exists():
        pytest.skip("kube-scheduler with the plugin is not built; run tests/cluster/build")
    folder = tmp_path_factory.mktemp("plugged")
    with control_plane(folder) as plane:
        made = Plugged(plane, folder, options=("--claims", "--policy=binpack"))
        made.start()
        (expression,) = OWN_CLASSES[SHARE_CLASS]
        selectors = [{"cel": {"expression": expression}}]
        body = {"metadata": {"name": SHARE_CLASS}, "spec": {"selectors": selectors}}
        plane.call("POST", f"{API}/deviceclasses", body)
        for name in (*FILLED, "offers"):
            made.node(name)
        for name in FILLED:
            made.pod(name, HALF, nodeSelector={"kubernetes.io/hostname": name})
        for name in FILLED:
            made.bound(name)
        publish(made, "offers", 64)
        yield made


def claimant(
    cluster: Plugged, name: str, memory: str, nodes: tuple[str, ...] = (), **limits: str
) -> None:
    """A pod with a claim of its own for a third of a card's compute, and what else it asks; on some nodes, or on any."""
    exactly = {
        "deviceClassName": SHARE_CLASS,
        "capacity": {"requests": {"cores": "30", "memory": memory}},
    }
    spec = {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}
    cluster.plane.call("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
    resources: dict[str, Any] = {"claims": [{"name": "card"}], "limits": limits}
    where = {"key": "kubernetes.io/hostname", "operator": "In", "values": [*nodes]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [where]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    cluster.pod(
        name,
        containers=[{"name": "main", "image": "x", "resources": resources}],
        resourceClaims=[{"name": "card", "resourceClaimName": name}],
        **({"affinity": affinity} if nodes else {}),
    )


@contextmanager
def unanswered(cluster: Plugged) -> Iterator[None]:
    """What is written of claims' status waits for a webhook that says nothing, and is then stored all the same."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as threads:
        rule = {
            "apiGroups": ["resource.k8s.io"],
            "apiVersions": ["v1"],
            "operations": ["UPDATE"],
            "resources": ["resourceclaims/status"],
        }
        webhook = {
            "name": "silent.example.com",
            "rules": [rule],
            "clientConfig": {"url": f"https://127.0.0.1:{silent.getsockname()[1]}/"},
            "failurePolicy": "Ignore",
            "timeoutSeconds": 15,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        body = {"metadata": {"name": "silent"}, "webhooks": [webhook]}
        cluster.plane.call("POST", HOOKS, body)
        silent.settimeout(0.5)

        def asked() -> bool:
            body, kind = {"status": {}}, "application/merge-patch+json"
            path = f"{CLAIMS}/large/status?dryRun=All"
            threads.submit(cluster.plane.call, "PATCH", path, body, kind=kind)
            with suppress(TimeoutError):
                silent.accept()[0].close()
                return True
            return False

        cluster.eventually("the webhook is asked", asked)
        try:
            yield
        finally:
            cluster.plane.call("DELETE", f"{HOOKS}/silent")


def test_nodes_without_slices_are_not_proposed(cluster: Plugged) -> None:
    """Seventeen of them would come first: kube-scheduler could allocate on none."""
    claimant(cluster, "first", "4Gi")

    cluster.bound("first")

    assert cluster.node_of("first") == "offers"
    assert cluster.failures("first") == 0


def test_other_nodes_are_tried_where_the_first_ones_have_too_little(cluster: Plugged) -> None:
    """DynamicResources rejects the whole first proposal; the second has the node with larger cards."""
    for name in FILLED:
        publish(cluster, name, 1)
    claimant(cluster, "seen", "1Gi", (FILLED[-1],))
    cluster.bound("seen")
    claimant(cluster, "second", "4Gi")

    cluster.bound("second")

    assert cluster.node_of("second") == "offers"
    assert cluster.failures("second") == 1
    allocation = cluster.plane.call("GET", f"{CLAIMS}/second")["status"]["allocation"]
    assert [one["pool"] for one in allocation["devices"]["results"]] == ["offers"]


def test_what_the_engine_has_nowhere_is_kube_schedulers_to_find(cluster: Plugged) -> None:
    """It fits by the slices; no refusal of the engine is in the way."""
    claimant(cluster, "large", "32Gi")

    cluster.bound("large")

    assert cluster.node_of("large") == "offers"
    assert cluster.failures("large") == 0


def test_a_pod_that_fits_nowhere_waits_for_what_kube_scheduler_says(cluster: Plugged) -> None:
    """Its own filters are those that it is woken for: other slices make room, which the engine never sees."""
    claimant(cluster, "busy", "4Gi", cpu="100")
    claimant(cluster, "larger", "128Gi")
    assert "cpu" in cluster.waits("busy")
    assert "claim" in cluster.waits("larger")
    assert cluster.failures("larger") == 1

    publish(cluster, "b", 256)

    cluster.bound("larger")
    assert cluster.node_of("larger") == "b"
    assert not cluster.node_of("busy")


def test_what_is_not_stored_yet_counts_for_the_next_pod(cluster: Plugged) -> None:
    """With two idle nodes, binpack sends the second pod after the first, whose claim the API server has not stored."""
    for name in ("left", "right"):
        cluster.node(name)
        publish(cluster, name, 16)
    with unanswered(cluster):
        claimant(cluster, "ahead", "4Gi", ("right",))
        cluster.eventually("the books hold it", lambda: "default/ahead" in cluster.booked())
        claimant(cluster, "behind", "4Gi", ("left", "right"))
        cluster.eventually("and that", lambda: "default/behind" in cluster.booked())
        assert "allocation" not in cluster.plane.call("GET", f"{CLAIMS}/ahead").get("status", {})

    cluster.bound("behind")
    assert cluster.node_of("behind") == "right"
    cluster.bound("ahead")
    assert cluster.failures("ahead") == cluster.failures("behind") == 0


def test_a_pods_share_by_names_is_not_on_the_card_of_its_claim(cluster: Plugged) -> None:
    """The engine and the allocator would each take the first of two idle cards, which has no room for both."""
    cluster.node("pair")
    publish(cluster, "pair", 16)
    most = {"koordinator.sh/gpu-core": "80", "koordinator.sh/gpu-memory-ratio": "80"}
    claimant(cluster, "both", "4Gi", ("pair",), **most)

    cluster.bound("both")

    ((_, by_names),) = cluster.cards("both")
    allocation = cluster.plane.call("GET", f"{CLAIMS}/both")["status"]["allocation"]
    (result,) = allocation["devices"]["results"]
    assert {by_names, f"GPU-pair-{result['device'][-1]}"} == {"GPU-pair-0", "GPU-pair-1"}
    assert cluster.failures("both") == 0
