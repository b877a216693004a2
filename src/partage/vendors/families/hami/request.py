"""A pod's requests with HAMi's names: one for each container.

Each container is read on its own, in the published order of defaults: count, memory, percentage, cores. Upstream
quietly drops a request that it cannot read, so the pod would run without a device or wait without a reason. Here it
waits with a message that names the container, the resource, the value and the rule.

Source: docs/sources/hami.md 1.1 to 1.4 and 4.6; the HAMi document for the names.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Final

from partage.model.device import MILLI, DeviceType, SliceMode
from partage.model.policy import Scoring
from partage.model.reason import ReasonCode
from partage.model.request import (
    ContainerAsk,
    DeviceRequest,
    Fault,
    Phase,
    RequestGroup,
    Scope,
    at_most,
)
from partage.vendors.base import ContainerView, PodView, Reading
from partage.vendors.families.hami.wishes import Wishes, read_wishes
from partage.vendors.settings import HamiSettings, Settings

NAME: Final = "hami"
MIB: Final = 1 << 20
_INT32: Final = 2**31 - 1
_SHARED_COUNT_NAME: Final = HamiSettings().count_name
"""The stock count name, which Koordinator's users also write, as percent."""
_QUOTA: Final = "limits."
_SCORING: Final = Scoring(sharers=True)
"""HAMi adds the used parts of sharers, compute and memory, of cards and of nodes (docs/sources/hami.md 4.3)."""


@dataclass(frozen=True, slots=True)
class _Amounts:
    """One container's amounts of each device: percent of compute, MiB or percent of memory.

    One of the two memories is set; both 0 cannot happen. `said`: names that the container itself has; the rest are
    defaults.
    """

    count: int
    cores: int
    memory_mib: int
    percentage: int
    said: frozenset[str] = frozenset()


class _Broken(Exception):
    """A rule that a container breaks; it becomes a `Fault` inside this module."""


def owned(settings: Settings) -> frozenset[str]:
    """The five resource names, as the operator renamed them."""
    return frozenset(settings.hami.resources)


def sharers(settings: Settings) -> int:
    """The most tenants of an unregistered card: the global split count or a node's greater one.

    A node with a smaller count has it in its cards' slots; a card registered with a greater count is marked so
    (`Device.registrar`).
    """
    hami = settings.hami
    counts = [node.split_count for node in hami.nodes.values() if node.split_count is not None]
    return max(1, hami.split_count, *counts)


def read(pod: PodView, containers: tuple[ContainerView, ...], settings: Settings) -> Reading:
    """One group for each container that asks for devices, with the pod's wishes applied.

    Amounts: memory in MiB times the memory factor, compute and percentage in percent. A broken rule becomes the
    reading's fault; the function never raises.
    """
    wishes = read_wishes(pod.annotations)
    groups: list[RequestGroup] = []
    asked: list[tuple[Phase, _Amounts]] = []
    notes: list[str] = []
    fault: Fault | None = None
    for container in containers:
        try:
            amounts = _amounts(container, settings.hami, notes)
        except _Broken as broken:
            fault = fault or Fault(f"container {container.name}: {broken}")
            continue
        if amounts is not None:
            groups.append(_group(container, amounts, wishes, settings))
            asked.append((container.phase, amounts))
    if not groups and fault is None:
        return Reading(notes=tuple(notes))
    return Reading(
        groups=tuple(sorted(groups, key=lambda group: group.phase is Phase.INIT)),
        node_strategy=wishes.node_strategy,
        card_order=wishes.card_order,
        scoring=_SCORING,
        fault=fault or wishes.fault,
        notes=(*notes, *wishes.notes),
        quota=_quota(asked, settings.hami),
    )


def priority_of(container: ContainerView, hami: HamiSettings) -> int | None:
    """The task priority that a container asks for (0 is high), if it is an integer."""
    value = container.ask(hami.priority_name)
    return value.floor() if value is not None and value.integral else None


def percentage_of(container: ContainerView, hami: HamiSettings) -> int:
    """Percent of a card's memory that a container asks of each card; 0 if it asks in MiB.

    Also 0 for a container that asks for no device, or that breaks a rule.
    """
    try:
        amounts = _amounts(container, hami, [])
    except _Broken:
        return 0
    return amounts.percentage if amounts is not None else 0


def _amounts(container: ContainerView, hami: HamiSettings, notes: list[str]) -> _Amounts | None:
    """The published computation for one container; None if it asks for no device."""
    said = frozenset(name for name in hami.amounts if container.ask(name) is not None)
    count = _count(container, hami, said, notes)
    factor = max(1, hami.memory_factor)
    most = _INT32 // factor
    unit = "MiB" if factor == 1 else f"units of {factor} MiB"
    rule = f"must be a plain whole number of {unit} from 0 to {most}, without a size suffix"
    memory = (_whole(container, hami.memory_name, rule, 0, most) or 0) * factor
    rule = "must be a whole number between 0 and 100"
    percentage = _whole(container, hami.percentage_name, rule, 0, 100) or 0
    rule = "must be a whole number of percent from 0"
    cores = _whole(container, hami.cores_name, rule, 0)
    if cores is not None and cores > 100:
        asked = container.ask(hami.cores_name)
        notes.append(f"container {container.name}: {hami.cores_name}: {asked} counts as 100")
        cores = 100
    _whole(container, hami.priority_name, "must be a whole number")
    if count is None:
        return None
    # The names written decide: `gpumem: 0` is all memory without a claim to compute.
    by_part = hami.percentage_name in said
    exclusive = percentage == 100 if by_part else hami.memory_name not in said
    if cores is None:
        cores = 100 if exclusive else min(hami.default_cores, 100)
    if not memory and not percentage:
        memory = max(0, hami.default_memory)
        percentage = 0 if memory else 100
    return _Amounts(count, cores, memory, 0 if memory else percentage, said)


def _count(
    container: ContainerView, hami: HamiSettings, named: Collection[str], notes: list[str]
) -> int | None:
    """Number of devices asked; None for none. The stock name alone, times 100, is percent of cards."""
    value = container.ask(hami.count_name)
    if value is None:
        if named and hami.default_count < 1:
            first = next(name for name in hami.amounts if name in named)
            notes.append(
                f"container {container.name}: {first} without {hami.count_name} asks for "
                "nothing, because the default count is 0"
            )
        return hami.default_count if named and hami.default_count >= 1 else None
    if value.nano == 0 and not named:
        return None
    rule = "must be a whole number of devices from 1 to 2^31-1"
    count = _whole(container, hami.count_name, rule, 1, _INT32) or 0
    alone = not named and container.ask(hami.priority_name) is None
    if alone and hami.count_name == _SHARED_COUNT_NAME and count % 100 == 0:
        notes.append(
            f"container {container.name}: {hami.count_name}: {count} alone is read as percent, "
            f"{count // 100} whole cards"
        )
        return count // 100
    return count


def _whole(
    container: ContainerView, name: str, rule: str, least: float = -inf, most: float = inf
) -> int | None:
    """The container's amount of a resource; None if it is not written. Raises `_Broken`: against its rule."""
    value = container.ask(name)
    if value is None:
        return None
    if not value.integral or not least <= value.floor() <= most:
        raise _Broken(f"{name}: {value} {rule}")
    return value.floor()


def _group(
    container: ContainerView, amounts: _Amounts, wishes: Wishes, settings: Settings
) -> RequestGroup:
    modes = wishes.filter.modes
    all_ = amounts.cores == amounts.percentage == 100
    alone = amounts.cores == 100 and not all_
    bound = wishes.numa_bind and amounts.count > 1
    core, memory = _least(amounts, wishes, settings.hami)
    metered: tuple[tuple[str, str, int], ...] = ()
    if not amounts.memory_mib and (name := settings.hami.memory_name):
        # The quota counts memory asked as a share only after a card is chosen.
        metered = ((_QUOTA + name, "memory", MIB * max(1, settings.hami.memory_factor)),)
    request = DeviceRequest(
        type=DeviceType.GPU,
        count=amounts.count,
        core_milli=core * MILLI // 100,
        memory_bytes=amounts.memory_mib * MIB * memory,
        memory_milli=amounts.percentage * 10 * memory,
        whole=all_ and modes != (SliceMode.MIG,),
        unused=alone or wishes.unused,
        exclusive=alone,
        claims_core=amounts.cores == 0,
        sharers=sharers(settings),
        registrar=NAME,
        filter=wishes.filter,
        scope=Scope.NUMA if bound else None,
        scope_code=ReasonCode.NUMA_MISMATCH if bound else ReasonCode.TOPOLOGY_SCOPE,
        instances=not modes or SliceMode.MIG in modes,
        profile=wishes.profile,
    )
    return RequestGroup(
        protocol=NAME,
        request=request,
        containers=(ContainerAsk(container.name, container.phase),),
        phase=container.phase,
        metered=metered,
    )


def _least(amounts: _Amounts, wishes: Wishes, hami: HamiSettings) -> tuple[int, int]:
    """The least percent of compute asked, and whether memory is asked (1 or 0).

    A profile already determines the amounts: defaults, which mean the whole card, add nothing.
    """
    if not wishes.profile:
        return amounts.cores, 1
    return (
        amounts.cores if hami.cores_name in amounts.said else 0,
        int(bool(amounts.said & {hami.memory_name, hami.percentage_name})),
    )


def _quota(asked: list[tuple[Phase, _Amounts]], hami: HamiSettings) -> dict[str, int]:
    """Amounts known before placement, by quota key, in the units of the resources."""
    factor = max(1, hami.memory_factor)
    totals = at_most(
        (
            phase,
            {
                hami.memory_name: -(-one.memory_mib // factor) * one.count,
                hami.cores_name: one.cores * one.count,
            },
        )
        for phase, one in asked
    )
    return {_QUOTA + name: total for name, total in totals.items() if name and total}
