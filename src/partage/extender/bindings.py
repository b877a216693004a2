"""Binds a pod: reserves its place, writes everything into one Binding, and follows that to a known outcome.

    reserve on the books ──refused──> the reason
      │ lock the node, where a vendor's plugin needs it ──taken──> give up the reservation
      v
    send the Binding ──done──> bound
      ├── refused ──> give up the reservation
      └── unknown ──> read the pod back ──on a node──> bound
                        ├── on none, or gone ──> give up the reservation
                        └── unreadable ──> the reservation stays, and is read again later

The service finishes a Binding that is on its way even if the caller has gone, because no other part would release its
reservation.

The number of Bindings sent at a time is bounded, and the others wait here. Otherwise a slow API server, or the client's
own limit of requests, would let their time run out, and the service would read back and resend each of them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from partage.extender.books import Books
from partage.extender.node_locks import LockTimes, NodeLockKeeper, Want, Whereabouts
from partage.extender.ports import Answered, Binder, Binding, NodeLocks, Outcome
from partage.extender.stories import Step, Stories
from partage.kube.clock import Clock
from partage.model.allocation import Allocation
from partage.model.errors import InvalidDocument, LedgerError
from partage.model.permit import Permit
from partage.model.reason import Refusal
from partage.scheduler.engine import State
from partage.scheduler.events import BindFailed, BindUnknown, PodRead
from partage.tracing.spans import LOCK, READ_BACK, SEND, Kind
from partage.vendors.base import PlacedPod, Rendering
from partage.vendors.catalog import ADAPTING
from partage.wire import shapes
from partage.wire.documents import Document, size_of
from partage.wire.extender import BindArgs
from partage.wire.limits import LARGEST_ANNOTATIONS
from partage.wire.permit import cut
from partage.wire.record import render
from partage.wire.translation import PodEntry

_LOG = logging.getLogger("partage.extender")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_READS: Final = 3

Send = Callable[[Binding], Awaitable[Answered]]
"""Sends a Binding, and returns its outcome, which may be unknown."""


@dataclass(frozen=True, slots=True)
class BindLimits:
    """Time limits of the parts of a bind, in seconds.

    Attributes:
        send: for the API server to answer a Binding; after that the outcome is unknown.
        read: for the API server to answer a read.
        lock: wait for a vendor's lock; less than the extender's time-out in kube-scheduler.
        pause: between two attempts for a lock or a read.
        late: time in which a Binding without an answer may still arrive. Until then a pod that is
            read back without a node keeps its reservation.
        at_once: largest number of Bindings without an answer.
    """

    send: float = 10.0
    read: float = 5.0
    lock: float = 3.0
    pause: float = 0.1
    late: float = 10.0
    at_once: int = 64


@dataclass(slots=True)
class _Bind:
    """One bind of a pod with devices, and the steps of it that have ended; `decision` is the number in the journal."""

    books: Books
    args: BindArgs
    entry: PodEntry
    send: Send
    start: int
    decision: str = ""
    steps: list[Step] = field(default_factory=list)


class Bindings:
    """The Bindings on their way; `busy` has their ends, by the pod's uid."""

    def __init__(
        self,
        binder: Binder,
        clock: Clock,
        locks: NodeLocks | None,
        limits: BindLimits,
        *,
        adapts: bool,
        asked: Callable[[str], bool],
        gone: Callable[[str], None],
        stories: Stories,
    ) -> None:
        """Start without Bindings.

        Args:
            locks: the locks of vendors' plugins; None to take none.
            asked: whether our kube-scheduler has asked about a pod, by its uid.
            gone: removes a deleted pod, by its uid.
        """
        self._binder = binder
        self._clock = clock
        self.limits = limits
        times = LockTimes(limits.lock, limits.pause, limits.read, limits.late)
        self._locks = None if locks is None else NodeLockKeeper(locks, binder.read, clock, times)
        self._asked, self._gone = asked, gone
        self._silent = () if adapts else ADAPTING
        self._stories = stories
        self._late: dict[str, float] = {}
        self._turns = asyncio.Semaphore(limits.at_once)
        self._draining = 0
        self.busy: dict[str, asyncio.Future[str]] = {}

    async def bind(self, books: Books, args: BindArgs, entry: PodEntry | None) -> str:
        """Bind a pod (`entry` None: without devices); return an empty text if it is bound, else the reason."""
        task = self.busy.get(args.uid)
        if task is None:
            work = self._plain(args) if entry is None else self._device(books, args, entry)
            task = asyncio.create_task(work, name=f"bind {args.namespace}/{args.name}")
            self.busy[args.uid] = task
            task.add_done_callback(lambda _: self.busy.pop(args.uid, None))
        return await asyncio.shield(task)

    async def bind_reserved(
        self, books: Books, args: BindArgs, entry: PodEntry, place: Allocation, send: Send
    ) -> str:
        """Bind a pod with reserved devices; return an empty text if it is bound, else the reason.

        The Binding runs in the caller's task, which nothing should cancel: then the outcome is unknown.
        """
        if args.uid in self.busy:
            return f"the Binding of pod {entry.pod.key} is on its way already"
        end = self.busy[args.uid] = asyncio.get_running_loop().create_future()
        bind = _Bind(books, args, entry, send, self._stories.now(), books.engine.decision_id)
        try:
            problem = await self._carried_out(bind, place)
            self._stories.bound(entry, bind.start, args.node, problem, bind.decision, bind.steps)
            end.set_result(problem)
            return problem
        finally:
            del self.busy[args.uid]
            end.cancel()  # changes nothing after a result

    @property
    def settled(self) -> bool:
        """Whether no sent Binding can arrive any more."""
        now = self._clock.monotonic()
        return not self.busy and all(until <= now for until in self._late.values())

    async def ended(self, uid: str) -> None:
        """Wait until no Binding of this pod is on its way."""
        task = self.busy.get(uid)
        if task is not None:
            await asyncio.wait((task,))

    async def drain(self) -> None:
        """Wait until no Binding is on its way; Bindings that wait for their turn are not sent any more."""
        self._draining += 1
        try:
            while self.busy:
                await asyncio.wait([*self.busy.values()])
        finally:
            self._draining -= 1

    # --- one pod -----------------------------------------------------------------------------

    async def _plain(self, args: BindArgs) -> str:
        binding = Binding(args.namespace, args.name, args.uid, args.node)
        answer = await self._send(binding, self._binder.bind)
        if answer.outcome is Outcome.DONE:
            return ""
        return f"pod {args.namespace}/{args.name}: {answer.message or answer.outcome}"

    async def _device(self, books: Books, args: BindArgs, entry: PodEntry) -> str:
        bind = _Bind(books, args, entry, self._binder.bind, self._stories.now())
        problem = await self._decided(bind)
        self._stories.bound(entry, bind.start, args.node, problem, bind.decision, bind.steps)
        return problem

    async def _decided(self, bind: _Bind) -> str:
        books, args, entry = bind.books, bind.args, bind.entry
        uid, now = args.uid, self._clock.monotonic()
        state = books.engine.states.get(uid)
        if state is State.UNKNOWN:
            await self.read_back(books, uid)
            if uid in books.cluster_cache.deleted:
                return f"pod {entry.pod.key} is gone"
            state = books.engine.states.get(uid)
        if state is State.BOUND:
            held = books.engine.ledger.allocation(uid)
            where = held.node if held else ""
            return "" if where == args.node else f"pod {entry.pod.key} is on node {where} already"
        try:
            decision = books.cycle.reserve(entry.pod, args.node)
        except LedgerError as error:
            return f"{error}; the result of its Binding is not known yet"
        bind.decision = books.engine.decision_id
        books.settle(now)
        if isinstance(decision, Refusal):
            books.refuse(entry, decision, now)
            books.counts["bind refused by the books"] += 1
            return f"{decision.code}: {decision.message}"
        return await self._carried_out(bind, decision.allocation)

    async def _carried_out(self, bind: _Bind, place: Allocation) -> str:
        books, args, entry = bind.books, bind.args, bind.entry
        self._stories.tell(entry, bind.decision, f"goes to node {args.node}")
        try:
            return await self._place(bind, place)
        except BaseException:
            # A bug or a cancelled loop: the Binding may have been sent or not.
            if books.engine.states.get(args.uid) is State.RESERVED:
                books.take([BindUnknown(args.uid)], self._clock.monotonic())
                books.unread[args.uid] = entry  # even if no watch has reported the pod
            raise

    async def _place(self, bind: _Bind, place: Allocation) -> str:
        """Send the Binding of a reservation, and record its outcome."""
        books, args, entry = bind.books, bind.args, bind.entry
        if args.node not in books.engine.ledger.index:
            books.take([BindFailed(args.uid)], self._clock.monotonic())
            return f"node {args.node} is gone; try again"
        rendering = self._render(books, entry, place)
        known = books.cluster_cache.pods.get(args.uid) or entry
        size = size_of({**known.view.annotations, **rendering.annotations}) + known.view.dropped
        if size > LARGEST_ANNOTATIONS:
            books.take([BindFailed(args.uid)], self._clock.monotonic())
            return (
                f"the pod's annotations and its record have {size} bytes, and the API server allows "
                f"{LARGEST_ANNOTATIONS}"
            )
        binding = Binding(
            args.namespace, args.name, args.uid, args.node, rendering.annotations, rendering.labels
        )
        if not rendering.node_annotations or self._locks is None:
            return await self._finish(bind, binding, place.permit)
        want = Want(args.node, rendering.node_annotations, args.namespace, args.name, args.uid)
        where = partial(_whereabouts, books)
        async with self._locks.turn(args.node):
            start = self._stories.now()
            taken = await self._locks.take(want, where, partial(self._ours, books))
            why = "" if taken.outcome is Outcome.DONE else taken.message
            self._did(bind, LOCK, start, args.node, taken.outcome, why)
            if taken.outcome is not Outcome.DONE:
                books.take([BindFailed(args.uid)], self._clock.monotonic())
                return f"node {args.node} is locked: {taken.message}; try again"
            problem = await self._finish(bind, binding, place.permit)
            if problem:
                await self._locks.give_back(want, where)
            return problem

    def _did(
        self, bind: _Bind, kind: Kind, start: int, node: str, outcome: str, problem: str
    ) -> None:
        bind.steps.append(Step(kind, start, self._stories.now(), node, outcome, problem))

    async def _finish(self, bind: _Bind, binding: Binding, permit: Permit | None) -> str:
        books, entry = bind.books, bind.entry
        uid, start = binding.uid, self._stories.now()
        answer = await self._send(binding, bind.send)
        why = "" if answer.outcome is Outcome.DONE else answer.message
        self._did(bind, SEND, start, binding.node, answer.outcome, why)
        now = self._clock.monotonic()
        books.counts[f"bind {answer.outcome}"] += 1
        match answer.outcome:
            case Outcome.DONE:
                self._placed(books, entry, permit)
                return ""
            case Outcome.REFUSED:
                books.take([BindFailed(uid)], now)
                return f"the Binding was refused: {answer.message}"
            case Outcome.UNKNOWN:
                books.take([BindUnknown(uid)], now)
                books.unread[uid] = entry
                # The pods of some were deleted, or the books were rebuilt, before they could be read back.
                self._late = {
                    key: until
                    for key, until in self._late.items()
                    if until > now or key in books.unread
                }
                self._late[uid] = now if answer.ended else now + self.limits.late
                start = self._stories.now()
                known = await self.read_back(books, uid)
                self._did(bind, READ_BACK, start, "", "known" if known else "unknown", "")
        if books.engine.states.get(uid) is State.BOUND:
            held = books.engine.ledger.allocation(uid)
            if held is not None and held.node == binding.node:
                return ""
        if known:
            return f"the pod is not bound to node {binding.node}: {answer.message}"
        return f"the result of the Binding is not known: {answer.message}"

    def _placed(self, books: Books, entry: PodEntry, permit: Permit | None) -> None:
        """Take in that the pod is bound; count its granted and reduced wishes, and report a reduction."""
        books.bound(entry, self._clock.monotonic())
        if permit is None:
            return
        said = cut(permit, entry.view.annotations)
        if said:
            books.counts["wish cut"] += 1
            books.hooks.cut(entry, "; ".join(said))
        elif permit.online:
            books.counts["wish granted"] += 1

    # --- an unknown end ----------------------------------------------------------------------

    async def read_back(self, books: Books, uid: str) -> bool:
        """Find out the outcome of a Binding; return whether that was possible.

        Until then the reservation stays, because its card may be in use, or the Binding may still
        arrive.
        """
        entry = books.unread.get(uid)
        if entry is None:
            return False
        for attempt in range(_READS):
            if attempt:
                await self._clock.sleep(self.limits.pause * 2**attempt)
            asked = self._clock.monotonic()
            try:
                async with asyncio.timeout(self.limits.read):
                    document = await self._binder.read(entry.pod.namespace, entry.pod.name)
                break
            except Exception as error:  # noqa: BLE001 # the port may raise any exception
                why = str(error) or type(error).__name__
                _LOG.warning("pod %s cannot be read back: %s", entry.pod.key, why)
        else:
            return False
        now = self._clock.monotonic()
        if _unbound(document, uid) and asked < self._late.setdefault(uid, now + self.limits.late):
            return False
        try:
            pod = None
            if document is not None:
                read = books.cluster_cache.translation.read(document)
                index = books.engine.ledger.index.get(read.pod.node or "")
                node = None if index is None else books.engine.ledger.node_at(index)
                pod = books.cluster_cache.translation.with_record(read, node).pod
                pod = replace(pod, version=entry.pod.version)
        except InvalidDocument as error:
            _LOG.warning("pod %s cannot be read back: %s", entry.pod.key, error)
            return False
        books.unread.pop(uid, None)
        self._late.pop(uid, None)
        books.take([PodRead(uid, pod)], now)
        if pod is None or pod.uid != uid:
            self._gone(uid)  # perhaps no watch has ever reported it
            return True
        if books.engine.states.get(uid) is State.BOUND:
            held = books.engine.ledger.allocation(uid)
            self._placed(books, entry, None if held is None else held.permit)
        else:
            # kube-scheduler got a refusal while the outcome was unknown; by itself it may wait minutes.
            books.hooks.wake([uid])
        return True

    async def look_for(self, entry: PodEntry) -> None:
        """Forget a waiting or bound pod that the API server does not have."""
        pod = entry.pod
        try:
            async with asyncio.timeout(self.limits.read):
                document = await self._binder.read(pod.namespace, pod.name)
        except Exception as error:  # noqa: BLE001 # the port may raise any exception
            why = str(error) or type(error).__name__
            _LOG.warning("pod %s was in no watch or list and cannot be read: %s", pod.key, why)
            return
        if document is None or document.metadata.uid != pod.uid:
            self._gone(pod.uid)

    # --- vendors' locks ----------------------------------------------------------------------

    async def settle_locks(self, books: Books) -> None:
        """Release locks that could not be released before."""
        if self._locks is not None:
            await self._locks.settle(partial(_whereabouts, books))

    def forget_locks(self) -> None:
        """Forget unreleased locks when this instance becomes leader, before its first Binding."""
        if self._locks is not None:
            self._locks.forget()

    def _ours(self, books: Books, uid: str) -> bool:
        """Whether only this service binds the pod, and none of its Bindings is on its way.

        A Binding of an earlier leader has arrived or never will, because this leader waited for
        that before it began to serve.
        """
        return self._asked(uid) and books.engine.states.get(uid) is not State.UNKNOWN

    # --- requests ----------------------------------------------------------------------------

    async def _send(self, binding: Binding, send: Send) -> Answered:
        waits = self._turns.locked()
        async with self._turns:
            if waits and self._draining:
                return Answered(Outcome.REFUSED, "it was not sent yet, and nothing is sent now")
            try:
                async with asyncio.timeout(self.limits.send):
                    return await send(binding)
            except TimeoutError:
                return Answered(Outcome.UNKNOWN, f"no answer within {self.limits.send:g} s")
            except Exception as error:  # noqa: BLE001 # the port may raise any exception
                return Answered(Outcome.UNKNOWN, f"{type(error).__name__}: {error}")

    def _render(self, books: Books, entry: PodEntry, place: Allocation) -> Rendering:
        node = books.engine.ledger.node_at(books.engine.ledger.index[place.node])
        context = books.cluster_cache.translation.context
        nanoseconds = (self._clock.now() - _EPOCH) // timedelta(microseconds=1) * 1000
        placed = PlacedPod(entry.view, entry.pod.request, place, node, nanoseconds)
        families = [family for family in context.families if family not in self._silent]
        return render(placed, context.settings, families)


def _whereabouts(books: Books, uid: str) -> Whereabouts:
    """The place of a pod, by the books."""
    held = books.engine.ledger.allocation(uid)
    return Whereabouts(books.engine.states.get(uid), "" if held is None else held.node)


def _unbound(document: Document | None, uid: str) -> bool:
    """Whether the pod exists and has no node, so that a Binding of it can still arrive."""
    if document is None or document.metadata.uid != uid:
        return False
    shape = document.shape
    return isinstance(shape, shapes.Pod) and not (shape.spec and shape.spec.node_name)
