"""Fragmentation of the live cluster: the free compute that no usual request could use.

The measure is that of the published FGD (`placement.fragmentation`): the compute that a request drawn from the
usual mix is expected to find and not to be able to use. Here the usual mix is that of the known pods, running
and waiting. It has few kinds of requests, and nodes are measured some at a time: any user may make pods with
dozens of different containers, and others' pods wait for their decisions meanwhile.
"""

import asyncio
from collections.abc import Iterator, Mapping
from heapq import nlargest
from typing import Any, Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Floats, Index
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.request import Phase, RequestGroup
from partage.placement.baselines import left_of
from partage.placement.fragmentation import Lens, Shape, Workload, fragmentation

_STEP: Final = 64
"""The mix is counted again when the number of requests changes by this many, or by one in this many."""
KINDS: Final = 64
"""Most kinds of requests in the mix, the most frequent ones: each costs time on every node."""
_PIECE: Final = 1024
"""Kinds of requests compared before other tasks run."""
_NODES: Final = 512
"""Nodes measured before other tasks run."""


class Fragments:
    """Fragmentation of one service's books, updated for changes only."""

    def __init__(self) -> None:
        self._measured: _Measured | None = None
        self._asks = 0

    async def of(self, ledger: Ledger, shapes: Mapping[Shape, int]) -> dict[str, Any]:
        """Free compute, its part that the usual requests cannot use, and the number of their kinds.

        `shapes`: pods' requests of cards, with their numbers.
        """
        asks, measured = sum(shapes.values()), self._measured
        if measured is None or abs(asks - self._asks) >= max(_STEP, asks // _STEP):
            workload, self._asks = await usual(shapes), asks
        else:
            workload = measured.workload
        measured = self._measured
        if measured is None or measured.ledger is not ledger or measured.workload != workload:
            measured = self._measured = _Measured(ledger, workload)
        return await measured.told()


async def fragments_of(ledger: Ledger, workload: Workload) -> dict[str, Any]:
    """The same for any ledger, once."""
    return await _Measured(ledger, workload).told()


async def usual(shapes: Mapping[Shape, int]) -> Workload:
    """The usual requests: the most frequent of these, which have their numbers."""
    found: list[tuple[int, Shape]] = []
    known = list(shapes.items())
    for start in range(0, len(known), _PIECE):
        piece = ((count, shape) for shape, count in known[start : start + _PIECE])
        found = nlargest(KINDS, (*found, *piece))
        await asyncio.sleep(0)
    return Workload.counted({shape: count for count, shape in found})


class _Measured:
    """Fragmentation of a ledger's nodes against one mix, which names no models of cards."""

    def __init__(self, ledger: Ledger, workload: Workload) -> None:
        self.ledger, self.workload = ledger, workload
        self._lens = Lens.of(workload, [""])
        self._seen = -1
        self._frag: Floats = np.zeros(0)
        self._old: Bools = np.zeros(0, np.bool_)

    async def told(self) -> dict[str, Any]:
        """The sums, after all changes so far."""
        while (due := self._due()).size > _NODES:
            self._measure(due[:_NODES])
            await asyncio.sleep(0)
        self._measure(due)
        plane = self.ledger.planes[DeviceType.GPU]
        nodes = list(self.ledger.index.values())
        free = int(left_of(plane, slice(None))[:, nodes].sum()) if nodes else 0
        asks = sum(bool(shape.core_milli) for shape in self.workload.shapes)
        unusable = round(float(self._frag[nodes].sum())) if nodes and asks else 0
        return {"free_milli": free, "unusable_milli": min(unusable, free), "asks": asks}

    def _due(self) -> Index:
        """The nodes that changed since they were measured."""
        changes, size = self.ledger.changes, self.ledger.present.size
        changed = changes.since(self._seen)
        if changed is None or self._old.size != size:
            self._frag, self._old = np.zeros(size), np.ones(size, np.bool_)
        else:
            self._old[changed] = True
        self._seen = changes.count
        return np.flatnonzero(self._old)

    def _measure(self, nodes: Index) -> None:
        plane, cpu = self.ledger.planes[DeviceType.GPU], self.ledger.host_free["cpu"]
        left = left_of(plane, nodes)
        self._frag[nodes] = fragmentation(self._lens, cpu[nodes], left, plane.kind[0, nodes])
        self._old[nodes] = False


def shapes_of(pod: Pod) -> Iterator[Shape]:
    """A pod's simultaneous requests of cards, one shape a group."""
    for group in pod.request.groups:
        milli = _milli(group)
        if group.phase is not Phase.INIT and milli:
            yield Shape(pod.host.get("cpu", 0), milli, max(group.request.count, 1))


def _milli(group: RequestGroup) -> int:
    """Requested compute of each card; for a share of memory alone, the same part as of memory."""
    asked = group.request
    if asked.type is not DeviceType.GPU or asked.every:
        return 0
    return 1000 if asked.whole else asked.core_milli or asked.memory_milli
