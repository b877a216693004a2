"""The stand-in for kube-scheduler: the loop that finds pods without a node and asks the extender.

It talks to the scheduler service over HTTP exactly as kube-scheduler does: filter with node names,
prioritize, bind. What kube-scheduler checks itself is in `rooms`. One pod is decided at a time, in
order of priority and then of arrival; Bindings run beside that, because the extender keeps what it
has promised.

A pod that was refused is tried again when something happens that may help it: it changed (the
service wakes whoever may fit now by writing an annotation), a node or a setting changed, or, where
ordinary resources were short, another pod has ended.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from partage.apiserver import ApiError, ApiServer, Change, Record, User
from partage.embedded.rooms import Asker, Rooms, Survey, asker
from partage.embedded.watching import follow, now, tell
from partage.model.errors import InvalidDocument
from partage.wire.context import Context

__all__ = ["KubeScheduler", "Pending", "Ports"]

_LOG: Final = logging.getLogger("partage.embedded")
_USER: Final = User("system:kube-scheduler", ("system:authenticated",))
_OVER: Final = ("Succeeded", "Failed")
_CONFIGS: Final = ("priorityclasses.scheduling.k8s.io",)
"""What makes all waiting pods worth another try; a genuine one follows no ConfigMap and no quota."""
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_BINDS: Final = 64
"""Bindings on their way at a time."""
_FLUSH: Final = 15.0
"""Seconds after which whoever waits is tried again though nothing is known to have happened."""
_BACKOFF: Final = 0.2
_LONGEST: Final = 5.0
_PATIENCE: Final = 10.0
"""Seconds for an answer, as the chart sets it for kube-scheduler."""


class _Filtered(msgspec.Struct, rename="pascal"):
    """What filter answers."""

    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str | None = None


class _Score(msgspec.Struct, rename="pascal"):
    """One node's score."""

    host: str
    score: int


class _Bound(msgspec.Struct, rename="pascal"):
    """What bind answers."""

    error: str | None = None


@dataclass(slots=True)
class Pending:
    """A pod without a node.

    Attributes:
        record: as it was last seen.
        order: its place in the queue.
        queued: whether it is in the queue.
        short: whether it was refused for ordinary resources.
        told: what its condition says.
        failures: Bindings that failed in a row.
        busy: its Binding is on its way.
    """

    record: Record
    order: tuple[int, str, int]
    queued: bool = False
    short: bool = False
    told: str = ""
    failures: int = 0
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Ports:
    """What the loop needs to know from its neighbours.

    Attributes:
        url: where the scheduler service answers, without a trailing slash.
        served: names of schedulers whose pods it decides.
        context: what pods are read against now.
        reason: why a pod was refused, by its uid; empty when nothing is known.
    """

    url: str
    served: frozenset[str]
    context: Callable[[], Context]
    reason: Callable[[str], str] = field(default=lambda _uid: "")


class KubeScheduler:
    """The loop.

    Attributes:
        conflicts: Bindings that did not succeed.
        bound: Bindings that did.
    """

    def __init__(self, server: ApiServer, ports: Ports) -> None:
        self._server = server
        self._ports = ports
        self._rooms = Rooms()
        self._pending: dict[str, Pending] = {}
        self._queue: list[tuple[tuple[int, str, int], str]] = []
        self._ready = asyncio.Event()
        self._read_before: dict[str, tuple[Context, tuple[Any, ...], Asker]] = {}
        self._arrived = 0
        self._binding: set[asyncio.Task[None]] = set()
        self.conflicts = 0
        self.bound = 0

    async def run(self) -> None:
        """Schedule until cancelled."""
        timeout = aiohttp.ClientTimeout(total=_PATIENCE)
        connector = aiohttp.TCPConnector(limit=_BINDS + 1)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(follow(self._server, "nodes", self._node))
                    group.create_task(follow(self._server, "pods", self._pod))
                    for resource in _CONFIGS:
                        group.create_task(follow(self._server, resource, self._config))
                    group.create_task(self._flush())
                    group.create_task(self._decide(session))
            finally:
                for task in self._binding:
                    task.cancel()
                await asyncio.gather(*self._binding, return_exceptions=True)

    # --- what happens ------------------------------------------------------------------------

    async def _node(self, change: Change) -> None:
        record = change.record
        if change.kind == "DELETED":
            self._rooms.node_gone(record.name)
        elif self._rooms.node_changed(record.value, self._ports.context()):
            self._again(self._pending.values())

    async def _config(self, change: Change) -> None:
        if change.before is not None:
            self._again(self._pending.values())

    async def _pod(self, change: Change) -> None:
        record = change.record
        spec, status = record.value.get("spec") or {}, record.value.get("status") or {}
        node = spec.get("nodeName")
        over = change.kind == "DELETED" or status.get("phase") in _OVER
        if over:
            self._pending.pop(record.uid, None)
            self._read_before.pop(record.uid, None)
            if self._rooms.leave(record.uid):
                self._again(one for one in self._pending.values() if one.short)
        elif node:
            self._pending.pop(record.uid, None)
            if self._rooms.holds(record.uid, node):
                return
            found = self._read(record)
            if found is not None:
                self._rooms.place(record.uid, node, found.pod.host)
        elif spec.get("schedulerName") in self._ports.served:
            self._waits(change)

    def _waits(self, change: Change) -> None:
        """A pod without a node is there, or has changed."""
        record, known = change.record, self._pending.get(change.record.uid)
        if record.metadata.get("deletionTimestamp") or record.value["spec"].get("schedulingGates"):
            self._pending.pop(record.uid, None)
            return
        if known is None:
            self._arrived += 1
            priority = record.value["spec"].get("priority") or 0
            born = str(record.metadata.get("creationTimestamp") or "")
            known = Pending(record, (-priority, born, self._arrived))
            self._pending[record.uid] = known
            self._again([known])
            return
        before, known.record = known.record, record
        if _gist(before) != _gist(record):
            self._again([known])

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH)
            self._again(self._pending.values())

    def _again(self, pods: Iterable[Pending]) -> None:
        """Puts pods into the queue; one whose Binding is on its way is tried again if it fails."""
        for one in list(pods):
            if not one.queued and not one.busy:
                one.queued = True
                heapq.heappush(self._queue, (one.order, one.record.uid))
                self._ready.set()

    def _read(self, record: Record) -> Asker | None:
        """The pod as kube-scheduler sees it; read once, as long as nothing that counts changes."""
        context = self._ports.context()
        known = self._read_before.get(record.uid)
        if known is not None and known[0] is context and known[1] == _gist(record):
            return known[2]
        try:
            found = asker(record.value, context)
        except InvalidDocument as error:
            _LOG.warning("pod %s/%s: %s", record.namespace, record.name, error)
            return None
        self._read_before[record.uid] = (context, _gist(record), found)
        return found

    # --- deciding ----------------------------------------------------------------------------

    async def _decide(self, session: aiohttp.ClientSession) -> None:
        while True:
            while not self._queue:
                self._ready.clear()
                await self._ready.wait()
            _, uid = heapq.heappop(self._queue)
            pending = self._pending.get(uid)
            if pending is None:
                continue
            pending.queued = False
            # Whoever is tried again comes after those who have not been tried since.
            self._arrived += 1
            pending.order = (pending.order[0], now(self._server), self._arrived)
            while len(self._binding) >= _BINDS:
                await asyncio.wait(self._binding, return_when=asyncio.FIRST_COMPLETED)
            try:
                await self._try(session, pending)
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
                reason = str(error) or type(error).__name__
                await self._refuse(pending, f"the scheduler service does not answer: {reason}")
                self._later(pending)

    async def _try(self, session: aiohttp.ClientSession, pending: Pending) -> None:
        found = self._read(pending.record)
        if found is None:
            await self._refuse(pending, "the pod cannot be read")
            return
        survey = self._rooms.survey(found.pod)
        pending.short = bool(survey.short)
        if not survey.fitting:
            await self._refuse(pending, survey.summary())
            return
        node = await self._chosen(session, pending, survey)
        if not node:
            return
        self._rooms.place(pending.record.uid, node, found.pod.host)
        pending.busy = True
        task = asyncio.create_task(self._bind(session, pending, node))
        self._binding.add(task)
        task.add_done_callback(self._binding.discard)

    async def _chosen(
        self, session: aiohttp.ClientSession, pending: Pending, survey: Survey
    ) -> str:
        """The node that the pod goes to; empty when it was refused."""
        names = await self._filter(session, pending, survey)
        if len(names) > 1:
            return await self._best(session, pending.record, names)
        return names[0] if names else ""

    async def _filter(
        self, session: aiohttp.ClientSession, pending: Pending, survey: Survey
    ) -> list[str]:
        """Nodes that the extender finds fit; none when the pod was refused."""
        first = (pending.record.value.get("status") or {}).get("nominatedNodeName")
        asked = [[first]] if first in survey.fitting else []
        for names in (*asked, survey.fitting):
            body = self._body(pending.record, names)
            answer = await self._ask(session, "filter", body, _Filtered)
            fitting: list[str] = answer.node_names or []
            if fitting:
                return fitting
        if answer.error:  # not a refusal: kube-scheduler tries again after a while
            await self._refuse(pending, answer.error)
            self._later(pending)
            return []
        told = self._ports.reason(pending.record.uid)
        if not told:
            told = survey.summary()
        elif short := survey.shortages():
            told = f"{told}; {short}"
        await self._refuse(pending, told)
        return []

    async def _best(self, session: aiohttp.ClientSession, record: Record, names: list[str]) -> str:
        scores = await self._ask(session, "prioritize", self._body(record, names), list[_Score])
        points = {one.host: one.score for one in scores}
        return max(names, key=lambda name: (points.get(name, 0), self._rooms.idleness(name)))

    async def _bind(self, session: aiohttp.ClientSession, pending: Pending, node: str) -> None:
        record = pending.record
        try:
            problem = await self._sent(session, record, node)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            problem = str(error) or type(error).__name__
        pending.busy = False
        if not problem:
            self.bound += 1
            await self._tell(record, "Scheduled", f"Successfully assigned {record.namespace}/"
                             f"{record.name} to {node}")  # fmt: skip
            return
        self.conflicts += 1
        self._rooms.leave(record.uid)
        if self._pending.get(record.uid) is not pending:
            return
        await self._refuse(pending, f"binding to {node} failed: {problem}")
        pending.failures += 1
        self._later(pending)

    async def _sent(self, session: aiohttp.ClientSession, record: Record, node: str) -> str:
        """Have the Binding sent; why the pod is not bound, empty when it is."""
        body = msgspec.json.encode(
            {
                "PodName": record.name, "PodNamespace": record.namespace,
                "PodUID": record.uid, "Node": node,
            }
        )  # fmt: skip
        answer = await self._ask(session, "bind", body, _Bound)
        return str(answer.error or "")

    def _later(self, pending: Pending) -> None:
        """Tries again after a while that grows with every failure."""
        wait = min(_BACKOFF * 2 ** min(pending.failures, 10), _LONGEST)
        asyncio.get_running_loop().call_later(wait, self._again, [pending])

    # --- asking and telling ------------------------------------------------------------------

    @staticmethod
    def _body(record: Record, names: list[str]) -> bytes:
        """The extender's arguments; the pod's text is the API server's own."""
        listed = msgspec.json.encode(names)
        return b'{"Pod":' + record.text() + b',"Nodes":null,"NodeNames":' + listed + b"}"

    async def _ask(
        self, session: aiohttp.ClientSession, verb: str, body: bytes, into: type[Any]
    ) -> Any:
        url = f"{self._ports.url}/scheduler/{verb}"
        headers = {"Content-Type": "application/json"}
        async with session.post(url, data=body, headers=headers) as response:
            answer = await response.read()
            if response.status != 200:
                raise aiohttp.ClientError(f"{verb} answered {response.status}: {answer[:200]!r}")
        return msgspec.json.decode(answer, type=into)

    async def _refuse(self, pending: Pending, message: str) -> None:
        """The pod waits; its condition says why, and an event when that is news."""
        if pending.told == message:
            return
        pending.told = message
        record = pending.record
        condition = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": message[:1024], "lastTransitionTime": now(self._server),
        }  # fmt: skip
        body = {"metadata": {"uid": record.uid}, "status": {"conditions": [condition]}}
        try:
            await self._server.patch(
                "pods", record.namespace, record.name, body,
                sub="status", media=_STRATEGIC, user=_USER,
            )  # fmt: skip
        except ApiError:
            return  # gone meanwhile
        await self._tell(record, "FailedScheduling", message, warning=True)

    async def _tell(
        self, record: Record, reason: str, message: str, *, warning: bool = False
    ) -> None:
        about = {**record.value, "kind": "Pod", "apiVersion": "v1"}
        await tell(self._server, about, reason, message, user=_USER, warning=warning)


def _gist(record: Record) -> tuple[Any, ...]:
    """What a decision depends on, besides the status that the loop itself writes."""
    head: Mapping[str, Any] = record.metadata
    return record.value.get("spec"), head.get("labels"), head.get("annotations")
