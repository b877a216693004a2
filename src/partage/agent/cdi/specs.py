"""Reads the host's CDI specifications, and resolves a device's name to edits as a runtime does.

The last folder has the highest priority. A name that is in two files of one folder resolves to
nothing. Edits for all devices of a file are applied once, before those of its first device. A file that
cannot be read, or that has a field unknown to CDI, is skipped; the others count.

Source: the CDI specification, and its library that containerd 1.7 and 2.1 are built with (`pkg/cdi`, v0.8.0
and v1.0.1, read). This module does not check whether a file's version covers the fields that it uses.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from partage.model.errors import UNREADABLE, InvalidValue
from partage.wire.yaml_values import yaml_values

_SUFFIXES: Final = frozenset({".json", ".yaml"})
_LARGEST: Final = 8 << 20
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_.-]*")
_VERSION: Final = re.compile(r"0\.[2-8]\.0|1\.[01]\.0")


class _Strict(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """Strict as in runtimes: one unknown field invalidates the file."""


class DeviceNode(_Strict, frozen=True):
    """A device file; absent fields are looked up on the host."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Strict, frozen=True):
    """A mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Strict, frozen=True):
    """A program that the runtime runs at some point of the container's life."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class Edits(_Strict, frozen=True):
    """The changes of a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[dict[str, Any], ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    intel_rdt: dict[str, Any] | None = None
    additional_gids: tuple[int, ...] = ()


class _Device(_Strict, frozen=True):
    name: str
    annotations: dict[str, str] = {}
    container_edits: Edits = Edits()


class Specification(_Strict, frozen=True):
    """A file: the devices of one kind."""

    cdi_version: str
    kind: str
    annotations: dict[str, str] = {}
    container_edits: Edits = Edits()
    devices: tuple[_Device, ...] = ()


@dataclass(frozen=True, slots=True)
class _File:
    """A file at its last reading: its specification, or its fault."""

    stamp: tuple[int, int, int]
    spec: Specification | None
    problem: str = ""


class Specifications:
    """The specifications of one host; files are read again after a change. `inline`: the runtime accepts no names."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Start without any file read; the runtime gets names. The last one of `folders` overrides all others."""
        self.inline = False
        self._folders = tuple(folders)
        self._files: dict[Path, _File] = {}

    def edits(self, names: Sequence[str]) -> tuple[Edits, ...]:
        """The edits of devices such as `nvidia.com/gpu=GPU-…`, in order. Raises `InvalidValue`: an unknown name."""
        devices, problems = self._devices()
        if unknown := [name for name in names if name not in devices]:
            where = ", ".join(str(folder) for folder in self._folders)
            why = f" ({'; '.join(problems)})" if problems else ""
            raise InvalidValue(f"no CDI device {', '.join(unknown)} in {where}{why}")
        found: list[Edits] = []
        begun: set[int] = set()
        for name in names:
            spec, device = devices[name]
            if id(spec) not in begun:
                begun.add(id(spec))
                found.append(spec.container_edits)
            found.append(device.container_edits)
        return tuple(found)

    def _devices(self) -> tuple[dict[str, tuple[Specification, _Device]], list[str]]:
        """All devices by their full names, and the faults of files and names."""
        files: dict[Path, _File] = {}
        found: dict[str, tuple[Specification, _Device]] = {}
        twice: dict[str, str] = {}
        for folder in self._folders:
            here: set[str] = set()
            for path in _paths(folder):
                file = files[path] = _read(path, self._files.get(path))
                for device in file.spec.devices if file.spec is not None else ():
                    name = f"{file.spec.kind}={device.name}"  # type: ignore[union-attr] # as above
                    if name in here:
                        twice[name] = f"{name} is in more than one file of {folder}"
                    here.add(name)
                    found[name] = file.spec, device  # type: ignore[assignment] # as above
        self._files = files
        problems = [file.problem for file in files.values() if file.problem]
        return (
            {name: one for name, one in found.items() if name not in twice},
            [*problems, *twice.values()],
        )


def contents(path: Path) -> bytes:
    """The bytes of a specification. Raises `OSError`: it cannot be read; it is too large, or a pipe, which no reader may wait for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise OSError(errno.EFBIG, f"more than {_LARGEST} bytes", str(path))
    return data


def _paths(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(one for one in folder.iterdir() if one.suffix in _SUFFIXES)
    except OSError:
        return
    yield from (one for one in names if not one.is_dir())


def _read(path: Path, before: _File | None) -> _File:
    try:
        found = path.stat()
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        if before is not None and before.stamp == stamp:
            return before
        data = contents(path)
    except OSError as error:
        return _File((0, 0, 0), None, f"{path}: {error.strerror or error}")
    try:
        (document,) = yaml_values(data)
        spec = msgspec.convert(document, Specification)
    except UNREADABLE as error:
        return _File(stamp, None, f"{path}: {error}")
    names = [device.name for device in spec.devices]
    if not _KIND.fullmatch(spec.kind):
        return _File(stamp, None, f"{path}: kind {spec.kind!r} is not VENDOR/CLASS")
    if not _VERSION.fullmatch(spec.cdi_version.removeprefix("v")):
        return _File(stamp, None, f"{path}: cdiVersion {spec.cdi_version!r} is not known")
    if len(set(names)) != len(names):
        return _File(stamp, None, f"{path}: it has a device twice")
    return _File(stamp, spec)
