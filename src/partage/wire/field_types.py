"""The shape of an object: its fields, their values and the merge rules of its lists.

One tree of `Type` serves every user of a field's shape: strict decoding, strategic
merge patches, server-side apply and the OpenAPI documents. Built-in kinds read their trees from
the tables in `field_tables/`; those of custom resources are made from their definition.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Final, Literal, get_args

_Scalar = Literal["bool", "bytes", "float", "int", "intorstring", "long"]
_Text = Literal["microtime", "quantity", "string", "time"]
Form = Literal[_Scalar, _Text, "any", "list", "map", "struct"]
ListKind = Literal["atomic", "map", "set"]
Patch = Literal["", "merge", "replace"]

META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1."
_FORMS: Final[dict[str, Form]] = {one: one for one in get_args(Form)}


@dataclass(slots=True, eq=False)
class Type:
    """The values that one place in an object may have.

    Attributes:
        form: scalar, list, map or struct.
        name: the OpenAPI name of a struct that has one; else empty.
        item: the type of a list's items or a map's values.
        atomic: whether server-side apply replaces a map or struct as a whole.
        listing: how server-side apply treats a list.
        keys: the fields that tell the items of a list of kind `map` apart.
        open: whether a struct keeps unknown fields.
        numbers: protobuf's numbers of a struct's fields; for an embedded message that JSON does
            not show, those of its own fields.
    """

    form: Form
    name: str = ""
    item: "Type | None" = None
    fields: "dict[str, Field]" = field(default_factory=dict)
    atomic: bool = False
    listing: ListKind = "atomic"
    keys: tuple[str, ...] = ()
    open: bool = False
    numbers: "Numbers" = field(default_factory=dict)


Numbers = dict[int, "Field | Numbers"]


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a struct.

    Attributes:
        sparse: whether a zero value is left out.
        patch: its rule in a strategic merge patch; empty means merge maps, replace the rest.
        merge_key: the field by which such a patch finds a list's items; empty for plain values.
        retain: whether such a patch may name the keys to keep.
    """

    name: str
    type: Type
    required: bool = False
    sparse: bool = False
    patch: Patch = ""
    merge_key: str = ""
    retain: bool = False


class _Reader:
    """Reads the tables; structs may refer to each other in any order."""

    def __init__(self) -> None:
        self.structs: dict[str, Type] = {}
        self.packages: dict[str, str] = {}

    def struct(self, short: str) -> Type:
        """The struct called `core.Pod` in the tables, created empty at its first mention."""
        return self.structs.setdefault(short, Type("struct"))

    def table(self, text: str) -> None:
        """Reads one file."""
        package, current = "", Type("struct")
        for line in text.splitlines():
            if line.startswith("#") or not line:
                continue
            words = line.split()
            if words[0] == "package":
                package, prefix = words[1], words[2]
                self.packages[package] = prefix
            elif line[0] != " ":
                current = self.struct(f"{package}.{words[0]}")
                current.name = f"{self.packages[package]}.{words[0]}"
                current.atomic = "atomic" in words
            else:
                found = self.field(words)
                current.fields[found.name] = found
                _number(current.numbers, words[-1], found)

    def field(self, words: list[str]) -> Field:
        """One field line: name with its mark, type, options."""
        mark = words[0][-1]
        name = words[0].rstrip("!?")
        options = dict(word.partition("=")[::2] for word in words[2:])
        return Field(
            name,
            self.type(words[1], options),
            required=mark == "!",
            sparse=mark == "?",
            patch="merge" if "merge" in options else "",
            merge_key=options.get("merge", ""),
            retain="retain" in options,
        )

    def type(self, word: str, options: dict[str, str]) -> Type:
        """The type for a word such as `[core.Container]` or `{quantity}`."""
        if word[0] == "[":
            listing: ListKind = (
                "map" if "map" in options else "set" if "set" in options else "atomic"
            )
            keys = tuple(options.get("map", "").split(",")) if listing == "map" else ()
            return Type("list", item=self.type(word[1:-1], {}), listing=listing, keys=keys)
        if word[0] == "{":
            return Type("map", item=self.type(word[1:-1], {}), atomic="atomic" in options)
        if word in _FORMS:
            return Type(_FORMS[word])
        found = self.struct(word)
        if "atomic" in options and not found.atomic:
            return replace(found, atomic=True)
        return found


def _number(numbers: Numbers, word: str, found: Field) -> None:
    """Notes a field under its protobuf number, `#2` or `#2/1`."""
    if not word.startswith("#"):
        return
    *outer, last = (int(digits) for digits in word[1:].split("/"))
    for number in outer:
        inner = numbers.setdefault(number, {})
        if isinstance(inner, dict):
            numbers = inner
    numbers[last] = found


@cache
def catalogue() -> dict[str, Type]:
    """Every built-in struct by its OpenAPI name, such as `io.k8s.api.core.v1.Pod`."""
    reader = _Reader()
    folder = resources.files("partage.wire") / "field_tables"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".txt"):
            reader.table(file.read_text(encoding="utf-8"))
    for found in list(reader.structs.values()):
        for inner in found.fields.values():
            _name_copies(inner.type, reader)
    return {found.name: found for found in reader.structs.values()}


def _name_copies(found: Type, reader: _Reader) -> None:
    """Name copies that were made for a field's option before the struct's name was read."""
    if found.form == "struct" and not found.name:
        found.name = next(s.name for s in reader.structs.values() if s.fields is found.fields)
