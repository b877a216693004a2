"""NVIDIA's own runtime library (libcudart), where one is found: none of it is in the tree."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

FILES = "PARTAGE_GENUINE_RUNTIME"
"""Names files of libcudart, with colons between."""


def version(file: Path) -> tuple[int, ...]:
    """The version of the runtime: 10.1."""
    found = re.search(r"libcudart\.so\.([0-9.]+)", file.name)
    return tuple(int(part) for part in found[1].split(".")) if found else (0,)


def files() -> list[Path]:
    """Files that the variable names, else those of the Python packages of the runtime."""
    if FILES in os.environ:
        return [Path(one) for one in os.environ[FILES].split(":") if one]
    return [
        file
        for place in sys.path
        for file in sorted(Path(place or ".").glob("nvidia/*/lib/libcudart.so.*"))
    ]


def runtimes(least: int, below: int, how: str) -> list[Any]:
    """One parameter per runtime of these versions, or one that skips and says how to get one."""
    found = [one for one in files() if least <= version(one)[0] < below]
    reason = f"no genuine libcudart, which is proprietary: {how}, and name its file in {FILES}"
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")]
    return [pytest.param(one, id=one.name.removeprefix("libcudart.so.")) for one in found]
