"""Finds the processes of each container by their control groups, and kills them.

Every container runtime names a container's control group after the container's identity. The process table is
read as a whole, because containers are few and a call to a runtime could block.
"""

import contextlib
import os
import re
import signal
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from partage.agent.isolation.reading import TooMuch, Work, names, whole
from partage.agent.trouble import is_own

CROWD: Final = 4096
"""Processes of one container; the agent does not look into one that has more."""
_TABLE: Final = 2**29
"""Work of one look at the process table: some 200,000 processes."""
_GROUPS: Final = 2**16
_STATUS: Final = 2**20
_STAT: Final = 4096

_IDENTITY: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{7,127}")
_WORDS: Final = 8
"""Words that a group's name may have before the identity, as `cri` and `containerd`; a tenant may name one of dashes alone."""
_FORKED: Final = 0x40
"""The kernel's PF_FORKNOEXEC."""
_MONITOR: Final = "crio-conmon-"
"""Prefix of the group of CRI-O's process beside a container, which is none of its processes."""
_NAME: Final = 32
_PASSES: Final = 8
"""Looks at the process table in one attempt to kill a container whose processes make others meanwhile."""
_TOLD: Final = "processes"


class Numbers(NamedTuple):
    """The kernel's facts about a process, by its number on the host."""

    inner: int
    """Its number in its own pid namespace."""
    start: int
    """Clock ticks since boot."""
    forked: bool
    """It still runs its parent's program: it was forked and started none."""
    name: str
    """Its own name, without characters that a terminal interprets."""
    threads: int = 1
    is_over: bool = False
    """Its first thread has ended; others may live."""


def processes_of(
    containers: Collection[str], proc: Path = Path("/proc")
) -> dict[str, tuple[int, ...]]:
    """Processes of each of the runtime's containers, lowest first; at most `CROWD` and one more. Raises `OSError`."""
    return listed(containers, proc)[0]


def listed(
    containers: Collection[str], proc: Path = Path("/proc")
) -> tuple[dict[str, tuple[int, ...]], bool]:
    """The same, and whether the table was read to its end: it may be longer than one look may read."""
    wanted = {one for one in containers if _IDENTITY.fullmatch(one)}
    found: dict[str, list[int]] = {}
    if not wanted:
        return {}, True
    work, to_the_end = Work(_TABLE), False
    with contextlib.suppress(TooMuch):
        for name in names(str(proc), work, _TOLD):
            if not name.isdecimal():
                continue
            identity = container_of(f"{proc}/{name}/cgroup", wanted, work)
            pids = found.setdefault(identity, [])
            if identity and len(pids) <= CROWD:
                pids.append(int(name))
        work.take(0, _TOLD)
        to_the_end = True
    found.pop("", None)
    return {one: tuple(sorted(pids)) for one, pids in found.items()}, to_the_end


def container_of(path: str, wanted: Collection[str], work: Work) -> str:
    """The wanted container that a process belongs to, by its `cgroup` file; empty for none. Raises `OSError`."""
    try:
        text = whole(path, _GROUPS, work, _TOLD)
    except (OSError, TooMuch) as error:
        if is_own(error):
            raise
        return ""  # it has ended, or lies deeper than any runtime's containers
    # The outermost counts: a container that may create groups may name them after another container.
    for part in dict.fromkeys(part for line in text.split("\n") for part in line.split("/")[1:]):
        if part.startswith(_MONITOR):
            return ""
        # cgroupfs: <id>; systemd: cri-containerd-<id>.scope
        identity = part.removesuffix(".scope")
        for _ in range(_WORDS):
            if identity in wanted:
                return identity
            identity = identity.partition("-")[2]
    return ""


def users(
    used: Mapping[str, Iterable[int]], containers: Collection[str], proc: Path = Path("/proc")
) -> dict[str, set[str]]:
    """The cards that each container's processes use, by the driver; this process's container is left out.

    `used`: processes by card. Raises `OSError`: this process lacks a resource.
    """
    found: dict[str, set[str]] = {}
    work = Work()
    for card, pids in used.items():
        for pid in pids:
            found.setdefault(container_of(f"{proc}/{pid}/cgroup", containers, work), set()).add(
                card
            )
    for left_out in ("", container_of(f"{proc}/self/cgroup", containers, work)):
        found.pop(left_out, None)
    return found


def root_of(container: str, proc: Path = Path("/proc"), pid: int = 0) -> Path | None:
    """The root of a created container, by its first process; None without one.

    `pid`: of that process; without it the whole process table is read, and tenants may have many.
    """
    if pid and container_of(f"{proc}/{pid}/cgroup", (container,), Work()) == container:
        return proc / str(pid) / "root"
    pids = processes_of((container,), proc).get(container, ())
    return proc / str(pids[0]) / "root" if pids else None


def numbers_of(
    pid: int, proc: Path = Path("/proc"), work: Work | None = None, task: str = ""
) -> Numbers | None:
    """The numbers of a process, or of a thread of it; None if it has ended. Raises `TooMuch`, `OSError`."""
    work = work or Work()
    home = f"{proc}/{pid}/task/{task}" if task else f"{proc}/{pid}"
    try:
        status = whole(f"{home}/status", _STATUS, work, _TOLD)
        before, _, after_name = whole(f"{home}/stat", _STAT, work, _TOLD).rpartition(")")
        # Lines end at a line feed alone: the kernel writes a process's name with all other characters in it.
        inner = next(line for line in status.split("\n") if line.startswith("NSpid:"))
        fields = after_name.split()
        name = ascii(before.partition("(")[2][:_NAME])[1:-1]
        number, start, threads = int(inner.split()[-1]), int(fields[19]), int(fields[17])
        forked, is_over = bool(int(fields[6]) & _FORKED), fields[0] in {"Z", "X", "x"}
        return Numbers(number, start, forked, name, threads, is_over)
    except (OSError, StopIteration, IndexError, ValueError) as error:
        if is_own(error):
            raise
        return None


def kill(container: str, proc: Path = Path("/proc")) -> int:
    """Send SIGKILL to a container's processes until none is left, for a bounded time; returns how many got it.

    The first process of its pid namespace is the first here: the kernel kills all others with it. Raises `OSError`.
    """
    killed: set[int] = set()
    for _ in range(_PASSES):
        pids = processes_of((container,), proc).get(container, ())
        if killed.issuperset(pids):
            break  # none is left, or the rest is about to end
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                process = os.pidfd_open(pid)
                try:
                    # Only now the number is this process's for certain.
                    if container_of(f"{proc}/{pid}/cgroup", (container,), Work()) == container:
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        killed.add(pid)
                finally:
                    os.close(process)
    return len(killed)
