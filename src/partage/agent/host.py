"""Finds and creates files on the agent's host: device files, folders of containers, network cards.

Every root is an argument. The module guesses nothing: if a file that a container needs is absent, the error
names it.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from partage.agent.cdi.edits import inlined
from partage.agent.cdi.specs import Specifications
from partage.agent.container_edits import SILENT, Given
from partage.agent.discovery.pci import entries
from partage.agent.isolation.providers import Bind
from partage.agent.nri import messages as nri
from partage.model.errors import InvalidValue

_EVERYBODY: Final = 0o777
_FILE_MODE: Final = 0o666


@dataclass(frozen=True, slots=True)
class Host:
    """The paths of the host's files.

    Attributes:
        root: of device files and mounts, as this process sees them; `/` on the host itself.
        simulated: devices are simulated: their files need not exist.
        cdi: the host's CDI specifications, if they name the cards.
    """

    root: Path = Path("/")
    sys: Path = Path("/sys")
    simulated: bool = False
    cdi: Specifications | None = None

    def verbs(self, address: str) -> tuple[str, ...]:
        """Verbs device files of a network card or virtual function, by PCI address."""
        folder = self.sys / "bus/pci/devices" / Path(address).name / "infiniband_verbs"
        return tuple(f"/dev/infiniband/{one.name}" for one in entries(folder))

    def adjustment(
        self,
        given: Given,
        removed: Iterable[str],
        container: nri.Container,
        annotations: Mapping[str, str] = MappingProxyType({}),
    ) -> nri.Adjustment | None:
        """The changes for the runtime; None if there are none.

        `removed`: variables to disable. `annotations`: kept in the runtime's own books. Raises `InvalidValue`: a
        required file is absent or no device, or CDI edits that the runtime needs cannot be found or expressed.
        """
        there = {device.path for device in container.linux.devices} if container.linux else set()
        spare = (*given.files, *given.spare) if self.simulated else given.spare
        needed = () if self.simulated else given.files
        devices = [self._device(path) for path in needed if path not in there]
        devices += [
            self._device(path) for path in spare if path not in there and self.at(path).exists()
        ]
        there |= {device.path for device in devices}
        devices += [
            nri.Device(one.path, "c", one.major, one.minor, nri.Wrapped(_FILE_MODE))
            for one in given.made
            if one.path not in there
        ]
        env = [nri.Variable(key, SILENT.get(key, "")) for key in removed]
        env += [nri.Variable(key, value) for key, value in sorted(given.env.items())]
        mounts = tuple(self._mount(bind) for bind in given.binds)
        if not (devices or env or mounts or annotations or given.cdi):
            return None
        adjustment = nri.Adjustment(
            annotations=annotations,
            mounts=mounts,
            env=tuple(env),
            linux=nri.LinuxAdjustment(tuple(devices)) if devices else None,
            cdi_devices=tuple(nri.CdiDevice(name) for name in given.cdi),
        )
        if not given.cdi or self.cdi is None or not self.cdi.inline:
            return adjustment
        return inlined(adjustment, self.cdi.edits(given.cdi), container, self.root)

    def at(self, path: str) -> Path:
        """The path of a host's file for this process."""
        return self.root / path.lstrip("/")

    def _device(self, path: str) -> nri.Device:
        try:
            found = self.at(path).stat()
        except OSError as error:
            raise InvalidValue(f"device file {path}: {error.strerror}") from error
        if not stat.S_ISCHR(found.st_mode):
            raise InvalidValue(f"device file {path} is no character device")
        return nri.Device(
            path, "c", os.major(found.st_rdev), os.minor(found.st_rdev), nri.Wrapped(_FILE_MODE)
        )

    def _mount(self, bind: Bind) -> nri.Mount:
        here = self.at(bind.source)
        try:
            if bind.folder:
                here.mkdir(parents=True, exist_ok=True)
                _open_to_everybody(here, bind.source)
            else:
                here.stat()
        except OSError as error:
            raise InvalidValue(f"{bind.source} cannot be mounted: {error.strerror}") from error
        options = ("rbind", "rw" if bind.writable else "ro")
        return nri.Mount(bind.target, "bind", bind.source, options)


def _open_to_everybody(folder: Path, name: str) -> None:
    """Let all users write to a folder: containers run as any. Raises `InvalidValue`: a tenant may have replaced it."""
    there = folder.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid not in {0, os.geteuid()}:
        raise InvalidValue(
            f"{name} cannot be mounted: it is no folder of root's; remove it, and the agent makes it again"
        )
    if stat.S_IMODE(there.st_mode) & _EVERYBODY != _EVERYBODY:
        folder.chmod(_EVERYBODY)
