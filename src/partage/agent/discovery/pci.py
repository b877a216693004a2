"""Reads PCI functions from sysfs.

Reading a file never raises. The result is None for a file that is absent, is no text, is too long or
holds no number, and the caller decides how to react.

Source: docs/sources/kubernetes.md 6.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partage.model.device import Topology

ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
"""A PCI address: domain, bus, device and function."""

_LONGEST: Final = 4096
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})|0x[0-9a-fA-F]{1,16}")
"""Without leading zeros: Python accepts no number such as `007`."""


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One function of a PCI device, with the numbers of vendor, product and class (three bytes); -1 if unreadable."""

    address: str
    folder: Path
    vendor: int
    device: int
    kind: int
    virtual: bool

    @property
    def model(self) -> str:
        """The product's name if none is known: vendor and product number."""
        return f"{max(self.vendor, 0):04x}-{max(self.device, 0):04x}"


def functions(sys: Path) -> tuple[PciFunction, ...]:
    """Every PCI function, by address; empty if sysfs shows none."""
    return tuple(
        _function(folder)
        for folder in entries(sys / "bus/pci/devices")
        if ADDRESS.fullmatch(folder.name)
    )


def _function(folder: Path) -> PciFunction:
    files = (folder / name for name in ("vendor", "device", "class"))
    vendor, device, kind = (_known(number(file)) for file in files)
    virtual = os.path.lexists(folder / "physfn")
    return PciFunction(folder.name, folder, vendor, device, kind, virtual)


def place(function: Path) -> Topology:
    """The place of a function: NUMA node and PCI root, as far as sysfs shows them."""
    numa = number(function / "numa_node")
    try:
        parts = function.resolve().parts
    except (OSError, RuntimeError, ValueError):  # a ring of links, before Python 3.13
        parts = ()
    root = next((part for part in parts if _ROOT.fullmatch(part)), "")
    known = numa if numa is not None and 0 <= numa < 2**15 else -1
    return Topology(numa=known, pcie=root, bus=function.name)


def place_at(sys: Path, address: str) -> Topology:
    """The same of the function at an address, unknown if it is none."""
    if ADDRESS.fullmatch(address):
        return place(sys / "bus/pci/devices" / address)
    return Topology(numa=-1, pcie="")


def text(path: Path) -> str | None:
    """The file's text without surrounding space; None if it is not readable text."""
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST + 1)
        found = data.decode("ascii")
    except (OSError, ValueError):
        return None
    return found.strip() if len(data) <= _LONGEST and found.strip().isprintable() else None


def number(path: Path) -> int | None:
    """The number in the file, decimal or with `0x`; None if there is none."""
    found = text(path)
    return int(found, 0) if found and _NUMBER.fullmatch(found) else None


def entries(folder: Path) -> tuple[Path, ...]:
    """The entries of a folder, by name; empty if it is no folder or cannot be read."""
    try:
        return tuple(sorted(folder.iterdir()))
    except OSError:
        return ()


def _known(found: int | None) -> int:
    return -1 if found is None or found < 0 else found
