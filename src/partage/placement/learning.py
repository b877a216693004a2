"""When the default strategy learns, from which pods, and reserves for the pods seen since.

A small cluster is full after few pods, so it gets new usual requests (`capacity`) after nearly every pod. They are made
of the pods seen and of generic ones. A larger cluster gets prices, which need many pods.

The service and replays learn by the same two steps: `Arrivals` counts pods and reports which tables are due, and
`tables_due` makes them, off the decision path. The driver of the engine passes the tables to it as an event.
`selection` makes the prices themselves.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from heapq import nsmallest
from itertools import chain
from math import pi, sqrt
from typing import Final

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import ABSENT_KIND, Bools, Ints
from partage.model.device import MILLI, DeviceType
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.model.request import RequestGroup
from partage.placement.baselines import demand
from partage.placement.fragmentation import Shape, Workload
from partage.placement.kernel import FITS, unsuited_kinds
from partage.placement.mix import Ask, Mix, Standing, Stock, workload_of
from partage.placement.reserves import reserves_of
from partage.placement.tables import Tables

_LEARNERS: Final = frozenset({Strategy.PARTAGE, Strategy.FGD})
_FIRST: Final = 300
"""Pods after which a large cluster first gets prices; with fewer it has seen a sample only if they are one for each
`_CARDS_EACH` cards."""
_LEARN: Final = frozenset({_FIRST, 1000, 3000, 6000})
_AGAIN: Final = 20_000
_SMALL: Final = 1600
"""Most cards of a cluster that is full before prices are learnt: 200 nodes of 8, the largest samples that were tried.
On parts of openb (`bench/parts.py`) usual requests are better than prices at half as many, and worse at twice as many.
"""
_CARDS_EACH: Final = 16
_OFTEN: Final = 6
"""Binary digits: usual requests are remade 32 times while the number of pods doubles."""
_GENERIC: Final = (
    *((1, 250, 3), (1, 500, 3), (1, 750, 3), (1, MILLI, 8)),
    *((2, MILLI, 1), (4, MILLI, 1), (8, MILLI, 1)),
)
"""Cards, compute of each and pods, of a mix that represents the unseen requests of a small cluster."""
_GENERIC_PART: Final = 0.5  # the part of a card's CPU that such a pod asks for each card
_TENTHS: Final = 10
_WEIGHTS: Final = (2, 50)
"""The weight of a generic request, in tenths of a pod: if sizes arrived in any order; if they grow."""
_GROWING: Final = 0.5  # trend above which sizes surely grow
_FEWEST: Final = 4  # fewest pods with cards for a trend
_REMEMBERED: Final = 1024  # sizes from which the trend is made
_MOST: Final = 512
"""Most asks that tables are made from, more than any published trace has: the time of prices grows with them, and any
user may make pods that all differ."""
_REFRESH: Final = frozenset({32, 64, 128, 200, 450, 700, 1500, 2200, 4000, 5500, 7500, 10_000})
_NOISE: Final = 1.5
_SLACK: Final = 0.05
_MIB: Final = 2**20


def learns(policy: Policy, pods: Iterable[Pod]) -> bool:
    """Whether the policy in force, or the one that a pod names, decides by tables."""
    own = (pod.request.node_strategy for pod in pods)
    return any(strategy in _LEARNERS for strategy in chain((policy.node, policy.card), own))


class Due(Enum):
    """The tables to remake after a number of arrivals."""

    NOTHING = "nothing"
    RESERVES = "reserves"
    PRICES = "prices"


def due(arrived: int, cards: int) -> Due:
    """The tables due after a number of pods: prices seldom, reserves more often.

    A small cluster gets usual requests, which are made quickly, before the first pod and after nearly every one.
    """
    if 0 < cards <= _SMALL:
        step = 1 << max(0, arrived.bit_length() - _OFTEN)
        return Due.NOTHING if arrived % step else Due.RESERVES
    if arrived in _LEARN or (arrived and arrived % _AGAIN == 0):
        return Due.PRICES
    return Due.RESERVES if arrived in _REFRESH else Due.NOTHING


def due_since(before: int, arrived: int, cards: int) -> Due:
    """The tables that became due between `before` and `arrived` arrivals."""
    became = {due(n, cards) for n in range(before + 1, arrived + 1)}
    return next((d for d in (Due.PRICES, Due.RESERVES) if d in became), Due.NOTHING)


class Arrivals:
    """Counts of arrived pods, and the tables that become due.

    A history known before counts as well. If it does not fit the arrivals it is dropped, and learning continues from
    the arrivals.

    Attributes:
        history: how often each ask arrived before; empty if there is none, or once it is dropped.
        seen: how often each arrived since.
        total: pods seen.
    """

    def __init__(
        self, history: Mapping[Ask, int] | None = None, window: int | None = None
    ) -> None:
        """Start counting.

        Args:
            history: the mix known before, which makes prices due before the first pod.
            window: pods that are remembered; beyond it all counts are halved. None for no limit.
        """
        self.history = dict(history or {})
        self.seen: Counter[Ask] = Counter()
        self.total = 0
        self._window = window
        self._looked = -1  # pods seen when `due` was last called
        self._sizes: deque[int] = deque(maxlen=_REMEMBERED)

    @property
    def counts(self) -> Counter[Ask]:
        """The counts of the most frequent asks, in the history, if any, and among the arrivals."""
        counts = Counter(self.history) + self.seen
        if len(counts) <= _MOST:
            return counts
        return Counter(dict(nsmallest(_MOST, counts.items(), key=_rarest_last)))

    def add(self, asks: Iterable[Ask]) -> None:
        """Count some more."""
        for ask in asks:
            self.seen[ask] += 1
            self.total += 1
            if ask.count:
                self._sizes.append(ask.count * ask.milli)
        if self._window is not None and self.seen.total() > self._window:
            self.seen = Counter({ask: n // 2 for ask, n in self.seen.items() if n > 1})

    @property
    def begun(self) -> bool:
        """Whether `due` was called before."""
        return self._looked >= 0

    @property
    def trend(self) -> float:
        """Whether requests for cards grow: 1 if all later ones are larger, -1 if all are smaller.

        Over all pairs of one from the first half and one from the second: how much more often the second asks more
        compute than less. 1 as long as there are too few pods.
        """
        sizes, half = np.array(self._sizes), len(self._sizes) // 2
        if sizes.size < _FEWEST:
            return 1.0
        first, second = np.sort(sizes[:half]), sizes[half:]
        below, upto = (np.searchsorted(first, second, side) for side in ("left", "right"))
        return float((below + upto - half).sum()) / (half * second.size)

    def due(self, cards: int) -> Due:
        """The tables that became due since the last call, on a cluster with `cards` cards; none without cards."""
        if not cards and not self.total:
            return Due.NOTHING
        before, self._looked = self._looked, self.total
        if before < 0 and self.history and cards > _SMALL:
            return Due.PRICES
        what = due_since(before, self.total, cards)
        if what is Due.NOTHING or not self.history:
            return what
        small = cards <= _SMALL
        if not small and what is not Due.PRICES:
            return Due.NOTHING
        if fits_history(self.history, self.seen):
            return what if small else Due.NOTHING
        self.history = {}
        return what


def _rarest_last(counted: tuple[Ask, int]) -> tuple[object, ...]:
    """The order of counted asks; the numbers compare far faster than asks do."""
    ask, count = counted
    return -count, ask.cpu_milli, ask.memory_mib, ask.count, ask.milli, ask.models, ask.elsewhere


def tables_due(
    what: Due,
    tables: Tables,
    counts: Mapping[Ask, int],
    stock: Stock,
    standing: Standing | None = None,
    *,
    trend: float = 1.0,
) -> Tables | None:
    """The due tables; prices take seconds, and belong in a separate process.

    Args:
        counts: how often each ask arrived.
        standing: pods placed already; only prices need them.
        trend: whether requests grow, see `Arrivals`.

    Returns:
        None if the old ones stay.
    """
    if what is Due.NOTHING:
        return None
    if what is Due.RESERVES:
        return refreshed(tables, counts, stock, trend)
    from partage.placement.selection import learned  # noqa: PLC0415 # imports the compiled loops

    return learned(tables, _hosted(counts, stock), stock, standing)


def asks_of(
    pods: Iterable[Pod], ledger: Ledger, accepting: Callable[[Pod], Bools]
) -> Iterator[Ask]:
    """The asks of the pods.

    Copies of a template share their request, so each request is computed once. Any tenant may make many pods with
    different requests, so a request is judged by kinds of cards.

    Labels of nodes count on large clusters alone. The rule for small ones knows models and no nodes: there a pod for
    one node would count for all nodes of its model.
    """
    # The pod is kept so that its parts' identities are not used again.
    known: dict[tuple[object, ...], tuple[Pod, Ask]] = {}
    cards = _cards(ledger, ledger.present)
    large = int(cards.sum()) > _SMALL
    for pod in pods:
        alike = id(pod.request), id(pod.host), pod.constraint, pod.tolerations
        if alike not in known:
            nodes = accepting(pod) if large else ledger.present
            known[alike] = pod, _ask(pod, ledger, cards, nodes)
        yield known[alike][1]


def _cards(ledger: Ledger, nodes: Bools) -> Ints:
    """The number of cards of each kind on some nodes."""
    kinds = ledger.planes[DeviceType.GPU].kind[:, nodes]
    found: Ints = np.bincount(kinds.ravel(), minlength=len(ledger.kinds)).astype(np.int64)
    found[ABSENT_KIND] = 0
    return found


def _ask(pod: Pod, ledger: Ledger, cards: Ints, nodes: Bools) -> Ask:
    """A pod's ask for prices: its largest request for cards; `cards` are the numbers of cards of each kind.

    Its models are those of the accepted cards on `nodes`; any model if all are accepted, or none. Requests without
    compute count as requests without cards.
    """
    cpu, memory = pod.host.get("cpu", 0), -(-pod.host.get("memory", 0) // _MIB)
    groups = [g for g in pod.request.groups if all(demand(g.request))]
    if not groups:
        return Ask(cpu, memory)
    group = max(groups, key=lambda g: demand(g.request)[0] * demand(g.request)[1])
    count, milli = demand(group.request)
    names = {kind: device.model for kind, device in enumerate(ledger.kinds) if device}
    here = cards if np.array_equal(nodes, ledger.present) else _cards(ledger, nodes)
    kinds = _accepted(group, ledger, nodes, here)
    models = {names[kind] for kind in kinds if kind in names}
    if not models or models == {names[k] for k in np.flatnonzero(cards).tolist() if k in names}:
        return Ask(cpu, memory, count, milli)
    return Ask(cpu, memory, count, milli, tuple(sorted(models)))


def _accepted(group: RequestGroup, ledger: Ledger, nodes: Bools, cards: Ints) -> set[int]:
    """The kinds of which the request accepts some card on these nodes, which have `cards` of each kind."""
    request, wanted = group.request, group.request.filter
    ranks = unsuited_kinds(ledger, request, group.protocol)
    # The caller lets other tasks run between two pods, so there may be more kinds than were counted.
    fine = {kind for kind in np.flatnonzero(cards).tolist() if ranks[kind] == FITS}
    use, avoid = (
        {
            (type_, index, row)
            for uuid in uuids
            for type_, index, row in ledger.at_uuid(uuid)
            if type_ is request.type and nodes[index]
        }
        for uuids in (wanted.use_uuids, wanted.avoid_uuids)
    )
    kinds = ledger.planes[request.type].kind
    if wanted.use_uuids:
        return fine & {int(kinds[row, index]) for _, index, row in use - avoid}
    avoided = Counter(int(kinds[row, index]) for _, index, row in avoid)
    return {kind for kind in fine if cards[kind] > avoided[kind]}


def refreshed(tables: Tables, seen: Mapping[Ask, int], stock: Stock, trend: float = 1.0) -> Tables:
    """New usual requests of a small cluster; else the same prices with new reserves for the pods seen since.

    Before a choice for a larger cluster, FGD stands in once enough pods were seen. FGD itself always gets their mix.
    """
    mix = Mix.of(_hosted(seen, stock), stock)
    known = replace(tables, version=tables.version + 1, workload=workload_of(mix))
    if 0 < int(stock.cards.sum()) <= _SMALL:
        usual = usual_requests(seen, stock, trend)
        return replace(known, expected=usual, prices=None, stand_in=None)
    if tables.prices is not None:
        milli = float(mix.demand.sum() / max(1, mix.counts.sum()))
        prices = replace(tables.prices, reserves=reserves_of(mix, stock), milli_per_pod=milli)
        return replace(known, prices=prices)
    total = int(mix.counts.sum())
    few = total < _FIRST and total * _CARDS_EACH < int(stock.cards.sum())
    stand_in = tables.stand_in or (None if few else Strategy.FGD)
    return replace(known, expected=Workload(), stand_in=stand_in)


def _hosted(counts: Mapping[Ask, int], stock: Stock) -> dict[Ask, int]:
    """The asks that an empty node hosts. Any user may ask for a million cards; one such pod would fill a rehearsal."""
    return {ask: count for ask, count in counts.items() if ask.elsewhere or stock.host(ask)}


def usual_requests(seen: Mapping[Ask, int], stock: Stock, trend: float) -> Workload:
    """The asks seen, with generic requests added, because few pods predict little.

    If small requests arrive first, whole cards later miss the CPU that small pods took. So generic requests count for
    more while sizes grow.

    Args:
        seen: how often each ask arrived.
        stock: a cluster with cards.
        trend: see `Arrivals`.
    """
    low, high = _WEIGHTS
    weight = round(low + (high - low) * min(1.0, max(0.0, trend) / _GROWING))
    counts: Counter[Shape] = Counter()
    for ask, count in seen.items():
        counts[ask.shape] += _TENTHS * count
    most = int(stock.cards.max())
    cpu = _GENERIC_PART * float(stock.cpu[stock.cards > 0].sum()) / int(stock.cards.sum())
    for count, milli, pods in _GENERIC:
        mine = min(count, most)
        counts[Shape(int(cpu * mine * milli / MILLI), milli, mine)] += weight * pods
    return Workload.counted(counts)


def in_sight(tables: Tables, arrivals: Arrivals, stock: Stock) -> Tables:
    """The tables; where nothing was learnt, those that the pods in sight teach."""
    learnt = tables.prices is not None or tables.stand_in is not None or tables.expected.shapes
    if learnt and tables.workload.shapes:
        return tables
    found = refreshed(tables, arrivals.counts, stock, arrivals.trend)
    return replace(tables, workload=found.workload) if learnt else found


def fits_history(history: Mapping[Ask, int], seen: Mapping[Ask, int]) -> bool:
    """Whether the arrivals can be a sample of the history.

    The distance between both mixes (half the sum of differences in share) is compared with the average distance of a
    sample of that size, with some tolerance.
    """
    before, now = sum(history.values()), sum(seen.values())
    if not before or not now:
        return True
    distance = expected = 0.0
    for ask in history.keys() | seen.keys():
        share = history.get(ask, 0) / before
        distance += abs(share - seen.get(ask, 0) / now) / 2
        expected += sqrt(2 * share * (1 - share) / (pi * now)) / 2
    return distance <= _NOISE * expected + _SLACK
