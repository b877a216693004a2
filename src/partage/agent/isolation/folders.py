"""Folders of containers on the host that tenants may write to: abandoned at once, emptied later.

HAMi's library keeps a container's state in `/usr/local/vgpu/containers/<uid>_<container>` (docs/sources/hami.md 7). The
agent abandons a folder by moving it to `.partage-gone` beside it. The move takes the same time for a million files as for
one, and the runtime's call waits only for it. The caller of `sweep` empties it later, a bounded number of files at once.

A tenant wrote the content of a folder. The code follows neither links nor names with more than one part. It moves
nested folders up and does not descend into them, so depth costs nothing. There may be millions of nested folders: they
have a folder of their own, which the thread that decides about containers never lists. The code touches only folders
whose names have our form, directly in the folder of all. A link in their place stays.
"""

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

_LOG: Final = logging.getLogger("partage.agent")
_UID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
"""The UID of a pod of an API server, or of a static pod of the kubelet."""
_SHAPE: Final = re.compile(f"(?P<uid>{_UID})_(?P<name>[a-z0-9](?:[-a-z0-9]{{0,61}}[a-z0-9])?)")
_GONE: Final = re.compile(r"\.partage-gone-[0-9]{1,18}")
"""An abandoned folder; it lies in the folder of all if the disk allows no folder for it, or an older agent moved it."""
_APART: Final = ".partage-gone"
_PREFIX: Final = ".partage-gone-"
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FLAGS: Final = struct.Struct("l")
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_KEEPS: Final = 0x10 | 0x20
"""The kernel's FS_IMMUTABLE_FL and FS_APPEND_FL."""
_AGE: Final = 300.0
"""Seconds that a folder stays if this agent did not make it: another plugin may have made it for a pod that
the runtime does not have yet. HAMi's own monitor waits equally long."""
_MOST: Final = 20_000
"""Files that one sweep removes."""


class Folders:
    """The folders of one node. `sweep` runs beside `retire` and `forsake`, in another thread, if work is `pending`."""

    def __init__(self, home: str, at: Callable[[str], Path], clock: Callable[[], float]) -> None:
        """Take the folders as they are; those that an earlier agent abandoned are pending.

        `home`: the folder of all, on the host; `at`: a host's path for this process. `clock`: the wall clock.
        """
        self._home = home
        self._at = at
        self._clock = clock
        # Two threads may call. Names of an earlier agent are lower, so none has to be tried.
        self._numbers = itertools.count(int(clock() * 1e6))
        self._told = ""
        self.pending = True

    def retire(self, uid: str, name: str) -> None:
        """Abandon a container's folder; nothing happens if it has none."""
        with self._opened(self._home) as home:
            if home is not None:
                self._retire(home, f"{uid}_{name}")

    def forsake(self, pods: Collection[str], kept: Collection[tuple[str, str]]) -> None:
        """Abandon old folders, but not of `pods` (UIDs in the runtime) or `kept` (UID and container of holders)."""
        with self._opened(self._home) as home:
            if home is None:
                return
            for name in _names(home):
                match = _SHAPE.fullmatch(name)
                if match is None or match["uid"] in pods or (match["uid"], match["name"]) in kept:
                    continue
                if self._old(home, name) and self._retire(home, name):
                    _LOG.info("folder %s/%s: its pod is gone", self._home, name)

    def sweep(self, most: int = _MOST) -> None:
        """Remove abandoned folders, up to `most` files; `pending` is true if there are more."""
        self.pending = False
        with self._opened(self._home) as home:
            if home is None:
                return
            left = most
            with self._apart(home) as apart:
                for folder in dict.fromkeys((home, apart)):
                    for name in _names(folder):
                        if _GONE.fullmatch(name) is None:
                            continue
                        if left <= 0:
                            self.pending = True
                            return
                        left -= self._emptied(folder, name, left, apart)

    # --- one folder --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, folder: str) -> Iterator[int | None]:
        try:
            home = os.open(self._at(folder), _OPEN)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            self._tell(f"folder {folder} cannot be looked at: {error.strerror}")
            yield None
            return
        try:
            yield home
        finally:
            os.close(home)

    @contextlib.contextmanager
    def _apart(self, home: int) -> Iterator[int]:
        """The folder for abandoned folders: the folder of all, if the disk allows no other."""
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(_APART, 0o700, dir_fd=home)
            apart = os.open(_APART, _OPEN, dir_fd=home)
        except OSError as error:
            self._tell(f"folder {self._home}/{_APART} cannot be used: {error.strerror}")
            yield home
            return
        try:
            yield apart
        finally:
            os.close(apart)

    def _retire(self, home: int, name: str) -> bool:
        if not _ours(home, name):
            return False
        _make_changeable(name, home)
        try:
            with self._apart(home) as apart:
                os.rename(name, self._fresh(apart), src_dir_fd=home, dst_dir_fd=apart)
        except OSError as error:
            self._tell(f"folder {self._home}/{name} cannot be given up: {error.strerror}")
            return False
        self.pending = True
        return True

    def _old(self, home: int, name: str) -> bool:
        try:
            found = os.stat(name, dir_fd=home, follow_symlinks=False)
        except OSError:
            return False
        # A tenant that may write into a folder can set any mtime, but not the ctime.
        return self._clock() - found.st_ctime >= _AGE

    def _fresh(self, apart: int) -> str:
        """A free name."""
        while True:
            name = f"{_PREFIX}{next(self._numbers)}"
            try:
                os.stat(name, dir_fd=apart, follow_symlinks=False)
            except FileNotFoundError:
                return name

    def _emptied(self, folder: int, name: str, most: int, apart: int) -> int:
        """Remove a folder or up to `most` of its files, and return the number."""
        try:
            inside = os.open(name, _OPEN, dir_fd=folder)
        except OSError as error:
            self._tell(f"folder {name} in {self._home} cannot be removed: {error.strerror}")
            return 1
        _make_changeable(".", inside)
        done, stays = 0, ""
        try:
            with os.scandir(inside) as found:
                for one in found:
                    if done >= most:
                        self.pending = True
                        return done
                    done += 1
                    try:
                        self._gone(apart, inside, one)
                    except OSError as error:  # of one file: the others may be large
                        stays = error.strerror or str(error)
            if not stays:
                os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:  # not all of it was listed
                self.pending = True
                return done
            stays = error.strerror or str(error)
        finally:
            os.close(inside)
        if stays:
            self._tell(f"folder {name} in {self._home} cannot be removed: {stays}")
        return done + 1

    def _gone(self, apart: int, inside: int, one: os.DirEntry[str]) -> None:
        """Remove an entry of a folder; a nested folder moves up to the folder of all and is emptied there later."""
        folder = one.is_dir(follow_symlinks=False)

        def remove() -> None:
            if not folder:
                os.unlink(one.name, dir_fd=inside)
                return
            os.rename(one.name, self._fresh(apart), src_dir_fd=inside, dst_dir_fd=apart)
            self.pending = True

        try:
            remove()
        except PermissionError:
            if folder or one.is_file(follow_symlinks=False):
                _make_changeable(one.name, inside)
            remove()

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            _LOG.warning("%s", problem)
        self._told = problem


def _make_changeable(name: str, folder: int) -> None:
    """Clear the attributes of a file or folder by which a tenant kept even root from removing it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(name, _LOOK, dir_fd=folder)
        try:
            (flags,) = _FLAGS.unpack(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(_FLAGS.size)))
            if flags & _KEEPS:
                fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(flags & ~_KEEPS))
        finally:
            os.close(descriptor)


def _names(home: int) -> Iterator[str]:
    """The entries of a folder, one by one: tenants may have left more than fits into memory."""
    with os.scandir(home) as found:
        for one in found:
            yield one.name


def _ours(home: int, name: str) -> bool:
    """Whether it is a folder with a name of our form; a link to one is not."""
    if _SHAPE.fullmatch(name) is None:
        return False
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=home, follow_symlinks=False).st_mode)
    except OSError:
        return False
