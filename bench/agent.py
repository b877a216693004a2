"""Cost of the idle node agent, and its time until ready.

    .venv/bin/python bench/agent.py [--seconds 60]

Needs root and `tests/runtime/fetch`. The agent runs as a process beside a genuine containerd and a stand-in for the
kubelet that takes its device plugins. The agent is ready when the runtime asks it and the kubelet knows its units.
Other work of the machine affects the time until ready, but not the processor time.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/runtime"), str(ROOT / "tests/tools")]

import containerd  # noqa: E402
from agent_process import Agent  # noqa: E402
from records import NODE  # noqa: E402

from fakes.kubelet import fake_kubelet  # noqa: E402

STARTS = 5
SETTLE = 5.0
_TICK = os.sysconf("SC_CLK_TCK")


def _processor(agent: Agent) -> float:
    """Seconds of processor time that the agent has used."""
    assert agent.popen is not None  # noqa: S101 # it runs
    fields = Path(f"/proc/{agent.popen.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _memory(agent: Agent) -> float:
    """The agent's resident memory in MB."""
    assert agent.popen is not None  # noqa: S101 # it runs
    lines = Path(f"/proc/{agent.popen.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1000


def _measure(generation: str, folder: Path, seconds: float) -> dict[str, object]:
    starts: list[float] = []
    worked: list[float] = []
    with containerd.running(generation, folder / "runtime") as (runtime, _client):
        agent = Agent(runtime, folder / "agent", NODE, ("--kubelet-dir", folder / "k"))
        agent.folder.mkdir()
        for number in range(STARTS):
            begun = time.perf_counter()
            agent.start()
            agent.until('partage_agent_kubelet_registered{resource="nvidia.com/gpu"}', 1)
            starts.append(time.perf_counter() - begun)
            worked.append(_processor(agent))
            if number < STARTS - 1:
                agent.stop()
        time.sleep(SETTLE)
        before, begun = _processor(agent), time.perf_counter()
        time.sleep(seconds)
        idle = (_processor(agent) - before) / (time.perf_counter() - begun)
        memory = _memory(agent)
        agent.stop()
    return {
        "containerd": generation,
        "ready_s": {"best": round(min(starts), 2), "median": round(statistics.median(starts), 2)},
        "processor_until_ready_s": round(statistics.median(worked), 2),
        "idle_percent_of_a_core": round(idle * 100, 2),
        "memory_mb": round(memory, 1),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is idle (60)")
    seconds: float = parser.parse_args().seconds
    if containerd.missing():
        sys.exit(containerd.missing())
    for generation in containerd.GENERATIONS:
        with tempfile.TemporaryDirectory(prefix="bench") as name:
            folder = Path(name)
            (folder / "runtime").mkdir()
            up, down = threading.Event(), threading.Event()

            async def serve(
                folder: Path = folder, up: threading.Event = up, down: threading.Event = down
            ) -> None:
                async with fake_kubelet(folder / "k"):
                    up.set()
                    await asyncio.to_thread(down.wait)

            kubelet = threading.Thread(target=lambda serve=serve: asyncio.run(serve()))
            kubelet.start()
            up.wait()
            try:
                print(json.dumps(_measure(generation, folder, seconds)), flush=True)
            finally:
                down.set()
                kubelet.join()


if __name__ == "__main__":
    main()
