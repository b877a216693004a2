"""A program that asks a driver what it gives and answers; run with and without the enforcement library."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Answer = int | str

VERSIONS = (
    *(2000, 2010, 2020, 2030, 3000, 3010, 3020, 4000, 4010, 4020, 5000, 5050, 6000, 6050, 7000),
    *(7050, 8000, 9000, 9010, 9020, 10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040, 11050),
    *(11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040, 12050, 12060, 12070, 12080, 12090),
    *(13000, 13010, 13020, 13030),
)
"""CUDA's versions, as `cuGetProcAddress` takes them."""
LEGACY, PER_THREAD = 1, 2
ROOM_AT = 0x2000_0000
"""Where what is pointed to lies: the same in every process, as some functions take it for a number."""
MAP_PRIVATE_ANONYMOUS_FIXED = 0x2 | 0x20 | 0x10_0000


class Home(ctypes.Structure):
    """Where an address lies (`Dl_info`)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    )


_process = ctypes.CDLL(None)
_process.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Home)]
_process.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_process.dlsym.restype = ctypes.c_void_p
_process.dlclose.argtypes = [ctypes.c_void_p]
_process.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_process.mmap.restype = ctypes.c_void_p


def exports(library: str) -> dict[str, int]:
    """Names of functions that a library exports, and where they lie in it."""
    table = subprocess.check_output(
        ["objdump", "-T", library], text=True, env={**os.environ, "LD_PRELOAD": ""}
    )
    rows = (line.split() for line in table.splitlines() if " .text" in line)
    return {row[-1]: int(row[0], 16) for row in rows if re.match(r"cu[A-Z]|nvml[A-Z]", row[-1])}


def home(address: int | None, known: dict[int, str]) -> str:
    """File and function of an address."""
    place = Home()
    if not address or not _process.dladdr(address, ctypes.byref(place)):
        return ""
    file = Path(os.fsdecode(place.file or b"")).name
    if file.startswith("libpartage"):
        return f"ours {(place.symbol or b'').decode()}" if place.at == address else "ours ?"
    return f"theirs {known.get(address - (place.base or 0), '?')}"


def bases(names: Iterable[str]) -> list[str]:
    """What the functions are asked for as, whatever their variants are called."""
    return sorted({re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name) for name in names})


def table(library: str) -> dict[str, dict[str, dict[int, str]]]:
    """What `cuGetProcAddress` gives: per way and flags, name and version."""
    loaded = ctypes.CDLL(library)
    names = exports(library)
    known = {at: name for name, at in names.items()}
    found: dict[str, dict[str, dict[int, str]]] = {}
    for way in {"cuGetProcAddress", "cuGetProcAddress_v2"} & set(names):
        for flags in (0, LEGACY, PER_THREAD):
            part = found.setdefault(f"{way} {flags}", {})
            for base in bases(names):
                for version in VERSIONS:
                    address, status = ctypes.c_void_p(), ctypes.c_int(-1)
                    arguments: list[Any] = [base.encode(), ctypes.byref(address), version]
                    arguments.append(ctypes.c_uint64(flags))
                    if way.endswith("_v2"):
                        arguments.append(ctypes.byref(status))
                    result = loaded[way](*arguments)
                    where = home(address.value, known)
                    part.setdefault(base, {})[version] = f"{result} {status.value} {where}"
    return found


def symbols(library: str) -> dict[str, dict[str, str]]:
    """What names are answered by: of the library's handle, and of the process."""
    loaded = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    names = exports(library)
    known = {at: name for name, at in names.items()}
    return {
        "handle": {
            name: home(_process.dlsym(loaded._handle, name.encode()), known) for name in names
        },
        "process": {name: home(_process.dlsym(None, name.encode()), known) for name in names},
    }


def _apart(call: Any, arguments: list[Any]) -> Answer:
    """What a call gives in a child of its own, or the signal that ended it."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        os.write(theirs, str(call(*arguments)).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as said:
        answer = said.read()
    _, status = os.waitpid(child, 0)
    return int(answer) if answer else f"status {status}"


def sweep(library: str, begin: str) -> dict[str, list[Answer]]:
    """Result of every function with no arguments, and with empty ones; `begin` was called before."""
    loaded = ctypes.CDLL(library)
    given = ctypes.c_void_p(_process.mmap(ROOM_AT, 65536, 3, MAP_PRIVATE_ANONYMOUS_FIXED, -1, 0))
    found: dict[str, list[Answer]] = {}
    if begin:
        found[f"first {begin}"] = [loaded[begin](0)]
    for name in sorted(exports(library).keys() - {"nvmlErrorString"}):  # gives an address
        found[name] = [
            _apart(loaded[name], [ctypes.c_void_p()] * 12),
            _apart(loaded[name], [given] * 12),
        ]
    return found


def lives(library: str) -> dict[str, Answer]:
    """Fork, close and open elsewhere: what a process may do with a driver."""
    found: dict[str, Answer] = {}
    loaded = ctypes.CDLL(library)
    found["in a child"] = _apart(loaded.cuInit, [0])
    found["first"] = loaded.cuInit(0)
    found["in a child, after"] = _apart(loaded.cuDriverGetVersion, [ctypes.c_void_p()])
    places = _mapped(library)
    found["closed"] = _process.dlclose(loaded._handle)
    for start, end in places if not _mapped(library) else []:
        _process.mmap(start, end - start, 0, MAP_PRIVATE_ANONYMOUS_FIXED, -1, 0)
    found["again"] = ctypes.CDLL(library).cuInit(0)
    return found


def _mapped(library: str) -> list[tuple[int, int]]:
    end = str(Path(library).resolve())
    rows = (row.split(maxsplit=5) for row in Path("/proc/self/maps").read_text().splitlines())
    found = (row[0].split("-") for row in rows if row[-1] == end)
    return [(int(start, 16), int(end, 16)) for start, end in found]


def objects(library: str) -> list[str]:
    """Files that are mapped once the driver was asked to begin."""
    ctypes.CDLL(library).cuInit(0)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted({row.split(maxsplit=5)[5] for row in maps if len(row.split(maxsplit=5)) > 5})


if __name__ == "__main__":
    asked = {one.__name__: one for one in (table, symbols, sweep, lives, objects)}
    sys.stdout.write(json.dumps(asked[sys.argv[1]](*sys.argv[2:])))  # type: ignore[operator]
