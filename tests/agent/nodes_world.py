"""Made-up nodes: sysfs trees, and vendors' libraries compiled from a few lines of C."""

import contextlib
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from partage.agent.discovery.found import Inventory, Roots
from partage.agent.discovery.search import Search
from partage.embedded.definitions import DEFINITIONS

HERE = Path(__file__).parent
ROOT = "pci0000:3a"


class Node:
    """A node's files under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roots = Roots(
            sys=folder / "sys",
            proc=folder / "proc",
            dev=folder / "dev",
            libraries=(folder / "lib",),
            vendor_files=folder / "files",
        )
        for name in ("sys", "proc", "dev", "lib", "files"):
            (folder / name).mkdir()

    def discover(self) -> Inventory:
        """What one search with every backend finds."""
        with contextlib.closing(Search(self.roots, "")) as search:
            return search()

    def write(self, path: str, text: str | bytes) -> Path:
        """A file below the folder."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def link(self, path: str, target: Path) -> None:
        """A symbolic link below the folder."""
        link = self.folder / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def pci(self, address: str, vendor: str, kind: str, **files: str) -> Path:
        """A PCI function behind one root, as sysfs shows it."""
        home = f"sys/devices/{ROOT}/0000:3a:01.0/{address}"
        given = {"vendor": vendor, "device": "0x1234", "class": kind, "numa_node": "1"} | files
        for name, text in given.items():
            self.write(f"{home}/{name}", text + "\n")
        self.link(f"sys/bus/pci/devices/{address}", self.folder / home)
        return self.folder / home

    def nic(self, name: str, address: str, state: str = "4: ACTIVE", functions: int = 0) -> None:
        """An RDMA card with virtual functions."""
        home = self.pci(address, "0x15b3", "0x020000")
        for index in range(functions):
            virtual = self.pci(f"{address[:-1]}{index + 1}", "0x15b3", "0x020000")
            (virtual / "physfn").symlink_to(home)
            (home / f"virtfn{index}").symlink_to(virtual)
        self.link(f"sys/class/infiniband/{name}/device", home)
        self.write(f"sys/class/infiniband/{name}/ports/1/state", state)


def compiled(source: str, target: Path, soname: str) -> Path:
    """A shared library made of a C file beside this one; skips without a compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: no stand-in for a vendor's library can be made")
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{soname}", "-o", target, HERE / source],  # noqa: S607
        check=True,
    )
    return target


def older_definition() -> dict[str, Any]:
    """Definition of Devices as Koordinator first had it: what it does not name the API server drops."""
    definition = deepcopy(DEFINITIONS[0])
    fields = {
        "type": {"type": "string"},
        "id": {"type": "string"},
        "minor": {"type": "integer"},
        "health": {"type": "boolean"},
        "resources": {"type": "object", "additionalProperties": {"type": "string"}},
    }
    devices = {"type": "array", "items": {"type": "object", "properties": fields}}
    (version,) = definition["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["properties"] = {
        "spec": {"type": "object", "properties": {"devices": devices}},
        "status": {"type": "object", "properties": {}},
    }
    return definition
