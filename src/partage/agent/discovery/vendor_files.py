"""Reads the cards that koord-device-daemon found from its JSON files, which vendors' own tools write through it.

A bad file does not hide the others, and a bad entry does not hide its neighbours: each fault is reported.

Source: docs/sources/koordinator.md 7.
"""

import re
from typing import Any, Final

import msgspec

from partage.agent.discovery import pci
from partage.agent.discovery.found import Found, Inventory, Roots
from partage.agent.discovery.nvidia import label_text
from partage.model.device import Device, DeviceType, Topology
from partage.model.errors import InvalidQuantity
from partage.model.quantity import Quantity
from partage.vendors import names

_MOST_BYTES: Final = 2**22
_DIGITS: Final = re.compile(r"[0-9]{1,5}")
_MOST_MEMORY: Final = 2**50
_MOST_UNITS: Final = 2**31
_OWN: Final = frozenset(
    {names.KOORD_GPU_CORE, names.KOORD_GPU_MEMORY, names.KOORD_GPU_MEMORY_RATIO}
)


class _Place(msgspec.Struct, frozen=True):
    socket: str = msgspec.field(name="socketID", default="")
    numa: str = msgspec.field(name="nodeID", default="")
    pcie: str = msgspec.field(name="pcieID", default="")
    bus: str = msgspec.field(name="busID", default="")


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    healthy: bool = False
    err_code: str = ""
    err_message: str = ""


class _Card(msgspec.Struct, frozen=True):
    vendor: str
    uuid: str
    minor: str
    model: str = ""
    resources: dict[str, str] = {}
    topology: _Place | None = None
    status: _Status = _Status()


def discover_vendor_files(roots: Roots) -> Inventory:
    """The cards in all files of the folder."""
    found: list[Found] = []
    problems: list[str] = []
    for file in pci.entries(roots.vendor_files):
        if not file.is_file():
            continue
        try:
            with file.open("rb") as opened:
                entries: Any = msgspec.json.decode(opened.read(_MOST_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"device file {file.name}: {error}")
            continue
        if not isinstance(entries, list):
            problems.append(f"device file {file.name}: it holds no list of devices")
            continue
        for index, entry in enumerate(entries):
            try:
                found.append(_found(msgspec.convert(entry, _Card)))
            except (ValueError, RecursionError) as error:
                problems.append(f"device file {file.name}: device {index} is left out: {error}")
    return Inventory(tuple(found), tuple(problems))


def _found(card: _Card) -> Found:
    if not _DIGITS.fullmatch(card.minor) or not card.uuid or not card.vendor:
        raise ValueError(f"minor {card.minor!r}, uuid {card.uuid!r}, vendor {card.vendor!r}")
    amounts = {
        name if "/" in name else names.KOORDINATOR_DOMAIN + name: _amount(name, text)
        for name, text in card.resources.items()
    }
    memory = amounts.get(names.KOORD_GPU_MEMORY, 0)
    extras = tuple(sorted((name, units) for name, units in amounts.items() if name not in _OWN))
    odd = not 0 < memory <= _MOST_MEMORY or any(not 0 <= n < _MOST_UNITS for _, n in extras)
    status = card.status
    ill = "" if status.healthy else status.err_message or "its vendor's tool finds it unhealthy"
    reason = "" if status.healthy else label_text(status.err_code) or "DeviceUnhealthy"
    if odd:
        ill, reason, memory, extras = "its amounts are impossible", "AmountsUnknown", 0, ()
    device = Device(
        type=DeviceType.GPU,
        minor=int(card.minor),
        uuid=card.uuid,
        vendor=card.vendor.lower(),
        model=card.model,
        healthy=not ill,
        memory_bytes=memory,
        extras=extras,
        topology=_topology(card.topology),
        health_detail=ill,
    )
    return Found(
        device, reason=reason, product=card.model, percent=names.KOORD_GPU_CORE in amounts
    )


def _amount(name: str, text: str) -> int:
    try:
        return Quantity.parse(text).floor()
    except InvalidQuantity as error:
        raise ValueError(f"{name}: {error}") from error


def _topology(given: _Place | None) -> Topology | None:
    if given is None:
        return None
    return Topology(_known(given.numa), given.pcie, given.bus, _known(given.socket))


def _known(text: str) -> int:
    return int(text) if _DIGITS.fullmatch(text) else -1
