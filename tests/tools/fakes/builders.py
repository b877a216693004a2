"""Builders of model values for tests: short to write, complete, and with sensible defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from partage.model.device import Device, DeviceType, Topology, VirtualFunction
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.request import (
    ContainerAsk,
    DeviceRequest,
    Phase,
    PodRequest,
    RequestGroup,
)

__all__ = ["GIB", "card", "f1_devices", "make_node", "make_pod", "nic", "share", "whole"]

T = TypeVar("T")

GIB: Final = 2**30


def card(minor: int, *, memory: int = 16, prefix: str = "GPU", **fields: object) -> Device:
    """A healthy card of `memory` GiB."""
    base = Device(DeviceType.GPU, minor, f"{prefix}-{minor}", memory_bytes=memory * GIB)
    return _with(base, fields)


def nic(minor: int, numa: int, pcie: str, *, bus: str, functions: int = 0) -> Device:
    """A network card with so many virtual functions labelled `type=general`."""
    stem = bus.rsplit(".", 1)[0]
    return Device(
        DeviceType.RDMA,
        minor,
        bus,
        labels={"type": "fakeW"},
        topology=Topology(numa, pcie, bus),
        functions=tuple(
            VirtualFunction(i, f"{stem}.{i + 2}", {"type": "general"}) for i in range(functions)
        ),
    )


def f1_devices(memory: int = 80, functions: int = 4) -> tuple[Device, ...]:
    """The well-known server: eight cards, four network cards, four switches, two NUMA nodes."""
    cards = [
        card(i, memory=memory, topology=Topology(i // 4, str(i // 2), f"0000:{i:02x}:00.0"))
        for i in range(8)
    ]
    buses = ("0000:1f:00.0", "0000:90:00.0", "0000:51:00.0", "0000:b9:00.0")
    nics = [nic(i + 1, i // 2, str(i), bus=buses[i], functions=functions) for i in range(4)]
    return (*cards, *nics)


def make_node(name: str = "node-1", devices: Sequence[Device] = (), **fields: object) -> Node:
    """A node with these devices and unchecked ordinary resources."""
    return _with(Node(name, devices=tuple(devices)), fields)


def share(
    core: int = 0,
    memory: float = 0,
    *,
    ratio: int = 0,
    count: int = 1,
    type_: DeviceType = DeviceType.GPU,
    **fields: object,
) -> DeviceRequest:
    """A share: `core` and `ratio` in percent of a card, `memory` in GiB."""
    base = DeviceRequest(
        type_, count, core * 10, memory_bytes=int(memory * GIB), memory_milli=ratio * 10
    )
    return _with(base, fields)


def whole(count: int = 1, **fields: object) -> DeviceRequest:
    """So many whole cards."""
    base = DeviceRequest(DeviceType.GPU, count, 1000, memory_milli=1000, whole=True)
    return _with(base, fields)


def make_pod(
    name: str = "pod",
    *requests: DeviceRequest,
    protocol: str = "test",
    phase: Phase = Phase.MAIN,
    host: Mapping[str, int] | None = None,
    **fields: object,
) -> Pod:
    """A pod with one container a request."""
    groups = tuple(
        RequestGroup(protocol, request, (ContainerAsk(f"c{i}", phase),), phase)
        for i, request in enumerate(requests)
    )
    base = Pod(f"uid-{name}", "default", name, request=PodRequest(groups), host=host or {})
    return _with(base, fields)


def _with(value: T, fields: Mapping[str, object]) -> T:
    return replace(value, **fields) if fields else value  # type: ignore[type-var]
