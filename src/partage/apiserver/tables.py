"""Objects as `Table` documents, the form that `kubectl get` requests."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from partage.apiserver import jsonpath
from partage.apiserver.columns import AGE, COLUMNS, NAME, UNKNOWN, Column, age
from partage.apiserver.kinds import Kind
from partage.apiserver.negotiation import Form
from partage.apiserver.storage import Record

_encode: Final = msgspec.json.Encoder().encode
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
        shown = value if kind.definition is not None else record.value  # of every version alike
        row: dict[str, Any] = {"cells": [column.cell(shown, now) for column in columns]}
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


def formed(
    kind: Kind,
    record: Record,
    form: Form,
    now: float,
    include: str = "Metadata",
    *,
    headings: bool = True,
) -> bytes:
    """One object in the form that a client accepts; the other arguments are those of `table`."""
    if form.shape == "object":
        return record.text(kind.api_version, kind.outward)
    if form.shape == "partial":
        return _encode(partial(kind.outward(record.value), form.version))
    head = {"resourceVersion": record.metadata.get("resourceVersion", "")}
    return _encode(
        table(
            kind,
            [record],
            now,
            head=head,
            include=include,
            version=form.version,
            headings=headings,
        )
    )


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
        return COLUMNS.get(kind.resource, (NAME, AGE))
    extra = kind.definition.get("additionalPrinterColumns")
    if not extra:
        return (NAME, AGE)
    return (NAME, *(_custom(one) for one in extra))


def _custom(one: Mapping[str, Any]) -> Column:
    """A printer column of a definition."""
    path, kind = str(one.get("jsonPath", "")), one.get("type", "string")
    kind = kind if kind in _TYPES else "string"

    def cell(value: Mapping[str, Any], now: float) -> Any:
        found = jsonpath.find(value, path)
        if kind == "string":
            return None if found is None else _text(found)
        if kind == "date":
            shown = age(found, now) if isinstance(found, str) else None
            return "<invalid>" if shown == UNKNOWN else shown
        fits = {"boolean": (bool,), "integer": (int, float), "number": (int, float)}[kind]
        if not isinstance(found, fits) or (kind != "boolean" and isinstance(found, bool)):
            return None
        return int(found) if kind == "integer" else found

    return Column(
        str(one.get("name", "")),
        cell,
        kind,
        wide=bool(one.get("priority")),
        format=str(one.get("format", "")),
    )


def _text(found: Any) -> str:
    if isinstance(found, str):
        return found
    return msgspec.json.encode(found, order="sorted").decode()
