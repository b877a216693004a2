"""The library that evaluates CEL, with Kubernetes' functions and a count of its steps; an extra, imported on demand.

An expression of the wrong kind gives a text with the reason; nothing here raises.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import celpy
from celpy.celparser import CELParseError
from celpy.celtypes import BoolType, DoubleType, IntType, ListType, MapType, StringType
from celpy.evaluation import CELEvalError, Evaluator, base_functions

from partage.model.errors import InvalidQuantity
from partage.model.quantity import NANO, Quantity
from partage.wire import cel_functions as functions
from partage.wire.cel_functions import NoAnswer, Optional, TooDear
from partage.wire.device_view import DeviceView, Failure, Version

_TEXT: Final = 64
"""Characters that count as one step."""
_MOST_TOLD: Final = 200
_DECIDES: Final = {"conditionalor": True, "conditionaland": False}
"""The left side with which the right side of `||` and `&&` changes nothing."""


class _Counted(Evaluator):
    """Counts its steps, and leaves out a right side of `||` or `&&` that changes nothing, as Kubernetes does."""

    def __init__(self, ast: Any, activation: Any, left: list[int]) -> None:
        super().__init__(ast, activation)
        self.left = left

    def sub_evaluator(self, ast: Any) -> Evaluator:
        return _Counted(ast, self.activation, self.left)

    def visit_children(self, tree: Any) -> list[Any]:
        if self.left[0] <= 0:
            raise TooDear
        found: list[Any] = (
            self._sides(tree)
            if tree.data in _DECIDES and len(tree.children) > 1
            else super().visit_children(tree)
        )
        self._takes(1 + sum(_weight(one, self.left[0]) for one in found))
        return found

    def _sides(self, tree: Any) -> list[Any]:
        left = self.visit(tree.children[0])
        decided = isinstance(left, BoolType) and bool(left) is _DECIDES[tree.data]
        return [left, left if decided else self.visit(tree.children[1])]

    def _takes(self, steps: int) -> None:
        self.left[0] -= steps
        if self.left[0] <= 0:
            raise TooDear

    def member_dot(self, tree: Any) -> Any:
        found, name = self.visit(tree.children[0]), StringType(tree.children[1].value)
        if isinstance(found, CELEvalError):
            return found
        if isinstance(found, Optional):
            return functions.selected(found, name)
        if not isinstance(found, MapType):
            return CELEvalError(
                f"{type(found).__name__} has no fields", TypeError, None, tree=tree
            )
        try:
            return found[name]
        except KeyError:
            return CELEvalError(
                f"no such member in mapping: {str(name)!r}", KeyError, None, tree=tree
            )

    def macro_has_eval(self, exprlist: Any) -> Any:
        (found,) = self.visit_children(exprlist)
        return BoolType(
            found.present if isinstance(found, Optional) else not isinstance(found, CELEvalError)
        )

    def member_dot_arg(self, tree: Any) -> Any:
        """A call, also of the libraries that have a name of their own, and of macros that bind a name."""
        owner, name = _name(tree.children[0]), tree.children[1].value
        given = tree.children[2].children if len(tree.children) > 2 else []
        if (owner, name, len(given)) == ("cel", "bind", 3):
            return self._bound(given[0], self.visit(given[1]), given[2])
        if owner == "sets" and name in functions.SETS and len(given) == 2:
            return self._of_sets(functions.SETS[name], *map(self.visit, given))
        if owner == "optional" and name == "none" and not given:
            return Optional()
        if owner == "optional" and name == "of" and len(given) == 1:
            found = self.visit(given[0])
            return found if isinstance(found, CELEvalError) else Optional(True, found)
        if name in ("optMap", "optFlatMap") and len(given) == 2:
            return self._mapped(tree.children[0], *given, wrapped=name == "optMap")
        return super().member_dot_arg(tree)

    def _bound(self, name: Any, value: Any, body: Any) -> Any:
        """A body with a name for a value; an error is one only where the body uses it."""
        nested = self.sub_evaluator(body)
        return nested.set_activation({_name(name): value}).visit(body)

    def _of_sets(self, ask: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
        for part in (one, other):
            if isinstance(part, CELEvalError):
                return part
            if not isinstance(part, ListType):
                return CELEvalError("no such overload", TypeError, None)
        self._takes(2 * len(one) * len(other))
        return ask(one, other)

    def _mapped(self, owner: Any, name: Any, body: Any, *, wrapped: bool) -> Any:
        found = self.visit(owner)
        if not isinstance(found, Optional) or not found.present:
            return found
        answer = self._bound(name, found.value, body)
        return (
            Optional(True, answer) if wrapped and not isinstance(answer, CELEvalError) else answer
        )


def _name(tree: Any) -> str:
    """The identifier that an expression consists of; empty for any other."""
    while len(tree.children) == 1 and tree.data != "ident":
        (tree,) = tree.children
        if not hasattr(tree, "data"):
            return ""
    return str(tree.children[0].value) if tree.data == "ident" else ""


class _Domains(MapType):
    """Domains by name; a missing one is empty, as for Kubernetes."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if key in self else MapType({})


def compiled(expression: str) -> Any:
    """The program for `evaluated`; a text gives the reason why it cannot be read."""
    try:
        return _ENVIRONMENT.program(
            _ENVIRONMENT.compile(functions.without_optionals(expression)), functions=_FUNCTIONS
        )
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
        answer = counted(program, {"device": view}, left)
    except TooDear:
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


def counted(program: Any, known: Mapping[str, Any], left: list[int]) -> Any:
    """The value of a program for known values; the steps come off `left`.

    Raises:
        CELEvalError: the program has no value for them.
        TooDear: no step is left.
    """
    return _Counted(program.ast, program.new_activation(), left).evaluate(known)


def _told(error: CELEvalError) -> str:
    """The reason; a `Failure`, unless the library may lack what Kubernetes has."""
    text, kind, cause = (*error.args, None, None, None)[:3]
    told = str(cause[0] if kind is NoAnswer and cause else text).partition(" (in activation")[0]
    absent = kind is KeyError and told.startswith("no such")
    fails = absent or kind in (NoAnswer, ValueError, IndexError, ZeroDivisionError)
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
    if isinstance(value, Optional):
        return 1 + _weight(value.value, most)
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


def _quantity(text: Any) -> Quantity:
    try:
        return Quantity.parse(str(text))
    except InvalidQuantity as error:
        raise NoAnswer(str(error)) from error


def _semver(text: Any) -> Version:
    found = Version.parse(str(text))
    if found is None:
        raise NoAnswer(f"{str(text)[:_TEXT]} is no semantic version")
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
        raise NoAnswer(f"{one} is no whole number")
    return IntType(one.floor())


def _compare(one: Any, other: Any) -> int:
    if type(one) is not type(other) or not isinstance(one, Quantity | Version):
        raise NoAnswer("two quantities or two versions can be compared, nothing else")
    if isinstance(one, Quantity):
        return int(one.nano > other.nano) - int(one.nano < other.nano)
    return int(one > other) - int(one < other)


def _sum(one: Quantity, other: Any, sign: int) -> Quantity:
    nano = other.nano if isinstance(other, Quantity) else int(other) * NANO
    return Quantity(one.nano + sign * nano, one.format)


_ITEM: Final[Callable[[Any, Any], Any]] = base_functions["_[_]"]
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **functions.FUNCTIONS,
    "_[_]": lambda one, key: (
        functions.selected(one, key) if isinstance(one, Optional) else _ITEM(one, key)
    ),
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
    "add": lambda one, other: _sum(one, other, 1),
    "sub": lambda one, other: _sum(one, other, -1),
    "major": lambda one: IntType(one.numbers[0]),
    "minor": lambda one: IntType(one.numbers[1]),
    "patch": lambda one: IntType(one.numbers[2]),
    "includes": lambda many, one: BoolType(one in many if isinstance(many, list) else many == one),
}
_ENVIRONMENT: Final = celpy.Environment()
