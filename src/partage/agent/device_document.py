"""Makes a node's Device object from the devices that were found, as the MetaX and Koordinator documents print it.

A pure function of the found devices and the current object. The scheduler reads back exactly the found
devices. A condition's time changes only with its status, so an unchanged node causes no write. A device that
is no longer found stays in the object as unhealthy, because pods may still hold it, and a card that fell off its bus
must differ from a card that never existed. It is removed when another device takes its number, or with the
Device object.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from partage.agent.discovery.found import Found, Inventory
from partage.agent.discovery.health import outlasts_absence
from partage.model.device import MILLI, Device, DeviceType
from partage.model.quantity import binary
from partage.vendors import names

API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
LOST: Final = "DeviceLost"
"""Condition reason of a device that existed and is not found any more."""
OWNED_LABELS: Final = (names.GPU_VENDOR, names.GPU_MODEL, names.GPU_DRIVER_VERSION)
"""Labels of a Device object that describe the found cards; the agent leaves others alone."""

_PERCENT: Final = MILLI // 100
_HEALTHY: Final = "device is healthy"
_COMPUTE: Final = {DeviceType.RDMA: names.KOORD_RDMA, DeviceType.FPGA: names.KOORD_FPGA}
_ORDER: Final = {kind.value: index for index, kind in enumerate(sorted(DeviceType))}


def device_document(
    name: str, inventory: Inventory, previous: Mapping[str, Any] | None, now: str, uid: str = ""
) -> dict[str, Any]:
    """The Device object. `previous`: the current one. `now`: as Kubernetes writes it. `uid`: of the Node, its owner."""
    known = {_place(entry): entry for entry in _entries(previous)}
    entries = [_entry(one, known, now) for one in inventory.found]
    there = {_place(entry) for entry in entries}
    identities = {(entry["type"], entry["id"]) for entry in entries}
    for place, entry in known.items():
        if place not in there and (entry.get("type"), entry.get("id")) not in identities:
            entries.append(_lost(entry, now))
    metadata: dict[str, Any] = {"name": name, "labels": _labels(inventory, previous)}
    if uid:
        metadata["ownerReferences"] = [owner(name, uid)]
    return {
        "apiVersion": API_VERSION,
        "kind": "Device",
        "metadata": metadata,
        "spec": {"devices": sorted(entries, key=_place)},
        "status": {},
    }


def cards_of(document: Mapping[str, Any] | None) -> frozenset[str]:
    """UUIDs of the cards in a Device object, also of lost ones; any client may have written it."""
    kind = DeviceType.GPU.value
    return frozenset(str(one.get("id")) for one in _entries(document) if one["type"] == kind)


def owner(name: str, uid: str) -> dict[str, Any]:
    """The reference that deletes a Device object with its Node (the Koordinator document)."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def health_condition(
    now: str, *, healthy: bool, message: str = "", reason: str = ""
) -> dict[str, str]:
    """A device's condition. `message`: the fault of an unhealthy device. `reason`: the same as one word."""
    return {
        "type": "Healthy",
        "status": "True" if healthy else "False",
        "reason": "DeviceHealthy" if healthy else reason or "DeviceUnhealthy",
        "message": _HEALTHY if healthy else message or "device is unhealthy",
        "lastTransitionTime": now,
    }


def _labels(inventory: Inventory, previous: Mapping[str, Any] | None) -> dict[str, str]:
    """The labels of the cards; while none is found, the previous labels stay."""
    card = next((one for one in inventory.found if one.device.type is DeviceType.GPU), None)
    if card is None:
        before = (previous or {}).get("metadata", {}).get("labels") or {}
        return {key: before[key] for key in OWNED_LABELS if before.get(key)}
    told = (card.device.vendor, card.device.model, card.driver)
    return {key: value for key, value in zip(OWNED_LABELS, told, strict=True) if value}


def _entry(
    one: Found, known: Mapping[tuple[int, int], Mapping[str, Any]], now: str
) -> dict[str, Any]:
    device = one.device
    entry: dict[str, Any] = {
        "type": device.type.value,
        "health": device.healthy,
        "id": device.uuid,
        "minor": device.minor,
        "resources": _resources(one),
    }
    if device.labels:
        entry["labels"] = dict(device.labels)
    if device.topology is not None:
        entry["topology"] = {
            "socketID": device.topology.socket,
            "nodeID": device.topology.numa,
            "pcieID": device.topology.pcie,
            "busID": device.topology.bus,
        }
    if device.functions:
        entry["vfGroups"] = _groups(device)
    fresh = health_condition(
        now, healthy=device.healthy, message=device.health_detail, reason=one.reason
    )
    before = known.get(_place(entry))
    same = before if before and before.get("id") == device.uuid else None
    entry["conditions"] = [_since(fresh, same)]
    return entry


def _resources(one: Found) -> dict[str, str]:
    device = one.device
    if device.type is not DeviceType.GPU:
        compute = {_COMPUTE[device.type]: str(device.core_milli // _PERCENT)}
        return compute | {name: str(amount) for name, amount in device.extras}
    compute = {names.KOORD_GPU_CORE: str(device.core_milli // _PERCENT)} if one.percent else {}
    return {
        **compute,
        **{name: str(amount) for name, amount in device.extras},
        names.KOORD_GPU_MEMORY: str(binary(device.memory_bytes)),
        names.KOORD_GPU_MEMORY_RATIO: "100",
    }


def _groups(device: Device) -> list[dict[str, Any]]:
    """Virtual functions, neighbours of the same labels together."""
    return [
        {
            "labels": dict(labels),
            "vfs": [{"minor": one.minor, "busID": one.bus_id} for one in functions],
        }
        for labels, functions in groupby(device.functions, key=lambda one: dict(one.labels))
    ]


def _since(fresh: dict[str, str], before: Mapping[str, Any] | None) -> dict[str, str]:
    """The condition, with the time of the last change of its status."""
    for condition in (before or {}).get("conditions") or ():
        time, status = condition.get("lastTransitionTime"), condition.get("status")
        if time and condition.get("type") == "Healthy" and status == fresh["status"]:
            return {**fresh, "lastTransitionTime": str(time)}
    return fresh


def _lost(entry: Mapping[str, Any], now: str) -> dict[str, Any]:
    message = "the device was there and is not found any more"
    known = (one.get("reason") for one in entry.get("conditions") or ())
    # Another agent, if this one ends meanwhile, must not trust the card when it is back.
    reason = next((str(one) for one in known if outlasts_absence(one)), LOST)
    fresh = health_condition(now, healthy=False, message=message, reason=reason)
    return {**entry, "health": False, "conditions": [_since(fresh, entry)]}


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    minor = entry.get("minor")
    kind = _ORDER.get(str(entry.get("type")), len(_ORDER))
    return kind, minor if isinstance(minor, int) else -1


def _entries(document: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    """Devices of an object that any client may have written."""
    spec = (document or {}).get("spec")
    listed = spec.get("devices") if isinstance(spec, Mapping) else None
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        return ()
    return (one for one in listed if isinstance(one, Mapping) and one.get("type") in _ORDER)
