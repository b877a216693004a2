"""CDI specifications of instances: the device files that a container needs for one of them.

Each instance has one file with one device, named by the instance's UUID: `partage.io/mig=MIG-…`. Files
of `/dev/nvidia-caps` need not exist on the node: the specification contains their numbers, and the
container runtime creates them inside the container. Version 0.3.0 has all fields that are used, so every
runtime reads it.

Source: Container Device Interface specification; NVIDIA's MIG user guide on device nodes (docs/sources/kubernetes.md 5). Not run on hardware.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from partage.agent.cdi.specs import DeviceNode, Specification, contents
from partage.agent.mig.journal import replace_file
from partage.model.errors import UNREADABLE, InvalidDocument
from partage.vendors.traits import NVIDIA

KIND: Final = "partage.io/mig"
_VERSION: Final = "0.3.0"
_CONTROL: Final = 255
_PREFIX: Final = "partage.io-mig_"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Device numbers of this run of the driver.

    Attributes:
        cards, memory, capabilities: major numbers of `nvidia`, `nvidia-uvm`, `nvidia-caps`.
        minors: minor number of each capability by its path, such as `gpu0/gi1/access`.
    """

    cards: int
    memory: int
    capabilities: int
    minors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spec:
    """The subject of a specification on disk: the place, and the UUID in it (empty if unreadable)."""

    start: int
    uuid: str


def read_numbers(proc: Path = Path("/proc")) -> Numbers:
    """The device numbers that the kernel and the driver report. Raises `InvalidDocument`."""
    try:
        devices = (proc / "devices").read_text("utf-8")
        minors = (proc / "driver/nvidia-caps/mig-minors").read_text("utf-8")
    except OSError as error:
        raise InvalidDocument(f"{error.filename}: {error.strerror or error}") from None
    majors = {
        name: int(major) for major, name in re.findall(r"^ *(\d+) (\S+)$", devices, re.MULTILINE)
    }
    majors.setdefault(NVIDIA.name, majors.get("nvidia-frontend", 195))
    if lacking := [name for name in ("nvidia-uvm", "nvidia-caps") if name not in majors]:
        raise InvalidDocument(f"{proc / 'devices'}: no {lacking[0]}; is its kernel module loaded?")
    lines = re.findall(r"^(\S+) (\d+)$", minors, re.MULTILINE)
    found = {path: int(minor) for path, minor in lines}
    return Numbers(majors[NVIDIA.name], majors["nvidia-uvm"], majors["nvidia-caps"], found)


def render(uuid: str, place: tuple[int, int, int], numbers: Numbers) -> bytes:
    """The specification of a MIG device at its card's minor, GPU and compute instance. Raises `InvalidDocument`."""
    minor, gpu, compute = place
    nodes = [
        _node("nvidiactl", numbers.cards, _CONTROL),
        *(_node(path.removeprefix("/dev/"), numbers.cards, minor) for path in NVIDIA.files(minor)),
        _node("nvidia-uvm", numbers.memory, 0),
        _node("nvidia-uvm-tools", numbers.memory, 1),
    ]
    for path in (f"gpu{minor}/gi{gpu}/access", f"gpu{minor}/gi{gpu}/ci{compute}/access"):
        capability = numbers.minors.get(path)
        if capability is None:
            raise InvalidDocument(f"mig-minors has no line for {path}")
        name = f"nvidia-caps/nvidia-cap{capability}"
        nodes.append(_node(name, numbers.capabilities, capability))
    document: dict[str, Any] = {
        "cdiVersion": _VERSION,
        "kind": KIND,
        "devices": [{"name": uuid, "containerEdits": {"deviceNodes": nodes}}],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _node(name: str, major: int, minor: int) -> dict[str, Any]:
    numbers = {"major": major, "minor": minor}
    return {"path": f"/dev/{name}", "type": "c", **numbers, "permissions": "rw"}


class Specs:
    """Specifications as files of a folder that runtimes watch, such as `/var/run/cdi`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, card: str, start: int) -> Path:
        """The file of the instance that starts there."""
        return self._folder / f"{_PREFIX}{card}_{start}.json"

    def present(self, card: str) -> tuple[Spec, ...]:
        """Our specifications for a card, by start. Raises `OSError`: the folder or one of them cannot be read."""
        found = []
        try:
            every = list(self._folder.iterdir())
        except FileNotFoundError:
            return ()
        for path in every:
            before, _, start = path.stem.rpartition("_")
            ours = before == f"{_PREFIX}{card}" and path.suffix == ".json"
            if ours and start.isdecimal():
                found.append(Spec(int(start), _device(path)))
        return tuple(sorted(found, key=lambda spec: spec.start))

    def nodes(self, card: str, start: int, uuid: str) -> tuple[DeviceNode, ...]:
        """Device files of an instance. Raises `InvalidDocument`: absent, unreadable, or of another instance."""
        path = self.path(card, start)
        try:
            document = msgspec.json.decode(contents(path), type=Specification)
        except OSError as error:
            raise InvalidDocument(f"{path}: {error.strerror or error}") from None
        except UNREADABLE as error:
            raise InvalidDocument(f"{path}: {error}") from None
        for device in document.devices:
            if device.name == uuid:
                return device.container_edits.device_nodes
        raise InvalidDocument(f"{path}: no device {uuid}")

    def write(self, card: str, start: int, content: bytes) -> None:
        """Write or replace one atomically; runtimes never see half of it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.path(card, start), content)

    def remove(self, card: str, start: int) -> None:
        """Remove one, if it exists."""
        self.path(card, start).unlink(missing_ok=True)


def _device(path: Path) -> str:
    """The device that a specification names; empty if it names none. Raises `OSError`."""
    try:
        document = msgspec.json.decode(contents(path), type=Specification)
    except (FileNotFoundError, *UNREADABLE):
        return ""
    return document.devices[0].name if len(document.devices) == 1 else ""
