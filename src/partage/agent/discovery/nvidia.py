"""Discovers NVIDIA cards by the driver's management library (NVML).

The module calls NVML through nvidia-ml-py, an extra that it imports when needed. If a node shows NVIDIA cards and
NVML does not answer, a problem is reported and the cards are left out: a card without its
identity cannot be allocated.

Source: docs/sources/kubernetes.md 5 and 6; docs/sources/koordinator.md 7; docs/sources/hami.md 3.
"""

import ctypes
import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from partage.agent.discovery import pci
from partage.agent.discovery.found import CardUse, Found, Inventory, Roots
from partage.agent.discovery.health import HealthBook
from partage.agent.discovery.instance_use import InstanceUses
from partage.agent.mig.nvml import mode_of
from partage.model.device import Device, DeviceType
from partage.vendors import names
from partage.vendors.traits import NVIDIA

_DISPLAY: Final = 0x03
_SONAME: Final = "libnvidia-ml.so.1"
_XID: Final = 0x8
_LINKS: Final = 18
_MOST_EVENTS: Final = 64
_MOST_CARDS: Final = 64
_PREFIX: Final = "NVIDIA "
_MOST_MINOR: Final = 2**16
_PIDS: Final = 2**22
"""Above the kernel's numbers of processes."""
_ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
"""NVML's numbers; the search does not guess an absent number."""
_OUTSIDE: Final = re.compile(r"[^-A-Za-z0-9_.]+")


def load_library(folders: Iterable[Path]) -> str:
    """Load the driver's library by its path, so that the loader finds it by name. Returns the error, empty for none."""
    file = next((one / _SONAME for one in folders if (one / _SONAME).is_file()), None)
    if file is not None:
        try:
            ctypes.CDLL(str(file))
        except OSError as error:
            return f"{file} cannot be loaded: {error}"
    return ""


class Nvidia:
    """NVIDIA's library, kept open from its first use: it queues errors of cards for each search to read."""

    def __init__(self, health: HealthBook, clock: Callable[[], float]) -> None:
        """Start with a closed library; `clock` returns seconds and never goes back."""
        self._health = health
        self._clock = clock
        self._nvml: Any = None
        self._events: Any = None
        self._silent: dict[str, str] = {}
        self._uuids: dict[int, str] = {}
        self._heard: dict[int, str] = {}
        self._known: dict[int, str] = {}
        self._sampled: dict[int, int] = {}
        self._instances = InstanceUses(clock)

    def discover(self, roots: Roots) -> Inventory:
        """The current cards."""
        if self._nvml is None and (problem := self._open(roots)):
            return Inventory(problems=_seen(roots, problem))
        try:
            return self._search(roots)
        except self._failures as error:
            self.close()
            return Inventory(problems=(f"NVIDIA: the library failed: {error}",))

    def close(self) -> None:
        """Close the library; the next search opens it again."""
        nvml, self._nvml, self._events = self._nvml, None, None
        self._heard, self._known, self._sampled = {}, {}, {}
        if nvml is not None:
            self._instances.close(nvml)
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                return  # it is closed nevertheless

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        """Errors of the driver; it may also answer with bytes that are no text."""
        return self._nvml.NVMLError, UnicodeDecodeError

    def _open(self, roots: Roots) -> str:
        """Open the library; return the problem, empty for none."""
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            return "nvidia-ml-py is not installed; install the extra partage[nvidia]"
        if problem := load_library(roots.libraries):
            return problem
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return f"the driver's library cannot be used: {error}"
        self._nvml, self._silent = nvml, {}
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._events = None
            self._silent[""] = f"NVIDIA: errors of cards are not reported: {error}"
        return ""

    def _search(self, roots: Roots) -> Inventory:
        nvml = self._nvml
        driver = label_text(str(nvml.nvmlSystemGetDriverVersion()))
        count = min(int(nvml.nvmlDeviceGetCount()), _MOST_CARDS)
        self._take_errors()
        found: list[Found] = []
        problems: list[str] = []
        handles: dict[str, Any] = {}
        before = self._health.ailing.union(self._uuids.values())
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                one = self._card(roots, handle, driver)
            except self._failures as error:
                lost = self._uuids.get(index, "")
                self._heard = {key: uuid for key, uuid in self._heard.items() if uuid != lost}
                problems.append(f"NVIDIA card {index} does not answer: {error}")
                continue
            if not 0 <= one.device.minor < _MOST_MINOR or not one.device.uuid:
                problems.append(f"NVIDIA card {index} has no usable identity; it is left out")
                continue
            if _key(handle) not in self._heard:
                self._listen(handle, one.device.uuid)
            self._uuids[index] = self._known[_key(handle)] = one.device.uuid
            handles[one.device.uuid] = handle
            found.append(one)
        for gone in before - handles.keys():  # the driver need not count a card that is away
            self._health.missing(gone)
        problems += [
            text for uuid, text in sorted(self._silent.items()) if not uuid or uuid in handles
        ]
        return Inventory(tuple(found), tuple(problems), *self._links(found, handles))

    def _card(self, roots: Roots, handle: Any, driver: str) -> Found:
        nvml = self._nvml
        uuid, name = str(nvml.nvmlDeviceGetUUID(handle)), str(nvml.nvmlDeviceGetName(handle))
        minor = int(nvml.nvmlDeviceGetMinorNumber(handle))
        room = nvml.nvmlDeviceGetMemoryInfo(handle)
        memory, mode = int(room.total), mode_of(nvml, handle)
        mig = None if mode is None else mode.current
        pci_info = nvml.nvmlDeviceGetPciInfo(handle)
        address, product = _address(str(pci_info.busId)), int(pci_info.pciDeviceId) >> 16
        # It identifies the possible instances before the name does.
        labels = {names.PCI_PRODUCT: f"{product:04X}"} if product else {}
        number = self._told(lambda: int(nvml.nvmlDeviceGetArchitecture(handle)))
        ailment = self._health.answers(uuid, self._clock())
        reason, detail = (ailment.reason, ailment.message) if ailment else ("", "")
        if not memory:
            reason, detail = "MemoryUnknown", "the driver reports no memory"
        device = Device(
            type=DeviceType.GPU,
            minor=minor,
            uuid=uuid,
            vendor=NVIDIA.name,
            model=label_text(name.removeprefix(_PREFIX)),
            healthy=not reason,
            memory_bytes=memory,
            labels=labels | ({names.MIG_MODE: names.MIG_ENABLED} if mig else {}),
            topology=pci.place_at(roots.sys, address),
            health_detail=detail,
        )
        files = NVIDIA.files(minor)
        return Found(
            device,
            reason=reason,
            product=name,
            driver=driver,
            architecture=_ARCHITECTURES.get(number or 0, ""),
            mig=mig,
            files=files if all(roots.file(path).exists() for path in files) else (),
            use=self._use(handle, uuid, room, mig=bool(mig)),
        )

    def _use(self, handle: Any, uuid: str, room: Any, *, mig: bool) -> CardUse:
        nvml = self._nvml
        percent = self._told(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        busy = None if percent is None else min(max(percent, 0), 100) / 100
        power = self._told(lambda: int(nvml.nvmlDeviceGetPowerUsage(handle)))
        processes, times = self._processes(handle, int(room.total)), self._times(handle)
        instances = self._instances.read(nvml, uuid, handle) if mig else {}
        return CardUse(max(int(room.used), 0), busy, power, processes, times, instances)

    def _processes(self, handle: Any, most: int) -> dict[int, int] | None:
        """Memory by process; None if the driver does not report it, even for one of them.

        No process has more than `most`, the card's memory, or a number that the kernel does not give: a driver that
        says so reports nothing, and no container is beyond its cap by its figures.
        """
        nvml = self._nvml
        try:
            found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError:
            return None
        if any(
            one.usedGpuMemory is None or one.usedGpuMemory > most or not 0 < one.pid < _PIDS
            for one in found
        ):
            return None
        used: dict[int, int] = {}
        for one in found:
            used[int(one.pid)] = used.get(int(one.pid), 0) + int(one.usedGpuMemory)
        return used

    def _times(self, handle: Any) -> dict[int, float] | None:
        """Part of the card's time by process, of samples since the last look."""
        nvml, key = self._nvml, _key(handle)
        before = self._sampled.get(key, 0)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, before)
        except nvml.NVMLError as error:
            # If nothing ran it has no sample, and the binding raises the code for success.
            idle = error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND)
            return {} if idle else None
        self._sampled[key] = max((int(one.timeStamp) for one in samples), default=before)
        ordered = sorted(samples, key=lambda one: int(one.timeStamp))
        return {int(one.pid): min(int(one.smUtil), 100) / 100 for one in ordered}

    def _told(self, ask: Callable[[], int]) -> int | None:
        """A figure; None if the card's driver does not report it."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None

    def _listen(self, handle: Any, uuid: str) -> None:
        if self._events is None:
            return
        try:
            self._nvml.nvmlDeviceRegisterEvents(handle, _XID, self._events)
            self._heard[_key(handle)] = uuid
            self._silent.pop(uuid, None)
        except self._nvml.NVMLError as error:
            self._silent[uuid] = f"NVIDIA card {uuid}: its errors are not reported: {error}"

    def _take_errors(self) -> None:
        """Note the errors that were queued since the last search."""
        nvml = self._nvml
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                return  # none is left: this is a time-out
            if event.eventType & _XID:
                # A card that fell off its bus has no name any more; its handle still finds it.
                # An error of an unknown card counts for every card.
                uuid = self._known.get(_key(event.device))
                for suspect in (uuid,) if uuid else tuple(self._uuids.values()):
                    self._health.reported(suspect, int(event.eventData), self._clock())

    def _links(
        self, found: list[Found], handles: dict[str, Any]
    ) -> tuple[dict[tuple[str, str], int], dict[str, frozenset[str]]]:
        """Direct NVLinks by pair of cards, if both sides report them; and the NVSwitches that each card reaches."""
        nvml = self._nvml
        by_bus = {one.device.topology.bus: one.device.uuid for one in found if one.device.topology}
        told: Counter[tuple[str, str]] = Counter()
        switches: dict[str, frozenset[str]] = {}
        for uuid, handle in handles.items():
            for link in range(_LINKS):
                try:
                    if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                        continue
                    remote = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
                except self._failures:
                    break  # no such link: the card has no more
                address = _address(str(remote.busId))
                other = by_bus.get(address)
                if other is not None:
                    told[uuid, other] += 1
                elif (
                    address
                    and self._told(partial(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link))
                    == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
                ):
                    switches[uuid] = switches.get(uuid, frozenset()) | {address}
        links = {
            (one, other): min(count, told[other, one])
            for (one, other), count in sorted(told.items())
            if one < other and told[other, one]
        }
        return links, switches


def _key(handle: Any) -> int:
    """A handle in a form that can be compared."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def label_text(name: str) -> str:
    """A name as the value of a label: other characters become dashes."""
    return _OUTSIDE.sub("-", name)[:63].strip("-_.")


def _address(bus: str) -> str:
    """NVML's PCI address in the form of sysfs; empty if it is none."""
    domain, _, rest = bus.lower().partition(":")
    if not re.fullmatch(r"[0-9a-f]{1,8}", domain):
        return ""
    address = f"{int(domain, 16):04x}:{rest}"
    return address if pci.ADDRESS.fullmatch(address) else ""


def _seen(roots: Roots, problem: str) -> tuple[str, ...]:
    """The problem, if the node has NVIDIA cards at all."""
    cards = [
        one.address
        for one in pci.functions(roots.sys)
        if one.vendor == NVIDIA.pci and one.kind >> 16 == _DISPLAY and not one.virtual
    ]
    return (f"NVIDIA cards at {', '.join(cards)}: {problem}",) if cards else ()
