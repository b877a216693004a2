"""Writes the scheduler's events and wake-ups: why pods wait, closed capacity, and pods to retry.

Hooks run in the middle of a decision and must not wait, so this module queues everything and writes it in the
background. The recorder merges and holds back events of one pod. A wake-up changes an annotation of the waiting pod.
Every version of kube-scheduler retries a pod after any change of it. The change concerns that pod alone; a change of a
node would send all pending pods through the queue.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from partage.extender.ports import Hooks
from partage.kube.client import Client
from partage.kube.errors import Conflict, KubeError, NotFound
from partage.kube.events import EventRecorder
from partage.kube.recorder import Regarding
from partage.kube.resources import PODS
from partage.kube.retry import Backoff
from partage.kube.workqueue import WorkQueue, work
from partage.model.errors import PartageError
from partage.vendors import names
from partage.wire.translation import PodEntry

_LOG: Final = logging.getLogger("partage.daemon")
_COMPONENT: Final = "partage-scheduler"
_WRITERS: Final = 8
"""Wake-ups that are written at a time."""
_AGAIN: Final = Backoff(base=1.0, cap=30.0, jitter=0.0)
"""Pauses before further tries of a wake-up; they become long, to spare an API server in trouble."""
_FAILED: Final = 14
"""Most tries; they take five minutes, and by then kube-scheduler has tried the pod itself."""
_UNHEARD: Final = 4
"""Most tries for a pod that no watch has reported yet, although kube-scheduler may have asked about it."""
_AT_ONCE: Final = 64
_IN_TURN: Final = 50.0
"""How many of the waiting pods a new leader wakes at once, and then each second."""
_MOST: Final = 10_000
"""Most wake-ups in the queue; further ones are dropped, because their pods are woken again later."""


class _NotWritten(PartageError):
    """A wake-up was not written and needs another try."""


class Notices:
    """Events and wake-ups of one instance.

    Attributes:
        recorder: also takes events of other parts of the daemon.
        speaks: whether the service's events and wake-ups are sent; a standby sends none.
    """

    def __init__(
        self,
        client: Client,
        instance: str,
        find: Callable[[str], PodEntry | None],
        leads: Callable[[], bool] = lambda: True,
        events: Client | None = None,
    ) -> None:
        """Queue notices; `run` writes them.

        Args:
            instance: name of this process among the scheduler's processes.
            find: returns a pod by its uid.
            leads: whether this instance leads now. A process that was paused has old books, and
                must not report them as news.
            events: the client for events, if it is another one.
        """
        self._leads = leads
        self._client = client
        self._find = find
        self.recorder = EventRecorder(
            events or client,
            component=_COMPONENT,
            instance=instance,
            failed=lambda error: _LOG.warning("an event cannot be written: %s", error),
            speaks=leads,
            crowded=lambda number: _LOG.warning(
                "%d events were not written: too many pods and nodes had one at once", number
            ),
        )
        self._queue: WorkQueue[str] = WorkQueue(
            clock=client.clock, chance=lambda: 0.0, backoff=_AGAIN
        )
        self.speaks = False

    @property
    def hooks(self) -> Hooks:
        """The hooks for the service."""
        warn = self._warn

        def of(node: str) -> Regarding:
            return Regarding("v1", "Node", node)

        return Hooks(
            wake=self.wake,
            refused=lambda entry, why: warn(
                regarding(entry), "WaitingForDevice", f"{why.code}: {why.message}"
            ),
            # Events of nodes are in namespace `default`, so they must not name pods of other namespaces.
            quarantined=lambda one: warn(of(one.node), "Quarantined", one.brief),
            unserviceable=lambda one: warn(of(one.node), "CardsUnserviceable", one.message),
            cut=lambda entry, text: warn(regarding(entry), "WishCutDown", text),
            not_adjusted=lambda entry, text: warn(regarding(entry), "SharesNotAdjusted", text),
            leads=self._may_tell,
        )

    def _may_tell(self) -> bool:
        return self.speaks and self._leads()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.recorder.run(), name="notices:events")
            await work(
                self._queue,
                self._wake,
                workers=_WRITERS,
                name="notices:wake",
                failed=_wake_up_failed,
            )

    def _warn(self, what: Regarding, reason: str, message: str) -> None:
        if self._may_tell():
            self.recorder.warning(what, reason, message)

    def wake(self, uids: Sequence[str]) -> None:
        """Have kube-scheduler try these pods again."""
        self._wake_after((uid, 0.0) for uid in uids)

    def wake_in_turn(self, uids: Sequence[str]) -> None:
        """Have kube-scheduler try many pods again, slowly, so that wake-ups for new room are not delayed."""
        rests = (max(0, number - _AT_ONCE) / _IN_TURN for number in range(len(uids)))
        self._wake_after(zip(uids, rests, strict=True))

    def _wake_after(self, rests: Iterable[tuple[str, float]]) -> None:
        """Wake each pod once, after so many seconds, even if several wake-ups of it are requested meanwhile."""
        for uid, rest in rests:
            if self.speaks and len(self._queue) < _MOST:
                self._queue.add_after(uid, rest)

    async def _wake(self, uid: str) -> None:
        """Wake one pod. Raises `_NotWritten`: the wake-up needs another try."""
        entry, tries = self._find(uid), self._queue.failures(uid)
        # kube-scheduler itself tries its waiting pods only every five minutes.
        if not self.speaks or tries >= (_UNHEARD if entry is None else _FAILED):
            return
        if entry is None or (entry.pod.node is None and not await self._touch(entry)):
            raise _NotWritten

    async def _touch(self, entry: PodEntry) -> bool:
        """Change a pod. Returns False if it needs another try; a conflict does, because the pod may be the same."""
        pod = entry.pod
        moment = self._client.clock.now().isoformat(timespec="microseconds")
        body = {"metadata": {"uid": pod.uid, "annotations": {names.WOKEN: moment}}}
        try:
            await self._client.patch(
                PODS, pod.name, body, namespace=pod.namespace, into=msgspec.Raw
            )
        except NotFound:
            return True
        except Conflict:
            return False
        except KubeError as error:
            _LOG.warning("pod %s cannot be woken yet: %s", pod.key, error)
            return False
        return True


def regarding(entry: PodEntry) -> Regarding:
    """The pod, as the object of an event."""
    pod = entry.pod
    return Regarding("v1", "Pod", pod.name, pod.namespace, pod.uid)


def _wake_up_failed(uid: str, error: Exception) -> None:
    if not isinstance(error, _NotWritten):
        _LOG.error("pod %s cannot be woken yet", uid, exc_info=error)
