"""The published strategies that Partage is compared with, as scores of nodes.

All but the last come from "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023) and its public simulator. The formulas give the same integers, operation by operation, so
they reproduce the published results to the digit (docs/performance.md). They consider only compute and CPU: card memory
decides what fits, not what is better. `fragmentation` holds the strategy that the paper proposes.

Clusters of any size keep the published normalisation (128 cores, 8 cards): larger nodes get lower scores, never a wrong
order.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from partage.inventory.columns import UNCHECKED
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Ints, Plane
from partage.model.device import MILLI, DeviceType
from partage.model.request import DeviceRequest
from partage.placement.kernel import Nodes, at

_CPU: Final = 128_000.0  # milli; the largest node of the published cluster
_CARDS: Final = 8_000.0  # milli; eight cards
_OFFSET: Final = 1 << 32
"""Added if a node larger than the published ones could make a score negative."""
_MOST: Final = (1 << 33) - 1

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def demand(request: DeviceRequest | None) -> tuple[int, int]:
    """Cards asked, and compute asked of each in milli; zeros for a pod without cards."""
    if request is None or request.type is not DeviceType.GPU:
        return 0, 0
    return request.count, MILLI if request.whole else request.core_milli


def left_of(plane: Plane, nodes: Nodes) -> Ints:
    """Compute left on each open card, milli, shape (cards, nodes)."""
    left: Ints = np.where(at(plane.open, nodes), at(plane.core_free, nodes), 0)
    return left


def cpu_free(ledger: Ledger, nodes: Nodes) -> Ints:
    """CPU left on each node, milli; 0 if the node does not report it."""
    free = ledger.host_free["cpu"][nodes]
    # Half the mark, because the pods' requests are already subtracted from it.
    result: Ints = np.where(free >= UNCHECKED // 2, 0, free)
    return result


def best_fit(
    ledger: Ledger, host: Mapping[str, int], request: DeviceRequest | None, nodes: Nodes
) -> Ints:
    """BestFit: the less CPU and compute the pod would leave, half each, the better."""
    count, milli = demand(request)
    total = left_of(ledger.planes[DeviceType.GPU], nodes).sum(axis=0)
    rest = (cpu_free(ledger, nodes) - host.get("cpu", 0)) / _CPU * 0.5
    rest += (total - count * milli) / _CARDS * 0.5
    return _shifted(((1 - rest) * 100.0).astype(np.int64))


def dot_product(
    ledger: Ledger, host: Mapping[str, int], request: DeviceRequest | None, nodes: Nodes
) -> Ints:
    """DotProd: the smaller the product of the free and the asked amounts, the better."""
    count, milli = demand(request)
    total = left_of(ledger.planes[DeviceType.GPU], nodes).sum(axis=0)
    product = (cpu_free(ledger, nodes) / _CPU) * (host.get("cpu", 0) / _CPU)
    product += (total / _CARDS) * (count * milli / _CARDS)
    return _shifted((100.0 * (1 - product / 2.0)).astype(np.int64))


def packing(ledger: Ledger, request: DeviceRequest | None, nodes: Nodes) -> Ints:
    """GpuPacking: cards in use first, then idle cards of used nodes, then idle nodes."""
    plane = ledger.planes[DeviceType.GPU]
    left = left_of(plane, nodes)
    count, milli = demand(request)
    if count == 0:
        return np.zeros(left.shape[1], np.int64)
    present = plane.kind[:, nodes] > 0
    idle = (left >= MILLI) & present
    free = idle.sum(axis=0)
    # Cards that fit, tightest first; the taken ones are the first `count` of each column.
    tight = np.sort(np.where(left >= milli, left, _MOST), axis=0)[:count]
    tight = np.where(tight == _MOST, 0, tight)
    fresh = (tight >= MILLI).sum(axis=0)
    rest = (tight * 100 // MILLI).sum(axis=0)
    used = np.where(fresh > 0, np.maximum(50 - fresh, 33), np.maximum(100 - rest // 10, 50))
    result: Ints = np.where(free == present.sum(axis=0), np.maximum(33 - free, free), used)
    return result


def clustering(ledger: Ledger, request: DeviceRequest | None, nodes: Nodes) -> Ints:
    """GpuClustering: nodes whose pods ask for as many cards as this one, fuller nodes first."""
    plane = ledger.planes[DeviceType.GPU]
    left = left_of(plane, nodes)
    if request is None or request.type is not DeviceType.GPU:
        return np.zeros(left.shape[1], np.int64)
    base = np.maximum(25 * (8 * MILLI - left.sum(axis=0)), 0) // (8 * MILLI)
    mine = 1 << min(request.count, 62) if request.whole else 1
    hosted = ledger.hosted[nodes]
    alone = np.where(hosted == mine, 75, 50)
    other = np.where(hosted == 0, 25, 0)
    result: Ints = base + np.where(hosted & mine > 0, alone, other)
    return result


def drawn(ledger: Ledger, seed: int, nodes: Nodes) -> Ints:
    """Random: a number for each node, drawn again after every change of the books.

    It follows from the seed, the number of changes so far and the node's index (SplitMix64), so a replay of the same
    events draws the same.
    """
    index = np.arange(ledger.present.shape[0], dtype=np.uint64)[nodes]
    return mixed(index, seed, ledger.changes.count)


def mixed(index: np.ndarray[tuple[int, ...], np.dtype[np.uint64]], seed: int, step: int) -> Ints:
    """34 well-mixed bits for each index."""
    start = np.uint64((seed * 0x2545F4914F6CDD1D + step * 0xD1342543DE82EF95) % 2**64)
    value = (index + np.uint64(1)) * _GOLDEN + start
    for shift, factor in zip((np.uint64(30), np.uint64(27)), _MIX, strict=True):
        value = (value ^ (value >> shift)) * factor
    value ^= value >> np.uint64(31)
    return (value >> np.uint64(30)).astype(np.int64)


def _shifted(score: Ints) -> Ints:
    return np.minimum(np.maximum(score + _OFFSET, 0), _MOST)
