"""What runs, ends and is tidied up on a genuine Kubernetes while the webhook and the service are away.

The webhook's configurations name an address where no program listens, as after a crash of all of
Partage. The pods were made before. Kubernetes' own controllers are genuine; a kubelet's part is played.
"""

import json
import urllib.error
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from control_plane import ControlPlane, missing
from stack import MERGE, collection, eventually, pod

from fakes.ports import free_port
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.webhook.installation import Endpoint, installation
from partage.webhook.settings import Admission
from partage.wire.context import Context

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=missing() or "built"),
]

NODE = "n1"
QUARTER = {"koordinator.sh/gpu": "25"}
SPACE = "/api/v1/namespaces/default"
PODS = f"{SPACE}/pods"
Json = dict[str, Any]


class Away:
    """A cluster whose device pods were made before the webhook went away."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def pods(self, app: str) -> list[Json]:
        """Pods of an application."""
        found: list[Json] = self.plane.call("GET", f"{PODS}?labelSelector=app%3D{app}")["items"]
        return found

    def made(self, app: str, count: int) -> list[Json]:
        """Pods of an application once there are so many."""
        found = self.pods(app)
        return found if len(found) == count else []

    def run(self, name: str) -> None:
        """Bind a pod and report that it runs, as a scheduler and a kubelet do."""
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": target,
        }
        self.plane.call("POST", f"{PODS}/{name}/binding", binding)
        self.report(name, "Running")

    def report(self, name: str, phase: str) -> None:
        """Write a pod's status as its kubelet does."""
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        status = {"phase": phase, "conditions": [ready]}
        self.plane.call("PATCH", f"{PODS}/{name}/status", {"status": status}, kind=MERGE)

    def gone(self, name: str) -> bool:
        """Whether a pod is gone; one that ends is let go, as its kubelet does."""
        try:
            found = self.plane.call("GET", f"{PODS}/{name}")
            if found["metadata"].get("deletionTimestamp"):
                self.plane.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        except urllib.error.HTTPError as error:
            return error.code == 404
        return False


def workload(kind: str, name: str, **spec: Any) -> Json:
    """A controller of device pods."""
    version = "batch/v1" if kind == "Job" else "apps/v1"
    labels = {"app": name}
    made = pod(name, QUARTER, **({"restartPolicy": "Never"} if kind == "Job" else {}))
    template = {"metadata": {"labels": labels}, "spec": made["spec"]}
    if kind != "Job":
        spec["selector"] = {"matchLabels": labels}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": template, **spec},
    }


LONE = ("lone", "evicted", "tainted", "deleted", "patched")


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Away]:
    """The pods are there and run; then the webhook is configured, and is not there."""
    plane = ControlPlane(tmp_path_factory.mktemp("plane"))
    cluster = Away(plane)
    try:
        plane.start()
        plane.start_controllers()
        eventually(
            "the account is there", lambda: plane.call("GET", f"{SPACE}/serviceaccounts/default")
        )
        plane.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        for one in (
            workload("Job", "job"),
            workload("Deployment", "web", replicas=2),
            workload("ReplicaSet", "set", replicas=1),
        ):
            plane.call("POST", collection(one), one)
        for name in LONE:
            plane.call("POST", PODS, pod(name, QUARTER))
        plane.call(
            "POST", PODS, pod("gated", QUARTER, schedulingGates=[{"name": "example.com/g"}])
        )
        for app, count in (("job", 1), ("web", 2), ("set", 1)):
            asked = partial(cluster.made, app, count)
            for one in eventually(f"{app} made its pods", asked):
                cluster.run(one["metadata"]["name"])
        for name in LONE:
            cluster.run(name)
        endpoint = Endpoint(url=f"https://127.0.0.1:{free_port()}")
        for one in installation(endpoint, Context.of(Settings(), FAMILIES), Admission()):
            plane.call("POST", collection(one).replace("policys", "policies"), one)
        eventually("the webhook is missed", lambda: "failed calling webhook" in refusal(cluster))
        yield cluster
    finally:
        plane.stop()


def refusal(cluster: Away) -> str:
    """What the API server says to a new device pod."""
    try:
        cluster.plane.call("POST", f"{PODS}?dryRun=All", pod("new", QUARTER))
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""


def test_a_job_completes(away: Away) -> None:
    """Its controller takes the finalizer off, counts the pod and is done."""
    (one,) = away.pods("job")
    away.report(one["metadata"]["name"], "Succeeded")

    status = eventually(
        "the job is complete",
        lambda: (
            found
            if (
                found := away.plane.call("GET", "/apis/batch/v1/namespaces/default/jobs/job")[
                    "status"
                ]
            ).get("completionTime")
            else None
        ),
    )
    assert status["succeeded"] == 1
    assert "finalizers" not in away.pods("job")[0]["metadata"]


def test_a_deployment_is_scaled_down_and_its_pods_go(away: Away) -> None:
    """Its controller annotates pods and deletes them."""
    names = [one["metadata"]["name"] for one in away.pods("web")]
    path = "/apis/apps/v1/namespaces/default/deployments/web"
    away.plane.call("PATCH", path, {"spec": {"replicas": 0}}, kind=MERGE)

    eventually("the pods are gone", lambda: all(away.gone(name) for name in names))


def test_the_pods_of_a_deleted_owner_are_collected(away: Away) -> None:
    """Garbage collection, in the background and with the owner waiting for it."""
    (one,) = away.pods("set")
    path = "/apis/apps/v1/namespaces/default/replicasets/set"
    away.plane.call("DELETE", path, {"propagationPolicy": "Foreground"})

    eventually("the pod is gone", lambda: away.gone(one["metadata"]["name"]))


def test_an_owner_that_leaves_its_pods_gets_rid_of_its_mark(away: Away) -> None:
    """The garbage collector takes owner references off where the owner orphans its pods."""
    (one,) = away.pods("job")
    path = "/apis/batch/v1/namespaces/default/jobs/job"
    away.plane.call("DELETE", path, {"propagationPolicy": "Orphan"})

    def free() -> bool:
        found = away.plane.call("GET", f"{PODS}/{one['metadata']['name']}")["metadata"]
        return not found.get("ownerReferences")

    eventually("the pod has no owner", free)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"team": "a"}}},
        {"metadata": {"annotations": {"team": "a"}}},
        {"metadata": {"finalizers": ["example.com/kept"]}},
        {"metadata": {"finalizers": None}},
        {"spec": {"activeDeadlineSeconds": 3600}},
        {"spec": {"containers": [{"name": "main", "image": "other"}]}},
        {"spec": {"tolerations": [{"key": "example.com/t", "operator": "Exists"}]}},
    ],
    ids=["label", "annotation", "finalizer", "no finalizer", "deadline", "image", "toleration"],
)
def test_a_pod_that_runs_is_changed(away: Away, change: Json) -> None:
    """People and controllers change it."""
    strategic = "application/strategic-merge-patch+json"
    away.plane.call("PATCH", f"{PODS}/patched", change, kind=strategic)


def test_a_vendors_plugin_may_still_turn_its_key(away: Away) -> None:
    """The policy lets the writers pass, and no webhook is asked; others are refused by the policy."""
    change = {"metadata": {"annotations": {"hami.io/bind-phase": "success"}}}
    with pytest.raises(urllib.error.HTTPError) as caught:
        away.plane.call("PATCH", f"{PODS}/patched", change, kind=MERGE)

    said = json.loads(caught.value.read())["message"]
    assert "only Partage may write" in said
    assert "failed calling webhook" not in said


def test_a_gate_comes_off(away: Away) -> None:
    """A queueing controller lets a waiting pod go on, and sets its node selector."""
    change = {"spec": {"nodeSelector": {"example.com/pool": "a"}}}
    away.plane.call("PATCH", f"{PODS}/gated", change, kind=MERGE)
    away.plane.call("PATCH", f"{PODS}/gated", {"spec": {"schedulingGates": None}}, kind=MERGE)


def test_a_drained_pod_goes(away: Away) -> None:
    """`kubectl drain` evicts."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}}
    away.plane.call("POST", f"{PODS}/evicted/eviction", eviction)

    eventually("the pod is gone", lambda: away.gone("evicted"))


def test_a_deleted_pod_goes(away: Away) -> None:
    """It goes with its grace period, and then at once."""
    away.plane.call("DELETE", f"{PODS}/deleted")

    eventually("the pod is gone", lambda: away.gone("deleted"))


def test_status_is_reported(away: Away) -> None:
    """The kubelet reports it, and so do other writers of conditions."""
    for phase in ("Running", "Failed"):
        away.report("lone", phase)


def test_a_tainted_node_sends_its_pods_away(away: Away) -> None:
    """Kubernetes' own controller deletes what does not tolerate it; the last test, because it takes all."""
    taint = {"key": "example.com/out", "value": "1", "effect": "NoExecute"}
    away.plane.call("PATCH", f"/api/v1/nodes/{NODE}", {"spec": {"taints": [taint]}}, kind=MERGE)

    eventually("the pod is gone", lambda: away.gone("tainted"))
