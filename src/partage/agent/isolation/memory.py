"""Mounts memory of a fixed size for files that containers may write.

A container that may write a file may extend it, and would fill the node's disk past every limit of
Kubernetes. These files therefore lie on file systems in memory (tmpfs) that have room for them and little
else. A mount needs privileges, and the host must see this process's mounts. If either is missing, the files lie
on the disk, and the agent reports it.
"""

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from partage.agent.isolation.reading import TooMuch, Work, lines

_NOSUID: Final = 2
_NODEV: Final = 4
_NOEXEC: Final = 8
_REMOUNT: Final = 32
_DETACH: Final = 2
_MOST: Final = 2**30
"""Bytes to which a file system of seats may grow."""
_OWN: Final = Path("/proc/self/mountinfo")


def room(file_bytes: int, files: int, page_bytes: int) -> int:
    """Memory that so many files of a size take, in whole pages, which are of 64 KiB on some aarch64 kernels."""
    return files * -(-file_bytes // page_bytes) * page_bytes


def bound(folder: Path, file_bytes: int, files: int) -> None:
    """Mount memory on an empty folder (as this process sees it), unless there is a mount. Raises `OSError`."""
    if os.path.ismount(folder):
        return
    size = room(file_bytes, files, os.sysconf("SC_PAGE_SIZE"))
    _mount(folder, 0, f"size={size},nr_inodes=0,mode=0755")


def enlarge(folder: Path) -> bool:
    """Double a full file system of `bound` on a folder; false if there is none or it cannot grow.

    A container can keep a file without a name, and its room. The kernel charges that memory to the container.
    """
    try:
        found = os.statvfs(folder)
        size = 2 * found.f_blocks * found.f_frsize
        if not os.path.ismount(folder) or size > _MOST:
            return False
        _mount(folder, _REMOUNT, f"size={size},nr_inodes=0")
    except OSError:
        return False
    return True


def _mount(folder: Path, flags: int, options: str) -> None:
    flags |= _NOSUID | _NODEV | _NOEXEC
    where, kind = os.fsencode(folder), b"tmpfs"
    _call("mount", folder, b"partage", where, kind, ctypes.c_ulong(flags), options.encode())


def unbind(folder: Path) -> None:
    """Unmount a folder; processes that have its files mapped or mounted keep them. Raises `OSError`."""
    if os.path.ismount(folder):
        _call("umount2", folder, os.fsencode(folder), ctypes.c_int(_DETACH))


def is_seen(folder: Path, path: str, mounts: Path) -> bool:
    """Whether another process sees the mount on a folder, which is at `path` for it.

    `mounts`: its `mountinfo`, read if its root cannot be opened: tenants make it long by volumes with many subPaths.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(folder), os.stat(f"{mounts.parent}/root{path}")):  # noqa: PTH116 # text
            return True
    try:
        return _spelled(path) in _points(mounts)
    except (OSError, TooMuch):
        return False


def mounted(folder: Path) -> str:
    """The mounts on a folder or below it for this process; empty if there are none. Raises `OSError`.

    It finds mounts of the folder's own file system too, which have the same device number.
    """
    # The last part of the path is not followed if it is a link, as in the removal of the folder.
    here = _spelled(os.path.join(os.path.realpath(folder.parent), folder.name))  # noqa: PTH118 # text
    try:
        for point in _points(_OWN):
            if point == here or point.startswith(f"{here}/"):
                return point
    except TooMuch as error:
        raise OSError(errno.E2BIG, f"too many {error}", str(folder)) from error
    return ""


def _points(mounts: Path) -> Iterator[str]:
    """The mount points of a `mountinfo`, in its spelling."""
    for line in lines(str(mounts), Work(), "mounts"):
        if line.count(" ") > 3:
            yield line.split(" ", 5)[4]


def _spelled(path: str) -> str:
    """A path in the spelling of `mountinfo`."""
    return "".join(rf"\{ord(one):03o}" if one in " \t\n\\" else one for one in path)


def _call(name: str, folder: Path, *arguments: object) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(folder))
