"""Cost of one look of the node agent at limits, every ten seconds: all its containers and their processes.

    .venv/bin/python bench/looks.py [--containers 16 100] [--processes 4] [--others 300]

Containers have rooms, accounts and seats as the agent makes them. Their processes are genuine ones with open files. A
folder of links to the genuine procfs assigns each process to its container. Other processes hold nothing. The figure is
the processor time of the agent's own thread, including the kernel's part.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.discovery.found import CardUse, Found, Inventory
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.isolation.account import PLACES_AT
from partage.agent.isolation.container_dirs import CardQuota, Rooms
from partage.agent.isolation.processes import numbers_of
from partage.agent.isolation.providers import Isolation, OwnLibrary
from partage.agent.journal import Entry, Journal
from partage.agent.metrics import Tallies
from partage.agent.uses import Meter
from partage.daemon.agent import IsolationOptions
from partage.daemon.isolation_status import Statements
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.vendors.wishes import Policy

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "build/native/libpartage-isolation.so"
LOOKS = 15
PLACE_BYTES = 576
FILES = 30
CARDS = 8
GIB = 2**30
_SHOWN = ("status", "stat", "comm", "maps", "exe", "environ", "fd")


@contextlib.contextmanager
def _processes(count: int) -> Iterator[list[int]]:
    """The given number of waiting processes, each with open files."""
    read, write = os.pipe()
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(FILES)]
    made = [
        subprocess.Popen(
            ["cat"], stdin=read, stdout=subprocess.DEVNULL, pass_fds=kept
        )  # a program that waits
        for _ in range(count)
    ]
    for descriptor in (read, *kept):
        os.close(descriptor)
    try:
        yield [one.pid for one in made]
    finally:
        os.close(write)
        for one in made:
            one.wait()


def _shown(table: Path, pid: int, group: str, preload: str = "") -> None:
    """Add a process to the table, by links to procfs."""
    home = table / str(pid)
    home.mkdir()
    for name in _SHOWN:
        (home / name).symlink_to(f"/proc/{pid}/{name}")
    (home / "cgroup").write_text(f"0::/kubepods/burstable/{group}\n")
    if preload:
        (home / "root/etc").mkdir(parents=True)
        (home / "root/etc/ld.so.preload").write_text(f"{preload}\n")


def _listed(account: Path, place: int, pid: int) -> None:
    """Give a process a place in its container's account."""
    numbers = numbers_of(pid)
    assert numbers is not None  # noqa: S101 # it waits
    with account.open("r+b") as file:
        file.seek(PLACES_AT + place * PLACE_BYTES)
        file.write((numbers.inner << 42 | numbers.start << 1).to_bytes(8, "little"))


def _statements(folder: Path, containers: int, processes: int, pids: list[int]) -> Statements:
    """The statements of an agent whose node has this many containers, which own the first of these processes."""
    boot = folder / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n")
    table = folder / "table"
    table.mkdir()
    rooms = Rooms(LIBRARY, folder / "state", "/state", folder)
    cards = [Device(DeviceType.GPU, n, f"GPU-{n}", vendor="nvidia") for n in range(CARDS)]
    facts = HostFacts(lambda _pod, _card, _mig: Instance(), provider=OwnLibrary())
    place = Place(Node("n1", devices=tuple(cards)), Settings(), FAMILIES, facts)
    tallies = Tallies()
    keeper = Keeper(
        lambda: place,
        Host(folder),
        Journal(folder / "journal"),
        tallies,
        Isolation(rooms, proc=table),
    )
    waiting = iter(pids)
    for number in range(containers):
        name = f"{number:064x}"
        quota = CardQuota(f"GPU-{number % CARDS}", GIB, 50, Policy.BURST_SHARE)
        room = rooms.open(name, (quota,))
        keeper.journal.give(Entry(name, f"u{number}", f"team/p{number}", "main", "{}", "partage"))
        for at, pid in enumerate(islice(waiting, processes)):
            _shown(table, pid, f"cri-containerd-{name}.scope", room.inside)
            if at % 2:
                _listed(room.account, at, pid)
    for pid in waiting:
        _shown(table, pid, "kubelet.service")
    used = pids[: containers * processes]

    def found() -> Inventory:
        """The driver's sample; each look gets a new one."""
        use = CardUse(GIB, processes=dict.fromkeys(used, GIB // 8))
        return Inventory(tuple(Found(card, use=use) for card in cards))

    meter = Meter(time.monotonic)
    return Statements(keeper, tallies, meter, None, IsolationOptions(), proc=table, found=found)


def _measure(containers: int, processes: int, others: int) -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory(prefix="bench") as name,
        _processes(containers * processes + others) as pids,
    ):
        statements = _statements(Path(name), containers, processes, pids)
        spent = []
        for _ in range(LOOKS):
            before = time.process_time()
            statements._look()  # noqa: SLF001 # the agent calls it every ten seconds
            spent.append(time.process_time() - before)
    return {
        "containers": containers,
        "processes": containers * processes,
        "others": others,
        "look_ms": {
            "median": round(statistics.median(spent) * 1000, 1),
            "best": round(min(spent) * 1000, 1),
        },
        "percent_of_a_core": round(statistics.median(spent) * 10, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--containers", type=int, nargs="+", default=[16, 100])
    parser.add_argument("--processes", type=int, default=4, help="of each container (4)")
    parser.add_argument(
        "--others", type=int, default=300, help="processes that hold nothing (300)"
    )
    given = parser.parse_args()
    if not LIBRARY.exists():
        sys.exit("make native")
    for containers in given.containers:
        print(json.dumps(_measure(containers, given.processes, given.others)), flush=True)


if __name__ == "__main__":
    main()
