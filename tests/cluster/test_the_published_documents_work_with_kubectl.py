"""The four published documents, step by step, with the genuine kubectl on a genuine cluster.

Names that a real cluster refuses (capitals) are written small; what the documents leave out of
nodes (cpu, Ready) is filled in.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stack import MERGE, SYSTEM, Stack, documents, eventually, pod

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORD = "partage.io/allocation"
PODS = "/api/v1/namespaces/default/pods"
CAPITALS = (("MIG-NODE-A", "mig-node-a"), ("test-metax-sGPU", "test-metax-sgpu"))


@pytest.fixture(autouse=True)
def alone(stack: Stack) -> Iterator[None]:
    """No node, no pod before, none after."""
    clear(stack)
    yield
    clear(stack)


def clear(stack: Stack) -> None:
    """Take away pods, nodes and devices."""
    stack.plane.call("DELETE", "/apis/apps/v1/namespaces/default/deployments")
    devices = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
    for path in (f"{PODS}?gracePeriodSeconds=0", "/api/v1/nodes", devices):
        stack.plane.call("DELETE", path)
    eventually("pods are gone", lambda: not stack.plane.call("GET", PODS)["items"])


def small(text: str) -> str:
    """The text with names that a cluster takes."""
    for published, taken in CAPITALS:
        text = text.replace(published, taken)
    return text


def nodes(stack: Stack, *paths: str) -> None:
    """Nodes and Devices of example files, as kubectl reads them; nodes are made ready."""
    for number, path in enumerate(paths):
        text = small((EXAMPLES / path).read_text())
        file = stack.plane.folder / f"nodes-{number}.yaml"
        file.write_text(text)
        stack.shell(f"kubectl create -f {file}")
        for one in yaml.safe_load_all(text):
            if one and one["kind"] == "Node":
                stack.make_ready(one)


def apply(stack: Stack, *values: dict[str, Any]) -> None:
    """`kubectl apply` of manifests."""
    path = stack.plane.folder / "applied.yaml"
    path.write_text(small(yaml.safe_dump_all(values)))
    stack.shell(f"kubectl apply -f {path}")


def named(path: str, name: str) -> dict[str, Any]:
    """The manifest of a name in an example file."""
    (found,) = (d for d in documents(EXAMPLES / path) if d["metadata"]["name"] == name)
    return found


def test_koordinator(stack: Stack) -> None:
    """The Koordinator document: the Device, the node's totals, the pod's allocation, the debug API."""
    nodes(stack, "koordinator/host04.yaml")
    device = yaml.safe_load(stack.shell("kubectl get device host04 -o yaml"))
    assert device["spec"]["devices"][0]["resources"]["kubernetes.io/gpu-memory"] == "16Gi"
    totals = yaml.safe_load(stack.shell("kubectl get node host04 -o yaml"))["status"]
    assert totals["allocatable"]["kubernetes.io/gpu"] == "200"

    apply(stack, named("koordinator/host04-pods.yaml", "pod-example"))
    stack.bound("pod-example")
    shown = yaml.safe_load(stack.shell("kubectl get pod -n default pod-example -o yaml"))
    told = json.loads(
        shown["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"]
    )
    given = told["gpu"][0]["resources"]
    assert given == {
        "kubernetes.io/gpu-core": "100",
        "kubernetes.io/gpu-memory": "16Gi",
        "kubernetes.io/gpu-memory-ratio": "100",
    }

    status = {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    stack.plane.call(
        "PATCH", f"/api/v1/namespaces/{SYSTEM}/pods/scheduler/status", status, kind=MERGE
    )
    printed = (
        "kubectl -n koordinator-system get lease koord-scheduler --no-headers | awk '{print $2}' | "
        "cut -d'_' -f1 | xargs -I {} kubectl -n koordinator-system get pod {} -o wide --no-headers "
        "| awk '{print $6}'"
    )
    ours = printed.replace("koordinator-system", SYSTEM).replace("koord-", "partage-")
    address = stack.shell(ours).strip()
    assert address == "127.0.0.1"
    port = stack.instances["scheduler"][1]
    where = f"curl -sf {address}:{port}/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
    summary = json.loads(stack.shell(f"{where}/host04"))
    assert summary["allocateSet"]["gpu"]["default/pod-example"]["0"] == given or (
        summary["allocateSet"]["gpu"]["default/pod-example"]["1"] == given
    )
    assert summary["deviceTotal"]["kubernetes.io/gpu-core"] == "200"
    assert "host04" in json.loads(stack.shell(where))


MORE = {
    "pod-percent": {"gpu-core": "100", "gpu-memory": "16Gi", "gpu-memory-ratio": "100"},
    "pod-ratio": {"gpu-core": "100", "gpu-memory": "16Gi", "gpu-memory-ratio": "100"},
    "pod-bytes": {"gpu-core": "100", "gpu-memory": "16Mi", "gpu-memory-ratio": "0"},
}
"""The Koordinator document's further requests, and what each is given; the page's 16Mi are all compute and less than a percent of memory."""


def test_koordinators_further_requests(stack: Stack) -> None:
    """The Koordinator document, "more apply": each on its own, by the genuine scheduler."""
    nodes(stack, "koordinator/host04.yaml")
    for name, wanted in MORE.items():
        apply(stack, named("koordinator/host04-pods.yaml", name))
        found = stack.bound(name)
        notes = found["metadata"]["annotations"]
        (given,) = json.loads(notes["scheduling.koordinator.sh/device-allocated"])["gpu"]
        have = {key.split("/")[1]: amount for key, amount in given["resources"].items()}
        assert have == wanted, name
        stack.delete(name)
        eventually("it is gone", lambda name=name: stack.pod(name) is None)


def test_qgpu(stack: Stack) -> None:
    """The qGPU document: a Deployment with 30 % and 5 GiB a pod, and a whole card."""
    nodes(stack, "qgpu/nodes.yaml")
    (deployment,) = documents(EXAMPLES / "qgpu/deployment.yaml")
    apply(stack, deployment, named("qgpu/pods.yaml", "qgpu-whole-card"))
    whole = stack.bound("qgpu-whole-card")
    assert whole["spec"]["nodeName"] == "qgpu-t4-a"

    def running() -> list[Any]:
        found = stack.plane.call("GET", PODS)["items"]
        return [
            p for p in found if p["spec"].get("nodeName") and p["metadata"]["labels"].get("app")
        ]

    eventually("both replicas are placed", lambda: len(running()) == 2)
    for one in running():
        (device,) = json.loads(one["metadata"]["annotations"][RECORD])["containers"][0]["devices"]
        assert (device["milli"], device["bytes"]) == (300, 5 * 2**30)
        assert one["metadata"]["labels"]["tke.cloud.tencent.com/qgpu"] == "true"


def test_hami(stack: Stack) -> None:
    """The HAMi document: a node turned to MIG by ConfigMap, a pod of two instances, the published metric."""
    nodes(stack, "hami/node.yaml")
    shown = stack.shell(f"kubectl describe cm hami-device-plugin -n {SYSTEM}")
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
    before = stack.plane.call("GET", f"/api/v1/namespaces/{SYSTEM}/configmaps/hami-device-plugin")
    stack.shell(f"kubectl -n {SYSTEM} patch cm hami-device-plugin --type merge -p '{text}'")
    try:
        published = named("hami/pods.yaml", "gpu-pod")
        apply(stack, published)
        found = stack.bound("gpu-pod")
        assert found["spec"]["nodeName"] == "mig-node-a"
        record = json.loads(found["metadata"]["annotations"][RECORD])
        assert [d["mig"]["profile"] for d in record["containers"][0]["devices"]] == ["2g.10gb"] * 2
        metrics = stack.shell(f"curl -sf {stack.scheduler}/metrics")
        assert "# TYPE nodeGPUMigInstance gauge" in metrics
        assert 'nodeid="mig-node-a",zone="vGPU"} 1' in metrics
    finally:
        stack.plane.call(
            "PATCH",
            f"/api/v1/namespaces/{SYSTEM}/configmaps/hami-device-plugin",
            {"data": before["data"]},
            kind=MERGE,
        )


def test_metax(stack: Stack) -> None:
    """The MetaX document: the C500's Device, and a tenth of it with a fixed share."""
    nodes(stack, "metax/node.yaml")
    shown = yaml.safe_load(stack.shell("kubectl get device sample-node1 -o yaml"))
    assert shown["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "metax"
    apply(stack, named("metax/pods.yaml", "test-metax-sGPU"))
    found = stack.bound("test-metax-sgpu")
    assert found["spec"]["nodeName"] == "sample-node1"
    notes = found["metadata"]["annotations"]
    told = json.loads(notes["scheduling.koordinator.sh/device-allocated"])["gpu"][0]["resources"]
    assert told["koordinator.sh/gpu-core"] == "10"
    assert told["koordinator.sh/gpu-memory"] == "1Gi"
    assert notes["metax-tech.com/sgpu-qos-policy"] == "fixed-share"


def test_a_map_that_nobody_would_read_is_warned_of(stack: Stack) -> None:
    """The MetaX document prints its ConfigMap without a namespace: `kubectl apply` says where Partage reads it."""
    (printed,) = documents(EXAMPLES / "metax/config.yaml")
    del printed["metadata"]["namespace"]
    file = stack.plane.folder / "metax.yaml"
    file.write_text(yaml.safe_dump(printed))
    try:
        said = stack.shell(f"kubectl apply -f {file} 2>&1")
        assert "Warning" in said
        assert "reads this ConfigMap only in kube-system, partage-system" in said
        assert "Warning" not in stack.shell(f"kubectl apply -n kube-system -f {file} 2>&1")
        eventually(
            "it is in force", lambda: "metax-device-config" in json.dumps(stack.get("/api/config"))
        )
    finally:
        for space in ("default", "kube-system"):
            stack.shell(f"kubectl delete -n {space} -f {file} --ignore-not-found")


@pytest.fixture
def eight(stack: Stack, alone: None) -> None:
    """A node with eight cards."""
    nodes(stack, "koordinator/host05.yaml")


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"kubernetes.io/gpu": "400"}, {"kubernetes.io/gpu": "200"}),
        ({"nvidia.com/gpu": "4"}, {"nvidia.com/gpu": "2"}),
        ({"koordinator.sh/gpu": "400"}, {"koordinator.sh/gpu": "200"}),
        (
            {"tke.cloud.tencent.com/qgpu-core": "400"},
            {"tke.cloud.tencent.com/qgpu-core": "50", "tke.cloud.tencent.com/qgpu-memory": "10"},
        ),
        ({"nvidia.com/gpu": "4"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}),
    ],
    ids=["kubernetes.io", "whole cards", "koordinator", "qgpu", "hami"],
)
def test_an_important_pod_preempts(
    stack: Stack, eight: None, less: dict[str, str], more: dict[str, str]
) -> None:
    """It takes the cards of one that matters less, and of no more than it needs.

    By names that kube-scheduler's own fit checks on the totals it proposes the victims; by names
    that are left to the ledger, the service evicts them itself.
    """
    rank(stack)
    for number in range(2):
        stack.create(pod(f"four-{number}", less))
        stack.bound(f"four-{number}")
    stack.create(pod("important", more, priorityClassName="important"))
    stack.bound("important")
    left = {p["metadata"]["name"] for p in stack.plane.call("GET", PODS)["items"]}
    assert len(left & {"four-0", "four-1"}) == 1


def test_halves_of_different_cards_make_room_for_a_whole_one(stack: Stack, eight: None) -> None:
    """The totals are enough and no card is: both sharers of one card are evicted, and no pod of another card.

    A budget spares its pods as long as others can go, and the API server's own account of it.
    """
    rank(stack)
    for number in range(16):
        guarded = {"app": "guarded"} if number < 2 else {}
        one = pod(f"half-{number}", {"koordinator.sh/gpu": "40"})
        one["metadata"]["labels"] = guarded
        stack.create(one)
        stack.bound(f"half-{number}")
    apply(
        stack,
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "guarded", "namespace": "default"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "guarded"}}},
        },
    )
    stack.create(pod("important", {"koordinator.sh/gpu": "100"}, priorityClassName="important"))
    stack.bound("important")
    left = {p["metadata"]["name"] for p in stack.plane.call("GET", PODS)["items"]}
    gone = {f"half-{number}" for number in range(16)} - left
    assert len(gone) == 2
    assert not gone & {"half-0", "half-1"}
    for name in gone:
        assert any(event["reason"] == "Preempted" for event in stack.events(name))
    assert any(event["reason"] == "Preempting" for event in stack.events("important"))
    stack.plane.call("DELETE", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/guarded")


def rank(stack: Stack) -> None:
    """A priority class above all others."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    apply(stack, {**kind, "metadata": {"name": "important"}, "value": 1000})


def test_a_quota_holds(stack: Stack, eight: None) -> None:
    """The API server counts what is asked, as for any extended resource."""
    space = "team"
    apply(
        stack,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}},
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "cards", "namespace": space},
            "spec": {"hard": {"requests.nvidia.com/gpu": "2"}},
        },
    )
    two, one = (pod(n, {"nvidia.com/gpu": g}) for n, g in (("two", "2"), ("one", "1")))
    for value in (two, one):
        value["metadata"]["namespace"] = space
    account = f"/api/v1/namespaces/{space}/serviceaccounts/default"
    eventually("its account is there", lambda: stack.plane.call("GET", account))
    quota = f"/api/v1/namespaces/{space}/resourcequotas/cards"
    eventually("the quota counts", lambda: stack.plane.call("GET", quota)["status"].get("used"))
    apply(stack, two)
    stack.bound("two", space)
    with pytest.raises(AssertionError, match="exceeded quota"):
        apply(stack, one)
    stack.plane.call("DELETE", f"/api/v1/namespaces/{space}/pods?gracePeriodSeconds=0")


def test_a_refusal_is_printed_as_the_page_shows(stack: Stack, eight: None) -> None:
    """What kubectl makes of the webhook's answer: docs/how-to/ask-for-half-a-gpu.md prints it whole."""
    page = (EXAMPLES.parent / "docs/how-to/ask-for-half-a-gpu.md").read_text("utf-8")
    (printed,) = re.findall(r'`(The Pod "bad" is invalid[^`]*)`', page)
    bad = pod("bad", {"tke.cloud.tencent.com/qgpu-core": "33"})
    bad["spec"]["containers"][0]["name"] = "serve"
    bad["spec"]["containers"][0]["resources"]["limits"]["tke.cloud.tencent.com/qgpu-memory"] = "7"
    with pytest.raises(AssertionError, match=re.escape(printed)):
        apply(stack, bad)


def test_a_dry_run_hands_out_nothing(stack: Stack, eight: None) -> None:
    """Server-side dry run completes and judges, and leaves no trace."""
    path = stack.plane.folder / "dry.yaml"
    path.write_text(yaml.safe_dump(pod("dry", {"nvidia.com/gpu": "100"})))
    shown = yaml.safe_load(stack.shell(f"kubectl apply --dry-run=server -o yaml -f {path}"))
    assert shown["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert shown["spec"]["schedulerName"] == "partage-scheduler"
    assert stack.pod("dry") is None


def test_containers_of_one_pod_have_cards_of_their_own(stack: Stack, eight: None) -> None:
    """Two containers of two protocols, and one without a device."""
    value = pod("many", {"tke.cloud.tencent.com/qgpu-core": "100"})
    for name, limits in (
        ("slice", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}),
        ("none", {"cpu": "1"}),
    ):
        extra = {"name": name, "image": "example", "resources": {"limits": limits}}
        value["spec"]["containers"].append(extra)
    apply(stack, value)
    record = json.loads(stack.bound("many")["metadata"]["annotations"][RECORD])
    cards = {c["name"]: [d["uuid"] for d in c["devices"]] for c in record["containers"]}
    assert len(cards["main"]) == len(cards["slice"]) == 1
    assert cards["main"] != cards["slice"]
