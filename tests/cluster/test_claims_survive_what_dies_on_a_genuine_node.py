"""Agent, kubelet, containerd and the machine die while claims are prepared and undone, on a genuine node.

And what Kubernetes' own tests expect of a driver beside that, in the order of docs/reference/dra-driver.md.
"""

import json
import os
import signal
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from claims_node import (
    API,
    CLAIMS,
    PODS,
    allocated,
    claim,
    devices,
    empty,
    half,
    identity,
    offering,
    prepared,
    slices,
    user,
)
from genuine_node import NEEDS, SLOW, Node, container, environment, pod, running
from stack import eventually

from partage.vendors.names import DRA_DRIVER

HERE = Path(__file__).parent
pytestmark = NEEDS


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that says at which steps the agent ends."""
    return tmp_path_factory.mktemp("steps")


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory, steps: Path) -> Iterator[Node]:
    """A node of two cards whose agent offers them to claims, and ends where it should."""
    program = (sys.executable, str(HERE / "mortal_agent.py"), str(steps))
    with offering(tmp_path_factory.mktemp("cluster"), program) as made:
        yield made


@pytest.fixture(autouse=True)
def emptied(cuda: Node, steps: Path) -> Iterator[None]:
    """Leave nothing behind, and nothing that dies."""
    yield
    assert not [one for one in steps.iterdir() if one.name != "calls"]
    empty(cuda)


@contextmanager
def failing(steps: Path, step: str) -> Iterator[None]:
    """A disk that does not take a step."""
    flag = steps / f"{step}.fails"
    flag.touch()
    try:
        yield
    finally:
        flag.unlink()


def calls(steps: Path, call: str, name: str) -> list[str]:
    """Uids of the claim of a name, as often as the kubelet asked for it."""
    try:
        lines = [one.split() for one in (steps / "calls").read_text().splitlines()]
    except FileNotFoundError:
        return []
    return [uid for what, of, uid in lines if (what, of) == (call, name)]


def gone(node: Node, name: str) -> None:
    """Wait until the API server has no pod of a name."""
    eventually(f"{name} is gone", lambda: node.stack.pod(name) is None, SLOW)


def forced(node: Node, name: str) -> None:
    """Have the API server forget a pod at once."""
    node.stack.plane.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    gone(node, name)


def uid(node: Node, name: str) -> str:
    """Of a claim."""
    return str(node.stack.plane.call("GET", f"{CLAIMS}/{name}")["metadata"]["uid"])


def died(node: Node) -> None:
    """Wait until the agent has ended itself, and start it again, as its DaemonSet does."""
    eventually("the agent is dead", lambda: not node.agent.running, SLOW)
    assert node.agent.popen is not None
    assert node.agent.popen.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("preparing", "files", "undoing", "left"),
    [
        ("prepare-read", 0, "unprepare-asked", 2),
        ("prepare-written", 1, "unprepare-unnamed", 1),
        ("prepare-named", 2, "unprepare-forgotten", 0),
        ("prepare-answered", 2, "unprepare-answered", 0),
    ],
)
def test_an_agent_is_killed_at_a_step(
    cuda: Node, steps: Path, preparing: str, files: int, undoing: str, left: int
) -> None:
    """The agent dies at a step: the kubelet asks again, the pod runs, and then nothing is left."""
    stack = cuda.stack
    claim(stack, "mine", **half(90, "15Gi"))
    (steps / preparing).touch()
    stack.create(user("mine", "mine"))
    died(cuda)
    assert len(prepared(cuda)) == files
    cuda.agent.start()
    seen = environment(cuda, running(stack, "mine"), "main")
    assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == "15360m"
    assert len(prepared(cuda)) == 2
    (steps / undoing).touch()
    stack.delete("mine")
    died(cuda)
    assert len(prepared(cuda)) == left
    cuda.agent.start()
    gone(cuda, "mine")
    eventually("nothing is prepared", lambda: not prepared(cuda), SLOW)
    stack.create(user("next", "mine"))  # the same claim
    running(stack, "next")


def boots(node: Node, *, checkpoint: bool) -> None:
    """The machine boots: every process and everything in memory is gone, and so is what the kubelet knew."""
    node.agent.kill()
    node.kubelet_process.kill()
    node.runtime.kill()
    state = node.runtime.folder / "state"
    ours = str(node.runtime.folder)
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if "containerd-shim" in (words := (path / "cmdline").read_text()) and ours in words:
                os.kill(int(path.name), signal.SIGKILL)
    for path in state.rglob("init.pid"):
        with suppress(OSError):
            os.kill(int(path.read_text()), signal.SIGKILL)
    node.runtime.forget()
    for path in (node.runtime.folder / "cdi").glob("partage*"):
        path.unlink()
    for path in (node.kubelet.folder / "plugins_registry").glob("*"):
        path.unlink()
    if not checkpoint:
        (node.kubelet.folder / "dra_manager_state").unlink()
    before = node.kubelet.boot
    node.kubelet.reboot()
    assert node.kubelet.boot != before


@pytest.mark.parametrize("checkpoint", [True, False], ids=["known", "forgotten"])
def test_the_machine_starts_anew(cuda: Node, steps: Path, *, checkpoint: bool) -> None:
    """Pods that are still bound run again with the devices they had; what others had is free, known to the kubelet or not."""
    stack = cuda.stack
    for name in ("stays", "goes"):
        claim(stack, name, **half(90, "15Gi"))
        stack.create(user(name, name))
    before = {
        name: allocated(stack, name)["device"]
        for name in ("stays", "goes")
        if running(stack, name)
    }
    kept, lost = identity(stack, "stays"), uid(cuda, "goes")
    told = cuda.agent.log.stat().st_size
    boots(cuda, checkpoint=checkpoint)
    forced(cuda, "goes")
    stack.plane.call("DELETE", f"{CLAIMS}/goes")
    eventually(
        "its claim is gone",
        lambda: (
            [one["metadata"]["name"] for one in stack.plane.call("GET", CLAIMS)["items"]]
            == ["stays"]
        ),
        SLOW,
    )
    assert len(prepared(cuda)) == 2  # what the journal has of both
    if not checkpoint:
        (steps / "often").touch()
    cuda.runtime.start()
    cuda.agent.start()
    cuda.kubelet_process.start()
    eventually("it runs again", lambda: identity(stack, "stays")[0] != kept[0], SLOW)
    seen = environment(cuda, running(stack, "stays"), "main")
    assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == "15360m"
    assert allocated(stack, "stays")["device"] == before["stays"]
    eventually(
        "the other is released", lambda: not [one for one in prepared(cuda) if lost in one], SLOW
    )
    assert len(prepared(cuda)) == 2
    # A kubelet without its checkpoint never asks; with it, it asks within a minute, before the agent has looked twice.
    assert (lost.encode() in cuda.agent.log.read_bytes()[told:]) is not checkpoint
    claim(stack, "later", **half(90, "15Gi"))
    stack.create(user("later", "later"))
    running(stack, "later")
    assert allocated(stack, "later")["device"] == before["goes"]
    if not checkpoint:
        (steps / "often").unlink()
        cuda.agent.stop()
        cuda.agent.start()


def restarted(node: Node) -> None:
    """Another kubelet."""
    node.kubelet_process.stop()
    node.kubelet_process.start()


def test_the_kubelet_asks_until_the_disk_takes_it(cuda: Node, steps: Path) -> None:
    """It asks to prepare and to unprepare, and so does the next kubelet."""
    stack = cuda.stack
    claim(stack, "tried", **half(90, "1Gi"))
    with failing(steps, "prepare-named"):
        stack.create(user("tried", "tried"))
        eventually("it was asked", lambda: calls(steps, "prepare", "tried"), SLOW)
        restarted(cuda)
        asked = len(calls(steps, "prepare", "tried"))
        eventually("the next asks", lambda: len(calls(steps, "prepare", "tried")) > asked, SLOW)
        assert stack.pod("tried")["status"]["phase"] == "Pending"
    running(stack, "tried")
    with failing(steps, "unprepare-asked"):
        stack.delete("tried")
        eventually("it was asked", lambda: calls(steps, "unprepare", "tried"), SLOW)
        restarted(cuda)
        asked = len(calls(steps, "unprepare", "tried"))
        eventually("the next asks", lambda: len(calls(steps, "unprepare", "tried")) > asked, SLOW)
        assert len(prepared(cuda)) == 2
    gone(cuda, "tried")
    eventually("nothing is prepared", lambda: not prepared(cuda), SLOW)


def test_pods_come_and_go_while_the_kubelet_is_away(cuda: Node, steps: Path) -> None:
    """One that came runs; the kubelet never asks for one that went; what one had that went is released."""
    stack = cuda.stack
    for name in ("had", "went", "came"):
        claim(stack, name, **half(40, "1Gi"))
    stack.create(user("had", "had"))
    running(stack, "had")
    cuda.kubelet_process.stop()
    for name in ("went", "came"):
        stack.create(user(name, name))
        eventually(
            "it has a node", lambda name=name: stack.pod(name)["spec"].get("nodeName"), SLOW
        )
    forced(cuda, "went")
    forced(cuda, "had")
    cuda.kubelet_process.start()
    running(stack, "came")
    mine = uid(cuda, "came")
    eventually(
        "only its claim is prepared",
        lambda: [mine in one for one in prepared(cuda)] == [True] * 2,
        SLOW,
    )
    assert not calls(steps, "prepare", "went")


def test_a_claim_of_the_same_name_waits_for_the_one_before(cuda: Node, steps: Path) -> None:
    """Pod and claim are forgotten by force and made again while the kubelet still has the old ones."""
    stack = cuda.stack
    claim(stack, "name", **half(90, "1Gi"))
    stack.create(user("name", "name"))
    running(stack, "name")
    old = uid(cuda, "name")
    with failing(steps, "unprepare-asked"):
        forced(cuda, "name")
        stack.plane.call("DELETE", f"{CLAIMS}/name")
        eventually("the claim is gone", lambda: not stack.plane.call("GET", CLAIMS)["items"], SLOW)
        claim(stack, "name", **half(90, "1Gi"))
        stack.create(user("name", "name"))
        eventually(
            "the kubelet tells the two apart",
            lambda: any(f"different UID {old}" in one["message"] for one in stack.events("name")),
            SLOW,
        )
        assert all(old in one for one in prepared(cuda))
        assert set(calls(steps, "prepare", "name")) == {old}
    running(stack, "name")
    new = uid(cuda, "name")
    assert [new in one for one in prepared(cuda)] == [True] * 2


def test_a_pod_whose_claim_is_not_allocated_does_not_run(cuda: Node, steps: Path) -> None:
    """It came to the node past the scheduler."""
    stack = cuda.stack
    claim(stack, "loose", **half(10, "1Gi"))
    stack.create(user("loose", "loose", nodeName="cuda"))
    eventually(
        "the kubelet says so",
        lambda: any(
            one["reason"] == "FailedPrepareDynamicResources" for one in stack.events("loose")
        ),
        SLOW,
    )
    assert stack.pod("loose")["status"]["phase"] == "Pending"
    assert not prepared(cuda)
    assert not calls(steps, "prepare", "loose")


def test_each_container_has_the_claim_that_it_names(cuda: Node, steps: Path) -> None:
    """An init container has the same share as the one after it; there is another claim, and one without a container."""
    stack = cuda.stack
    for name, memory in (("shared", "2Gi"), ("other", "3Gi"), ("spare", "4Gi")):
        claim(stack, name, **half(20, memory))
    first, main, beside = (container(name, {}) for name in ("first", "main", "beside"))
    first["command"] = ["/bin/sh", "-c", 'test "$CUDA_DEVICE_MEMORY_LIMIT_0" = 2048m']
    for one, name in ((first, "shared"), (main, "shared"), (beside, "other")):
        one["resources"] = {"claims": [{"name": name}]}
    listed = [{"name": one, "resourceClaimName": one} for one in ("shared", "other", "spare")]
    stack.create(pod("many", main, beside, initContainers=[first], resourceClaims=listed))
    found = running(stack, "many")
    for name, limit in (("main", "2048m"), ("beside", "3072m")):
        assert environment(cuda, found, name)["CUDA_DEVICE_MEMORY_LIMIT_0"] == limit
    assert len(prepared(cuda)) == 6
    assert all(
        calls(steps, "prepare", one) == [uid(cuda, one)] for one in ("shared", "other", "spare")
    )


def test_a_pod_that_is_done_gives_its_claims_back(cuda: Node) -> None:
    """No device stays reserved or prepared, and the claim that was made for the pod is deleted."""
    stack, plane = cuda.stack, cuda.stack.plane
    claim(stack, "kept", **half(10, "1Gi"))
    templates = f"{API}/namespaces/default/resourceclaimtemplates"
    request = {"name": "card", "exactly": {"deviceClassName": "share.gpu.partage.io"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "made"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    plane.call("POST", templates, template)
    try:
        short, other = container("main", {}, "true"), container("other", {}, "true")
        for one, name in ((short, "kept"), (other, "made")):
            one["resources"] = {"claims": [{"name": name}]}
        listed = [
            {"name": "kept", "resourceClaimName": "kept"},
            {"name": "made", "resourceClaimTemplateName": "made"},
        ]
        stack.create(pod("done", short, other, resourceClaims=listed, restartPolicy="Never"))
        eventually(
            "it is done", lambda: stack.pod("done")["status"].get("phase") == "Succeeded", SLOW
        )
        eventually(
            "one claim is left",
            lambda: (
                [one["metadata"]["name"] for one in plane.call("GET", CLAIMS)["items"]] == ["kept"]
            ),
            SLOW,
        )
        status = lambda: plane.call("GET", f"{CLAIMS}/kept").get("status") or {}  # noqa: E731
        eventually("it is free", lambda: not {"reservedFor", "allocation"} & set(status()), SLOW)
        assert not prepared(cuda)
    finally:
        plane.call("DELETE", f"{templates}/made")


def health(node: Node, name: str) -> str:
    """The health of a pod's only device, by its status."""
    (status,) = node.stack.pod(name)["status"]["containerStatuses"]
    listed = status.get("allocatedResourcesStatus", [])
    return ",".join(one["health"] for part in listed for one in part.get("resources", []))


def test_an_agent_that_is_back_soon_keeps_its_slices(cuda: Node) -> None:
    """They are the same objects, unwritten; without it devices are of unknown health, and healthy again with it."""
    stack, log = cuda.stack, cuda.agent.log
    claim(stack, "seen", **half(10, "1Gi"))
    stack.create(user("seen", "seen"))
    running(stack, "seen")
    eventually("its device is healthy", lambda: health(cuda, "seen") == "Healthy", SLOW)
    before = {
        one["metadata"]["uid"]: one["metadata"]["generation"] for one in slices(stack, "cuda")
    }
    told = log.stat().st_size
    cuda.agent.kill()
    cuda.agent.start()
    eventually("it is registered", lambda: b"with the kubelet" in log.read_bytes()[told:], SLOW)
    eventually("its device is healthy", lambda: health(cuda, "seen") == "Healthy", SLOW)
    after = {
        one["metadata"]["uid"]: one["metadata"]["generation"] for one in slices(stack, "cuda")
    }
    assert after == before
    cuda.agent.kill()
    eventually("its health is unknown", lambda: health(cuda, "seen") == "Unknown", SLOW)
    cuda.agent.start()
    eventually("its device is healthy", lambda: health(cuda, "seen") == "Healthy", SLOW)
    eventually("slices are there", lambda: devices(stack, "cuda"), SLOW)


def test_an_agent_writes_slices_of_its_own_node_alone(
    cuda: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its account can make, change or remove no slice of another node, and none of all nodes."""
    plane, path = cuda.stack.plane, f"{API}/resourceslices"

    def made(name: str, **where: Any) -> dict[str, Any]:
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {"driver": "test.example.com", "pool": pool, **where},
        }

    theirs = {"other": {"nodeName": "other"}, "all": {"allNodes": True}}
    stored = {
        name: plane.call("POST", path, made(name, **where)) for name, where in theirs.items()
    }
    config = cuda.agent.command[cuda.agent.command.index("--kubeconfig") + 1]
    (user_,) = json.loads(Path(config).read_text())["users"]
    try:
        with monkeypatch.context() as patched, cuda.stack.forbidden_meanwhile(afterwards=False):
            patched.setattr(plane, "admin", user_["user"]["token"])
            mine = made("cuda-gpu.partage.io-devices-99", nodeName="cuda")
            mine["spec"] |= {
                "driver": DRA_DRIVER,
                "pool": {**mine["spec"]["pool"], "name": "cuda"},
            }
            plane.call("POST", f"{path}?dryRun=All", mine)
            for name, where in theirs.items():
                changed = {
                    **stored[name],
                    "metadata": {**stored[name]["metadata"], "labels": {"a": "b"}},
                }
                for method, to, body in (
                    ("POST", path, made(f"new-{name}", **where)),
                    ("PUT", f"{path}/{name}", changed),
                    ("DELETE", f"{path}/{name}", None),
                ):
                    with pytest.raises(urllib.error.HTTPError) as refused:
                        plane.call(method, to, body)
                    assert "its own node" in refused.value.read().decode(), (method, name)
    finally:
        for name in theirs:
            plane.call("DELETE", f"{path}/{name}")
