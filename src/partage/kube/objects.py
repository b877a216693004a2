"""The client's demands on objects whose types its callers supply.

Callers declare msgspec structs with only the fields they need. For listing and watching, a type
needs `metadata` with name, namespace, uid and resourceVersion. Callers may extend `Meta` or use any
other type with those attributes.
"""

from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Key(NamedTuple):
    """The name of an object within its resource; namespace is empty if it has none."""

    namespace: str
    name: str


class MetaLike(Protocol):
    """The fields of an object's metadata that this package reads."""

    @property
    def name(self) -> str | None:
        """Its name."""

    @property
    def namespace(self) -> str | None:
        """Its namespace, if it has one."""

    @property
    def uid(self) -> str | None:
        """The identity that differs from that of another object of the same name."""

    @property
    def resource_version(self) -> str | None:
        """The version of the store at its last change."""


class HasMeta(Protocol):
    """An object with metadata."""

    @property
    def metadata(self) -> MetaLike:
        """See `MetaLike`."""


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """The least metadata; callers extend it by the fields that they need."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Annotated(Meta, frozen=True):
    """Metadata with annotations."""

    annotations: dict[str, str] | None = None


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """A list's metadata: its version, the token of the next page, and how many objects follow, if that is known."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class Undecodable(msgspec.Struct, frozen=True):
    """An object that is not of the caller's type: its identity and the error."""

    meta: Meta
    problem: str


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """All objects of a scope at one version of the store."""

    items: tuple[T, ...]
    resource_version: str
    undecodable: tuple[Undecodable, ...] = ()


def key_of(meta: MetaLike) -> Key:
    """The key of an object."""
    return Key(meta.namespace or "", meta.name or "")
