"""Pods on a genuine containerd of both generations: what their containers see is what was granted."""

import contextlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import containerd
import cri
import grpc
import pytest
from agent_process import WAIT, Agent
from msgspec import structs
from plugged import plugged
from records import NODE, SHARE, WHOLE, Node, record

from partage.agent.nri.messages import Adjustment, CdiDevice, Variable
from partage.vendors import names


@pytest.fixture(scope="module", params=containerd.GENERATIONS)
def machine(request: pytest.FixtureRequest) -> Iterator[Node]:
    """One containerd for all tests of a generation. Its sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="partage-"))
    try:
        with containerd.running(request.param, folder) as (runtime, client):
            agent = Agent(runtime, folder / "agent", NODE)
            vgpu = agent.folder / "vgpu"
            vgpu.mkdir(parents=True)
            (vgpu / "libvgpu.so").write_text("the library\n")
            agent.options = (
                "--isolation",
                "hami-core",
                "--isolation-library",
                vgpu / "libvgpu.so",
                "--cdi-kind",
                cri.CDI,
                "--cdi-spec-dir",
                str(runtime.folder / "cdi"),
            )
            yield Node(runtime, client, agent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node(machine: Node) -> Iterator[Node]:
    """With an agent that serves, and no pods left behind."""
    machine.agent.start()
    try:
        yield machine
    finally:
        machine.cri.remove_all()
        machine.agent.stop()
        shutil.rmtree(machine.agent.folder / "journal", ignore_errors=True)


def test_a_container_reports_what_it_was_given(node: Node) -> None:
    """HAMi's share: its variables, its card's file and no other, the library and its own folder."""
    pod = node.cri.run_pod("share", "u1", record("u1", SHARE))
    main = node.cri.start(node.cri.create(pod, env={"PARTAGE_DEVICES_GPU": "1"}, image=cri.GREEDY))
    vgpu = node.agent.folder / "vgpu"

    env = set(node.cri.says(main, "env").splitlines())
    assert {
        "NVIDIA_VISIBLE_DEVICES=GPU-a",
        "CUDA_DEVICE_MEMORY_LIMIT_0=4096m",
        "CUDA_DEVICE_SM_LIMIT=30",
        f"LD_PRELOAD={vgpu}/libvgpu.so",
        "GIVEN_BY_CDI=GPU-a",
    } <= env
    assert "NVIDIA_VISIBLE_DEVICES=all" not in env
    assert {"PARTAGE_DEVICES_GPU=", "CUDA_DISABLE_CONTROL=false"} <= env
    listed = node.cri.says(main, "sh", "-c", "ls -l /dev/nvidia*").splitlines()
    assert [line.split()[-1] for line in listed] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert [line[0] for line in listed] == ["c", "c"]
    assert listed[0].split()[4:6] == ["1,", "3"]
    assert node.cri.says(main, "cat", f"{vgpu}/libvgpu.so") == "the library\n"
    assert "Read-only" in node.cri.says(main, "sh", "-c", f"touch {vgpu}/libvgpu.so")
    node.cri.says(main, "touch", f"{vgpu}/mine")
    assert (vgpu / "containers/u1_main/mine").exists()
    assert node.cri.says(main, "sh", "-c", "echo x > /dev/nvidia0; echo $?").strip() == "0"


def test_koordinator_gets_card_numbers_and_a_sidecar_gets_nothing(node: Node) -> None:
    """Card numbers for the container with the grant; the other one sees no card, whatever it sets."""
    pod = node.cri.run_pod("whole", "u2", record("u2", WHOLE))
    main = node.cri.start(node.cri.create(pod))
    sidecar = node.cri.start(node.cri.create(pod, "sidecar", {"NVIDIA_VISIBLE_DEVICES": "0,1"}))

    assert "NVIDIA_VISIBLE_DEVICES=1\n" in node.cri.says(main, "env")
    assert "/dev/nvidia1" in node.cri.says(main, "sh", "-c", "ls /dev/nvidia*")
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in node.cri.says(sidecar, "env")
    legacy = node.cri.start(node.cri.create(pod, "legacy", {"CUDA_VERSION": "9.0"}))
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in node.cri.says(legacy, "env")
    assert "nvidia" not in node.cri.says(sidecar, "ls", "/dev")


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        pytest.param({names.DEVICE_ALLOCATED: "{}"}, "NoRecord", id="no record"),
        pytest.param(record("other", SHARE), "BadRecord", id="copied from another pod"),
        pytest.param(record("u3", SHARE, node="n2"), "BadRecord", id="of another node"),
        pytest.param(
            record("u3", structs.replace(SHARE, uuid="GPU-z")), "UnknownDevice", id="no card"
        ),
    ],
)
def test_what_cannot_be_trusted_is_not_made(
    node: Node, annotations: dict[str, str], why: str
) -> None:
    """CreateContainer fails with our words, which the kubelet shows."""
    pod = node.cri.run_pod("forged", "u3", annotations)

    with pytest.raises(grpc.RpcError) as caught:
        node.cri.create(pod)
    assert why in caught.value.details()
    assert "pod team/forged, container main" in caught.value.details()


def test_a_variable_that_cannot_be_changed_is_refused(node: Node) -> None:
    """Image and pod both ask for every card: NRI could change one of the two only."""
    pod = node.cri.run_pod("greedy", "u3", record("u3", SHARE))

    for twice in ({"NVIDIA_VISIBLE_DEVICES": "all"}, {"CUDA_DISABLE_CONTROL": "true"}):
        with pytest.raises(grpc.RpcError) as caught:
            node.cri.create(pod, env=twice, image=cri.GREEDY)
        assert "SetTwice" in caught.value.details()
    main = node.cri.start(node.cri.create(pod, env={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert "NVIDIA_VISIBLE_DEVICES=GPU-a\n" in node.cri.says(main, "env")


def test_a_card_is_refused_while_it_is_full(node: Node) -> None:
    """A later record waits until the first container has ended, which it does by itself."""
    first = node.cri.run_pod("first", "u4", record("u4", WHOLE))
    held = node.cri.create(
        first, command=("/bin/sh", "-c", "until [ -e /go ]; do sleep 0.1; done")
    )
    node.cri.start(held)
    later = node.cri.run_pod("later", "u5", record("u5", WHOLE))

    with pytest.raises(grpc.RpcError) as caught:
        node.cri.create(later)
    assert "CardFull" in caught.value.details()
    node.cri.says(held, "touch", "/go")
    node.agent.until("partage_agent_containers", 0)
    node.cri.start(node.cri.create(later))
    node.agent.until("partage_agent_containers", 1)


def test_a_container_that_the_kubelet_waits_for_can_be_ended(node: Node) -> None:
    """It ignores SIGTERM for a year after a forced deletion; a second stop does not wait, and the card is free."""
    deaf = ("/bin/sh", "-c", "trap : TERM; touch /deaf; while true; do sleep 0.1; done")
    ghost = node.cri.create(node.cri.run_pod("ghost", "g1", record("g1", WHOLE)), command=deaf)
    node.cri.start(ghost)
    while node.cri.says(ghost, "ls", "/deaf") != "/deaf\n":
        time.sleep(0.05)
    later = node.cri.run_pod("later", "g2", record("g2", WHOLE))
    with ThreadPoolExecutor(1) as kubelet:
        waits = kubelet.submit(node.cri.stop, ghost, 31_536_000)
        with pytest.raises(TimeoutError):
            waits.result(3)
        with pytest.raises(grpc.RpcError) as caught:
            node.cri.create(later)
        assert "CardFull" in caught.value.details()

        node.cri.stop(ghost)
        node.agent.until("partage_agent_containers", 0)

    node.cri.start(node.cri.create(later))


def test_a_pod_without_devices_is_kept_from_cards_and_untouched(machine: Node) -> None:
    """The specification is the same with and without the agent, but for one variable."""
    specs = []
    for with_agent in (False, True):
        with contextlib.ExitStack() as cleanup:
            if with_agent:
                machine.agent.start()
                cleanup.callback(machine.agent.stop)
            pod = machine.cri.run_pod("web", "u6", labels={"app": "web"})
            cleanup.callback(machine.cri.remove_all)
            main = machine.cri.start(machine.cri.create(pod, env={"A": "b"}))
            text = json.dumps(machine.runtime.spec(main), sort_keys=True)
            text = text.replace(main, "CONTAINER").replace(pod.id, "POD")
            specs.append(_without_pids(json.loads(text)))

    specs[1]["process"]["env"].remove("NVIDIA_VISIBLE_DEVICES=void")
    assert specs[0] == specs[1]


def _without_pids(spec: dict[str, Any]) -> dict[str, Any]:
    """The path of a sandbox's namespace, /proc/PID/ns/..., differs with every pod."""
    for namespace in spec["linux"]["namespaces"]:
        namespace.pop("path", None)
    return spec


def test_twenty_pods_that_run_are_known_after_a_restart_of_the_runtime(node: Node) -> None:
    """Containerd restarts under running pods: the agent is back, knows them all, and serves on."""
    part = structs.replace(SHARE, core_milli=0, memory_bytes=16 * 2**30 // 20)
    last = ""
    for number in range(20):
        uid = f"r{number}"
        pod = node.cri.run_pod(uid, uid, record(uid, part))
        last = node.cri.start(node.cri.create(pod))
    node.runtime.stop()
    node.runtime.start()
    node.agent.ready()

    node.agent.until("partage_agent_containers", 20)
    assert node.agent.metric("partage_agent_unprotected_containers") == 0
    later = node.cri.run_pod("later", "later", record("later", part))
    with pytest.raises(grpc.RpcError) as caught:
        node.cri.create(later)
    assert "CardFull" in caught.value.details()
    node.cri.remove_container(last)
    node.cri.start(node.cri.create(later))


def test_what_started_while_the_agent_was_away_is_reported(node: Node) -> None:
    """The runtime did not ask the agent: the container has nothing, and is counted as unprotected."""
    node.agent.stop()
    pod = node.cri.run_pod("early", "u7", record("u7", SHARE))
    main = node.cri.start(node.cri.create(pod))
    assert "NVIDIA" not in node.cri.says(main, "env")

    node.agent.start()

    node.agent.until("partage_agent_unprotected_containers", 1)
    assert node.agent.metric("partage_agent_containers") == 1


def test_no_length_of_a_pod_keeps_the_runtime_from_asking(node: Node) -> None:
    """A container that chose every card is refused if it is too long, and the agent comes back beside long pods."""
    long = {f"example.com/{number:04}": "x" * 60 for number in range(250)}
    text = {f"example.com/{number:02}": "x" * 9_000 for number in range(28)}
    for number in range(20):
        node.cri.run_pod(f"long-{number}", f"l{number}", text, long)
    pod = node.cri.run_pod("longest", "u12", text, long)
    for size in (700_000, 4_500_000):
        env = {f"V{number}": "x" * 100_000 for number in range(size // 100_000)}
        with pytest.raises(grpc.RpcError) as caught:
            node.cri.create(pod, f"c{size}", {**env, "NVIDIA_VISIBLE_DEVICES": "all"})
        assert "too long" in caught.value.details() or "exceed" in caught.value.details()
    env = {f"V{number}": "x" * 100_000 for number in range(5)}
    for number in range(8):
        node.cri.create(pod, f"main-{number}", env)

    node.agent.stop()
    node.agent.start()

    share = node.cri.run_pod("share", "u13", record("u13", SHARE))
    main = node.cri.start(node.cri.create(share))
    assert "NVIDIA_VISIBLE_DEVICES=GPU-a" in node.cri.says(main, "env")


# --- the plugin alone ------------------------------------------------------------------------


def test_large_adjustments_arrive(machine: Node) -> None:
    """60 kB, many times what the runtime reads at once."""
    large = Adjustment(env=tuple(Variable(f"V{number}", "x" * 1000) for number in range(60)))

    with plugged(machine.runtime, lambda: large):
        pod = machine.cri.run_pod("large", "u8")
        main = machine.cri.start(machine.cri.create(pod))
        assert int(machine.cri.says(main, "sh", "-c", "env | wc -c")) > 60_000
        machine.cri.remove(pod)


def test_cdi_devices_are_given_or_refused(machine: Node) -> None:
    """Containerd 2 gives them; the older one would leave names out in silence, so a container with names is refused."""
    named = Adjustment(cdi_devices=(CdiDevice(f"{cri.CDI}=GPU-b"),))

    with plugged(machine.runtime, lambda: named):
        pod = machine.cri.run_pod("cdi", "u10")
        if machine.runtime.generation == "1.7":
            with pytest.raises(grpc.RpcError) as caught:
                machine.cri.create(pod)
            assert "CDI devices" in caught.value.details()
        else:
            main = machine.cri.start(machine.cri.create(pod))
            assert "GIVEN_BY_CDI=GPU-b" in machine.cri.says(main, "env")
        machine.cri.remove(pod)
    unknown = Adjustment(cdi_devices=(CdiDevice(f"{cri.CDI}=GPU-z"),))
    with plugged(machine.runtime, lambda: unknown):
        pod = machine.cri.run_pod("cdi", "u11")
        with pytest.raises(grpc.RpcError):
            machine.cri.create(pod)
        machine.cri.remove(pod)


def test_a_slow_decision_is_an_error_and_not_a_start(machine: Node) -> None:
    """The runtime is answered in time, and the next container is served."""
    go, slow = threading.Event(), [True]

    def decide() -> Adjustment | None:
        if slow.pop() if slow else False:
            go.wait(WAIT)
        return Adjustment(env=(Variable("SERVED", "yes"),))

    with plugged(machine.runtime, decide, deadline=0.2):
        pod = machine.cri.run_pod("slow", "u9")
        with pytest.raises(grpc.RpcError) as caught:
            machine.cri.create(pod)
        go.set()
        assert "not decided within 0.2 s" in caught.value.details()
    with plugged(machine.runtime, decide, deadline=60):
        main = machine.cri.start(machine.cri.create(pod, "again"))
        assert "SERVED=yes" in machine.cri.says(main, "env")
        machine.cri.remove(pod)
