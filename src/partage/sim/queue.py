"""Pods that wait for room, in order of arrival, and which of them are worth another try."""

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.request import DeviceRequest, PodRequest
from partage.placement.kernel import is_plain


class Prefilter:
    """Checks at once which of many waiting pods a node could possibly host; it would refuse most of them."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        """Requests that are not plain, or may be served by instances, are judged only by their host resources."""
        self._names = sorted({name for pod in pods for name in pod.host})
        needs = [[pod.host.get(name, 0) for name in self._names] for pod in pods]
        self._needs: Ints = np.array(needs, np.int64).reshape(len(pods), len(self._names))
        asked = [_by_cards(pod.request) for pod in pods]
        self._count: Ints = np.array([r.count if r else 0 for r in asked], np.int64)
        self._core: Ints = np.array([r.core_milli if r else 0 for r in asked], np.int64)
        self._whole: Bools = np.array([r is not None and r.whole for r in asked], np.bool_)

    def on(self, ledger: Ledger, index: int) -> Bools:
        """By pod, whether the node could host it; False is certain, True is not."""
        left = ledger.host_left(index, self._names)
        room = np.array([left[name] for name in self._names], np.int64)
        able: Bools = np.all((self._needs <= room) | (self._needs <= 0), axis=1)
        plane = ledger.planes[DeviceType.GPU]
        open_ = plane.open[:, index]
        idle = int((open_ & (plane.tenants[:, index] == 0)).sum())
        most = int(np.where(open_, plane.core_free[:, index], -1).max(initial=-1))
        shared: Bools = (self._count == 0) | (self._core <= most)
        result: Bools = able & np.where(self._whole, self._count <= idle, shared)
        return result


def _by_cards(request: PodRequest) -> DeviceRequest | None:
    """The request, if only the cards' columns decide."""
    if not is_plain(request) or request.groups[0].request.instances:
        return None
    return request.groups[0].request


class Queue:
    """Waiting pods by kind; pods of one kind ask the same."""

    def __init__(self, kinds: Sequence[Pod]) -> None:
        self._prefilter = Prefilter(kinds)
        self._waiting: list[deque[int]] = [deque() for _ in kinds]
        self._some = np.zeros(len(kinds), np.bool_)

    def add(self, number: int, kind: int) -> None:
        """Add a pod behind all others."""
        self._waiting[kind].append(number)
        self._some[kind] = True

    def retry(self, ledger: Ledger, node: str, place: Callable[[int], bool]) -> None:
        """Try the waiting pods again, in order of arrival, after a node got room.

        Places only fill up during the round. So after one refusal no other pod of that kind is tried, and no other node
        has new room. `place`: tries a pod; whether it has a place now.
        """
        index = ledger.index.get(node)
        if index is None or not self._some.any():
            return
        able = self._some & self._prefilter.on(ledger, index)
        first = [(self._waiting[kind][0], kind) for kind in np.flatnonzero(able).tolist()]
        heapq.heapify(first)
        while first:
            number, kind = heapq.heappop(first)
            if not able[kind] or not place(number):
                continue
            able = self._prefilter.on(ledger, index)
            waiting = self._waiting[kind]
            waiting.popleft()
            if waiting:
                heapq.heappush(first, (waiting[0], kind))
            else:
                self._some[kind] = False
