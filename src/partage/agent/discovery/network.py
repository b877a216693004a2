"""Discovers RDMA cards and their virtual functions by sysfs.

As in Koordinator's agent, a card's number is that of its RDMA device (`mlx5_2` is 2), its identity is its
PCI address, and it is healthy when every port is active.

Source: docs/sources/koordinator.md 7; docs/sources/kubernetes.md 6.
"""

import re
from pathlib import Path
from typing import Final

from partage.agent.discovery import pci
from partage.agent.discovery.found import Found, Inventory, Roots
from partage.model.device import Device, DeviceType, VirtualFunction

_NUMBERED: Final = re.compile(r".*?([0-9]{1,5})")
_FUNCTION: Final = re.compile(r"virtfn[0-9]{1,5}")
_NETWORK: Final = 0x02


def discover_rdma(roots: Roots) -> Inventory:
    """The current RDMA cards."""
    found: dict[int, Found] = {}
    problems: list[str] = []
    buses: set[str] = set()
    for folder in pci.entries(roots.sys / "class/infiniband"):
        function = _resolved(folder / "device")
        if function is None:
            problems.append(f"RDMA device {folder.name}: it has no PCI address; left out")
            continue
        if (function / "physfn").exists():
            continue  # a virtual function belongs to its card
        kind = pci.number(function / "class")
        match = _NUMBERED.fullmatch(folder.name)
        if kind is None or kind >> 16 != _NETWORK or match is None:
            problems.append(f"RDMA device {folder.name}: it is no network card with a number")
        elif int(match[1]) in found or function.name in buses:
            problems.append(f"RDMA device {folder.name}: number or address is taken; left out")
        else:
            buses.add(function.name)
            found[int(match[1])] = _card(roots, folder, function, int(match[1]), problems)
    return Inventory(tuple(found[minor] for minor in sorted(found)), tuple(problems))


def _card(roots: Roots, folder: Path, function: Path, minor: int, problems: list[str]) -> Found:
    states = [pci.text(port / "state") or "unknown" for port in pci.entries(folder / "ports")]
    idle = [state for state in states if "ACTIVE" not in state]
    ill = f"port is {idle[0]}" if idle else "" if states else "no port reports its state"
    device = Device(
        type=DeviceType.RDMA,
        minor=minor,
        uuid=function.name,
        healthy=not ill,
        topology=pci.place(function),
        functions=_functions(function, folder.name, problems),
        health_detail=ill,
    )
    return Found(device, reason="PortNotActive" if ill else "", files=_files(roots, function))


def _functions(function: Path, name: str, problems: list[str]) -> tuple[VirtualFunction, ...]:
    """Its virtual functions by address; one with an unreadable address is left out."""
    addresses: set[str] = set()
    for link in pci.entries(function):
        if _FUNCTION.fullmatch(link.name):
            target = _resolved(link)
            if target is None:
                problems.append(f"RDMA device {name}: {link.name} leads to no PCI function")
            else:
                addresses.add(target.name)
    return tuple(VirtualFunction(index, one) for index, one in enumerate(sorted(addresses)))


def _files(roots: Roots, function: Path) -> tuple[str, ...]:
    names = [one.name for one in pci.entries(function / "infiniband_verbs")]
    every = [f"/dev/infiniband/{name}" for name in ("rdma_cm", *names)]
    return tuple(path for path in every if roots.file(path).exists())


def _resolved(link: Path) -> Path | None:
    """The PCI function that a link leads to; None if there is none."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return target if pci.ADDRESS.fullmatch(target.name) else None
