"""The mix of requests from which prices are learnt, and the cluster for which they are learnt."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Floats, Ints
from partage.model.device import MILLI, DeviceType
from partage.model.node import Node
from partage.placement.baselines import left_of
from partage.placement.fragmentation import UNNAMED, Shape, Workload

_MIB = 2**20


@dataclass(frozen=True, slots=True, order=True)
class Ask:
    """The request of one kind of pod.

    Attributes:
        count: cards; 0 for pods without.
        milli: compute of each card.
        models: accepted card models, sorted; empty for any. The empty name stands for cards that report no model.
        elsewhere: kube-scheduler places such pods, by its own scores; only for pods without cards.
    """

    cpu_milli: int
    memory_mib: int
    count: int = 0
    milli: int = 0
    models: tuple[str, ...] = ()
    elsewhere: bool = False

    @property
    def shape(self) -> Shape:
        """The request for rules that ignore memory."""
        models = "|".join(model or UNNAMED for model in self.models)
        return Shape(self.cpu_milli, self.milli if self.count else 0, self.count, models)


@dataclass(frozen=True, slots=True)
class Stock:
    """The empty cluster, a column for each property; models in alphabetical order."""

    cpu: Ints
    memory: Ints
    cards: Ints
    model: Ints
    models: tuple[str, ...]

    @staticmethod
    def of(nodes: Iterable[Node]) -> "Stock":
        """The nodes' CPU in milli, memory in MiB, and cards; the first card gives the model."""
        rows = []
        for node in nodes:
            gpus = [d for d in node.devices if d.type is DeviceType.GPU]
            room = node.allocatable
            memory = room.get("memory", 0) // _MIB
            rows.append((room.get("cpu", 0), memory, len(gpus), gpus[0].model if gpus else ""))
        models = tuple(sorted({row[3] for row in rows}))
        return Stock(
            np.array([row[0] for row in rows], np.int64),
            np.array([row[1] for row in rows], np.int64),
            np.array([row[2] for row in rows], np.int64),
            np.array([models.index(row[3]) for row in rows], np.int64),
            models,
        )

    def by_model(self, column: Ints) -> Floats:
        """The sum of a column over the nodes of each model."""
        return np.bincount(self.model, column, len(self.models)).astype(np.float64)

    def host(self, ask: Ask) -> bool:
        """Whether some node, empty, has all that a pod asks for."""
        fits = (self.cpu >= ask.cpu_milli) & (self.memory >= ask.memory_mib)
        fits &= self.cards >= ask.count
        if ask.models:
            fits &= np.isin(self.model, [i for i, m in enumerate(self.models) if m in ask.models])
        return bool(fits.any())

    @property
    def capacity(self) -> int:
        """Compute of all cards, milli."""
        return int(self.cards.sum()) * MILLI


@dataclass(frozen=True, slots=True)
class Mix:
    """How often each ask was seen, a column for each property.

    Attributes:
        allowed: (asks, models), whether a card of the model is accepted.
        elsewhere: whether kube-scheduler places its pods by its own scores.
    """

    cpu: Ints
    memory: Ints
    cards: Ints
    milli: Ints
    allowed: Bools
    elsewhere: Bools
    counts: Ints
    asks: tuple[Ask, ...]

    @staticmethod
    def of(seen: Mapping[Ask, int], stock: Stock) -> "Mix":
        """The columns, in the order of the asks' values: equal mixes give equal columns."""
        asks = sorted(ask for ask, count in seen.items() if count > 0)
        allowed = [[not a.models or m in a.models for m in stock.models] for a in asks]
        return Mix(
            np.array([a.cpu_milli for a in asks], np.int64),
            np.array([a.memory_mib for a in asks], np.int64),
            np.array([a.count for a in asks], np.int64),
            np.array([a.milli if a.count else 0 for a in asks], np.int64),
            np.array(allowed, np.bool_).reshape(len(asks), len(stock.models)),
            np.array([a.elsewhere for a in asks], np.bool_),
            np.array([seen[a] for a in asks], np.int64),
            tuple(asks),
        )

    @property
    def demand(self) -> Ints:
        """Total compute of all pods of each ask, milli."""
        result: Ints = self.counts * self.cards * self.milli
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """The current books, a row for each node of the stock.

    Attributes:
        cpu, memory: left, milli and MiB.
        left: compute left by node and card, milli; 0 for no card.
        running: placed pods of each ask.
    """

    cpu: Ints
    memory: Ints
    left: Ints
    running: Mapping[Ask, int]

    @staticmethod
    def of(ledger: Ledger, names: Iterable[str], running: Mapping[Ask, int]) -> "Standing":
        """A ledger's data of these nodes, in their order."""
        rows = np.array([ledger.index[name] for name in names], np.intp)
        free, plane = ledger.host_free, ledger.planes[DeviceType.GPU]
        return Standing(
            np.maximum(free["cpu"][rows], 0),
            np.maximum(free["memory"][rows], 0) // _MIB,
            np.maximum(left_of(plane, rows), 0).T.copy(),
            dict(running),
        )


def workload_of(mix: Mix) -> Workload:
    """The usual requests of a mix, for FGD, which ignores memory."""
    counts: Counter[Shape] = Counter()
    for ask, count in zip(mix.asks, mix.counts.tolist(), strict=True):
        counts[ask.shape] += count
    return Workload.counted(counts)
