"""The memory of the fake API server: objects, versions and the history a watch replays."""

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fakes.kube_documents import Refused

__all__ = ["Event", "KubeStore"]

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """One change: the collection it is in, its kind, and the object after it."""

    version: int
    collection: str
    kind: str
    object: Object


class KubeStore:
    """Objects by collection path (`/api/v1/pods`), namespace and name."""

    def __init__(self) -> None:
        self.version = 1
        self.oldest = 0
        self.history: list[Event] = []
        self.listeners: list[Callable[[Event], None]] = []
        self._objects: dict[str, dict[tuple[str, str], Object]] = {}
        self._uids = 0

    def list(self, collection: str, namespace: str | None) -> Iterator[Object]:
        """The objects of a collection, in the order of their names."""
        for (held_in, _), item in sorted(self._objects.get(collection, {}).items()):
            if namespace in {None, held_in}:
                yield item

    def get(self, collection: str, namespace: str | None, name: str) -> Object:
        """One object."""
        held = self._objects.get(collection, {}).get((namespace or "", name))
        if held is None:
            raise Refused(404, "NotFound", f'{collection} "{name}" not found')
        return held

    def create(self, collection: str, namespace: str | None, item: Object) -> Object:
        """A new object; its UID and version are given here."""
        meta = item.setdefault("metadata", {})
        key = (namespace or "", meta.get("name", ""))
        if not key[1]:
            raise Refused(422, "Invalid", "name is required")
        if key in self._objects.get(collection, {}):
            raise Refused(409, "AlreadyExists", f'{collection} "{key[1]}" already exists')
        self._uids += 1
        if namespace:
            meta["namespace"] = namespace
        meta.setdefault("uid", f"uid-{self._uids}")
        return self._store("ADDED", collection, key, item)

    def update(self, collection: str, namespace: str | None, name: str, item: Object) -> Object:
        """Replace an object, if its version is current or not given."""
        held = self.get(collection, namespace, name)
        meta = item.setdefault("metadata", {})
        expected = meta.get("resourceVersion")
        if expected and expected != held["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", f"{name}: the object has been modified")
        meta |= {"name": name, "uid": held["metadata"]["uid"]}
        if namespace:
            meta["namespace"] = namespace
        if item == held:
            return held
        return self._store("MODIFIED", collection, (namespace or "", name), item)

    def delete(
        self, collection: str, namespace: str | None, name: str, conditions: Object
    ) -> Object:
        """Remove an object, if the preconditions hold."""
        held = self.get(collection, namespace, name)
        self.check(held, conditions)
        del self._objects[collection][(namespace or "", name)]
        gone = copy.deepcopy(held)
        self._note("DELETED", collection, gone)
        return gone

    def bind(self, namespace: str, name: str, binding: Object) -> None:
        """Bind a pod: node and annotations in one change, under the preconditions."""
        pod = copy.deepcopy(self.get("/api/v1/pods", namespace, name))
        meta = binding.get("metadata", {})
        self.check(pod, {key: meta[key] for key in ("uid", "resourceVersion") if meta.get(key)})
        spec = pod.setdefault("spec", {})
        if spec.get("nodeName"):
            raise Refused(409, "Conflict", f"pod {name} is already assigned to a node")
        if pod["metadata"].get("deletionTimestamp"):
            raise Refused(409, "Conflict", f"pod {name} is being deleted")
        spec["nodeName"] = binding["target"]["name"]
        for field in ("annotations", "labels"):
            if meta.get(field):
                pod["metadata"][field] = {**pod["metadata"].get(field, {}), **meta[field]}
        self._store("MODIFIED", "/api/v1/pods", (namespace, name), pod)

    def check(self, held: Object, conditions: Object) -> None:
        """Preconditions on UID and version."""
        for field in ("uid", "resourceVersion"):
            if conditions.get(field) and conditions[field] != held["metadata"][field]:
                raise Refused(409, "Conflict", f"the {field} in the precondition does not match")

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Whatever is done inside leaves no trace and is told nobody."""
        kept = copy.deepcopy((self._objects, self.version, self._uids))
        listeners, history = self.listeners, list(self.history)
        self.listeners = []
        try:
            yield
        finally:
            self._objects, self.version, self._uids = kept
            self.listeners, self.history = listeners, history

    def compact(self) -> None:
        """Forget the history, as the server does after some minutes."""
        self.history.clear()
        self.oldest = self.version

    def _store(self, kind: str, collection: str, key: tuple[str, str], item: Object) -> Object:
        item = json.loads(json.dumps(item))
        self._objects.setdefault(collection, {})[key] = item
        self._note(kind, collection, item)
        return item

    def _note(self, kind: str, collection: str, item: Object) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        event = Event(self.version, collection, kind, copy.deepcopy(item))
        self.history.append(event)
        for listener in tuple(self.listeners):
            listener(event)
