"""What ResourceClaims cost in packing: the same openb pods by claims and by a protocol's names.

    PARTAGE_OPENB=… python bench/claims.py [--seeds 42 43] [--trace default] [--ways …]

Pods without cards are placed by kube-scheduler's own scores in every row. Pods with cards are placed by the engine (by
protocol), or by a model of kube-scheduler with the in-tree allocator: a node that fits, of as many as kube-scheduler looks
at, by its own scores or by the engine's; and on the node the first cards that fit, in the order in which they are
published. The order may be late by some of the allocations of the cluster. Nothing here is timed.

How hardware instances fare in that order is `bench/mig_streams.py --policies claims`.
"""

import argparse
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from openb import folder
from partage.model.allocation import Grant, GrantMode
from partage.model.device import MILLI, DeviceType
from partage.model.pod import Pod, Record
from partage.model.policy import Policy
from partage.placement.mix import Stock
from partage.scheduler.engine import Engine
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement, PodSeen, TablesChanged
from partage.sim.learning import Learning, Lesson, ask_of
from partage.sim.openb import PodRow, Trace, read_sequence, read_trace
from partage.sim.openb import Sequence as Order
from partage.sim.replay import cluster, template

LEVELS = (100, 130)
_LEAST_NODES = 100
_ABSENT = -1

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Way:
    """How pods with cards are placed.

    Attributes:
        protocol: by the engine alone.
        engine: the engine's scores choose the node.
        ordered: the card with the least room is published first; else cards by number.
        late: allocations of the whole cluster by which that order is late.
    """

    protocol: bool = False
    engine: bool = False
    ordered: bool = False
    late: int = 0


WAYS = {
    "by protocol": Way(protocol=True),
    "claims, cards by number": Way(),
    "claims, least room first": Way(ordered=True),
    "claims, least room first, 100 late": Way(ordered=True, late=100),
    "claims, node by the engine": Way(engine=True),
    "claims, node by the engine, least room first": Way(engine=True, ordered=True),
    "claims, node by the engine, least room first, 100 late": Way(
        engine=True, ordered=True, late=100
    ),
}


class Run:
    """One trace, one order of arrival, one way."""

    def __init__(self, trace: Trace, order: Order, way: Way) -> None:
        self.trace, self.sequence, self.way = trace, order, way
        rows = trace.nodes
        self.room = np.array([(one.cpu_milli, one.memory_mib) for one in rows], np.int64)
        self.free = self.room.copy()
        self.cards = np.full((len(rows), max(one.cards for one in rows)), _ABSENT, np.int64)
        for row, one in enumerate(rows):
            self.cards[row, : one.cards] = MILLI
        self.models = np.array([one.model for one in rows])
        self.published = np.tile(np.arange(self.cards.shape[1]), (len(rows), 1))
        self.stale: deque[int] = deque()
        self.rewritten = self.allocated = 0
        self.listed = np.array(order.order)
        self.next = 0
        self.nodes = cluster(trace)
        self.index = {one.name: row for row, one in enumerate(rows)}
        self.engine = Engine(Policy.parse("partage"))
        for row in order.order:
            self.engine.handle(NodeSeen(self.nodes[row]))
        self.learning = Learning(trace, Stock.of(self.nodes), Lesson())

    def play(self) -> dict[int, float]:
        """Allocation in percent of all compute, by arrived load."""
        came = taken = 0
        found: dict[int, list[float]] = {level: [] for level in LEVELS}
        for number, row in enumerate(self.sequence.pods):
            pod = self.trace.pods[row]
            if self.way.protocol or self.way.engine:
                if number:
                    self.learn(number)
                self.learning.seen[ask_of(pod)] += 1
            came += pod.demand
            if self.place(number, pod):
                taken += pod.demand
                self.learning.running[ask_of(pod)] += 1
            level = round(100 * came / self.trace.capacity)
            if level in found:
                found[level].append(100 * taken / self.trace.capacity)
        return {level: mean(values) for level, values in found.items()}

    def learn(self, number: int) -> None:
        """New tables where they are due."""
        tables = self.learning.next(number, self.engine.tables, self.engine.ledger)
        if tables is not None:
            self.engine.handle(TablesChanged(tables))

    def place(self, number: int, row: PodRow) -> bool:
        """Place a pod; whether it has a place."""
        pod = replace(template(row), uid=str(number))
        if row.cards and self.way.protocol:
            decision = self.engine.schedule(pod, reasons=False)
            if not isinstance(decision, Placement):
                return False
            self.engine.handle(BindSucceeded(pod.uid))
            node = self.index[decision.allocation.node]
            self.take(node, row, [one.minor for one in decision.allocation.grants])
            return True
        looked = self.looked_at(self.fits(row))
        if not looked.size:
            return False
        if row.cards and self.way.engine:
            node = self.best(pod, looked)
        else:
            node = int(looked[self.plain_scores(row, looked).argmax()])
        minors = self.first(node, row)
        self.take(node, row, minors)
        if self.way.protocol or self.way.engine:
            self.tell(pod, row, node, minors)
        return True

    # --- kube-scheduler ----------------------------------------------------------------------

    def fits(self, row: PodRow) -> Bools:
        """Nodes that its filters pass, DynamicResources among them."""
        asked = np.array((row.cpu_milli, row.memory_mib))
        found: Bools = (self.free >= asked).all(axis=1)
        if row.cards:
            found &= (self.cards >= row.milli).sum(axis=1) >= row.cards
            models = sorted({one for one in row.models.split("|") if one})
            if models:
                found &= np.isin(self.models, models)
        return found

    def looked_at(self, fits: Bools) -> Ints:
        """As many of them as it looks for (`numFeasibleNodesToFind`), from where it stopped before."""
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
        """NodeResourcesFit (LeastAllocated) and NodeResourcesBalancedAllocation of CPU and memory."""
        left = (self.free[nodes] - (row.cpu_milli, row.memory_mib)) / self.room[nodes]
        spread = np.abs(left[:, 0] - left[:, 1]) / 2
        return np.floor(100 * left.mean(axis=1)) + np.floor(100 * (1 - spread))

    def best(self, pod: Pod, looked: Ints) -> int:
        """The node of those that were looked at which the engine likes best."""
        ledger = self.engine.ledger
        found, scores = self.engine.candidates(pod)
        score = dict(zip(found.tolist(), scores.tolist(), strict=True))
        return max(
            looked.tolist(), key=lambda row: score.get(ledger.index[self.nodes[row].name], -1)
        )

    # --- the in-tree allocator ---------------------------------------------------------------

    def first(self, node: int, row: PodRow) -> list[int]:
        """The first cards that fit, in the order that is published."""
        listed = self.published[node].tolist()
        return [one for one in listed if self.cards[node, one] >= row.milli][: row.cards]

    def take(self, node: int, row: PodRow, minors: Sequence[int]) -> None:
        """Give the pod its place; later the agent publishes what is left."""
        self.free[node] -= (row.cpu_milli, row.memory_mib)
        self.cards[node, list(minors)] -= row.milli
        if not minors or not self.way.ordered:
            return
        self.allocated += 1
        self.stale.append(node)
        while len(self.stale) > self.way.late:
            self.publish(self.stale.popleft())

    def publish(self, node: int) -> None:
        """Cards in use before idle ones, the least room first, and none moves without need."""
        before, left = self.published[node], self.cards[node]
        worth = np.where(left == MILLI, 2 * MILLI, left)[before]
        after = before[np.argsort(worth, kind="stable")]
        self.rewritten += bool((after != before).any())
        self.published[node] = after

    def tell(self, pod: Pod, row: PodRow, node: int, minors: Sequence[int]) -> None:
        """The engine hears what became of the pod."""
        mode = GrantMode.WHOLE if row.milli >= MILLI else GrantMode.SHARE
        there = self.nodes[node]
        grants = tuple(
            Grant("main", DeviceType.GPU, minor, there.devices[minor].uuid, row.milli,
                  there.devices[minor].memory_bytes * row.milli // MILLI, mode)
            for minor in minors
        )  # fmt: skip
        self.engine.handle(PodSeen(replace(pod, node=there.name, record=Record(grants))))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seeds", type=int, nargs="+", default=[42, 43])
    options.add_argument("--trace", default="default")
    options.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    given = options.parse_args()
    data = folder()
    if not (data / "nodes.csv").exists():
        print(f"skipped: no openb traces in {data}; set PARTAGE_OPENB to their folder")
        return
    trace = read_trace(data, given.trace)
    print(f"{'way':55}" + "".join(f"{level:>8} %" for level in LEVELS) + "   slices rewritten")
    for name in given.ways:
        runs = [
            Run(trace, read_sequence(data / "sequences.npz", trace, seed), WAYS[name])
            for seed in given.seeds
        ]
        found = [one.play() for one in runs]
        told = "".join(f"{mean(one[level] for one in found):>10.2f}" for level in LEVELS)
        part = [one.rewritten / one.allocated for one in runs if one.allocated]
        print(f"{name:55}{told}" + (f"{mean(part):>12.2f} a claim" if part else ""), flush=True)


if __name__ == "__main__":
    main()
