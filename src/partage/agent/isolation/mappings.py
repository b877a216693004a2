"""Reads a process's mappings piece by piece as procfs reports them, because a tenant can make the list any length.

`home` is the process's folder in procfs. Functions raise `OSError` if it has ended, `TooMuch` if they may not read it all.
"""

import errno
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from partage.agent.isolation.reading import TooMuch, Work, parts
from partage.vendors.traits import NVIDIA

_DRIVER: Final = b"/libcuda.so"
_DEVICE: Final = re.compile(
    "|".join((NVIDIA.tampering, *map(re.escape, NVIDIA.common)))
    .join((r"(?:", r")(?: \(deleted\))?$"))
    .encode(),
    re.MULTILINE,
)
_CODE: Final = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ (.).x. +\S+ +(\S+) +(\S+)(?: +(\S[^\n]*))?$", re.MULTILINE
)
_INTERFACES: Final = (
    ("OpenCL", re.compile(rb"/libnvidia-opencl\.so")),
    ("Vulkan", re.compile(rb"/libvulkan\.so")),
    ("OpenGL", re.compile(rb"/lib(?:GLX|EGL|GLESv2)_nvidia\.so")),
)
"""The libraries of these, in NVIDIA's driver or the loader of its driver; Vulkan's driver is that of OpenGL."""
_MAPPINGS: Final = "mappings"
_KEPT: Final = 2**20
"""Characters of names of files with mapped code, each name once."""
_VALUES: Final = 2**16
"""Bytes of variables that a look keeps, with their names: empty ones count too."""

_ARGUMENTS: Final = 64
"""Arguments of a program that a look reads."""


@dataclass(slots=True)
class Mapped:
    """The mappings of a process.

    Attributes:
        some: anything is mapped, as in every live process.
        driver: CUDA's driver is mapped.
        device: a device file of the driver is mapped, as in every process that works on a card.
        ours: the enforcement library's file is.
        at_path: code of some file at the library's path is mapped.
        interface: the interface other than CUDA by which it can reach a card; empty for none.
    """

    some: bool = False
    driver: bool = False
    device: bool = False
    ours: bool = False
    at_path: bool = False
    interface: str = ""
    code: dict[str, None] = field(default_factory=dict)


def mapped(home: str, library: str, shipped: tuple[str, str] | None, work: Work) -> Mapped:
    """Read a process's mappings. `library`: the enforcement library's path in its root.

    `shipped`: device and inode of that file; None if they are unknown and the path must suffice.
    """
    found = Mapped()
    seen: set[str] = set()
    kept = 0
    path = library.encode("utf-8", "surrogateescape")
    file = tuple(one.encode() for one in shipped) if shipped else None
    for text in parts(f"{home}/maps", b"\n", work, _MAPPINGS):
        found.some = True
        found.driver = found.driver or _DRIVER in text
        found.device = found.device or _DEVICE.search(text) is not None
        seen |= {name for name, sign in _INTERFACES if name not in seen and sign.search(text)}
        for may_read, device, inode, name in _CODE.findall(text):
            if may_read == b"r":
                here = name == path
                found.at_path = found.at_path or here
                found.ours = found.ours or ((device, inode) == file if file else here)
            if name[:1] == b"/":
                shown = name.decode("utf-8", "replace")
                if shown not in found.code:
                    kept += len(shown)
                    if kept > _KEPT:
                        raise TooMuch(_MAPPINGS)
                    found.code[shown] = None
    if not found.some:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), home)
    found.interface = next((name for name, _ in _INTERFACES if name in seen), "")
    return found


def variables(home: str, wanted: Collection[bytes], work: Work) -> dict[bytes, list[str]]:
    """Values of variables that a process was started with; a variable may occur twice."""
    found: dict[bytes, list[str]] = {key: [] for key in wanted}
    length = 0
    for text in parts(f"{home}/environ", b"\0", work, "environment"):
        # Searched for each key, not split: a process can fill megabytes with empty variables.
        text = b"\0" + text  # noqa: PLW2901 # so that each variable has a byte before it
        for key in wanted:
            sign = b"\0" + key + b"="
            at = text.find(sign)
            while at >= 0:
                begin = at + len(sign)
                at = text.find(b"\0", begin)
                value = text[begin:] if at < 0 else text[begin:at]
                length += len(sign) + len(value)
                if length > _VALUES:
                    raise TooMuch("environment")
                found[key].append(value.decode("utf-8", "surrogateescape"))
                at = text.find(sign, at) if at >= 0 else -1
    return found


def arguments(home: str, work: Work) -> list[str]:
    """A process's first arguments and its program's name."""
    found: list[bytes] = []
    for text in parts(f"{home}/cmdline", b"\0", work, "arguments"):
        found += text.removesuffix(b"\0").split(b"\0", _ARGUMENTS)
        if len(found) > _ARGUMENTS:
            break
    return [one.decode("utf-8", "surrogateescape") for one in found[:_ARGUMENTS]]
