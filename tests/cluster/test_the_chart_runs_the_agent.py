"""The chart's node agent: what is rendered, and the rights of its account on a genuine API server.

The agent is the real process with simulated devices and the token that a pod of it would have.
"""

import asyncio
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import generate
import pytest
import yaml
from chart import CHART, helm
from control_plane import HELM, ControlPlane, control_plane
from stack import eventually

from partage.kube.client import Client, PatchKind
from partage.kube.errors import KubeError
from partage.kube.loading import load_config
from partage.kube.resources import PODS

Manifest = dict[str, Any]
ON = ("--set", "agent.enabled=true")
SIMULATED = (*ON, "--set", "agent.simulated.model=Tesla-T4,agent.simulated.cards=2")
OWN = (*ON, "--set", "agent.isolation.provider=partage")
NAMESPACE = "partage-system"
WAIT = 240


def objects(*options: str, profile: str = "default") -> list[Manifest]:
    """What the chart renders to."""
    text = generate.rendered(str(HELM), profile, *options)
    return [one for one in yaml.safe_load_all(text) if one]


def pod(*options: str) -> Manifest:
    """The agent's pod."""
    found = next(one for one in objects(*options) if one["kind"] == "DaemonSet")
    spec: Manifest = found["spec"]["template"]["spec"]
    return spec


def test_simulated_devices_need_no_privileges() -> None:
    """They need nothing of the host but the agent's own folder and the runtime's socket."""
    spec = pod(*SIMULATED)

    (container,) = spec["containers"]
    assert "privileged" not in container["securityContext"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "hostPID" not in spec
    paths = {one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    assert paths == {"/var/lib/partage", "/var/run/nri"}


def test_what_is_switched_on_is_mounted_and_no_more() -> None:
    """Host paths by what the agent is asked to do."""

    def paths(*options: str) -> set[str]:
        return {one["hostPath"]["path"] for one in pod(*options)["volumes"] if "hostPath" in one}

    usual = paths(*ON)
    assert usual == {
        "/var/lib/partage",
        "/var/run/nri",
        "/dev",
        "/sys",
        "/proc",
        "/var/run/koordlet/xpu-device-infos",
    }
    assert paths(*ON, "--set", "agent.mig=true") - usual == {"/var/run/cdi"}
    kubelet = paths(*ON, "--set", "agent.devicePlugin.enabled=true") - usual
    assert {Path(one).name for one in kubelet} == {"device-plugins", "pod-resources"}
    assert pod(*OWN)["hostPID"] is True


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (ON, set()),
        ((*ON, "--set", "agent.mig=true"), {("pods", "list"), ("pods", "watch")}),
        ((*ON, "--set", "agent.isolation.notInForce=evict"), {("pods/eviction", "create")}),
        ((*ON, "--set", "agent.evictUnprotected=true"), {("pods/eviction", "create")}),
    ],
    ids=["usual", "instances", "not in force", "unprotected"],
)
def test_rights_follow_what_is_switched_on(
    options: tuple[str, ...], more: set[tuple[str, str]]
) -> None:
    """The role has what the options need."""
    role = next(
        one
        for one in objects(*options)
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] == "partage-agent"
    )
    have = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
    assert (
        have
        == {
            ("nodes", "get"),
            ("nodes", "patch"),
            ("devices", "get"),
            ("devices", "create"),
            ("devices", "patch"),
            ("pods", "get"),
            ("pods/status", "patch"),
        }
        | more
    )


@pytest.mark.parametrize(
    "value",
    [
        "isolation.provider=magic",
        "stateDir=relative",
        "isolation.beyondGrant=much",
        "port=x",
        "isolation.memorySlack=much",
    ],
)
def test_values_that_cannot_be_are_refused(value: str) -> None:
    """The schema names the value."""
    with pytest.raises(subprocess.CalledProcessError) as error:
        objects(*ON, "--set", f"agent.{value}")
    name = value.partition("=")[0].replace(".", "/")
    assert f"at '/agent/{name}'" in error.value.stderr


@pytest.mark.parametrize("options", [SIMULATED, OWN, (*ON, "--set", "agent.mig=true")])
def test_the_program_takes_every_argument(options: tuple[str, ...]) -> None:
    """No option that `partage agent` does not have; `--help` ends it before anything is touched."""
    (container,) = pod(*options)["containers"]
    command = [sys.executable, "-m", "partage.cli.main", *container["args"], "--help"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


# --- on a genuine API server -------------------------------------------------------------------


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with the chart's objects, two Nodes and a pod of the agent on the first."""
    with control_plane(tmp_path_factory.mktemp("agent")) as made:
        helm(
            made,
            "install",
            "partage",
            str(CHART),
            "-n",
            NAMESPACE,
            "--create-namespace",
            "--set",
            "webhook.enabled=false",
            *SIMULATED,
        )
        for name in ("n1", "n2"):
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            made.call("POST", "/api/v1/nodes", body)
        for name, node in (("agent-n1", "n1"), ("train", "n1"), ("other", "n2")):
            body = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "nodeName": node,
                    "serviceAccountName": "partage-agent",
                    "automountServiceAccountToken": False,
                    "containers": [{"name": "main", "image": "i"}],
                },
            }
            made.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
        yield made


@pytest.fixture(scope="module")
def token(plane: ControlPlane) -> str:
    """What the kubelet of n1 gives to the agent's pod."""
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "agent-n1"}
    answer = plane.call(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/partage-agent/token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"boundObjectRef": reference},
        },
    )
    text: str = answer["status"]["token"]
    return text


def _agent(plane: ControlPlane, token: str, node: str, folder: Path) -> subprocess.Popen[bytes]:
    (folder / "devices.yaml").write_text("{model: Tesla-T4, cards: 2}")
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "partage.cli.main",
                "agent",
                "--node",
                node,
                "--port",
                "0",
                "--simulated",
                folder / "devices.yaml",
                "--kubeconfig",
                plane.kubeconfig(token),
                "--journal",
                folder / "journal",
                "--nri-socket",
                folder / "none",
                "--period",
                "0.2",
                "--config-map",
                f"{NAMESPACE}/hami-scheduler-device",
            ],
            stderr=log,
        )


def _found(plane: ControlPlane, path: str) -> Manifest | None:
    try:
        found: Manifest = plane.call("GET", path)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return None
    return found


def _device(plane: ControlPlane, node: str) -> Manifest | None:
    return _found(plane, f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{node}")


def test_the_agents_own_rights_are_enough(plane: ControlPlane, token: str, tmp_path: Path) -> None:
    """Device, lease and labels of its node are there, and nothing was forbidden."""
    process = _agent(plane, token, "n1", tmp_path)
    try:
        deadline = time.monotonic() + WAIT
        lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/partage-agent-n1"

        def labels() -> Manifest:
            node = _found(plane, "/api/v1/nodes/n1") or {}
            return dict(node["metadata"]["labels"])

        while not (
            _device(plane, "n1")
            and _found(plane, lease)
            and labels().get("node.koordinator.sh/gpu-model") == "Tesla-T4"
        ):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait(WAIT)
    assert "orbidden" not in (tmp_path / "log").read_text()


def test_another_nodes_device_is_out_of_reach(
    plane: ControlPlane, token: str, tmp_path: Path
) -> None:
    """A token of n1 reports nothing for n2, and the log says why."""
    process = _agent(plane, token, "n2", tmp_path)
    try:
        deadline = time.monotonic() + WAIT
        while "its own node" not in (tmp_path / "log").read_text():
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait(WAIT)
    assert _device(plane, "n2") is None


@pytest.mark.parametrize(("name", "allowed"), [("train", True), ("other", False)])
def test_conditions_are_of_its_own_pods(
    plane: ControlPlane, token: str, name: str, *, allowed: bool
) -> None:
    """The agent writes them of a pod on its node, not of one elsewhere."""
    condition = {"type": "partage.io/LimitsInForce", "status": "True", "reason": "InForce"}

    async def patch() -> str:
        config = load_config({}, kubeconfig=plane.kubeconfig(token))
        async with Client(config, environ={}) as client:
            try:
                await client.patch(
                    PODS,
                    name,
                    {"status": {"conditions": [condition]}},
                    kind=PatchKind.STRATEGIC,
                    namespace=NAMESPACE,
                    subresource="status",
                    into=Manifest,
                )
            except KubeError as error:
                return str(error)
        return ""

    refused = asyncio.run(patch())

    assert allowed is not bool(refused), refused
    assert allowed or "its own node" in refused


READY = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
TRAIN = f"/api/v1/namespaces/{NAMESPACE}/pods/train"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices/n1"
TAKEN = {
    "a pod's readiness, by the agent": ("agent", f"{TRAIN}/status", READY),
    "a pod's addresses, by the agent": (
        "agent",
        f"{TRAIN}/status",
        {"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}},
    ),
    "a network's annotation, by the agent": (
        "agent",
        "/api/v1/nodes/n1",
        {"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "10.0.0.9"}}},
    ),
    "a Device of 257, by the agent": (
        "agent",
        DEVICES,
        {"spec": {"devices": [{"type": "gpu", "minor": minor} for minor in range(257)]}},
    ),
    "a Device to stay, by the agent": ("agent", DEVICES, {"metadata": {"finalizers": ["x.y/z"]}}),
    "a pod's readiness, by the scheduler": ("scheduler", f"{TRAIN}/status", READY),
    "a node's readiness, by the scheduler": ("scheduler", "/api/v1/nodes/n2/status", READY),
    "a kubelet's address, by the scheduler": (
        "scheduler",
        "/api/v1/nodes/n2/status",
        {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}},
    ),
    "a node's CPU, by the scheduler": (
        "scheduler",
        "/api/v1/nodes/n2/status",
        {"status": {"capacity": {"cpu": "0"}, "allocatable": {"cpu": "0"}}},
    ),
    "a node's label, by the scheduler": (
        "scheduler",
        "/api/v1/nodes/n2",
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    ),
}


@pytest.mark.parametrize(("who", "path", "body"), TAKEN.values(), ids=TAKEN)
def test_a_stolen_token_changes_nothing_else(
    plane: ControlPlane, token: str, who: str, path: str, body: Manifest
) -> None:
    """The genuine API server refuses it by the chart's policies, and not by a lack of rights."""
    devices = DEVICES.rpartition("/")[0]
    if path == DEVICES:
        eventually("Devices are served", lambda: plane.call("GET", devices))
    if path == DEVICES and _device(plane, "n1") is None:
        made = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": "n1"},
        }
        plane.call("POST", devices, made)
    if who == "scheduler":
        space = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/partage-scheduler/token"
        token = plane.call("POST", space, {"spec": {}})["status"]["token"]

    with pytest.raises(urllib.error.HTTPError) as refused:
        plane.call("PATCH", path, body, kind="application/merge-patch+json", token=token)

    told = refused.value.read().decode()
    assert "ValidatingAdmissionPolicy" in told
    assert "changes" in told or "at most" in told
