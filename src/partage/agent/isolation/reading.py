"""Reads procfs and containers' roots, where a tenant can make a file large or slow, or replace it by another thing.

A process decides how long its entries in procfs are, and a container decides the size of its root. The reader therefore
reads in pieces, keeps only the requested parts, and counts each piece: `Work` is the amount that one look may still
read for one container. If it is used up, there is no answer (`TooMuch`), and the container counts as one whose
limits are not in force.

Names below a container's root are looked up folder by folder, by descriptors that open nothing (`O_PATH`). A link
is followed inside the root only, even if it changes meanwhile, and a file is opened only when it is known to
be a regular one on a disk, because opening a device file or a pipe has effects, and so has following a link of procfs
or reading the kernel's own files: `/proc/kmsg` gives each message to one reader.
`shared` opens pages that the library writes.

Functions raise `OSError` if something is absent or cannot be read, `TooMuch` if it is longer than a look may read, and
`ValueError` for a name that no file can have. `what` names a file in the error. A file system that a tenant serves
answers with any error, also with those of a process that lacks a resource: `lacks` tells them apart.
"""

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from partage.agent.trouble import is_own

LOOK: Final = 64 * 2**20
"""Work of one look at one container: some half a second of a processor if all of it is used."""
_OPEN: Final = 2048
"""The cost of opening and closing a file, in bytes that are read in the same time."""
_NAME: Final = 512
_CHUNK: Final = 2**16
_LINE: Final = 2**18
"""Twice the kernel's own bound of a string that a program is started with."""
_LINKS: Final = 40
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PATH: Final = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_ROOT: Final = os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY

_HERE: Final = -100
_NO_WAIT: Final = 0x4000 | 0x800
"""The kernel's AT_STATX_DONT_SYNC and AT_NO_AUTOMOUNT."""
_KIND: Final = 1
_STAT_BYTES: Final = 256
_STATX: Final = struct.Struct("28xH98xII")
_STATFS: Final = struct.Struct("q")
"""The parts of the kernel's answers that are read: kind and numbers of a file, kind of its file system."""
_KERNELS: Final = frozenset({0x9FA0, 0x62656572, 0x64626720, 0x74726163})
"""Magic numbers of the kernel's file systems whose files do something when they are read."""
_LIBC: Final = ctypes.CDLL(None)

Root = Sequence[Path]
"""A container's root: its layers, topmost first, or it alone."""


class TooMuch(Exception):
    """There is more to read than one look may; the text names it."""


class Work:
    """The amount that may still be read, in bytes; opening and naming files counts too."""

    def __init__(self, most: int = LOOK) -> None:
        self._most = most
        self.spent = 0

    def take(self, amount: int, what: str) -> None:
        """Count an amount. Raises `TooMuch`: less than that was left."""
        self.spent += amount
        if self.spent > self._most:
            raise TooMuch(what)


def lacks(error: OSError) -> bool:
    """Whether this process lacks a resource: if it can open another file, a tenant's file system made the error."""
    if not is_own(error):
        return False
    try:
        os.close(os.open("/proc/self/stat", _READ))
    except OSError:
        return True
    return False


# --- files of the kernel ---------------------------------------------------------------------


def chunks(path: str, work: Work, what: str) -> Iterator[bytes]:
    """A file of the kernel in pieces; `what` names it in errors. Raises `OSError`; `TooMuch`: it is too long."""
    work.take(_OPEN, what)
    descriptor = os.open(path, _READ)
    try:
        while chunk := os.read(descriptor, _CHUNK):
            work.take(len(chunk), what)
            yield chunk
    finally:
        os.close(descriptor)


def parts(path: str, end: bytes, work: Work, what: str) -> Iterator[bytes]:
    """The same in pieces that end with `end`, several lines each, or with the file. Raises `OSError`; `TooMuch`."""
    carried = b""
    for chunk in chunks(path, work, what):
        there, found, rest = chunk.rpartition(end)
        if found:
            yield carried + there + found
            carried = rest
        else:
            carried += chunk
        if len(carried) > _LINE:
            raise TooMuch(what)
    if carried:
        yield carried


def lines(path: str, work: Work, what: str) -> Iterator[str]:
    """The lines of a file of the kernel, without their ends. Raises `OSError`; `TooMuch`: it or a line is too long."""
    for part in parts(path, b"\n", work, what):
        yield from part.decode("utf-8", "surrogateescape").rstrip("\n").split("\n")


def whole(path: str, most: int, work: Work, what: str) -> str:
    """A short file of the kernel. Raises `OSError`: it cannot be read; `TooMuch`: it is longer than `most`."""
    found: list[bytes] = []
    length = 0
    for chunk in chunks(path, work, what):
        length += len(chunk)
        if length > most:
            raise TooMuch(what)
        found.append(chunk)
    return b"".join(found).decode("utf-8", "replace")


def names(folder: str, work: Work, what: str) -> Iterator[str]:
    """The names in a folder, never all of them at a time. Raises `OSError`; `TooMuch`: there are too many."""
    work.take(_OPEN, what)
    with os.scandir(folder) as found:
        for one in found:
            work.take(_NAME, what)
            yield one.name


def links(folder: str, work: Work, what: str) -> Iterator[tuple[str, str]]:
    """A folder's links and their targets, without unreadable ones; the target is `/` if its path exceeds a page."""
    for name in names(folder, work, what):
        try:
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 # of every process, every ten seconds
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                continue  # closed meanwhile
            target = "/"
        work.take(len(target), what)
        yield f"{folder}/{name}", target


def device_numbers(path: str) -> tuple[int, int] | None:
    """Major and minor number of a device file; None for any other. It opens nothing, and waits for no file system."""
    found = ctypes.create_string_buffer(_STAT_BYTES)
    if _LIBC.statx(_HERE, os.fsencode(path), _NO_WAIT, _KIND, found):
        return None
    mode, major, minor = _STATX.unpack_from(found)
    return (major, minor) if stat.S_ISCHR(mode) else None


# --- files below a container's root ----------------------------------------------------------


def start(root: Root, name: str, most: int, work: Work) -> bytes | None:
    """The beginning of a regular file below a root; None without one. Raises `TooMuch`; `OSError`: no resource."""
    try:
        with file_below(root, name, work) as descriptor:
            found = bytearray()
            while len(found) < most:
                chunk = os.read(descriptor, min(most - len(found), _CHUNK))
                if not chunk:
                    break
                work.take(len(chunk), "files")
                found += chunk
            return bytes(found)
    except OSError as error:
        if lacks(error):
            raise
        return None
    except ValueError:
        return None


@contextlib.contextmanager
def file_below(root: Root, name: str, work: Work) -> Iterator[int]:
    """A descriptor of a regular file below a root. Raises `OSError`; `ValueError`: an impossible name; `TooMuch`."""
    place = _found(root, name, work)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode) or _is_kernels(place):
            raise OSError(errno.EINVAL, "not a regular file", name)
        work.take(_OPEN, "files")
        # The very file that was checked, whatever its name leads to by now.
        descriptor = os.open(f"/proc/self/fd/{place}", _READ)
    finally:
        os.close(place)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_kernels(descriptor: int) -> bool:
    """Whether a file is one of procfs, sysfs, debugfs or tracefs."""
    found = ctypes.create_string_buffer(_STAT_BYTES)
    failed = _LIBC.fstatfs(descriptor, found)
    return not failed and _STATFS.unpack_from(found)[0] in _KERNELS


def identity(root: Root, name: str, work: Work) -> tuple[int, int]:
    """Device and inode of an unopened file below a root. Raises `OSError`; `ValueError`: impossible name; `TooMuch`."""
    place = _found(root, name, work)
    try:
        found = os.fstat(place)
    finally:
        os.close(place)
    return found.st_dev, found.st_ino


def _found(root: Root, name: str, work: Work) -> int:
    """A descriptor of a path's target below a root, links followed as if the root were `/`; it opens nothing."""
    waiting = deque(_parts(name))
    done: list[str] = []
    left = _LINKS
    here = _opened(root)
    try:
        while waiting:
            part = waiting.popleft()
            if part == "..":
                del done[-1:]
                here = _moved(here, _folder(root, done, work))
                continue
            found = _step(here, part, work)
            mode = os.fstat(found[0]).st_mode
            if stat.S_ISLNK(mode):
                try:
                    target = os.readlink("", dir_fd=found[0])  # of a descriptor
                finally:
                    _closed(found)
                left -= 1
                if not left:
                    raise OSError(errno.ELOOP, "too many links", name)
                if target.startswith("/"):
                    done = []
                    here = _moved(here, _opened(root))
                waiting.extendleft(reversed(_parts(target)))
            elif stat.S_ISDIR(mode):
                done.append(part)
                here = _moved(here, found)
            elif waiting:
                _closed(found)
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
            else:
                _closed(here)
                here = []
                return found[0]
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    finally:
        _closed(here)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _opened(root: Root) -> list[int]:
    found = []
    for layer in root:
        try:
            found.append(os.open(layer, _ROOT))
        except OSError as error:
            if lacks(error):
                _closed(found)
                raise
    return found


def _folder(root: Root, path: Sequence[str], work: Work) -> list[int]:
    here = _opened(root)
    for part in path:
        try:
            here = _moved(here, _step(here, part, work))
        except BaseException:
            _closed(here)
            raise
    return here


def _step(layers: Sequence[int], name: str, work: Work) -> list[int]:
    """The entry of a name in layers: the topmost one, and if it is a folder, the lower ones that it is merged with."""
    shown: list[int] = []
    try:
        for layer in layers:
            work.take(_OPEN, "files")
            try:
                found = os.open(name, _PATH, dir_fd=layer)
            except (FileNotFoundError, NotADirectoryError):
                continue
            mode = os.fstat(found)
            gone = stat.S_ISCHR(mode.st_mode) and mode.st_rdev == 0 and len(layers) > 1
            folder = stat.S_ISDIR(mode.st_mode)
            if gone or (shown and not folder):
                os.close(found)
                break
            shown.append(found)
            if not folder or (len(layers) > 1 and _is_opaque(found)):
                break
    except BaseException:
        _closed(shown)
        raise
    if not shown:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return shown


def _is_opaque(folder: int) -> bool:
    """Whether a folder of a layer hides those below it."""
    for name in ("trusted.overlay.opaque", "user.overlay.opaque"):
        with contextlib.suppress(OSError):
            if os.getxattr(f"/proc/self/fd/{folder}", name) == b"y":
                return True
    return False


def _moved(before: list[int], after: list[int]) -> list[int]:
    _closed(before)
    return after


def _closed(descriptors: Sequence[int]) -> None:
    for one in descriptors:
        os.close(one)
