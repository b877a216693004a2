"""Reads a CreateContainer request as bytes, and adds the grants to it.

The edit leaves all other bytes unchanged. It removes the entries that it replaces and appends the new
ones. A program reads the first value of a variable that is listed twice, so no old value may remain.
"""

import os
import stat
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from partage.agent.cri import messages as cri
from partage.agent.nri import messages as nri
from partage.agent.protobuf import raw_fields
from partage.model.errors import UNREADABLE, InvalidValue
from partage.vendors.runtimes import VISIBLE, opening
from partage.wire.protobuf import Malformed, wrapped

_UNKNOWN: Final = (f"{VISIBLE}=all",)
"""The assumed request of an image if the runtime does not report it."""
_NAMED: Final = "cdi.k8s.io/partage-request"
"""The annotation that has the CDI names which a request has beside annotations."""
_EVERYTHING: Final = nri.Device("/dev/kmsg", "c")
"""Privileged containers get all device files of the host, including this one."""


def key_of(pod: str, name: str, attempt: int) -> str:
    """A container's temporary identity until the runtime has given it one."""
    return f"cri-{pod}-{name}-{attempt}"  # a room may have it as its name: no slash


def asked(
    request: cri.CreateRequest, image: Iterable[str]
) -> tuple[nri.PodSandbox, nri.Container]:
    """Pod and container of a request, as NRI's messages. Raises `Malformed`: it does not name the container."""
    config, pod = request.config, request.pod_config
    if config is None or pod is None or config.metadata is None or pod.metadata is None:
        raise Malformed("CreateContainer without a container or a pod")
    name, head = config.metadata, pod.metadata
    if not (head.uid and head.name and head.namespace and name.name):
        raise Malformed("CreateContainer of a pod or a container without a name or UID")
    asked_for: dict[str, list[str]] = {}
    for one in config.envs:
        asked_for.setdefault(one.key, []).append(f"{one.key}={one.value}")
    env = {one.partition("=")[0]: [one] for one in image}
    for key, lines in asked_for.items():
        # A vendor's plugin may have set its variable first, and its runtime may read either value.
        env[key] = lines if key != VISIBLE and opening(key) is not None else lines[-1:]
    devices = [nri.Device(one.container_path, "c") for one in config.devices]
    if config.linux is not None and config.linux.security and config.linux.security.privileged:
        devices.append(_EVERYTHING)
    cdi_names = ",".join(one.name for one in config.cdi_devices)
    sandbox = nri.PodSandbox(
        request.pod, head.name, head.uid, head.namespace, pod.labels, pod.annotations
    )
    container = nri.Container(
        key_of(request.pod, name.name, name.attempt),
        request.pod,
        name.name,
        annotations={**config.annotations, **({_NAMED: cdi_names} if cdi_names else {})},
        env=tuple(chain.from_iterable(env.values())),
        linux=nri.LinuxContainer(tuple(devices)),
        mounts=tuple(nri.Mount(m.container_path, "bind", m.host_path) for m in config.mounts),
    )
    return sandbox, container


def image_environment(status: cri.Details) -> tuple[str, ...]:
    """Variables of an image; if the runtime does not report them, the image counts as requesting every card."""
    for document in status.info.values():
        try:
            found = msgspec.json.decode(document)
        except UNREADABLE:
            continue
        spec = found.get("imageSpec") if isinstance(found, dict) else None
        config = spec.get("config") if isinstance(spec, dict) else None
        if isinstance(config, dict):
            env: Any = config.get("Env") or ()
            return tuple(one for one in env if isinstance(one, str))
    return _UNKNOWN


def edited(
    request: bytes, adjustment: nri.Adjustment, file_of: Callable[[int, int], str]
) -> bytes:
    """The request with an adjustment in it; `file_of`: a host's device file by its numbers. Raises `InvalidValue`."""
    mounts = [cri.Mount(m.destination, m.source, "ro" in m.options) for m in adjustment.mounts]
    devices = [
        cri.Device(one.path, file_of(one.major, one.minor), "rwm")
        for one in (adjustment.linux.devices if adjustment.linux else ())
    ]
    ours = cri.ContainerConfig(
        envs=adjustment.env,
        mounts=tuple(mounts),
        devices=tuple(devices),
        annotations=adjustment.annotations,
        cdi_devices=adjustment.cdi_devices,
    )
    replaced = {
        cri.ENVS: {one.key for one in adjustment.env},
        cri.MOUNTS: {one.container_path for one in mounts},
        cri.DEVICES: {one.container_path for one in devices},
        cri.ANNOTATIONS: set(adjustment.annotations),
    }  # entries of all four fields begin with their key or path
    out = bytearray()
    for number, raw, value in raw_fields(request):
        if number != cri.CONFIG:
            out += raw
            continue
        kept = b"".join(
            part
            for field, part, held in raw_fields(value)
            if field not in replaced or cri.Identity.decode(held).id not in replaced[field]
        )
        out += wrapped(cri.CONFIG, kept + ours.encode())
        ours = cri.ContainerConfig()  # a second part of the same field is merged with the first
    return bytes(out)


def device_file(root: Path, folder: str, major: int, minor: int) -> str:
    """A device file on the host, created if it is missing. Raises `InvalidValue`: another file is in its place.

    A CRI request names a file of the host. The card's own file may differ from the container's path, and files of
    hardware instances need not exist at all. `root`: of the host's files, as this process sees them.
    """
    path = f"{folder}/c-{major}-{minor}"
    here = root / path.lstrip("/")
    try:
        here.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not here.exists():
            os.mknod(here, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        found = here.stat()
    except OSError as error:
        raise InvalidValue(f"device file {path}: {error.strerror}") from error
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != os.makedev(major, minor):
        raise InvalidValue(f"device file {path} is not the device {major}:{minor}")
    return path
