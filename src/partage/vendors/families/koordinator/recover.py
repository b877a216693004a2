"""From `device-allocated` back to grants: takes over pods that another scheduler placed.

Both dialects are read, with quantities as strings or numbers, with or without `id` (docs/sources/koordinator.md 4). An
untrusted part becomes the record's problem, so the ledger keeps the capacity closed and does not allocate it twice.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from partage.model.allocation import Grant, GrantMode
from partage.model.device import MILLI, Device, DeviceType
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.quantity import Quantity
from partage.model.request import Phase, Scope
from partage.vendors import names
from partage.vendors.base import ContainerView, PodView
from partage.vendors.families.koordinator.amounts import (
    ALIASES,
    COUNTS,
    NAMES,
    PERCENT_OF,
    most_of,
)
from partage.vendors.families.koordinator.hints import decode, hints_of
from partage.vendors.families.koordinator.request import PROTOCOL, owned
from partage.vendors.settings import Settings
from partage.vendors.traits import HUAWEI

_PERCENT: Final = MILLI // 100
_WHOLE: Final = 100
_LASTING: Final = (Phase.SIDECAR, Phase.MAIN, Phase.INIT)
_OF_KIND: Final = {
    kind: frozenset(found) | {old for old, new in ALIASES.items() if new in found}
    for kind, found in NAMES.items()
}
_TYPES: Final = {kind.value: kind for kind in DeviceType}


class _Function(msgspec.Struct, frozen=True):
    minor: int = 0
    bus: str | None = msgspec.field(default=None, name="busID")


class _Extension(msgspec.Struct, frozen=True):
    functions: list[_Function] | None = msgspec.field(default=None, name="vfs")
    template: str | None = msgspec.field(default=None, name="gpuSharedResourceTemplate")


_NO_EXTENSION: Final = _Extension()


class _Entry(msgspec.Struct, frozen=True):
    minor: int
    resources: dict[str, str | int | float] | None = None
    id: str | None = None
    extension: _Extension | None = None


_Document = dict[str, list[_Entry] | None]


def recover(pod: PodView, node: Node, settings: Settings) -> Record | None:
    """The allocation in the pod's record; None if it has none. Never raises."""
    text = pod.annotations.get(names.DEVICE_ALLOCATED)
    if text is None:
        return None
    try:
        grants = _grants(decode(text, _Document), pod, node, settings)
    except InvalidValue as error:
        return Record(source=PROTOCOL, problem=f"annotation {names.DEVICE_ALLOCATED}: {error}")
    return Record(grants=grants, source=PROTOCOL) if grants else None


def recorded(annotations: Mapping[str, str]) -> Mapping[tuple[DeviceType, int], Mapping[str, int]]:
    """The amounts in a pod's record, by type and minor, under today's names.

    Percent and bytes are as written, because readers add up the record. Empty if there is no readable record.
    """
    try:
        return {
            (_TYPES[name], entry.minor): _amounts(entry)
            for name, entries in decode(
                annotations.get(names.DEVICE_ALLOCATED, "{}"), _Document
            ).items()
            if name in _TYPES
            for entry in entries or ()
        }
    except InvalidValue:
        return {}


def _grants(
    document: Mapping[str, list[_Entry] | None], pod: PodView, node: Node, settings: Settings
) -> tuple[Grant, ...]:
    fences = _fences(pod)
    result: list[Grant] = []
    for name, entries in sorted(document.items()):
        kind = _TYPES.get(name)
        if kind is None:
            raise InvalidValue(f"no device type {name!r}")
        owner, fence = None, fences.get(kind)
        seen: set[int] = set()
        for entry in entries or ():
            if entry.minor in seen:
                raise InvalidValue(f"{name} {entry.minor} is listed twice")
            seen.add(entry.minor)
            owner = owner or _owner(pod, kind, settings)
            result.append(_grant(_device(node, kind, entry), entry, owner, fence))
    return tuple(sorted(result, key=lambda grant: (grant.type, grant.minor)))


def _fences(pod: PodView) -> dict[DeviceType, Scope | None]:
    """The scopes around its whole devices from which the pod's hint keeps other pods away."""
    if names.DEVICE_ALLOCATE_HINT not in pod.annotations:
        return {}
    try:
        hints = hints_of(pod.annotations).by_type
    except InvalidValue:  # such a pod is never placed; its record may still be right
        return {}
    return {kind: hint.exclusive for kind, hint in hints.items()}


def _device(node: Node, kind: DeviceType, entry: _Entry) -> Device:
    minor = entry.minor
    for device in node.devices:
        if device.minor == minor and device.type is kind:
            if entry.id and entry.id != device.uuid:
                raise InvalidValue(f"{kind} {minor} is {device.uuid} on the node, not {entry.id}")
            return device
    raise InvalidValue(f"the node has no {kind} with minor {minor}")


def _owner(pod: PodView, kind: DeviceType, settings: Settings) -> ContainerView:
    """The container on which the grant is booked, because the record names none.

    It is the first that asks for this type, else the first that asks for any. Sidecars come first because they run
    beside everything else. Init containers come last because their demand ends with them. So the containers that run
    beside the grant are never counted too low.
    """
    ordered: Sequence[ContainerView] = pod.containers
    if len(ordered) > 1:
        ordered = sorted(ordered, key=lambda c: _LASTING.index(c.phase))
    listed = [(container, container.names) for container in ordered]
    for wanted in (_OF_KIND[kind], owned(settings)):
        for container, found in listed:
            for name in found & wanted:
                if name not in COUNTS or _is_ours(name, found, settings):
                    return container
    return ContainerView("")


def _is_ours(count: str, beside: frozenset[str], settings: Settings) -> bool:
    """Whether a count is Koordinator's here: a count beside others of its domain is not."""
    domain = count.partition("/")[0] + "/"
    return not any(other.startswith(domain) for other in beside - owned(settings))


def _grant(device: Device, entry: _Entry, owner: ContainerView, fence: Scope | None) -> Grant:
    amounts = _amounts(entry)
    extras = tuple([(unit, amounts[unit]) for unit in sorted(HUAWEI.units) if amounts.get(unit)])
    core, memory, whole = _compute(device, amounts, dict(extras))
    extension = entry.extension or _NO_EXTENSION
    by_vendor = device.vendor_cut or extension.template
    functions = extension.functions or []
    if len(functions) > 1:
        raise InvalidValue(f"{device.type} {device.minor} has {len(functions)} virtual functions")
    return Grant(
        container=owner.name,
        type=device.type,
        minor=device.minor,
        uuid=device.uuid,
        core_milli=device.core_milli if whole else core,
        memory_bytes=device.memory_bytes if whole else memory,
        mode=GrantMode.WHOLE if whole else GrantMode.VENDOR if by_vendor else GrantMode.SHARE,
        phase=owner.phase,
        protocol=PROTOCOL,
        extras=device.extras if whole else extras,
        function=_function(functions[0], device) if functions else None,
        template=extension.template or "",
        fence=fence if whole else None,
    )


def _function(function: _Function, device: Device) -> tuple[int, str]:
    for known in device.functions:
        if known.bus_id == function.bus:
            return known.minor, known.bus_id
    raise InvalidValue(f"{device.type} {device.minor} has no virtual function {function.bus!r}")


def _amounts(entry: _Entry) -> Mapping[str, int]:
    """Integer amounts by today's names; if both dialects are given, today's wins."""
    if not entry.resources:
        return {}
    try:
        return _amounts_of(tuple(entry.resources.items()))
    except InvalidValue as error:
        raise InvalidValue(f"minor {entry.minor}: {error}") from error


@lru_cache(maxsize=1024)
def _amounts_of(listed: tuple[tuple[str, str | int | float], ...]) -> Mapping[str, int]:
    """As `_amounts`; equal pods hold equal amounts, so each distinct list is read once."""
    result: dict[str, int] = {}
    given = dict(listed)
    for name, value in given.items():
        canonical = ALIASES.get(name, name)
        if canonical != name and canonical in given:
            continue
        amount = Quantity.parse(value).ceil()
        if amount < 0:
            raise InvalidValue(f"{name} is negative ({value})")
        if amount > most_of(canonical):
            raise InvalidValue(f"{name} is more than any device has ({value})")
        result[canonical] = amount
    return result


def _compute(
    device: Device, amounts: Mapping[str, int], extras: Mapping[str, int]
) -> tuple[int, int, bool]:
    """Compute in milli, memory in bytes, and whether that is the whole device."""
    if device.type is not DeviceType.GPU:
        percent = amounts.get(PERCENT_OF[device.type], 0)
        return percent * _PERCENT, 0, percent >= _WHOLE
    core = amounts.get(names.KOORD_GPU_CORE)
    ratio = amounts.get(names.KOORD_GPU_MEMORY_RATIO)
    memory = amounts.get(names.KOORD_GPU_MEMORY)
    if not memory and not ratio:  # upstream always writes both
        raise InvalidValue(f"minor {device.minor} has no amount of memory")
    if not memory:
        memory = (ratio or 0) * device.memory_bytes // _WHOLE
    full = ratio == _WHOLE if ratio is not None else 0 < device.memory_bytes <= memory
    milli = (core or 0) * _PERCENT
    if names.NPU_CORE in extras:
        total = dict(device.extras).get(names.NPU_CORE, 0)
        milli = min(MILLI, -(-extras[names.NPU_CORE] * MILLI // total)) if total else MILLI
    return milli, memory, full and core in (None, _WHOLE)
