"""A genuine control plane whose kube-scheduler has the plugin, and the engine beside it."""

import contextlib
import hashlib
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from control_plane import TOOLS, ControlPlane
from kube_scheduler_config import kube_scheduler_config, left_to_the_ledger

from fakes.ports import free_port
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
_BETWEEN_LOOKS = 0.002


AT_A = {"kubernetes.io/hostname": "a"}


class Look(NamedTuple):
    """What the books had at a moment between two times: pods on cards, reserved or bound."""

    begun: float
    ended: float
    booked: frozenset[str]


def free_after(looks: Sequence[Look], moment: float) -> float | None:
    """When the first look that began after a moment and found nothing had ended; None if there is none yet."""
    return next((one.ended for one in looks if one.begun >= moment and not one.booked), None)


class Plugged:
    """The control plane, the engine, kube-scheduler, and two nodes of two cards."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        flags: Sequence[str] = (),
        program: Path = PLUGIN / "kube-scheduler",
        options: Sequence[str] = (),
    ) -> None:
        self.plane = plane
        self.program = program
        self.port = free_port()
        self.flags, self.options = flags, options
        self.socket = folder / "engine.sock"
        self.config = {
            **kube_scheduler_config(None, left_to_the_ledger(FAMILIES, Settings())),
            "leaderElection": {
                "leaderElect": True,
                "resourceName": LEASE,
                "resourceNamespace": "kube-system",
                "resourceLock": "leases",
            },
        }

    def start(self) -> None:
        """Everything, and the nodes."""
        definition = (ROOT / "deploy/helm/partage/files/devices.json").read_bytes()
        self.plane.call(
            "POST",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            json.loads(definition),
        )
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        self.plane.call("POST", "/api/v1/namespaces/default/serviceaccounts", account)
        for name in ("a", "b"):
            self.node(name)
        self.plane.call(
            "POST",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": "high"}, "value": 1000},
        )
        self.engine()
        self.scheduler()

    def engine(self) -> None:
        """The engine."""
        self.plane.run(
            "engine",
            [
                sys.executable,
                "-m",
                "partage.cli.main",
                "scheduler",
                "--plain",
                "--host=127.0.0.1",
                f"--port={self.port}",
                f"--plugin-socket={self.socket}",
                f"--kube-scheduler-lease={LEASE}",
                "--lease-namespace=kube-system",
                f"--kubeconfig={self.plane.kubeconfig()}",
                *self.options,
            ],
        )

    def scheduler(self, **environment: str) -> None:
        """kube-scheduler with the plugin."""
        self.plane.start_scheduler(
            self.config,
            "plugged",
            *self.flags,
            env={"PARTAGE_SOCKET": str(self.socket), **environment},
            program=self.program,
        )

    def node(self, name: str, cpu: str = "4") -> None:
        """A node of two cards; its Device is served once the definition is."""
        amounts = {"cpu": cpu, "memory": "64Gi", "pods": "50"}
        self.plane.call(
            "POST",
            "/api/v1/nodes",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"allocatable": amounts, "capacity": amounts},
            },
        )
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
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": name},
            "spec": {"devices": cards},
        }
        self.eventually(
            "a Device", lambda: self._made("scheduling.koordinator.sh/v1alpha1/devices", body)
        )

    def _made(self, path: str, body: dict[str, Any]) -> bool:
        try:
            self.plane.call("POST", f"/apis/{path}", body)
        except urllib.error.HTTPError as error:
            return error.code == 409
        return True

    def pod(
        self,
        name: str,
        limits: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """A pod; without limits one that has no devices."""
        container = {"name": "main", "image": "x", "resources": {"limits": limits or {}}}
        toleration = {"operator": "Exists"}
        self.plane.call(
            "POST",
            "/api/v1/namespaces/default/pods",
            {
                "metadata": {"name": name, "labels": labels or {}},
                "spec": {
                    "schedulerName": "partage-scheduler",
                    "containers": [container],
                    "tolerations": [toleration],
                    "terminationGracePeriodSeconds": 0,
                    **spec,
                },
            },
        )

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
                "POST",
                "/api/v1/namespaces/default/pods",
                {
                    "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
                    "spec": {
                        "schedulerName": "nobody",
                        "containers": [{"name": "main", "image": "x"}],
                    },
                },
            )
        condition = {"type": "Ready", "status": str(ready)}
        self.plane.call(
            "PATCH",
            f"/api/v1/namespaces/default/pods/{name}/status",
            {"status": {"conditions": [condition]}},
            kind="application/merge-patch+json",
        )

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

    def cards(self, name: str) -> list[tuple[str, str]]:
        """The cards of a bound pod, by its record: node and UUID."""
        record = json.loads(self.get(name)["metadata"]["annotations"][names.ALLOCATION])
        given = [one for container in record["containers"] for one in container["devices"]]
        return [(record["node"], one["uuid"]) for one in given]

    def booked(self) -> set[str]:
        """Pods that the engine's books have on cards, reserved or bound."""
        url = f"http://127.0.0.1:{self.port}/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
        with urllib.request.urlopen(url, timeout=30) as answer:
            told = json.load(answer)
        return {
            pod for node in told.values() for pods in node["allocateSet"].values() for pod in pods
        }

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[list[Look]]:
        """Look at the books all the time; the looks until now."""
        looks: list[Look] = []
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                begun = time.time()
                with contextlib.suppress(OSError):
                    booked = frozenset(self.booked())
                    looks.append(Look(begun, time.time(), booked))
                over.wait(_BETWEEN_LOOKS)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield looks
        finally:
            over.set()
            thread.join()

    def logged(self, text: str, about: str = "") -> list[float]:
        """When kube-scheduler wrote lines with a text about something."""
        lines = self.plane.processes["plugged"].log.read_text(errors="replace").splitlines()
        found = [line.split()[:2] for line in lines if text in line and about in line]
        now = datetime.now().astimezone().replace(tzinfo=None)
        # A line has its day and no year, as in `I1231 23:59:59.999999`: that of the year before may be read after midnight.
        times = [
            datetime.strptime(f"{now.year}{day[1:]} {at}", "%Y%m%d %H:%M:%S.%f")  # noqa: DTZ007
            for day, at in found
        ]
        return [
            (one if one <= now else one.replace(year=now.year - 1)).timestamp() for one in times
        ]

    def waits(self, name: str) -> str:
        """Wait until kube-scheduler says why it is not scheduled; that."""

        def why() -> str:
            conditions = self.get(name)["status"].get("conditions", [])
            return next(
                (c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), ""
            )

        self.eventually(f"why {name} waits", why)
        return why()

    def failures(self, name: str) -> int:
        """How many failed attempts kube-scheduler has reported."""
        about = f"involvedObject.name={name},reason=FailedScheduling"
        found = self.plane.call("GET", f"/api/v1/namespaces/default/events?fieldSelector={about}")
        return sum((one.get("series") or {}).get("count", 1) for one in found["items"])

    def eventually(self, what: str, ask: Callable[[], object]) -> None:
        """Wait; a bound for hangs only."""
        deadline = time.monotonic() + PATIENCE
        while not ask():
            if time.monotonic() > deadline:
                tails = "\n".join(self.plane.processes[n].tail() for n in ("engine", "plugged"))
                raise AssertionError(f"{what}: not within {PATIENCE:g} s\n{tails}")
            time.sleep(0.1)
