"""From a pod's fields to its request: Koordinator's half of reading.

One group a device type, for all containers of the pod together (the Koordinator document; docs/sources/koordinator.md 2
and 3). Percent become thousandths, bytes stay bytes, and nothing is rounded in the requester's favour.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from partage.model.device import MILLI, DeviceType
from partage.model.errors import InvalidValue
from partage.model.policy import Scoring
from partage.model.quantity import NANO
from partage.model.reason import ReasonCode
from partage.model.request import (
    CardFilter,
    ContainerAsk,
    DeviceRequest,
    Fault,
    Joint,
    LabelRule,
    Phase,
    RequestGroup,
    Scope,
    at_most,
)
from partage.vendors import names
from partage.vendors.base import ContainerView, PodView, Reading
from partage.vendors.families.koordinator.amounts import (
    ALIASES,
    COUNTS,
    NAMES,
    PERCENT_OF,
    Asked,
    Part,
    gather,
)
from partage.vendors.families.koordinator.hints import Hint, Hints, hints_of
from partage.vendors.families.koordinator.rules import CardShape, percentage, shape_of
from partage.vendors.families.koordinator.templates import tables, template_equal
from partage.vendors.settings import Settings

PROTOCOL: Final = "koordinator"

_PERCENT: Final = MILLI // 100  # thousandths of one percent
_WHOLE: Final = 100
_MIB: Final = 2**20
_SCORING: Final = Scoring(topology=True)
"""The topology tree puts a share beside cards in use before it compares scores (docs/sources/koordinator.md 3.5)."""
_OTHERS: Final[Mapping[str, str]] = {
    names.GANG_NAME: "a gang",
    names.POD_GROUP: "a gang",
    names.QUOTA_NAME: "a quota tree",
    names.RESERVATION_AFFINITY: "a reservation",
}
_OWNED: Final = frozenset(ALIASES).union(*NAMES.values())


@dataclass(frozen=True, slots=True)
class _Ask:
    """A request, and the weight of a container's part of it."""

    request: DeviceRequest
    part: Callable[[Part], ContainerAsk]


def owned(_settings: Settings) -> frozenset[str]:
    """Every resource name that Koordinator's scheduler reads, in both dialects."""
    return _OWNED


def read(pod: PodView, containers: tuple[ContainerView, ...], settings: Settings) -> Reading:
    """The containers' joint request; a broken rule is the reading's fault, never an error."""
    try:
        asked = gather(containers)
        if not asked.totals:
            return Reading()
        return _reading(pod, asked, settings)
    except InvalidValue as error:
        return Reading(fault=Fault(str(error)))


def _reading(pod: PodView, asked: Asked, settings: Settings) -> Reading:
    hints = hints_of(pod.annotations)
    asks: dict[DeviceType, _Ask] = {}
    shape = None
    if asked.of(DeviceType.GPU):
        shape = shape_of(asked.of(DeviceType.GPU), asked.written)
        if _templated(shape) and not any(
            template_equal(table, shape.extras, shape.memory)
            for table in tables(settings.koordinator).values()
        ):
            why = "no matched GPU shared resource template"
            return Reading(fault=Fault(why, ReasonCode.TEMPLATE_MISMATCH))
        asks[DeviceType.GPU] = _gpu(shape, hints)
    for kind, name in PERCENT_OF.items():
        if asked.of(kind):
            asks[kind] = _plain(kind, name, asked, hints)
    gpu = asks.get(DeviceType.GPU)
    return Reading(
        groups=tuple(_group(kind, ask, asked) for kind, ask in asks.items()),
        joint=_joint(hints, asks),
        partition=hints.partition if gpu and gpu.request.whole else None,
        node_labels=_isolation(pod.labels) if shape and shape.shared else (),
        scoring=_SCORING,
        notes=tuple(
            chain(
                asked.notes, _tiny(shape, asked), hints.notes, _unfenced(hints, asks), _others(pod)
            )
        ),
    )


def _tiny(shape: CardShape | None, asked: Asked) -> Iterator[str]:
    """A very small amount of memory, probably meant in another protocol's unit."""
    if shape is not None and 0 < shape.memory < _MIB:
        yield (
            f"{asked.written[names.KOORD_GPU_MEMORY]}: {shape.memory} bytes a card; its unit is the byte, so write a "
            "suffix, such as Gi"
        )


def _unfenced(hints: Hints, asks: Mapping[DeviceType, _Ask]) -> Iterator[str]:
    """The shares that close no other devices although their pod's hint asks for it.

    Otherwise a pod with one percent of a card would close all cards of its switch to other tenants.
    """
    for kind, ask in asks.items():
        if not ask.request.whole and hints.by_type.get(kind, Hint()).exclusive is not None:
            yield (
                f"annotation {names.DEVICE_ALLOCATE_HINT}: exclusivePolicy does nothing for a share; ask for a whole "
                f"{kind} device"
            )


def _others(pod: PodView) -> Iterator[str]:
    """The pod's requests to plugins of Koordinator's scheduler that have no counterpart here."""
    for key, what in _OTHERS.items():
        for kind, texts in (("annotation", pod.annotations), ("label", pod.labels)):
            if key in texts:
                yield f"{kind} {key}: {what} of Koordinator's scheduler; Partage places the pod without it"


def _group(kind: DeviceType, ask: _Ask, asked: Asked) -> RequestGroup:
    parts = [part for part in asked.parts if not part.nano.keys().isdisjoint(NAMES[kind])]
    running = any(part.phase is not Phase.INIT for part in parts)
    together = at_most((part.phase, {kind: 1}) for part in parts)[kind]
    return RequestGroup(
        protocol=PROTOCOL,
        request=replace(ask.request, beside=together - 1),
        containers=tuple(ask.part(part) for part in parts),
        phase=Phase.MAIN if running else Phase.INIT,
        dialect=asked.dialect,
    )


def _templated(shape: CardShape) -> bool:
    return shape.shared and any(unit == names.NPU_CORE for unit, _amount in shape.extras)


def _gpu(shape: CardShape, hints: Hints) -> _Ask:
    hint = hints.by_type.get(DeviceType.GPU, Hint())
    scope, code = _scope(hint, hints)
    whole = shape.ratio == _WHOLE and shape.core in (0, _WHOLE)
    request = DeviceRequest(
        type=DeviceType.GPU,
        count=shape.count,
        core_milli=shape.core * _PERCENT,
        memory_bytes=shape.memory,
        memory_milli=shape.ratio * _PERCENT,
        whole=whole,
        extras=shape.extras,
        core_unit=names.NPU_CORE if shape.extras else "",
        templated=_templated(shape),
        filter=CardFilter(vendors=shape.vendors, selector=hint.selector, functions=hint.functions),
        scope=scope,
        scope_code=code,
        scope_exclusive=hint.exclusive if whole else None,
    )
    return _Ask(request, _gpu_part)


def _gpu_part(part: Part) -> ContainerAsk:
    def units(name: str, size: int) -> int:
        return -(-part.nano.get(name, 0) * size // NANO)

    cards = sum(units(n, MILLI) for n in COUNTS)
    cards += units(names.KOORD_GPU, _PERCENT)
    return ContainerAsk(
        name=part.container,
        phase=part.phase,
        core_milli=cards + units(names.KOORD_GPU_CORE, _PERCENT),
        memory_bytes=units(names.KOORD_GPU_MEMORY, 1),
        memory_milli=cards + units(names.KOORD_GPU_MEMORY_RATIO, _PERCENT),
    )


def _plain(kind: DeviceType, name: str, asked: Asked, hints: Hints) -> _Ask:
    """A request for RDMA or FPGA devices: percent of one, whole ones, or according to the hint."""
    value = asked.totals[name].ceil()
    if not percentage(value):
        raise InvalidValue(
            f"invalid resource unit {asked.written[name]}: {asked.totals[name]}"
            " (a percentage must be at most 100 or a multiple of 100)"
        )
    hint = hints.by_type.get(kind, Hint())
    count, each, every = 1, value, False
    if value > _WHOLE:
        count, each = value // _WHOLE, _WHOLE
    elif hint.as_count:
        count, each = value, _WHOLE if hint.exclusive is Scope.DEVICE else 1
    elif hint.every:
        every = True
    scope, code = _scope(hint, hints)
    request = DeviceRequest(
        type=kind,
        count=count,
        core_milli=each * _PERCENT,
        whole=each == _WHOLE,
        every=every,
        filter=CardFilter(selector=hint.selector, functions=hint.functions),
        scope=None if every else scope,
        scope_code=code,
        scope_exclusive=hint.exclusive if each == _WHOLE else None,
    )
    total = count * each * _PERCENT

    def part_of(part: Part) -> ContainerAsk:
        mine = -(-part.nano.get(name, 0) * total // (value * NANO))
        return ContainerAsk(part.container, part.phase, core_milli=mine)

    return _Ask(request, part_of)


def _scope(hint: Hint, hints: Hints) -> tuple[Scope | None, ReasonCode]:
    """The closer of the hint's scope and the NUMA wish, and the code if it cannot be met."""
    if hints.single_numa:
        return max(hint.scope or Scope.NUMA, Scope.NUMA), ReasonCode.NUMA_MISMATCH
    return hint.scope, ReasonCode.TOPOLOGY_SCOPE


def _joint(hints: Hints, asks: Mapping[DeviceType, _Ask]) -> Joint | None:
    """Joint allocation of the types that the pod asks for; one type alone is not joint.

    A type with the strategy ApplyForAll is not joint, however its number is decided.
    """
    types = tuple(
        DeviceType(name)
        for name in hints.joint
        if name in asks and not hints.by_type.get(DeviceType(name), Hint()).every
    )
    return Joint(types, hints.same_pcie) if len(types) > 1 else None


def _isolation(labels: Mapping[str, str]) -> tuple[LabelRule, ...]:
    key = names.GPU_ISOLATION_PROVIDER
    provider = labels.get(key, "")
    if not provider:
        return ()
    why = f"GPUIsolationProviderHAMICore not found on the node (label {key} must be {provider})"
    return (LabelRule(key, provider, ReasonCode.ISOLATION_PROVIDER, why),)
