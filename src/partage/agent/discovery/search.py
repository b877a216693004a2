"""Runs all backends on one node and merges their results to one inventory.

A backend is a function from roots to an inventory. If two backends describe a device at the same PCI
address, the one asked first holds. The Device object names one make of cards for the whole node, so cards
of a second vendor are left out and reported: under the first vendor's name they would be granted to the
wrong pods.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from partage.agent.discovery.accelerators import discover_amd, discover_by_tool, discover_fpga
from partage.agent.discovery.found import Found, Inventory, Roots
from partage.agent.discovery.health import HealthBook
from partage.agent.discovery.metax import discover_metax
from partage.agent.discovery.network import discover_rdma
from partage.agent.discovery.nvidia import Nvidia
from partage.agent.discovery.simulated import discover_simulated
from partage.agent.discovery.vendor_files import discover_vendor_files
from partage.model.device import DeviceType
from partage.vendors.traits import AMD, METAX, NVIDIA

Backend = Callable[[Roots], Inventory]

_BACKENDS: Final[Mapping[str, Backend | None]] = {
    NVIDIA.name: None,  # it has a memory; each search has its own
    "files": discover_vendor_files,
    METAX.name: discover_metax,
    AMD.name: discover_amd,
    "tools": discover_by_tool,
    "rdma": discover_rdma,
    "fpga": discover_fpga,
}
BACKENDS: Final = tuple(_BACKENDS)
"""Names of the backends, in the order of their calls."""
_IDENTITY: Final = re.compile(r"(?!\.\.?$)[!-.0-~]{1,100}")
"""An identity that can be the name of a folder, and a word in a limits file and a variable."""


class Search:
    """The searches of one node; it remembers errors of cards. `faults`: of simulated devices, beside their file's."""

    def __init__(
        self,
        roots: Roots,
        node: str,
        *,
        backends: Sequence[str] = BACKENDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare searches by these `BACKENDS`; simulated devices replace all. Raises `ValueError`: an unknown one."""
        self.health = HealthBook()
        self.faults = ""
        self._roots, self._node = roots, node
        self._nvidia = Nvidia(self.health, clock)
        if unknown := [name for name in backends if name not in BACKENDS]:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(BACKENDS)}")
        self._backends = tuple(
            backend or self._nvidia.discover
            for name, backend in _BACKENDS.items()
            if name in backends
        )

    def __call__(self) -> Inventory:
        """The current devices."""
        if self._roots.simulated is not None:
            return discover_simulated(self._roots, self._node, self.faults)
        return merge([backend(self._roots) for backend in self._backends])

    def close(self) -> None:
        """Close vendors' libraries."""
        self._nvidia.close()


def merge(inventories: Sequence[Inventory]) -> Inventory:
    """The inventories of several backends as one."""
    found: list[Found] = []
    problems = [problem for one in inventories for problem in one.problems]
    places: set[tuple[DeviceType, str]] = set()
    numbers: set[tuple[DeviceType, int]] = set()
    vendor = ""
    for one in (one for inventory in inventories for one in inventory.found):
        device = one.device
        if not _IDENTITY.fullmatch(device.uuid):
            problems.append(
                f"{device.type} {device.minor} is left out: its identity is {device.uuid[:100]!a}"
            )
            continue
        bus = (device.type, device.topology.bus if device.topology else "")
        if bus[1] and bus in places:
            continue
        if device.type is DeviceType.GPU:
            vendor = vendor or device.vendor
            if device.vendor != vendor:
                problems.append(
                    f"{device.vendor} card {device.minor} is left out: a node's cards are of one "
                    f"vendor, and this node has cards of {vendor}"
                )
                continue
        if (device.type, device.minor) in numbers:
            problems.append(
                f"{device.type} {device.minor} ({device.uuid}) is left out: its number is taken"
            )
            continue
        places.add(bus)
        numbers.add((device.type, device.minor))
        found.append(one)
    links = {pair: count for one in inventories for pair, count in one.links.items()}
    switches = {uuid: those for one in inventories for uuid, those in one.switches.items()}
    found.sort(key=lambda one: (one.device.type, one.device.minor))
    return Inventory(tuple(found), tuple(problems), links, switches)


def booted(roots: Roots) -> datetime:
    """When the machine started; the distant past if procfs does not report it."""
    found = None
    with suppress(OSError):
        text = (roots.proc / "stat").read_text("ascii", "replace")
        found = re.search(r"^btime ([0-9]{1,11})$", text, re.MULTILINE)
    return datetime.fromtimestamp(int(found[1]) if found else 0, UTC)
