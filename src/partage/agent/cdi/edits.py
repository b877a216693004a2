"""Turns CDI edits into an adjustment of NRI with the runtime's own result, or refuses them.

The order is that of runtimes that resolve CDI themselves: CDI edits go before the agent's other edits. Variables are
the exception: a specification's value holds. Of two edits of one path or variable the later one holds.

Edits that NRI cannot express are refused, never left out: network devices, cache and memory bandwidth (RDT), additional
groups, device files other than character and block ones, device files that the container may not read or write, and
device files whose owner matters and would be the container's user, because NRI does not report this user. Two
differences remain. A container may not create device files of a character device (`m` of `permissions`;
NRI grants `rw`). A device file without owner and with a mode for all users belongs to root.

Source: CDI's and NRI's libraries in containerd 1.7 (`container-edits.go`, v0.8.0; `generate.go`, v0.6.1; read).
"""

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from partage.agent.cdi.specs import DeviceNode, Edits, Hook, Mount
from partage.agent.nri import messages as nri
from partage.model.errors import InvalidValue

_POINTS: Final = {
    "prestart": "prestart",
    "createRuntime": "create_runtime",
    "createContainer": "create_container",
    "startContainer": "start_container",
    "poststart": "poststart",
    "poststop": "poststop",
}
_GIVEN: Final = {"c": frozenset("rw"), "b": frozenset("rwm")}
"""Kinds of device files, and what a container may do with one that NRI adds."""
_EVERYBODY: Final = 0o006


def inlined(
    adjustment: nri.Adjustment, edits: Sequence[Edits], container: nri.Container, root: Path
) -> nri.Adjustment:
    """An adjustment with CDI names replaced by their edits.

    `root`: of the host's files, as this process sees them. Raises `InvalidValue`: an edit cannot be expressed, or
    breaks a rule of CDI; the text names it.
    """
    for one in edits:
        _sayable(one)
    own = adjustment.linux.devices if adjustment.linux else ()
    devices = {one.path: one for one in (_device(n, root) for e in edits for n in e.device_nodes)}
    devices |= {one.path: one for one in own}
    mounts = {one.destination: one for one in (_mount(m) for e in edits for m in e.mounts)}
    mounts |= {one.destination: one for one in adjustment.mounts}
    env = {one.key: one for one in adjustment.env}
    theirs = {one.key: one for one in _variables(v for e in edits for v in e.env)}
    for key, _ in nri.repeated(container, {one.key: one.value for one in theirs.values()}):
        raise InvalidValue(
            f"variable {key} of a CDI specification is set by the container's image and by its pod, so "
            "that it cannot be changed; leave it out of the pod"
        )
    env |= theirs
    return replace(
        adjustment,
        env=tuple(env.values()),
        mounts=tuple(mounts.values()),
        linux=nri.LinuxAdjustment(tuple(devices.values())) if devices else None,
        hooks=_hooks([hook for one in edits for hook in one.hooks]),
        cdi_devices=(),
    )


def _sayable(edits: Edits) -> None:
    for what, there in (
        ("netDevices", edits.net_devices),
        ("intelRdt", edits.intel_rdt),
        ("additionalGids", [one for one in edits.additional_gids if one]),
    ):
        if there:
            raise InvalidValue(f"CDI edit {what} cannot be expressed by this runtime's NRI")


def _device(node: DeviceNode, root: Path) -> nri.Device:
    path = _absolute(node.path, "device file")
    kind, major, minor = node.type, node.major, node.minor
    if not kind or not major:
        kind, major, minor = _looked_up(node, root)
    if kind not in _GIVEN:
        raise InvalidValue(f"CDI device file {path}: type {kind!r} cannot be expressed by NRI")
    asked = frozenset(node.permissions or "rwm")
    if not asked <= frozenset("rwm"):
        raise InvalidValue(f"CDI device file {path}: permissions {node.permissions!r}")
    if not _GIVEN[kind] <= asked:
        given = "".join(sorted(_GIVEN[kind]))
        raise InvalidValue(
            f"CDI device file {path}: permissions {node.permissions!r} cannot be expressed by NRI, which "
            f"gives {given!r}"
        )
    closed = node.file_mode is not None and node.file_mode & _EVERYBODY != _EVERYBODY
    if closed and (node.uid is None or node.gid is None):
        raise InvalidValue(
            f"CDI device file {path}: with fileMode {node.file_mode:o} it would belong to the container's "
            "user, whom this runtime's NRI does not report; uid and gid are needed"
        )
    said = (node.file_mode, node.uid, node.gid)
    more = (None if one is None else nri.Wrapped(one) for one in said)
    return nri.Device(path, kind, major, minor, *more)


def _looked_up(node: DeviceNode, root: Path) -> tuple[str, int, int]:
    """Type and numbers of a device file of the host; numbers in the edit override it."""
    source = _absolute(node.host_path or node.path, "device file")
    try:
        found = os.lstat(root / source.lstrip("/"))
    except OSError as error:
        raise InvalidValue(f"CDI device file {source}: {error.strerror}") from error
    kind = "c" if stat.S_ISCHR(found.st_mode) else "b" if stat.S_ISBLK(found.st_mode) else ""
    if not kind:
        raise InvalidValue(f"CDI device file {source} is no device")
    if node.type and node.type != kind:
        raise InvalidValue(f"CDI device file {source} is of type {kind!r}, not {node.type!r}")
    if node.major:
        return kind, node.major, node.minor
    return kind, os.major(found.st_rdev), os.minor(found.st_rdev)


def _mount(mount: Mount) -> nri.Mount:
    target = _absolute(mount.container_path, "mount")
    if not mount.host_path:
        raise InvalidValue(f"CDI mount at {target}: it has no hostPath")
    return nri.Mount(target, mount.type, mount.host_path, mount.options)


def _absolute(path: str, what: str) -> str:
    # In NRI a name that begins with a minus removes an entry.
    if not path.startswith("/"):
        raise InvalidValue(f"CDI {what} {path!r} is no absolute path")
    return path


def _variables(lines: Iterable[str]) -> list[nri.Variable]:
    found = []
    for line in lines:
        key, equals, value = line.partition("=")
        if not key or not equals or key.startswith("-"):
            raise InvalidValue(f"CDI variable {line!r} is not NAME=VALUE")
        found.append(nri.Variable(key, value))
    return found


def _hooks(hooks: Sequence[Hook]) -> nri.Hooks | None:
    if not hooks:
        return None
    found: dict[str, list[nri.Hook]] = {point: [] for point in _POINTS.values()}
    for one in hooks:
        if one.hook_name not in _POINTS or not one.path:
            raise InvalidValue(f"CDI hook {one.hook_name!r} of {one.path!r} is not known")
        limit = None if one.timeout is None else nri.Wrapped(one.timeout)
        found[_POINTS[one.hook_name]].append(nri.Hook(one.path, one.args, one.env, limit))
    return nri.Hooks(**{point: tuple(programs) for point, programs in found.items()})
