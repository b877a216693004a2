"""What the scheduler tells the cluster of its own accord: why pods wait, what was closed, who to retry.

Hooks are called in the middle of a decision and must not wait, so everything here is put down and
written in the background. Events of one pod are merged and held back by the recorder. Waking is a
change of an annotation on the waiting pod: to kube-scheduler any change of a pod is a reason to
try it again, in every version, and it concerns that pod alone, where touching a node would send
all pending pods through the queue.
"""

import asyncio
import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from partage.extender.ports import Hooks
from partage.kube.client import Client, PatchKind
from partage.kube.errors import Conflict, KubeError, NotFound
from partage.kube.events import EventRecorder
from partage.kube.recorder import Regarding
from partage.kube.resources import PODS
from partage.model.reason import Refusal
from partage.scheduler.events import Quarantined, Unserviceable
from partage.vendors import names
from partage.wire.translation import PodEntry

_LOG: Final = logging.getLogger("partage.daemon")
_COMPONENT: Final = "partage-scheduler"
_WRITERS: Final = 8
"""Wake-ups on their way at a time."""
_AGAIN: Final = 1.0
"""Seconds after which a wake-up that could not be written is tried again."""
_SELDOM: Final = 30.0
"""What that becomes, doubled with every failure, so that an API server in trouble is left alone."""
_FAILED: Final = 14
"""Tries of a wake-up that cannot be written: five minutes, then kube-scheduler has looked itself."""
_UNHEARD: Final = 10
"""Tries for a pod of which no watch has told: kube-scheduler may have asked about it before."""
_AT_ONCE: Final = 64
_IN_TURN: Final = 50.0
"""Of all pods that wait when an instance begins to lead, how many are woken at once, and then a second."""
_MOST: Final = 10_000
"""Wake-ups that wait to be written; beyond, the oldest is dropped: the pod is woken again later."""


class Notices:
    """Events and wake-ups of one instance.

    Attributes:
        recorder: takes events of the parts beside the scheduler.
        speaks: whether the service's events and wake-ups are sent; a standby keeps silent.
    """

    def __init__(
        self,
        client: Client,
        instance: str,
        find: Callable[[str], PodEntry | None],
        leads: Callable[[], bool] = lambda: True,
        events: Client | None = None,
    ) -> None:
        """Notices that are not written yet.

        Args:
            instance: which of the scheduler's processes this is.
            find: a pod by its uid.
            leads: whether this instance is known to lead at this very moment. One that was paused has
                books of the time before, and what they seem to say is no news.
            events: the client for events, where it is another.
        """
        self._leads = leads
        self._client = client
        self._find = find
        self.recorder = EventRecorder(
            events or client,
            component=_COMPONENT,
            instance=instance,
            failed=_event_failed,
            speaks=leads,
            crowded=_events_dropped,
        )
        self._asleep: OrderedDict[str, None] = OrderedDict()
        self._missed: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._late: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._came_late = asyncio.Event()
        self._changed = asyncio.Event()
        self.speaks = False

    @property
    def hooks(self) -> Hooks:
        """For the service."""
        return Hooks(
            wake=self.wake,
            refused=self._refused,
            quarantined=self._quarantined,
            unserviceable=self._unserviceable,
            cut=self._cut,
            not_adjusted=self._not_adjusted,
            leads=self._may_tell,
        )

    def _may_tell(self) -> bool:
        return self.speaks and self._leads()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.recorder.run(), name="notices:events")
            for number in range(_WRITERS):
                group.create_task(self._wake_all(), name=f"notices:wake:{number}")
            group.create_task(self._wake_late(), name="notices:late")

    # --- told by the service -----------------------------------------------------------------

    def _refused(self, entry: PodEntry, refusal: Refusal) -> None:
        if self._may_tell():
            self.recorder.warning(
                _regarding(entry), "WaitingForDevice", f"{refusal.code}: {refusal.message}"
            )

    def _cut(self, entry: PodEntry, message: str) -> None:
        if self._may_tell():
            self.recorder.warning(_regarding(entry), "WishCutDown", message)

    def _not_adjusted(self, entry: PodEntry, message: str) -> None:
        if self._may_tell():
            self.recorder.warning(_regarding(entry), "SharesNotAdjusted", message)

    def _quarantined(self, action: Quarantined) -> None:
        if not self._may_tell():
            return
        # Events of nodes lie in a namespace too, `default`, and name no pod of another.
        self.recorder.warning(Regarding("v1", "Node", action.node), "Quarantined", action.brief)

    def _unserviceable(self, action: Unserviceable) -> None:
        if self._may_tell():
            where = Regarding("v1", "Node", action.node)
            self.recorder.warning(where, "CardsUnserviceable", action.message)

    def wake(self, uids: Sequence[str]) -> None:
        """Have kube-scheduler try these pods again."""
        if not self.speaks:
            return
        for uid in uids:
            self._asleep[uid] = None  # a pod that is there already keeps its turn
        while len(self._asleep) > _MOST:
            dropped, _ = self._asleep.popitem(last=False)
            self._forget(dropped)
        self._changed.set()

    def wake_in_turn(self, uids: Sequence[str]) -> None:
        """Have kube-scheduler try many pods again, so slowly that wake-ups for room come between."""
        if self.speaks:
            for number, uid in enumerate(uids):
                self._put_off(uid, max(0, number - _AT_ONCE) / _IN_TURN)

    # --- written in the background -----------------------------------------------------------

    async def _wake_all(self) -> None:
        while True:
            while not self._asleep:
                self._changed.clear()
                await self._changed.wait()
            uid, _ = self._asleep.popitem(last=False)
            entry = self._find(uid)
            # No writer waits for any of them: of many that fail, others' wake-ups would wait too.
            if entry is None:
                tries = self._missed[uid] = self._missed.get(uid, 0) + 1
                self._put_off(uid, _AGAIN if tries <= _UNHEARD else None)
                continue
            self._missed.pop(uid, None)
            if entry.pod.node is not None or await self._touch(entry):
                self._failed.pop(uid, None)
                self._due.pop(uid, None)
                continue
            # Kube-scheduler itself looks at its waiting pods every five minutes only.
            tries = self._failed[uid] = self._failed.get(uid, 0) + 1
            rest = min(_SELDOM, _AGAIN * 2.0 ** (tries - 1))
            self._put_off(uid, rest if tries < _FAILED else None)

    def _put_off(self, uid: str, seconds: float | None) -> None:
        """Wake a pod later, once however often it is put off meanwhile; None: no more."""
        if seconds is None or len(self._late) >= _MOST:
            self._forget(uid)
        elif uid not in self._due:
            self._due[uid] = self._client.clock.monotonic() + seconds
            heapq.heappush(self._late, (self._due[uid], uid))
            self._came_late.set()

    def _forget(self, uid: str) -> None:
        for kept in (self._missed, self._failed, self._due):
            kept.pop(uid, None)

    async def _wake_late(self) -> None:
        """Wake those once more whose wake-up was put off, each when it is time."""
        while True:
            while not self._late:
                self._came_late.clear()
                await self._came_late.wait()
            due, uid = self._late[0]
            left = due - self._client.clock.monotonic()
            if left > 0:
                # What comes meanwhile is due no earlier than after this.
                await self._client.clock.sleep(min(left, _AGAIN))
                continue
            heapq.heappop(self._late)
            if self._due.get(uid) != due:
                continue  # it was woken meanwhile
            del self._due[uid]
            if self.speaks:
                self.wake([uid])
            else:
                self._forget(uid)

    async def _touch(self, entry: PodEntry) -> bool:
        """Change a pod; whether that is settled. A conflict is not: the pod may still be this one."""
        pod = entry.pod
        moment = self._client.clock.now().isoformat(timespec="microseconds")
        body = {"metadata": {"uid": pod.uid, "annotations": {names.WOKEN: moment}}}
        try:
            await self._client.patch(
                PODS,
                pod.name,
                body,
                kind=PatchKind.MERGE,
                namespace=pod.namespace,
                into=msgspec.Raw,
            )
        except NotFound:
            return True
        except Conflict:
            return False
        except KubeError as error:
            _LOG.warning("pod %s cannot be woken yet: %s", pod.key, error)
            return False
        return True


def _regarding(entry: PodEntry) -> Regarding:
    pod = entry.pod
    return Regarding("v1", "Pod", pod.name, pod.namespace, pod.uid)


def _events_dropped(number: int) -> None:
    _LOG.warning(
        "%d events were not written: more pods and nodes had one than may be told", number
    )


def _event_failed(error: KubeError) -> None:
    _LOG.warning("an event cannot be written: %s", error)
