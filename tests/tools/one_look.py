"""A process as the agent sees it."""

from collections.abc import Mapping
from pathlib import Path

from partage.agent.isolation import node_scan
from partage.agent.isolation.reading import Work

__all__ = ["look"]


def look(
    pid: int,
    library: str,
    shipped: tuple[str, str] | None = None,
    proc: Path = Path("/proc"),
    files: Mapping[str, tuple[int, int]] | None = None,
) -> node_scan.ProcessView | None:
    """One look at one process; None if it has ended."""
    return node_scan._seen(
        pid, library, shipped, proc, Work(), files or {}
    ).view  # all that a container's look does for each
