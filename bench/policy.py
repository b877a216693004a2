"""Checks the default policy against its requirements, on the public openb traces.

    python bench/policy.py [--seeds 44 45 46] [--traces T …] [--modes cold history empty wrong]

Every run goes through the real engine. A file keeps results, one line a run, and a run in the file is not repeated,
so the command can be stopped and called again. Prints, for each mode, one table over the traces, means over the
seeds, and the missed requirements.

Modes: `cold` learns from the pods that arrive; `history` knows the trace's own table of pods
beforehand; `wrong` gets another trace's table; `empty` gets one pod of each of two kinds.

The traces are public and not part of this repository: PARTAGE_OPENB names their folder.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from partage.model.policy import Policy
from partage.placement.mix import Ask
from partage.sim.bound import PLACED, ceiling, ceiling_with_cpu, unrefused
from partage.sim.history import read_history
from partage.sim.metrics import KINDS, allocation_of, arrived_load, failed_by_kind, first_refused
from partage.sim.openb import Sequence as Order
from partage.sim.openb import Trace, read_sequence, read_trace
from partage.sim.replay import Run, replay

TRACES = (
    "default",
    "cpu050",
    "cpu250",
    "gpushare40",
    "gpushare100",
    "multigpu20",
    "multigpu50",
    "gpuspec10",
    "gpuspec33",
)
MODES = ("cold", "history", "empty", "wrong")
BASES = ("fgd", "first-fit")
PLACED_AT = {"gpushare80": 0.85, "gpushare100": 0.85}
"""By trace, the load up to which every pod is placed, if it is not 90 %; see docs/performance.md."""
ANOTHER = {"default": "gpushare100"}
"""By trace, the trace whose history the mode `wrong` uses; `default` for the others."""
ROOT = Path(__file__).resolve().parents[1]
LEVELS = ("100", "130")
END = 130.0

Result = dict[str, Any]
Key = tuple[str, int, str]


def folder() -> Path:
    """The folder of the traces."""
    return Path(os.environ.get("PARTAGE_OPENB") or ROOT / "../shared/data/openb").resolve()


def told(mode: str, data: Path, trace: str) -> Mapping[Ask, int]:
    """The history that a run knows at its start."""
    if mode == "history":
        return read_history(data / f"pods_{trace}.csv")
    if mode == "wrong":
        return read_history(data / f"pods_{ANOTHER.get(trace, 'default')}.csv")
    if mode == "empty":
        return {Ask(4000, 8192): 1, Ask(4000, 8192, 1, 1000): 1}
    return {}


def measured(run: Run) -> Result:
    """The figures of a run for the file."""
    loads, allocated = np.round(arrived_load(run)), allocation_of(run)
    allocation = {
        level: float(np.round(allocated[loads == int(level)].mean(), 2)) for level in LEVELS
    }
    kinds = [pod.kind for pod in run.arrived]
    return {
        "allocation": allocation,
        "failed": failed_by_kind(run),
        "came": {kind: kinds.count(kind) for kind in KINDS},
        "first_refused": first_refused(run, "many-cards"),
        "chosen": run.tables_chosen,
        "bound_with_cpu": ceiling_with_cpu(run.trace, run.sequence, unrefused(run)),
        "pods": len(kinds),
        "seconds": round(run.cpu_seconds, 3),
        "tables_seconds": round(run.tables_cpu_seconds, 3),
    }


@dataclass(frozen=True)
class Bench:
    """The folders of traces and results."""

    data: Path
    results: Path

    def known(self) -> dict[Key, Result]:
        """Results of earlier calls."""
        if not self.results.exists():
            return {}
        lines = self.results.read_text(encoding="utf-8").splitlines()
        return {(x["trace"], x["seed"], x["mode"]): x for x in map(json.loads, lines)}

    def run(self, traces: Sequence[str], seeds: Sequence[int], modes: Sequence[str]) -> None:
        """Do the missing runs one after another."""
        done = self.known()
        wanted = [(t, s, m) for t in traces for m in (*BASES, *modes) for s in seeds]
        missing = [key for key in wanted if key not in done]
        for number, (name, seed, mode) in enumerate(missing, 1):
            trace = read_trace(self.data, name)
            order = read_sequence(self.data / "sequences.npz", trace, seed)
            start = perf_counter()
            result = self.one(trace, order, mode)
            line = {"trace": name, "seed": seed, "mode": mode, **result}
            with self.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            took = perf_counter() - start
            print(
                f"{number}/{len(missing)} {name} {seed} {mode}: {took:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    def one(self, trace: Trace, order: Order, mode: str) -> Result:
        """Do one run; the result of FGD includes the bound."""
        if mode in BASES:
            found = measured(replay(trace, order, Policy.parse(mode)))
            if mode == "fgd":
                found["bound"] = ceiling(trace, order, PLACED_AT.get(trace.name, PLACED))
            return found
        history = told(mode, self.data, trace.name)
        return measured(replay(trace, order, Policy.parse("partage"), history=history))


@dataclass(frozen=True)
class Row:
    """The results of one trace in one mode, as means over seeds.

    Attributes:
        closed, with_cpu: part of the gap from FGD to the bounds that is closed, in percent.
    """

    trace: str
    mine: tuple[float, float]
    fgd: tuple[float, float]
    first: tuple[float, float]
    closed: float
    with_cpu: float
    pods: tuple[float, ...]
    excess: tuple[float, ...]
    refused: tuple[float, float]

    @property
    def missed(self) -> list[str]:
        """The missed requirements."""
        result = [
            f"allocation at {level} %"
            for level, mine, fgd, first in zip(
                LEVELS, self.mine, self.fgd, self.first, strict=True
            )
            if mine <= max(fgd, first)
        ]
        result += [k for k, share in zip(KINDS, self.excess, strict=True) if share > 1.0]
        if self.refused[0] < self.refused[1] - 5.0:
            result.append("first refusal")
        return result

    def __str__(self) -> str:
        """A row of a table in Markdown."""
        cells = [
            self.trace,
            *(f"{a:.2f} / {b:.2f}" for a, b in (self.mine, self.fgd, self.first)),
            f"{self.closed:.0f} / {self.with_cpu:.0f} %",
            " / ".join(f"{x:+.0f}" for x in self.pods),
            " / ".join(f"{x:+.2f}" for x in self.excess),
            " (".join(f"{x:.1f}" for x in self.refused) + ")",
            ", ".join(self.missed) or "-",
        ]
        return f"| {' | '.join(cells)} |"


HEADER = """
| trace | partage | FGD | first-fit | gap closed / with CPU | failures more than FGD | in % of the kind | first refusal (FGD) | not met |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def row(name: str, seeds: Sequence[int], mode: str, done: Mapping[Key, Result]) -> Row | None:
    """The row of one trace; None if a run is missing."""
    if any((name, s, m) not in done for s in seeds for m in (mode, *BASES)):
        return None
    mine, fgd, first = ([done[name, s, m] for s in seeds] for m in (mode, *BASES))

    def level(runs: list[Result]) -> tuple[float, float]:
        low, high = (mean([r["allocation"][x] for r in runs]) for x in LEVELS)
        return low, high

    def failed(runs: list[Result], kind: str) -> float:
        return mean([r["failed"][kind] for r in runs])

    def refused(runs: list[Result]) -> float:
        return mean([END if r["first_refused"] is None else r["first_refused"] for r in runs])

    bound = mean([r["bound"] for r in fgd])
    both = zip(mine, fgd, strict=True)
    narrow = mean([max(r["bound_with_cpu"] for r in runs) for runs in both])
    end, base = level(mine)[1], level(fgd)[1]
    pods = tuple(failed(mine, kind) - failed(fgd, kind) for kind in KINDS)
    came = [max(1.0, mean([r["came"][kind] for r in fgd])) for kind in KINDS]
    return Row(
        name,
        level(mine),
        level(fgd),
        level(first),
        100.0 * (end - base) / (bound - base),
        100.0 * (end - base) / (narrow - base),
        pods,
        tuple(100.0 * p / c for p, c in zip(pods, came, strict=True)),
        (refused(mine), refused(fgd)),
    )


def tables(
    traces: Sequence[str], seeds: Sequence[int], modes: Sequence[str], done: Mapping[Key, Result]
) -> Iterator[str]:
    """The requirement tables, line by line."""
    for mode in modes:
        rows = [found for t in traces if (found := row(t, seeds, mode, done)) is not None]
        if not rows:
            continue
        mine = [done[r.trace, s, mode] for r in rows for s in seeds]
        yield f"\n### {mode}, seeds {', '.join(map(str, seeds))}\n{HEADER}"
        yield from map(str, rows)
        missed = sum(len(r.missed) for r in rows)
        pods = sum(r["pods"] for r in mine)
        yield (
            f"\nMean gap closed {mean([r.closed for r in rows]):.1f} % over {len(rows)} traces; "
            f"{missed} requirements not met. {pods / sum(r['seconds'] for r in mine):,.0f} pods a "
            f"processor second, tables {mean([r['tables_seconds'] for r in mine]):.1f} s a run."
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", nargs="*", default=list(TRACES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[44, 45, 46])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=["cold", "history"])
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "policy.jsonl")
    parser.add_argument("--print-only", action="store_true", help="do no more runs")
    arguments = parser.parse_args()
    data = folder()
    if not (data / "nodes.csv").exists():
        print(
            f"skipped: no openb traces in {data}. They are public (the FGD paper's simulator, "
            "hkust-adsl/kubernetes-scheduler-simulator); set PARTAGE_OPENB to their folder."
        )
        return 0
    bench = Bench(data, arguments.results)
    if not arguments.print_only:
        bench.results.parent.mkdir(parents=True, exist_ok=True)
        bench.run(arguments.traces, arguments.seeds, arguments.modes)
    for line in tables(arguments.traces, arguments.seeds, arguments.modes, bench.known()):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
