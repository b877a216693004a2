"""Writes HAMi's keys on a pod for its allocation, and reads them back.

HAMi's own node plugin and its monitors look for the two device annotations, the node, the times and the phase. The
operator's settings decide how hardware instances are written: as a suffix of the card's UUID (HAMi 2.5), or in an
annotation of their own (HAMi 2.10). `mig_records` has both.

If a record does not contain an instance's place, the instance takes its whole card, so that nothing is made on it.

Source: docs/sources/hami.md 1.5, 5, 6 (environment) and 13 (cases 31, 41, 50); the HAMi document.
"""

from collections.abc import Mapping, Sequence
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
    by_container = [
        (container, tuple(g for g in grants if g.container == container.name))
        for container in placed.pod.containers
    ]
    cuttings = {device.uuid: device.cutting for device in placed.node.devices}
    instances = [grant for grant in grants if grant.mig is not None]
    suffixed = instances if settings.hami.mig_record == "suffix" else []
    marked = {one: mark for one in suffixed if (mark := slot_uuid(one, cuttings.get(one.uuid)))}
    text = encode_pod_devices(
        [[_encoded(grant, marked) for grant in held] for _, held in by_container]
    )
    listed = encode_listed(
        (container, position, grant)
        for container, (_, held) in enumerate(by_container)
        for position, grant in enumerate(held)
    )
    node, seconds = placed.allocation.node, str(placed.now // _SECOND)
    return Rendering(
        annotations={
            names.HAMI_POD_NODE: node,
            names.HAMI_POD_TIME: seconds,
            names.HAMI_TO_ALLOCATE: text,
            names.HAMI_ALLOCATED: text,
            names.HAMI_BIND_PHASE: "allocating",
            names.HAMI_BIND_TIME: seconds,
            **({names.HAMI_MIG_ALLOCATIONS: listed} if len(marked) < len(instances) else {}),
        },
        labels=labels(placed, settings),
        env={
            container.name: _environment(container, held, node, settings)
            for container, held in by_container
            # Hardware instances limit themselves.
            if held and all(grant.mode is not GrantMode.MIG for grant in held)
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
    if (priority := priority_of(container, settings.hami)) is not None:
        env["CUDA_TASK_PRIORITY"] = str(priority)
    return env


def _recovered(
    slots: Sequence[Sequence[ContainerDevice]], pod: PodView, node: Node, settings: Settings
) -> tuple[Grant, ...]:
    where = pod.annotations.get(names.HAMI_POD_NODE, node.name)
    if where != node.name:
        raise InvalidRecord(f"it was made for node {where}, the pod is on {node.name}")
    cards = {device.uuid: device for device in node.devices if device.type is DeviceType.GPU}
    listed = _listed(pod)
    # Without Partage's own record, which has the places, they follow from the slots of today's geometries.
    by_suffix = names.ALLOCATION not in pod.annotations
    found = []
    for container, entries in zip(_owners(pod, len(slots)), slots, strict=True):
        index = pod.containers.index(container)
        for position, entry in enumerate(entries):
            if entry.type != NVIDIA:
                raise InvalidRecord(f"device {entry.uuid} is of type {entry.type}, not {NVIDIA}")
            marked = "[" in entry.uuid or "]" in entry.uuid
            mark = parse_mig_uuid(entry.uuid) if marked else None
            uuid = entry.uuid if mark is None else mark.uuid
            card = cards.get(uuid)
            if card is None:
                raise InvalidRecord(f"card {uuid} is not on the node")
            place = _place(listed.get((index, position)), mark if by_suffix else None, card)
            found.append(_grant(container, entry, card, place, settings))
    return tuple(found)


def _listed(pod: PodView) -> Mapping[tuple[int, int], Listed]:
    text = pod.annotations.get(names.HAMI_MIG_ALLOCATIONS, "").strip()
    if not text:
        return {}
    try:
        return decode_listed(text)
    except InvalidRecord as error:
        raise InvalidRecord(f"{names.HAMI_MIG_ALLOCATIONS}: {error}") from error


def _place(listed: Listed | None, mark: MigMark | None, card: Device) -> MigSlice | None:
    """The instance's place on its card; None if unrecorded. Raises `InvalidRecord`: the record is another's.

    `listed`: its row in the annotation of HAMi 2.10. `mark`: the suffix of its card, if that determines the place.
    """
    if listed is not None:
        if listed.gpu != card.uuid:
            raise InvalidRecord(
                f"the instance is on {card.uuid}, but {names.HAMI_MIG_ALLOCATIONS} says "
                f"{listed.gpu}"
            )
        return listed.instance
    return None if mark is None else slot_of(mark, card.cutting)


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
    card: Device,
    place: MigSlice | None,
    settings: Settings,
) -> Grant:
    instance = entry.uuid != card.uuid or place is not None
    if instance and card.mode is SliceMode.SHARE:
        raise InvalidRecord(
            f"{entry.uuid} is a hardware instance, but the card is not in mode mig"
        )
    if entry.cores > _FULL or entry.memory_mib * MIB > card.memory_bytes:
        raise InvalidRecord(
            f"{entry.memory_mib} MiB and {entry.cores} % are more than card {card.uuid} has"
        )
    mode, core, memory = GrantMode.SHARE, entry.cores * 10, entry.memory_mib * MIB
    if instance or card.mode is SliceMode.MIG:
        mode = GrantMode.MIG
    elif entry.cores == _FULL and entry.memory_mib == card.memory_bytes // MIB:
        mode, core, memory = GrantMode.WHOLE, card.core_milli, card.memory_bytes
    else:
        # An entry drops the part of a memory share below one MiB. If the container asked for a share that equals it,
        # the exact share counts: the books never hold less than the grant, and shares of 100 % in total still fit.
        exact = card.memory_bytes * percentage_of(container, settings.hami) // _FULL
        memory = exact if exact // MIB == entry.memory_mib else memory
    return Grant(
        container=container.name,
        phase=container.phase,
        protocol=NAME,
        type=DeviceType.GPU,
        minor=card.minor,
        uuid=card.uuid,
        core_milli=core,
        memory_bytes=memory,
        mode=mode,
        exclusive=entry.cores == _FULL and mode is GrantMode.SHARE,
        sharers=None if place is not None or card.registrar == NAME else sharers(settings),
        mig=place,
    )
