"""Pods that were refused, why, and who of them to wake when room appears.

Kube-scheduler retries a refused pod only when something happens that it can see. Room that appears
in the books alone (a hold that ended, a quarantine that was lifted) it cannot see, and even for
what it sees it may wait minutes. So whenever room appears on a node, those who would fit there now
are woken: in order of priority, then of waiting, a batch at a time, so that a thousand pods that
wait for one card do not all ask at once.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from partage.extender.translation import PodEntry
from partage.inventory.plane import Bools
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal
from partage.scheduler.engine import Engine
from partage.scheduler.events import Placement

__all__ = ["WaitingPod", "WaitingRoom"]

_MOST: Final = 100_000
_AGAIN: Final = 5.0
"""Seconds for which a woken pod is not woken again: kube-scheduler has its turn."""


@dataclass(slots=True)
class WaitingPod:
    """A pod that waits.

    Attributes:
        entry: the pod.
        refusal: why, as it was last told.
        since: when it was first refused, seconds on the service's steady clock.
        woken: when it was last woken; None when it was not.
    """

    entry: PodEntry
    refusal: Refusal
    since: float
    woken: float | None = None


class WaitingRoom:
    """Who waits, and where room appeared that nobody has been woken for yet."""

    def __init__(self, batch: int = 64) -> None:
        self._batch = batch
        self._pods: OrderedDict[str, WaitingPod] = OrderedDict()
        self._nodes: set[str] = set()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._pods)

    def __iter__(self) -> Iterator[WaitingPod]:
        """Everybody who waits, in the order of arrival."""
        return iter(self._pods.values())

    def get(self, uid: str) -> WaitingPod | None:
        """The pod, if it waits."""
        return self._pods.get(uid)

    def counts(self) -> Counter[ReasonCode]:
        """How many wait by the leading code of their refusal."""
        return Counter(waiting.refusal.code for waiting in self._pods.values())

    def enter(self, entry: PodEntry, refusal: Refusal, now: float) -> bool:
        """A pod was refused; whether that is news."""
        known = self._pods.get(entry.pod.uid)
        if known is None:
            if len(self._pods) >= _MOST:
                self._pods.popitem(last=False)
            self._pods[entry.pod.uid] = WaitingPod(entry, refusal, now)
            return True
        news = (known.refusal.code, known.refusal.message) != (refusal.code, refusal.message)
        known.entry, known.refusal = entry, refusal
        return news

    def leave(self, uid: str) -> WaitingPod | None:
        """A pod waits no more: it was placed, or it is gone."""
        return self._pods.pop(uid, None)

    def room_on(self, node: str) -> None:
        """Room appeared on a node."""
        if self._pods:
            self._nodes.add(node)

    def to_wake(self, engine: Engine, now: float) -> list[str]:
        """The next pods to wake, most important first; nobody twice within five seconds.

        Args:
            engine: the books.
            now: seconds on the service's steady clock.
        """
        if not self._nodes:
            return []
        if not self._pods:
            self._nodes.clear()
            return []
        among = _marked(engine, self._nodes)
        verdicts: dict[tuple[int, ...], bool] = {}
        found = [
            waiting
            for waiting in self._pods.values()
            if (waiting.woken is None or waiting.woken + _AGAIN <= now)
            and _may_fit(engine, waiting, among, verdicts)
        ]
        found.sort(key=lambda waiting: (-waiting.entry.pod.priority, waiting.since))
        if len(found) <= self._batch:
            self._nodes.clear()
        chosen = found[: self._batch]
        for waiting in chosen:
            waiting.woken = now
        return [waiting.entry.pod.uid for waiting in chosen]


def _marked(engine: Engine, nodes: Iterable[str]) -> Bools:
    among = np.zeros(engine.ledger.present.shape[0], np.bool_)
    for node in nodes:
        index = engine.ledger.index.get(node)
        if index is not None:
            among[index] = True
    return among


def _may_fit(
    engine: Engine, waiting: WaitingPod, among: Bools, verdicts: dict[tuple[int, ...], bool]
) -> bool:
    """Whether the pod would fit on one of the nodes; asked once for all pods that are alike."""
    pod = waiting.entry.pod
    if pod.request.fault is not None:
        return False
    if waiting.refusal.code is ReasonCode.QUOTA_EXCEEDED:
        # A quota depends on the namespace and on what is granted, not only on the class.
        return isinstance(engine.explain(pod, reasons=False), Placement)
    alike = _alike(pod)
    verdict = verdicts.get(alike)
    if verdict is None:
        found, _ = engine.candidates(pod, among, most=1)
        verdict = verdicts[alike] = bool(found.size)
    return verdict


def _alike(pod: Pod) -> tuple[int, ...]:
    return id(pod.request), id(pod.host), id(pod.constraint), id(pod.tolerations)
