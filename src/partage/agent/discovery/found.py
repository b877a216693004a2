"""The result of a search of a node: devices with their facts, and problems.

A device whose facts cannot be trusted is never left open. It is reported unhealthy with the reason,
so that no pod gets a grant on it, or it is left out and a problem contains the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from partage.model.device import Device


@dataclass(frozen=True, slots=True)
class Roots:
    """Where a node's own files are; an agent in a container has them mounted elsewhere.

    Attributes:
        libraries: folders of vendors' libraries, searched in order; where NVIDIA's is in none of
            them, the system's loader looks for it.
        vendor_files: folder of the device files that koord-device-daemon writes.
        simulated: file that describes simulated devices; None where devices are real.
    """

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    libraries: tuple[Path, ...] = (
        Path("/opt/mxdriver/lib"),
        Path("/opt/maca/lib"),
        Path("/opt/mxn100/lib"),
    )
    vendor_files: Path = Path("/var/run/koordlet/xpu-device-infos")
    simulated: Path | None = None

    def file(self, path: str) -> Path:
        """Where this process sees a device file that the node calls `/dev/...`."""
        return self.dev / path.removeprefix("/dev/")


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """What a driver measured of a hardware instance between two moments, in seconds of the clock that searches have.

    Attributes:
        busy: part of the instance's own compute, 0 to 1.
    """

    busy: float
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class CardUse:
    """What a card's driver says is used of it.

    Attributes:
        memory_bytes: by all processes.
        busy: part of the time in which anything ran, 0 to 1; None where that is not told.
        milliwatts: drawn now; None where that is not told.
        processes: bytes by process of the host; None where that is not told.
        times: part of the card's time by process of the host, as last sampled; one that is not among them ran nothing.
            None where that is not told, as of a card that is cut into instances.
        instances: what its hardware instances did, by start and size; one of which that is not known is absent.
    """

    memory_bytes: int
    busy: float | None = None
    milliwatts: int | None = None
    processes: Mapping[int, int] | None = None
    times: Mapping[int, float] | None = None
    instances: Mapping[tuple[int, int], InstanceUse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """One device as found.

    Attributes:
        device: what the scheduler will read of it.
        reason: of the condition, where it is unhealthy; one CamelCase word.
        product: the name by which the vendor's own software calls the card.
        driver: version of its driver; empty when unknown.
        architecture: as the vendor names it, such as `Hopper`; empty when unknown.
        percent: whether its compute is given in percent, beside any native units.
        mig: whether the card is in MIG mode; None where that is unknown or there is none.
        files: device files that a container needs to use it, as the node calls them, where they are known and there.
        use: what is used of it now; None where its driver does not tell.
    """

    device: Device
    reason: str = ""
    product: str = ""
    driver: str = ""
    architecture: str = ""
    percent: bool = True
    mig: bool | None = None
    files: tuple[str, ...] = ()
    use: CardUse | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that one search found.

    Attributes:
        problems: what could not be read or understood, one sentence each.
        links: number of direct links between two cards, by their identities, the smaller first.
    """

    found: tuple[Found, ...] = ()
    problems: tuple[str, ...] = ()
    links: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices alone."""
        return tuple(one.device for one in self.found)
