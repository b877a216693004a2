"""`make failover`: kill the leader again and again under load, and say where the seconds go.

Three instances of the command, pods at a steady rate, and a leader that is killed without warning.
Of each kill it tells when another held the Lease, when that one served, and when the next pod was
bound, in seconds from the kill; the invariants are looked at at every change and at the end. It
fails where the next Binding came later than promised: Lease, time-out of a Binding and 3 s.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bed import Bed, bed, node, until
from churn import SHAPES, Churn
from verdict import failover_failed, gap_promised

_SETTLED = 5.0
"""Seconds with a leader before the next one is killed; up to a retry more, by chance."""


def arguments() -> argparse.Namespace:
    """What may be set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--rate", type=float, default=5.0, help="pods a second")
    parser.add_argument("--seed", type=int, default=0, help="of pods and moments")
    parser.add_argument("--nodes", type=int, default=8, help="of eight cards each")
    parser.add_argument("--lease", type=int, default=15, help="seconds of the Lease")
    parser.add_argument("--seam", choices=["extender", "plugin"], default="plugin")
    parser.add_argument("--output", type=Path, help="folder for the instances' logs")
    return parser.parse_args()


async def killed(cluster: Bed) -> dict[str, float]:
    """Kill the leader, wait for the next Binding, and start the instance again."""
    old = cluster.leader()
    bound = cluster.watchman.bound
    before, began = set(bound), time.monotonic()
    await cluster.spawned[old].kill()
    await until(lambda: cluster.leader() not in {"", old}, "another holds the Lease")
    took = time.monotonic() - began
    new = cluster.spawned[cluster.leader()]
    led = len(new.said("leading;"))
    # What was bound by a request that the old one had sent is no sign of the new one.
    before |= set(bound)
    await until(lambda: len(new.said("leading;")) > led, "the new leader serves")
    served = time.monotonic() - began
    await until(lambda: set(bound) - before, "a pod is bound")
    first = time.monotonic() - began
    await cluster.spawned[old].start()
    return {"lease": took, "serves": served, "binding": first}


async def run(cluster: Bed, given: argparse.Namespace) -> dict[str, Any]:
    """All kills, and what came of them."""
    chance = random.Random(given.seed)  # noqa: S311 # repeatable
    shapes = {n: s for n, s in SHAPES.items() if n not in {"hami mig", "metax"}}
    churn = Churn(cluster, given.rate, chance, shapes=shapes)
    coming = asyncio.create_task(churn.run(float("inf")))
    rows = []
    try:
        for _ in range(given.kills):
            await asyncio.sleep(_SETTLED + chance.uniform(0, 2))
            row = await killed(cluster)
            rows.append(row)
            say(" ".join(f"{name} {seconds:.1f} s" for name, seconds in row.items()))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    await churn.emptied()
    await cluster.sound()
    return {
        "kills": len(rows),
        "pods": churn.made,
        "bound": churn.bound,
        "seam": given.seam,
        "promised": gap_promised(given.lease, given.seam),
        "mean": {n: round(statistics.mean(r[n] for r in rows), 1) for n in rows[0]},
        "worst": {n: round(max(r[n] for r in rows), 1) for n in rows[0]},
        "tracebacks": [row for one in cluster.spawned.values() for row in one.tracebacks],
        "load": [round(one, 1) for one in os.getloadavg()],
    }


def say(text: str) -> None:
    """A line for the user."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def main() -> int:
    """Run, print, and say whether nothing was lost, and the promise was kept."""
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="partage-failover-") as made:
        folder = given.output or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        fleet = [node(f"n{number}", 8) for number in range(given.nodes)]
        async with bed(*fleet, folder=folder, seam=given.seam) as cluster:
            for number in range(3):
                await cluster.spawn(f"instance-{number}", lease=given.lease)
            await cluster.led()
            summary = await run(cluster, given)
    wrong = summary["failed"] = failover_failed(summary, given.lease, given.kills)
    say(json.dumps(summary, indent=2))
    for sentence in wrong:
        say(f"FAILED: {sentence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
