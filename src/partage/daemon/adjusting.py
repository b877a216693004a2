"""Follows the adjustments that running pods ask for, and the scheduler's reservations for them.

Each look goes through the node's pods from the API server; `agent.adjustment` decides. The agent writes a report with
the version of the pod that it read. If the pod has changed meanwhile, the API server refuses the report, and the next
look decides anew. Threads write journal and pages, because the event loop answers the runtime and must not wait for a
disk; containers start and end meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from partage.agent.adjustment import Aim, aim, as_asked, beyond, in_force
from partage.agent.container_admission import Keeper
from partage.agent.trouble import Rounds
from partage.kube import bodies
from partage.kube.client import Client
from partage.kube.errors import Conflict, KubeError, NotFound
from partage.model.adjustment import Grants, adjustable, most, within
from partage.model.allocation import Allocation
from partage.model.errors import InvalidValue
from partage.vendors import names
from partage.wire import shapes
from partage.wire.pod_phase import condition, finished
from partage.wire.record import decode, encode

_LOG: Final = logging.getLogger("partage.daemon")
_SHOWN: Final = 1000
_IN_FORCE: Final = "InForce"
_IN_USE: Final = "InUse"
_PERIOD: Final = 0.25
"""Seconds between two looks."""
_PAUSE: Final = 2.0
"""Seconds until the next try of amounts that did not fit, because a try reads all processes of the node."""
_FIXED: Final = "NotAdjustable"

Body = dict[str, Any]


class Adjusting:
    """The adjustments of one node's pods; `run` it."""

    name: Final = "adjusting"

    def __init__(
        self,
        keeper: Keeper,
        client: Client,
        node: str,
        pods: Callable[[], Sequence[shapes.Pod] | None],
        used: Callable[[], Mapping[str, Mapping[int, int]]] = dict,
        *,
        proc: Path = Path("/proc"),
    ) -> None:
        """Start without a look at the pods.

        `pods`: of the node; None while they are unknown. `used`: bytes by card and process, for cards whose driver
        reports them.
        """
        self._keeper, self._client, self._node, self._pods = keeper, client, node, pods
        self._used, self._proc = used, proc
        self._settled: dict[str, object] = {}
        self._told: dict[str, str] = {}
        self._again: dict[str, float] = {}
        self._plain: dict[str, str] = {}
        self._tried: dict[str, float] = {}
        self._busy: set[str] = set()
        """Namespaces for which this look has read processes: the others have their turn first."""

    async def run(self) -> None:
        """Follow until cancelled."""
        await Rounds("shares cannot be adjusted").every(_PERIOD, self.look)

    async def look(self) -> None:
        """Go through all pods once. Raises `OSError`: the journal cannot be updated."""
        pods = self._pods()
        if pods is None:
            return
        there = {one.metadata.uid or "": one for one in pods if one.metadata is not None}
        # A running container keeps its amounts without its pod. An error here prevents reports that the disk may lose.
        running = {one.uid for one in self._keeper.books.allocations}
        await asyncio.to_thread(self._keeper.journal.pods, there.keys() | running)
        known: dict[str, Any]
        for known in (self._settled, self._told, self._again, self._plain, self._tried):
            for uid in known.keys() - there.keys():
                del known[uid]
        self._busy.clear()
        for uid, pod in sorted(there.items(), key=lambda one: self._tried.get(one[0], 0.0)):
            metadata, before = pod.metadata or shapes.Metadata(), self._settled.get(uid)
            try:
                await self._look_at(uid, pod, metadata)
                if self._settled.get(uid) is not before:
                    self._told.pop(uid, None)  # the same problem would be a new one
            except (Conflict, NotFound):
                continue  # the pod has changed meanwhile, and the next look reads the change
            except (InvalidValue, OSError, KubeError) as error:
                if self._told.get(uid) != str(error):
                    where = f"{metadata.namespace}/{metadata.name}"
                    _LOG.warning("pod %s: its shares cannot be adjusted: %s", where, error)
                self._told[uid] = str(error)

    async def _look_at(self, uid: str, pod: shapes.Pod, metadata: shapes.Metadata) -> None:
        said = metadata.annotations or {}
        record, wish = said.get(names.ALLOCATION), said.get(names.ADJUST) or ""
        report = said.get(names.ENFORCED)
        if record is None or (not wish and report is None and self._plain.get(uid) == record):
            return  # nearly all pods
        held = self._keeper.amounts(uid)
        if held is None or finished(pod):
            return
        rooms = self._keeper.rooms_of(uid)
        seen = (record, wish, report, held, tuple(rooms.items()))
        early = asyncio.get_running_loop().time() < self._again.get(uid, 0.0)
        if early or self._settled.get(uid) == seen:
            return
        read = decode(record, uid, self._node)
        if read.problem:
            return
        aimed = aim(read.grants, wish, held)
        if report is None and aimed.grants == held and (not wish or not aimed.answered):
            await self._keep(uid, held)
            self._settled[uid] = seen
            if not wish:
                self._plain[uid] = record
            return
        fixed = self._keeper.fixed(uid)
        if fixed:
            if wish:
                await self._tell(pod, metadata, None, ("False", _FIXED, fixed))
            self._settled[uid] = seen
            return
        grants = await self._brought(uid, pod, metadata, aimed, held)
        if grants is not None:
            text = self._text(metadata, grants)
            there = tuple(self._keeper.rooms_of(uid).items())
            self._settled[uid] = (record, wish, text, grants, there)

    async def _brought(
        self, uid: str, pod: shapes.Pod, metadata: shapes.Metadata, aimed: Aim, held: Grants
    ) -> Grants | None:
        """Enforce a pod's aim and report it on the pod. Returns its grants now; None if it needs another look."""
        why, now, grants = "", held, aimed.grants
        if aimed.lowered != held:
            lowered = await self._lower(uid, metadata.namespace or "", aimed.lowered, held)
            if lowered is None:
                return None
            why, now = lowered, held if lowered else aimed.lowered
            grants = most(aimed.grants, now)
        full = "" if within(grants, now) else self._keeper.beside(uid, grants)
        if full:
            why, grants = why or full, now
        answer = None
        if why:
            answer = "False", _IN_USE, why
            self._again[uid] = asyncio.get_running_loop().time() + _PAUSE
        elif aimed.answered:
            answer = "True", _IN_FORCE, amounts_of(grants)
        await self._tell(pod, metadata, grants, answer, raised=not within(grants, now))
        if grants != now:
            await asyncio.to_thread(self._keeper.write_down, uid, grants)
            where = f"{metadata.namespace}/{metadata.name}"
            _LOG.info("pod %s: its shares are raised: %s", where, amounts_of(grants))
        await self._keep(uid, grants)
        return None if why else grants

    def _text(self, metadata: shapes.Metadata, grants: Grants) -> str:
        uid, namespace, name = metadata.uid or "", metadata.namespace or "", metadata.name or ""
        return encode(Allocation(uid, namespace, name, self._node, grants))

    async def _lower(self, uid: str, namespace: str, grants: Grants, held: Grants) -> str | None:
        """Enforce lower amounts. Returns the obstacle, empty without one; None if another look must do it.

        The old amounts stay if there is an obstacle. The agent reads the amounts in use before, so that no program is
        refused memory for nothing. It reads them again afterwards, because an allocation may have been in progress.
        Later allocations meet the new amounts.
        """
        entries, rooms = self._keeper.journal.entries, self._keeper.rooms_of(uid)
        if namespace in self._busy or not rooms.keys() <= entries.keys():
            return None
        self._busy.add(namespace)
        self._tried[uid] = asyncio.get_running_loop().time()
        planned = {
            key: replace(room, amounts=as_asked(room.amounts, entries[key].name, grants))
            for key, room in rooms.items()
        }
        for enforced in (False, True):
            if enforced:
                await asyncio.to_thread(self._keeper.enforce, uid, grants)
            why = await asyncio.to_thread(beyond, planned, self._used(), self._proc)
            same = self._keeper.rooms_of(uid).keys() == rooms.keys()
            if why or not same or self._keeper.amounts(uid) != held:
                if self._keeper.amounts(uid) == held:
                    await self._keep(uid, held)
                return why or None
        await asyncio.to_thread(self._keeper.write_down, uid, grants)
        return ""

    async def _keep(self, uid: str, grants: Grants) -> None:
        """Enforce these amounts on a pod's containers, unless they are already in force."""
        entries, rooms = self._keeper.journal.entries, self._keeper.rooms_of(uid)
        known = {key: entries[key].name for key in rooms if key in entries}
        if len(known) < len(rooms) or not in_force(rooms, known, grants):
            await asyncio.to_thread(self._keeper.enforce, uid, grants)

    async def _tell(
        self,
        pod: shapes.Pod,
        metadata: shapes.Metadata,
        grants: Grants | None,
        answer: tuple[str, str, str] | None,
        *,
        raised: bool = False,
    ) -> None:
        """Report on the pod the most that is enforced from now on, and the answer to its wish."""
        body: Body = {
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        }
        if grants is not None:
            text = self._text(metadata, grants)
            raised = raised or (metadata.annotations or {}).get(names.ENFORCED) != text
            body["metadata"]["annotations"] = {names.ENFORCED: text}
        if answer is not None:
            told = answer[0], answer[1], answer[2][:_SHOWN]
            known = condition(pod, names.ADJUSTED_CONDITION)
            if told != (known and (known.status, known.reason, known.message)):
                now = self._client.clock.now()
                body["status"] = {
                    "conditions": [bodies.condition(names.ADJUSTED_CONDITION, *told, now)]
                }
        if not raised and "status" not in body:
            return
        await self._client.patch_pod_status(
            metadata.namespace or "", metadata.name or "", body, into=Body
        )


def amounts_of(grants: Grants) -> str:
    """Amounts of a pod's shares, for people."""
    return "; ".join(
        f"container {one.container}, card {one.minor}: {one.core_milli / 10:g} % compute, "
        f"{one.memory_bytes / 2**20:g} MiB memory"
        for one in grants
        if adjustable(one)
    )
