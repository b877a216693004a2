"""Rates and memory of frameworks' programs under the enforcement library, on a real NVIDIA card.

    python3 bench/frameworks.py [--device 0] [--seconds 2.5]

bench/gpu.py uses its own kernels. This one measures PyTorch (element by element, training, a captured graph) alone and
by shares of 30 and 70 %, its three allocators at a cap, and JAX, CuPy and `torch.compile` if installed. Then up to
sixteen tenants fill the card by turns and by the driver's own slices. Needs the same as bench/gpu.py, about four
minutes, and an idle card. Figures are percent of the rate alone and without the library. The output of a failing
program is printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import gpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 2**30
CAP = 8 * GIB
START = 90
"""Seconds that programs have until their first step."""
STEPS = """
import os, sys, time, torch
how, seconds, go = sys.argv[1], float(sys.argv[2]), sys.argv[3]
if how == "eager":
    x = torch.ones(64 * 2**20, device="cuda"); y = torch.ones_like(x)
    def step():
        for _ in range(10): torch.add(x, y, out=y)
elif how == "train":
    layers = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(6)]
    model = torch.nn.Sequential(*layers).cuda(); optimizer = torch.optim.Adam(model.parameters())
    given = torch.randn(4096, 1024, device="cuda")
    def step():
        optimizer.zero_grad(); model(given).square().mean().backward(); optimizer.step()
else:
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda().half()
    given = torch.randn(1024, 2048, device="cuda", dtype=torch.half); aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3): model(given)
    torch.cuda.current_stream().wait_stream(aside); graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph): model(given)
    def step():
        for _ in range(10): graph.replay()
for _ in range(3): step()
torch.cuda.synchronize(); open(f"{go}.{os.getpid()}", "w")
while not os.path.exists(go): time.sleep(0.005)
begun, count = time.monotonic(), 0
while time.monotonic() - begun < seconds:
    step(); torch.cuda.synchronize(); count += 1
    print("report", time.monotonic_ns(), count, flush=True)
"""
STAYS = """
import os, sys, time, cupy, numpy
how, seconds, go = sys.argv[1], float(sys.argv[2]), sys.argv[3]
code = cupy.RawModule(code='''
extern "C" __global__ void stay(volatile int *ended) { while (!*ended); }
extern "C" __global__ void work(float *at, int rounds) {
    float a = threadIdx.x; for (int i = 0; i < rounds; i++) a = a * 0.999f + 1e-7f;
    at[blockIdx.x * blockDim.x + threadIdx.x] = a; }''')
stay, work = code.get_function("stay"), code.get_function("work")
memory = cupy.cuda.alloc_pinned_memory(4); ended = numpy.frombuffer(memory, numpy.int32, 1)
at = cupy.empty(132 * 4 * 256, cupy.float32)
one, two = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
def step():
    ended[0] = 0
    with one: stay((1,), (1,), (numpy.uint64(memory.ptr),))
    for _ in range(8):
        with two:
            for _ in range(3): work((132 * 4,), (256,), (at, numpy.int32(20000)))
        two.synchronize()
        until = time.perf_counter() + 50e-6
        while time.perf_counter() < until: pass
    ended[0] = 1; one.synchronize()
for _ in range(3): step()
open(f"{go}.{os.getpid()}", "w")
while not os.path.exists(go): time.sleep(0.005)
begun, count = time.monotonic(), 0
while time.monotonic() - begun < seconds:
    step(); count += 1
    print("report", time.monotonic_ns(), count, flush=True)
"""
"""Launches beside a kernel that runs until the host ends it after them."""
FILL = """
import torch
shown, held = [one >> 20 for one in torch.cuda.mem_get_info()], []
try:
    while True: held.append(torch.empty(100 * 2**20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError: pass
count = len(held); held = held[: count // 2]; torch.cuda.empty_cache()
print("shown", *shown, "MiB; refused after", 100 * count, "MiB; half freed, free:", torch.cuda.mem_get_info()[0] >> 20, "MiB")
"""
OTHERS = {
    "JAX": """
import jax, jax.numpy as jnp
x = jnp.ones((4096, 4096)); print(float((x @ x).sum()) > 0, jax.devices()[0].memory_stats()["bytes_limit"] >> 20, "MiB")
""",
    "CuPy": """
import cupy
held = []
try:
    while True: held.append(cupy.ones(16 * 2**20, dtype=cupy.float32))
except cupy.cuda.memory.OutOfMemoryError: print("refused after", 64 * len(held), "MiB")
""",
    "torch.compile": """
import torch
@torch.compile(mode="reduce-overhead")
def f(a, b): return torch.relu(a @ b).sum(1)
a = torch.randn(512, 512, device="cuda")
for _ in range(6): r = f(a, a)
print(float(r.sum()) != 0)
""",
}
ALLOCATORS = {
    "default": {},
    "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}


def environment(
    card: gpu.Card, folder: Path, slot: int, limits: gpu.Limits | None
) -> dict[str, str]:
    """A tenant's environment, in which kernels load at their first use, as in frameworks."""
    where = card.environment(folder, slot, limits)
    where.pop("CUDA_MODULE_LOADING", None)
    return where


def stepped(
    card: gpu.Card, hows: str, tenants: list[gpu.Limits | None], seconds: float
) -> list[float]:
    """Steps a second of tenants that begin at the same time, over the last four fifths of the time in which all ran.

    All run the same workload, or each its own of a list joined by `+`.
    """
    with card.folder() as folder:
        go, running, each = folder / "go", [], hows.split("+")
        for slot, limits in enumerate(tenants):
            how = each[slot % len(each)]
            program = STAYS if how == "stays" else STEPS
            command = [sys.executable, "-c", program, how, str(seconds), str(go)]
            where = environment(card, folder, slot, limits)
            running.append(
                gpu.start(command, where, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
        until = time.monotonic() + START
        while len(list(folder.glob("go.*"))) < len(running) and time.monotonic() < until:
            if any(one.poll() is not None for one in running):
                break
            time.sleep(0.01)
        go.touch()
        told = [gpu.ended(one, seconds + START) for one in running]
    series = [gpu.reports(out) for out, _ in told]
    if any(len(one) < 4 for one in series):
        raise gpu.Failed(" ".join(error for _, error in told)[-300:] or "too few steps")
    begin, end = max(one[0][0] for one in series), min(one[-1][0] for one in series)
    begin += (end - begin) // 5
    return [(gpu.at(one, end) - gpu.at(one, begin)) * 1e9 / (end - begin) for one in series]


def shares(card: gpu.Card, seconds: float) -> None:
    cases: dict[str, list[gpu.Limits | None]] = {
        "memory cap": [card.limits(1000, "none", CAP)],
        "gated alone": [card.limits(1000, "burst-share", CAP)],
        "fixed-share 30": [card.limits(300, "fixed-share", CAP)],
        "fixed-share 30/70": [card.limits(core, "fixed-share", CAP) for core in (300, 700)],
        "best-effort, two": [card.limits(1000, "best-effort", CAP)] * 2,
        "no library, two": [None, None],
    }
    for how in ("eager", "train", "graph"):
        (alone,) = stepped(card, how, [None], seconds)
        for name, tenants in cases.items():
            got = stepped(card, how, tenants, seconds)
            told = " / ".join(f"{100 * one / alone:.1f}" for one in got)
            print(f"PyTorch, {how}: {name}: {told} %", flush=True)


def staying(card: gpu.Card, seconds: float) -> None:
    """Measure a program with a kernel that stays: two copies of it, and one beside PyTorch."""
    rates = {how: stepped(card, how, [None], seconds)[0] for how in ("stays", "eager")}
    cases: dict[str, list[gpu.Limits | None]] = {
        "no library": [None, None],
        "fixed-share 50/50": [card.limits(500, "fixed-share", CAP)] * 2,
        "burst-share 50/50": [card.limits(500, "burst-share", CAP)] * 2,
    }
    for hows in ("stays+stays", "stays+eager"):
        for name, tenants in cases.items():
            got = stepped(card, hows, tenants, seconds)
            each = zip(hows.split("+"), got, strict=True)
            told = " / ".join(f"{100 * rate / rates[how]:.1f}" for how, rate in each)
            print(f"{hows}: {name}: {told} %", flush=True)


def allocated(card: gpu.Card) -> None:
    programs = {f"PyTorch, {name}": (FILL, more) for name, more in ALLOCATORS.items()}
    programs |= {name: (program, {}) for name, program in OTHERS.items()}
    for name, (program, more) in programs.items():
        with card.folder() as folder:
            limits = card.limits(300, "fixed-share", CAP)
            where = {**environment(card, folder, 0, limits), **more}
            done = gpu.ran([sys.executable, "-c", program], where, START)
        print(f"{name}: {done.stdout.strip() or done.stderr.strip()[-300:]}", flush=True)


def many(card: gpu.Card) -> None:
    kind = gpu.sized(card, "matrix arithmetic", "mul", 1000, 20_000, 6)
    rate = gpu.alone(card, kind, 2)
    for policy, core, count in (
        ("fixed-share", 500, 2),
        ("fixed-share", 125, 8),
        ("fixed-share", 62, 16),
        ("burst-share", 500, 2),
        ("burst-share", 62, 16),
        ("best-effort", 1000, 2),
        ("best-effort", 1000, 8),
    ):
        series = gpu.together(card, kind, [card.limits(core, policy)] * count, 4 + count / 4)
        got = gpu.parts(series, rate, kind)
        told = f"{min(got):.1f} to {max(got):.1f} %, together {sum(got):.1f} %"
        print(f"{count} x {policy}: {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.5, help="of each measurement")
    options = parser.parse_args()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    gpu.build()
    try:
        card = gpu.Driver().card(options.device)
    except (OSError, gpu.Failed) as error:
        sys.exit(f"frameworks: no CUDA driver or card for this process ({error})")
    gpu.Clocks(card).start()
    parts: tuple[Callable[[], None], ...] = (
        lambda: shares(card, options.seconds),
        lambda: staying(card, options.seconds),
        lambda: allocated(card),
        lambda: many(card),
    )
    for part in parts:
        try:
            part()
        except gpu.Failed as error:
            print(f"failed: {error}", flush=True)


if __name__ == "__main__":
    main()
