"""Finds the class of a pod: by identity if the same request object comes again, else by its value."""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from typing import Final, Protocol

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.placement.capacity import CapacityGauge
from partage.placement.fragmentation import Gauge, Workload
from partage.placement.priced import PriceGauge
from partage.placement.tables import Prices, Tables
from partage.scheduler.classes import RequestClass, Rescorer
from partage.scheduler.eligibility import Eligibility, NodeColumns, eligibility_key
from partage.scheduler.equal_nodes import EqualNodes, Memory

_MOST_CLASSES: Final = 512
_MOST_KNOWN: Final = 4096


class Scorers(Protocol):
    """Gauges and scorers that replace the usual ones, with the same results; simulations have compiled ones."""

    def gauge(self, workload: Workload, ledger: Ledger) -> Gauge:
        """A gauge of fragmentation."""

    def price_gauge(self, prices: Prices, ledger: Ledger) -> PriceGauge:
        """A gauge of values."""

    def rescorer(self, group: RequestClass, ledger: Ledger) -> Rescorer | None:
        """The scorer of the class; None for the usual way."""


class RequestClassCache:
    """The classes in use, under one policy and one set of tables."""

    def __init__(self, ledger: Ledger, scorers: Scorers | None = None) -> None:
        self._ledger = ledger
        self._scorers = scorers
        self._gauge: Gauge | None = None
        self._priced: PriceGauge | CapacityGauge | None = None
        self._classes: dict[object, RequestClass] = {}
        self._former: dict[object, RequestClass] = {}  # those of the previous policy or tables
        self._columns = NodeColumns(ledger)
        self._eligible: dict[object, Eligibility] = {}
        self._searched: Memory = OrderedDict()
        self._numbers = count()
        # Values are immutable, so the same objects always ask the same. The cache keeps the pod so that its parts'
        # identities are not used again.
        self._known: dict[tuple[int, int, int, int], tuple[Pod, RequestClass]] = {}

    def domains(self, keys: Iterable[str]) -> Ints:
        """By node index, a number that nodes share if they agree in all of these labels."""
        self._columns.refresh()
        return self._columns.domains(keys)

    def accepting(self, pod: Pod) -> Bools:
        """By node index, whether the pod accepts the node by its labels and taints."""
        return self._columns.accepting(pod)

    def clear(self) -> None:
        """Forget all classes, but keep the nodes that are in question."""
        self._former = dict(self._classes)
        self._classes.clear()
        self._known.clear()
        self._gauge = None
        self._priced = None

    def find(self, pod: Pod, policy: Policy, tables: Tables) -> RequestClass:
        """The class of a pod; a new one if none is known."""
        identity = (id(pod.request), id(pod.host), id(pod.constraint), id(pod.tolerations))
        known = self._known.get(identity)
        if known is not None:
            return known[1]
        key = _class_key(pod)
        group = self._classes.pop(key, None)
        if group is None:
            equals = EqualNodes(self._searched, next(self._numbers))
            group = RequestClass.of(pod, policy, tables, self._eligibility(pod), equals)
            self._equip(group, tables)
            former = self._former.pop(key, None)
            if former is not None:
                group.follow(former)
            if len(self._classes) >= _MOST_CLASSES:
                del self._classes[next(iter(self._classes))]
                self._known.clear()
        self._classes[key] = group
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[identity] = (pod, group)
        return group

    def _equip(self, group: RequestClass, tables: Tables) -> None:
        """Give a new class the shared gauges, and a scorer of its own if there is one."""
        strategies = group.node_strategy, group.card_strategy
        if Strategy.FGD in strategies and tables.workload.shapes:
            if self._gauge is None:
                self._gauge = self._gauge_of(tables.workload)
            group.gauge = self._gauge
        if Strategy.PARTAGE in strategies:
            if self._priced is None:
                self._priced = self._priced_of(tables)
            group.priced = self._priced
            node = group.node_strategy is Strategy.PARTAGE
            group.guarded = node and tables.prices is not None and bool(tables.prices.reserves)
        if self._scorers is not None:
            group.rescorer = self._scorers.rescorer(group, self._ledger)

    def _gauge_of(self, workload: Workload) -> Gauge:
        if self._scorers is None:
            return Gauge(workload, self._ledger)
        return self._scorers.gauge(workload, self._ledger)

    def _priced_of(self, tables: Tables) -> PriceGauge | CapacityGauge | None:
        if tables.prices is None:
            shapes = tables.expected.shapes
            return CapacityGauge(tables.expected, self._ledger) if shapes else None
        if self._scorers is None:
            return PriceGauge(tables.prices, self._ledger)
        return self._scorers.price_gauge(tables.prices, self._ledger)

    def _eligibility(self, pod: Pod) -> Eligibility:
        key = eligibility_key(pod)
        found = self._eligible.get(key)
        if found is None:
            if len(self._eligible) >= _MOST_CLASSES:
                self._eligible.clear()
            found = self._eligible[key] = Eligibility(pod, self._columns)
        return found


def _class_key(pod: Pod) -> object:
    """The key that equal pods share: everything but their names."""
    request = pod.request
    groups = tuple(
        (
            g.protocol,
            g.request,
            g.phase,
            g.dialect,
            tuple(
                (c.phase, c.core_milli, c.memory_bytes, c.memory_milli, c.position)
                for c in g.containers
            ),
        )
        for g in request.groups
    )
    return (
        groups,
        request.joint,
        request.partition,
        request.node_labels,
        request.node_strategy,
        request.card_order,
        request.scoring,
        tuple(pod.host.items()),
        pod.constraint,
        pod.tolerations,
    )
