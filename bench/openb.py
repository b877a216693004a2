"""Replays all published openb experiments through the engine and compares every figure.

`make bench-openb` runs it; it fails if any figure differs. The traces are public and not part of
this repository: PARTAGE_OPENB names their folder.
"""

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from partage.daemon.gc_tuning import collecting_later
from partage.model.policy import Policy
from partage.sim.metrics import LEVELS, Curves, curves
from partage.sim.openb import Trace, read_sequence, read_trace
from partage.sim.replay import Run, replay

POLICIES = ("bestfit", "dotprod", "gpupacking", "gpuclustering", "fgd")
SEEDS = range(42, 47)
GOLDEN = "golden_default_seed42_{}.csv"
ROOT = Path(__file__).resolve().parents[1]

Published = dict[tuple[str, str, int], list[float]]


def folder() -> Path:
    """The folder of the traces."""
    return Path(os.environ.get("PARTAGE_OPENB") or ROOT / "../shared/data/openb").resolve()


def published(data: Path) -> Published:
    with (data / "published_allocation.csv").open(newline="", encoding="utf-8") as file:
        return {
            (row["trace"], row["policy"], int(row["seed"])): [
                float(row[f"load_{x}"]) for x in LEVELS
            ]
            for row in csv.DictReader(file)
        }


def differences(run: Run, golden: Path) -> Iterator[str]:
    """Events with another node, shared card or compute in use than the golden file."""
    used = 0
    with golden.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            event = int(row["event"])
            node, pod = int(run.node[event]), run.trace.pods[run.lives[event].row]
            used += pod.demand if node >= 0 else 0
            mine = (
                run.trace.nodes[node].name if node >= 0 else "",
                str(run.card[event]),
                str(used),
            )
            if mine != (row["node"], row["shared_gpu_index"], row["cum_used_gpu_milli"]):
                yield f"event {event}: {mine}, published {row}"


def compare(
    trace: Trace, data: Path, policy: str, expected: Published, *, plain: bool
) -> tuple[int, list[float]]:
    """The number of a trace's experiments that differ, and the pods a processor second of each."""
    wrong, rates = 0, []
    for seed in SEEDS:
        sequence = read_sequence(data / "sequences.npz", trace, seed)
        accelerate = False if plain else None
        with collecting_later():
            run = replay(trace, sequence, Policy.parse(policy), accelerate=accelerate)
        rates.append(len(run.lives) / run.cpu_seconds)
        got = list(Curves.at(curves(run).allocation).values())
        want = expected[trace.name, policy, seed]
        if got != want:
            wrong += 1
            print(f"DIFFERS {trace.name} {policy} seed {seed}: {got}, published {want}")
        if trace.name == "default" and seed == 42 and (data / GOLDEN.format(policy)).exists():
            found = list(differences(run, data / GOLDEN.format(policy)))
            print(f"golden placements of {policy}: {len(found)} of {len(run.lives)} events differ")
            for line in found[:3]:
                print(f"  {line}")
            wrong += bool(found)
    return wrong, rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", nargs="*", help="only these traces")
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--plain", action="store_true", help="NumPy alone, even beside numba")
    arguments = parser.parse_args()
    data = folder()
    if not (data / "nodes.csv").exists():
        print(
            f"skipped: no openb traces in {data}. They are public (the FGD paper's simulator, "
            "hkust-adsl/kubernetes-scheduler-simulator); set PARTAGE_OPENB to their folder."
        )
        return 0
    expected = published(data)
    names = arguments.traces or sorted({trace for trace, _, _ in expected})
    wrong = total = 0
    print(f"{'trace':<12} {'policy':<14} equal  pods/processor second (least to most)")
    for name in names:
        trace = read_trace(data, name)
        for policy in arguments.policies:
            bad, rates = compare(trace, data, policy, expected, plain=arguments.plain)
            wrong, total = wrong + bad, total + len(rates)
            equal = f"{len(rates) - bad}/{len(rates)}"
            print(
                f"{name:<12} {policy:<14} {equal:<6} {min(rates):,.0f} to {max(rates):,.0f} "
                f"(mean {np.mean(rates):,.0f})",
                flush=True,
            )
    print(f"{total - wrong} of {total} experiments equal the published figures to 0.01")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
