"""Isolation on a real NVIDIA card: memory caps, shares, hand-over, overhead, kills; one table, within ten minutes.

    python3 bench/gpu.py [--seconds 2] [--device 0] [--kills 1000] [--budget 560]

Needs the driver, Python 3.8 and nothing else: no package, neither Partage's own. The library and the test programs are
built with gcc and make where these are, else `build/native` must come along. Kernels are our own, through the driver
API (native/tools/kernels.h); PyTorch is measured where it is installed. A share is a tenant's rate over its rate alone and
without the library, so it needs no counter of the card. Nothing on the card is configured; other work on it falsifies
the figures. On the stand-in driver it runs as it is:

    build/native/fake-card /tmp/gpu & LD_LIBRARY_PATH=build/native/fake FAKE_GPU_SOCKET=/tmp/gpu python3 bench/gpu.py --seconds 0.5
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import random
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

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "native"
SEATS, SEAT_BYTES = 63, 4096
ACCOUNT_BYTES = 733184
ACCOUNT_MARK = b"PRTACCT2"
POLICIES = {"best-effort": 0, "fixed-share": 1, "burst-share": 2, "none": 3}
MIB = 2**20
GRANULE = 2 * MIB
GRAPHS = ("graph", "node", "capture")
"""Ways in which a graph comes to allocate (native/tests/memory.c)."""
MISSED: list[str] = []
"""What was required and did not come out."""
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
    depth: int = 64
    """Launches before each wait: some ms of work, since a launch counts when it is made."""

    def options(self) -> list[str]:
        return [
            "--kernel",
            self.kernel,
            "--size",
            str(self.size),
            "--how",
            self.how,
            "--depth",
            str(self.depth),
        ]


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
        (folder / "card-0").mkdir()
        for name in ("terms", *(f"seat-{slot}" for slot in range(SEATS))):
            (folder / "card-0" / name).write_bytes(bytes(SEAT_BYTES))
        yield folder
        shutil.rmtree(folder)

    def environment(self, folder: Path, slot: int, limits: Limits | None) -> dict[str, str]:
        names = {"CUDA_VISIBLE_DEVICES": self.uuid, "CUDA_MODULE_LOADING": "EAGER"}
        if limits:
            names["LD_PRELOAD"] = str(room(folder, self.uuid, slot, limits))
        return {**os.environ, **names}

    def limits(self, core: int, policy: str, memory: int = 0) -> Limits:
        return Limits(core, policy, memory)


@dataclass(frozen=True)
class Limits:
    """What a tenant may use."""

    core: int
    policy: str
    memory: int = 0


def room(folder: Path, uuid: str, slot: int, limits: Limits) -> Path:
    """A container's files, as the agent makes them (partage.agent.isolation); the library there."""
    home = folder / f"t{slot}"
    home.mkdir()
    (home / "card-0").symlink_to(folder / "card-0")
    (home / "account").write_bytes(ACCOUNT_MARK.ljust(ACCOUNT_BYTES, b"\0"))
    terms = POLICIES[limits.policy] << 32 | 1 << 40 | limits.core
    with (folder / "card-0" / "terms").open("r+b") as file:
        file.seek(slot * 8)
        file.write(terms.to_bytes(8, "little"))
    lines = [
        "partage-limits 2", f"container {slot + 1:x}", "account account", f"card {uuid}", "seats card-0",
        f"slot {slot}", f"memory {limits.memory}", f"core {limits.core}", f"policy {limits.policy}",
        "priority ordinary", "swap 0", "context 0", "end", "",
    ]  # fmt: skip
    (home / "limits").write_text("\n".join(lines), encoding="ascii")
    shutil.copy(BUILD / "libpartage-isolation.so", home / "library.so")
    return home / "library.so"


def reports(text: str) -> list[tuple[int, int]]:
    found = re.findall(r"^report (\d+) (\d+)$", text, re.MULTILINE)
    return [(int(when), int(count)) for when, count in found]


def at(series: list[tuple[int, int]], when: int) -> float:
    """Launches done at a time, between the reports around it."""
    before = [point for point in series if point[0] <= when]
    after = [point for point in series if point[0] > when]
    if not before:
        return 0
    if not after:
        return before[-1][1]
    (t0, c0), (t1, c1) = before[-1], after[0]
    return c0 + (c1 - c0) * (when - t0) / (t1 - t0)


class Driver:
    """The few calls that the script makes itself."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._device = 0

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            sys.exit(f"gpu: {name} failed with {code}")

    def card(self, device: int) -> Card:
        self.call("cuInit", 0)
        handle, total = ctypes.c_int(), ctypes.c_size_t()
        identity, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(128)
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self._device = handle.value
        self.call("cuDeviceGetUuid", identity, handle)
        self.call("cuDeviceGetName", name, 128, handle)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), handle)
        digits = bytes(identity).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return Card(device, "GPU-" + "-".join(parts), name.value.decode(), total.value)

    def free(self) -> int:
        """Bytes that the driver has left, by its own word: this process is under no limits."""
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


def load(kind: Kind, seconds: float, *more: str) -> list[str]:
    command = [str(BUILD / "load"), "--seconds", str(seconds), "--report", "5"]
    return [*command, *kind.options(), *more]


def alone(card: Card, kind: Kind, seconds: float, limits: Limits | None = None) -> float:
    """Launches a second, in the second half of the run."""
    with card.folder() as folder:
        done = subprocess.run(
            load(kind, seconds),
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
    card: Card, kind: Kind, tenants: list[Limits], seconds: float, delay: float = 0
) -> list[list[tuple[int, int]]]:
    """Reports of tenants that run at the same time; the last begins `delay` seconds later."""
    with card.folder() as folder:
        running = []
        for slot, limits in enumerate(tenants):
            if slot == len(tenants) - 1:
                time.sleep(delay)
            where = card.environment(folder, slot, limits)
            command = load(kind, seconds - (delay if slot == len(tenants) - 1 else 0))
            running.append(subprocess.Popen(command, env=where, stdout=subprocess.PIPE, text=True))
        return [reports(process.communicate(timeout=120)[0]) for process in running]


def parts(series: list[list[tuple[int, int]]], rate: float) -> list[float]:
    """Percent of the rate alone, over the middle of the time when all ran."""
    begin, end = max(one[0][0] for one in series), min(one[-1][0] for one in series)
    t0, t1 = begin + (end - begin) // 5, end - (end - begin) // 10
    return [100 * (at(one, t1) - at(one, t0)) * 1e9 / (t1 - t0) / rate for one in series]


def sized(card: Card, name: str, kernel: str, target_us: float, size: int, depth: int) -> Kind:
    """A workload whose launch takes about `target_us` on this card."""
    rate = alone(card, Kind(name, kernel, size, depth=depth), 0.6)
    return Kind(name, kernel, max(1, int(size * target_us * rate / 1e6)), depth=depth)


def row(*cells: object) -> None:
    widths = (26, 30, 34, 12, 8)
    print("  " + "  ".join(f"{cell!s:<{width}}" for cell, width in zip(cells, widths)).rstrip())  # noqa: B905 # 3.8
    sys.stdout.flush()


def judged(good: bool, what: str) -> str:  # noqa: FBT001 # the answer, not a switch
    if not good:
        MISSED.append(what)
    return "ok" if good else "MISSED"


def memory(card: Card) -> None:
    print(
        "memory: path, cap, cap less what was allocated until refused, driver's code (2: out of memory)"
    )
    paths = ("plain", "small", "pitch", "managed", "handle", "pool", "newpool", "array")
    for path in paths + GRAPHS:
        chunk = 65536 if path == "small" else GRANULE
        if "pool" in path or path in GRAPHS:
            chunk = 32 * MIB
        cap = (64 if path == "small" else 2048) * MIB
        with card.folder() as folder:
            done = subprocess.run(
                [str(BUILD / "memory"), path, str(chunk)],
                env=card.environment(folder, 0, card.limits(1000, "none", cap)),
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        totals = [int(total) for total in re.findall(r"^total (\d+)$", done.stdout, re.MULTILINE)]
        codes = set(re.findall(r"^refused (\d+)$", done.stdout, re.MULTILINE))
        if done.returncode or not totals:
            row(
                path,
                f"failed: {done.stderr.strip()[:60]}",
                "",
                "",
                judged(False, f"memory {path}"),
            )
            continue
        left = [cap - total for total in totals]
        good = codes == {"2"} and all(0 <= one < max(chunk, GRANULE) + GRANULE for one in left)
        told = ", ".join(f"{one / MIB:.2f} MiB" for one in left)
        row(path, f"{cap // MIB} MiB", told, "/".join(codes), judged(good, f"memory {path}"))


def held(driver: Driver, where: dict[str, str], command: list[str]) -> int | None:
    """What the card has less while a program keeps its memory; None if it failed."""
    before = driver.free()
    process = subprocess.Popen([str(BUILD / command[0]), *command[1:]], env=where, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    keeps = any(line.startswith(("total", "s 0")) for line in process.stdout)
    taken = before - driver.free()
    process.communicate("", timeout=60)
    return taken if keeps and process.returncode == 0 else None


def graph_memory(card: Card, driver: Driver) -> None:
    """By the driver's word, not by ours: what graphs hold at the cap, beside plain allocations at the cap."""
    print(
        "memory of graphs at a cap of 2048 MiB: taken by the driver's word, less what plain allocations take"
    )
    cap = 2048 * MIB
    commands = {
        path: ["memory", path, str(32 * MIB), "dlsym", "hold"] for path in ("plain", *GRAPHS)
    }
    nodes = ",".join(["K700"] * 4)
    commands["sum"] = ["graphs", "dlsym", f"a={nodes}", "i:a", "s", "hold"]
    plain = 0
    for path, command in commands.items():
        with card.folder() as folder:
            where = card.environment(folder, 0, card.limits(1000, "none", cap))
            taken = held(driver, where, command)
        if taken is None:
            row(f"{path} held", "failed", "", "", judged(False, f"memory of graphs, {path}"))
            continue
        plain = plain or taken
        if path != "plain":
            good = plain > 0 and taken - plain <= 2 * 32 * MIB
            told = "four of 700 MiB in one" if path == "sum" else ""
            row(f"{path} held", f"{(taken - plain) / MIB:+.2f} MiB", told, "<= 64 MiB",
                judged(good, f"memory of graphs, {path}"))  # fmt: skip


def compute(card: Card, kinds: list[Kind], seconds: float, until: float) -> None:
    print(
        "fixed-share: workload, quotas, received (percent of the rate alone), largest error (points)"
    )
    for kind in kinds:
        rate = alone(card, kind, seconds)
        for quotas in ([300], [100, 900], [300, 700], [500, 500], [250] * 4):
            if time.monotonic() > until:
                return row(kind.name, "left out: no time", "", "", judged(False, "time"))
            tenants = [card.limits(quota, "fixed-share") for quota in quotas]
            series = together(card, kind, tenants, seconds + 1)
            quoted = "/".join(str(quota // 10) for quota in quotas)
            if not all(len(one) > 1 for one in series):
                row(kind.name, quoted, "failed", "", judged(False, f"{kind.name} {quoted}"))
                continue
            got = parts(series, rate)
            error = max(abs(part - quotas[i] / 10) for i, part in enumerate(got))
            told = " / ".join(f"{part:.1f}" for part in got)
            verdict = judged(error <= 3, f"{kind.name} {quoted}: {told}")
            row(kind.name, quoted, told, f"{error:.1f}", verdict)
    return None


def hand_over(card: Card, kind: Kind, seconds: float) -> None:
    print("burst-share: 10 % and 40 %; the first alone, then both")
    rate = alone(card, kind, seconds)
    tenants = [card.limits(quota, "burst-share") for quota in (100, 400)]
    series = together(card, kind, tenants, 2 * seconds + 2, delay=seconds)
    woke = series[1][0][0]
    first = next((when for when, count in series[1] if count), woke)
    before = 100 * (at(series[0], woke) - at(series[0], woke - 5 * 10**8)) * 2 / rate
    got = parts(series, rate)
    good = abs(got[0] - 20) <= 3 and abs(got[1] - 80) <= 3
    row(kind.name, f"alone {before:.1f}", " / ".join(f"{part:.1f}" for part in got), "20 / 80",
        judged(good, "burst-share"))  # fmt: skip
    row(
        "",
        "first launch of the second",
        f"after {(first - woke) / 1e6:.1f} ms (reports every 5 ms)",
    )


def overhead(card: Card, kinds: list[Kind], seconds: float, until: float) -> None:
    print("overhead: workload, limits, time lost to the rate without the library (median of 5)")
    choices = {
        "library, no cap": (card.limits(1000, "none"), 2.0),
        "memory cap, not reached": (card.limits(1000, "none", card.total // 2), 3.0),
        "gated alone, not reached": (card.limits(1000, "burst-share", card.total // 2), 3.0),
    }
    for kind in kinds:
        rates: dict[str, list[float]] = {}
        for _ in range(5):
            if time.monotonic() > until:
                break
            rates.setdefault("", []).append(alone(card, kind, seconds / 2))
            for name, (limits, _) in choices.items():
                rates.setdefault(name, []).append(alone(card, kind, seconds / 2, limits))
        if len(rates.get("", ())) < 5:
            row(
                kind.name,
                f"only {len(rates.get('', ()))} of 5 runs: no time",
                "",
                "",
                judged(False, "time"),
            )
        for name, (_, most) in choices.items():
            if rates.get(name):
                lost = 100 * (1 - statistics.median(rates[name]) / statistics.median(rates[""]))
                verdict = judged(lost <= most, f"overhead of {kind.name}, {name}: {lost:.2f} %")
                row(kind.name, name, f"{lost:+.2f} %", f"<= {most:g} %", verdict)


def latency(card: Card) -> None:
    print("launch latency: the call of a launch on an idle stream, ns (median, 99th percentile)")
    base = 0
    for name, limits in {
        "without the library": None,
        "library, no cap": card.limits(1000, "none"),
        "gated, cap not reached": card.limits(1000, "burst-share", card.total // 2),
        "fixed-share 99.9": card.limits(999, "fixed-share"),
    }.items():
        with card.folder() as folder:
            done = subprocess.run(
                [str(BUILD / "load"), "--kernel", "mul", "--size", "1", "--timed", "5000"],
                env=card.environment(folder, 0, limits), capture_output=True, text=True, check=False,
            )  # fmt: skip
        found = re.search(r"^launch (\d+) (\d+)$", done.stdout, re.MULTILINE)
        if not found:
            row(name, f"failed: {done.stderr.strip()[:60]}", "", "", judged(False, "latency"))
            continue
        base = base or int(found[1])
        row(name, f"{found[1]} ns", f"p99 {found[2]} ns", f"{int(found[1]) - base:+d} ns")


def kills(card: Card, count: int, until: float) -> None:
    """SIGKILLs at random points of tenants that launch, run graphs and allocate."""
    chance = random.Random(1)  # noqa: S311 # no secret
    cap, slots = 512 * MIB, 8
    commands = [
        ["load", "--kernel", "mul", "--size", "2000", "--seconds", "60", "--depth", "8"],
        ["load", "--kernel", "mul", "--size", "500", "--seconds", "60", "--how", "graph", "--threads", "2"],
        ["memory", "plain", str(GRANULE)],
        ["memory", "handle", str(4 * MIB)],
        ["memory", "pool", str(32 * MIB)],
        ["memory", "capture", str(32 * MIB)],
    ]  # fmt: skip
    done, begun = 0, time.monotonic()
    with card.folder() as folder:
        homes = [
            card.environment(folder, i, Limits(100, "burst-share", cap)) for i in range(slots)
        ]
        while done < count and time.monotonic() < until:
            running = []
            for where in homes:
                command = chance.choice(commands)
                program = [str(BUILD / command[0]), *command[1:]]
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                running.append(subprocess.Popen(program, env=where, **quiet))
            for process in running:
                time.sleep(chance.random() * 0.1)
                process.kill()
                process.wait()
            done += len(running)
        took = time.monotonic() - begun
        whole, hangs = 0, 0
        for where in homes:
            try:
                after = subprocess.run([str(BUILD / "memory"), "plain", str(GRANULE)], env=where,
                                       capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
            except subprocess.TimeoutExpired:
                hangs += 1
                continue
            totals = [int(one) for one in re.findall(r"^total (\d+)$", after.stdout, re.MULTILINE)]
            whole += bool(totals) and all(cap - 2 * GRANULE < one <= cap for one in totals)
    good = whole == slots and not hangs and done >= count
    row(f"{done} SIGKILLs", f"in {took:.0f} s, 8 tenants", f"caps whole after: {whole} of {slots}",
        f"hangs {hangs}", judged(good, f"kills: {done} of {count}, {whole} caps whole"))  # fmt: skip


def torch(card: Card, seconds: float) -> None:
    if importlib.util.find_spec("torch") is None:
        print("PyTorch: not installed, left out")
        return
    print("PyTorch: half-precision 4096 matmul; rate over rate without the library; memory shown")
    rates: list[float] = []
    cases = [None, card.limits(1000, "burst-share"), card.limits(300, "fixed-share", 4096 * MIB)]
    for limits in cases:
        with card.folder() as folder:
            done = subprocess.run(
                [sys.executable, "-c", TORCH, str(seconds)],
                env=card.environment(folder, 0, limits), capture_output=True, text=True, check=False,
            )  # fmt: skip
        found = re.search(r"rate ([\d.]+)\ninfo (\d+) (\d+)", done.stdout)
        if not found:
            row("failed", done.stderr.strip()[-80:])
            continue
        rates.append(float(found[1]))
        name = f"{limits.policy} {limits.core // 10}" if limits else "without the library"
        shown = f"{int(found[2]) // MIB} of {int(found[3]) // MIB} MiB free"
        row(name, f"{100 * rates[-1] / rates[0]:.1f} %", shown)


def build() -> None:
    """With this machine's compiler where there is one: what came along may want a newer C library."""
    if shutil.which("gcc") and shutil.which("make"):
        done = subprocess.run(["make", "-s", "-C", str(ROOT / "native"), f"OUT={BUILD}"],
                              capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode:
            print(f"built elsewhere: {done.stderr.strip()[:200]}")
    if not (BUILD / "load").exists():
        sys.exit(
            "gpu: build/native/load is missing and there is no gcc or make: bring build/native along"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Isolation on a real NVIDIA card, as one table.")
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=560, help="seconds of all")
    options = parser.parse_args()
    begun = time.monotonic()
    until = begun + options.budget
    build()
    try:
        driver = Driver()
        card = driver.card(options.device)
    except OSError as error:
        sys.exit(f"gpu: no CUDA driver on this machine ({error}); nothing was measured")
    load_before = os.getloadavg()[0]
    print(
        f"{card.name}, {card.total // MIB} MiB, {card.uuid}; load average {load_before:.1f} of {os.cpu_count()}"
    )
    memory(card)
    graph_memory(card, driver)
    large = sized(card, "matrix arithmetic", "mul", 1000, 20_000, 6)
    wide = sized(card, "elementwise", "copy", 300, 2**24, 16)
    small = sized(card, "many small", "mul", 8, 100, 256)
    graphs = Kind("graphs", "mul", max(1, large.size // 4), "graph", 2)
    kinds = [large, wide, small, graphs]
    compute(card, kinds, options.seconds, begun + 0.45 * options.budget)
    hand_over(card, large, options.seconds)
    latency(card)
    overhead(card, kinds, options.seconds, begun + 0.75 * options.budget)
    kills(card, options.kills, until - 30)
    torch(card, options.seconds)
    print(
        f"{time.monotonic() - begun:.0f} s; "
        + (f"MISSED: {'; '.join(MISSED)}" if MISSED else "all as required")
    )


if __name__ == "__main__":
    main()
