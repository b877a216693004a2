"""Measures how busy NVIDIA's hardware instances are, by the driver's counters of each (NVML's GPM).

A figure needs two samples of one instance: each search takes one and computes the figure since the last. Cards before
Hopper and older drivers have no such counters; the log reports this once, and such instances have no figure.
Not yet run on a card: the module assumes that an instance's figure is a part of its own multiprocessors.

Source: docs/sources/mig.md 5.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from partage.agent.discovery.found import InstanceUse

_LOG: Final = logging.getLogger("partage.agent")
_SHORTEST: Final = 0.5
"""Seconds between two samples; NVIDIA asks for a tenth."""
_MOST: Final = 1024
"""Instances of a node whose samples are kept."""
_MOST_OF_CARD: Final = 64
_ROUNDING: Final = 1.0
"""Percent beyond a hundred that count as a hundred; higher figures are ignored."""


@dataclass(slots=True)
class _Kept:
    """The last sample of one instance, taken at `at`, room for the next one, and the `use` by the last two."""

    sample: Any
    spare: Any
    at: float
    use: InstanceUse | None = None


_Key = tuple[str, int, str]
"""Card, number of the GPU instance, and a MIG device's UUID: numbers are reused."""


class InstanceUses:
    """Takes a sample at each search."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without samples; `clock` returns seconds and never goes back."""
        self._clock = clock
        self._kept: dict[_Key, _Kept] = {}
        self._said: dict[str, str] = {}

    def read(self, nvml: Any, card: str, handle: Any) -> dict[tuple[int, int], InstanceUse]:
        """The measurements of a card's instances since the last search, by start and size; unknown ones are absent."""
        found: dict[tuple[int, int], InstanceUse] = {}
        there: set[_Key] = set()
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._say(card, "the card has no counters of instances")
                return {}
            for number, uuid, place in _instances(nvml, handle):
                key = (card, number, uuid)
                there.add(key)
                if (use := self._measured(nvml, handle, key)) is not None:
                    found[place] = use
        except nvml.NVMLError as error:
            self._say(card, str(error))
            found = {}
        for key in [one for one in self._kept if one[0] == card and one not in there]:
            _free(nvml, self._kept.pop(key))
        return found

    def close(self, nvml: Any) -> None:
        """Free the samples, before the library is closed."""
        for one in self._kept.values():
            _free(nvml, one)
        self._kept, self._said = {}, {}

    def _measured(self, nvml: Any, handle: Any, key: _Key) -> InstanceUse | None:
        now, kept = self._clock(), self._kept.get(key)
        if kept is None:
            if len(self._kept) < _MOST:
                self._begin(nvml, handle, key, now)
            return None
        if now - kept.at < _SHORTEST:
            return kept.use
        kept.use = None
        nvml.nvmlGpmMigSampleGet(handle, key[1], kept.spare)
        before, kept.sample, kept.spare = kept.sample, kept.spare, kept.sample
        began, kept.at = kept.at, now
        busy = _busy(nvml, before, kept.sample)
        kept.use = None if busy is None else InstanceUse(busy, began, now)
        return kept.use

    def _begin(self, nvml: Any, handle: Any, key: _Key, now: float) -> None:
        first = nvml.nvmlGpmSampleAlloc()
        try:
            nvml.nvmlGpmMigSampleGet(handle, key[1], first)
            self._kept[key] = _Kept(first, nvml.nvmlGpmSampleAlloc(), now)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(first)
            raise

    def _say(self, card: str, why: str) -> None:
        if self._said.get(card) != why:
            self._said[card] = why
            _LOG.info("NVIDIA card %s: time of its instances is not measured: %s", card, why)


def _instances(nvml: Any, handle: Any) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """GPU instances with compute in them: number, UUID of the first MIG device, start and size."""
    seen: set[int] = set()
    for index in range(min(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)), _MOST_OF_CARD)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_FOUND:
                continue
            raise
        number = int(nvml.nvmlDeviceGetGpuInstanceId(device))
        if number not in seen:
            seen.add(number)
            instance = nvml.nvmlDeviceGetGpuInstanceById(handle, number)
            place = nvml.nvmlGpuInstanceGetInfo(instance).placement
            uuid = str(nvml.nvmlDeviceGetUUID(device))
            yield number, uuid, (int(place.start), int(place.size))


def _busy(nvml: Any, before: Any, after: Any) -> float | None:
    """The part of an instance's multiprocessors that worked between two samples; None if it is not reported."""
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1, asked.sample2 = before, after
    asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
    nvml.nvmlGpmMetricsGet(asked)
    told = asked.metrics[0]
    if told.nvmlReturn != nvml.NVML_SUCCESS or not 0 <= told.value <= 100 + _ROUNDING:
        return None
    return min(float(told.value) / 100, 1.0)


def _free(nvml: Any, kept: _Kept) -> None:
    for sample in (kept.sample, kept.spare):
        with suppress(nvml.NVMLError):
            nvml.nvmlGpmSampleFree(sample)
