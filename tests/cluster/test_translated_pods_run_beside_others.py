"""Pods of three protocols by claims, on the cards of pods by protocol: genuine API server, schedulers, controllers, kubelet.

The namespace `default` has the label, `plain` has not. The agent's cards are made up, as in the file of its simulated
backend. A pod's claims are allocated by the second kube-scheduler, by the chart's rights.
"""

import os
import random
import shutil
import tempfile
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stack as partage_stack
from genuine_node import (
    LAYOUT,
    NEEDS,
    SLOW,
    Node,
    added,
    complete,
    container,
    environment,
    granted,
    pod,
    running,
)
from stack import MERGE, Stack, eventually

from partage.vendors import names

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
PODS = "/api/v1/namespaces/{0}/pods"
TRANSLATING = replace(
    LAYOUT,
    options=(
        *LAYOUT.options,
        "--set",
        "agent.dra.enabled=true,scheduler.claims=true,scheduler.claimTemplates=true",
    ),
)
ASKED = {
    "qgpu": {names.QGPU_CORE: "20", names.QGPU_MEMORY: "4"},
    "hami": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "25"},
    "open": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"},
    "koord": {names.KOORD_GPU_CORE: "30", names.KOORD_GPU_MEMORY_RATIO: "25"},
}
GETS = {
    "qgpu": ("20", "4Gi", "4096m", "20"),
    "hami": ("25", "3000Mi", "3000m", "25"),
    "open": ("0", "1000Mi", "1000m", "100"),
    "koord": ("30", "4Gi", "4096m", "30"),
}
"""Of each pod what its claim consumes, and the limits of its container; without compute of its own it has none."""
MANY = int(os.environ.get("PARTAGE_TRANSLATED_PODS", "60"))
"""Pods that come and go while the webhook is killed; outside the gate 10000."""
pytestmark = NEEDS


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node of two cards of 16 GiB; its sockets need short paths."""
    folder = Path(tempfile.mkdtemp(prefix="ptt"))
    try:
        with (
            partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=TRANSLATING) as stack,
            ExitStack() as cleanup,
        ):
            made = added("cuda", "2.1", stack, folder, cleanup)
            (folder / "cuda/nri.sock").symlink_to(made.runtime.nri)
            made.start_agent(
                "--nri-socket",
                str(folder / "cuda/nri.sock"),
                "--dra-kubelet-dir",
                str(made.kubelet.folder),
                "--cdi-dir",
                str(made.runtime.folder / "cdi"),
            )
            complete(made)
            eventually("slices are there", lambda: shares(stack), SLOW)
            plain = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "plain"}}
            stack.plane.call("POST", "/api/v1/namespaces", plain)
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def afterwards(cuda: Node) -> Iterator[None]:
    """Leave the cluster without pods, claims, templates and label."""
    yield
    labelled(cuda.stack, None)
    emptied(cuda.stack)
    cuda.stack.plane.call("DELETE", TEMPLATES)


def shares(stack: Stack) -> dict[str, dict[str, Any]]:
    """Cards in the node's slices, by name."""
    return {
        one["name"]: one
        for part in stack.plane.call("GET", f"{API}/resourceslices")["items"]
        for one in part["spec"].get("devices", [])
    }


def labelled(stack: Stack, value: str | None) -> None:
    """Set the label of the namespace, or remove it."""
    body = {"metadata": {"labels": {names.CLAIMS_LABEL: value}}}
    stack.plane.call("PATCH", "/api/v1/namespaces/default", body, kind=MERGE)


def listed(stack: Stack, path: str) -> list[dict[str, Any]]:
    """Objects of a collection."""
    found: list[dict[str, Any]] = stack.plane.call("GET", path)["items"]
    return found


def results(stack: Stack, name: str) -> list[dict[str, Any]]:
    """Devices of the one claim of a pod."""
    (status,) = stack.pod(name)["status"]["resourceClaimStatuses"]
    claim = stack.plane.call("GET", f"{CLAIMS}/{status['resourceClaimName']}")
    found: list[dict[str, Any]] = claim["status"]["allocation"]["devices"]["results"]
    return found


def test_pods_of_three_protocols_run_by_claims_and_go_back(cuda: Node) -> None:
    """Translated, run, beside pods by protocol; then the label goes, and templates and claims with their pods."""
    stack = cuda.stack
    labelled(stack, names.CLAIMS_TRANSLATE)
    plain = pod("plain", container("main", {**ASKED["hami"], "nvidia.com/gpumem": "2000"}))
    plain["metadata"]["namespace"] = "plain"
    stack.create(plain)
    for name, limits in ASKED.items():
        stack.create(pod(name, container("main", limits)))
    twin = pod("twin", container("other", ASKED["qgpu"]))
    stack.create(twin)
    first = pod("first", container("main", ASKED["hami"]))
    first["spec"]["initContainers"] = [container("init", ASKED["hami"], "true")]
    stack.create(first)

    used: dict[str, int] = {}
    for name in (*ASKED, "twin"):
        found = running(stack, name)
        assert names.ALLOCATION not in found["metadata"]["annotations"]
        assert names.TRANSLATED in found["metadata"]["annotations"]
        (result,) = results(stack, name)
        cores, memory, limit, percent = GETS["qgpu" if name == "twin" else name]
        assert {"cores": cores, "memory": memory}.items() <= result["consumedCapacity"].items()
        seen = environment(cuda, found, "other" if name == "twin" else "main")
        assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == limit
        assert seen["CUDA_DEVICE_SM_LIMIT"] == percent
        used[result["device"]] = used.get(result["device"], 0) + int(cores)
    beside = granted(
        eventually("the other runs", lambda: ran(stack, "plain", "plain"), SLOW), "main"
    )
    used[f"gpu-{beside.minor}"] = used.get(f"gpu-{beside.minor}", 0) + beside.core_milli // 10
    kept = running(stack, "first")
    assert "init container" in kept["metadata"]["annotations"][names.NOT_TRANSLATED]
    mine = granted(kept, "main")
    used[f"gpu-{mine.minor}"] = used.get(f"gpu-{mine.minor}", 0) + mine.core_milli // 10
    assert all(cores <= 100 for cores in used.values()), used

    found = listed(stack, TEMPLATES)
    assert len(found) == len(ASKED)  # twins share one
    owners = {owner["kind"] for one in found for owner in one["metadata"]["ownerReferences"]}
    assert owners == {"DeviceClass"}
    assert not listed(stack, f"{API}/namespaces/plain/resourceclaimtemplates")

    labelled(stack, None)
    stack.create(pod("back", container("main", ASKED["qgpu"])))
    assert granted(running(stack, "back"), "main").memory_bytes == 4 * 2**30
    before = {name: stack.pod(name) for name in (*ASKED, "twin")}
    assert all(one["status"]["phase"] == "Running" for one in before.values())
    assert len(listed(stack, TEMPLATES)) == len(ASKED)

    stack.delete("qgpu")
    eventually("its claim goes with it", lambda: len(listed(stack, CLAIMS)) == len(ASKED), SLOW)
    assert before["twin"]["metadata"]["uid"] == stack.pod("twin")["metadata"]["uid"]
    emptied(stack)
    eventually("all templates are gone", lambda: not listed(stack, TEMPLATES), SLOW)


def emptied(stack: Stack) -> None:
    """Delete all pods; their claims go with them."""
    for space in ("default", "plain"):
        stack.plane.call("DELETE", f"{PODS.format(space)}?gracePeriodSeconds=1")
    eventually("all claims are gone", lambda: not listed(stack, CLAIMS), SLOW)


def ran(stack: Stack, name: str, namespace: str) -> Any:
    """A pod of a namespace, once it runs."""
    found = stack.pod(name, namespace)
    return found if found["status"].get("phase") == "Running" else None


def test_a_whole_card_waits_for_an_idle_one(cuda: Node) -> None:
    """Its claim takes both cards of the node only when no pod has a part of one, by protocol or by claim."""
    stack = cuda.stack
    plain = pod("small", container("main", ASKED["open"]))
    plain["metadata"]["namespace"] = "plain"
    stack.create(plain)
    eventually("it runs", lambda: ran(stack, "small", "plain"), SLOW)
    labelled(stack, names.CLAIMS_TRANSLATE)
    stack.create(pod("both", container("main", {"nvidia.com/gpu": "2"})))

    def waits() -> str:
        conditions = stack.pod("both")["status"].get("conditions", [])
        return next((one.get("message", "") for one in conditions if one["status"] == "False"), "")

    eventually("it waits for its claim", lambda: "cannot allocate all claims" in waits(), SLOW)
    stack.plane.call("DELETE", f"{PODS.format('plain')}/small?gracePeriodSeconds=1")
    seen = environment(cuda, running(stack, "both"), "main")
    assert set(seen["NVIDIA_VISIBLE_DEVICES"].split(",")) == set(cuda.cards())
    assert {one["device"] for one in results(stack, "both")} == {"gpu-0", "gpu-1"}


def test_nothing_is_left_of_many_pods_whose_webhook_is_killed(cuda: Node) -> None:
    """The process is killed again and again while pods come and go; no template and no claim remains.

    The pods fit no node: Kubernetes makes their claims nevertheless. No pod is let in while the webhook is dead.
    """
    stack, chance = cuda.stack, random.Random(MANY)  # noqa: S311 # repeatable
    webhook = stack.plane.processes["webhook"]
    labelled(stack, names.CLAIMS_TRANSLATE)
    there: list[str] = []
    made = most = 0

    def one_more() -> bool:
        limits = chance.choice([*ASKED.values()])
        manifest = pod(f"many-{made}", container("main", limits), nodeSelector={"no": "node"})
        try:
            found = stack.create(manifest)
        except urllib.error.HTTPError as error:
            if error.code != 500:
                raise
            return False
        assert found["spec"]["resourceClaims"]
        return True

    while made < MANY:
        if made % max(MANY // 10, 25) == 0:
            webhook.kill()
            assert not one_more()
            webhook.start()
        eventually("the webhook takes a pod", one_more, SLOW)
        there.append(f"many-{made}")
        made += 1
        while len(there) > 20 or (there and chance.random() < 0.4):
            stack.delete(there.pop(chance.randrange(len(there))))
        if made % 20 == 0:
            most = max(most, len(listed(stack, TEMPLATES)))
    assert 0 < most <= len(ASKED)

    emptied(stack)
    eventually("all templates are gone", lambda: not listed(stack, TEMPLATES), SLOW)
