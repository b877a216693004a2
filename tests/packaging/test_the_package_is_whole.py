"""Wheel and source package: what is in them, where they can be built, and installing offline."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from partage import __version__

pytest.importorskip("hatchling", reason="hatchling is not installed (group test)")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
STATIC = ("index.html", "app.js", "style.css", "icon.svg")


def build(what: str, source: Path, target: Path) -> Path:
    """Build a `wheel` or an `sdist` of a folder.

    Raises:
        AssertionError: it cannot be built; says why.
    """
    script = f"from hatchling.build import build_{what} as b; print(b({str(target)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def names(path: Path) -> set[str]:
    """Files in a wheel."""
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_the_wheel_has_what_users_need_and_nothing_else(wheel: Path) -> None:
    """All modules, the page's files, the examples, both commands; no tests, no caches."""
    found = names(wheel)
    modules = {
        f"partage/{p.relative_to(ROOT / 'src/partage').as_posix()}"
        for p in (ROOT / "src/partage").rglob("*.py")
    }

    assert wheel.name == f"partage-{__version__}-py3-none-any.whl"
    assert modules <= found
    assert {f"partage/dashboard/static/{name}" for name in STATIC} <= found
    assert "partage/py.typed" in found
    assert "partage/embedded/manifests_of_examples/mixed/pods.yaml" in found
    outside = {n for n in found if not n.startswith(("partage/", f"partage-{__version__}"))}
    assert outside == set()
    assert not [n for n in found if "__pycache__" in n or n.endswith(".pyc")]
    with zipfile.ZipFile(wheel) as archive:
        commands = archive.read(f"partage-{__version__}.dist-info/entry_points.txt").decode()
    assert "kubectl-partage = partage.cli.entry:main" in commands


def test_the_source_package_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """Nothing that is left out of it is needed."""
    sdist = build("sdist", ROOT, tmp_path)
    (tmp_path / "source").mkdir()
    # The arguments of Python's own unpacking differ between 3.11.2 and 3.14.
    tar = shutil.which("tar") or "/bin/tar"
    subprocess.run([tar, "-xf", sdist, "-C", tmp_path / "source"], check=True)
    (folder,) = (tmp_path / "source").iterdir()
    assert not (folder / ".venv").exists()
    assert not (folder / "build").exists()

    again = build("wheel", folder, tmp_path)

    assert names(again) == names(wheel)


def test_the_image_copies_all_that_the_package_is_built_from(tmp_path: Path) -> None:
    """The wheel can be built from what the Dockerfile copies, and from no more."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = text.partition("\nWORKDIR /src\n")[2].partition("\nFROM ")[0]
    folder = tmp_path / "src"
    folder.mkdir()
    for copied in re.findall(r"^COPY (.+)$", lines, re.MULTILINE):
        *sources, target = copied.split()
        for source in sources:
            path = ROOT / source
            to = folder / target
            if path.is_dir():
                shutil.copytree(path, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, to / path.name if to.is_dir() else to)

    assert build("wheel", folder, tmp_path).is_file()


def test_extras_named_anywhere_exist() -> None:
    """The image and the Makefile install extras that there are."""
    named = [
        extra
        for file in ("Dockerfile", "Makefile")
        for found in re.findall(r"'\.\[([\w,]+)\]'", (ROOT / file).read_text(encoding="utf-8"))
        for extra in found.split(",")
    ]

    assert named
    assert set(named) <= set(PROJECT["optional-dependencies"])


@pytest.mark.timeout(1800)
def test_it_installs_offline_from_a_folder_of_wheels(wheel: Path, tmp_path: Path) -> None:
    """`pip install --no-index --find-links`: what pipx and uvx do with the same two options."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    shutil.copy(wheel, wheels)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary",
        ":all:",
        "--retries",
        "1",
        "--dest",
        str(wheels),
        str(wheel),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    except subprocess.TimeoutExpired:
        pytest.skip("the wheels of the dependencies do not come in time")
    if done.returncode:
        pytest.skip(f"the wheels of the dependencies cannot be had: {done.stderr[-200:]}")
    venv.create(tmp_path / "env", with_pip=False)
    binaries = tmp_path / "env" / "bin"
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}

    def run(*words: str) -> str:
        ran = subprocess.run(
            words,
            env=plain,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert ran.returncode in (0, 3), ran.stdout + ran.stderr
        return ran.stdout

    # By the pip at hand; what is never imported below is not compiled either.
    run(
        *(sys.executable, "-m", "pip", "--python", str(binaries / "python"), "install"),
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
        "--no-index",
        "--find-links",
        str(wheels),
        "partage",
    )

    assert __version__ in run(str(binaries / "partage"), "--version")
    assert "pods placed" in run(str(binaries / "partage"), "schedule", str(ROOT / "examples"))
    assert "Usage: kubectl-partage" in run(str(binaries / "kubectl-partage"), "--help")
