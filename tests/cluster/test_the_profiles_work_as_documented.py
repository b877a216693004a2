"""The qGPU and HAMi documents on installs with their profiles: namespace, names, port and commands are the documents'.

Nodes' device plugins are pods of the chart's DaemonSet, which no controller runs here; what they would
report is in the examples' nodes. The port of every node is kube-proxy's work: a thread does it,
by what the Service says.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART
from leader_service import LeaderService
from stack import MERGE, Layout, Stack, documents, eventually, pod
from stack import stack as started

EXAMPLES = Path(__file__).parents[2] / "examples"
SYSTEM = "kube-system"
RECORD = "partage.io/allocation"
CORE, MEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
POLICY = "tke.cloud.tencent.com/qgpu-schedule-policy"


def layout(profile: str) -> Layout:
    """A profile that names its parts after itself."""
    return Layout(
        system=SYSTEM,
        scheduler=f"{profile}-scheduler",
        beside=f"{profile}-kube-scheduler",
        webhook=f"{profile}-webhook",
        options=("-f", str(CHART / "profiles" / f"{profile}.yaml")),
    )


@pytest.fixture(scope="module")
def hami(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A cluster where HAMi's document expects HAMi."""
    with started(tmp_path_factory.mktemp("hami"), layout=layout("hami")) as made:
        yield made


@pytest.fixture(scope="module")
def qgpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A cluster where qGPU's document expects qGPU."""
    with started(tmp_path_factory.mktemp("qgpu"), layout=layout("qgpu")) as made:
        yield made


def nodes(stack: Stack, path: str) -> None:
    """Nodes of an example, ready; names in capitals are written small, as a server wants them."""
    text = (EXAMPLES / path).read_text().replace("MIG-NODE-A", "mig-node-a")
    file = stack.plane.folder / "nodes.yaml"
    file.write_text(text)
    stack.shell(f"kubectl create -f {file}")
    for one in yaml.safe_load_all(text):
        stack.make_ready(one)


def apply(stack: Stack, *values: dict[str, Any]) -> None:
    """`kubectl apply`."""
    file = stack.plane.folder / "applied.yaml"
    file.write_text(yaml.safe_dump_all(values))
    stack.shell(f"kubectl apply -f {file}")


def agents(stack: Stack, name: str) -> set[str]:
    """Nodes for which there is a pod of the DaemonSet."""
    found = stack.plane.call("GET", f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
    mine = (one for one in found if one["metadata"].get("generateName") == f"{name}-")
    return {one["spec"].get("nodeName", "") for one in mine}


def test_hamis_steps_are_followed_as_printed(hami: Stack) -> None:
    """The ConfigMap in kube-system, a node in mode mig, a pod of two instances, and `:31993/metrics`."""
    nodes(hami, "hami/node.yaml")
    eventually(
        "the device plugin comes to nodes with HAMi's label",
        lambda: agents(hami, "hami-device-plugin") == {"aio-node15", "mig-node-a"},
    )
    shown = hami.shell("kubectl describe cm hami-device-plugin -n kube-system")
    assert "nodeconfig" in shown
    table = {
        "nodeconfig": [
            {
                "name": "mig-node-a",
                "operatingmode": "mig",
                "filterdevices": {"uuid": [], "index": []},
            }
        ]
    }
    text = json.dumps({"data": {"config.json": json.dumps(table)}})
    hami.shell(f"kubectl patch cm hami-device-plugin -n kube-system --type merge -p '{text}'")

    published = next(
        one
        for one in documents(EXAMPLES / "hami/pods.yaml")
        if one["metadata"]["name"] == "gpu-pod"
    )
    apply(hami, published)
    found = hami.bound("gpu-pod")

    assert found["spec"]["nodeName"] == "mig-node-a"
    assert found["spec"]["schedulerName"] in {"hami-scheduler", "partage-scheduler"}
    record = json.loads(found["metadata"]["annotations"][RECORD])
    assert [d["mig"]["profile"] for d in record["containers"][0]["devices"]] == ["2g.10gb"] * 2
    with closing(on_every_node(hami, "hami-scheduler-metrics", 31993)):
        metrics = hami.shell("curl -sf 127.0.0.1:31993/metrics")
    assert (
        "# HELP nodeGPUMigInstance GPU Sharing mode. 0 for hami-core, 1 for mig, 2 for mps"
        in metrics
    )
    assert "# TYPE nodeGPUMigInstance gauge" in metrics
    # The published table's layout of each card in use: every slot of it, 1 used and 0 free. HAMi's own
    # policy spreads over cards, so that each of the two has one instance.
    slots = [one for one in metrics.splitlines() if one.startswith("nodeGPUMigInstance{")]
    told = [
        (_label(one, "deviceuuid"), _label(one, "migname"), float(one.rsplit(" ", 1)[1]))
        for one in slots
    ]
    used = [(card, name) for card, name, value in told if value == 1]
    assert [name for _, name in used] == ["2g.10gb-0"] * 2
    assert len({card for card, _ in used}) == 2
    assert {card for card, _, _ in told} == {card for card, _ in used}
    assert len(told) == 8
    assert all('nodeid="mig-node-a",zone="vGPU"}' in one for one in slots)


def _label(series: str, name: str) -> str:
    """The value of a label of one line of metrics."""
    return series.split(f'{name}="')[1].split('"', maxsplit=1)[0]


def on_every_node(stack: Stack, service: str, port: int) -> LeaderService:
    """The Service's port of every node, as kube-proxy would serve it."""
    spec = stack.plane.call("GET", f"/api/v1/namespaces/{SYSTEM}/services/{service}")["spec"]
    (one,) = spec["ports"]
    assert (one["nodePort"], one["targetPort"], spec["type"]) == (port, "read", "NodePort")
    assert spec["selector"]["partage.io/leader"] == "true"
    return LeaderService(port, lambda: stack.leader(1))


def test_qgpu_spreads_and_packs_as_the_add_on_is_set(qgpu: Stack) -> None:
    """The qGPU document: Spread takes nodes and cards with most left, Binpack one node; managers run by the label."""
    add_cards(qgpu)
    eventually("managers run", lambda: agents(qgpu, "qgpu-manager") == {"t4-a", "t4-b"})
    for number in range(2):
        qgpu.create(share(f"spread-{number}"))
        qgpu.bound(f"spread-{number}")
    places = {place(qgpu, f"spread-{number}")[0] for number in range(2)}
    assert places == {"t4-a", "t4-b"}
    for number in range(2, 4):
        qgpu.create(share(f"spread-{number}"))
        qgpu.bound(f"spread-{number}")
    assert len({place(qgpu, f"spread-{number}") for number in range(4)}) == 4

    # What the chart makes of placement.policy=Binpack; an upgrade would also point the webhook at its Service.
    text = json.dumps({"data": {"policy": "binpack"}})
    qgpu.shell(f"kubectl patch cm partage-config -n kube-system --type merge -p '{text}'")
    eventually("the policy is in force", lambda: "binpack" in policy(qgpu))
    for number in range(3):
        qgpu.create(share(f"packed-{number}"))
        qgpu.bound(f"packed-{number}")
    assert len({place(qgpu, f"packed-{number}") for number in range(3)}) == 1


def add_cards(stack: Stack) -> None:
    """Two nodes of two T4; the policy is the one's, by its abbreviation."""
    first = next(documents_of("qgpu/nodes.yaml"))
    for name, label in (("t4-a", "fs"), ("t4-b", "best-effort")):
        labels = {**first["metadata"]["labels"], "kubernetes.io/hostname": name, POLICY: label}
        one = {**first, "metadata": {"name": name, "labels": labels}}
        stack.create(one)
        stack.make_ready(one)


def documents_of(path: str) -> Iterator[dict[str, Any]]:
    """Documents of an example."""
    yield from documents(EXAMPLES / path)


def share(name: str) -> dict[str, Any]:
    """Limits alone: requests are left to the API server, as the document allows."""
    return pod(name, {CORE: "20", MEMORY: "2"})


def place(stack: Stack, name: str) -> tuple[str, str]:
    """Node and card of a pod."""
    found = stack.bound(name)
    (one,) = json.loads(found["metadata"]["annotations"][RECORD])["containers"][0]["devices"]
    return found["spec"]["nodeName"], one["uuid"]


def policy(stack: Stack) -> str:
    """What is in force on a node, by the service's own word."""
    return json.dumps(stack.get("/api/config/t4-a"))


def test_the_policy_is_the_nodes_label(qgpu: Stack) -> None:
    """The label has its name or abbreviation; an unknown word closes the node, and an event of the pod says so."""
    where = "/api/v1/nodes/t4-b"
    for number, label in enumerate(("bs", "fixed-share", "be")):
        qgpu.plane.call("PATCH", where, {"metadata": {"labels": {POLICY: label}}}, kind=MERGE)
        made = share(f"policy-{number}")
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "t4-b"}
        qgpu.create(made)
        assert place(qgpu, f"policy-{number}")[0] == "t4-b"
    qgpu.plane.call("PATCH", where, {"metadata": {"labels": {POLICY: "greedy"}}}, kind=MERGE)
    made = share("unknown")
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "t4-b"}
    qgpu.create(made)
    eventually(
        "an event says so",
        lambda: any("greedy" in one["message"] for one in qgpu.events("unknown")),
    )
