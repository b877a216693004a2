"""Consequences of changes: deletes dependents of deleted objects, finishes namespaces, updates quotas.

It watches the store. The server calls it after every change, and it then handles the changes that it saw.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from partage.apiserver import quota
from partage.apiserver.admission import User
from partage.apiserver.calls import DEFINITIONS, Call, Cluster
from partage.apiserver.creating import create
from partage.apiserver.deleting import DeleteOptions, delete
from partage.apiserver.metadata import finished
from partage.apiserver.status import ApiError
from partage.apiserver.storage import Absent, Change, Record, Stale

_GC: Final = User("system:serviceaccount:kube-system:generic-garbage-collector")
_FOREGROUND: Final = "foregroundDeletion"
_ORPHAN: Final = "orphan"
_COUNTED: Final = ("pods", "resourcequotas")
Place = tuple[str, str, str]


class Janitor:
    """Carries out the consequences of changes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._uids: dict[str, Place] = {}
        self._dependents: defaultdict[str, set[Place]] = defaultdict(set)
        self._changes: deque[Change] = deque()
        self._leaving: dict[str, None] = {}
        self._quotas: dict[str, None] = {}
        self._refused: dict[Place, None] = {}
        cluster.store.observers.append(self._saw)
        for resource in list(cluster.store.resources()):
            for record in cluster.store.all(resource):
                self._saw(Change("ADDED", record, None))

    @property
    def idle(self) -> bool:
        """Whether no work is left."""
        return not self._changes and not self._leaving and not self._quotas

    @property
    def empties(self) -> bool:
        """Whether the deletion of a namespace or a definition deletes its objects."""
        return any(
            one.record.resource in ("namespaces", DEFINITIONS)
            and one.record.metadata.get("deletionTimestamp")
            for one in self._changes
        )

    def _saw(self, change: Change) -> None:
        """Updates the indexes, and queues work for `settle`."""
        record = change.record
        place = (record.resource, record.namespace, record.name)
        before = change.before.metadata.get("ownerReferences") if change.before else None
        after = record.metadata.get("ownerReferences")
        gone = change.kind == "DELETED"
        if change.kind == "ADDED":
            self._uids[record.uid] = place
        if gone:
            self._uids.pop(record.uid, None)
        if before != after or gone or change.kind == "ADDED":
            for owner in before or ():
                self._forget(owner.get("uid", ""), place)
            for owner in () if gone else after or ():
                self._dependents[owner.get("uid", "")].add(place)
        deleting = record.metadata.get("deletionTimestamp")
        fresh = change.kind == "ADDED" and record.resource == "namespaces"
        if gone or deleting or fresh or (after and after != before):
            self._changes.append(change)
        counted = gone or change.kind == "ADDED" or record.resource in _COUNTED
        store = self._cluster.store
        if record.namespace and counted and store.all("resourcequotas", record.namespace):
            self._quotas[record.namespace] = None
        if gone and record.namespace:
            namespace = self._cluster.store.get("namespaces", "", record.namespace)
            if namespace is not None and namespace.metadata.get("deletionTimestamp"):
                self._leaving[record.namespace] = None

    def _forget(self, uid: str, place: Place) -> None:
        """Removes a dependent, which may have outlived its owner."""
        there = self._dependents.get(uid, set())
        there.discard(place)
        if not there:
            self._dependents.pop(uid, None)

    def refused(self) -> list[Place]:
        """Objects whose deletion was refused since the last call."""
        found, self._refused = list(self._refused), {}
        return found

    def retry(self, places: Iterable[Place]) -> None:
        """Queues such objects for another look, with all that may be a reason to delete them."""
        store = self._cluster.store
        for place in places:
            record = store.get(*place)
            if record is None:
                continue
            namespace = store.get("namespaces", "", record.namespace)
            if namespace is not None and namespace.metadata.get("deletionTimestamp"):
                self._leaving[record.namespace] = None
            owners = record.metadata.get("ownerReferences") or ()
            known = (self._uids.get(owner.get("uid", "")) for owner in owners)
            for one in (place, *filter(None, known)):
                if (found := store.get(*one)) is not None:
                    self._changes.append(Change("MODIFIED", found, None))

    async def settle(self) -> None:
        """Carries out all consequences of the changes so far, and theirs in turn."""
        while not self.idle:
            while self._changes:
                await self._follow(self._changes.popleft())
            for namespace in list(self._leaving):  # one that fails leaves the others
                self._leaving.pop(namespace, None)
                await self._empty(namespace)
            for namespace in list(self._quotas):
                self._quotas.pop(namespace, None)
                self._measure(namespace)

    async def _follow(self, change: Change) -> None:
        record = change.record
        if record.resource == "namespaces" and change.kind != "DELETED":
            if record.metadata.get("deletionTimestamp"):
                self._leaving[record.name] = None
            elif change.kind == "ADDED":
                await self._furnish(record.name)
        if change.kind == "DELETED":
            if record.resource == DEFINITIONS:
                self._purge(record.name)
            await self._owner_gone(record.uid)
            for owner in record.metadata.get("ownerReferences") or ():
                await self._waiting_owner(owner.get("uid", ""))
        else:
            if record.resource == DEFINITIONS and finished(record.value):
                self._rewrite(record)
            await self._owners_there(record)
            await self._finalize(record)

    def _purge(self, resource: str) -> None:
        """Deletes the objects of a resource that is no longer defined."""
        store = self._cluster.store
        for one in list(store.all(resource)):
            store.remove(resource, one.namespace, one.name, one.revision)

    async def _furnish(self, namespace: str) -> None:
        """Creates the service account that every namespace has."""
        kind = self._cluster.registry.stored("serviceaccounts")
        if kind is None or self._cluster.store.get("serviceaccounts", namespace, "default"):
            return
        call = Call(kind=kind, namespace=namespace, user=_GC)
        with suppress(ApiError):
            await create(self._cluster, call, {"metadata": {"name": "default"}})

    async def _delete(self, place: Place, policy: str = "Background") -> None:
        kind = self._cluster.registry.stored(place[0])
        if kind is None:
            return
        call = Call(kind=kind, namespace=place[1], name=place[2], user=_GC)
        try:
            await delete(self._cluster, call, DeleteOptions(policy=policy))
        except ApiError as error:
            if error.code != 404:
                self._refused[place] = None

    async def _owner_gone(self, uid: str) -> None:
        for place in sorted(self._dependents.pop(uid, ())):
            record = self._cluster.store.get(*place)
            if record is not None:
                await self._owners_there(record)

    async def _owners_there(self, record: Record) -> None:
        """Deletes an object without existing owners, or removes its references to deleted ones."""
        owners = record.metadata.get("ownerReferences") or []
        left = [one for one in owners if one.get("uid") in self._uids]
        if not owners or len(left) == len(owners):
            return
        if left:
            self._rewrite(record, ownerReferences=left)
        elif not record.metadata.get("deletionTimestamp"):
            await self._delete((record.resource, record.namespace, record.name))

    async def _finalize(self, record: Record) -> None:
        """Handles the finalizers of propagation policies."""
        current = self._cluster.store.get(record.resource, record.namespace, record.name)
        if current is None or not current.metadata.get("deletionTimestamp"):
            return
        held = current.metadata.get("finalizers") or []
        places = sorted(self._dependents.get(current.uid, ()))
        if _ORPHAN in held:
            for place in places:
                self._orphan(place, current.uid)
            self._release(current, _ORPHAN)
        elif _FOREGROUND in held:
            for place in places:
                found = self._cluster.store.get(*place)
                if found is not None and not found.metadata.get("deletionTimestamp"):
                    await self._delete(place, "Foreground")
            if not self._dependents.get(current.uid):
                self._release(current, _FOREGROUND)
        for owner in current.metadata.get("ownerReferences") or ():
            await self._waiting_owner(owner.get("uid", ""))

    async def _waiting_owner(self, uid: str) -> None:
        place = self._uids.get(uid)
        owner = self._cluster.store.get(*place) if place else None
        if owner is None or self._dependents.get(uid):
            return
        if _FOREGROUND in (owner.metadata.get("finalizers") or ()):
            self._release(owner, _FOREGROUND)

    def _orphan(self, place: Place, uid: str) -> None:
        record = self._cluster.store.get(*place)
        if record is not None:
            owners = record.metadata.get("ownerReferences") or []
            self._rewrite(record, ownerReferences=[o for o in owners if o.get("uid") != uid])

    def _release(self, record: Record, finalizer: str) -> None:
        held = record.metadata.get("finalizers") or []
        self._rewrite(record, finalizers=[one for one in held if one != finalizer])

    def _rewrite(self, record: Record, **changed: list[Any]) -> None:
        """Writes lists of metadata without empty ones; deletes the object if no finalizer is left."""
        head = {k: v for k, v in record.metadata.items() if k not in changed}
        head.update({key: value for key, value in changed.items() if value})
        value = {**record.value, "metadata": head}
        store = self._cluster.store
        with suppress(Absent, Stale):
            if finished(value) and not (value.get("spec") or {}).get("finalizers"):
                store.remove(record.resource, record.namespace, record.name, record.revision)
            else:
                store.replace(record.resource, value, record.revision)

    async def _empty(self, namespace: str) -> None:
        """Deletes a namespace's objects, and then the namespace."""
        store = self._cluster.store
        for resource in list(store.resources()):
            kind = self._cluster.registry.stored(resource)
            if kind is None or not kind.namespaced:
                continue
            for record in list(store.all(resource, namespace)):
                if not record.metadata.get("deletionTimestamp"):
                    await self._delete((resource, namespace, record.name))
        if any(store.all(resource, namespace) for resource in list(store.resources())):
            return
        found = store.get("namespaces", "", namespace)
        if found is not None and not found.metadata.get("finalizers"):
            store.remove("namespaces", "", namespace, found.revision)

    def _measure(self, namespace: str) -> None:
        """Writes the use into the status of a namespace's quotas."""
        for record in self._cluster.store.all("resourcequotas", namespace):
            used = {
                name: str(q) for name, q in quota.totals(self._cluster.store, record.value).items()
            }
            status: Mapping[str, Any] = {
                "hard": (record.value.get("spec") or {}).get("hard") or {},
                "used": used,
            }
            if record.value.get("status") != status:
                value = {**record.value, "status": status}
                self._cluster.store.replace("resourcequotas", value, record.revision)
