"""Functions of CEL's extensions that device selectors may use, and values that may be absent.

Kubernetes' environment for selectors has more (URLs, addresses, formats, images, loops over two variables): an
expression with one of those is not judged. Texts are bounded before they are made, because a text of a few thousand
characters can ask for one that grows with each step.

Source: Kubernetes `k8s.io/apiserver/pkg/cel/environment` (which libraries, since which release) and
`k8s.io/dynamic-resource-allocation/cel`, equal for these from v1.34 to v1.37; the documentation of cel-go's extensions.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import re2
from celpy.celtypes import BoolType, IntType, ListType, MapType, StringType

_LONGEST: Final = 1 << 16
"""Characters of a text that a function makes."""
_EMPTY: Final = StringType("")
_LOWER: Final = str.maketrans({chr(one): chr(one + 32) for one in range(65, 91)})
_UPPER: Final = str.maketrans({chr(one + 32): chr(one) for one in range(65, 91)})
_TOKEN: Final = re.compile(
    r"""//[^\n]*
    |[bB]?(?P<raw>[rR])?(?:(?P<many>\"{3}|'{3})(?:\\.|[^\\])*?(?P=many)|(?P<one>\"(?!\"\")|'(?!''))(?:\\[^\n]|[^\\\n])*?(?P=one))
    |(?P<endless>[\"'])
    |\.\s*\?\s*(?P<name>[A-Za-z_]\w*)
    |\[\s*(?P<maybe>\?)?
    |[\](){}]
    |\s+|\w+|.""",
    re.VERBOSE | re.DOTALL,
)
_SELECT: Final = "partage_optional"
_PAIRS: Final = {"(": ")", "{": "}"}


class TooDear(Exception):
    """An evaluation took more steps than allowed."""


class NoAnswer(ValueError):
    """A function of this module has no answer; the library keeps the text beside one of its own."""


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent."""

    present: bool = False
    value: Any = None


def without_optionals(expression: str) -> str:
    """The same expression for a parser that does not know `a.?b` and `a[?b]`: both become calls of a function.

    Raises `ValueError`: a text has no end, for which the parser would search in exponential time; or a raw text has a
    backslash before a quote, which the parser takes for an escape.
    """
    found: list[str] = []
    closing: list[str] = []
    before = ""
    for token in _TOKEN.finditer(expression):
        text = token[0]
        if token["endless"] or (token["raw"] and re.search(r"""\\["']""", text)):
            raise ValueError("a text that the parser cannot read")
        if token["name"]:
            text = f'.{_SELECT}("{token["name"]}")'
        elif text[0] == "[":
            index = token["maybe"] and (before[-1:].isalnum() or before[-1:] in tuple("_)]}\"'"))
            closing.append(")" if index else "]")
            text = f".{_SELECT}(" if index else text
        elif text in _PAIRS:
            closing.append(_PAIRS[text])
        elif text in ")}]" and closing:
            text = closing.pop() if text == "]" else (closing.pop(), text)[1]
        found.append(text)
        before = before if text.isspace() else token[0]
    return "".join(found)


def selected(one: Any, key: Any) -> Optional:
    """A part of a map, a list or an optional of these."""
    if isinstance(one, Optional):
        return selected(one.value, key) if one.present else one
    if isinstance(one, ListType):
        there = isinstance(key, IntType) and 0 <= key < len(one)
        return Optional(True, one[key]) if there else Optional()
    if not isinstance(one, MapType):
        raise TypeError(f"{type(one).__name__} has no parts")
    try:
        return Optional(True, one[key])
    except KeyError:
        return Optional()


def _value(one: Any) -> Any:
    if not one.present:
        raise NoAnswer("optional.none() has no value")
    return one.value


def _either(value: bool, one: Any, other: Any) -> Any:  # noqa: FBT001 # which of two functions
    if not isinstance(one, Optional) or isinstance(other, Optional) is value:
        raise TypeError("no optional")
    return (one.value if value else one) if one.present else other


def _bounded(characters: int) -> None:
    if characters > _LONGEST:
        raise TooDear


def _within(at: int, most: int) -> int:
    if not 0 <= at <= most:
        raise NoAnswer(f"index {at} is not in 0 to {most}")
    return at


def _text(*given: Any) -> None:
    if not all(isinstance(one, StringType) for one in given):
        raise TypeError("no text")


def _char_at(text: Any, at: Any) -> StringType:
    _text(text)
    return StringType(text[_within(at, len(text)) :][:1])


def _index_of(one: Any, part: Any, at: Any = 0) -> IntType:
    if isinstance(one, ListType):
        return IntType(next((i for i, value in enumerate(one) if value == part), -1))
    _text(one, part)
    return IntType(one.find(part, _within(at, len(one))))


def _last_index_of(one: Any, part: Any, at: Any = None) -> IntType:
    if isinstance(one, ListType):
        found = (i for i in reversed(range(len(one))) if one[i] == part)
        return IntType(next(found, -1))
    _text(one, part)
    end = len(one) if at is None else _within(at, len(one)) + len(part)
    return IntType(one.rfind(part, 0, end))


def _join(texts: Any, between: Any = _EMPTY) -> StringType:
    _text(between, *texts)
    _bounded(sum(map(len, texts)) + len(between) * len(texts))
    return StringType(between.join(texts))


def _replace(text: Any, old: Any, new: Any, most: Any = -1) -> StringType:
    _text(text, old, new)
    _bounded(len(text) + text.count(old) * len(new))
    return StringType(text.replace(old, new, int(most)))


def _split(text: Any, between: Any, most: Any = -1) -> ListType:
    _text(text, between)
    if most == 0:
        return ListType()
    cuts = -1 if most < 0 else int(most) - 1
    if between:
        parts = text.split(between, cuts)
    elif cuts < 0 or cuts >= len(text):
        parts = list(text)
    else:
        parts = [*text[:cuts], text[cuts:]]
    return ListType([StringType(part) for part in parts])


def _substring(text: Any, start: Any, end: Any = None) -> StringType:
    _text(text)
    last = _within(len(text) if end is None else end, len(text))
    return StringType(text[_within(start, last) : last])


def _find_all(text: Any, pattern: Any, most: Any = -1) -> ListType:
    _text(text, pattern)
    try:
        found = re2.compile(pattern).finditer(text)
    except re2.error as error:
        raise NoAnswer(f"{str(pattern)[:64]} is no pattern") from error
    every = [StringType(match[0]) for match in found]
    return ListType(every if most < 0 else every[: int(most)])


def _find(text: Any, pattern: Any) -> StringType:
    found = _find_all(text, pattern)
    return StringType(str(found[0])) if found else _EMPTY


def _sum(many: Any) -> Any:
    if not isinstance(many, ListType):
        raise TypeError("no list")
    total: Any = IntType(0) if not many else many[0]
    for one in many[1:]:
        total = total + one
    return total


def _greatest(many: Any) -> Any:
    if not many:
        raise NoAnswer("max of no values")
    return max(many)


SETS: Final[dict[str, Callable[[Any, Any], BoolType]]] = {
    "contains": lambda many, part: BoolType(all(one in many for one in part)),
    "intersects": lambda many, other: BoolType(any(one in many for one in other)),
    "equivalent": lambda many, other: BoolType(
        all(one in many for one in other) and all(one in other for one in many)
    ),
}
FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    _SELECT: selected,
    "hasValue": lambda one: BoolType(one.present),
    "value": _value,
    "or": lambda one, other: _either(False, one, other),
    "orValue": lambda one, other: _either(True, one, other),
    "lowerAscii": lambda text: StringType(text.translate(_LOWER)),
    "upperAscii": lambda text: StringType(text.translate(_UPPER)),
    "trim": lambda text: StringType(text.strip()),
    "charAt": _char_at,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "join": _join,
    "replace": _replace,
    "split": _split,
    "substring": _substring,
    "find": _find,
    "findAll": _find_all,
    "sum": _sum,
    "max": _greatest,
    "isSorted": lambda many: BoolType(all(not two < one for one, two in pairwise(many))),
}
