"""A rehearsal on arrays takes the decisions of the engine."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.builders import card, make_node
from partage.inventory.plane import Ints
from partage.model.device import MILLI
from partage.model.node import Node
from partage.model.policy import Policy, Strategy
from partage.placement.mix import Ask, Mix, Standing, Stock, workload_of
from partage.placement.prices import PAIRS
from partage.placement.rehearsal import Course, Theatre, dressed, thinned
from partage.placement.reserves import reserves_of
from partage.placement.tables import UNITS, Prices, Tables
from partage.scheduler.engine import Engine
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement, TablesChanged
from partage.sim.openb import PodRow
from partage.sim.replay import template

MODELS = ("A100", "T4", "V100")
_GIB = 2**30


@dataclass(frozen=True)
class World:
    """A cluster, what is asked of it, and prices drawn for it."""

    nodes: tuple[Node, ...]
    mix: Mix
    prices: Prices

    @property
    def stock(self) -> Stock:
        """The cluster when it is empty."""
        return Stock.of(self.nodes)


def world(seed: int, size: int) -> World:
    """A small cluster with prices that are not smooth, so that every rule is used."""
    chance = np.random.default_rng(seed)
    nodes = []
    for i in range(size):
        model, cards = MODELS[chance.integers(3)], int(chance.choice([1, 2, 4, 8]))
        room = {
            "cpu": int(chance.choice([16, 48, 96])) * 1000,
            "memory": int(chance.choice([64, 256])) * _GIB,
            "pods": 1001,
        }
        gpus = [card(g, prefix=f"n{i}", model=model) for g in range(cards)]
        nodes.append(make_node(f"n{i}", gpus, allocatable=room))
    stock = Stock.of(nodes)
    mix = Mix.of({_ask(chance): int(chance.integers(1, 40)) for _ in range(12)}, stock)
    steps = chance.exponential(12.0, (len(stock.models), UNITS + 1, PAIRS.shape[0]))
    steps[:, 0] = 0.0
    prices = Prices(
        stock.models,
        PAIRS,
        np.cumsum(steps * chance.integers(0, 2, steps.shape), axis=1),
        chance.uniform(0, 1.5, len(stock.models)),
        ((2, 0.2), (4, 0.1), (8, 0.3)),
        float(chance.integers(100, 900)),
        reserves_of(mix, stock),
    )
    return World(tuple(nodes), mix, prices)


def _ask(chance: np.random.Generator) -> Ask:
    cards = int(chance.choice([0, 1, 1, 1, 2, 4]))
    milli = int(chance.integers(1, MILLI)) if cards == 1 and chance.integers(3) else MILLI
    models = tuple(sorted(set(chance.choice(MODELS, 2)))) if chance.integers(4) == 0 else ()
    cpu = int(chance.choice([1000, 4000, 12_000, 32_000]))
    return Ask(
        cpu,
        int(chance.choice([1024, 16_384])),
        cards,
        milli if cards else 0,
        tuple(map(str, models)) if cards else (),
    )


def by_engine(course: Course, mine: World, tables: Tables, policy: Strategy) -> Ints:
    """Where the engine places the arrivals of a course: rows of its nodes."""
    engine = Engine(Policy(policy, policy))
    order = {}
    for row in range(course.stock.cpu.size):
        cards, model = int(course.stock.cards[row]), course.stock.models[course.stock.model[row]]
        room = {
            "cpu": int(course.stock.cpu[row]),
            "memory": int(course.stock.memory[row]) * 2**20,
            "pods": 100_000,
        }
        gpus = [card(g, prefix=f"r{row}", model=model, slots=1001) for g in range(cards)]
        engine.handle(
            NodeSeen(make_node(f"r{row}", gpus, allocatable=room, labels={"openb/model": model}))
        )
        order[f"r{row}"] = row
    for row in np.flatnonzero(course.books.left[:, 0] < MILLI).tolist():
        cpu = int(course.stock.cpu[row] - course.books.cpu[row])
        runs = replace(template(PodRow("", cpu, 0, 1, MILLI)), uid=f"r{row}", name=f"r{row}")
        assert isinstance(engine.place_on(runs, f"r{row}"), Placement)
        engine.handle(BindSucceeded(runs.uid))
    engine.handle(TablesChanged(tables))
    result = np.full(course.arrivals.size, -1, np.int64)
    result[: course.placed] = 0
    for number, row in [*enumerate(course.arrivals.tolist())][course.placed :]:
        ask = mine.mix.asks[row]
        like = template(
            PodRow("", ask.cpu_milli, ask.memory_mib, ask.count, ask.milli, "|".join(ask.models))
        )
        pod = replace(like, uid=str(number), name=str(number))
        found = engine.schedule(pod, reasons=False)
        if isinstance(found, Placement):
            engine.handle(BindSucceeded(pod.uid))
            result[number] = order[found.allocation.node]
    return result


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_prices_place_as_in_the_engine(seed: int) -> None:
    """Every arrival of a rehearsal goes to the node that the engine chooses, or to none."""
    mine = world(seed, 6)
    course = thinned(mine.mix, mine.stock, 1 + seed % 2, seed)

    found = Theatre(mine.mix, mine.stock).prices(course, mine.prices)

    tables = Tables(prices=mine.prices)
    assert found.tolist() == by_engine(course, mine, tables, Strategy.PARTAGE).tolist()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_the_others_place_as_in_the_engine(seed: int) -> None:
    """FGD with the usual requests of the mix, and first fit."""
    mine = world(seed, 6)
    course = thinned(mine.mix, mine.stock, 1, seed)
    theatre = Theatre(mine.mix, mine.stock)
    tables = Tables(workload=workload_of(mine.mix))

    fgd = by_engine(course, mine, tables, Strategy.FGD)
    assert theatre.fragmentation(course).tolist() == fgd.tolist()
    first = by_engine(course, mine, tables, Strategy.FIRST_FIT)
    assert theatre.first_fit(course).tolist() == first.tolist()


def by_kube_scheduler(course: Course, ask: Ask, left: dict[str, Ints]) -> int:
    """The node that kube-scheduler's own two scores like best of those with room, -1 where none has."""
    best, found = -1.0, -1
    for row in range(course.stock.cpu.size):
        room = int(course.stock.cpu[row]), int(course.stock.memory[row])
        rest = int(left["cpu"][row]) - ask.cpu_milli, int(left["memory"][row]) - ask.memory_mib
        if min(rest) < 0:
            continue
        cpu, memory = (part / whole for part, whole in zip(rest, room, strict=True))
        score = np.floor(50 * (cpu + memory)) + np.floor(100 - 50 * abs(cpu - memory))
        if score > best:
            best, found = float(score), row
    return found


@pytest.mark.parametrize("strategy", ["prices", "fragmentation", "first fit"])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=5, deadline=None)
def test_kube_scheduler_places_what_is_its_own(strategy: str, seed: int) -> None:
    """It uses its own scores, beside pods with cards under any strategy."""
    mine = world(seed, 6)
    plain = [Ask(2000, 1024, elsewhere=True), Ask(8000, 16_384, elsewhere=True)]
    cards = {a: n for a, n in zip(mine.mix.asks, mine.mix.counts.tolist(), strict=True) if a.count}
    mix = Mix.of({**cards, **dict.fromkeys(plain, 40)}, mine.stock)
    course = thinned(mix, mine.stock, 1, seed)
    prices = replace(mine.prices, reserves=reserves_of(mix, mine.stock))
    theatre = Theatre(mix, mine.stock)

    if strategy == "prices":
        node = theatre.prices(course, prices)
    elif strategy == "fragmentation":
        node = theatre.fragmentation(course)
    else:
        node = theatre.first_fit(course)

    left = {"cpu": course.stock.cpu.copy(), "memory": course.stock.memory.copy()}
    seen = 0
    for row, found in zip(course.arrivals.tolist(), node.tolist(), strict=True):
        ask = mix.asks[row]
        if ask.elsewhere:
            assert found == by_kube_scheduler(course, ask, left)
            seen += 1
        if found >= 0:
            left["cpu"][found] -= ask.cpu_milli
            left["memory"][found] -= ask.memory_mib
    assert seen or not cards


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_prices_place_as_in_the_engine_from_books_that_hold_something(seed: int) -> None:
    """A pod with a whole card and half of the CPU runs on every other node."""
    mine = world(seed, 20)
    some = dict.fromkeys(mine.mix.asks, 3)
    stock, odd = mine.stock, np.arange(20) % 2
    left = np.where(np.arange(stock.cards.max()) < stock.cards[:, None], MILLI, 0)
    left[odd == 1, 0] = 0
    standing = Standing(stock.cpu - stock.cpu // 2 * odd, stock.memory, left, some)
    course = dressed(mine.mix, stock, standing, seed)

    found = Theatre(mine.mix, stock).prices(course, mine.prices)

    assert course.placed == 3 * len(some)
    tables = Tables(prices=mine.prices)
    assert found.tolist() == by_engine(course, mine, tables, Strategy.PARTAGE).tolist()


def test_an_outcome_counts_kinds_and_load() -> None:
    """Two nodes of one card: a fraction, a whole card, a pair that never fits, a plain pod."""
    room = {"cpu": 8000, "memory": 8 * _GIB}
    stock = Stock.of(
        make_node(f"n{i}", [card(0, prefix=f"n{i}", model="T4")], allocatable=room)
        for i in range(2)
    )
    seen = {
        Ask(1000, 1024): 1,
        Ask(1000, 1024, 1, 500): 1,
        Ask(1000, 1024, 1, 1000): 1,
        Ask(1000, 1024, 2, 1000): 1,
    }
    mix = Mix.of(seen, stock)
    theatre = Theatre(mix, stock)
    course = replace(thinned(mix, stock, 1, 1), arrivals=np.array([1, 3, 2, 0, 2]))

    found = theatre.outcome(course, theatre.first_fit(course))

    assert found.failed == (0, 0, 1, 1)
    assert found.came == (1, 1, 2, 1)
    assert found.first_refused == pytest.approx(125.0)
    assert found.at_end == pytest.approx(75.0)
    assert found.at_full == pytest.approx(25.0)


def test_a_thinned_cluster_keeps_every_type_of_node() -> None:
    """One of every three nodes of a type, the only one of another included."""
    room = {"cpu": 8000, "memory": 8 * _GIB}
    kinds = ["T4"] * 7 + ["A100"]
    nodes = [
        make_node(f"n{i}", [card(0, prefix=f"n{i}", model=model)], allocatable=room)
        for i, model in enumerate(kinds)
    ]
    stock = Stock.of(nodes)
    mix = Mix.of({Ask(1000, 1024, 1, 1000): 3}, stock)

    part = thinned(mix, stock, 3, 0).stock

    assert sorted(part.model.tolist()) == [0, 1, 1, 1]


def test_usual_requests_are_counted_whatever_memory_they_ask() -> None:
    """Two asks that differ in memory alone are one shape to FGD, as often as both together."""
    stock = Stock.of([make_node("n", [card(0, model="T4")])])
    seen = {
        Ask(1000, 1024, 1, 500): 3,
        Ask(1000, 2048, 1, 500): 2,
        Ask(1000, 1024, 1, 1000): 5,
        Ask(4000, 1024): 10,
    }

    usual = workload_of(Mix.of(seen, stock))

    pairs = {(s.core_milli, s.count): p for s, p in zip(usual.shapes, usual.chances, strict=True)}
    assert pairs == pytest.approx({(0, 0): 0.5, (500, 1): 0.25, (1000, 1): 0.25})
