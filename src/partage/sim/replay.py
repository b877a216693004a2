"""Runs a trace through the real engine under one policy, event by event.

The replay feeds nodes, arrivals and ends to `Engine.handle` and `Engine.schedule` and writes down the results; every
rule is the engine's. Two modes:

    as published   pods arrive in the sequence's order, none ever leaves, none is tried twice
    with ends      pods arrive and end in virtual time; a pod without a place waits and is tried again,
                   in order of arrival, whenever room appears
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import cycle, islice
from time import perf_counter, process_time
from typing import Final

import numpy as np

from partage.inventory.plane import Floats, Ints
from partage.model.device import MILLI, Device, DeviceType
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.model.selector import NodeConstraint, Operator, Requirement, Selector
from partage.placement.fragmentation import Shape, Workload
from partage.placement.learning import Arrivals, Due, tables_due
from partage.placement.mix import Ask, Standing, Stock
from partage.placement.tables import UNITS, Prices, Tables
from partage.scheduler.classes import Scorers
from partage.scheduler.engine import Engine
from partage.scheduler.events import (
    BindSucceeded,
    NodeSeen,
    Placement,
    PodGone,
    Released,
    TablesChanged,
)
from partage.sim.compiled.columns import STRATEGIES
from partage.sim.kernel import Kernel
from partage.sim.openb import NodeRow, PodRow, Sequence, Trace
from partage.sim.queue import Queue

_MIB: Final = 2**20
_PODS: Final = 1001
_MODEL: Final = "openb/model"
_PROTOCOL: Final = "openb"
_ENDS_FIRST: Final = -1

Progress = Callable[[int], None]
"""Called after each arrival with the number of arrivals so far."""


@dataclass(frozen=True, slots=True)
class Life:
    """One pod's time: row of the trace, its arrival, and its duration (None for ever)."""

    row: int
    start: float
    length: float | None


Lives = tuple[Life, ...]


@dataclass(slots=True)
class Run:
    """The results; one entry an arrival, in order of arrival.

    Attributes:
        lives: arrivals and ends, in virtual seconds.
        node: row of the node that took the pod, -1 while none.
        card: the card that a fraction shares, -1 otherwise.
        started: when the pod got its place, virtual seconds; NaN for never.
        cpu_left: CPU left on that node afterwards, milli.
        card_left: compute left on its cards afterwards, milli.
        idle: (time, compute free in the cluster in milli) whenever it changed.
        seconds: wall time of the decisions, reading and building excluded.
        cpu_seconds: processor time of the same; on a busy machine the more accurate figure.
        tables_seconds, tables_cpu_seconds: the time of making tables, not part of the above.
        tables_chosen: the choice each time: `prices`, or the strategy that stands in for them.
        counts: the mix of requests at the end, including the one known before.
        engine: the engine at the end.
    """

    trace: Trace
    sequence: Sequence
    policy: Policy
    lives: Lives
    engine: Engine
    workload: Workload
    node: Ints
    card: Ints
    started: Floats
    cpu_left: list[int] = field(default_factory=list)
    card_left: list[Ints] = field(default_factory=list)
    idle: list[tuple[float, int]] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    tables_seconds: float = 0.0
    tables_cpu_seconds: float = 0.0
    tables_chosen: list[str] = field(default_factory=list)
    counts: Counter[Ask] = field(default_factory=Counter)
    accelerated: bool = False

    @property
    def arrived(self) -> Iterator[PodRow]:
        """The pods in order of arrival."""
        return (self.trace.pods[life.row] for life in self.lives)


def published(sequence: Sequence) -> Lives:
    """The published protocol: pods arrive one after another, none leaves."""
    return tuple(Life(row, float(i), None) for i, row in enumerate(sequence.pods))


def trace_lives(trace: Trace, speed: float = 1.0) -> Lives:
    """Every pod of the trace once, at its own times.

    `trace`: with creation and deletion times. `speed`: factor by which arrivals are closer together; lifetimes are
    unchanged. Raises `InvalidValue`: a pod has no creation time, or ends before it arrives.
    """
    lives = []
    for row, pod in enumerate(trace.pods):
        where = f"pods_{trace.name}.csv: row {row + 1} (line {row + 2})"
        if pod.created is None:
            raise InvalidValue(f"{where}: no creation_time, so its own times cannot be used")
        if pod.deleted is not None and pod.deleted < pod.created:
            raise InvalidValue(f"{where}: deletion_time is before creation_time")
        length = None if pod.deleted is None else pod.deleted - pod.created
        lives.append(Life(row, pod.created, length))
    lives.sort(key=lambda life: life.start)
    begin = lives[0].start
    return tuple(Life(x.row, begin + (x.start - begin) / speed, x.length) for x in lives)


def poisson(sequence: Sequence, arrivals: int, rate: float, lifetime: float, seed: int) -> Lives:
    """The sequence's pods at exponential intervals and with exponential lifetimes.

    Args:
        sequence: the pods and their order; it is repeated after its end.
        rate: arrivals a second.
        lifetime: mean, in seconds.
        seed: of the draws; intervals and lifetimes are separate streams, so runs with other rates keep the same
            lifetimes.
    """
    if not (rate > 0 and lifetime > 0):
        raise InvalidValue("the rate of arrivals and the mean lifetime must be above 0")
    intervals = random.Random(f"{seed}/intervals")  # noqa: S311 # a seeded draw is the point
    lengths = random.Random(f"{seed}/lifetimes")  # noqa: S311
    lives, now = [], 0.0
    for row in islice(cycle(sequence.pods), arrivals):
        now += intervals.expovariate(rate)
        lives.append(Life(row, now, lengths.expovariate(1.0 / lifetime)))
    return tuple(lives)


# --- building ------------------------------------------------------------------------------------


def cluster(trace: Trace) -> list[Node]:
    """The trace's nodes as the engine's."""
    return [_node(row) for row in trace.nodes]


def _node(row: NodeRow) -> Node:
    devices = tuple(
        Device(
            DeviceType.GPU,
            minor,
            f"{row.name}/{minor}",
            model=row.model,
            slots=_PODS,
            memory_bytes=row.card_mib * _MIB,
        )
        for minor in range(row.cards)
    )
    room = {"cpu": row.cpu_milli, "memory": row.memory_mib * _MIB, "pods": _PODS}
    return Node(row.name, labels={_MODEL: row.model}, allocatable=room, devices=devices)


def template(row: PodRow) -> Pod:
    """A pod with the row's request, without a name; equal rows give equal templates."""
    host = {"cpu": row.cpu_milli, "memory": row.memory_mib * _MIB, "pods": 1}
    if not row.cards:
        return Pod("", _PROTOCOL, "", host=host)
    whole = row.milli >= MILLI
    request = DeviceRequest(
        DeviceType.GPU,
        row.cards,
        row.milli,
        memory_bytes=0 if whole else row.card_mib * _MIB,
        memory_milli=MILLI if whole else 0,
        whole=whole,
    )
    group = RequestGroup(_PROTOCOL, request, (ContainerAsk("main"),))
    accepted = Requirement(_MODEL, Operator.IN, row.accepted)
    constraint = NodeConstraint(Selector((accepted,) if row.accepted else ()))
    return Pod("", _PROTOCOL, "", request=PodRequest((group,)), host=host, constraint=constraint)


def workload_of(trace: Trace) -> Workload:
    """The usual requests of the trace, which the published FGD knows beforehand."""
    return Workload.of(Shape(p.cpu_milli, p.milli, p.cards, p.models) for p in trace.pods)


def _templates(trace: Trace) -> tuple[list[int], list[Pod]]:
    """For each row the number of its template, and the templates; equal rows share one."""
    numbers: dict[object, int] = {}
    templates: list[Pod] = []
    of_row: list[int] = []
    for row in trace.pods:
        accepted = row.accepted if row.cards else ()
        key = (row.cpu_milli, row.memory_mib, row.cards, row.milli, row.card_mib, accepted)
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(templates)
            templates.append(template(row))
        of_row.append(number)
    return of_row, templates


# --- running -------------------------------------------------------------------------------------


def replay(
    trace: Trace,
    sequence: Sequence,
    policy: Policy,
    *,
    lives: Lives | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    accelerate: bool | None = None,
    history: Mapping[Ask, int] | None = None,
) -> Run:
    """Run the trace under the policy.

    Args:
        sequence: order of arrival, and of nodes among equals.
        lives: arrivals and ends in virtual time; None for the published protocol.
        seed: of the policy's own draws, if it makes any.
        progress: called after each arrival.
        accelerate: decide in compiled loops; None does so if numba is installed. Results are the same.
        history: the mix of requests that the default policy knows before the run; None for none.
    """
    fast = find_spec("numba") is not None if accelerate is None else accelerate
    engine = Engine(policy, _compiled() if fast else None)
    nodes = cluster(trace)
    for row in sequence.order:
        engine.handle(NodeSeen(nodes[row]))
    workload = workload_of(trace)
    engine.handle(TablesChanged(Tables(workload=workload, seed=seed)))
    mine = published(sequence) if lives is None else lives
    run = Run(
        trace,
        sequence,
        policy,
        mine,
        engine,
        workload,
        np.full(len(mine), -1, np.int64),
        np.full(len(mine), -1, np.int64),
        np.full(len(mine), np.nan),
    )
    run.accelerated = fast and policy.node in STRATEGIES
    driver = _Driver(run, waits=lives is not None, history=history)
    driver.warm_up()
    driver.learn()
    apart, apart_used = run.tables_seconds, run.tables_cpu_seconds
    start, used = perf_counter(), process_time()
    driver.drive(progress or (lambda _: None))
    run.seconds, run.cpu_seconds = perf_counter() - start, process_time() - used
    run.seconds -= run.tables_seconds - apart
    run.cpu_seconds -= run.tables_cpu_seconds - apart_used
    return run


def _compiled() -> Scorers:
    from partage.sim.compiled.scorers import CompiledScorers  # noqa: PLC0415 # imports numba

    return CompiledScorers()


class _Driver:
    """Takes the cluster's role: brings pods, records their places, ends them."""

    def __init__(self, run: Run, *, waits: bool, history: Mapping[Ask, int] | None) -> None:
        self.run = run
        priced = Strategy.PARTAGE in (run.policy.node, run.policy.card)
        stock = Stock.of(cluster(run.trace))
        self.stock, self.cards = stock, int(stock.cards.sum())
        self.arrivals, self.running = Arrivals(history), Counter[Ask]()
        self.learns = priced
        self.asks = [row.ask for row in run.trace.pods]
        self.waits = waits
        self.engine = run.engine
        self.rows = {node.name: row for row, node in enumerate(run.trace.nodes)}
        self.of_row, self.templates = _templates(run.trace)
        self.queue = Queue(self.templates)
        self.kernel: Kernel[tuple[bool, int]] = Kernel(
            min((life.start for life in run.lives), default=0.0)
        )
        self.free = run.trace.capacity
        for number, life in enumerate(run.lives):
            self.kernel.at(life.start, (True, number))
        self.pods = [self._pod(number, life.row) for number, life in enumerate(run.lives)]

    def _pod(self, number: int, row: int) -> Pod:
        return replace(self.templates[self.of_row[row]], uid=str(number))

    def warm_up(self) -> None:
        """Ask for one decision of each kind, so that nothing is compiled during the measured time."""
        kinds = {pod.kind: row for row, pod in enumerate(self.run.trace.pods)}
        some = [self.templates[self.of_row[row]] for row in kinds.values()]
        for pod in some:
            self.engine.evaluate(pod, reasons=False)
        if not (self.learns and self.run.accelerated):
            return
        # Prices are learnt later; loops that need them are loaded with dummy ones.
        other = Engine(self.run.policy, _compiled())
        for node in cluster(self.run.trace):
            other.handle(NodeSeen(node))
        pairs, worth = np.zeros((1, 2)), np.zeros((0, UNITS + 1, 1))
        other.handle(TablesChanged(Tables(prices=Prices((), pairs, worth, np.zeros(0)))))
        for pod in some:
            other.evaluate(pod, reasons=False)

    def drive(self, progress: Progress) -> None:
        """Take every event in its turn."""
        run = self.run
        for arrives, number in self.kernel.run():
            if arrives:
                if number:
                    self.learn()
                self.arrivals.add((self.asks[run.lives[number].row],))
                if not self._place(number) and self.waits:
                    self.queue.add(number, self.of_row[run.lives[number].row])
                progress(number + 1)
            else:
                self._end(number)
        run.counts.update(self.arrivals.counts)

    def learn(self) -> None:
        """Give the engine new tables if they are due."""
        what = self.arrivals.due(self.cards) if self.learns else Due.NOTHING
        if what is Due.NOTHING:
            return
        start, used = perf_counter(), process_time()
        tables = self._tables(what)
        self.run.tables_seconds += perf_counter() - start
        self.run.tables_cpu_seconds += process_time() - used
        if tables is not None:
            if what is Due.PRICES:
                self.run.tables_chosen.append(tables.chosen)
            self.engine.handle(TablesChanged(tables))

    def _tables(self, what: Due) -> Tables | None:
        arrivals, engine = self.arrivals, self.engine
        standing = None
        if arrivals.total:
            standing = Standing.of(engine.ledger, list(self.rows), self.running)
        counts, trend = arrivals.counts, arrivals.trend
        return tables_due(what, engine.tables, counts, self.stock, standing, trend=trend)

    def _place(self, number: int) -> bool:
        life = self.run.lives[number]
        pod = self.pods[number]
        decision = self.engine.schedule(pod, reasons=False)
        if not isinstance(decision, Placement):
            return False
        self.engine.handle(BindSucceeded(pod.uid))
        self._note(number, life, decision)
        return True

    def _note(self, number: int, life: Life, decision: Placement) -> None:
        run, allocation, ledger = self.run, decision.allocation, self.engine.ledger
        row = run.trace.pods[life.row]
        run.node[number] = self.rows[allocation.node]
        if row.cards == 1 and row.milli < MILLI:
            run.card[number] = allocation.grants[0].minor
        run.started[number] = self.kernel.now
        self.running[self.asks[life.row]] += 1
        if self.waits:
            self.free -= row.demand
            run.idle.append((self.kernel.now, self.free))
            if life.length is not None:
                self.kernel.at(self.kernel.now + life.length, (False, number), _ENDS_FIRST)
            return
        index = ledger.index[allocation.node]
        run.cpu_left.append(int(ledger.host_free["cpu"][index]))
        run.card_left.append(ledger.planes[DeviceType.GPU].core_free[:, index].copy())

    def _end(self, number: int) -> None:
        row = self.run.lives[number].row
        self.free += self.run.trace.pods[row].demand
        self.running[self.asks[row]] -= 1
        self.run.idle.append((self.kernel.now, self.free))
        for action in self.engine.handle(PodGone(str(number))):
            if isinstance(action, Released):
                self.queue.retry(self.engine.ledger, action.node, self._place)
