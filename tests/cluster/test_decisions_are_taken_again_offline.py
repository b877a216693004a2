"""On a genuine cluster: a record and a snapshot replayed offline, and questions through the proxy."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from other_instance import instead
from stack import MERGE, SYSTEM, Stack, documents, eventually, pod

EXAMPLES = Path(__file__).parents[2] / "examples"
ASKS: tuple[dict[str, str], ...] = (
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    {"kubernetes.io/gpu": "50"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "30"},
    {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "5"},
    {"koordinator.sh/gpu": "200"},
    {"koordinator.sh/gpu": "1600"},
)
WAITS = "p5"
PODS = "/api/v1/namespaces/default/pods"
SEAMS = ("extender", "plugin")
BOOKS = 3
"""Exit code of replay and explain where a pod waits."""


@pytest.fixture(autouse=True)
def emptied(stack: Stack) -> Iterator[None]:
    """A node with cards before, and no pods afterwards."""
    known = stack.plane.call("GET", "/api/v1/nodes")["items"]
    if "host05" not in [one["metadata"]["name"] for one in known]:
        stack.add_nodes(documents(EXAMPLES / "koordinator" / "host05.yaml"))
    eventually("node totals are written", lambda: totals(stack).get("koordinator.sh/gpu"))
    yield
    stack.plane.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    eventually("all pods are gone", lambda: not stack.plane.call("GET", PODS)["items"])


def totals(stack: Stack) -> dict[str, str]:
    """What the node offers."""
    found = stack.plane.call("GET", "/api/v1/nodes/host05")["status"]
    return dict(found.get("allocatable", {}))


def crowd(stack: Stack) -> None:
    """Pods of every protocol, of which one does not fit."""
    for number, limits in enumerate(ASKS):
        stack.create(pod(f"p{number}", limits))
    for number in range(len(ASKS) - 1):
        stack.bound(f"p{number}")
    eventually("an event says why the last one waits", lambda: told(stack))


def told(stack: Stack) -> str:
    """Why the pod that does not fit waits, by its event."""
    found = [e["message"] for e in stack.events(WAITS) if e["reason"] == "WaitingForDevice"]
    return str(found[-1]) if found else ""


def partage(stack: Stack, *words: str, good: tuple[int, ...] = (0,)) -> Any:
    """What a command answers in JSON, asked with the administrator's kubeconfig."""
    command = [sys.executable, "-m", "partage.cli.main", *words]
    if words[0] != "replay":
        command += ["--kubeconfig", str(stack.plane.kubeconfig())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in good, (
        f"{' '.join(words)}: {done.returncode} {done.stdout}{done.stderr}"
    )
    return json.loads(done.stdout) if "json" in words else done.stdout + done.stderr


def test_a_record_of_a_genuine_cluster_is_replayed_to_the_same_decisions(
    stack: Stack, tmp_path: Path
) -> None:
    """What kube-scheduler asked and was answered is answered again, to the last number."""
    record = tmp_path / "record.jsonl"
    with instead(stack, "recorder", f"--record={record}"):
        crowd(stack)

    found = partage(stack, "replay", str(record), "-o", "json")

    assert found["kind"] == "Record"
    assert found["different"] == 0
    assert found["decisions"] >= len(ASKS)


def test_a_snapshot_of_a_genuine_cluster_says_what_the_service_said(
    stack: Stack, tmp_path: Path
) -> None:
    """The pod that waits waits offline for the same reason; masked or not."""
    crowd(stack)
    for name, more in (("plain", ()), ("masked", ("--mask",))):
        file = tmp_path / name
        partage(stack, "snapshot", "-o", str(file), *more)

        found = partage(stack, "replay", str(file), "-o", "json", good=(BOOKS,))

        (waiting,) = found["pods"]
        assert waiting["now"]["reason"]["code"] == "InsufficientCards"
        assert ("p5" in file.read_text()) == (name == "plain")
    assert "InsufficientCards" in told(stack)


def outward() -> str:
    """An address of this machine that is not loopback: an API server proxies to no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def test_questions_reach_the_service_through_the_api_server(stack: Stack) -> None:
    """`--service` asks by the API server's proxy, with nothing but the kubeconfig.

    The proxy passes no token on, and the chart shows names of pods only to callers who may read them. So the answer has
    amounts without names. The service refuses an explanation, and says what to do instead.
    """
    address = outward()
    if not address or address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with instead(stack, "reachable", "--host=0.0.0.0"):
        _, read = stack.instances["reachable"]
        port = {"name": "read", "port": 10251, "protocol": "TCP"}
        stack.create(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "asked", "namespace": SYSTEM},
                "spec": {"ports": [{**port, "targetPort": read}]},
            }
        )
        # The API server's proxy goes to addresses of pods alone, which it finds by Endpoints.
        pods = f"/api/v1/namespaces/{SYSTEM}/pods/reachable"
        told_ip = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
        stack.plane.call("PATCH", f"{pods}/status", told_ip, kind=MERGE)
        target = {"kind": "Pod", "namespace": SYSTEM, "name": "reachable"}
        stack.plane.call(
            "POST",
            f"/api/v1/namespaces/{SYSTEM}/endpoints",
            {
                "apiVersion": "v1",
                "kind": "Endpoints",
                "metadata": {"name": "asked", "namespace": SYSTEM},
                "subsets": [
                    {
                        "addresses": [{"ip": address, "targetRef": target}],
                        "ports": [{**port, "port": read}],
                    }
                ],
            },
        )
        crowd(stack)
        service = ("--service", f"{SYSTEM}/asked:10251")

        proxy = f"/api/v1/namespaces/{SYSTEM}/services/asked:10251/proxy"
        eventually("the proxy answers", lambda: stack.plane.call("GET", f"{proxy}/api/overview"))
        seen = partage(stack, "top", "nodes", *service, "-o", "json")
        node = partage(stack, "inspect", "host05", *service, "-o", "json")
        refused = partage(stack, "explain", WAITS, *service, good=(2,))

    (row,) = [one for one in seen["nodes"] if one["name"] == "host05"]
    assert row["pods"] == len(ASKS) - 1
    tenants = [tenant for card in node["cards"] for tenant in card["tenants"]]
    assert tenants
    assert {tenant["name"] for tenant in tenants} == {None}
    assert "use --scheduler" in refused
