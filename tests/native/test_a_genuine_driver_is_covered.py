"""Our table against NVIDIA's own: the names it exports, what `cuGetProcAddress` gives, and what nobody stands in for."""

import re
import subprocess
from pathlib import Path

import pytest
from genuine_driver import CUDA, NVML, Driver, Hook, drivers, hooks
from genuine_probe import PER_THREAD, exports
from native_world import World

pytestmark = pytest.mark.parametrize("driver", drivers())
HOOKS = {hook.name: hook for hook in hooks()}

NOT_HOOKED: dict[str, tuple[str, ...]] = {
    "asks, or sets what takes no memory": (
        r"cu(Array|Array3D|MipmappedArray)Get\w+|cuMemPool(Get|Set)(Access|Attribute)|cuMemSetAccess",
        r"cu(Ctx|Func|Kernel|Module|Library|Pointer|GreenCtx|Stream)Get[A-Z]\w*",
        r"cuDevice(Get[A-Z]\w*|Get|CanAccessPeer|ComputeCapability)",
        r"cuDevice(SetMemPool|PrimaryCtxGetState|PrimaryCtxSetFlags|(Get|Set)GraphMemAttribute)",
        r"cuDevice(Register|Unregister)AsyncNotification|cuDev(SmResourceSplit\w*|ResourceGenerateDesc)",
        r"cuMem(GetAccess|GetAddressRange|GetAll\w+|GetAttribute|GetHandle\w+|Get\w*MemPool|SetMemPool)",
        r"cuMem(RangeGetAttributes?|AddressFree|AddressReserve|Advise|ExportToShareableHandle)",
        r"cuMemPool(Ex|Im)portToShareableHandle|cuMemPoolImportFromShareableHandle",
        r"cu(Pointer|Stream|Func|Kernel)Set[A-Z]\w*|cuStreamCopyAttributes|cuLibraryEnumerateKernels",
        r"cuCtx(Set(CacheConfig|Current|Flags|SharedMemConfig)|PushCurrent|PopCurrent|FromGreenCtx)",
        r"cuCtx(Enable|Disable)PeerAccess|cuCtxResetPersistingL2Cache|cuFuncIsLoaded",
        r"cuModuleEnumerateFunctions|cuMulticast(Create|AddDevice|GetGranularity)|cuDriverGet\w+",
        r"cuThreadExchangeStreamCaptureMode|cuOccupancy\w+|cuTensorMap\w+|cuUserObject\w+",
        r"cuGetError(Name|String)|cuProfiler\w+|cuCoredump\w+|cuLogs\w+|cuParamSet\w+",
        r"cu(Tex|Surf)(Ref|Object)\w+|cuFlushGPUDirectRDMAWrites|cuIpc(Get|Open)EventHandle",
    ),
    "host memory": (r"cuMemAllocHost|cuMemFreeHost|cuMemHost\w+", r"cuLink\w+"),
    "copies to and from the host, between cards, in batches or in three dimensions: not limited": (
        r"cuMemcpy(AtoH|DtoH|HtoA|HtoD)(Async)?|cuMemcpy(3D)?Peer(Async)?|cuMemcpy(3D)?BatchAsync",
        r"cuMemcpy3DWithAttributesAsync|cuMemPrefetch\w*|cuMemDiscard\w+|cuMemBatchDecompressAsync",
    ),
    "graphics: not limited, but for its contexts": (
        r"cuGL(?!Ctx)\w+|cuEGL\w+|cuVDPAU(?!Ctx)\w+|cuGraphics\w+",
    ),
    "streams, events and semaphores: no work of the card": (
        r"cuStream(Create|CreateWithPriority|Query|IsCapturing|AttachMemAsync|WriteValue(32|64))",
        r"cuStreamUpdateCaptureDependencies|cuGreenCtx(RecordEvent|StreamCreate)",
        r"cuCtxRecordEvent|cuEvent(Create|Destroy|ElapsedTime|Query|Record|RecordWithFlags)",
        r"cu(Import|Destroy|Signal)ExternalSemaphores?(Async)?",
    ),
    "a graph is weighed when it is instantiated, and run by a launch": (
        r"cuGraphAdd(?!MemAlloc)\w+Node|cuGraph(Add|Remove)Dependencies|cuGraph(Clone|Create|Destroy|DestroyNode)",
        r"cuGraph(ConditionalHandleCreate|DebugDotPrint|ChildGraphNodeGetGraph|Get\w+|Node\w+)",
        r"cuGraphExec(\w+SetParams|GetFlags|GetId|EventRecordNodeSetEvent|EventWaitNodeSetEvent)",
        r"cuGraph\w+Node(Get|Set)(Params|Event|Attribute)|cuGraphKernelNodeCopyAttributes",
        r"cuGraph(Release|Retain)UserObject|cuDeviceGraphMemTrim",
    ),
    "loads late: counted from the agent's next measurement on": (r"cuFuncLoad|cuLibraryGet\w+",),
    "counted where it was imported": (r"cuExternalMemoryGetMapped(Buffer|MipmappedArray)",),
    "a process is stopped and goes on with what it had": (r"cuCheckpoint\w+",),
    "tables of functions: documented as not covered": (r"cuGetExportTable",),
}
"""What no function of ours stands in for, by the name it is asked for as, and why not."""

VARIANTS = {
    "cuCtxSynchronize_v2": "waits for a context: the first form only counts a little earlier",
    "cuDeviceTotalMem": "of before CUDA 3.2: says at most 4 GiB",
    **dict.fromkeys(
        (
            *(
                "cuMemcpy2D",
                "cuMemcpy2DAsync",
                "cuMemcpy2DUnaligned",
                "cuMemcpy3D",
                "cuMemcpy3DAsync",
            ),
            *("cuMemcpyAtoA", "cuMemcpyAtoD", "cuMemcpyDtoA", "cuMemcpyDtoD", "cuMemcpyDtoDAsync"),
            *("cuMemsetD8", "cuMemsetD16", "cuMemsetD32"),
            *("cuMemsetD2D8", "cuMemsetD2D16", "cuMemsetD2D32"),
        ),
        "of before CUDA 3.2: for addresses of 32 bits, and what would give those is refused",
    ),
}
"""Variants of what is hooked that are not."""

TELLS_MEMORY = re.compile(r"nvml\w*(Mem(ory)?(Info|Usage)|Fb(Usage|Reservation)|Memory\w*Usage)")
NOT_CAPPED = {
    "nvmlDeviceGetBAR1MemoryInfo": "the window to the host, not memory of the card",
    "nvmlDeviceGetConfComputeMemSizeInfo": "how memory is divided for confidential computing",
    "nvmlDeviceGetConfComputeProtectedMemoryUsage": "what of it is protected",
    "nvmlVgpuInstanceGetFbUsage": "of vGPU hosts",
    "nvmlVgpuTypeGetFbReservation": "of vGPU hosts",
}
"""Functions of NVML that tell of memory and are not the container's view, and why not."""


def base_of(name: str) -> str:
    """What a function is asked for as."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name)


def expected(base: str, version: int, flags: int, driver: Driver) -> Hook | None:
    """The row for what is asked; None where there is none yet."""
    rows = [hook for hook in HOOKS.values() if hook.base == base and hook.since <= driver.version]
    own = flags == PER_THREAD and any(hook.per_thread for hook in rows)
    rows = [hook for hook in rows if hook.since <= version and hook.per_thread == own]
    return max(rows, key=lambda hook: hook.since, default=None)


def test_every_row_is_a_function_of_the_driver(driver: Driver) -> None:
    """A name with a slip in it would stand in for nothing; so would one that comes later than we say."""
    cuda, nvml = exports(driver.path(CUDA)), exports(driver.path(NVML))

    missing = [
        hook.name
        for hook in HOOKS.values()
        if hook.since <= driver.version
        and hook.name not in (cuda if hook.library == "CUDA" else nvml)
    ]

    assert missing == []


def test_the_driver_gives_what_the_table_says(driver: Driver) -> None:
    """First version and per-thread form of each row are those of NVIDIA's own table, and so is the function asked for."""
    wrong = []
    seen = set()
    for way, part in driver.ask(None, "table", driver.path()).items():
        for base in {hook.base for hook in HOOKS.values()} & set(part):
            for version, answer in part[base].items():
                name = answer.split()[-1] if "theirs" in answer else ""
                row = expected(base, int(version), int(way.split()[1]), driver)
                refused = not name and int(version) > driver.version
                if name not in VARIANTS and not refused and name != (row.name if row else ""):
                    wrong.append((way, base, version, name, row))
                seen.add(name)

    assert wrong == []
    assert not driver.version > 11030 or len(seen) >= 100


def test_every_way_to_a_name_leads_to_our_function_and_to_no_other(
    driver: Driver, world: World
) -> None:
    """By the driver's handle, by the process and by `cuGetProcAddress`; all other names lead to the driver."""
    tenant = world.tenant(memory=2**30)
    plain = driver.ask(None, "table", driver.path())
    ours = driver.ask(tenant, "table", driver.path())

    for library in (CUDA, NVML):
        for found in driver.ask(tenant, "symbols", driver.path(library)).values():
            assert found == {
                name: f"{'ours' if name in HOOKS else 'theirs'} {name}" for name in found
            }
    assert ours.keys() == plain.keys()
    for way, part in plain.items():
        for base, answers in part.items():
            for version, answer in answers.items():
                name = answer.split()[-1]
                wanted = answer.replace("theirs", "ours") if name in HOOKS else answer
                assert ours[way][base][version] == wanted, (way, base, version)


def test_a_linked_program_calls_ours(driver: Driver, world: World, tmp_path: Path) -> None:
    """What a program was linked with is the same as what it asks for."""
    names = {
        library: [name for name in exports(driver.path(library)) if name in HOOKS]
        for library in (CUDA, NVML)
    }
    source = tmp_path / "linked.c"
    every = [name for some in names.values() for name in some]
    declared = "".join(f"extern void {name}(void);\n" for name in every)
    table = ", ".join(f'{{"{name}", {name}}}' for name in every)
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n" + declared + "int main(void)\n{\n"
        f"    struct {{ const char *name; void (*at)(void); }} all[] = {{{table}}};\n    Dl_info home;\n"
        "    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)\n"
        '        if (dladdr((void *)all[i].at, &home)) printf("%s %s\\n", all[i].name, home.dli_fname);\n'
        "    return 0;\n}\n"
    )  # fmt: skip
    made = tmp_path / "linked"
    libraries = [f"-l:{library}" for library in names]
    command = [
        "gcc",
        "-fPIC",
        "-fno-builtin",
        source,
        "-o",
        made,
        f"-L{driver.folder}",
        *libraries,
    ]
    subprocess.run([*command, "-ldl", "-Wl,--allow-shlib-undefined"], check=True)
    tenant = world.tenant(memory=2**30)

    told = subprocess.check_output([made], env=driver.environment(tenant), text=True)

    assert [line.split() for line in told.splitlines()] == [
        [name, str(tenant.library)] for name in every
    ]


def test_nothing_takes_memory_or_launches_that_nobody_thought_of(driver: Driver) -> None:
    """A new driver's new function is named here until it is hooked, or a reason says why it need not be."""
    reasons = [re.compile(one) for some in NOT_HOOKED.values() for one in some]
    known = {hook.base for hook in HOOKS.values()}

    names = [name for name in exports(driver.path()) if name not in HOOKS]
    new = {
        name
        for name in names
        if name not in VARIANTS
        and (base_of(name) in known or not any(one.fullmatch(base_of(name)) for one in reasons))
    }

    assert new == set()
    assert [one for one in known for reason in reasons if one and reason.fullmatch(one)] == []


def test_what_nvml_tells_of_memory_is_the_container_s_or_there_is_a_reason(driver: Driver) -> None:
    """A later form of `nvmlDeviceGetMemoryInfo` would show the whole card."""
    told = {name for name in exports(driver.path(NVML)) if TELLS_MEMORY.fullmatch(base_of(name))}

    assert "nvmlDeviceGetMemoryInfo" in told
    assert told - HOOKS.keys() - NOT_CAPPED.keys() == set()
