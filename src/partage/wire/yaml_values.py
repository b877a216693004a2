"""YAML text into plain values, as Kubernetes reads it, with guards.

Differences from PyYAML's own rules, for the meaning of manifests: dates stay texts (the MetaX document
prints the year 20256), and `0000:38:00.0`, a PCI address, is a text and no number to base 60.

The guards are needed because PyYAML's C parser recurses without a limit and aliases can multiply. They limit a
source's size, the depth of its nesting, and the number of values behind its aliases.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import yaml

from partage.model.errors import UNREADABLE

LONGEST: Final = 2**26
"""Bytes of YAML in one source; larger lists are read as JSON, which is much faster."""

DEEPEST: Final = 200
"""Levels of nesting; Kubernetes' own objects stay far below."""

LARGEST: Final = 2_000_000
"""Values of one document after its aliases are followed."""

_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
"""The first bytes of a text from PowerShell."""
MOST_NOTES: Final = 100
"""Notes on repeated keys of one source."""

LONGEST_NUMBER: Final = 64
"""Characters of a whole number that is read as a number."""

TEMPLATE: Final = "{{"
"""The start of a template's placeholder; a manifest with one was never rendered."""

_INTEGER: Final = re.compile(
    r"^(?:[-+]?0b[0-1_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0[0-7_]+)$"
)
_FLOAT: Final = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_TAG: Final = "tag:yaml.org,2002:"
_FAILURES: Final = (
    yaml.YAMLError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    *UNREADABLE,
)
"""PyYAML's errors for malformed input; its constructors let plain Python errors through."""

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Repeated(NamedTuple):
    """A key that a mapping has twice, and the line, from 1, of the second."""

    line: int
    key: str

    def __str__(self) -> str:
        return f"line {self.line}: key {self.key!r} is given twice; the last holds"


class YamlError(ValueError):
    """The text is not YAML that Partage reads."""


class _Loader(_Base):  # type: ignore[misc] # the C loader exists only where libyaml does
    """The safe loader with Kubernetes' rules for plain scalars."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {  # noqa: RUF012 # PyYAML's own hook
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag.removeprefix(_TAG) in ("bool", "null", "merge")
        ]
        for first, resolvers in _Base.yaml_implicit_resolvers.items()
    }

    notes: list[Repeated]

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 # PyYAML's own signature
        """A mapping; a repeated key is noted before its last value wins."""
        seen: set[str] = set()
        for key, _value in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            if key.value in seen and len(self.notes) < MOST_NOTES:
                self.notes.append(Repeated(key.start_mark.line + 1, key.value))
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> int | str:
        """A number; one longer than any quantity stays a text, and its reader refuses it."""
        if len(node.value) > LONGEST_NUMBER:
            return str(node.value)
        number: int = super().construct_yaml_int(node)
        return number


_Loader.add_constructor(_TAG + "int", _Loader.construct_yaml_int)
_Loader.add_constructor(_TAG + "merge", _Loader.construct_yaml_str)  # `<<` outside a mapping
_Loader.add_implicit_resolver(_TAG + "int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))


def yaml_values(data: bytes, notes: list[Repeated] | None = None) -> list[Any]:
    """The documents in `data` as plain values; None for an empty one.

    `data`: UTF-8 text. `notes`: receives the repeated keys of mappings; the last value holds, as elsewhere. Raises
    `YamlError`: not UTF-8, not YAML, or beyond one of the guards.
    """
    if len(data) > LONGEST:
        raise YamlError(
            f"{len(data)} bytes of YAML, more than {LONGEST}; give large lists as JSON"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = "; it looks like UTF-16: save it as UTF-8" if data[:2] in _WIDE else ""
        raise YamlError(f"not UTF-8 text (byte {error.start + 1}){wide}") from error
    try:
        _refuse_depth(text)
        return list(_documents(text, [] if notes is None else notes))
    except YamlError:
        raise
    except _FAILURES as error:
        raise YamlError(_explain(error, text)) from error


def _documents(text: str, notes: list[Repeated]) -> Iterator[Any]:
    aliased = "&" in text
    loader = _Loader(text)
    loader.notes = notes
    try:
        while loader.check_node():
            node = loader.get_node()
            if aliased:
                _refuse_expansion(node)
            yield loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_depth(text: str) -> None:
    """Refuse a depth that would overrun the C parser's stack, by its events, which it gives without recursion."""
    loader = _Loader(text)
    depth = 0
    try:
        while loader.check_event():
            event = loader.get_event()
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST:
                raise YamlError(
                    f"line {event.start_mark.line + 1}: nested deeper than {DEEPEST} levels; what kubectl prints "
                    "is read by -o json"
                )
    finally:
        loader.dispose()


def _refuse_expansion(root: yaml.Node | None) -> None:
    """Count the values and the levels behind every alias; each node is visited once."""
    sizes: dict[int, int] = {}
    depths: dict[int, int] = {}
    stack: list[tuple[Any, bool]] = [(root, False)]
    open_nodes: set[int] = set()
    while stack:
        node, done = stack.pop()
        identity = id(node)
        if done:
            open_nodes.discard(identity)
            children = _children(node)
            sizes[identity] = 1 + sum(sizes.get(id(child), 1) for child in children)
            if sizes[identity] > LARGEST:
                raise YamlError(f"aliases stand for more than {LARGEST} values")
            inner = max((depths.get(id(child), 0) for child in children), default=0)
            depths[identity] = inner + isinstance(node, yaml.CollectionNode)
            if depths[identity] > DEEPEST:
                raise YamlError(f"nested deeper than {DEEPEST} levels")
        elif identity in open_nodes:
            raise YamlError("an alias contains itself")
        elif identity not in sizes:
            open_nodes.add(identity)
            stack.append((node, True))
            stack.extend((child, False) for child in _children(node))


def _children(node: Any) -> list[Any]:
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return []


def _explain(error: Exception, text: str) -> str:
    if isinstance(error, RecursionError):
        return "not YAML: nested too deeply"
    if TEMPLATE in text:
        return "not YAML: it still holds {{ … }} of a template; render the chart first"
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, text.find(chr(error.character))) + 1
        character = f"control character U+{error.character:04X}"
        return f"not YAML: line {line}: {character}; write it as an escape, or give a text file"
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error) or type(error).__name__
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"not YAML: {place}{problem}"
