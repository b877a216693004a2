"""Installing the enforcement library: one immutable file per content.

Processes map the file for as long as they live. A new version is a new name beside the old one, so that
nothing is ever written under a running process.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

__all__ = ["digest", "install", "is_genuine"]

_STEM: Final = "libpartage-isolation"
_DIGITS: Final = 16


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install(built: Path, folder: Path) -> Path:
    """Copy the built library into `folder` under the name of its content; one that is there stays.

    Raises:
        OSError: It cannot be read, or the folder cannot be written.
    """
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
    """Whether an installed library still is what its name says."""
    try:
        return path.name == f"{_STEM}-{digest(path)[:_DIGITS]}.so"
    except OSError:
        return False
