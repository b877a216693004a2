"""What a name asked of cuGetProcAddress means in each version of CUDA, and that the library stands before just that."""

import os
import subprocess
from pathlib import Path

import pytest

MEANINGS = {
    "cuCtxCreate": {2000: "", 3020: "_v2", 11040: "_v3", 12050: "_v4"},
    "cuCtxDestroy": {2000: "", 4000: "_v2"},
    "cuCtxSynchronize": {2000: "", 13000: "_v2"},
    "cuDevicePrimaryCtxRelease": {7000: "", 11000: "_v2"},
    "cuDevicePrimaryCtxReset": {7000: "", 11000: "_v2"},
    "cuDeviceTotalMem": {3020: "_v2"},
    "cuEventSynchronize": {2000: ""},
    "cuGraphAddMemAllocNode": {11040: ""},
    "cuGraphAddNode": {12020: "", 12030: "_v2", 13040: "_v3"},
    "cuGraphExecUpdate": {10020: "", 12000: "_v2"},
    "cuGraphInstantiate": {10000: "", 11000: "_v2"},
    "cuGraphInstantiateWithFlags": {11040: ""},
    "cuGraphInstantiateWithParams": {12000: "|_ptsz"},
    "cuGraphLaunch": {10000: "|_ptsz"},
    "cuGraphUpload": {11010: "|_ptsz"},
    "cuIpcOpenMemHandle": {4010: "", 11000: "_v2"},
    "cuLaunchCooperativeKernel": {9000: "|_ptsz"},
    "cuLaunchHostFunc": {10000: "|_ptsz", 13010: "_v2|_ptsz"},
    "cuLaunchKernel": {7000: "|_ptsz"},
    "cuLaunchKernelEx": {11060: "|_ptsz"},
    "cuLibraryLoadData": {12000: ""},
    "cuMemAlloc": {3020: "_v2"},
    "cuMemAllocAsync": {11020: "|_ptsz"},
    "cuMemAllocFromPoolAsync": {11020: "|_ptsz"},
    "cuMemAllocPitch": {3020: "_v2"},
    "cuMemCreate": {10020: ""},
    "cuMemFree": {3020: "_v2"},
    "cuMemFreeAsync": {11020: "|_ptsz"},
    "cuMemGetInfo": {3020: "_v2"},
    "cuMemcpy": {7000: "|_ptds"},
    "cuMemcpyDtoD": {7000: "_v2|_ptds"},
    "cuMemcpyDtoDAsync": {7000: "_v2|_ptsz"},
    "cuMemcpy2DAsync": {7000: "_v2|_ptsz"},
    "cuMemcpy3D": {7000: "_v2|_ptds"},
    "cuMemcpyWithAttributesAsync": {13020: "|_ptsz"},
    "cuMemsetD2D16": {7000: "_v2|_ptds"},
    "cuMemsetD8": {7000: "_v2|_ptds"},
    "cuMemsetD8Async": {7000: "|_ptsz"},
    "cuMulticastBindAddr": {12010: "", 13010: "_v2"},
    "cuMulticastBindMem": {12010: "", 13010: "_v2"},
    "cuStreamAddCallback": {7000: "|_ptsz"},
    "cuStreamBatchMemOp": {8000: "|_ptsz", 11070: "_v2|_ptsz"},
    "cuStreamBeginCapture": {10000: "|_ptsz", 10010: "_v2|_ptsz"},
    "cuStreamBeginCaptureToCig": {13010: "|_ptsz"},
    "cuStreamBeginCaptureToGraph": {12030: "|_ptsz"},
    "cuStreamBeginRecaptureToGraph": {13030: "|_ptsz"},
    "cuStreamDestroy": {2000: "", 4000: "_v2"},
    "cuStreamEndCapture": {10000: "|_ptsz"},
    "cuStreamSynchronize": {7000: "|_ptsz"},
    "cuStreamWaitEvent": {7000: "|_ptsz"},
    "cuStreamWaitValue32": {8000: "|_ptsz", 11070: "_v2|_ptsz"},
    "cuStreamWaitValue64": {9000: "|_ptsz", 11070: "_v2|_ptsz"},
    "cuWaitExternalSemaphoresAsync": {10000: "|_ptsz"},
    "cuCtxWaitEvent": {12050: ""},
    "cuGreenCtxWaitEvent": {12040: ""},
}
"""By the documentation (cudaTypedefs.h): from which version on a name means which function, here by what the function's
name has more. After a bar, what the form for streams per thread has more than that."""

VERSIONS = [
    *(11000, 11010, 11020, 11030, 11040, 11050, 11060, 11070, 11080, 12000, 12010, 12020),
    *(12030, 12040, 12050, 12060, 12080, 12090, 13000, 13010, 13020, 13030, 13040, 13050),
]


def meaning(name: str, version: int, *, per_thread: bool, newest: int) -> str | None:
    """The function that a name means; None before it meant any."""
    known = [since for since in MEANINGS[name] if since <= min(version, newest)]
    if not known:
        return None
    plain, _, own = MEANINGS[name][max(known)].partition("|")
    return name + plain + (own if per_thread else "")


@pytest.mark.parametrize("inner", [False, True], ids=["exported", "inner"])
@pytest.mark.parametrize("driver", ["newest", "older"])
def test_each_version_is_given_the_library_s_own(build: Path, driver: str, *, inner: bool) -> None:
    """This includes a driver older than the version asked for, and one whose addresses are those of no symbol."""
    newest = 12040 if driver == "older" else 99999
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(build / "fake" / driver),
        "LD_PRELOAD": str(build / "libpartage-isolation.so"),
        "FAKE_VERSION": str(newest),
        **({"FAKE_INNER": "1"} if inner else {}),
    }
    command = [str(build / "versions"), *MEANINGS, "--", *map(str, VERSIONS)]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    got = {tuple(line.split()[:3]): line.split()[3] for line in done.stdout.splitlines()}
    wanted = {
        (name, str(version), str(flags)): function
        for name in MEANINGS
        for version in VERSIONS
        for flags in (0, 2)
        if (function := meaning(name, version, per_thread=flags == 2, newest=newest))
    }
    assert len(wanted) > 1500
    assert got == wanted
