"""HAMi's two configurations: `device-config.yaml`, section `nvidia`, and `config.json`.

Numbers may be written as texts, because charts quote them. Both generations of MIG tables are
read: `knownMigGeometries` (to 2.9) and `migProfileAllowlist` (from 2.10).

Source: the HAMi document; docs/sources/hami.md 2.1 to 2.4.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from partage.model.errors import UNREADABLE, InvalidValue
from partage.vendors.settings import HamiNodeSettings, HamiSettings, MigGeometry
from partage.wire.documents import explain
from partage.wire.yaml_values import TEMPLATE

_MODES: Final = ("", "hami-core", "mig", "either")
_MIG_RECORDS: Final = ("suffix", "allocations")
_PROFILE: Final = re.compile(r"[0-9]+g\..+")
_RESOURCE: Final = re.compile(
    r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-._A-Za-z0-9]*[A-Za-z0-9])?"
)
_MOST: Final = 2**31 - 1
_LONGEST: Final = 64
"""Characters of a field that messages repeat."""
_PLUGINS_OWN: Final = (
    "migstrategy",
    "preconfigureddevicememory",
    "libcudaloglevel",
    "enablenumatopology",
    "enablegetpreferredallocation",
)
"""Fields of an entry that HAMi's own plugin alone reads."""
_Shape = TypeVar("_Shape")


class _Instance(msgspec.Struct, frozen=True):
    name: str
    memory: int
    count: int


class _Group(msgspec.Struct, frozen=True):
    geometries: list[_Instance]


class _Geometry(msgspec.Struct, frozen=True, rename="camel"):
    models: list[str]
    allowed_geometries: list[list[_Instance] | _Group]


class _Allowed(msgspec.Struct, frozen=True):
    models: list[str]
    profiles: list[str]


class _Nvidia(msgspec.Struct, frozen=True):
    count: str | None = msgspec.field(default=None, name="resourceCountName")
    memory: str | None = msgspec.field(default=None, name="resourceMemoryName")
    percentage: str | None = msgspec.field(default=None, name="resourceMemoryPercentageName")
    cores: str | None = msgspec.field(default=None, name="resourceCoreName")
    priority: str | None = msgspec.field(default=None, name="resourcePriorityName")
    default_memory: int | None = msgspec.field(default=None, name="defaultMemory")
    default_cores: int | None = msgspec.field(default=None, name="defaultCores")
    default_count: int | None = msgspec.field(default=None, name="defaultGPUNum")
    factor: int | None = msgspec.field(default=None, name="memoryFactor")
    split: int | None = msgspec.field(default=None, name="deviceSplitCount")
    memory_scaling: float | None = msgspec.field(default=None, name="deviceMemoryScaling")
    core_scaling: float | None = msgspec.field(default=None, name="deviceCoreScaling")
    no_core_limit: bool | None = msgspec.field(default=None, name="disableCoreLimit")
    geometries: list[_Geometry] | None = msgspec.field(default=None, name="knownMigGeometries")
    allowlist: list[_Allowed] | None = msgspec.field(default=None, name="migProfileAllowlist")
    mig_record: str | None = msgspec.field(default=None, name="migRecord")


class _DeviceConfig(msgspec.Struct, frozen=True):
    nvidia: _Nvidia | None = None


class _Filter(msgspec.Struct, frozen=True):
    uuid: list[str] | None = None
    index: list[int] | None = None


class _NodeEntry(msgspec.Struct, frozen=True):
    name: str
    mode: str | None = msgspec.field(default=None, name="operatingmode")
    memory_scaling: float | None = msgspec.field(default=None, name="devicememoryscaling")
    core_scaling: float | None = msgspec.field(default=None, name="devicecorescaling")
    split: int | None = msgspec.field(default=None, name="devicesplitcount")
    hidden: _Filter | None = msgspec.field(default=None, name="filterdevices")


class _NodeConfig(msgspec.Struct, frozen=True):
    nodes: list[_NodeEntry] | None = msgspec.field(default=None, name="nodeconfig")


def device_config(value: Any, known: HamiSettings) -> HamiSettings:
    """The settings of a `device-config.yaml`; unnamed fields keep their published defaults.

    `known`: the current settings; only those of single nodes are kept. Raises `InvalidValue`: a field breaks its rule;
    the message names both.
    """
    given = convert(value, _DeviceConfig | None, strict=False) or _DeviceConfig()
    nvidia = given.nvidia or _Nvidia()
    default = HamiSettings()
    percentage = default.percentage_name
    settings = HamiSettings(
        count_name=_resource("resourceCountName", nvidia.count, default.count_name),
        memory_name=_resource("resourceMemoryName", nvidia.memory, default.memory_name),
        percentage_name=_resource("resourceMemoryPercentageName", nvidia.percentage, percentage),
        cores_name=_resource("resourceCoreName", nvidia.cores, default.cores_name),
        priority_name=_resource("resourcePriorityName", nvidia.priority, default.priority_name),
        default_memory=_number("nvidia.defaultMemory", nvidia.default_memory, 0, 0),
        default_cores=_number("nvidia.defaultCores", nvidia.default_cores, 0, 0, 100),
        default_count=_number("nvidia.defaultGPUNum", nvidia.default_count, 1, 0),
        memory_factor=_number("nvidia.memoryFactor", nvidia.factor, 1, 1),
        split_count=_number("nvidia.deviceSplitCount", nvidia.split, default.split_count, 1),
        memory_scaling=_scaling("nvidia.deviceMemoryScaling", nvidia.memory_scaling) or 1.0,
        core_scaling=_scaling("nvidia.deviceCoreScaling", nvidia.core_scaling) or 1.0,
        disable_core_limit=bool(nvidia.no_core_limit),
        geometries=_geometries(nvidia.geometries or []),
        mig_allowlist=_allowlist(nvidia.allowlist or []),
        mig_record=_mig_record(nvidia.mig_record),
        nodes=known.nodes,
    )
    if not settings.count_name:
        raise InvalidValue("field nvidia.resourceCountName: must not be empty")
    for name in settings.resources:
        if settings.resources.count(name) > 1:  # every request would be ambiguous
            raise InvalidValue(f"field nvidia: {name!r} is the name of two resources")
    return settings


def node_config(text: str, known: HamiSettings) -> HamiSettings:
    """The settings with those of single nodes from `config.json`. Raises `InvalidValue`: not JSON, or a broken rule."""
    return replace(known, nodes={one.name: one for one in node_entries(text)})


def node_entries(text: str) -> tuple[HamiNodeSettings, ...]:
    """The entries of a `config.json`, as written. Raises `InvalidValue`: not JSON, or a broken rule."""
    document = _decoded(text, _NodeConfig)
    entries = []
    for index, entry in enumerate(document.nodes or ()):
        field = f"nodeconfig[{index}]"
        if (entry.mode or "") not in _MODES:
            known = ", ".join(_MODES[1:])
            raise InvalidValue(
                f"field {field}.operatingmode: {entry.mode!r} is not one of {known}"
            )
        hidden = entry.hidden or _Filter()
        split = entry.split
        if split is not None:
            _number(f"{field}.devicesplitcount", split, 1, 1)
        entries.append(
            HamiNodeSettings(
                name=entry.name,
                operating_mode=entry.mode or "",
                memory_scaling=_scaling(f"{field}.devicememoryscaling", entry.memory_scaling),
                core_scaling=_scaling(f"{field}.devicecorescaling", entry.core_scaling),
                split_count=split,
                filter_uuids=tuple(hidden.uuid or ()),
                filter_indexes=tuple(hidden.index or ()),
            )
        )
    return tuple(entries)


def unknown_fields(text: str) -> Iterator[tuple[str, str]]:
    """Fields of a `config.json` that mean nothing, each with the known name that is most alike, or empty.

    Raises `InvalidValue`: not JSON, or a broken rule.
    """
    node_entries(text)  # from here on every part has its form
    document = _decoded(text, dict[str, Any])
    yield from _unknown("", document, _NodeConfig)
    for index, entry in enumerate(document.get("nodeconfig") or ()):
        yield from _unknown(f"nodeconfig[{index}].", entry, _NodeEntry, _PLUGINS_OWN)
        hidden = entry.get("filterdevices") or {}
        yield from _unknown(f"nodeconfig[{index}].filterdevices.", hidden, _Filter)


def _unknown(
    where: str, given: Mapping[str, Any], shape: type[msgspec.Struct], others: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    known = [field.encode_name for field in msgspec.structs.fields(shape)]
    for key in given:
        if key not in known and key not in others:
            near = difflib.get_close_matches(key[:_LONGEST], known, n=1)
            yield f"{where}{key[:_LONGEST]}", f"{where}{near[0]}" if near else ""


def _decoded(text: str, shape: type[_Shape]) -> _Shape:
    try:
        written = msgspec.json.decode(text.encode())
        return msgspec.convert(_folded(written), shape, strict=False)
    except UNREADABLE as error:
        raise InvalidValue(explain(error)) from error


def _folded(value: Any) -> Any:
    """The value with its keys in lower case, because HAMi's Go code accepts keys in any case."""
    if isinstance(value, list):
        return [_folded(one) for one in value]
    if isinstance(value, dict):
        return {str(key).lower(): _folded(one) for key, one in value.items()}
    return value


def convert(value: Any, shape: Any, *, strict: bool = True) -> Any:
    """The value in its shape; numbers and booleans may be quoted unless `strict`. Raises `InvalidValue`."""
    try:
        return msgspec.convert(value, shape, strict=strict)
    except UNREADABLE as error:
        raise InvalidValue(explain(error)) from error


def _resource(field: str, name: str | None, default: str) -> str:
    if name is None:
        return default
    if TEMPLATE in name:
        raise InvalidValue(f"field nvidia.{field}: {name!r} is a template's placeholder")
    if name and not _RESOURCE.fullmatch(name):
        raise InvalidValue(f"field nvidia.{field}: {name!r} is not a resource name")
    return name


def _number(field: str, value: int | None, default: int, least: int, most: int = _MOST) -> int:
    if value is None:
        return default
    if not least <= value <= most:
        raise InvalidValue(f"field {field}: {value} is not from {least} to {most}")
    return value


def _scaling(field: str, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and 0 < value <= 1000):
        raise InvalidValue(f"field {field}: {value} is not above 0 and at most 1000")
    return value


def _geometries(given: list[_Geometry]) -> tuple[MigGeometry, ...]:
    result = []
    for index, entry in enumerate(given):
        field = f"nvidia.knownMigGeometries[{index}]"
        _require_names(f"{field}.models", entry.models)
        layouts = []
        for place, layout in enumerate(entry.allowed_geometries):
            instances = layout.geometries if isinstance(layout, _Group) else layout
            where = f"{field}.allowedGeometries[{place}]"
            if not instances:
                raise InvalidValue(f"field {where}: empty")
            layouts.append(tuple(_instance(where, instance) for instance in instances))
        result.append(MigGeometry(tuple(entry.models), tuple(layouts)))
    return tuple(result)


def _instance(field: str, instance: _Instance) -> tuple[str, int, int]:
    _require_profile(field, instance.name)
    memory = _number(f"{field}.{instance.name}.memory", instance.memory, 0, 1)
    return instance.name, memory, _number(f"{field}.{instance.name}.count", instance.count, 0, 1)


def _mig_record(given: str | None) -> str:
    if given not in (None, *_MIG_RECORDS):
        raise InvalidValue(
            f"field nvidia.migRecord: {given!r} is not one of {', '.join(_MIG_RECORDS)}"
        )
    return given or _MIG_RECORDS[0]


def _allowlist(given: list[_Allowed]) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    for index, entry in enumerate(given):
        field = f"nvidia.migProfileAllowlist[{index}]"
        _require_names(f"{field}.models", entry.models)
        _require_names(f"{field}.profiles", entry.profiles)
        for profile in entry.profiles:
            _require_profile(f"{field}.profiles", profile)
    return tuple((tuple(entry.models), tuple(entry.profiles)) for entry in given)


def _require_profile(field: str, name: str) -> None:
    if not _PROFILE.fullmatch(name):
        raise InvalidValue(f"field {field}: {name!r} is not a profile such as 1g.10gb")


def _require_names(field: str, names: list[str]) -> None:
    if not names or not all(names):
        raise InvalidValue(f"field {field}: at least one name is required, and none may be empty")
