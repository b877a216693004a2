"""One look at a node's containers: the files of their rooms, and the kernel's facts about processes.

The look is read once and never changes. Code that judges containers receives it and reads nothing itself, so all
statements about a container in one look are of one moment, and the node's process table is read once for all readers.
"""

import ctypes
import errno
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from partage.agent.isolation import reading
from partage.agent.isolation.account import Account, read_seen
from partage.agent.isolation.amounts import NAME
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.elf import Reach, reach
from partage.agent.isolation.library import as_mapped, is_genuine
from partage.agent.isolation.lookers import LATE, Lookers, Occupied
from partage.agent.isolation.mappings import arguments, mapped, variables
from partage.agent.isolation.preloads import of_loader, taken_first
from partage.agent.isolation.processes import CROWD, Numbers, container_of, listed, numbers_of
from partage.agent.isolation.reading import LOOK, TooMuch, Work
from partage.agent.isolation.seats import Seat, read_seat, seat_file
from partage.agent.isolation.shared import without_place
from partage.agent.trouble import is_own
from partage.model.errors import InvalidDocument
from partage.vendors.traits import NVIDIA

_PRELOAD: Final = "etc/ld.so.preload"
_LIST: Final = 1024
"""Bytes of the loader's list; the one that the agent mounts has one line."""
_LIMITS: Final = 2**14
_CARD: Final = re.compile(NVIDIA.tampering)
_USUAL: Final = re.compile(rf"(?:{NVIDIA.tampering}|{NVIDIA.memory})(?: \(deleted\))?$")
_MEMORY: Final = posixpath.basename(NVIDIA.memory)
_CONTROL: Final = 254
"""The first minor number of the driver's devices that are no card."""
_DEVICES: Final = 2**16
_HEAD: Final = 2**20
_START: Final = 2**12
_LOADER: Final = (b"LD_PRELOAD", b"LD_AUDIT", b"LD_LIBRARY_PATH")
_ALL: Final = 4 * LOOK
"""Work of one look at all containers."""
_FIRST: Final = 2**14
"""The assumed cost of a process without a known cost."""
_REST: Final = 32
"""The largest number of looks that skip a container with too much to read."""
_TABLES: Final = 16
_KCMP: Final = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_FILES: Final = 2
_LIBC: Final = ctypes.CDLL(None)
_PROC: Final = Path("/proc")
_UNREADABLE: Final = "programs that cannot be read"


@dataclass(frozen=True, slots=True)
class ProcessView:
    """The library's state in a process of the container."""

    pid: int
    uses_card: bool
    """It has the driver or a device file of it mapped, or a card's device file open."""
    has_library: bool
    preload: str
    """The content of its `/etc/ld.so.preload`; read if it uses a card, because one that does not may have any root."""
    reach: Reach = Reach.REACHED
    """Whether its program could load the library; checked if it uses a card without it."""
    taken_first: str = ""
    """An object that is searched before the library and replaces it, and how it is loaded; empty without one."""
    covered: bool = False
    """Another file than the library is loaded from its path."""
    hidden: str = ""
    """A file of the room in whose place it sees another one, as in a mount namespace of its own; empty for none."""
    interface: str = ""
    """The interface other than CUDA by which it can reach the card, by the names of its libraries; empty for none."""
    maps_device: bool = False
    """It has a device file of the driver mapped, as a process that works on a card has, and a user of NVML has not. One that
    has it open by an unusual name counts too, because its mapping does not tell."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of a container, by the kernel."""

    pid: int
    """On the host."""
    numbers: Numbers | None
    """None: it has ended."""
    has_memory_device: bool
    """It has the driver's device for memory open, as after initialising the driver, or NVML of branch 580."""
    view: ProcessView | None
    """None: it has ended, or works on its files."""


@dataclass(frozen=True, slots=True)
class RoomView:
    """The files of a room, as they are now."""

    is_genuine: bool
    """Its library matches its name."""
    limits: str
    """The content of the limits file; empty if it cannot be read."""
    account: Account | str
    """What the account says, or why it cannot be read."""
    seats: Mapping[str, Seat | str | None]
    """By card: the content of the container's seat, or why it cannot be read. Cards without a seat are absent."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Too much to read for one look. `wait`: looks that skip the container; `rest`: the first wait, later doubled."""

    what: str
    wait: int = 1
    rest: int = 1

    def __str__(self) -> str:
        """For people; equal at each look."""
        if self.what == _UNREADABLE:
            return (
                "it runs a program whose file cannot be read, so what its processes do is unknown"
            )
        if self.what == LATE:
            return "it has files that do not answer in time, so what its processes do is unknown"
        return f"its processes have more {self.what} than one look can go through, so what they do is unknown"


@dataclass(frozen=True, slots=True)
class Sight:
    """The result of one look, by container.

    Attributes:
        rooms: files of rooms.
        processes: the processes; containers with too much to read are absent.
        excess: containers with too much to read.
        costs: the work of each look, which orders the next one.
        unseen: containers that may have processes of which nothing was read yet.
    """

    rooms: Mapping[str, RoomView] = field(default_factory=dict)
    processes: Mapping[str, tuple[Seen, ...]] = field(default_factory=dict)
    excess: Mapping[str, Excess] = field(default_factory=dict)
    costs: Mapping[str, int] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()


def see(
    rooms: Mapping[str, Room],
    proc: Path = _PROC,
    before: Sight | None = None,
    lookers: Lookers[tuple[Seen, ...]] | None = None,
    whose: Mapping[str, str] = MappingProxyType({}),
) -> Sight:
    """Read everything once; the cheapest container comes first, so a costly one delays only itself.

    `before`: the last look, whose results remain valid for containers that this one has no work left for. `lookers`:
    look at each container, and abandon those whose files do not answer; None waits for them. `whose`: their tenants.
    Raises `OSError`: this process lacks a resource, so there is no statement about any container.
    """
    before = before or Sight()
    found: dict[str, tuple[Seen, ...]] = {}
    excess: dict[str, Excess] = {}
    costs: dict[str, int] = {}
    left = _ALL
    pids, whole = listed(rooms, proc)
    unseen = set[str]() if whole else set(rooms)
    views: dict[str, RoomView] = {}

    def read(container: str) -> int:
        """Read its room, after its processes. Returns the work."""
        view = views[container] = read_room(rooms[container], found.get(container, ()))
        return 0 if isinstance(view.account, str) else view.account.work

    def as_before(container: str) -> None:
        """Keep what the last look saw of its processes."""
        if container in before.processes:
            found[container] = before.processes[container]
        else:
            unseen.add(container)

    left -= sum(read(container) for container in rooms if container not in pids)
    for container in sorted(pids, key=lambda one: before.costs.get(one, len(pids[one]) * _FIRST)):
        last, cost = before.excess.get(container), before.costs.get(container, 0)
        if last is not None and last.wait:
            excess[container] = Excess(last.what, last.wait - 1, last.rest)
            costs[container] = cost
            left -= read(container)
            continue
        if left <= 0 or cost > left:
            as_before(container)
            costs[container] = cost // 2  # so that its turn will come
            left -= read(container)
            continue
        work = Work()
        try:
            looked = partial(_looked, pids[container], rooms[container], proc, work)
            seen = (
                lookers.look(container, looked, whose.get(container, "")) if lookers else looked()
            )
            # A process may have ended since the listing, and its number may now be of another container's.
            found[container] = tuple(
                one
                for one in seen
                if container_of(f"{proc}/{one.pid}/cgroup", rooms, work) == container
            )
            work.take(0, "processes")
        except Occupied:
            as_before(container)
        except TooMuch as error:
            rest = min(last.rest * 2, _REST) if last else 1
            excess[container] = Excess(str(error), rest, rest)
        costs[container] = work.spent + read(container)
        left -= costs[container]
    return Sight(
        MappingProxyType(views),
        MappingProxyType(found),
        MappingProxyType(excess),
        MappingProxyType(costs),
        frozenset(unseen),
    )


def _looked(pids: tuple[int, ...], room: Room, proc: Path, work: Work) -> tuple[Seen, ...]:
    if len(pids) > CROWD:
        raise TooMuch("processes")
    shipped = as_mapped(room.folder / room.library)
    files, drivers = files_of(room), _drivers(proc, work)
    return tuple(_seen(pid, room.inside, shipped, proc, work, files, drivers) for pid in pids)


def _drivers(proc: Path, work: Work) -> dict[int, str]:
    """Names of the driver's kinds of device by major number; none without the driver."""
    try:
        text = reading.whole(f"{proc}/devices", _DEVICES, work, "kinds of device")
    except OSError as error:
        _raise_own(error)
        return {}
    pairs = (line.split() for line in text.partition("Block")[0].splitlines())
    return {
        int(one[0]): one[1]
        for one in pairs
        if len(one) == 2 and one[0].isdecimal() and one[1] in (*NVIDIA.kinds, _MEMORY)
    }


def files_of(room: Room) -> dict[str, tuple[int, int]]:
    """The files that the library reads beside itself, by name; a missing one is a fault of the room's own."""
    found = {}
    for name, path in (
        ("limits", room.folder / "limits"),
        (NAME, room.folder / NAME),
        (room.limits.account, room.account),
    ):
        try:
            told = path.lstat()
        except OSError as error:
            _raise_own(error)
            continue
        found[name] = (told.st_dev, told.st_ino)
    return found


def read_room(room: Room, processes: Iterable[Seen] = ()) -> RoomView:
    """Read a room's files, whose `processes` the look saw; there is an answer for any content. Raises `OSError`."""
    try:
        with (room.folder / "limits").open("rb") as file:
            limits = file.read(_LIMITS + 1).decode("ascii", "replace")
    except OSError as error:
        _raise_own(error)
        limits = ""
    account: Account | str
    alive = [
        (one.numbers.inner, one.numbers.start) for one in processes if one.numbers is not None
    ]
    try:
        account = read_seen(room.account, len(room.limits.cards), alive)
    except (InvalidDocument, OSError) as error:
        _raise_own(error)
        account = without_place(error, room.account)
    seats: dict[str, Seat | str | None] = {}
    for card in room.limits.cards:
        folder = room.seats_of(card)
        if folder is None:
            continue
        try:
            seats[card.uuid] = read_seat(folder, card.slot)
        except (InvalidDocument, OSError) as error:
            _raise_own(error)
            seats[card.uuid] = without_place(error, seat_file(folder, card.slot))
    genuine = is_genuine(room.folder / room.library)
    return RoomView(genuine, limits, account, MappingProxyType(seats))


def _raise_own(error: Exception) -> None:
    """Raise the error if the file that cannot be read did not cause it."""
    if is_own(error):
        raise error


def _seen(  # what is looked at, and for what
    pid: int,
    library: str,
    shipped: tuple[str, str] | None,
    proc: Path,
    work: Work,
    files: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    drivers: Mapping[int, str] = MappingProxyType({}),
) -> Seen:
    numbers = numbers_of(pid, proc, work)
    homes = list(_homes(pid, numbers, proc, work))
    card = memory = renamed = False
    view = None
    for home in homes:
        with_card, with_memory, with_alias = _opened(home, drivers, work)
        card, memory = card or with_card, memory or with_memory
        renamed = renamed or with_alias
    for home in homes:
        try:
            view = _viewed(pid, home, library, shipped, work, files, card=card, renamed=renamed)
            break
        except OSError as error:
            _raise_own(error)
            continue  # it has ended
    if view is not None and view.maps_device and not card:
        memory = True  # open files can wait in a socket while their mappings work
    return Seen(pid, numbers, memory, view)


def _homes(pid: int, numbers: Numbers | None, proc: Path, work: Work) -> Iterator[str]:
    """The folders of procfs with a process's open files and mappings.

    All threads of a process share its mappings, and usually its open files. A first thread that has ended shows
    nothing any more, and a thread can have its own table of open files: each such table is one more folder.
    """
    home = f"{proc}/{pid}"
    if numbers is None or (numbers.threads < 2 and not numbers.is_over):
        yield home
        return
    if numbers.threads < 2:
        return
    tables: list[int] = []
    own = proc.stat().st_dev == _PROC.stat().st_dev  # it numbers processes as our calls do
    if not numbers.is_over:
        tables.append(pid)
        yield home
        if not own:
            return
    try:
        for task in reading.names(f"{home}/task", work, "threads"):
            if int(task) in tables or (tables and any(_shared(one, int(task)) for one in tables)):
                continue
            if numbers.is_over:
                told = numbers_of(pid, proc, work, task)
                if told is None or told.is_over:
                    continue
            if len(tables) >= _TABLES:
                raise TooMuch("tables of open files")
            tables.append(int(task))
            yield f"{home}/task/{task}"
            if not own:
                return
    except ValueError:
        return
    except OSError as error:
        _raise_own(error)  # otherwise it has ended meanwhile


def _shared(one: int, other: int) -> bool:
    """Whether two threads have the same table of open files; true if the kernel does not answer."""
    if _KCMP is None:
        return True
    return bool(_LIBC.syscall(_KCMP, one, other, _KCMP_FILES, 0, 0) <= 0)


def _opened(home: str, drivers: Mapping[int, str], work: Work) -> tuple[bool, bool, bool]:
    """Whether a process has a card's device file open, the one for memory, and one of them by another name.

    A container can rename or remove its device files, and make others with the same numbers.
    """
    card = memory = renamed = False
    try:
        for place, target in reading.links(f"{home}/fd", work, "open files"):
            if _CARD.fullmatch(target):
                card = True
            elif target == NVIDIA.memory:
                memory = True
            elif drivers and target.startswith("/") and (numbers := reading.device_numbers(place)):
                kind, minor = drivers.get(numbers[0], ""), numbers[1]
                if kind and (kind == _MEMORY or minor < _CONTROL):
                    memory, card = memory or kind == _MEMORY, card or kind != _MEMORY
                    renamed = renamed or _USUAL.search(target) is None
    except OSError as error:
        _raise_own(error)  # otherwise it has ended
    return card, memory, renamed


def _hidden(root: Path, library: str, files: Mapping[str, tuple[int, int]], work: Work) -> str:
    """A file that the library refuses its work without, and that is another one for the process; empty for none."""
    for name, own in files.items():
        try:
            if reading.identity((root,), f"{posixpath.dirname(library)}/{name}", work) != own:
                return name
        except (FileNotFoundError, NotADirectoryError, ValueError):
            continue
        except OSError as error:
            if reading.lacks(error):
                raise
            return name
    return ""


def _program(home: str) -> int:
    """A descriptor of a process's program, which may lie on a file system that the container serves itself.

    Raises `OSError`: the process has ended; `TooMuch`: it cannot be opened.
    """
    try:
        return os.open(f"{home}/exe", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        why = _unreadable(error)
        try:
            os.readlink(f"{home}/exe")  # noqa: PTH115 # a process that has ended has no program
        except OSError as other:
            if other.errno != errno.ENAMETOOLONG:
                raise
        raise why from error


def _unreadable(error: OSError) -> Exception:
    """What an error of a process's program means: this process lacks a resource, or the program cannot be read."""
    return error if reading.lacks(error) else TooMuch(_UNREADABLE)


def _viewed(  # what is looked at, and for what
    pid: int,
    home: str,
    library: str,
    shipped: tuple[str, str] | None,
    work: Work,
    files: Mapping[str, tuple[int, int]],
    *,
    card: bool,
    renamed: bool,
) -> ProcessView:
    """Read what a process has loaded."""
    root = Path(f"{home}/root")
    has = mapped(home, library, shipped, work)
    uses = has.driver or has.device or card
    can, first, preload = Reach.REACHED, "", b""
    if uses:
        told = variables(home, _LOADER, work)
        descriptor = _program(home)
        try:
            try:
                head = os.pread(descriptor, _START if has.ours else _HEAD, 0)
            except OSError as error:
                raise _unreadable(error) from error
            work.take(len(head) // 16, "programs")
            ran = ""
            if not has.ours:
                can = reach(head)
            elif reach(head) is Reach.STATIC:  # with the library, so it is the loader itself
                told, ran = of_loader(told, arguments(home, work))
            try:
                first = taken_first(root, told, list(has.code), library, descriptor, work, ran)
            except OSError as error:
                raise _unreadable(error) from error
        finally:
            os.close(descriptor)
        preload = reading.start((root,), _PRELOAD, _LIST + 1, work) or b""
    return ProcessView(
        pid=pid,
        uses_card=uses,
        has_library=has.ours,
        preload=preload.decode("utf-8", "replace") if len(preload) <= _LIST else "",
        reach=can,
        taken_first=first,
        covered=has.at_path and not has.ours,
        hidden=_hidden(root, library, files, work) if uses and has.ours else "",
        interface=has.interface,
        maps_device=has.device or renamed,
    )
