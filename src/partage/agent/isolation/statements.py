"""Makes the statement about each container's limits: in force, yes or no, and why.

A statement uses current facts of one look (`node_scan`): the kernel's about the container's processes, and the files that
the agent mounted. A process may be outside for any reason; the agent's policy decides the reaction. Every container that
holds a card has a statement. If other software or hardware enforces the limits (a hardware instance, a vendor's driver),
the statement names it, and adds that the agent cannot check it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from partage.agent.isolation.account import State
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.elf import Reach
from partage.agent.isolation.limits import render
from partage.agent.isolation.node_scan import ProcessView, RoomView, Sight
from partage.agent.journal import Entry
from partage.model.device import MILLI
from partage.vendors.wishes import Policy

_OWN: Final = "partage"
_UNSEEN: Final = "NotSeen"
_CROWDED: Final = (
    "one look cannot read all processes of the node, and has not seen all of the container's"
)
_NOTHING: Final = frozenset({"", "whole"})
_MIXED: Final = "; others on its card have another version of it: turns are shared among those of one version only"
NOT_ENFORCED: Final = "NotEnforced"
"""The cause if memory is enforced and compute is not because of the node's settings: the container has no fault."""
_COMPUTE: Final = (
    "Partage's library limits memory, but not compute: this node limits memory alone, "
    "whatever the policy (--isolation-compute)"
)
_BEST_EFFORT: Final = (
    "Partage's library limits memory; compute is best-effort, so it has no enforced quota"
)
_NO_PROVIDER: Final = "nothing enforces shares on this node (--isolation none): neither memory nor compute is limited"
_MPS: Final = "mps"
_OTHERS: Final[Mapping[str, str]] = {
    "hami-core": "variables limit memory and compute, so a process with an empty environment has no limits",
    _MPS: "the driver limits each process, not the container, to the memory and threads that its variables name, as long "
    "as it has them; a fault of one process ends all on its cards",
}
"""The part that is not enforced, by provider."""
TRIED: Final[tuple[int, ...]] = (580,)
"""Branches of NVIDIA's driver (580 of `580.82.07`) on which every row of `bench/gpu.py` came out as required: 580.159.04 on an H200."""
_SHOWN: Final = 8
"""Processes of one container that a statement names."""


class Answer(StrEnum):
    """Whether limits are in force, in the words of a condition."""

    YES = "True"
    NO = "False"
    UNKNOWN = "Unknown"


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


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement about one container.

    Attributes:
        container: the runtime's identity of it.
        pod: `namespace/name`.
        provider: what enforces its limits.
        cause: one word for the reason, or for the source of the answer; `message`: the same for people.
        cut: whether its pod asked for more than it gets.
    """

    container: str
    uid: str
    pod: str
    name: str
    provider: str
    answer: Answer
    cause: str
    message: str
    cut: bool = False


def survey(
    entries: Mapping[str, Entry],
    rooms: Mapping[str, Room],
    sight: Sight,
    above: Mapping[str, str] = MappingProxyType({}),
    past: Mapping[str, str] = MappingProxyType({}),
    grown: Mapping[str, str] = MappingProxyType({}),
    untried: Mapping[str, str] = MappingProxyType({}),
    away: str = "",
) -> list[Statement]:
    """Statements about all containers that hold a card.

    Args:
        above: containers that use more memory than their grants, with a text.
        past: containers with a process that bypasses the library, with a text.
        grown: containers whose contexts grew beyond their grants, with a text.
        untried: cards with a driver that the library was not tried on, with a text.
        away: why NVIDIA's MPS daemon does not answer; empty if it does.
    """
    said = []
    for entry in entries.values():
        if entry.limits in _NOTHING:
            continue
        room = rooms.get(entry.container)
        answer, cause, message = (
            _by_another(entry.limits, away)
            if entry.limits != _OWN
            else _by_room(room, entry.container, sight, mixed=_is_mixed(room, rooms))
        )
        if entry.container in past and answer is Answer.YES:
            answer, cause, message = Answer.NO, Cause.OUTSIDE.value, past[entry.container]
        if entry.container in above and answer is Answer.YES:
            answer, cause, message = Answer.NO, "MemoryBeyondCap", above[entry.container]
        if room is not None and answer is Answer.YES:
            granted = (one.core_milli for one in room.limits.cards if one.policy is Policy.NONE)
            if any(0 < core < MILLI for core in granted):  # not enforced on this node
                answer, cause, message = Answer.NO, NOT_ENFORCED, _COMPUTE
        if room is not None and entry.limits == _OWN and cause in {"InForce", NOT_ENFORCED}:
            cards = (untried.get(card.uuid, "") for card in room.limits.cards)
            more = (grown.get(entry.container, ""), *cards)
            message = "; ".join((message, *dict.fromkeys(filter(None, more))))
        message = "; ".join(filter(None, (message, entry.cut)))
        who = entry.container, entry.uid, entry.pod, entry.name, entry.limits
        said.append(Statement(*who, answer, cause, message, bool(entry.cut)))
    return said


def unseen(said: Iterable[Statement], why: str) -> list[Statement]:
    """The same while the agent cannot look: the state of its own library is unknown."""
    message = f"what its processes do cannot be seen by the agent: {why}"
    return [
        replace(one, answer=Answer.UNKNOWN, cause=_UNSEEN, message=message)
        if one.provider == _OWN
        else one
        for one in said
    ]


def judge(room: Room, seen: RoomView, processes: tuple[ProcessView, ...]) -> list[Fault]:
    """Why a container's limits are not in force; nothing if they are."""
    faults = []
    if not seen.is_genuine:
        why = f"{room.library} is missing, or its contents differ from its name"
        faults.append(Fault(Cause.LIBRARY, why))
    if seen.limits != render(room.limits):
        faults.append(Fault(Cause.LIMITS, "the limits file is missing or was changed"))
    for process in processes:
        faults += _process(process, room.library)
    if isinstance(seen.account, str):
        faults.append(Fault(Cause.ACCOUNT, f"the account cannot be read: {seen.account}"))
    else:
        why = "was refused: the library could not trust its files"
        refused = (one for one in seen.account.processes if State.FAULT in one.state)
        faults += [Fault(Cause.REFUSED, f"process {one.pid} {why}") for one in refused]
    for uuid, seat in seen.seats.items():
        if isinstance(seat, str):
            faults.append(Fault(Cause.SEAT, f"its seat on card {uuid}: {seat}"))
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


def _by_another(provider: str, away: str) -> tuple[Answer, str, str]:
    if provider == "mig":
        return Answer.YES, "HardwareInstance", "the card itself keeps hardware instances apart"
    if provider == "none":
        return Answer.NO, "NoIsolation", _NO_PROVIDER
    if provider == _MPS and away:
        return Answer.NO, "MpsAway", away
    more = _OTHERS.get(provider, "")
    said = f"enforced by {provider}; Partage cannot see whether it works"
    return Answer.UNKNOWN, "KeptByOthers", f"{said}: {more}" if more else said


def _is_mixed(room: Room | None, rooms: Mapping[str, Room]) -> bool:
    """Whether a card of a room has tenants with a library of another version."""
    cards = {card.uuid for card in room.limits.cards} if room else set()
    return room is not None and any(
        other.limits.version != room.limits.version
        and any(card.uuid in cards for card in other.limits.cards)
        for other in rooms.values()
    )


def _by_room(
    room: Room | None, container: str, sight: Sight, *, mixed: bool
) -> tuple[Answer, str, str]:
    if room is None:
        return Answer.NO, "RoomMissing", "the agent's files for the container are gone"
    if room.spared:
        return Answer.NO, "NotEnforceable", room.spared
    if container in sight.excess:
        return Answer.NO, Cause.EXCESS.value, str(sight.excess[container])
    views = (one.view for one in sight.processes.get(container, ()))
    faults = judge(room, sight.rooms[container], tuple(view for view in views if view is not None))
    if not faults and container in sight.unseen:
        return Answer.UNKNOWN, _UNSEEN, _CROWDED
    if not faults:
        without_quota = any(
            one.policy is Policy.BEST_EFFORT or (one.policy is Policy.NONE and not one.core_milli)
            for one in room.limits.cards
        )
        held = _BEST_EFFORT if without_quota else "enforced by Partage's library"
        return Answer.YES, "InForce", f"{held}{_MIXED if mixed else ''}"
    more = len(faults) - _SHOWN
    text = "; ".join(fault.message for fault in faults[:_SHOWN])
    return Answer.NO, faults[0].cause.value, f"{text}; and {more} more" if more > 0 else text


def untried(driver: str, tried: tuple[int, ...] = TRIED) -> str:
    """The statement about a node's driver; empty if its branch was tried, or its version is unknown.

    A new branch may have functions that allocate memory in a way unknown to the library, and the library does not stop
    unknown functions. So a node with an untried driver is reported, and isolation continues.
    """
    branch = driver.partition(".")[0]
    if not branch.isdecimal() or int(branch) in tried:
        return ""
    known = ", ".join(map(str, sorted(tried))) or "none yet"
    newer = bool(tried) and int(branch) > max(tried)
    return (
        f"driver {driver}: Partage's library was not tried on branch {branch}"
        f"{', which is newer than all that were' if newer else ''} (tried: {known}); "
        "bench/gpu.py tries it"
    )
