"""Request classes: pods with equal requests are scored once, and then only changed nodes again.

A pod finds its class by identity if the same request object comes again, else by its value (`RequestClassCache`).

A class keeps one number a node: its score, or -1 if the pod cannot go there. Before each decision the nodes that
changed are scored again. The result is the same as that of a full scan (a law under test).
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from partage.inventory.columns import distinct
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Index, Ints
from partage.model.allocation import Grant
from partage.model.device import MILLI
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.model.reason import NodeReason, Refusal
from partage.model.request import DeviceRequest, Kind, Phase, PodRequest, RequestGroup
from partage.placement import kernel
from partage.placement.capacity import CapacityGauge
from partage.placement.fragmentation import Gauge, Workload
from partage.placement.greedy import taking_all
from partage.placement.instance_kernel import ALIKE, SHARES_FIRST, CutView, cut_views
from partage.placement.node import (
    BEYOND_SCORES,
    Eligibility,
    Judgements,
    NodeColumns,
    Scene,
    card_scores,
    node_scores,
)
from partage.placement.priced import TIER, PriceGauge
from partage.placement.sums import room_together
from partage.placement.tables import Prices, Tables
from partage.scheduler.equal_nodes import EqualNodes, Memory

RANKS: Final = 2**20
_MOST_CLASSES: Final = 512
_MOST_KNOWN: Final = 4096
_PARTIAL: Final = 4
_NOTHING_SURE: Final[NDArray[np.int8]] = np.zeros(0, np.int8)
_OF_GROUP = attrgetter("protocol", "request", "phase", "dialect")
_OF_CONTAINER = attrgetter("phase", "core_milli", "memory_bytes", "memory_milli", "position")
_OF_REQUEST = attrgetter(
    "joint", "partition", "node_labels", "node_strategy", "card_order", "scoring"
)
_FIRST_LOOK: Final = 256
"""Nodes that are first asked whether they take all groups at the first try; all others follow."""


class Rescorer(Protocol):
    """Scores one class of plain requests instead of NumPy, with the same results."""

    def score(
        self,
        suits: Bools | None,
        eligible: tuple[Bools, Ints],
        rank: Ints,
        value: Ints,
        flags: Ints,
        nodes: kernel.Nodes,
    ) -> bool:
        """Write `value` and `flags` of some nodes; False if only NumPy can."""


@dataclass(slots=True)
class Part:
    """Some nodes, in books with as many positions for devices as they need.

    Attributes:
        books: the ledger, or its first positions.
        suits: for each kind of group, the cards that it accepts, in these books.
        at: their positions among all nodes of the question.
        takes: known answers for kinds that differ in amounts only, by the identity of their `suits`.
    """

    books: Ledger
    suits: list[Bools]
    nodes: kernel.Nodes
    at: kernel.Nodes
    takes: dict[int, dict[object, Bools]] = field(default_factory=dict)


@dataclass(slots=True)
class RequestClass:
    """Scores of one class over all nodes, kept up to date.

    Attributes:
        node_strategy: between nodes, the pod's own wish included.
        plain: the request is of the common kind that `kernel.choose` serves.
        value: score and order in one number a node; -1 if the pod cannot go there.
        flags: a bit for each reserve that loses a slot by a pod of the class on the node.
        failed: nodes that the kernel passed and the exact rule refused, with the reason.
        costs: for these nodes, their value and the work of the refusal.
        crowded: nodes that refused the pod at the first try, when no work was left for a search.
        told: why a node cannot host the pod, and the work of finding this reason.
        given_up: whether the last decision left nodes out because it reached its limit of work.
        kinds: the different groups, each with its number of equal ones.
        eligible: which nodes are in question, regardless of their free amounts.
        equals: answers of the exact rule, reused for equal nodes.
        guard: the prices whose reserves rank places that take a slot from a short one behind all others.
        gauge: fragmentation of every node, for strategies that use it.
        priced: value of every node, for the default strategy once it has learnt prices or usual requests.
        rescorer: scores the class instead of NumPy, if it is set.
        refusal: why no node could host a pod of the class at the last question.
        refused_at: the ledger's number of changes then.
        refused_few: whether that decision was allowed little work.
        refused_among: the nodes of that question, by index; None for all.
        shut_at: `made_room` of the ledger when no node could host the class; until it grows, none can. -1 if that
            answer is not final.
        scores_cards: whether cards are scored one by one as nodes are.
        judged: units of work of judging nodes at the last `refresh`.
        suits: for each kind of group, by row and node index, whether it accepts the card.
    """

    pod: Pod
    node_strategy: Strategy
    card_strategy: Strategy
    eligible: Eligibility
    equals: EqualNodes
    plain: bool = False
    tables: Tables = field(default_factory=Tables)
    value: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    flags: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    failed: dict[int, NodeReason] = field(default_factory=dict)
    costs: dict[int, tuple[int, int]] = field(default_factory=dict)
    crowded: set[int] = field(default_factory=set)
    told: dict[int, tuple[NodeReason, int]] = field(default_factory=dict)
    given_up: bool = False
    kinds: tuple[Kind, ...] = ()
    guard: PriceGauge | None = None
    gauge: Gauge | None = None
    priced: PriceGauge | CapacityGauge | None = None
    rescorer: Rescorer | None = None
    refusal: Refusal | None = None
    refused_at: int = -1
    refused_few: bool = False
    refused_among: Bools | None = None
    shut_at: int = -1
    scores_cards: bool = False
    judged: int = 0
    suits: list[Bools] = field(default_factory=list)
    _sure: NDArray[np.int8] = field(default_factory=lambda: _NOTHING_SURE)
    _cut: "list[CutView | None]" = field(default_factory=list)
    _seen: int = -1
    _seen_nodes: int = -1

    @property
    def offer(self) -> Ints:
        """`value`, but places that take a slot from a short reserve rank behind all others."""
        if self.guard is None:
            return self.value
        return self.guard.offer(self.value, self.flags, TIER * RANKS)

    def follow(self, former: "RequestClass") -> None:
        """Copy from an equal class the knowledge that depends on neither policy nor tables."""
        seen, cut = former._seen_nodes, former._cut  # noqa: SLF001 # its own
        if seen >= 0 and not cut and former.eligible is self.eligible:
            self.value, self.flags = former.value, former.flags
            self.suits, self._seen_nodes = former.suits, seen

    def shut_down(self, ledger: Ledger) -> None:
        """Remember that no node can host the class until room appears.

        For plain requests the kernel is exact, and others take only what it counts. But a bounded search may find a
        place only because another pod took another place.
        """
        exact = (self.plain or not self.pod.request.groups) and not self.failed
        self.shut_at = ledger.made_room if exact else -1

    def learn(self, other: "RequestClass") -> None:
        """Take over which nodes the exact rule refused the same devices; it does not look at anything else."""
        for index, reason in other.failed.items():
            if self.value[index] >= 0:
                self.fail(index, reason, other.costs[index][1])

    def best(self, among: Bools | None = None) -> tuple[int, int]:
        """The best node for the pod, and how good it is; both -1 if there is none. `among` nodes, None for all."""
        if not self.value.size:
            return -1, -1
        if among is None and self.guard is not None:
            index = self.guard.best(self.value, self.flags, TIER * RANKS)
            return index, -1 if index < 0 else self.worth_of(index)
        offer = self.offer if among is None else np.where(among, self.offer, -1)
        index = int(offer.argmax())
        worth = int(offer[index])
        return (index, worth) if worth >= 0 else (-1, -1)

    def arrears(self, ledger: Ledger) -> int:
        """The most nodes that `refresh` would score."""
        return self._behind(ledger)[1]

    def _behind(self, ledger: Ledger) -> tuple[Index | None, int]:
        """The nodes that changed since the last refresh, None if that is not known any more, and how many to score."""
        size = ledger.present.shape[0]
        dirty = ledger.changes.since(self._seen)
        if dirty is None or self.value.size != size:
            return dirty, size
        return dirty, min(dirty.size, size)

    def refresh(self, ledger: Ledger, rank: Ints) -> int:
        """Bring the scores up to date with the ledger; returns what `arrears` was, and sets `judged`."""
        self.judged = 0
        if self._seen == ledger.changes.count:
            return 0
        dirty, owed = self._behind(ledger)
        stale = self._seen_nodes != ledger.node_changes.count and self._refresh_nodes(ledger)
        self._seen = ledger.changes.count
        self._sure = _NOTHING_SURE
        redraw = stale or dirty is None or self.node_strategy is Strategy.RANDOM
        if dirty is None or redraw or dirty.size * _PARTIAL > self.value.size:
            for known in (self.failed, self.costs, self.crowded, self.told):
                known.clear()
            self._score(ledger, rank, slice(0, len(ledger.nodes)))  # there is room for more
            return owed
        if self.rescorer is None:
            dirty = distinct(dirty)  # compiled loops may do a node twice instead
        if self.failed or self.crowded or self.told:
            for index in dirty.tolist():
                self.failed.pop(index, None)
                self.costs.pop(index, None)
                self.crowded.discard(index)
                self.told.pop(index, None)
        self._score(ledger, rank, dirty)
        return owed

    def parts(self, ledger: Ledger, nodes: kernel.Nodes) -> "list[Part]":
        """The nodes, then again the nodes among them that need wider books; the later answers replace the earlier."""
        parts = ledger.narrowed()
        if parts is None:
            return [Part(ledger, self.suits, nodes, slice(None))]
        narrow, wide = parts
        known: dict[int, Bools] = {}
        for kind, suits in zip(self.kinds, self.suits, strict=True):
            if id(suits) not in known:
                known[id(suits)] = suits[: narrow.planes[kind.request.type].cards]
        first = Part(narrow, [known[id(one)] for one in self.suits], nodes, slice(None))
        at = wide if isinstance(nodes, slice) else np.flatnonzero(np.isin(nodes, wide))
        few = wide if isinstance(nodes, slice) else nodes[at]
        return [first, Part(ledger, self.suits, few, at)] if at.size else [first]

    def fits(self, ledger: Ledger, nodes: kernel.Nodes) -> tuple[Bools, Bools | None]:
        """Nodes that the kernel passes, and the cards that serve the first group; None if there are none."""
        first, *others = self.parts(ledger, nodes)
        passed, cards = self._fits(ledger, first)
        if cards is not None and first.books is not ledger:
            narrow, width = cards, ledger.planes[self.kinds[0].request.type].cards
            cards = np.zeros((width, passed.size), np.bool_)
            cards[: narrow.shape[0]] = narrow
        for part in others:
            passed[part.at], again = self._fits(ledger, part)
            if cards is not None and again is not None:
                cards[:, part.at] = again
        return passed, cards

    def _fits(self, ledger: Ledger, part: "Part") -> tuple[Bools, Bools | None]:
        nodes = part.nodes
        passed = kernel.host_fits(ledger, self.pod.host, nodes) & self.eligible.allowed[nodes]
        fits: list[Bools] = []
        for number, kind in enumerate(self.kinds):
            request = kind.request
            cards = self._fitting(part, number)
            enough = _enough(cards, 1 if request.every else request.count)
            if self._cut and (cut := self._cut[number]) is not None:
                enough |= cut.fits(ledger, nodes)
            passed &= enough
            fits.append(cards)
        if sum(kind.copies for kind in self.kinds) > 1 and passed.any():
            passed &= room_together(part.books, self.kinds, fits, nodes)
        return passed, fits[0] if fits else None

    def with_cards(self, parts: "list[Part]", number: int, count: int) -> Bools:
        """Nodes with enough cards that serve one kind of group of the request, by shares or as a whole.

        Args:
            parts: of these nodes; kept by a caller that asks about several kinds.
        """
        first, *others = parts
        found = _enough(self._fitting(first, number), count)
        for part in others:
            found[part.at] = _enough(self._fitting(part, number), count)
        return found

    def _fitting(self, part: "Part", number: int) -> Bools:
        """The cards that serve one kind of group, by shares or as a whole."""
        request, suits = self.kinds[number].request, part.suits[number]
        takes = part.takes.setdefault(id(suits), {})
        cards = kernel.fitting(part.books, request, suits, part.nodes, takes)
        if request.filter.functions is not None:
            cards &= kernel.with_functions(part.books, request, part.nodes)
        return cards

    def instance(self, ledger: Ledger, asked: RequestGroup, index: int) -> tuple[Grant, ...]:
        """The grant if an instance of a node serves a plain request; empty: ask `place`."""
        cut = self._cut[0] if self._cut else None
        if cut is None or self.card_strategy in ALIKE:
            return ()
        return cut.choose(ledger, asked, index)

    def instances_fit(self, ledger: Ledger, number: int) -> Bools:
        """Nodes whose instances can serve one group of the request, regardless of its other groups."""
        cut = self._cut[number] if self._cut else None
        if cut is None:
            return np.zeros(self.value.size, np.bool_)
        return cut.fits(ledger, slice(None))

    def ranking(self, ledger: Ledger, index: int) -> dict[int, int] | None:
        """Score of each fitting card of a node, if the strategy scores cards itself; None for whole cards."""
        request = self.pod.request.groups[0].request
        if request.whole:
            return None
        gauge = self.priced if self.card_strategy is Strategy.PARTAGE else self.gauge
        if self.rescorer is not None and gauge is not None:
            gauge.refresh()
            return gauge.card_scores(self.pod.host, request, None, index)
        # Of many groups only the first is ranked, because each node that is tried pays for this.
        nodes = np.asarray([index], np.intp)
        whole = Part(ledger, self.suits, nodes, slice(None))
        scene = self._scene(ledger, request, self._fitting(whole, 0), nodes)
        return card_scores(scene, self.card_strategy)

    def promising(self, ledger: Ledger, among: Bools, most: int) -> list[int]:
        """The given nodes that are worth a try when no time is left to search, the most promising first.

        Nodes that take all groups of the class at the first try are first, in their order; then the nodes with the most
        left. Nodes that the exact rule refused are counted, and left out.
        """
        nodes = np.flatnonzero(among)
        if not nodes.size or not self.kinds:
            return []
        worth = self.value.copy()
        for index, (rank, _) in self.costs.items():
            worth[index] = rank
        best_first = nodes[np.argsort(-worth[nodes], kind="stable")]
        found: list[int] = []
        size, begin = _FIRST_LOOK, 0
        while begin < nodes.size and len(found) < most:
            part = best_first[begin : begin + size]
            found += part[self._sure_of(ledger, part)].tolist()
            begin, size = begin + size, nodes.size
        if len(found) < most:
            others = nodes[~np.isin(nodes, found)]
            plane = ledger.planes[self.kinds[0].request.type]
            memory = kernel.at(plane.memory_free, others) * MILLI
            parts = memory // np.maximum(kernel.at(plane.memory_total, others), 1)
            core = np.maximum(kernel.at(plane.core_free, others), 0)
            left = (np.maximum(parts, 0) + core).sum(axis=0)
            found += others[np.lexsort((-worth[others], -left))].tolist()
        return [index for index in found[:most] if index not in self.failed]

    def _sure_of(self, ledger: Ledger, nodes: Ints) -> Bools:
        """Whether nodes take all groups at the first try; each is asked once until something changes."""
        if self._sure.size != self.value.size:
            self._sure = np.full(self.value.size, -1, np.int8)
        new = nodes[self._sure[nodes] < 0]
        if new.size:
            for part in self.parts(ledger, new):
                where = new[part.at]
                self._sure[where] = taking_all(part.books, self.kinds, part.suits, where)
        found: Bools = self._sure[nodes] > 0
        return found

    def worth_of(self, index: int) -> int:
        """How good a candidate node is, compared with others."""
        return int(self.offer[index])

    def fail(self, index: int, reason: NodeReason, cost: int) -> None:
        """Remember that the exact rule refused a node, and its work, until the node changes."""
        self.failed[index] = reason
        self.costs[index] = self.worth_of(index), cost
        self.value[index] = -1

    def _score(self, ledger: Ledger, rank: Ints, nodes: kernel.Nodes) -> None:
        if self.rescorer is not None and not self._cut:
            suits = self.suits[0] if self.suits else None
            eligible = (self.eligible.allowed, self.eligible.preference)
            if self.rescorer.score(suits, eligible, rank, self.value, self.flags, nodes):
                return
        passed, fits = self.fits(ledger, nodes)
        groups = self.pod.request.groups
        request, cards = (groups[0].request, fits) if groups else (None, None)
        scene = self._scene(ledger, request, cards, nodes)
        score = node_scores(scene, self.node_strategy)
        if self.guard is not None:
            self.flags[nodes] = self.guard.flags(self.pod.host, request, nodes, score)
        if self._cut and request is not None and cards is not None:
            score = self._with_instances(ledger, nodes, score, cards)
        score = score + self.eligible.preference[nodes] * BEYOND_SCORES
        self.value[nodes] = np.where(passed, score * RANKS + (RANKS - 1 - rank[nodes]), -1)

    def _with_instances(
        self, ledger: Ledger, nodes: kernel.Nodes, score: Ints, cards: Bools
    ) -> Ints:
        """The scores, including instances that may serve the pod's first request."""
        cut = self._cut[0]
        if cut is None or self.node_strategy in ALIKE:
            return score
        shares = cards.sum(axis=0) >= self.pod.request.groups[0].request.count
        score = np.minimum(score, SHARES_FIRST - 1) + SHARES_FIRST
        return np.where(shares, score, cut.worth(ledger, nodes))

    def _scene(
        self,
        ledger: Ledger,
        request: DeviceRequest | None,
        fits: Bools | None,
        nodes: kernel.Nodes,
    ) -> Scene:
        if self.gauge is not None:
            self.gauge.refresh()
        if self.priced is not None:
            self.priced.refresh()
        return Scene(
            ledger,
            self.pod.host,
            request,
            fits,
            nodes,
            self.tables,
            self.gauge,
            self.priced,
            self.pod.request.scoring,
        )

    def _suited(self, ledger: Ledger, nodes: kernel.Nodes) -> list[Bools]:
        """For each kind of group, the cards that it accepts; judged once for equal filters."""
        found: dict[object, Bools] = {}
        result: list[Bools] = []
        for kind in self.kinds:
            request, protocol = kind.request, kind.group.protocol
            key = request.type, request.filter, protocol
            if key not in found:
                found[key] = kernel.suited(ledger, request, protocol, nodes)
            result.append(found[key])
        return result

    def _refresh_nodes(self, ledger: Ledger) -> bool:
        """Judge the nodes that were added, changed or removed; returns whether all must be scored again."""
        self.judged = self.eligible.refresh(ledger)
        changed = ledger.node_changes.since(max(self._seen_nodes, 0))
        known = self._seen_nodes >= 0 and self.value.size == ledger.present.shape[0]
        self._seen_nodes = ledger.node_changes.count
        kinds = self.kinds
        before = bool(self._cut)
        self._cut = cut_views(ledger, [kind.group for kind in kinds]) if ledger.cut_nodes else []
        same = before == bool(self._cut) and all(
            suits.shape == ledger.planes[kind.request.type].open.shape
            for kind, suits in zip(kinds, self.suits, strict=False)
        )
        if not known or not same or changed is None or changed.size * _PARTIAL > self.value.size:
            self.value = np.full(ledger.present.shape[0], -1, np.int64)
            self.flags = np.zeros(self.value.size, np.int64)
            self.suits = self._suited(ledger, slice(None))
            return True
        nodes = distinct(changed)
        for suits, now in zip(self.suits, self._suited(ledger, nodes), strict=True):
            suits[:, nodes] = now
        return False


def _enough(cards: Bools, count: int) -> Bools:
    """Nodes with at least this number of the given cards."""
    found: Bools = np.logical_or.reduce(cards) if count == 1 else cards.sum(axis=0) >= count
    return found


class Scorers(Protocol):
    """Gauges and scorers that replace the usual ones, with the same results; simulations have compiled ones."""

    def gauge(self, workload: Workload, ledger: Ledger) -> Gauge:
        """A gauge of fragmentation."""

    def price_gauge(self, prices: Prices, ledger: Ledger) -> PriceGauge:
        """A gauge of values."""

    def rescorer(self, group: RequestClass, ledger: Ledger) -> Rescorer | None:
        """The scorer of the class; None for the usual way."""


class RequestClassCache:
    """The classes in use, under one policy and one set of tables; `columns` are those of the nodes."""

    def __init__(self, ledger: Ledger, scorers: Scorers | None = None) -> None:
        self._ledger = ledger
        self._scorers = scorers
        self._gauge: Gauge | None = None
        self._priced: PriceGauge | CapacityGauge | None = None
        self._classes: dict[object, RequestClass] = {}
        self._former: dict[object, RequestClass] = {}  # those of the previous policy or tables
        self.columns = NodeColumns(ledger)
        self._judgements = Judgements(self.columns)
        self._searched: Memory = OrderedDict()
        self._numbers = count()
        # Values are immutable, so the same objects always ask the same. The cache keeps the pod so that its parts'
        # identities are not used again.
        self._known: dict[tuple[int, int, int, int], tuple[Pod, RequestClass]] = {}

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
            group = self._new(pod, policy, tables)
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

    def _new(self, pod: Pod, policy: Policy, tables: Tables) -> RequestClass:
        """A new class with the shared gauges, and a scorer of its own if there is one."""
        group = RequestClass(
            pod,
            settled(pod.request.node_strategy or policy.node, tables),
            settled(policy.card, tables),
            self._judgements.of(pod),
            EqualNodes(self._searched, next(self._numbers)),
            plain=kernel.is_plain(pod.request),
            tables=tables,
            kinds=kinds_of(pod.request),
        )
        strategies = group.node_strategy, group.card_strategy
        if Strategy.FGD in strategies and tables.workload.shapes:
            if self._gauge is None:
                made = Gauge if self._scorers is None else self._scorers.gauge
                self._gauge = made(tables.workload, self._ledger)
            group.gauge = self._gauge
        if Strategy.PARTAGE in strategies:
            if self._priced is None:
                self._priced = self._priced_of(tables)
            priced = group.priced = self._priced
            between_nodes = group.node_strategy is Strategy.PARTAGE
            if between_nodes and isinstance(priced, PriceGauge) and priced.prices.reserves:
                group.guard = priced
        if group.card_strategy is Strategy.PARTAGE:
            group.scores_cards = group.priced is not None
        else:
            group.scores_cards = group.card_strategy.scores_cards
        if self._scorers is not None:
            group.rescorer = self._scorers.rescorer(group, self._ledger)
        return group

    def _priced_of(self, tables: Tables) -> PriceGauge | CapacityGauge | None:
        if tables.prices is None:
            shapes = tables.expected.shapes
            return CapacityGauge(tables.expected, self._ledger) if shapes else None
        made = PriceGauge if self._scorers is None else self._scorers.price_gauge
        return made(tables.prices, self._ledger)


def _class_key(pod: Pod) -> object:
    """The key that equal pods share: everything but their names."""
    groups = tuple(
        (_OF_GROUP(g), tuple(map(_OF_CONTAINER, g.containers))) for g in pod.request.groups
    )
    return (
        groups,
        _OF_REQUEST(pod.request),
        tuple(pod.host.items()),
        pod.constraint,
        pod.tolerations,
    )


def settled(strategy: Strategy, tables: Tables) -> Strategy:
    """The strategy that decides if `strategy` is wanted."""
    learnt = tables.prices is not None or tables.expected.shapes
    if strategy is Strategy.PARTAGE and not learnt and tables.stand_in is not None:
        return tables.stand_in
    return strategy


def kinds_of(request: PodRequest) -> tuple[Kind, ...]:
    """The different groups of a request in its order, the first one first; init containers by themselves."""
    found: dict[object, list[RequestGroup]] = {}
    for group in request.groups:
        initial = group.phase is Phase.INIT
        found.setdefault((group.protocol, group.request, initial), []).append(group)
    return tuple(
        Kind(first, first.request, 0 if first.phase is Phase.INIT else 1 + len(others))
        for first, *others in found.values()
    )
