"""Checks by a program's ELF file whether the enforcement library can reach it.

The dynamic loader of the GNU C library reads `/etc/ld.so.preload`. A statically linked program has no loader,
and musl's loader does not read the file. Such programs are reported as not enforceable and are not trusted.
"""

import platform
import re
import struct
from enum import StrEnum
from typing import Final

OLDEST_LIBC: Final = (2, 17)
"""The library uses no newer symbol; older images do not get it mounted."""
HEADER: Final = struct.Struct("<16sHHIQQQIHHH")
SEGMENT: Final = struct.Struct("<IIQQQQQQ")
MACHINE: Final = {"x86_64": 62, "aarch64": 183}.get(platform.machine())
"""This machine's number in ELF files; None if the library is not built for it."""
_INTERPRETER: Final = 3
_VERSIONS: Final = re.compile(rb"\0GLIBC_2\.([0-9]{1,3})(?=\0)")


class Reach(StrEnum):
    """Whether a program loads the library, and if not, why."""

    REACHED = "reached"
    STATIC = "statically linked: it has no loader that could load the library"
    MUSL = "linked with musl: its loader does not read /etc/ld.so.preload"
    MACHINE = "built for another machine"
    NOT_ELF = "not an ELF program"


def reach(program: bytes) -> Reach:
    """Judge a program by the start of its file; there is an answer for any content."""
    if len(program) < HEADER.size or program[:4] != b"\x7fELF":
        return Reach.NOT_ELF
    ident, _, machine, _, _, at, _, _, _, size, count = HEADER.unpack_from(program)
    if ident[4] != 2 or ident[5] != 1 or machine != MACHINE:
        return Reach.MACHINE
    if size < SEGMENT.size:
        return Reach.NOT_ELF
    for start in range(at, at + count * size, size):
        if start + SEGMENT.size > len(program):
            break
        kind, _, offset, _, _, length, _, _ = SEGMENT.unpack_from(program, start)
        if kind == _INTERPRETER:
            loader = program[offset : offset + length]
            return Reach.MUSL if b"musl" in loader else Reach.REACHED
    return Reach.STATIC


def newest_symbol(libc: bytes) -> tuple[int, int] | None:
    """The newest symbol version of a `libc.so.6`; None if it is no GNU C library."""
    newest = max((int(found[1]) for found in _VERSIONS.finditer(libc)), default=-1)
    return (2, newest) if newest >= 0 else None
