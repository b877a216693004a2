"""Time of one decision in process, and memory of the engine's state.

NODES nodes of eight cards with topology, and pods of four protocols in eight shapes, read from the documents that
`bench/schedule.py` writes. The cluster is filled to FILL percent of its compute. Then pods arrive one at a time, and
for each a random one ends. Only `Engine.schedule` is timed: choosing, reserving and booking. Processor time is the
fairer figure on a busy machine; wall time is printed beside it. The default policy is measured twice: at the start,
and after it has learnt from the known pods. Making the tables is not timed. The output shows whether it chose
prices or stand-ins.

    python bench/decision.py [--nodes 5000] [--decisions 4000] [--fill 80] [--plain]
"""

import argparse
import json
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from partage.daemon.gc_tuning import collecting_later
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.placement.learning import asks_of
from partage.placement.mix import Stock
from partage.placement.selection import learned
from partage.scheduler.engine import Engine
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement, PodGone, TablesChanged
from partage.sim.compiled.scorers import CompiledScorers
from partage.wire.cluster import assemble
from partage.wire.documents import decode
from schedule import ASKS, node, pod

QUANTILES = (50, 90, 99, 99.9)
SEEN = 3000


@dataclass
class Times:
    """Microseconds of every decision, in processor time and in wall time."""

    processor: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    refused: int = 0


def cluster(nodes: int) -> tuple[list[Node], list[Pod]]:
    """The given number of nodes, and a pod of each shape."""
    items = [document for index in range(nodes) for document in node(index)]
    items += [pod(index) for index in range(len(ASKS) * 4)]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    found = assemble([decode("bench", text.encode())])
    return list(found.nodes), [translated.pod for translated in found.pods]


def pods(kinds: list[Pod], seed: int = 1) -> Iterator[Pod]:
    """An endless stream of pods of random shapes."""
    draw = random.Random(seed)  # noqa: S311 # the draw must be repeatable
    number = 0
    while True:
        number += 1
        yield replace(draw.choice(kinds), uid=f"uid-{number}", name=f"pod-{number}")


def used(engine: Engine) -> float:
    """The used part of all compute, in percent."""
    plane = engine.ledger.planes[DeviceType.GPU]
    total = int(plane.core_total.sum())
    return 100.0 * (total - int(plane.core_free.sum())) / total


def start(nodes: list[Node], policy: Policy, *, accelerate: bool) -> Engine:
    """An engine that knows the nodes."""
    engine = Engine(policy, CompiledScorers() if accelerate else None)
    for one in nodes:
        engine.handle(NodeSeen(one))
    return engine


def fill(engine: Engine, coming: Iterator[Pod], percent: float) -> list[str]:
    """Place pods until this much is used; returns their UIDs."""
    held: list[str] = []
    while used(engine) < percent:
        for _ in range(200):
            one = next(coming)
            if isinstance(engine.schedule(one, reasons=False), Placement):
                engine.handle(BindSucceeded(one.uid))
                held.append(one.uid)
    return held


def decide(engine: Engine, coming: Iterator[Pod], held: list[str], decisions: int) -> Times:
    """Time this many decisions; after each placement a random pod ends."""
    times, draw = Times(), random.Random(2)  # noqa: S311
    for _ in range(decisions):
        one = next(coming)
        wall, processor = time.perf_counter_ns(), time.thread_time_ns()
        decision = engine.schedule(one, reasons=False)
        processor = time.thread_time_ns() - processor
        times.wall.append((time.perf_counter_ns() - wall) / 1000)
        times.processor.append(processor / 1000)
        if not isinstance(decision, Placement):
            times.refused += 1
            continue
        engine.handle(BindSucceeded(one.uid))
        place = draw.randrange(len(held))
        engine.handle(PodGone(held[place]))
        held[place] = one.uid
    return times


def learn(engine: Engine, nodes: list[Node], seen: Iterator[Pod]) -> str:
    """Make the default policy learn from some pods; returns its choice."""
    asks = Counter(asks_of(islice(seen, SEEN), engine.ledger, engine.accepting))
    tables = learned(engine.tables, asks, Stock.of(nodes))
    if tables is None:
        return "nothing learnt"
    engine.handle(TablesChanged(tables))
    return "prices" if tables.prices is not None else str(tables.stand_in)


def told(name: str, figures: list[float]) -> str:
    values: NDArray[np.float64] = np.percentile(figures, QUANTILES)
    parts = [f"p{q:g} {value:,.0f}" for q, value in zip(QUANTILES, values.tolist(), strict=True)]
    return f"{name} {', '.join(parts)} us"


def shown(name: str, engine: Engine, held: list[str], times: Times) -> None:
    """Print one policy's figures."""
    print(f"{name}: {len(held)} pods, {used(engine):.0f} % taken, {times.refused} refused")
    print(f"  {told('processor', times.processor)}")
    print(f"  {told('wall     ', times.wall)}", flush=True)


def memory(nodes: list[Node], kinds: list[Pod], policy: Policy, percent: float) -> float:
    """MiB that the engine adds to the nodes' own values, pods and classes included."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    engine = start(nodes, policy, accelerate=False)
    held = fill(engine, pods(kinds), percent)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / 2**20 if held else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--decisions", type=int, default=4000)
    parser.add_argument("--fill", type=float, default=80.0)
    parser.add_argument("--policies", nargs="*", default=["partage", "binpack", "bestfit"])
    parser.add_argument("--plain", action="store_true", help="NumPy alone, even beside numba")
    options = parser.parse_args()
    accelerate = not options.plain and find_spec("numba") is not None
    nodes, kinds = cluster(options.nodes)
    way = "compiled loops" if accelerate else "NumPy alone"
    print(f"{options.nodes} nodes x 8 cards, {len(kinds)} classes, {way}", flush=True)
    for name in options.policies:
        policy = Policy.parse(name)
        with collecting_later():
            engine = start(nodes, policy, accelerate=accelerate)
            coming = pods(kinds)
            held = fill(engine, coming, options.fill)
            shown(name, engine, held, decide(engine, coming, held, options.decisions))
            if policy.node is Strategy.PARTAGE:
                chose = learn(engine, nodes, pods(kinds, 3))
                decide(engine, coming, held, len(kinds) * 10)  # makes classes again, once
                times = decide(engine, coming, held, options.decisions)
                shown(f"{name}, learnt ({chose})", engine, held, times)
    mib = memory(nodes, kinds, Policy.parse(options.policies[0]), options.fill)
    print(f"state of the engine, {options.policies[0]}: {mib:.0f} MiB beside the nodes themselves")


if __name__ == "__main__":
    main()
