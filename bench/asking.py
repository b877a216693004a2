"""Cost of commands that read clusters: `top`, `inspect`, `explain` (scheduler service), `doctor`, `snapshot` (API).

    .venv/bin/python bench/asking.py [NODES...]

Starts `partage up` with the given numbers of nodes of eight cards (default 1,000 and 5,000) and three pods for every
ten nodes, and runs each command against it as a program of its own. Prints, for each command, wall seconds and
seconds of processor time of the program and of the process that serves it, each the median of three runs, and the
number of lines of output. `--version` is the cost of starting Python and the command.
"""

import asyncio
import os
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.extend(
    str(Path(__file__).parents[1] / "tests" / name) for name in ("embedded", "daemon", "tools")
)

from up_world import PODS, World, node, pod, running

PROGRAM = Path(sys.executable).with_name("partage")
COMMANDS = (
    "--version",
    "top",
    "top nodes",
    "top pods",
    "top cards",
    "inspect n7",
    "inspect",
    "explain p0",
    "explain waits",
    "doctor",
    "snapshot",
)
OF_THE_API = ("doctor", "snapshot")
RUNS = 3
ENVIRON = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
"""Programs may keep their byte code, as in an installation."""


async def main(sizes: list[int]) -> None:
    """Measure and print."""
    for nodes in sizes:
        print(f"{nodes} nodes x 8 cards, load average {os.getloadavg()[0]:.1f}", flush=True)
        async with running([node(f"n{i}", cards=8) for i in range(nodes)]) as world:
            half = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}
            for i in range(nodes * 3 // 10):
                await world.create(PODS, pod(f"p{i}", half))
            large = {"koordinator.sh/gpu-core": 1600, "koordinator.sh/gpu-memory-ratio": 1600}
            await world.create(PODS, pod("waits", large))
            await asyncio.sleep(5)
            for command in COMMANDS:
                await measured(world, command)


async def measured(world: World, command: str) -> None:
    """Measure one command several times, and print its figures."""
    where = world.cluster.addresses
    asked = ["--scheduler", where.dashboard.rstrip("/")]
    if command in OF_THE_API:
        asked = ["--kubeconfig", where.kubeconfig]
    words = [*command.split(), *([] if command.startswith("--") else asked)]
    told: list[tuple[float, float, float]] = []
    lines = 0
    for _ in range(RUNS):
        await asyncio.sleep(1.1)  # an overview is kept for a second
        mine, others, began = time.process_time(), _children(), time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=ENVIRON,
        )
        output, _ = await process.communicate()
        wall = time.perf_counter() - began
        told.append((wall, _children() - others, time.process_time() - mine))
        lines = output.count(b"\n")
    wall, program, service = (statistics.median(one) for one in zip(*told, strict=True))
    print(
        f"{command:16} {wall:6.2f} s by the clock, {program:6.2f} s + {service:5.2f} s served, {lines:6} lines",
        flush=True,
    )


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    asyncio.run(main([int(size) for size in sys.argv[1:]] or [1000, 5000]))
