"""A program of NVIDIA's runtime (libcudart), as users' programs are: it knows nothing of the driver below."""

import ctypes
import json
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 2**20
OUT_OF_MEMORY = 2
pointer = ctypes.byref
size = ctypes.c_size_t


class Channel(ctypes.Structure):
    """What an element of an array holds."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("x", "y", "z", "w", "kind"))


class Extent(ctypes.Structure):
    """How many blocks, or threads."""

    _fields_ = tuple((name, ctypes.c_uint) for name in ("x", "y", "z"))


class Runtime:
    """The library, with one kernel of a made-up program registered as a compiler's output would."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.kernel = ctypes.create_string_buffer(16)

    def __call__(self, name: str, *arguments: Any) -> int:
        """The runtime's result of one of its functions."""
        return int(self.library[name](*arguments))

    def must(self, name: str, *arguments: Any) -> None:
        """Call, or end with the name and the code."""
        result = self(name, *arguments)
        if result:
            sys.exit(f"{name}: {result}")

    def register(self) -> None:
        """Say that there is a kernel; its module is loaded at the first launch."""
        self.code = ctypes.create_string_buffer(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0), 80)
        at = ctypes.addressof(self.code)
        self.wrapper = ctypes.create_string_buffer(struct.pack("<IIQQ", 0x466243B1, 1, at, 0), 24)
        register = self.library["__cudaRegisterFatBinary"]
        register.restype = ctypes.c_void_p
        program = ctypes.c_void_p(register(self.wrapper))
        name, none = b"kernel", ctypes.c_void_p()
        function = ctypes.c_void_p(ctypes.addressof(self.kernel))
        rest = (ctypes.c_int(-1), *[none] * 5)
        self.library["__cudaRegisterFunction"](program, function, name, name, *rest)
        self.library["__cudaRegisterFatBinaryEnd"](program)

    def launch(self, ns: int, stream: ctypes.c_void_p) -> None:
        """A kernel that takes so long on the modelled card."""
        value = ctypes.c_uint64(ns)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        one = Extent(1, 1, 1)
        function = ctypes.c_void_p(ctypes.addressof(self.kernel))
        self.must("cudaLaunchKernel", function, one, one, arguments, size(0), stream)


def memory(run: Runtime) -> dict[str, Any]:
    """Fill the card by each path: how many MiB were given before the runtime was out of memory, and what it says of it."""
    free, total, taken = size(), size(), ctypes.c_void_p()
    run.must("cudaMemGetInfo", pointer(free), pointer(total))
    found: dict[str, Any] = {"free": free.value, "total": total.value}
    pitch, channel = size(), Channel(32, 0, 0, 0, 2)
    ways: dict[str, tuple[Callable[[Any], int], str]] = {
        "cudaMalloc": (lambda at: run("cudaMalloc", at, size(2 * MIB)), "cudaFree"),
        "cudaMallocManaged": (
            lambda at: run("cudaMallocManaged", at, size(2 * MIB), 1),
            "cudaFree",
        ),
        "cudaMallocPitch": (
            lambda at: run("cudaMallocPitch", at, pointer(pitch), size(2048), size(1024)),
            "cudaFree",
        ),
        "cudaMallocArray": (
            lambda at: run("cudaMallocArray", at, pointer(channel), size(512), size(1024), 0),
            "cudaFreeArray",
        ),
    }
    for name, (take, give) in ways.items():
        held = []
        result = 0
        while not result and len(held) < 1000:
            result = take(pointer(taken))
            held += [] if result else [ctypes.c_void_p(taken.value)]
        run("cudaGetLastError")
        run.must("cudaMemGetInfo", pointer(free), pointer(total))
        found[name] = [2 * len(held), result, free.value]
        for one in held:
            run.must(give, one)
    run.must("cudaMemGetInfo", pointer(free), pointer(total))
    found["after"] = free.value
    return found


def share(run: Runtime, seconds: str, how: str) -> None:
    """Keep the card busy, with kernels or with a graph of them."""
    run.register()
    stream, graph, made = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    run.must("cudaStreamCreate", pointer(stream))
    if how == "graph":
        run.launch(1, stream)  # what is loaded at a first launch is not loaded during a capture
        run.must("cudaStreamBeginCapture", stream, 0)
        for _ in range(3):
            run.launch(1_000_000, stream)
        run.must("cudaStreamEndCapture", stream, pointer(graph))
        run.must("cudaGraphInstantiate", pointer(made), graph, None, None, size(0))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        for _ in range(4):
            if how == "graph":
                run.must("cudaGraphLaunch", made, stream)
            else:
                run.launch(3_000_000, stream)
        run.must("cudaStreamSynchronize", stream)


def begin(run: Runtime) -> dict[str, int]:
    """Ask for the number of devices, which makes the runtime look for the driver's functions."""
    return {"count": run("cudaGetDeviceCount", pointer(ctypes.c_int()))}


if __name__ == "__main__":
    runtime = Runtime(sys.argv[2])
    asked = {"memory": memory, "begin": begin}
    if sys.argv[1] == "share":
        share(runtime, *sys.argv[3:])
    else:
        sys.stdout.write(json.dumps(asked[sys.argv[1]](runtime)))
