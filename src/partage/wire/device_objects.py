"""Koordinator's Device object as devices.

What is odd about a device never makes it free: a device that repeats a number or an identity is
closed, and so is one whose amounts are negative. What cannot be addressed at all (no number, an
unknown type) is left out with a note.

Source: koordinator.md 1 and 2.1; seeds 000 and 003.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from partage.model.device import MILLI, Device, DeviceType, Topology, VirtualFunction
from partage.model.errors import InvalidValue
from partage.model.quantity import Quantity
from partage.vendors import names
from partage.wire import shapes
from partage.wire.amounts import quantities
from partage.wire.documents import Document

__all__ = ["translate_devices"]

_PERCENT: Final = MILLI // 100
_TYPES: Final = frozenset(DeviceType)
_RESERVED: Final = frozenset(
    {
        names.KOORD_GPU, names.KOORD_GPU_CORE, names.KOORD_GPU_MEMORY,
        names.KOORD_GPU_MEMORY_RATIO, names.KOORD_GPU_SHARED, names.KOORD_RDMA, names.KOORD_FPGA,
    }
)  # fmt: skip
_COMPUTE: Final[Mapping[str, str]] = {
    DeviceType.GPU: names.KOORD_GPU_CORE,
    DeviceType.RDMA: names.KOORD_RDMA,
    DeviceType.FPGA: names.KOORD_FPGA,
}
_DEFAULTS: Final = Device(DeviceType.GPU, 0, "")


def translate_devices(
    document: Document, labels: Mapping[str, str]
) -> tuple[tuple[Device, ...], list[str]]:
    """The devices of a Device object, ordered by type and minor, and notes on odd ones.

    Args:
        document: of kind Device.
        labels: the node's labels, the Device object's copied over them; vendor and model of its
            cards.

    Raises:
        InvalidDocument: an amount is no quantity.
    """
    notes: list[str] = []
    found: dict[tuple[DeviceType, int], Device] = {}
    vendor = labels.get(names.GPU_VENDOR, "").lower()
    model = labels.get(names.GPU_MODEL, "")
    shape = document.shape
    spec = shape.spec if isinstance(shape, shapes.Device) else None
    for index, entry in enumerate((spec.devices if spec else None) or ()):
        field = f"spec.devices[{index}]"
        try:
            resources = _resources(entry, field)
        except InvalidValue as error:
            path, _, rule = str(error).removeprefix("field ").partition(": ")
            raise document.invalid(path, rule) from error
        kind, minor = entry.type or "", entry.minor
        if kind not in _TYPES or minor is None or not 0 <= minor < 2**31:
            notes.append(
                f"{document.where}: field {field}: type {kind!r}, minor {minor}: left out"
                f" (types are {', '.join(DeviceType)}, minors start at 0)"
            )
            continue
        device = _device(document.name, entry, resources, vendor, model)
        key = (device.type, device.minor)
        if key in found:
            notes.append(f"{document.where}: field {field}: {kind} {minor} is listed twice")
            found[key] = _closed(found[key], f"minor {minor} is listed twice")
        else:
            found[key] = device
    return _without_twins(found, document, notes), notes


def _resources(entry: shapes.DeviceEntry, field: str) -> dict[str, Quantity]:
    """Amounts by today's names; an older name gives way to today's."""
    given = quantities(entry.resources, f"{field}.resources")
    result: dict[str, Quantity] = {}
    for name, amount in given.items():
        today = names.KOORDINATOR_DOMAIN + name.removeprefix(names.KUBERNETES_DOMAIN)
        if not name.startswith(names.KUBERNETES_DOMAIN):
            result[name] = amount
        elif today not in given:
            result[today] = amount
    return result


def _device(
    node: str, entry: shapes.DeviceEntry, resources: dict[str, Quantity], vendor: str, model: str
) -> Device:
    kind, minor = DeviceType(entry.type or ""), entry.minor or 0
    is_card = kind is DeviceType.GPU
    negative = sorted(name for name, amount in resources.items() if amount.nano < 0)
    amounts = {name: max(amount.floor(), 0) for name, amount in resources.items()}
    device = Device(
        type=kind,
        minor=minor,
        uuid=entry.id or f"{node}-{kind}-{minor}",
        vendor=vendor if is_card else "",
        model=model if is_card else "",
        healthy=entry.health is True,
        core_milli=amounts.get(_COMPUTE[kind], 100) * _PERCENT,
        memory_bytes=amounts.get(names.KOORD_GPU_MEMORY, 0) if is_card else 0,
        extras=tuple(sorted((n, a) for n, a in amounts.items() if n not in _RESERVED)),
        labels={key: value or "" for key, value in (entry.labels or {}).items()},
        topology=_topology(entry.topology),
        functions=_functions(entry),
        health_detail="" if entry.health is True else _health(entry),
    )
    return _closed(device, f"{negative[0]} is negative") if negative else device


def _topology(given: shapes.DeviceTopology | None) -> Topology | None:
    if given is None:
        return None
    return Topology(
        numa=_known(given.node),
        pcie=given.pcie or "",
        bus=given.bus or "",
        socket=_known(given.socket),
    )


def _known(number: int | None) -> int:
    return -1 if number is None or number < 0 else number


def _functions(entry: shapes.DeviceEntry) -> tuple[VirtualFunction, ...]:
    """Its virtual functions; those without an address cannot be handed out and are left out."""
    result: list[VirtualFunction] = []
    for group in entry.groups or ():
        labels = {key: value or "" for key, value in (group.labels or {}).items()}
        for function in group.functions or ():
            if function.bus_id and all(f.bus_id != function.bus_id for f in result):
                minor = len(result) if function.minor is None else function.minor
                result.append(VirtualFunction(minor, function.bus_id, labels))
    return tuple(result)


def _health(entry: shapes.DeviceEntry) -> str:
    for condition in entry.conditions or ():
        if condition.type == "Healthy" and condition.status != "True":
            return condition.message or condition.reason or ""
    return ""


def _closed(device: Device, why: str) -> Device:
    return replace(device, healthy=False, health_detail=why)


def _without_twins(
    found: Mapping[tuple[DeviceType, int], Device], document: Document, notes: list[str]
) -> tuple[Device, ...]:
    """The devices in order; those that share an identity are closed, because nobody can tell them apart."""
    uses = Counter((device.type, device.uuid) for device in found.values())
    result = []
    for key in sorted(found):
        device = found[key]
        if uses[device.type, device.uuid] > 1:
            notes.append(
                f"{document.where}: {device.type} {device.minor}: id {device.uuid} is used twice"
            )
            device = _closed(device, f"id {device.uuid} is used twice")
        result.append(device)
    return tuple(result)
