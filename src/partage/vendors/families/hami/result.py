"""Writes HAMi's keys on a pod for its allocation, and reads them back.

HAMi's own node plugin and its monitors look for the two device annotations, the node, the times and the phase. The
operator's settings decide how hardware instances are written: as a suffix of the card's UUID (HAMi 2.5), or in an
annotation of their own (HAMi 2.10). `mig_records` has both.

If a record does not contain an instance's place, the instance takes its whole card, so that nothing is made on it.

Source: docs/sources/hami.md 1.5, 5, 6 (environment) and 13 (cases 31, 41, 50); the HAMi document.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from partage.model.allocation import Grant, GrantMode
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.errors import InvalidRecord
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.request import Phase
from partage.vendors import names
from partage.vendors.base import ContainerView, PlacedPod, PodView, Rendering
from partage.vendors.families.hami.codec import (
    NVIDIA,
    ContainerDevice,
    MigMark,
    decode_pod_devices,
    encode_pod_devices,
    parse_mig_uuid,
)
from partage.vendors.families.hami.mig_records import (
    Listed,
    decode_listed,
    encode_listed,
    slot_of,
    slot_uuid,
)
from partage.vendors.families.hami.registration import memory_scaling
from partage.vendors.families.hami.request import MIB, NAME, percentage_of, priority_of, sharers
from partage.vendors.settings import Settings

_SECOND: Final = 10**9
_FULL: Final = 100


def render(placed: PlacedPod, settings: Settings) -> Rendering:
    """Annotations, the node label and each container's environment; nothing without grants."""
    grants = placed.grants(NAME)
    if not grants:
        return Rendering()
    by_container = {
        container.name: tuple(g for g in grants if g.container == container.name)
        for container in placed.pod.containers
    }
    cards = {device.uuid: device for device in placed.node.devices}
    suffixes = settings.hami.mig_record == "suffix"
    marked = {
        grant: mark
        for grant in grants
        if suffixes
        and grant.mig is not None
        and grant.uuid in cards
        and (mark := slot_uuid(grant, cards[grant.uuid].cutting))
    }
    text = encode_pod_devices(
        [[_encoded(grant, marked) for grant in held] for held in by_container.values()]
    )
    listed = [
        (container, position, grant)
        for container, held in enumerate(by_container.values())
        for position, grant in enumerate(held)
        if grant.mig is not None
    ]
    exact = {names.HAMI_MIG_ALLOCATIONS: encode_listed(listed)}
    node, seconds = placed.allocation.node, str(placed.now // _SECOND)
    return Rendering(
        annotations={
            names.HAMI_POD_NODE: node,
            names.HAMI_POD_TIME: seconds,
            names.HAMI_TO_ALLOCATE: text,
            names.HAMI_ALLOCATED: text,
            names.HAMI_BIND_PHASE: "allocating",
            names.HAMI_BIND_TIME: seconds,
            **(exact if len(marked) < len(listed) else {}),
        },
        labels=labels(placed, settings),
        env={
            container.name: _environment(container, by_container[container.name], node, settings)
            for container in placed.pod.containers
            if _by_software(by_container[container.name])
        },
    )


def labels(placed: PlacedPod, _settings: Settings) -> Mapping[str, str]:
    """The node's name, on pods that have HAMi's cards."""
    return {names.HAMI_POD_NODE: placed.allocation.node} if placed.grants(NAME) else {}


def recover(pod: PodView, node: Node, settings: Settings) -> Record | None:
    """The grants in a bound pod's annotation; None if it names no device.

    Any contradiction to the pod or the node is the record's problem, and the whole record is distrusted.
    """
    text = pod.annotations.get(names.HAMI_ALLOCATED, "").strip()
    if not text.replace(";", ""):
        return None
    try:
        slots = decode_pod_devices(text)
        grants = _recovered(slots, pod, node, settings)
    except InvalidRecord as error:
        return Record(source=NAME, problem=f"annotation {names.HAMI_ALLOCATED}: {error}")
    return Record(grants=grants, source=NAME, main_alone=len(slots) < len(pod.containers))


def _encoded(grant: Grant, marked: Mapping[Grant, str]) -> ContainerDevice:
    uuid = marked.get(grant, grant.uuid)
    return ContainerDevice(uuid, grant.memory_bytes // MIB, _percent(grant))


def _percent(grant: Grant) -> int:
    """Compute in percent by HAMi's count: a whole card is 100, however it is scaled."""
    return _FULL if grant.mode is GrantMode.WHOLE else min(_FULL, grant.core_milli // 10)


def _by_software(grants: tuple[Grant, ...]) -> bool:
    """Whether limits are set by environment; hardware instances limit themselves."""
    return bool(grants) and all(grant.mode is not GrantMode.MIG for grant in grants)


def _environment(
    container: ContainerView, grants: tuple[Grant, ...], node: str, settings: Settings
) -> dict[str, str]:
    """Limits for the library in the container: memory in MiB, compute of the first card."""
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(grant.uuid for grant in grants)}
    for position, grant in enumerate(grants):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{position}"] = f"{grant.memory_bytes // MIB}m"
    env["CUDA_DEVICE_SM_LIMIT"] = str(_percent(grants[0]))
    if memory_scaling(node, settings) > 1:
        env["CUDA_OVERSUBSCRIBE"] = "true"
    if settings.hami.disable_core_limit:
        env["GPU_CORE_UTILIZATION_POLICY"] = "disable"
    priority = priority_of(container, settings.hami)
    if priority is not None:
        env["CUDA_TASK_PRIORITY"] = str(priority)
    return env


def _recovered(
    slots: Sequence[Sequence[ContainerDevice]], pod: PodView, node: Node, settings: Settings
) -> tuple[Grant, ...]:
    where = pod.annotations.get(names.HAMI_POD_NODE, node.name)
    if where != node.name:
        raise InvalidRecord(f"it was made for node {where}, the pod is on {node.name}")
    cards = {device.uuid: device for device in node.devices if device.type is DeviceType.GPU}
    limit = sharers(settings)
    listed = _listed(pod)
    owners = _owners(pod, len(slots))
    return tuple(
        _grant(
            container,
            entry,
            cards,
            limit,
            percentage_of(container, settings.hami),
            _Instance(
                listed.get((pod.containers.index(container), position)),
                by_suffix=names.ALLOCATION not in pod.annotations,
            ),
        )
        for container, entries in zip(owners, slots, strict=True)
        for position, entry in enumerate(entries)
    )


def _listed(pod: PodView) -> Mapping[tuple[int, int], Listed]:
    text = pod.annotations.get(names.HAMI_MIG_ALLOCATIONS, "").strip()
    if not text:
        return {}
    try:
        return decode_listed(text)
    except InvalidRecord as error:
        raise InvalidRecord(f"{names.HAMI_MIG_ALLOCATIONS}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Instance:
    """An entry's further data in a pod's records.

    Attributes:
        listed: its row in the annotation of HAMi 2.10.
        by_suffix: whether a geometry's slot determines its place. The table may have changed since, so this is false if
            Partage's own record has the place.
    """

    listed: Listed | None
    by_suffix: bool

    def place(self, uuid: str, mark: MigMark | None, card: Device) -> MigSlice | None:
        """The instance's place on its card; None if unrecorded. Raises `InvalidRecord`: the record is another's."""
        if self.listed is not None:
            if self.listed.gpu != uuid:
                raise InvalidRecord(
                    f"the instance is on {uuid}, but {names.HAMI_MIG_ALLOCATIONS} says "
                    f"{self.listed.gpu}"
                )
            return self.listed.instance
        if mark is None or not self.by_suffix:
            return None
        return slot_of(mark, card.cutting)


def _owners(pod: PodView, slots: int) -> tuple[ContainerView, ...]:
    """The containers of the slots; old versions left init containers out."""
    if slots == len(pod.containers):
        return pod.containers
    main = tuple(c for c in pod.containers if c.phase is Phase.MAIN)
    if slots == len(main):
        return main
    raise InvalidRecord(f"{slots} slots for {len(pod.containers)} containers")


def _grant(
    container: ContainerView,
    entry: ContainerDevice,
    cards: dict[str, Device],
    limit: int,
    percentage: int,
    instance: _Instance,
) -> Grant:
    if entry.type != NVIDIA:
        raise InvalidRecord(f"device {entry.uuid} is of type {entry.type}, not {NVIDIA}")
    marked = "[" in entry.uuid or "]" in entry.uuid
    mark = parse_mig_uuid(entry.uuid) if marked else None
    uuid = entry.uuid if mark is None else mark.uuid
    card = cards.get(uuid)
    if card is None:
        raise InvalidRecord(f"card {uuid} is not on the node")
    place = instance.place(uuid, mark, card)
    if (marked or place is not None) and card.mode is SliceMode.SHARE:
        raise InvalidRecord(
            f"{entry.uuid} is a hardware instance, but the card is not in mode mig"
        )
    if entry.cores > _FULL or entry.memory_mib * MIB > card.memory_bytes:
        raise InvalidRecord(
            f"{entry.memory_mib} MiB and {entry.cores} % are more than card {uuid} has"
        )
    whole = entry.cores == _FULL and entry.memory_mib == card.memory_bytes // MIB
    mode = _mode(card, whole=whole, instance=marked or place is not None)
    return Grant(
        container=container.name,
        phase=container.phase,
        protocol=NAME,
        type=DeviceType.GPU,
        minor=card.minor,
        uuid=uuid,
        core_milli=card.core_milli if mode is GrantMode.WHOLE else entry.cores * 10,
        memory_bytes=card.memory_bytes
        if mode is GrantMode.WHOLE
        else _memory(entry, card, 0 if mode is GrantMode.MIG else percentage),
        mode=mode,
        exclusive=entry.cores == _FULL and mode is GrantMode.SHARE,
        sharers=None if place is not None or card.registrar == NAME else limit,
        mig=place,
    )


def _memory(entry: ContainerDevice, card: Device, percentage: int) -> int:
    """Bytes for the MiB of an entry, which drops the part of a memory share below one MiB.

    If the container asked for a share that equals that entry, the result is the exact share. So the books never hold
    less than the grant, and shares of 100 % in total still fit on the card.
    """
    exact = card.memory_bytes * percentage // _FULL
    return exact if exact // MIB == entry.memory_mib else entry.memory_mib * MIB


def _mode(card: Device, *, whole: bool, instance: bool) -> GrantMode:
    if instance or card.mode is SliceMode.MIG:
        return GrantMode.MIG
    return GrantMode.WHOLE if whole else GrantMode.SHARE
