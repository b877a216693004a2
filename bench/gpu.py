"""Isolation on a real NVIDIA card: memory caps, shares, hand-over, overhead; one table, within ten minutes.

    make native
    .venv/bin/python bench/gpu.py [--seconds 1.5] [--device 0]

Uses kernels of our own through the driver API (native/tools/kernels.h), and PyTorch where it is installed. A share
is a tenant's rate over its rate alone and without the library, so it needs no counter of the card. Nothing on the
card is configured; other work on it falsifies the figures.
"""

import argparse
import ctypes
import importlib.util
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isolation import BUILD, at, reports
from partage.agent.isolation.account import make_account
from partage.agent.isolation.library import install
from partage.agent.isolation.limits import CardLimits, ContainerLimits, Policy, Priority, write
from partage.agent.isolation.seats import give_seat, make_seats

MIB = 2**20
GRANULE = 2 * MIB
BUDGET = 570
"""Seconds after which no further measurement is begun."""
TORCH = """
import sys, time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
for _ in range(10): a @ a
torch.cuda.synchronize(); n = 0; t = time.monotonic()
while time.monotonic() - t < float(sys.argv[1]):
    for _ in range(10): b = a @ a
    torch.cuda.synchronize(); n += 10
print("rate", n / (time.monotonic() - t))
print("info", *torch.cuda.mem_get_info())
"""


@dataclass(frozen=True)
class Kind:
    """A workload: a kernel, its first parameter, and how it is launched."""

    name: str
    kernel: str
    size: int
    how: str = "kernel"

    def options(self) -> list[str]:
        return ["--kernel", self.kernel, "--size", str(self.size), "--how", self.how]


@dataclass(frozen=True)
class Card:
    """The card under test."""

    device: int
    uuid: str
    name: str
    total: int

    @contextmanager
    def folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix="partage-gpu-"))
        make_seats(folder / "card-0")
        yield folder
        shutil.rmtree(folder)

    def environment(self, folder: Path, slot: int, card: CardLimits | None) -> dict[str, str]:
        names = {"CUDA_VISIBLE_DEVICES": self.uuid, "CUDA_MODULE_LOADING": "EAGER"}
        if card:
            home = folder / f"t{slot}"
            home.mkdir()
            (home / "card-0").symlink_to(folder / "card-0")
            give_seat(folder / "card-0", card)
            make_account(home / "account")
            library = install(BUILD / "libpartage-isolation.so", home)
            write(home / "limits", ContainerLimits(slot + 1, (card,)))
            names["LD_PRELOAD"] = str(library)
        return {**os.environ, **names}

    def limits(self, slot: int, core: int, policy: Policy, **more: int | Priority) -> CardLimits:
        fields = {"memory_bytes": 0, **more}
        return CardLimits(self.uuid, "card-0", slot, core_milli=core, policy=policy, **fields)


class Driver:
    """The few calls that the script makes itself."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            sys.exit(f"gpu: {name} failed with {code}")

    def card(self, device: int) -> Card:
        self.call("cuInit", 0)
        handle, total = ctypes.c_int(), ctypes.c_size_t()
        identity, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(128)
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.call("cuDeviceGetUuid", identity, handle)
        self.call("cuDeviceGetName", name, 128, handle)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), handle)
        digits = bytes(identity).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return Card(device, "GPU-" + "-".join(parts), name.value.decode(), total.value)


def load(kind: Kind, seconds: float, *more: str) -> list[str]:
    command = [str(BUILD / "load"), "--seconds", str(seconds), "--report", "5"]
    return [*command, *kind.options(), *more]


def alone(card: Card, kind: Kind, seconds: float, limits: CardLimits | None = None) -> float:
    """Launches a second, in the second half of the run."""
    with card.folder() as folder:
        done = subprocess.run(
            load(kind, seconds, "--depth", "64"),
            env=card.environment(folder, 0, limits),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"gpu: {kind.name}: {done.stderr.strip()}")
    series = reports(done.stdout)
    t0, t1 = series[len(series) // 2][0], series[-1][0]
    return (at(series, t1) - at(series, t0)) * 1e9 / (t1 - t0)


def together(
    card: Card, kind: Kind, tenants: list[CardLimits], seconds: float, delay: float = 0
) -> list[list[tuple[int, int]]]:
    """Reports of tenants that run at the same time; the last begins `delay` seconds later."""
    with card.folder() as folder:
        running = []
        for slot, limits in enumerate(tenants):
            if slot == len(tenants) - 1:
                time.sleep(delay)
            where = card.environment(folder, slot, limits)
            command = load(kind, seconds - (delay if slot == len(tenants) - 1 else 0))
            running.append(
                subprocess.Popen(
                    [*command, "--depth", "64"], env=where, stdout=subprocess.PIPE, text=True
                )
            )
        return [reports(process.communicate(timeout=120)[0]) for process in running]


def parts(series: list[list[tuple[int, int]]], rate: float) -> list[float]:
    """Percent of the rate alone, over the middle of the time when all ran."""
    begin, end = max(one[0][0] for one in series), min(one[-1][0] for one in series)
    t0, t1 = begin + (end - begin) // 5, end - (end - begin) // 10
    return [100 * (at(one, t1) - at(one, t0)) * 1e9 / (t1 - t0) / rate for one in series]


def sized(card: Card, name: str, kernel: str, target_us: float, size: int) -> Kind:
    """A workload whose launch takes about `target_us` on this card."""
    rate = alone(card, Kind(name, kernel, size), 0.6)
    return Kind(name, kernel, max(1, int(size * target_us * rate / 1e6)))


def row(*cells: object) -> None:
    print(
        "  "
        + "  ".join(
            f"{cell!s:<{width}}" for cell, width in zip(cells, (26, 24, 34, 12), strict=False)
        )
    )
    sys.stdout.flush()


def memory(card: Card) -> None:
    print("memory: path, cap, allocated until refused, cap less that (granule 2 MiB)")
    cap = 2048 * MIB
    for path in ("plain", "small", "pitch", "managed", "handle", "pool", "array"):
        chunk = 65536 if path == "small" else 2 * MIB if path == "plain" else 32 * MIB
        cap_here = 64 * MIB if path == "small" else cap
        with card.folder() as folder:
            limits = card.limits(0, 1000, Policy.NONE, memory_bytes=cap_here)
            done = subprocess.run(
                [str(BUILD / "memory"), path, str(chunk)],
                env=card.environment(folder, 0, limits),
                capture_output=True,
                text=True,
                check=False,
            )
        totals = [int(total) for total in re.findall(r"^total (\d+)$", done.stdout, re.MULTILINE)]
        codes = re.findall(r"^refused (\d+)$", done.stdout, re.MULTILINE)
        if done.returncode or not totals:
            row(path, f"failed: {done.stderr.strip()[:60]}")
            continue
        left = ", ".join(f"{(cap_here - total) / MIB:.2f} MiB" for total in totals)
        row(path, f"{cap_here // MIB} MiB", f"left {left}", f"codes {'/'.join(codes)}")


def compute(card: Card, kinds: list[Kind], seconds: float, until: float) -> None:
    print(
        "fixed-share: workload, quotas, received (percent of the rate alone), largest error in points"
    )
    for kind in kinds:
        rate = alone(card, kind, seconds)
        for quotas in ([300], [100, 900], [300, 700], [500, 500], [250] * 4):
            if time.monotonic() > until:
                return
            tenants = [card.limits(i, q, Policy.FIXED_SHARE) for i, q in enumerate(quotas)]
            got = parts(together(card, kind, tenants, seconds + 1), rate)
            error = max(abs(part - quota / 10) for part, quota in zip(got, quotas, strict=True))
            quoted = "/".join(str(quota // 10) for quota in quotas)
            row(kind.name, quoted, " / ".join(f"{part:.1f}" for part in got), f"{error:.1f}")


def hand_over(card: Card, kind: Kind, seconds: float) -> None:
    print("burst-share: 10 % and 40 % busy alone, then together")
    rate = alone(card, kind, seconds)
    tenants = [card.limits(i, q, Policy.BURST_SHARE) for i, q in enumerate((100, 400))]
    series = together(card, kind, tenants, 2 * seconds + 2, delay=seconds)
    woke = series[1][0][0]
    first = next((when for when, count in series[1] if count), woke)
    before = 100 * (at(series[0], woke) - at(series[0], woke - 10**9)) / rate
    row(
        kind.name, f"alone {before:.1f}", " / ".join(f"{part:.1f}" for part in parts(series, rate))
    )
    row("", "first launch passed", f"after {(first - woke) / 1e6:.1f} ms (reports every 5 ms)")


def overhead(card: Card, kinds: list[Kind], seconds: float, until: float) -> None:
    print("overhead: workload, limits, rate over rate without the library (median of 5)")
    choices = {
        "library alone": card.limits(0, 1000, Policy.NONE),
        "memory cap": card.limits(0, 1000, Policy.NONE, memory_bytes=card.total // 2),
        "fixed-share 100, not reached": card.limits(0, 1000, Policy.BURST_SHARE),
    }
    for kind in kinds:
        rates: dict[str, list[float]] = {}
        for _ in range(5):
            if time.monotonic() > until:
                break
            rates.setdefault("", []).append(alone(card, kind, seconds / 2))
            for name, limits in choices.items():
                rates.setdefault(name, []).append(alone(card, kind, seconds / 2, limits))
        base = statistics.median(rates.pop("", [0]))
        for name, values in rates.items():
            rate = statistics.median(values)
            added = 1e9 / rate - 1e9 / base
            row(kind.name, name, f"{100 * (1 - rate / base):+.2f} %", f"{added:+.0f} ns/launch")


def torch(card: Card, seconds: float) -> None:
    if importlib.util.find_spec("torch") is None:
        print("PyTorch: not installed, left out")
        return
    print("PyTorch: half-precision 4096 matmul; rate over rate without the library; memory shown")
    rates = []
    cases = [
        None,
        card.limits(0, 1000, Policy.BURST_SHARE),
        card.limits(0, 300, Policy.FIXED_SHARE, memory_bytes=4096 * MIB),
    ]
    for limits in cases:
        with card.folder() as folder:
            done = subprocess.run(
                [sys.executable, "-c", TORCH, str(seconds)],
                env=card.environment(folder, 0, limits),
                capture_output=True,
                text=True,
                check=False,
            )
        found = re.search(r"rate ([\d.]+)\ninfo (\d+) (\d+)", done.stdout)
        if not found:
            row("failed", done.stderr.strip()[-80:])
            continue
        rates.append(float(found[1]))
        name = f"{limits.policy} {limits.core_milli // 10}" if limits else "without the library"
        row(
            name,
            f"{100 * rates[-1] / rates[0]:.1f} %",
            f"{int(found[2]) // MIB} of {int(found[3]) // MIB} MiB free",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--device", type=int, default=0)
    options = parser.parse_args()
    until = time.monotonic() + BUDGET
    if not (BUILD / "load").exists():
        sys.exit("gpu: build/native/load is missing; run make native first")
    try:
        card = Driver().card(options.device)
    except OSError as error:
        sys.exit(f"gpu: no CUDA driver on this machine ({error}); nothing was measured")
    print(f"{card.name}, {card.total // MIB} MiB, {card.uuid}")
    memory(card)
    large = sized(card, "arithmetic", "mul", 1000, 20_000)
    wide = Kind("memory-bound", "copy", 2**27)
    small = sized(card, "many small", "mul", 8, 100)
    graphs = Kind("graphs of arithmetic", "mul", large.size // 4, "graph")
    compute(card, [large, wide, small, graphs], options.seconds, until - 150)
    hand_over(card, large, options.seconds)
    overhead(card, [large, wide, small, graphs], options.seconds, until - 60)
    torch(card, options.seconds)


if __name__ == "__main__":
    main()
