"""Visits the structs of an object, by the names of their types."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from partage.wire.field_types import Type

Act = Callable[[str, dict[str, Any], str], None]
"""Gets a struct's name without its package, the struct and its path."""


def visit(value: Any, type_: Type, names: frozenset[str], act: Act, where: str = "") -> None:
    """Acts on every struct of these names in an object; on an outer one before those within."""
    if type_.form == "struct":
        if isinstance(value, dict):
            own, ways = _plan(type_, names)
            if own:
                act(own, value, where)
            for name, of in ways:
                inner = value.get(name)
                if inner is not None:
                    visit(inner, of, names, act, f"{where}.{name}" if where else name)
    elif isinstance(value, list) and type_.item is not None:
        for index, inner in enumerate(value):
            visit(inner, type_.item, names, act, f"{where}[{index}]")


@lru_cache(maxsize=4096)
def _plan(type_: Type, names: frozenset[str]) -> tuple[str, Sequence[tuple[str, Type]]]:
    """A struct's name if it is one of these, and its fields with such structs within; most have none."""
    own = type_.name.rpartition(".")[2]
    ways = [(one.name, one.type) for one in type_.fields.values() if _has(one.type, names)]
    return own if own in names else "", ways


def _has(type_: Type, names: frozenset[str]) -> bool:
    """Whether any part of a type is such a struct."""
    seen: set[int] = set()
    todo = [type_]
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            if one.name.rpartition(".")[2] in names:
                return True
            todo += [field.type for field in one.fields.values()]
            todo += [one.item] if one.item is not None and one.form == "list" else []
    return False
