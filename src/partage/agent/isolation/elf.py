"""Reads ELF files: whether the enforcement library can reach a program, and which symbols a shared object defines.

The dynamic loader of the GNU C library reads `/etc/ld.so.preload`. A statically linked program has no loader,
and musl's loader does not read the file. Such programs are reported as not enforceable and are not trusted.

The symbols are read from the dynamic segment, as the loader does. Section headers may contain anything, so they are not
read. The file may be a tenant's: the reader checks positions and counts, and reads no more than such a file needs. A file
that contradicts itself or is too large is not readable: functions raise `InvalidDocument` for it, `TooMuch` if its work
is over the limit, and `OSError` if the disk fails.
"""

import os
import platform
import re
import struct
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from partage.agent.isolation.reading import Work
from partage.model.errors import InvalidDocument

OLDEST_LIBC: Final = (2, 17)
"""The library uses no newer symbol; older images do not get it mounted."""
_HEADER: Final = struct.Struct("<16sHHIQQQIHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_MACHINE: Final = {"x86_64": 62, "aarch64": 183}.get(platform.machine())
"""This machine's number in ELF files; None if the library is not built for it."""
_INTERPRETER: Final = 3
_VERSIONS: Final = re.compile(rb"\0GLIBC_2\.([0-9]{1,3})(?=\0)")
_DYNAMIC: Final = struct.Struct("<qQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_GNU: Final = struct.Struct("<IIII")
_FIXED, _SHARED = 2, 3
_LOADED, _DYNAMIC_PART = 1, 2
_HASH, _STRINGS, _SYMBOLS, _LENGTH, _GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
_AUDITORS: Final = (0x6FFFFEFB, 0x6FFFFEFC)
_LONGEST: Final = 4096
_PARTS: Final = 64
_TAGS: Final = 4096
_MOST: Final = 2**17
"""Symbols and hash words of one object; the largest common preloaded object has half of it."""
_TEXT: Final = 16 * 2**20
_ASKED: Final = 256
OF_DRIVER: Final = re.compile(rb"(?:cu(?!File)|nvml)[A-Z][0-9A-Za-z_]{0,60}|dlv?sym(?=\0)")
"""Functions of the driver and of the loader; CUDA's runtime and libraries continue in small letters, cuFile too."""
OF_AUDITOR: Final = re.compile(rb"la_(?:symbind(?:32|64)|[0-9a-z_]{1,40}_pltenter)(?=\0)")
"""Functions of an auditor of the loader that may redirect a bound call."""
_BEGINNINGS: Final = {OF_DRIVER: (b"cu", b"nvml", b"dlsym\0", b"dlvsym\0"), OF_AUDITOR: (b"la_",)}

_Read = Callable[[int, int], bytes]


class Reach(StrEnum):
    """Whether a program loads the library, and if not, why."""

    REACHED = "reached"
    STATIC = "statically linked: it has no loader that could load the library"
    MUSL = "linked with musl: its loader does not read /etc/ld.so.preload"
    MACHINE = "built for another machine"
    NOT_ELF = "not an ELF program"


def reach(program: bytes) -> Reach:
    """Judge a program by the start of its file; there is an answer for any content."""
    if len(program) < _HEADER.size or program[:4] != b"\x7fELF":
        return Reach.NOT_ELF
    ident, _, machine, _, _, at, _, _, _, size, count = _HEADER.unpack_from(program)
    if ident[4] != 2 or ident[5] != 1 or machine != _MACHINE:
        return Reach.MACHINE
    if size < _SEGMENT.size:
        return Reach.NOT_ELF
    for start in range(at, at + count * size, size):
        if start + _SEGMENT.size > len(program):
            break
        kind, _, offset, _, _, length, _, _ = _SEGMENT.unpack_from(program, start)
        if kind == _INTERPRETER:
            loader = program[offset : offset + length]
            return Reach.MUSL if b"musl" in loader else Reach.REACHED
    return Reach.STATIC


def newest_symbol(libc: bytes) -> tuple[int, int] | None:
    """The newest symbol version of a `libc.so.6`; None if it is no GNU C library."""
    newest = max((int(found[1]) for found in _VERSIONS.finditer(libc)), default=-1)
    return (2, newest) if newest >= 0 else None


def defined(wanted: re.Pattern[bytes], descriptor: int, work: Work) -> str:
    """A function that an object defines itself, of those of `OF_DRIVER` or `OF_AUDITOR`; empty if it has none."""
    return _found(*_dynamic(descriptor, work), wanted)


def auditors(descriptor: int, work: Work) -> str:
    """Auditors of the loader that a program names itself, separated by colons; empty if it names none."""
    read, tags = _dynamic(descriptor, work)
    names = []
    for tag in _AUDITORS:
        if tag in tags:
            room = min(_LONGEST, tags.get(_LENGTH, 0) - tags[tag])
            if room < 1 or _STRINGS not in tags:
                raise InvalidDocument("a name beyond the table of names")
            text, ended, _ = read(tags[_STRINGS] + tags[tag], room).partition(b"\0")
            if not ended:
                raise InvalidDocument("a name without an end")
            names.append(text.decode("utf-8", "surrogateescape"))
    return ":".join(names)


def _dynamic(descriptor: int, work: Work) -> tuple[_Read, dict[int, int]]:
    """A reader of an object by its addresses in memory, and its dynamic segment."""
    ident, kind, machine, _, _, at, _, _, _, size, count = _HEADER.unpack(
        _bytes(descriptor, 0, _HEADER.size, work)
    )
    if ident[:6] != b"\x7fELF\2\1" or machine != _MACHINE or kind not in {_FIXED, _SHARED}:
        raise InvalidDocument("not a shared object for this machine")
    if size != _SEGMENT.size or count > _PARTS:
        raise InvalidDocument(f"{count} program headers of {size} bytes")
    parts = list(_SEGMENT.iter_unpack(_bytes(descriptor, at, count * size, work)))
    loaded = [(part[3], part[2], part[5]) for part in parts if part[0] == _LOADED]

    def read(address: int, length: int) -> bytes:
        for start, offset, filled in loaded:
            if start <= address and address + length <= start + filled:
                return _bytes(descriptor, offset + address - start, length, work)
        raise InvalidDocument(f"nothing is loaded at {address:#x}")

    dynamic = [(part[3], part[5]) for part in parts if part[0] == _DYNAMIC_PART]
    if not dynamic:
        raise InvalidDocument("no dynamic segment")
    return read, _tags(read, *dynamic[-1])


def _tags(read: _Read, address: int, length: int) -> dict[int, int]:
    """The tags of a dynamic segment; the last value of each counts, as for the loader."""
    if length > _TAGS * _DYNAMIC.size:
        raise InvalidDocument(f"a dynamic segment of {length} bytes")
    tags = {}
    for tag, value in _DYNAMIC.iter_unpack(read(address, length - length % _DYNAMIC.size)):
        if tag == 0:
            break
        tags[tag] = value
    return tags


def _found(read: _Read, tags: dict[int, int], wanted: re.Pattern[bytes]) -> str:
    if _GNU_HASH in tags:
        count = _count(read, tags[_GNU_HASH])
    elif _HASH in tags:
        count = int.from_bytes(read(tags[_HASH] + 4, 4), "little")
    else:
        return ""  # the loader finds nothing in it either
    if count > _MOST:
        raise InvalidDocument(f"{count} symbols")
    if not count:
        return ""
    if not {_STRINGS, _SYMBOLS, _LENGTH} <= tags.keys() or tags[_LENGTH] > _TEXT:
        raise InvalidDocument("no table of symbols, or a very long one")
    text = read(tags[_STRINGS], tags[_LENGTH])
    for name, info, _, section, _, _ in _SYMBOL.iter_unpack(
        read(tags[_SYMBOLS], count * _SYMBOL.size)
    ):
        if not section or not info >> 4:
            continue  # defined elsewhere, or local
        if name >= len(text):
            raise InvalidDocument("a name beyond the table of names")
        if text.startswith(_BEGINNINGS[wanted], name) and (found := wanted.match(text, name)):
            return found.group().decode("ascii")
    return ""


def _count(read: _Read, address: int) -> int:
    """The number of symbols in a GNU hash table: up to the end of the chain that begins last."""
    buckets, first, words, _ = _GNU.unpack(read(address, _GNU.size))
    if max(buckets, words) > _MOST:
        raise InvalidDocument(f"a hash table of {buckets} buckets")
    at = address + _GNU.size + 8 * words
    starts = struct.unpack(f"<{buckets}I", read(at, 4 * buckets))
    if any(0 < start < first for start in starts):
        raise InvalidDocument("a chain before the first symbol")
    last = max(starts, default=0)
    if not last:
        return 0
    chains = at + 4 * buckets
    while last <= _MOST:
        if read(chains + 4 * (last - first), 4)[0] & 1:
            return last + 1
        last += 1
    raise InvalidDocument("a chain without an end")


def _bytes(descriptor: int, offset: int, length: int, work: Work) -> bytes:
    work.take(_ASKED + length, "programs")
    try:
        found = os.pread(descriptor, length, offset)
    except OverflowError as error:
        raise InvalidDocument(f"a position of {offset}") from error
    if len(found) < length:
        raise InvalidDocument("cut off")
    return found
