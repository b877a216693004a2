"""Finds processes that compute on a card and bypass the library.

A process can map the library and still bypass it: with a copy of the driver under another name, or in a name space of
its own (`dlmopen`). Every process that initialises the driver through the library has a place in the account. A
process without a place bypasses the library if it has the driver's device for memory (`/dev/nvidia-uvm`) open and a
device file of the driver mapped. Harmless programs that use the card by OpenCL or Vulkan, which the library does not
know, do the same: the statement about them names this and the remedy. Tools that only query the driver (NVML) map no
device file; from branch 580 on they have the device for memory open too (seen on an H200 with 580.159).

A process can rename device files, and put open ones away in a socket after it has mapped them. So a process without a
place also bypasses the library if the driver reports that it uses a card.

A forked child has its parent's files open, and has no place until it uses a card. It counts as its
parent until it starts another program.
"""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from partage.agent.isolation.account import Process
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.node_scan import Seen, Sight
from partage.agent.isolation.processes import Numbers
from partage.vendors.traits import NVIDIA

_LOOKS: Final = 4
"""In a row: a process that initialises the driver opens the device before it has its place."""


class Strangers:
    """Compares at each look; `found` are containers with such a process, with a text."""

    def __init__(self) -> None:
        self._looks: dict[tuple[str, int, int], int] = {}
        self.found: Mapping[str, str] = {}

    def look(
        self,
        rooms: Mapping[str, Room],
        sight: Sight,
        used: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
    ) -> None:
        """Compare the processes that use a card with those of the account. `used`: bytes by card and process, if reported."""
        reported = {pid for processes in used.values() for pid in processes}
        looks: dict[tuple[str, int, int], int] = {}
        found: dict[str, str] = {}
        for container, processes in sight.processes.items():
            account = sight.rooms[container].account
            if rooms[container].spared or isinstance(account, str):
                continue  # a fault of its own
            for one, numbers in _unlisted(processes, account.processes, reported):
                key = (container, one.pid, numbers.start)
                looks[key] = self._looks.get(key, 0) + 1
                if looks[key] >= _LOOKS:
                    found.setdefault(container, _said(one, numbers, reported=one.pid in reported))
        self._looks, self.found = looks, found


def _said(one: Seen, numbers: Numbers, *, reported: bool) -> str:
    who = f"process {one.pid} ({numbers.name})"
    interface = one.view.interface if one.view else ""
    if interface:
        return (
            f"{who} uses a card by {interface}, and shares are enforced for CUDA only: neither its memory nor its "
            "time on the card is limited. Use CUDA, or ask for a whole card or a hardware instance"
        )
    by = "it uses a card by the driver's report" if reported else f"it has {NVIDIA.memory} in use"
    return (
        f"{who} computes on a card and bypasses the library: {by} and has no place in the account, as with "
        "a copy of the driver, or an interface other than CUDA. Neither its memory nor its time on the card is limited"
    )


def _unlisted(
    processes: tuple[Seen, ...], account: tuple[Process, ...], reported: Collection[int]
) -> Iterator[tuple[Seen, Numbers]]:
    # By its number alone: a process in its own name space may read its start from another's procfs.
    listed = {one.pid for one in account}
    for one in processes:
        numbers = one.numbers
        if numbers is None or numbers.inner in listed:
            continue
        if one.pid in reported or (
            one.has_memory_device
            and (one.view is None or one.view.maps_device)
            and not numbers.forked
        ):
            yield one, numbers
