"""The rules in a pod's annotations for the choice of its devices.

There are four annotations (docs/sources/koordinator.md 3.2): the allocate hint by device type, joint allocation, the
partition wish and the NUMA wish. Texts of refusal begin as upstream's do. Upstream silently ignores a value that it
does not know (a misspelt scope). Partage refuses it, because the pod would otherwise run with less than it asked for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from partage.model.device import DeviceType
from partage.model.errors import UNREADABLE, InvalidValue, meant
from partage.model.quantity import Quantity
from partage.model.request import PartitionAsk, Scope
from partage.model.selector import Operator, Requirement, Selector
from partage.vendors import names

_SCOPES: Final[Mapping[str, Scope]] = {
    "Device": Scope.DEVICE,
    "PCIe": Scope.PCIE,
    "NUMANode": Scope.NUMA,
    "Node": Scope.NODE,
}
_EXCLUSIVE: Final[Mapping[str, Scope]] = {"DeviceLevel": Scope.DEVICE, "PCIeLevel": Scope.PCIE}
_STRATEGIES: Final = ("ApplyForAll", "RequestsAsCount")
_SELECTORS: Final = ("selector", "vfSelector")
_OF_FUNCTIONS: Final = "VFSelector"
_POLICIES: Final = ("None", "BestEffort", "Restricted", "SingleNUMANode")

_MOST_CONDITIONS: Final = 8
"""The most conditions on virtual functions; each is tested on every group of them, of every network card of a node."""

_LONGEST: Final = 64
"""The most characters of a field's name that a note repeats."""
_MOST_TOLD: Final = 8
"""The most fields of one pod that notes name."""

_Document = TypeVar("_Document")


class _Expression(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: list[str] | None = None


class _LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_Expression] | None = None


class _Hint(msgspec.Struct, frozen=True):
    selector: _LabelSelector | None = None
    functions: _LabelSelector | None = msgspec.field(default=None, name="vfSelector")
    strategy: str | None = msgspec.field(default=None, name="allocateStrategy")
    scope: str | None = msgspec.field(default=None, name="requiredTopologyScope")
    exclusive: str | None = msgspec.field(default=None, name="exclusivePolicy")


class _Joint(msgspec.Struct, frozen=True):
    types: list[str] | None = msgspec.field(default=None, name="deviceTypes")
    scope: str | None = msgspec.field(default=None, name="requiredScope")


class _Partition(msgspec.Struct, frozen=True):
    policy: str | None = msgspec.field(default=None, name="allocatePolicy")
    bandwidth: str | int | float | None = msgspec.field(default=None, name="ringBusBandwidth")


class _Numa(msgspec.Struct, frozen=True):
    policy: str | None = msgspec.field(default=None, name="numaTopologyPolicy")
    exclusive: str | None = msgspec.field(default=None, name="singleNUMANodeExclusive")


_FIELDS: Final = {
    name.lower(): name
    for kind in (_Hint, _Joint, _Partition, _Numa, _LabelSelector, _Expression)
    for name in kind.__struct_encode_fields__
}
_KINDS: Final[Mapping[str, type[msgspec.Struct]]] = {
    names.DEVICE_ALLOCATE_HINT: _Hint,
    names.DEVICE_JOINT_ALLOCATE: _Joint,
    names.GPU_PARTITION_SPEC: _Partition,
    names.NUMA_TOPOLOGY_SPEC: _Numa,
}
HEEDED: Final = frozenset(_KINDS)
"""All annotations that this module reads."""


@dataclass(frozen=True, slots=True)
class Hint:
    """The hint of one device type.

    Attributes:
        selector: on the device's labels.
        functions: on the labels of a virtual function; None if none is asked.
        every: all matching devices, each with the amount asked.
        as_count: the amount is a number of devices.
        scope: how close together the devices must be.
        exclusive: the scope within which no other pod's devices may be in use.
    """

    selector: Selector | None = None
    functions: Selector | None = None
    every: bool = False
    as_count: bool = False
    scope: Scope | None = None
    exclusive: Scope | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """The contents of all annotations.

    Attributes:
        by_type: allocate hints.
        joint: device types to place together, primary first; empty if not asked.
        same_pcie: joint devices must share PCIe switches.
        partition: the wish for a partition; None if not asked.
        single_numa: all devices of a type on one NUMA node.
        notes: fields that were read but have no effect.
    """

    by_type: Mapping[DeviceType, Hint] = field(default_factory=dict)
    joint: tuple[str, ...] = ()
    same_pcie: bool = False
    partition: PartitionAsk | None = None
    single_numa: bool = False
    notes: tuple[str, ...] = ()


def hints_of(annotations: Mapping[str, str]) -> Hints:
    """Read the annotations. Raises `InvalidValue`: one is malformed; the message names it and the fault."""
    notes: list[str] = []
    by_type = _allocate(annotations.get(names.DEVICE_ALLOCATE_HINT), notes)
    joint, same_pcie = _joint(annotations.get(names.DEVICE_JOINT_ALLOCATE), notes)
    single_numa = _numa(annotations.get(names.NUMA_TOPOLOGY_SPEC), notes)
    return Hints(
        by_type=by_type,
        joint=joint,
        same_pcie=same_pcie,
        partition=_partition(annotations.get(names.GPU_PARTITION_SPEC)),
        single_numa=single_numa,
        notes=(*notes, *islice(_strays(annotations), _MOST_TOLD)),
    )


def decode(text: str, kind: type[_Document]) -> _Document:
    """A JSON text as a typed document. Raises `InvalidValue`: not JSON, of another type, or nested too deeply."""
    key: Any = kind
    try:
        document: _Document = _decoder(key).decode(text)
    except UNREADABLE as error:
        raise InvalidValue(str(error)) from error
    return document


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _read(what: str, text: str | None, kind: type[_Document], empty: _Document) -> _Document:
    """An annotation's document; no annotation and JSON's null count as an empty one, as in Go."""
    if text is None or text.strip() == "null":
        return empty
    try:
        return msgspec.convert(_folded(decode(text, object)), kind)
    except (InvalidValue, msgspec.ValidationError, RecursionError) as error:
        raise InvalidValue(f"invalid {what} annotation, err: {error}") from error


def _folded(value: Any) -> Any:
    """The value with the fields' names as spelled here: upstream is written in Go, which accepts any case."""
    if isinstance(value, list):
        return [_folded(one) for one in value]
    if not isinstance(value, dict):
        return value
    named = ((_FIELDS.get(key.lower(), key), one) for key, one in value.items())
    return {name: one if name == "matchLabels" else _folded(one) for name, one in named}


def _known(what: str, name: str, value: str | None, allowed: tuple[str, ...]) -> str:
    if value and value not in allowed:
        raise InvalidValue(
            f"invalid {what} annotation, err: {name} {value!r} is none of {', '.join(allowed)}"
        )
    return value or ""


def _allocate(text: str | None, notes: list[str]) -> dict[DeviceType, Hint]:
    document = _read("DeviceAllocateHint", text, dict[str, _Hint | None], {})
    strangers = (name for name in document if name not in tuple(DeviceType))
    notes += [_stranger(names.DEVICE_ALLOCATE_HINT, one) for one in islice(strangers, _MOST_TOLD)]
    return {
        DeviceType(name): _hint(name, hint)
        for name, hint in document.items()
        if hint is not None and name in tuple(DeviceType)
    }


def _stranger(key: str, name: str) -> str:
    return f"annotation {key}: no device type {name[:_LONGEST]!r}"


def _strays(annotations: Mapping[str, str]) -> Iterator[str]:
    """Unknown fields of the annotations: they have no effect, here as upstream."""
    for key, kind in _KINDS.items():
        given = _folded(msgspec.json.decode(annotations[key])) if key in annotations else None
        each = given.items() if kind is _Hint and given else [("", given)]
        for name, fields in each:
            yield from _unknown(key, name, fields, kind)


def _unknown(
    key: str, path: str, given: Mapping[str, Any] | None, kind: type[msgspec.Struct]
) -> Iterator[str]:
    known = kind.__struct_encode_fields__
    for name, value in (given or {}).items():
        place = f"{path}.{name}".removeprefix(".")
        if name not in known:
            hint = meant(name[:_LONGEST], known)
            yield f"annotation {key}: field {place[:_LONGEST]} is not known and does nothing{hint}"
        elif name in _SELECTORS:
            yield from _unknown(key, place, value, _LabelSelector)


def _hint(kind: str, hint: _Hint) -> Hint:
    what = "DeviceAllocateHint"
    strategy = _known(what, "allocateStrategy", hint.strategy, _STRATEGIES)
    scope = _known(what, "requiredTopologyScope", hint.scope, tuple(_SCOPES))
    exclusive = _known(what, "exclusivePolicy", hint.exclusive, tuple(_EXCLUSIVE))
    return Hint(
        selector=_selector("Selector", kind, hint.selector),
        functions=_selector(_OF_FUNCTIONS, kind, hint.functions),
        every=strategy == "ApplyForAll",
        as_count=strategy == "RequestsAsCount",
        scope=_SCOPES.get(scope),
        exclusive=_EXCLUSIVE.get(exclusive),
    )


def _selector(what: str, kind: str, selector: _LabelSelector | None) -> Selector | None:
    if selector is None:
        return None
    labels = sorted((selector.match_labels or {}).items())
    requirements = [Requirement(key, Operator.IN, (value,)) for key, value in labels]
    for expression in selector.match_expressions or ():
        problem = _problem(expression)
        if problem:
            raise _invalid_selector(what, kind, problem)
        values = tuple(expression.values or ())
        requirements.append(Requirement(expression.key, Operator(expression.operator), values))
    many = len(requirements)
    if what == _OF_FUNCTIONS and many > _MOST_CONDITIONS:
        raise _invalid_selector(what, kind, f"{many} conditions, {_MOST_CONDITIONS} at most")
    return Selector(tuple(requirements))


def _invalid_selector(what: str, kind: str, problem: str) -> InvalidValue:
    return InvalidValue(f"invalid {what} of DeviceHint, deviceType: {kind}, err: {problem}")


def _problem(expression: _Expression) -> str:
    about = f"operator {expression.operator} of key {expression.key!r}"
    if expression.operator in (Operator.IN, Operator.NOT_IN):
        return "" if expression.values else f"{about} needs values"
    if expression.operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        return f"{about} takes no values" if expression.values else ""
    return f"{expression.operator!r} is not a valid label selector operator"


def _joint(text: str | None, notes: list[str]) -> tuple[tuple[str, ...], bool]:
    document = _read("DeviceJointAllocate", text, _Joint, _Joint())
    scope = _known("DeviceJointAllocate", "requiredScope", document.scope, ("SamePCIe",))
    types = tuple(dict.fromkeys(document.types or ()))
    strangers = (one for one in types if one not in tuple(DeviceType))
    notes += [_stranger(names.DEVICE_JOINT_ALLOCATE, one) for one in islice(strangers, _MOST_TOLD)]
    return types, bool(scope)


def _partition(text: str | None) -> PartitionAsk | None:
    if text is None:
        return None
    what = "GPUPartitionSpec"
    document = _read(what, text, _Partition, _Partition())
    policy = _known(what, "allocatePolicy", document.policy, ("Restricted", "BestEffort"))
    bandwidth = None
    if document.bandwidth is not None:
        try:
            bandwidth = Quantity.parse(document.bandwidth).ceil()
        except InvalidValue as error:
            raise InvalidValue(
                f"invalid {what} annotation, err: ringBusBandwidth {error}"
            ) from error
    return PartitionAsk(restricted=policy == "Restricted", bandwidth=bandwidth)


def _numa(text: str | None, notes: list[str]) -> bool:
    what = "NUMATopologySpec"
    document = _read(what, text, _Numa, _Numa())
    policy = _known(what, "numaTopologyPolicy", document.policy, _POLICIES)
    if policy == "Restricted":
        notes.append("numaTopologyPolicy Restricted is honoured as a preference for devices")
    if document.exclusive:
        notes.append("singleNUMANodeExclusive concerns processors and is left to Kubernetes")
    return policy == "SingleNUMANode"
