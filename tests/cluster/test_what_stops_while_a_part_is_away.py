"""What stops on a genuine Kubernetes while a part is away, and what goes on: `outages` row by row.

Pods of four protocols, one of them by its older names too, and pods without devices under every scheduler name. The kubelet's
part is played, and so are MetaX's plugin, as far as it takes its lock off, and an agent, as far as it renews its Lease.
"""

import json
import threading
import urllib.error
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import Process
from leader_service import LeaderService
from outages import OUTAGES, REFUSED, START, WAIT, Outage
from stack import MERGE, Layout, Stack, collection, eventually, now, pod
from stack import stack as started

from fakes.ports import free_port
from partage.vendors import names
from partage.vendors.locks import read_lock

EXAMPLES = Path(__file__).parents[2] / "examples"
SCHEDULERS = ("default-scheduler", "partage-scheduler", "koord-scheduler", "hami-scheduler")
PROTOCOLS = {
    "koordinator": {"koordinator.sh/gpu": "5"},
    "older": {"kubernetes.io/gpu": "5"},
    "hami": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"},
    "qgpu": {"tke.cloud.tencent.com/qgpu-core": "5", "tke.cloud.tencent.com/qgpu-memory": "1"},
    "metax": {
        "koordinator.sh/gpu.shared": "1",
        "koordinator.sh/gpu-core": "5",
        "koordinator.sh/gpu-memory": "1Gi",
        "metax-tech.com/sgpu": "1",
    },
}
MAIN, QUIET, LATE, METAX = "main", "quiet", "late", "sample-node1"
"""Nodes: for all, one whose agent falls silent, one that comes late, and the one with MetaX's card."""
HOST = "kubernetes.io/hostname"
SPACE = "/api/v1/namespaces/default"
PODS = f"{SPACE}/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
Json = dict[str, Any]


class Cluster:
    """The cluster, the two webhooks, and what is played."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.plane = stack.plane
        self._quiet = threading.Event()
        self.heard = threading.Event()
        self._plugin = threading.Thread(target=self._play, daemon=True)
        self.webhooks = {"webhook": int(stack.webhook.rsplit(":", 1)[1]), "webhook-b": free_port()}
        self.quiet = Fleet(self, "agent", QUIET)
        self.relay = LeaderService(free_port(), self._ready_webhook)

    def start(self) -> None:
        """Nodes, the second webhook behind one address with the first, and pods that run throughout."""
        for number, name in enumerate((MAIN, QUIET)):
            self.node(name, number)
        text = (EXAMPLES / "metax/node.yaml").read_text().replace("0000:38:00.0", "'0000:38:00.0'")
        self.stack.add_nodes(yaml.safe_load_all(text))
        self.plane.call(
            "PATCH", f"/api/v1/nodes/{METAX}", {"metadata": {"labels": {HOST: METAX}}}, kind=MERGE
        )
        self.stack.partage(
            self.stack.layout.webhook,
            "--host=127.0.0.1",
            f"--port={self.webhooks['webhook-b']}",
            f"--url={self.stack.webhook}",
            name="webhook-b",
        )
        for kind, path in (("mutating", "mutate"), ("validating", "validate")):
            where = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/partage"
            url = f"https://127.0.0.1:{self.relay.port}/webhook/{path}"
            body = [{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": url}]
            self.plane.call("PATCH", where, body, kind="application/json-patch+json")
        self._plugin.start()
        for node in (MAIN, QUIET, METAX):
            eventually(f"the totals of {node} are written", lambda node=node: self.totals(node))
        for protocol in PROTOCOLS:
            self.create(self.asking(f"stays-{protocol}", protocol))
        self.running(f"stays-{protocol}" for protocol in PROTOCOLS)
        self.quiet.made()
        head = {"name": f"partage-agent-{QUIET}", "labels": {names.AGENT: ""}}
        self.plane.call("POST", LEASES, {"metadata": head, "spec": {"renewTime": now()}})

    def stop(self) -> None:
        """End what is played."""
        self._quiet.set()
        self._plugin.join()
        self.relay.close()

    def node(self, name: str, number: int) -> None:
        """A node of eight cards of its own."""
        text = (EXAMPLES / "koordinator/host05.yaml").read_text()
        text = text.replace("host05", name).replace("-5a4e0000-", f"-5a4e000{number}-")
        documents = [one for one in yaml.safe_load_all(text) if one]
        for one in documents:
            one["metadata"].setdefault("labels", {})[HOST] = name
        assert f"-5a4e000{number}-" in text
        self.stack.add_nodes(documents)

    def totals(self, node: str) -> bool:
        """Whether the controllers have written what a node has."""
        status = self.plane.call("GET", f"/api/v1/nodes/{node}")["status"]
        return "kubernetes.io/gpu-core" in status.get("allocatable", {})

    def _ready_webhook(self) -> int | None:
        """A process that runs, as a Service's endpoints have it."""
        return next(
            (port for name, port in self.webhooks.items() if self.process(name).running), None
        )

    def _play(self) -> None:
        """The others' parts, every little while."""
        for turn in count():
            if self._quiet.wait(0.2):
                return
            with suppress(OSError):
                self._unlock()
                if self.heard.is_set() and turn % 10 == 0:
                    self.renew()

    def renew(self) -> None:
        """Renew the Lease of the quiet node, as its agent does while it is there."""
        body = {"spec": {"renewTime": now()}}
        self.plane.call("PATCH", f"{LEASES}/partage-agent-{QUIET}", body, kind=MERGE)

    def _unlock(self) -> None:
        """MetaX's plugin: once the pod has come that the lock is of, the lock goes."""
        where = f"/api/v1/nodes/{METAX}"
        notes = self.plane.call("GET", where)["metadata"].get("annotations", {})
        held = read_lock(notes.get(names.METAX_LOCK, "")).pod
        of = self.stack.pod(held) if held else None
        if of and of["spec"].get("nodeName"):
            body = {"metadata": {"annotations": {names.METAX_LOCK: None}}}
            self.plane.call("PATCH", where, body, kind=MERGE)

    def process(self, name: str) -> Process:
        """A part, by its name."""
        return self.plane.processes[name]

    # --- pods --------------------------------------------------------------------------------

    def asking(self, name: str, protocol: str, node: str = MAIN, **spec: Any) -> Json:
        """A pod of a protocol, on a node of the kind that its cards are of."""
        where = {HOST: METAX if protocol == "metax" else node}
        return pod(name, PROTOCOLS[protocol], nodeSelector=where, **spec)

    def create(self, value: Json) -> None:
        """Create it, as a controller does that tries again."""

        def there() -> bool:
            try:
                self.plane.call("POST", collection(value), value)
            except urllib.error.HTTPError as error:
                said = error.read().decode()
                if error.code != 409 and "failed calling webhook" not in said:
                    raise AssertionError(said) from error
                return error.code == 409
            return True

        eventually(f"{value['metadata']['name']} is taken", there)

    def phases(self) -> dict[str, str]:
        """Phase of each pod that has a node."""
        found = self.plane.call("GET", PODS)["items"]
        return {
            one["metadata"]["name"]: one["status"].get("phase", "")
            for one in found
            if one["spec"].get("nodeName")
        }

    def running(self, pods: Iterable[str]) -> None:
        """Wait until all of them run."""
        wanted = set(pods)

        def missing() -> dict[str, Any]:
            phases = self.phases()
            return {
                name: self.stack.events(name) for name in wanted if phases.get(name) != "Running"
            }

        try:
            eventually(
                "they run",
                lambda: not wanted - {n for n, p in self.phases().items() if p == "Running"},
            )
        except AssertionError as error:
            said = {n: [e["message"] for e in events] for n, events in missing().items()}
            raise AssertionError(f"do not run: {said}") from error

    def refused(self, value: Json) -> bool:
        """Whether the API server refuses it for want of the webhook."""
        try:
            self.plane.call("POST", f"{collection(value)}?dryRun=All", value)
        except urllib.error.HTTPError as error:
            return "failed calling webhook" in error.read().decode()
        return False

    def tried(self, name: str) -> bool:
        """Whether a kube-scheduler has said that it cannot place a pod."""
        return any(one["reason"] == "FailedScheduling" for one in self.stack.events(name))


class Fleet:
    """Pods with devices that run before a part goes away: of a Deployment, of a Job, and by themselves."""

    def __init__(self, cluster: Cluster, mark: str, node: str) -> None:
        self.cluster, self.mark, self.node = cluster, mark, node
        self.plane = cluster.plane

    def made(self) -> None:
        """Make them, and wait until they run."""
        for protocol in PROTOCOLS:
            for kind in ("Deployment", "Job"):
                self.cluster.create(self._workload(kind, protocol))
            for name in ("deleted", "evicted"):
                one = self.cluster.asking(f"{name}-{self.mark}-{protocol}", protocol, self.node)
                self.cluster.create(one)
        for kind in ("web", "job"):
            self.cluster.running(
                eventually(f"{kind} has a pod", lambda k=kind, p=p: self._of(k, p))
                for p in PROTOCOLS
            )
        self.cluster.running(
            f"{n}-{self.mark}-{p}" for n in ("deleted", "evicted") for p in PROTOCOLS
        )

    def _workload(self, kind: str, protocol: str) -> Json:
        short, version = ("job", "batch/v1") if kind == "Job" else ("web", "apps/v1")
        name = f"{short}-{self.mark}-{protocol}"
        more = {"restartPolicy": "Never"} if kind == "Job" else {}
        labels = {"app": name}
        template = {
            "metadata": {"labels": labels},
            "spec": self.cluster.asking(name, protocol, self.node, **more)["spec"],
        }
        spec: Json = {"template": template}
        if kind == "Deployment":
            spec |= {"replicas": 1, "selector": {"matchLabels": labels}}
        return {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        }

    def _of(self, short: str, protocol: str) -> str:
        """The pod of a workload, or nothing."""
        query = f"labelSelector=app%3D{short}-{self.mark}-{protocol}"
        found = self.plane.call("GET", f"{PODS}?{query}")["items"]
        return found[0]["metadata"]["name"] if found else ""

    def end(self) -> None:
        """Scale down, complete, delete and drain."""
        for protocol in PROTOCOLS:
            web = f"/apis/apps/v1/namespaces/default/deployments/web-{self.mark}-{protocol}"
            self.plane.call("PATCH", web, {"spec": {"replicas": 0}}, kind=MERGE)
            done = {"status": {"phase": "Succeeded"}}
            self.plane.call(
                "PATCH", f"{PODS}/{self._of('job', protocol)}/status", done, kind=MERGE
            )
            self.plane.call("DELETE", f"{PODS}/deleted-{self.mark}-{protocol}")
            name = f"evicted-{self.mark}-{protocol}"
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            self.plane.call("POST", f"{PODS}/{name}/eviction", eviction)

    def ended(self) -> None:
        """Wait until all of that is done."""

        def left() -> list[str]:
            there = self.cluster.phases()
            pods = [f"{n}-{self.mark}-{p}" for n in ("deleted", "evicted") for p in PROTOCOLS]
            found = [name for name in pods if name in there]
            found += [f"web {p}" for p in PROTOCOLS if self._of("web", p)]
            jobs = f"/apis/batch/v1/namespaces/default/jobs/job-{self.mark}"
            return found + [
                f"job {p}"
                for p in PROTOCOLS
                if not self.plane.call("GET", f"{jobs}-{p}")["status"].get("completionTime")
            ]

        eventually("all ended", lambda: left() == [])

    def clear(self) -> None:
        """Leave nothing of them."""
        for protocol in PROTOCOLS:
            for kind in (
                "apps/v1/namespaces/default/deployments/web",
                "batch/v1/namespaces/default/jobs/job",
            ):
                with suppress(urllib.error.HTTPError):
                    path = f"/apis/{kind}-{self.mark}-{protocol}?propagationPolicy=Background"
                    self.plane.call("DELETE", path)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all rows; agents count as silent after the shortest time that is allowed."""
    layout = Layout(options=("--set", "scheduler.agentSilenceSeconds=30"))
    with started(tmp_path_factory.mktemp("outages"), layout=layout) as stack:
        made = Cluster(stack)
        try:
            made.start()
            yield made
        finally:
            made.stop()


# --- how each part goes away, and comes back ---------------------------------------------------------


@contextmanager
def without(cluster: Cluster, *parts: str) -> Iterator[None]:
    """Kill these, and start them again."""
    for name in parts:
        cluster.process(name).kill()
    try:
        yield
    finally:
        for name in parts:
            cluster.process(name).start()


@contextmanager
def webhook(cluster: Cluster) -> Iterator[None]:
    """Both of them."""
    with without(cluster, *cluster.webhooks):
        yield


@contextmanager
def webhook_of_two(cluster: Cluster) -> Iterator[None]:
    """The one that is asked."""
    with without(cluster, "webhook"):
        yield


@contextmanager
def agent(cluster: Cluster) -> Iterator[None]:
    """It renewed its Lease once, when the cluster began, and never again; then once more."""

    def closed() -> bool:
        head = cluster.plane.call("GET", f"/api/v1/nodes/{QUIET}")["metadata"]
        return names.AGENT_SILENT in head.get("annotations", {})

    eventually("the node is closed", closed)
    try:
        yield
    finally:
        cluster.heard.set()


@contextmanager
def default_scheduler(cluster: Cluster) -> Iterator[None]:
    """Kubernetes' own."""
    with without(cluster, "default-scheduler"):
        yield


@contextmanager
def kube_scheduler(cluster: Cluster) -> Iterator[None]:
    """The only one of the chart's; it releases its Lease, so that the next one need not wait for its end."""
    cluster.process("kube-scheduler").stop()
    try:
        yield
    finally:
        cluster.process("kube-scheduler").start()


@contextmanager
def kube_scheduler_of_two(cluster: Cluster) -> Iterator[None]:
    """The one that leads."""
    cluster.stack.start_beside("second-kube-scheduler")
    try:
        with without(cluster, "kube-scheduler"):
            yield
    finally:
        cluster.process("second-kube-scheduler").stop()


@contextmanager
def service(cluster: Cluster) -> Iterator[None]:
    """The only instance."""
    cluster.process("scheduler").stop()
    try:
        yield
    finally:
        cluster.process("scheduler").start()


@contextmanager
def service_managed(cluster: Cluster) -> Iterator[None]:
    """The only instance, and kube-scheduler asks about the names alone that it leaves to Partage.

    Koordinator's older names cannot be among them, and what the page says of their pods is so.
    """
    path = cluster.plane.folder / "kube-scheduler.json"
    before = path.read_text()
    config = json.loads(before)
    (args,) = (one["args"] for one in config["profiles"][0]["pluginConfig"])
    config["extenders"][0]["managedResources"] = [
        {"name": name} for name in args["ignoredResources"]
    ]
    cluster.process("kube-scheduler").stop()
    path.write_text(json.dumps(config))
    cluster.process("kube-scheduler").start()
    try:
        with service(cluster):
            cluster.create(cluster.asking("unrecorded", "older"))
            notes = cluster.stack.bound("unrecorded")["metadata"].get("annotations", {})
            assert names.ALLOCATION not in notes
            cluster.stack.delete("unrecorded")
            eventually("it is gone", lambda: not cluster.stack.pod("unrecorded"))
            yield
    finally:
        cluster.process("kube-scheduler").stop()
        path.write_text(before)
        cluster.process("kube-scheduler").start()


@contextmanager
def controllers(cluster: Cluster) -> Iterator[None]:
    """An instance that runs without them."""
    with_them = cluster.process("scheduler")
    with_them.stop()
    cluster.stack.start_scheduler_service("scheduler", "--no-controllers")
    eventually("it is ready", cluster.stack.ready)
    cluster.node(LATE, 2)
    cluster.create(cluster.asking("late-koordinator", "koordinator", LATE))
    cluster.create(cluster.asking("late-older", "older", LATE))
    cluster.running(["late-koordinator"])
    eventually("it is tried", lambda: cluster.tried("late-older"))
    assert "late-older" not in cluster.phases()
    try:
        yield
    finally:
        cluster.process("scheduler").stop()
        cluster.plane.processes["scheduler"] = with_them
        with_them.start()
    cluster.running(["late-older"])


@contextmanager
def service_of_two(cluster: Cluster) -> Iterator[None]:
    """The leader, killed."""
    cluster.stack.start_scheduler_service("second")
    with without(cluster, "scheduler"):
        yield


AWAY: dict[str, Callable[[Cluster], Any]] = {
    "webhook": webhook,
    "webhook-of-two": webhook_of_two,
    "agent": agent,
    "default-scheduler": default_scheduler,
    "kube-scheduler": kube_scheduler,
    "kube-scheduler-of-two": kube_scheduler_of_two,
    "controllers": controllers,
    "service": service,
    "service-managed": service_managed,
    "service-of-two": service_of_two,
}
TELLS = {"agent", "service", "service-managed"}
"""Outages during which a part still says of a pod that it waits."""


@pytest.mark.parametrize("outage", [pytest.param(o, id=o.id) for o in OUTAGES if o.id in AWAY])
def test_what_stops_while_a_part_is_away(cluster: Cluster, outage: Outage) -> None:
    """New pods do what the table says; running pods run on, and end as usual."""
    node = QUIET if outage.id == "agent" else MAIN
    fleet = cluster.quiet if outage.id == "agent" else Fleet(cluster, outage.id, node)
    if fleet is not cluster.quiet:  # that came while its node took pods
        fleet.made()
    expected: dict[str, tuple[Json, str]] = {}
    for name in SCHEDULERS:
        one = pod(
            f"plain-{outage.id}-{name}",
            {"cpu": "10m"},
            schedulerName=name,
            nodeSelector={HOST: node},
        )
        becomes = outage.default if name == "default-scheduler" else outage.ours
        expected[one["metadata"]["name"]] = one, becomes
    for protocol in PROTOCOLS:
        if protocol == "older" and outage.id == "service-managed":
            continue
        one = cluster.asking(f"new-{outage.id}-{protocol}", protocol, node)
        elsewhere = outage.id == "agent" and protocol == "metax"
        expected[one["metadata"]["name"]] = one, START if elsewhere else outage.devices
    with AWAY[outage.id](cluster):
        for one, becomes in expected.values():
            if becomes == REFUSED:
                eventually("it is refused", lambda one=one: cluster.refused(one))
            else:
                cluster.create(one)
        fleet.end()
        cluster.running(name for name, (_, becomes) in expected.items() if becomes == START)
        fleet.ended()
        waiting = [name for name, (_, becomes) in expected.items() if becomes == WAIT]
        for name in waiting if outage.id in TELLS else ():
            eventually(f"{name} is tried", lambda name=name: cluster.tried(name))
        there = cluster.phases()
        assert not [name for name in waiting if name in there]
        assert {there[f"stays-{protocol}"] for protocol in PROTOCOLS} == {"Running"}
    for one, _ in expected.values():
        cluster.create(one)  # what was refused; the others are there
    cluster.running(expected)
    for name in expected:
        cluster.stack.delete(name)
    fleet.clear()


def test_every_row_has_its_way() -> None:
    """Each outage of the table is tried here, or by the test that it names."""
    here = test_what_stops_while_a_part_is_away.__name__
    assert {one.id for one in OUTAGES if one.test == here} == set(AWAY)
