"""Bodies in, checked plain objects out.

Decoding follows a kind's `Type`: values of a wrong type are refused, unknown fields are dropped
and reported, quantities and zero values become what the genuine server stores.
"""

import re
from functools import lru_cache
from typing import Any, Final

import msgspec

from partage.apiserver.status import bad_request
from partage.model.errors import InvalidQuantity
from partage.model.quantity import Quantity
from partage.wire.field_types import Field, Type
from partage.wire.yaml_values import YamlError, yaml_values

_TIME: Final = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?"
    r"(Z|[+-]\d\d:\d\d)"
)
_GO: Final = {
    "string": "string",
    "bytes": "[]uint8",
    "bool": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float64",
    "time": "time.Time",
    "microtime": "time.Time",
    "list": "slice",
    "map": "map",
    "struct": "struct",
    "quantity": "resource.Quantity",
    "intorstring": "intstr.IntOrString",
}
_RANGES: Final = {"int": 2**31, "long": 2**63}
_DEEPEST: Final = 200
_ZERO: Final[tuple[Any, ...]] = ("", 0, False, [], {})


class Mismatch(ValueError):
    """A value of a type that its field cannot hold; the message is the genuine server's."""


def parse(body: bytes, *, yaml: bool = False) -> Any:
    """A JSON or YAML body as plain values.

    Raises:
        ApiError: 400, not JSON (nor YAML where that is allowed), or nested too deeply.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        if yaml:
            return _yaml(body)
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error
    except ValueError as error:
        raise bad_request(f"json parse error: {error}") from error
    _shallow(value)
    return value


def _yaml(body: bytes) -> Any:
    try:
        documents = yaml_values(body)
    except YamlError as error:
        raise bad_request(f"error converting YAML to JSON: {error}") from error
    if len(documents) != 1:
        raise bad_request(f"the body holds {len(documents)} YAML documents, expected one")
    value = documents[0]
    _shallow(value)
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise bad_request(f"error converting YAML to JSON: {error}") from error


def _shallow(value: Any) -> None:
    """Refuses what is nested so deeply that walking it would exhaust the stack."""
    level = [value]
    for _depth in range(_DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (
                outer.values()
                if isinstance(outer, dict)
                else outer
                if isinstance(outer, list)
                else ()
            )
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise bad_request(f"the body is nested deeper than {_DEEPEST} levels")


def conform(value: Any, type_: Type, unknown: list[str], where: str = "", root: str = "") -> Any:
    """`value` as `type_` stores it, in new containers.

    Args:
        value: what was sent.
        type_: the shape it must have.
        unknown: receives the paths of fields that the shape lacks; they are dropped.
        where: the path of `value`.
        root: what messages call the outermost struct.

    Raises:
        Mismatch: a value of a wrong type.
    """
    form = type_.form
    if form == "struct":
        return _struct(value, type_, unknown, where, root)
    if form == "string":
        if type(value) is str:
            return value
    elif form == "map":
        if isinstance(value, dict):
            item = type_.item or type_
            return {
                key: _blank(item)
                if inner is None
                else conform(inner, item, unknown, f"{where}.{key}", root)
                for key, inner in value.items()
            }
    elif form == "list":
        if isinstance(value, list):
            item = type_.item or type_
            return [
                _blank(item)
                if inner is None
                else conform(inner, item, unknown, f"{where}[{index}]", root)
                for index, inner in enumerate(value)
            ]
    elif form == "any":
        return value
    else:
        return _scalar(value, form, where, root)
    raise _mismatch(value, form, where, root)


def _struct(value: Any, type_: Type, unknown: list[str], where: str, root: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _mismatch(value, "struct", where, root)
    fields = type_.fields
    prefix = f"{where}." if where else ""
    found: dict[str, Any] = {}
    for name, inner in value.items():
        field: Field | None = fields.get(name)
        if field is None:
            if type_.open:
                found[name] = inner
            else:
                unknown.append(prefix + name)
        elif inner is not None:
            inner = conform(inner, field.type, unknown, prefix + name, root)  # noqa: PLW2901 # the conformed value takes the place of the sent one
            if not (field.sparse and inner in _ZERO and field.type.form != "struct"):
                found[name] = inner
    return found


def _blank(item: Type) -> Any:
    """What null stands for inside a list or map: the zero value."""
    return {"struct": {}, "map": {}, "list": [], "string": "", "bool": False, "any": None}.get(
        item.form, "0" if item.form == "quantity" else "" if item.form == "bytes" else 0
    )


def _scalar(value: Any, form: str, where: str, root: str) -> Any:
    if form == "bool" and isinstance(value, bool):
        return value
    if form in _RANGES:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
            value = int(value)
        if type(value) is int and -_RANGES[form] <= value < _RANGES[form]:
            return value
    elif form == "quantity":
        return _quantity(value, where, root)
    elif form == "intorstring":
        if isinstance(value, str) or (type(value) is int and abs(value) < 2**31):
            return value
    elif (form == "float" and isinstance(value, (int, float)) and not isinstance(value, bool)) or (
        form == "bytes" and isinstance(value, str)
    ):
        return value
    elif form in ("time", "microtime") and isinstance(value, str):
        if _TIME.fullmatch(value):
            return value
        raise Mismatch(
            f'parsing time "{value[:64]}" as "2006-01-02T15:04:05Z07:00": cannot parse ({where})'
        )
    raise _mismatch(value, form, where, root)


def _quantity(value: Any, where: str, root: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _mismatch(value, "quantity", where, root)
    try:
        return quantity_text(value)
    except InvalidQuantity as error:
        raise Mismatch(
            "quantities must match the regular expression "
            f"'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$' ({where}: {error})"
        ) from error


@lru_cache(maxsize=8192, typed=True)
def quantity_text(value: str | float) -> str:
    """A quantity in its canonical text: `0.5` becomes `500m`.

    Raises:
        InvalidQuantity: not a quantity.
    """
    return str(Quantity.parse(value))


def _mismatch(value: Any, form: str, where: str, root: str) -> Mismatch:
    kind = (
        "bool"
        if isinstance(value, bool)
        else "number"
        if isinstance(value, (int, float))
        else "string"
        if isinstance(value, str)
        else "array"
        if isinstance(value, list)
        else "object"
        if isinstance(value, dict)
        else "null"
    )
    place = re.sub(r"\[\d+\]", "", where)
    return Mismatch(
        f"json: cannot unmarshal {kind} into Go struct field {root}.{place} "
        f"of type {_GO.get(form, form)}"
    )
