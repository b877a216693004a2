"""A node's agent that is killed at a line of its own: run as a program, since it traces every line.

    python steps_world.py FOLDER     prints one line of JSON for each step at which it was killed

The same things happen to a fresh node once. Before each line of the agent's files that hold state, the node's files are
copied: they are what SIGKILL would leave there. Then the runtime goes on from each copy in one of two ways, and an agent
that starts again must bring everything into agreement.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import partage.agent
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.isolation.container_dirs import Rooms
from partage.agent.isolation.folders import Folders
from partage.agent.isolation.providers import HamiCore, Isolation, OwnLibrary
from partage.agent.journal import Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Container, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import encode

GIB = 2**30
HOME = Path(partage.agent.__file__).parent
WATCHED = {
    str(HOME / name)
    for name in (
        "container_admission.py",
        "journal.py",
        "host.py",
        "isolation/container_dirs.py",
        "isolation/limits.py",
        "isolation/seats.py",
        "isolation/shared.py",
        "isolation/account.py",
        "isolation/files.py",
        "isolation/library.py",
        "isolation/folders.py",
        "isolation/held_files.py",
    )
}
VISITS = int(os.environ.get("PARTAGE_VISITS", "1"))
"""Visits of one line that are tried; loops would repeat the same state."""
NODE = Node(
    "n1",
    devices=(model.Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", memory_bytes=16 * GIB),),
)
SHARE = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, 4 * GIB, GrantMode.SHARE, protocol="qgpu")


HAMI = "hami-core"
"""Word on the command line for HAMi's library instead of Partage's own."""
FOLDERS = "/usr/local/vgpu/containers"


def uid_of(name: str) -> str:
    """A UID in the form of an API server."""
    return f"{name.encode().hex():0>32}"


def pod_of(name: str) -> PodSandbox:
    """A pod with a share of 30 %."""
    uid = uid_of(name)
    record = encode(Allocation(uid, "team", name, "n1", (SHARE,)))
    return PodSandbox(f"s-{name}", name, uid, "team", annotations={names.ALLOCATION: record})


def container_of(uid: str, *, served: bool = False) -> Container:
    """Its container, as the runtime describes it."""
    said = {names.SERVED: "partage"} if served else {}
    return Container(f"container-{uid}", f"s-{uid}", "main", annotations=said)


def keeper_of(folder: Path) -> Keeper:
    """An agent that starts on a node."""
    host, journal = Host(folder / "host"), Journal(folder / "journal")
    if HAMI in sys.argv:
        folders = Folders(FOLDERS, host.at, lambda: 0.0)
        facts = HostFacts(lambda _pod, _card, _mig: Instance(), provider=HamiCore())
        place = Place(NODE, Settings(), FAMILIES, facts)
        return Keeper(lambda: place, host, journal, Tallies(), None, folders)
    rooms = Rooms(folder / "built.so", folder / "host/state", "/state", folder)
    facts = HostFacts(lambda _pod, _card, _mig: Instance(), provider=OwnLibrary(compute=True))
    place = Place(NODE, Settings(), FAMILIES, facts)
    return Keeper(lambda: place, host, journal, Tallies(), Isolation(rooms))


@dataclass
class Runtime:
    """What runs, by pod: whether the agent's answer arrived."""

    running: dict[str, bool] = field(default_factory=dict)

    def told(self) -> tuple[tuple[PodSandbox, ...], tuple[Container, ...]]:
        """What the runtime sends to an agent that connects."""
        return (
            tuple(pod_of(uid) for uid in self.running),
            tuple(container_of(uid, served=served) for uid, served in self.running.items()),
        )


Step = tuple[str, str]
STORY: tuple[Step, ...] = (
    ("open", ""),
    ("create", "a"),
    ("create", "b"),
    ("remove", "a"),
    ("create", "c"),
    ("open", ""),
    ("create", "a"),
    ("remove", "b"),
)
"""What happens; at `open` an agent starts, and the runtime sends it what runs."""


def fresh(folder: Path) -> None:
    """A node where nothing has happened."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "host/dev").mkdir(parents=True)
    (folder / "host/dev/nvidia0").symlink_to("/dev/null")
    boot = folder / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n")
    (folder / "built.so").write_bytes(b"the library")
    library = folder / "host/usr/local/vgpu/libvgpu.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"HAMi's library")


def tell(folder: Path, done: Callable[[int], None]) -> None:
    """The whole story; `done` is called after each step that was answered."""
    runtime, keeper = Runtime(), None
    for number, (what, uid) in enumerate(STORY):
        if what == "open":
            keeper = keeper_of(folder)
            keeper.synchronize(*runtime.told())
        elif what == "create":
            assert keeper is not None
            keeper.create(pod_of(uid), container_of(uid))
            runtime.running[uid] = True
        else:
            assert keeper is not None
            del runtime.running[uid]
            keeper.remove(container_of(uid))
        done(number)


def watched(at: Callable[[str, int], None]) -> None:
    """Call for every line of the agent's stateful files, before it is executed."""

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            at(frame.f_code.co_filename, frame.f_lineno)
        return trace

    sys.settrace(trace)


def deaths(folder: Path, copies: Path) -> list[tuple[int, str, Path]]:
    """Tell the story, and keep what a kill would leave at each line: steps that were answered, the line, the copy."""
    seen: dict[tuple[str, int], int] = {}
    found: list[tuple[int, str, Path]] = []
    answered = 0

    def at(file: str, line: int) -> None:
        seen[file, line] = seen.get((file, line), 0) + 1
        if seen[file, line] <= VISITS:
            copy = copies / str(len(found))
            subprocess.run(["cp", "-a", folder, copy], check=True)  # noqa: S607 # links stay links
            found.append((answered, f"{Path(file).name}:{line}", copy))

    def done(number: int) -> None:
        nonlocal answered
        answered = number + 1

    fresh(folder)
    copies.mkdir()
    watched(at)
    tell(folder, done)
    sys.settrace(None)
    return found


def after(steps: int, *, goes_on: bool) -> Runtime:
    """What runs when the agent was killed in a step: with the container of that step, or without it."""
    runtime = Runtime()
    for what, uid in STORY[:steps]:
        if what == "create":
            runtime.running[uid] = True
        elif what == "remove":
            del runtime.running[uid]
    if steps < len(STORY):
        what, uid = STORY[steps]
        if what == "create" and goes_on:
            runtime.running[uid] = False  # started without its adjustment
        elif what == "remove":
            runtime.running.pop(uid, None)
    return runtime


def wrong(folder: Path, runtime: Runtime) -> list[str]:
    """What does not agree after an agent has started again."""
    faults: list[str] = []

    def must(holds: object, what: str) -> None:
        if not holds:
            faults.append(what)

    keeper = keeper_of(folder)
    keeper.synchronize(*runtime.told())
    running = {f"container-{uid}": served for uid, served in runtime.running.items()}
    must(
        set(keeper.books.held) == set(running),
        f"held {sorted(keeper.books.held)}, running {running}",
    )
    must(set(keeper.journal.entries) <= set(running), "the journal holds who is gone")
    unserved = {one for one, served in running.items() if not served}
    must(set(keeper.unprotected) == unserved, f"unprotected {sorted(keeper.unprotected)}")
    if keeper.isolation is None:
        faults.extend(_folders_wrong(folder, runtime, keeper))
    else:
        must(set(keeper.rooms) <= set(running), "a room without a container")
        must({k for k, served in running.items() if served} <= set(keeper.rooms), "a room is gone")
        on_disk = sorted(path.name for path in (folder / "host/state/containers").iterdir())
        must(on_disk == sorted(keeper.isolation.rooms.rooms), f"rooms on the disk: {on_disk}")
        left = [path.name for path in (folder / "host/state").rglob(".*")]
        must(not left, f"half made: {left}")
        for name in ("seats", "private"):
            shared = [path.name for path in (folder / "host/state" / name).iterdir()]
            must(bool(shared) == bool(on_disk), f"{name} {shared}")
    known = Journal(folder / "journal")
    must(dict(known.entries) == dict(keeper.journal.entries), "the journal reads otherwise")
    must(not known.damaged, "lines of the journal are damaged")

    # And it goes on: what is free is given, once, and what is not is refused.
    free = 3 - len(running)
    for number in range(free):
        keeper.create(pod_of(f"more{number}"), container_of(f"more{number}"))
    if keeper.isolation is not None:
        seats = [room.limits.cards[0].slot for room in keeper.isolation.rooms.rooms.values()]
        must(len(set(seats)) == len(seats), f"seats {seats}")
    try:
        keeper.create(pod_of("late"), container_of("late"))
        faults.append("more was given than there is")
    except Refused as refused:
        must("CardFull" in str(refused), str(refused))
    keeper.synchronize((), ())
    must(not keeper.books.held, "held without a container")
    if keeper.isolation is None:
        faults.extend(_folders_wrong(folder, Runtime(), keeper))
    else:
        must(not list((folder / "host/state/containers").iterdir()), "rooms without a container")
    return faults


def _folders_wrong(folder: Path, runtime: Runtime, keeper: Keeper) -> list[str]:
    """What does not agree of folders that HAMi's library writes to: exactly the served have one."""
    folders = keeper._folders
    assert folders is not None
    while folders.pending:
        folders.sweep()
    home = folder / "host" / FOLDERS.lstrip("/")
    apart = home / ".partage-gone"
    there = [*home.iterdir(), *apart.iterdir()] if home.exists() else []
    found = {path.name for path in there if path != apart}
    served = {f"{uid_of(name)}_main" for name, served in runtime.running.items() if served}
    known = {f"{one.uid}_main" for one in keeper.journal.entries.values()}
    told = f"folders {sorted(found)}, served {sorted(served)}"
    return [] if served <= found <= known | served else [told]


def main(folder: Path) -> None:
    """Kill at every place, both ways."""
    assert all(Path(file).is_file() for file in WATCHED), "a watched file was renamed"
    logging.disable(logging.CRITICAL)
    node = folder / "node"
    for steps, where, copy in deaths(node, folder / "copies"):
        for goes_on in (True, False):
            shutil.rmtree(node)
            subprocess.run(["cp", "-a", copy, node], check=True)  # noqa: S607 # of any system
            faults = wrong(node, after(steps, goes_on=goes_on))
            told = {"where": where, "step": steps, "goes_on": goes_on, "wrong": faults}
            sys.stdout.write(json.dumps(told) + "\n")
            if STORY[steps][0] != "create":
                break  # the runtime has no choice


if __name__ == "__main__":
    main(Path(sys.argv[1]))
