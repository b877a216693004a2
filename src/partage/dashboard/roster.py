"""Pods with devices in the order of their display, kept up to date pod by pod.

Sorting some ten thousand pods for every look would delay the decisions of the same process. So the module keeps
the order and only moves changed pods. Work on all pods runs in pieces, between which other tasks run. Ended
pods are not here, nor pods that name devices, ask for none of them (`nvidia.com/gpu: 0`) and hold none.
"""

import asyncio
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import Any, Final, TypeVar

from partage.dashboard.fragments import shapes_of
from partage.extender.cluster_cache import ClusterCache
from partage.extender.cycle import asks
from partage.model.pod import Pod
from partage.placement.fragmentation import Shape

Key = tuple[str, str, str]
"""Namespace, name and uid of a pod."""
Turn = tuple[int, str, str, str, str]
"""A waiting pod's place in line, as in kube-scheduler's queue: minus its priority, when it was created, its key."""
_K = TypeVar("_K", bound=tuple[Any, ...])
_C = TypeVar("_C", bound=Hashable)
_PIECE: Final = 256
"""Pods sorted before other tasks run."""
_SEARCHED: Final = 512
"""Pods whose names are searched before other tasks run."""


@dataclass(frozen=True, slots=True)
class _Row:
    """Kept facts of a pod: its place, and its counted and searched values."""

    key: Key
    waits: bool
    turn: Turn
    text: str
    shapes: tuple[Shape, ...]
    protocols: frozenset[str]


@dataclass(slots=True)
class Roster:
    """Pods of one service's books.

    Attributes:
        pods: all of them, by namespace and name.
        turns: waiting pods in line.
        shapes: pods' requests of cards, with their numbers.
        namespaces: of the pods, with their numbers.
    """

    pods: list[Key] = field(default_factory=list)
    placed: list[Key] = field(default_factory=list)
    waiting: list[Key] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    shapes: Counter[Shape] = field(default_factory=Counter)
    namespaces: Counter[str] = field(default_factory=Counter)
    _cluster_cache: ClusterCache | None = None
    _seen: int = 0
    _rows: dict[str, _Row] = field(default_factory=dict)
    _alike: dict[tuple[Shape, ...], tuple[Shape, ...]] = field(default_factory=dict)

    async def refresh(self, cluster_cache: ClusterCache) -> None:
        """Take in changes since the last time; one call at a time."""
        changed = (
            cluster_cache.changes.since(self._seen)
            if cluster_cache is self._cluster_cache
            else None
        )
        if changed is None:
            self._cluster_cache, seen = None, cluster_cache.changes.count
            await self._fill(cluster_cache)
            self._cluster_cache, self._seen = cluster_cache, seen
        while changed := cluster_cache.changes.since(self._seen):
            for number, uid in enumerate(dict.fromkeys(changed), 1):
                self._take(uid, cluster_cache)
                if not number % _PIECE:
                    await asyncio.sleep(0)
            self._seen += len(changed)

    async def found(self, text: str, among: Sequence[Key]) -> list[Key]:
        """Those with this text, in lower case, in `namespace/name` or node."""
        found: list[Key] = []
        for start in range(0, len(among), _SEARCHED):
            for key in among[start : start + _SEARCHED]:
                row = self._rows.get(key[2])
                if row is not None and text in row.text:
                    found.append(key)
            if start + _SEARCHED < len(among):
                await asyncio.sleep(0)
        return found

    def of_protocol(self, protocol: str, among: Sequence[Key]) -> list[Key]:
        """Those that use this protocol."""
        rows = self._rows
        return [key for key in among if key[2] in rows and protocol in rows[key[2]].protocols]

    async def _fill(self, cluster_cache: ClusterCache) -> None:
        """Read all pods: sort them piece by piece, then merge the pieces."""
        self._rows, self._alike, self.shapes = {}, {}, Counter()
        self.namespaces = Counter()
        uids = list(cluster_cache.pods)
        pods: list[list[Key]] = []
        placed: list[list[Key]] = []
        waiting: list[list[Key]] = []
        turns: list[list[Turn]] = []
        for start in range(0, len(uids), _PIECE):
            run = [
                self._row(entry.pod, cluster_cache)
                for uid in uids[start : start + _PIECE]
                if (entry := cluster_cache.pods.get(uid)) is not None and _counts(entry.pod)
            ]
            for row in run:
                self._rows[row.key[2]] = row
                self.shapes.update(row.shapes)
                self.namespaces[row.key[0]] += 1
            pods.append(sorted(row.key for row in run))
            placed.append(sorted(row.key for row in run if not row.waits))
            waiting.append(sorted(row.key for row in run if row.waits))
            turns.append(sorted(row.turn for row in run if row.waits))
            await asyncio.sleep(0)
        self.pods, self.placed = await merged(pods), await merged(placed)
        self.waiting, self.turns = await merged(waiting), await merged(turns)

    def _row(self, pod: Pod, cluster_cache: ClusterCache) -> _Row:
        shapes = tuple(shapes_of(pod))
        return _Row(
            (pod.namespace, pod.name, pod.uid),
            pod.node is None,
            (-pod.priority, cluster_cache.born(pod.uid) or "", pod.namespace, pod.name, pod.uid),
            f"{pod.key}\n{pod.node or ''}".lower(),
            self._alike.setdefault(shapes, shapes),  # many pods have equal requests
            frozenset(group.protocol for group in pod.request.groups),
        )

    def _take(self, uid: str, cluster_cache: ClusterCache) -> None:
        entry, before = cluster_cache.pods.get(uid), self._rows.pop(uid, None)
        counts = entry is not None and _counts(entry.pod)
        after = self._row(entry.pod, cluster_cache) if entry is not None and counts else None
        if after is not None:
            self._rows[uid] = after
        if before == after:
            return
        if before is not None:
            _remove(self.pods, before.key)
            _remove(self.waiting if before.waits else self.placed, before.key)
            if before.waits:
                _remove(self.turns, before.turn)
            for shape in before.shapes:
                _less(self.shapes, shape)
            _less(self.namespaces, before.key[0])
        if after is not None:
            insort(self.pods, after.key)
            insort(self.waiting if after.waits else self.placed, after.key)
            if after.waits:
                insort(self.turns, after.turn)
            self.shapes.update(after.shapes)
            self.namespaces[after.key[0]] += 1


def _counts(pod: Pod) -> bool:
    return not pod.finished and (asks(pod) or pod.record is not None)


def _less(counts: Counter[_C], one: _C) -> None:
    counts[one] -= 1
    if not counts[one]:
        del counts[one]


def _remove(ordered: list[_K], one: _K) -> None:
    place = bisect_left(ordered, one)
    if place < len(ordered) and ordered[place] == one:
        del ordered[place]


async def merged(runs: Iterable[list[_K]]) -> list[_K]:
    """All of them in order, from sorted runs."""
    found: list[_K] = []
    for number, one in enumerate(merge(*runs), 1):
        found.append(one)
        if not number % _PIECE:
            await asyncio.sleep(0)
    return found
