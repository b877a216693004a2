"""Koordinator's Device object as devices.

An odd device never counts as free. A device is closed if it repeats a number or an identity, has
negative amounts, has unknown contents, or is a card that reports no memory. A device that cannot be
addressed at all (no number, an unknown type) is left out with a note.

Source: docs/sources/koordinator.md 1 and 2.1; the MetaX and Koordinator documents.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Final

from partage.model.device import MILLI, Device, DeviceType, Topology, VirtualFunction
from partage.model.errors import InvalidValue
from partage.vendors import names
from partage.vendors.catalog import KOORDINATOR_ALIASES
from partage.wire import shapes
from partage.wire.amounts import quantities
from partage.wire.documents import Document, invalid, texts
from partage.wire.foreign import OnCard, decode_foreign
from partage.wire.identities import made_of_number
from partage.wire.mig_profiles import decode_axes

_PERCENT: Final = MILLI // 100
_TYPES: Final = {kind.value: kind for kind in DeviceType}
_NO_LABELS: Final[Mapping[str, str]] = {}
_RESERVED: Final = {*KOORDINATOR_ALIASES.values(), names.KOORD_GPU_SHARED}
_COMPUTE: Final[Mapping[str, str]] = {
    DeviceType.GPU: names.KOORD_GPU_CORE,
    DeviceType.RDMA: names.KOORD_RDMA,
    DeviceType.FPGA: names.KOORD_FPGA,
}
_MOST: Final = 10**9  # percent or native units; more than any device has
_MOST_BYTES: Final = 2**56
_MOST_MINOR: Final = 2**31
_MOST_EXTRAS: Final = 16
"""Amounts of a device beside compute and memory; each takes a column of the books."""
MOST_DEVICES: Final = 80
"""Devices of one type on one node. The largest machines on the market have 16 or 32."""
_MOST_FUNCTIONS: Final = 256
_MOST_GROUPS: Final = 4
"""Virtual functions of a device, and groups of them with their own labels; each selector is evaluated for every one."""
_MOST_LABELS: Final = 64
"""Labels of a device, and of a group of its functions."""
LONGEST: Final = 256
"""Characters of an id, an address, a label or an amount's name: records, answers and metrics repeat them."""
_LONGEST_MESSAGE: Final = 1024
_SHOWN: Final = 64


def translate_devices(
    document: Document, labels: Mapping[str, str]
) -> tuple[tuple[Device, ...], list[str]]:
    """The devices of a Device object, ordered by type and minor, and notes on odd ones.

    `labels`: the node's labels, overlaid with the Device object's; they contain vendor and model of its cards. Raises
    `InvalidDocument`: an amount is no quantity.
    """
    notes: list[str] = []
    found: dict[tuple[DeviceType, int], Device] = {}
    make = (labels.get(names.GPU_VENDOR, "").lower(), labels.get(names.GPU_MODEL, ""))
    # Cards of a node are alike, so each distinct resource list is read once.
    known: dict[tuple[tuple[str, object], ...], _Amounts] = {}
    for index, entry in _first(_entries(document)):
        listed = tuple((entry.resources or {}).items())
        if listed not in known:
            known[listed] = _amounts(document, entry, f"spec.devices[{index}].resources")
        problem = _unaddressable(entry)
        if problem:
            notes.append(f"{document.where}: field spec.devices[{index}]: left out: {problem}")
            continue
        device = _device(document.name, entry, known[listed], make)
        key = (device.type, device.minor)
        if key not in found:
            found[key] = device
            continue
        notes.append(f"{document.where}: {device.type} {device.minor} is listed twice")
        found[key] = _closed(found[key], f"minor {device.minor} is listed twice")
    devices = _with_axes(_without_twins(found, document, notes), document, notes)
    return _with_foreign(devices, document, notes), notes


def _entries(document: Document) -> list[shapes.DeviceEntry]:
    spec = document.shape.spec if isinstance(document.shape, shapes.Device) else None
    return (spec.devices if spec else None) or []


def left_out(document: Document) -> int:
    """Devices of the object beyond the most that a node may have of a type."""
    types = Counter(one.type for one in _entries(document) if one.type in _TYPES)
    return sum(max(0, count - MOST_DEVICES) for count in types.values())


def _first(entries: list[shapes.DeviceEntry]) -> list[tuple[int, shapes.DeviceEntry]]:
    """The devices of the smallest numbers of each type, with their places; the others are not read."""
    if len(entries) <= MOST_DEVICES:
        return list(enumerate(entries))
    by: dict[str | None, list[tuple[int, int]]] = defaultdict(list)
    for index, entry in enumerate(entries):
        by[entry.type if entry.type in _TYPES else None].append((entry.minor or 0, index))
    kept = sorted(index for some in by.values() for _, index in nsmallest(MOST_DEVICES, some))
    return [(index, entries[index]) for index in kept]


@dataclass(frozen=True, slots=True)
class _Amounts:
    """A device's amounts by today's names, and the impossible ones among them."""

    by_name: Mapping[str, int]
    extras: tuple[tuple[str, int], ...]
    problem: str


def _amounts(document: Document, entry: shapes.DeviceEntry, field: str) -> _Amounts:
    """Whole amounts, rounded down; today's name wins over an older one."""
    try:
        given = quantities(entry.resources, field)
    except InvalidValue as error:
        raise invalid(document, error) from error
    by_name: dict[str, int] = {}
    problem = ""
    for name, amount in given.items():
        today = name
        if name.startswith(names.KUBERNETES_DOMAIN):
            today = names.KOORDINATOR_DOMAIN + name.removeprefix(names.KUBERNETES_DOMAIN)
            if today in given:
                continue
        most = _MOST_BYTES if today == names.KOORD_GPU_MEMORY else _MOST
        if not 0 <= amount.floor() <= most:
            problem = f"{name[:LONGEST]}: {amount} is not from 0 to {most}"
        by_name[today] = min(max(amount.floor(), 0), most)
    longest = max(by_name, key=len, default="")
    if long := _long("longest name of an amount", longest):
        problem = long
        by_name = {name: amount for name, amount in by_name.items() if name in _RESERVED}
    extras = tuple(sorted((n, a) for n, a in by_name.items() if n not in _RESERVED))
    if len(extras) > _MOST_EXTRAS:
        problem = f"it has {len(extras)} amounts beside compute and memory, {_MOST_EXTRAS} at most"
        extras = ()
    return _Amounts(by_name, extras, problem)


def _unaddressable(entry: shapes.DeviceEntry) -> str:
    """The reason why the device cannot be distinguished from others; empty when it can."""
    if entry.type not in _TYPES:
        return f"type {(entry.type or '')[:_SHOWN]!r} is not one of {', '.join(DeviceType)}"
    if entry.minor is None:
        return "its minor is missing"
    if not 0 <= entry.minor < _MOST_MINOR:
        return f"minor {entry.minor} is not a number from 0"
    return ""


def _device(
    node: str, entry: shapes.DeviceEntry, amounts: _Amounts, make: tuple[str, str]
) -> Device:
    kind, minor = _TYPES[entry.type or ""], entry.minor or 0
    problems = [amounts.problem] if amounts.problem else []
    functions = _functions(entry, problems)
    is_card = kind is DeviceType.GPU
    memory = amounts.by_name.get(names.KOORD_GPU_MEMORY, 0) if is_card else 0
    labels = _labels(entry.labels, problems)
    topology = _topology(entry.topology, problems)
    if long := _long("id", entry.id):
        problems.append(long)
    # The ratio of its memory would be 0 for any number of pods.
    if is_card and entry.health is True and not memory:
        problems.append(f"it reports no {names.KOORD_GPU_MEMORY}")
    if entry.health is None:
        problems.append(_health(entry) or "its health is missing")
    problem = problems[0] if problems else ""
    healthy = entry.health is True and not problem
    return Device(
        type=kind,
        minor=minor,
        uuid=(entry.id or "")[:LONGEST] or made_of_number(node, kind, minor),
        vendor=make[0] if is_card else "",
        model=make[1] if is_card else "",
        healthy=healthy,
        core_milli=amounts.by_name.get(_COMPUTE[kind], 100) * _PERCENT,
        memory_bytes=memory,
        extras=amounts.extras,
        labels=labels,
        topology=topology,
        functions=functions,
        health_detail="" if healthy else problem or _health(entry),
    )


def _long(what: str, text: str | None) -> str:
    """The error if a text is longer than any real one."""
    length = len(text or "")
    return f"its {what} has {length} characters, {LONGEST} at most" if length > LONGEST else ""


def _labels(given: shapes.Texts, problems: list[str], who: str = "") -> Mapping[str, str]:
    """Labels of a device or of its functions; none if there are too many or one is too long."""
    if not given:
        return _NO_LABELS  # nearly always
    problem = f"it has {len(given)} labels, {_MOST_LABELS} at most"
    found = _NO_LABELS
    if len(given) <= _MOST_LABELS:
        found = texts(given)
        problem = _long(
            "longest label", max((text for one in found.items() for text in one), key=len)
        )
    if problem:
        problems.append(who + problem)
    return _NO_LABELS if problem else found


def _topology(given: shapes.DeviceTopology | None, problems: list[str]) -> Topology | None:
    """The place of a device; None if it cannot be one."""
    if given is None:
        return None
    if problem := _long("pcieID", given.pcie) or _long("busID", given.bus):
        problems.append(problem)
        return None
    numa = -1 if given.node is None else max(given.node, -1)
    socket = -1 if given.socket is None else max(given.socket, -1)
    return Topology(numa, given.pcie or "", given.bus or "", socket)


def _functions(entry: shapes.DeviceEntry, problems: list[str]) -> tuple[VirtualFunction, ...]:
    """Its virtual functions, none if there are too many; those without an address are left out."""
    groups = entry.groups or ()
    if not groups:
        return ()  # nearly always
    told: list[str] = []
    for what, number, most in (
        ("virtual functions", sum(len(one.functions or ()) for one in groups), _MOST_FUNCTIONS),
        ("groups of virtual functions", len(groups), _MOST_GROUPS),
    ):
        if number > most:
            told.append(f"it has {number} {what}, {most} at most")
    result: dict[str, VirtualFunction] = {}
    for group in () if told else groups:
        labels = _labels(group.labels, told, "a group of its virtual functions: ")
        for function in group.functions or ():
            if problem := _long("busID", function.bus_id):
                told.append(f"a virtual function: {problem}")
            if function.bus_id and function.bus_id not in result:
                minor = len(result) if function.minor is None else function.minor
                result[function.bus_id] = VirtualFunction(minor, function.bus_id, labels)
    problems += told
    return () if told else tuple(result.values())


def _health(entry: shapes.DeviceEntry) -> str:
    for condition in entry.conditions or ():
        if condition.type == "Healthy" and condition.status != "True":
            return (condition.message or condition.reason or "")[:_LONGEST_MESSAGE]
    return ""


def _closed(device: Device, why: str) -> Device:
    return replace(device, healthy=False, health_detail=why)


def _without_twins(
    found: Mapping[tuple[DeviceType, int], Device], document: Document, notes: list[str]
) -> tuple[Device, ...]:
    """The devices in order; devices that share an identity are closed, because they cannot be distinguished."""
    if len({(device.type, device.uuid) for device in found.values()}) == len(found):
        return tuple([found[key] for key in sorted(found)])  # nearly always
    uses = Counter((device.type, device.uuid) for device in found.values())
    result = []
    for key in sorted(found):
        device = found[key]
        if uses[device.type, device.uuid] > 1:
            notes.append(
                f"{document.where}: {device.type} {device.minor}: id {device.uuid[:_SHOWN]} is used twice"
            )
            device = _closed(device, f"id {device.uuid[:_SHOWN]} is used twice")
        result.append(device)
    return tuple(result)


def _with_axes(
    devices: tuple[Device, ...], document: Document, notes: list[str]
) -> tuple[Device, ...]:
    """The cards with the cuttings that their own driver reports, if it was asked."""
    text = document.annotations.get(names.MIG_PROFILES)
    if text is None:
        return devices
    told, problem = decode_axes(text)
    if problem:
        notes.append(
            f"{document.where}: annotation {names.MIG_PROFILES} cannot be read: {problem}; "
            "published figures count instead"
        )
    return tuple(
        replace(device, axis=told[device.uuid])
        if device.type is DeviceType.GPU and device.uuid in told
        else device
        for device in devices
    )


def _with_foreign(
    devices: tuple[Device, ...], document: Document, notes: list[str]
) -> tuple[Device, ...]:
    """The cards with the instances on them that Partage did not make."""
    text = document.annotations.get(names.FOREIGN_INSTANCES)
    if text is None:
        return devices
    told, problem = decode_foreign(text)
    if problem:
        problem = f"annotation {names.FOREIGN_INSTANCES} cannot be read: {problem}"
        notes.append(f"{document.where}: {problem}; the cards are closed")
    result = []
    for device in devices:
        if device.type is not DeviceType.GPU:
            result.append(device)
            continue
        there = told.get(device.uuid, OnCard(unknown=problem))
        if there.unknown and not problem:
            notes.append(
                f"{document.where}: {device.type} {device.minor}: its instances are not "
                f"known: {there.unknown}; it is closed"
            )
        doubt = there.unknown and f"its instances are not known: {there.unknown}"
        result.append(
            replace(device, foreign=there.instances, uncuttable=there.uncuttable, doubt=doubt)
        )
    lost = sorted(set(told) - {device.uuid for device in devices})
    notes += [
        f"{document.where}: annotation {names.FOREIGN_INSTANCES}: there is no card {uuid}"
        for uuid in lost
    ]
    return tuple(result)
