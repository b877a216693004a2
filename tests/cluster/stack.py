"""Partage beside a genuine control plane: scheduler service, webhook, second kube-scheduler, nodes.

The chart is installed by helm, with no replicas. What its Deployments would run is run here, with
the arguments that they give and tokens of their service accounts: the chart's roles are all that
our programs and the second kube-scheduler have, and the API server's audit log tells what was
refused to them. The cluster's own kube-scheduler keeps `default-scheduler`, as in production.
Nodes are objects only: a small stand-in for kubelets reports pods as running and lets deleted
ones go.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from chart import CHART, helm
from control_plane import KUBERNETES, ControlPlane, Process, control_plane
from leader_service import LeaderService
from plugin_stack import PLUGIN

from fakes.leases import given_back
from fakes.ports import free_port

SYSTEM = "partage-system"
KUBERNETES_PARTS = {"default-scheduler", "kube-scheduler", "kube-controller-manager"}
RELEASE = "partage"
SCHEDULER, BESIDE, WEBHOOK = "partage-scheduler", "partage-kube-scheduler", "partage-webhook"
"""Deployments of the chart, and their service accounts."""
NONE = "scheduler.replicas=0,kubeScheduler.replicas=0,webhook.replicas=0"
MERGE = "application/merge-patch+json"
WAIT_SECONDS = 240
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass(frozen=True)
class Layout:
    """How a profile of the chart lays itself out.

    Attributes:
        system: the namespace.
        scheduler, beside, webhook: Deployments, and their service accounts; the first is its Lease's name too.
        agent: the DaemonSet, and its service account.
        options: of `helm install`.
        settled: whether an instance before these ended in order, so that the first one need not wait
            for what it might have sent; in a new cluster that is not known.
        address: where the scheduler service listens, as its pod's address.
        read: its port for reading; 0 takes any that is free.
        pod: name of the first instance's pod.
        plugged: kube-scheduler asks by its plugin: each instance of the service has one of its own beside it.
        lease: seconds that a leader's Lease lasts: short, for tests that wait for its end.
        routed: an address, not of loopback, by which the API server finds the webhook through its Service, as in
            production (with `--enable-aggregator-routing`); empty for a URL on loopback.
    """

    system: str = SYSTEM
    scheduler: str = SCHEDULER
    beside: str = BESIDE
    webhook: str = WEBHOOK
    agent: str = "partage-agent"
    options: tuple[str, ...] = ()
    settled: bool = True
    address: str = "127.0.0.1"
    read: int = 0
    pod: str = "scheduler"
    plugged: bool = False
    lease: int = 5
    routed: str = ""


AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "userGroups": [
                f"system:serviceaccounts:{SYSTEM}",
                "system:serviceaccounts:koordinator-system",
                "system:serviceaccounts:kube-system",  # profiles qgpu and hami
            ],
        },
        {"level": "None"},
    ],
}
"""Every request of our programs, and no other."""


def eventually(what: str, ask: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """Wait until something is true, and return it.

    Raises:
        AssertionError: it is not, in time; says what it was instead.
    """
    deadline = time.monotonic() + seconds
    last: Any = None
    while time.monotonic() < deadline:
        try:
            last = ask()
            if last:
                return last
        except OSError as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds:g} s; last: {last!r}")


def listed(plane: ControlPlane) -> None:
    """Ask for every defined kind, as kube-controller-manager does half a minute after a definition came.

    Until a client has, the API server has no cache of the kind, and its first try to delete the definition
    fails. It writes that failure and tries again 5 ms later. Where its informer has not seen the write by
    then, it conflicts and gives up until the informer's next resync, five minutes later.
    """
    for one in plane.call("GET", DEFINITIONS)["items"]:
        spec = one["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        # Without a limit it is answered from the cache alone.
        eventually(f"{path} is served", partial(plane.call, "GET", path))


def deleted_at_first_try(plane: ControlPlane) -> bool:
    """Whether the API server failed at no definition for want of a cache; see `listed`."""
    log = plane.processes["kube-apiserver"].log.read_text(errors="replace")
    return "failed with: storage is (re)initializing" not in log


def own_address() -> str:
    """This machine's address for a route to anywhere, or empty; nothing is sent."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as one:
        try:
            one.connect(("203.0.113.1", 9))
        except OSError:
            return ""
        return str(one.getsockname()[0])


def now() -> str:
    """The moment, as audit events write it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Stack:
    """A cluster with Partage in it.

    Attributes:
        plane: the control plane.
        scheduler: URL of the leader, for reading.
        verbs: port of the leader, for the verbs.
        instances: name of a pod of the service to its ports: of the verbs, for reading.
        webhook: URL of the webhook, or empty.
        wire: URL by which the next kube-scheduler with the plugin reaches the API server; directly if empty.
        genuine: nodes that have a kubelet, whose pods are left to it.
    """

    def __init__(self, plane: ControlPlane, layout: Layout | None = None) -> None:
        self.plane = plane
        self.layout = layout or Layout()
        self.verbs = free_port()
        self.scheduler = f"http://127.0.0.1:{free_port()}"
        self.webhook = ""
        self._tokens: dict[str, str] = {}
        self._starts: list[tuple[str, str]] = []
        self.instances: dict[str, tuple[int, int]] = {}
        self.wire = ""
        self.genuine: set[str] = set()
        self._services = (
            LeaderService(self.verbs, lambda: self.leader(0), self.layout.address),
            LeaderService(
                int(self.scheduler.rsplit(":", 1)[1]), lambda: self.leader(1), self.layout.address
            ),
        )
        self._quiet = threading.Event()
        self._kubelets = threading.Thread(target=self._live, daemon=True)

    # --- our programs ------------------------------------------------------------------------

    def start(self, *, webhook: bool = True) -> None:
        """Install the chart, start what it would run, and wait until it serves."""
        self.plane.start_scheduler({}, "default-scheduler")
        on = "true" if webhook else "false"
        seam = "plugin" if self.layout.plugged else "extender"
        helm(
            self.plane,
            "install",
            RELEASE,
            str(CHART),
            "-n",
            self.layout.system,
            "--create-namespace",
            *self.layout.options,
            "--set",
            f"{NONE},webhook.enabled={on},scheduler.leaseDuration={self.layout.lease},scheduler.seam={seam}",
        )
        eventually(
            "Devices are served",
            lambda: self.plane.call("GET", "/apis/scheduling.koordinator.sh/v1alpha1/devices"),
        )
        if self.layout.settled:
            name = self.layout.scheduler
            where = f"/apis/coordination.k8s.io/v1/namespaces/{self.layout.system}/leases/{name}"
            election = self.config_beside()["leaderElection"]["resourceName"]
            elected = election if self.layout.plugged else ""
            lease = given_back(name, self.layout.system, settled=True, elected=elected)
            self.plane.call("PATCH", where, lease, kind=MERGE)
        self.start_scheduler_service()
        if webhook:
            self.start_webhook()
        if not self.layout.plugged:
            self.start_beside()
        eventually("the scheduler service is ready", self.ready)
        if webhook:
            eventually("the webhook is trusted", self.admits)
        self._kubelets.start()

    def start_scheduler_service(self, name: str = "", *extra: str) -> None:
        """Start one instance of the scheduler service on its ports."""
        name = name or self.layout.pod
        if name not in self.instances:
            self.instances[name] = (free_port(), self.layout.read or free_port())
            labels = {"app.kubernetes.io/component": "scheduler"}
            container = {"name": "scheduler", "image": "stands-for-a-process"}
            self.create(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, "namespace": self.layout.system, "labels": labels},
                    "spec": {"containers": [container], "schedulerName": "nobody"},
                }
            )
        verbs, read = self.instances[name]
        own = [f"--port={verbs}", f"--read-port={read}", "--tls-host=127.0.0.1"]
        # Tests read the books by the debug API, and name pods.
        extra = ("--published-reads", *extra)
        if self.layout.plugged:
            own = [
                f"--port={read}",
                f"--plugin-socket={self.socket(name)}",
                f"--plugin-user={os.getuid()}",
            ]
        self.partage(
            self.layout.scheduler,
            f"--host={self.layout.address}",
            *own,
            f"--identity={name}_{verbs}",
            f"--pod-name={name}",
            f"--pod-namespace={self.layout.system}",
            *extra,
            name=name,
        )
        if self.layout.plugged:
            self.start_plugged(name)

    def socket(self, name: str) -> Path:
        """Where an instance and its kube-scheduler meet."""
        return self.plane.folder / f"{name}.sock"

    def start_plugged(self, name: str) -> None:
        """Start the kube-scheduler of an instance's pod, with the chart's configuration and plugin."""
        config = self.config_beside()
        # As short as the Lease of the other seam is here.
        lease = self.layout.lease
        config["leaderElection"].update(
            leaseDuration=f"{lease}s", renewDeadline=f"{lease * 3 // 5}s", retryPeriod="1s"
        )
        token = self.token(self.layout.scheduler)
        own = self.plane.kubeconfig(token)
        self.plane.start_scheduler(
            config,
            self.beside(name),
            f"--authentication-kubeconfig={own}",
            f"--authorization-kubeconfig={own}",
            token=token,
            program=PLUGIN / "kube-scheduler",
            wire=self.wire,
            env={
                "PARTAGE_SOCKET": str(self.socket(name)),
                "PARTAGE_ENGINE_USER": str(os.getuid()),
                "POD_NAME": name,
                "POD_NAMESPACE": self.layout.system,
            },
        )

    def beside(self, name: str) -> str:
        """The process of the kube-scheduler that goes with an instance."""
        own = self.layout.plugged and name != self.layout.pod
        return f"kube-scheduler-{name}" if own else "kube-scheduler"

    def pod_of(self, name: str) -> list[Process]:
        """The processes that an instance's pod has."""
        names = [name, self.beside(name)] if self.layout.plugged else [name]
        return [self.plane.processes[one] for one in names]

    def config_beside(self) -> dict[str, Any]:
        """kube-scheduler's configuration, as the chart has it."""
        where = f"/api/v1/namespaces/{self.layout.system}/configmaps/{self.layout.beside}"
        found = yaml.safe_load(self.plane.call("GET", where)["data"]["config.yaml"])
        return dict(found)

    def leader(self, which: int = 0) -> int | None:
        """The port of the pod with the leader's label: 0 of the verbs, 1 for reading."""
        query = "labelSelector=partage.io/leader%3Dtrue"
        found = self.plane.call("GET", f"/api/v1/namespaces/{self.layout.system}/pods?{query}")[
            "items"
        ]
        names = [p["metadata"]["name"] for p in found]
        return self.instances[names[0]][which] if len(names) == 1 else None

    def start_webhook(self) -> None:
        """Start the webhook, and have the API server find it: on loopback, or by its Service."""
        port = free_port()
        if self.layout.routed:
            self.webhook = f"https://{self.layout.routed}:{port}"
            self.stand_behind(self.layout.webhook, self.layout.system, self.layout.routed, port)
            bind = f"--host={self.layout.routed}"
            self.partage(self.layout.webhook, bind, f"--port={port}", name="webhook")
            return
        self.webhook = f"https://127.0.0.1:{port}"
        for kind in ("mutating", "validating"):
            where = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/partage"
            body = [
                {
                    "op": "replace",
                    "path": f"/webhooks/{index}/clientConfig",
                    "value": {"url": f"{self.webhook}{_path(one['clientConfig'])}"},
                }
                for index, one in enumerate(self.plane.call("GET", where)["webhooks"])
            ]
            self.plane.call("PATCH", where, body, kind="application/json-patch+json")
        self.partage(
            self.layout.webhook,
            "--host=127.0.0.1",
            f"--port={port}",
            f"--url={self.webhook}",
            f"--claims={self.scheduler}",
            name="webhook",
        )

    def stand_behind(self, service: str, namespace: str, address: str, port: int) -> None:
        """Write what Kubernetes writes for a Service whose pods are ready, for the process that stands for one."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        name = f"{service}-process"
        labels = {
            "kubernetes.io/service-name": service,
            "endpointslice.kubernetes.io/managed-by": "tests",
        }
        ports = self.plane.call("GET", f"/api/v1/namespaces/{namespace}/services/{service}")
        slice_ = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [
                {"name": one.get("name", ""), "port": port, "protocol": "TCP"}
                for one in ports["spec"]["ports"]
            ],
        }
        with suppress(urllib.error.HTTPError):
            self.plane.call("DELETE", f"{path}/{name}")
        self.plane.call("POST", path, slice_)

    def start_beside(self, name: str = "kube-scheduler") -> None:
        """Start the second kube-scheduler with the chart's configuration and its Secret's files."""
        secret = f"/api/v1/namespaces/{self.layout.system}/secrets/partage-scheduler-tls"
        held = eventually(
            "the Secret is filled", lambda: self.plane.call("GET", secret).get("data")
        )
        for key in ("ca.crt", "tls.crt", "tls.key"):
            path = self.plane.folder / f"extender-{key}"
            path.write_bytes(base64.b64decode(held[key]))
        config = self.config_beside()
        (extender,) = config["extenders"]
        extender["urlPrefix"] = f"https://127.0.0.1:{self.verbs}/scheduler"
        for field, key in (("caFile", "ca.crt"), ("certFile", "tls.crt"), ("keyFile", "tls.key")):
            extender["tlsConfig"][field] = str(self.plane.folder / f"extender-{key}")
        own = self.plane.kubeconfig(self.token(self.layout.beside))
        where = f"/apis/apps/v1/namespaces/{self.layout.system}/deployments/{self.layout.beside}"
        spec = self.plane.call("GET", where)["spec"]["template"]["spec"]
        env = {one["name"]: one["value"] for one in spec["containers"][0].get("env", ())}
        self.plane.start_scheduler(
            config,
            name,
            f"--authentication-kubeconfig={own}",
            f"--authorization-kubeconfig={own}",
            token=self.token(self.layout.beside),
            env=env,
        )

    def restart(self, name: str, *, crash: bool = False) -> None:
        """End one of the processes and start it again; etcd and the API server until that is ready.

        An API server that starts answers 403 to all until it has read the roles, which says
        nothing of ours: what it refused meanwhile does not count.
        """
        process = self.plane.processes[name]
        begun = now()
        (process.kill if crash else process.stop)()
        process.start()
        if name in ("etcd", "kube-apiserver"):
            self.plane.wait_ready()
        if name == "kube-apiserver":
            self._starts.append((begun, now()))

    def token(self, account: str) -> str:
        """A token of a service account, as a pod of it would get."""
        if account not in self._tokens:
            where = f"/api/v1/namespaces/{self.layout.system}/serviceaccounts/{account}/token"
            body = {"spec": {"expirationSeconds": 86400}}
            self._tokens[account] = self.plane.call("POST", where, body)["status"]["token"]
        return self._tokens[account]

    def partage(self, deployment: str, *options: str, name: str) -> None:
        """Run what a Deployment of the chart runs, by its service account, with further options."""
        where = f"/apis/apps/v1/namespaces/{self.layout.system}/deployments/{deployment}"
        spec = self.plane.call("GET", where)["spec"]["template"]["spec"]
        config = self.plane.kubeconfig(self.token(spec["serviceAccountName"]))
        given = spec["containers"][0]["args"]
        program = [sys.executable, "-m", "partage.cli.main", *given, "--kubeconfig", str(config)]
        # Unlike pods, all these processes have one network.
        self.plane.run(name, [*program, f"--health-port={free_port()}", *options])

    def agent(self, node: str, *options: str, program: Sequence[str] = ()) -> None:
        """Run what the chart's DaemonSet runs on a node, by the token of a pod of it there, with further options.

        Another program may run it.

        The pod is an object that has ended: no kubelet runs it, and its token is good all the same.
        """
        space = f"/api/v1/namespaces/{self.layout.system}"
        where = f"/apis/apps/v1/namespaces/{self.layout.system}/daemonsets/{self.layout.agent}"
        spec = self.plane.call("GET", where)["spec"]["template"]["spec"]
        name, account = f"agent-{node}", spec["serviceAccountName"]
        stands = {
            "nodeName": node,
            "serviceAccountName": account,
            "automountServiceAccountToken": False,
            "containers": [{"name": "agent", "image": "stands-for-a-process"}],
        }
        head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        self.plane.call("POST", f"{space}/pods", {**head, "spec": stands})
        ended = {"status": {"phase": "Succeeded"}}
        self.plane.call("PATCH", f"{space}/pods/{name}/status", ended, kind=MERGE)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name}
        body = {"spec": {"expirationSeconds": 86400, "boundObjectRef": bound}}
        made = self.plane.call("POST", f"{space}/serviceaccounts/{account}/token", body)
        config = self.plane.kubeconfig(made["status"]["token"])
        given = [a.replace("$(NODE_NAME)", node) for a in spec["containers"][0]["args"]]
        command = [*(program or (sys.executable, "-m", "partage.cli.main")), *given]
        own = ["--kubeconfig", str(config), "--host=127.0.0.1", "--port=0"]
        self.plane.run(name, [*command, *own, f"--health-port={free_port()}", *options])

    def used(self, account: str) -> set[tuple[str, str]]:
        """Verbs and resources, with their subresources, that the API server allowed an account."""
        user = f"system:serviceaccount:{self.layout.system}:{account}"
        return {
            (one["verb"], "/".join(filter(None, (what["resource"], what.get("subresource")))))
            for one in self._audited()
            if one["user"]["username"] == user and one["responseStatus"]["code"] < 300
            for what in [one["objectRef"]]
        }

    def rights(self, name: str) -> set[tuple[str, str]]:
        """Verbs and resources of the chart's roles of a name, in all namespaces."""
        base = "/apis/rbac.authorization.k8s.io/v1"
        found = [
            one
            for kind in ("clusterroles", "roles")
            for one in self.plane.call("GET", f"{base}/{kind}")["items"]
            if one["metadata"]["name"] == name
        ]
        return {
            (verb, resource)
            for one in found
            for rule in one["rules"]
            for verb in rule["verbs"]
            for resource in rule["resources"]
        }

    def _audited(self) -> Iterator[dict[str, Any]]:
        """Requests of our programs that were answered, as the API server wrote them down."""
        for line in (self.plane.folder / "audit.log").read_text().splitlines():
            event = json.loads(line)
            if "responseStatus" in event:
                yield event

    def refusals(self, *, expected: bool = False) -> list[str]:
        """Requests of our programs that the API server forbade; or those that a test provoked.

        What a ValidatingAdmissionPolicy denies, another node's object to an agent, is as much forbidden.
        """
        found = []
        for event in self._audited():
            provoked = "metadata.name%3Dprobe" in event["requestURI"]
            moment = event["requestReceivedTimestamp"]
            if any(begun <= moment <= ready for begun, ready in self._starts):
                continue
            told = event["responseStatus"].get("message", "")
            if 'webhook "claims.partage.io" denied' in told:
                continue  # no lack of a right: a pod was faster, and the claim's is tried again
            forbidden = event["responseStatus"]["code"] == 403 or "denied request" in told
            if forbidden and provoked == expected:
                found.append(
                    f"{event['user']['username']} {event['verb']} {event['requestURI']}: {told}"
                )
        return found

    @contextmanager
    def forbidden_meanwhile(self, *, afterwards: bool = True) -> Iterator[None]:
        """Requests of our programs that are forbidden from here on do not count: their rights are taken away."""
        begun = now()
        yield
        self._starts.append((begun, "9999" if afterwards else now()))

    def ready(self) -> bool:
        """Whether the scheduler service says that it is ready."""
        with urllib.request.urlopen(f"{self.scheduler}/readyz", timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)

    def get(self, path: str) -> Any:
        """A document of the scheduler service."""
        with urllib.request.urlopen(self.scheduler + path, timeout=30) as answer:  # noqa: S310
            return json.load(answer)

    def stop(self) -> None:
        """Let the stand-in for kubelets end."""
        self._quiet.set()
        for service in self._services:
            service.close()
        if self._kubelets.is_alive():
            self._kubelets.join()

    def admits(self) -> bool:
        """Whether the API server asks the webhook and believes it: a broken pod is refused."""
        broken = pod("probe", {"tke.cloud.tencent.com/qgpu-core": "33"})
        try:
            self.plane.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", broken)
        except urllib.error.HTTPError as error:
            return "qgpu-core" in error.read().decode()
        return False

    # --- objects -----------------------------------------------------------------------------

    def create(self, value: dict[str, Any]) -> Any:
        """Create an object; nodes get the status that their manifest has.

        Raises:
            urllib.error.HTTPError: the API server refused.
        """
        path = collection(value)
        made = self.plane.call("POST", path, value)
        if value["kind"] in {"Node", "Device"} and value.get("status"):
            body = {"status": value["status"]}
            made = self.plane.call(
                "PATCH", f"{path}/{value['metadata']['name']}/status", body, kind=MERGE
            )
        return made

    def add_nodes(self, documents: Iterable[dict[str, Any]]) -> None:
        """Nodes and Devices of manifests; nodes are made ready."""
        nodes = []
        for value in documents:
            self.create(value)
            nodes += [value] if value["kind"] == "Node" else []
        self.make_ready(*nodes)

    def make_ready(self, *nodes: dict[str, Any]) -> None:
        """Report nodes that there are as their kubelets would, and wait until pods may go to all of them."""
        for node in nodes:
            status = dict(node.get("status", {}))
            status.setdefault("capacity", dict(status.get("allocatable", {})))
            status["conditions"] = [{"type": "Ready", "status": "True"}]
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            self.plane.call("PATCH", path, {"status": status}, kind=MERGE)

        def tainted() -> bool:
            """Kubernetes takes the taint off one node after another."""
            found = [
                self.plane.call("GET", f"/api/v1/nodes/{node['metadata']['name']}")
                for node in nodes
            ]
            taints = [one for node in found for one in node["spec"].get("taints", ())]
            return any(one["key"] == "node.kubernetes.io/not-ready" for one in taints)

        eventually("the nodes take pods", lambda: not tainted())

    def pod(self, name: str, namespace: str = "default") -> Any:
        """A pod as the API server has it; None when there is none."""
        try:
            return self.plane.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def bound(self, name: str, namespace: str = "default") -> Any:
        """The pod, once it has a node."""

        def ask() -> Any:
            found = self.pod(name, namespace)
            return found if found and found["spec"].get("nodeName") else None

        try:
            return eventually(f"pod {name} has a node", ask)
        except AssertionError as error:
            said = [e["message"] for e in self.events(name, namespace)]
            raise AssertionError(f"{error}; its events: {said}") from error

    def revision(self) -> str:
        """The cluster's state as of now, to look back to."""
        return str(self.plane.call("GET", "/api/v1/pods")["metadata"]["resourceVersion"])

    def first_bound(self, name: str, since: str, namespace: str = "default") -> Any:
        """A pod as it was in the moment that it had a node, seen from a state before that."""
        query = f"watch=true&resourceVersion={since}&timeoutSeconds=2"
        path = f"/api/v1/namespaces/{namespace}/pods?{query}"
        for line in self.plane.call("GET", path, decode=False).splitlines():
            found = json.loads(line)["object"]
            if found["metadata"]["name"] == name and found["spec"].get("nodeName"):
                return found
        raise AssertionError(f"pod {name} was never bound since {since}")

    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """Events of a pod."""
        found = self.plane.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [e for e in found if e["involvedObject"].get("name") == name]

    def shell(self, command: str) -> str:
        """What a printed command prints, with the genuine kubectl as administrator.

        Raises:
            AssertionError: it failed; says what it said.
        """
        path = f"{KUBERNETES}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],  # noqa: S607 # a document's own words
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path, "KUBECONFIG": str(self.plane.kubeconfig())},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete a pod as a user does."""
        self.plane.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def _live(self) -> None:
        """Stand in for kubelets: bound pods run, deleted ones go, and so do Kubernetes' own parts.

        A kube-scheduler ends itself when a restarted API server shows it a pod otherwise than
        before; a kubelet starts it again. A kubelet ends itself where its runtime is not there yet;
        systemd starts it again. Our own programs get no such help.
        """
        while not self._quiet.wait(0.3):
            for name, process in [*self.plane.processes.items()]:
                if name in KUBERNETES_PARTS or name.startswith(("kubelet-", "kube-scheduler-")):
                    process.revive()
            with suppress(OSError):
                for found in self.plane.call("GET", "/api/v1/pods")["items"]:
                    self._tend(found)

    def _tend(self, found: dict[str, Any]) -> None:
        head = found["metadata"]
        path = f"/api/v1/namespaces/{head['namespace']}/pods/{head['name']}"
        if found["spec"].get("nodeName") in {None, "", *self.genuine}:
            return
        if head.get("deletionTimestamp"):
            self.plane.call("DELETE", path, {"gracePeriodSeconds": 0})
        elif found["status"].get("phase") == "Pending":
            self.plane.call(
                "PATCH", f"{path}/status", {"status": {"phase": "Running"}}, kind=MERGE
            )


def _path(client: dict[str, Any]) -> str:
    """The path by which a webhook is asked, through a Service or by a URL."""
    return str(client["service"]["path"] if "service" in client else urlsplit(client["url"]).path)


def collection(value: dict[str, Any]) -> str:
    """Where objects of a kind are."""
    version, kind = value["apiVersion"], value["kind"].lower()
    plural = (
        f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}{'es' if kind[-1] in 'sx' else 's'}"
    )
    base = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    alone = {
        "node",
        "namespace",
        "device",
        "customresourcedefinition",
        "priorityclass",
        "clusterrole",
        "clusterrolebinding",
        "mutatingwebhookconfiguration",
        "validatingwebhookconfiguration",
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    }
    space = "" if kind in alone else f"/namespaces/{value['metadata'].get('namespace', 'default')}"
    return f"{base}{space}/{plural}"


def pod(name: str, limits: dict[str, str], **spec: Any) -> dict[str, Any]:
    """A pod of one container."""
    notes = spec.pop("annotations", {})
    container = {"name": "main", "image": "example", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"containers": [container], **spec},
    }


def documents(*paths: Path) -> list[dict[str, Any]]:
    """All documents of YAML files."""
    return [d for path in paths for d in yaml.safe_load_all(path.read_text()) if d]


@contextmanager
def stack(
    folder: Path,
    *,
    webhook: bool = True,
    flags: Iterable[str] = (),
    layout: Layout | None = None,
    before: Callable[["Stack"], None] = lambda _: None,
) -> Iterator[Stack]:
    """A cluster with Partage that runs while the context does; nothing may be refused to it.

    Args:
        folder: an empty folder of its own.
        webhook: whether there is one.
        flags: further flags of the API server.
        layout: of the chart.
        before: what is done with the cluster before Partage comes.

    Raises:
        AssertionError: the chart's roles lack something that our programs asked for.
    """
    (folder / "audit.json").write_text(json.dumps(AUDIT))
    audit = (
        f"--audit-policy-file={folder / 'audit.json'}",
        f"--audit-log-path={folder / 'audit.log'}",
    )
    with control_plane(folder, *audit, *flags) as plane:
        plane.start_controllers("--node-monitor-grace-period=6h")
        made = Stack(plane, layout)
        try:
            before(made)
            made.start(webhook=webhook)
            yield made
        finally:
            made.stop()
        refused = made.refusals()
        assert not refused, f"forbidden: {refused}"


__all__ = ["Layout", "Stack", "documents", "eventually", "own_address", "pod", "stack"]
