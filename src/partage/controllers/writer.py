"""Writes the controllers' changes, each minimal and bound to the object's uid.

A patch contains only differences, so it does not undo a simultaneous write of another program. Its uid protects
a new object with the same name. The API server's answer is the object's newest state. It goes into the picture
at once, before the watch reports it.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from partage.controllers.meters import ControllerMeters
from partage.kube.client import Client, PatchKind
from partage.kube.clock import time_text
from partage.kube.errors import Conflict, Invalid, KubeError, NotFound
from partage.kube.resources import NODES, PODS, Resource
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.pod_phase import finished

T = TypeVar("T")

_KINDS: Final[Mapping[str, tuple[Resource, type[shapes.Shape]]]] = {
    "Node": (NODES, shapes.Node),
    "Pod": (PODS, shapes.Pod),
}


class Writer:
    """Writes through one client, and counts the requests `sent`."""

    def __init__(self, client: Client, meters: ControllerMeters) -> None:
        self._client = client
        self._meters = meters
        self.sent = 0

    async def node_status(self, node: Document, status: Mapping[str, Any]) -> Document | None:
        """Change a node's status; its new state, or None if the node is gone. Raises `KubeError`: look again."""
        return await self._changed("node_status", node, {"status": status}, "status")

    async def labels(self, document: Document, labels: Mapping[str, str]) -> Document | None:
        """Set labels of a node or pod; otherwise as `node_status`."""
        what = f"{document.kind.lower()}_labels"
        return await self._changed(what, document, {"metadata": {"labels": dict(labels)}})

    async def unlock(self, node: Document, annotation: str, text: str) -> None:
        """Remove a vendor's lock from a node, if it still is this one. Raises `KubeError`: see `node_status`."""
        path = "/metadata/annotations/" + annotation.replace("~", "~0").replace("/", "~1")
        steps = [{"op": "test", "path": path, "value": text}, {"op": "remove", "path": path}]
        await self._counted(
            "node_lock",
            self._client.patch(NODES, node.name, steps, kind=PatchKind.JSON, into=msgspec.Raw),
        )

    async def pod_condition(self, pod: Document, condition: Mapping[str, str]) -> Document | None:
        """Set a condition of a pod and leave the others; otherwise as `node_status`."""
        now = time_text(self._client.clock.now())
        status = {"conditions": [{**condition, "lastTransitionTime": now}]}
        kind = PatchKind.STRATEGIC
        return await self._changed("pod_condition", pod, {"status": status}, "status", kind)

    async def is_over(self, namespace: str, name: str) -> bool:
        """Whether a pod is gone or finished by the API server's present answer. Raises `KubeError`."""
        self.sent += 1
        try:
            pod = await self._client.get(PODS, name, namespace=namespace, into=shapes.Pod)
        except NotFound:
            return True
        return finished(pod)

    async def _changed(
        self,
        what: str,
        document: Document,
        body: Mapping[str, Any],
        subresource: str = "",
        kind: PatchKind = PatchKind.MERGE,
    ) -> Document | None:
        """Apply a patch to this very object only."""
        (resource, into), uid = _KINDS[document.kind], document.metadata.uid
        head = {**({"uid": uid} if uid else {}), **body.get("metadata", {})}
        request = self._client.patch(
            resource,
            document.name,
            {**body, "metadata": head} if head else body,
            kind=kind,
            namespace=document.namespace or None,
            subresource=subresource,
            into=into,
        )
        found = await self._counted(what, request)
        return None if found is None else Document(document.kind, "api", 1, found)

    async def _counted(self, what: str, request: Awaitable[T]) -> T | None:
        self.sent += 1
        try:
            found = await request
        except NotFound:
            self._meters.writes.labels(what, "gone").inc()
            return None
        except KubeError as error:
            outcome = "conflict" if _is_another(error) else "failed"
            self._meters.writes.labels(what, outcome).inc()
            raise
        self._meters.writes.labels(what, "done").inc()
        return found


def _is_another(error: KubeError) -> bool:
    """Whether the object is another one than intended; kube-apiserver reports this in either way."""
    return isinstance(error, Conflict) or (
        isinstance(error, Invalid) and "metadata.uid" in error.text
    )
