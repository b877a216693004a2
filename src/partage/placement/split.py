"""Turns chosen devices into grants: each container's amount of each device.

A group that serves one container is granted as asked. A group that serves several (Koordinator's requests belong to the
pod) is divided among them in their order, device after device. So every grant has an owner, and the sum is the pod's
request.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from partage.inventory.card import Card
from partage.model.allocation import Grant, GrantMode
from partage.model.device import Device
from partage.model.request import ContainerAsk, Phase, RequestGroup
from partage.placement.card import grant_of, slots_on
from partage.placement.instances import Place

Part = tuple[Card, tuple[int, str] | None, Place | None]
Choice = tuple[RequestGroup, Iterable[Part], str]


def grants_of(choices: Sequence[Choice]) -> tuple[Grant, ...]:
    """Grants for every group and the devices chosen for it, by container in the pod's order.

    Each device has its virtual function and its hardware instance, if any.
    """
    result: list[tuple[int, Grant]] = []
    for group, chosen, template in choices:
        found = tuple(chosen)
        parts = [
            grant_of(group, card.device, function=function, template=template)
            if place is None
            else by_instance(group, card.device, place)
            for card, function, place in found
        ]
        seated = [
            place is None and slots_on(group.request, card.device) > 1 for card, _, place in found
        ]
        result += _among(parts, seated, sorted(group.containers, key=lambda c: c.position))
    result.sort(key=lambda item: item[0])
    return tuple(grant for _, grant in result)


def _among(
    parts: Sequence[Grant], seated: Sequence[bool], containers: Sequence[ContainerAsk]
) -> Iterator[tuple[int, Grant]]:
    """The devices of one group divided among its containers, with each container's position.

    Compute and memory are divided separately, because different containers may dominate them.
    """
    by_core = _weights(containers, "core_milli", "memory_bytes", "memory_milli")
    by_memory = _weights(containers, "memory_bytes", "memory_milli", "core_milli")
    core = _pour([part.core_milli for part in parts], containers, by_core)
    memory = _pour([part.memory_bytes for part in parts], containers, by_memory)
    counted: set[int] = set()
    # The device is first booked on a container that keeps running; the order of the result is another.
    order = sorted(range(len(containers)), key=lambda i: containers[i].phase is Phase.INIT)
    for i in order:
        container = containers[i]
        for p, part in enumerate(parts):
            if p not in core[i] and p not in memory[i]:
                continue
            first = p not in counted
            counted.add(p)
            yield (
                container.position,
                replace(
                    part,
                    container=container.name,
                    phase=container.phase,
                    core_milli=core[i].get(p, 0),
                    memory_bytes=memory[i].get(p, 0),
                    slots=part.slots if first or seated[p] else 0,
                    extras=part.extras if first else (),
                    function=part.function if first else None,
                ),
            )


def _weights(containers: Sequence[ContainerAsk], *amounts: str) -> list[int]:
    """Each container's request of the first of these amounts that any asks; equal weights if none asks any."""
    for name in amounts:
        weights: list[int] = [getattr(container, name) for container in containers]
        if any(weights):
            return weights
    return [1] * len(containers)


def _pour(
    amounts: Sequence[int], containers: Sequence[ContainerAsk], weights: Sequence[int]
) -> list[dict[int, int]]:
    """For each container, its amount of each device: devices in a row, filled from the left.

    Sidecars and main containers lie one after another. An init container begins at the end of the sidecars before it,
    and the next container begins there too. The furthest end is the whole row, so the devices are used to the last unit
    whatever the rounding.
    """
    extents: list[tuple[int, int]] = []
    begin = 0
    for container, weight in zip(containers, weights, strict=True):
        extents.append((begin, begin + weight))
        if container.phase is not Phase.INIT:
            begin += weight
    total = max(end for _, end in extents)
    count = len(amounts)
    result: list[dict[int, int]] = []
    for low, high in extents:
        mine: dict[int, int] = {}
        for p, amount in enumerate(amounts):
            # Positions on one scale: each device is `total` long, the row `count * total`.
            left = max(low * count, p * total) - p * total
            right = min(high * count, (p + 1) * total) - p * total
            if right > left:
                mine[p] = amount * right // total - amount * left // total
        result.append(mine)
    return result


def by_instance(group: RequestGroup, device: Device, place: Place) -> Grant:
    """The grant of an instance, without a container yet; its container gets all of it."""
    return Grant(
        container="",
        type=device.type,
        minor=device.minor,
        uuid=device.uuid,
        core_milli=place.core_milli,
        memory_bytes=place.memory_bytes,
        mode=GrantMode.MIG,
        protocol=group.protocol,
        mig=place.instance,
    )
