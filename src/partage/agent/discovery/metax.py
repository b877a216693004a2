"""Discovers MetaX cards by the vendor's management library, else by sysfs.

The library is proprietary; this module calls it directly and Partage ships nothing of it. Sysfs contains
neither a card's memory nor its identity, so a card found only there is shown and not allocated.

Source: docs/sources/kubernetes.md 6; the vendor's published interface for the layout of its records.
"""

import ctypes
from typing import Final

from partage.agent.discovery import pci
from partage.agent.discovery.found import Found, Inventory, Roots, closed_card
from partage.agent.discovery.nvidia import label_text
from partage.model.device import Device, DeviceType
from partage.vendors.traits import METAX

_LIBRARY: Final = "libmxsml.so"
_KIB: Final = 1024
_MOST_CARDS: Final = 256
_MOST_KIB: Final = 2**40
_VIRTUAL: Final = 2


class _Info(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_uint),
        ("kind", ctypes.c_uint),
        ("bus", ctypes.c_char * 32),
        ("gpu", ctypes.c_uint),
        ("node", ctypes.c_uint),
        ("uuid", ctypes.c_char * 96),
        ("brand", ctypes.c_uint),
        ("mode", ctypes.c_uint),
        ("name", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_long)
        for name in ("visible", "visible_used", "total", "used", "other", "other_used")
    )


def discover_metax(roots: Roots) -> Inventory:
    """The current cards."""
    there = [
        one for one in pci.functions(roots.sys) if one.vendor == METAX.pci and not one.virtual
    ]
    file = next((f / _LIBRARY for f in roots.libraries if (f / _LIBRARY).is_file()), None)
    if file is None:
        return _by_sysfs(there, f"{_LIBRARY} is in none of the folders of libraries")
    try:
        library = ctypes.CDLL(str(file))
        found, problems = _by_library(library, roots)
    except (OSError, AttributeError) as error:
        return _by_sysfs(there, f"{file} cannot be used: {error}")
    if found is None:
        return _by_sysfs(there, problems[0])
    return Inventory(tuple(found), tuple(problems))


def _by_library(library: ctypes.CDLL, roots: Roots) -> tuple[list[Found] | None, list[str]]:
    """The library's cards, None if it refuses; and problems."""
    code = library.mxSmlInit()
    if code:
        return None, [f"{_LIBRARY}: mxSmlInit answered {code}"]
    count = ctypes.c_uint(library.mxSmlGetDeviceCount()).value
    problems: list[str] = []
    if count > _MOST_CARDS:
        return None, [f"{_LIBRARY}: {count} cards are more than {_MOST_CARDS}"]
    found: list[Found] = []
    for index in range(count):
        info, memory = _Info(), _Memory()
        code = library.mxSmlGetDeviceInfo(ctypes.c_uint(index), ctypes.byref(info))
        uuid = _text(info.uuid)
        if code or not uuid:
            problems.append(
                f"MetaX card {index} reports no identity (code {code}); it is left out"
            )
            continue
        if info.mode == _VIRTUAL:
            continue  # a share, cut by the vendor's own plugin
        code = library.mxSmlGetMemoryInfo(ctypes.c_uint(index), ctypes.byref(memory))
        known = not code and 0 < memory.total < _MOST_KIB
        found.append(_card(roots, index, info, memory.total * _KIB if known else 0))
    return found, problems


def _card(roots: Roots, index: int, info: _Info, memory: int) -> Found:
    bus, name = _text(info.bus).lower(), _text(info.name)
    device = Device(
        type=DeviceType.GPU,
        minor=index,
        uuid=_text(info.uuid),
        vendor=METAX.name,
        model=label_text(name.removeprefix("MetaX ").removeprefix("MX")),
        healthy=memory > 0,
        memory_bytes=memory,
        topology=pci.place_at(roots.sys, bus),
        health_detail="" if memory else "the library reports no memory",
    )
    reason = "" if memory else "MemoryUnknown"
    return Found(device, reason=reason, product=name, files=_files(roots, bus))


def _files(roots: Roots, bus: str) -> tuple[str, ...]:
    """The existing device files of a card, and those common to all cards."""
    if not pci.ADDRESS.fullmatch(bus):
        return ()
    names = [f"dri/{one.name}" for one in pci.entries(roots.sys / "bus/pci/devices" / bus / "drm")]
    if not any(roots.file(f"/dev/{name}").exists() for name in names):
        return ()  # the driver's files alone open no card
    every = [*METAX.common, *(f"/dev/{name}" for name in names)]
    return tuple(path for path in every if roots.file(path).exists())


def _by_sysfs(there: list[pci.PciFunction], why: str) -> Inventory:
    """Cards without memory and identity: shown, and closed."""
    found = tuple(
        closed_card(
            one, index, METAX.name, "LibraryMissing", f"memory and identity are unknown: {why}"
        )
        for index, one in enumerate(there)
    )
    return Inventory(
        found, (f"MetaX: {why}; its cards are found and not offered",) if found else ()
    )


def _text(given: bytes) -> str:
    text = given.decode("ascii", "replace").strip()
    return text if text.isprintable() and "\ufffd" not in text else ""
