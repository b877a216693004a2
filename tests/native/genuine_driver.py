"""NVIDIA's own driver library without a device, where one is found: none of it is in the tree."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from native_world import WAIT, Tenant

from native_build import ROOT

FOLDER = "PARTAGE_GENUINE_DRIVER"
"""Names a folder with libcuda.so.1 and libnvidia-ml.so.1, or several, with colons between."""
CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
BRANCHES = dict(
    item
    for items in (
        zip((450, 455, 460, 465, 470, 495, 510, 515, 520), range(11000, 11090, 10), strict=True),
        zip(
            (525, 530, 535, 545, 550, 555, 560, 565, 570, 575),
            range(12000, 12100, 10),
            strict=True,
        ),
        zip((580, 590, 595), range(13000, 13030, 10), strict=True),
    )
    for item in items
)
"""The version of CUDA that a branch of the driver is for: without a device it does not say."""


@dataclass(frozen=True)
class Hook:
    """A row of native/src/hooks.h."""

    name: str
    base: str
    since: int
    per_thread: bool
    library: str


def hooks() -> list[Hook]:
    """The rows of the table, in its order."""
    rows = re.findall(
        r'HOOK\((\w+), "(\w*)", (\d+), (\d), (\w+)\)', (ROOT / "native/src/hooks.h").read_text()
    )
    return [
        Hook(name, base, int(since), per_thread == "1", library)
        for name, base, since, per_thread, library in rows
    ]


@dataclass(frozen=True)
class Driver:
    """A folder with NVIDIA's libraries."""

    folder: Path

    @property
    def branch(self) -> int:
        """Which driver it is: 535, 550."""
        found = re.search(r"\.so\.(\d+)\.", str((self.folder / CUDA).resolve()))
        return int(found[1]) if found else max(BRANCHES)

    @property
    def version(self) -> int:
        """The version of CUDA; the newest for an unknown branch."""
        return BRANCHES.get(self.branch, 10**6)

    def path(self, library: str = CUDA) -> str:
        """The path of one of the libraries; skips where it is missing."""
        if not (self.folder / library).exists():
            pytest.skip(f"the genuine driver has no {library}: Debian's non-free libnvidia-ml1")
        return str(self.folder / library)

    def environment(self, tenant: Tenant | None) -> dict[str, str]:
        """Variables with the library for a tenant, and without it for none."""
        names = {"LD_LIBRARY_PATH": str(self.folder)}
        base = tenant.environment if tenant else os.environ
        return {**base, **names, "LD_PRELOAD": str(tenant.library) if tenant else ""}

    def ask(self, tenant: Tenant | None, *question: str) -> Any:
        """What genuine_probe.py says in a process of its own."""
        probe = Path(__file__).with_name("genuine_probe.py")
        done = subprocess.run(
            [sys.executable, str(probe), *question],
            env=self.environment(tenant),
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert "partage:" not in done.stderr
        return json.loads(done.stdout)


def folders() -> list[Path]:
    """Where genuine drivers lie: as the variable says, else where the loader would look."""
    if FOLDER in os.environ:
        return [Path(one).resolve() for one in os.environ[FOLDER].split(":") if one]
    loader = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    listed = (
        subprocess.run([loader, "-p"], capture_output=True, text=True, check=False)
        if loader
        else None
    )
    found = re.findall(rf"{CUDA} \(.*x86-64.*\) => (\S+)", listed.stdout) if listed else []
    return [Path(one).parent.resolve() for one in found[:1]]


def drivers() -> list[Any]:
    """One parameter per driver, or one that skips."""
    if not shutil.which("objdump"):
        return [pytest.param(None, marks=pytest.mark.skip(reason="objdump is missing"), id="none")]
    found = [one for one in folders() if (one / CUDA).exists()]
    reason = (
        f"no genuine libcuda.so.1, which is proprietary: `apt-get download libcuda1 libnvidia-ml1` "
        f"from Debian's non-free, `dpkg-deb -x`, and name its folder in {FOLDER}"
    )
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")]
    return [pytest.param(Driver(one), id=str(Driver(one).branch)) for one in found]
