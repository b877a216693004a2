"""From the API server to the process in a container, with nothing between that is not genuine.

API server -> kube-scheduler -> our extender -> kubelet -> device plugin -> containerd -> NRI, or the proxy
-> container. Only the cards are made up, and MetaX's own device plugin. What a container reports of itself is
compared with its pod's record.
"""

import json
import os
import shutil
import stat
import sys
import tempfile
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import kubelet
import pytest
import stack as partage_stack
from stack import MERGE, Stack, eventually
from vendor_plugin import VendorPlugin

from partage.agent.kubelet import messages as said
from partage.model.allocation import Grant
from partage.vendors import names
from partage.wire.record import decode

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
import containerd
import cri

GPU = "nvidia.com/gpu"
CORE, MEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
SGPU = "metax-tech.com/sgpu"
SLOW = 180
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(containerd.missing() or kubelet.missing()),
        reason=containerd.missing() or kubelet.missing() or "never",
    ),
]
LABELS = {
    "cuda": {
        "node.koordinator.sh/gpu-vendor": "nvidia", "node.koordinator.sh/gpu-model": "Tesla-T4",
        "nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/cuda.driver-version.full": "535.161.08",
        "qgpu-device-enable": "enable",
    },
    "maca": {
        "node.koordinator.sh/gpu-vendor": "metax", "node.koordinator.sh/gpu-model": "C500",
    },
}  # fmt: skip


@dataclass
class Node:
    """A node with all that runs on it."""

    name: str
    stack: Stack
    kubelet: kubelet.Kubelet
    runtime: containerd.Containerd
    cri: cri.Cri

    def uuid(self, minor: int) -> str:
        """Of a card."""
        return f"{'GPU' if self.name == 'cuda' else 'MX'}-{minor}"

    def device(self) -> dict[str, Any]:
        """Its Device: two cards of 16 GiB."""
        cards = [
            {"type": "gpu", "health": True, "id": self.uuid(minor), "minor": minor, "resources": {
                "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi",
                "koordinator.sh/gpu-memory-ratio": "100"}}
            for minor in range(2)
        ]  # fmt: skip
        return {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": self.name, "labels": LABELS[self.name]},
            "spec": {"devices": cards},
        }  # fmt: skip

    def start_agent(self, *options: str) -> None:
        """Start `partage agent` with made-up device files."""
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
        self.stack.plane.run(
            f"agent-{self.name}",
            [sys.executable, "-m", "partage.cli.main", "agent", "--node", self.name, "--port", "0",
             "--kubeconfig", str(self.stack.plane.kubeconfig()), "--host-root", str(root),
             "--journal", str(folder / "journal"), "--kubelet-dir", str(self.kubelet.folder), "--no-discovery",
             "--isolation", "hami-core", "--isolation-library", str(library), *options],
        )  # fmt: skip

    def offers(self, resource: str) -> str:
        """How much of a resource its status says."""
        found = self.stack.plane.call("GET", f"/api/v1/nodes/{self.name}")["status"]
        return str(found["allocatable"].get(resource, "0"))

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


def _node(name: str, generation: str, stack: Stack, folder: Path, cleanup: ExitStack) -> Node:
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
    cleanup.callback(_empty, made)
    return made


def _empty(node: Node) -> None:
    """End kubelet and agent, and whatever their pods left in the runtime."""
    for process in (node.kubelet.process, f"agent-{node.name}"):
        if process in node.stack.plane.processes:
            node.stack.plane.processes[process].stop()
    node.cri.remove_found()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    """Two nodes, one with NRI and one with the proxy; their sockets need short paths."""
    folder = Path(tempfile.mkdtemp(prefix="ptg"))
    try:
        with (
            partage_stack.stack(tmp_path_factory.mktemp("cluster")) as stack,
            ExitStack() as cleanup,
        ):
            cuda = _node("cuda", "2.1", stack, folder, cleanup)
            maca = _node("maca", "2.1", stack, folder, cleanup)
            cuda.start_agent("--nri-socket", str(cuda.runtime.nri))
            maca.start_agent(
                "--cri-socket", str(maca.kubelet.runtime), "--runtime-socket",
                str(maca.runtime.socket), "--cri-devices", str(folder / "maca/devices"),
            )  # fmt: skip
            for one in (cuda, maca):
                stack.create(one.device())
                eventually("the runtime is there", one.kubelet.runtime.exists, SLOW)
                one.kubelet.start(one.runtime.folder / "cni")
            for one in (cuda, maca):
                path = f"/api/v1/nodes/{one.name}"
                eventually(
                    f"{one.name} is there", lambda path=path: stack.plane.call("GET", path), SLOW
                )
                stack.plane.call(
                    "PATCH", path, {"metadata": {"labels": LABELS[one.name]}}, kind=MERGE
                )
            plugin = VendorPlugin(maca.kubelet.folder / "device-plugins", SGPU, 32)
            cleanup.callback(plugin.close)
            eventually("the kubelet offers shares", lambda: cuda.offers(GPU) == "20", SLOW)
            eventually("and qGPU's names", lambda: cuda.offers(CORE) == "200", SLOW)
            eventually("and the vendor's", lambda: maca.offers(SGPU) == "32", SLOW)
            for one in (cuda, maca):
                eventually(
                    "totals", lambda one=one: one.offers("koordinator.sh/gpu-core") == "200", SLOW
                )
            yield {"cuda": cuda, "maca": maca}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def emptied(nodes: dict[str, Node]) -> Iterator[None]:
    """Leave the cluster without pods, and the nodes with nothing held."""
    yield
    plane = nodes["cuda"].stack.plane
    path = "/api/v1/namespaces/default/pods"
    plane.call("DELETE", f"{path}?gracePeriodSeconds=1")
    eventually("all pods are gone", lambda: not plane.call("GET", path)["items"], SLOW)
    for one in nodes.values():
        eventually("no units are held", lambda one=one: not any(one.held().values()), SLOW)


def container(name: str, limits: dict[str, str], script: str = "sleep 1000") -> dict[str, Any]:
    """One that needs nothing from any registry."""
    return {
        "name": name, "image": cri.IMAGE, "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script], "resources": {"limits": limits},
    }  # fmt: skip


def pod(name: str, *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A pod that brings nothing which a kubelet would have to mount."""
    annotations = more.pop("annotations", {})
    spec = {
        "containers": list(containers), "hostNetwork": True, "enableServiceLinks": False,
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1, **more,
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations}, "spec": spec,
    }  # fmt: skip


def running(stack: Stack, name: str) -> Any:
    """The pod, once the kubelet says that all its containers run.

    Raises:
        AssertionError: they do not in time; says what was told of it.
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
    """The pod, running; made anew as controllers do while the kubelet knows no devices yet and fails it for good."""
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


def test_a_pod_of_each_protocol_runs_with_what_its_record_says(nodes: dict[str, Node]) -> None:
    """Four manifests side by side: placed, admitted, made and started; each container reports its own."""
    cuda, maca = nodes["cuda"], nodes["maca"]
    stack = cuda.stack
    koordinator = {"koordinator.sh/gpu-core": "40", "koordinator.sh/gpu-memory-ratio": "40"}
    sgpu = {
        "koordinator.sh/gpu.shared": "1", "koordinator.sh/gpu-core": "10",
        "koordinator.sh/gpu-memory": "1Gi", SGPU: "1",
    }  # fmt: skip
    hami = {GPU: "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    asked = {
        "koordinator": koordinator,
        "qgpu": {CORE: "20", MEMORY: "5"},
        "hami": hami,
        "metax": sgpu,
    }
    for name, limits in asked.items():
        notes = {"metax-tech.com/sgpu-qos-policy": "fixed-share"} if name == "metax" else {}
        stack.create(pod(name, container("main", limits), annotations=notes))

    found = {name: running(stack, name) for name in asked}

    assert {name: one["spec"]["nodeName"] for name, one in found.items()} == {
        "koordinator": "cuda", "qgpu": "cuda", "hami": "cuda", "metax": "maca",
    }  # fmt: skip
    for name in ("koordinator", "qgpu", "hami"):
        grant = granted(found[name], "main")
        env = environment(cuda, found[name], "main")
        minor = grant.uuid.rpartition("-")[2]
        assert env["NVIDIA_VISIBLE_DEVICES"] == (minor if name == "koordinator" else grant.uuid)
        assert not [key for key in env if key.startswith("PARTAGE_") and env[key]]
        files = says(cuda, found[name], "main", "sh", "-c", "ls /dev/nvidia*").split()
        assert files == [f"/dev/nvidia{minor}", "/dev/nvidiactl"]
    assert environment(cuda, found["hami"], "main")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert environment(cuda, found["hami"], "main")["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert environment(cuda, found["qgpu"], "main")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "5120m"
    assert environment(maca, found["metax"], "main")["METAX_PLUGIN"] == "served"
    assert granted(found["metax"], "main").uuid.startswith("MX-")

    held = cuda.held()
    for name, resource, units in (("hami", GPU, 1), ("qgpu", CORE, 20), ("qgpu", MEMORY, 5)):
        cards = [unit.partition("::")[0] for unit in held[name][resource]]
        assert cards == [granted(found[name], "main").uuid] * units
    assert "koordinator" not in held or not held["koordinator"]
    assert list(maca.held()["metax"]) == [SGPU]


def test_eight_that_start_at_once_get_each_its_own(nodes: dict[str, Node]) -> None:
    """Eight pods of one shape of request and eight amounts: every container has its record's amount."""
    cuda = nodes["cuda"]
    for number in range(8):
        limits = {GPU: "1", "nvidia.com/gpumem": str(1000 + 100 * number)}
        cuda.stack.create(pod(f"p{number}", container("main", limits)))

    found = {f"p{n}": running(cuda.stack, f"p{n}") for n in range(8)}

    held = cuda.held()
    for number, (name, one) in enumerate(found.items()):
        env, grant = environment(cuda, one, "main"), granted(one, "main")
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{1000 + 100 * number}m"
        assert env["NVIDIA_VISIBLE_DEVICES"] == grant.uuid
        assert len(held[name][GPU]) == 1
    by_record = sorted(granted(one, "main").uuid for one in found.values())
    by_kubelet = sorted(held[name][GPU][0].partition("::")[0] for name in found)
    assert by_kubelet == by_record


def test_init_containers_sidecars_and_restarts_get_their_own(nodes: dict[str, Node]) -> None:
    """An init container, a sidecar and two containers; one ends by itself and is started again."""
    cuda = nodes["cuda"]
    share = {GPU: "1", "nvidia.com/gpumem": "1000"}
    marker = "echo $NVIDIA_VISIBLE_DEVICES > /dev/termination-log"
    helper = {**container("helper", {}), "restartPolicy": "Always"}
    first = container("first", share, marker)
    # A fresh container has a fresh root, so what tells the first run from the second is the host's.
    flag = cuda.kubelet.folder / "restarted"
    flag.mkdir()
    once = f"mkdir {flag}/once 2>/dev/null && exit 0; sleep 1000"
    volume = {"name": "flag", "hostPath": {"path": str(flag)}}
    ends = container("ends", {GPU: "1", "nvidia.com/gpumem": "2000"}, once)
    ends["volumeMounts"] = [{"name": "flag", "mountPath": str(flag)}]
    made = pod(
        "mixed", container("main", {GPU: "1", "nvidia.com/gpumem": "3000"}), ends,
        initContainers=[first, helper], volumes=[volume],
    )  # fmt: skip
    cuda.stack.create(made)

    def restarted() -> Any:
        one = running(cuda.stack, "mixed")
        counts = {c["name"]: c["restartCount"] for c in one["status"]["containerStatuses"]}
        return one if counts["ends"] == 1 else None

    found = eventually("the second container runs again", restarted, SLOW)
    for name, limit in (("main", "3000m"), ("ends", "2000m")):
        env = environment(cuda, found, name)
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == limit
        assert env["NVIDIA_VISIBLE_DEVICES"] == granted(found, name).uuid
    env = environment(cuda, found, "helper")
    assert env.get("NVIDIA_VISIBLE_DEVICES", "void") == "void"
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in env
    first_status = next(
        one for one in found["status"]["initContainerStatuses"] if one["name"] == "first"
    )
    assert first_status["state"]["terminated"]["message"].strip() == granted(found, "first").uuid


def test_a_kubelet_that_restarts_is_told_again(nodes: dict[str, Node]) -> None:
    """It forgets its plugins; the agent registers again, pods run on, and the next one is served."""
    cuda = nodes["cuda"]
    limits = {GPU: "1", "nvidia.com/gpumem": "1000"}
    cuda.stack.create(pod("before", container("main", limits)))
    before = running(cuda.stack, "before")
    cuda.stack.restart(cuda.kubelet.process)

    after = admitted(cuda.stack, pod("after", container("main", limits)))

    assert (
        running(cuda.stack, "before")["status"]["containerStatuses"][0]["containerID"]
        == (before["status"]["containerStatuses"][0]["containerID"])
    )
    env = environment(cuda, after, "main")
    assert env["NVIDIA_VISIBLE_DEVICES"] == granted(after, "main").uuid
    eventually("both are counted", lambda: set(cuda.held()) == {"before", "after"}, SLOW)


def test_a_pod_that_nobody_placed_gets_nothing(nodes: dict[str, Node]) -> None:
    """The API server takes none, and one that the kubelet has from a file has no record: it is refused."""
    cuda = nodes["cuda"]
    made = pod("forced", container("main", {GPU: "1"}), nodeName="cuda")
    with pytest.raises(urllib.error.HTTPError) as caught:
        cuda.stack.create(made)
    with caught.value:
        assert caught.value.code == 422

    manifest = cuda.kubelet.manifests / "forced.json"
    del made["spec"]["nodeName"]
    made["metadata"]["namespace"] = "default"
    manifest.write_text(json.dumps(made))
    agent = cuda.stack.plane.processes["agent-cuda"].log

    def refused() -> bool:
        return any(
            "forced" in line and "NoRecord" in line for line in agent.read_text().splitlines()
        )

    eventually("the agent refuses it", refused, SLOW)
    manifest.unlink()
