"""Fragmentation of the live cluster: the free compute that no usual request could use.

The measure is that of the published FGD (`placement.fragmentation`): the compute that a request drawn from the
usual mix is expected to find and not to be able to use. Here the usual mix is that of the known pods, running
and waiting.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.request import Phase, RequestGroup
from partage.placement.baselines import left_of
from partage.placement.fragmentation import Gauge, Shape, Workload

_STEP: Final = 64
"""The mix is counted again when the number of pods changes by this many, or by one in this many."""


class Fragments:
    """Fragmentation of one service's books, updated for changes only."""

    def __init__(self) -> None:
        self._gauge: Gauge | None = None
        self._asks = -_STEP

    def of(self, ledger: Ledger, shapes: Mapping[Shape, int]) -> dict[str, Any]:
        """Free compute, its part that the usual requests cannot use, and the number of their kinds.

        `shapes`: pods' requests of cards, with their numbers.
        """
        gauge, asks = self._gauge, sum(shapes.values())
        far = abs(asks - self._asks) >= max(_STEP, asks // _STEP)
        if gauge is None or gauge.ledger is not ledger or far:
            gauge = self._gauge = Gauge(Workload.counted(shapes), ledger)
            self._asks = asks
        gauge.refresh()
        return _told(gauge)


def fragments_of(ledger: Ledger, workload: Workload) -> dict[str, Any]:
    """The same for any ledger, once."""
    return _told(Gauge(workload, ledger))


def _told(gauge: Gauge) -> dict[str, Any]:
    plane = gauge.ledger.planes[DeviceType.GPU]
    nodes = list(gauge.ledger.index.values())
    free = int(left_of(plane, slice(None))[:, nodes].sum()) if nodes else 0
    known = any(shape.core_milli for shape in gauge.workload.shapes)
    unusable = round(float(gauge.frag[nodes].sum())) if nodes and known else 0
    return {
        "free_milli": free,
        "unusable_milli": min(unusable, free),
        "asks": sum(bool(shape.core_milli) for shape in gauge.workload.shapes),
    }


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
