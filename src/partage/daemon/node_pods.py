"""Mirrors the pods of an agent's own node."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from partage.daemon.watched import LivePod
from partage.kube.client import Client
from partage.kube.informer import Informer
from partage.kube.mirror import Change, Interrupted, Odd
from partage.kube.objects import Key
from partage.kube.resources import PODS, Scope

_LOG: Final = logging.getLogger("partage.daemon")
_PAUSE: Final = 0.25
"""Seconds between two calls of `changed`: it may read all pods, and a tenant may change one as often as he likes."""


class NodePods:
    """The pods of one node; `run` it."""

    def __init__(self, client: Client, node: str, changed: Callable[[], None]) -> None:
        """Call `changed` soon after changes, once for many; log each problem of reading once."""
        self._node, self._changed = node, changed
        self._problem = ""
        self._news = asyncio.Event()
        scope = Scope(PODS, fields=f"spec.nodeName={node}")
        self._informer = Informer(client, scope, into=LivePod, observer=self._heard)

    @property
    def objects(self) -> Mapping[Key, LivePod] | None:
        """The pods by key; None until the API server has listed them."""
        return self._informer.objects if self._informer.synced.is_set() else None

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run(), name="agent:pods")
            tasks.create_task(self._tell(), name="agent:pods-told")

    def _heard(self, change: Change[LivePod]) -> None:
        if isinstance(change, Interrupted | Odd):
            why = str(change.error if isinstance(change, Interrupted) else change.problem)
            if why != self._problem:
                _LOG.warning("pods of node %s cannot be read: %s", self._node, why)
            self._problem = why
            return
        self._problem = ""
        self._news.set()

    async def _tell(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._changed()
            await asyncio.sleep(_PAUSE)
