"""The default policy's price of allocation, as a curve: CPU-only pods that fail on cpu250.

    python bench/tradeoff.py [--seeds 44 45 46] [--plot docs/pictures/tradeoff.svg]

The limit in the last rehearsal is the number of additional pods of a kind that may fail, compared with FGD. For each
of several limits, the program chooses prices from the trace's own history and replays the trace through the real
engine. It prints a table in Markdown and draws the curve (extra `plot`).
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from partage.placement.selection import Rules
from policy import Bench, folder, row

TRACE = "cpu250"
LIMITS = (0.0, 0.2, 0.4, 1.0, 1.5, 2.0, 3.0, 5.0)
MODE = "history"


def curve(results: Path, seeds: list[int]) -> list[tuple[float, float, float, float, float]]:
    """By limit: the gain over FGD at 100 and 130 %, the gap closed, and the CPU-only excess in percent."""
    points = []
    base = Bench(folder(), results / "base.jsonl", Rules())
    base.run([TRACE], seeds, [])
    for limit in LIMITS:
        print(f"limit {limit:g}", file=sys.stderr, flush=True)
        bench = Bench(folder(), results / f"{limit}.jsonl", Rules(limit=limit))
        shutil.copy(base.results, bench.results)
        bench.run([TRACE], seeds, [MODE])
        found = row(TRACE, seeds, MODE, bench.known())
        if found is not None:
            gain = [mine - fgd for mine, fgd in zip(found.mine, found.fgd, strict=True)]
            points.append((limit, gain[0], gain[1], found.closed, found.excess[0]))
    return points


def draw(path: Path, points: list[tuple[float, float, float, float, float]]) -> None:
    """Draw the gain against the failures, one point for each limit."""
    from matplotlib.figure import Figure  # noqa: PLC0415 # an extra

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.subplots(1, 1)
    for column, label in ((1, "at 100 % load"), (2, "at 130 % load")):
        axes.plot([p[4] for p in points], [p[column] for p in points], marker="o", label=label)
    places: dict[tuple[float, float], list[str]] = {}
    for limit, _, gain, _, excess in points:
        places.setdefault((excess, gain), []).append(f"{limit:g}")
    for place, limits in places.items():
        name = f"limit {', '.join(limits)}"
        axes.annotate(name, place, textcoords="offset points", xytext=(-6, 7), ha="right")
    axes.margins(x=0.18, y=0.1)
    axes.axvline(1.0, linestyle=":", linewidth=1.0, color="grey")
    axes.set_xlabel("CPU-only pods failing more than under FGD, % of them (dotted: allowed)")
    axes.set_ylabel("GPU allocation above FGD, points")
    axes.set_title(f"{TRACE}: allocation against failures, by the limit in the last rehearsal")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="*", type=int, default=[44, 45, 46])
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    if not (folder() / "nodes.csv").exists():
        print(f"skipped: no openb traces in {folder()}; see bench/policy.py")
        return 0
    with tempfile.TemporaryDirectory() as results:
        points = curve(Path(results), arguments.seeds)
    print(
        "| limit, % of the kind | allocation gained on FGD, points | gap closed |"
        " CPU-only pods failing more than under FGD, % |\n| --- | --- | --- | --- |"
    )
    for limit, low, high, closed, excess in points:
        print(f"| {limit:g} | {low:+.2f} / {high:+.2f} | {closed:.0f} % | {excess:+.2f} |")
    if arguments.plot:
        draw(arguments.plot, points)
    return 0


if __name__ == "__main__":
    sys.exit(main())
