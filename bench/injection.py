"""Time that injection adds to the making of a container, on a genuine containerd of both generations.

    .venv/bin/python bench/injection.py [CONTAINERS]

Needs root and `tests/runtime/fetch`. The program makes containers with the agent's plugin (with its keeper and journal)
and without any plugin. Blocks of both alternate, so a loaded machine affects both alike. It also prints the time of the
decision alone, in the agent.
"""

import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/runtime"), str(ROOT / "tests/tools")]

import containerd  # noqa: E402
import cri  # noqa: E402
from agent_process import Agent  # noqa: E402
from records import NODE, SHARE, record  # noqa: E402

BLOCK = 20


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def _block(client: cri.Cri, uid: str, into: list[float]) -> None:
    pod = client.run_pod("bench", uid, record(uid, SHARE))
    for _ in range(BLOCK):
        began = time.perf_counter()
        made = client.create(pod)
        into.append((time.perf_counter() - began) * 1000)
        client.remove_container(made)
    client.remove(pod)


@contextlib.contextmanager
def _served(agent: Agent) -> Iterator[None]:
    agent.start()
    try:
        yield
    finally:
        agent.stop()


def _measure(generation: str, blocks: int) -> None:
    without: list[float] = []
    served: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="partage-") as name,
        containerd.running(generation, Path(name)) as (runtime, client),
    ):
        agent = Agent(runtime, Path(name) / "agent", NODE)
        library = agent.folder / "vgpu/libvgpu.so"
        library.parent.mkdir(parents=True)
        library.write_text("the library\n")
        agent.options = ("--isolation", "hami-core", "--isolation-library", library)
        for number in range(blocks):
            _block(client, f"without-{number}", without)
            with _served(agent):
                _block(client, f"served-{number}", served)
                count = agent.metric("partage_agent_decision_seconds_count")
                seconds = agent.metric("partage_agent_decision_seconds_sum")
                memory = _status(agent, "VmRSS")
    print(
        json.dumps(
            {
                "containerd": generation,
                "containers": len(served),
                "without_ms": {
                    "p50": round(statistics.median(without), 2),
                    "p99": round(_percentile(without, 0.99), 2),
                },
                "served_ms": {
                    "p50": round(statistics.median(served), 2),
                    "p99": round(_percentile(served, 0.99), 2),
                },
                "decision_ms": round(seconds / count * 1000, 2),
                "agent_rss_mb": memory,
            }
        )
    )


def _status(agent: Agent, key: str) -> int:
    assert agent.popen is not None  # noqa: S101 # it is served
    for line in Path(f"/proc/{agent.popen.pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) // 1024
    return 0


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    if containerd.missing():
        sys.exit(containerd.missing())
    for generation in containerd.GENERATIONS:
        _measure(generation, -(-count // BLOCK))


if __name__ == "__main__":
    main()
