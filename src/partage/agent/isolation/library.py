"""Installs the enforcement library: one immutable file per content.

Processes map the file for as long as they live. A new version gets a new name beside the old one, so the
agent never writes a file under a running process.
"""

import ctypes
import hashlib
import mmap
import os
from pathlib import Path
from typing import Final

from partage.agent.trouble import is_own

_STEM: Final = "libpartage-isolation"
_DIGITS: Final = 16
_OWN: Final = Path("/proc/self/maps")


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install(built: Path, folder: Path) -> Path:
    """Copy the built library into `folder` under the name of its content; an existing one stays. Raises `OSError`."""
    content = built.read_bytes()
    name = f"{_STEM}-{hashlib.sha256(content).hexdigest()[:_DIGITS]}.so"
    target = folder / name
    if target.exists() and is_genuine(target):
        return target
    draft = folder / f".{name}.{os.getpid()}"
    draft.write_bytes(content)
    draft.chmod(0o555)
    draft.replace(target)
    return target


def is_genuine(path: Path) -> bool:
    """Whether an installed library still matches its name. Raises `OSError`: this process lacks a resource."""
    try:
        return path.name == f"{_STEM}-{digest(path)[:_DIGITS]}.so"
    except OSError as error:
        if is_own(error):
            raise
        return False


def as_mapped(path: Path) -> tuple[str, str] | None:
    """Device and inode of a file as procfs reports them for processes that map it; None if it cannot be mapped.

    On overlays and on btrfs `stat` has others. The kernel reports the same pair under all of a mapped file's names.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as here:
            at = ctypes.addressof(ctypes.c_char.from_buffer(here))
            lines = _OWN.read_text("utf-8", "surrogateescape").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        span, _, _, device, inode, *_ = line.split(maxsplit=5)
        begin, _, end = span.partition("-")
        if int(begin, 16) <= at < int(end, 16):
            return device, inode
    return None
