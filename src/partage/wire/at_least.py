"""Keeps a record from counting for less than its pod's spec asks.

A running pod's requests cannot change, but without the admission policy each writer of the pod can edit its records. So
each device of a record counts at least for what the spec asks of it. If the record has fewer devices than the spec
asks, or too small an instance, it is unknown which ones the pod uses, and the record gets a problem.

Source: docs/decisions/0006.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from partage.model.allocation import Grant, GrantMode, charges_of
from partage.model.device import MILLI, Device
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.request import DeviceRequest, Phase, PodRequest, RequestGroup
from partage.placement.card import Need, need_of
from partage.wire.routing import HAMI, KOORDINATOR, UNDECIDED

_Unit = tuple[int, ...]
"""Positions of the grants that make one device of a record: an instance, or all of one card that is not cut."""
_MOST_NAMED: Final = 3
_PARTS: Final = (GrantMode.SHARE, GrantMode.VENDOR)


class _TooLittleError(Exception):
    """The record cannot be that of the pod's devices; becomes its problem inside this module."""


def at_least(
    record: Record, request: PodRequest, node: Node, named: frozenset[str] | None
) -> Record:
    """The record, with the amounts that the request asks of its devices where it has less.

    `named`: the protocols whose records name the container of each device; None if this one does for all.
    """
    if record.problem or _plainly_enough(record.grants, request, node):
        return record
    raised = _Raised(list(record.grants), node, named)
    try:
        # In a record without containers, groups that run together have devices of their own: the largest choose first.
        for group in sorted(
            request.groups, key=lambda one: (one.phase is Phase.INIT, not one.request.whole)
        ):
            left_out = record.main_alone and group.protocol != KOORDINATOR
            if not (group.phase is Phase.INIT and left_out):
                raised.serve(group)
    except _TooLittleError as error:
        return replace(record, problem=f"the record of {record.source} {error}")
    return replace(record, grants=tuple(raised.grants)) if raised.changed else record


def _plainly_enough(grants: Sequence[Grant], request: PodRequest, node: Node) -> bool:
    """Whether one container has all that the pod asks, by amounts alone; nearly always, and decided fast."""
    if len(request.groups) != 1 or len(request.groups[0].containers) != 1:
        return False
    (group,) = request.groups
    asked, name = group.request, group.containers[0].name
    if len({grant.minor for grant in grants}) != asked.count or asked.filter.functions is not None:
        return False
    if asked.whole:
        return all(
            grant.mode is GrantMode.WHOLE and grant.container == name and grant.type is asked.type
            for grant in grants
        )
    if asked.extras:
        return False
    for grant in grants:
        memory = asked.memory_bytes
        if asked.memory_milli and not memory:
            device = _device_of(grant, node)
            if device is None:
                return False
            memory = device.memory_bytes * asked.memory_milli // MILLI
        if not (
            grant.mode in _PARTS
            and grant.container == name
            and grant.type is asked.type
            and grant.core_milli >= asked.core_milli
            and grant.memory_bytes >= memory
            and grant.exclusive >= asked.exclusive
            and grant.slots
        ):
            return False
    return True


def _device_of(grant: Grant, node: Node) -> Device | None:
    for one in node.devices:
        if one.minor == grant.minor and one.type is grant.type and one.uuid == grant.uuid:
            return one
    return None


class _Raised:
    """The grants of a record while the groups of its pod are compared with them one by one."""

    def __init__(self, grants: list[Grant], node: Node, named: frozenset[str] | None) -> None:
        self.grants = grants
        self.changed = False
        self._named = named
        self._node = node
        self._taken: set[_Unit] = set()

    def serve(self, group: RequestGroup) -> None:
        """Raise the devices of a group to what it asks. Raises `_TooLittleError`: the record has too few for it."""
        units = self._of_containers(group) or self._of_pod(group)
        request = group.request
        if len(units) < request.count:
            names = [container.name for container in group.containers]
            some = ", ".join(names[:_MOST_NAMED]) + (" …" if len(names) > _MOST_NAMED else "")
            raise _TooLittleError(
                f"has {len(units)} of the {request.count} {request.type} devices that the spec asks for "
                f"container {some}"
            )
        lacking = {unit: raised for unit in units if (raised := self._lacking(unit, request))}
        enough = [unit for unit in units if unit not in lacking]
        if len(enough) < request.count:
            # It is unknown which of them were edited, so all are raised.
            for place, grant in lacking.values():
                self.grants[place] = grant
            self.changed = True
        if group.phase is not Phase.INIT:
            self._taken.update([*enough, *lacking][: request.count])

    def _of_containers(self, group: RequestGroup) -> list[_Unit]:
        """The devices of the group's containers, by the records that name containers."""
        mine = {container.name for container in group.containers}
        type_, named = group.request.type, self._named
        if named is not None and group.protocol != UNDECIDED:
            named &= {group.protocol}
        return self._units(
            place
            for place, grant in enumerate(self.grants)
            if grant.container in mine
            and grant.type is type_
            and (named is None or grant.protocol in named)
        )

    def _of_pod(self, group: RequestGroup) -> list[_Unit]:
        """The devices of all containers together; of a group that runs beside others, those that no other has.

        A lone `nvidia.com/gpu` may have been Koordinator's when the pod was placed, and be HAMi's now.
        """
        if self._named is None or group.protocol not in {KOORDINATOR, HAMI, UNDECIDED}:
            return []
        units = self._units(
            place
            for place, grant in enumerate(self.grants)
            if grant.protocol == KOORDINATOR and grant.type is group.request.type
        )
        if group.phase is Phase.INIT:
            return units
        return [unit for unit in units if unit not in self._taken]

    def _units(self, places: Iterator[int]) -> list[_Unit]:
        """Grants as devices: two instances of one card are two, and containers' parts of a card are one."""
        found: dict[tuple[int, int], list[int]] = {}
        for place in places:
            grant = self.grants[place]
            own = place if grant.mode is GrantMode.MIG else -1
            found.setdefault((grant.minor, own), []).append(place)
        return [tuple(unit) for unit in found.values()]

    def _lacking(self, unit: _Unit, request: DeviceRequest) -> tuple[int, Grant] | None:
        """A grant of a device, raised, and its position; None if the device has what the request asks."""
        held = {place: self.grants[place] for place in unit}
        running = [place for place in unit if held[place].phase is not Phase.INIT]
        place = (running or unit)[0]
        first = held[place]
        device = _device_of(first, self._node)
        if device is None:
            return None
        if request.filter.functions is not None and not any(one.function for one in held.values()):
            raise _TooLittleError(f"names no virtual function of {first.type} {first.minor}")
        if first.mode is GrantMode.MIG:
            raised = _instance(first, device, request)
        elif _has(tuple(held.values()), need_of(device, request), request):
            return None
        else:
            raised = _amounts(first, [held[one] for one in running[1:]], device, request)
        return None if raised == first else (place, raised)


def _has(held: tuple[Grant, ...], need: Need, request: DeviceRequest) -> bool:
    """Whether the grants of one device come to what a request needs of it."""
    (charge,) = charges_of(held)
    extras = dict(charge.extras)
    return (
        charge.core_milli >= need.core_milli
        and charge.memory_bytes >= need.memory_bytes
        and charge.slots >= need.slots
        and all(extras.get(unit, 0) >= amount for unit, amount in need.extras)
        and (charge.exclusive or not request.exclusive)
    )


def _amounts(
    grant: Grant, others: Sequence[Grant], device: Device, request: DeviceRequest
) -> Grant:
    """A grant raised until it comes to what the request needs, with the others that run beside it."""
    need = need_of(device, request)
    extras = dict(grant.extras)
    for unit, amount in need.extras:
        beside = sum(dict(one.extras).get(unit, 0) for one in others)
        extras[unit] = max(extras.get(unit, 0), amount - beside)
    core = max(grant.core_milli, need.core_milli - sum(one.core_milli for one in others))
    memory = max(grant.memory_bytes, need.memory_bytes - sum(one.memory_bytes for one in others))
    return structs.replace(
        grant,
        core_milli=core,
        memory_bytes=memory,
        mode=GrantMode.WHOLE if request.whole else grant.mode,
        extras=grant.extras if extras == dict(grant.extras) else tuple(sorted(extras.items())),
        exclusive=grant.exclusive or request.exclusive,
        slots=max(grant.slots, need.slots - sum(one.slots for one in others)),
    )


def _instance(grant: Grant, device: Device, request: DeviceRequest) -> Grant:
    """An instance with the memory that is asked. Raises `_TooLittleError`: its profile has less.

    Its compute does not count, because HAMi before 2.10 chooses an instance by its memory alone. Without a place the
    grant takes the whole card anyway.
    """
    cutting = device.cutting
    if grant.mig is None or cutting is None:
        return grant
    try:
        profile = cutting.axis.profile(grant.mig.profile)
    except InvalidValue:
        return grant  # such a card is closed
    small = profile.memory_bytes < request.memory_bytes
    if small or profile.size * MILLI < cutting.axis.length * request.memory_milli:
        raise _TooLittleError(
            f"names instance {profile.name} of card {grant.minor}, which has less than the spec asks"
        )
    memory = min(profile.memory_bytes, need_of(device, request).memory_bytes)
    return structs.replace(grant, memory_bytes=max(grant.memory_bytes, memory))
