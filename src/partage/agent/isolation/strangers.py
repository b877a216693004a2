"""Processes that compute on a card although the library never heard of it.

The library can be mapped and still be passed by: a copy of the driver under another name, or in a name space of
its own (`dlmopen`). Every process that initialises the driver through the library has a place in the account; who
has the driver's device for memory (`/dev/nvidia-uvm`) open and has no place came by another way. Tools that
only ask the driver what is there (NVML) do not open it.

A child that was forked has its parent's files open and has no place as long as it uses no card; such a child is
taken for its parent's until it starts another program.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from partage.agent.isolation.account import read_account
from partage.agent.isolation.processes import numbers_of, processes_of
from partage.agent.isolation.rooms import Room
from partage.model.errors import InvalidDocument

__all__ = ["Strangers"]

_LOOKS: Final = 4
"""In a row: a process that initialises the driver has the device open before it has its place."""
_DEVICE: Final = "/dev/nvidia-uvm"
_NAME: Final = 32


class Strangers:
    """Looks again and again.

    Attributes:
        found: containers with such a process, with the words for it.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Nobody was seen yet.

        Args:
            proc: procfs of the host.
        """
        self._proc = proc
        self._looks: dict[tuple[str, int, int], int] = {}
        self.found: Mapping[str, str] = {}

    def look(self, rooms: Mapping[str, Room]) -> None:
        """Compare who has the device open with who is in the account.

        Args:
            rooms: by container.
        """
        looks: dict[tuple[str, int, int], int] = {}
        found: dict[str, str] = {}
        for container, pids in processes_of(rooms, self._proc).items():
            for pid, start in self._unlisted(rooms[container], pids):
                key = (container, pid, start)
                looks[key] = self._looks.get(key, 0) + 1
                if looks[key] >= _LOOKS:
                    found.setdefault(
                        container,
                        f"process {pid} ({self._name(pid)}) computes on a card past the library: it has "
                        f"{_DEVICE} open and no place in the account",
                    )
        self._looks, self.found = looks, found

    def _unlisted(self, room: Room, pids: tuple[int, ...]) -> list[tuple[int, int]]:
        if room.spared:
            return []
        try:
            # By its number alone: in a name space of its own a process may read its start from another's procfs.
            listed = {one.pid for one in read_account(room.account)}
        except (InvalidDocument, OSError):
            return []  # which is a reason of its own
        numbers = {pid: numbers_of(pid, self._proc) for pid in pids}
        return [
            (pid, one.start)
            for pid, one in numbers.items()
            if one and not one.forked and one.inner not in listed and self._has_device(pid)
        ]

    def _has_device(self, pid: int) -> bool:
        try:
            return any(
                str(entry.readlink()) == _DEVICE
                for entry in (self._proc / str(pid) / "fd").iterdir()
            )
        except OSError:
            return False  # it ends, or works on its files: the next look sees it

    def _name(self, pid: int) -> str:
        try:
            name = (self._proc / str(pid) / "comm").read_text("utf-8", "replace")
        except OSError:
            return "?"
        return ascii(name.strip()[:_NAME])[1:-1]
