"""The library that evaluates CEL, with Kubernetes' functions and a count of its steps; an extra, imported on demand.

An expression of the wrong kind gives a text with the reason; nothing here raises.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import celpy
from celpy.celparser import CELParseError
from celpy.celtypes import BoolType, DoubleType, IntType, ListType, MapType, StringType
from celpy.evaluation import CELEvalError, Evaluator

from partage.model.errors import InvalidQuantity
from partage.model.quantity import NANO, Quantity
from partage.wire.device_view import DeviceView, Failure, Version

_TEXT: Final = 64
"""Characters that count as one step."""
_MOST_TOLD: Final = 200


class _TooDear(Exception):
    """An evaluation took more steps than allowed."""


class _NoAnswer(ValueError):
    """A function of this module has no answer; the library keeps the text beside one of its own."""


class _Counted(Evaluator):
    """Counts its steps."""

    def __init__(self, ast: Any, activation: Any, left: list[int]) -> None:
        super().__init__(ast, activation)
        self.left = left

    def sub_evaluator(self, ast: Any) -> Evaluator:
        return _Counted(ast, self.activation, self.left)

    def visit_children(self, tree: Any) -> list[Any]:
        if self.left[0] <= 0:
            raise _TooDear
        found: list[Any] = super().visit_children(tree)
        self.left[0] -= 1 + sum(_weight(one, self.left[0]) for one in found)
        if self.left[0] <= 0:
            raise _TooDear
        return found


class _Domains(MapType):
    """Domains by name; a missing one is empty, as for Kubernetes."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if key in self else MapType({})


def compiled(expression: str) -> Any:
    """The program for `evaluated`; a text gives the reason why it cannot be read."""
    try:
        return _ENVIRONMENT.program(_ENVIRONMENT.compile(expression), functions=_FUNCTIONS)
    except CELParseError as error:
        return f"it cannot be read, line {error.line}, column {error.column}"
    except (RecursionError, ValueError):
        return "it cannot be read"


def evaluated(program: Any, device: DeviceView, most: int) -> tuple[bool | str, int]:
    """The answer for a device, or the reason for none, and the steps taken."""
    left = [most]
    known = {
        "driver": _value(device.driver),
        "attributes": _domains(device.attributes),
        "capacity": _domains(device.capacity),
        "allowMultipleAllocations": _value(device.shared),
    }
    view = MapType({StringType(name): part for name, part in known.items()})
    answer: Any = None
    try:
        answer = _Counted(program.ast, program.new_activation(), left).evaluate({"device": view})
    except _TooDear:
        return "not judged: it takes too much work", most
    except RecursionError:
        return "not judged: it is nested too deeply", most
    except CELEvalError as error:
        return _told(error), most - left[0]
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        return str(error)[:_MOST_TOLD], most - left[0]
    taken = most - left[0]
    if not isinstance(answer, BoolType | bool):
        return "it is neither true nor false", taken
    return bool(answer), taken


def _told(error: CELEvalError) -> str:
    """The reason; a `Failure`, unless the library may lack what Kubernetes has."""
    text, kind, cause = (*error.args, None, None, None)[:3]
    told = str(cause[0] if kind is _NoAnswer and cause else text).partition(" (in activation")[0]
    absent = kind is KeyError and told.startswith("no such")
    fails = absent or kind in (_NoAnswer, ValueError, IndexError, ZeroDivisionError)
    return (Failure if fails else str)(told[:_MOST_TOLD])


def _value(given: Any) -> Any:
    if isinstance(given, bool):
        return BoolType(given)
    if isinstance(given, int):
        return IntType(given)
    if isinstance(given, str):
        return StringType(given)
    if isinstance(given, list | tuple):
        return ListType([_value(one) for one in given])
    return given


def _domains(parts: Mapping[str, Mapping[str, Any]]) -> Any:
    return _Domains(
        {
            StringType(domain): MapType({StringType(k): _value(v) for k, v in inner.items()})
            for domain, inner in parts.items()
        }
    )


def _weight(value: Any, most: int) -> int:
    """The size of a value, counted up to `most`; repeated parts count again."""
    if isinstance(value, str | bytes):
        return len(value) // _TEXT
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    else:
        return 0
    total = 0
    for one in parts:
        total += 1 + _weight(one, most - total)
        if total >= most:
            break
    return total


# --- Kubernetes' functions ----------------------------------------------------------------------


def _quantity(text: Any) -> Quantity:
    try:
        return Quantity.parse(str(text))
    except InvalidQuantity as error:
        raise _NoAnswer(str(error)) from error


def _semver(text: Any) -> Version:
    found = Version.parse(str(text))
    if found is None:
        raise _NoAnswer(f"{str(text)[:_TEXT]} is no semantic version")
    return found


def _reads(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def asked(text: Any) -> Any:
        try:
            parse(text)
        except ValueError:
            return BoolType(False)
        return BoolType(True)

    return asked


def _integer(one: Quantity) -> IntType:
    if not one.integral:
        raise _NoAnswer(f"{one} is no whole number")
    return IntType(one.floor())


def _compare(one: Any, other: Any) -> int:
    if type(one) is not type(other) or not isinstance(one, Quantity | Version):
        raise _NoAnswer("two quantities or two versions can be compared, nothing else")
    if isinstance(one, Quantity):
        return int(one.nano > other.nano) - int(one.nano < other.nano)
    return int(one > other) - int(one < other)


def _added(sign: int) -> Callable[[Quantity, Any], Quantity]:
    def sum_of(one: Quantity, other: Any) -> Quantity:
        nano = other.nano if isinstance(other, Quantity) else int(other) * NANO
        return Quantity(one.nano + sign * nano, one.format)

    return sum_of


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "quantity": _quantity,
    "isQuantity": _reads(_quantity),
    "semver": _semver,
    "isSemver": _reads(_semver),
    "compareTo": lambda one, other: IntType(_compare(one, other)),
    "isGreaterThan": lambda one, other: BoolType(_compare(one, other) > 0),
    "isLessThan": lambda one, other: BoolType(_compare(one, other) < 0),
    "asInteger": _integer,
    "isInteger": lambda one: BoolType(one.integral),
    "asApproximateFloat": lambda one: DoubleType(one.nano / NANO),
    "sign": lambda one: IntType((one.nano > 0) - (one.nano < 0)),
    "add": _added(1),
    "sub": _added(-1),
    "major": lambda one: IntType(one.numbers[0]),
    "minor": lambda one: IntType(one.numbers[1]),
    "patch": lambda one: IntType(one.numbers[2]),
    "lowerAscii": lambda text: StringType(text.lower()),
    "upperAscii": lambda text: StringType(text.upper()),
    "trim": lambda text: StringType(text.strip()),
    "includes": lambda many, one: BoolType(one in many if isinstance(many, list) else many == one),
}
_ENVIRONMENT: Final = celpy.Environment()
