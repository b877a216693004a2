"""Decides whether a container's limits are in force, and why.

`judge` decides from one look (`node_scan`): the kernel's facts about the container's processes, and the files that
the agent mounted. A process may be outside for any reason; the agent's policy decides the reaction.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from partage.agent.isolation.account import Process, State
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.limits import render
from partage.agent.isolation.node_scan import ProcessView, RoomView
from partage.agent.isolation.programs import Reach


class Cause(StrEnum):
    """Why limits are not in force."""

    PRELOAD = "PreloadMissing"
    LIBRARY = "LibraryChanged"
    LIMITS = "LimitsChanged"
    ACCOUNT = "AccountChanged"
    SEAT = "SeatChanged"
    OUTSIDE = "ProcessOutside"
    REFUSED = "LibraryRefused"
    EXCESS = "TooMuchToRead"


@dataclass(frozen=True, slots=True)
class Fault:
    """One cause, in words for the pod's condition."""

    cause: Cause
    message: str


def judge(room: Room, seen: RoomView, processes: tuple[ProcessView, ...]) -> list[Fault]:
    """Why a container's limits are not in force; nothing if they are."""
    faults = [*_files(room, seen)]
    for process in processes:
        faults += _process(process, room.library)
    if isinstance(seen.account, str):
        faults.append(Fault(Cause.ACCOUNT, f"the account cannot be read: {seen.account}"))
    else:
        faults += [_refused(one) for one in seen.account if State.FAULT in one.state]
    for uuid, seat in seen.seats.items():
        if isinstance(seat, str):
            faults.append(Fault(Cause.SEAT, f"its seat on card {uuid}: {seat}"))
    return faults


def _files(room: Room, seen: RoomView) -> list[Fault]:
    faults = []
    if not seen.is_genuine:
        why = f"{room.library} is missing, or its contents differ from its name"
        faults.append(Fault(Cause.LIBRARY, why))
    if seen.limits != render(room.limits):
        faults.append(Fault(Cause.LIMITS, "the limits file is missing or was changed"))
    return faults


def _process(process: ProcessView, library: str) -> list[Fault]:
    faults = []
    names = [Path(name).name for name in process.preload.replace(":", " ").split()]
    if process.uses_card and library not in names:
        message = f"process {process.pid}: /etc/ld.so.preload does not name {library}"
        faults.append(Fault(Cause.PRELOAD, message))
    if process.uses_card and not process.has_library:
        why: str = "the library is not loaded"
        if process.covered:
            why = "it has another file at the library's path"
        elif process.reach is not Reach.REACHED:
            why = process.reach
        faults.append(Fault(Cause.OUTSIDE, f"process {process.pid} uses a card outside: {why}"))
    elif process.uses_card and process.hidden:
        message = f"process {process.pid} has another file at the path of {process.hidden}"
        faults.append(Fault(Cause.OUTSIDE, message))
    elif process.uses_card and process.taken_first:
        message = f"process {process.pid} loads {process.taken_first}"
        faults.append(Fault(Cause.OUTSIDE, message))
    return faults


def _refused(process: Process) -> Fault:
    message = f"process {process.pid} was refused: the library could not trust its files"
    return Fault(Cause.REFUSED, message)
