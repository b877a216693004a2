"""The Koordinator document's commands, letter by letter, on an install with the `koordinator` profile.

Namespace, Lease, port and the pod's address are those that the document prints, and so are the
commands; only the address is put on loopback here, because no network leads to pods.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from chart import CHART
from stack import MERGE, Layout, Stack, documents, eventually
from stack import stack as started

EXAMPLES = Path(__file__).parents[2] / "examples" / "koordinator"
ADDRESS = "10.244.0.64"
POD = "koord-scheduler-5b5f66cd4b-9w7sj"
LAYOUT = Layout(
    system="koordinator-system",
    scheduler="koord-scheduler",
    beside="koord-kube-scheduler",
    webhook="koord-webhook",
    # By the extender, which this cluster of processes has, the service's own pod must hold the Lease.
    options=(
        "-f",
        str(CHART / "profiles" / "koordinator.yaml"),
        "--set",
        "scheduler.leaseName=koord-scheduler,kubeScheduler.leaseName=koord-kube-scheduler",
    ),
    address=ADDRESS,
    read=10251,
    pod=POD,
)
FIND = (
    "kubectl -n koordinator-system get lease koord-scheduler --no-headers | awk '{print $2}' | "
    "cut -d'_' -f1 | xargs -I {} kubectl -n koordinator-system get pod {} -o wide --no-headers | "
    "awk '{print $6}'"
)
ASK = f"curl {ADDRESS}:10251/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"


@pytest.fixture(scope="module")
def address() -> Iterator[None]:
    """The pod's address as one of this machine's own."""
    made = subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=False)  # noqa: S607 # iproute2
    if made.returncode:
        pytest.skip(f"{ADDRESS} cannot be put on loopback: that needs root and iproute2")
    yield
    subprocess.run(["ip", "address", "delete", f"{ADDRESS}/32", "dev", "lo"], check=True)  # noqa: S607 # the same


@pytest.fixture(scope="module")
def koordinator(address: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A cluster with Partage where Koordinator's documents expect Koordinator."""
    del address
    with started(tmp_path_factory.mktemp("koordinator"), layout=LAYOUT) as made:
        yield made


def test_the_documents_steps_are_followed_as_printed(koordinator: Stack) -> None:
    """Device, totals, allocation, the Lease's holder, its address, and the debug API on 10251."""
    koordinator.shell(f"kubectl create -f {EXAMPLES}/host04.yaml")
    (node,) = (one for one in documents(EXAMPLES / "host04.yaml") if one["kind"] == "Node")
    koordinator.make_ready(node)
    eventually(
        "the totals are written",
        lambda: "kubernetes.io/gpu" in koordinator.shell("kubectl get node host04 -o yaml"),
    )
    (pod,) = (
        one
        for one in documents(EXAMPLES / "host04-pods.yaml")
        if one["metadata"]["name"] == "pod-example"
    )
    file = koordinator.plane.folder / "pod-example.yaml"
    file.write_text(yaml.safe_dump(pod))
    koordinator.shell(f"kubectl apply -f {file}")
    koordinator.bound("pod-example")
    shown = yaml.safe_load(koordinator.shell("kubectl get pod -n default pod-example -o yaml"))
    notes = shown["metadata"]["annotations"]
    (given,) = json.loads(notes["scheduling.koordinator.sh/device-allocated"])["gpu"]
    assert set(given["resources"]) == {
        "kubernetes.io/gpu-core",
        "kubernetes.io/gpu-memory",
        "kubernetes.io/gpu-memory-ratio",
    }

    # The kubelet's part: it tells the address of the scheduler's pod.
    status = {"status": {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}}
    where = f"/api/v1/namespaces/koordinator-system/pods/{POD}/status"
    koordinator.plane.call("PATCH", where, status, kind=MERGE)
    assert koordinator.shell(FIND).strip() == ADDRESS
    summary = json.loads(koordinator.shell(f"{ASK}/host04"))
    minor = str(given["minor"])
    assert summary["allocateSet"] == {"gpu": {"default/pod-example": {minor: given["resources"]}}}
    assert summary["deviceUsedDetail"]["gpu"][minor] == given["resources"]
    assert set(summary["deviceFreeDetail"]["gpu"][minor].values()) == {"0"}
    assert summary["deviceTotal"]["kubernetes.io/gpu-core"] == "200"
    assert json.loads(koordinator.shell(ASK)) == {"host04": summary}
