"""Discovers AMD, Ascend and Cambricon cards and FPGAs by sysfs.

AMD's driver reports memory and identity, so its cards can be allocated. The memory of Ascend and Cambricon
cards is known only to the vendor's own tools: cards without a vendor file (`vendor_files`) are shown and
closed.

Source: docs/sources/kubernetes.md 6; docs/sources/koordinator.md 7.
"""

import re
from typing import Final

from partage.agent.discovery import pci
from partage.agent.discovery.found import Found, Inventory, Roots, closed_card
from partage.agent.discovery.nvidia import label_text
from partage.model.device import Device, DeviceType
from partage.vendors.traits import AMD, FIRST_RENDER, FPGA_MAKER, ROWS

_BY_TOOL: Final = {row.pci: (row.name, row.tool) for row in ROWS if row.tool}
_DISPLAY: Final = 0x03
_ACCELERATOR: Final = 0x12
_MOST_BYTES: Final = 2**50
_DRI: Final = re.compile(r"(card|renderD)[0-9]{1,6}")


def discover_amd(roots: Roots) -> Inventory:
    """AMD cards of the amdgpu driver."""
    found, problems = [], []
    for one in pci.functions(roots.sys):
        if one.vendor != AMD.pci or one.virtual or one.kind >> 16 not in (_DISPLAY, _ACCELERATOR):
            continue
        names = [entry.name for entry in pci.entries(one.folder / "drm")]
        render = [name.removeprefix("renderD") for name in names if name.startswith("renderD")]
        if not render or not render[0].isascii() or not render[0].isdigit():
            problems.append(f"AMD card at {one.address}: its driver has no render node; left out")
            continue
        minor = int(render[0][:6]) - FIRST_RENDER
        if minor < 0:
            problems.append(f"AMD card at {one.address}: renderD{render[0]} is no render node")
            continue
        found.append(_amd(roots, one, minor, names))
    return Inventory(tuple(found), tuple(problems))


def _amd(roots: Roots, one: pci.PciFunction, minor: int, names: list[str]) -> Found:
    memory = pci.number(one.folder / "mem_info_vram_total") or 0
    memory = memory if 0 < memory <= _MOST_BYTES else 0
    mode = pci.text(one.folder / "current_compute_partition") or "SPX"
    needed = AMD.files(minor)
    files = dict.fromkeys(
        (*needed, *(f"/dev/dri/{name}" for name in names if _DRI.fullmatch(name)))
    )
    missing = next((path for path in needed if not roots.file(path).exists()), "")
    ill, reason = "", ""
    if not memory:
        ill, reason = "the driver reports no memory", "MemoryUnknown"
    elif mode != "SPX":
        ill, reason = f"cards in compute partition mode {mode} are not handled", "Partitioned"
    elif missing:
        ill, reason = f"its device file {missing} is not there", "DeviceFilesMissing"
    product = pci.text(one.folder / "product_name") or one.model
    unique = pci.text(one.folder / "unique_id") or ""
    device = Device(
        type=DeviceType.GPU,
        minor=minor,
        uuid=f"GPU-{unique}" if unique.isalnum() else one.address,
        vendor=AMD.name,
        model=label_text(product),
        healthy=not ill,
        memory_bytes=memory,
        topology=pci.place(one.folder),
        health_detail=ill,
    )
    there = tuple(path for path in files if roots.file(path).exists())
    return Found(device, reason=reason, product=product, files=() if missing else there)


def discover_by_tool(roots: Roots) -> Inventory:
    """Cards whose memory is known only to their vendors' own tools; closed."""
    found: list[Found] = []
    problems: list[str] = []
    numbers: dict[str, int] = {}
    for one in pci.functions(roots.sys):
        vendor, tool = _BY_TOOL.get(one.vendor, ("", ""))
        if not vendor or one.virtual or one.kind >> 16 != _ACCELERATOR:
            continue
        minor = numbers.setdefault(vendor, 0)
        numbers[vendor] += 1
        ill = f"its memory is known to {tool} alone; let koord-device-daemon write a device file"
        problems.append(f"{vendor} card at {one.address}: {ill}")
        found.append(closed_card(one, minor, vendor, "MemoryUnknown", ill))
    return Inventory(tuple(found), tuple(problems))


def discover_fpga(roots: Roots) -> Inventory:
    """FPGA cards: one for each PCI device, with any number of functions."""
    found: dict[str, Found] = {}
    for one in pci.functions(roots.sys):
        card = one.address.rpartition(".")[0]
        ours = one.vendor == FPGA_MAKER and one.kind >> 16 == _ACCELERATOR and not one.virtual
        if not ours or card in found:
            continue
        place = pci.place(one.folder)
        device = Device(type=DeviceType.FPGA, minor=len(found), uuid=one.address, topology=place)
        found[card] = Found(device)
    return Inventory(tuple(found.values()))
