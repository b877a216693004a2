"""What an allocation gives to each container: environment, device files, bind mounts.

The one place where grants become things in a container; the agent gives them, `partage up` shows them.
Environment is worked out by the families, as on the day of the Binding. Pure: what only the host knows
(files of a network card, identities of instances) comes in as functions.

Device files by vendor: kubernetes.md 6; network cards: koordinator.md 7; HAMi's library: hami.md 6,
koordinator.md 7. Shares that a vendor's own plugin cuts get their files from that plugin: the whole card's
file would be more than was granted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from partage.model.allocation import Grant, GrantMode, MigSlice
from partage.model.device import MILLI, DeviceType
from partage.vendors.base import Family, PlacedPod
from partage.vendors.settings import Settings
from partage.wire.outcomes import said
from partage.wire.render import render

__all__ = ["VISIBLE", "Bind", "Given", "HostFacts", "Instance", "Library", "Made", "gifts"]

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_COMMON: Final[Mapping[str, tuple[str, ...]]] = {
    "nvidia": ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    "metax": ("/dev/mxcd",),
    "huawei": ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
}
_OWN: Final[Mapping[str, tuple[str, ...]]] = {
    "nvidia": ("/dev/nvidia{minor}",),
    "metax": ("/dev/dri/card{minor}", "/dev/dri/renderD{render}"),
    "huawei": ("/dev/davinci{minor}",),
}
_FIRST_RENDER: Final = 128
_RDMA: Final = "/dev/infiniband/rdma_cm"
_PRELOAD: Final = "LD_PRELOAD"
_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
_SM_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
_QGPU_POLICY: Final = "qgpu-policy"
_CORE_POLICY: Final[Mapping[str, str]] = {"best-effort": "disable", "fixed-share": "force"}
"""qGPU's policies in the words of HAMi's library; burst-share is what it does by itself."""
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Library:
    """HAMi's enforcement library, which the operator supplies.

    Attributes:
        path: of the file, on the host and in the container.
        folder: where containers keep their state, on the host.
        lock: folder that all processes share.
    """

    path: str = "/usr/local/vgpu/libvgpu.so"
    folder: str = "/usr/local/vgpu/containers"
    lock: str = "/tmp/vgpulock"  # noqa: S108 # where that library looks


@dataclass(frozen=True, slots=True)
class Bind:
    """A bind mount.

    Attributes:
        source: on the host.
        target: in the container.
        writable: whether the container may write there.
        folder: made on the host if it is missing, writable by everybody.
    """

    source: str
    target: str
    writable: bool = False
    folder: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A device file that is made in the container; it need not exist on the host."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Instance:
    """A hardware instance of a pod.

    Attributes:
        uuid: of the MIG device; empty while it is not ready.
        files: all that a container needs for it; empty where only the card's files are known.
        why: what is in the way while it is not ready.
    """

    uuid: str = ""
    files: tuple[Made, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """What one container gets.

    Attributes:
        env: variables.
        files: device files that it cannot do without.
        spare: device files that it gets where the host has them.
        made: device files that the host need not have.
        binds: mounts, outer ones first.
        limits: who keeps the container to its amounts: `hami-core`, `vendor`, `mig`, `none`, or
            `whole` where there is nothing to keep.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    made: tuple[Made, ...] = ()
    binds: tuple[Bind, ...] = ()
    limits: str = "whole"


def _no_verbs(_address: str) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What only the host can tell, and what its operator chose.

    Attributes:
        instance: of a pod, by its UID, on a card; a look into memory.
        verbs: device files of a network card or virtual function, by PCI address.
        library: HAMi's; None leaves shares without it.
        vendors: files of shares that their vendor's plugin gives are given as well (a simulated
            node stands for that plugin too).
    """

    instance: Callable[[str, str, MigSlice], Instance]
    verbs: Callable[[str], tuple[str, ...]] = _no_verbs
    library: Library | None = None
    vendors: bool = False


def gifts(
    placed: PlacedPod, settings: Settings, families: Sequence[Family], host: HostFacts
) -> dict[str, Given]:
    """What each container with a grant gets, by name."""
    env = render(placed, settings, families).env
    return {
        name: _given(placed, name, dict(env.get(name, {})), host)
        for name in dict.fromkeys(grant.container for grant in placed.allocation.grants)
    }


def _given(placed: PlacedPod, name: str, env: dict[str, str], host: HostFacts) -> Given:
    grants = [grant for grant in placed.allocation.grants if grant.container == name]
    instances = {
        grant: host.instance(placed.allocation.uid, grant.uuid, grant.mig)
        for grant in grants
        if grant.mig is not None
    }
    if instances:
        env[VISIBLE] = ",".join(one.uuid for one in instances.values())
    made = [file for one in instances.values() for file in one.files]
    files: list[str] = []
    spare: list[str] = []
    for grant in grants:
        if grant in instances and instances[grant].files:
            continue
        own, common = _files(placed, grant, host)
        files += own
        spare += common
    shares = [g for g in grants if g.type is DeviceType.GPU and g.mode is GrantMode.SHARE]
    given = Given(
        env,
        tuple(dict.fromkeys(files)),
        tuple(dict.fromkeys(spare)),
        tuple(dict.fromkeys(made)),
    )
    if shares and (host.library is not None or host.vendors):
        return _limited(placed, name, shares, given, host.library)
    env.pop(_PRELOAD, None)  # there is nothing to load
    return replace(given, limits=_kept_by(grants))


def _kept_by(grants: Sequence[Grant]) -> str:
    modes = {grant.mode for grant in grants if grant.type is DeviceType.GPU}
    for mode, who in (
        (GrantMode.SHARE, "none"), (GrantMode.VENDOR, "vendor"), (GrantMode.MIG, "mig"),
    ):  # fmt: skip
        if mode in modes:
            return who
    return "whole"


def _files(placed: PlacedPod, grant: Grant, host: HostFacts) -> tuple[list[str], tuple[str, ...]]:
    """Files of a grant, and those that its vendor's driver shares among all cards."""
    if grant.type is DeviceType.RDMA:
        address = grant.function[1] if grant.function else grant.uuid
        return [_RDMA, *host.verbs(address)], ()
    if grant.mode is GrantMode.VENDOR and not host.vendors:
        return [], ()
    device = placed.device(grant)
    vendor = said(placed.node, device, "vendor") if device is not None else ""
    numbers = {"minor": grant.minor, "render": _FIRST_RENDER + grant.minor}
    return [path.format(**numbers) for path in _OWN.get(vendor, ())], _COMMON.get(vendor, ())


def _limited(
    placed: PlacedPod, name: str, shares: Sequence[Grant], given: Given, library: Library | None
) -> Given:
    """The same with HAMi's library, and its limits where the protocol itself names none."""
    if library is None:
        return given
    env = dict(given.env)
    if not any(key.startswith(_LIMIT) for key in env):
        for position, grant in enumerate(shares):
            env[f"{_LIMIT}_{position}"] = f"{grant.memory_bytes // _MIB}m"
        env[_SM_LIMIT] = str(shares[0].core_milli * 100 // MILLI)
        policy = _CORE_POLICY.get(placed.node.properties.get(_QGPU_POLICY, ""))
        if policy:
            env["GPU_CORE_UTILIZATION_POLICY"] = policy
    env[_PRELOAD] = library.path
    inside = library.path.rpartition("/")[0]
    env.setdefault("CUDA_DEVICE_MEMORY_SHARED_CACHE", f"{inside}/{name}.cache")
    mine = f"{library.folder}/{placed.pod.uid}_{name}"
    binds = (
        Bind(mine, inside, writable=True, folder=True),
        Bind(library.path, library.path),
        Bind(library.lock, library.lock, writable=True, folder=True),
    )
    return replace(given, env=env, binds=binds, limits="hami-core")
