"""Samples of small clusters: their nodes, and their pods in order with their lifetimes.

Sample N is the same on every machine and in every run, because its number is the only seed. Even numbers draw nodes
and pods from the openb tables if these exist; odd ones are made up. Of every four numbers two are for choosing
constants and two for reporting, one of each source.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from partage.sim.openb import NodeRow, PodRow, Trace, read_trace
from partage.sim.openb import Sequence as Order
from partage.sim.replay import Life, Lives

__all__ = ["CLASSES", "Sample", "for_tuning", "sample"]

CLASSES: Final = ((4, 16), (17, 60), (61, 200))
"""The fewest and the most nodes of the three size classes."""
LOAD: Final = 1.3
ORDERS: Final = ("random", "random", "deployments", "waves", "falling", "rising")
OFFERED: Final = (0.8, 0.9, 1.0, 1.1, 1.2)
TURNOVER: Final = 4.0
"""Arrivals of a run with departures, as a multiple of the pods that fill the cluster."""
MOST: Final = 4000  # the most arrivals of a run with departures
HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One cluster with its arrivals.

    Attributes:
        number: the number of the sample.
        size: the row of `CLASSES`.
        source: `openb NAME` or `made STYLE`.
        order: the order of the pods in the run without departures.
        trace: nodes and kinds of pods.
        sequence: arrivals without departures, up to `LOAD`, and the order of nodes.
        offered: the average load with departures, as a part of the cluster.
        lives: arrivals with departures.
    """

    number: int
    size: int
    source: str
    order: str
    trace: Trace
    sequence: Order
    offered: float
    lives: Lives


def for_tuning(number: int) -> bool:
    """Whether a sample may serve to choose constants; the others only serve to report."""
    return number % 4 < 2


def sample(number: int, data: Path | None) -> Sample:
    """Sample `number`.

    Args:
        number: the number, from 0.
        data: the folder of openb tables (`nodes.csv`, `pods_*.csv`); None if it does not exist.
    """
    chance = random.Random(f"small clusters {number}")  # noqa: S311 # the draw must be repeatable
    size = (number // 4) % len(CLASSES)
    low, high = CLASSES[size]
    count = round(low * (high / low) ** chance.random())
    if number % 2 == 0 and data is not None:
        source, nodes, kinds, weights = _from_tables(chance, data, count)
    else:
        source, nodes, kinds, weights = _made(chance, count)
    trace = Trace(f"small-{number}", tuple(nodes), tuple(kinds))
    order = chance.choice(ORDERS)
    pods = _arrivals(chance, trace, weights, order)
    ranks = list(range(len(nodes)))
    chance.shuffle(ranks)
    offered = chance.choice(OFFERED)
    lives = _lives(chance, trace, weights, offered)
    sequence = Order(tuple(pods), tuple(ranks), f"sample {number}")
    return Sample(number, size, source, order, trace, sequence, offered, lives)


Drawn = tuple[str, list[NodeRow], list[PodRow], list[float]]


@cache
def _table(data: Path, name: str) -> Trace:
    return read_trace(data, name)


def _from_tables(chance: random.Random, data: Path, count: int) -> Drawn:
    """Nodes of some or all models, and pods of all or some of the table's kinds."""
    names = sorted(path.stem.removeprefix("pods_") for path in data.glob("pods_*.csv"))
    name = chance.choice(names)
    table = _table(data, name)
    models = sorted({node.model for node in table.nodes})
    mine = set(chance.sample(models, min(len(models), chance.choice((1, 2, 3, len(models))))))
    nodes = chance.choices([node for node in table.nodes if node.model in mine], k=count)
    nodes = [
        NodeRow(f"n{i}", n.cpu_milli, n.memory_mib, n.cards, n.model) for i, n in enumerate(nodes)
    ]
    pods = [pod for pod in table.pods if any(_could(pod, node) for node in nodes)]
    if chance.random() < 0.5:  # few kinds, as in a cluster of a few teams
        known = sorted({(p.cpu_milli, p.memory_mib, p.cards, p.milli, p.models) for p in pods})
        few = set(chance.sample(known, min(len(known), chance.randint(6, 30))))
        some = [p for p in pods if (p.cpu_milli, p.memory_mib, p.cards, p.milli, p.models) in few]
        pods = some if any(pod.cards for pod in some) else pods
    return f"openb {name}", nodes, pods, [1.0] * len(pods)


def _could(pod: PodRow, node: NodeRow) -> bool:
    models = [model for model in pod.models.split("|") if model]
    return (
        pod.cards <= node.cards
        and pod.cpu_milli <= node.cpu_milli
        and pod.memory_mib <= node.memory_mib
        and (not pod.cards or not models or node.model in models)
        and pod.card_mib <= node.card_mib
    )


_TYPES: Final = (
    # model, card memory in GiB
    ("T4", 16),
    ("A10", 24),
    ("L40S", 48),
    ("A100-40", 40),
    ("A100", 80),
    ("H100", 80),
    ("H200", 141),
)


def _made(chance: random.Random, count: int) -> Drawn:
    """Nodes of one to three types, with much or little CPU, and requests of a random style."""
    types = []
    for model, gib in chance.sample(_TYPES, chance.choice((1, 1, 2, 3))):
        cards = chance.choice((1, 2, 4, 4, 8, 8, 8))
        cores = cards * chance.choice((6, 8, 12, 16, 24)) + 4
        types.append((model, cards, cores * 1000, cores * 1024 * chance.choice((4, 6, 8)), gib))
    nodes = []
    for i in range(count):
        model, cards, cpu, memory, gib = chance.choice(types)
        nodes.append(NodeRow(f"n{i}", cpu, memory, cards, model, gib * 1024))
    weights: list[float] = []
    kinds: list[PodRow] = []
    style = chance.choice(("even", "memory-heavy", "compute-heavy", "mixed"))
    whole, plain = chance.choice((0.2, 0.4, 0.6)), chance.choice((0.0, 0.1, 0.2))
    while len(kinds) < chance.randint(5, 25) or not any(kind.cards for kind in kinds):
        kind = _kind(chance, len(kinds), style, (whole, plain))
        if any(_could(kind, node) for node in nodes):
            kinds.append(kind)
            weights.append(chance.paretovariate(1.2))
    return f"made {style}", nodes, kinds, weights


def _kind(chance: random.Random, number: int, style: str, parts: tuple[float, float]) -> PodRow:
    whole, plain = parts
    name, draw = f"k{number}", chance.random()
    cores = chance.choice((1, 2, 4, 6, 8, 12, 16))
    gib = cores * chance.choice((2, 4, 8))
    if draw < plain:
        return PodRow(name, cores * 1000, gib * 1024, 0, 0)
    if draw < plain + (1 - plain) * whole:
        cards = chance.choice((1, 1, 1, 1, 2, 4, 8))
        return PodRow(name, cores * cards * 500, gib * cards * 512, cards, 1000)
    milli = chance.choice((50, 100, 100, 200, 200, 250, 300, 330, 400, 500, 500, 600, 700, 800))
    if style == "even":
        memory = 0
    else:
        card = chance.choice((16, 24, 40, 80))
        factor = {"memory-heavy": 1.6, "compute-heavy": 0.6, "mixed": 1.0}[style]
        memory = max(1, round(card * milli / 1000 * factor * chance.uniform(0.5, 1.5)))
        if chance.random() < 0.15:  # memory alone, like many inference servers
            milli = 0
    return PodRow(name, cores * 500, gib * 512, 1, milli, card_mib=memory * 1024)


def size_of(trace: Trace, pod: PodRow) -> float:
    """A pod's size in cards: the larger of its compute and its memory."""
    cards = sum(node.cards for node in trace.nodes)
    mean = sum(node.cards * node.card_mib for node in trace.nodes) / max(1, cards)
    return pod.cards * max(pod.milli / 1000, min(1.0, pod.card_mib / mean) if mean else 0.0)


def _arrivals(
    chance: random.Random, trace: Trace, weights: Sequence[float], order: str
) -> list[int]:
    """Rows of pods up to `LOAD`, in one of the orders."""
    rows, asked = range(len(trace.pods)), [size_of(trace, pod) for pod in trace.pods]
    target = LOAD * trace.capacity / 1000
    pods: list[int] = []
    total = 0.0
    while total < target:
        row = chance.choices(rows, weights)[0]
        copies = 1 + int(chance.expovariate(0.25)) if order == "deployments" else 1
        pods += [row] * copies
        total += copies * asked[row]
    if order == "waves":  # kind after kind within each wave
        length = max(4, len(pods) // 5)
        waves = [pods[i : i + length] for i in range(0, len(pods), length)]
        pods = [row for wave in waves for row in sorted(wave)]
    elif order in {"falling", "rising"}:
        pods.sort(key=lambda row: asked[row], reverse=order == "falling")
    return pods


def _lives(chance: random.Random, trace: Trace, weights: Sequence[float], offered: float) -> Lives:
    """Arrivals at exponential intervals; lifetimes exponential or heavy-tailed, an hour on average."""
    rows, asked = range(len(trace.pods)), [size_of(trace, pod) for pod in trace.pods]
    mean = sum(w * a for w, a in zip(weights, asked, strict=True)) / sum(weights)
    capacity = trace.capacity / 1000
    rate = offered * capacity / (mean * HOUR)
    heavy = chance.random() < 0.5
    lives, now = [], 0.0
    for _ in range(min(MOST, int(TURNOVER * capacity / mean))):
        now += chance.expovariate(rate)
        # A log-normal with a standard deviation of 1.5 has the mean exp(1.125).
        length = chance.lognormvariate(-1.125, 1.5) if heavy else chance.expovariate(1.0)
        lives.append(Life(chance.choices(rows, weights)[0], now, length * HOUR))
    return tuple(lives)
