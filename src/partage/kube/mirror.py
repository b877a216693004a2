"""The known state of the server's objects and the changes of it; pure.

A mirror receives whole lists and single events, and returns the resulting changes: an object is
`Seen` in a new state or `Gone`. It is the one place that decides the meaning of a duplicate, a late event, a
gap or a re-created object, for every watch in the program:

* A list is the truth. An object that it lacks is gone, with the last known state.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from partage.kube.errors import KubeError, ProtocolError
from partage.kube.frames import Added, Bookmark, Deleted, Failed, Frame, Malformed, Modified
from partage.kube.objects import HasMeta, Key, Listing, MetaLike, Undecodable, key_of

T = TypeVar("T", bound=HasMeta)

_DELETIONS: Final = 4096
"""Deletions remembered, so that a late event does not bring an object back."""


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """An object is new or changed."""

    object: T
    previous: T | None = None
    """Its state before, of the same UID; None if it is new. Equal to `object` in a resync."""


@dataclass(frozen=True, slots=True)
class Gone(Generic[T]):
    """An object no longer exists, or is no longer in scope."""

    object: T
    """Its last known state."""


@dataclass(frozen=True, slots=True)
class Odd:
    """An object that is not of the caller's type; its last known state still stands."""

    key: Key
    problem: Undecodable


@dataclass(frozen=True, slots=True)
class WentBack:
    """The server's store is an earlier one: its later changes are void.

    Reported before the changes of the list that shows it.
    """

    resource_version: str
    """The version that we had."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The mirror now equals a list that was just read, and all its changes have been reported."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """No events arrive for now; the mirror may lag until the next change or `Synced`."""

    error: KubeError
    delay: float
    """Seconds until the next try."""


Change = Seen[T] | Gone[T] | Odd | WentBack | Synced | Interrupted


class Mirror(Generic[T]):
    """The objects of one scope, by key."""

    def __init__(self) -> None:
        self._objects: dict[Key, T] = {}
        self._deleted: dict[Key, str] = {}
        self._version = ""
        self._expired = False

    @property
    def objects(self) -> Mapping[Key, T]:
        """A live, read-only view."""
        return MappingProxyType(self._objects)

    @property
    def resource_version(self) -> str:
        """The version to watch from; empty before the first list and after `expire`."""
        return "" if self._expired else self._version

    def expire(self) -> None:
        """Forget the version because no watch can start from it; the objects stay until the next list."""
        self._expired = True

    def replace(self, listing: Listing[T]) -> list[Change[T]]:
        """Take over a list; returns its differences from our objects. Raises `ProtocolError`: an item is no object."""
        for meta in (
            *(one.metadata for one in listing.items),
            *(one.meta for one in listing.undecodable),
        ):
            _demand_identity(meta)
        before, self._objects = self._objects, {}
        kept_odd = {key_of(odd.meta): odd for odd in listing.undecodable}
        changes: list[Change[T]] = []
        if self._went_back(listing, before):
            changes.append(WentBack(self._version))
        for item in listing.items:
            self._objects[key_of(item.metadata)] = item
        for key, odd in kept_odd.items():
            held = before.get(key)
            if held is not None and _same(held.metadata, odd.meta):
                self._objects[key] = held
        changes += (
            Gone(held)
            for key, held in before.items()
            if key not in self._objects or not _follows(self._objects[key].metadata, held.metadata)
        )
        for key, item in self._objects.items():
            held = before.get(key)
            known = held if held is not None and _follows(item.metadata, held.metadata) else None
            if known is None or known.metadata.resource_version != item.metadata.resource_version:
                changes.append(Seen(item, known))
        changes += (Odd(key, odd) for key, odd in kept_odd.items())
        self._deleted.clear()
        self._version, self._expired = listing.resource_version, False
        changes.append(Synced(self._version))
        return changes

    def _went_back(self, listing: Listing[T], before: Mapping[Key, T]) -> bool:
        """Whether a list cannot be of the store whose changes we had up to our version."""
        if is_older(listing.resource_version, self._version):
            return True
        for item in listing.items:
            meta = item.metadata
            if is_newer(meta.resource_version, self._version):
                continue
            held = before.get(key_of(meta))
            if held is None or held.metadata.resource_version != meta.resource_version:
                return True
        return False

    def disorder(self, frames: Iterable[Frame[T]]) -> str:
        """Why these events cannot be those of one watch after the ones before; empty if they can.

        A watch brings versions in their order. An older one after a newer one shows that one of the two is false: the
        older event is late, or the newer version is none of this store and would hide all later events of its object.
        """
        newest = self._version
        for frame in frames:
            version = _version_of(frame)
            if is_older(version, newest):
                return f"version {version} after {newest}: a watch does not go back"
            newest = version or newest
        return ""

    def apply(self, frames: Iterable[Frame[T]]) -> list[Change[T]]:
        """Take over events, in order; `Failed` changes nothing, because it is for the reader of the watch.

        Raises `ProtocolError`: an event is about no object; nothing of these events is taken over.
        """
        changes: list[Change[T]] = []
        frames = list(frames)
        for frame in frames:
            if isinstance(frame, Malformed):
                _demand_identity(frame.object.meta)
            elif isinstance(frame, Added | Modified | Deleted):
                _demand_identity(frame.object.metadata)
        for frame in frames:
            if isinstance(frame, Added | Modified):
                changes += self._set(frame.object)
            elif isinstance(frame, Deleted):
                changes += self._delete(frame.object)
            elif isinstance(frame, Bookmark):
                self._advance(frame.resource_version)
            elif isinstance(frame, Malformed):
                changes += self._note(frame)
        return changes

    def _set(self, item: T) -> Iterator[Change[T]]:
        meta = item.metadata
        key = key_of(meta)
        held = self._objects.get(key)
        if self._is_late(key, meta, held):
            return
        self._advance(meta.resource_version)
        self._objects[key] = item
        self._deleted.pop(key, None)
        if held is not None and not _same(held.metadata, meta):
            yield Gone(held)
            held = None
        yield Seen(item, held)

    def _delete(self, item: T) -> Iterator[Change[T]]:
        meta = item.metadata
        key = key_of(meta)
        held = self._objects.get(key)
        if held is not None and not _same(held.metadata, meta):
            # The end of an earlier object of that name, or of a later one whose creation we missed.
            if not is_newer(meta.resource_version, held.metadata.resource_version):
                return
            yield Gone(held)
        elif held is not None:
            if is_older(meta.resource_version, held.metadata.resource_version):
                return
            yield Gone(item)
        self._advance(meta.resource_version)
        self._objects.pop(key, None)
        self._remember_deletion(key, meta.resource_version)

    def _note(self, frame: Malformed) -> Iterator[Change[T]]:
        meta = frame.object.meta
        key = key_of(meta)
        held = self._objects.get(key)
        if self._is_late(key, meta, held) and not (
            # A deletion may carry the version of the last change.
            frame.deleted and held and held.metadata.resource_version == meta.resource_version
        ):
            return
        self._advance(meta.resource_version)
        if held is not None and (frame.deleted or not _same(held.metadata, meta)):
            # Even an object that we cannot read frees the devices of its predecessor.
            del self._objects[key]
            yield Gone(held)
        if frame.deleted:
            self._remember_deletion(key, meta.resource_version)
        else:
            yield Odd(key, frame.object)

    def _is_late(self, key: Key, meta: MetaLike, held: T | None) -> bool:
        known = held.metadata.resource_version if held is not None else self._deleted.get(key)
        return known is not None and not is_newer(meta.resource_version, known)

    def _advance(self, version: str | None) -> None:
        if version and (not self._version or is_newer(version, self._version)):
            self._version = version

    def _remember_deletion(self, key: Key, version: str | None) -> None:
        earlier = self._deleted.pop(key, None)
        self._deleted[key] = earlier if earlier and is_older(version, earlier) else version or ""
        if len(self._deleted) > _DELETIONS:
            del self._deleted[next(iter(self._deleted))]


def _version_of(frame: Frame[T]) -> str | None:
    if isinstance(frame, Bookmark):
        return frame.resource_version
    if isinstance(frame, Malformed):
        return frame.object.meta.resource_version
    return frame.object.metadata.resource_version if not isinstance(frame, Failed) else None


def is_newer(version: str | None, than: str | None) -> bool:
    """Whether a resourceVersion is newer than another of the same resource.

    Versions are decimal numbers that grow (the API's promise since 1.35, and true of every server
    before). If one is not a number, this function only checks whether they differ.
    """
    left, right = _rank(version), _rank(than)
    if left is None or right is None:
        return (version or "") != (than or "")
    return left > right


def is_older(version: str | None, than: str | None) -> bool:
    """Whether a resourceVersion is certainly older than another of the same resource."""
    left, right = _rank(version), _rank(than)
    return left is not None and right is not None and left < right


def _rank(version: str | None) -> tuple[int, str] | None:
    """A sort key for decimal numbers of any length; None for other text."""
    if not version or not version.isascii() or not version.isdecimal():
        return None
    digits = version.lstrip("0")
    return len(digits), digits


def _demand_identity(meta: MetaLike) -> None:
    """Refuse a document without a name or a UID: it would end the object that it stands for."""
    if not meta.name or not meta.uid:
        missing = "a UID" if meta.name else "a name"
        raise ProtocolError(
            f"an object without {missing}: {meta.namespace or ''}/{meta.name or ''}"
        )


def _same(one: MetaLike, other: MetaLike) -> bool:
    """Whether two states under one name are of one object."""
    return one.uid == other.uid


def _follows(one: MetaLike, other: MetaLike) -> bool:
    """Whether a state may be a successor of another: it is of the same object, and not an earlier one."""
    return _same(one, other) and not is_older(one.resource_version, other.resource_version)
