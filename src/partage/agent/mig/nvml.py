"""The answers of NVML that instances need, as small values, and its failures."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from partage.model.errors import PartageError


class Failure(StrEnum):
    """Why a call failed, as far as it decides the next step."""

    IN_USE = "in use"  # a process holds the card or the instance: try again
    INSUFFICIENT = "insufficient resources"  # the place is taken, or an engine is short
    NOT_FOUND = "not found"  # the named object is gone
    RESET_REQUIRED = "reset required"  # the mode changes at the next reset only
    NOT_SUPPORTED = "not supported"
    INVALID_ARGUMENT = "invalid argument"
    NO_PERMISSION = "no permission"
    LOST = "the card is lost"
    OTHER = "failed"


class NvmlFailed(PartageError):
    """A call of the driver failed."""

    def __init__(self, call: str, failure: Failure, detail: str = "") -> None:
        super().__init__(f"{call}: {failure}" + (f" ({detail})" if detail else ""))
        self.failure = failure


@dataclass(frozen=True, slots=True)
class CardFacts:
    """One card of the node.

    Attributes:
        minor: number of its device file `/dev/nvidia<minor>`; not the driver's index.
        pci: product id, upper-case hexadecimal; empty if unknown.
        keeps_mode: its MIG mode outlives a driver reload and changes by a reset only (Ampere).
    """

    uuid: str
    minor: int
    name: str
    pci: str
    keeps_mode: bool


@dataclass(frozen=True, slots=True)
class Mode:
    """Whether MIG mode is on, now and after the next reset."""

    current: bool
    pending: bool


def mode_of(library: Any, handle: Any) -> Mode | None:
    """MIG mode of a card by `pynvml`; None if it, or its driver, has no MIG. Raises `library.NVMLError`."""
    try:
        current, pending = library.nvmlDeviceGetMigMode(handle)
    except library.NVMLError as error:
        lacks = library.NVML_ERROR_NOT_SUPPORTED, library.NVML_ERROR_FUNCTION_NOT_FOUND
        if error.value in lacks:
            return None
        raise
    return Mode(bool(current), bool(pending))


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance; `uuid` is that of the MIG device, which programs use."""

    id: int
    uuid: str


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance and its place. Its number is reused after its removal."""

    id: int
    profile: int
    start: int
    size: int
    computes: tuple[ComputeInstance, ...] = ()
