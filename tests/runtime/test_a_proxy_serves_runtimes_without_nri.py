"""The proxy between a kubelet and a genuine containerd: one call is changed, all others are the same."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import containerd
import cri
import grpc
import pytest
from agent_process import WAIT, Agent
from msgspec import structs
from records import NODE, SHARE, WHOLE, Node, record

from partage.vendors import names

ALL = cri.Identity()
RUNTIME = "/runtime.v1.RuntimeService"


@pytest.fixture(scope="module", params=containerd.GENERATIONS)
def machine(request: pytest.FixtureRequest) -> Iterator[Node]:
    """One containerd, asked through the agent's socket."""
    folder = Path(tempfile.mkdtemp(prefix="partage-"))
    try:
        with containerd.running(request.param, folder) as (runtime, direct):
            more = (
                "--cri-socket",
                folder / "cri.sock",
                "--runtime-socket",
                runtime.socket,
                "--cri-devices",
                f"{folder}/devices",
            )
            agent = Agent(runtime, folder / "agent", NODE)
            vgpu = agent.folder / "vgpu"
            vgpu.mkdir(parents=True)
            (vgpu / "libvgpu.so").write_text("the library\n")
            library = ("--isolation", "hami-core", "--isolation-library", vgpu / "libvgpu.so")
            agent.options = (*more, *library, "--cdi-kind", cri.CDI)
            try:
                yield Node(runtime, direct, agent)
            finally:
                agent.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node(machine: Node) -> Iterator[Node]:
    """With an agent that serves; its client asks the proxy."""
    machine.agent.start()
    socket = machine.runtime.folder / "cri.sock"
    with cri.connected(socket, machine.cri.logs) as client:
        try:
            yield Node(machine.runtime, client, machine.agent)
        finally:
            client.remove_all()
            machine.agent.stop()
            shutil.rmtree(machine.agent.folder / "journal", ignore_errors=True)


def test_a_container_reports_what_it_was_given(node: Node) -> None:
    """As by NRI: the share's variables, once each, its card's file with its numbers, the library."""
    pod = node.cri.run_pod("share", "u1", record("u1", SHARE))
    main = node.cri.start(
        node.cri.create(pod, env={"NVIDIA_VISIBLE_DEVICES": "all", "A": "b"}, image=cri.GREEDY)
    )
    vgpu = node.agent.folder / "vgpu"

    env = node.cri.says(main, "env").splitlines()
    assert {
        "GIVEN_BY_CDI=GPU-a",
        "NVIDIA_VISIBLE_DEVICES=GPU-a",
        "CUDA_DEVICE_MEMORY_LIMIT_0=4096m",
        "A=b",
        "CUDA_DEVICE_SM_LIMIT=30",
        f"LD_PRELOAD={vgpu}/libvgpu.so",
    } <= set(env)
    assert [line for line in env if line.startswith("CUDA_DISABLE")] == [
        "CUDA_DISABLE_CONTROL=false"
    ]
    assert len([one for one in env if one.startswith("NVIDIA_VISIBLE_DEVICES=")]) == 1
    listed = node.cri.says(main, "sh", "-c", "ls -l /dev/nvidia*").splitlines()
    assert [line.split()[-1] for line in listed] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert listed[0].split()[4:6] == ["1,", "3"]
    assert node.cri.says(main, "cat", f"{vgpu}/libvgpu.so") == "the library\n"
    assert "Read-only" in node.cri.says(main, "sh", "-c", f"touch {vgpu}/libvgpu.so")
    node.cri.says(main, "touch", f"{vgpu}/mine")
    assert (vgpu / "containers/u1_main/mine").exists()


def test_a_sidecar_and_a_pod_without_a_record_choose_no_cards(node: Node) -> None:
    """Neither the image's variables nor the author's show a card to a container that was granted none."""
    pod = node.cri.run_pod("whole", "u2", record("u2", WHOLE))
    sidecar = node.cri.start(node.cri.create(pod, "sidecar", image=cri.GREEDY))
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in node.cri.says(sidecar, "env")

    free = node.cri.run_pod("free", "u3")
    main = node.cri.start(node.cri.create(free, image=cri.GREEDY))
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in node.cri.says(main, "env")


@pytest.mark.parametrize(
    ("annotations", "env", "why"),
    [
        pytest.param({names.DEVICE_ALLOCATED: "{}"}, {}, "NoRecord", id="no record"),
        pytest.param({}, {"PARTAGE_DEVICES_GPU": "1"}, "NoRecord", id="counted by the kubelet"),
        pytest.param(record("other", SHARE), {}, "BadRecord", id="copied from another pod"),
        pytest.param(
            record("u3", structs.replace(SHARE, uuid="GPU-z")), {}, "UnknownDevice", id="no card"
        ),
    ],
)
def test_what_cannot_be_trusted_is_not_made(
    node: Node, annotations: dict[str, str], env: dict[str, str], why: str
) -> None:
    """CreateContainer fails with our words, and the runtime has no container."""
    pod = node.cri.run_pod("forged", "u3", annotations)

    with pytest.raises(grpc.RpcError) as caught:
        node.cri.create(pod, env=env)
    assert why in caught.value.details()
    assert node.cri.call("ListContainers", ALL) == b""


def test_a_card_is_refused_while_it_is_full(node: Node) -> None:
    """A container that has ended by itself frees its card without a message to the proxy."""
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
    node.cri.until_ended(held)
    node.cri.start(node.cri.create(later))
    assert node.agent.metric("partage_agent_containers") == 1


def test_a_pod_without_devices_is_kept_from_cards_and_untouched(node: Node, machine: Node) -> None:
    """The specification is the same, asked directly and through us, but for one variable."""
    specs = []
    for client in (node.cri, machine.cri):
        pod = client.run_pod("web", "u6", labels={"app": "web"})
        main = client.start(client.create(pod, env={"A": "b"}))
        text_ = json.dumps(machine.runtime.spec(main), sort_keys=True)
        text_ = text_.replace(main, "CONTAINER").replace(pod.id, "POD")
        specs.append(_without_pids(json.loads(text_)))
        client.remove(pod)

    specs[0]["process"]["env"].remove("NVIDIA_VISIBLE_DEVICES=void")
    assert specs[0] == specs[1]


def _without_pids(spec: dict[str, Any]) -> dict[str, Any]:
    for namespace in spec["linux"]["namespaces"]:
        namespace.pop("path", None)
    return spec


def test_answers_errors_and_streams_are_the_runtimes_own(node: Node, machine: Node) -> None:
    """The same bytes, the same codes and words, and events as they happen."""
    pod = node.cri.run_pod("web", "u7")
    main = node.cri.start(node.cri.create(pod))
    with grpc.insecure_channel(f"unix:{machine.runtime.socket}") as direct:
        through = node.cri.channel
        for method, request in (
            ("Version", b""),
            ("ListContainers", b""),
            ("ListPodSandbox", b""),
            ("ContainerStatus", cri.Identity(main).encode()),
            ("PodSandboxStatus", cri.Identity(pod.id).encode()),
            ("RuntimeConfig", b""),
            ("NoSuchMethod", b"x"),
            ("StreamContainers", b""),
            ("StartContainer", cri.Identity("none").encode()),
            ("StopContainer", b"\xff\xff"),
            ("ExecSync", b"\x0a"),
        ):
            assert _outcome(through, method, request) == _outcome(direct, method, request), method

        stream = through.unary_stream(f"{RUNTIME}/GetContainerEvents")(b"", timeout=WAIT)
        own = direct.unary_stream(f"{RUNTIME}/GetContainerEvents")(b"", timeout=WAIT)
        # Initial metadata may come with the first event only.
        other = node.cri.start(node.cri.create(pod, "other"))
        node.cri.remove_container(other)
        assert next(iter(stream))
        assert next(iter(own))
        stream.cancel()
        own.cancel()


def _outcome(channel: Any, method: str, request: bytes) -> tuple[str, str, bytes]:
    call = channel.unary_unary(f"{RUNTIME}/{method}")
    try:
        answer: bytes = call(request, timeout=WAIT)
    except grpc.RpcError as error:
        return error.code().name, error.details(), b""
    return "OK", "", answer


def test_what_was_given_outlives_a_crash_of_the_proxy(node: Node) -> None:
    """Killed and started again: it knows which container holds what, and a full card stays refused."""
    pod = node.cri.run_pod("first", "u8", record("u8", WHOLE))
    node.cri.start(node.cri.create(pod))
    node.agent.kill()
    node.agent.start()

    assert node.agent.metric("partage_agent_containers") == 1
    assert node.agent.metric("partage_agent_unprotected_containers") == 0
    later = node.cri.run_pod("later", "u9", record("u9", WHOLE))
    with pytest.raises(grpc.RpcError) as caught:
        node.cri.create(later)
    assert "CardFull" in caught.value.details()


def test_a_runtime_that_restarts_is_served_again(node: Node) -> None:
    """Meanwhile the kubelet gets UNAVAILABLE, as from the runtime itself."""
    pod = node.cri.run_pod("first", "u10", record("u10", SHARE))
    node.cri.start(node.cri.create(pod))
    node.runtime.stop()
    code, _, _ = _outcome(node.cri.channel, "Version", b"")
    assert code == "UNAVAILABLE"
    node.runtime.start()
    deadline = time.monotonic() + WAIT
    while _outcome(node.cri.channel, "Version", b"")[0] != "OK":
        assert time.monotonic() < deadline
        time.sleep(0.02)

    main = node.cri.start(node.cri.create(pod, "main2", {"CUDA_VERSION": "9.0"}))
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in node.cri.says(main, "env")
    assert node.agent.metric("partage_agent_containers") == 2
