"""Fields of a manifest that its kind does not have, each with the nearest existing one.

Kubernetes' own tables list the fields. Kinds that they lack, and fields that may contain
anything, are not checked.
"""

import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from partage.wire.field_types import Type, catalogue

_DEEPEST: Final = 100
_GROUPS: Final = (
    {"Job": "batch", "PriorityClass": "scheduling"}
    | dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet"), "apps")
    | dict.fromkeys(
        ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice"), "resource"
    )
)
"""API groups for manifests without an apiVersion; other kinds are the core's."""


def misspelt(kind: str, value: Any, most: int) -> list[str]:
    """Notes on unknown fields."""
    if not isinstance(value, Mapping):
        return []
    group, _slash, version = str(value.get("apiVersion") or "v1").rpartition("/")
    package = group.partition(".")[0] or _GROUPS.get(kind, "core")
    shape = catalogue().get(f"io.k8s.api.{package}.{version}.{kind}")
    return list(islice(_unknown(value, shape, "", 0), most)) if shape else []


def _unknown(value: Any, shape: Type, where: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        return
    if isinstance(value, list) and shape.form == "list" and shape.item:
        for index, item in enumerate(value):
            yield from _unknown(item, shape.item, f"{where}[{index}]", depth + 1)
    elif isinstance(value, Mapping) and shape.form == "map" and shape.item:
        for name, inner in value.items():
            yield from _unknown(inner, shape.item, f"{where}.{name}", depth + 1)
    elif isinstance(value, Mapping) and shape.form == "struct" and not shape.open:
        for name, inner in value.items():
            field = shape.fields.get(name)
            path = f"{where}.{name}".removeprefix(".")
            if field is not None:
                yield from _unknown(inner, field.type, path, depth + 1)
                continue
            near = difflib.get_close_matches(str(name), shape.fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield f"field {path} is not known and does nothing{hint}"
