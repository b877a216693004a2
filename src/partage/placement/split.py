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
        result += _among(parts, group.containers)
    return tuple(result)


def _among(parts: Sequence[Grant], containers: Sequence[ContainerAsk]) -> list[Grant]:
    """The devices of one group shared out among its containers.

    Sidecars get their part for good; what is left serves the others: the main containers together
    or one init container at a time.
    """
    sidecars = [c for c in containers if c.phase is Phase.SIDECAR]
    mains = [c for c in containers if c.phase is Phase.MAIN]
    initial = [c for c in containers if c.phase is Phase.INIT]
    main = sum(_weight(c, parts) for c in mains)
    rest = max([main, *(_weight(c, parts) for c in initial)])
    claims = [(c, _weight(c, parts) * max(main, 1)) for c in sidecars]
    claims += [(c, _weight(c, parts) * rest) for c in mains] or [(c, rest) for c in initial[:1]]
    result = [grant for grant in _pour(parts, claims) if grant.phase is not Phase.INIT]
    lasting = [grant for grant in result if grant.phase is Phase.SIDECAR]
    for container in initial:
        left = [part for part in (_left(part, lasting) for part in parts) if part is not None]
        first = not mains and container is initial[0]
        result += [
            replace(
                part,
                container=container.name,
                phase=container.phase,
                slots=part.slots if first else 0,
            )
            for part in left
        ]
    return result


def _left(part: Grant, lasting: Sequence[Grant]) -> Grant | None:
    """What sidecars leave of a device; None when that is nothing of what it was taken for."""
    beside = [grant for grant in lasting if grant.minor == part.minor]
    if not beside:
        return part
    core = part.core_milli - sum(grant.core_milli for grant in beside)
    memory = part.memory_bytes - sum(grant.memory_bytes for grant in beside)
    if core <= 0 and memory <= 0:
        return None
    return replace(part, core_milli=core, memory_bytes=memory, extras=(), slots=0)


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


def _pour(parts: Sequence[Grant], claims: Sequence[tuple[ContainerAsk, int]]) -> list[Grant]:
    """Share out the devices by weight, in the order of containers; rounding is left with the last.

    A device's slot and native units go with the first container on it.
    """
    if len(claims) == 1:
        only = claims[0][0]
        return [replace(p, container=only.name, phase=only.phase) for p in parts]
    result: list[Grant] = []
    total = sum(weight for _, weight in claims)
    for position, part in enumerate(parts):
        begin, end = position * total, (position + 1) * total
        core, memory, slots = part.core_milli, part.memory_bytes, part.slots
        bound = 0
        for container, weight in claims:
            low, bound = bound, bound + weight
            left, right = max(low * len(parts), begin), min(bound * len(parts), end)
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
