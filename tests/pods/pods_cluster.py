"""A small cluster in which everything that the chart installs runs in pods, from the images.

Two machines of namespaces (machine.py), each with a genuine containerd, kubelet and kube-proxy, and pods on a bridge by the
network plugins of Debian; on the first the genuine control plane and CoreDNS. Those plugins enforce no NetworkPolicy, so
kube-router's controller does on each. Nothing is pulled from anywhere: the images are imported. A load balancer is not there.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import machine
from machine import Machine

sys.path += [
    str(Path(__file__).parents[2] / name)
    for name in ("deploy", "tests/cluster", "tests/runtime", "tests/tools")
]
import containerd
from chart import CHART, helm
from control_plane import HELM, KUBERNETES, TOOLS, VERSION, ControlPlane
from stack import eventually

ROOT = Path(__file__).parents[2]
ARCHIVES = ROOT / "build" / "images"
"""Where tests/pods/images puts the images of this tree."""
IMAGES = ("partage", "kube-scheduler")
PLUGINS = TOOLS / "cni" / "usr" / "lib" / "cni"
NFT = TOOLS / "nft"
IPTABLES = TOOLS / "iptables"
DNS = TOOLS / "coredns-v1.15.0" / "coredns"
POLICIES = TOOLS / "kube-router-v2.1.0" / "policies"
SYSTEM = "partage-system"
REGISTRY = "registry.example.com"
STOCK = f"registry.k8s.io/kube-scheduler:v{VERSION}"
SEAM = os.environ.get("PARTAGE_PODS_SEAM", "plugin")
"""How kube-scheduler asks in the cluster: scheduler.seam of the chart."""
_SLOW = 300
_SERVICES = "10.96.0.0/16"


def missing() -> str:
    """What keeps the cluster from running here, in one line; empty when nothing does."""
    reason = machine.missing() or containerd.missing()
    if reason:
        return reason
    wanted = {
        "kubelet": KUBERNETES / "kubelet",
        "kube-proxy": KUBERNETES / "kube-proxy",
        "coredns": DNS,
        "the network plugins": PLUGINS / "bridge",
        "the controller of policies": POLICIES,
        "cosign": TOOLS / "cosign/usr/bin/cosign",
        "nft": NFT / "usr/sbin/nft",
        "iptables": IPTABLES / "usr/sbin/xtables-legacy-multi",
        **{f"image {one}": ARCHIVES / f"{one}.tar" for one in IMAGES},
    }
    absent = [name for name, path in wanted.items() if not path.exists()]
    return f"{', '.join(absent)} not there; run tests/pods/run" if absent else ""


class Cluster:
    """The cluster.

    Attributes:
        plane: the control plane.
        machines: by name.
        folder: of everything.
    """

    def __init__(self, folder: Path, names: tuple[str, ...] = ("a", "b")) -> None:
        """Start the machines and what runs on them; nothing is waited for.

        Args:
            folder: an empty one of its own, with a short path: sockets are in it.
            names: of the machines.
        """
        self.folder = folder
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        network = f"10.231.{number + os.getpid() % 25 * 10}"
        self.machines = {
            name: Machine(name, folder / name, place, network) for place, name in enumerate(names)
        }
        self.first = self.machines[names[0]]
        self._runtimes: dict[str, containerd.Containerd] = {}
        try:
            for one in self.machines.values():
                one.start()
            self._link()
        except BaseException:
            self._off()
            raise
        self.plane = ControlPlane(folder, self.first.address, self.first.network_of)
        self._tokens = {
            name: self.plane.token(f"system:node:{name}", "system:nodes") for name in self.machines
        }
        self._proxy = self.plane.token("system:kube-proxy")

    def _link(self) -> None:
        """Bridge and routes, as after each start of a machine."""
        self.first.join()
        for one in list(self.machines.values())[1:]:
            one.join(self.first)
        self._routes()

    def _routes(self) -> None:
        for one in self.machines.values():
            for other in self.machines.values():
                if other is not one:
                    one.route(other)

    def start(self) -> None:
        """Start control plane, runtimes and kubelets, and wait until the nodes are Ready with the images."""
        self.plane.start(
            "--enable-admission-plugins=NodeRestriction",
            "--endpoint-reconciler-type=lease",
            "--kubelet-preferred-address-types=InternalIP",
        )
        self.plane.start_controllers("--node-monitor-grace-period=60s")
        self.plane.start_scheduler({}, "default-scheduler")
        self._start_dns()
        for one in self.machines.values():
            self._start_node(one)
        for one in self.machines.values():
            self._import(one)
        for name in self.machines:
            eventually(f"node {name} is Ready", lambda name=name: self.node_ready(name), _SLOW)

    def _start_dns(self) -> None:
        path = self.folder / "Corefile"
        path.write_text(
            "cluster.local in-addr.arpa {\n"
            f"    bind {self.first.address}\n    errors\n"
            f"    kubernetes cluster.local in-addr.arpa {{\n        kubeconfig {self.plane.kubeconfig()}\n    }}\n}}\n"
        )
        self.plane.run("coredns", [str(DNS), "-conf", str(path)])

    def _start_node(self, one: Machine) -> None:
        folder = one.folder / "containerd"
        runtime = containerd.Containerd(
            "2.1", folder, plugins=PLUGINS, place=Path("/var/run/nri/nri.sock")
        )
        self._runtimes[one.name] = runtime
        runtime.configure()
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": one.pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
            ],
        }
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        one.unit("containerd", *runtime.command, env={"PATH": runtime.path})
        one.unit("kubelet", *self._kubelet(one, runtime))
        path = f"{self._filters()}:/usr/sbin:/usr/bin:/bin"
        one.unit("kube-proxy", *self._kube_proxy(one), env={"PATH": path})
        one.unit(
            "policies",
            str(POLICIES),
            str(self.plane.kubeconfig()),
            env={"PATH": path, "NODE_NAME": one.name},
        )

    def _kubelet(self, one: Machine, runtime: containerd.Containerd) -> tuple[str, ...]:
        resolv = one.folder / "resolv.conf"
        resolv.write_text("")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "0.0.0.0",  # noqa: S104 # a network of its own
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{runtime.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": one.group,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [self.first.address],
            "clusterDomain": "cluster.local",
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "imagefs.available": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "2s",
            "resolvConf": str(resolv),
        }
        path = one.folder / "kubelet.json"
        path.write_text(json.dumps(config))
        return (
            str(KUBERNETES / "kubelet"),
            f"--config={path}",
            f"--hostname-override={one.name}",
            f"--node-ip={one.address}",
            f"--cert-dir={one.folder / 'pki'}",
            f"--kubeconfig={self.plane.kubeconfig(self._tokens[one.name])}",
            "--v=2",
        )

    def _kube_proxy(self, one: Machine) -> tuple[str, ...]:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.plane.kubeconfig(self._proxy))},
            "mode": "nftables",
            "clusterCIDR": "10.244.0.0/16",
            "hostnameOverride": one.name,
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
        path = one.folder / "kube-proxy.json"
        path.write_text(json.dumps(config))
        return (str(KUBERNETES / "kube-proxy"), f"--config={path}")

    def _filters(self) -> Path:
        """A folder with nft, iptables and ipset, which find their own libraries."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        tables = IPTABLES / "usr/sbin/xtables-legacy-multi"
        programs = {
            "nft": (NFT, f"{NFT}/usr/sbin/nft"),
            "ipset": (IPTABLES, f"{IPTABLES}/usr/sbin/ipset"),
            **{
                name: (IPTABLES, f"{tables} {name}")
                for name in ("iptables", "iptables-save", "iptables-restore")
            },
        }
        for name, (root, command) in programs.items():
            libraries = sorted((root / "usr/lib").glob("*-linux-gnu*"))
            env = f"LD_LIBRARY_PATH={':'.join(map(str, libraries))}"
            env += f" XTABLES_LIBDIR={libraries[0]}/xtables"
            program = folder / name
            program.write_text(f'#!/bin/sh\n{env} exec {command} "$@"\n')
            program.chmod(0o755)
        return folder

    def _import(self, one: Machine) -> None:
        """Give its runtime the images: ours, Kubernetes' own kube-scheduler, and busybox by the names of the examples."""
        runtime = self._runtimes[one.name]
        eventually(
            f"{one.name} has a runtime",
            lambda: (
                subprocess.run(
                    runtime.client("version"), capture_output=True, check=False
                ).returncode
                == 0
            ),
            _SLOW,
        )
        if one is self.first:
            bash = {"bin/bash": b'#!/bin/sh\nexec /bin/sh "$@"\n'}
            for number, (name, files) in enumerate(
                (
                    ("docker.io/library/busybox:latest", bash),
                    ("docker.io/library/ubuntu:18.04", bash),
                    ("docker.io/library/ubuntu:22.04", bash),
                    (STOCK, {"bin/kube-scheduler": KUBERNETES / "kube-scheduler"}),
                )
            ):
                containerd.write_image(self.folder / f"image-{number}.tar", files, name)
        for path in (
            *sorted(self.folder.glob("image-*.tar")),
            *(ARCHIVES / f"{i}.tar" for i in IMAGES),
        ):
            done = runtime.ctr("image", "import", str(path))
            assert done.returncode == 0, done.stderr.decode()

    # --- what is asked of it -----------------------------------------------------------------

    def node_ready(self, name: str) -> bool:
        """Whether its kubelet says so, since it last started."""
        try:
            found = self.plane.call("GET", f"/api/v1/nodes/{name}")
        except urllib.error.HTTPError:
            return False
        return any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in found["status"]["conditions"]
        )

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints, as administrator.

        Raises:
            AssertionError: it failed; says what it said.
        """
        done = subprocess.run(
            [KUBERNETES / "kubectl", f"--kubeconfig={self.plane.kubeconfig()}", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def helm(self, *arguments: str) -> str:
        """What helm prints; where it fails, with what the pods say."""
        try:
            return helm(self.plane, *arguments, "-n", SYSTEM)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from error

    def pods(self, selector: str = "", namespace: str = SYSTEM) -> list[dict[str, Any]]:
        """Pods of a namespace."""
        query = f"?labelSelector={selector}" if selector else ""
        found: list[dict[str, Any]] = self.plane.call(
            "GET", f"/api/v1/namespaces/{namespace}/pods{query}"
        )["items"]
        return found

    def told(self) -> str:
        """What pods, events and logs say, for a failure's message."""
        lines = []
        for space in (SYSTEM, "default"):
            for one in self.pods(namespace=space):
                name, status = one["metadata"]["name"], one["status"]
                lines.append(
                    f"{space}/{name}: {json.dumps(status.get('containerStatuses', status))[:1500]}"
                )
                for container in one["spec"]["containers"]:
                    try:
                        lines.append(
                            self.kubectl(
                                "logs", "-n", space, name, "-c", container["name"], "--tail=15"
                            )
                        )
                    except AssertionError as error:
                        lines.append(str(error)[:300])
            for event in self.plane.call("GET", f"/api/v1/namespaces/{space}/events")["items"][
                -30:
            ]:
                about = event["involvedObject"]
                lines.append(
                    f"{about['kind']}/{about.get('name')}: {event['reason']}: {event.get('message', '')[:400]}"
                )
        return "\n".join(lines)

    def eventually(self, what: str, ask: Callable[[], Any], seconds: float = _SLOW) -> Any:
        """Wait until something is true; a failure has what pods, events and logs say."""
        try:
            return eventually(what, ask, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from error

    # --- what happens to it ------------------------------------------------------------------

    def reboot(self, name: str) -> None:
        """A power failure of a machine other than the first, which comes up again with its disk."""
        one = self.machines[name]
        one.stop()
        one.start()
        one.join(self.first)
        self._routes()

    def stop(self) -> None:
        """End everything, and leave nothing behind but files."""
        self.plane.stop()
        self._off()

    def _off(self) -> None:
        for one in reversed(self.machines.values()):
            one.stop()


VALUES: Mapping[str, Any] = {
    "image": {"repository": f"{REGISTRY}/partage"},
    "kubeScheduler": {
        "pluginImage": {"repository": f"{REGISTRY}/kube-scheduler"},
        "resources": {"requests": {"cpu": "20m"}},
    },
    "scheduler": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
    "webhook": {"resources": {"requests": {"cpu": "20m"}}},
    "agent": {
        "enabled": True,
        "simulated": {"model": "Tesla-T4", "cards": 4},
        "devicePlugin": {"enabled": True},
        "discovery": {"qgpu": True},
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
    },
    "metrics": {"service": {"type": "NodePort"}},
    "networkPolicy": {"enabled": True},
}
"""What an operator of a small cluster with simulated cards would give: two processors have to do for all."""


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """The cluster, with all nodes Ready and nothing of Partage's in it."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def installed(made: Cluster, *options: str) -> None:
    """`helm install --wait` with the values of an operator."""
    path = made.folder / "values.json"
    values = {**VALUES, "scheduler": {**VALUES["scheduler"], "seam": SEAM}}
    path.write_text(json.dumps(values))
    made.helm(
        "install",
        "partage",
        str(CHART),
        "--create-namespace",
        "-f",
        str(path),
        "--wait",
        "--timeout",
        "5m",
        *options,
    )


def main() -> None:
    """`make try`: the cluster with the chart installed, until it is ended."""
    folder = Path(os.environ.get("PARTAGE_TRY", "/tmp/partage-try"))  # noqa: S108 # its sockets need a short path
    reason = missing() or (f"{folder} is there: end the other one, or remove it" * folder.exists())
    if reason:
        sys.exit(f"make try: {reason}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder.mkdir(parents=True)
    try:
        with suppress(KeyboardInterrupt), cluster(folder) as made:
            made.kubectl("apply", "-f", str(Path(__file__).parent / "no_pulls.yaml"))
            installed(made)
            path = ":".join(str(one) for one in (KUBERNETES, HELM.parent, ROOT / ".venv/bin"))
            sys.stdout.write(
                f"Partage runs.  export KUBECONFIG={made.plane.kubeconfig()} PATH={path}:$PATH   Ctrl-C ends it.\n"
            )
            sys.stdout.flush()
            signal.pause()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
