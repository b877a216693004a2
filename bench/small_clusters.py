"""Compares the default policy with every plain one on small, mixed, changing clusters.

    python bench/small_clusters.py [--samples 240] [--half report] [--modes fill ends]

Every run goes through the real engine; the default policy learns from the pods that have arrived. FGD knows the
sample's own mix beforehand, as published. A file keeps results, one line a run, and a run in the file is not repeated,
so the command can be stopped and called again. A changed policy needs another file. `--half tune` is for choosing
constants, `report` for publishing.

Modes: `fill` adds pods up to 130 % load, and none leaves; `ends` adds and ends them at 80 to
120 % offered load. Allocation counts, for each pod, the larger of its share of compute and memory.

The openb tables are public and not part of this repository: PARTAGE_OPENB names their folder.
Without them, the made-up samples remain.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from partage.model.policy import Policy
from partage.sim.bound import ceiling
from partage.sim.metrics import KINDS, failed_by_kind, waiting
from partage.sim.replay import Run, replay
from policy import ROOT, folder
from small_samples import CLASSES, Sample, for_tuning, sample, size_of

MINE = "partage"
PLAIN = (
    "binpack",
    "spread",
    "first-fit",
    "bestfit",
    "fgd",
    "dotprod",
    "gpupacking",
    "gpuclustering",
)
MODES = ("fill", "ends")
MANY = 40  # the fewest pods of a kind whose waits count

Result = dict[str, Any]
Key = tuple[int, str, str]


def allocated(run: Run) -> dict[str, float]:
    """Allocated cards in percent of all, when 100 % load has arrived and at the end."""
    trace = run.trace
    asked = np.array([size_of(trace, pod) for pod in run.arrived]) * 1e5 / trace.capacity
    used = np.cumsum(np.where(run.node >= 0, asked, 0.0))
    full = int(np.searchsorted(np.cumsum(asked), 100.0))
    return {"100": float(used[min(full, used.size - 1)]), "130": float(used[-1])}


def ended(run: Run) -> Result:
    """Waits in hours and idle cards in percent, of a run with departures.

    A pod that never got a place waits until the last arrival.
    """
    start = np.array([life.start for life in run.lives])
    wait = np.where(np.isnan(run.started), start.max() - start, run.started - start) / 3600
    kinds = np.array([pod.kind for pod in run.arrived])
    found = waiting(run)
    return {
        "wait": float(wait.mean()),
        "by_kind": {k: float(wait[kinds == k].mean()) for k in KINDS if (kinds == k).any()},
        "came": {k: int((kinds == k).sum()) for k in KINDS},
        "idle": 100000.0 * found.idle_mean / run.trace.capacity,
        "at_once": found.at_once,
    }


def one(what: Sample, policy: str, mode: str) -> Result:
    """The results of one run."""
    lives = what.lives if mode == "ends" else None
    run = replay(what.trace, what.sequence, Policy.parse(policy), lives=lives)
    found = ended(run) if mode == "ends" else {**allocated(run), "failed": failed_by_kind(run)}
    if policy == MINE:
        found |= {"chosen": run.tables_chosen, "tables_seconds": round(run.tables_cpu_seconds, 3)}
    return found | {"decisions_seconds": round(run.cpu_seconds, 4), "pods": len(run.lives)}


def about(what: Sample) -> Result:
    """The properties of a sample for the file."""
    trace = what.trace
    result: Result = {
        "size": what.size,
        "nodes": len(trace.nodes),
        "source": what.source,
        "order": what.order,
        "offered": what.offered,
        "median_request": 0.0,
        "bound": None,
    }
    asked = [size_of(trace, trace.pods[row]) for row in what.sequence.pods]
    some = [each for each in asked if each]
    result["median_request"] = float(np.median(some)) * 1e5 / trace.capacity
    if not any(node.card_mib for node in trace.nodes):  # the bound considers compute alone
        result["bound"] = ceiling(trace, what.sequence, 0.0)
    return result


def known(path: Path) -> dict[Key, Result]:
    """Results of earlier calls; a sample's properties have the policy `sample` and an empty mode."""
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(x["sample"], x["mode"], x["policy"]): x for x in lines}


def run_missing(
    numbers: list[int], policies: list[str], modes: list[str], path: Path, data: Path | None
) -> None:
    """Do the runs that the file lacks, sample after sample."""
    done = known(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for number in numbers:
            wanted = [(number, m, p) for m in modes for p in policies]
            wanted.append((number, "", "sample"))
            missing = [key for key in wanted if key not in done]
            if not missing:
                continue
            what = sample(number, data)
            for _, mode, policy in missing:
                found = one(what, policy, mode) if mode else about(what)
                line = {"sample": number, "mode": mode, "policy": policy, **found}
                file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"sample {number}: {len(missing)} runs", file=sys.stderr, flush=True)


# --- tables and pictures -------------------------------------------------------------------------


def interval(values: list[float]) -> str:
    """Mean and half of its 95 % interval."""
    if not values:
        return "-"
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{np.mean(values):+.2f} ± {half:.2f}"


def groups(done: Mapping[Key, Result], numbers: list[int]) -> Iterator[tuple[str, list[int]]]:
    """Samples by size class, and all."""
    for row, (low, high) in enumerate(CLASSES):
        yield f"{low} to {high}", [n for n in numbers if done[n, "", "sample"]["size"] == row]
    yield "all", numbers


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def fill(done: Mapping[Key, Result], numbers: list[int], policies: list[str]) -> Iterator[str]:
    """The default's lead over each policy, and its distance from the best policy of each sample."""
    plain = [p for p in policies if p != MINE]

    def level(n: int, policy: str, at: str = "130") -> float:
        return float(done[n, "fill", policy][at])

    yield "\nAllocation at 130 % load, points that the default is ahead (paired mean, 95 %):"
    named = list(groups(done, numbers))
    head = ["nodes", "samples", *plain, "best of them"]
    rows = []
    for name, mine in named:
        ahead = {p: [level(n, MINE) - level(n, p) for n in mine] for p in plain}
        best = [min(ahead[p][i] for p in plain) for i in range(len(mine))]
        rows.append([name, str(len(mine)), *(interval(ahead[p]) for p in plain), interval(best)])
    yield from table(head, rows)
    behind = {n: max(level(n, p) for p in plain) - level(n, MINE) for n in numbers}
    many = sum(b > 0.5 for b in behind.values())
    allowed = {n: max(2.0, done[n, "", "sample"]["median_request"]) for n in numbers}
    beyond = [n for n in numbers if behind[n] > allowed[n] + 1e-9]
    yield (
        f"\nMore than 0.5 points behind the best of the sample in {many} of {len(numbers)}; "
        f"behind by more than 2 points and a median request in {len(beyond)}: {beyond}."
    )
    yield "\nAllocation behind the bound on compute alone, points (samples that have one):"
    rows = [
        [name, str(many), *(f"{gap[p]:.2f}" for p in policies)]
        for name, many, gap in behind_bound(done, numbers, policies)
    ]
    yield from table(["nodes", "samples", *policies], rows)


def behind_bound(
    done: Mapping[Key, Result], numbers: list[int], policies: list[str]
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """By size class and for all: the number of samples with a bound, and each policy's mean distance from it."""
    for name, mine in groups(done, numbers):
        some = [n for n in mine if done[n, "", "sample"]["bound"] is not None]
        gap = {
            p: [done[n, "", "sample"]["bound"] - done[n, "fill", p]["130"] for n in some]
            for p in policies
        }
        yield name, len(some), {p: float(np.mean(gap[p])) for p in policies}


def draw(path: Path, done: Mapping[Key, Result], numbers: list[int], policies: list[str]) -> None:
    """Draw each policy's distance from the bound, by the size of the cluster."""
    from matplotlib.figure import Figure  # noqa: PLC0415 # an extra

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.subplots(1, 1)
    rows = list(behind_bound(done, numbers, policies))[:-1]
    for policy in policies:
        mine = policy == MINE
        axes.plot(
            [f"{name} nodes\n({many} samples)" for name, many, _ in rows],
            [gap[policy] for _, _, gap in rows],
            marker="o" if mine else ".",
            linewidth=2.5 if mine else 1.0,
            label=policy,
        )
    axes.set_ylim(bottom=0.0)
    axes.set_ylabel("GPU allocation behind the bound, points")
    axes.set_title("130 % load, no departures, samples not used for tuning")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def ends(done: Mapping[Key, Result], numbers: list[int], policies: list[str]) -> Iterator[str]:
    """Tables of waits and idle cards, of the default beside the plain policies."""
    offered = sorted({done[n, "", "sample"]["offered"] for n in numbers})
    for what, unit in (
        ("wait", "Mean wait, hours of a mean life of one"),
        ("idle", "Idle cards, percent of all"),
    ):
        rows = []
        for load in [*offered, None]:
            mine = [n for n in numbers if load in (None, done[n, "", "sample"]["offered"])]
            name = "all" if load is None else f"{load:.0%}"
            means = [np.mean([done[n, "ends", p][what] for n in mine]) for p in policies]
            rows.append([name, str(len(mine)), *(f"{mean:.3f}" for mean in means)])
        yield f"\n{unit}:"
        yield from table(["offered", "samples", *policies], rows)
    if "fgd" in policies and MINE in policies:
        rows = []
        for kind in KINDS:
            mine = [n for n in numbers if done[n, "ends", "fgd"]["came"][kind] >= MANY]
            waits = [
                float(np.mean([done[n, "ends", p]["by_kind"][kind] for n in mine] or [0.0]))
                for p in (MINE, "fgd")
            ]
            more = f"{100 * (waits[0] / waits[1] - 1):+.0f} %" if waits[1] else "-"
            rows.append([kind, str(len(mine)), *(f"{wait:.3f}" for wait in waits), more])
        yield "\nMean wait by kind of pod, hours:"
        yield from table(["kind", "samples", MINE, "fgd", "difference"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=480, help="numbers below this one")
    parser.add_argument("--half", choices=("tune", "report", "both"), default="report")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--policies", nargs="*", default=[MINE, *PLAIN])
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "small_clusters.jsonl")
    parser.add_argument("--plot", type=Path, help="picture of `fill`, by size of the cluster")
    parser.add_argument("--print-only", action="store_true", help="do no more runs")
    arguments = parser.parse_args()
    data = folder()
    there = data if (data / "nodes.csv").exists() else None
    if there is None:
        print(f"no openb tables in {data}: only samples that are made up; PARTAGE_OPENB names it")
    half = arguments.half
    numbers = [n for n in range(arguments.samples) if half in ("both", _half(n))]
    if not arguments.print_only:
        run_missing(numbers, arguments.policies, arguments.modes, arguments.results, there)
    done = known(arguments.results)
    for mode, tell in (("fill", fill), ("ends", ends)):
        keys = [(mode, policy) for policy in arguments.policies]
        whole = [n for n in numbers if all((n, *key) in done for key in (*keys, ("", "sample")))]
        if mode in arguments.modes and whole and MINE in arguments.policies:
            print(f"\n### {mode}: {len(whole)} samples, {half}")
            for line in tell(done, whole, arguments.policies):
                print(line)
            if arguments.plot and mode == "fill":
                draw(arguments.plot, done, whole, arguments.policies)
    return 0


def _half(number: int) -> str:
    return "tune" if for_tuning(number) else "report"


if __name__ == "__main__":
    sys.exit(main())
