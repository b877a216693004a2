"""The messages between the kubelet and a device plugin (v1beta1), and of PodResources (v1).

Source: docs/sources/kubernetes.md 3.2; the interfaces' published definitions, unchanged up to Kubernetes 1.36.
"""

from collections.abc import Mapping
from typing import Final

from partage.agent.protobuf import Message, flag, integer, message, messages, text, text_map, texts

VERSION: Final = "v1beta1"
REGISTRATION: Final = "v1beta1.Registration"
PLUGIN: Final = "v1beta1.DevicePlugin"
POD_RESOURCES: Final = "v1.PodResourcesLister"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


class Options(Message):
    pre_start_required: bool = flag(1)
    preferred_available: bool = flag(2)


class RegisterRequest(Message):
    """A plugin registers; the endpoint is a file beside the kubelet's socket."""

    version: str = text(1)
    endpoint: str = text(2)
    resource_name: str = text(3)
    options: Options | None = message(4, Options)


class NumaNode(Message):
    id: int = integer(1)


class Topology(Message):
    nodes: tuple[NumaNode, ...] = messages(1, NumaNode)


class Device(Message):
    """One unit of a resource; its identity has at most 63 characters."""

    id: str = text(1)
    health: str = text(2)
    topology: Topology | None = message(3, Topology)


class DeviceList(Message):
    devices: tuple[Device, ...] = messages(1, Device)


class ContainerPreference(Message):
    """Asks which units suit a container best."""

    available: tuple[str, ...] = texts(1)
    must_include: tuple[str, ...] = texts(2)
    size: int = integer(3)


class PreferredRequest(Message):
    containers: tuple[ContainerPreference, ...] = messages(1, ContainerPreference)


class ContainerIds(Message):
    """Units that the kubelet allocates to a container, or should; none leaves the choice to the kubelet."""

    ids: tuple[str, ...] = texts(1)


class UnitsOfContainers(Message):
    """The advice for several containers, or their allocations, without their names."""

    containers: tuple[ContainerIds, ...] = messages(1, ContainerIds)


class ContainerAllocation(Message):
    """The kubelet's additions to a container that got units."""

    envs: Mapping[str, str] = text_map(1)


class AllocateResponse(Message):
    containers: tuple[ContainerAllocation, ...] = messages(1, ContainerAllocation)


class ContainerDevices(Message):
    resource_name: str = text(1)
    ids: tuple[str, ...] = texts(2)


class ContainerResources(Message):
    name: str = text(1)
    devices: tuple[ContainerDevices, ...] = messages(2, ContainerDevices)


class PodResources(Message):
    """The units of a pod. The kubelet reports no UID here."""

    name: str = text(1)
    namespace: str = text(2)
    containers: tuple[ContainerResources, ...] = messages(3, ContainerResources)


class ListResponse(Message):
    pods: tuple[PodResources, ...] = messages(1, PodResources)


class AllocatableResponse(Message):
    """All healthy units of the node, of all plugins."""

    devices: tuple[ContainerDevices, ...] = messages(1, ContainerDevices)
