"""What the client asks of objects whose types its callers supply.

Callers declare msgspec structs with only the fields they need. For listing and watching, a type
needs `metadata` with name, namespace, uid and resourceVersion; `Meta` may be extended or any
other type with those attributes be used.
"""

from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Key(NamedTuple):
    """The name of an object within its resource; namespace is empty where there is none."""

    namespace: str
    name: str


class MetaLike(Protocol):
    """An object's metadata, as far as this package reads it."""

    @property
    def name(self) -> str | None:
        """Its name."""

    @property
    def namespace(self) -> str | None:
        """Its namespace, if it has one."""

    @property
    def uid(self) -> str | None:
        """What tells it from another object of the same name."""

    @property
    def resource_version(self) -> str | None:
        """The version of the store in which it last changed."""


class HasMeta(Protocol):
    """An object with metadata."""

    @property
    def metadata(self) -> MetaLike:
        """See `MetaLike`."""


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """The least metadata; extend it by the fields a caller needs."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Annotated(Meta, frozen=True):
    """Metadata with what programs note on an object."""

    annotations: dict[str, str] | None = None


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """A list's metadata: the version it was read at, and where to go on."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Undecodable(msgspec.Struct, frozen=True):
    """An object that is not of the caller's type: who it is, and what is wrong."""

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
