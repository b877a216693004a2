"""Decides whether a container may be created, and with which edits: its pod's record against the node's books.

Fails closed. No container starts if its pod has devices without a record of Partage, a record of another pod
or node, a record of devices that are not here, or a record that arrives too late for a full card.
A container without a grant gets no card from a vendor's own runtime either: the settings that would open one are closed
(`partage.vendors.runtimes`), or the container is refused if they cannot be. Otherwise it stays unchanged.

Source: docs/sources/kubernetes.md 1.4 (which facts of a container an NRI plugin sees).
"""

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import islice
from typing import Final

from msgspec import structs

from partage.agent.container_edits import (
    MARK,
    SILENT,
    FilesUnknown,
    Given,
    HostFacts,
    Instance,
    gifts,
)
from partage.agent.isolation.container_dirs import INSIDE, PRELOAD
from partage.agent.nri.messages import Container, PodSandbox, named, repeated
from partage.model.allocation import Allocation, Charge, Grant, GrantMode, charges_of, together
from partage.model.device import Device, DeviceType
from partage.model.errors import InvalidValue
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.request import PodRequest
from partage.vendors import names, runtimes
from partage.vendors.base import ContainerView, Family, PlacedPod, PodView
from partage.vendors.reserved import RESERVED
from partage.vendors.runtimes import VISIBLE, VOID, opens
from partage.vendors.settings import Settings
from partage.vendors.traits import NVIDIA, ROWS, traits_of
from partage.wire.outcomes import said
from partage.wire.record import decode

_WIDENING: Final = (
    "CUDA_DISABLE_CONTROL",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MOFED",
    "NVIDIA_NVSWITCH",
)
"""Variables by which a container would get more than its grant: with `NVIDIA_MOFED` NVIDIA's runtime adds the node's network
cards to a container that has any card."""
_LIMITS: Final = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")
"""Prefixes of limits that HAMi's library reads; one for a single device goes first (docs/sources/hami.md 7.3)."""
_NETWORK: Final = r"/dev/infiniband/.+"
_SHOWN: Final = 200
_MOST_LINES: Final = 64
_LONG: Final = 256
"""Bound on the variables of a running container, and on the characters of each."""
_LONG_TEXT: Final = 16_384
_PRIVILEGED: Final = "/dev/kmsg"
"""A device file that a runtime adds only to privileged containers."""


class Rule:
    """Names of the rules by which a container is refused; stable, because a metric has them as labels."""

    NO_RECORD: Final = "NoRecord"
    BAD_RECORD: Final = "BadRecord"
    UNKNOWN_DEVICE: Final = "UnknownDevice"
    NO_INSTANCE: Final = "NoInstance"
    CARD_FULL: Final = "CardFull"
    RECORD_CHANGED: Final = "RecordChanged"
    UNKNOWN_HELD: Final = "UnknownHeld"
    FILES_UNKNOWN: Final = "DeviceFilesUnknown"
    BAD_WISH: Final = "BadWish"
    TAMPERED: Final = "Tampered"
    SET_TWICE: Final = "SetTwice"
    NOT_ENFORCEABLE: Final = "NotEnforceable"
    BAD_CLAIM: Final = "BadClaim"
    CLAIM_SHARED: Final = "ClaimShared"
    HOST: Final = "Host"
    LATE: Final = "Late"
    TOO_LONG: Final = "TooLong"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a container is not created."""

    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Injected:
    """The edits of a container.

    Attributes:
        removed: variables to disable; NRI cannot remove any.
        allocation: of its pod, if it has one.
        chose: variables by which it would have got cards without a grant.
    """

    given: Given
    removed: tuple[str, ...] = ()
    allocation: Allocation | None = None
    chose: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """The node, as injection needs it. `exempt`: namespaces (drivers, monitors) that may have pods without a record."""

    node: Node
    settings: Settings
    families: Sequence[Family]
    host: HostFacts
    exempt: frozenset[str] = frozenset({"kube-system"})
    devices: Mapping[str, Device] = field(init=False)

    def __post_init__(self) -> None:
        found = {device.uuid: device for device in self.node.devices}
        object.__setattr__(self, "devices", found)


def recorded(pod: PodSandbox, node: str) -> Allocation | Refusal | None:
    """The allocation of a pod's record here; None without one."""
    text = pod.annotations.get(names.ALLOCATION)
    if text is None:
        return None
    record = decode(text, pod.uid, node)
    if record.problem:
        return Refusal(Rule.BAD_RECORD, record.problem)
    return Allocation(pod.uid, pod.namespace, pod.name, node, record.grants)


class Records:
    """The records of a node's pods, each read once in a look at many containers: a pod may have hundreds of them."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._read: dict[tuple[str | None, str, str, str], Allocation | Refusal | None] = {}

    def of(self, pod: PodSandbox) -> Allocation | Refusal | None:
        """The same as `recorded`."""
        key = pod.annotations.get(names.ALLOCATION), pod.uid, pod.namespace, pod.name
        if key not in self._read:
            self._read[key] = recorded(pod, self._node)
        return self._read[key]


def inject(
    pod: PodSandbox,
    container: Container,
    place: Place,
    held: Iterable[Allocation],
    unknown: str = "",
    records: Records | None = None,
) -> Injected | Refusal | None:
    """The edits of a container; None leaves it unchanged.

    `held`: allocations of pods whose containers are here. `unknown`: a container of another pod that holds unknown
    devices; usually empty. `records`: of a look at many containers.
    """
    held = tuple(held)
    allocation = (records or Records(place.node.name)).of(pod)
    found: Injected | Refusal | None
    if isinstance(allocation, Refusal):
        found = allocation
    elif allocation is None:
        found = _lost(pod, held) or _without_record(pod, container, place)
    elif unknown:
        found = Refusal(
            Rule.UNKNOWN_HELD,
            f"{unknown} has devices that are no longer known, so no device here counts as free "
            "until it ends or an agent can read the journal",
        )
    else:
        found = _with_record(pod, container, allocation, place, held)
    if isinstance(found, Injected):
        found = _set_twice(container, found) or found
    if isinstance(found, Refusal):
        return refusal(pod, container, found.rule, found.message)
    return found


def refusal(pod: PodSandbox, container: Container, rule: str, why: str) -> Refusal:
    """A refusal that names its container."""
    return Refusal(rule, f"{named(pod, container)}: {why} ({rule})")


def _lost(pod: PodSandbox, held: Iterable[Allocation]) -> Refusal | None:
    """Why a pod that lost its record is refused: its other containers still depend on the record."""
    if all(one.uid != pod.uid for one in held):
        return None
    return Refusal(
        Rule.RECORD_CHANGED,
        f"annotation {names.ALLOCATION} is gone, by which its other containers were given devices",
    )


def _set_twice(container: Container, found: Injected) -> Refusal | None:
    """Why the edit of a variable would have no effect."""
    ours = {**found.given.env, **{key: SILENT.get(key, "") for key in found.removed}}
    for key, value in repeated(container, ours):
        if not key.startswith(MARK) and not _closed(key, value, ours[key]):
            return Refusal(
                Rule.SET_TWICE,
                f"variable {key} is set by its image and by its pod, so that it cannot be changed; "
                "leave it out of the pod",
            )
    return None


def _closed(key: str, value: str, ours: str) -> bool:
    """Whether a remaining value opens no card, as ours does not."""
    found = runtimes.opening(key)
    return found is not None and found.closed == ours and found.is_closed(value)


def _without_record(
    pod: PodSandbox, container: Container, place: Place
) -> Injected | Refusal | None:
    known = environment(container)
    if any(key.startswith(MARK) for key in known):
        return _unrecorded("the kubelet counts devices for it")
    if pod.namespace in place.exempt:
        return None
    claims = [f"annotation {key}" for key in RESERVED.in_annotations(pod.annotations)]
    claims += [f"label {key}" for key in RESERVED.in_labels(pod.labels)]
    if not claims:
        paths = [device.path for device in container.linux.devices] if container.linux else []
        if _PRIVILEGED not in paths:
            patterns = _protected(frozenset(_makers(place)))
            claims = [f"device file {path}" for path in paths if patterns.fullmatch(path)]
    claims += [f"CDI name {name}" for name in _named(pod, container, place)]
    if at := runtimes.listed(one.destination for one in container.mounts):
        claims.append(f"mount {at[:_SHOWN]}")
    if claims:
        return _unrecorded(f"{claims[0]} says that it has devices")
    chose = opens(container.env)
    env = _shut(container, place)
    removed = tuple(key for key in known if key in _WIDENING and key.startswith("NVIDIA_"))
    return Injected(Given(env), removed, chose=chose) if env or removed else None


def _unrecorded(sign: str) -> Refusal:
    missing = f"annotation {names.ALLOCATION} is missing; was it placed by Partage's scheduler?"
    return Refusal(Rule.NO_RECORD, f"{sign}, but {missing}")


def _shut(
    container: Container, place: Place, granted: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Variables that keep vendors' runtimes from opening cards, except of vendors whose cards were granted.

    NVIDIA's is always set: not every runtime reports the image's, and some images open all cards if it is absent.
    """
    env: dict[str, str] = {}
    absent = True
    for text in container.env:
        key, _, value = text.partition("=")
        absent = absent and key != VISIBLE
        found = runtimes.opening(key)
        theirs = found is not None and found.name in granted and not found.complete
        if found is not None and value != found.closed and not theirs:
            env[key] = found.closed
    makers = _makers(place)
    only_others = bool(makers) and makers.isdisjoint({NVIDIA.name, ""})
    if absent and NVIDIA.name not in granted and (not only_others or opens(container.env)):
        env[VISIBLE] = VOID
    return env


def _makers(place: Place) -> set[str]:
    """Vendors of the node's cards, by the node's report."""
    return {
        said(place.node, one, "vendor") for one in place.node.devices if one.type is DeviceType.GPU
    }


@lru_cache(maxsize=16)
def _protected(makers: frozenset[str]) -> re.Pattern[str]:
    """Device files that a container needs a grant for, on a node with cards of these vendors."""
    shared = {traits_of(vendor).shared for vendor in makers} - {""}
    every = [row.tampering for row in ROWS if row.tampering]
    return re.compile("|".join([_NETWORK, *every, *sorted(shared)]))


def _named(
    pod: PodSandbox, container: Container, place: Place, granted: frozenset[str] = frozenset()
) -> list[str]:
    """CDI names of cards that were requested beside the record.

    `granted`: vendors whose plugins may have named their parts at the container; a pod's annotations are its author's.
    """
    named = (
        *runtimes.cdi_names(pod.annotations, place.host.cdi, ours=True),
        *runtimes.cdi_names(container.annotations, place.host.cdi, granted),
    )
    return [name[:_SHOWN] for name in named]


def _with_record(
    pod: PodSandbox,
    container: Container,
    allocation: Allocation,
    place: Place,
    held: Iterable[Allocation],
) -> Injected | Refusal:
    if (full := conflict(allocation, place, held)) is not None:
        return full
    numbered = _numbered(allocation, place)
    known = environment(container)
    removed = tuple(key for key in known if key in _WIDENING or key.startswith(MARK))
    mine = [grant for grant in numbered.grants if grant.container == container.name]
    if past := _past(pod, container, place, mine):
        return Refusal(Rule.TAMPERED, f"its {past} asks for cards beyond its record; leave it out")
    if not mine:
        return Injected(Given(_shut(container, place)), removed, allocation, opens(container.env))
    made = _instances(pod, mine, place)
    if isinstance(made, Refusal):
        return made
    placed = PlacedPod(_view(pod, allocation, place), PodRequest(), numbered, place.node, 0)
    # Use the instances found ready: a second look might not find them.
    host = replace(place.host, instance=lambda _pod, card, mig: made.get((card, mig), Instance()))
    try:
        given = gifts(placed, place.settings, place.families, host, known)[container.name]
    except FilesUnknown as error:
        return Refusal(Rule.FILES_UNKNOWN, str(error))
    except InvalidValue as error:
        return Refusal(Rule.BAD_WISH, str(error))
    if given.quota is not None and (hidden := _hiding(container)):
        told = f"its mount at {hidden} would hide files that enforce the container's limits"
        return Refusal(Rule.TAMPERED, told)
    if any(key.startswith(_LIMITS) for key in given.env):
        removed += tuple(key for key in known if key.startswith(_LIMITS) and key not in given.env)
    granted = frozenset(_maker(place, grant.uuid) for grant in mine) - {""}
    if VISIBLE not in given.env:
        granted -= {NVIDIA.name}
    given = replace(given, env={**_shut(container, place, granted), **given.env})
    return Injected(given, removed, allocation)


def _instances(
    pod: PodSandbox, mine: Sequence[Grant], place: Place
) -> dict[tuple[str, MigSlice], Instance] | Refusal:
    """The hardware instances of a container, all of which must exist."""
    made: dict[tuple[str, MigSlice], Instance] = {}
    for grant in mine:
        if grant.mig is not None:
            found = place.host.instance(pod.uid, grant.uuid, grant.mig)
            if not found.uuid:
                why = f": {found.why}" if found.why else ""
                return Refusal(
                    Rule.NO_INSTANCE,
                    f"instance {grant.mig.profile} at {grant.mig.start} of card {grant.uuid} "
                    f"is not made yet{why}; the kubelet tries again",
                )
            made[grant.uuid, grant.mig] = found
    return made


def _view(pod: PodSandbox, allocation: Allocation, place: Place) -> PodView:
    """The pod as families read it."""
    containers = dict.fromkeys((one.container, one.phase) for one in allocation.grants)
    views = tuple(ContainerView(name, phase) for name, phase in containers)
    who = pod.namespace, pod.name, pod.uid, place.node.name
    return PodView(*who, labels=pod.labels, annotations=pod.annotations, containers=views)


def _past(pod: PodSandbox, container: Container, place: Place, mine: Sequence[Grant]) -> str:
    """The setting by which a container of a pod with a record asks for other cards; empty for none."""
    theirs = frozenset(
        _maker(place, one.uuid) for one in mine if one.mode is GrantMode.VENDOR
    )  # their plugin may name its shares
    if found := _named(pod, container, place, theirs):
        return f"CDI name {found[0]}"
    at = runtimes.listed(one.destination for one in container.mounts)
    return f"mount at {at[:_SHOWN]}" if at else _opened_beside(container, place, mine)


def _opened_beside(container: Container, place: Place, mine: Sequence[Grant]) -> str:
    """The variable by which a vendor's runtime would open more than the granted cards of the vendor; empty for none.

    NVIDIA's is set by the grant itself, and a vendor's without a grant is closed.
    """
    granted: dict[str, list[Grant]] = {}
    for grant in mine:
        granted.setdefault(_maker(place, grant.uuid), []).append(grant)
    for vendor, own in granted.items():
        row = traits_of(vendor)
        key = row.variable
        if not key or row.complete or row is NVIDIA:
            continue
        lines = (text.partition("=")[::2] for text in container.env)
        values = {value for name, value in lines if name == key and not row.is_closed(value)}
        minors = {one.minor for one in own}
        others = None
        if any(one.mode is GrantMode.VENDOR for one in own):
            others = {
                one.minor
                for one in place.node.devices
                if one.type is DeviceType.GPU and said(place.node, one, "vendor") == vendor
            } - minors
        # The plugin sets one value, and the pod one beside it. A part may have any name, so there two names differ.
        if len(values) > (2 if others is None else 1):
            return f"variable {key} with several values"
        uuids = {one.uuid for one in own}
        for value in sorted(values):
            if past := runtimes.names_others(value, uuids, minors, others):
                return f"variable {key} with {past[:_SHOWN]}"
    return ""


def _maker(place: Place, uuid: str) -> str:
    device = place.devices.get(uuid)
    return said(place.node, device, "vendor") if device is not None else ""


def _hiding(container: Container) -> str:
    """A mount of the container that covers a path of isolation or lies below one; empty for none."""
    for mount in container.mounts:
        at = posixpath.normpath("/" + mount.destination.lstrip("/"))
        if at == PRELOAD or f"{at}/".startswith(f"{INSIDE}/"):
            return mount.destination[:_SHOWN]
    return ""


def looked_at(container: Container) -> Container:
    """The checked part of a running container: its author may make the rest a megabyte in each of a node's hundreds."""
    lines = (text.partition("=")[::2] for text in container.env)
    env = (
        f"{key[:_LONG]}={value[:_LONG]}"
        for key, value in lines
        if key in _WIDENING or key.startswith(MARK) or runtimes.tells(key, value)
    )
    mounts = (one for one in container.mounts if runtimes.listed((one.destination,)))
    notes = container.annotations.items()
    return replace(
        container,
        annotations={key: text for key, text in notes if len(text) <= _LONG_TEXT},
        args=(),
        env=tuple(islice(env, _MOST_LINES)),
        mounts=tuple(islice(mounts, 1)),
    )


def environment(container: Container) -> dict[str, str]:
    """A container's variables, the image's included."""
    parts = (text.partition("=") for text in container.env)
    return {key: value for key, _, value in parts}


def conflict(allocation: Allocation, place: Place, held: Iterable[Allocation]) -> Refusal | None:
    """Why a record cannot be honoured beside the earlier ones in `held`."""
    held = {id(one): one for one in held}.values()  # the containers of a pod share theirs
    if any(
        one.uid == allocation.uid and set(one.grants) != set(allocation.grants) for one in held
    ):
        return Refusal(
            Rule.RECORD_CHANGED,
            f"annotation {names.ALLOCATION} is another than that by which its containers here were given "
            "devices; a record never changes while its pod lives",
        )
    others = [(one, _charges(one.grants)) for one in held if one.uid != allocation.uid]
    for charge in _charges(allocation.grants):
        device = _device_of(charge, place)
        if device is None:
            return Refusal(
                Rule.UNKNOWN_DEVICE,
                f"its record names {charge.type} {charge.minor} {charge.uuid!r}, which node "
                f"{place.node.name} does not have",
            )
        # By UID: an ending pod and its successor of the same name may both be here.
        beside = {
            (one.uid, theirs.uuid): (one.holder_for(allocation.namespace), theirs)
            for one, charges in others
            for theirs in charges
            if theirs.type is charge.type and _is_of(theirs, device, place)
        }
        if why := _full(device, charge, [theirs for _, theirs in beside.values()]):
            holders = sorted({name for name, _ in beside.values()})
            return Refusal(
                Rule.CARD_FULL,
                f"{charge.type} {charge.minor} ({charge.uuid}) is held by "
                f"{', '.join(holders)}: {why}",
            )
    return None


@lru_cache(maxsize=256)
def _charges(grants: tuple[Grant, ...]) -> tuple[Charge, ...]:
    """The charges of a pod's grants: those of a pod with 64 containers take longer than all else in a decision."""
    return charges_of(grants)


def _device_of(one: Charge | Grant, place: Place) -> Device | None:
    """The device that a record names, by its identity; None if the node has none or several with it.

    Its number may have changed: if a card did not survive a boot, the later ones get other numbers.
    """
    device = place.devices.get(one.uuid)
    if device is None or device.type is not one.type:
        return None
    same = sum(other.uuid == one.uuid for other in place.node.devices)
    return device if device.minor == one.minor or same == 1 else None


def _numbered(allocation: Allocation, place: Place) -> Allocation:
    """A record's allocation, with its devices' current numbers."""
    grants = tuple(
        one
        if (device := _device_of(one, place)) is None or device.minor == one.minor
        else structs.replace(one, minor=device.minor)
        for one in allocation.grants
    )
    same = grants == allocation.grants
    return allocation if same else structs.replace(allocation, grants=grants)


def _is_of(charge: Charge, device: Device, place: Place) -> bool:
    """Whether a charge is on a device; by its number if its identity is none here: programs may spell one differently."""
    if charge.uuid in place.devices:
        return charge.uuid == device.uuid
    return charge.minor == device.minor


def _full(device: Device, charge: Charge, beside: Sequence[Charge]) -> str:
    """The missing amount of a device; empty if a charge fits beside the others."""
    if not beside:
        return ""  # the author of the record checked its own sum
    before = reduce(together, beside)
    if charge.exclusive or before.exclusive:
        return "one of them has it alone"
    for what, asked, used, total in (
        ("thousandths of compute", charge.core_milli, before.core_milli, device.core_milli),
        ("bytes of memory", charge.memory_bytes, before.memory_bytes, device.memory_bytes),
        ("sharers", charge.slots, before.slots, device.slots),
    ):
        if asked and used + asked > total:
            return f"{asked} {what} asked, {max(total - used, 0)} of {total} left"
    if bool(charge.instances) != bool(before.instances):
        return "shares and hardware instances do not go together"
    if taken := sorted({*charge.functions} & {*before.functions}):
        return f"virtual function {taken[0]} is taken"
    for mine in charge.instances:
        for other in before.instances:
            if mine.start < other.start + other.size and other.start < mine.start + mine.size:
                return f"instance {mine.profile} at {mine.start} overlaps {other.profile} at {other.start}"
    return ""
