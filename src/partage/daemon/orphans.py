"""Kills the containers of pods that were deleted by force, so that they keep no card from others.

A forced deletion takes a pod out of the API at once, and its share is free in the ledger. The kubelet ends the container
soon after, unless the pod was deleted normally before: then the container keeps that deletion's grace period, to which
Kubernetes sets no bound. Meanwhile it holds the card, and pods that are bound there are refused, by the agent (`CardFull`) or
by the kubelet, which counts the container's units.

The agent kills a container only if all of this is true:

* A container or a claim was refused here for a full card in the last two minutes; or the agent watches pods for the kubelet
  and the pod is none of them (`PodGone`).
* The API server reports at two looks, at least `period` seconds apart, that the pod does not exist. Another pod of the
  same name does not count as the pod.
* At both looks it reports this node, so it is this node's API server and it answers.
* The container is in the journal and in the runtime.

The kubelet ends a pod that the API server does not have for the same reason and earlier, so this takes nothing from a pod
that the kubelet would keep. The agent sees the processes only with the host's process table (`hostPID`).
"""

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

from partage.agent.container_admission import Keeper
from partage.agent.injection import Rule
from partage.agent.isolation.processes import kill
from partage.agent.journal import Entry
from partage.agent.trouble import Rounds
from partage.kube.client import Client
from partage.kube.errors import KubeError, NotFound
from partage.kube.resources import NODES, PODS

_LOG: Final = logging.getLogger("partage.daemon")
_RECENT: Final = 120.0
"""Seconds for which a refusal counts; the kubelet tries a refused container again much sooner."""

Body = dict[str, Any]


class Orphans:
    """The orphaned containers of one node; `run` it."""

    name: Final = "orphans"

    def __init__(
        self,
        client: Client,
        keeper: Keeper,
        node: str,
        period: float = 30.0,
        proc: Path = Path("/proc"),
    ) -> None:
        """Kill nothing yet; `period`: seconds between two looks."""
        self._client, self._keeper, self._node = client, keeper, node
        self._period, self._proc = period, proc
        self._refusals = _refusals(keeper)
        self._refused: float | None = None
        self._gone: dict[str, float] = {}
        """By UID, when a pod was first seen to be gone."""
        self._logged: set[str] = set()
        self._killed: set[str] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        rounds = Rounds("pods that no longer exist cannot be found", KubeError)
        await rounds.every(self._period, self.look)

    async def look(self) -> None:
        """Ask about the pods that may be gone, and kill what outlives its pod. Raises `KubeError`, `OSError`."""
        now, refusals = self._client.clock.monotonic(), _refusals(self._keeper)
        if refusals != self._refusals:
            self._refusals, self._refused = refusals, now
        full = self._refused is not None and now - self._refused <= _RECENT
        running = self._keeper.books.running or {}
        here = [
            one
            for one in list(self._keeper.journal.entries.values())
            # A claim's entry by an earlier agent does not name its pod.
            if one.container in running
            and running[one.container].uid == one.pod_uid
            and (full or one.pod_uid in self._keeper.orphaned)
        ]
        whose = {one.pod_uid: one.pod for one in here}
        self._gone = {uid: at for uid, at in self._gone.items() if uid in whose}
        self._logged &= {one.container for one in here}
        self._killed &= {one.container for one in here}
        if not whose:
            return
        await self._client.get(NODES, self._node, into=Body)
        for uid, pod in whose.items():
            if await self._exists(uid, pod):
                self._gone.pop(uid, None)
            elif now - self._gone.setdefault(uid, now) >= self._period:
                for one in here:
                    if one.pod_uid == uid:
                        await self._kill(one)

    async def _exists(self, uid: str, pod: str) -> bool:
        namespace, _, name = pod.partition("/")
        try:
            found = await self._client.get(PODS, name, namespace=namespace, into=Body)
        except NotFound:
            return False
        return bool(found["metadata"]["uid"] == uid)

    async def _kill(self, one: Entry) -> None:
        where = f"pod {one.pod}, container {one.name}"
        try:
            killed = await asyncio.to_thread(kill, one.container, self._proc)
        except PermissionError as error:
            killed, why = 0, f"{error.strerror} (CAP_KILL)"
        else:
            why = "the agent sees none of its processes (hostPID)"
        if killed and one.container not in self._killed:
            self._killed.add(one.container)
            self._keeper.tallies.killed.inc()
            _LOG.warning(
                "%s: killed, as its pod does not exist any more: %d processes", where, killed
            )
        elif one.container not in self._logged and (killed or one.container not in self._killed):
            self._logged.add(one.container)
            why = "it was killed, and has not ended" if killed else f"it cannot be killed: {why}"
            _LOG.warning("%s: its pod does not exist, and %s", where, why)


def _refusals(keeper: Keeper) -> float:
    """The refusals for a full card since the agent started, of containers and of claims."""
    return sum(
        sample.value
        for counter in (keeper.tallies.refused, keeper.tallies.claim_failures)
        for metric in counter.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels.get("rule") == Rule.CARD_FULL
    )
