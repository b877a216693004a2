"""What the library replaces, and what it need not, by the names that functions are asked for as."""

import re

from genuine_driver import Hook, hooks
from genuine_probe import PER_THREAD

HOOKS = {hook.name: hook for hook in hooks()}

NOT_HOOKED: dict[str, tuple[str, ...]] = {
    "asks, or sets what takes no memory": (
        r"cu(Array|Array3D|MipmappedArray)Get\w+|cuMemPool(Get|Set)(Access|Attribute)|cuMemSetAccess",
        r"cu(Ctx|Func|Kernel|Module|Library|Pointer|GreenCtx|Stream)Get[A-Z]\w*",
        r"cuDevice(Get[A-Z]\w*|Get|CanAccessPeer|ComputeCapability)",
        r"cuDevice(SetMemPool|PrimaryCtxGetState|PrimaryCtxSetFlags|(Get|Set)GraphMemAttribute)",
        r"cuDevice(Register|Unregister)AsyncNotification|cuDev(SmResourceSplit\w*|ResourceGenerateDesc)",
        r"cuMem(GetAccess|GetAddressRange|GetAll\w+|GetAttribute|GetHandle\w+|Get\w*MemPool|GetLocationInfo|SetMemPool)",
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
    "copies to and from the host or over a fabric: not limited": (
        r"cuMemcpy(AtoH|DtoH|HtoA|HtoD)(Async)?|cuFabricCpyBatchAsync",
        r"cuMemPrefetch\w*|cuMemDiscard\w+|cuMemBatchDecompressAsync",
    ),
    "graphics: not limited, but for its contexts": (
        r"cuGL(?!Ctx)\w+|cuEGL\w+|cuVDPAU(?!Ctx)\w+|cuGraphics\w+",
    ),
    "streams, events and semaphores: no work of the card": (
        r"cuStream(Query|IsCapturing|AttachMemAsync|WriteValue(32|64))",
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
    "bindings between cards, of CUDA 13.5: documented as not counted": (r"cuLogicalEndpoint\w+",),
    "a process is stopped and goes on with what it had": (r"cuCheckpoint(?!ProcessRestore)\w+",),
    "tables of functions: documented as not covered": (r"cuGetExportTable",),
}
"""Functions that the library does not replace, by the name they are asked for as, and why not."""

VARIANTS = {
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


def base_of(name: str) -> str:
    """What a function is asked for as."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name)


def expected(base: str, version: int, flags: int, newest: int) -> Hook | None:
    """The row for what a driver of that version is asked; None where there is none yet."""
    rows = [hook for hook in HOOKS.values() if hook.base == base and hook.since <= newest]
    own = flags == PER_THREAD and any(hook.per_thread for hook in rows)
    rows = [hook for hook in rows if hook.since <= version and hook.per_thread == own]
    return max(rows, key=lambda hook: hook.since, default=None)
