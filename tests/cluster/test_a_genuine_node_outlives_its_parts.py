"""Kubelet, containerd and agent die together and come back in every order; the agent does with its own rights alone.

The node is the one of `test_a_pod_of_each_protocol_runs_on_a_genuine_node.py`, where each of them is away alone.
"""

import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import stack as partage_stack
from genuine_node import (
    LAYOUT,
    NEEDS,
    SLOW,
    Node,
    admitted,
    by_nri,
    complete,
    container,
    environment,
    granted,
    pod,
    running,
    settled,
)
from stack import eventually

GPU = "nvidia.com/gpu"
SHARE = {GPU: "1", "nvidia.com/gpumem": "1000"}
OFTEN = """
from pathlib import Path
from partage.cli.main import main
from partage.daemon import orphans, reconciling
reconciling._PERIOD = 3.0
orphans.Orphans.__init__.__defaults__ = 3.0, Path("/proc")
main()
"""
"""An agent that looks every 3 s for containers without a pod, and not every 30 s."""
pytestmark = NEEDS


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with NRI."""
    folder = Path(tempfile.mkdtemp(prefix="ptg"))
    try:
        with (
            partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=LAYOUT) as stack,
            ExitStack() as cleanup,
        ):
            made = by_nri(stack, folder, cleanup, (sys.executable, "-c", OFTEN))
            complete(made)
            eventually("the kubelet offers shares", lambda: made.offers(GPU) == "20", SLOW)
            eventually("totals", lambda: made.offers("koordinator.sh/gpu-core") == "200", SLOW)
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def emptied(cuda: Node) -> Iterator[None]:
    """Leave nothing behind."""
    yield
    settled(cuda)


def test_what_started_unasked_is_evicted(cuda: Node) -> None:
    """A container that no device plugin is asked about starts again while the agent is away: its pod is evicted."""
    stack = cuda.stack
    flag = cuda.kubelet.folder / "unasked"
    flag.mkdir()
    script = f"test -e {flag}/go && sleep 1000; until test -e {flag}/go; do sleep 0.1; done"
    amounts = {"koordinator.sh/gpu-core": "40", "koordinator.sh/gpu-memory-ratio": "40"}
    main = container("main", amounts, script)
    main["volumeMounts"] = [{"name": "flag", "mountPath": str(flag)}]
    volume = {"name": "flag", "hostPath": {"path": str(flag)}}
    stack.create(pod("unasked", main, volumes=[volume]))
    running(stack, "unasked")

    def again() -> bool:
        (one,) = stack.pod("unasked")["status"]["containerStatuses"]
        return one["restartCount"] == 1 and "running" in one["state"]

    cuda.agent.kill()
    try:
        (flag / "go").touch()
        eventually("it runs again", again, SLOW)
    finally:
        cuda.agent.start()

    eventually("it is evicted", lambda: not stack.pod("unasked"), SLOW)
    assert "pod default/unasked is evicted" in cuda.agent.log.read_text()
    cuda.agent.log.write_text("")  # it found what it should, and no other test should


@pytest.mark.parametrize(
    ("whole", "next_"),
    [
        ({"koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory-ratio": "200"},) * 2,
        ({GPU: "2", "nvidia.com/gpumem-percentage": "100"}, SHARE),
    ],
    ids=["counted by the agent alone", "counted by the kubelet too"],
)
def test_a_pod_deleted_by_force_keeps_no_card(
    cuda: Node, whole: dict[str, str], next_: dict[str, str]
) -> None:
    """Deleted normally with an hour of grace before: the kubelet waits for that hour, and the agent kills its container."""
    stack, path = cuda.stack, "/api/v1/namespaces/default/pods/stubborn"
    script = "trap '' TERM; while :; do sleep 1; done"
    stack.create(
        pod("stubborn", container("main", whole, script), terminationGracePeriodSeconds=3600)
    )
    uid = running(stack, "stubborn")["metadata"]["uid"]
    stack.plane.call("DELETE", path)
    # A kubelet that sees only that the pod is gone does not wait.
    query = f"fieldSelector=reason=Killing,involvedObject.uid={uid}"
    events = f"/api/v1/namespaces/default/events?{query}"
    eventually("the kubelet waits", lambda: stack.plane.call("GET", events)["items"], SLOW)
    stack.plane.call("DELETE", f"{path}?gracePeriodSeconds=0")

    admitted(stack, pod("next", container("main", next_)))

    told = cuda.agent.log.read_text()
    assert "pod default/stubborn, container main: killed" in told
    cuda.agent.log.write_text("")  # it found what it should, and no other test should


def test_the_agents_use_every_right_that_they_have(cuda: Node) -> None:
    """Everything that their roles allow was used and allowed; a refusal to them fails the module."""
    stack = cuda.stack
    stack.create(pod("told", container("main", SHARE)))
    running(stack, "told")
    for faults, health in (("1=Xid 79", False), ("", True)):
        cuda.hardware(faults)
        eventually("its Device says so", lambda h=health: healthy(cuda) == [True, h], SLOW)

    rights = stack.rights("partage-agent")
    assert rights >= {("create", "pods/eviction"), ("patch", "pods/status"), ("watch", "pods")}
    # Conditions are written and followed a moment later.
    eventually("all is used", lambda: rights <= stack.used("partage-agent"), SLOW)


def healthy(cuda: Node) -> list[bool]:
    """Whether each card is well, by the Device object."""
    return [one["health"] for one in cuda.device()["spec"]["devices"]]


ORDERS = tuple(itertools.permutations(("kubelet", "containerd", "agent")))


def test_what_runs_runs_on_in_whatever_order_they_come_back(cuda: Node) -> None:
    """All three are killed at once, six times: a pod runs on with its card, and the next one is served."""
    parts: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "kubelet": (cuda.kubelet_process.kill, cuda.kubelet_process.start),
        "containerd": (cuda.runtime.kill, cuda.runtime.start),
        "agent": (cuda.agent.kill, cuda.agent.start),
    }
    cuda.stack.create(pod("stays", container("main", SHARE)))
    before = running(cuda.stack, "stays")["status"]["containerStatuses"][0]
    for number, order in enumerate(ORDERS):
        for name in order:
            parts[name][0]()
        for name in order:
            parts[name][1]()

        after = admitted(cuda.stack, pod(f"after-{number}", container("main", SHARE)))

        told = f"back in the order {order}"
        env = environment(cuda, after, "main")
        assert env["NVIDIA_VISIBLE_DEVICES"] == granted(after, "main").uuid, told
        found = running(cuda.stack, "stays")
        (now,) = found["status"]["containerStatuses"]
        assert (now["containerID"], now["restartCount"]) == (before["containerID"], 0), told
        env = environment(cuda, found, "main")
        assert env["NVIDIA_VISIBLE_DEVICES"] == granted(found, "main").uuid, told
    pods = {"stays", *(f"after-{number}" for number in range(len(ORDERS)))}
    eventually(
        "all are counted", lambda: {n for n, held in cuda.held().items() if held} == pods, SLOW
    )
    units = [unit for held in cuda.held().values() for unit in held.get(GPU, ())]
    assert len(units) == len(set(units)) == len(pods), f"I1: {units}"
