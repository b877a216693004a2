"""Recovers a bound pod's devices from its records, whichever exist.

Partage's own record is read first. A protocol's annotation beside it must agree with it in everything that the
annotation contains. If the two disagree, it is unknown which is true, and the record gets a problem: `scheduler.facts`
books none of it, and closes every device of the asked types on its node. A pod without Partage's record was placed by
another scheduler, and is taken over from its protocol's annotations. No record counts for less than its pod's spec asks
(`at_least`), unless the pod's shares were adjusted. Of such a pod, an annotation of a protocol that writes no amounts
contains its cards alone.

Source: docs/decisions/0002, 0006 and 0028.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from partage.inventory.card import CEILING
from partage.model.allocation import Charge, Grant, GrantMode, charges_of, together
from partage.model.device import MILLI, Device, DeviceType, SliceMode
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.request import Phase, PodRequest, RequestGroup
from partage.vendors import names
from partage.vendors.base import Family, PodView
from partage.vendors.catalog import made_of_totals
from partage.vendors.reserved import RESERVED
from partage.vendors.settings import HamiSettings, Settings
from partage.wire import permit
from partage.wire.at_least import at_least
from partage.wire.context import Context
from partage.wire.identities import is_worldwide, made_of_number
from partage.wire.reading import read_all
from partage.wire.record import decode
from partage.wire.routing import HAMI

_COARSEST: Final = 2**20
"""Bytes by which a protocol's memory may differ: the largest unit to which any of them rounds."""

_PERCENT: Final = MILLI // 100
_FULL: Final = 100

_STARTED: Final = (Phase.SIDECAR, Phase.INIT, Phase.MAIN)
"""The scheduler's order of grants: init containers count beside every sidecar."""

NOTHING: Final = PodRequest()

_Key = tuple[str, ...]
_Place = tuple[DeviceType, int]


def recover(
    pod: PodView, node: Node, context: Context, request: PodRequest = NOTHING
) -> Record | None:
    """The pod's record on its node; None when no annotation contains one. Never raises.

    `request`: what its spec asks; the record never counts for less, unless the pod's shares were adjusted.
    """
    settings, text = context.settings, pod.annotations.get(names.ALLOCATION)
    if text is None:
        named = frozenset(family.name for family in context.families if family.by_container)
        taken_over = _taken_over(_read(pod, node, context), settings)
        asked = _said(request, pod, settings.hami, ours=False)
        return taken_over and at_least(taken_over, asked, node, named)
    ours = decode(text, pod.uid, pod.node)
    if ours.problem:
        return ours
    if any(made_of_totals(grant.uuid) for grant in ours.grants):
        ours = replace(ours, grants=tuple(_of_index(grant, node) for grant in ours.grants))
    gone = _gone(ours.grants, node)
    known = replace(node, devices=(*node.devices, *gone.values())) if gone else node
    adjusted = names.ADJUST in pod.annotations or names.ENFORCED in pod.annotations
    for family, record in _read(pod, known, context):
        problem = record.problem or _difference(
            ours.grants,
            _cards_of(record, gone if family.tells_amounts or not adjusted else None),
            complete=bool(family.owned(settings)),
            by_container=family.by_container,
        )
        if problem:
            return replace(ours, problem=problem)
    if not adjusted:
        ours = at_least(ours, _said(request, pod, settings.hami, ours=True), node, None)
    said = permit.read(pod.annotations, pod.uid)
    return ours if said is None else replace(ours, permit=said)


def _read(pod: PodView, node: Node, context: Context) -> list[tuple[Family, Record]]:
    return [
        (family, record)
        for family in context.families
        if (record := family.recover(pod, node, context.settings)) is not None
    ]


def _gone(grants: Sequence[Grant], node: Node) -> dict[_Place, Device]:
    """Cards of our record that the node no longer has, in the form in which a protocol's record is read.

    Only a card whose UUID and number are both gone, on a node that tells the UUID of every card: then the pod uses none
    of those that are there. If the UUID has another number now, or the number another UUID, cards were numbered anew or
    swapped. An identity that another card can have (a PCI address, a number, one that we made up) does not count.
    """
    numbers = {(device.type, device.minor) for device in node.devices}
    lost = [grant for grant in grants if (grant.type, grant.minor) not in numbers]
    if not lost:
        return {}
    there = {(one.uuid, one.minor) for one in node.devices if one.type is DeviceType.GPU}
    if not all(_is_lasting(uuid, minor, node) for uuid, minor in there):
        return {}
    uuids = {uuid for uuid, _minor in there}
    return {
        (grant.type, grant.minor): Device(
            grant.type,
            grant.minor,
            grant.uuid,
            healthy=False,
            core_milli=max(grant.core_milli, MILLI),
            memory_bytes=grant.memory_bytes if grant.mode is GrantMode.WHOLE else CEILING,
            mode=SliceMode.MIG if grant.mode is GrantMode.MIG else SliceMode.SHARE,
        )
        for grant in lost
        if grant.type is DeviceType.GPU
        and grant.uuid not in uuids
        and _is_lasting(grant.uuid, grant.minor, node)
    }


def _is_lasting(uuid: str, minor: int, node: Node) -> bool:
    """Whether an identity is that of one card, whatever its number and place."""
    made_up = made_of_totals(uuid) or uuid == made_of_number(node.name, DeviceType.GPU, minor)
    return is_worldwide(uuid) and not uuid.isdecimal() and not made_up


def recorded(pod: PodView, request: PodRequest, node: Node, context: Context) -> Record | None:
    """The pod's record on its node, which counts for no less than the pod's reading asks. Never raises.

    Its author may have edited annotations since it was placed. So if the reading is a fault, or asks for other devices
    than the record has, the pod is read again without them.
    """
    record = recover(pod, node, context, request)
    if record is None or (not record.problem and request.fault is None):
        return record
    kept = {key: pod.annotations[key] for key in RESERVED.in_annotations(pod.annotations)}
    request = read_all(replace(pod, annotations=kept), context)
    return recover(pod, node, context, request)


def _of_index(grant: Grant, node: Node) -> Grant:
    """A grant from a time when the node had totals and no Device, moved to the card that has its index now.

    The pod uses the index, like a pod that another scheduler placed.
    """
    key = grant.type, grant.minor
    card = next((one for one in node.devices if (one.type, one.minor) == key), None)
    if card is None or not made_of_totals(grant.uuid):
        return grant
    return msgspec.structs.replace(grant, uuid=card.uuid)


def _cards_of(record: Record, gone: Collection[_Place] | None) -> Record:
    """A record without amounts of the cards that are gone, which follow from the card; None for all its cards."""
    if gone is not None and not gone:
        return record
    bare = (
        msgspec.structs.replace(one, core_milli=0, memory_bytes=0)
        if gone is None or (one.type, one.minor) in gone
        else one
        for one in record.grants
    )
    return replace(record, grants=tuple(bare))


def _taken_over(others: Sequence[tuple[Family, Record]], settings: Settings) -> Record | None:
    """The protocols' records together.

    A vendor that only adapts another's protocol repeats that protocol's record, so it is used only
    if the protocol itself has none. Grants are in the scheduler's order, so that they are charged
    as the scheduler charges them.
    """
    records = [record for family, record in others if family.owned(settings)]
    records = records or [record for _family, record in others]
    if not records:
        return None
    grants = [grant for record in records for grant in record.grants]
    return Record(
        grants=tuple(sorted(grants, key=lambda grant: _STARTED.index(grant.phase))),
        source="+".join(record.source for record in records),
        problem="; ".join(record.problem for record in records if record.problem),
        main_alone=any(record.main_alone for record in records),
    )


def _said(request: PodRequest, pod: PodView, hami: HamiSettings, *, ours: bool) -> PodRequest:
    """The request without amounts by which HAMi's containers were not placed.

    HAMi's webhook writes the compute that goes with all memory into the spec; for a pod that it did not see the default
    counts. `ours`: the record is Partage's own, so operators may have changed the defaults since.
    """
    if all(group.protocol != HAMI for group in request.groups):
        return request
    containers = {one.name: one for one in pod.containers}
    core = 0 if ours else min(hami.default_cores, _FULL) * _PERCENT

    def said(group: RequestGroup) -> RequestGroup:
        container, request = containers.get(group.containers[0].name), group.request
        if group.protocol != HAMI or container is None:
            return group
        if not request.whole and hami.cores_name not in container.names:
            request = replace(request, core_milli=core, exclusive=False)
        if ours and container.names.isdisjoint((hami.memory_name, hami.percentage_name)):
            request = replace(request, memory_bytes=0, memory_milli=0)
        return replace(group, request=request)

    return replace(request, groups=tuple(map(said, request.groups)))


def _difference(
    ours: Sequence[Grant], theirs: Record, *, complete: bool, by_container: bool
) -> str:
    """The contradiction of a protocol's record to ours; empty if there is none.

    Args:
        ours: all grants of Partage's record.
        complete: whether theirs names every device of its protocol; a vendor's repeats only cards.
        by_container: whether theirs names the container of each device.
    """
    protocols = {grant.protocol for grant in theirs.grants}
    mine_of = tuple(grant for grant in ours if grant.protocol in protocols)
    if mine_of == theirs.grants:
        return ""  # nearly always
    charges = _by_container if by_container else _charges
    mine = charges(mine_of)
    told = charges(theirs.grants)
    for key in sorted({**mine, **told} if complete else told):
        name = " of container ".join(key)
        who, other = names.ALLOCATION, theirs.source
        if key not in mine or key not in told:
            who, other = (who, other) if key in mine else (other, who)
            return f"records disagree: {name} is in the record of {who} and not of {other}"
        if detail := _amounts_differ(mine[key], told[key]):
            return f"records of {who} and {other} disagree on {name}: {detail}"
    return ""


def _charges(grants: Sequence[Grant]) -> Mapping[_Key, Charge]:
    return {(f"{c.type} {c.minor}",): c for c in charges_of(grants)}


def _by_container(grants: Sequence[Grant]) -> Mapping[_Key, Charge]:
    result: dict[_Key, Charge] = {}
    for grant in grants:
        key = (f"{grant.type} {grant.minor}", grant.container)
        (charge,) = charges_of((grant,))
        result[key] = together(result[key], charge) if key in result else charge
    return result


def _written(instances: Sequence[MigSlice]) -> str:
    return ", ".join(f"{one.profile} at {one.start}" for one in instances)


def _amounts_differ(mine: Charge, told: Charge) -> str:
    """The difference of amounts that both contain, if it exceeds the protocols' units."""
    if mine.uuid and told.uuid and mine.uuid != told.uuid:
        return f"uuid {mine.uuid} and {told.uuid}"
    if mine.instances and told.instances and mine.instances != told.instances:
        return f"instances {_written(mine.instances)} and {_written(told.instances)}"
    core = min(mine.core_milli, MILLI), min(told.core_milli, MILLI)
    parts = max(mine.slots, told.slots, 1)  # each of them was rounded on its own
    if all(core) and abs(core[0] - core[1]) >= _PERCENT * parts:
        return f"{mine.core_milli} and {told.core_milli} thousandths of compute"
    memory = mine.memory_bytes, told.memory_bytes
    if all(memory) and abs(memory[0] - memory[1]) >= _COARSEST * parts:
        return f"{memory[0]} and {memory[1]} bytes of memory"
    return ""
