"""Objects as `Table` documents, the form that `kubectl get` requests."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from partage.apiserver import jsonpath
from partage.apiserver.columns import AGE, NAME, Column, age, columns_of
from partage.apiserver.kinds import Kind
from partage.apiserver.storage import Record

_TYPES: Final = ("boolean", "date", "integer", "number", "string")


def table(
    kind: Kind,
    records: Iterable[Record],
    now: float,
    *,
    head: Mapping[str, Any],
    include: str = "Metadata",
    version: str = "v1",
    headings: bool = True,
) -> dict[str, Any]:
    """A `Table` of objects.

    Args:
        now: seconds since 1970, for ages.
        head: its metadata, such as the resourceVersion of the list.
        include: content of each row's object: `Metadata`, `Object` or `None`.
        version: of meta.k8s.io.
        headings: whether to describe the columns; later events of a watch omit this.
    """
    columns = _columns(kind)
    rows = []
    for record in records:
        value = kind.outward(record.value)
        row: dict[str, Any] = {"cells": [column.cell(value, now) for column in columns]}
        if include == "Object":
            row["object"] = value
        elif include != "None":
            row["object"] = partial(value, version)
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": dict(head),
        "columnDefinitions": [_described(column) for column in columns] if headings else [],
        "rows": rows,
    }


def partial(value: Mapping[str, Any], version: str = "v1") -> dict[str, Any]:
    """Only an object's metadata."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": value["metadata"],
    }


def _described(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": "",
        "priority": 1 if column.wide else 0,
    }


def _columns(kind: Kind) -> tuple[Column, ...]:
    if kind.definition is None:
        return columns_of(kind.resource)
    extra = kind.definition.get("additionalPrinterColumns")
    if not extra:
        return (NAME, AGE)
    return (NAME, *(_custom(one) for one in extra))


def _custom(one: Mapping[str, Any]) -> Column:
    """A printer column of a definition."""
    path, kind = str(one.get("jsonPath", "")), one.get("type", "string")

    def cell(value: Mapping[str, Any], now: float) -> Any:
        found = jsonpath.find_all(value, path)
        if not found:
            return None
        if kind == "date":
            return age(found[0], now)
        if kind in ("integer", "number", "boolean"):
            return found[0]
        return _text(found)

    return Column(
        str(one.get("name", "")),
        cell,
        kind if kind in _TYPES and kind != "date" else "string",
        wide=bool(one.get("priority")),
        format=str(one.get("format", "")),
    )


def _text(found: list[Any]) -> str:
    return ",".join(str(one).lower() if isinstance(one, bool) else str(one) for one in found)
