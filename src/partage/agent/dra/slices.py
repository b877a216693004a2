"""Makes a node's ResourceSlices from the found devices: the cards as DRA's allocator counts them.

    pool (one a node)
      counters-0 …   for cards that may be cut: the counters that its instances share, eight cards a slice
      devices-0 …    gpu-0 …                     a card's shares, as often as its capacity lasts
                     gpu-0-mig-1g-10gb-0 …       one device for every place of an instance

Counters alone keep a card safe that serves shares and instances: `gpu-N` takes all of them, once, for any number
of shares, and each instance takes its part. Cards with limits that counters cannot express (an operator's list of
layouts) are not offered, since an allocator that does not know the list would break it.

A device that no pod may get at present keeps its name and has a taint, so its holder stays known.

Source: Kubernetes' API types of resource.k8s.io/v1 at v1.36.4 (limits, validation); KEP-4815, 5055 and 5075.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from partage.agent.device_document import LOST, owner
from partage.agent.discovery.found import Found, Inventory
from partage.model.cutting import Cutting
from partage.model.device import MILLI, Device, DeviceType, SliceMode
from partage.model.mig import ENGINES, MigAxis, MigProfile, MigSlice
from partage.model.node import Node
from partage.model.quantity import binary
from partage.vendors.names import DRA_DRIVER
from partage.vendors.traits import files_known
from partage.wire.claims import instance_name, profile_label, share_name
from partage.wire.outcomes import said

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
MIB: Final = 2**20

MOST_DEVICES: Final = 64
"""Devices of a slice whose devices have taints or use counters."""
MOST_SETS: Final = 8
MOST_COUNTERS: Final = 32
_LONGEST_NAME: Final = 253
_LONGEST_TEXT: Final = 64
_LONGEST_VALUE: Final = 63
_PERCENT: Final = MILLI // 100

_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]+")

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Offered:
    """The offers beside shares.

    `instances`: if this agent creates them and the API server keeps counters. `taints`: for devices that must not be
    allocated, which are left out otherwise.
    """

    instances: bool = False
    taints: bool = True


def resource_slices(
    node: Node,
    inventory: Inventory,
    uid: str,
    generation: int,
    offered: Offered = Offered(),
    order: Iterable[str] = (),
    totals: Mapping[int, int] | None = None,
) -> tuple[Body, ...]:
    """All ResourceSlices of the node's pool; none if it offers nothing.

    Args:
        uid: of the Node, which becomes their owner.
        order: names of devices in the order that an allocator should try them; others follow by number.
        totals: total memory in bytes of cards that pods hold a part of, by number.
    """
    first = {name: place for place, name in enumerate(order)}
    known = {one.device.uuid: one for one in inventory.found}
    domains = _domains(inventory, node.devices)
    sets: list[Body] = []
    devices: list[Body] = []
    for device in sorted(node.devices, key=lambda one: one.minor):
        if not _offers(node, device, known.get(device.uuid)):
            continue
        total = (totals or {}).get(device.minor, device.memory_bytes)
        card = _Card(node, device, known.get(device.uuid), domains.get(device.uuid), total)
        mine = list(card.devices(offered))
        devices += mine
        if any("consumesCounters" in one for one in mine):
            sets.append(card.counters)
    devices.sort(key=lambda one: first.get(one["name"], len(first)))
    parts: list[tuple[str, Body]] = [
        (f"counters-{index}", {"sharedCounters": some})
        for index, some in enumerate(_pieces(sets, MOST_SETS))
    ]
    # The allocator tries slices in the order of their names.
    digits = len(str(max(len(devices) - 1, 0) // MOST_DEVICES))
    parts += [
        (f"devices-{index:0{digits}}", {"devices": some})
        for index, some in enumerate(_pieces(devices, MOST_DEVICES))
    ]
    pool = {"name": node.name, "generation": generation, "resourceSliceCount": len(parts)}
    slices = [slice_of(node.name, part, dict(pool), content) for part, content in parts]
    for one in slices:
        one["metadata"]["ownerReferences"] = [owner(node.name, uid)]
    return tuple(slices)


def slice_of(node: str, part: str, pool: Body, content: Body) -> Body:
    """One ResourceSlice of a node, without an owner."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(node, part)},
        "spec": {"driver": DRA_DRIVER, "nodeName": node, "pool": pool, **content},
    }


def _offers(node: Node, device: Device, found: Found | None) -> bool:
    """Whether a device is a card that this driver can share by compute and memory."""
    return (
        device.type is DeviceType.GPU
        and not device.vendor_cut  # its vendor's plugin cuts it, and does not know claims
        and (found is None or found.percent)
        and device.core_milli >= _PERCENT
        and device.memory_bytes >= MIB
        and (
            files_known(said(node, device, "vendor")) or (found is not None and bool(found.files))
        )
    )


@dataclass(frozen=True, slots=True)
class _Card:
    node: Node
    device: Device
    found: Found | None
    domain: int | None
    total: int

    def devices(self, offered: Offered) -> Iterator[Body]:
        """Its devices, by the ways in which it may be cut."""
        taint = self._taint()
        if taint is not None and not offered.taints:
            return
        marks = {} if taint is None else {"taints": [taint]}
        mode, cutting = self.device.mode, self.cutting if offered.instances else None
        if mode is not SliceMode.MIG:
            counters = self._takes(_total(cutting.axis)) if cutting is not None else {}
            yield {**self._share(), **counters, **marks}
        if mode is not SliceMode.SHARE and cutting is not None:
            for profile in cutting.axis.profiles:
                if not cutting.may_make(profile) or not _countable(cutting.axis, profile):
                    continue
                # From the end: the low units stay together for large ones.
                for start in reversed(profile.starts):
                    one = profile.at(start)
                    takes = self._takes(_consumed(cutting.axis, one))
                    yield {**self._instance(profile, one), **takes, **marks}

    @property
    def cutting(self) -> Cutting | None:
        """How it is cut into instances; None if counters cannot express the operator's bounds."""
        cutting = self.device.cutting
        usable = cutting is not None and not cutting.geometries and cutting.axis.length
        return cutting if usable else None

    @property
    def counters(self) -> Body:
        """The counters that its instances share, without the amounts of foreign instances."""
        assert self.cutting is not None  # noqa: S101 # only such cards have devices that take some
        axis = self.cutting.axis
        left = dict(_total(axis))
        for one in self.device.foreign:
            for name, amount in _consumed(axis, one.instance).items():
                left[name] = max(left.get(name, 0) - amount, 0)
        return {"name": share_name(self.device.minor), "counters": _amounts(left)}

    def _takes(self, consumed: Mapping[str, int]) -> Body:
        taken = {"counterSet": share_name(self.device.minor), "counters": _amounts(consumed)}
        return {"consumesCounters": [taken]}

    def _share(self) -> Body:
        memory = self.device.memory_bytes // MIB * MIB
        cores = self.device.core_milli // _PERCENT
        most = min(cores, 100)
        capacity: Body = {
            # A share may request memory alone: then it has no compute of its own, and no limit.
            "cores": _divided(str(cores), str(most), "1", least="0"),
            "memory": _divided(str(binary(memory)), str(binary(memory)), str(binary(MIB))),
        }
        # Always: otherwise a claim would not count beside pods that add a limit later.
        one = {"default": "1", "validValues": ["1"]}
        capacity["sharers"] = {"value": str(self.device.slots), "requestPolicy": one}
        return {
            "name": share_name(self.device.minor),
            "attributes": self._attributes("share", self.total),
            "capacity": capacity,
            "allowMultipleAllocations": True,
        }

    def _instance(self, profile: MigProfile, one: MigSlice) -> Body:
        told = {"profile": {"string": profile.name}, "start": {"int": one.start}}
        capacity: Body = {"cores": {"value": str(profile.core_milli // _PERCENT)}}
        if profile.memory_bytes:
            capacity["memory"] = {"value": str(binary(profile.memory_bytes))}
        return {
            "name": instance_name(self.device.minor, one),
            "attributes": self._attributes("mig", profile.memory_bytes) | told,
            "capacity": capacity,
        }

    def _attributes(self, kind: str, memory: int) -> Body:
        """The known attributes; unknown ones are left out."""
        device, found = self.device, self.found
        texts = {
            "kind": kind,
            "uuid": device.uuid,
            "productName": (found.product if found else "") or device.model,
            "model": device.model,
            "vendor": said(self.node, device, "vendor"),
            "architecture": found.architecture if found else "",
        }
        numbers = {"index": device.minor, "memory": memory or None, "nvlinkDomain": self.domain}
        place = device.topology
        attributes: Body = {name: {"string": _cut(text)} for name, text in texts.items() if text}
        if place is not None and place.numa >= 0:
            numbers["numaNode"] = place.numa
        attributes |= {
            name: {"int": number} for name, number in numbers.items() if number is not None
        }
        version = _VERSION.match(found.driver) if found else None
        if version is not None:
            # A semantic version has three numbers without leading zeros; 535.104.05 is none.
            numbers_of = (int(part or 0) for part in version.groups())
            attributes["driverVersion"] = {"version": ".".join(map(str, numbers_of))}
        if place is not None and _ROOT.fullmatch(place.pcie):
            attributes[PCIE_ROOT] = {"string": place.pcie}
        return attributes

    def _taint(self) -> Body | None:
        """The taint of a device that must not be allocated now; None if it may be."""
        device = self.device
        if not device.healthy:
            reason = self.found.reason if self.found else LOST
            return _marked("unhealthy", reason or "DeviceUnhealthy")
        if device.doubt:
            return _marked("closed", device.doubt)
        return _marked("cordoned", "") if device.cordoned or self.node.shut else None


def _cut(text: str) -> str:
    """A text of at most so many bytes of UTF-8 as an API server takes."""
    return text.encode(errors="replace")[:_LONGEST_TEXT].decode(errors="ignore")


def _marked(key: str, value: str) -> Body:
    short = _ODD.sub("-", value)[:_LONGEST_VALUE].strip("-_.")
    taint = {"key": f"{DRA_DRIVER}/{key}", "value": short, "effect": "NoSchedule"}
    return {name: text for name, text in taint.items() if text}


def _divided(total: str, most: str, step: str, least: str = "") -> Body:
    """An amount that shares divide: a request without one takes the largest possible."""
    least = least or step
    within = {"min": least, "max": most, "step": step} if total != least else {"min": least}
    return {"value": total, "requestPolicy": {"default": most, "validRange": within}}


# --- counters ----------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _total(axis: MigAxis) -> Mapping[str, int]:
    """All counters that instances of a card share, by name.

    They are its memory units, its engines, the number of instances of a profile if units and engines do not limit it
    enough, and one counter for two profiles that exclude each other: an instance of the one takes all of it, an
    instance of the other a part.
    """
    total = {_unit(number): 1 for number in range(axis.length)}
    if axis.engines is not None:
        counts = zip(ENGINES, axis.engines.counts, strict=True)
        total |= {name: count for name, count in counts if count}
    total |= {_count(one): one.count for one in axis.profiles if one.count < _fitting(one)}
    for pair in axis.apart:
        single, many = _ordered(axis, pair)
        if single.count == 1:
            total[_pair(single, many)] = many.count
    return MappingProxyType(total)


def _consumed(axis: MigAxis, instance: MigSlice) -> dict[str, int]:
    """The counters that one instance takes; for a profile that the card does not have, its units alone."""
    taken = {
        _unit(number): 1
        for number in range(instance.start, min(instance.start + instance.size, axis.length))
    }
    profile = next((one for one in axis.profiles if one.name == instance.profile), None)
    if profile is None:
        return taken
    total = _total(axis)
    if profile.engines is not None and axis.engines is not None:
        counts = zip(ENGINES, profile.engines.counts, strict=True)
        taken |= {name: count for name, count in counts if count}
    if _count(profile) in total:
        taken[_count(profile)] = 1
    for pair in axis.apart:
        if profile.name in pair:
            single, many = _ordered(axis, pair)
            if single.count == 1:
                taken[_pair(single, many)] = many.count if profile is single else 1
    return taken


def _countable(axis: MigAxis, profile: MigProfile) -> bool:
    """Whether counters limit a profile as the card's driver does; if not, it is not offered."""
    apart = [_ordered(axis, pair) for pair in axis.apart if profile.name in pair]
    return all(single.count == 1 for single, _ in apart) and len(_total(axis)) <= MOST_COUNTERS


def _ordered(axis: MigAxis, pair: tuple[str, str]) -> tuple[MigProfile, MigProfile]:
    """Two profiles, first the one with fewer instances on a card."""
    one, other = sorted(map(axis.profile, pair), key=lambda each: (each.count, each.name))
    return one, other


def _fitting(profile: MigProfile) -> int:
    """The number of instances of a profile that fit by their places alone."""
    ends, count = 0, 0
    for start in profile.starts:
        if start >= ends:
            ends, count = start + profile.size, count + 1
    return count


def _unit(number: int) -> str:
    return f"unit-{number}"


def _count(profile: MigProfile) -> str:
    return f"count-{profile_label(profile.name)}"


def _pair(single: MigProfile, many: MigProfile) -> str:
    return f"apart-{profile_label(single.name)}-{profile_label(many.name)}"


def _amounts(counts: Mapping[str, int]) -> Body:
    return {name: {"value": str(count)} for name, count in counts.items()}


# --- names -------------------------------------------------------------------------------------


def slice_name(node: str, part: str) -> str:
    """The name of one slice of a node; if it would be too long, a hash replaces the node's name."""
    name = f"{node}-{DRA_DRIVER}-{part}"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = sha256(node.encode()).hexdigest()[:16]
    kept = _LONGEST_NAME - len(digest) - len(name) + len(node) - 1
    return f"{node[:kept].rstrip('.-')}-{digest}-{DRA_DRIVER}-{part}"


def _pieces(all_of: Sequence[Body], most: int) -> Iterator[list[Body]]:
    return (list(all_of[start : start + most]) for start in range(0, len(all_of), most))


def _domains(inventory: Inventory, devices: Sequence[Device]) -> dict[str, int]:
    """The lowest number among the cards that a card reaches by direct links or by NVSwitches, itself included."""
    minors = {one.uuid: one.minor for one in devices if one.type is DeviceType.GPU}
    groups = [frozenset(pair) for pair in inventory.links]
    groups += [
        frozenset(uuid for uuid, those in inventory.switches.items() if switch in those)
        for switch in frozenset[str]().union(*inventory.switches.values())
    ]
    groups = [known for group in groups if len(known := group & minors.keys()) > 1]
    lowest = {uuid: minors[uuid] for group in groups for uuid in group}
    changed = True
    while changed:
        changed = False
        for group in groups:
            least = min(lowest[uuid] for uuid in group)
            for uuid in group:
                changed |= lowest[uuid] != least
                lowest[uuid] = least
    return lowest
