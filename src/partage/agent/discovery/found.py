"""The result of a search of a node: devices with their facts, and problems.

A device whose facts cannot be trusted is never left open. It is reported unhealthy with the reason,
so that no pod gets a grant on it, or it is left out and a problem contains the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from partage.agent.discovery.pci import PciFunction, place
from partage.model.device import Device, DeviceType


@dataclass(frozen=True, slots=True)
class Roots:
    """The paths of a node's own files; an agent in a container has them mounted elsewhere.

    Attributes:
        libraries: folders of vendors' libraries, searched in order; if NVIDIA's is in none of
            them, the system's loader searches for it.
        vendor_files: folder of the device files that koord-device-daemon writes.
        simulated: file that describes simulated devices; None if devices are real.
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
        """The path of a device file for this process; the node's path is `/dev/...`."""
        return self.dev / path.removeprefix("/dev/")


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """A driver's measurement of a hardware instance: the busy part of its compute, 0 to 1, between two moments."""

    busy: float
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class CardUse:
    """The use of a card by its driver's figures.

    Attributes:
        memory_bytes: by all processes.
        busy: part of the time in which anything ran, 0 to 1; None if the driver does not report it.
        milliwatts: drawn now; None if the driver does not report it.
        processes: bytes by process of the host; None if the driver does not report them.
        times: part of the card's time by process of the host, as last sampled; an absent process ran nothing.
            None if the driver does not report them, as for a card that is cut into instances.
        instances: the measurements of its hardware instances, by start and size; an unknown one is absent.
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
        reason: of the condition, if it is unhealthy; one CamelCase word.
        product: the vendor's own name for the card.
        architecture: the vendor's name for it, such as `Hopper`; empty if unknown.
        percent: whether its compute is reported in percent, beside any native units.
        mig: whether the card is in MIG mode; None if that is unknown or there is none.
        files: device files that a container needs to use it, by the node's paths, if they are known and exist.
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


def closed_card(one: PciFunction, minor: int, vendor: str, reason: str, ill: str) -> Found:
    """A card that only sysfs shows: it is reported, and never allocated."""
    device = Device(
        type=DeviceType.GPU,
        minor=minor,
        uuid=one.address,
        vendor=vendor,
        model=one.model,
        healthy=False,
        topology=place(one.folder),
        health_detail=ill,
    )
    return Found(device, reason=reason)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The result of one search.

    Attributes:
        problems: unreadable or invalid facts, one sentence each.
        links: number of direct links between two cards, by their identities, the smaller first.
        switches: PCI addresses of the NVSwitches to which a card has links, by its identity.
    """

    found: tuple[Found, ...] = ()
    problems: tuple[str, ...] = ()
    links: Mapping[tuple[str, str], int] = field(default_factory=dict)
    switches: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices alone."""
        return tuple(one.device for one in self.found)
