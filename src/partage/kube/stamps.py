"""Detects replaced files without reading them each time."""

from collections.abc import Iterable
from pathlib import Path

from partage.kube.clock import Clock


class ChangeCheck:
    """Whether any of some files changed since the last call; looks at most once a period.

    Mounted secrets are swapped by a symbolic link, so inode, size and time of the target count.
    """

    def __init__(self, paths: Iterable[Path], clock: Clock, period: float) -> None:
        self._paths = tuple(paths)
        self._clock = clock
        self._period = period
        self._stamps = self._look()
        self._next = clock.monotonic() + period

    def changed(self, *, now: bool = False) -> bool:
        """True once for each change; `now` looks even if the period is not over."""
        moment = self._clock.monotonic()
        if not self._paths or (moment < self._next and not now):
            return False
        self._next = moment + self._period
        seen = self._look()
        if seen == self._stamps:
            return False
        self._stamps = seen
        return True

    def forget(self) -> None:
        """Make the next look report a change, because the last contents could not be used."""
        self._stamps = ()

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
