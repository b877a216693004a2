"""Bindings, reads and node locks over the API server.

Pods are bound and changed only while this instance leads, because a leader that has lost its lease
must not write, even before it notices the loss. Errors become the three outcomes of `extender.ports`.
An error that leaves the outcome open becomes `UNKNOWN`, and the caller reads the pod.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from partage.daemon.watched import LivePod, as_document
from partage.extender.ports import Answered, Binding, Outcome
from partage.kube.bodies import condition
from partage.kube.client import Client
from partage.kube.errors import Conflict, KubeError, NotFound, RequestError
from partage.kube.errors import Outcome as Known
from partage.kube.objects import Annotated
from partage.kube.resources import NODES, PODS
from partage.vendors import names
from partage.wire.documents import Document

_LOG: Final = logging.getLogger("partage.daemon")
_SHOWN: Final = 1000
_OVER: Final = "this instance does not lead any more"
_TRIES: Final = 5
"""Tries of a change to a node that others also change."""


class ApiPods:
    """Binds pods and changes bound ones; see `extender.ports.Binder` and `extender.adjustments.Amender`."""

    def __init__(
        self, client: Client, may_write: Callable[[], bool], within: float | None = None
    ) -> None:
        """Over an open client.

        Args:
            may_write: whether this instance leads now.
            within: seconds from the check whether this instance leads to the end of a write, with all
                tries and the API server's own time; None for no limit.
        """
        self._client, self._may_write, self._within = client, may_write, within

    def _until(self) -> float | None:
        """The end of a write that begins now; None for no limit.

        It is taken before the check whether this instance leads, so that a process that pauses after the check runs
        out of time.
        """
        return None if self._within is None else self._client.clock.monotonic() + self._within

    async def bind(self, binding: Binding) -> Answered:
        """Send the Binding."""
        until = self._until()
        if not self._may_write():
            return Answered(Outcome.REFUSED, _OVER)
        try:
            await self._client.bind(
                binding.namespace,
                binding.name,
                binding.node,
                uid=binding.uid,
                annotations=binding.annotations,
                labels=binding.labels,
                until=until,
            )
        except Conflict as error:
            # Perhaps with itself: what is between may repeat a request whose first answer was lost.
            return Answered(Outcome.UNKNOWN, str(error), ended=True)
        except RequestError as error:
            return answer_of(error)
        return Answered(Outcome.DONE)

    async def read(self, namespace: str, name: str) -> Document | None:
        """The pod as the API server has it now; None if there is none. Raises `KubeError`."""
        try:
            pod = await self._client.get(PODS, name, namespace=namespace, into=LivePod)
        except NotFound:
            return None
        return as_document("Pod", pod)

    async def amend(self, pod: Document, annotations: Mapping[str, str]) -> Answered:
        """Write annotations on a pod, if its version is still that of this document."""
        until = self._until()
        if not self._may_write():
            return Answered(Outcome.REFUSED, _OVER)
        metadata = {
            "uid": pod.metadata.uid,
            "resourceVersion": pod.metadata.resource_version,
            "annotations": dict(annotations),
        }
        try:
            await self._client.patch(
                PODS,
                pod.name,
                {"metadata": metadata},
                namespace=pod.namespace,
                into=msgspec.Raw,
                until=until,
            )
        except Conflict as error:  # perhaps with itself, as in `bind`
            return Answered(Outcome.UNKNOWN, str(error))
        except RequestError as error:
            return answer_of(error)
        return Answered(Outcome.DONE)

    async def answer(self, pod: Document, reason: str, message: str) -> None:
        """Report on a pod why it is not adjusted; a failed write is not repeated before the next reason."""
        if not self._may_write():
            return
        now = self._client.clock.now()
        told = condition(names.ADJUSTED_CONDITION, "False", reason, message[:_SHOWN], now)
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [told]}}
        try:
            await self._client.patch_pod_status(pod.namespace, pod.name, body, into=msgspec.Raw)
        except KubeError as error:
            _LOG.warning("%s: cannot write that its share is not adjusted: %s", pod.label, error)


class _Node(msgspec.Struct, frozen=True):
    metadata: Annotated


class ApiNodeLocks:
    """Locks in annotations of nodes; see `extender.ports.NodeLocks`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def take(
        self, node: str, annotations: Mapping[str, str], instead: Mapping[str, str]
    ) -> Answered:
        """Write the annotations, unless one of the keys already has a value that is in neither argument."""
        for _ in range(_TRIES):
            try:
                version, found = await self._read(node)
                held = {
                    key: found[key]
                    for key, value in annotations.items()
                    if key in found and found[key] not in {value, instead.get(key)}
                }
                if held:
                    # The message omits the values, because they name pods and people of other namespaces read it.
                    told = f"others have {', '.join(held)}"
                    return Answered(Outcome.REFUSED, told, held=held)
                if any(found.get(key) != value for key, value in annotations.items()):
                    await self._write(node, version, dict(annotations))
            except Conflict:
                continue
            except RequestError as error:
                return answer_of(error)
            return Answered(Outcome.DONE)
        return Answered(Outcome.REFUSED, "others keep changing the node")

    async def give_back(self, node: str, annotations: Mapping[str, str]) -> bool:
        """Remove the annotations that still have these values. Returns whether any had. Raises `KubeError`."""
        for left in reversed(range(_TRIES)):
            try:
                version, held = await self._read(node)
                ours = {k: None for k, value in annotations.items() if held.get(k) == value}
                if ours:
                    await self._write(node, version, ours)
                return bool(ours)
            except NotFound:
                break
            except Conflict:
                if not left:
                    raise
        return False

    async def _read(self, node: str) -> tuple[str, dict[str, str]]:
        found = await self._client.get(NODES, node, into=_Node)
        return found.metadata.resource_version, found.metadata.annotations or {}

    async def _write(self, node: str, version: str, annotations: Mapping[str, Any]) -> None:
        body = {"metadata": {"resourceVersion": version, "annotations": annotations}}
        await self._client.patch(NODES, node, body, into=_Node)


def answer_of(error: RequestError) -> Answered:
    """The outcome of a request that ended with this error."""
    done = error.outcome is Known.DONE
    known = done or error.outcome in {Known.REFUSED, Known.FINAL}
    outcome = (Outcome.DONE if done else Outcome.REFUSED) if known else Outcome.UNKNOWN
    return Answered(outcome, str(error))
