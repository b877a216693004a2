"""ResourceClaims on a genuine node while a part of Partage is away, and when Partage goes for good.

The last test uninstalls the chart: it must stay the last one.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
from chart import helm
from claims_node import API, CLAIMS, PODS, claim, empty, half, offering, slices, user
from genuine_node import NEEDS, SLOW, Node, environment, running
from other_driver import VARIABLE, OtherDriver
from stack import RELEASE, Stack, eventually

from partage.vendors.names import DRA_DRIVER

THEIRS = "gpu.example.com"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
pytestmark = NEEDS


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node of two cards whose agent offers them to claims."""
    with offering(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def claimed(stack: Stack, name: str, **exactly: Any) -> None:
    """A claim of one device, and a pod with it."""
    claim(stack, name, **exactly)
    stack.create(user(name, name))


def stored(stack: Stack, name: str) -> bool:
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


def test_with_the_webhook_dead_claims_of_ours_wait_and_no_others(cuda: Node) -> None:
    """The API server itself knows whose claim it is; ours are refused with a sentence, and come when it is back."""
    stack = cuda.stack
    webhook = stack.plane.processes["webhook"]
    with another_driver(stack, "cuda"):
        webhook.kill()
        try:
            claimed(stack, "ours", **half(10, "1Gi"))
            claimed(stack, "theirs", deviceClassName=THEIRS)
            eventually(
                "theirs is bound", lambda: stack.pod("theirs")["spec"].get("nodeName"), SLOW
            )
            assert stored(stack, "theirs")
            told = eventually("ours is refused", lambda: refusals(stack, "ours"), SLOW)
            assert "failed calling webhook" in told[0]
            assert not stored(stack, "ours")
            assert not stack.pod("ours")["spec"].get("nodeName")
        finally:
            webhook.start()
        running(stack, "ours")
        stack.plane.call("DELETE", f"{PODS}/theirs?gracePeriodSeconds=0")
        empty(cuda)


def test_a_container_has_devices_of_two_drivers(cuda: Node) -> None:
    """The kubelet asks each driver for its own claim; the container has both devices; both claims are unprepared."""
    stack, folder = cuda.stack, cuda.kubelet.folder
    cdi = cuda.runtime.folder / "cdi"
    with (
        another_driver(stack, "cuda"),
        closing(OtherDriver(folder, cdi, THEIRS, "theirs", "one")) as driver,
    ):
        claim(stack, "ours", **half(10, "1Gi"))
        claim(stack, "theirs", deviceClassName=THEIRS)
        stack.create(user("both", "ours", "theirs"))
        seen = environment(cuda, running(stack, "both"), "main")
        assert seen[VARIABLE] == "one"
        assert seen["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
        assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"
        (uid,) = driver.prepared
        assert uid == stack.plane.call("GET", f"{CLAIMS}/theirs")["metadata"]["uid"]
        empty(cuda)
        assert not driver.prepared


def test_a_pod_with_a_claim_cannot_end_without_its_driver(cuda: Node) -> None:
    """Pods with claims must go before the chart: such a pod stays until the driver is back, or is deleted by force."""
    stack = cuda.stack
    names = ("kept", "forced")
    for name in names:
        claimed(stack, name, **half(10, "1Gi"))
    before = {name: state(running(stack, name)) for name in names}
    cuda.agent.stop()
    try:
        eventually("slices are gone", lambda: not slices(stack, cuda.name), SLOW)
        assert {name: state(running(stack, name)) for name in names} == before
        for name in names:
            stack.delete(name)
        told = f"unprepare dynamic resources: DRA driver {DRA_DRIVER} is not registered"
        log = cuda.kubelet_process.log
        eventually("the kubelet misses the driver", lambda: told in log.read_text(), SLOW)
        for name in names:
            ended = partial(lambda one: "terminated" in state(stack.pod(one)), name)
            eventually("its container has ended all the same", ended, SLOW)
            assert stored(stack, name)
        stack.plane.call("DELETE", f"{PODS}/forced?gracePeriodSeconds=0")
        eventually("it is gone", lambda: stack.pod("forced") is None, SLOW)
        eventually("its claim is free", lambda: not stored(stack, "forced"), SLOW)
        assert stack.pod("kept") is not None
    finally:
        cuda.agent.start()
    eventually("the other one ends", lambda: stack.pod("kept") is None, SLOW)
    empty(cuda)


def state(found: Any) -> Any:
    """Of a pod's one container."""
    return found["status"]["containerStatuses"][0]["state"]


def test_the_chart_goes_and_leaves_no_slice_class_or_finalizer(cuda: Node) -> None:
    """In the order of docs/how-to/uninstall.md: pods with claims, then the chart; users' claims stay, and can be deleted.

    One pod was forgotten: it runs on with its device, is named by `partage withdraw`, and by force it goes with its claim.
    """
    stack = cuda.stack
    for name in ("held", "forgotten"):
        claimed(stack, name, **half(10, "1Gi"))
        running(stack, name)
    stack.delete("held")
    eventually("the pod is gone", lambda: stack.pod("held") is None, SLOW)
    before = state(running(stack, "forgotten"))

    with stack.forbidden_meanwhile():  # of programs that end, and whose rights have gone already
        # Nothing here runs the Job, which takes back what is on nodes.
        helm(stack.plane, "uninstall", RELEASE, "-n", stack.layout.system, "--no-hooks")
        for name in ("webhook", "kube-scheduler", stack.layout.pod, f"agent-{cuda.name}"):
            stack.plane.processes[name].stop()  # as their pods end

    eventually("no slice is left", lambda: not slices(stack, cuda.name), SLOW)
    assert not stack.plane.call("GET", f"{API}/deviceclasses")["items"]
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        assert not stack.plane.call("GET", f"{ADMISSION}/{kind}")["items"]
    assert state(running(stack, "forgotten")) == before
    assert stored(stack, "forgotten")
    pods = f"/api/v1/namespaces/{stack.layout.system}/pods"
    stack.plane.call(
        "DELETE", f"{pods}?gracePeriodSeconds=0"
    )  # with their owners, where these have controllers
    code, said = withdrawn(stack)
    assert code == 3, said
    assert "ResourceClaims hold its devices" in said
    assert "default/forgotten (forgotten)" in said
    stack.plane.call("DELETE", f"{PODS}/forgotten?gracePeriodSeconds=0")
    eventually("it goes by force", lambda: stack.pod("forgotten") is None, SLOW)
    eventually("its claim is free", lambda: not stored(stack, "forgotten"), SLOW)

    for left in stack.plane.call("GET", CLAIMS)["items"]:
        assert "allocation" not in left.get("status", {})
        assert "finalizers" not in left["metadata"]
        assert "partage" not in str(left["metadata"])
    stack.plane.call("DELETE", CLAIMS)
    assert not stack.plane.call("GET", CLAIMS)["items"]


def withdrawn(stack: Stack) -> tuple[int, str]:
    """How `partage withdraw` ends for an administrator, and what it says."""
    program = [sys.executable, "-m", "partage.cli.main", "withdraw", "--kubeconfig"]
    command = [*program, str(stack.plane.kubeconfig())]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.returncode, found.stdout + found.stderr
