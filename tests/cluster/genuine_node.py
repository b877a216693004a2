"""A genuine kubelet and a genuine containerd with `partage agent` beside them, and the pods that run there.

The agent finds its cards in a file that its simulated backend reads: a card falls ill when the file says so.
"""

import json
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import kubelet
import pytest
from control_plane import Process
from stack import Layout, Stack, eventually

from partage.agent.differences import Kind
from partage.agent.kubelet import messages as said
from partage.model.allocation import Grant
from partage.vendors import names
from partage.wire.record import decode

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
import containerd
import cri

NEEDS = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(containerd.missing() or kubelet.missing()),
        reason=containerd.missing() or kubelet.missing() or "never",
    ),
]
"""Marks of tests on such a node."""
SLOW = 180
HARDWARE = {
    "cuda": {"model": "Tesla-T4", "cards": 2, "memory": "16Gi"},
    "maca": {"model": "C500", "cards": 2},
}
"""What the simulated backend of each node finds."""
LAYOUT = Layout(
    options=(
        "--set",
        "agent.enabled=true,agent.devicePlugin.enabled=true,agent.evictUnprotected=true",
        "--set",
        "agent.discovery.qgpu=true,agent.isolation.provider=hami-core",
        # An agent that is away is noticed as soon as may be.
        "--set",
        "scheduler.agentSilenceSeconds=30",
        # Its DaemonSet makes no pods: the test runs what they would run.
        "--set",
        "agent.nodeSelector.nowhere=here",
    )
)
"""The chart with an agent that does all there is but instances, which want a driver."""
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


@dataclass
class Node:
    """A node with all that runs on it."""

    name: str
    stack: Stack
    kubelet: kubelet.Kubelet
    runtime: containerd.Containerd
    cri: cri.Cri

    @property
    def agent(self) -> Process:
        """Its agent."""
        return self.stack.plane.processes[f"agent-{self.name}"]

    @property
    def kubelet_process(self) -> Process:
        """Its kubelet."""
        return self.stack.plane.processes[self.kubelet.process]

    def hardware(self, faults: str = "") -> Path:
        """Write which cards it has, and which of them are ill; the file is another one at once."""
        path = self.kubelet.folder.parent / "hardware.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({**HARDWARE[self.name], "faults": faults}))
        return fresh.replace(path)

    def device(self) -> Any:
        """Its Device, by the API server."""
        return self.stack.plane.call("GET", f"{DEVICES}/{self.name}")

    def cards(self) -> dict[str, int]:
        """Its cards by identity, with their numbers, as its Device says."""
        return {one["id"]: one["minor"] for one in self.device()["spec"]["devices"]}

    def start_agent(self, *options: str, program: Sequence[str] = ()) -> None:
        """Start what the chart's DaemonSet runs, by its account, with made-up device files.

        Args:
            options: further ones.
            program: runs it in place of `partage`.
        """
        folder = self.kubelet.folder.parent
        root = folder / "host"
        (root / "dev/dri").mkdir(parents=True)
        files = {"cuda": ("nvidia0", "nvidia1", "nvidiactl"), "maca": ("mxcd", "dri/card0")}
        for minor, name in enumerate(files[self.name]):
            os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3 + 2 * minor))
        (root / folder.parts[1]).symlink_to(f"/{folder.parts[1]}")
        library = folder / "vgpu/libvgpu.so"
        library.parent.mkdir()
        library.write_text("the library\n")
        self.stack.agent(
            self.name,
            "--host-root",
            str(root),
            "--journal",
            str(folder / "journal"),
            "--kubelet-dir",
            str(self.kubelet.folder),
            "--simulated",
            str(self.hardware()),
            "--period",
            "0.5",
            "--isolation-library",
            str(library),
            *options,
            program=program,
        )

    def offers(self, resource: str) -> str:
        """How much of a resource its status says."""
        found = self.stack.plane.call("GET", f"/api/v1/nodes/{self.name}")["status"]
        return str(found.get("allocatable", {}).get(resource, "0"))

    def held(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Units by pod and resource, by the kubelet's word."""
        path = self.kubelet.folder / "pod-resources/kubelet.sock"
        with grpc.insecure_channel(f"unix:{path}") as channel:
            answer = channel.unary_unary(f"/{said.POD_RESOURCES}/List")(b"", timeout=60)
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for pod in said.ListResponse.decode(answer).pods:
            mine = found.setdefault(pod.name, {})
            for container in pod.containers:
                for device in container.devices:
                    mine[device.resource_name] = mine.get(device.resource_name, ()) + device.ids
        return found


def added(name: str, generation: str, stack: Stack, folder: Path, cleanup: ExitStack) -> Node:
    """A node with a runtime that runs; agent and kubelet are started by the caller."""
    (folder / name / "runtime").mkdir(parents=True)
    running = containerd.running(generation, folder / name / "runtime")
    runtime, client = cleanup.enter_context(running)
    asked = folder / name / "cri.sock" if name == "maca" else runtime.socket
    made = Node(
        name,
        stack,
        kubelet.Kubelet(stack.plane, name, folder / name / "k", asked),
        runtime,
        client,
    )
    stack.genuine.add(name)
    # There before its agent, whose token names it.
    stack.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    cleanup.callback(_empty, made)
    return made


def by_nri(stack: Stack, folder: Path, cleanup: ExitStack, program: Sequence[str] = ()) -> Node:
    """A node of NVIDIA's cards with NRI, and its agent, which another program may run."""
    made = added("cuda", "2.1", stack, folder, cleanup)
    (folder / "cuda/nri.sock").symlink_to(made.runtime.nri)
    made.start_agent("--nri-socket", str(folder / "cuda/nri.sock"), program=program)
    return made


def complete(*nodes: Node) -> None:
    """Start the kubelets of nodes that have an agent, and wait until they know each other."""
    for one in nodes:
        eventually("the runtime is there", one.kubelet.runtime.exists, SLOW)
        one.kubelet.start(one.runtime.folder / "cni")
    for one in nodes:
        eventually(f"{one.name} reports its devices", one.device, SLOW)
        plugins = one.kubelet.folder / "device-plugins/kubelet.sock"
        eventually("the kubelet takes plugins", plugins.exists, SLOW)


def settled(*nodes: Node) -> None:
    """Leave the cluster without pods, and the nodes with nothing held, no folder, and no difference of four parts."""
    plane = nodes[0].stack.plane
    path = "/api/v1/namespaces/default/pods"
    plane.call("DELETE", f"{path}?gracePeriodSeconds=1")
    eventually("all pods are gone", lambda: not plane.call("GET", path)["items"], SLOW)
    for one in nodes:
        eventually("no units are held", lambda one=one: not any(one.held().values()), SLOW)
        home = one.kubelet.folder.parent / "vgpu/containers"
        eventually("no folder is left", lambda home=home: not left(home), SLOW)
        log = plane.processes[f"agent-{one.name}"].log.read_text()
        # The pod that no scheduler placed is found; of those that were placed nothing is.
        told = [kind for kind in Kind if f": {kind}: " in log]
        assert set(told) <= {Kind.UNITS_WITHOUT_RECORD}, told


def left(home: Path) -> list[Path]:
    """Folders of containers that are there, or given up and not yet removed."""
    apart = home / ".partage-gone"
    return [one for one in (*home.glob("*"), *apart.glob("*")) if one != apart]


def _empty(node: Node) -> None:
    """End kubelet and agent, and whatever their pods left in the runtime."""
    for process in (node.kubelet.process, f"agent-{node.name}"):
        if process in node.stack.plane.processes:
            node.stack.plane.processes[process].stop()
    node.cri.remove_found()


def container(name: str, limits: dict[str, str], script: str = "sleep 1000") -> dict[str, Any]:
    """One that needs nothing from any registry."""
    return {
        "name": name,
        "image": cri.IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": limits},
    }


def pod(name: str, *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A pod that brings nothing which a kubelet would have to mount."""
    annotations = more.pop("annotations", {})
    spec = {
        "containers": list(containers),
        "hostNetwork": True,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        **more,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }


def running(stack: Stack, name: str) -> Any:
    """The pod, once the kubelet says that all its containers run.

    Raises:
        AssertionError: they do not in time; says what its events say.
    """

    def ask() -> Any:
        found = stack.pod(name)
        status = found["status"]
        all_run = status.get("containerStatuses") and all(
            "running" in one["state"] for one in status["containerStatuses"]
        )
        return found if status.get("phase") == "Running" and all_run else None

    try:
        return eventually(f"pod {name} runs", ask, SLOW)
    except AssertionError as error:
        said_of_it = [event["message"] for event in stack.events(name)]
        raise AssertionError(
            f"{error}; status {stack.pod(name)['status']}; {said_of_it}"
        ) from error


def admitted(stack: Stack, manifest: dict[str, Any]) -> Any:
    """The pod, running; created again, as controllers do, while the kubelet knows no devices and fails it for good."""
    name = manifest["metadata"]["name"]

    def judged() -> Any:
        phase = stack.pod(name)["status"].get("phase")
        return phase if phase in ("Running", "Failed") else None

    def tried() -> bool:
        stack.create(manifest)
        if eventually(f"the kubelet judges pod {name}", judged, SLOW) == "Running":
            return True
        assert stack.pod(name)["status"]["reason"] == "UnexpectedAdmissionError"
        path = "/api/v1/namespaces/default/pods"
        stack.plane.call("DELETE", f"{path}/{name}?gracePeriodSeconds=0")
        eventually(
            "the failed pod is gone",
            lambda: (
                name not in [p["metadata"]["name"] for p in stack.plane.call("GET", path)["items"]]
            ),
            SLOW,
        )
        return False

    eventually(f"pod {name} is admitted", tried, SLOW)
    return running(stack, name)


def says(node: Node, found: Any, name: str, *command: str) -> str:
    """What a command prints in a container of a pod."""
    statuses = found["status"]["containerStatuses"] + found["status"].get(
        "initContainerStatuses", []
    )
    identity = next(one["containerID"] for one in statuses if one["name"] == name)
    return node.cri.says(identity.rpartition("/")[2], *command)


def environment(node: Node, found: Any, name: str) -> dict[str, str]:
    """Variables of a container, as its processes see them."""
    lines = says(node, found, name, "env").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def granted(found: Any, name: str) -> Grant:
    """The one grant of a container in the record of its pod."""
    head, node = found["metadata"], found["spec"]["nodeName"]
    record = decode(head["annotations"][names.ALLOCATION], head["uid"], node)
    (grant,) = [one for one in record.grants if one.container == name]
    return grant
