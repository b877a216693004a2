"""Tests the enforcement library's assumptions about a card and its driver on the card: one assumption, one line.

    python3 bench/card_probes.py [--device 0] [--after NAME] [--only NAME] [--list]
    python3 bench/card_probes.py --under [--after NAME] [--only NAME] [--list]
    python3 bench/card_probes.py --timed own | per-thread

`bench/gpu.py` runs it and prints the lines as a table. Each line is one JSON object: `probe`, `assumption`, `holds`
(true, false, or null if only a figure is wanted or the driver has no such function) and `measured`. Needs the driver
and Python 3.8, and no library of ours, because it asks the bare driver. A probe that hangs or crashes leaves no line;
the caller continues behind it with `--after`. With `--under` it is itself a tenant (of `bench/gpu.py`), and reads the
library's view of its work on this card from the book that the library keeps. `--timed` prints the median ns of a
launch's call on an ordinary or the per-thread stream.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

SOURCES = Path(__file__).resolve().parents[1] / "native" / "src"
MIB = 2**20
GRANULE = 2 * MIB
SLACK = 1024 * MIB
"""The growth of a process beyond its cap that the chart's default accepts; a context counts 0 until it is measured."""
PROMPT_NS, CHEAP_NS = 3000, 1500
"""The most ns of a call that the library makes for every group of launches, and of one that it makes at every look."""
KERNELS = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns)
{
 .reg .u64 %t<4>; .reg .pred %p;
 ld.param.u64 %t0, [ns];
 mov.u64 %t1, %globaltimer;
again:
 mov.u64 %t2, %globaltimer;
 sub.u64 %t3, %t2, %t1;
 setp.lt.u64 %p, %t3, %t0;
 @%p bra again;
 ret;
}
.visible .entry gaps(.param .u64 ns, .param .u64 out, .param .u64 least)
{
 .reg .u64 %t<14>; .reg .pred %p<3>;
 ld.param.u64 %t0, [ns];
 ld.param.u64 %t1, [out];
 cvta.to.global.u64 %t1, %t1;
 ld.param.u64 %t2, [least];
 mov.u64 %t3, %globaltimer;
 mov.u64 %t4, %t3;
 mov.u64 %t5, %t3;
 mov.u64 %t6, 0;
 mov.u64 %t7, 0;
 mov.u64 %t8, 0;
again:
 mov.u64 %t9, %globaltimer;
 sub.u64 %t10, %t9, %t4;
 setp.lt.u64 %p0, %t10, %t2;
 @%p0 bra near;
 add.u64 %t6, %t6, 1;
 add.u64 %t7, %t7, %t10;
 sub.u64 %t11, %t4, %t5;
 max.u64 %t8, %t8, %t11;
 mov.u64 %t5, %t9;
near:
 mov.u64 %t4, %t9;
 sub.u64 %t12, %t9, %t3;
 setp.lt.u64 %p1, %t12, %t0;
 @%p1 bra again;
 st.global.u64 [%t1], %t6;
 st.global.u64 [%t1+8], %t7;
 st.global.u64 [%t1+16], %t8;
 st.global.u64 [%t1+24], %t12;
 ret;
}
.visible .entry awaits(.param .u64 ns, .param .u64 flag)
{
 .reg .u64 %t<6>; .reg .pred %p<2>;
 ld.param.u64 %t0, [ns];
 ld.param.u64 %t1, [flag];
 cvta.to.global.u64 %t1, %t1;
 mov.u64 %t2, %globaltimer;
again:
 ld.volatile.global.u64 %t3, [%t1];
 setp.ne.u64 %p0, %t3, 0;
 @%p0 bra over;
 mov.u64 %t4, %globaltimer;
 sub.u64 %t5, %t4, %t2;
 setp.lt.u64 %p1, %t5, %t0;
 @%p1 bra again;
over:
 ret;
}
.visible .entry raises(.param .u64 ns, .param .u64 flag)
{
 .reg .u64 %t<2>;
 ld.param.u64 %t0, [flag];
 cvta.to.global.u64 %t0, %t0;
 mov.u64 %t1, 1;
 st.volatile.global.u64 [%t0], %t1;
 ret;
}
\0"""
LARGE = b""".version 6.4
.target sm_70
.address_size 64
.visible .global .align 16 .b8 large[67108864];
.visible .entry touch(.param .u64 ns)
{
 .reg .u64 %t<3>;
 mov.u64 %t0, large;
 ld.param.u64 %t1, [ns];
 st.global.u64 [%t0], %t1;
 ret;
}
\0"""
USERS = b""".version 6.4
.target sm_70
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.extern .func (.param .b64 r) malloc (.param .b64 a);
.extern .func free (.param .b64 a);
.global .align 1 .b8 text[4] = {104, 105, 10, 0};
.visible .entry prints(.param .u64 ns)
{
 .reg .b64 %t<4>; .reg .b32 %r<2>; .reg .pred %p;
 ld.param.u64 %t0, [ns];
 setp.eq.u64 %p, %t0, 0;
 @%p bra over;
 mov.u64 %t1, text;
 cvta.global.u64 %t2, %t1;
 mov.u64 %t3, 0;
 {
  .param .b64 a; .param .b64 b; .param .b32 r;
  st.param.b64 [a], %t2;
  st.param.b64 [b], %t3;
  call.uni (r), vprintf, (a, b);
  ld.param.b32 %r0, [r];
 }
over:
 ret;
}
.visible .entry takes(.param .u64 ns)
{
 .reg .b64 %t<2>;
 mov.u64 %t0, 64;
 {
  .param .b64 a; .param .b64 r;
  st.param.b64 [a], %t0;
  call.uni (r), malloc, (a);
  ld.param.b64 %t1, [r];
 }
 {
  .param .b64 a;
  st.param.b64 [a], %t1;
  call.uni free, (a);
 }
 ret;
}
\0"""
"""Kernels that print (not if `ns` is 0) and that use the device's heap; buffer and heap exist only for such kernels."""
EARLY = (
    (KERNELS.partition(b"}\n")[0] + b"}\n\0")
    .replace(b"6.4", b"7.8")
    .replace(b"sm_70", b"sm_90")
    .replace(b"spin", b"early")
    .replace(b" ld.param", b" griddepcontrol.launch_dependents;\n ld.param", 1)
)
"""The kernel `spin`, but the next kernel of its stream may begin at once (programmatic dependent launch, from compute
capability 9.0)."""
ASKED = r"\bASK\(\((?:[^()]|\([^()]*\))*\),\s*(cu\w+)"
NEWER = ("cuCtxFromGreenCtx",)
"""Functions that drivers before CUDA 12.4 lack; there the library works without them."""
if TYPE_CHECKING:
    Answer = tuple[bool | None, str]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute with a single number as its value."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


EARLY_ATTRIBUTE = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""


class Absent(Exception):
    """The driver has no such function."""


class Refused(Exception):
    """The driver returned an error."""


def pointer(value: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(value)


class Cuda:
    """The bare driver with the primary context of one card."""

    def __init__(self, device: int) -> None:
        begun = time.monotonic()
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.started = time.monotonic() - begun
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.device = handle.value
        self.context = pointer()
        begun, before = time.monotonic(), whole_card(self)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)
        self.opened = time.monotonic() - begun
        self.taken = whole_card(self) - before
        self._module: ctypes.c_void_p | None = None

    def find(self, name: str) -> Callable[..., int]:
        """A function of the driver.

        Raises:
            Absent: the driver has no function of this name.
        """
        try:
            return getattr(self.library, name)  # type: ignore[no-any-return]
        except AttributeError:
            raise Absent(name) from None

    def code(self, name: str, *arguments: object) -> int:
        return self.find(name)(*arguments)

    def call(self, name: str, *arguments: object) -> None:
        code = self.code(name, *arguments)
        if code:
            raise Refused(f"{name}: driver error {code}")

    def attribute(self, number: int, otherwise: int) -> int:
        value = ctypes.c_int(otherwise)
        try:
            self.code("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        except Absent:
            return otherwise
        return value.value

    def stream(self, flags: int = 1) -> ctypes.c_void_p:
        stream = pointer()
        self.call("cuStreamCreate", ctypes.byref(stream), flags)
        return stream

    def event(self) -> ctypes.c_void_p:
        event = pointer()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def module(self, image: bytes) -> ctypes.c_void_p:
        module = pointer()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def function(self, module: ctypes.c_void_p, name: bytes) -> ctypes.c_void_p:
        function = pointer()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name)
        return function

    def kernel(self, name: bytes) -> ctypes.c_void_p:
        self._module = self._module or self.module(KERNELS)
        return self.function(self._module, name)

    def launch(
        self,
        function: ctypes.c_void_p,
        stream: ctypes.c_void_p,
        *values: int,
        blocks: int = 1,
        threads: int = 1,
        name: str = "cuLaunchKernel",
    ) -> None:
        words = [ctypes.c_uint64(value) for value in values]
        list_of = (ctypes.c_void_p * max(1, len(words)))(*(ctypes.addressof(one) for one in words))
        self.call(name, function, blocks, 1, 1, threads, 1, 1, 0, stream, list_of, None)

    def wait(self) -> None:
        self.call("cuCtxSynchronize")

    def elapsed(self, one: ctypes.c_void_p, other: ctypes.c_void_p) -> float:
        """The time between two marks in microseconds."""
        ms = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(ms), one, other)
        return ms.value * 1000

    def free(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def release(self, address: ctypes.c_uint64) -> None:
        self.call("cuMemFree_v2", address)

    def cost(self, name: str, *arguments: object, times: int = 1000) -> int:
        """Nanoseconds of a call, without the cost of a call from Python."""

        def rate(function: Callable[..., int], given: tuple[object, ...]) -> float:
            best = float("inf")
            for _ in range(5):
                begun = time.perf_counter_ns()
                for _ in range(times):
                    function(*given)
                best = min(best, (time.perf_counter_ns() - begun) / times)
            return best

        version = ctypes.c_int()
        idle = rate(self.find("cuDriverGetVersion"), (ctypes.byref(version),))
        return max(0, int(rate(self.find(name), arguments) - idle))


def nvml() -> ctypes.CDLL:
    """The initialised NVML.

    Raises:
        Absent: NVML is missing or does not initialise.
    """
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2():
            raise Absent("NVML does not begin")
    except (OSError, AttributeError) as error:
        raise Absent(f"NVML: {error}") from None
    return library


def uuid_of(cuda: Cuda) -> str:
    """NVML's UUID of the device, a whole card or an instance of one."""
    whole, own = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
    cuda.call("cuDeviceGetUuid", whole, cuda.device)
    cuda.call("cuDeviceGetUuid_v2", own, cuda.device)
    digits = bytes(own).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return ("GPU-" if bytes(whole) == bytes(own) else "MIG-") + "-".join(parts)


def nvml_memory(cuda: Cuda) -> tuple[int, int]:
    """Total and used bytes by NVML."""
    library, handle = nvml(), pointer()
    memory = (ctypes.c_uint64 * 3)()
    try:
        if library.nvmlDeviceGetHandleByUUID(uuid_of(cuda).encode(), ctypes.byref(handle)):
            raise Absent("NVML does not know the device by its UUID")
    except AttributeError:
        library.nvmlDeviceGetHandleByIndex_v2(cuda.device, ctypes.byref(handle))
    if library.nvmlDeviceGetMemoryInfo(handle, memory):
        raise Absent("NVML reports no memory")
    return memory[0], memory[2]


def whole_card(cuda: Cuda) -> int:
    """Used bytes by NVML; 0 if it reports none."""
    try:
        return nvml_memory(cuda)[1]
    except (Absent, Refused):
        return 0


def mib(size: float) -> str:
    return f"{size / MIB:.2f} MiB"


def hooks() -> list[tuple[str, str, int, int]]:
    """Rows of the table of entry points: exported name, base, first version, per-thread."""
    try:
        text = (SOURCES / "hooks.h").read_text(encoding="ascii")
    except OSError:
        raise Absent("native/src did not come along") from None
    rows = re.findall(r'HOOK\((\w+), "(\w+)", (\d+), (\d), CUDA\)', text)
    return [(name, base, int(since), int(own)) for name, base, since, own in rows]


def listed(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def has(cuda: Cuda, name: str) -> bool:
    try:
        cuda.find(name)
    except Absent:
        return False
    return True


def asked() -> set[str]:
    """Functions of the driver that the library itself calls, by its sources."""
    hooks()  # reports missing sources
    text = "".join(one.read_text(encoding="ascii") for one in sorted(SOURCES.glob("*.c")))
    return set(re.findall(ASKED, text))


def names(cuda: Cuda) -> Answer:
    """The driver has every function that the library itself calls."""
    wanted = asked()
    missing = sorted(name for name in wanted if not has(cuda, name))
    needed = [name for name in missing if name not in NEWER]
    return not needed, f"{len(wanted)} asked; missing: {listed(missing) or 'none'}"


def variants(cuda: Cuda) -> Answer:
    """The driver has no form of a hooked function that the table does not know."""
    rows = hooks()
    known = {name for name, *_ in rows}
    made = {
        f"{base}_v{i}{end}" for _, base, *_ in rows for i in range(2, 10) for end in ("", "_ptsz")
    }
    strange = sorted(name for name in made - known if has(cuda, name))
    return not strange, f"unknown: {listed(strange) or 'none'}"


def addresses(cuda: Cuda) -> Answer:
    """For each form of a function, cuGetProcAddress and dlsym return the same address."""
    ask, newest, rows = cuda.find("cuGetProcAddress_v2"), ctypes.c_int(), hooks()
    cuda.call("cuDriverGetVersion", ctypes.byref(newest))
    other, count = [], 0
    for name, base, since, own in rows:
        later = [one for _, its, one, per in rows if its == base and per == own and one > since]
        # The last version that gives this form; the plain name means another function from CUDA 12 on.
        version = min([newest.value, *(one - 10 for one in later)])
        version = min(version, 11080) if base == "cuGraphInstantiate" else version
        if not has(cuda, name) or base == "cuGetProcAddress" or version < max(since, 3020):
            continue
        found, status = pointer(), ctypes.c_int()
        flags = ctypes.c_uint64(2 if own else 1)
        ask(base.encode(), ctypes.byref(found), version, flags, ctypes.byref(status))
        count += 1
        own_address: Any = cuda.find(name)
        if found.value != ctypes.cast(own_address, ctypes.c_void_p).value:
            other.append(name)
    return not other, f"{count} asked; others: {listed(other) or 'none'}"


def identity(cuda: Cuda) -> Answer:
    """NVML finds the device by the driver's UUID."""
    library, handle = nvml(), pointer()
    name = uuid_of(cuda)
    try:
        code = library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    except AttributeError:
        raise Absent("nvmlDeviceGetHandleByUUID") from None
    return code == 0, f"{name}: NVML says {code}"


def uvm(cuda: Cuda) -> Answer:
    """A program that only uses NVML maps no device file of the driver; one that initialises the driver does."""
    program = (
        "import ctypes, os\n"
        "n = ctypes.CDLL('libnvidia-ml.so.1'); n.nvmlInit_v2(); h = ctypes.c_void_p()\n"
        "n.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h))\n"
        "n.nvmlDeviceGetMemoryInfo(h, (ctypes.c_uint64 * 3)())\n"
        "print(*[os.readlink('/proc/self/fd/' + f) for f in os.listdir('/proc/self/fd')"
        " if os.path.islink('/proc/self/fd/' + f)])\n"
        "print(open('/proc/self/maps').read())\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=20)
    opened, _, mapped = done.stdout.partition("\n")
    own = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    asks, starts = " /dev/nvidia" in mapped, " /dev/nvidia" in own
    told = f"NVML maps one: {asks} (has nvidia-uvm open: {'nvidia-uvm' in opened}); the driver: {starts}"
    return not asks and starts and cuda.started > 0, told


def start(cuda: Cuda) -> Answer:
    """A program's start (figure only)."""
    return None, f"cuInit {cuda.started * 1e3:.0f} ms, first context {cuda.opened * 1e3:.0f} ms"


def context(cuda: Cuda) -> Answer:
    """A context takes less than a process's accepted growth, 1 GiB (--context-memory should be the measured value)."""
    before, second = cuda.free(), pointer()
    cuda.call("cuCtxCreate_v2", ctypes.byref(second), 0, cuda.device)
    more = before - cuda.free()
    cuda.call("cuCtxDestroy_v2", second)
    cuda.call("cuCtxSetCurrent", cuda.context)
    first = cuda.taken or more
    return 0 < first <= SLACK, f"the first {mib(first)}, another one {mib(more)}"


def totals(cuda: Cuda) -> Answer:
    """Programs can allocate the card's whole memory by NVML (figure only)."""
    total = ctypes.c_size_t()
    cuda.call("cuDeviceTotalMem_v2", ctypes.byref(total), cuda.device)
    told, _ = nvml_memory(cuda)
    between = mib(told - total.value)
    return None, f"NVML {mib(told)}, the driver {mib(total.value)}, {between} between"


def pieces(cuda: Cuda) -> Answer:
    """An allocation takes the 2 MiB blocks that contain its addresses, and small allocations share a block."""
    told, good = [], True
    for size in (512, 4096, 350 * 1024, 700 * 1024, MIB, MIB + 1, 3 * MIB):
        count = min(1024, 96 * MIB // size)
        before = cuda.free()
        held = [cuda.alloc(size) for _ in range(count)]
        taken = before - cuda.free()
        blocks = {
            block
            for one in held
            for block in range(one.value // GRANULE, (one.value + size - 1) // GRANULE + 1)
        }
        for one in held:
            cuda.release(one)
        told.append(f"{size >> 10}K {taken / count / 1024:.0f}K")
        good &= abs(taken - len(blocks) * GRANULE) <= 2 * GRANULE
    return good, "size and taken each: " + ", ".join(told)


def module(cuda: Cuda) -> Answer:
    """Loading a module takes its memory, unloading releases it, and loading it again takes it again."""
    before = cuda.free()
    first = cuda.module(LARGE)
    loaded = before - cuda.free()
    cuda.launch(cuda.function(first, b"touch"), pointer(), 1)
    cuda.wait()
    used = before - cuda.free()
    cuda.call("cuModuleUnload", first)
    kept = before - cuda.free()
    again, between = cuda.free(), cuda.module(LARGE)
    second = again - cuda.free()
    cuda.call("cuModuleUnload", between)
    good = loaded >= 64 * MIB and kept < GRANULE and second >= loaded - GRANULE
    return (
        good,
        f"at load {mib(loaded)}, in use {mib(used)}, after {mib(kept)}, next load {mib(second)} (64 MiB each)",
    )


def lazy(cuda: Cuda) -> Answer:
    """The duration of a kernel's first launch on the card's clock, with its loading (figure only; see `first`)."""
    stream, one, other = cuda.stream(), cuda.event(), cuda.event()
    library, kernel = pointer(), pointer()
    image = LARGE.replace(b"67108864", b"16")
    # Like the CUDA runtime since version 12, this loads a library's kernel at its first launch.
    none = (None, None, 0, None, None, 0)
    cuda.call("cuLibraryLoadData", ctypes.byref(library), image, *none)
    cuda.call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"touch")
    told = []
    for _ in range(2):
        cuda.call("cuEventRecord", one, stream)
        begun = time.perf_counter_ns()
        cuda.launch(kernel, stream, 1)
        took = (time.perf_counter_ns() - begun) / 1000
        cuda.call("cuEventRecord", other, stream)
        cuda.wait()
        told.append((took, cuda.elapsed(one, other)))
    cuda.call("cuLibraryUnload", library)
    (call, span), (again, warm) = told
    return None, f"call {call:.0f} us, span {span:.0f} us; then {again:.0f} and {warm:.0f} us"


def calls(cuda: Cuda) -> Answer:
    """A mark costs at most 3 us, a query at most 1.5 us."""
    stream, mark, late = cuda.stream(), cuda.event(), cuda.event()
    ms = ctypes.c_float()
    spent = {"record": cuda.cost("cuEventRecord", mark, stream, times=200)}
    cuda.wait()
    spent["query, over"] = cuda.cost("cuEventQuery", mark)
    spent["elapsed"] = cuda.cost("cuEventElapsedTime", ctypes.byref(ms), mark, mark)
    spent["stream, dry"] = cuda.cost("cuStreamQuery", stream)
    cuda.launch(cuda.kernel(b"spin"), stream, 200_000_000)
    cuda.call("cuEventRecord", late, stream)
    spent["query, not yet"] = cuda.cost("cuEventQuery", late, times=300)
    spent["stream, busy"] = cuda.cost("cuStreamQuery", stream, times=300)
    cuda.wait()
    current, device = pointer(), ctypes.c_int()
    spent["context"] = cuda.cost("cuCtxGetCurrent", ctypes.byref(current))
    spent["its device"] = cuda.cost("cuCtxGetDevice", ctypes.byref(device))
    asked = [ns for name, ns in spent.items() if name != "record"]
    good = spent["record"] <= PROMPT_NS and max(asked) <= CHEAP_NS
    return good, ", ".join(f"{name} {ns}" for name, ns in spent.items()) + " ns"


def slow_calls(cuda: Cuda) -> Answer:
    """A query before or after loads and pool calls takes at most 100 us."""
    free, total, pool = ctypes.c_size_t(), ctypes.c_size_t(), pointer()
    spent = {
        "free memory": cuda.cost(
            "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total), times=50
        )
    }
    cuda.call("cuDeviceGetMemPool", ctypes.byref(pool), cuda.device)
    value = ctypes.c_uint64()
    spent["pool"] = cuda.cost("cuMemPoolGetAttribute", pool, 5, ctypes.byref(value), times=200)
    return max(spent.values()) <= 100_000, ", ".join(f"{k} {ns} ns" for k, ns in spent.items())


def marks(cuda: Cuda) -> Answer:
    """On an idle stream two marks are at most 3 us apart, and at most 12 us with an empty kernel between them."""
    nothing, kernel = marked(cuda, None), marked(cuda, cuda.kernel(b"spin"))
    steps = sorted({round(span, 3) for span in nothing + kernel})
    least = min((b - a for a, b in zip(steps, steps[1:])), default=0)  # noqa: B905, RUF007 # 3.8
    empty, single = statistics.median(nothing), statistics.median(kernel)
    return (
        empty <= 3 and single <= 12,
        f"{empty:.2f} us, {single:.2f} us; least step {least:.3f} us",
    )


def marked(cuda: Cuda, kernel: ctypes.c_void_p | None) -> list[float]:
    """Microseconds between two marks on an idle stream, with an empty kernel or nothing between them."""
    stream, one, other, spans = cuda.stream(), cuda.event(), cuda.event(), []
    for _ in range(200):
        cuda.call("cuEventRecord", one, stream)
        if kernel is not None:
            cuda.launch(kernel, stream, 0)
        cuda.call("cuEventRecord", other, stream)
        cuda.wait()
        spans.append(cuda.elapsed(one, other))
    return spans


def backwards(cuda: Cuda) -> Answer:
    """Marks of two streams can be compared; in the reverse order their time is negative."""
    first, second, one, other = cuda.stream(), cuda.stream(), cuda.event(), cuda.event()
    cuda.call("cuEventRecord", one, first)
    cuda.wait()
    cuda.launch(cuda.kernel(b"spin"), second, 5_000_000)
    cuda.call("cuEventRecord", other, second)
    cuda.wait()
    forth, back = cuda.elapsed(one, other), cuda.elapsed(other, one)
    return forth >= 5000 and abs(forth + back) < 2, f"{forth:.1f} us and {back:.1f} us"


def legacy(cuda: Cuda) -> Answer:
    """A mark on the legacy stream waits for blocking streams only."""
    spans = []
    for flags in (0, 1):
        stream, one, other = cuda.stream(flags), cuda.event(), cuda.event()
        cuda.call("cuEventRecord", one, stream)
        cuda.launch(cuda.kernel(b"spin"), stream, 20_000_000)
        cuda.call("cuEventRecord", other, None)
        cuda.wait()
        spans.append(cuda.elapsed(one, other) / 1000)
    return spans[0] >= 19 and spans[
        1
    ] < 5, f"{spans[0]:.1f} ms beside a blocking one, {spans[1]:.1f} ms beside another"


def queue(cuda: Cuda) -> Answer:
    """The driver accepts at least 500 launches before a call waits."""
    stream, spin, count = cuda.stream(), cuda.kernel(b"spin"), 0
    cuda.launch(spin, stream, 300_000_000)
    for count in range(1, 4001):  # noqa: B007 # used after the loop
        begun = time.perf_counter_ns()
        cuda.launch(spin, stream, 0)
        if time.perf_counter_ns() - begun > 20_000_000:
            break
    cuda.wait()
    return count >= 500, f"{count}{' or more' if count == 4000 else ''} launches"


def slices(cuda: Cuda) -> Answer:
    """Contexts of two processes run in turn in slices of 1 to 4 ms; a single context is not interrupted."""
    least, ns = 50_000, 400_000_000
    alone = interrupted(cuda, ns, least)
    command = [
        sys.executable,
        "-I",
        "-S",
        __file__,
        "--peer",
        str(ns),
        "--device",
        str(cuda.device),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        try:
            assert peer.stdin is not None  # noqa: S101 # for the type checker
            assert peer.stdout is not None  # noqa: S101
            if peer.stdout.readline() != "ready\n":
                raise Absent("a second process has no context (compute mode?)")
            peer.stdin.write("go\n")
            peer.stdin.flush()
            beside = interrupted(cuda, ns, least)
        finally:
            peer.kill()
    each = beside[1] / beside[0] / 1e6 if beside[0] else 0.0
    good = alone[0] <= 2 and 1 <= each <= 4
    own, told = (
        beside[2] / 1e6,
        f"alone {alone[0]} gaps; beside: {beside[0]} gaps of {each:.2f} ms",
    )
    return (
        good,
        f"{told}, own slice up to {own:.2f} ms, {100 * beside[1] / max(1, beside[3]):.0f} % elsewhere",
    )


def interrupted(cuda: Cuda, ns: int, least: int) -> list[int]:
    """A kernel's number of interruptions, their total time, its longest run, and its time from start to end."""
    out, got = cuda.alloc(4096), (ctypes.c_uint64 * 4)()
    copy = cuda.find("cuMemcpyDtoH_v2")
    cuda.launch(cuda.kernel(b"gaps"), pointer(), ns, out.value, least)
    cuda.wait()
    copy(got, out, ctypes.c_size_t(32))
    cuda.release(out)
    return list(got)


def beside(cuda: Cuda) -> tuple[int, bool]:
    """Rounds on one stream beside a kernel of one block that runs 2 s on another; whether they ended before it did."""
    spin, long, short, mark = cuda.kernel(b"spin"), cuda.stream(), cuda.stream(), cuda.event()
    cuda.launch(spin, short, 0)  # loads it, because a first launch may wait for all running work
    cuda.wait()
    cuda.launch(spin, long, 2_000_000_000)
    cuda.call("cuEventRecord", mark, long)
    for count in range(100):
        cuda.launch(spin, short, 50_000)
        cuda.call("cuStreamSynchronize", short)
        if cuda.code("cuEventQuery", mark) == 0:
            return count, False
    ended = cuda.code("cuEventQuery", mark) == 0
    cuda.wait()
    return 100, not ended


def streams(cuda: Cuda) -> Answer:
    """Kernels run beside a long kernel with few blocks on another stream."""
    count, good = beside(cuda)
    return good, f"{count} rounds of 50 us beside a kernel of 2 s"


def fills(cuda: Cuda) -> Answer:
    """The time of fills and copies on the card beside a kernel of 100 ms on all multiprocessors (figure only)."""
    size, told = min(512 * MIB, cuda.free() // 4) // GRANULE * GRANULE, []
    threads = cuda.attribute(39, 2048)
    blocks = cuda.attribute(16, 132) * max(1, threads // 1024)
    one, other, here, there = cuda.alloc(size), cuda.alloc(size), cuda.stream(), cuda.stream()
    full = cuda.kernel(b"spin")
    works: dict[str, tuple[object, ...]] = {
        "cuMemsetD32Async": (one, 7, ctypes.c_size_t(size // 4), there),
        "cuMemsetD8Async": (one, 7, ctypes.c_size_t(4096), there),
        "cuMemcpyDtoDAsync_v2": (other, one, ctypes.c_size_t(size), there),
    }
    for name, given in works.items():
        cuda.find(name)
        spent = []
        for busy in (False, False, True):
            cuda.wait()
            if busy:
                cuda.launch(full, here, 100_000_000, blocks=blocks, threads=1024)
                time.sleep(0.005)
            begun = time.perf_counter()
            cuda.call(name, *given)
            cuda.call("cuStreamSynchronize", there)
            spent.append((time.perf_counter() - begun) * 1e3)
        cuda.wait()
        told.append(f"{name[2:]} {spent[1]:.2f} ms, beside {spent[2]:.2f}")
    cuda.release(one)
    cuda.release(other)
    return None, "; ".join(told)


def pool(cuda: Cuda) -> Answer:
    """A pool grows by 32 MiB, reports it, and holds nothing after all is freed and it is trimmed."""
    made, stream, value = pointer(), cuda.stream(), ctypes.c_uint64()
    props = (ctypes.c_ubyte * 88)()
    props[0] = props[8] = 1  # pinned, on a device
    props[12] = cuda.device
    cuda.call("cuMemPoolCreate", ctypes.byref(made), props)
    told = []

    def reserved() -> None:
        cuda.call("cuMemPoolGetAttribute", made, 5, ctypes.byref(value))
        told.append(value.value)

    held = []
    for size in (MIB, 40 * MIB):
        address = ctypes.c_uint64()
        cuda.call(
            "cuMemAllocFromPoolAsync", ctypes.byref(address), ctypes.c_size_t(size), made, stream
        )
        held.append(address)
        reserved()
    for address in held:
        cuda.call("cuMemFreeAsync", address, stream)
    cuda.wait()
    reserved()
    cuda.call("cuMemPoolTrimTo", made, ctypes.c_size_t(0))
    reserved()
    cuda.call("cuMemPoolDestroy", made)
    good = told[0] == 32 * MIB and told[-1] == 0
    return good, "1 MiB, 40 MiB more, freed, trimmed: " + ", ".join(mib(one) for one in told)


def graph_pool(cuda: Cuda) -> Answer:
    """Graphs hold at most 32 MiB more than their allocations, and nothing after a trim."""
    stream, graph, instance = cuda.stream(), pointer(), pointer()
    address, value, told = ctypes.c_uint64(), ctypes.c_uint64(), []
    cuda.call("cuStreamBeginCapture_v2", stream, 2)
    try:
        cuda.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(3 * MIB), stream)
        cuda.call("cuMemFreeAsync", address, stream)
    finally:
        cuda.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, ctypes.c_uint64(0))
    cuda.call("cuGraphLaunch", instance, stream)
    cuda.wait()
    for _ in range(2):
        cuda.call("cuDeviceGetGraphMemAttribute", cuda.device, 2, ctypes.byref(value))
        told.append(value.value)
        cuda.call("cuDeviceGraphMemTrim", cuda.device)
    cuda.call("cuGraphExecDestroy", instance)
    good = 4 * MIB <= told[0] <= 36 * MIB and told[1] == 0
    return good, f"3 MiB in a graph: {mib(told[0])}; after a trim {mib(told[1])}"


def graph_code(cuda: Cuda) -> Answer:
    """An instance of a graph takes less than 4 MiB of its own (ten instances of 500 kernels each)."""
    stream, spin, held = cuda.stream(), cuda.kernel(b"spin"), []
    before = cuda.free()
    for _ in range(10):
        graph, instance = pointer(), pointer()
        cuda.call("cuStreamBeginCapture_v2", stream, 2)
        for _ in range(500):
            cuda.launch(spin, stream, 0)
        cuda.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, ctypes.c_uint64(0))
        cuda.call("cuGraphLaunch", instance, stream)
        held.append(instance)
    cuda.wait()
    taken = before - cuda.free()
    for instance in held:
        cuda.call("cuGraphExecDestroy", instance)
    return taken < 40 * MIB, f"{mib(taken)} for ten"


def limit_taken(cuda: Cuda, limit: int, value: int, kernel: bytes) -> int:
    """Bytes that a limit takes when it is set, and at the first launch of a kernel that uses it."""
    own, free = ctypes.c_size_t(), [cuda.free()]
    cuda.call("cuCtxGetLimit", ctypes.byref(own), limit)
    cuda.call("cuCtxSetLimit", limit, ctypes.c_size_t(value))
    free.append(cuda.free())
    module = cuda.module(USERS)
    free.append(cuda.free())
    cuda.launch(cuda.function(module, kernel), pointer(), 0)
    cuda.wait()
    free.append(cuda.free())
    cuda.code("cuCtxSetLimit", limit, own)  # the driver refuses it if the heap is in use
    cuda.call("cuModuleUnload", module)
    return free[0] - free[1] + free[2] - free[3]


def heap(cuda: Cuda) -> Answer:
    """The device heap takes at most its limit, at its setting or at the launch of a kernel that uses it."""
    taken = limit_taken(cuda, 2, 264 * MIB, b"takes")
    return taken <= 264 * MIB + GRANULE, f"{mib(taken)} taken of 264 MiB, counted 256 MiB"


class Borrower:
    """The other process of `lent`, `handed` and `pooled`: it opens memory of this one, and closes it step by step."""

    def __init__(self, cuda: Cuda, how: str, given: str, *files: int) -> None:
        command = [sys.executable, "-I", "-S", __file__, "--borrow", how]
        self._process = subprocess.Popen(
            [*command, "--device", str(cuda.device)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=files,
            text=True,
        )
        self.told = self.step(given)

    def step(self, word: str = "") -> list[int]:
        """Let it go one step on; its figures.

        Raises:
            Absent: it has ended.
        """
        process = self._process
        assert process.stdin is not None  # noqa: S101 # for the type checker
        assert process.stdout is not None  # noqa: S101 # for the type checker
        try:
            process.stdin.write(word + "\n")
            process.stdin.flush()
        except OSError:
            raise Absent("a second process opens no memory of this one") from None
        for line in process.stdout:
            if line.startswith("step"):
                return [int(one) for one in line.split()[1:]]
        raise Absent("a second process opens no memory of this one")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def opened(cuda: Cuda, other: Borrower, close: Callable[[], object], size: int) -> Answer:
    """Judge memory that this process closes first, and the other one after it in two steps."""
    try:
        used = [whole_card(cuda)]
        close()
        for _ in range(2):
            used.append(whole_card(cuda))
            other.step()
        used.append(whole_card(cuda))
    finally:
        other.end()
    first, second, seen = other.told
    told = [mib(used[0] - one) for one in used[1:]]
    good = used[0] - used[2] < size / 2 < used[0] - used[3]
    return good and seen == size, (
        f"{mib(seen)} there, opened again under {'the same name' if first == second else 'another name'}; gone after the "
        f"owner's end {told[0]}, after one close {told[1]}, after both {told[2]}"
    )


def lent(cuda: Cuda) -> Answer:
    """Memory opened by another process (cuIpcOpenMemHandle) stays until that one has closed it as often as it opened it."""
    size = 256 * MIB
    held, names = cuda.alloc(size), [(ctypes.c_ubyte * 64)() for _ in range(2)]
    for name in names:
        cuda.call("cuIpcGetMemHandle", name, held)
    other = Borrower(cuda, "lent", bytes(names[0]).hex())
    good, told = opened(cuda, other, lambda: cuda.release(held), size)
    same = bytes(names[0]) == bytes(names[1])
    return (
        good and same,
        f"{told}; its handle was {'the same' if same else 'another one'} when asked again",
    )


def handed(cuda: Cuda) -> Answer:
    """Physical memory imported by another process (a file of cuMemCreate's) stays until that one has released each import."""
    size = 256 * MIB
    prop, handle, file = (
        (ctypes.c_int * 8)(1, 1, 1, cuda.device),
        ctypes.c_uint64(),
        ctypes.c_int(),
    )
    cuda.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), prop, ctypes.c_uint64(0))
    cuda.call("cuMemExportToShareableHandle", ctypes.byref(file), handle, 1, ctypes.c_uint64(0))
    other = Borrower(cuda, "handed", f"{file.value} {size}", file.value)

    def close() -> None:
        os.close(file.value)
        cuda.call("cuMemRelease", handle)

    return opened(cuda, other, close, size)


def pooled(cuda: Cuda) -> Answer:
    """Memory of an imported pool stays until the importer has freed it, also after its owner has freed and destroyed all."""
    size = 256 * MIB
    made, stream, address, file = pointer(), cuda.stream(), ctypes.c_uint64(), ctypes.c_int()
    props, name = (ctypes.c_int * 22)(1, 1, 1, cuda.device), (ctypes.c_ubyte * 64)()
    cuda.call("cuMemPoolCreate", ctypes.byref(made), props)
    cuda.call(
        "cuMemAllocFromPoolAsync", ctypes.byref(address), ctypes.c_size_t(size), made, stream
    )
    cuda.wait()
    cuda.call("cuMemPoolExportToShareableHandle", ctypes.byref(file), made, 1, ctypes.c_uint64(0))
    cuda.call("cuMemPoolExportPointer", name, address)
    other = Borrower(cuda, "pooled", f"{file.value} {bytes(name).hex()}", file.value)

    def close() -> None:
        os.close(file.value)
        cuda.call("cuMemFreeAsync", address, stream)
        cuda.wait()
        cuda.call("cuMemPoolDestroy", made)

    return opened(cuda, other, close, size)


def captured(cuda: Cuda) -> Answer:
    """A query or a mark of a captured stream ends the capture, so the library must make none."""
    told = {}
    for name in ("cuStreamQuery", "cuEventQuery", "legacy mark", "nothing"):
        stream, graph, mark = (
            cuda.stream(0 if name == "legacy mark" else 1),
            pointer(),
            cuda.event(),
        )
        cuda.call("cuStreamBeginCapture_v2", stream, 2)
        if name == "cuStreamQuery":
            code = cuda.code(name, stream)
        elif name == "cuEventQuery":
            cuda.code("cuEventRecord", mark, stream)
            code = cuda.code(name, mark)
        else:
            code = cuda.code("cuEventRecord", mark, None) if name == "legacy mark" else 0
        told[name] = (code, cuda.code("cuStreamEndCapture", stream, ctypes.byref(graph)))
    good = told["nothing"][1] == 0 and all(
        end for name, (_, end) in told.items() if name != "nothing"
    )
    return good, "; ".join(
        f"{name} {code}, then the end {end}" for name, (code, end) in told.items()
    )


def printing(cuda: Cuda) -> Answer:
    """With higher limits, the printf buffer and all threads' stacks take at most the bytes that the library counts."""
    told, good = [], True
    threads = cuda.attribute(16, 132) * cuda.attribute(39, 2048)
    for name, limit, value in (("printf", 1, 256 * MIB), ("stack", 0, 8192)):
        own = ctypes.c_size_t()
        cuda.call("cuCtxGetLimit", ctypes.byref(own), limit)
        taken = limit_taken(cuda, limit, value, b"prints")
        counted = (value - own.value) * (threads if name == "stack" else 1)
        told.append(f"{name} of {value}: {mib(taken)}, counted {mib(counted)}")
        good &= taken <= counted + max(GRANULE, counted // 10)
    return good, "; ".join(told)


def served() -> int:
    """Device ns that the library counted for this container so far (native/include/page.h).

    Raises:
        Absent: our library is not loaded.
    """
    library = os.environ.get("LD_PRELOAD", "")
    try:
        book = Path(library).with_name("account").read_bytes()
    except (OSError, ValueError):
        raise Absent("this process is under no library") from None
    return int.from_bytes(book[80:88], "little")


def counted(work: Callable[[], object]) -> float:
    """Microseconds that the library counts for some work, which waits for its own end."""
    time.sleep(0.05)  # until the library has counted the last launches
    before = served()
    work()
    time.sleep(0.05)
    return (served() - before) / 1000


def judged(told: float, least: float, most: float, either_way: float = 0.03) -> Answer:
    """Compare the counted time with the kernels' own times and their time from start to end, in microseconds."""
    good = (1 - either_way) * least <= told <= (1 + either_way) * most
    return good, f"counted {told / 1000:.2f} ms, {least / 1000:.2f} to {most / 1000:.2f} are right"


def shown(cuda: Cuda) -> Answer:
    """A program sees the cap as the card's memory."""
    free, total, whole = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    cuda.call("cuDeviceTotalMem_v2", ctypes.byref(whole), cuda.device)
    served()
    return total.value == whole.value, f"{mib(total.value)}, free {mib(free.value)}"


def capture(cuda: Cuda) -> Answer:
    """A stream with work can be captured, also after work on the legacy stream; the library does not disturb it."""
    served()
    spin, told = cuda.kernel(b"spin"), {}
    for name, flags, work in (
        ("its own work", 1, 3_000_000),
        ("short work", 1, 1000),
        ("legacy", 0, 3_000_000),
    ):
        stream, graph, instance = cuda.stream(flags), pointer(), pointer()
        for _ in range(2):
            cuda.launch(spin, pointer() if name == "legacy" else stream, work)
        cuda.call("cuStreamBeginCapture_v2", stream, 0)
        for _ in range(2):
            cuda.launch(spin, stream, 1000)
            time.sleep(0.01)
        told[name] = cuda.code("cuStreamEndCapture", stream, ctypes.byref(graph))
        if told[name] == 0:
            cuda.call(
                "cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, ctypes.c_uint64(0)
            )
            cuda.call("cuGraphLaunch", instance, stream)
        cuda.wait()
    return not any(told.values()), ", ".join(
        f"after {name}: {code}" for name, code in told.items()
    )


def together(cuda: Cuda) -> Answer:
    """The library counts the whole time of many short launches at once."""
    stream, one, other, spin = cuda.stream(), cuda.event(), cuda.event(), cuda.kernel(b"spin")
    spans = []

    def work() -> None:
        for _ in range(10):
            cuda.call("cuEventRecord", one, stream)
            for _ in range(100):
                cuda.launch(spin, stream, 100_000)
            cuda.call("cuEventRecord", other, stream)
            cuda.wait()
            spans.append(cuda.elapsed(one, other))

    told = counted(work)
    return judged(told, 10 * 100 * 100, sum(spans))


def overlap(cuda: Cuda) -> Answer:
    """The library counts overlapping work of two streams once, and all of it."""
    long, short = cuda.stream(), cuda.stream()
    one, other, last, spin = cuda.event(), cuda.event(), cuda.event(), cuda.kernel(b"spin")
    spans = []

    def work() -> None:
        for _ in range(5):
            cuda.call("cuEventRecord", one, long)
            cuda.launch(spin, long, 30_000_000)
            cuda.call("cuEventRecord", other, long)
            for _ in range(6):
                cuda.launch(spin, short, 1_000_000)
                cuda.call("cuStreamSynchronize", short)
            cuda.call("cuEventRecord", last, short)
            cuda.wait()
            spans.append(max(cuda.elapsed(one, other), cuda.elapsed(one, last)))

    told = counted(work)
    return judged(told, 5 * 30_000, sum(spans))


def early(cuda: Cuda) -> Answer:
    """Kernels that begin before the previous one ends count once, with their whole time (10 % either way)."""
    if cuda.attribute(75, 0) < 9:
        raise Absent("programmatic dependent launch before compute capability 9.0")
    served()
    kernel = cuda.function(cuda.module(EARLY), b"early")
    stream, one, other = cuda.stream(), cuda.event(), cuda.event()
    length = ctypes.c_uint64(100_000)
    values = (ctypes.c_void_p * 1)(ctypes.addressof(length))
    attribute = LaunchAttribute(EARLY_ATTRIBUTE, 0, (ctypes.c_uint * 16)(1))
    spans: dict[int, float] = {}

    def work(count: int) -> None:
        config = LaunchConfig(1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(attribute), count)
        spans[count] = 0.0
        for _ in range(10):
            cuda.call("cuEventRecord", one, stream)
            for _ in range(100):
                cuda.call("cuLaunchKernelEx", ctypes.byref(config), kernel, values, None)
            cuda.call("cuEventRecord", other, stream)
            cuda.wait()
            spans[count] += cuda.elapsed(one, other)

    work(1)  # loads everything
    told = counted(lambda: work(1))
    good, said = judged(told, spans[1], spans[1], 0.1)  # their time includes many short gaps
    work(0)
    return good, f"{said}; one after the other they take {spans[0] / 1000:.2f} ms"


def apart(cuda: Cuda) -> Answer:
    """Time without work between launches is not counted (20 us a launch at most)."""
    stream, spin = cuda.stream(), cuda.kernel(b"spin")
    for _ in range(64):  # unmeasured launches count like the launches before them
        cuda.launch(spin, stream, 200_000)
        cuda.call("cuStreamSynchronize", stream)

    def work() -> None:
        for _ in range(50):
            cuda.launch(spin, stream, 200_000)
            time.sleep(0.003)
        cuda.wait()

    return judged(counted(work), 10_000, 11_000)


def tiny(cuda: Cuda) -> Answer:
    """An empty kernel, waited for, counts at most the time between marks before and after it."""
    stream, spin = cuda.stream(), cuda.kernel(b"spin")

    def work() -> None:
        for _ in range(1000):
            cuda.launch(spin, stream, 0)
            cuda.call("cuStreamSynchronize", stream)

    told = counted(work) / 1000
    apart = statistics.median(marked(cuda, spin))
    return told <= 1.05 * apart, f"{told:.2f} us each; marks {apart:.2f} us apart"


def first(cuda: Cuda) -> Answer:
    """The loading of a kernel at its first launch is not counted as device time (50 us each at most)."""
    image, spent = LARGE.replace(b"67108864", b"16"), 0.0
    stream, none = cuda.stream(), (None, None, 0, None, None, 0)
    kernels = []
    for i in range(10):
        library, kernel = pointer(), pointer()
        fresh = image.replace(
            b"ld.param.u64 %t1, [ns];", b"ld.param.u64 %%t1, [ns]; add.u64 %%t1, %%t1, %d;" % i
        )
        cuda.call("cuLibraryLoadData", ctypes.byref(library), fresh, *none)
        cuda.call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"touch")
        kernels.append(kernel)

    def work() -> None:
        nonlocal spent
        begun = time.perf_counter()
        for kernel in kernels:
            cuda.launch(kernel, stream, 1)
        spent = (time.perf_counter() - begun) * 1e6
        cuda.wait()

    told = counted(work)
    return told <= 500, f"ten took {spent:.0f} us to launch, {told:.0f} us were counted"


def many(cuda: Cuda) -> Answer:
    """A hundred graphs launched at once take at most 10 % longer than one by one."""
    served()
    stream, spin = cuda.stream(), cuda.kernel(b"spin")
    one, other, graphs, alone = cuda.event(), cuda.event(), [], 0.0
    for i in range(100):
        graph, instance = pointer(), pointer()
        cuda.call("cuStreamBeginCapture_v2", stream, 2)
        for _ in range(3):
            cuda.launch(spin, stream, 60_000 + 1000 * (i % 50))
        cuda.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, ctypes.c_uint64(0))
        graphs.append(instance)
    for graph in (*graphs, *graphs):  # twice: the first launch of a graph takes more
        cuda.call("cuEventRecord", one, stream)
        cuda.call("cuGraphLaunch", graph, stream)
        cuda.call("cuEventRecord", other, stream)
        cuda.wait()
        alone = cuda.elapsed(one, other) + (0 if graph is graphs[0] else alone)
    cuda.call("cuEventRecord", one, stream)
    for graph in graphs:
        cuda.call("cuGraphLaunch", graph, stream)
    cuda.call("cuEventRecord", other, stream)
    cuda.wait()
    whole = cuda.elapsed(one, other)
    for graph in graphs:
        cuda.call("cuGraphExecDestroy", graph)
    return whole <= 1.1 * alone, f"{whole / 1000:.1f} ms in turn, {alone / 1000:.1f} ms one by one"


def persistent(cuda: Cuda) -> Answer:
    """Alone on the card, streams run beside a long kernel, because launches ahead have no bound."""
    served()
    count, good = beside(cuda)
    return good, f"{count} rounds of 50 us beside a kernel of 2 s"


def parted(cuda: Cuda) -> Answer:
    """After work on the legacy stream one blocking stream may wait for another; no library mark separates them."""
    served()
    awaits, raises, spin = (cuda.kernel(name) for name in (b"awaits", b"raises", b"spin"))
    first, second, flag, longest = cuda.stream(0), cuda.stream(0), cuda.alloc(4096), 0.0
    zero, told = ctypes.c_uint64(0), ctypes.c_uint64(0)
    cuda.launch(raises, pointer(), 0, flag.value)
    cuda.wait()
    cuda.call("cuMemcpyDtoH_v2", ctypes.byref(told), flag, ctypes.c_size_t(8))
    if told.value != 1:
        cuda.release(flag)
        raise Absent("kernels compute nothing on this card")
    for i in range(20):
        cuda.call("cuMemcpyHtoD_v2", flag, ctypes.byref(zero), ctypes.c_size_t(8))
        begun = time.perf_counter()
        cuda.launch(spin, pointer(), 250_000 * (i % 5))
        cuda.launch(awaits, first, 1_000_000_000, flag.value)
        time.sleep(0.001 * (i % 4))
        cuda.launch(raises, second, 0, flag.value)
        cuda.wait()
        longest = max(longest, time.perf_counter() - begun)
    cuda.release(flag)
    return (
        longest < 0.5,
        f"the longest of 20 rounds took {1000 * longest:.1f} ms; 1,000 where it was parted",
    )


def neighbour(cuda: Cuda) -> Answer:
    """A neighbour's allocation during a load does not count for the module (256 MiB at most)."""
    served()
    bare = {name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-I", "-S", __file__, "--neighbour", "--device", str(cuda.device)]
    most = 0
    with subprocess.Popen(command, env=bare, stdout=subprocess.PIPE, text=True) as peer:
        try:
            assert peer.stdout is not None  # noqa: S101 # for the type checker
            if peer.stdout.readline() != "ready\n":
                raise Absent("a second process has no context or memory")
            for _ in range(10):
                before = cuda.free()
                module = cuda.module(LARGE)
                most = max(most, before - cuda.free())
                cuda.call("cuModuleUnload", module)
        finally:
            peer.kill()
    return most <= (64 + 256) * MIB + GRANULE, f"at most {mib(most)} for a module of 64 MiB"


def moved(cuda: Cuda) -> Answer:
    """Copies from the host between two launches count, and fills without launches do not (figures only)."""
    size = 64 * MIB
    host, card, spin = ctypes.create_string_buffer(size), cuda.alloc(size), cuda.kernel(b"spin")
    stream = cuda.stream()

    def copies() -> None:
        for _ in range(5):
            cuda.launch(spin, stream, 1000)
            cuda.call("cuMemcpyHtoDAsync_v2", card, host, ctypes.c_size_t(size), stream)
            cuda.launch(spin, stream, 1000)
            cuda.call("cuStreamSynchronize", stream)

    def fill() -> None:
        for _ in range(100):
            cuda.call("cuMemsetD32Async", card, 1, ctypes.c_size_t(size // 4), stream)
        cuda.call("cuStreamSynchronize", stream)

    begun = time.perf_counter()
    first_us, half = counted(copies), time.perf_counter()
    second_us = counted(fill)
    took, later = (half - begun) * 1e3, (time.perf_counter() - half) * 1e3
    told = f"5 copies of 64 MiB: {first_us / 1000:.1f} ms in {took:.1f}; 100 fills: {second_us / 1000:.1f} ms in {later:.1f}"
    cuda.release(card)
    return None, told


PROBES: dict[str, Callable[[Cuda], Answer]] = {
    one.__name__: one
    for one in (
        names,
        variants,
        addresses,
        identity,
        uvm,
        start,
        context,
        totals,
        calls,
        slow_calls,
        marks,
        backwards,
        lazy,
        legacy,
        streams,
        queue,
        pieces,
        module,
        pool,
        graph_pool,
        graph_code,
        slices,
        fills,
        lent,
        handed,
        pooled,
        captured,
        heap,
        printing,
    )
}
"""Ordered: cheap and certain probes first, those that may break the context last."""
UNDER: dict[str, Callable[[Cuda], Answer]] = {
    one.__name__: one
    for one in (
        shown,
        capture,
        together,
        overlap,
        early,
        apart,
        tiny,
        first,
        many,
        persistent,
        parted,
        neighbour,
        moved,
    )
}
"""The same for the library's view of its work on this card."""


def peer(device: int, ns: int) -> None:
    """Run as the second process of `slices`: report that it is ready, then work until it is killed."""
    cuda = Cuda(device)
    kernel = cuda.kernel(b"spin")
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(4):
        cuda.launch(kernel, pointer(), ns)
        cuda.wait()


def restless(device: int) -> None:
    """Run as the other process of `neighbour`: allocate and free 512 MiB in turn until it is killed."""
    cuda = Cuda(device)
    cuda.release(cuda.alloc(512 * MIB))
    print("ready", flush=True)
    while True:
        held = cuda.alloc(512 * MIB)
        time.sleep(0.002)
        cuda.release(held)
        time.sleep(0.002)


def borrow(device: int, how: str) -> None:
    """Run as the other process of `lent`, `handed` and `pooled`: open twice, print both names and the size, close in two steps."""
    cuda, given = Cuda(device), sys.stdin.readline().split()
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    closes: list[Callable[[], object]] = []
    if how == "lent":

        class Name(ctypes.Structure):
            _fields_ = (("bytes", ctypes.c_ubyte * 64),)

        name = Name.from_buffer_copy(bytes.fromhex(given[0]))
        both = [ctypes.c_uint64(), ctypes.c_uint64()]
        for one in both:
            cuda.call("cuIpcOpenMemHandle_v2", ctypes.byref(one), name, 1)
            closes.append(lambda one=one: cuda.call("cuIpcCloseMemHandle", one))  # type: ignore[misc]
        cuda.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), both[0])
    elif how == "handed":
        file, size.value = int(given[0]), int(given[1])
        both = [ctypes.c_uint64(), ctypes.c_uint64()]
        for one in both:
            cuda.call("cuMemImportFromShareableHandle", ctypes.byref(one), pointer(file), 1)
            closes.append(lambda one=one: cuda.call("cuMemRelease", one))  # type: ignore[misc]
        os.close(file)
    else:
        file, data, pool_of = int(given[0]), bytes.fromhex(given[1]), pointer()
        cuda.call(
            "cuMemPoolImportFromShareableHandle",
            ctypes.byref(pool_of),
            pointer(file),
            1,
            ctypes.c_uint64(0),
        )
        os.close(file)
        one, copied = ctypes.c_uint64(), (ctypes.c_ubyte * 64).from_buffer_copy(data)
        cuda.call("cuMemPoolImportPointer", ctypes.byref(one), pool_of, copied)
        both = [one, one]
        cuda.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), one)

        def end() -> None:
            cuda.release(one)
            cuda.call("cuMemPoolDestroy", pool_of)

        closes += [lambda: None, end]
    print("step", both[0].value, both[1].value, size.value, flush=True)
    for close in closes:
        sys.stdin.readline()
        close()
        print("step", flush=True)
    sys.stdin.readline()


def timed(device: int, how: str) -> None:
    """Median ns of a launch's call on an idle stream."""
    cuda, spent = Cuda(device), []
    kernel, own = cuda.kernel(b"spin"), pointer() if how == "per-thread" else cuda.stream()
    name = "cuLaunchKernel_ptsz" if how == "per-thread" else "cuLaunchKernel"
    value = ctypes.c_uint64(0)
    given = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    function = cuda.find(name)
    for _ in range(2000):
        begun = time.perf_counter_ns()
        function(kernel, 1, 1, 1, 1, 1, 1, 0, own, given, None)
        spent.append(time.perf_counter_ns() - begun)
        cuda.wait()
    print("launch", int(statistics.median(spent)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--after", help="go on behind this probe")
    parser.add_argument("--only", help="this probe alone")
    parser.add_argument("--under", action="store_true", help="what the library makes of it")
    parser.add_argument("--list", action="store_true", help="names and assumptions")
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--neighbour", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--borrow", help=argparse.SUPPRESS)
    parser.add_argument("--timed", choices=("own", "per-thread"))
    options = parser.parse_args()
    if options.borrow:
        return borrow(options.device, options.borrow)
    if options.neighbour:
        return restless(options.device)
    if options.peer or options.timed:
        work = peer if options.peer else timed
        return work(options.device, options.peer or options.timed)
    probes = UNDER if options.under else PROBES
    todo: list[str] = list(probes)
    if options.after:
        todo = todo[todo.index(options.after) + 1 :]
    cuda = None
    for name in [options.only] if options.only else todo:
        line: dict[str, object] = {
            "probe": name,
            "assumption": (probes[name].__doc__ or "").rstrip("."),
        }
        if not options.list:
            try:
                cuda = cuda or Cuda(options.device)
                line["holds"], line["measured"] = probes[name](cuda)
            except Absent as error:
                line["holds"], line["measured"] = None, f"not asked: {error}"
            except Exception as error:  # noqa: BLE001 # an untested card may cause any error
                line["holds"], line["measured"] = None, f"failed: {type(error).__name__}: {error}"
        print(json.dumps(line), flush=True)
    return None


if __name__ == "__main__":
    main()
