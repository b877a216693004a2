"""A tenant's process that makes what the kernel shows of it as long as it can; says `ready` and waits for its end.

Used as `python hostile_process.py KIND COUNT FOLDER`.
"""

import contextlib
import ctypes
import os
import resource
import stat
import sys
import threading
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_EXIT = {"x86_64": 60, "aarch64": 93}
_READ_EXECUTE, _READ, _PRIVATE = 5, 1, 2
_CLONE_FILES = 0x400


def _deep(folder: Path, name: str) -> int:
    """A descriptor of a file whose path has nearly as many characters as a path can have."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    part = "d" * 250
    while len(os.readlink(f"/proc/self/fd/{here}")) < 3600:  # noqa: PTH115 # of a descriptor
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=here)
        there = os.open(part, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = there
    file = os.open(name, os.O_RDWR | os.O_CREAT, 0o644, dir_fd=here)
    os.ftruncate(file, 4 * 4096)
    return file


def _map(file: int, protection: int) -> bool:
    call = _LIBC.mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return call(None, 4096, protection, _PRIVATE, file, 0) not in {None, 2**64 - 1}


def _mappings(count: int, folder: Path) -> None:
    file = _deep(folder, "libcuda.so.1")
    for number in range(count):
        if not _map(file, _READ_EXECUTE if number % 2 else _READ):
            break


def _descriptors(count: int, folder: Path) -> None:
    file = _deep(folder, "file")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 100, hard), hard))
    for _ in range(min(count, hard - 100)):
        os.dup(file)


def _threads(count: int, _folder: Path) -> None:
    threading.stack_size(64 * 1024)
    for _ in range(count):
        try:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        except RuntimeError:
            break


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _headless(_count: int, folder: Path) -> None:
    """The driver stays mapped, another thread goes on, and the first one ends."""
    _map(os.open(folder / "libcuda.so.1", os.O_RDWR | os.O_CREAT), _READ_EXECUTE)
    threading.Thread(target=sys.stdin.read).start()
    _ready()
    _LIBC.syscall(_EXIT[os.uname().machine], 0)


def _aside(_count: int, folder: Path) -> None:
    """A thread opens a file in a table of its own."""
    ready = threading.Event()

    def thread() -> None:
        assert _LIBC.unshare(_CLONE_FILES) == 0
        os.open(folder / "device", os.O_RDWR | os.O_CREAT)
        ready.set()
        threading.Event().wait()

    threading.Thread(target=thread, daemon=True).start()
    ready.wait()


def _buried(_count: int, folder: Path) -> None:
    """A device file is open, below more folders than the kernel shows."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(20):
        with contextlib.suppress(FileExistsError):
            os.mkdir("d" * 250, dir_fd=here)
        here = os.open("d" * 250, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
    os.mknod("card", stat.S_IFCHR | 0o600, os.makedev(1, 5), dir_fd=here)
    os.open("card", os.O_RDWR, dir_fd=here)


_KINDS = {
    "buried": _buried,
    "mappings": _mappings,
    "descriptors": _descriptors,
    "threads": _threads,
    "headless": _headless,
    "aside": _aside,
}

if __name__ == "__main__":
    _KINDS[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]))
    _ready()
    sys.stdin.read()
