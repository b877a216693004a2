"""The messages on an NRI connection, those of ttrpc and of NRI v1alpha1, as far as the agent uses them.

Field numbers are those of NRI 0.6 (containerd 1.7) to 0.12; they have not changed between these.
Source: docs/sources/kubernetes.md 1.4; the interface's published definition.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from partage.agent.protobuf import (
    Message,
    blob,
    flag,
    integer,
    message,
    messages,
    natural,
    text,
    text_map,
    texts,
)
from partage.vendors.reserved import RESERVED
from partage.vendors.runtimes import CDI_ANNOTATION
from partage.wire.heeded import KEYS

_KEYS: Final = frozenset(one.encode() for one in KEYS)
_PREFIXES: Final = tuple(one.encode() for one in (CDI_ANNOTATION, *RESERVED.prefixes))


def is_read(key: bytes) -> bool:
    """Whether the agent reads a label or annotation; a tenant's pod may have a hundred thousand others."""
    return key in _KEYS or key.startswith(_PREFIXES)


RUNTIME: Final = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN: Final = "nri.pkg.api.v1alpha1.Plugin"


class Event(IntEnum):
    """The events that this plugin subscribes to; bit `event - 1` of the mask."""

    CREATE_CONTAINER = 4
    START_CONTAINER = 6
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11


class Status(Message):
    """The result of a call; code 0 means success."""

    code: int = integer(1)
    message: str = text(2)


class Request(Message):
    service: str = text(1)
    method: str = text(2)
    payload: bytes = blob(3)
    timeout_nano: int = integer(4)


class Response(Message):
    status: Status | None = message(1, Status)
    payload: bytes = blob(2)


class PodSandbox(Message):
    """A pod in the runtime: the kubelet passes labels and annotations on, and those that are read here are kept."""

    id: str = text(1)
    name: str = text(2)
    uid: str = text(3)
    namespace: str = text(4)
    labels: Mapping[str, str] = text_map(5, is_read)
    annotations: Mapping[str, str] = text_map(6, is_read)


class Mount(Message):
    destination: str = text(1)
    type: str = text(2)
    source: str = text(3)
    options: tuple[str, ...] = texts(4)


class Wrapped(Message):
    """A number that may be absent."""

    value: int = natural(1)


class Device(Message):
    path: str = text(1)
    type: str = text(2)
    major: int = integer(3)
    minor: int = integer(4)
    file_mode: Wrapped | None = message(5, Wrapped)
    uid: Wrapped | None = message(6, Wrapped)
    gid: Wrapped | None = message(7, Wrapped)


class LinuxContainer(Message):
    devices: tuple[Device, ...] = messages(2, Device)


class Container(Message):
    """A container in the runtime; `env` is the process's environment, the image's variables included."""

    id: str = text(1)
    pod_sandbox_id: str = text(2)
    name: str = text(3)
    state: int = integer(4)
    annotations: Mapping[str, str] = text_map(6, is_read)
    args: tuple[str, ...] = texts(7)
    env: tuple[str, ...] = texts(8)
    mounts: tuple[Mount, ...] = messages(9, Mount)
    linux: LinuxContainer | None = message(11, LinuxContainer)
    pid: int = natural(12)


class RegisterPluginRequest(Message):
    plugin_name: str = text(1)
    plugin_idx: str = text(2)


class ConfigureRequest(Message):
    runtime_name: str = text(2)
    runtime_version: str = text(3)


class ConfigureResponse(Message):
    events: int = integer(2)


class SynchronizeResponse(Message):
    """No changes; `more` confirms that more messages follow."""

    more: bool = flag(2)


class ContainerRequest(Message):
    """A container is about to be created, or has ended for any reason."""

    pod: PodSandbox | None = message(1, PodSandbox)
    container: Container | None = message(2, Container)


class StateChange(Message):
    event: int = integer(1)
    pod: PodSandbox | None = message(2, PodSandbox)
    container: Container | None = message(3, Container)


def repeated(container: Container, ours: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables of ours that occur again in a container, with another value.

    An image and a pod may both set one. A runtime changes the first, and the process would read the pod's.
    """
    seen: set[str] = set()
    for line in container.env:
        key, _, value = line.partition("=")
        if key in seen and ours.get(key, value) != value:
            yield key, value
        seen.add(key)


def named(pod: PodSandbox, container: Container) -> str:
    """A container by its pod's name and its own, for people."""
    return f"pod {pod.namespace}/{pod.name}, container {container.name}"


class Variable(Message):
    key: str = text(1)
    value: str = text(2)


class LinuxAdjustment(Message):
    devices: tuple[Device, ...] = messages(1, Device)


class Hook(Message):
    """A program that the runtime runs; the time limit is in seconds."""

    path: str = text(1)
    args: tuple[str, ...] = texts(2)
    env: tuple[str, ...] = texts(3)
    timeout: Wrapped | None = message(4, Wrapped)


class Hooks(Message):
    prestart: tuple[Hook, ...] = messages(1, Hook)
    create_runtime: tuple[Hook, ...] = messages(2, Hook)
    create_container: tuple[Hook, ...] = messages(3, Hook)
    start_container: tuple[Hook, ...] = messages(4, Hook)
    poststart: tuple[Hook, ...] = messages(5, Hook)
    poststop: tuple[Hook, ...] = messages(6, Hook)


class CdiDevice(Message):
    """A device by its CDI name; containerd ignores it before 2.1."""

    name: str = text(1)


class Adjustment(Message):
    annotations: Mapping[str, str] = text_map(2)
    mounts: tuple[Mount, ...] = messages(3, Mount)
    env: tuple[Variable, ...] = messages(4, Variable)
    hooks: Hooks | None = message(5, Hooks)
    linux: LinuxAdjustment | None = message(6, LinuxAdjustment)
    cdi_devices: tuple[CdiDevice, ...] = messages(8, CdiDevice)


class CreateContainerResponse(Message):
    """The answer; without an adjustment the container stays unchanged."""

    adjust: Adjustment | None = message(1, Adjustment)
