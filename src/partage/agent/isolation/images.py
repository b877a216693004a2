"""Checks in an image's root whether its programs can load the enforcement library, before the first one starts.

The library needs the GNU C library, 2.17 or newer; with an older one a program that must load the library does not
start at all. The agent therefore checks the root when the container is created but not started, and leaves the library
out if the image cannot load it. The root is the image's: the check follows symbolic links inside it only, opens only
regular files, and reads no more than such a file can hold. If the root is not assembled yet, the check reads it
layer by layer, as an overlay would show it (`reading`).
"""

import platform
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from partage.agent.isolation.elf import OLDEST_LIBC, Reach, newest_symbol, reach
from partage.agent.isolation.reading import Root, TooMuch, Work, start

_MACHINE: Final = platform.machine()
FOLDERS: Final = (
    f"lib/{_MACHINE}-linux-gnu",
    f"usr/lib/{_MACHINE}-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
)
_LIBC: Final = "libc.so.6"
_MUSL: Final = f"lib/ld-musl-{_MACHINE}.so.1"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SCRIPTS: Final = 4
_HEAD: Final = 2**20
_MOST: Final = 16 * 2**20
_WORK: Final = 2**28
_PLACES: Final = 64
"""Folders of `PATH` that are searched."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an image's programs can load the library; `why` they cannot, or only its first one cannot."""

    loads: bool
    why: str = ""


def judge_image(root: Root, command: Sequence[str], env: Mapping[str, str]) -> Verdict:
    """Judge a container's root by its C library and its first program; there is an answer for any content."""
    try:
        return _judged(root, command, env, Work(_WORK))
    except TooMuch as error:
        return Verdict(False, f"the image has more {error} than can be looked at before it starts")


def _judged(root: Root, command: Sequence[str], env: Mapping[str, str], work: Work) -> Verdict:
    version = _libc(root, work)
    if version is None:
        if start(root, _MUSL, 1, work) is not None:
            return Verdict(False, f"the image has musl: {Reach.MUSL.partition(': ')[2]}")
        return Verdict(False, "the image has no GNU C library: nothing in it can load the library")
    if version < OLDEST_LIBC:
        wanted = ".".join(map(str, OLDEST_LIBC))
        return Verdict(
            False,
            f"the image's C library is {version[0]}.{version[1]}; {wanted} or newer is needed",
        )
    found = _program(root, command, env, work)
    if found in {Reach.STATIC, Reach.MUSL, Reach.MACHINE}:
        return Verdict(True, f"{command[0][:200]!r} is {found}")
    return Verdict(True)


def _libc(root: Root, work: Work) -> tuple[int, int] | None:
    for folder in FOLDERS:
        content = start(root, f"{folder}/{_LIBC}", _MOST, work)
        version = newest_symbol(content) if content is not None else None
        if version is not None:
            return version
    return None


def _program(
    root: Root, command: Sequence[str], env: Mapping[str, str], work: Work
) -> Reach | None:
    """Whether the first program can be reached, through scripts to their interpreters; None if it is not found."""
    word = command[0] if command else ""
    for _ in range(_SCRIPTS):
        if not word:
            return None
        if "/" in word:
            places = [word]
        else:
            folders = env.get("PATH", _PATH).split(":", _PLACES)[:_PLACES]
            places = [f"{folder}/{word}" for folder in folders if folder.startswith("/")]
        head = next(filter(None, (start(root, place, _HEAD, work) for place in places)), None)
        if head is None:
            return None
        if not head.startswith(b"#!"):
            return reach(head)
        words = head[2:512].partition(b"\n")[0].decode("ascii", "replace").split()
        if len(words) > 1 and posixpath.basename(words[0]) == "env":
            words = [one for one in words[1:] if not one.startswith("-") and "=" not in one]
        word = words[0] if words else ""
    return None
