"""Cost of a record for a decision: the same decisions with a journal and without, in turn.

The engine holds and binds pods on NODES nodes; for each bound pod a random one leaves. The comparison counts only the
processor time of the engine's thread, because another thread writes. Encoding is timed separately for each entry,
because it competes for the interpreter.

    python bench/record.py [--nodes 1000] [--decisions 3000] [--rounds 5]
"""

import argparse
import random
import statistics
import time

from decision import cluster, pods
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.scheduler.engine import Engine
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement, PodGone
from partage.scheduler.journal import Entry, JournalledEngine
from partage.wire.journal import encode_entry


def decide(engine: Engine, nodes: list[Node], kinds: list[Pod], count: int) -> float:
    """The processor time of the given number of decisions, in seconds."""
    for node in nodes:
        engine.handle(NodeSeen(node))
    chance = random.Random(1)  # noqa: S311 # the same choices every time
    alive: list[str] = []
    stream = pods(kinds)
    spent = 0.0
    for _ in range(count):
        pod = next(stream)
        started = time.thread_time()
        decision = engine.hold(pod)
        if isinstance(decision, Placement):
            engine.place_on(pod, decision.allocation.node)
            engine.handle(BindSucceeded(pod.uid))
            alive.append(pod.uid)
        if len(alive) > len(nodes):
            engine.handle(PodGone(alive.pop(chance.randrange(len(alive)))))
        spent += time.thread_time() - started
    return spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--decisions", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    nodes, kinds = cluster(given.nodes)
    entries: list[Entry] = []
    plain: list[float] = []
    ratios: list[float] = []
    for _ in range(given.rounds):
        entries.clear()
        without = decide(Engine(Policy()), nodes, kinds, given.decisions)
        kept = JournalledEngine(Policy(), lambda _engine, entry: entries.append(entry))
        plain.append(without / given.decisions * 1e6)
        ratios.append(decide(kept, nodes, kinds, given.decisions) / without)
    started = time.thread_time()
    size = sum(len(encode_entry("bench/1", entry)) for entry in entries)
    spent = time.thread_time() - started
    print(f"decision without a record: {statistics.median(plain):.1f} us (median of rounds)")
    print(
        f"with one / without: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )
    print(
        f"beside it: {spent / len(entries) * 1e6:.1f} us and {size / len(entries):.0f} bytes an entry, "
        f"{len(entries) / given.decisions:.1f} entries a decision"
    )


if __name__ == "__main__":
    main()
