"""The few calls of the kubelet's container runtime interface (CRI v1) that the tests make.

Pods share the host's network, so that no network plugin is needed.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from partage.agent.protobuf import (
    Message,
    blob,
    integer,
    message,
    messages,
    text,
    text_map,
    texts,
)

_NODE = 2
_EXITED = 2
_SECONDS = 240
IMAGE = "localhost/busybox:test"
CGROUP = f"partage-test-{os.getpid()}"
"""Of this run's pods: others may run beside it."""
CDI = "test.partage.io/gpu"
"""Kind of cards GPU-a and GPU-b in CDI specifications."""
GREEDY = "localhost/cuda:test"
"""The same with variables of its own that ask for every card and no limits."""


class Metadata(Message):
    name: str = text(1)
    uid: str = text(2)
    namespace: str = text(3)


class Namespaces(Message):
    network: int = integer(1)


class Security(Message):
    namespaces: Namespaces | None = message(1, Namespaces)


class LinuxPod(Message):
    cgroup_parent: str = text(1)
    security: Security | None = message(2, Security)


class PodConfig(Message):
    metadata: Metadata | None = message(1, Metadata)
    log_directory: str = text(3)
    labels: Mapping[str, str] = text_map(6)
    annotations: Mapping[str, str] = text_map(7)
    linux: LinuxPod | None = message(8, LinuxPod)


class Image(Message):
    image: str = text(1)


class KeyValue(Message):
    key: str = text(1)
    value: str = text(2)


class Mount(Message):
    container_path: str = text(1)
    host_path: str = text(2)


class ContainerConfig(Message):
    metadata: Metadata | None = message(1, Metadata)
    image: Image | None = message(2, Image)
    command: tuple[str, ...] = texts(3)
    envs: tuple[KeyValue, ...] = messages(6, KeyValue)
    mounts: tuple[Mount, ...] = messages(7, Mount)
    log_path: str = text(11)
    cdi_devices: tuple[Image, ...] = messages(17, Image)


class RunPod(Message):
    config: PodConfig | None = message(1, PodConfig)


class Create(Message):
    pod: str = text(1)
    config: ContainerConfig | None = message(2, ContainerConfig)
    pod_config: PodConfig | None = message(3, PodConfig)


class Identity(Message):
    """Most requests, and the answers that name what was made."""

    id: str = text(1)


class Stop(Message):
    id: str = text(1)
    timeout: int = integer(2)


class Exec(Message):
    id: str = text(1)
    command: tuple[str, ...] = texts(2)
    timeout: int = integer(3)


class Output(Message):
    stdout: bytes = blob(1)
    stderr: bytes = blob(2)
    exit_code: int = integer(3)


class Status(Message):
    state: int = integer(3)


class StatusAnswer(Message):
    status: Status | None = message(1, Status)


class Sandboxes(Message):
    items: tuple[Identity, ...] = messages(1, Identity)


@dataclass(frozen=True, slots=True)
class Pod:
    """A sandbox that runs."""

    id: str
    config: PodConfig


@dataclass
class Cri:
    """A client of one runtime."""

    channel: grpc.Channel
    logs: Path
    _pods: dict[str, Pod] = field(default_factory=dict)

    def call(self, method: str, request: Message) -> bytes:
        """One call; raises what the runtime says."""
        stub = self.channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")
        answer: bytes = stub(request.encode(), timeout=_SECONDS, wait_for_ready=True)
        return answer

    def run_pod(
        self,
        name: str,
        uid: str,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Pod:
        """A pod without containers."""
        linux = LinuxPod(f"/{CGROUP}", Security(Namespaces(_NODE)))
        config = PodConfig(
            Metadata(name, uid, "team"), str(self.logs), labels or {}, annotations or {}, linux
        )
        pod = Pod(Identity.decode(self.call("RunPodSandbox", RunPod(config))).id, config)
        self._pods[pod.id] = pod
        return pod

    def create(
        self,
        pod: Pod,
        name: str = "main",
        env: Mapping[str, str] | None = None,
        command: tuple[str, ...] = ("/bin/sleep", "1000"),
        image: str = IMAGE,
        mounts: Mapping[str, str] | None = None,
        cdi: tuple[str, ...] = (),
    ) -> str:
        """A container that is made and not started; mounts are host paths by their place in it."""
        envs = tuple(KeyValue(key, value) for key, value in (env or {}).items())
        binds = tuple(Mount(inside, outside) for inside, outside in (mounts or {}).items())
        named = tuple(Image(one) for one in cdi)  # the same shape
        config = ContainerConfig(
            Metadata(name), Image(image), command, envs, binds, f"{name}.log", named
        )
        return Identity.decode(self.call("CreateContainer", Create(pod.id, config, pod.config))).id

    def start(self, container: str) -> str:
        """Start it."""
        self.call("StartContainer", Identity(container))
        return container

    def says(self, container: str, *command: str) -> str:
        """What a command prints inside."""
        output = Output.decode(self.call("ExecSync", Exec(container, command, 30)))
        return (output.stdout + output.stderr).decode()

    def until_ended(self, container: str) -> None:
        """Wait until it has ended by itself."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            status = StatusAnswer.decode(self.call("ContainerStatus", Identity(container))).status
            if status is not None and status.state == _EXITED:
                return
            time.sleep(0.02)
        raise AssertionError(f"container {container} goes on")

    def stop(self, container: str, patience: int = 0) -> None:
        """Ask it to end; it is killed after the seconds of `patience`."""
        self.call("StopContainer", Stop(container, patience))

    def remove_container(self, container: str) -> None:
        """Stop and remove it."""
        self.stop(container)
        self.call("RemoveContainer", Identity(container))

    def remove(self, pod: Pod) -> None:
        """Stop and remove a pod with its containers."""
        self.call("StopPodSandbox", Identity(pod.id))
        self.call("RemovePodSandbox", Identity(pod.id))
        self._pods.pop(pod.id, None)

    def remove_all(self) -> None:
        """Every pod that was run."""
        for pod in list(self._pods.values()):
            self.remove(pod)

    def remove_found(self) -> None:
        """Every pod that there is, whatever started it."""
        for one in Sandboxes.decode(self.call("ListPodSandbox", Identity())).items:
            self.call("StopPodSandbox", Identity(one.id))
            self.call("RemovePodSandbox", Identity(one.id))


@contextmanager
def connected(socket: Path, logs: Path) -> Iterator[Cri]:
    """A client, closed at the end."""
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        yield Cri(channel, logs)
