"""NVML through nvidia-ml-py (extra `nvidia`), in the terms of `nvml`.

The library is imported when a driver is opened, so that a node without it can still run the rest.
Source of the order of calls: docs/sources/mig.md 2; written against nvidia-ml-py 13. Not run on hardware.
"""

import ctypes
import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from partage.agent.mig.nvml import (
    CardFacts,
    ComputeInstance,
    Failure,
    GpuInstance,
    Mode,
    NvmlFailed,
    mode_of,
)
from partage.model.device import MILLI
from partage.model.errors import InvalidDocument, InvalidValue
from partage.model.mig import Engines, MigAttribute, MigAxis, MigProfile

T = TypeVar("T")
_LOG: Final = logging.getLogger("partage.agent")
_MIB: Final = 1 << 20
_MOST: Final = 64
"""Room in answers that are lists: no card has that many instances or places."""
_SUFFIXES: Final = (
    ("+me.all", MigAttribute.ALL_MEDIA),
    ("+me", MigAttribute.MEDIA),
    ("-me", MigAttribute.NO_MEDIA),
    ("+gfx", MigAttribute.GRAPHICS),
)
_NO_PROFILE: Final = frozenset({Failure.NOT_SUPPORTED, Failure.INVALID_ARGUMENT})
"""The answers about a profile that the card lacks, and about one that is newer than the driver."""
_DOUBLE: Final = 9
"""NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2: one slice with twice the memory."""


class NvidiaDriver:
    """The cards of this machine, by `pynvml` or a module with the same functions. Calls block for up to seconds.

    Every call names its card by UUID: handles are not kept, because a change of the mode may unbind a card. Each may
    raise `NvmlFailed`, the first if no driver is loaded.
    """

    def __init__(self, library: Any) -> None:
        self._n = library
        self._lost: dict[int, str] = {}
        self._call("nvmlInit")

    @classmethod
    def open(cls) -> "NvidiaDriver":
        """This machine's driver. Raises `InvalidValue`: no nvidia-ml-py; `NvmlFailed`: no driver is loaded."""
        try:
            return cls(importlib.import_module("pynvml"))
        except ImportError:
            raise InvalidValue(
                "NVML needs the package nvidia-ml-py: install partage with the extra `nvidia`"
            ) from None

    def close(self) -> None:
        """Release the library."""
        self._call("nvmlShutdown")

    def version(self) -> str:
        """The driver's version, such as `580.82.07`."""
        return _text(self._call("nvmlSystemGetDriverVersion"))

    # --- asking -----------------------------------------------------------------------------

    def cards(self) -> tuple[CardFacts, ...]:
        """Every card, by index, except lost ones: a card that is lost has no identity, and the others work."""
        found, lost = [], dict[int, str]()
        for index in range(self._call("nvmlDeviceGetCount")):
            try:
                found.append(self._facts(self._call("nvmlDeviceGetHandleByIndex", index)))
            except NvmlFailed as error:
                if error.failure is not Failure.LOST:
                    raise
                lost[index] = str(error)
        for index, problem in lost.items():
            if index not in self._lost:
                _LOG.warning(
                    "NVIDIA card %d gets no instances until it is back: %s", index, problem
                )
        self._lost = lost
        return tuple(found)

    def _facts(self, handle: Any) -> CardFacts:
        product = self._call("nvmlDeviceGetPciInfo", handle).pciDeviceId >> 16
        generation = self._call("nvmlDeviceGetArchitecture", handle)
        return CardFacts(
            uuid=_text(self._call("nvmlDeviceGetUUID", handle)),
            minor=int(self._call("nvmlDeviceGetMinorNumber", handle)),
            name=_text(self._call("nvmlDeviceGetName", handle)),
            pci=f"{product:04X}",
            keeps_mode=generation <= self._n.NVML_DEVICE_ARCH_AMPERE,
        )

    def mode(self, card: str) -> Mode:
        """MIG mode of a card; off if the card has none."""
        return self._mode(self._handle(card)) or Mode(current=False, pending=False)

    def _mode(self, handle: Any) -> Mode | None:
        return self._asked("nvmlDeviceGetMigMode", mode_of, self._n, handle)

    def axis(self, card: str) -> MigAxis:
        """Its profiles and their places, which do not depend on its instances."""
        handle = self._handle(card)
        # Only a card without MIG has no profiles: of others, a missing function must not read as an empty card.
        infos = [] if self._mode(handle) is None else list(self._profiles(handle))
        whole = max((info.multiprocessorCount for _, info in infos), default=1) or 1
        name = _text(self._call("nvmlDeviceGetName", handle))
        profiles = (self._profile(handle, kind, info, whole) for kind, info in infos)
        return MigAxis(name, tuple(one for one in profiles if one is not None))

    def _profiles(self, handle: Any) -> Iterator[tuple[int, Any]]:
        count = self._n.NVML_GPU_INSTANCE_PROFILE_COUNT
        return self._kinds(count, "nvmlDeviceGetGpuInstanceProfileInfo", handle)

    def _profile(self, handle: Any, kind: int, info: Any, whole: int) -> MigProfile | None:
        item = self._n.c_nvmlGpuInstancePlacement_t
        places = self._listed("nvmlDeviceGetGpuInstancePossiblePlacements", handle, info.id, item)
        if not places:
            return None
        name = _text(info.name).removeprefix("MIG ").strip()
        attributes = {kept for suffix, kept in _SUFFIXES if name.endswith(suffix)}
        if kind == _DOUBLE:
            attributes.add(MigAttribute.DOUBLE_MEMORY)
        return MigProfile(
            name=name,
            compute=int(info.sliceCount),
            size=int(places[0].size),
            starts=tuple(sorted({int(place.start) for place in places})),
            memory_bytes=int(info.memorySizeMB) * _MIB,
            core_milli=int(info.multiprocessorCount) * MILLI // whole,
            count=max(int(info.instanceCount), 1),
            engines=Engines(
                int(info.copyEngineCount),
                int(info.decoderCount),
                int(info.encoderCount),
                int(info.jpegCount),
                int(info.ofaCount),
            ),
            id=int(info.id),
            kind=kind,
            attributes=frozenset(attributes),
        )

    def instances(self, card: str) -> tuple[GpuInstance, ...]:
        """Every instance of every profile, plain or not; empty while MIG mode is off."""
        if not self.mode(card).current:
            return ()
        handle = self._handle(card)
        found: dict[int, GpuInstance] = {}
        for _, info in self._profiles(handle):
            for one in self._listed(
                "nvmlDeviceGetGpuInstances", handle, info.id, self._n.c_nvmlGpuInstance_t
            ):
                told = self._call("nvmlGpuInstanceGetInfo", one)
                place, computes = told.placement, tuple(self._computes(one))
                found[int(told.id)] = GpuInstance(
                    int(told.id), int(told.profileId), int(place.start), int(place.size), computes
                )
        return tuple(sorted(found.values(), key=lambda one: one.start))

    def _computes(self, gpu_instance: Any) -> Iterator[ComputeInstance]:
        seen: set[int] = set()
        item = self._n.c_nvmlComputeInstance_t
        for info in self._compute_profiles(gpu_instance):
            for one in self._listed(
                "nvmlGpuInstanceGetComputeInstances", gpu_instance, info.id, item
            ):
                told = self._call("nvmlComputeInstanceGetInfo", one)
                if int(told.id) not in seen:
                    seen.add(int(told.id))
                    uuid = _text(self._call("nvmlDeviceGetUUID", told.device))
                    yield ComputeInstance(int(told.id), uuid)

    def _compute_profiles(self, gpu_instance: Any) -> Iterator[Any]:
        name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        count = self._n.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
        shared = self._n.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        return (info for _, info in self._kinds(count, name, gpu_instance, shared))

    def _kinds(self, count: int, call: str, owner: Any, *more: Any) -> Iterator[tuple[int, Any]]:
        """The answers about each kind of profile that the card has."""
        for kind in range(count):
            try:
                yield kind, self._call(call, owner, kind, *more)
            except NvmlFailed as error:
                if error.failure not in _NO_PROFILE:
                    raise

    # --- changing ---------------------------------------------------------------------------

    def set_mode(self, card: str, *, on: bool) -> None:
        """Turn MIG mode on or off; a bad status of the activation is an error too."""
        if status := self._call("nvmlDeviceSetMigMode", self._handle(card), int(on)):
            raise NvmlFailed("nvmlDeviceSetMigMode", self._failure(int(status)), "activation")

    def make_gpu_instance(self, card: str, profile: int, start: int, size: int) -> None:
        """Create a GPU instance at exactly that place."""
        place = ctypes.byref(self._n.c_nvmlGpuInstancePlacement_t(start, size))
        self._call("nvmlDeviceCreateGpuInstanceWithPlacement", self._handle(card), profile, place)

    def make_compute_instance(self, card: str, gpu_instance: int) -> None:
        """Create the compute instance with as many slices as the GPU instance has."""
        handle = self._handle(card)
        inside = self._call("nvmlDeviceGetGpuInstanceById", handle, gpu_instance)
        own = self._call("nvmlGpuInstanceGetInfo", inside).profileId
        slices = next((i.sliceCount for _, i in self._profiles(handle) if i.id == own), None)
        for info in self._compute_profiles(inside):
            if info.sliceCount == slices:
                self._call("nvmlGpuInstanceCreateComputeInstance", inside, info.id)
                return
        raise NvmlFailed(
            "nvmlGpuInstanceCreateComputeInstance",
            Failure.NOT_SUPPORTED,
            f"no compute profile spans GPU instance {gpu_instance}",
        )

    def end_compute_instance(self, card: str, gpu_instance: int, compute_instance: int) -> None:
        """Remove a compute instance."""
        inside = self._call("nvmlDeviceGetGpuInstanceById", self._handle(card), gpu_instance)
        one = self._call("nvmlGpuInstanceGetComputeInstanceById", inside, compute_instance)
        self._call("nvmlComputeInstanceDestroy", one)

    def end_gpu_instance(self, card: str, gpu_instance: int) -> None:
        """Remove a GPU instance that has no compute instance."""
        one = self._call("nvmlDeviceGetGpuInstanceById", self._handle(card), gpu_instance)
        self._call("nvmlGpuInstanceDestroy", one)

    # --- the library ------------------------------------------------------------------------

    def _handle(self, card: str) -> Any:
        return self._call("nvmlDeviceGetHandleByUUID", card.encode())

    def _listed(self, call: str, owner: Any, profile: int, item: Any) -> list[Any]:
        """Answers of calls that fill an array; `NOT_SUPPORTED` means an empty one."""
        room, count = (item * _MOST)(), ctypes.c_uint(_MOST)
        try:
            self._call(call, owner, profile, room, ctypes.byref(count))
        except NvmlFailed as error:
            if error.failure is Failure.NOT_SUPPORTED:
                return []
            raise
        return [room[i] for i in range(count.value)]

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._asked(name, getattr(self._n, name), *arguments)

    def _asked(self, name: str, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except self._n.NVMLError as error:
            raise NvmlFailed(name, self._failure(int(error.value)), str(error)) from None
        except UnicodeDecodeError as error:
            raise NvmlFailed(name, Failure.OTHER, str(error)) from None

    def _failure(self, code: int) -> Failure:
        n = self._n
        known = {
            n.NVML_ERROR_IN_USE: Failure.IN_USE,
            n.NVML_ERROR_INSUFFICIENT_RESOURCES: Failure.INSUFFICIENT,
            n.NVML_ERROR_NOT_FOUND: Failure.NOT_FOUND,
            n.NVML_ERROR_RESET_REQUIRED: Failure.RESET_REQUIRED,
            n.NVML_ERROR_NOT_SUPPORTED: Failure.NOT_SUPPORTED,
            n.NVML_ERROR_INVALID_ARGUMENT: Failure.INVALID_ARGUMENT,
            n.NVML_ERROR_NO_PERMISSION: Failure.NO_PERMISSION,
            n.NVML_ERROR_GPU_IS_LOST: Failure.LOST,
        }
        return known.get(code, Failure.OTHER)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def read_epoch(root: Path = Path("/")) -> str:
    """Name of this run of the driver; it changes at every boot and every reload, and no instance outlives either.

    The kernel names each boot. A reload creates a new directory for the module in sysfs, where they are numbered in
    order. Raises `InvalidDocument`: the driver is not loaded. Source: Linux, `random(4)` on boot_id and sysfs.
    """
    boot = root / "proc/sys/kernel/random/boot_id"
    module = root / "sys/module/nvidia"
    try:
        return f"{boot.read_text('ascii').strip()}/{module.stat().st_ino}"
    except OSError as error:
        raise InvalidDocument(
            f"{error.filename}: {error.strerror or error}; is the driver loaded?"
        ) from None
