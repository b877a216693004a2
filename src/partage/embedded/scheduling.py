"""The stand-in for kube-scheduler: a loop that finds pods without a node and gets each decided.

It asks the engine the questions of kube-scheduler's plugin (`extender.attempts`): propose, reserve, bind, bound,
in the same process. `rooms` has kube-scheduler's own checks. The loop decides one pod at a time, in order of
priority and then of arrival. Bindings run at the same time, because reservations stay.

The loop tries a refused pod again after an event that may help it: the pod changed, the service wakes it because
it may fit now, a node or a setting changed, or another pod has ended, if ordinary resources were short.
"""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from partage.apiserver import ApiError, ApiServer, Change, Record, User
from partage.embedded.claim_lives import CLAIMS, claims_of
from partage.embedded.claim_places import KINDS, ClaimPlaces, Results
from partage.embedded.rooms import Rooms, Survey, without_devices
from partage.embedded.watching import follow_all, is_over, now, tell, write_status
from partage.extender.attempts import Attempts
from partage.extender.ports import Outcome
from partage.kube.bodies import binding
from partage.model.errors import InvalidDocument
from partage.model.pod import Pod
from partage.wire import plugin as wire
from partage.wire.context import Context

_LOG: Final = logging.getLogger("partage.embedded")
_USER: Final = User("system:kube-scheduler", ("system:authenticated",))
_CLASSES: Final = "priorityclasses.scheduling.k8s.io"
"""Its changes cause another try of all waiting pods; a genuine one follows no ConfigMap and no quota."""
_BINDS: Final = 64
"""Most Bindings at a time."""
_FLUSH: Final = 15.0
"""Seconds after which a pending pod is tried again without an event."""
_BACKOFF: Final = 0.2
_LONGEST: Final = 5.0
_NOT_REFUSED: Final = frozenset({wire.CHANGED, wire.CLOSED, wire.PLACE_LOST, wire.STALE})
"""Codes of answers after which kube-scheduler retries the pod itself, after a while."""


@dataclass(slots=True)
class Pending:
    """A pod without a node.

    Attributes:
        short: whether ordinary resources were short.
        told: its condition's message.
        failures: Bindings that failed in a row.
        busy: its Binding is in progress.
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
    """The loop's inputs from other parts.

    Attributes:
        served: scheduler names whose pods it decides.
        claims: places for ResourceClaims; None if pods' claims are ignored.
    """

    served: frozenset[str]
    context: Callable[[], Context]
    claims: ClaimPlaces | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine's answer to one attempt.

    Attributes:
        node: the pod's node, with its devices reserved. Empty after a refusal.
        attempt: its number; 0 for a pod without devices.
        message: the code as a sentence.
    """

    node: str = ""
    attempt: int = 0
    code: str = ""
    message: str = ""


class Seam(Protocol):
    """Interface to the engine."""

    async def choose(self, record: Record, fitting: Sequence[str], *, all_fit: bool) -> Choice:
        """The place of a pod. Raises `OSError`: the engine does not answer.

        `fitting`: the nodes that pass kube-scheduler's own filters. `all_fit`: these are all nodes.
        """

    async def bind(self, record: Record, choice: Choice) -> str:
        """Bind a pod; empty on success, else the reason of the failure."""

    def forget(self, record: Record, choice: Choice) -> None:
        """Release the reservation of a pod that was not bound there."""


class InProcess:
    """The engine in the same process, with the plugin's questions; see `Seam`."""

    def __init__(self, server: ApiServer, attempts: Attempts, user: User) -> None:
        """No question yet. `user`: one that may write a Binding's annotations."""
        self._server = server
        self._user = user
        self._attempts = attempts
        self._numbers = itertools.count(1)

    async def choose(self, record: Record, fitting: Sequence[str], *, all_fit: bool) -> Choice:
        """Propose and reserve."""
        uid, attempt = record.uid, next(self._numbers)
        wish = (record.value.get("status") or {}).get("nominatedNodeName") or ""
        version = str(record.metadata.get("resourceVersion", ""))
        asked = wire.Propose(0, uid, attempt, version, nominated=wish)
        within = None if all_fit else fitting
        answer = self._attempts.propose(asked, within)
        if answer.unseen:
            asked = msgspec.structs.replace(asked, pod=msgspec.Raw(record.text()))
            answer = self._attempts.propose(asked, within)
        if answer.skip:
            return Choice()
        if not answer.code:
            node = wish if wish in answer.nodes else answer.nodes[0]
            answer = self._attempts.reserve(wire.Reserve(0, uid, attempt, node))
            if not answer.code:
                return Choice(node, attempt)
        return Choice("", attempt, answer.code, answer.message)

    async def bind(self, record: Record, choice: Choice) -> str:
        """Get permission for the Binding, send it, and report its result."""
        if not choice.attempt:
            return await self._sent(record, choice.node, wire.Answer(0))
        about = (record.uid, choice.attempt)
        sending: list[asyncio.Task[str]] = []

        async def send(allowed: wire.Answer) -> str:
            problem = await self._sent(record, choice.node, allowed)
            outcome = Outcome.REFUSED if problem else Outcome.DONE
            self._attempts.bound(wire.Bound(0, *about, outcome.value, problem))
            return problem

        def allow(answer: wire.Answer) -> None:
            sending.append(asyncio.create_task(send(answer), name=f"send:{record.uid}"))

        refused = await self._attempts.bind(wire.Bind(0, *about, choice.node), allow)
        if refused is not None:
            self._attempts.unreserve(wire.Unreserve(0, *about))
            return f"{refused.code}: {refused.message}"
        return await sending[0]

    def forget(self, record: Record, choice: Choice) -> None:
        """Release the reservation."""
        if choice.attempt:
            self._attempts.unreserve(wire.Unreserve(0, record.uid, choice.attempt))

    async def _sent(self, record: Record, node: str, allowed: wire.Answer) -> str:
        """Send the Binding; the API server's message if it refused."""
        body = binding(
            record.namespace,
            record.name,
            node,
            uid=record.uid,
            annotations=allowed.annotations,
            labels=allowed.labels,
        )
        try:
            await self._server.bind(record.namespace, record.name, body, self._user)
        except ApiError as error:
            return str(error)
        return ""


class KubeScheduler:
    """The loop; `conflicts` is the number of failed Bindings."""

    def __init__(self, server: ApiServer, ports: Ports, seam: Seam) -> None:
        self._server = server
        self._ports = ports
        self._seam = seam
        self._tell = partial(tell, server, user=_USER)
        self._rooms = Rooms()
        self._pending: dict[str, Pending] = {}
        self._queue: list[tuple[tuple[int, str, int], str]] = []
        self._ready = asyncio.Event()
        self._read_before: dict[str, tuple[Context, tuple[Any, ...], Pod]] = {}
        self._arrived = 0
        self._binding: set[asyncio.Task[None]] = set()
        self.conflicts = 0

    def activate(self, uids: Iterable[str]) -> None:
        """Try these pods again: they may fit now."""
        self._again(self._pending[uid] for uid in uids if uid in self._pending)

    async def run(self) -> None:
        """Schedule until cancelled."""
        try:
            offers = KINDS if self._ports.claims is not None else ()
            handlers = {"nodes": self._node, "pods": self._pod, _CLASSES: self._priorities}
            handlers |= dict.fromkeys(offers, self._offered)
            await follow_all(self._server, handlers, self._flush(), self._decide())
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

    async def _priorities(self, change: Change) -> None:
        if change.before is not None:
            self._again(self._pending.values())

    async def _offered(self, change: Change) -> None:
        """Queue the pods that a changed claim, class or slice may help."""
        waiting = (one for one in self._pending.values() if _claims(one.record))
        if change.record.resource == CLAIMS and not _released(change):
            claim = change.record
            waiting = (
                one
                for one in waiting
                if one.record.namespace == claim.namespace
                and claim.name in (name for _, name in claims_of(one.record.value))
            )
        self._again(waiting)

    async def _pod(self, change: Change) -> None:
        record = change.record
        spec = record.value.get("spec") or {}
        node = spec.get("nodeName")
        if change.kind == "DELETED" or is_over(record):
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
                self._rooms.place(found, node)
        elif spec.get("schedulerName") in self._ports.served:
            self._waits(change)

    def _waits(self, change: Change) -> None:
        """Take in a new or changed pod without a node."""
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
        """Puts pods into the queue; a pod whose Binding is in progress is tried again if that fails."""
        for one in list(pods):
            if not one.queued and not one.busy:
                one.queued = True
                heapq.heappush(self._queue, (one.order, one.record.uid))
                self._ready.set()

    def _read(self, record: Record) -> Pod | None:
        """The pod in kube-scheduler's view; read again only after a relevant change."""
        context = self._ports.context()
        known = self._read_before.get(record.uid)
        if known is not None and known[0] is context and known[1] == _gist(record):
            return known[2]
        try:
            found = without_devices(record.value, context)
        except InvalidDocument as error:
            _LOG.warning("pod %s/%s: %s", record.namespace, record.name, error)
            return None
        self._read_before[record.uid] = (context, _gist(record), found)
        return found

    # --- deciding ----------------------------------------------------------------------------

    async def _decide(self) -> None:
        while True:
            while not self._queue:
                self._ready.clear()
                await self._ready.wait()
            _, uid = heapq.heappop(self._queue)
            pending = self._pending.get(uid)
            if pending is None:
                continue
            pending.queued = False
            # A retried pod follows those that have not been tried since.
            self._arrived += 1
            pending.order = (pending.order[0], now(self._server), self._arrived)
            while len(self._binding) >= _BINDS:
                await asyncio.wait(self._binding, return_when=asyncio.FIRST_COMPLETED)
            try:
                await self._try(pending)
            except Exception as error:  # noqa: BLE001 # a fault in one pod must not stop all others
                await self._failed(pending, error)
            await asyncio.sleep(0)  # a decision never awaits, so let others run

    async def _try(self, pending: Pending) -> None:
        found = self._read(pending.record)
        if found is None:
            await self._refuse(pending, "the pod cannot be read")
            return
        survey = self._rooms.survey(found)
        pending.short = bool(survey.short)
        if not survey.fitting.size:
            await self._refuse(pending, survey.summary())
            return
        record, claims, now = pending.record, self._ports.claims, asyncio.get_running_loop().time()
        fitting = self._rooms.names(survey)
        open_: Mapping[str, Results] = {}
        if claims is not None and _claims(record):
            places = claims.open(record, fitting, now)
            if isinstance(places, str):
                await self._refuse(pending, places)
                return
            open_, fitting = places, list(places)
        all_fit = not (survey.short or survey.objections or open_)
        choice = await self._seam.choose(record, fitting, all_fit=all_fit)
        if choice.code:
            await self._refused(pending, choice, survey)
            return
        if not choice.node:  # without devices
            choice = Choice(self._rooms.idlest(fitting))
        if open_ and claims is not None:
            # As kube-scheduler does before it binds; the next pod is decided after that. By now the reservation
            # for the pod's own names may use the cards that were open.
            beside = claims.open(record, [choice.node], now) if choice.attempt else open_
            problem = (
                beside
                if isinstance(beside, str)
                else await claims.take(record, choice.node, beside[choice.node])
            )
            if problem:
                self._seam.forget(record, choice)
                await claims.give_back(record)
                await self._refuse(pending, problem)
                self._later(pending)
                return
        self._rooms.place(found, choice.node)
        pending.busy = True
        task = asyncio.create_task(self._bind(pending, choice))
        self._binding.add(task)
        task.add_done_callback(self._binding.discard)

    async def _refused(self, pending: Pending, choice: Choice, survey: Survey) -> None:
        told = f"{choice.code}: {choice.message}"
        if short := survey.shortages():
            told = f"{told}; {short}"
        await self._refuse(pending, told)
        if choice.code in _NOT_REFUSED:
            self._later(pending)

    async def _bind(self, pending: Pending, choice: Choice) -> None:
        record = pending.record
        try:
            problem = await self._seam.bind(record, choice)
        except Exception as error:  # noqa: BLE001 # its pod is tried again
            _LOG.exception("pod %s/%s: binding failed", record.namespace, record.name)
            problem = str(error) or type(error).__name__
        pending.busy = False
        if not problem:
            told = f"Successfully assigned {record.namespace}/{record.name} to {choice.node}"
            await self._tell(record, "Scheduled", told)
            return
        self.conflicts += 1
        self._rooms.leave(record.uid)
        if self._ports.claims is not None and _claims(record):
            await self._ports.claims.give_back(record)
        if self._pending.get(record.uid) is not pending:
            return
        await self._refuse(pending, f"binding to {choice.node} failed: {problem}")
        pending.failures += 1
        self._later(pending)

    async def _failed(self, pending: Pending, error: Exception) -> None:
        """Try a pod again after the engine did not answer, or failed for it."""
        reason = str(error) or type(error).__name__
        if not isinstance(error, OSError):
            record = pending.record
            _LOG.error("pod %s/%s: deciding failed", record.namespace, record.name, exc_info=error)
        await self._refuse(pending, f"the scheduler service does not answer: {reason}")
        self._later(pending)

    def _later(self, pending: Pending) -> None:
        """Tries again after a delay that grows with every failure."""
        wait = min(_BACKOFF * 2 ** min(pending.failures, 10), _LONGEST)
        asyncio.get_running_loop().call_later(wait, self._again, [pending])

    # --- telling -----------------------------------------------------------------------------

    async def _refuse(self, pending: Pending, message: str) -> None:
        """Write the reason into the waiting pod's condition, and an event if the reason is new."""
        if pending.told == message:
            return
        pending.told = message
        record = pending.record
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message[:1024],
            "lastTransitionTime": now(self._server),
        }
        try:
            await write_status(self._server, record, {"conditions": [condition]}, _USER)
        except ApiError:
            return  # gone meanwhile
        await self._tell(record, "FailedScheduling", message, warning=True)


def _claims(record: Record) -> bool:
    """Whether a pod names ResourceClaims."""
    return bool(record.value["spec"].get("resourceClaims"))


def _released(change: Change) -> bool:
    """Whether a claim lost its devices."""
    before, after = (
        bool(one is not None and (one.value.get("status") or {}).get("allocation"))
        for one in (change.before, change.record if change.kind != "DELETED" else None)
    )
    return before and not after


def _gist(record: Record) -> tuple[Any, ...]:
    """The pod's fields that a decision depends on, without the status that the loop itself writes."""
    head: Mapping[str, Any] = record.metadata
    claims = (record.value.get("status") or {}).get("resourceClaimStatuses")
    return record.value.get("spec"), head.get("labels"), head.get("annotations"), claims
