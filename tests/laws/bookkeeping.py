"""An independent account of what pods hold, in plain sums; nothing here asks the product."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType, Topology
from partage.model.node import Node
from partage.model.request import Phase, Scope

__all__ = ["assert_sound"]

Usage = dict[str, int]


def assert_sound(nodes: Iterable[Node], allocations: Iterable[Allocation]) -> None:
    """No device is beyond its means, and every promise to every tenant holds.

    Raises:
        AssertionError: with the device and the figures.
    """
    by_name = {node.name: node for node in nodes}
    holders: dict[tuple[str, DeviceType, int], dict[str, list[Grant]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for allocation in allocations:
        for grant in allocation.grants:
            holders[allocation.node, grant.type, grant.minor][allocation.uid].append(grant)
    for (name, type_, minor), tenants in holders.items():
        device = _device(by_name[name], type_, minor)
        _within_means(device, tenants)
        _alone(device, tenants)
        _functions_once(device, tenants)
        _fences(by_name[name], device, tenants, holders)


def peak(grants: Sequence[Grant]) -> Usage:
    """The most that one pod holds of one device at any time; grants in the pod's order.

    An init container runs beside the sidecars before it, the others run all together.
    """
    most = dict(_sum(g for g in grants if g.phase is not Phase.INIT))
    for name in {g.container for g in grants if g.phase is Phase.INIT}:
        first = next(i for i, g in enumerate(grants) if g.container == name)
        beside = [g for g in grants[:first] if g.phase is Phase.SIDECAR]
        together = _sum([*beside, *(g for g in grants if g.container == name)])
        for dimension, amount in together.items():
            most[dimension] = max(most.get(dimension, 0), amount)
    return most


def _sum(grants: Iterable[Grant]) -> Usage:
    total: Usage = defaultdict(int)
    for grant in grants:
        total["core"] += grant.core_milli
        total["memory"] += grant.memory_bytes
        total["slots"] += grant.slots
        for unit, amount in grant.extras:
            total[f"unit {unit}"] += amount
    return total


def _device(node: Node, type_: DeviceType, minor: int) -> Device:
    (device,) = [d for d in node.devices if (d.type, d.minor) == (type_, minor)]
    return device


def _within_means(device: Device, tenants: Mapping[str, list[Grant]]) -> None:
    means = {"core": device.core_milli, "memory": device.memory_bytes, "slots": device.slots}
    means |= {f"unit {unit}": amount for unit, amount in device.extras}
    taken: Usage = defaultdict(int)
    for grants in tenants.values():
        for dimension, amount in peak(grants).items():
            assert amount >= 0
            taken[dimension] += amount
    for dimension, amount in taken.items():
        assert amount <= means.get(dimension, 0), f"{device.uuid}: {dimension} {amount} > {means}"
    _limits(device, tenants)


def _limits(device: Device, tenants: Mapping[str, list[Grant]]) -> None:
    """No tenant has more mates than its protocol allows, at any time of its own."""
    for uid, grants in tenants.items():
        others = sum(peak(mates).get("slots", 0) for name, mates in tenants.items() if name != uid)
        running = _sum(g for g in grants if g.phase is not Phase.INIT)["slots"]
        for i, grant in enumerate(grants):
            if grant.sharers is not None:
                beside = [g for g in grants[:i] if g.phase is Phase.SIDECAR]
                initial = grant.phase is Phase.INIT
                own = grant.slots + _sum(beside)["slots"] if initial else running
                assert others + own <= grant.sharers, f"{device.uuid}: {others} + {own}"


def _alone(device: Device, tenants: Mapping[str, list[Grant]]) -> None:
    for grants in tenants.values():
        for grant in grants:
            assert grant.uuid == device.uuid
            assert device.healthy
            assert not device.cordoned
            assert grant.protocol not in device.hidden_from
            if grant.exclusive or grant.mode is GrantMode.WHOLE:
                assert len(tenants) == 1, f"{device.uuid} is held alone by one and used by others"
        whole = [g for g in grants if g.mode is GrantMode.WHOLE and g.phase is not Phase.INIT]
        together = [g for g in grants if g.phase is not Phase.INIT and g.slots]
        if whole:
            assert len(together) == 1, (
                f"{device.uuid} is whole for one container, shared by others"
            )


def _functions_once(device: Device, tenants: Mapping[str, list[Grant]]) -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for uid, grants in tenants.items():
        concurrent = [g.function for g in grants if g.function and g.slots]
        running = [
            g.function for g in grants if g.function and g.slots and g.phase is not Phase.INIT
        ]
        assert len(running) == len(set(running)), f"{device.uuid}: a function given twice"
        for function in concurrent:
            owners[function[1]].add(uid)
            assert function in [(f.minor, f.bus_id) for f in device.functions]
    assert all(len(uids) == 1 for uids in owners.values()), f"{device.uuid}: {owners}"


def _fences(
    node: Node,
    device: Device,
    tenants: Mapping[str, list[Grant]],
    holders: Mapping[tuple[str, DeviceType, int], Mapping[str, list[Grant]]],
) -> None:
    for uid, grants in tenants.items():
        for fence in {g.fence for g in grants if g.fence is not None}:
            for other in node.devices:
                if other.type is device.type and _near(device, other, fence):
                    strangers = set(holders.get((node.name, other.type, other.minor), ())) - {uid}
                    assert not strangers, f"{device.uuid} is fenced, {strangers} on {other.uuid}"


def _near(one: Device, two: Device, scope: Scope) -> bool:
    if one.minor == two.minor or scope is Scope.NODE:
        return True
    if scope is Scope.DEVICE:
        return False
    return same_place(one.topology, two.topology, scope)


def same_place(one: Topology | None, two: Topology | None, scope: Scope) -> bool:
    """Whether two devices are known to be within one NUMA node or one PCIe switch."""
    if one is None or two is None or one.numa != two.numa:
        return False
    return scope is Scope.NUMA or one.pcie == two.pcie
