"""`partage explain`, `top` and `inspect` answer for manifests, and say what is wrong."""

import contextlib
import copy
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from partage.cli.engine_here import settings_of_several
from partage.cli.main import main
from partage.cli.tables import Line, PlainTable, Styled, paper
from partage.cli.top import _short_cards
from partage.model.quantity import core_text
from partage.vendors import names
from partage.wire.documents import decode

ROOT = Path(__file__).parents[2]
MIXED = str(ROOT / "examples/mixed")


def ask(*arguments: str) -> Result:
    """What the command prints, whatever the environment says of a cluster."""
    env = {
        "KUBECONFIG": "/nonexistent",
        "PARTAGE_SCHEDULER": "",
        "PARTAGE_SERVICE": "",
        "HOME": "/nonexistent",
        "KUBERNETES_SERVICE_HOST": "",
    }
    return CliRunner(env=env).invoke(main, arguments)


def test_a_waiting_pod_gets_reason_numbers_and_next_step() -> None:
    """The line, each node, alike cards together with asked and free, and what to try."""
    result = ask("explain", "waiting/too-big-for-t4", "-f", MIXED)

    assert result.exit_code == 3
    assert "InsufficientMemory: 0/4 nodes" in result.stdout
    assert "try: ask for less, or add a larger node; waiting does not help" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["1", "InsufficientMemory", "15Gi", "6Gi"] in rows
    assert "answered by the engine, over the manifests given" in result.stderr


def test_asked_and_free_differ_where_a_pod_does_not_fit(tmp_path: Path) -> None:
    """The table has the numbers of the line above, so that 10342 MiB and 10336 MiB are not both 10.1Gi."""
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": "aio-node15"},
                "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
            },
        }
        for name, limits in (
            ("first", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 30624}),
            ("close", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10342}),
        )
    ]
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all(pods))

    said = ask("explain", "close", "-f", str(ROOT / "examples/hami/node.yaml"), "-f", str(file))

    assert "(asked 10342Mi, most free 10336Mi on aio-node15 card 0)" in said.stdout
    rows = [line.split() for line in said.stdout.splitlines()]
    assert ["0,1", "InsufficientMemory", "10342Mi", "10336Mi"] in rows


@pytest.mark.parametrize(
    ("cards", "key", "wish", "code"),
    [
        (
            4,
            names.DEVICE_ALLOCATE_HINT,
            {"gpu": {"requiredTopologyScope": "PCIe"}},
            "TopologyScope",
        ),
        (8, names.NUMA_TOPOLOGY_SPEC, {"numaTopologyPolicy": "SingleNUMANode"}, "NumaMismatch"),
        (3, names.GPU_PARTITION_SPEC, {"allocatePolicy": "Restricted"}, "Partition"),
    ],
    ids=["scope", "numa", "partition"],
)
def test_cards_that_are_nowhere_so_close_are_not_waited_for(
    tmp_path: Path, cards: int, key: str, wish: object, code: str
) -> None:
    """Four cards of one PCIe switch where each switch has two: no pod that ends makes them possible."""
    limits = {"koordinator.sh/gpu": 100 * cards}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "close", "annotations": {key: json.dumps(wish)}},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]},
    }
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod))
    node = str(ROOT / "examples/koordinator/host05.yaml")

    said = ask("explain", "close", "-f", node, "-f", str(file), "-o", "json")

    told = json.loads(said.stdout)
    assert told["reason"]["code"] == code
    assert "waiting does not help" in told["next"]
    assert "or wait" not in told["next"]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (
            {"koordinator.sh/gpu": 50},
            "try: use nodes whose cards take shares, or ask by HAMi's names for instances",
        ),
        (
            {"koordinator.sh/gpu": 100, "koordinator.sh/rdma": 1},
            "try: ask for no rdma, or add a node that has such devices; waiting does not help",
        ),
    ],
    ids=["instances-only", "no-rdma"],
)
def test_less_of_what_no_node_gives_is_not_advised(
    tmp_path: Path, limits: dict[str, int], said: str
) -> None:
    """However little a share asks of cards that are cut into instances, it does not fit; nor does one RDMA device of none."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "never"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "mig-node-a"},
            "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
        },
    }
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod))

    told = ask("explain", "never", "-f", str(ROOT / "examples/hami"), "-f", str(file)).stdout

    assert said in told
    assert "ask for less" not in told


def test_the_nearest_nodes_are_told_first(tmp_path: Path) -> None:
    """Nodes that lack room come first, then nodes that keep the pod off, then what the pod says; like rows are one."""
    node = {"apiVersion": "v1", "kind": "Node", "status": {"allocatable": {"nvidia.com/gpu": "2"}}}
    documents = [{**node, "metadata": {"name": f"other-{number:02}"}} for number in range(20)] + [
        {
            **node,
            "metadata": {"name": "tainted", "labels": {"pool": "a"}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        },
        {**node, "metadata": {"name": "small", "labels": {"pool": "a"}}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {
                "nodeSelector": {"pool": "a"},
                "containers": [
                    {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "3"}}}
                ],
            },
        },
    ]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(documents))

    def firsts(*more: str) -> list[str]:
        lines = ask("explain", "p", "-f", str(file), *more).stdout.splitlines()
        start = next(at for at, line in enumerate(lines) if line.startswith("NODE"))
        return [line.partition("  ")[0] for line in lines[start + 1 : lines.index("", start)]]

    assert [one for one in firsts() if one] == ["small", "tainted", "other-00 and 19 more"]
    wide = [one for one in firsts("-o", "wide") if one]
    assert wide == ["small", "tainted", *(f"other-{number:02}" for number in range(20))]


def test_the_line_has_as_many_cards_as_would_serve(tmp_path: Path) -> None:
    """Not those of a small node that pods hold, beside a large one with a free card."""
    hosts = {"host04": 200, "host05": 700}
    objects = [
        one
        for host in hosts
        for one in yaml.safe_load_all((ROOT / f"examples/koordinator/{host}.yaml").read_text())
    ]
    for one in objects:
        if one["kind"] == "Node":
            one["metadata"].setdefault("labels", {})["host"] = one["metadata"]["name"]
    for host, asked in {**hosts, "any": 300}.items():
        limits = {"kubernetes.io/gpu": asked}
        spec = {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}
        pinned = {"nodeSelector": {"host": host}} if host in hosts else {}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": host}}
        objects.append({**pod, "spec": {**spec, **pinned}})
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(objects))

    said = ask("explain", "any", "-f", str(file)).stdout

    assert "2 insufficient cards (asked 3, at most 1 on host05)" in said


def test_nodes_that_are_not_the_one_named_are_one_row() -> None:
    """A selector of one host excludes all others, and a row for each would hide the reason at that host."""
    said = ask("explain", "waiting/no-toleration", "-f", MIXED).stdout

    assert "which is another node" in said
    assert "a100-node and 2 more" in said


def test_nodes_whose_cards_lack_the_same_are_one_row(tmp_path: Path) -> None:
    """Otherwise ten rows of a large fleet would say one thing."""
    documents: list[dict[str, Any]] = []
    for name, memory in (("a", "16Gi"), ("b", "8Gi"), ("c", "16Gi")):
        amounts = {"core": 100, "memory-ratio": 100, "memory": memory}
        card = {"type": "gpu", "minor": 0, "id": f"GPU-{name}", "health": True} | {
            "resources": {f"koordinator.sh/gpu-{key}": value for key, value in amounts.items()}
        }
        documents += [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}},
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "Device",
                "metadata": {"name": name},
                "spec": {"devices": [card]},
            },
        ]
    limits = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": "20Gi"}
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    documents.append(pod | {"spec": {"containers": [container]}})
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(documents))

    lines = ask("explain", "p", "-f", str(file)).stdout.splitlines()

    firsts = [line.split("  ")[0] for line in lines if line.startswith(("a ", "b ", "c "))]
    assert firsts == ["a and 1 more", "b"]


def agree(source: str, *, without_devices: frozenset[str] = frozenset()) -> None:
    """`explain` and `schedule` say the same of each pod of manifests."""
    for pod in json.loads(ask("schedule", source, "-o", "json").stdout)["pods"]:
        name = f"{pod['namespace']}/{pod['name']}"
        if pod["name"] in without_devices:
            continue
        result = ask("explain", name, "-f", source, "-o", "json")
        found = json.loads(result.stdout)
        assert found["node"] == pod["node"], name
        assert found["allocations"] == pod["allocations"], name
        assert found["reason"] == pod["reason"], name
        assert result.exit_code == (3 if pod["reason"] else 0), name


@pytest.mark.parametrize("examples", ["claims", "mixed", "hami", "koordinator", "metax", "qgpu"])
def test_explain_says_of_manifests_what_schedule_says(examples: str) -> None:
    """The same places and the same reasons, pod by pod, as the pods get their places in the same order."""
    agree(str(Path(MIXED).parent / examples))


SGPU = {
    "koordinator.sh/gpu.shared": "1",
    "koordinator.sh/gpu-core": "10",
    "koordinator.sh/gpu-memory": "1Gi",
    "metax-tech.com/sgpu": "1",
}


@pytest.mark.parametrize(
    ("others", "limits", "code"),
    [
        pytest.param((), {"cpu": "7"}, "NodeResources", id="too much CPU"),
        pytest.param((), {"cpu": "5"}, None, id="enough"),
        pytest.param(({"cpu": "4"},), {"cpu": "4"}, "NodeResources", id="one before takes it"),
        pytest.param(
            ({"cpu": "4", "on": "host04"},), {"cpu": "4"}, "NodeResources", id="one that runs"
        ),
        pytest.param(({"cpu": "4", "on": "other"},), {"cpu": "4"}, None, id="elsewhere"),
        pytest.param((), SGPU, "NodeResources", id="no plugin of the vendor"),
        pytest.param((), {"example.com/dongle": "1"}, "NodeResources", id="foreign"),
    ],
)
def test_explain_counts_beside_devices_what_schedule_counts(
    tmp_path: Path, others: tuple[dict[str, str], ...], limits: dict[str, str], code: str | None
) -> None:
    """CPU, memory, and names of the vendors' plugins, of pods without devices too; also for another pod like it."""

    def pod(name: str, limits: dict[str, str], node: str = "") -> dict[str, Any]:
        container = {"name": "main", "image": "x", "resources": {"limits": limits}}
        spec = {"containers": [container]} | ({"nodeName": node} if node else {})
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    card = {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10"}
    before = [
        pod(f"other{number}", {"cpu": one["cpu"]}, one.get("on", ""))
        for number, one in enumerate(others)
    ]
    asking = pod("asks", limits if limits is SGPU else card | limits)
    file = tmp_path / "all.yaml"
    host04 = Path(MIXED).parent.joinpath("koordinator/host04.yaml").read_text(encoding="utf-8")
    file.write_text(f"{host04}\n---\n{yaml.safe_dump_all([*before, asking])}", encoding="utf-8")

    agree(str(file), without_devices=frozenset(one["metadata"]["name"] for one in before))
    found = json.loads(ask("explain", "asks", "-f", str(file), "-o", "json").stdout)
    assert (found["reason"] or {}).get("code") == code
    if not code:
        assert found["another"]["message"] == (
            "NodeResources: 0/1 nodes: 1 insufficient node resources "
            f"(cpu: asked {limits['cpu']}, free {6 - int(limits['cpu'])} on host04)"
        )


def test_a_pod_that_gets_a_place_is_not_called_bound() -> None:
    """A question binds nothing, and there is no cluster whose policy could be in force."""
    said = ask("explain", "team-text/hami-slice", "-f", MIXED).stdout

    assert "team-text/hami-slice gets a place on node a100-node" in said
    assert "set by a ConfigMap of the manifests, or the default" in said


def test_a_placed_pod_gets_cards_policy_and_annotations() -> None:
    """Where, which card, by which policy, where another would go, what the record means."""
    result = ask("explain", "already-running", "-n", "team-vision", "-f", MIXED)

    assert result.exit_code == 0
    for text in (
        "is bound on node a100-node",
        "gpu 0",
        "40Gi",
        "policy partage",
        "another pod like it would go to node a100-node too",
        "Koordinator's record",
    ):
        assert text in result.stdout


def test_a_pod_on_an_ill_card_is_told_what_to_do(tmp_path: Path) -> None:
    """The node of the pod is half of the answer."""
    text = "".join(path.read_text() + "\n---\n" for path in sorted(Path(MIXED).glob("*.yaml")))
    documents = [one for one in yaml.safe_load_all(text) if one]
    device = next(one for one in documents if one["kind"] == "Device")
    for one in device["spec"]["devices"]:
        one["health"] = False
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(documents))

    result = ask("explain", "already-running", "-n", "team-vision", "-f", str(file))

    assert result.exit_code == 0
    assert "gpu 0 of container serve is unhealthy: " in result.stdout
    assert "try: delete the pod" in result.stdout


def _explained(folder: Path, limits: dict[str, int]) -> Result:
    """The answer of explain about a pod of one container, by its manifest."""
    spec = {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lost"}, "spec": spec}
    file = folder / "pod.json"
    file.write_text(json.dumps(pod))

    return ask("explain", "lost", "-f", str(file))


def test_a_pod_whose_only_device_is_misspelt_is_told_so(tmp_path: Path) -> None:
    """Partage does not handle the pod: it names no resource that is known."""
    result = _explained(tmp_path, {"tke.cloud.tencent.com/qgpu-cores": 30})

    assert result.exit_code == 4
    assert "asks for no device" in result.stderr
    assert "did you mean tke.cloud.tencent.com/qgpu-core?" in result.stderr
    assert "see partage schedule with the same files" in result.stderr


@pytest.mark.parametrize("typed", ["inspect", "top nodes", "top cards"])
def test_manifests_without_a_node_are_told_so(tmp_path: Path, typed: str) -> None:
    """An empty answer, or a table of headings alone, left open whether the command had worked."""
    file = tmp_path / "pod.json"
    file.write_text('{"kind": "Pod", "metadata": {"name": "a"}}')

    result = ask(*typed.split(), "-f", str(file))

    assert (result.exit_code, result.stdout) == (0, "no node there\n")


def test_a_pod_of_another_systems_names_is_told_which_are_not_read(tmp_path: Path) -> None:
    """Names like no known one, too: `asks for no device` alone contradicted the manifest."""
    result = _explained(tmp_path, {"aliyun.com/gpu-mem": 8, "cpu": 1})

    assert result.exit_code == 4
    assert "resource aliyun.com/gpu-mem is none that Partage reads; see" in result.stderr
    assert "cpu" not in result.stderr


@pytest.mark.parametrize(("status", "said"), [("True", "yes"), ("False", "no"), ("", "not known")])
def test_what_the_node_says_of_limits_is_told(tmp_path: Path, status: str, said: str) -> None:
    """The agent's condition of the pod, in words."""
    text = "".join(path.read_text() + "\n---\n" for path in sorted(Path(MIXED).glob("*.yaml")))
    documents = [one for one in yaml.safe_load_all(text) if one]
    pod = next(one for one in documents if one["metadata"]["name"] == "already-running")
    condition = {"type": names.LIMITS_CONDITION, "status": status, "message": "container main: m"}
    pod.setdefault("status", {})["conditions"] = [condition]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(documents))

    result = ask("explain", "already-running", "-n", "team-vision", "-f", str(file))

    assert f"limits in force: {said}; container main: m" in result.stdout


def ended(tmp_path: Path, status: dict[str, Any], **more: Any) -> str:
    """A pod of manifests that has ended so, as the option for the file."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    spec = {"nodeName": "n0", "containers": [{"name": "main", "image": "x", **limits}], **more}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gone"}, "spec": spec}
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump(pod | {"status": status}))
    return f"--filename={file}"


def test_a_pod_that_failed_says_what_the_kubelet_says(tmp_path: Path) -> None:
    """Its reason and message, and how each container ended, the init containers first."""
    error = {"exitCode": 1, "reason": "Error", "message": "Traceback:\nCUDA error\n"}
    status = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on memory.",
        "containerStatuses": [
            {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
            {"name": "log", "state": {"terminated": error}},
            {"name": "unknown", "state": {"waiting": {"reason": "PodInitializing"}}},
        ],
        "initContainerStatuses": [{"name": "fetch", "state": {"terminated": {"exitCode": 2}}}],
    }
    file = ended(tmp_path, status)

    said = ask("explain", "gone", file).stdout.splitlines()
    told = json.loads(ask("explain", "gone", file, "-o", "json").stdout)["ended"]

    assert said[:2] == [
        "default/gone has failed on node n0; it holds nothing any more",
        "Evicted: The node was low on memory.",
    ]
    rows = [line.split() for line in said]
    at = rows.index(["CONTAINER", "EXIT", "CODE", "REASON", "MESSAGE"])
    assert rows[at + 1 : at + 5] == [
        ["fetch", "(init)", "2", "-"],
        ["main", "137", "OOMKilled"],
        ["log", "1", "Error", "Traceback:"],
        ["CUDA", "error"],
    ]
    assert (told["phase"], told["reason"]) == ("Failed", "Evicted")
    assert [(one["name"], one["init"], one["exit_code"]) for one in told["containers"]] == [
        ("fetch", True, 2),
        ("main", False, 137),
        ("log", False, 1),
    ]


def test_a_pod_with_claims_alone_says_how_it_failed_too(tmp_path: Path) -> None:
    """The books know nothing of such a pod."""
    status = {
        "phase": "Failed",
        "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 3}}}],
    }
    claims = [{"name": "card", "resourceClaimName": "mine"}]
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "card"}]}}
    file = ended(tmp_path, status, resourceClaims=claims, containers=[container])

    said = ask("explain", "gone", file).stdout

    assert ["main", "3", "-"] in [line.split() for line in said.splitlines()]


def test_a_pod_that_succeeded_needs_no_reason(tmp_path: Path) -> None:
    """It does not get a table of its containers either."""
    done = {"exitCode": 0, "reason": "Completed"}
    statuses = [{"name": "main", "state": {"terminated": done}}]
    file = ended(tmp_path, {"phase": "Succeeded", "containerStatuses": statuses})

    said = ask("explain", "gone", file).stdout

    assert said.startswith("default/gone has ended on node n0; it holds nothing any more\n")
    assert "EXIT CODE" not in said


def test_the_same_is_said_to_programs() -> None:
    """JSON and YAML hold the same document, with reason by node and card."""
    found = json.loads(ask("explain", "waiting/too-big-for-t4", "-f", MIXED, "-o", "json").stdout)
    again = yaml.safe_load(
        ask("explain", "waiting/too-big-for-t4", "-f", MIXED, "-o", "yaml").stdout
    )

    assert found == again
    assert found["reason"]["nodes"]["t4-node"]["cards"][0]["asked"] == 15 * 2**30
    assert found["policy"]["node"] == "partage"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param(("explain", "nope", "-f", MIXED), 4, "Check the name", id="no-pod"),
        pytest.param(
            ("explain", "already-running", "-f", MIXED),
            4,
            "there is team-vision/already-running",
            id="other-namespace",
        ),
        pytest.param(
            ("explain", "team-vision/already-runnnig", "-f", MIXED),
            4,
            "there is team-vision/already-running",
            id="misspelt",
        ),
        pytest.param(
            ("explain", "a/b", "-n", "c", "-f", MIXED),
            2,
            "name one namespace",
            id="two-namespaces",
        ),
        pytest.param(("inspect", "nope", "-f", MIXED), 4, "partage top nodes", id="no-node"),
        pytest.param(("top", "-f", "/nonexistent.yaml"), 2, "nonexistent", id="no-file"),
        pytest.param(("top",), 2, "correct KUBECONFIG", id="no-kubeconfig"),
        pytest.param(("top", "cheese", "-f", MIXED), 2, "nodes, pods, cards", id="no-such-thing"),
        pytest.param(
            ("top", "--scheduler", "http://127.0.0.1:9"), 2, "Check the address", id="nobody-there"
        ),
        pytest.param(
            ("top", "--scheduler", "http://x", "--service", "a/b:1"), 2, "exclude", id="both"
        ),
    ],
)
def test_an_error_names_thing_and_next_step(
    arguments: tuple[str, ...], code: int, says: str
) -> None:
    """One line, a documented exit code, never a traceback."""
    result = ask(*arguments)

    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_a_service_that_is_not_one_is_told(tmp_path: Path) -> None:
    """`--service` without a port names its form, and a Service of the chart that answers people."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))

    result = ask("top", "--kubeconfig", str(path), "--service", "partage-scheduler")

    assert result.exit_code == 2
    assert "NAMESPACE/NAME:PORT" in result.stderr
    (named,) = re.findall(r"partage-system/(partage[\w-]*:\w+)", result.stderr)
    made = (ROOT / "deploy/kustomize/default/partage.yaml").read_text(encoding="utf-8")
    assert named in {
        f"{one['metadata']['name']}:{port['name']}"
        for one in yaml.safe_load_all(made)
        if one and one["kind"] == "Service"
        for port in one["spec"]["ports"]
        if port.get("targetPort") == "read"
    }


def test_top_sums_up_and_lists_who_waits() -> None:
    """Cards by use, amounts, nodes, and each pending pod with its reason."""
    result = ask("top", "-f", MIXED)

    assert result.exit_code == 0
    assert "6 idle, 1 shared, 0 whole, 2 closed" in result.stdout
    assert "40Gi of 500Gi" in result.stdout
    assert "waiting/on-broken-a10  Unhealthy" in result.stdout


@pytest.mark.parametrize("what", ["nodes", "pods", "cards", "node", "pod", "card"])
@pytest.mark.parametrize("output", ["table", "wide", "json"])
def test_top_tells_of_each_kind(what: str, output: str) -> None:
    """Nodes, pods and cards, in one number or the other, in each form."""
    result = ask("top", what, "-f", MIXED, "-o", output)

    assert result.exit_code == 0
    assert "a100-node" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("command", [("top", "nodes"), ("inspect",)])
def test_each_model_of_a_node_is_named(command: tuple[str, ...]) -> None:
    """Each model is named once, in the order of the cards: two A100s and an H100."""
    result = ask(*command, "-f", str(Path(MIXED).parent / "claims"))

    assert "A100-SXM4-40GB, H100-80GB-HBM3" in result.stdout


def test_inspect_shows_who_is_on_a_card() -> None:
    """A card has its pods with their parts below it; closed cards say why."""
    result = ask("inspect", "-f", MIXED)

    assert result.exit_code == 0
    assert "team-vision/already-running  share (koordinator)" in result.stdout
    assert "Unhealthy (uncorrectable ECC error)" in result.stdout


@pytest.mark.parametrize(
    ("typed", "same"),
    [
        ("explain pod waiting/too-big-for-t4", "explain waiting/too-big-for-t4"),
        ("explain po waiting/too-big-for-t4", "explain waiting/too-big-for-t4"),
        ("inspect node a100-node", "inspect a100-node"),
        ("top po", "top pods"),
        ("top no", "top nodes"),
        ("top pods -A", "top pods"),
    ],
)
def test_what_is_typed_for_kubectl_is_understood(typed: str, same: str) -> None:
    """A kind before the name, its short forms, and -A."""
    results = [ask(*words.split(), "-f", MIXED) for words in (typed, same)]

    assert results[0].stdout == results[1].stdout != ""
    assert results[0].exit_code == results[1].exit_code


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("explain deploy/web", "deploy web is no pod; name one of those that it makes"),
        ("explain jobs/train", "jobs train is no pod"),
        ("top pods -A -n x", "-A and -n exclude each other"),
        ("help", "Did you mean partage --help?"),
        ("version", "Did you mean partage --version?"),
    ],
)
def test_what_kubectl_has_and_this_has_not_is_answered(typed: str, says: str) -> None:
    """The message says what to do instead."""
    words = typed.split()
    result = ask(*words, *(("-f", MIXED) if len(words) > 1 else ()))

    assert result.exit_code != 0
    assert says in result.stderr


def test_claims_are_shown_of_nodes_that_the_pod_may_use() -> None:
    """Claims that hold cards on other nodes do not matter to a pod that may use one node only."""
    result = ask("explain", "waiting/on-broken-a10", "-f", str(Path(MIXED).parent))

    assert result.exit_code == 3
    assert "claims-node" in result.stdout
    assert "CLAIM" not in result.stdout


def test_cards_of_a_pod_are_told_as_schedule_tells_them() -> None:
    """Numbers of one type together."""
    dump = json.loads(ask("schedule", MIXED, "-o", "json").stdout)
    table = ask("schedule", MIXED).stdout

    pair = next(one for one in dump["pods"] if one["name"] == "qgpu-pair")
    assert [f"{one['type']} {one['minor']}" for one in pair["allocations"]] == ["gpu 0", "gpu 1"]
    assert "gpu 0,1" in table
    assert _short_cards(["gpu 0", "gpu 1"]) == "gpu 0,1"
    assert _short_cards(["gpu 3", "rdma 0", "rdma 1"]) == "gpu 3, rdma 0,1"
    assert _short_cards([f"gpu {n}" for n in range(8)]) == "8 cards"


def test_an_empty_list_says_that_it_is() -> None:
    """The output is more than a heading."""
    assert ask("top", "pods", "-n", "nope", "-f", MIXED).stdout == "no pod with devices there\n"


def test_inspect_of_all_nodes_has_a_line_for_idle_cards() -> None:
    """Each card of one node, and each of all where more is asked for; a node that is idle is one line."""
    brief, wide = (
        ask("inspect", "-f", MIXED).stdout,
        ask("inspect", "-f", MIXED, "-o", "wide").stdout,
    )
    one = ask("inspect", "a100-node", "-f", MIXED).stdout
    documents = json.loads(ask("inspect", "-f", MIXED, "-o", "json").stdout)["nodes"]

    assert re.search(r"^3 x gpu +idle$", brief, re.MULTILINE)
    assert "t4-node  Tesla-T4  ok  idle: 2 x gpu\n" in brief
    assert "gpu 3" not in brief
    assert "gpu 3" in one
    assert wide.count("gpu ") == sum(len(node["cards"]) for node in documents) == 9


def test_sums_are_those_of_the_cards() -> None:
    """The overview, made of columns, says what adding up card by card comes to."""
    examples = str(Path(MIXED).parent)
    found = json.loads(ask("top", "-f", examples, "-o", "json").stdout)
    cards = [card for node in found["nodes"] for card in node["cards"] if card["type"] == "gpu"]
    seen = found["overview"]

    for key in ("core_milli", "memory_bytes", "slots"):
        for part in ("total", "used"):
            assert seen[key][part] == sum(card[key][part] for card in cards)
            assert seen[key][part] == sum(model[key][part] for model in seen["models"])
    assert seen["cards"]["total"] == len(cards) > 10
    assert seen["cards"]["closed"] == sum(card["closed"] is not None for card in cards) > 0
    assert seen["cards"]["idle"] == sum(not c["tenants"] and not c["closed"] for c in cards) > 0


def test_a_closed_card_that_pods_use_is_counted_once(tmp_path: Path) -> None:
    """A record names a card that is gone, so the node's other card is closed, with a whole pod on it."""
    node = str(ROOT / "examples/koordinator/host04.yaml")
    amounts = {"gpu-core": "100", "gpu-memory": "16Gi", "gpu-memory-ratio": "100"}
    held = {f"kubernetes.io/{name}": amount for name, amount in amounts.items()}
    records = [{"gpu": [{"minor": minor, "resources": held}]} for minor in (0, 7)]
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"pod-{number}",
                "annotations": {names.DEVICE_ALLOCATED: json.dumps(record)},
            },
            "spec": {
                "nodeName": "host04",
                "containers": [
                    {
                        "name": "c",
                        "image": "i",
                        "resources": {"limits": {"kubernetes.io/gpu": 100}},
                    }
                ],
            },
        }
        for number, record in enumerate(records)
    ]
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all(pods))

    said = ask("top", "-f", node, "-f", str(file))

    assert "cards                2: 0 idle, 0 shared, 0 whole, 2 closed\n" in said.stdout
    assert "1 of 2 cards" in said.stdout


@pytest.mark.parametrize("amount", [{"nvidia.com/gpu": 0}, {"koordinator.sh/gpu": 0}])
def test_a_pod_that_asks_for_0_is_one_without_devices(
    tmp_path: Path, amount: dict[str, int]
) -> None:
    """Charts write `nvidia.com/gpu: 0`: no command counts the pod, or tells where its devices would go."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "none"},
        "spec": {
            "nodeName": "host04",
            "containers": [{"name": "c", "image": "i", "resources": {"limits": amount}}],
        },
    }
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod))
    given = ("-f", str(ROOT / "examples/koordinator/host04.yaml"), "-f", str(file))

    explained = ask("explain", "none", *given)
    (node,) = json.loads(ask("top", "nodes", *given, "-o", "json").stdout)["nodes"]

    assert explained.exit_code == 4
    assert "asks for no device" in explained.stderr
    assert node["pods"] == 0


@pytest.mark.parametrize(("order", "sign"), [("used", -1), ("free", 1)])
def test_nodes_come_by_what_is_used(order: str, sign: int) -> None:
    """The larger part of compute and memory decides, nodes without devices count as unused."""
    examples = str(Path(MIXED).parent)
    nodes = json.loads(ask("top", "nodes", "-f", examples, "--sort", order, "-o", "json").stdout)

    parts = [
        max(n[key]["used"] / (n[key]["total"] or 1) for key in ("core_milli", "memory_bytes"))
        for n in nodes["nodes"]
    ]
    assert parts == sorted(parts, key=lambda part: sign * part)
    assert max(parts) > 0


def test_a_card_that_two_nodes_claim_is_closed_by_every_command(tmp_path: Path) -> None:
    """`schedule`, `explain` and `top` say the same of the same manifests."""
    path = tmp_path / "twins.yaml"
    mixed = (
        Path(MIXED, "nodes.yaml").read_text() + "\n---\n" + Path(MIXED, "pods.yaml").read_text()
    )
    copies = [one for one in yaml.safe_load_all(mixed) if one]
    twins = [copy.deepcopy(one) for one in copies if one["metadata"]["name"] == "a100-node"]
    assert twins
    for one in twins:
        one["metadata"]["name"] = "twin"
    path.write_text(yaml.safe_dump_all([*copies, *twins]))

    scheduled = json.loads(ask("schedule", str(path), "-o", "json").stdout)["pods"]

    reasons = {f"{one['namespace']}/{one['name']}": one["reason"] for one in scheduled}
    assert "Unhealthy" in {reason["code"] for reason in reasons.values() if reason}
    for key, reason in reasons.items():
        explained = ask("explain", key, "-f", str(path), "-o", "json")
        said = json.loads(explained.stdout)["reason"]
        assert (said and said["message"]) == (reason and reason["message"]), key
    cards = ask("top", "cards", "-f", str(path))
    assert "uuid is also on node twin" in cards.stdout
    assert "is on nodes a100-node, twin; these cards are closed" in cards.stderr


def test_compute_of_several_cards_is_told_in_cards() -> None:
    """The output is not 150 % of 400 %, which says neither how much nor of how many."""
    said = ask("top", "-f", MIXED).stdout

    assert "6%: 0.5 of 9 cards" in said
    assert [core_text(milli) for milli in (500, 1000, 1200)] == ["50%", "100%", "1.2 cards"]
    assert "0.5 of 4 cards" in said
    assert "0 of 1 card " in said
    assert "50%" in ask("top", "cards", "-f", MIXED).stdout.split()


def test_a_pod_that_only_waits_for_its_turn_gets_a_line_of_its_own() -> None:
    """The line is then folded on a narrow terminal, as all reasons are."""
    answer = ask("top", "-f", MIXED)
    lines = answer.stdout.splitlines()

    assert lines[lines.index("team-vision/metax-third") + 1] == "    there is room for it"
    assert "judged alone, beside running pods; partage schedule places them" in answer.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_is_shown_again_and_again_until_a_signal(number: int) -> None:
    """It uses a terminal's other screen and leaves it in the end, with exit code 0."""
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "partage.cli.main",
        "top",
        "--watch",
        "--interval",
        "0.5",
        "-f",
        MIXED,
    ]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    ) as program:
        os.close(theirs)
        seen = b""
        while seen.count(b"a100-node") < 3:
            seen += os.read(ours, 65536)
        program.send_signal(number)
        while b"\x1b[?1049l" not in seen:
            seen += os.read(ours, 65536)
        assert program.wait(240) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in seen


@pytest.mark.parametrize("more", [[], ["-o", "json"]])
def test_watching_needs_a_terminal_and_a_table(more: list[str]) -> None:
    """One line says what to do instead."""
    result = ask("top", "--watch", "-f", MIXED, *more)

    assert result.exit_code == 2
    assert "leave" in result.stderr


NODE = {
    "name": "n0",
    "cards": [],
    "model": "",
    "vendor": "",
    "slots": {"used": 0, "total": 0},
    "pods": 0,
    "state": "ok",
    "core_milli": {"used": 0, "total": 0},
    "memory_bytes": {"used": 0, "total": 0},
}
CARD = {
    "type": "gpu",
    "minor": 0,
    "model": "A10",
    "core_milli": {"used": 0, "total": 1000},
    "memory_bytes": {"used": 0, "total": 2**30},
    "slots": {"used": 0, "total": 1},
    "mig": [],
    "foreign": [],
    "tenants": [],
    "closed": None,
    "closed_detail": "",
}
SERVED = {
    "/api/overview": {
        "cards": {"idle": 0, "shared": 0, "whole": 0, "closed": 0, "total": 0},
        "policy": "partage",
        "pods": {"placed": 0, "waiting": 0},
        "core_milli": NODE["core_milli"],
        "memory_bytes": NODE["core_milli"],
    },
    "/api/nodes": {"total": 5000, "offset": 0, "nodes": [NODE | {"devices": {}}] * 20},
    "/api/pods": {"total": 0, "offset": 0, "pods": []},
}


@contextlib.contextmanager
def service(answer: Callable[[str], dict[str, Any] | None]) -> Iterator[str]:
    """The URL of a service that gives these answers to paths; 400 where there is none."""

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server's own name
            found = answer(self.path)
            text = json.dumps(found).encode()
            self.send_response(400 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_told: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_brief_asks_the_service_for_what_it_shows() -> None:
    """One page of twenty nodes out of 5,000; the total is printed beside the page."""
    asked: list[str] = []

    def answer(path: str) -> dict[str, Any]:
        asked.append(path)
        return SERVED[path.partition("?")[0]]

    with service(answer) as url:
        result = ask("top", "--scheduler", url)

    assert result.exit_code == 0
    assert "and 4980 nodes more: partage top nodes" in result.stdout
    assert len(asked) == 3
    assert sum("limit=20" in path for path in asked) == 2
    assert sum("cards=no" in path for path in asked) == 1


def test_a_pod_that_kube_scheduler_keeps_waits_in_its_words() -> None:
    """Whether the devices of a pod that Partage has not refused are free is not known here."""
    words = "0/1 nodes are available: 1 node(s) had untolerated taint."
    common = {"namespace": "default", "code": None, "message": None}
    pods = [
        common | {"name": "kept", "kube_scheduler": words},
        common | {"name": "new", "kube_scheduler": None},
        common | {"name": "of-the-release-before"},
    ]
    served = SERVED | {"/api/pods": {"total": 3, "offset": 0, "pods": pods}}

    with service(lambda path: served[path.partition("?")[0]]) as url:
        lines = ask("top", "--scheduler", url).stdout.splitlines()

    unsaid = "    kube-scheduler has given no reason: it has not tried the pod yet, or another scheduler has it"
    assert lines[lines.index("default/kept") + 1] == f"    kube-scheduler: {words}"
    assert lines[lines.index("default/new") + 1] == unsaid
    assert lines[lines.index("default/of-the-release-before") + 1] == unsaid


@pytest.mark.parametrize("words", [("top", "cards"), ("inspect",)], ids=" ".join)
def test_every_page_is_asked_for_once_and_comes_in_order(words: tuple[str, ...]) -> None:
    """One page is on its way while another is read; a service that gives short pages is asked for more of them."""
    asked: list[str] = []

    def answer(path: str) -> dict[str, Any]:
        asked.append(path)
        at = int(next(iter(re.findall(r"offset=(\d+)", path)), "0"))
        nodes = [NODE | {"name": f"n{n}", "cards": [CARD]} for n in range(at, min(at + 3, 8))]
        return {"total": 8, "offset": at, "nodes": nodes}

    with service(answer) as url:
        result = ask(*words, "--scheduler", url)

    assert result.exit_code == 0, result.output
    assert re.findall(r"^n\d", result.stdout, re.MULTILINE) == [f"n{n}" for n in range(8)]
    assert len(asked) == 3


@pytest.mark.parametrize("output", ["table", "wide"])
@pytest.mark.parametrize("words", [("top",), ("top", "nodes")], ids=" ".join)
def test_a_service_of_the_release_before_is_asked_for_what_it_knows(
    words: tuple[str, ...], output: str
) -> None:
    """During an upgrade an older service refuses `cards`, and gives no numbers of devices."""
    cards = [{"type": "gpu"}, {"type": "gpu"}, {"type": "rdma"}]
    before = {"total": 1, "offset": 0, "nodes": [NODE | {"cards": cards, "vendor": "nvidia"}]}

    def answer(path: str) -> dict[str, Any] | None:
        if "cards=" in path:
            return None
        return before if "/api/nodes" in path else SERVED[path.partition("?")[0]]

    with service(answer) as url:
        result = ask(*words, "--scheduler", url, "-o", output)

    assert result.exit_code == 0, result.output
    assert "2 x nvidia" in result.stdout


def test_large_tables_are_printed_as_small_ones() -> None:
    """Without folding, rows come out straight: aligned, cells of any width, styles on a terminal only."""
    with paper() as console:
        table = PlainTable("NODE", "STATE")
        table.add_row("a", Styled("ok", "green"))
        table.add_row("日本", Styled("1", "red", " closed"))
        console.print(table)
        lines = list(console.render_lines(table))

    texts = ["".join(piece.text for piece in line).rstrip() for line in lines]
    assert texts[:3] == ["NODE  STATE", "a     ok", "日本  1 closed"]


def test_a_terminal_gets_the_colours_and_no_command_of_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is drawn straight is coloured, and what a name would command is made visible."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with paper() as console:
        table = PlainTable("NODE", "STATE")
        table.add_row("n\x1b[2J", Styled("ok", "green", "\x07"))
        line = Line(Styled("n\x1b[2J", "bold"), "  \x07")
        console.print(table)
        pieces = "".join(piece.text for one in (table, line) for piece in console.render(one))

    head, row, own = pieces.splitlines()
    assert own == "\x1b[1mn\\x1b[2J\x1b[0m  \\x07"
    assert head.startswith("\x1b[1mNODE\x1b[0m")
    assert row == "n\\x1b[2J  \x1b[32mok\x1b[0m\\x07"


@pytest.mark.parametrize(
    ("command", "without"),
    [
        ("main", ["asyncio", "rich", "yaml"]),
        ("schedule", ["asyncio"]),
        ("explain", ["numpy", "partage.model.device", "partage.vendors.families", "yaml"]),
        ("inspect", ["numpy", "partage.model.device", "partage.vendors.families", "yaml"]),
        ("top", ["numpy", "partage.model.device", "partage.vendors.families", "yaml"]),
        ("snapshot", ["numpy"]),
        ("scheduler", ["cryptography", "grpc", "partage.agent", "rich"]),
        ("agent", ["cryptography", "grpc", "numpy", "rich"]),
        ("webhook", ["grpc", "numpy", "partage.agent", "rich"]),
        ("up", ["cryptography", "grpc"]),
    ],
)
def test_a_command_starts_without_modules_that_it_seldom_needs(
    command: str, without: list[str]
) -> None:
    """The arrays of the books take longer to load than an answer takes to arrive; most services serve without TLS."""
    code = f"import sys, partage.cli.{command}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    loaded = set(ran.stdout.split())
    assert f"partage.cli.{command}" in loaded
    assert loaded.isdisjoint(without)


def _shared_node(tmp_path: Path) -> str:
    """A card whose parts are of three protocols, some without compute; the last pod finds none left."""
    card = f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}"
    register = f"{card},10,40960,100,NVIDIA A100,0,true:"
    parts = {
        "k": {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory": "1Gi"},
        "h": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"},
        "q": {"tke.cloud.tencent.com/qgpu-core": "10", "tke.cloud.tencent.com/qgpu-memory": "1"},
    }
    rest = {"koordinator.sh/gpu-core": "70", "koordinator.sh/gpu-memory": "1Gi"}

    def pod(name: str, **containers: dict[str, str]) -> dict[str, Any]:
        made = [{"name": c, "resources": {"limits": asked}} for c, asked in containers.items()]
        return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": made}}

    def bound(name: str, **grants: tuple[str, int]) -> dict[str, Any]:
        given: dict[str, Any] = {"type": "gpu", "minor": 0, "uuid": card, "bytes": 2**30}
        containers = [
            {
                "name": c,
                "phase": "main",
                "devices": [{**given, "mode": "share", "protocol": p, "milli": milli}],
            }
            for c, (p, milli) in grants.items()
        ]
        record = {"v": 1, "uid": name, "node": "n", "containers": containers}
        made = pod(name, **{c: parts[c] for c in grants})
        made["metadata"] |= {
            "uid": name,
            "annotations": {"partage.io/allocation": json.dumps(record)},
        }
        made["spec"]["nodeName"] = "n"
        return made

    node = {
        "kind": "Node",
        "metadata": {"name": "n", "annotations": {"hami.io/node-nvidia-register": register}},
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}},
    }
    file = tmp_path / "shared.yaml"
    documents = [
        node,
        bound("bound", k=("koordinator", 100), h=("hami", 0)),
        bound("free", h=("hami", 0)),
        pod("three", **parts),
        pod("rest", c=rest),
        pod("late", c=parts["h"]),
    ]
    file.write_text(yaml.safe_dump_all([{"apiVersion": "v1", **one} for one in documents]))
    return str(file)


def test_a_pod_of_several_protocols_has_all_of_them_on_its_card(tmp_path: Path) -> None:
    """Each command shows all of them, and no percent for a part without compute of its own."""
    file = _shared_node(tmp_path)

    told = ask("explain", "three", "-f", file)
    assert re.search(r"gpu 0 +h +- +1Gi +share", told.stdout), told.stdout
    seen = ask("inspect", "-f", file)
    assert re.search(r"10% +2Gi +default/bound +share \(hami, koordinator\)", seen.stdout)
    assert re.search(r" - +1Gi +default/free +share \(hami\)", seen.stdout)


def test_no_compute_is_asked_and_none_is_left(tmp_path: Path) -> None:
    """The line has numbers, and the advice does not say to ask for a smaller part: less than none does not help."""
    told = ask("explain", "late", "-f", _shared_node(tmp_path))

    assert told.exit_code == 3
    assert "1 insufficient gpu-core (none asked, and none left on n card 0)" in told.stdout
    assert "try: wait until a pod ends: a card whose compute is fully allocated" in told.stdout


def test_settings_that_are_refused_are_told(tmp_path: Path) -> None:
    """The service keeps the earlier settings, so that cards may be cut there and be closed in this answer."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hami-device-plugin", "namespace": "kube-system"},
        "data": {"config.json": '{"nodeconfig": [{"name": "n", "operatingmode": "mgi"}]}'},
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))

    result = ask("inspect", "-f", _shared_node(tmp_path), "-f", str(file))

    assert (
        "'mgi' is not one of hami-core, mig, either; this answer uses the defaults"
        in result.stderr
    )


def test_settings_of_tenants_are_told() -> None:
    """Only the service knows which namespaces it reads."""

    def settings(namespace: str, name: str) -> dict[str, Any]:
        head = {"namespace": namespace, "name": name}
        return {"kind": "ConfigMap", "metadata": head, "data": {"policy": "spread"}}

    def told(*manifests: dict[str, Any]) -> list[str]:
        text = yaml.safe_dump_all([{"apiVersion": "v1", **one} for one in manifests])
        return settings_of_several(decode("text", text.encode()).documents)

    ours = settings("partage-system", "partage-config")
    assert told(ours, settings("ml", "theirs")) == []
    (note,) = told(ours, *(settings(f"team-{n}", "partage-config") for n in range(5)))
    assert "in partage-system, team-0, team-1 and 3 more are" in note
