"""Takes and releases the locks of vendors' plugins on nodes, and tries a failed release again.

    take ── it is free ──────────────────────────────> taken
      ├── the pod's own, of an earlier try ──────────> taken over
      ├── another pod's, which it will not use ──────> taken over
      ├── another pod's ── tried again for a while ──> refused
      └── no answer ─────────────────────────────────> left

    left ── Binding unknown ──> kept until it is known
      ├── bound there ────────> released by the plugin
      └── not bound there ────> released, and tried again if that fails

The keeper removes or replaces a lock only while it has the value that was read. The API server checks this at the
write, so later values of others stay. A new leader inherits no state: it looks at a lock's pod to see whether any
plugin will release the lock.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from partage.extender.ports import Answered, NodeLocks, Outcome
from partage.kube.clock import Clock
from partage.scheduler.engine import State
from partage.vendors.locks import read_lock
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.pod_phase import finished

_LOG = logging.getLogger("partage.extender")
_SOON: Final = 1.0
"""Seconds until the keeper tries again to release a lock; doubled after each failure."""
_SELDOM: Final = 30.0
"""The longest pause between two tries, seconds."""
_LONGEST: Final = 300.0
"""Seconds after which the keeper leaves a lock to the controller, which by then removes every lock."""
_AT_ONCE: Final = 8
"""The most nodes whose locks are tried again at a time."""


class Whereabouts(NamedTuple):
    """The state of a pod by the books, and its node; empty for none."""

    state: State | None
    node: str


class Fate(Enum):
    """The next step for a lock that was left."""

    KEEP = auto()
    GIVE_BACK = auto()
    FORGET = auto()


@dataclass(slots=True)
class Left:
    """A lock of ours that may be on its node although nothing needs it.

    Attributes:
        since: when it was left, seconds on a steady clock.
        sure: the time until which a write of it may still arrive; the same clock.
        due: when the keeper tries next to release it.
        tries: failed attempts to release it since the last success.
    """

    annotations: Mapping[str, str]
    uid: str
    since: float
    sure: float
    due: float
    tries: int = 0

    def failed(self, now: float) -> None:
        """Record a failed release, and set the time of the next try."""
        self.due = now + min(_SELDOM, _SOON * 2.0 ** min(self.tries, 16))
        self.tries += 1


def fate(left: Left, node: str, pod: Whereabouts, now: float) -> Fate:
    """The next step for a lock that was left on a node; `now` is seconds on the clock of `left`."""
    if pod.node == node and pod.state is State.BOUND:
        return Fate.FORGET  # the plugin needs it, and removes it
    if pod.node == node and pod.state is State.UNKNOWN:
        return Fate.KEEP
    return Fate.FORGET if now >= left.since + _LONGEST else Fate.GIVE_BACK


def abandoned(holder: Document | None, node: str, *, ours: bool) -> bool:
    """Whether no plugin will use a lock any more.

    Args:
        holder: the lock's pod, read after the lock; None if the pod does not exist.
        ours: whether only this service binds the pod, and has no Binding of it on its way.
    """
    if holder is None or not isinstance(holder.shape, shapes.Pod):
        return holder is None
    if finished(holder.shape):
        return True
    where = holder.shape.spec.node_name if holder.shape.spec else None
    return where != node if where else ours


@dataclass(frozen=True, slots=True)
class LockTimes:
    """Time limits, in seconds.

    Attributes:
        wait: how long to wait for a lock that another pod has.
        pause: the time between two attempts during this wait.
        read: how long the API server may take to answer.
        late: how long a write without an answer may still arrive.
    """

    wait: float
    pause: float
    read: float
    late: float


@dataclass(frozen=True, slots=True)
class Want:
    """A lock that a pod needs."""

    node: str
    annotations: Mapping[str, str]
    namespace: str
    pod: str
    uid: str


class NodeLockKeeper:
    """Takes locks, one pod at a time on a node, and sees them released; `left`, by node, are those that are not."""

    def __init__(
        self,
        locks: NodeLocks,
        read: Callable[[str, str], Awaitable[Document | None]],
        clock: Clock,
        times: LockTimes,
    ) -> None:
        """A keeper without locks."""
        self._locks, self._read, self._clock, self._times = locks, read, clock, times
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.left: dict[str, list[Left]] = {}

    def turn(self, node: str) -> asyncio.Lock:
        """The mutex of a node, held from before `take` until the pod is bound or `give_back` has returned.

        It exists only while a task holds it or waits for it, because nodes are deleted.
        """
        return self._turns.setdefault(node, asyncio.Lock())

    def forget(self) -> None:
        """Forget all left locks after a change of leader: another leader may have written the same value by now."""
        self.left.clear()

    async def take(
        self, want: Want, where: Callable[[str], Whereabouts], ours: Callable[[str], bool]
    ) -> Answered:
        """Take a lock; while another pod has it, try again until the wait of `LockTimes` is over.

        Args:
            where: returns the node of a pod by its uid.
            ours: returns the argument `ours` of `abandoned` by the pod's uid.
        """
        end = self._clock.monotonic() + self._times.wait
        instead: dict[str, str] = {}
        judged: set[tuple[str, str]] = set()
        await self._settle(want.node, where, due=False)
        while True:
            taken = await self._try(want, instead, where)
            if taken.outcome is Outcome.UNKNOWN:
                await self.give_back(want, where, self._times.late)
            if taken.outcome is not Outcome.REFUSED:
                return taken
            new = taken.held.items() - judged
            judged |= new
            free = {key: text for key, text in new if await self._is_free(want, text, ours)}
            instead |= free
            if free:
                continue
            if self._clock.monotonic() >= end:
                return taken
            await self._clock.sleep(self._times.pause)

    async def give_back(
        self, want: Want, where: Callable[[str], Whereabouts], late: float = 0.0
    ) -> None:
        """Release a lock that no plugin needs; if that fails, remember it for a later try.

        Args:
            where: returns the node of a pod by its uid.
            late: seconds for which a write of the lock may still arrive.
        """
        now = self._clock.monotonic()
        left = Left(want.annotations, want.uid, now, now + late, now)
        self.left.setdefault(want.node, []).append(left)
        await self._settle(want.node, where)

    async def settle(self, where: Callable[[str], Whereabouts]) -> None:
        """Try again to release the locks that are due; the driver calls this about every second."""
        now = self._clock.monotonic()
        nodes = [
            node
            for node, kept in self.left.items()
            # A task that holds the turn settles the node's locks itself.
            if any(left.due <= now for left in kept) and not self.turn(node).locked()
        ]
        async with asyncio.TaskGroup() as group:
            for node in nodes[:_AT_ONCE]:
                group.create_task(self._settle_in_turn(node, where), name=f"lock of {node}")

    # --- one node ----------------------------------------------------------------------------

    async def _settle_in_turn(self, node: str, where: Callable[[str], Whereabouts]) -> None:
        async with self.turn(node):
            await self._settle(node, where)

    async def _settle(
        self, node: str, where: Callable[[str], Whereabouts], *, due: bool = True
    ) -> bool:
        """Release a node's left locks that are due, or also the failed ones if not `due`; whether all are off."""
        clear = True
        for left in list(self.left.get(node, ())):
            now = self._clock.monotonic()
            match fate(left, node, where(left.uid), now):
                case Fate.FORGET:
                    self._drop(node, left)
                case Fate.KEEP:
                    clear = False
                case Fate.GIVE_BACK:
                    if now >= left.due or (left.tries and not due):
                        await self._off(node, left)
                    clear = clear and not left.tries
        return clear

    async def _off(self, node: str, left: Left) -> None:
        try:
            async with asyncio.timeout(self._times.read):
                found = await self._locks.give_back(node, left.annotations)
        except Exception as error:  # noqa: BLE001 # after any exception the lock may still be there
            left.failed(self._clock.monotonic())
            told = "the lock of node %s cannot be released, failure %d, it is tried again: %s"
            _LOG.warning(told, node, left.tries, error)
            return
        if left.tries:
            _LOG.info("the lock of node %s is released", node)
        left.tries = 0
        if found or self._clock.monotonic() >= left.sure:
            self._drop(node, left)
        else:
            left.due = left.sure

    def _drop(self, node: str, left: Left) -> None:
        kept = self.left.get(node, [])
        if left in kept:
            kept.remove(left)
        if not kept:
            self.left.pop(node, None)

    async def _try(
        self, want: Want, instead: Mapping[str, str], where: Callable[[str], Whereabouts]
    ) -> Answered:
        # Our own earlier lock is removed first. If its value counted as a new lock, a late answer of
        # the API server about the earlier lock could not be distinguished from one about the new lock.
        if not await self._settle(want.node, where):
            return Answered(Outcome.REFUSED, "an earlier lock of ours is not released yet")
        try:
            async with asyncio.timeout(self._times.read):
                taken = await self._locks.take(want.node, want.annotations, instead)
        except Exception as error:  # noqa: BLE001 # after any exception it may not be ours
            return Answered(Outcome.UNKNOWN, f"{type(error).__name__}: {error}")
        if taken.outcome is Outcome.DONE:
            # The node has another version now, so no earlier write of ours can arrive.
            self.left.pop(want.node, None)
        return taken

    async def _is_free(self, want: Want, text: str, ours: Callable[[str], bool]) -> bool:
        """Whether a pod may take over a lock, because the lock is its own or is `abandoned`."""
        lock = read_lock(text)
        if not lock.pod:
            return False
        if (lock.namespace, lock.pod) == (want.namespace, want.pod):
            return True
        try:
            async with asyncio.timeout(self._times.read):
                holder = await self._read(lock.namespace, lock.pod)
        except Exception as error:  # noqa: BLE001 # the port may raise any exception
            told = "pod %s/%s, which locks node %s, cannot be read: %s"
            _LOG.warning(told, lock.namespace, lock.pod, want.node, error)
            return False
        uid = "" if holder is None else holder.metadata.uid or ""
        free = abandoned(holder, want.node, ours=ours(uid))
        if free:
            _LOG.info(
                "node %s: no plugin removes the lock of pod %s/%s; pod %s/%s takes it over",
                want.node,
                lock.namespace,
                lock.pod,
                want.namespace,
                want.pod,
            )
        return free
