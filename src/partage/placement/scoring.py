"""How good each node is for a request: one integer a node, higher is better, never negative.

Scores are integers on purpose: near-equal places are equal, and the explicit node order breaks ties, so a decision is
the same on every machine. Every score is below `CEILING`.

Scores are kept by class of requests, and only changed nodes are scored again. So a score may depend only on its node,
the request and the policy's tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from partage.inventory.columns import UNCHECKED
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints, Plane
from partage.model.device import DeviceType
from partage.model.policy import Scoring, Strategy
from partage.model.request import DeviceRequest
from partage.placement import baselines
from partage.placement.capacity import CapacityGauge
from partage.placement.fragmentation import Gauge
from partage.placement.kernel import Nodes
from partage.placement.priced import PriceGauge
from partage.placement.tables import Tables

CEILING: Final = 2**34
_MILLION: Final = 1_000_000
_PUBLISHED: Final = frozenset(
    {
        Strategy.RANDOM,
        Strategy.BESTFIT,
        Strategy.DOTPROD,
        Strategy.GPUPACKING,
        Strategy.GPUCLUSTERING,
        Strategy.FGD,
    }
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A strategy's inputs.

    Attributes:
        host: ordinary resources that the pod asks.
        request: the pod's first device request, or None for a pod without devices.
        fits: the cards that serve it, for `nodes`; None without devices.
        gauge: fragmentation of every node, if the tables have usual requests.
        priced: value of every node, if prices or usual requests are learnt.
        scoring: the criteria of the pod's protocol under binpack and spread.
    """

    ledger: Ledger
    host: Mapping[str, int]
    request: DeviceRequest | None
    fits: Bools | None
    nodes: Nodes
    tables: Tables
    gauge: Gauge | None = None
    priced: PriceGauge | CapacityGauge | None = None
    scoring: Scoring = Scoring()


def score(scene: Scene, strategy: Strategy) -> Ints:
    """Scores of the scene's nodes.

    Binpack and spread use the amounts before the pod arrives. The default takes the first node that fits until it has
    learnt something; it keeps pods without devices off nodes with devices.
    """
    ledger, request, fits, nodes = scene.ledger, scene.request, scene.fits, scene.nodes
    if strategy is Strategy.FIRST_FIT:
        return np.zeros(ledger.present[nodes].shape, np.int64)
    if strategy in _PUBLISHED:
        return _published(scene, strategy)
    if strategy is Strategy.PARTAGE:
        if scene.priced is None:
            return _first(scene)
        return scene.priced.node_scores(scene.host, request, fits, nodes)
    if request is None or fits is None:
        return _host_score(ledger, nodes, strategy)
    plane = ledger.planes[request.type]
    if strategy is Strategy.SPREAD and scene.scoring.left:
        return _left(plane, nodes)
    usage, most = _usage(plane, nodes), 2 * _MILLION
    if scene.scoring.sharers:
        usage, most = usage + _sharing(plane, nodes), most + _MILLION
    return most - usage if strategy is Strategy.SPREAD else usage


def ranking(scene: Scene, strategy: Strategy) -> dict[int, int] | None:
    """Score of each fitting card, by row, of the scene's only node.

    None if the strategy leaves cards to `placement.order`.
    """
    request, fits, nodes = scene.request, scene.fits, scene.nodes
    if request is None or fits is None or request.whole:
        return None
    if strategy is Strategy.RANDOM:
        rows = np.flatnonzero(fits[:, 0])
        place = np.arange(scene.ledger.present.shape[0])[nodes] * fits.shape[0] + rows
        draws = baselines.mixed(
            place.astype(np.uint64), ~scene.tables.seed, scene.ledger.changes.count
        )
        return dict(zip(rows.tolist(), draws.tolist(), strict=True))
    if strategy is Strategy.FGD and scene.gauge is not None:
        index = int(np.arange(scene.ledger.present.shape[0])[nodes][0])
        return scene.gauge.card_scores(scene.host, request, fits, index)
    if strategy is Strategy.PARTAGE and scene.priced is not None:
        if request.type is not DeviceType.GPU:
            return None
        index = int(np.arange(scene.ledger.present.shape[0])[nodes][0])
        return scene.priced.card_scores(scene.host, request, fits, index)
    return {}


def _published(scene: Scene, strategy: Strategy) -> Ints:
    ledger, host, request, nodes = scene.ledger, scene.host, scene.request, scene.nodes
    if strategy is Strategy.RANDOM:
        return baselines.drawn(ledger, scene.tables.seed, nodes)
    if strategy is Strategy.BESTFIT:
        return baselines.best_fit(ledger, host, request, nodes)
    if strategy is Strategy.DOTPROD:
        return baselines.dot_product(ledger, host, request, nodes)
    if strategy is Strategy.GPUPACKING:
        return baselines.packing(ledger, request, nodes)
    if strategy is Strategy.GPUCLUSTERING:
        return baselines.clustering(ledger, request, nodes)
    if scene.gauge is None:
        return np.zeros(ledger.present[nodes].shape, np.int64)
    return scene.gauge.node_scores(host, request, scene.fits, nodes)


def _usage(plane: Plane, nodes: Nodes) -> Ints:
    """Used compute plus used memory of each node's devices, in millionths of each."""
    core_total = plane.core_total[:, nodes].sum(axis=0)
    memory_total = plane.memory_total[:, nodes].sum(axis=0)
    core_free = np.clip(plane.core_free[:, nodes].sum(axis=0), 0, core_total)
    memory_free = np.clip(plane.memory_free[:, nodes].sum(axis=0), 0, memory_total)
    return _part(core_total - core_free, core_total) + _part(
        memory_total - memory_free, memory_total
    )


def _sharing(plane: Plane, nodes: Nodes) -> Ints:
    """Sharers of each node's devices, in millionths of the sharers that these may have."""
    total = plane.slots_total[:, nodes].sum(axis=0)
    return _part(np.minimum(plane.tenants[:, nodes].sum(axis=0), total), total)


def _left(plane: Plane, nodes: Nodes) -> Ints:
    """Compute plus memory that each node has left, in millionths of its devices; closed ones have nothing."""
    left: Ints = np.zeros(plane.open.shape[1:], np.int64)[nodes]
    for free, total in (
        (plane.core_free, plane.core_total),
        (plane.memory_free, plane.memory_total),
    ):
        parts = _part(np.clip(free[:, nodes], 0, total[:, nodes]), total[:, nodes])
        left = left + np.where(plane.open[:, nodes], parts, 0).sum(axis=0)
    return left


def _part(part: Ints, whole: Ints) -> Ints:
    """`part` in millionths of `whole` without overflow: huge values of both are scaled down."""
    shift = np.maximum(whole >> 40, 0)
    scale = np.where(shift > 0, 1 << 20, 1)
    return (part // scale) * _MILLION // np.maximum(whole // scale, 1)


def _host_score(ledger: Ledger, nodes: Nodes, strategy: Strategy) -> Ints:
    usage: Ints = np.zeros(ledger.present[nodes].shape, np.int64)
    for resource in ("cpu", "memory"):
        total = ledger.host_total[resource][nodes]
        free = np.clip(ledger.host_free[resource][nodes], 0, total)
        usage += np.where(total >= UNCHECKED, 0, _part(total - free, total))
    return 2 * _MILLION - usage if strategy is Strategy.SPREAD else usage


def _first(scene: Scene) -> Ints:
    """The default before it has learnt prices: all nodes alike, those without devices first.

    Nodes differ only for pods without devices, because cards that these strand serve no pod.
    """
    bare: Ints = scene.ledger.bare[scene.nodes].astype(np.int64)
    return bare if scene.request is None else np.zeros_like(bare)
