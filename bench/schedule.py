"""Time and memory of `partage schedule` on a large cluster, start to end.

The input has 5,000 nodes of 8 cards and 1,000 pods of four protocols, as one JSON `List` in a file called .yaml. The
program measures the whole process from outside: interpreter start, reading, deciding, writing. Figures are the median
of RUNS runs after one that does not count. A second pass asks for twice the pods, which separates the costs of reading
and deciding.

    python bench/schedule.py [--nodes 5000] [--pods 1000] [--runs 3]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GIB = 2**30
ROOT = Path(__file__).resolve().parent.parent


def node(index: int) -> list[dict[str, Any]]:
    name = f"node-{index:05d}"
    metax = index % 10 == 9
    vendor, model = ("metax", "C500") if metax else ("nvidia", "NVIDIA A100-SXM4-80GB")
    allocatable = {"cpu": "128", "memory": "1024Gi", "pods": "220"}
    if metax:
        allocatable["metax-tech.com/sgpu"] = "128"
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": allocatable, "capacity": allocatable},
        },
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {
                "name": name,
                "labels": {
                    "node.koordinator.sh/gpu-vendor": vendor,
                    "node.koordinator.sh/gpu-model": model,
                },
            },
            "spec": {"devices": [device(index, minor) for minor in range(8)]},
        },
    ]


def device(index: int, minor: int) -> dict[str, Any]:
    return {
        "type": "gpu",
        "id": f"GPU-{index:08x}-0000-0000-0000-{minor:012x}",
        "minor": minor,
        "health": True,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "80Gi",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        "topology": {
            "socketID": -1,
            "nodeID": minor // 4,
            "pcieID": f"pci0000:{minor // 2:02x}",
            "busID": f"0000:{minor:02x}:00.0",
        },
    }


ASKS: list[dict[str, str]] = [
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    {"koordinator.sh/gpu": "200"},
    {"kubernetes.io/gpu-core": "30", "kubernetes.io/gpu-memory": "20Gi"},
    {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "5"},
    {"tke.cloud.tencent.com/qgpu-core": "100"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "20"},
    {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "25"},
    {
        "koordinator.sh/gpu.shared": "1",
        "koordinator.sh/gpu-core": "10",
        "koordinator.sh/gpu-memory": "1Gi",
        "metax-tech.com/sgpu": "1",
    },
]


def pod(index: int) -> dict[str, Any]:
    limits = {"cpu": str(1 + index % 4), "memory": "4Gi", **ASKS[index % len(ASKS)]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{index:05d}", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]},
    }


def write(path: Path, nodes: int, pods: int) -> None:
    items = [document for index in range(nodes) for document in node(index)]
    items += [pod(index) for index in range(pods)]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def measure(path: Path) -> tuple[float, float, dict[str, Any]]:
    """Seconds, peak MiB of the process, and its output."""
    command = [sys.executable, "-m", "partage.cli.main", "schedule", str(path), "-o", "json"]
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if process.returncode not in (0, 3):
            sys.exit(f"partage schedule ended with status {process.returncode}")
        output.seek(0)
        printed = json.load(output)
    return seconds, usage.ru_maxrss / 1024, printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for pods in (options.pods, options.pods * 2):
            path = Path(folder) / f"cluster-{pods}.yaml"
            write(path, options.nodes, pods)
            runs = [measure(path) for _ in range(options.runs + 1)][1:]
            seconds = [run[0] for run in runs]
            placed = sum(p["node"] is not None for p in runs[0][2]["pods"])
            print(
                f"{options.nodes} nodes x 8 cards, {pods} pods, "
                f"{path.stat().st_size / 2**20:.1f} MiB of JSON: "
                f"{statistics.median(seconds):.2f} s (from {min(seconds):.2f} to "
                f"{max(seconds):.2f}), peak {max(run[1] for run in runs):.0f} MiB, "
                f"{placed} placed",
                flush=True,
            )


if __name__ == "__main__":
    main()
