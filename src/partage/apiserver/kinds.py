"""The server's resources: their names, scope, versions and verbs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from partage.apiserver.status import qualified
from partage.wire.field_types import Type

ALL_VERBS: Final = (
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
)

Converter = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Subresource:
    """A part of an object with a path of its own, such as `status` or `binding`."""

    name: str
    kind: str
    group: str
    version: str
    verbs: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One resource in one version.

    Attributes:
        group: the API group; empty for the core.
        plural: the name in paths.
        verbs: possible actions; an empty subset means virtual (a review that is answered, not stored).
        storage: the store's name for it; several versions, and events of both groups, share one.
        generation: whether a change of its spec increases `metadata.generation`.
        selectable: fields for selectors, beside name and namespace.
        definition: for custom resources, the version's part of the definition.
        convert: from the stored document to this version's; None if only apiVersion differs.
    """

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    type: Type
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    storage: str = ""
    generation: bool = False
    selectable: tuple[str, ...] = ()
    definition: Mapping[str, Any] | None = None
    convert: Converter | None = None
    unconvert: Converter | None = None

    @property
    def api_version(self) -> str:
        """The form in documents."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The store's name for it."""
        return self.storage or qualified(self.plural, self.group)

    def sub(self, name: str) -> Subresource | None:
        """One of its subresources."""
        return next((found for found in self.subresources if found.name == name), None)

    def fields(self) -> tuple[str, ...]:
        """Every field for selectors."""
        return ("metadata.name", "metadata.namespace", *self.selectable)

    @property
    def unknown_field(self) -> str:
        """The message about another field; built-in kinds without fields of their own name the two common ones."""
        if self.selectable or self.definition is not None:
            return "field label not supported: %s"
        return '"%s" is not a known field selector: only "metadata.name", "metadata.namespace"'

    def outward(self, value: dict[str, Any]) -> dict[str, Any]:
        """A stored document in this version's form."""
        if self.convert is not None:
            return self.convert(value)
        if value.get("apiVersion") == self.api_version:
            return value
        return {**value, "apiVersion": self.api_version}

    def inward(self, value: dict[str, Any]) -> dict[str, Any]:
        """A document of this version in its stored form."""
        return self.unconvert(value) if self.unconvert is not None else value


def _age(version: str) -> tuple[int, int, int, str]:
    """Sorts versions as Kubernetes does: GA first, then beta, then alpha, newest first."""
    for rank, stage in ((0, ""), (1, "beta"), (2, "alpha")):
        head, found, tail = version[1:].partition(stage) if stage else (version[1:], "", "")
        if head.isdigit() and bool(found) == bool(stage) and (tail.isdigit() or not stage):
            return (rank, -int(head), -int(tail or 0), "")
    return (3, 0, 0, version)


@dataclass(slots=True)
class Registry:
    """The served resources; custom ones change at run time. `counter` grows with every change, for caches."""

    _kinds: dict[tuple[str, str, str], Kind] = field(default_factory=dict)
    _preferred: dict[str, Kind] = field(default_factory=dict)
    counter: int = 0

    def add(self, *kinds: Kind) -> None:
        """Serves more resources, or other versions of some."""
        for kind in kinds:
            self._kinds[kind.group, kind.version, kind.plural] = kind
        self._changed()

    def remove(self, group: str, plural: str) -> None:
        """Stops serving a resource in every version."""
        for key in [k for k in self._kinds if k[0] == group and k[2] == plural]:
            del self._kinds[key]
        self._changed()

    def _changed(self) -> None:
        self.counter += 1
        self._preferred = {}
        for kind in sorted(self._kinds.values(), key=lambda k: _age(k.version), reverse=True):
            self._preferred[kind.resource] = kind
        for kind in self._kinds.values():  # events: the store has the core's form
            if not kind.group and kind.convert is None:
                self._preferred[kind.resource] = kind

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """A resource by its path."""
        return self._kinds.get((group, version, plural))

    def stored(self, resource: str, version: Any = None) -> Kind | None:
        """The store's `resource` in the version with this `apiVersion`, or else in the preferred one."""
        preferred = self._preferred.get(resource)
        if preferred is None or version in (None, preferred.api_version):
            return preferred
        same = (kind for kind in self if kind.resource == resource)
        return next((kind for kind in same if kind.api_version == version), preferred)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def groups(self) -> dict[str, list[str]]:
        """Groups and their versions, preferred first; the core first, then by name as added."""
        found: dict[str, set[str]] = {}
        for kind in self:
            found.setdefault(kind.group, set()).add(kind.version)
        return {group: sorted(versions, key=_age) for group, versions in found.items()}

    def served(self, group: str, version: str) -> list[Kind]:
        """The resources of a group and version, by plural."""
        return sorted(
            (k for k in self if k.group == group and k.version == version), key=lambda k: k.plural
        )
