"""Finds the number of cards from which the default policy should learn prices: parts of openb, with and without prices.

    PARTAGE_OPENB=… python bench/parts.py [--parts 0.12 0.25 0.5] [--seeds 1 2 3] [--traces default …]

The program draws nodes at random, and pods of the trace that these nodes may host, up to 130 % load. Each row shows
GPU compute allocated at 100 % / 130 % load: by usual requests, by prices, and by FGD, which knows the trace.
"""

import argparse
import random
from collections.abc import Mapping

from openb import folder
from partage.model.policy import Policy
from partage.placement import learning
from partage.sim.openb import Trace, drawn, read_trace
from partage.sim.replay import replay
from small_clusters import allocated

_ALL = 10**9
WAYS: Mapping[str, tuple[str, int]] = {
    "usual requests": ("partage", _ALL),
    "prices": ("partage", 0),
    "FGD": ("fgd", 0),
}
"""The policy, and the number of cards up to which it counts a cluster as small."""


def part_of(trace: Trace, part: float, seed: int) -> Trace:
    """A random part of the nodes, and the pods that they may host."""
    chance = random.Random(seed)  # noqa: S311 # the draw must be repeatable
    nodes = chance.sample(trace.nodes, round(len(trace.nodes) * part))
    models = {node.model for node in nodes}
    pods = (pod for pod in trace.pods if not pod.models or models & set(pod.models.split("|")))
    return Trace(trace.name, tuple(nodes), tuple(pods))


def main() -> None:
    """Print one line for each draw."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--parts", type=float, nargs="+", default=[0.12, 0.25, 0.5])
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    traces = ["default", "cpu250", "multigpu50", "gpushare40"]
    options.add_argument("--traces", nargs="+", default=traces)
    given = options.parse_args()
    data = folder()
    if not (data / "nodes.csv").exists():
        print(f"skipped: no openb traces in {data}; set PARTAGE_OPENB to their folder")
        return
    for part in given.parts:
        for name in given.traces:
            for seed in given.seeds:
                trace = part_of(read_trace(data, name), part, seed)
                told = []
                for way, (policy, small) in WAYS.items():
                    setattr(learning, "_SMALL", small)  # noqa: B010 # Final, but this program searches its value
                    run = replay(trace, drawn(trace, seed), Policy.parse(policy))
                    found = allocated(run)
                    told.append(f"{way} {found['100']:.2f} / {found['130']:.2f}")
                cards = sum(node.cards for node in trace.nodes)
                print(f"{name:12}{seed:3}{cards:6} cards   {'   '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
