"""The documentation as a site, built once for all test processes of a session that want it."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Site(NamedTuple):
    """What came of it.

    Attributes:
        folder: with the pages.
        code: what the build ended with.
        said: what it said.
    """

    folder: Path
    code: int
    said: str


def built(factory: pytest.TempPathFactory) -> Site:
    """The site as it is now; a warning fails the build."""
    base = factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, told = common / "site", common / "site.json"
    with (common / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            done = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            )
            told.write_text(json.dumps([done.returncode, done.stderr]))
    code, said = json.loads(told.read_text())
    return Site(folder, code, said)
