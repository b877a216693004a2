"""The enforcement library and the programs of its tests, built once for all test processes that want them."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("PARTAGE_TOOLS", "~/.cache/partage/tools")).expanduser() / "native"
"""What gates have built, by what it was made of; with the objects, for a tree that differs in a few sources."""
OBJECTS = Path(__file__).with_name("kept_objects.py")
GATE = "PARTAGE_GATE"


def built(folder: str = "native", sanitize: str = "", *, compiler: str = "gcc") -> Path:
    """The build folder of `native/`, made once however many test processes ask; the gate keeps it for the next one."""
    if not shutil.which("gcc") or not shutil.which("make"):
        pytest.skip("gcc or make is missing: the enforcement library cannot be built")
    out = ROOT / "build" / folder
    out.mkdir(parents=True, exist_ok=True)
    kept = CACHE / f"{folder}-{_made_of(sanitize, compiler)}"
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.is_dir() and not (out / "libpartage-isolation.so").exists():
            shutil.copytree(kept, out, dirs_exist_ok=True)
            # All of one moment: `make` asks what is newer than what it was made of.
            now = time.time()
            for path in out.rglob("*"):
                os.utime(path, (now, now))
        command = ["make", "-s", f"-j{os.cpu_count()}", "-C", str(ROOT / "native")]
        cc = f"{sys.executable} -I -S {OBJECTS} {CACHE / 'objects'} {compiler}"
        done = subprocess.run(
            [
                *command,
                f"OUT={out}",
                f"SANITIZE={sanitize}",
                f"CC={cc if GATE in os.environ else compiler}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.returncode and GATE in os.environ and not kept.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=f"{folder}-", dir=CACHE))
            ours = shutil.ignore_patterns(".lock")
            shutil.copytree(out, part, ignore=ours, dirs_exist_ok=True)
            with contextlib.suppress(OSError):  # another gate was faster
                part.rename(kept)
    if sanitize and done.returncode and "cannot find" in done.stderr:
        pytest.skip(f"the compiler has no {sanitize} sanitizer")
    assert done.returncode == 0, done.stderr
    return out


def _made_of(*options: str) -> str:
    """A digest of all that a build is made of."""
    compiler = subprocess.check_output([options[-1], "--version"])
    digest = hashlib.sha256("\n".join(options).encode() + compiler)
    for path in sorted((ROOT / "native").rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
