"""Creates, opens and repairs files that a container may write.

A process that may write a file may also truncate it, extend it, or take a lease on it. The agent therefore never
maps such a file, never waits for it, and never trusts its size.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from partage.model.errors import InvalidDocument

WRITABLE: Final = 0o666
"""Mode of a file that any user of a container may write."""
READABLE: Final = 0o644
"""Mode of a file that the agent alone may write."""


def make(
    path: Path, size: int, head: bytes = b"", *, sparse: bool = False, mode: int = WRITABLE
) -> None:
    """Make a file, whole or not at all; an existing one stays unchanged.

    Args:
        head: its first bytes; the rest are zero.
        sparse: allocate a block when a process touches it. Else allocate all now, so that no other file takes them.
        mode: its permissions; all users may write it by default.
    """
    draft = _draft(path)
    try:
        descriptor = _made(draft, size, sparse=sparse, mode=mode)
        try:
            os.pwrite(descriptor, head, 0)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def remake(path: Path, size: int) -> int:
    """Replace such a file by one of zeros; processes that have the old one open or mapped keep it.

    Returns:
        A descriptor of it for writing, which no other process had open before.
    """
    draft = _draft(path)
    descriptor = -1
    try:
        descriptor = _made(draft, size, sparse=False)
        draft.rename(path)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        draft.unlink(missing_ok=True)
        raise
    return descriptor


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _made(draft: Path, size: int, *, sparse: bool, mode: int = WRITABLE) -> int:
    draft.unlink(missing_ok=True)  # of an attempt that a crash ended
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.ftruncate(descriptor, size)
        if not sparse:
            os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def opened(path: Path, *, write: bool = False) -> Iterator[int]:
    """A descriptor that waits for no lease's holder. Raises `InvalidDocument`: it is no regular file; `OSError`."""
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidDocument(f"{path}: not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def mend(descriptor: int, size: int) -> None:
    """Restore the size of an open file. Raises `OSError`: there is no room."""
    if os.fstat(descriptor).st_size != size:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)


def word(memory: bytes, at: int) -> int:
    """Eight bytes as a number; beyond the end they are zero."""
    return int.from_bytes(memory[at : at + 8], "little")


def without_place(error: OSError | InvalidDocument, path: Path) -> str:
    """Why a file could not be read, for the pod's author, whom no path of the node concerns."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error).removeprefix(f"{path}: ")
