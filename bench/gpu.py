"""Isolation on a real NVIDIA card: memory caps, shares, hand-over, overhead, kills; one table, within ten minutes.

    python3 bench/gpu.py [--seconds 2] [--device 0] [--kills 1000] [--budget 540]

Needs the driver, Python 3.8 and nothing else: no package, neither Partage's own. The library and the test programs are
built with gcc and make where these are, else `build/native` must come along. Kernels are our own, through the driver
API (native/tools/kernels.h); PyTorch is measured where it is installed. A share is a tenant's rate over its rate alone and
without the library, so it needs no counter of the card. Nothing on the card is configured; other work on it falsifies
the figures. A part that fails says so and the next begins; a program that hangs is killed; when the time is up the table is
ended as it is. On the stand-in driver it runs as it is:

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
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
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
PATIENCE = 60
"""Seconds until a program that should have ended long ago is killed, beyond those that it was told to work."""
RUNNING: set[subprocess.Popen[str]] = set()
"""What is to be killed when the time is up."""
ELSEWHERE = (
    "usr/lib/*-linux-gnu", "usr/lib64", "usr/local/nvidia/lib64", "usr/local/cuda*/compat", "run/nvidia/driver/usr/lib/*",
)  # fmt: skip
"""Where the driver lies in containers whose loader has not been told."""
MEANING = {
    3: "the driver was not initialised in this process",
    34: "this is the stub library of the toolkit, not a driver",
    46: "the card is taken by another process: its compute mode is exclusive, or it is prohibited",
    100: "the driver sees no card: is one given to this container (/dev/nvidia*), and has a card in MIG mode an instance?",
    209: "the kernels fit no card of this kind",
    218: "the kernels (PTX 6.4, sm_70) are not taken",
    221: "libnvidia-ptxjitcompiler.so is missing: give the container the driver capability `compute`",
    222: "the kernels' PTX version is not known to this driver",
    800: "not permitted: by the library, see its line above",
    802: "the card or its NVSwitch fabric is not ready (is nvidia-fabricmanager running?)",
    803: "the kernel's driver and the library are of different versions",
    804: "forward compatibility of a newer driver library is not supported on this card",
    999: "unknown; often /dev/nvidia-uvm or nvidia-modprobe is missing in the container",
}
"""What the driver's codes mean in a script's life."""
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


class Failed(Exception):
    """A part cannot be measured; the others can."""


def meaning(text: str) -> str:
    """What a program said at its end, with the driver's code explained."""
    told = " ".join(text.split())[-160:]
    found = re.search(r"driver error (\d+)", told)
    return f"{told} ({MEANING[int(found[1])]})" if found and int(found[1]) in MEANING else told


def start(command: list[str], where: dict[str, str], **options: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, env=where, text=True, **options)  # type: ignore[call-overload]
    RUNNING.add(process)
    return process


def ended(
    process: subprocess.Popen[str], seconds: float, text: str | None = None
) -> tuple[str, str]:
    """Output and errors; a program that does not end is killed, and says so."""
    try:
        out, error = process.communicate(text, timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        error = f"{error or ''} hangs: killed after {seconds:.0f} s"
    RUNNING.discard(process)
    return out or "", error or ""


def ran(
    command: list[str], where: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    process = start(
        command, where, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, error = ended(process, seconds)
    return subprocess.CompletedProcess(command, process.returncode, out, error)


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
        folder = Path(tempfile.mkdtemp(prefix="partage-gpu-", dir=PLACE[0]))
        try:
            (folder / "card-0").mkdir()
            for name in ("terms", *(f"seat-{slot}" for slot in range(SEATS))):
                (folder / "card-0" / name).write_bytes(bytes(SEAT_BYTES))
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def environment(self, folder: Path, slot: int, limits: Limits | None) -> dict[str, str]:
        names = {"CUDA_VISIBLE_DEVICES": self.uuid, "CUDA_MODULE_LOADING": "EAGER"}
        if limits:
            names["LD_PRELOAD"] = str(room(folder, self.uuid, slot, limits))
        return {**os.environ, **names}

    def limits(self, core: int, policy: str, memory: int = 0) -> Limits:
        return Limits(core, policy, memory)


PLACE: list[str | None] = [None]
"""Where tenants' files are made; the usual place unless no library can be loaded from there."""


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
        self._cuda = opened_driver()
        self._device = 0

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise Failed(
                f"{name}: driver error {code}: {MEANING.get(code, 'see the CUDA driver API')}"
            )

    def version(self) -> str:
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"

    def is_shared(self) -> bool:
        """Whether several processes may use the card at a time (CU_DEVICE_ATTRIBUTE_COMPUTE_MODE is 0)."""
        mode = ctypes.c_int()
        ask = getattr(self._cuda, "cuDeviceGetAttribute", None)
        return not ask or ask(ctypes.byref(mode), 20, self._device) != 0 or mode.value == 0

    def card(self, device: int) -> Card:
        self.call("cuInit", 0)
        handle, total = ctypes.c_int(), ctypes.c_size_t()
        identity, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(128)
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self._device = handle.value
        # The first form names the whole card even where the device is an instance (MIG) of it.
        self.call("cuDeviceGetUuid", identity, handle)
        whole = bytes(identity)
        if hasattr(self._cuda, "cuDeviceGetUuid_v2"):
            self.call("cuDeviceGetUuid_v2", identity, handle)
        self.call("cuDeviceGetName", name, 128, handle)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), handle)
        digits = bytes(identity).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        prefix = "GPU-" if bytes(identity) == whole else "MIG-"
        return Card(
            device, prefix + "-".join(parts), name.value.decode(errors="replace"), total.value
        )

    def free(self) -> int:
        """Bytes that the driver has left, by its own word: this process is under no limits."""
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        try:
            self.call("cuCtxSetCurrent", context)
            self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        finally:
            # Not kept: it would take its part of the card's memory, and the whole card where one process may use it.
            self.call("cuCtxSetCurrent", None)
            self.call("cuDevicePrimaryCtxRelease_v2", self._device)
        return free.value


def opened_driver() -> ctypes.CDLL:
    """The driver's library, which programs are told of too where it lies beside the loader's path.

    Raises:
        OSError: there is none.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        for found in (
            one for where in ELSEWHERE for one in sorted(Path("/").glob(f"{where}/libcuda.so.1"))
        ):
            library = ctypes.CDLL(str(found))
            before = os.environ.get("LD_LIBRARY_PATH")
            os.environ["LD_LIBRARY_PATH"] = (
                f"{found.parent}:{before}" if before else str(found.parent)
            )
            return library
        raise


def load(kind: Kind, seconds: float, *more: str) -> list[str]:
    command = [str(BUILD / "load"), "--seconds", str(seconds), "--report", "5"]
    return [*command, *kind.options(), *more]


def alone(card: Card, kind: Kind, seconds: float, limits: Limits | None = None) -> float:
    """Launches a second, in the second half of the run."""
    with card.folder() as folder:
        done = ran(load(kind, seconds), card.environment(folder, 0, limits), seconds + PATIENCE)
    series = reports(done.stdout)
    if done.returncode or len(series) < 4:
        raise Failed(
            meaning(done.stderr) or f"ended with {done.returncode} and {len(series)} reports"
        )
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
            running.append(start(command, where, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        told = [ended(process, seconds + PATIENCE) for process in running]
    series = [reports(out) for out, _ in told]
    if any(len(one) < 4 for one in series):
        raise Failed(meaning(" ".join(error for _, error in told)) or "too few reports")
    return series


def parts(series: list[list[tuple[int, int]]], rate: float) -> list[float]:
    """Percent of the rate alone, over the middle of the time when all ran."""
    begin, end = max(one[0][0] for one in series), min(one[-1][0] for one in series)
    t0, t1 = begin + (end - begin) // 5, end - (end - begin) // 10
    return [100 * (at(one, t1) - at(one, t0)) * 1e9 / (t1 - t0) / rate for one in series]


def sized(card: Card, name: str, kernel: str, target_us: float, size: int, depth: int) -> Kind:
    """A workload whose launch takes about `target_us` on this card."""
    rate = alone(card, Kind(name, kernel, size, depth=depth), 0.6)
    most = 2**28 if kernel == "copy" else 2**31  # words of a buffer: 1 GiB
    return Kind(name, kernel, min(most, max(1, int(size * target_us * rate / 1e6))), depth=depth)


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
            where = card.environment(folder, 0, card.limits(1000, "none", cap))
            done = ran([str(BUILD / "memory"), path, str(chunk)], where, PATIENCE)
        totals = [int(total) for total in re.findall(r"^total (\d+)$", done.stdout, re.MULTILINE)]
        codes = set(re.findall(r"^refused (\d+)$", done.stdout, re.MULTILINE))
        if done.returncode or not totals:
            row(
                path,
                f"failed: {meaning(done.stderr)}",
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
    process = start(
        [str(BUILD / command[0]), *command[1:]],
        where,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    late = threading.Timer(PATIENCE, process.kill)
    late.start()
    keeps = any(line.startswith(("total", "s 0")) for line in process.stdout or ())
    taken = before - driver.free()
    late.cancel()
    ended(process, PATIENCE, "")
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
    for kind in kinds:
        rate = alone(card, kind, seconds)
        for quotas in ([300], [100, 900], [300, 700], [500, 500], [250] * 4):
            if time.monotonic() > until:
                return row(kind.name, "left out: no time", "", "", judged(False, "time"))
            tenants = [card.limits(quota, "fixed-share") for quota in quotas]
            quoted = "/".join(str(quota // 10) for quota in quotas)
            try:
                # Contexts of several begin one after the other.
                series = together(card, kind, tenants, seconds + 1 + len(tenants) / 4)
            except Failed as error:
                row(
                    kind.name,
                    quoted,
                    f"failed: {error}",
                    "",
                    judged(False, f"{kind.name} {quoted}"),
                )
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
            command = [str(BUILD / "load"), "--kernel", "mul", "--size", "1", "--timed", "5000"]
            done = ran(command, card.environment(folder, 0, limits), PATIENCE)
        found = re.search(r"^launch (\d+) (\d+)$", done.stdout, re.MULTILINE)
        if not found:
            row(name, f"failed: {meaning(done.stderr)}", "", "", judged(False, "latency"))
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
                running.append(start(program, where, stdin=subprocess.DEVNULL, **quiet))
            for process in running:
                time.sleep(chance.random() * 0.1)
                process.kill()
            # The driver takes its time to clear up after each; after all at once it takes less.
            for process in running:
                ended(process, PATIENCE)
            done += len(running)
        took = time.monotonic() - begun
        whole, hangs = 0, 0
        for where in homes:
            after = ran([str(BUILD / "memory"), "plain", str(GRANULE)], where, PATIENCE)
            hangs += "hangs" in after.stderr
            totals = [int(one) for one in re.findall(r"^total (\d+)$", after.stdout, re.MULTILINE)]
            whole += bool(totals) and all(cap - 2 * GRANULE < one <= cap for one in totals)
    good = whole == slots and not hangs and done >= count
    row(f"{done} SIGKILLs", f"in {took:.0f} s, 8 tenants", f"caps whole after: {whole} of {slots}",
        f"hangs {hangs}", judged(good, f"kills: {done} of {count}, {whole} caps whole"))  # fmt: skip


def torch(card: Card, seconds: float, until: float) -> None:
    if importlib.util.find_spec("torch") is None:
        return print("PyTorch: not installed, left out")
    print("PyTorch: half-precision 4096 matmul; rate over rate without the library; memory shown")
    rates: list[float] = []
    cases = [None, card.limits(1000, "burst-share"), card.limits(300, "fixed-share", 4096 * MIB)]
    for limits in cases:
        if time.monotonic() > until:
            return row("left out: no time", "", "", "", judged(False, "PyTorch: time"))
        with card.folder() as folder:
            command = [sys.executable, "-c", TORCH, str(seconds)]
            done = ran(command, card.environment(folder, 0, limits), seconds + PATIENCE)
        found = re.search(r"rate ([\d.]+)\ninfo (\d+) (\d+)", done.stdout)
        if not found:
            row("failed", meaning(done.stderr))
            if not rates:
                return None
            continue
        rates.append(float(found[1]))
        name = f"{limits.policy} {limits.core // 10}" if limits else "without the library"
        shown = f"{int(found[2]) // MIB} of {int(found[3]) // MIB} MiB free"
        row(name, f"{100 * rates[-1] / rates[0]:.1f} %", shown)
    return None


def build() -> None:
    """With this machine's compiler where there is one: what came along may want a newer C library."""
    if shutil.which("gcc") and shutil.which("make"):
        done = ran(
            ["make", "-s", "-C", str(ROOT / "native"), f"OUT={BUILD}"], dict(os.environ), 120
        )
        if done.returncode:
            print(f"built elsewhere: {meaning(done.stderr)}")
    if not (BUILD / "load").exists():
        sys.exit(
            "gpu: build/native/load is missing and there is no gcc or make: bring build/native along"
        )


def in_force(card: Card) -> None:
    """Is the library loaded from where tenants' files are made? A loader that cannot goes on without it.

    Raises:
        Failed: it is loaded from nowhere.
    """
    cap, told = 512 * MIB, ""
    for place in (None, str(BUILD)):
        PLACE[0] = place
        with card.folder() as folder:
            where = card.environment(folder, 0, card.limits(1000, "none", cap))
            done = ran([str(BUILD / "memory"), "show"], where, PATIENCE)
        if f"info {cap} " in done.stdout:
            return
        told = told or meaning(f"{done.stdout} {done.stderr}")
    raise Failed(f"the library is not in force, so nothing can be measured: {told}")


def surroundings(driver: Driver, card: Card) -> None:
    """What the figures were taken on, and what may falsify them."""
    print(
        f"{card.name}, {card.total // MIB} MiB, {card.uuid}; {driver.version()}; "
        f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()}"
    )
    if card.uuid.startswith("MIG-"):
        print("note: this is an instance (MIG), not a whole card")
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        print("note: MPS is set up; tenants' kernels may run side by side")
    if shutil.which("nvidia-smi"):
        asked = (
            "driver_version,mig.mode.current,compute_mode,utilization.gpu,memory.used,clocks.sm"
        )
        command = [
            "nvidia-smi",
            f"--query-gpu={asked}",
            "--format=csv,noheader",
            "-i",
            str(card.device),
        ]
        print(f"nvidia-smi ({asked}): {meaning(ran(command, dict(os.environ), 20).stdout)}")
    used = card.total - driver.free()
    if used > 2048 * MIB:
        print(
            f"note: {used // MIB} MiB are in use already; other work on the card falsifies the figures"
        )


def part(what: str, measure: Callable[[], object]) -> None:
    """One part; what becomes of it is none of the others' business."""
    try:
        measure()
    except Exception as error:  # noqa: BLE001 # whatever a card that nobody has seen may do
        told = str(error) or type(error).__name__
        row(what, f"failed: {told}", "", "", judged(False, what))
    for process in tuple(RUNNING):
        process.kill()
        ended(process, PATIENCE)


def summary(begun: float) -> None:
    print(
        f"{time.monotonic() - begun:.0f} s; "
        + (f"MISSED: {'; '.join(MISSED)}" if MISSED else "all as required")
    )
    sys.stdout.flush()


def end_at(seconds: float, begun: float) -> None:
    """Ends the table as it is when the time is up, whatever is being waited for."""

    def stop() -> None:
        judged(False, "time: cut off")
        for process in tuple(RUNNING):
            process.send_signal(signal.SIGKILL)
        summary(begun)
        os._exit(1)

    watch = threading.Timer(seconds, stop)
    watch.daemon = True
    watch.start()


def measure(driver: Driver, card: Card, options: argparse.Namespace, begun: float) -> None:
    kinds: list[Kind] = []

    def make(name: str, kernel: str, target_us: float, size: int, depth: int) -> None:
        kinds.append(sized(card, name, kernel, target_us, size, depth))

    until = begun + options.budget
    part("memory", lambda: memory(card))
    shared = driver.is_shared()
    if shared:
        part("memory of graphs", lambda: graph_memory(card, driver))
    else:
        row("two processes at a time", "left out: compute mode", "", "", judged(False, "sharing"))
    part("matrix arithmetic", lambda: make("matrix arithmetic", "mul", 1000, 20_000, 6))
    large = list(kinds)
    part("elementwise", lambda: make("elementwise", "copy", 300, 2**24, 16))
    part("many small", lambda: make("many small", "mul", 8, 100, 256))
    kinds += [Kind("graphs", "mul", max(1, one.size // 4), "graph", 2) for one in large]
    share = options.budget * 0.45 / max(1, len(kinds))
    print(
        "fixed-share: workload, quotas, received (percent of the rate alone), largest error (points)"
    )
    for i, kind in enumerate(kinds if shared else ()):
        # Each has its part of the time: the last is not the one that always goes without.
        last = begun + options.budget * 0.1 + (i + 1) * share
        part(kind.name, lambda kind=kind, last=last: compute(card, [kind], options.seconds, last))  # type: ignore[misc]
    for kind in large if shared else ():
        part("burst-share", lambda kind=kind: hand_over(card, kind, options.seconds))  # type: ignore[misc]
    part("latency", lambda: latency(card))
    part("overhead", lambda: overhead(card, kinds, options.seconds, begun + 0.78 * options.budget))
    if shared:
        part("kills", lambda: kills(card, options.kills, until - 30))
    part("PyTorch", lambda: torch(card, options.seconds, until - 20))


def main() -> None:
    parser = argparse.ArgumentParser(description="Isolation on a real NVIDIA card, as one table.")
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=540, help="seconds of all")
    options = parser.parse_args()
    begun = time.monotonic()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # what is cut off has said what it knew
    end_at(options.budget + 25, begun)
    build()
    try:
        driver = Driver()
        card = driver.card(options.device)
    except (OSError, Failed) as error:
        sys.exit(f"gpu: no CUDA driver or card for this process ({error}); nothing was measured")
    part("surroundings", lambda: surroundings(driver, card))
    try:
        in_force(card)
    except Failed as error:
        sys.exit(f"gpu: {error}")
    measure(driver, card, options, begun)
    summary(begun)


if __name__ == "__main__":
    main()
