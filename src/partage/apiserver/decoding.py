"""Decodes bodies into checked plain objects.

Decoding follows a kind's `Type`. It rejects values of a wrong type, drops and reports unknown fields, and
converts quantities and zero values to the forms that the genuine server stores.
"""

import base64
import binascii
import re
from functools import lru_cache
from typing import Any, Final

import msgspec

from partage.apiserver.status import bad_request
from partage.model.errors import UNREADABLE, InvalidQuantity
from partage.model.quantity import Quantity
from partage.wire.field_types import Field, Type
from partage.wire.json_values import keys_given_twice
from partage.wire.yaml_values import Repeated, YamlError, yaml_values

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
    "quantity": "resource.Quantity",
    "intorstring": "intstr.IntOrString",
}
_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9+/\r\n]")
_GIVEN: Final = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool",
    list: "slice",
    dict: "map",
}
_JSON: Final = {
    str: "string",
    int: "number",
    float: "number",
    bool: "bool",
    list: "array",
    dict: "object",
}
_NUMBERS: Final = ("int64", "float64", "int32")
_RANGES: Final = {"int": 2**31, "long": 2**63}
_DEEPEST: Final = 200
_ZERO: Final[tuple[Any, ...]] = ("", 0, False, [], {})


class Mismatch(ValueError):
    """A value of a type that its field cannot hold; the message is the genuine server's.

    `converting`: the message for a value from a strategic merge patch.
    """

    def __init__(self, message: str, converting: str = "") -> None:
        super().__init__(message)
        self.converting = converting or message


def parse(body: bytes, *, yaml: bool = False, twice: list[str] | None = None) -> Any:
    """A JSON or YAML body as plain values.

    `twice`: receives messages about duplicate keys of an object; the last one counts. Raises `ApiError`: 400, not JSON
    (nor YAML if allowed), or nested too deeply.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        if yaml:
            return _yaml(body, twice)
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error
    except ValueError as error:
        raise bad_request(f"json parse error: {error}") from error
    _shallow(value)
    if twice is not None:
        twice += [f'duplicate field "{path}"' for path in keys_given_twice(body)]
    return value


def _yaml(body: bytes, twice: list[str] | None) -> Any:
    repeated: list[Repeated] = []
    try:
        documents = yaml_values(body, repeated)
    except YamlError as error:
        raise bad_request(f"error converting YAML to JSON: {error}") from error
    if len(documents) != 1:
        raise bad_request(f"the body holds {len(documents)} YAML documents, expected one")
    value = documents[0]
    _shallow(value)
    if twice is not None:
        twice += [f'line {one.line}: key "{one.key}" already set in map' for one in repeated]
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, *UNREADABLE) as error:
        raise bad_request(f"error converting YAML to JSON: {error}") from error


def _shallow(value: Any) -> None:
    """Rejects a value nested so deeply that walking it would exhaust the stack."""
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
    """`value` as `type_` stores it, in new containers. Raises `Mismatch`: a value of a wrong type.

    `unknown`: receives the paths of fields that the shape lacks; they are dropped. `root`: the innermost struct around
    `value`, for messages.
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
                else conform(inner, item, unknown, _entry(where, key, item), root)
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
        return _scalar(value, type_, where, root)
    raise _mismatch(value, type_, where, root)


def _entry(where: str, key: str, item: Type) -> str:
    """The path of a map's value; messages about plain values name only the map."""
    return f"{where}.{key}" if item.form in ("struct", "map", "list", "quantity") else where


def _struct(value: Any, type_: Type, unknown: list[str], where: str, root: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _mismatch(value, type_, where, root)
    fields = type_.fields
    root = type_.name.rpartition(".")[2] or root
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
    """The meaning of null in a list or map: the zero value."""
    return {"struct": {}, "map": {}, "list": [], "string": "", "bool": False, "any": None}.get(
        item.form, "0" if item.form == "quantity" else "" if item.form == "bytes" else 0
    )


def _scalar(value: Any, type_: Type, where: str, root: str) -> Any:
    form = type_.form
    if form == "bool" and isinstance(value, bool):
        return value
    if form in _RANGES:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
            value = int(value)
        if type(value) is int and -_RANGES[form] <= value < _RANGES[form]:
            return value
    elif form == "quantity":
        return _quantity(value, type_, where, root)
    elif form == "intorstring":
        if isinstance(value, str) or (type(value) is int and abs(value) < 2**31):
            return value
    elif form == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    elif form == "bytes" and isinstance(value, str):
        return _base64(value)
    elif form in ("time", "microtime") and isinstance(value, str):
        if _TIME.fullmatch(value):
            return value
        raise Mismatch(
            f'parsing time "{value[:64]}" as "2006-01-02T15:04:05Z07:00": cannot parse ({where})'
        )
    raise _mismatch(value, type_, where, root)


def _base64(text: str) -> str:
    try:
        base64.b64decode(text.replace("\r", "").replace("\n", "").encode(), validate=True)
    except (binascii.Error, ValueError) as error:
        odd = _NOT_BASE64.search(text)
        at = odd.start() if odd else len(text) - len(text) % 4
        raise Mismatch(f"illegal base64 data at input byte {at}") from error
    return text


def _quantity(value: Any, type_: Type, where: str, root: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _mismatch(value, type_, where, root)
    try:
        return quantity_text(value)
    except InvalidQuantity as error:
        raise Mismatch(
            "quantities must match the regular expression "
            f"'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$' ({where}: {error})"
        ) from error


@lru_cache(maxsize=8192, typed=True)
def quantity_text(value: str | float) -> str:
    """A quantity in its canonical text: `0.5` becomes `500m`. Raises `InvalidQuantity`."""
    return str(Quantity.parse(value))


def _go(type_: Type) -> str:
    """A type's name in Go's messages."""
    if type_.form == "list" and type_.item:
        return f"[]{_go(type_.item)}"
    if type_.form == "map" and type_.item:
        named = type_.item.form == "quantity"
        return "v1.ResourceList" if named else f"map[string]{_go(type_.item)}"
    if type_.form == "struct":
        return f"v1.{type_.name.rpartition('.')[2]}"
    return _GO.get(type_.form, type_.form)


def kind_of(value: Any) -> str:
    """The name of a value's JSON type in messages."""
    return _JSON.get(type(value), "null")


def _mismatch(value: Any, type_: Type, where: str, root: str) -> Mismatch:
    place = re.sub(r"\[\d+\]", "", where)
    if type(value) in (int, float) and type_.form in _RANGES:
        shown = f"number {value}"
    else:
        shown = kind_of(value)
    given = _GIVEN.get(type(value), "interface")
    if given in _NUMBERS and _go(type_) in ("string", *_NUMBERS):
        converting = f"cannot convert {given} to {_go(type_)}"
    else:
        converting = {
            "list": f"cannot restore slice from {given}",
            "map": f"cannot restore map from {given}",
            "struct": f"cannot restore struct from: {given}",
        }.get(type_.form, f"unrecognized type: {_go(type_)}")
    return Mismatch(
        f"json: cannot unmarshal {shown} into Go struct field {root}.{place} of type {_go(type_)}",
        converting,
    )


def go_text(value: Any) -> str:
    """A plain value as Go prints it with `%v`."""
    if isinstance(value, dict):
        inner = " ".join(f"{key}:{go_text(value[key])}" for key in sorted(value))
        return f"map[{inner}]"
    if isinstance(value, list):
        return f"[{' '.join(map(go_text, value))}]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)
