"""Cost of ResourceClaims in packing: the same pods by claims and by a protocol's names.

    PARTAGE_OPENB=… python bench/claims.py [--seeds 42] [--trace default] [--others engine] [--policy partage] [--ways …]
    PARTAGE_OPENB=… python bench/claims.py --small 20

Every row places pods without cards in the same way: by the engine, as in the published experiments, by
kube-scheduler's own scores (`--others kube-scheduler`), as in a cluster, or by those with NodeResourcesFit's
MostAllocated (`--others most-allocated`). Pods with cards are placed by the engine (by protocol), or by a model of
kube-scheduler with the in-tree allocator. The model looks at as many fitting nodes as kube-scheduler, and chooses one
by its own scores or the engine's. On the node it takes the first cards that fit, in the order of publication. The order
may be late by some of the cluster's allocations. `--small` uses samples of 4 to 60 nodes (`small_samples`), with memory
of cards, instead of a trace. The program measures no time.

For hardware instances in that order run `bench/mig_streams.py --policies claims`.
"""

import argparse
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from statistics import mean, stdev

import numpy as np
from numpy.typing import NDArray

from openb import folder
from partage.extender.claim_proposals import MOST_PROPOSED
from partage.extender.cycle import PROPOSED
from partage.extender.retries import MOST_REJECTED
from partage.model.allocation import Grant, GrantMode
from partage.model.device import MILLI, DeviceType
from partage.model.pod import Pod, Record
from partage.model.policy import Policy
from partage.placement.learning import Arrivals, Due, tables_due
from partage.placement.mix import Ask, Standing, Stock
from partage.scheduler.engine import Engine
from partage.scheduler.events import (
    BindSucceeded,
    HoldEnded,
    NodeSeen,
    Placement,
    PodSeen,
    RoomKept,
    TablesChanged,
)
from partage.sim.openb import PodRow, Trace, read_sequence, read_trace
from partage.sim.openb import Sequence as Order
from partage.sim.replay import cluster, template
from small_samples import CLASSES, for_tuning, sample, size_of

_MIB = 2**20
_LEAST_NODES = 100
_ABSENT = -1
_BOTH = PROPOSED + MOST_PROPOSED
"""Nodes of a pod's two proposals."""
_LARGE = 2
"""The number of rows of `CLASSES` that `--small` draws from: 4 to 60 nodes."""

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Way:
    """One way to place pods with cards.

    Attributes:
        protocol: the engine alone places the pods.
        engine: the engine's scores choose the node.
        ordered: the card with the least room is published first; otherwise cards are published by number.
        late: the delay of that order, in allocations of the whole cluster; with proposed nodes also the delay of the
            engine's books of cards.
        taught: the engine learns from the pods with cards; in a cluster it learns from the protocols' pods alone.
        everywhere: the engine chooses from all nodes that fit.
        proposed: as with kube-scheduler's plugin. The engine knows kube-scheduler's counts of CPU and memory, and
            proposes nodes. If kube-scheduler rejects all of them, the engine proposes others once, and then
            kube-scheduler searches itself. The engine learns from each pod with claims, and from the average of others.
        pending: the plugin reports cards that kube-scheduler has allocated and not stored yet. The engine holds them
            until it receives the allocations, so only the order of cards is late.
        blind: by protocol, and the engine knows no CPU and memory, as before the plugin reported pods' use of nodes.
            kube-scheduler rejects proposals that do not fit.
    """

    protocol: bool = False
    engine: bool = False
    ordered: bool = False
    late: int = 0
    taught: bool = True
    everywhere: bool = False
    proposed: bool = False
    pending: bool = False
    blind: bool = False


WAYS = {
    "by protocol": Way(protocol=True),
    "by protocol, CPU and memory reported by the plugin": Way(protocol=True, proposed=True),
    "by protocol, CPU and memory not known": Way(protocol=True, blind=True),
    "claims, cards by number": Way(),
    "claims, least room first": Way(ordered=True),
    "claims, least room first, 100 late": Way(ordered=True, late=100),
    "claims, node by the engine": Way(engine=True),
    "claims, node by the engine, least room first": Way(engine=True, ordered=True),
    "claims, node by the engine, nothing learnt": Way(engine=True, ordered=True, taught=False),
    "claims, node by the engine of all nodes": Way(engine=True, ordered=True, everywhere=True),
    "claims, nodes proposed": Way(engine=True, ordered=True, proposed=True),
    "claims, nodes proposed, 100 late": Way(engine=True, ordered=True, proposed=True, late=100),
    "claims, nodes proposed, 100 pending": Way(
        engine=True, ordered=True, proposed=True, late=100, pending=True
    ),
    "claims, node by the engine, least room first, 100 late": Way(
        engine=True, ordered=True, late=100
    ),
}


class Run:
    """One trace, one order of arrival, one way."""

    def __init__(self, trace: Trace, order: Order, way: Way, others: str, policy: str) -> None:
        self.others_by_engine = others == "engine"
        self.most_allocated = others == "most-allocated"
        self.told = self.others_by_engine or way.protocol or way.engine
        self.trace, self.sequence, self.way = trace, order, way
        rows = trace.nodes
        self.room = np.array([(one.cpu_milli, one.memory_mib) for one in rows], np.int64)
        self.free = self.room.copy()
        most = max(one.cards for one in rows)
        self.cards = np.full((len(rows), most, 2), _ABSENT, np.int64)
        for row, one in enumerate(rows):
            self.cards[row, : one.cards] = MILLI, one.card_mib
        self.whole = self.cards.copy()
        self.models = np.array([one.model for one in rows])
        self.published = np.tile(np.arange(self.cards.shape[1]), (len(rows), 1))
        self.stale: deque[int] = deque()
        self.unheard: deque[tuple[Pod, PodRow, int, list[int]]] = deque()
        self.rewritten = self.allocated = self.plain = 0
        self.plain_taken = np.zeros(2, np.int64)
        self.listed = np.array(order.order)
        self.next = 0
        self.nodes = cluster(trace)
        self.index = {one.name: row for row, one in enumerate(rows)}
        self.engine = Engine(Policy.parse(policy))
        for row in order.order:
            self.engine.handle(NodeSeen(self.nodes[row]))
        self.stock = Stock.of(self.nodes)
        self.arrivals, self.running = Arrivals(), Counter[Ask]()

    def play(self) -> tuple[float, float]:
        """Allocation in percent of all cards, at 100 % of arrived load and at the end."""
        came = taken = full = 0.0
        total = self.trace.capacity / MILLI
        for number, row in enumerate(self.sequence.pods):
            pod = self.trace.pods[row]
            if self.told and self.way.taught:
                if number:
                    self.learn()
                if self.way.blind and pod.cards:
                    self.arrivals.add((replace(pod.ask, cpu_milli=0, memory_mib=0),))
                elif pod.cards or not (self.way.proposed or self.way.blind):
                    self.arrivals.add((pod.ask,))
            came += size_of(self.trace, pod)
            if self.place(number, pod):
                taken += size_of(self.trace, pod)
                self.running[pod.ask] += 1
            full = taken if came <= total else full
        return 100 * full / total, 100 * taken / total

    def learn(self) -> None:
        """Make new tables if they are due."""
        what = self.arrivals.due(int(self.stock.cards.sum()))
        if what is Due.NOTHING:
            return
        names = [row.name for row in self.trace.nodes]
        standing = Standing.of(self.engine.ledger, names, self.running)
        counts = self.arrivals.counts + self.others()
        tables = tables_due(what, self.engine.tables, counts, self.stock, standing)
        if tables is not None:
            self.engine.handle(TablesChanged(tables))

    def others(self) -> Counter[Ask]:
        """Pods without cards in the form that the engine learns from, with proposed nodes."""
        if not self.way.proposed or not self.plain:
            return Counter()
        cpu, memory = self.plain_taken // self.plain
        average = Ask(int(cpu), int(memory), elsewhere=not self.others_by_engine)
        return Counter({average: self.plain})

    def place(self, number: int, row: PodRow) -> bool:
        """Place a pod; whether it has a place."""
        pod = replace(template(row), uid=str(number))
        if row.cards and self.way.blind:
            return self.place_blindly(replace(pod, host={}), row)
        if self.way.protocol if row.cards else self.others_by_engine:
            decision = self.engine.schedule(pod, reasons=False)
            if not isinstance(decision, Placement):
                return False
            self.engine.handle(BindSucceeded(pod.uid))
            node = self.index[decision.allocation.node]
            self.take(node, row, [one.minor for one in decision.allocation.grants])
            return True
        fits = self.fits(row)
        everywhere = row.cards and self.way.everywhere
        proposed = self.proposed(pod, fits) if row.cards and self.way.proposed else None
        if proposed is not None:
            looked = np.array([proposed])
        else:
            looked = np.flatnonzero(fits) if everywhere else self.looked_at(fits)
        if not looked.size:
            return False
        if row.cards and self.way.engine and not self.way.proposed:
            node = self.best(pod, looked)
        else:
            node = int(looked[self.plain_scores(row, looked).argmax()])
        minors = self.first(node, row)
        self.take(node, row, minors)
        if self.told:
            self.unheard.append((pod, row, node, minors))
        if self.told and self.way.proposed:
            self.pend(pod, row, node, minors if self.way.pending else ())
        if self.way.blind:
            self.unheard.clear()
        while len(self.unheard) > (self.way.late if self.way.proposed else 0):
            self.tell(*self.unheard.popleft())
        return True

    def place_blindly(self, pod: Pod, row: PodRow) -> bool:
        """Place a pod on the first of the engine's proposed nodes, sixteen at a time, that kube-scheduler accepts."""
        best = self.in_order(pod)[: MOST_REJECTED + PROPOSED]
        node = next((one for one in best if self.fits(row)[one]), None)
        if node is None:
            return False
        decision = self.engine.place_on(pod, self.nodes[node].name)
        if not isinstance(decision, Placement):
            return False
        self.engine.handle(BindSucceeded(pod.uid))
        self.take(node, row, [one.minor for one in decision.allocation.grants])
        return True

    def proposed(self, pod: Pod, fits: Bools) -> int | None:
        """The first proposed node that kube-scheduler accepts; None without one."""
        return next((one for one in self.in_order(pod)[:_BOTH] if fits[one]), None)

    def in_order(self, pod: Pod) -> list[int]:
        """The nodes that the engine accepts, the best first."""
        found, scores = self.engine.candidates(pod)
        ranks = [self.engine.rank_at(one) for one in found.tolist()]
        best = found[np.lexsort((np.array(ranks), -scores))].tolist()
        return [self.index[self.engine.ledger.node_at(one).name] for one in best]

    # --- kube-scheduler ----------------------------------------------------------------------

    def fits(self, row: PodRow) -> Bools:
        """Nodes that pass its filters, including DynamicResources."""
        asked = np.array((row.cpu_milli, row.memory_mib))
        found: Bools = np.all(self.free >= asked, axis=1)
        if row.cards:
            found = np.logical_and(found, self.cards_that_fit(row).sum(axis=1) >= row.cards)
            models = sorted({one for one in row.models.split("|") if one})
            if models:
                found = np.logical_and(found, np.isin(self.models, models))
        return found

    def cards_that_fit(self, row: PodRow, node: int | None = None) -> Bools:
        """Cards with room for a share, or idle ones; of one node, or of each."""
        cards = self.cards if node is None else self.cards[node]
        there = self.whole if node is None else self.whole[node]
        if row.milli >= MILLI:
            idle: Bools = np.logical_and(cards[..., 0] == MILLI, np.all(cards == there, axis=-1))
            return idle
        found: Bools = np.all(cards >= (row.milli, row.card_mib), axis=-1)
        return found

    def looked_at(self, fits: Bools) -> Ints:
        """The nodes that kube-scheduler looks at (`numFeasibleNodesToFind` of them), from its last position on."""
        count = len(self.listed)
        most = count
        if count >= _LEAST_NODES:
            most = max(count * max(50 - count // 125, 5) // 100, _LEAST_NODES)
        turned = np.roll(self.listed, -self.next)
        places = np.flatnonzero(fits[turned])[:most]
        seen = int(places[-1]) + 1 if places.size == most else count
        self.next = (self.next + seen) % count
        return turned[places]

    def plain_scores(self, row: PodRow, nodes: Ints) -> NDArray[np.float64]:
        """NodeResourcesFit and NodeResourcesBalancedAllocation of CPU and memory."""
        left = (self.free[nodes] - (row.cpu_milli, row.memory_mib)) / self.room[nodes]
        liked = 1 - left if self.most_allocated else left
        spread = np.abs(left[:, 0] - left[:, 1]) / 2
        found: NDArray[np.float64] = np.floor(100 * liked.mean(axis=1)) + np.floor(
            100 * (1 - spread)
        )
        return found

    def best(self, pod: Pod, looked: Ints) -> int:
        """The engine's best node among those that kube-scheduler looks at."""
        ledger = self.engine.ledger
        found, scores = self.engine.candidates(pod)
        score = dict(zip(found.tolist(), scores.tolist(), strict=True))
        rows: list[int] = looked.tolist()
        return max(rows, key=lambda row: score.get(ledger.index[self.nodes[row].name], -1))

    # --- the in-tree allocator ---------------------------------------------------------------

    def first(self, node: int, row: PodRow) -> list[int]:
        """The first cards that fit, in published order."""
        fit = self.cards_that_fit(row, node)
        return [int(one) for one in self.published[node] if fit[one]][: row.cards]

    def take(self, node: int, row: PodRow, minors: Sequence[int]) -> None:
        """Give the pod its place; the agent publishes the remaining room later."""
        self.free[node] -= (row.cpu_milli, row.memory_mib)
        if not row.cards:
            self.plain += 1
            self.plain_taken += (row.cpu_milli, row.memory_mib)
        whole = row.milli >= MILLI
        for minor in minors:
            self.cards[node, minor] -= (
                self.whole[node, minor] if whole else (row.milli, row.card_mib)
            )
        if not minors or not self.way.ordered:
            return
        self.allocated += 1
        self.stale.append(node)
        while len(self.stale) > self.way.late:
            self.publish(self.stale.popleft())

    def publish(self, node: int) -> None:
        """Publish cards in use before idle ones, the least room first, and move no card without need."""
        before, left, whole = self.published[node], self.cards[node], self.whole[node]
        worth = (left * MILLI // np.maximum(whole, 1)).sum(axis=1)
        worth = np.where(np.all(left == whole, axis=1), 3 * MILLI, worth)[before]
        after = before[np.argsort(worth, kind="stable")]
        self.rewritten += bool((after != before).any())
        self.published[node] = after

    def pend(self, pod: Pod, row: PodRow, node: int, minors: Sequence[int]) -> None:
        """Act as the plugin: report pods' requests beside devices, and kube-scheduler's allocations."""
        pending = replace(pod, uid=f"{pod.uid}#pending")
        self.engine.handle(
            RoomKept(pending, self.nodes[node].name, self.grants(row, node, minors))
        )

    def tell(self, pod: Pod, row: PodRow, node: int, minors: Sequence[int]) -> None:
        """Report the pod's result to the engine."""
        self.engine.handle(HoldEnded(f"{pod.uid}#pending"))
        record = Record(self.grants(row, node, minors))
        self.engine.handle(PodSeen(replace(pod, node=self.nodes[node].name, record=record)))

    def grants(self, row: PodRow, node: int, minors: Sequence[int]) -> tuple[Grant, ...]:
        """The pod's grants of a node's cards."""
        mode = GrantMode.WHOLE if row.milli >= MILLI else GrantMode.SHARE
        there = self.nodes[node]
        return tuple(
            Grant(
                "main",
                DeviceType.GPU,
                minor,
                there.devices[minor].uuid,
                row.milli,
                there.devices[minor].memory_bytes if row.milli >= MILLI else row.card_mib * _MIB,
                mode,
            )
            for minor in minors
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seeds", type=int, nargs="+", default=[42])
    options.add_argument("--trace", default="default")
    options.add_argument("--small", type=int, default=0, help="so many samples of small clusters")
    options.add_argument(
        "--others", default="engine", choices=["engine", "kube-scheduler", "most-allocated"]
    )
    options.add_argument("--policy", default="partage", help="the engine's")
    options.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    given = options.parse_args()
    data = folder()
    if not (data / "nodes.csv").exists():
        print(f"skipped: no openb traces in {data}; set PARTAGE_OPENB to their folder")
        return
    if given.small:
        numbers = (
            number
            for number in count()
            if not for_tuning(number) and (number // 4) % len(CLASSES) < _LARGE
        )
        drawn = [sample(number, data) for number in islice(numbers, given.small)]
        cases = [(one.trace, one.sequence) for one in drawn]
    else:
        trace = read_trace(data, given.trace)
        order = [read_sequence(data / "sequences.npz", trace, seed) for seed in given.seeds]
        cases = [(trace, one) for one in order]
    print(f"{'way':55}   100 %   130 %   behind the first row   slices rewritten", flush=True)
    base: list[float] = []
    for name in given.ways:
        runs = [
            Run(trace, order, WAYS[name], given.others, given.policy) for trace, order in cases
        ]
        found = [one.play() for one in runs]
        base = base or [end for _, end in found]
        behind = [first - end for first, (_, end) in zip(base, found, strict=True)]
        spread = 1.96 * stdev(behind) / len(behind) ** 0.5 if len(behind) > 1 else 0.0
        part = [one.rewritten / one.allocated for one in runs if one.allocated]
        print(
            f"{name:55}{mean(full for full, _ in found):8.2f}{mean(end for _, end in found):8.2f}"
            f"{mean(behind):12.2f} ± {spread:.2f}"
            + (f"{mean(part):14.2f} a claim" if part else ""),
            flush=True,
        )


if __name__ == "__main__":
    main()
