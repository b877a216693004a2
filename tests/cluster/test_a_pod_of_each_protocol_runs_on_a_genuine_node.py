"""From the API server to the process in a container, with nothing between that is not genuine.

Agent -> Device, labels, Lease -> API server -> kube-scheduler -> our extender -> kubelet -> device plugin ->
containerd -> NRI, or the proxy -> container. Only the cards are made up, in the file that the agent's simulated
backend reads, and MetaX's own device plugin: whatever else knows of the cards has it from the agent. What a
container reports of itself is compared with its pod's record.
"""

import json
import shutil
import tempfile
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import stack as partage_stack
from genuine_node import (
    HARDWARE,
    LAYOUT,
    NEEDS,
    SLOW,
    Node,
    added,
    admitted,
    by_nri,
    complete,
    container,
    environment,
    granted,
    pod,
    running,
    says,
    settled,
)
from stack import eventually
from vendor_plugin import VendorPlugin

from partage.vendors import names
from partage.wire.record import decode

GPU = "nvidia.com/gpu"
CORE, MEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
SGPU = "metax-tech.com/sgpu"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
pytestmark = NEEDS


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    """Two nodes, one with NRI and one with the proxy; their sockets need short paths."""
    folder = Path(tempfile.mkdtemp(prefix="ptg"))
    try:
        with (
            partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=LAYOUT) as stack,
            ExitStack() as cleanup,
        ):
            cuda = by_nri(stack, folder, cleanup)
            maca = added("maca", "2.1", stack, folder, cleanup)
            maca.start_agent(
                "--cri-socket",
                str(maca.kubelet.runtime),
                "--runtime-socket",
                str(maca.runtime.socket),
                "--cri-devices",
                str(folder / "maca/devices"),
            )
            complete(cuda, maca)
            plugin = VendorPlugin(maca.kubelet.folder / "device-plugins", SGPU, 32)
            cleanup.callback(plugin.close)
            eventually("the kubelet offers shares", lambda: cuda.offers(GPU) == "20", SLOW)
            eventually("and qGPU's names", lambda: cuda.offers(CORE) == "200", SLOW)
            eventually("and the vendor's", lambda: maca.offers(SGPU) == "32", SLOW)
            for one in (cuda, maca):
                eventually(
                    "totals", lambda one=one: one.offers("koordinator.sh/gpu-core") == "200", SLOW
                )
            yield {"cuda": cuda, "maca": maca}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def emptied(nodes: dict[str, Node]) -> Iterator[None]:
    """Leave the cluster without pods, and the nodes with nothing held, no folder, and no difference of four parts."""
    yield
    settled(*nodes.values())


def test_a_pod_of_each_protocol_runs_with_what_its_record_says(nodes: dict[str, Node]) -> None:
    """Four manifests side by side: placed, admitted, made and started; each container reports its own."""
    cuda, maca = nodes["cuda"], nodes["maca"]
    stack = cuda.stack
    koordinator = {"koordinator.sh/gpu-core": "40", "koordinator.sh/gpu-memory-ratio": "40"}
    sgpu = {
        "koordinator.sh/gpu.shared": "1",
        "koordinator.sh/gpu-core": "10",
        "koordinator.sh/gpu-memory": "1Gi",
        SGPU: "1",
    }
    hami = {GPU: "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    asked = {
        "koordinator": koordinator,
        "qgpu": {CORE: "20", MEMORY: "5"},
        "hami": hami,
        "metax": sgpu,
    }
    for name, limits in asked.items():
        notes = {"metax-tech.com/sgpu-qos-policy": "fixed-share"} if name == "metax" else {}
        stack.create(pod(name, container("main", limits), annotations=notes))

    found = {name: running(stack, name) for name in asked}

    assert {name: one["spec"]["nodeName"] for name, one in found.items()} == {
        "koordinator": "cuda",
        "qgpu": "cuda",
        "hami": "cuda",
        "metax": "maca",
    }
    for name in ("koordinator", "qgpu", "hami"):
        grant = granted(found[name], "main")
        env = environment(cuda, found[name], "main")
        minor = str(cuda.cards()[grant.uuid])
        assert env["NVIDIA_VISIBLE_DEVICES"] == (minor if name == "koordinator" else grant.uuid)
        assert not [key for key in env if key.startswith("PARTAGE_") and env[key]]
        files = says(cuda, found[name], "main", "sh", "-c", "ls /dev/nvidia*").split()
        assert files == [f"/dev/nvidia{minor}", "/dev/nvidiactl"]
    assert environment(cuda, found["hami"], "main")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert environment(cuda, found["hami"], "main")["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert environment(cuda, found["qgpu"], "main")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "5120m"
    assert environment(maca, found["metax"], "main")["METAX_PLUGIN"] == "served"
    assert granted(found["metax"], "main").uuid in maca.cards()

    held = cuda.held()
    for name, resource, units in (("hami", GPU, 1), ("qgpu", CORE, 20), ("qgpu", MEMORY, 5)):
        cards = [unit.partition("::")[0] for unit in held[name][resource]]
        assert cards == [granted(found[name], "main").uuid] * units
    assert "koordinator" not in held or not held["koordinator"]
    assert list(maca.held()["metax"]) == [SGPU]


def test_the_nodes_label_is_the_policy_of_its_containers(nodes: dict[str, Node]) -> None:
    """The qGPU document: a qGPU share is held to what the label of its node says, by name or abbreviation."""
    cuda = nodes["cuda"]
    plane, numbers = cuda.stack.plane, count()

    def told() -> str:
        """The policy of a container that is made now; the agent reads its Node every second."""
        name = f"policy-{next(numbers)}"
        cuda.stack.create(pod(name, container("main", {CORE: "20", MEMORY: "2"})))
        env = environment(cuda, running(cuda.stack, name), "main")
        plane.call("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")
        return env.get("GPU_CORE_UTILIZATION_POLICY", "")

    try:
        for policy, wanted in (
            ("fs", "force"),
            ("best-effort", "disable"),
            ("fixed-share", "force"),
        ):
            labels = {"metadata": {"labels": {names.QGPU_POLICY: policy}}}
            plane.call("PATCH", "/api/v1/nodes/cuda", labels, kind=partage_stack.MERGE)
            eventually(f"{policy} holds", lambda wanted=wanted: told() == wanted, SLOW)
    finally:
        labels = {"metadata": {"labels": {names.QGPU_POLICY: None}}}
        plane.call("PATCH", "/api/v1/nodes/cuda", labels, kind=partage_stack.MERGE)


def test_the_cluster_knows_the_cards_from_the_agent_alone(nodes: dict[str, Node]) -> None:
    """Device with owner, labels of the node, and a Lease that is renewed."""
    for name, one in nodes.items():
        plane = one.stack.plane
        head = plane.call("GET", f"/api/v1/nodes/{name}")["metadata"]
        device = one.device()
        assert [found["health"] for found in device["spec"]["devices"]] == [True, True]
        assert [found["uid"] for found in device["metadata"]["ownerReferences"]] == [head["uid"]]
        assert head["labels"]["node.koordinator.sh/gpu-model"] == HARDWARE[name]["model"]
        lease = f"{LEASES}/partage-agent-{name}"
        before = plane.call("GET", lease)["spec"]["renewTime"]
        eventually(
            "the Lease is renewed",
            lambda plane=plane, lease=lease, before=before: (
                plane.call("GET", lease)["spec"]["renewTime"] > before
            ),
            SLOW,
        )


def test_a_card_that_falls_ill_takes_no_new_pod(nodes: dict[str, Node]) -> None:
    """The kubelet offers half, pods go to the other card, one that needs both waits and says why; then it is well."""
    cuda = nodes["cuda"]
    stack, cards = cuda.stack, {minor: uuid for uuid, minor in cuda.cards().items()}
    here = {"kubernetes.io/hostname": "cuda"}
    share = {GPU: "1", "nvidia.com/gpumem": "1000"}
    stack.create(pod("early", container("main", share)))
    ill = granted(running(stack, "early"), "main").minor
    try:
        cuda.hardware(f"{ill}=Xid 79")

        eventually("half of the shares are offered", lambda: cuda.offers(GPU) == "10", SLOW)
        eventually("and of qGPU's compute", lambda: cuda.offers(CORE) == "100", SLOW)
        wanted = {cards[minor]: minor != ill for minor in cards}
        eventually(
            "its Device says so",
            lambda: {o["id"]: o["health"] for o in cuda.device()["spec"]["devices"]} == wanted,
            SLOW,
        )
        asked = {
            "koordinator": {
                "koordinator.sh/gpu-core": "10",
                "koordinator.sh/gpu-memory-ratio": "10",
            },
            "qgpu": {CORE: "10", MEMORY: "1"},
            "hami": share,
        }
        for name, limits in asked.items():
            stack.create(pod(name, container("main", limits), nodeSelector=here))
        both = {"koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory-ratio": "200"}
        stack.create(pod("both", container("main", both), nodeSelector=here))
        for name in asked:
            assert granted(running(stack, name), "main").uuid == cards[1 - ill]
        eventually(
            "an event says why the one that needs both waits",
            lambda: any("unhealthy" in one["message"].lower() for one in stack.events("both")),
            SLOW,
        )
        assert stack.pod("early")["status"]["phase"] == "Running"
    finally:
        cuda.hardware()
    eventually("all shares are offered again", lambda: cuda.offers(GPU) == "20", SLOW)
    for name in ("early", *asked):
        stack.plane.call("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=1")
    found = running(stack, "both")
    record = decode(
        found["metadata"]["annotations"][names.ALLOCATION], found["metadata"]["uid"], "cuda"
    )
    assert {one.uuid for one in record.grants} == set(cuda.cards())


def test_a_container_that_restarts_waits_for_who_injects(nodes: dict[str, Node]) -> None:
    """The agent is away, then there without NRI: the container does not start without its devices, and says why."""
    cuda = nodes["cuda"]
    stack, nri = cuda.stack, cuda.kubelet.folder.parent / "nri.sock"
    flag = cuda.kubelet.folder / "waits"
    flag.mkdir()
    script = (
        f"test -d {flag}/once && sleep 1000; until test -e {flag}/go; do sleep 0.1; done; "
        f"mkdir {flag}/once"
    )
    main = container("main", {GPU: "1", "nvidia.com/gpumem": "1000"}, script)
    main["volumeMounts"] = [{"name": "flag", "mountPath": str(flag)}]
    volume = {"name": "flag", "hostPath": {"path": str(flag)}}
    stack.create(pod("waits", main, volumes=[volume]))
    running(stack, "waits")

    def waiting(words: str) -> Any:
        found = stack.pod("waits")["status"]
        assert found["phase"] != "Failed", found
        (one,) = found["containerStatuses"]
        return words in one["state"].get("waiting", {}).get("message", "") and found

    cuda.agent.kill()
    nri.unlink()
    try:
        (flag / "go").touch()
        eventually("it waits for the agent", lambda: waiting("PreStartContainer"), SLOW)
        cuda.agent.start()
        words = "the container would get no devices"
        told = eventually("its status says why", lambda: waiting(words), SLOW)
        assert "NRI is off" in told["containerStatuses"][0]["state"]["waiting"]["message"]
    finally:
        cuda.agent.start()
        nri.symlink_to(cuda.runtime.nri)
    found = running(stack, "waits")
    assert found["status"]["containerStatuses"][0]["restartCount"] == 1
    env = environment(cuda, found, "main")
    assert env["NVIDIA_VISIBLE_DEVICES"] == granted(found, "main").uuid


def test_a_node_whose_agent_is_away_takes_nobody_new(nodes: dict[str, Node]) -> None:
    """Its pods run on; a new pod waits, instead of failing at the kubelet, and starts when the agent does."""
    cuda = nodes["cuda"]
    stack, here = cuda.stack, {"kubernetes.io/hostname": "cuda"}
    share = {GPU: "1", "nvidia.com/gpumem": "1000"}
    stack.create(pod("stays", container("main", share), nodeSelector=here))
    running(stack, "stays")

    def silent() -> bool:
        head = stack.plane.call("GET", "/api/v1/nodes/cuda")["metadata"]
        return names.AGENT_SILENT in head.get("annotations", {})

    cuda.agent.kill()
    try:
        eventually("the node is closed", silent, SLOW)
        stack.create(pod("comes", container("main", share), nodeSelector=here))
        eventually(
            "an event says why it waits",
            lambda: any("AgentSilent" in one["message"] for one in stack.events("comes")),
            SLOW,
        )
        assert stack.pod("comes")["status"]["phase"] == "Pending"
        (one,) = stack.pod("stays")["status"]["containerStatuses"]
        assert ("running" in one["state"], one["restartCount"]) == (True, 0)
    finally:
        cuda.agent.start()
    found = running(stack, "comes")
    assert not silent()
    assert (
        environment(cuda, found, "main")["NVIDIA_VISIBLE_DEVICES"] == granted(found, "main").uuid
    )


def test_eight_that_start_at_once_get_each_its_own(nodes: dict[str, Node]) -> None:
    """Eight pods of one shape of request and eight amounts: every container has its record's amount."""
    cuda = nodes["cuda"]
    for number in range(8):
        limits = {GPU: "1", "nvidia.com/gpumem": str(1000 + 100 * number)}
        cuda.stack.create(pod(f"p{number}", container("main", limits)))

    found = {f"p{n}": running(cuda.stack, f"p{n}") for n in range(8)}

    held = cuda.held()
    for number, (name, one) in enumerate(found.items()):
        env, grant = environment(cuda, one, "main"), granted(one, "main")
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{1000 + 100 * number}m"
        assert env["NVIDIA_VISIBLE_DEVICES"] == grant.uuid
        assert len(held[name][GPU]) == 1
    by_record = sorted(granted(one, "main").uuid for one in found.values())
    by_kubelet = sorted(held[name][GPU][0].partition("::")[0] for name in found)
    assert by_kubelet == by_record


def test_init_containers_sidecars_and_restarts_get_their_own(nodes: dict[str, Node]) -> None:
    """An init container, a sidecar and two containers; one ends by itself and is started again."""
    cuda = nodes["cuda"]
    share = {GPU: "1", "nvidia.com/gpumem": "1000"}
    marker = "echo $NVIDIA_VISIBLE_DEVICES > /dev/termination-log"
    helper = {**container("helper", {}), "restartPolicy": "Always"}
    first = container("first", share, marker)
    # A fresh container has a fresh root, so what tells the first run from the second is the host's.
    flag = cuda.kubelet.folder / "restarted"
    flag.mkdir()
    once = f"mkdir {flag}/once 2>/dev/null && exit 0; sleep 1000"
    volume = {"name": "flag", "hostPath": {"path": str(flag)}}
    ends = container("ends", {GPU: "1", "nvidia.com/gpumem": "2000"}, once)
    ends["volumeMounts"] = [{"name": "flag", "mountPath": str(flag)}]
    made = pod(
        "mixed",
        container("main", {GPU: "1", "nvidia.com/gpumem": "3000"}),
        ends,
        initContainers=[first, helper],
        volumes=[volume],
    )
    cuda.stack.create(made)

    def restarted() -> Any:
        one = running(cuda.stack, "mixed")
        counts = {c["name"]: c["restartCount"] for c in one["status"]["containerStatuses"]}
        return one if counts["ends"] == 1 else None

    found = eventually("the second container runs again", restarted, SLOW)
    for name, limit in (("main", "3000m"), ("ends", "2000m")):
        env = environment(cuda, found, name)
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == limit
        assert env["NVIDIA_VISIBLE_DEVICES"] == granted(found, name).uuid
    env = environment(cuda, found, "helper")
    assert env.get("NVIDIA_VISIBLE_DEVICES", "void") == "void"
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in env
    first_status = next(
        one for one in found["status"]["initContainerStatuses"] if one["name"] == "first"
    )
    assert first_status["state"]["terminated"]["message"].strip() == granted(found, "first").uuid


def test_a_kubelet_that_restarts_is_told_again(nodes: dict[str, Node]) -> None:
    """It forgets its plugins; the agent registers again, pods run on, and the next one is served."""
    cuda = nodes["cuda"]
    limits = {GPU: "1", "nvidia.com/gpumem": "1000"}
    cuda.stack.create(pod("before", container("main", limits)))
    before = running(cuda.stack, "before")
    cuda.stack.restart(cuda.kubelet.process)

    after = admitted(cuda.stack, pod("after", container("main", limits)))

    assert (
        running(cuda.stack, "before")["status"]["containerStatuses"][0]["containerID"]
        == (before["status"]["containerStatuses"][0]["containerID"])
    )
    env = environment(cuda, after, "main")
    assert env["NVIDIA_VISIBLE_DEVICES"] == granted(after, "main").uuid
    eventually("both are counted", lambda: set(cuda.held()) == {"before", "after"}, SLOW)


def test_a_pod_that_nobody_placed_gets_nothing(nodes: dict[str, Node]) -> None:
    """The API server refuses such a pod, and the agent refuses one from a kubelet's file, which has no record."""
    cuda = nodes["cuda"]
    made = pod("forced", container("main", {GPU: "1"}), nodeName="cuda")
    with pytest.raises(urllib.error.HTTPError) as caught:
        cuda.stack.create(made)
    with caught.value:
        assert caught.value.code == 422

    manifest = cuda.kubelet.manifests / "forced.json"
    del made["spec"]["nodeName"]
    made["metadata"]["namespace"] = "default"
    manifest.write_text(json.dumps(made))
    agent = cuda.stack.plane.processes["agent-cuda"].log

    def refused() -> bool:
        return any(
            "forced" in line and "NoRecord" in line for line in agent.read_text().splitlines()
        )

    eventually("the agent refuses it", refused, SLOW)
    manifest.unlink()
