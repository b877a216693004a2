"""kube-scheduler with the plugin and the engine beside it, on a genuine control plane."""

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import TOOLS, ControlPlane, control_plane, free_port

from partage.daemon.beside import ExtenderAccess, kube_scheduler_config, left_to_the_ledger
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "kube-scheduler"


def made_of(module: Path) -> str:
    """A short name for the sources, as tests/cluster/build has it."""
    patterns = ("go.*", "*.go", "*/*.go", "*/*.json")
    files = [file for pattern in patterns for file in sorted(module.glob(pattern))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


PLUGIN = TOOLS / f"kube-scheduler-plugin-{made_of(MODULE)}"
"""Where tests/cluster/build puts what is made of these very sources."""
PATIENCE = 240.0
LEASE = "partage-kube-scheduler"


class Plugged:
    """The control plane, the engine, kube-scheduler, and two nodes of two cards."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.socket = folder / "engine.sock"
        self.config = {
            **kube_scheduler_config(None, left_to_the_ledger(FAMILIES, Settings())),
            "leaderElection": {
                "leaderElect": True, "resourceName": LEASE, "resourceNamespace": "kube-system",
                "resourceLock": "leases",
            },
        }  # fmt: skip

    def start(self) -> None:
        """Everything, and the nodes."""
        definition = (ROOT / "deploy/helm/partage/files/devices.json").read_bytes()
        self.plane.call(
            "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            json.loads(definition),
        )  # fmt: skip
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        self.plane.call("POST", "/api/v1/namespaces/default/serviceaccounts", account)
        for name in ("a", "b"):
            self.node(name)
        self.plane.call(
            "POST", "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": "high"}, "value": 1000},
        )  # fmt: skip
        self.engine()
        self.scheduler()

    def engine(self) -> None:
        """The engine."""
        self.plane.run(
            "engine",
            [
                sys.executable, "-m", "partage.cli.main", "scheduler", "--plain",
                "--host=127.0.0.1", f"--port={free_port()}", f"--plugin-socket={self.socket}",
                f"--lease-name={LEASE}", "--lease-namespace=kube-system",
                f"--kubeconfig={self.plane.kubeconfig()}",
            ],
        )  # fmt: skip

    def scheduler(self, **environment: str) -> None:
        """kube-scheduler with the plugin."""
        self.plane.start_scheduler(
            self.config,
            "plugged",
            env={"PARTAGE_SOCKET": str(self.socket), **environment},
            program=PLUGIN / "kube-scheduler",
        )

    def node(self, name: str, cpu: str = "4") -> None:
        """A node of two cards; its Device is served once the definition is."""
        amounts = {"cpu": cpu, "memory": "64Gi", "pods": "50"}
        self.plane.call(
            "POST", "/api/v1/nodes",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"allocatable": amounts, "capacity": amounts},
            },
        )  # fmt: skip
        parts = {"gpu-core": "100", "gpu-memory": "16Gi", "gpu-memory-ratio": "100"}
        resources = {f"koordinator.sh/{key}": value for key, value in parts.items()}
        cards = [
            {
                "type": "gpu",
                "id": f"GPU-{name}-{i}",
                "minor": i,
                "health": True,
                "resources": resources,
            }
            for i in range(2)
        ]
        body = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": name}, "spec": {"devices": cards},
        }  # fmt: skip
        self.eventually(
            "a Device", lambda: self._made("scheduling.koordinator.sh/v1alpha1/devices", body)
        )

    def _made(self, path: str, body: dict[str, Any]) -> bool:
        try:
            self.plane.call("POST", f"/apis/{path}", body)
        except urllib.error.HTTPError as error:
            return error.code == 409
        return True

    def pod(self, name: str, limits: dict[str, str] | None = None, **spec: Any) -> None:
        """A pod; without limits one that has no devices."""
        container = {"name": "main", "image": "x", "resources": {"limits": limits or {}}}
        toleration = {"operator": "Exists"}
        self.plane.call(
            "POST", "/api/v1/namespaces/default/pods",
            {
                "metadata": {"name": name},
                "spec": {"schedulerName": "partage-scheduler", "containers": [container],
                         "tolerations": [toleration], "terminationGracePeriodSeconds": 0, **spec},
            },
        )  # fmt: skip

    def fills(self, name: str, limits: dict[str, str] | None = None, **spec: Any) -> None:
        """A pod on node a that takes its time to end, as pods do that a kubelet stops."""
        self.pod(name, limits, nodeSelector=AT_A, terminationGracePeriodSeconds=600, **spec)
        self.bound(name)

    def leaves(self, name: str) -> bool:
        """Whether it is being deleted."""
        return "deletionTimestamp" in self.get(name)["metadata"]

    def replica(self, name: str, *, ready: bool) -> None:
        """A pod of the Deployment that would run kube-scheduler and the engine; an object only."""
        owner = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": "rs",
            "uid": "rs",
            "controller": True,
        }
        labels = {
            "app.kubernetes.io/instance": "partage",
            "app.kubernetes.io/component": "scheduler",
        }
        with contextlib.suppress(urllib.error.HTTPError):  # it is there
            self.plane.call(
                "POST", "/api/v1/namespaces/default/pods",
                {
                    "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
                    "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "x"}]},
                },
            )  # fmt: skip
        condition = {"type": "Ready", "status": str(ready)}
        self.plane.call(
            "PATCH", f"/api/v1/namespaces/default/pods/{name}/status",
            {"status": {"conditions": [condition]}}, kind="application/merge-patch+json",
        )  # fmt: skip

    def get(self, name: str) -> dict[str, Any]:
        """The pod."""
        found: dict[str, Any] = self.plane.call("GET", f"/api/v1/namespaces/default/pods/{name}")
        return found

    def delete(self, *pods: str) -> None:
        """At once."""
        for name in pods:
            self.plane.call(
                "DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0}
            )

    def node_of(self, name: str) -> str:
        """Where it is bound."""
        return str(self.get(name)["spec"].get("nodeName", ""))

    def bound(self, name: str) -> dict[str, Any]:
        """Wait until it is bound."""
        self.eventually(f"pod {name} bound", lambda: self.node_of(name))
        return self.get(name)

    def waits(self, name: str) -> str:
        """Wait until kube-scheduler says why it is not scheduled; that."""

        def why() -> str:
            conditions = self.get(name)["status"].get("conditions", [])
            return next(
                (c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), ""
            )

        self.eventually(f"why {name} waits", why)
        return why()

    def eventually(self, what: str, ask: Callable[[], object]) -> None:
        """Wait; a bound for hangs only."""
        deadline = time.monotonic() + PATIENCE
        while not ask():
            if time.monotonic() > deadline:
                tails = "\n".join(self.plane.processes[n].tail() for n in ("engine", "plugged"))
                raise AssertionError(f"{what}: not within {PATIENCE:g} s\n{tails}")
            time.sleep(0.1)


@pytest.fixture(scope="module")
def program() -> Path:
    """kube-scheduler with the plugin."""
    program = PLUGIN / "kube-scheduler"
    if not program.exists():
        pytest.skip(
            "kube-scheduler with the plugin is not built from these sources; run tests/cluster/build"
        )
    return program


@pytest.fixture(scope="module")
def cluster(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """The cluster."""
    folder = tmp_path_factory.mktemp("plugged")
    with control_plane(folder) as plane:
        made = Plugged(plane, folder)
        made.start()
        yield made


AT_A = {"kubernetes.io/hostname": "a"}
WHOLE = {"koordinator.sh/gpu": "100"}
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
BOTH = {"koordinator.sh/gpu": "200"}


@pytest.mark.parametrize("package", ["protocol", "partage"])
def test_the_go_side_passes_its_own_tests(program: Path, package: str) -> None:
    """Against an engine that is played; the build has vetted it."""
    done = subprocess.run(
        [program.with_name(f"{package}.test"), "-test.v"], cwd=MODULE / package,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--- PASS" in done.stdout


def test_pods_with_devices_are_bound_with_their_record(cluster: Plugged) -> None:
    """And pods without devices by kube-scheduler alone."""
    cluster.pod("half", HALF)
    cluster.pod("plain")

    assert names.ALLOCATION in cluster.bound("half")["metadata"]["annotations"]
    assert names.ALLOCATION not in cluster.bound("plain")["metadata"].get("annotations", {})
    cluster.delete("half", "plain")


def test_a_pod_that_waits_says_why_and_comes_when_there_is_room(cluster: Plugged) -> None:
    """The engine pushes, and nothing of the pod is changed for it."""
    for name in ("one", "two"):
        cluster.pod(name, BOTH)
        cluster.bound(name)
    cluster.pod("late", BOTH)
    assert "InsufficientCards" in cluster.waits("late")

    cluster.delete("one")
    found = cluster.bound("late")
    assert names.WOKEN not in found["metadata"]["annotations"]
    cluster.delete("two", "late")


def test_the_second_choice_is_taken_before_anybody_is_evicted(cluster: Plugged) -> None:
    """The engine's first choice is full of CPU; another node is free, and a less important pod about."""
    big = {"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "3"}}}]}
    cluster.pod("filler", HALF)
    first = cluster.bound("filler")["spec"]["nodeName"]
    cluster.pod("hog", nodeSelector={"kubernetes.io/hostname": first}, **big)
    cluster.bound("hog")
    # The default policy packs, so that its first choice is the node with the share.
    asks = [
        {"name": "main", "image": "x", "resources": {"limits": HALF, "requests": {"cpu": "2"}}}
    ]
    cluster.pod("important", containers=asks)

    assert cluster.bound("important")["spec"]["nodeName"] != first
    assert cluster.node_of("hog") == first
    cluster.delete("filler", "hog", "important")


def test_the_least_important_go_for_devices_and_what_they_leave_is_kept(cluster: Plugged) -> None:
    """One is enough, a budget spares the other, and nobody else gets the room meanwhile."""
    budget = {
        "metadata": {"name": "guarded"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"guarded": "yes"}}},
    }
    cluster.plane.call("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    cluster.fills("guarded", WHOLE)
    cluster.plane.call(
        "PATCH", "/api/v1/namespaces/default/pods/guarded",
        {"metadata": {"labels": {"guarded": "yes"}}}, kind="application/merge-patch+json",
    )  # fmt: skip
    cluster.fills("spare", WHOLE)
    cluster.pod("vip", WHOLE, nodeSelector=AT_A, priorityClassName="high")

    cluster.eventually("a victim", lambda: cluster.leaves("spare"))
    cluster.eventually(
        "a nomination", lambda: cluster.get("vip")["status"].get("nominatedNodeName") == "a"
    )
    cluster.pod("thief", HALF, nodeSelector=AT_A)
    cluster.waits("thief")
    cluster.delete("spare")
    cluster.bound("vip")
    assert not cluster.leaves("guarded")
    assert not cluster.node_of("thief")
    cluster.delete("guarded", "vip", "thief")


def test_room_is_made_for_devices_and_cpu_at_once(cluster: Plugged) -> None:
    """On one node, by pods with devices and by others; who is in neither's way stays."""
    cpu = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "2"}}}]
    cluster.fills("cards", BOTH)
    cluster.fills("hog", containers=cpu)
    cluster.fills("small")
    asks = [
        {"name": "main", "image": "x", "resources": {"limits": WHOLE, "requests": {"cpu": "3"}}}
    ]
    cluster.pod("vip", containers=asks, nodeSelector=AT_A, priorityClassName="high")

    cluster.eventually("both leave", lambda: cluster.leaves("cards") and cluster.leaves("hog"))
    cluster.delete("cards", "hog")
    assert cluster.bound("vip")["spec"]["nodeName"] == "a"
    assert not cluster.leaves("small")
    cluster.delete("vip", "small")


def test_without_the_engine_plain_pods_go_on_and_the_others_come_later(cluster: Plugged) -> None:
    """It is killed, and comes back."""
    cluster.plane.processes["engine"].kill()
    cluster.pod("plain")
    cluster.bound("plain")
    cluster.pod("half", HALF)
    assert "engine" in cluster.waits("half")

    cluster.engine()
    assert names.ALLOCATION in cluster.bound("half")["metadata"]["annotations"]
    cluster.delete("plain", "half")


def test_a_restarted_kube_scheduler_is_followed(cluster: Plugged) -> None:
    """It gets its Lease again, and the engine leads with it."""
    cluster.plane.processes["plugged"].signal(signal.SIGTERM)
    cluster.eventually("its end", lambda: not cluster.plane.processes["plugged"].running)
    cluster.pod("half", HALF)
    cluster.scheduler()

    assert names.ALLOCATION in cluster.bound("half")["metadata"]["annotations"]
    cluster.delete("half")


def test_a_leader_without_its_engine_leaves_to_another(cluster: Plugged) -> None:
    """Where no other replica is ready it stays; where one is, it gives up the Lease and ends."""
    cluster.plane.processes["plugged"].stop()
    cluster.replica("us", ready=True)
    cluster.replica("others", ready=False)
    cluster.scheduler(POD_NAME="us", POD_NAMESPACE="default")
    leader = cluster.plane.processes["plugged"]
    cluster.pod("half", HALF)
    cluster.bound("half")

    cluster.plane.processes["engine"].kill()
    time.sleep(8)  # longer than its patience
    assert leader.running
    cluster.replica("others", ready=True)
    cluster.eventually("its end", lambda: not leader.running)
    lease = cluster.plane.call(
        "GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LEASE}"
    )
    assert not lease["spec"].get("holderIdentity")
    cluster.engine()
    cluster.scheduler()
    cluster.delete("half", "us", "others")


def test_plugin_and_extender_at_once_are_refused_at_start(cluster: Plugged, program: Path) -> None:
    """With a sentence."""
    both = kube_scheduler_config(ExtenderAccess("http://127.0.0.1:1"), [])
    both["profiles"] = cluster.config["profiles"]
    cluster.plane.start_scheduler(
        both, "both", env={"PARTAGE_SOCKET": str(cluster.socket)}, program=program
    )
    process = cluster.plane.processes["both"]

    cluster.eventually("its end", lambda: not process.running)
    assert "both configured; remove one of the two" in process.log.read_text()
    process.wanted = False
