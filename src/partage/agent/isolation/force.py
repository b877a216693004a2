"""Whether a container's limits are in force: yes or no, and why.

`look` reads what the kernel says of a process; `judge` decides from that and from the files that the agent
mounted. A process may have any reason to be outside; the agent's policy decides what follows from it.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from partage.agent.isolation.account import Process, State, read_account
from partage.agent.isolation.images import read_below
from partage.agent.isolation.library import is_genuine
from partage.agent.isolation.limits import render
from partage.agent.isolation.preloads import taken_first
from partage.agent.isolation.programs import Reach, reach
from partage.agent.isolation.rooms import Room
from partage.agent.isolation.seats import read_seat
from partage.model.errors import InvalidDocument

__all__ = ["Cause", "Fault", "Force", "ProcessView", "judge", "look"]

_PRELOAD: Final = "etc/ld.so.preload"
_LIST: Final = 2**16
_CARD: Final = re.compile(r"/dev/nvidia[0-9]+|/dev/nvidia-caps/.*")
_CODE: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+ r.x. ")
_HEAD: Final = 2**20


class Cause(StrEnum):
    """Why limits are not in force."""

    PRELOAD = "PreloadMissing"
    LIBRARY = "LibraryChanged"
    LIMITS = "LimitsChanged"
    ACCOUNT = "AccountChanged"
    SEAT = "SeatChanged"
    OUTSIDE = "ProcessOutside"
    REFUSED = "LibraryRefused"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, in words for the pod's condition."""

    cause: Cause
    message: str


@dataclass(frozen=True, slots=True)
class Force:
    """The answer for one container."""

    faults: tuple[Fault, ...]

    @property
    def in_force(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    def __str__(self) -> str:
        """`in force: yes`, or no with every reason."""
        if self.in_force:
            return "in force: yes"
        return "in force: no; " + "; ".join(fault.message for fault in self.faults)


@dataclass(frozen=True, slots=True)
class ProcessView:
    """What the kernel says of a process of the container."""

    pid: int
    uses_card: bool
    """It has the driver mapped, or a card's device file open."""
    has_library: bool
    preload: str
    """What `/etc/ld.so.preload` holds where the process lives."""
    reach: Reach
    taken_first: str = ""
    """An object that is asked before ours for what is ours, in words; empty without one."""
    covered: bool = False
    """At the library's path another file than ours is loaded."""


def look(
    pid: int,
    library: str,
    shipped: tuple[str, str] | None = None,
    proc: Path = Path("/proc"),
) -> ProcessView | None:
    """Look at a process.

    A tenant with a mount namespace of its own can put another file at any path, so the file counts and not its path.

    Args:
        pid: on the host.
        library: the library's path in the container.
        shipped: device and inode of the library, as `as_mapped` tells them; None where it cannot be told.
        proc: procfs of the host.

    Returns:
        What was seen; None: the process has ended.
    """
    home = proc / str(pid)
    try:
        maps = (home / "maps").read_text(encoding="utf-8", errors="replace")
        with (home / "exe").open("rb") as file:
            program = file.read(_HEAD)
        opened = [_target(entry) for entry in (home / "fd").iterdir()]
        environment = (home / "environ").read_bytes()
    except OSError:
        return None
    root = home / "root"
    preload = (read_below((root,), _PRELOAD, _LIST) or b"").decode("utf-8", "replace")
    uses = "/libcuda.so" in maps or any(_CARD.fullmatch(name) for name in opened)
    code = [line.split(maxsplit=5) for line in maps.splitlines() if _CODE.match(line)]
    at_path = [tuple(one[3:5]) for one in code if one[5:] == [library]]
    ours = any(tuple(one[3:5]) == shipped for one in code) if shipped else bool(at_path)
    return ProcessView(
        pid=pid,
        uses_card=uses,
        has_library=ours,
        preload=preload,
        reach=reach(program),
        taken_first=taken_first(root, environment, maps, library),
        covered=bool(at_path) and not ours,
    )


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def judge(room: Room, processes: tuple[ProcessView, ...]) -> Force:
    """Judge a container by its room on the node, what was written there, and its processes."""
    faults = [*_files(room)]
    for process in processes:
        faults += _process(process, room.library)
    try:
        faults += [_refused(one) for one in read_account(room.account) if _failed(one)]
    except (InvalidDocument, OSError) as error:
        faults.append(Fault(Cause.ACCOUNT, f"the account cannot be read: {error}"))
    for card in room.limits.cards:
        seats = room.seats_of(card)
        try:
            if seats is not None:
                read_seat(seats, card.slot)
        except (InvalidDocument, OSError) as error:
            faults.append(Fault(Cause.SEAT, f"its seat on card {card.uuid}: {error}"))
    return Force(tuple(faults))


def _files(room: Room) -> list[Fault]:
    faults = []
    if not is_genuine(room.folder / room.library):
        why = f"{room.library} is gone or not what its name says"
        faults.append(Fault(Cause.LIBRARY, why))
    try:
        written = (room.folder / "limits").read_text(encoding="ascii", errors="replace")
    except OSError:
        written = ""
    if written != render(room.limits):
        faults.append(Fault(Cause.LIMITS, "the limits file is gone or not what was written"))
    return faults


def _process(process: ProcessView, library: str) -> list[Fault]:
    faults = []
    names = [Path(name).name for name in process.preload.replace(":", " ").split()]
    if library not in names:
        message = f"process {process.pid}: /etc/ld.so.preload does not name {library}"
        faults.append(Fault(Cause.PRELOAD, message))
    if process.uses_card and not process.has_library:
        why: str = "the library is not loaded"
        if process.covered:
            why = "it has another file at the library's path"
        elif process.reach is not Reach.REACHED:
            why = process.reach
        faults.append(Fault(Cause.OUTSIDE, f"process {process.pid} uses a card outside: {why}"))
    elif process.uses_card and process.taken_first:
        message = f"process {process.pid} loads by LD_PRELOAD {process.taken_first}"
        faults.append(Fault(Cause.OUTSIDE, message))
    return faults


def _failed(process: Process) -> bool:
    return State.FAULT in process.state


def _refused(process: Process) -> Fault:
    message = f"process {process.pid} was refused: the library could not trust its files"
    return Fault(Cause.REFUSED, message)
