"""The stand-in for the controller that deletes pods from nodes with a `NoExecute` taint.

A pod that does not tolerate the taint is deleted at once. A pod that tolerates it for some seconds is deleted after
these, unless the taint is gone by then. A pod that tolerates it for ever stays.

Source: `pkg/controller/tainteviction` of Kubernetes 1.36, as far as users see it.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from partage.apiserver import ApiError, ApiServer, Change, DeleteOptions, Record, User
from partage.embedded.watching import STRATEGIC, follow_all, is_over, now, tell
from partage.model.selector import Taint, Toleration

_USER: Final = User("system:serviceaccount:kube-system:taint-eviction-controller")
_EFFECT: Final = "NoExecute"


@dataclass(frozen=True, slots=True)
class _Due:
    """A pod to delete, and the time by the loop's clock."""

    namespace: str
    name: str
    moment: float


class TaintEvictions:
    """The controller."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._due: dict[str, _Due] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow nodes and pods until cancelled."""
        handlers = {"nodes": self._node, "pods": self._pod}
        await follow_all(self._server, handlers, self._evict())

    async def _node(self, change: Change) -> None:
        before = change.before.value if change.before is not None else {}
        if change.kind == "DELETED" or _taints(before) == _taints(change.record.value):
            return
        for pod in list(self._server.store.all("pods")):
            if _node_of(pod) == change.record.name:
                self._judge(pod, _taints(change.record.value))

    async def _pod(self, change: Change) -> None:
        pod = change.record
        node = self._server.store.get("nodes", "", _node_of(pod)) if _node_of(pod) else None
        if change.kind == "DELETED" or node is None:
            self._due.pop(pod.uid, None)
        else:
            self._judge(pod, _taints(node.value))

    def _judge(self, pod: Record, taints: tuple[Taint, ...]) -> None:
        seconds = patience(pod.value.get("spec") or {}, taints)
        if seconds is None or is_over(pod) or pod.metadata.get("deletionTimestamp"):
            self._due.pop(pod.uid, None)
        elif pod.uid not in self._due or not seconds:  # another taint may not be tolerated at all
            moment = asyncio.get_running_loop().time() + seconds
            self._due[pod.uid] = _Due(pod.namespace, pod.name, moment)
            self._changed.set()

    async def _evict(self) -> None:
        while True:
            loop = asyncio.get_running_loop()
            for uid, due in list(self._due.items()):
                if due.moment <= loop.time():
                    self._due.pop(uid, None)
                    await self._send_away(uid, due)
            nearest = min((due.moment for due in self._due.values()), default=None)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(nearest):
                    await self._changed.wait()
            self._changed.clear()

    async def _send_away(self, uid: str, due: _Due) -> None:
        pod = self._server.store.get("pods", due.namespace, due.name)
        if pod is None or pod.uid != uid:
            return
        said = f"Marking for deletion Pod {due.namespace}/{due.name}"
        await tell(self._server, pod, "TaintManagerEviction", said, user=_USER)
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": now(self._server),
        }
        where = ("pods", due.namespace, due.name)
        with suppress(ApiError):  # it is gone, or in deletion
            body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
            await self._server.patch(*where, body, sub="status", media=STRATEGIC, user=_USER)
            await self._server.delete(*where, DeleteOptions(uid=uid), _USER)


def patience(spec: Mapping[str, Any], taints: tuple[Taint, ...]) -> float | None:
    """Seconds that a pod may stay on a node with these taints; None for ever."""
    least: float | None = None
    for taint in taints:
        tolerated = [one for one in spec.get("tolerations") or () if _tolerates(one, taint)]
        if not tolerated:
            return 0.0
        for one in tolerated:
            seconds = one.get("tolerationSeconds")
            if seconds is not None:
                least = max(0.0, seconds if least is None else min(least, seconds))
    return least


def _tolerates(one: Mapping[str, Any], taint: Taint) -> bool:
    known = {key: one[key] for key in ("key", "operator", "value", "effect") if one.get(key)}
    return Toleration(**known).tolerates(taint)


def _node_of(pod: Record) -> str:
    return str((pod.value.get("spec") or {}).get("nodeName") or "")


def _taints(node: Mapping[str, Any]) -> tuple[Taint, ...]:
    return tuple(
        Taint(str(one.get("key")), str(one.get("value") or ""), _EFFECT)
        for one in (node.get("spec") or {}).get("taints") or ()
        if one.get("effect") == _EFFECT
    )
