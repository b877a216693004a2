"""Whether an image can load the enforcement library, told from its root before the first program starts.

The library needs the GNU C library, 2.17 or newer; with an older one a program that is made to load it does not
start at all. So the root is looked at while the container is made but not started, and the library is left out
where it cannot be. The root is the image's: symbolic links are followed inside it only, nothing but regular
files is opened, and no more is read than such a file can hold. Where it is not put together yet, it is looked at
layer by layer, as an overlay would show it.
"""

import contextlib
import errno
import os
import platform
import posixpath
import stat
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partage.agent.isolation.programs import OLDEST_LIBC, Reach, newest_symbol, reach

__all__ = ["FOLDERS", "Root", "Verdict", "file_below", "judge_image", "read_below"]

_MACHINE: Final = platform.machine()
FOLDERS: Final = (
    f"lib/{_MACHINE}-linux-gnu", f"usr/lib/{_MACHINE}-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib",
)  # fmt: skip
_LIBC: Final = "libc.so.6"
_MUSL: Final = f"lib/ld-musl-{_MACHINE}.so.1"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LINKS: Final = 40
_SCRIPTS: Final = 4
_HEAD: Final = 2**20
_MOST: Final = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an image can do.

    Attributes:
        loads: whether its programs can load the library.
        why: why not; or, where its first program is the exception, that.
    """

    loads: bool
    why: str = ""


Root = Sequence[Path]
"""A container's root: its layers, topmost first, or it alone."""


def judge_image(root: Root, command: Sequence[str], env: Mapping[str, str]) -> Verdict:
    """Judge a container's root by its C library and its first program; whatever is there, there is an answer.

    Args:
        root: the container's root as this process sees it: its layers, topmost first, or it alone.
        command: its first program with arguments.
        env: its variables.
    """
    version = _libc(root)
    if version is None:
        if read_below(root, _MUSL, 1) is not None:
            return Verdict(False, f"the image has musl: {Reach.MUSL.partition(': ')[2]}")
        return Verdict(False, "the image has no GNU C library: nothing in it can load the library")
    if version < OLDEST_LIBC:
        wanted = ".".join(map(str, OLDEST_LIBC))
        return Verdict(
            False,
            f"the image's C library is {version[0]}.{version[1]}; {wanted} or newer is needed",
        )
    found = _program(root, command, env)
    if found in {Reach.STATIC, Reach.MUSL, Reach.MACHINE}:
        return Verdict(True, f"{command[0][:200]!r} is {found}")
    return Verdict(True)


def _libc(root: Root) -> tuple[int, int] | None:
    for folder in FOLDERS:
        content = read_below(root, f"{folder}/{_LIBC}", _MOST)
        version = newest_symbol(content) if content is not None else None
        if version is not None:
            return version
    return None


def _program(root: Root, command: Sequence[str], env: Mapping[str, str]) -> Reach | None:
    """What the first program is, through scripts to what runs them; None where it is not found."""
    word = command[0] if command else ""
    for _ in range(_SCRIPTS):
        if not word:
            return None
        if "/" in word:
            places = [word]
        else:
            folders = env.get("PATH", _PATH).split(":")
            places = [f"{folder}/{word}" for folder in folders if folder.startswith("/")]
        head = next(filter(None, (read_below(root, place, _HEAD) for place in places)), None)
        if head is None:
            return None
        if not head.startswith(b"#!"):
            return reach(head)
        words = head[2:512].partition(b"\n")[0].decode("ascii", "replace").split()
        if len(words) > 1 and posixpath.basename(words[0]) == "env":
            words = [one for one in words[1:] if not one.startswith("-") and "=" not in one]
        word = words[0] if words else ""
    return None


def read_below(root: Root, name: str, most: int) -> bytes | None:
    """The beginning of a regular file below a root; None where there is none."""
    try:
        with file_below(root, name) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(most)
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def file_below(root: Root, name: str) -> Iterator[int]:
    """A descriptor of a regular file below a root.

    Raises:
        OSError: there is none.
        ValueError: no file can have that name.
    """
    path = _resolved(root, name)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        yield descriptor
    finally:
        os.close(descriptor)


def _resolved(root: Root, name: str) -> Path:
    """Where a path leads below a root, links followed as if the root were `/`."""
    waiting = deque(part for part in name.split("/") if part not in {"", "."})
    done: list[str] = []
    links = 0
    found = root[0]
    while waiting:
        part = waiting.popleft()
        if part == "..":
            del done[-1:]
            continue
        found = _shown(root, [*done, part])
        try:
            target = str(found.readlink())
        except OSError:
            done.append(part)
            continue
        links += 1
        if links > _LINKS:
            raise OSError(f"{name}: too many links")
        if target.startswith("/"):
            done = []
        waiting.extendleft(part for part in reversed(target.split("/")) if part not in {"", "."})
    return found


def _shown(root: Root, parts: Sequence[str]) -> Path:
    """What layers show at a path whose folders are no links: the topmost file, unless a layer above took it away.

    Raises:
        FileNotFoundError: no layer has it.
    """
    layers = list(root)
    for depth in range(1, len(parts) + 1):
        below: list[Path] = []
        for layer in layers:
            here = layer.joinpath(*parts[:depth])
            try:
                mode = here.lstat()
            except OSError:
                continue
            if stat.S_ISCHR(mode.st_mode) and mode.st_rdev == 0:
                break  # taken away
            if depth == len(parts):
                return here
            if not stat.S_ISDIR(mode.st_mode):
                break
            below.append(layer)
            if _is_opaque(here):
                break
        layers = below
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/".join(parts))


def _is_opaque(folder: Path) -> bool:
    """Whether a folder of a layer hides those below it."""
    for name in ("trusted.overlay.opaque", "user.overlay.opaque"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name, follow_symlinks=False) == b"y":
                return True
    return False
