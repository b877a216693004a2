"""Writes the controllers' changes, each minimal and bound to the object's uid.

A patch contains only differences, so it does not undo a simultaneous write of another program. Its uid protects
a new object with the same name. The API server's answer is the object's newest state. It goes into the picture
at once, before the watch reports it.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import msgspec

from partage.controllers.meters import ControllerMeters
from partage.kube.client import Client, PatchKind
from partage.kube.clock import time_text
from partage.kube.errors import Conflict, Invalid, KubeError, NotFound
from partage.kube.resources import NODES, PODS
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.pod_phase import finished

T = TypeVar("T")


class Writer:
    """Writes through one client, and counts the requests `sent`."""

    def __init__(self, client: Client, meters: ControllerMeters) -> None:
        self._client = client
        self._meters = meters
        self.sent = 0

    async def node_status(self, node: Document, status: Mapping[str, Any]) -> Document | None:
        """Change a node's status; its new state, or None if the node is gone. Raises `KubeError`: look again."""
        body = _patch(node, {"status": status})
        request = self._client.patch(
            NODES, node.name, body, subresource="status", into=shapes.Node
        )
        return _document("Node", await self._counted("node_status", request))

    async def node_labels(self, node: Document, labels: Mapping[str, str]) -> Document | None:
        """Set labels of a node; otherwise as `node_status`."""
        body = _patch(node, {}, {"labels": dict(labels)})
        request = self._client.patch(NODES, node.name, body, into=shapes.Node)
        return _document("Node", await self._counted("node_labels", request))

    async def unlock(self, node: Document, annotation: str, text: str) -> None:
        """Remove a vendor's lock from a node, if it still is this one. Raises `KubeError`: see `node_status`."""
        path = "/metadata/annotations/" + annotation.replace("~", "~0").replace("/", "~1")
        steps = [{"op": "test", "path": path, "value": text}, {"op": "remove", "path": path}]
        await self._counted(
            "node_lock",
            self._client.patch(NODES, node.name, steps, kind=PatchKind.JSON, into=msgspec.Raw),
        )

    async def pod_labels(self, pod: Document, labels: Mapping[str, str]) -> Document | None:
        """Set labels of a pod; otherwise as `node_status`."""
        body = _patch(pod, {}, {"labels": dict(labels)})
        request = self._client.patch(
            PODS, pod.name, body, namespace=pod.namespace, into=shapes.Pod
        )
        return _document("Pod", await self._counted("pod_labels", request))

    async def pod_condition(self, pod: Document, condition: Mapping[str, str]) -> Document | None:
        """Set a condition of a pod and leave the others; otherwise as `node_status`."""
        now = time_text(self._client.clock.now())
        status = {"conditions": [{**condition, "lastTransitionTime": now}]}
        request = self._client.patch_pod_status(
            pod.namespace, pod.name, _patch(pod, {"status": status}), into=shapes.Pod
        )
        return _document("Pod", await self._counted("pod_condition", request))

    async def is_over(self, namespace: str, name: str) -> bool:
        """Whether a pod is gone or finished by the API server's present answer. Raises `KubeError`."""
        self.sent += 1
        try:
            pod = await self._client.get(PODS, name, namespace=namespace, into=shapes.Pod)
        except NotFound:
            return True
        return finished(pod)

    async def _counted(self, what: str, request: Awaitable[T]) -> T | None:
        self.sent += 1
        try:
            found = await request
        except KubeError as error:
            if isinstance(error, NotFound):
                self._meters.writes.labels(what, "gone").inc()
                return None
            outcome = "conflict" if _is_another(error) else "failed"
            self._meters.writes.labels(what, outcome).inc()
            raise
        self._meters.writes.labels(what, "done").inc()
        return found


def _document(kind: str, found: shapes.Shape | None) -> Document | None:
    return None if found is None else Document(kind, "api", 1, found)


def _is_another(error: KubeError) -> bool:
    """Whether the object is another one than intended; kube-apiserver reports this in either way."""
    return isinstance(error, Conflict) or (
        isinstance(error, Invalid) and "metadata.uid" in error.text
    )


def _patch(
    document: Document, body: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A patch that applies to this very object only."""
    uid = document.metadata.uid
    meta = {**({"uid": uid} if uid else {}), **(metadata or {})}
    return {**body, "metadata": meta} if meta else dict(body)
