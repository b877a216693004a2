"""Follows changes in the API server for stand-ins in the same process, with the reads and writes that they share."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from operator import attrgetter
from typing import Any, Final

from partage.apiserver import ApiError, ApiServer, Change, Compacted, Record, User
from partage.apiserver.metadata import timestamp

_LOG: Final = logging.getLogger("partage.embedded")
_LONGEST: Final = 1024
_SWEEP: Final = 60.0
_KEPT: Final = 3600.0
STRATEGIC: Final = "application/strategic-merge-patch+json"
OVER: Final = ("Succeeded", "Failed")


Handler = Callable[[Change], Awaitable[None]]


async def follow_all(
    server: ApiServer, handlers: Mapping[str, Handler], *works: Coroutine[Any, Any, None]
) -> None:
    """Follows several resources, each with its handler, beside other works until cancelled."""
    async with asyncio.TaskGroup() as group:
        for resource, handle in handlers.items():
            group.create_task(follow(server, resource, handle), name=f"follow:{resource}")
        for work in works:
            group.create_task(work)


async def follow(server: ApiServer, resource: str, handle: Handler) -> None:
    """Reports every existing object, oldest write first, then every change.

    After it fell behind, it reports as deleted what is gone, and then every existing object again.

    It logs a change that cannot be handled, and continues with the next ones.
    """
    known: dict[str, Record] = {}
    while True:
        since = server.store.revision
        there = {
            one.uid: one for one in sorted(server.store.all(resource), key=attrgetter("revision"))
        }
        gone = [one for uid, one in known.items() if uid not in there]
        known = there
        for record in gone:
            await handled(handle, Change("DELETED", record, record))
        for record in list(there.values()):
            await handled(handle, Change("ADDED", record, None))
        try:
            async for change in server.changes(resource, since):
                if change.kind == "DELETED":
                    known.pop(change.record.uid, None)
                else:
                    known[change.record.uid] = change.record
                await handled(handle, change)
        except Compacted:
            continue
        return  # the server is closing


async def handled(handle: Handler, change: Change) -> None:
    """Handles a change; logs one that cannot be handled."""
    try:
        await handle(change)
    except ApiError as error:
        # Another writer was faster, or the object is gone; the next change repeats this.
        _LOG.debug("%s %s: %s", change.record.resource, change.record.name, error.message)
    except Exception:  # noqa: BLE001 # what follows must still be handled
        _LOG.exception("%s %s", change.record.resource, change.record.name)


def is_over(pod: Record) -> bool:
    """Whether a pod has ended."""
    return (pod.value.get("status") or {}).get("phase") in OVER


def node_user(node: str) -> User:
    """The user of a node's agents: its kubelet."""
    return User(f"system:node:{node}", ("system:nodes", "system:authenticated"))


def owner(value: Mapping[str, Any], kind: str, version: str) -> dict[str, Any]:
    """The reference that makes an object depend on this owner."""
    return {
        "apiVersion": version,
        "kind": kind,
        "name": value["metadata"]["name"],
        "uid": value["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


async def write_status(
    server: ApiServer, pod: Record, status: Mapping[str, Any], user: User
) -> None:
    """Write parts of the status of this very pod. Raises `ApiError`."""
    body = {"metadata": {"uid": pod.uid}, "status": status}
    where = ("pods", pod.namespace, pod.name, body)
    await server.patch(*where, sub="status", media=STRATEGIC, user=user)


def now(server: ApiServer) -> str:
    """The time in Kubernetes' format."""
    return timestamp(server.cluster.ambient.now())


async def tell(
    server: ApiServer,
    about: Record,
    reason: str,
    message: str,
    *,
    user: User,
    warning: bool = False,
    each: bool = False,
) -> None:
    """Writes an event about an object; a repeated reason renews it and increases its count.

    Args:
        user: the writer; its last part is the event's source.
        each: whether another message is another event.
    """
    head = about.metadata
    namespace = head.get("namespace") or "default"
    moment = now(server)
    component = user.name.rpartition(":")[2]
    subject = (
        f"{head.get('uid') or head['name']}/{component}/{reason}{f'/{message}' if each else ''}"
    )
    name = f"{head['name'][:200].lower().rstrip('-.')}.{hashlib.sha256(subject.encode()).hexdigest()[:16]}"
    event = {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": about.value["apiVersion"],
            "kind": about.value["kind"],
            "name": head["name"],
            "namespace": head.get("namespace", ""),
            "uid": head.get("uid", ""),
            "resourceVersion": head.get("resourceVersion", ""),
        },
        "reason": reason,
        "type": "Warning" if warning else "Normal",
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": moment,
    }
    known = server.store.get("events", namespace, name)
    count = 1 + (known.value.get("count") or 1) if known is not None else 1
    latest = {"message": message[:_LONGEST], "lastTimestamp": moment, "count": count}
    try:
        if known is None:
            await server.create("events", {**event, **latest}, namespace, user)
        else:
            await server.patch("events", namespace, name, latest, user=user)
    except ApiError as error:
        _LOG.debug("an event on %s was refused: %s", head["name"], error.message)


async def forget_old_events(server: ApiServer) -> None:
    """Deletes events that were not repeated for an hour, as a genuine API server does."""
    while True:
        await asyncio.sleep(_SWEEP)
        oldest = timestamp(server.cluster.ambient.now() - _KEPT)
        for record in list(server.store.all("events")):
            last = record.value.get("lastTimestamp") or record.metadata["creationTimestamp"]
            if last < oldest:
                with contextlib.suppress(ApiError):
                    await server.delete("events", record.namespace, record.name)
