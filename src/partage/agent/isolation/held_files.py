"""Keeps files that tenants see open for writing as long as tenants may see them.

A process that may read a file may take a lease on it. An open for writing is then refused, or waits until the kernel
ends the lease (45 s). The kernel grants no lease on a file that is open for writing, so the agent opens such files
before any tenant sees them. A thread that waits for the kernel opens files that were leased while no agent ran.
"""

import contextlib
import errno
import os
import resource
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from partage.agent.isolation.shared import opened

_FILES: Final = 4096
"""Descriptors of one process; those of 16 cards are 2,032."""
_WAITING: Final = 256
"""Threads that may wait for leases at a time."""
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class HeldFiles:
    """The files of one node; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, int] = {}
        self._former: dict[Path, int] = {}
        """The file that had the name before."""
        self._wanted: set[Path] = set()
        self._waiting: set[Path] = set()
        weakref.finalize(self, _close_all, self._files)
        weakref.finalize(self, _close_all, self._former)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < _FILES:
            most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))

    def hold(self, paths: Iterable[Path]) -> None:
        """Hold files that were just made, or that tenants already see."""
        with self._lock:
            self._wanted.update(paths)
        self.again()

    def again(self) -> None:
        """Retry the files that could not be held."""
        with self._lock:
            for path in [path for path, file in self._former.items() if _has_attributes(file)]:
                os.close(self._former.pop(path))
            leased = [path for path in self._wanted - self._waiting if not self._taken(path)]
            leased = leased[: max(0, _WAITING - len(self._waiting))]
            self._waiting.update(leased)
        for path in leased:
            try:
                threading.Thread(
                    target=self._wait, args=(path,), daemon=True, name="leases"
                ).start()
            except RuntimeError:  # no thread is left
                with self._lock:
                    self._waiting.discard(path)

    def _taken(self, path: Path) -> bool:
        """Hold a file; false if a process has a lease on it, which the kernel breaks from now on."""
        if not self._is_held(path):
            try:
                self._files[path] = os.open(path, _OPEN | os.O_NONBLOCK)
            except BlockingIOError:
                return False
            except OSError:
                return True  # not now
        return True

    def let_go(self, folder: Path) -> None:
        """Release all files of a folder."""
        with self._lock:
            self._wanted = {path for path in self._wanted if path.parent != folder}
            for files in (self._files, self._former):
                for path in [path for path in files if path.parent == folder]:
                    os.close(files.pop(path))

    def replaced(self, path: Path, descriptor: int) -> None:
        """Hold a new file, by its descriptor, that replaces another one of the same name.

        The old file is truncated when the name changes again, because a tenant may have left it open. Until then it
        stays unchanged, because a process that still maps it would fault.
        """
        with self._lock:
            self._wanted.add(path)
            older, before = self._former.pop(path, None), self._files.pop(path, None)
            self._files[path] = descriptor
            if older is not None:
                with contextlib.suppress(OSError):
                    os.ftruncate(older, 0)
                os.close(older)
            # With a name it is the new file itself, which another thread found.
            if before is not None and (os.fstat(before).st_nlink or _has_attributes(before)):
                os.close(before)
            elif before is not None:
                self._former[path] = before

    @contextlib.contextmanager
    def at(self, path: Path) -> Iterator[int]:
        """A descriptor for writing; never waits. Raises `InvalidDocument`: no regular file; `OSError`: not held."""
        with self._lock:
            if self._is_held(path):
                yield self._files[path]
                return
        with opened(path, write=True) as descriptor:
            yield descriptor

    def _is_held(self, path: Path) -> bool:
        held = self._files.get(path)
        if held is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), path.lstat()):
                return True
        os.close(self._files.pop(path))  # another file has its name now
        return False

    def _wait(self, path: Path) -> None:
        """Open a file in a thread that may wait as long as a lease lasts; each file has one such thread."""
        descriptor = -1
        with contextlib.suppress(OSError):
            descriptor = os.open(path, _OPEN)
        with self._lock:
            self._waiting.discard(path)
            if descriptor >= 0 and path in self._wanted and not self._is_held(path):
                self._files[path] = descriptor
            elif descriptor >= 0:
                os.close(descriptor)


def _has_attributes(descriptor: int) -> bool:
    """Whether a tenant set attributes on a file; they take memory of any size for as long as the file is open."""
    try:
        return bool(os.listxattr(descriptor))
    except OSError as error:
        return error.errno == errno.E2BIG


def _close_all(files: dict[Path, int]) -> None:
    for descriptor in files.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    files.clear()
