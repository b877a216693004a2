"""Pods that wait for room, in order of arrival, and who of them is worth another try."""

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from partage.inventory.ledger import Ledger
from partage.model.pod import Pod
from partage.sim.prefilter import Prefilter


class Queue:
    """Waiting pods by kind; pods of one kind ask the same."""

    def __init__(self, kinds: Sequence[Pod]) -> None:
        self._prefilter = Prefilter(kinds)
        self._waiting: list[deque[int]] = [deque() for _ in kinds]
        self._some = np.zeros(len(kinds), np.bool_)

    def add(self, number: int, kind: int) -> None:
        """Let a pod wait behind all others."""
        self._waiting[kind].append(number)
        self._some[kind] = True

    def retry(self, ledger: Ledger, node: str, place: Callable[[int], bool]) -> None:
        """Try those that wait again, in order of arrival, now that a node has room.

        Places only fill up during the round: of a kind that is refused once, no other pod is
        tried, and no other node has room that it had not before.

        Args:
            place: tries a pod; whether it has a place now.
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
