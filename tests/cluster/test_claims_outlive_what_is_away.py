"""ResourceClaims on a genuine node while a part of Partage is away, and when Partage goes for good.

The last test uninstalls the chart: it must stay the last one.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import kubelet
import pytest
import stack as partage_stack
from chart import helm
from genuine_node import (
    LAYOUT,
    SLOW,
    Node,
    by_dra,
    container,
    containerd,
    pod,
    running,
    slices,
)
from stack import RELEASE, Stack, eventually

from partage.vendors.names import DRA_DRIVER

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
THEIRS = "gpu.example.com"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
DRA = replace(
    LAYOUT, options=(*LAYOUT.options, "--set", "agent.dra.enabled=true,scheduler.claims=true")
)
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(containerd.missing() or kubelet.missing()),
        reason=containerd.missing() or kubelet.missing() or "never",
    ),
]


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node of two cards whose agent offers them to claims; its sockets need short paths."""
    folder = Path(tempfile.mkdtemp(prefix="ptg"))
    try:
        with (
            partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=DRA) as stack,
            ExitStack() as cleanup,
        ):
            yield by_dra(stack, folder, cleanup)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def claimed(stack: Stack, name: str, device_class: str, **exactly: Any) -> None:
    """A claim of one device, and a pod with it."""
    request = {"name": "card", "exactly": {"deviceClassName": device_class, **exactly}}
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
    stack.plane.call("POST", CLAIMS, body)
    main = container("main", {})
    main["resources"] = {"claims": [{"name": "card"}]}
    stack.create(pod(name, main, resourceClaims=[{"name": "card", "resourceClaimName": name}]))


def ours(stack: Stack, name: str) -> None:
    """A claim of a share of a card, and its pod."""
    share = {"capacity": {"requests": {"cores": "10", "memory": "1Gi"}}}
    claimed(stack, name, "share.gpu.partage.io", **share)


def allocated(stack: Stack, name: str) -> bool:
    """Whether a claim's allocation is stored."""
    return "allocation" in stack.plane.call("GET", f"{CLAIMS}/{name}").get("status", {})


def refusals(stack: Stack, name: str) -> list[str]:
    """What a pod's events say of our webhook."""
    return [one["message"] for one in stack.events(name) if "claims.partage.io" in one["message"]]


@contextmanager
def another_driver(stack: Stack, node: str) -> Iterator[None]:
    """A slice and a class of a driver that is not ours."""
    offered = {
        "metadata": {"name": "theirs"},
        "spec": {
            "driver": THEIRS,
            "nodeName": node,
            "devices": [{"name": "one"}],
            "pool": {"name": "theirs", "generation": 1, "resourceSliceCount": 1},
        },
    }
    named = {
        "metadata": {"name": THEIRS},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{THEIRS}'"}}]},
    }
    for plural, body in (("resourceslices", offered), ("deviceclasses", named)):
        stack.plane.call("POST", f"{API}/{plural}", body)
    try:
        yield
    finally:
        for path in ("resourceslices/theirs", f"deviceclasses/{THEIRS}"):
            stack.plane.call("DELETE", f"{API}/{path}")


def emptied(stack: Stack) -> None:
    """Leave no pod and no claim."""
    pods = "/api/v1/namespaces/default/pods"
    for path in (pods, CLAIMS):
        stack.plane.call("DELETE", f"{path}?gracePeriodSeconds=1")
        eventually(
            "all are gone", lambda path=path: not stack.plane.call("GET", path)["items"], SLOW
        )


def test_with_the_webhook_dead_claims_of_ours_wait_and_no_others(cuda: Node) -> None:
    """The API server itself knows whose claim it is; ours are refused with a sentence, and come when it is back."""
    stack = cuda.stack
    webhook = stack.plane.processes["webhook"]
    with another_driver(stack, "cuda"):
        webhook.kill()
        try:
            ours(stack, "ours")
            claimed(stack, "theirs", THEIRS)
            eventually(
                "theirs is bound", lambda: stack.pod("theirs")["spec"].get("nodeName"), SLOW
            )
            assert allocated(stack, "theirs")
            told = eventually("ours is refused", lambda: refusals(stack, "ours"), SLOW)
            assert "failed calling webhook" in told[0]
            assert not allocated(stack, "ours")
            assert not stack.pod("ours")["spec"].get("nodeName")
        finally:
            webhook.start()
        running(stack, "ours")
        stack.plane.call("DELETE", "/api/v1/namespaces/default/pods/theirs?gracePeriodSeconds=0")
        emptied(stack)


def test_a_pod_with_a_claim_cannot_end_without_its_driver(cuda: Node) -> None:
    """Why pods with claims go before the chart does: it is kept until the driver is back, or taken away by force."""
    stack = cuda.stack
    names = ("kept", "forced")
    for name in names:
        ours(stack, name)
    before = {name: state(running(stack, name)) for name in names}
    cuda.agent.stop()
    try:
        eventually("slices are gone", lambda: not slices(stack), SLOW)
        assert {name: state(running(stack, name)) for name in names} == before
        for name in names:
            stack.delete(name)
        told = f"unprepare dynamic resources: DRA driver {DRA_DRIVER} is not registered"
        log = cuda.kubelet_process.log
        eventually("the kubelet misses the driver", lambda: told in log.read_text(), SLOW)
        for name in names:
            ended = partial(lambda one: "terminated" in state(stack.pod(one)), name)
            eventually("its container has ended all the same", ended, SLOW)
            assert allocated(stack, name)
        stack.plane.call("DELETE", "/api/v1/namespaces/default/pods/forced?gracePeriodSeconds=0")
        eventually("it is gone", lambda: stack.pod("forced") is None, SLOW)
        eventually("its claim is free", lambda: not allocated(stack, "forced"), SLOW)
        assert stack.pod("kept") is not None
    finally:
        cuda.agent.start()
    eventually("the other one ends", lambda: stack.pod("kept") is None, SLOW)
    emptied(stack)


def state(found: Any) -> Any:
    """Of a pod's one container."""
    return found["status"]["containerStatuses"][0]["state"]


def test_the_chart_goes_and_leaves_no_slice_class_or_finalizer(cuda: Node) -> None:
    """In the order of docs/how-to/uninstall.md: pods with claims, then the chart; users' claims stay, and can be deleted."""
    stack = cuda.stack
    ours(stack, "held")
    running(stack, "held")
    stack.delete("held")
    eventually("the pod is gone", lambda: stack.pod("held") is None, SLOW)

    with stack.forbidden_meanwhile():  # of programs that end, and whose rights have gone already
        # Nothing here runs the Job, which takes back what is on nodes.
        helm(stack.plane, "uninstall", RELEASE, "-n", stack.layout.system, "--no-hooks")
        for name in ("webhook", "kube-scheduler", stack.layout.pod, f"agent-{cuda.name}"):
            stack.plane.processes[name].stop()  # as their pods end

    eventually("no slice is left", lambda: not slices(stack), SLOW)
    assert not stack.plane.call("GET", f"{API}/deviceclasses")["items"]
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        assert not stack.plane.call("GET", f"{ADMISSION}/{kind}")["items"]
    (left,) = stack.plane.call("GET", CLAIMS)["items"]
    assert "allocation" not in left.get("status", {})
    assert "finalizers" not in left["metadata"]
    assert "partage" not in str(left["metadata"])
    stack.plane.call("DELETE", f"{CLAIMS}/held")
    assert not stack.plane.call("GET", CLAIMS)["items"]
