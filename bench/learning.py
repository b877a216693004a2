"""Processor time of learning prices on openb's 1,213 nodes: the whole process of the service, and its looks at pods.

    python bench/learning.py [--traces default cpu250] [--arrived 300 1000 3000 6000] [--times 3]

The pods of a trace arrive, and first-fit places them. Then the process that the service starts makes prices from them,
as it does after so many arrivals. Its time includes its start and all imports. The first process also compiles the
loops, if their machine code is not on disk yet. Then this process makes the same prices, to divide the time; the rest is
the other process's start, imports and loading of loops. At the end the service looks at pods of which none is new, as a
quiet one does every ten seconds.

The traces are public and not part of this repository: PARTAGE_OPENB names their folder.
"""

import argparse
import asyncio
import resource
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import replace
from operator import attrgetter
from time import process_time, process_time_ns
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from openb import folder
from partage.cli import entry
from partage.daemon.learning import Learning, LearningSettings
from partage.daemon.learning_process import process
from partage.extender.books import Books
from partage.kube.clock import SystemClock
from partage.model.policy import Policy
from partage.placement.learning import Due, tables_due
from partage.placement.mix import Ask, Standing, Stock
from partage.placement.prices import Learner
from partage.placement.rehearsal import Theatre
from partage.placement.tables import Tables
from partage.sim.openb import Trace, read_sequence, read_trace
from partage.sim.replay import Run, cluster, replay, template

Inputs = tuple[Counter[Ask], Stock, Standing]

PARTS: tuple[tuple[str, type, tuple[str, ...]], ...] = (
    ("linear programme", Learner, ("__init__", "prices")),
    ("worth", Learner, ("_worth",)),
    ("rehearsals", Theatre, ("prices", "fragmentation", "first_fit", "outcome")),
)
LOOKS = 100
PERIOD = LearningSettings().period


def filled(trace: Trace, arrived: int, policy: str) -> Run:
    """A replay of the first pods."""
    order = read_sequence(folder() / "sequences.npz", trace, 42)
    return replay(trace, replace(order, pods=order.pods[:arrived]), Policy.parse(policy))


def inputs(trace: Trace, arrived: int) -> Inputs:
    """The data for prices after so many arrivals."""
    run = filled(trace, arrived, "first-fit")
    placed = Counter(
        trace.pods[life.row].ask
        for life, node in zip(run.lives, run.node.tolist(), strict=True)
        if node >= 0
    )
    names = [row.name for row in trace.nodes]
    return run.counts, Stock.of(cluster(trace)), Standing.of(run.engine.ledger, names, placed)


def used_by_children() -> float:
    """Processor seconds of all ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def learnt(given: Inputs) -> tuple[float, Tables | None]:
    """Processor seconds of the service's process, and its tables."""
    # The process loads the main program again, and the service's loads little.
    cast("Any", sys.modules["__main__"]).__file__ = entry.__file__
    before = used_by_children()
    with process() as worker:
        found = worker.submit(tables_due, Due.PRICES, Tables(), *given).result()
    return used_by_children() - before, found


def divided(given: Inputs) -> dict[str, float]:
    """Processor seconds of the parts, in this process."""
    spent: Counter[str] = Counter()

    def timed(part: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **more: object) -> object:
            start = process_time_ns()
            result = call(*args, **more)
            spent[part] += process_time_ns() - start
            return result

        return counted

    with ExitStack() as stack:
        for part, of, names in PARTS:
            for name in names:
                stack.enter_context(patch.object(of, name, timed(part, getattr(of, name))))
        tables_due(Due.PRICES, Tables(), *given)
    spent["linear programme"] -= spent["worth"]  # prices include it
    return {part: nanoseconds / 1e9 for part, nanoseconds in spent.items()}


class Nothing(Executor):
    """Makes no prices."""

    def submit(self, *_call: object, **_more: object) -> Future[Any]:
        """Answer at once."""
        answer: Future[Any] = Future()
        answer.set_result(None)
        return answer


def look(trace: Trace, pods: int) -> float:
    """Processor seconds of one look at so many pods that are all known."""
    engine = filled(trace, 1, "partage").engine
    some = [template(row) for row in trace.pods]
    known = {
        str(n): SimpleNamespace(pod=replace(some[n % len(some)], uid=str(n))) for n in range(pods)
    }
    cache = SimpleNamespace(pods=known, compared={}, taken_by_others=dict)
    asking = attrgetter("pod")
    books = cast("Books", SimpleNamespace(engine=engine, cluster_cache=cache, asking=asking))
    learns = Learning(lambda: books, SystemClock(), worker=Nothing)

    async def looks() -> float:
        await learns.step()
        start = process_time()
        for _ in range(LOOKS):
            await learns.step()
        return (process_time() - start) / LOOKS

    return asyncio.run(looks())


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", nargs="+", default=["default", "cpu250"])
    parser.add_argument("--arrived", type=int, nargs="+", default=[300, 1000, 3000, 6000])
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    for name in args.traces:
        trace = read_trace(folder(), name)
        for arrived in args.arrived:
            given = inputs(trace, arrived)
            took = [learnt(given) for _ in range(args.times)]
            times = " ".join(f"{seconds:.2f}" for seconds, _ in took)
            chosen = {found.chosen if found else "nothing" for _, found in took}
            _, parts = divided(given), divided(given)  # the first one loads the loops
            parts["rest"] = min(seconds for seconds, _ in took) - sum(parts.values())
            shares = ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items())
            print(f"{name}, {arrived} pods: {times} s ({shares}), {' '.join(chosen)}", flush=True)
        used = look(trace, 10_000)
        share = 100 * used / PERIOD
        print(f"a look at 10,000 known pods: {1000 * used:.1f} ms, {share:.3f} % of a core")


if __name__ == "__main__":
    main()
