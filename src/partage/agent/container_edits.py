"""Turns an allocation into edits of each container: environment, device files, bind mounts.

This is the only place that turns grants into edits; the agent applies them, `partage up` shows them.
The families compute the environment, as at the time of the Binding. Pure: facts of the host
(files of a network card, identities of instances) are passed in as functions.

A card's device files are those that discovery found, else those of its vendor's row (`partage.vendors.traits`). For
network cards see docs/sources/koordinator.md 7. A share that a vendor's own plugin cuts gets its files from it: the
whole card's file would grant more than the share. Other shares of NVIDIA cards are enforced by a provider
(`partage.agent.isolation.providers`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from partage.agent.cdi.specs import DeviceNode
from partage.agent.isolation.container_dirs import CardQuota
from partage.agent.isolation.providers import Bind, NoIsolation, Provider, Shares
from partage.model.allocation import CLAIM, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.model.mig import MigSlice
from partage.vendors.base import Family, PlacedPod
from partage.vendors.runtimes import VISIBLE
from partage.vendors.settings import Settings
from partage.vendors.traits import NVIDIA, Traits, traits_of
from partage.wire import permit
from partage.wire.outcomes import said
from partage.wire.record import render

MARK: Final = "PARTAGE_DEVICES_"
"""Begins a variable for each resource of which a container got units from the kubelet; they are emptied when it
gets its grants. One variable a resource, because NRI would change only one of two equal names."""
SILENT: Final[Mapping[str, str]] = {"CUDA_DISABLE_CONTROL": "false"}
"""The value that disables a variable, if it is not the empty text. Plugins of NRI may ask to remove
variables, but containerd 1.7.24 and 2.1.9 leave them unchanged."""
_RDMA: Final = "/dev/infiniband/rdma_cm"
_QGPU_POLICY: Final = "qgpu-policy"
_KEPT_BY: Final = {GrantMode.SHARE: "none", GrantMode.VENDOR: "vendor", GrantMode.MIG: "mig"}


class FilesUnknown(InvalidValue):
    """A container was granted a card whose device files are unknown."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A hardware instance of a pod.

    Attributes:
        uuid: of the MIG device; empty while it is not ready.
        files: all that a container needs for it; empty if only the card's files are known.
        why: the hindrance while it is not ready.
    """

    uuid: str = ""
    files: tuple[DeviceNode, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """The edits of one container.

    Attributes:
        files: device files that it requires.
        spare: device files that it gets if the host has them.
        made: device files that the host need not have.
        binds: mounts, outer ones first.
        limits: what enforces its amounts: a provider's name, `vendor`, `mig`, `none`, or `whole` if nothing needs to.
        quota: limits for a room of its own, if the provider needs one.
        cdi: CDI names of cards, which the runtime resolves.
        cut: a text for each wish of its pod that is not granted.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    made: tuple[DeviceNode, ...] = ()
    binds: tuple[Bind, ...] = ()
    limits: str = "whole"
    quota: tuple[CardQuota, ...] | None = None
    cdi: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts that only the host has, and its operator's choices.

    Attributes:
        instance: of a pod, by its UID, on a card; reads memory only.
        verbs: device files of a network card or virtual function, by PCI address.
        found: device files of a card by its UUID, by discovery; empty if it found none.
        provider: what enforces shares of NVIDIA cards.
        vendors: also add the files of shares that their vendor's plugin adds, because the node is simulated.
        cdi: kind of NVIDIA's cards in the host's CDI specifications; empty if the runtime's hook reads the environment.
        online: namespaces whose pods may have precedence on a card; `*` for all. A pod's permit overrides it.
    """

    instance: Callable[[str, str, MigSlice], Instance]
    verbs: Callable[[str], tuple[str, ...]] = lambda _identity: ()
    found: Callable[[str], tuple[str, ...]] = lambda _identity: ()
    provider: Provider = NoIsolation()
    vendors: bool = False
    cdi: str = ""
    online: frozenset[str] = frozenset()


def gifts(
    placed: PlacedPod,
    settings: Settings,
    families: Sequence[Family],
    host: HostFacts,
    known: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Given]:
    """The edits of each container with a grant, by name.

    `known`: variables that the containers already have. Raises `InvalidValue`: the pod chose impossible limits;
    `FilesUnknown`: the device files of one of its cards are not known.
    """
    env = render(placed, settings, families).env
    return {
        name: _given(placed, name, dict(env.get(name, {})), known, host)
        for name in dict.fromkeys(grant.container for grant in placed.allocation.grants)
    }


def _given(
    placed: PlacedPod, name: str, env: dict[str, str], known: Mapping[str, str], host: HostFacts
) -> Given:
    grants = [grant for grant in placed.allocation.grants if grant.container == name]
    instances = {
        grant: host.instance(placed.allocation.uid, grant.uuid, grant.mig)
        for grant in grants
        if grant.mig is not None
    }
    _name_cards(placed, grants, instances, env)
    made = [file for one in instances.values() for file in one.files]
    files: list[str] = []
    spare: list[str] = []
    for grant in grants:
        if grant in instances and instances[grant].files:
            continue
        own, common = _files(placed, grant, host)
        files += own
        spare += common
    given = Given(
        env,
        tuple(dict.fromkeys(files)),
        tuple(dict.fromkeys(spare)),
        tuple(dict.fromkeys(made)),
        cdi=_by_name(placed, grants, host.cdi),
    )
    pod, policy = placed.pod, placed.node.properties.get(_QGPU_POLICY, "")
    mine = tuple(one for one in grants if _row(placed, one) is NVIDIA)
    online = not host.online.isdisjoint({pod.namespace, "*"})
    allowed = permit.read(pod.annotations, pod.uid)
    shares = Shares(pod.uid, name, pod.annotations, known, env, policy, mine, online, allowed)
    if not shares.shares:
        env.pop("LD_PRELOAD", None)  # there is nothing to load
        return replace(given, limits=_kept_by(grants))
    kept, limits = host.provider.keep(shares), host.provider.name
    return replace(
        given, env=kept.env, binds=kept.binds, limits=limits, quota=kept.quota, cut=kept.cut
    )


def _name_cards(
    placed: PlacedPod,
    grants: Sequence[Grant],
    instances: Mapping[Grant, Instance],
    env: dict[str, str],
) -> None:
    """Name only NVIDIA's cards and instances in the variable that NVIDIA's runtime reads."""
    makers = [row for one in grants if (row := _row(placed, one)) is not None]
    if instances:
        env[VISIBLE] = ",".join(one.uuid for one in instances.values())
    if any(one.protocol == CLAIM for one in grants):  # no family writes their variables
        mine = (one for one in grants if _row(placed, one) is NVIDIA)
        uuids = (instances[one].uuid if one in instances else one.uuid for one in mine)
        env[VISIBLE] = ",".join(dict.fromkeys(uuids))
    if makers and NVIDIA not in makers:
        env.pop(VISIBLE, None)  # a family names all vendors' cards in it


def _by_name(placed: PlacedPod, grants: Sequence[Grant], kind: str) -> tuple[str, ...]:
    """NVIDIA's cards by their CDI names; instances have their own files."""
    if not kind:
        return ()
    cards = (one for one in grants if one.mig is None and _row(placed, one) is NVIDIA)
    return tuple(dict.fromkeys(f"{kind}={one.uuid}" for one in cards))


def _kept_by(grants: Sequence[Grant]) -> str:
    modes = {grant.mode for grant in grants if grant.type is DeviceType.GPU}
    return next((who for mode, who in _KEPT_BY.items() if mode in modes), "whole")


def _files(placed: PlacedPod, grant: Grant, host: HostFacts) -> tuple[list[str], tuple[str, ...]]:
    """Files of a grant, and those that its vendor's driver shares among all cards."""
    if grant.type is DeviceType.RDMA:
        address = grant.function[1] if grant.function else grant.uuid
        return [_RDMA, *host.verbs(address)], ()
    if grant.mode is GrantMode.VENDOR and not host.vendors:
        return [], ()
    row = _row(placed, grant)
    if row is None:
        return [], ()
    own = host.found(grant.uuid) or row.files(grant.minor)
    if not own:
        raise FilesUnknown(
            f"which device files a container needs for card {grant.uuid} of {row.name} is not known"
        )
    return [path for path in own if path not in row.common], row.common


def _row(placed: PlacedPod, grant: Grant) -> Traits | None:
    """The traits of a card's vendor; None for other devices, and for absent ones."""
    device, _ = placed.card(grant)
    if device is None or device.type is not DeviceType.GPU:
        return None
    return traits_of(said(placed.node, device, "vendor"))
