"""Others' programs that share clusters with Partage, run as they are beside it on the genuine control plane.

Nothing of them is in this tree or made by its gate: PARTAGE_NEIGHBOURS names a folder with what a reader made of their releases,
each under the name that their own build gives it. Tests of a program that is not there are skipped.
"""

import base64
import json
import os
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubelet
import pytest
import trustme
import yaml
from control_plane import ControlPlane
from stack import Stack, eventually

from fakes.ports import free_port

FOLDER = os.environ.get("PARTAGE_NEIGHBOURS", "")
Json = dict[str, Any]


def program(name: str) -> Path:
    """One of their programs; skips the test where it is not there."""
    if not FOLDER:
        pytest.skip("needs programs of others: PARTAGE_NEIGHBOURS=folder make test-cluster")
    path = Path(FOLDER) / name
    if not os.access(path, os.X_OK):
        pytest.skip(f"needs programs of others: {name} is not in PARTAGE_NEIGHBOURS")
    return path


def told(name: str, what: object) -> None:
    """Keep what was found, for docs/compatibility, as build/neighbours/NAME.json."""
    folder = Path(__file__).parents[2] / "build" / "neighbours"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(what, indent=1) + "\n")


class Kueue:
    """Kueue, by the objects of its release: `kueue` and `kueue.yaml` (what is applied to install it) of the folder.

    Built in its module: `go build ./cmd/kueue` and `kubectl kustomize config/default`.

    Its program stands for the pod of its Deployment: the test plays the mounted Secret and the Service's endpoint.
    """

    def __init__(self, stack: Stack, address: str) -> None:
        self.stack = stack
        self.address = address
        """Where its webhooks listen: not of loopback, since the API server finds them by their Service."""

    def start(self, resources: Mapping[str, Any]) -> None:
        """Install it with `resources` in its Configuration, and wait until its webhooks are asked."""
        run = program("kueue")
        objects = [
            one for one in yaml.safe_load_all((run.parent / "kueue.yaml").read_text()) if one
        ]
        (held,) = (one for one in objects if one["metadata"]["name"] == "kueue-manager-config")
        kept = [one for one in objects if one["kind"] not in {"APIService", "Deployment"}]
        path = self.stack.plane.folder / "kueue.yaml"
        path.write_text(yaml.safe_dump_all(kept))
        self.stack.shell("kubectl create namespace kueue-system")
        self.stack.shell(f"kubectl apply --server-side -f {path}")
        certificates = self.stack.plane.folder / "kueue-certificates"
        certificates.mkdir()
        port = free_port()
        config = yaml.safe_load(held["data"]["controller_manager_config.yaml"])
        config.update(
            resources=dict(resources),
            leaderElection={"leaderElect": False},
            health={"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
            metrics={"bindAddress": f"127.0.0.1:{free_port()}"},
            webhook={"host": self.address, "port": port, "certDir": str(certificates)},
        )
        path = self.stack.plane.folder / "kueue-config.yaml"
        path.write_text(yaml.safe_dump(config))
        self.stack.plane.run(
            "kueue",
            [str(run), f"--config={path}", "--feature-gates=VisibilityOnDemand=false"],
            {"KUBECONFIG": str(self.stack.plane.kubeconfig()), "POD_NAMESPACE": "kueue-system"},
        )
        where = "/api/v1/namespaces/kueue-system/secrets/kueue-webhook-server-cert"
        filled = eventually(
            "Kueue has a certificate",
            lambda: (
                (self.stack.plane.call("GET", where).get("data") or {}).get("tls.crt")
                and self.stack.plane.call("GET", where)["data"]
            ),
        )
        for name, text in filled.items():
            (certificates / name).write_bytes(base64.b64decode(text))
        self.stack.stand_behind("kueue-webhook-service", "kueue-system", self.address, port)


class Karpenter:
    """Karpenter with its kwok provider: `karpenter` and `karpenter.yaml` of the folder.

    The program is built in `karpenter` here: `go build -o FOLDER/karpenter .`; the definitions are those of its
    module in kwok/charts/crds and kwok/apis/crds.

    Its nodes are objects. What their kubelets and agents would do is the caller's.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def start(
        self,
        sizes: Mapping[str, Mapping[str, str]],
        slices: Mapping[str, list[Json]],
        labels: Sequence[str] = (),
    ) -> None:
        """Install it, with a NodePool for each instance type and by its name, and wait until they are ready.

        Args:
            sizes: what a node of an instance type offers, by type; one costs what the number of its `cpu` says.
            slices: specs of the ResourceSlices that a node of an instance type will publish, where it knows them.
            labels: keys of labels whose value a node has of the pods that it comes for.
        """
        run, folder = program("karpenter"), self.stack.plane.folder
        self.stack.shell(f"kubectl apply --server-side -f {run.parent / 'karpenter.yaml'}")
        self.stack.shell("kubectl wait --for=condition=Established crd --all --timeout=60s")
        offered = (
            ("karpenter.sh/capacity-type", "on-demand"),
            ("topology.kubernetes.io/zone", "a"),
        )
        types = [
            {
                "name": name,
                "offerings": [
                    {
                        "Price": float(resources["cpu"]),
                        "Requirements": [
                            {"key": key, "operator": "In", "values": [value]}
                            for key, value in offered
                        ],
                    }
                ],
                "architecture": "amd64",
                "operatingSystems": ["linux"],
                "resources": dict(resources),
            }
            for name, resources in sizes.items()
        ]
        (folder / "instance-types.json").write_text(json.dumps(types))
        (folder / "instance-slices.json").write_text(json.dumps(slices))
        self.stack.plane.run(
            "karpenter",
            [
                str(run),
                "--disable-leader-election=true",
                "--ignore-dra-requests=false",
                f"--instance-types-file-path={folder / 'instance-types.json'}",
                f"--metrics-port={free_port()}",
                f"--health-probe-port={free_port()}",
            ],
            {
                "KUBECONFIG": str(self.stack.plane.kubeconfig()),
                "INSTANCE_TYPE_SLICES": str(folder / "instance-slices.json"),
                "SYSTEM_NAMESPACE": "kube-system",
            },
        )
        kind = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
        api = f"/apis/{kind['group']}/v1alpha1/kwoknodeclasses"
        body = {"apiVersion": f"{kind['group']}/v1alpha1", "kind": kind["kind"]}
        self.stack.plane.call("POST", api, {**body, "metadata": {"name": kind["name"]}})
        for name in sizes:
            key = "node.kubernetes.io/instance-type"
            only = {"key": key, "operator": "In", "values": [name]}
            asked = [only, *({"key": label, "operator": "Exists"} for label in labels)]
            node = {"nodeClassRef": kind, "requirements": asked, "expireAfter": "Never"}
            spec = {
                "template": {"spec": node},
                "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
            }
            pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool"}
            self.stack.plane.call(
                "POST", self.POOLS, {**pool, "metadata": {"name": name}, "spec": spec}
            )

        def ready() -> bool:
            pools = self.stack.plane.call("GET", self.POOLS)["items"]
            held = [one.get("status", {}).get("conditions", ()) for one in pools]
            return all(
                any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
                for conditions in held
            )

        eventually("Karpenter's NodePools are ready", ready)

    POOLS = "/apis/karpenter.sh/v1/nodepools"


class NvidiaPlugin:
    """NVIDIA's device plugin (`nvidia-device-plugin`) on a kubelet, with a stand-in of the driver's library."""

    def __init__(self, folder: Path, cards: Mapping[str, int]) -> None:
        """Compile the library; skips without a compiler.

        Args:
            folder: the kubelet's.
            cards: identities and numbers.
        """
        self._folder, self._root = folder, folder.parent / "driver"
        library = self._root / "usr/lib64/libnvidia-ml.so.1"
        library.parent.mkdir(parents=True)
        if shutil.which("gcc") is None:
            pytest.skip("gcc is not installed: no stand-in for the driver's library can be made")
        source = Path(__file__).with_name("nvml_of_two_cards.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)  # noqa: S607
        lines = (
            f"{n} {n} {uuid} Tesla_T4 {16 << 30} 00000000:{n + 59:02X}:00.0 2 0 1eb810de\n"
            for uuid, n in cards.items()
        )
        (self._root / "cards").write_text("".join(lines))

    def start(self, plane: ControlPlane) -> None:
        """Start it; its path for sockets cannot be chosen, as the kubelet's cannot."""
        plane.run(
            "nvidia-device-plugin",
            [
                *kubelet.inside(self._folder),
                str(program("nvidia-device-plugin")),
                f"--driver-root-ctr-path={self._root}",
                "--device-discovery-strategy=nvml",
            ],
            {"FAKE_NVML": str(self._root / "cards"), "DP_DISABLE_HEALTHCHECKS": "all"},
        )

    @staticmethod
    def stop(plane: ControlPlane) -> None:
        """End it, as a DaemonSet that is deleted does."""
        plane.processes.pop("nvidia-device-plugin").stop()


class Hami:
    """HAMi's scheduler: extender, webhook, and a kube-scheduler that asks it, with its chart's flags and configuration.

    Its device plugin needs a driver. What that writes is played: registrations of nodes are the caller's, and `serve` ends an
    allocation as the kubelet's question does.

    Attributes:
        name: the scheduler's name in pods.
        url: of its extender and webhook.
    """

    def __init__(self, plane: ControlPlane, name: str = "hami-scheduler") -> None:
        self.plane = plane
        self.name = name
        self._port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        authority = trustme.CA()
        self._trust = plane.folder / "hami-ca.crt"
        authority.cert_pem.write_to_path(str(self._trust))
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(plane.folder / "hami.key"))
        issued.cert_chain_pems[0].write_to_path(str(plane.folder / "hami.crt"))
        self._context = ssl.create_default_context(cafile=str(self._trust))

    def start(self, *, policy: str = "binpack/spread", schedules: bool = True) -> None:
        """Start it, and wait until it answers.

        Args:
            policy: between nodes and between cards, for pods that name none.
            schedules: with a kube-scheduler that asks it.
        """
        settings = {
            "nvidia": {
                "resourceCountName": "nvidia.com/gpu",
                "resourceMemoryName": "nvidia.com/gpumem",
                "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
                "resourceCoreName": "nvidia.com/gpucores",
                "resourcePriorityName": "nvidia.com/priority",
                "defaultMemory": 0,
                "defaultCores": 0,
                "defaultGPUNum": 1,
                "memoryFactor": 1,
                "deviceSplitCount": 10,
                "deviceMemoryScaling": 1,
                "deviceCoreScaling": 1,
            }
        }
        path = self.plane.folder / "hami-devices.yaml"
        path.write_text(yaml.safe_dump(settings))
        node, card = policy.split("/")
        self.plane.run(
            "hami-extender",
            [
                str(program("hami-scheduler")),
                f"--http_bind=127.0.0.1:{self._port}",
                f"--cert_file={self.plane.folder / 'hami.crt'}",
                f"--key_file={self.plane.folder / 'hami.key'}",
                f"--scheduler-name={self.name}",
                f"--metrics-bind-address=127.0.0.1:{free_port()}",
                f"--node-scheduler-policy={node}",
                f"--gpu-scheduler-policy={card}",
                f"--device-config-file={path}",
                "--kube-qps=500",
                "--kube-burst=1000",
            ],
            {
                "KUBECONFIG": str(self.plane.kubeconfig()),
                "POD_NAME": "hami-scheduler-0",
                "POD_NAMESPACE": "kube-system",
            },
        )
        eventually("HAMi's extender answers", lambda: self._get("/healthz"))
        if schedules:
            counted = ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")
            extender = {
                "urlPrefix": self.url,
                "enableHTTPS": True,
                "tlsConfig": {"insecure": True},
                "filterVerb": "filter",
                "bindVerb": "bind",
                "nodeCacheCapable": True,
                "weight": 1,
                "httpTimeout": "30s",
                "managedResources": [
                    {"name": f"nvidia.com/{one}", "ignoredByScheduler": True} for one in counted
                ],
            }
            config = {"profiles": [{"schedulerName": self.name}], "extenders": [extender]}
            self.plane.start_scheduler(config, "hami-kube-scheduler")

    def stop(self) -> None:
        """End it, as `kubectl scale --replicas=0` does."""
        for name in ("hami-kube-scheduler", "hami-extender"):
            process = self.plane.processes.pop(name, None)
            if process is not None:
                process.stop()

    def webhook(self, failure: str = "Ignore") -> Json:
        """The object by which its chart has the API server ask its webhook; `failure` is its failurePolicy."""
        client = {
            "url": f"{self.url}/webhook",
            "caBundle": base64.b64encode(self._trust.read_bytes()).decode(),
        }
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
            "scope": "*",
        }
        ignored = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "hami-webhook"},
            "webhooks": [
                {
                    "name": "vgpu.hami.io",
                    "admissionReviewVersions": ["v1beta1"],
                    "clientConfig": client,
                    "failurePolicy": failure,
                    "sideEffects": "None",
                    "rules": [rule],
                    "timeoutSeconds": 10,
                    "reinvocationPolicy": "Never",
                    "matchPolicy": "Equivalent",
                    "namespaceSelector": {"matchExpressions": [ignored]},
                    "objectSelector": {"matchExpressions": [ignored]},
                }
            ],
        }

    def filtered(self, pod: Mapping[str, Any], nodes: list[str]) -> Json:
        """Its answer to kube-scheduler's question; it writes its choice of cards on the pod."""
        return self._post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})

    def serve(self, pod: Mapping[str, Any]) -> None:
        """What its device plugin does for a bound pod: the allocation is done, and the node's lock is off."""
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        done = {"hami.io/bind-phase": "success", "hami.io/vgpu-devices-to-allocate": ";"}
        merge = "application/merge-patch+json"
        self.plane.call(
            "PATCH",
            f"/api/v1/namespaces/default/pods/{name}",
            {"metadata": {"annotations": done}},
            kind=merge,
        )
        lock = {"metadata": {"annotations": {"hami.io/mutex.lock": None}}}
        self.plane.call("PATCH", f"/api/v1/nodes/{node}", lock, kind=merge)

    def _get(self, path: str) -> bool:
        with urllib.request.urlopen(self.url + path, context=self._context, timeout=30) as answer:  # noqa: S310
            return bool(answer.status == 200)

    def _post(self, path: str, body: object) -> Any:
        request = urllib.request.Request(  # noqa: S310 # loopback
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, context=self._context, timeout=60) as answer:  # noqa: S310
            return json.load(answer)


class Koordinator:
    """Koordinator's scheduler and manager.

    They are `koord-scheduler`, `koord-manager` and `koordinator.yaml` (its definitions,
    config/crd/bases) of the folder.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def define(self) -> None:
        """Make its definitions."""
        run = program("koord-scheduler")
        text = (run.parent / "koordinator.yaml").read_text()
        definitions = filter(None, yaml.safe_load_all(text))
        for one in definitions:
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            self.plane.call("POST", path, one)

    def schedule(self, *names: tuple[str, str]) -> None:
        """Start its scheduler, with those of its plugins that devices need, so that only devices decide.

        Args:
            names: of a scheduler, and the scoring strategy of its DeviceShare.
        """
        points = {
            "preFilter": ("Reservation", "DeviceShare"),
            "filter": ("DeviceShare", "Reservation"),
            "postFilter": (),
            "preScore": ("Reservation",),
            "score": ("DeviceShare",),
            "reserve": ("DeviceShare", "Reservation"),
            "preBind": ("DeviceShare", "Reservation", "DefaultPreBind"),
        }
        plugins = {
            point: {"disabled": [{"name": "*"}], "enabled": [{"name": one} for one in enabled]}
            for point, enabled in points.items()
        }
        profiles = [
            {
                "schedulerName": name,
                "plugins": plugins,
                "pluginConfig": [{"name": "DeviceShare", "args": self._scores(strategy)}],
            }
            for name, strategy in names
        ]
        self.plane.start_scheduler(
            {"profiles": profiles}, "koord-scheduler", program=program("koord-scheduler")
        )

    def manage(self) -> None:
        """Start its manager, whose controller of node resources writes nodes' totals."""
        run = program("koord-manager")
        space = {"metadata": {"name": "koordinator-system"}}
        self.plane.call("POST", "/api/v1/namespaces", space)
        config = {
            "metadata": {"name": "slo-controller-config"},
            "data": {"colocation-config": json.dumps({"enable": True})},
        }
        self.plane.call("POST", "/api/v1/namespaces/koordinator-system/configmaps", config)
        self.plane.run(
            "koord-manager",
            [
                str(run),
                f"--kubeconfig={self.plane.kubeconfig()}",
                "--enable-leader-election=false",
                "--enable-pprof=false",
                "--controllers=noderesource",
                "--feature-gates=WebhookFramework=false,EnableSyncGPUSharedResource=true",
                f"--metrics-addr=127.0.0.1:{free_port()}",
                f"--health-probe-addr=127.0.0.1:{free_port()}",
            ],
        )

    @staticmethod
    def _scores(strategy: str) -> Json:
        """The default weights of DeviceShare's scores, by a strategy."""
        counted = ("gpu-memory-ratio", "gpu-memory", "rdma", "fpga")
        resources = [{"name": f"koordinator.sh/{one}", "weight": 1} for one in counted]
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "DeviceShareArgs",
            "scoringStrategy": {"type": strategy, "resources": resources},
        }


__all__ = [
    "FOLDER",
    "Hami",
    "Karpenter",
    "Koordinator",
    "Kueue",
    "NvidiaPlugin",
    "program",
    "told",
]
