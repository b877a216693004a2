"""Growth of the cost of one decision with the cluster, from 100 to 20,000 nodes of eight cards.

The workload is that of `bench/decision.py`: pods of four protocols arrive, random ones end. Prints, for each size,
the median and the 99th percentile of the processor time, and the exponent of the power law that fits the medians
best. `--plot FILE` draws them beside linear growth (needs the extra `plot`).

    python bench/scaling.py [--sizes 100 1000 20000] [--decisions 1500] [--fill 60] [--plot FILE]
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from decision import cluster, decide, fill, pods, start
from partage.daemon.gc_tuning import collecting_later
from partage.model.policy import Policy

SIZES = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)

Points = list[tuple[int, float, float]]


def measure(options: argparse.Namespace) -> Points:
    """Nodes, median and 99th percentile in microseconds of processor time, for each size."""
    nodes, kinds = cluster(max(options.sizes))
    accelerate = not options.plain and find_spec("numba") is not None
    points: Points = []
    for size in sorted(options.sizes):
        with collecting_later():
            engine = start(nodes[:size], Policy.parse(options.policy), accelerate=accelerate)
            coming = pods(kinds)
            held = fill(engine, coming, options.fill)
            decide(engine, coming, held, 200)  # late imports do not count
            times = decide(engine, coming, held, options.decisions)
        half, most = np.percentile(times.processor, (50, 99)).tolist()
        points.append((size, half, most))
        print(f"{size:>6} nodes  p50 {half:6.1f} us  p99 {most:6.1f} us", flush=True)
    return points


def exponent(points: Points) -> tuple[float, float]:
    """Power and factor of the law that fits the medians best, by least squares of logarithms."""
    size, half = np.log([p[0] for p in points]), np.log([p[1] for p in points])
    power, factor = np.polyfit(size, half, 1).tolist()
    return power, float(np.exp(factor))


def draw(points: Points, power: float, factor: float, path: Path, title: str) -> None:
    import matplotlib as mpl  # noqa: PLC0415 # an extra

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "partage"
    from matplotlib import pyplot as plt  # noqa: PLC0415

    sizes = [p[0] for p in points]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axes.loglog(sizes, [p[1] for p in points], "o-", label="median")
    axes.loglog(sizes, [p[2] for p in points], "s--", label="99th percentile")
    fitted = [factor * size**power for size in sizes]
    axes.loglog(sizes, fitted, ":", label=f"fit of the median: nodes^{power:.2f}")
    linear = [points[0][1] * size / sizes[0] for size in sizes]
    axes.loglog(sizes, linear, color="0.7", label="were it linear")
    axes.set(xlabel="nodes of 8 cards", ylabel="microseconds a decision", title=title)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--decisions", type=int, default=1500)
    parser.add_argument("--fill", type=float, default=60.0)
    parser.add_argument("--policy", default="partage")
    parser.add_argument("--plain", action="store_true", help="NumPy alone, even beside numba")
    parser.add_argument("--plot", type=Path, help="draw the result into this file (.svg, .png)")
    options = parser.parse_args()
    points = measure(options)
    power, factor = exponent(points)
    print(f"{options.policy}: median = {factor:.1f} us * nodes^{power:.2f}")
    if options.plot is None:
        return
    if find_spec("matplotlib") is None:
        print("skipped the plot: the extra `plot` is not installed")
        return
    draw(points, power, factor, options.plot, f"One decision, policy {options.policy}")
    print(f"drawn into {options.plot}")


if __name__ == "__main__":
    main()
