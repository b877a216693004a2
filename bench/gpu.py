"""Isolation on a real NVIDIA card: memory caps, shares, hand-over, overhead, kills; one table, within ten minutes.

    python3 bench/gpu.py [--seconds 2] [--device 0] [--kills 1000] [--budget 540]

Needs the driver and Python 3.8, and no package, not even Partage's own. It builds the library and the test programs
with gcc and make if these exist; otherwise bring `build/native` along. Kernels are our own, through the driver API
(native/tools/kernels.h); PyTorch is measured if it is installed. A share is a tenant's rate over its rate alone and
without the library, so it needs no counter of the card. It configures nothing on the card. Other work on the card
falsifies the figures. A part that fails reports it and the next begins; a program that hangs is killed; when the time
is up the table ends as it is. On the stand-in driver it runs unchanged:

    build/native/fake-card /tmp/gpu & LD_LIBRARY_PATH=build/native/fake FAKE_GPU_SOCKET=/tmp/gpu python3 bench/gpu.py --seconds 0.5

Each part also writes all measurements, and details for the analysis of failures (the card's clocks, every tenant's
activity over time, the library's counters for it, programs' output), into one JSON file: `--json`, else
`$OUT/gpu.json` if that is set. bench/card_probes.py tests the properties of the card that the library relies on.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "native"
SEATS, SEAT_BYTES = 63, 4096
ACCOUNT_BYTES = 733184
ACCOUNT_MARK = b"PRTACCT2"
AMOUNTS_MARK = b"PRTAMTS1"
AMOUNTS_AT = 64
POLICIES = {"best-effort": 0, "fixed-share": 1, "burst-share": 2, "none": 3}
GIVEN = 1 << 56
MIB = 2**20
GRANULE = 2 * MIB
GRAPHS = ("graph", "node", "capture")
"""Ways in which a graph allocates (native/tests/memory.c)."""
MISSED: list[str] = []
"""Missed requirements."""
OTHERWISE: list[str] = []
"""The library's assumptions that this card breaks."""
RECORD: dict[str, Any] = {"rows": [], "runs": [], "clocks": [], "assumptions": [], "judged": []}
"""All results for the file, beside the printed ones."""
FILE: list[Path] = []
"""The file's path, if any."""
BEGUN = time.monotonic()
PART = [""]
"""The current part."""
STARTED = [0.5]
"""Seconds from a program's start to its first launch; measured before use."""
PATIENCE = 60
"""Seconds beyond a program's working time after which it is killed."""
POINTS = 1
"""The allowed distance, in points, between a tenant's part of the sum that all received and its quota."""
LOST = 3
"""The allowed loss, in percent of the card, of tenants that fill it, compared with one alone. Between two turns the
card changes contexts, 0.2 ms at a time on an H100 and an H200, and no tenant can use this time."""
EACH = 30
"""Seconds that a probe of the card may take, including the driver's start."""
RUNNING: set[subprocess.Popen[str]] = set()
"""Programs to kill when the time is up."""
ELSEWHERE = (
    "usr/lib/*-linux-gnu",
    "usr/lib64",
    "usr/local/nvidia/lib64",
    "usr/local/cuda*/compat",
    "run/nvidia/driver/usr/lib/*",
)
"""Paths of the driver in containers whose loader does not find it."""
MEANING = {
    3: "the driver was not initialised in this process",
    34: "this is the stub library of the toolkit, not a driver",
    46: "the card is taken by another process: its compute mode is exclusive, or it is prohibited",
    100: "the driver sees no card: is one given to this container (/dev/nvidia*), and has a card in MIG mode an instance?",
    209: "the kernels fit no card of this kind",
    218: "the driver does not accept the kernels (PTX 6.4, sm_70)",
    221: "libnvidia-ptxjitcompiler.so is missing: give the container the driver capability `compute`",
    222: "the kernels' PTX version is not known to this driver",
    800: "not permitted: by the library, see its line above",
    802: "the card or its NVSwitch fabric is not ready (is nvidia-fabricmanager running?)",
    803: "the kernel's driver and the library are of different versions",
    804: "forward compatibility of a newer driver library is not supported on this card",
    999: "unknown; often /dev/nvidia-uvm or nvidia-modprobe is missing in the container",
}
"""Meanings of the driver's codes for a script."""
MEMORY = ("memory", "preload", "memory by the driver", "adjustment of memory", "kills")
"""The parts that confirm the cap. All others except PyTorch's confirm turns, shares and their cost; PyTorch's shows a
program's view."""
MEMORY_OFF = (
    "choose another provider for such nodes (agent.isolation.provider: hami-core, mps or mig)"
)
COMPUTE_OFF = "leave agent.isolation.compute at false there: memory alone is held, and no launch is held back"
INSTEAD = {
    "names": MEMORY_OFF,
    "variants": MEMORY_OFF,
    "addresses": MEMORY_OFF,
    "identity": MEMORY_OFF,
    "uvm": "keep agent.isolation.notInForce at report: programs that only ask NVML look like programs that bypass the library",
    "context": "set agent.isolation.contextMemory to what a context takes, and memorySlack to 0 or little more",
    "pieces": "leave room on the card: allocations take more than is counted until the agent has measured them",
    "module": "give programs with large modules room below their cap: what these take may be counted wrongly for 30 s",
    "pool": "leave room on the card: pools hold more than is counted until the agent has measured them",
    "graph_pool": "leave room on the card: graphs hold more than is counted until the agent has measured them",
    "graph_code": "raise agent.isolation.memorySlack: graphs take memory of their own beyond the cap",
    "heap": "raise agent.isolation.memorySlack: device heaps take more than is counted",
    "printing": "raise agent.isolation.memorySlack: stacks and buffers of printf take more than is counted",
    **dict.fromkeys(
        ("lent", "handed", "pooled"),
        "give programs that share memory between processes room below their cap: it may be counted after it has ended",
    ),
    "neighbour": "give programs room below their cap: a neighbour's memory may be counted for a module for 30 s",
}
"""By broken assumption, the remedy; turns and the counting of work need all assumptions that are not listed."""
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
    """One part cannot be measured, but the others can."""


def meaning(text: str) -> str:
    """A program's last output, with the driver's code explained."""
    told = " ".join(text.split())[-160:]
    found = re.search(r"driver error (\d+)", told)
    return f"{told} ({MEANING[int(found[1])]})" if found and int(found[1]) in MEANING else told


def save() -> None:
    """Write the present record; the file is complete at any moment."""
    for path in FILE:
        RECORD["seconds"], RECORD["missed"] = round(time.monotonic() - BEGUN, 1), MISSED
        fresh = path.with_name(path.name + ".new")
        try:
            fresh.write_text(json.dumps(RECORD), encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            FILE.clear()
            print(f"the record cannot be written: {error}")


class Clocks(threading.Thread):
    """The card's clocks, four times a second, by NVML; omits unknown ones."""

    ASKED = (
        ("mhz", "nvmlDeviceGetClockInfo", (1,)),
        ("celsius", "nvmlDeviceGetTemperature", (0,)),
        ("milliwatts", "nvmlDeviceGetPowerUsage", ()),
        ("slowed", "nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    )

    def __init__(self, card: Card) -> None:
        super().__init__(daemon=True)
        self._card = card

    def run(self) -> None:
        try:
            nvml, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
            if nvml.nvmlInit_v2():
                return
            found = nvml.nvmlDeviceGetHandleByUUID(self._card.uuid.encode(), ctypes.byref(handle))
            if found == 0 and self._card.uuid.startswith("MIG-"):
                found = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
                    handle, ctypes.byref(handle)
                )
        except (OSError, AttributeError):
            return
        while found == 0:
            sample: dict[str, int] = {"at": time.monotonic_ns()}
            for name, function, more in self.ASKED:
                value, ask = ctypes.c_uint64(), getattr(nvml, function, None)
                if ask and ask(handle, *more, ctypes.byref(value)) == 0:
                    sample[name] = value.value
            RECORD["clocks"].append(sample)
            time.sleep(0.25)


def clock(begin: int, end: int) -> float | None:
    """MHz of the multiprocessors between two moments; None if unknown."""
    seen = [one["mhz"] for one in RECORD["clocks"] if "mhz" in one and begin <= one["at"] <= end]
    return statistics.mean(seen) if len(seen) > 1 else None


def counted(home: Path) -> dict[str, int]:
    """The library's counters of a tenant (native/include/page.h): device ns, ns held back, refused allocations."""
    try:
        words = (home / "account").read_bytes()[64 : 64 + 40]
    except OSError:
        return {}
    value = [int.from_bytes(words[at : at + 8], "little") for at in range(0, 40, 8)]
    return {"served_ns": value[2], "waited_ns": value[3], "refused": value[4]}


def noted(kind: str, **more: object) -> None:
    """Add one run of programs to the record."""
    RECORD["runs"].append({"part": PART[0], "kind": kind, **more})


def thinned(series: list[tuple[int, int]]) -> list[list[int]]:
    """Reports as pairs of whole milliseconds since the first report and launches."""
    return [[(when - series[0][0]) // 10**6, count] for when, count in series]


def start(command: list[str], where: dict[str, str], **options: object) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = subprocess.Popen(command, env=where, text=True, **options)  # type: ignore[call-overload]
    RUNNING.add(process)
    return process


def ended(
    process: subprocess.Popen[str], seconds: float, text: str | None = None
) -> tuple[str, str]:
    """A program's output and errors; kills a program that hangs, and reports it."""
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
    """A workload: a kernel, its first parameter, and its way of launch."""

    name: str
    kernel: str
    size: int
    how: str = "kernel"
    depth: int = 64
    """Launches before each wait; some ms of work, because a launch counts at its call."""

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
            files = bytes(SEATS * 8) + (1).to_bytes(8, "little") * SEATS  # each seat has file 1
            (folder / "card-0" / "terms").write_bytes(files.ljust(SEAT_BYTES, b"\0"))
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
"""Folder of tenants' files; the usual place unless no library can be loaded from there."""


@dataclass(frozen=True)
class Limits:
    """A tenant's limits."""

    core: int
    policy: str
    memory: int = 0


def room(folder: Path, uuid: str, slot: int, limits: Limits) -> Path:
    """Make a container's files as the agent does (partage.agent.isolation); returns the library's path there."""
    home = folder / f"t{slot}"
    home.mkdir()
    (home / "card-0").symlink_to(folder / "card-0")
    (home / "account").write_bytes(ACCOUNT_MARK.ljust(ACCOUNT_BYTES, b"\0"))
    (home / "amounts").write_bytes(AMOUNTS_MARK.ljust(SEAT_BYTES, b"\0"))
    adjust(folder, slot, limits)
    lines = [
        "partage-limits 2",
        f"container {slot + 1:x}",
        "account account",
        f"card {uuid}",
        "seats card-0",
        f"slot {slot}",
        f"memory {limits.memory}",
        f"core {limits.core}",
        f"policy {limits.policy}",
        "priority ordinary",
        "swap 0",
        "context 0",
        "end",
        "",
    ]
    (home / "limits").write_text("\n".join(lines), encoding="ascii")
    shutil.copy(BUILD / "libpartage-isolation.so", home / "library.so")
    return home / "library.so"


def adjust(folder: Path, slot: int, limits: Limits) -> None:
    """Put amounts in force, also for running programs, by words of pages that these have mapped."""

    def word(path: Path, where: int, value: int) -> None:
        with path.open("r+b") as file:
            file.seek(where)
            file.write(value.to_bytes(8, "little"))

    word(folder / f"t{slot}" / "amounts", AMOUNTS_AT, limits.memory)
    word(folder / f"t{slot}" / "amounts", AMOUNTS_AT + 8, limits.core)
    terms = GIVEN | POLICIES[limits.policy] << 32 | 1 << 40 | limits.core
    word(folder / "card-0" / "terms", slot * 8, terms)


def reports(text: str) -> list[tuple[int, int]]:
    found = re.findall(r"^report (\d+) (\d+)$", text, re.MULTILINE)
    return [(int(when), int(count)) for when, count in found]


def at(series: list[tuple[int, int]], when: int) -> float:
    """The launches done at a time, interpolated between the reports around it."""
    before = [point for point in series if point[0] <= when]
    after = [point for point in series if point[0] > when]
    if not before:
        return 0
    if not after:
        return before[-1][1]
    (t0, c0), (t1, c1) = before[-1], after[0]
    return c0 + (c1 - c0) * (when - t0) / (t1 - t0)


class Driver:
    """The few driver calls of the script itself."""

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
        # The first form names the whole card even if the device is an instance (MIG) of it.
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
        """Free bytes by the driver's report; this process is under no limits."""
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        try:
            self.call("cuCtxSetCurrent", context)
            self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        finally:
            # A kept context would hold memory of the card, and the whole card if only one process may use it.
            self.call("cuCtxSetCurrent", None)
            self.call("cuDevicePrimaryCtxRelease_v2", self._device)
        return free.value


def opened_driver() -> ctypes.CDLL:
    """Load the driver's library, and make it visible to programs if it is outside the loader's path.

    Raises:
        OSError: there is no driver.
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


@dataclass(frozen=True)
class Rate:
    """A workload's rate alone on the card, and the clock during the run."""

    each_second: float
    mhz: float | None


def alone(card: Card, kind: Kind, seconds: float, limits: Limits | None = None) -> Rate:
    """The rate of a single tenant, in the second half of its run."""
    with card.folder() as folder:
        done = ran(load(kind, seconds), card.environment(folder, 0, limits), seconds + PATIENCE)
        book = counted(folder / "t0")
    series = reports(done.stdout)
    if done.returncode or len(series) < 4:
        noted(kind.name, alone=str(limits), code=done.returncode, said=done.stderr[-500:])
        raise Failed(
            meaning(done.stderr) or f"ended with {done.returncode} and {len(series)} reports"
        )
    t0, t1 = series[len(series) // 2][0], series[-1][0]
    rate = Rate((at(series, t1) - at(series, t0)) * 1e9 / (t1 - t0), clock(t0, t1))
    noted(
        kind.name,
        size=kind.size,
        alone=str(limits),
        rate=rate.each_second,
        mhz=rate.mhz,
        book=book,
    )
    return rate


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
        books = [counted(folder / f"t{slot}") for slot in range(len(tenants))]
    series = [reports(out) for out, _ in told]
    noted(
        kind.name,
        size=kind.size,
        tenants=[str(one) for one in tenants],
        books=books,
        began=[one[0][0] if one else 0 for one in series],
        reports=[thinned(one) for one in series],
        said=[error[-500:] for _, error in told],
    )
    if any(len(one) < 4 for one in series):
        raise Failed(meaning(" ".join(error for _, error in told)) or "too few reports")
    return series


def parts(series: list[list[tuple[int, int]]], rate: Rate, kind: Kind) -> list[float]:
    """Each tenant's percent of the rate alone, over the middle of the time in which all ran.

    A card under less load may run at higher clocks, but a share is a part of time. So this converts arithmetic to the
    clock of the run alone, if the driver reports both clocks.
    """
    begin, end = max(one[0][0] for one in series), min(one[-1][0] for one in series)
    t0, t1 = begin + (end - begin) // 5, end - (end - begin) // 10
    now = clock(t0, t1)
    faster = now / rate.mhz if kind.kernel == "mul" and now and rate.mhz else 1.0
    if abs(faster - 1) > 0.01:
        row("", "", f"(at {now:.0f} MHz; alone {rate.mhz:.0f})")
    whole = rate.each_second * faster
    return [100 * (at(one, t1) - at(one, t0)) * 1e9 / (t1 - t0) / whole for one in series]


def sized(card: Card, name: str, kernel: str, target_us: float, size: int, depth: int) -> Kind:
    """A workload whose launch takes about `target_us` on this card."""
    most = 2**28 if kernel == "copy" else 2**31  # words of a buffer: 1 GiB
    for _ in range(3):
        rate = alone(card, Kind(name, kernel, size, depth=depth), 0.6).each_second
        off = target_us * rate / 1e6
        size = min(most, max(1, int(size * off)))
        # The time of a kernel that is as short as its launch hardly predicts the time of a larger one.
        if 0.5 < off < 2:
            break
    row(name, f"kernels of {target_us:.0f} us", f"first parameter {size}")
    return Kind(name, kernel, size, depth=depth)


def small(card: Card) -> Kind:
    """Many small kernels, but three times as long as their launch; otherwise the host would limit the rate alone."""
    rate = alone(card, Kind("many small", "mul", 1, depth=256), 0.6).each_second
    return sized(card, "many small", "mul", max(8.0, 3e6 / rate), 100, 256)


def row(*cells: object) -> None:
    RECORD["rows"].append([PART[0], round(time.monotonic() - BEGUN, 1), *map(str, cells)])
    widths = (26, 30, 34, 12, 8)
    print("  " + "  ".join(f"{cell!s:<{width}}" for cell, width in zip(cells, widths)).rstrip())  # noqa: B905 # 3.8
    sys.stdout.flush()


def judged(good: bool, what: str) -> str:  # noqa: FBT001 # the answer, not a switch
    RECORD["judged"].append([PART[0], good, what])
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
    """The memory that a program at its cap takes of the card; None if the program failed."""
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


def by_the_driver(card: Card, driver: Driver) -> None:
    """Measure programs' memory at the cap by the driver's report, not ours, beside plain allocations at the cap."""
    print(
        "memory by the driver's word: what it takes for a program at its cap, beyond context and cap"
    )
    large = 2048 * MIB
    cases = [
        ("plain, half", large // 2, 2 * GRANULE, ["memory", "plain", str(GRANULE)]),
        *(
            (path, large, 2 * GRANULE, ["memory", path, str(GRANULE)])
            for path in ("pitch", "handle", "array")
        ),
        *(
            (path, large, 64 * MIB, ["memory", path, str(32 * MIB)])
            for path in ("pool", "newpool", *GRAPHS)
        ),
        (
            "sum of graphs",
            large,
            64 * MIB,
            ["graphs", "dlsym", "a=" + ",".join(["K700"] * 4), "i:a", "s"],
        ),
    ]

    def taken(cap: int, command: list[str]) -> int | None:
        with card.folder() as folder:
            where = card.environment(folder, 0, card.limits(1000, "none", cap))
            whole = [*command, "dlsym", "hold"] if command[0] == "memory" else [*command, "hold"]
            return held(driver, where, whole)

    plain = taken(large, ["memory", "plain", str(GRANULE)])
    if plain is None:
        raise Failed("plain allocations at the cap failed")
    context = plain - large
    row("plain", f"{plain / MIB:.2f} MiB", f"of them context {context / MIB:.2f} MiB")
    for name, cap, most, command in cases:
        found = taken(cap, command)
        if found is None:
            row(f"{name} held", "failed", "", "", judged(False, f"memory by the driver, {name}"))
            continue
        beyond = found - context - cap
        row(
            f"{name} held",
            f"{beyond / MIB:+.2f} MiB",
            "",
            f"<= {most // MIB} MiB",
            judged(context >= 0 and beyond <= most, f"memory by the driver, {name}"),
        )


def off(got: list[float], quotas: list[float]) -> tuple[float, float]:
    """The tenants' largest distance from their quotas and their common loss, in percent of the card.

    If the quotas fill the card, the distance is that of parts of the sum received, and the loss is the cost of turns.
    """
    fills = sum(quotas) == 100
    whole = sum(got) / 100 if fills and sum(got) > 0 else 1.0
    error = max(abs(part / whole - quota) for part, quota in zip(got, quotas))  # noqa: B905 # 3.8
    return error, 100 - sum(got) if fills else 0.0


def compute(card: Card, kinds: list[Kind], seconds: float, until: float) -> None:
    for kind in kinds:
        rate = alone(card, kind, seconds)
        for quotas in ([300], [100, 900], [300, 700], [500, 500], [250] * 4):
            if time.monotonic() > until:
                return row(kind.name, "left out: no time", "", "", judged(False, "time"))
            tenants = [card.limits(quota, "fixed-share") for quota in quotas]
            quoted = "/".join(str(quota // 10) for quota in quotas)
            try:
                # Several contexts start one after the other.
                starting = min(1, 2 * seconds) * (1 + len(tenants) / 4)
                series = together(card, kind, tenants, seconds + starting)
            except Failed as failure:
                row(
                    kind.name,
                    quoted,
                    f"failed: {failure}",
                    "",
                    judged(False, f"{kind.name} {quoted}"),
                )
                continue
            got = parts(series, rate, kind)
            error, lost = off(got, [quota / 10 for quota in quotas])
            told = " / ".join(f"{part:.1f}" for part in got)
            good = error <= POINTS and lost <= LOST
            verdict = judged(good, f"{kind.name} {quoted}: {told}")
            row(kind.name, quoted, told, f"{error:.1f}; {lost:.1f}", verdict)
            if not good:
                book = RECORD["runs"][-1]["books"]
                waited = " / ".join(f"{one.get('waited_ns', 0) / 1e6:.0f}" for one in book)
                served = " / ".join(f"{one.get('served_ns', 0) / 1e6:.0f}" for one in book)
                row("", "counted by the library, ms:", served, f"held back {waited}")
    return None


def hand_over(card: Card, kind: Kind, seconds: float) -> None:
    print("burst-share: 10 % and 40 %; the first alone, then both")
    rate = alone(card, kind, seconds)
    tenants = [card.limits(quota, "burst-share") for quota in (100, 400)]
    series = together(card, kind, tenants, 2 * seconds + 2, delay=seconds)
    woke = series[1][0][0]
    first = next((when for when, count in series[1] if count), woke)
    before = 100 * (at(series[0], woke) - at(series[0], woke - 5 * 10**8)) * 2 / rate.each_second
    got = parts(series, rate, kind)
    error, lost = off(got, [20, 80])
    good = error <= POINTS and lost <= LOST
    row(
        kind.name,
        f"alone {before:.1f}",
        " / ".join(f"{part:.1f}" for part in got),
        "20 / 80",
        judged(good, "burst-share"),
    )
    row(
        "",
        "first launch of the second",
        f"after {(first - woke) / 1e6:.1f} ms (reports every 5 ms)",
    )


def adjusted_memory(card: Card) -> None:
    """Raise a cap, then lower it below the present use, while a program keeps allocating."""
    caps = (1024 * MIB, 1536 * MIB, 512 * MIB)
    with card.folder() as folder:
        where = card.environment(folder, 0, card.limits(1000, "none", caps[0]))
        command = [str(BUILD / "memory"), "plain", str(GRANULE), "dlsym", "hold"]
        process = start(command, where, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        got: list[int] = []
        for cap in caps:
            adjust(folder, 0, card.limits(1000, "none", cap))
            if got and process.stdin:
                process.stdin.write("+")
                process.stdin.flush()
            for line in process.stdout or ():
                if line.startswith("total "):
                    got.append(int(line.split()[1]))
                    break
        late.cancel()
        ended(process, PATIENCE, "")
    told = " / ".join(f"{one / MIB:.0f}" for one in got)
    good = got == [caps[0], caps[1], caps[1]]
    row(
        "memory, MiB",
        "cap " + " / ".join(str(cap // MIB) for cap in caps),
        told,
        "",
        judged(good, f"adjusted memory: {told}"),
    )


def adjusted(card: Card, kind: Kind, seconds: float) -> None:
    """Exchange the quotas of two busy tenants; each must reach its new quota within a second and stay there."""
    before, after = (300, 700), (700, 300)
    late, long = 1.0, 2 * seconds
    rate = alone(card, kind, seconds)
    with card.folder() as folder:
        running = []
        for slot, quota in enumerate(before):
            where = card.environment(folder, slot, card.limits(quota, "fixed-share"))
            command = load(kind, 2 * long + late + 1.5)
            running.append(start(command, where, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        time.sleep(1.5 + long)
        changed = time.monotonic_ns()
        for slot in (1, 0):  # the lowered one first, as the agent does
            adjust(folder, slot, card.limits(after[slot], "fixed-share"))
        told = [ended(process, 3 * long + PATIENCE) for process in running]
    series = [reports(out) for out, _ in told]
    if any(len(one) < 4 for one in series):
        raise Failed(meaning(" ".join(error for _, error in told)) or "too few reports")
    end = min(one[-1][0] for one in series)

    def received(t0: int, t1: int) -> list[float]:
        return [
            100 * (at(one, t1) - at(one, t0)) * 1e9 / (t1 - t0) / rate.each_second
            for one in series
        ]

    step = 10**8
    reached = next(
        (
            when - changed
            for when in range(changed, end - step, step // 10)
            if off(received(when, when + step), [70, 30])[0] <= 5
        ),
        None,
    )
    then = received(changed - int(long * 8e8), changed)
    now = received(changed + int(late * 1e9), end)
    worst = max(off(then, [30, 70])[0], off(now, [70, 30])[0])
    turn = 100 * 0.02 / (long * 0.8)  # one turn more or less in the measured time
    good = worst <= POINTS + turn and reached is not None and reached <= late * 1e9
    shown = "; then ".join(" / ".join(f"{part:.1f}" for part in one) for one in (then, now))
    soon = "never" if reached is None else f"{reached / 1e6:.0f} ms"
    row(kind.name, shown, f"there after {soon}", "", judged(good, f"adjusted: {shown}, {soon}"))
    noted(
        kind.name, adjusted=[then, now], reached=reached, reports=[thinned(one) for one in series]
    )


def overhead(card: Card, kinds: list[Kind], seconds: float, until: float) -> None:
    print(
        "overhead: workload, limits, time lost to the rate without the library (median of 5 pairs)"
    )
    choices = {
        "library, no cap": (card.limits(1000, "none"), 2.0),
        "memory cap, not reached": (card.limits(1000, "none", card.total // 2), 3.0),
        "gated alone, not reached": (card.limits(1000, "burst-share", card.total // 2), 3.0),
    }
    for i, kind in enumerate(kinds):
        # If programs start slowly, each run is shorter, so that there is time for five of each.
        room_for = (until - time.monotonic()) / (len(kinds) - i) / (5 * (1 + len(choices)))
        each = max(min(0.3, seconds / 2), min(seconds / 2, room_for - STARTED[0]))
        lost: dict[str, list[float]] = {}
        rounds = 0
        while rounds < 5 and time.monotonic() < until:
            # A warm card is slower, so each run is compared with the one just before it.
            base = alone(card, kind, each).each_second
            for name, (limits, _) in choices.items():
                rate = alone(card, kind, each, limits).each_second
                lost.setdefault(name, []).append(100 * (1 - rate / base))
            rounds += 1
        if rounds < 5:
            verdict = judged(False, f"overhead of {kind.name}: time")
            row(kind.name, f"only {rounds} of 5 runs: no time", "", "", verdict)
        for name, (_, most) in choices.items():
            if lost.get(name):
                median = statistics.median(lost[name])
                verdict = judged(
                    median <= most, f"overhead of {kind.name}, {name}: {median:.2f} %"
                )
                span = f"{min(lost[name]):+.1f} to {max(lost[name]):+.1f}"
                row(kind.name, name, f"{median:+.2f} % ({span})", f"<= {most:g} %", verdict)


def launch_bound(card: Card, seconds: float) -> None:
    """Measure kernels shorter than their launch, which show the library's whole cost. No figure is required."""
    kind, lost = Kind("launch-bound", "mul", 1, depth=256), []
    for _ in range(3):
        base = alone(card, kind, seconds / 2).each_second
        gated = alone(card, kind, seconds / 2, card.limits(1000, "burst-share")).each_second
        lost.append(100 * (1 - gated / base))
    row(kind.name, "gated alone", f"{statistics.median(lost):+.2f} %", "(figure)")


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
    for how in ("own", "per-thread"):
        spent = []
        for gated in (False, True):
            with card.folder() as folder:
                limits = card.limits(1000, "burst-share") if gated else None
                done = ran(probing("--timed", how), card.environment(folder, 0, limits), PATIENCE)
            found = re.search(r"^launch (\d+)$", done.stdout, re.MULTILINE)
            spent.append(int(found[1]) if found else None)
        bare, gate = spent
        told = f"{gate - bare:+d} ns" if bare is not None and gate is not None else "not asked"
        row(f"{how} stream, gated", told, "by a caller in Python")


def kills(card: Card, count: int, until: float) -> None:
    """Kill tenants that launch, run graphs and allocate by SIGKILL at random points, half of them while they start."""
    chance = random.Random(1)  # noqa: S311 # no secret
    cap, slots = 512 * MIB, 8
    # A driver starts and clears up slowly, so several programs die in each tenant at a time if the card has room.
    fits = (card.total - slots * cap) // (slots * 700 * MIB)
    each = max(1, min(6, fits, count // 100))
    span = max(0.2, 2 * STARTED[0])
    commands = [
        ["load", "--kernel", "mul", "--size", "2000", "--seconds", "60", "--depth", "8"],
        [
            "load",
            "--kernel",
            "mul",
            "--size",
            "500",
            "--seconds",
            "60",
            "--how",
            "graph",
            "--threads",
            "2",
        ],
        ["memory", "plain", str(GRANULE)],
        ["memory", "handle", str(4 * MIB)],
        ["memory", "pool", str(32 * MIB)],
        ["memory", "capture", str(32 * MIB)],
    ]
    done, begun = 0, time.monotonic()
    with card.folder() as folder:
        homes = [
            card.environment(folder, i, Limits(100, "burst-share", cap)) for i in range(slots)
        ]
        while done < count and time.monotonic() < until:
            running = []
            for where in homes * each:
                command = chance.choice(commands)
                program = [str(BUILD / command[0]), *command[1:]]
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                process = start(program, where, stdin=subprocess.DEVNULL, **quiet)
                running.append((time.monotonic() + chance.random() * span, process))
            for when, process in sorted(running, key=lambda one: one[0]):
                time.sleep(max(0.0, when - time.monotonic()))
                process.kill()
            # The driver needs time to clear up after each, but less if all die at once.
            for _, process in running:
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
    row(
        f"{done} SIGKILLs",
        f"in {took:.0f} s, 8 tenants",
        f"caps whole after: {whole} of {slots}",
        f"hangs {hangs}",
        judged(good, f"kills: {done} of {count}, {whole} caps whole"),
    )


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
    """Build with this machine's compiler if any, because included binaries may need a newer C library."""
    if shutil.which("gcc") and shutil.which("make"):
        done = ran(
            ["make", "-s", "-C", str(ROOT / "native"), f"OUT={BUILD}"], dict(os.environ), 120
        )
        if done.returncode:
            print(f"the build failed, so an earlier one is used: {meaning(done.stderr)}")
    if not (BUILD / "load").exists():
        sys.exit(
            "gpu: build/native/load is missing, and gcc and make could not build it here: copy a build/native that was built elsewhere"
        )


def in_force(card: Card) -> None:
    """Check that the library loads from the tenants' folder, because a loader that fails continues without it.

    Raises:
        Failed: no folder works.
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
    raise Failed(f"the loader does not load the library here, so nothing can be measured: {told}")


def surroundings(driver: Driver, card: Card) -> None:
    """Print the environment of the figures, and possible distortions."""
    told = (
        f"{card.name}, {card.total // MIB} MiB, {card.uuid}; {driver.version()}; "
        f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()}"
    )
    print(told)
    RECORD["card"], RECORD["kernel"] = told, " ".join(os.uname())
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
        whole = ["nvidia-smi", "-q", "-i", str(card.device)]
        RECORD["nvidia-smi"] = ran(whole, dict(os.environ), 20).stdout[:60000]
    used = card.total - driver.free()
    if used > 2048 * MIB:
        print(
            f"note: {used // MIB} MiB are in use already; other work on the card falsifies the figures"
        )


def starts(card: Card) -> None:
    """Measure the time from a program's start to its first launch, which later parts use."""
    told = []
    for limits in (None, card.limits(1000, "burst-share")):
        with card.folder() as folder:
            begun = time.monotonic()
            done = ran(
                load(Kind("", "mul", 100), 0.05), card.environment(folder, 0, limits), PATIENCE
            )
        if done.returncode:
            raise Failed(meaning(done.stderr))
        told.append(max(0.01, time.monotonic() - begun - 0.05))
    STARTED[0] = max(told)
    row(
        "start of a program",
        f"{1000 * told[0]:.0f} ms",
        f"under the library {1000 * told[1]:.0f} ms",
    )


AS_IN_A_CONTAINER = """
mount --make-rprivate / && mount --bind /etc "$1/old" || exit 9
for one in "$1"/old/* "$1"/old/.[!.]*; do [ -e "$one" ] && ln -s "$one" "$1/new/"; done
rm -f "$1/new/ld.so.preload" && echo "$2" > "$1/new/ld.so.preload" && mount --bind "$1/new" /etc || exit 9
exec "$3" show
"""


def preloaded(card: Card) -> None:
    """Load the library by /etc/ld.so.preload as in containers, with a mount of our own; other parts use LD_PRELOAD."""
    cap = 512 * MIB
    with card.folder() as folder:
        where = card.environment(folder, 0, card.limits(1000, "none", cap))
        library = where.pop("LD_PRELOAD")
        for name in ("old", "new"):
            (folder / name).mkdir()
        apart = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
        script = ["sh", "-c", AS_IN_A_CONTAINER, "sh", str(folder), library, str(BUILD / "memory")]
        try:
            done = ran([*apart, *script], where, PATIENCE)
        except OSError as error:
            return row("/etc/ld.so.preload", f"left out: {error}")
    if f"info {cap} " in done.stdout:
        return row("/etc/ld.so.preload", "in force", "", "", judged(True, ""))
    if "info" in done.stdout:
        return row(
            "/etc/ld.so.preload", "not in force", "", "", judged(False, "/etc/ld.so.preload")
        )
    return row("/etc/ld.so.preload", "left out: no mounts here", meaning(done.stderr))


def probing(*options: str) -> list[str]:
    script = ROOT / "bench" / "card_probes.py"
    return [sys.executable, "-I", "-S", str(script), *options]


def assumptions(card: Card, seconds: float) -> None:
    print("assumptions about this card and its driver: each holds or not, with what was measured")
    OTHERWISE.extend(asked((), dict(os.environ, CUDA_VISIBLE_DEVICES=card.uuid), seconds))


def under(card: Card, seconds: float) -> None:
    """Run the library's own probes as a single tenant with a cap; each meets its requirement or is a figure."""
    print("work on this card under the library: each as required or not, with what was measured")
    with card.folder() as folder:
        where = card.environment(folder, 0, card.limits(500, "burst-share", card.total // 2))
        del where["CUDA_MODULE_LOADING"]  # as for real programs
        for probe in asked(("--under",), where, seconds):
            judged(False, f"under the library: {probe}")


def asked(options: tuple[str, ...], where: dict[str, str], seconds: float) -> list[str]:
    """Run probes in one process, and continue in a new one behind a probe that hangs or crashes; the broken ones."""
    bare = {name: value for name, value in where.items() if name != "LD_PRELOAD"}
    listed = ran(probing(*options, "--list"), bare, PATIENCE)
    todo = [
        (one["probe"], one["assumption"]) for one in map(json.loads, listed.stdout.splitlines())
    ]
    if not todo:
        raise Failed(meaning(listed.stderr) or "bench/card_probes.py printed nothing")
    until, wrong = time.monotonic() + seconds, []
    behind = options
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    while todo and time.monotonic() < until:
        process = start(probing(*behind), where, **pipes)
        late = threading.Timer(EACH, process.kill)
        late.start()
        for line in process.stdout or ():
            if not line.startswith("{"):
                continue
            told = json.loads(line)
            late.cancel()
            todo.pop(0)
            said_of(told["assumption"], told["holds"], told["measured"], told["probe"])
            wrong += [told["probe"]] if told["holds"] is False else []
            if not todo or time.monotonic() > until:
                break
            late = threading.Timer(EACH, process.kill)
            late.start()
        late.cancel()
        _, error = ended(process, 5)
        if todo and time.monotonic() < until:
            probe, assumption = todo.pop(0)
            said_of(
                assumption, None, f"the probe hangs or crashes {meaning(error)}".strip(), probe
            )
            behind = (*options, "--after", probe)
    for probe, assumption in todo:
        said_of(assumption, None, "left out: no time", probe)
    return wrong


def said_of(assumption: str, holds: bool | None, measured: str, probe: str) -> None:  # noqa: FBT001 # the probe's answer
    RECORD["assumptions"].append([probe, assumption, holds, measured])
    verdict = {True: "holds", False: "DOES NOT HOLD", None: "-"}[holds]
    print(f"  {probe}: {assumption}\n      {verdict}: {measured}")


def part(what: str, measure: Callable[[], object]) -> None:
    """Run one part; its failure does not stop the others."""
    PART[0] = what
    try:
        measure()
    except Exception as error:  # noqa: BLE001 # an untested card may cause any error
        told = str(error) or type(error).__name__
        row(what, f"failed: {told}", "", "", judged(False, what))
    for process in tuple(RUNNING):
        process.kill()
        ended(process, PATIENCE)
    save()


def page() -> None:
    """Print kept and broken assumptions, and features to switch off, for docs/how-to/first-card.md."""
    good: dict[str, list[bool]] = {}
    for name, fine, _ in RECORD["judged"]:
        good.setdefault(name, []).append(fine)
    known = {name for name, _, holds, _ in RECORD["assumptions"] if holds is not None}
    wrong = [name for name, _, holds, _ in RECORD["assumptions"] if holds is False]
    held = [name for name, found in good.items() if all(found)]
    print("\nwhat held")
    for name in held:
        print(f"  {name}: {len(good[name])} as required")
    print(
        f"  assumptions about card and driver: {len(known) - len(wrong)} of {len(known)} measured hold"
    )
    print("what did not")
    for name, found in good.items():
        if name not in held:
            missed = [
                what for part_of, fine, what in RECORD["judged"] if part_of == name and not fine
            ]
            print(f"  {name}: {len(missed)} of {len(found)}: {'; '.join(missed)[:300]}")
    for name in wrong:
        print(f"  {name}: {next(one[1] for one in RECORD['assumptions'] if one[0] == name)}")
    advice = advised(good, wrong)
    RECORD["advice"] = advice
    print("what to switch off or set")
    for line in advice:
        print(f"  {line}")


def advised(good: dict[str, list[bool]], wrong: list[str]) -> list[str]:
    """Features to switch off, by judged parts and broken assumptions; the worst first."""
    advice = []
    capped = [name for name in MEMORY if name in good]
    other = [name for name in good if name not in (*MEMORY, "PyTorch", "")]
    unmeasured = [name for name in MEMORY[:2] if name not in good]
    if (
        unmeasured
        or not all(all(good[name]) for name in capped)
        or any(INSTEAD.get(name) == MEMORY_OFF for name in wrong)
    ):
        advice.append(f"memory caps are not confirmed here: {MEMORY_OFF}")
    else:
        advice.append(
            "memory caps: nothing; agent.isolation.provider: partage may be used as it is"
        )
    compute = [name for name in wrong if name not in INSTEAD]
    missed = [name for name in other if not all(good[name])]
    shares = [name for name in other if name not in {"assumptions", "surroundings", "start"}]
    if missed or compute or not shares:
        why = ", ".join((*missed, *compute)) or "not measured"
        advice.append(f"compute is not confirmed here ({why}): {COMPUTE_OFF}")
    else:
        advice.append(
            "compute: nothing; agent.isolation.compute: true may be set for nodes with such cards and this driver"
        )
    more = {
        INSTEAD[name]: name for name in wrong if name in INSTEAD and INSTEAD[name] != MEMORY_OFF
    }
    return [*advice, *(f"{name}: {text}" for text, name in more.items())]


def summary(begun: float) -> None:
    page()
    if OTHERWISE:
        print(f"assumptions that this card breaks: {', '.join(OTHERWISE)}")
    print(
        f"{time.monotonic() - begun:.0f} s; "
        + (f"MISSED: {'; '.join(MISSED)}" if MISSED else "all as required")
    )
    sys.stdout.flush()
    save()


def end_at(seconds: float, begun: float) -> None:
    """When the time is up, end the table as it is, even during a wait."""

    def stop() -> None:
        judged(False, "time: cut off")
        # The kills come last: a part that fails because of them is not one that the card misses.
        summary(begun)
        for process in tuple(RUNNING):
            process.send_signal(signal.SIGKILL)
        os._exit(1)

    watch = threading.Timer(seconds, stop)
    watch.daemon = True
    watch.start()


def measure(driver: Driver, card: Card, options: argparse.Namespace, begun: float) -> None:
    kinds: list[Kind] = []

    def make(name: str, kernel: str, target_us: float, size: int, depth: int) -> None:
        kinds.append(sized(card, name, kernel, target_us, size, depth))

    until = begun + options.budget
    shared = driver.is_shared()
    part("memory", lambda: memory(card))
    part("preload", lambda: preloaded(card))
    part("start", lambda: starts(card))
    part("assumptions", lambda: assumptions(card, options.budget * 0.1))
    part("under the library", lambda: under(card, options.budget * 0.05))
    if shared:
        part("memory by the driver", lambda: by_the_driver(card, driver))
    else:
        row("two processes at a time", "left out: compute mode", "", "", judged(False, "sharing"))
    part("matrix arithmetic", lambda: make("matrix arithmetic", "mul", 1000, 20_000, 6))
    large = list(kinds)
    part("elementwise", lambda: make("elementwise", "copy", 300, 2**24, 16))
    part("many small", lambda: kinds.append(small(card)))
    kinds += [Kind("graphs", "mul", max(1, one.size // 4), "graph", 2) for one in large]
    now = time.monotonic()
    share = max(0.0, begun + options.budget * 0.58 - now) / max(1, len(kinds))
    print(
        "fixed-share: workload, quotas, received (percent of the rate alone), largest error (points, of what all received); lost"
    )
    for i, kind in enumerate(kinds if shared else ()):
        # Each workload has its part of the time, so that the last one does not always lack time.
        last = now + (i + 1) * share
        part(kind.name, lambda kind=kind, last=last: compute(card, [kind], options.seconds, last))  # type: ignore[misc]
    for kind in large if shared else ():
        part("burst-share", lambda kind=kind: hand_over(card, kind, options.seconds))  # type: ignore[misc]
    print("amounts that change while programs run: memory; quotas 30/70, then 70/30")
    part("adjustment of memory", lambda: adjusted_memory(card))
    if large and shared:
        part("adjustment", lambda: adjusted(card, large[0], options.seconds))
    part("latency", lambda: latency(card))
    part("overhead", lambda: overhead(card, kinds, options.seconds, begun + 0.8 * options.budget))
    if shared:
        part("kills", lambda: kills(card, options.kills, until - 30))
    part("PyTorch", lambda: torch(card, options.seconds, until - 20))
    if time.monotonic() < until - 10:
        part("launch-bound", lambda: launch_bound(card, options.seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description="Isolation on a real NVIDIA card, as one table.")
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=540, help="seconds of all")
    out = Path(os.environ["OUT"]) / "gpu.json" if os.environ.get("OUT") else None
    parser.add_argument("--json", type=Path, default=out, help="file for all that was measured")
    options = parser.parse_args()
    begun = BEGUN
    FILE.extend([options.json] if options.json else [])
    RECORD["options"] = {name: str(value) for name, value in vars(options).items()}
    RECORD["began"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a killed run must have printed its results
    end_at(options.budget + 25, begun)
    build()
    try:
        driver = Driver()
        card = driver.card(options.device)
    except (OSError, Failed) as error:
        sys.exit(f"gpu: no CUDA driver or card for this process ({error}); nothing was measured")
    Clocks(card).start()
    part("surroundings", lambda: surroundings(driver, card))
    try:
        in_force(card)
    except Failed as error:
        sys.exit(f"gpu: {error}")
    measure(driver, card, options, begun)
    summary(begun)


if __name__ == "__main__":
    main()
