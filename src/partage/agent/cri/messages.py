"""The messages of CRI v1 that the proxy reads or extends.

The rest of a message stays unchanged, in bytes. Source: the interface's published definition;
docs/sources/kubernetes.md 1.3.
"""

from collections.abc import Mapping
from typing import Final

from partage.agent.nri.messages import CdiDevice, Variable, is_read
from partage.agent.protobuf import Message, flag, integer, message, messages, text, text_map

RUNTIME: Final = "runtime.v1.RuntimeService"
IMAGE: Final = "runtime.v1.ImageService"
CONFIG: Final = 2
"""Field of CreateContainerRequest that holds the container's configuration."""
POD_CONFIG: Final = 3
"""Field of it that holds the pod's configuration."""
ENVS: Final = 6
MOUNTS: Final = 7
DEVICES: Final = 8
ANNOTATIONS: Final = 10
CDI_DEVICES: Final = 17
EXITED: Final = 2
"""State of an ended container."""


class Identity(Message):
    """The identity of one container or pod, without the fields that are not used; also the answer to a creation."""

    id: str = text(1)


class PodName(Message):
    name: str = text(1)
    uid: str = text(2)
    namespace: str = text(3)


class PodConfig(Message):
    metadata: PodName | None = message(1, PodName)
    labels: Mapping[str, str] = text_map(6, is_read)
    annotations: Mapping[str, str] = text_map(7, is_read)


class ContainerName(Message):
    """The name of a container; the attempt counts its restarts."""

    name: str = text(1)
    attempt: int = integer(2)


class Image(Message):
    image: str = text(1)


class Mount(Message):
    container_path: str = text(1)
    host_path: str = text(2)
    readonly: bool = flag(3)


class Device(Message):
    container_path: str = text(1)
    host_path: str = text(2)
    permissions: str = text(3)


class Security(Message):
    privileged: bool = flag(2)


class Linux(Message):
    security: Security | None = message(2, Security)


class ContainerConfig(Message):
    metadata: ContainerName | None = message(1, ContainerName)
    image: Image | None = message(2, Image)
    envs: tuple[Variable, ...] = messages(ENVS, Variable)
    mounts: tuple[Mount, ...] = messages(MOUNTS, Mount)
    devices: tuple[Device, ...] = messages(DEVICES, Device)
    annotations: Mapping[str, str] = text_map(ANNOTATIONS, is_read)
    linux: Linux | None = message(15, Linux)
    cdi_devices: tuple[CdiDevice, ...] = messages(CDI_DEVICES, CdiDevice)


class CreateRequest(Message):
    pod: str = text(1)
    config: ContainerConfig | None = message(CONFIG, ContainerConfig)
    pod_config: PodConfig | None = message(POD_CONFIG, PodConfig)


class ListedContainer(Message):
    id: str = text(1)
    pod: str = text(2)
    metadata: ContainerName | None = message(3, ContainerName)
    state: int = integer(6)
    annotations: Mapping[str, str] = text_map(9, is_read)


class ListedContainers(Message):
    containers: tuple[ListedContainer, ...] = messages(1, ListedContainer)


class ListedPod(Message):
    id: str = text(1)
    metadata: PodName | None = message(2, PodName)
    labels: Mapping[str, str] = text_map(5, is_read)
    annotations: Mapping[str, str] = text_map(6, is_read)


class ListedPods(Message):
    items: tuple[ListedPod, ...] = messages(1, ListedPod)


class ImageStatusRequest(Message):
    """Asks for an image; a verbose answer has the image's own variables."""

    image: Image | None = message(1, Image)
    verbose: bool = flag(2)


class Details(Message):
    """The verbose answer about an image or a container; `info` is JSON in the runtime's format."""

    info: Mapping[str, str] = text_map(2)
