"""From chosen devices to grants: which container gets how much of which.

A group that serves one container is granted as it was asked. A group that serves several
(Koordinator's requests are of the pod) is poured into them in their order, device after device,
so that every grant has an owner and the sum is what the pod asked.
"""

from collections.abc import Sequence
from dataclasses import replace

from partage.inventory.ledger import Card
from partage.model.allocation import Grant, GrantMode
from partage.model.device import MILLI
from partage.model.request import ContainerAsk, Phase, RequestGroup
from partage.placement.card import Need, need_of

__all__ = ["grants_of"]

Choice = tuple[RequestGroup, Sequence[Card], Sequence[tuple[int, str] | None], str]


def grants_of(choices: Sequence[Choice]) -> tuple[Grant, ...]:
    """Grants for every group and the devices chosen for it, in the order of the groups."""
    result: list[Grant] = []
    for group, cards, functions, template in choices:
        parts = [
            _grant(group, card, function, template)
            for card, function in zip(cards, functions, strict=True)
        ]
        running = [c for c in group.containers if c.phase is not Phase.INIT]
        initial = [c for c in group.containers if c.phase is Phase.INIT]
        if len(group.containers) == 1 or not running:
            first, *others = group.containers
            result += [replace(p, container=first.name, phase=first.phase) for p in parts]
            for container in others:
                result += _again(parts, container)
            continue
        result += _pour(parts, running)
        for container in initial:
            result += _again(_pour(parts, [container]), container)
    return tuple(result)


def _grant(
    group: RequestGroup, card: Card, function: tuple[int, str] | None, template: str
) -> Grant:
    request, device = group.request, card.device
    need: Need = need_of(card, request)
    if request.whole:
        mode = GrantMode.WHOLE
    elif template or device.vendor_cut:
        mode = GrantMode.VENDOR
    else:
        mode = GrantMode.SHARE
    return Grant(
        container="",
        type=device.type,
        minor=device.minor,
        uuid=device.uuid,
        core_milli=need.core_milli,
        memory_bytes=need.memory_bytes,
        mode=mode,
        protocol=group.protocol,
        extras=need.extras,
        exclusive=request.exclusive,
        sharers=request.sharers,
        function=function,
        template=template,
        fence=request.scope_exclusive,
    )


def _again(parts: Sequence[Grant], container: ContainerAsk) -> list[Grant]:
    """The same devices for a container that runs at another time: they count no second slot."""
    return [replace(p, container=container.name, phase=container.phase, slots=0) for p in parts]


def _pour(parts: Sequence[Grant], containers: Sequence[ContainerAsk]) -> list[Grant]:
    """Share out the devices among containers in order; rounding is left with the last."""
    if len(containers) == 1:
        only = containers[0]
        return [replace(p, container=only.name, phase=only.phase) for p in parts]
    result: list[Grant] = []
    weights = [_weight(container, parts) for container in containers]
    total = sum(weights)
    bounds = [sum(weights[: i + 1]) for i in range(len(weights))]
    for position, part in enumerate(parts):
        begin, end = position * total, (position + 1) * total
        core, memory, slots = part.core_milli, part.memory_bytes, part.slots
        low = 0
        for container, bound in zip(containers, bounds, strict=True):
            left, right = max(low * len(parts), begin), min(bound * len(parts), end)
            low = bound
            if right <= left:
                continue
            last = right == end
            share_core = core if last else part.core_milli * (right - left) // total
            share_memory = memory if last else part.memory_bytes * (right - left) // total
            core, memory = core - share_core, memory - share_memory
            result.append(
                replace(
                    part,
                    container=container.name,
                    phase=container.phase,
                    core_milli=share_core,
                    memory_bytes=share_memory,
                    slots=slots,
                    extras=part.extras if slots else (),
                )
            )
            slots = 0
    return result


def _weight(container: ContainerAsk, parts: Sequence[Grant]) -> int:
    """How much of the group a container asked, on one scale for all its containers."""
    if container.core_milli:
        return container.core_milli
    if container.memory_milli:
        return container.memory_milli
    memory = max((p.memory_bytes for p in parts), default=0)
    return max(1, container.memory_bytes * MILLI // memory if memory else 1)
