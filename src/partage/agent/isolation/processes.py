"""Which processes belong to which container, told from their control groups.

Every container runtime names a container's control group after the container's identity. The process table is
read as a whole: containers are few, and asking a runtime could block.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Numbers", "numbers_of", "processes_of", "root_of"]

_IDENTITY: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{7,127}")
_FORKED: Final = 0x40
"""The kernel's PF_FORKNOEXEC."""
_NAME: Final = 32


class Numbers(NamedTuple):
    """What the kernel says of a process, by its number on the host."""

    inner: int
    """Its number in its own pid namespace."""
    start: int
    """Clock ticks since boot."""
    forked: bool
    """It runs its parent's program still: it was forked and started none."""
    name: str
    """As it calls itself; nothing in it that a terminal would take for more."""


def processes_of(
    containers: Collection[str], proc: Path = Path("/proc")
) -> dict[str, tuple[int, ...]]:
    """Processes of each container that has any, lowest first.

    Args:
        containers: identities that the runtime gave; others than such are of no process.
        proc: procfs of the host.
    """
    wanted = {one for one in containers if _IDENTITY.fullmatch(one)}
    found: dict[str, list[int]] = {}
    if not wanted:
        return {}
    for name in os.listdir(proc):  # noqa: PTH208 # the table has thousands of entries
        if not name.isdecimal():
            continue
        try:
            text = _text(f"{proc}/{name}/cgroup")
        except OSError:
            continue  # it has ended
        for part in {part for line in text.splitlines() for part in line.split("/")[1:]}:
            # cgroupfs: <id>; systemd: cri-containerd-<id>.scope
            identity = part.removesuffix(".scope")
            while identity not in wanted and "-" in identity:
                identity = identity.partition("-")[2]
            if identity in wanted:
                found.setdefault(identity, []).append(int(name))
                break
    return {one: tuple(sorted(pids)) for one, pids in found.items()}


def root_of(container: str, proc: Path = Path("/proc")) -> Path | None:
    """The root of a container that is made, as its first process has it; None without one."""
    pids = processes_of((container,), proc).get(container, ())
    return proc / str(pids[0]) / "root" if pids else None


def numbers_of(pid: int, proc: Path = Path("/proc")) -> Numbers | None:
    """The numbers of a process; None when it has ended."""
    try:
        status = _text(f"{proc}/{pid}/status")
        before, _, after_name = _text(f"{proc}/{pid}/stat").rpartition(")")
        inner = next(line for line in status.splitlines() if line.startswith("NSpid:"))
        fields = after_name.split()
        name = ascii(before.partition("(")[2][:_NAME])[1:-1]
        forked = bool(int(fields[6]) & _FORKED)
        return Numbers(int(inner.split()[-1]), int(fields[19]), forked, name)
    except (OSError, StopIteration, IndexError, ValueError):
        return None


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 # of every process, every ten seconds
        return file.read()
