"""All that one look at a node's containers reads: the files of their rooms, and what the kernel says of their processes.

It is read once and never changes. Whoever judges containers is given it and reads nothing of its own: what is said of
a container in one look is of one moment, and the process table of a node is gone through once, however many ask.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from partage.agent.isolation.account import Process, read_account
from partage.agent.isolation.images import read_below
from partage.agent.isolation.library import as_mapped, is_genuine
from partage.agent.isolation.preloads import taken_first
from partage.agent.isolation.processes import Numbers, numbers_of, processes_of
from partage.agent.isolation.programs import Reach, reach
from partage.agent.isolation.rooms import Room
from partage.agent.isolation.seats import Seat, read_seat
from partage.model.errors import InvalidDocument

__all__ = ["ProcessView", "RoomView", "Seen", "Sight", "look", "read_room", "see"]

_PRELOAD: Final = "etc/ld.so.preload"
_LIST: Final = 2**16
_CARD: Final = re.compile(r"/dev/nvidia[0-9]+|/dev/nvidia-caps/.*")
_MEMORY: Final = "/dev/nvidia-uvm"
_CODE: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+ r.x. ")
_HEAD: Final = 2**20
_INTERFACES: Final = (
    ("OpenCL", re.compile(r"/libnvidia-opencl\.so")),
    ("Vulkan", re.compile(r"/libvulkan\.so")),
    ("OpenGL", re.compile(r"/lib(GLX|EGL|GLESv2)_nvidia\.so")),
)
"""Of these NVIDIA's driver or the loader of its driver is the library; Vulkan's driver is that of OpenGL."""
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessView:
    """How a process of the container stands to the library."""

    pid: int
    uses_card: bool
    """It has the driver mapped, or a card's device file open."""
    has_library: bool
    preload: str
    """What `/etc/ld.so.preload` holds where the process lives."""
    reach: Reach = Reach.REACHED
    """Whether its program could load the library; looked at where it uses a card without."""
    taken_first: str = ""
    """How it loads an object that is asked before ours for what is ours, and which; empty without one."""
    covered: bool = False
    """At the library's path another file than ours is loaded."""
    interface: str = ""
    """By which interface other than CUDA it can reach the card, as the names of its libraries say; empty for none."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of a container, as the kernel tells of it."""

    pid: int
    """On the host."""
    numbers: Numbers | None
    """None: it has ended."""
    has_memory_device: bool
    """It has the driver's device for memory open, as who initialises the driver has."""
    view: ProcessView | None
    """None: it has ended, or works on its files."""


@dataclass(frozen=True, slots=True)
class RoomView:
    """The files of a room, as they are now."""

    is_genuine: bool
    """Its library is what its name says."""
    limits: str
    """What the limits file holds; empty where it cannot be read."""
    account: tuple[Process, ...] | str
    """The account's processes, or why it cannot be read."""
    seats: Mapping[str, Seat | str | None]
    """By card: what the container says in its seat, or why it cannot be read. Cards without a seat are absent."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look has read; rooms and processes by container."""

    rooms: Mapping[str, RoomView] = field(default_factory=dict)
    processes: Mapping[str, tuple[Seen, ...]] = field(default_factory=dict)


def see(rooms: Mapping[str, Room], proc: Path = _PROC) -> Sight:
    """Read everything once.

    Args:
        rooms: by container.
        proc: procfs of the host.
    """
    found: dict[str, tuple[Seen, ...]] = {}
    for container, pids in processes_of(rooms, proc).items():
        room = rooms[container]
        shipped = as_mapped(room.folder / room.library)
        found[container] = tuple(_seen(pid, room.inside, shipped, proc) for pid in pids)
    views = {container: read_room(room) for container, room in rooms.items()}
    return Sight(MappingProxyType(views), MappingProxyType(found))


def read_room(room: Room) -> RoomView:
    """Read a room's files; whatever is in them, there is an answer."""
    try:
        limits = (room.folder / "limits").read_text(encoding="ascii", errors="replace")
    except OSError:
        limits = ""
    account: tuple[Process, ...] | str
    try:
        account = read_account(room.account)
    except (InvalidDocument, OSError) as error:
        account = str(error)
    seats: dict[str, Seat | str | None] = {}
    for card in room.limits.cards:
        folder = room.seats_of(card)
        if folder is None:
            continue
        try:
            seats[card.uuid] = read_seat(folder, card.slot)
        except (InvalidDocument, OSError) as error:
            seats[card.uuid] = str(error)
    genuine = is_genuine(room.folder / room.library)
    return RoomView(genuine, limits, account, MappingProxyType(seats))


def look(
    pid: int, library: str, shipped: tuple[str, str] | None = None, proc: Path = _PROC
) -> ProcessView | None:
    """Look at one process.

    A tenant with a mount namespace of its own can put another file at any path, so the file counts and not its path.

    Args:
        pid: on the host.
        library: the library's path in the container.
        shipped: device and inode of the library, as `as_mapped` tells them; None where it cannot be told.
        proc: procfs of the host.

    Returns:
        What was seen; None: the process has ended.
    """
    return _seen(pid, library, shipped, proc).view


def _seen(pid: int, library: str, shipped: tuple[str, str] | None, proc: Path) -> Seen:
    opened = _opened(f"{proc}/{pid}/fd")
    view = None if opened is None else _viewed(pid, opened, library, shipped, proc)
    return Seen(pid, numbers_of(pid, proc), opened is not None and _MEMORY in opened, view)


def _opened(folder: str) -> list[str] | None:
    """What a process has open; None where it cannot be told."""
    found = []
    try:
        names = os.listdir(folder)  # noqa: PTH208 # of every process, every ten seconds
    except OSError:
        return None
    for name in names:
        try:
            found.append(os.readlink(f"{folder}/{name}"))  # noqa: PTH115 # same
        except OSError:
            continue  # closed meanwhile
    return found


def _viewed(
    pid: int, opened: list[str], library: str, shipped: tuple[str, str] | None, proc: Path
) -> ProcessView | None:
    home = proc / str(pid)
    root = home / "root"
    try:
        maps = (home / "maps").read_text(encoding="utf-8", errors="replace")
        environment = (home / "environ").read_bytes()
        uses = "/libcuda.so" in maps or any(_CARD.fullmatch(name) for name in opened)
        code = [line.split(maxsplit=5) for line in maps.splitlines() if _CODE.match(line)]
        at_path = [tuple(one[3:5]) for one in code if one[5:] == [library]]
        ours = any(tuple(one[3:5]) == shipped for one in code) if shipped else bool(at_path)
        can, first = Reach.REACHED, ""
        if uses:
            with (home / "exe").open("rb") as file:
                can = Reach.REACHED if ours else reach(file.read(_HEAD))
                first = taken_first(root, environment, maps, library, file.fileno())
    except OSError:
        return None
    preload = (read_below((root,), _PRELOAD, _LIST) or b"").decode("utf-8", "replace")
    return ProcessView(
        pid=pid,
        uses_card=uses,
        has_library=ours,
        preload=preload,
        reach=can,
        taken_first=first,
        covered=bool(at_path) and not ours,
        interface=next((name for name, sign in _INTERFACES if sign.search(maps)), ""),
    )
