"""The store: objects by resource, namespace and name, one revision counter, and a history of changes.

Pure and synchronous: no clock, no random values, no input or output. Every change is one step. It succeeds at
the expected revision or has no effect. The store appends each change to its resource's history, from which it
serves watches and consistent later pages of a list.

The store never changes a stored value in place. A reader may keep a value and must not change it.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

import msgspec

Happening = Literal["ADDED", "MODIFIED", "DELETED"]
Key = tuple[str, str]

_encode: Final = msgspec.json.Encoder().encode
_REMEMBERED: Final = 32 * 2**20
"""Most bytes of JSON in the changes of one resource, because pods of a megabyte each must not fill the memory."""


class Taken(Exception):
    """An object of this name exists."""


class Absent(Exception):
    """No object of this name exists."""


class Stale(Exception):
    """The object is at another revision than expected."""


class Compacted(Exception):
    """The history no longer reaches back that far; has the oldest available revision."""

    def __init__(self, oldest: int) -> None:
        super().__init__(oldest)
        self.oldest = oldest


@dataclass(slots=True, eq=False)
class Record:
    """One object at one revision.

    Attributes:
        resource: such as `pods` or `deployments.apps`.
        namespace: empty for cluster-scoped objects.
        value: the document, with `metadata.resourceVersion` set; do not change it.
        texts: its encodings so far, by purpose.
    """

    resource: str
    namespace: str
    name: str
    value: dict[str, Any]
    revision: int
    texts: dict[str, bytes] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, Any]:
        """Its metadata."""
        found: dict[str, Any] = self.value["metadata"]
        return found

    @property
    def labels(self) -> dict[str, str]:
        """Its labels, empty when there are none."""
        return self.metadata.get("labels") or {}

    @property
    def uid(self) -> str:
        """Its UID."""
        return str(self.metadata.get("uid", ""))

    def text(self, key: str = "", convert: Callable[[dict[str, Any]], Any] | None = None) -> bytes:
        """The document as JSON, encoded once for each `key`.

        `key`: names the form; empty for the stored one. `convert`: makes that form from the stored one.
        """
        found = self.texts.get(key)
        if found is None:
            found = _encode(convert(self.value) if convert else self.value)
            self.texts[key] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One change of an object.

    Attributes:
        record: the object after it; for a deletion its last state at the deletion's revision.
        before: the object before it, None for an addition.
    """

    kind: Happening
    record: Record
    before: Record | None


class History:
    """The changes of one resource, at most `capacity` of them and 32 MiB.

    Readers keep a position, ask for the changes after it, and register a callback for the next
    change alone.
    """

    def __init__(self, capacity: int) -> None:
        self._changes: deque[Change] = deque()
        self._capacity = capacity
        self._size = 0
        self._first = 0
        self._waiters: list[Callable[[], None]] = []
        self.floor = 0
        """The newest forgotten revision."""

    @property
    def end(self) -> int:
        """The position after the last change."""
        return self._first + len(self._changes)

    def append(self, change: Change) -> None:
        """Adds a change, forgets the oldest beyond capacity and size, and wakes waiting readers."""
        self._changes.append(change)
        self._size += len(change.record.text())
        while len(self._changes) > 1 and (
            len(self._changes) > self._capacity or self._size > _REMEMBERED
        ):
            forgotten = self._changes.popleft().record
            self.floor = forgotten.revision
            self._size -= len(forgotten.text())
            self._first += 1
        self.wake()

    def wake(self) -> None:
        """Wakes waiting readers, even without a change."""
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def once(self, wake: Callable[[], None]) -> None:
        """Calls `wake` at the next change."""
        self._waiters.append(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        """Cancels a `once`."""
        if wake in self._waiters:
            self._waiters.remove(wake)

    def position(self, revision: int) -> int:
        """The position of the first change after `revision`. Raises `Compacted`: some are forgotten."""
        if revision < self.floor:
            raise Compacted(self.floor)
        return self._first + bisect_right(
            self._changes, revision, key=lambda change: change.record.revision
        )

    def after(self, position: int, most: int = 1000) -> list[Change]:
        """The changes from `position` on, at most `most`. Raises `Compacted`: the reader fell behind."""
        if position < self._first:
            raise Compacted(self.floor)
        start = position - self._first
        if start >= len(self._changes):
            return []  # the usual case, without a search
        if start > len(self._changes) // 2:
            tail = list(islice(reversed(self._changes), len(self._changes) - start))
            return tail[::-1][:most]
        return list(islice(self._changes, start, start + most))


class Store:
    """All objects of a cluster."""

    def __init__(self, *, history: int = 20_000) -> None:
        self._objects: defaultdict[str, dict[Key, Record]] = defaultdict(dict)
        self._order: defaultdict[str, list[Key]] = defaultdict(list)
        self._histories: dict[str, History] = {}
        self._capacity = history
        self._restored = 0
        self.revision = 0
        self.observers: list[Callable[[Change], None]] = []
        """Called after every change, in order; must not block, and must not write."""

    def resources(self) -> Iterator[str]:
        """The resources with objects."""
        return (resource for resource, objects in self._objects.items() if objects)

    def history(self, resource: str) -> History:
        """The history of a resource."""
        found = self._histories.get(resource)
        if found is None:
            found = self._histories[resource] = History(self._capacity)
            found.floor = self._restored
        return found

    def get(self, resource: str, namespace: str, name: str) -> Record | None:
        """An object, or None."""
        return self._objects[resource].get((namespace, name))

    def all(self, resource: str, namespace: str = "") -> list[Record]:
        """A resource's objects, or those in one namespace, by namespace and name."""
        objects = self._objects[resource]
        return [objects[key] for key in self._keys(resource, namespace)]

    def _keys(self, resource: str, namespace: str) -> list[Key]:
        order = self._order[resource]
        if not namespace:
            return order
        return order[
            bisect_left(order, (namespace, "")) : bisect_left(order, (namespace + "\0", ""))
        ]

    def list_at(self, resource: str, namespace: str, revision: int) -> list[Record]:
        """The result of `all` at an earlier revision. Raises `Compacted`: that is too old."""
        history = self.history(resource)
        position = history.position(revision)
        objects: dict[Key, Record | None] = {
            (record.namespace, record.name): record for record in self.all(resource, namespace)
        }
        for change in reversed(history.after(position, self._capacity + 1)):
            record = change.record
            if not namespace or record.namespace == namespace:
                objects[record.namespace, record.name] = change.before
        return [found for key in sorted(objects) if (found := objects[key]) is not None]

    def insert(self, resource: str, value: Mapping[str, Any]) -> Record:
        """Adds an object. Raises `Taken`: the name is in use."""
        record = self._record(resource, value)
        key = (record.namespace, record.name)
        if key in self._objects[resource]:
            raise Taken
        self._objects[resource][key] = record
        insort(self._order[resource], key)
        self._happened(Change("ADDED", record, None))
        return record

    def replace(self, resource: str, value: Mapping[str, Any], expected: int) -> Record:
        """Replaces the object at revision `expected`. Raises `Absent`; `Stale`: it is at another revision."""
        metadata = value["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        before = self._current(resource, key, expected)
        record = self._record(resource, value)
        self._objects[resource][key] = record
        self._happened(Change("MODIFIED", record, before))
        return record

    def remove(self, resource: str, namespace: str, name: str, expected: int) -> Record:
        """Removes the object at revision `expected`; returns its last state. Raises `Absent`; `Stale`: it changed."""
        key = (namespace, name)
        before = self._current(resource, key, expected)
        record = self._record(resource, before.value)
        del self._objects[resource][key]
        order = self._order[resource]
        order.pop(bisect_left(order, key))
        self._happened(Change("DELETED", record, before))
        return record

    def restore(self, revision: int, objects: Mapping[str, list[dict[str, Any]]]) -> None:
        """Fills an empty store with an earlier one's objects, at their revisions."""
        for resource, values in objects.items():
            for value in values:
                metadata = value["metadata"]
                key = (metadata.get("namespace", ""), metadata["name"])
                at = int(metadata["resourceVersion"])
                self._objects[resource][key] = Record(resource, *key, value, at)
            self._order[resource] = sorted(self._objects[resource])
        self._restored = revision
        for history in self._histories.values():
            history.floor = revision
        self.revision = max(self.revision, revision)

    def _current(self, resource: str, key: Key, expected: int) -> Record:
        found = self._objects[resource].get(key)
        if found is None:
            raise Absent
        if found.revision != expected:
            raise Stale
        return found

    def _record(self, resource: str, value: Mapping[str, Any]) -> Record:
        """The next revision's record; the revision counts only once `_happened` runs."""
        revision = self.revision + 1
        metadata = {**value["metadata"], "resourceVersion": str(revision)}
        return Record(
            resource,
            metadata.get("namespace", ""),
            metadata["name"],
            {**value, "metadata": metadata},
            revision,
        )

    def _happened(self, change: Change) -> None:
        self.revision = change.record.revision
        self.history(change.record.resource).append(change)
        for observe in self.observers:
            observe(change)
