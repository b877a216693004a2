"""Scripts of `bench/`, `make try` and the long tests outside of the gate import what is there, from where their page runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONG = ("soak.py", "failover.py")
TRY = ROOT / "tests/pods/pods_cluster.py"
"""What `make try` runs."""
SCRIPTS = [*sorted(ROOT.glob("bench/*.py")), *(ROOT / "tests/faults" / name for name in LONG), TRY]
IMPORTED = """
import pathlib, runpy, sys, traceback
tools, root, *scripts = map(pathlib.Path, sys.argv[1:])
before = sys.path[1:]
for script in scripts:
    sys.path[:] = [str(script.parent), *([str(tools)] if script.name in {long!r} else []), *before]
    try:
        runpy.run_path(str(script), run_name="imported")
    except BaseException:
        print(script.name, traceback.format_exc(), file=sys.stderr)
    # The next one finds nothing of ours beside the package but by its own path.
    for name, module in [*sys.modules.items()]:
        file = pathlib.Path(getattr(module, "__file__", None) or "/")
        if file.is_relative_to(root / "tests") or file.is_relative_to(root / "bench"):
            del sys.modules[name]
"""


def test_scripts_find_all_that_they_import() -> None:
    """Nothing of pytest's own path helps them; `make` gives the long tests the tools' folder."""
    assert len(SCRIPTS) > 20
    code = IMPORTED.format(long=LONG)
    command = [sys.executable, "-W", "error", "-c", code, ROOT / "tests/tools", ROOT, *SCRIPTS]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": ""}
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        "controllers.py --nodes 4 --pods 8 --runs 1",
        "extender.py --nodes 50 --calls 20",
        "record.py --nodes 10 --decisions 20 --rounds 1",
        "relist.py --nodes 4 --pods 40",
        "schedule.py --nodes 10 --pods 20 --runs 1",
        "startup.py --nodes 4 --pods 16 --runs 1",
        "watch.py --events 50 --pods 20 --runs 1",
    ],
)
def test_benchmarks_with_objects_of_their_own_run_to_their_end(command: str) -> None:
    """What reads objects becomes stricter: one hung for good, because its nodes and devices had no identity."""
    script, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout


def test_make_runs_the_long_tests_so() -> None:
    """It gives them the folder of the test above."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    for name in LONG:
        (line,) = (line for line in lines if f"tests/faults/{name} " in line)
        assert line.startswith("\tPYTHONPATH=tests/tools $(BIN)/python ")


@pytest.mark.parametrize(
    ("tool", "saves"),
    [("docker", "save -o"), ("podman", "save -o"), ("buildah", "push --quiet")],
)
def test_images_are_written_as_archives_by_each_tool(
    tmp_path: Path, tool: str, saves: str
) -> None:
    """Each tool is played, and has only the commands that it really has; buildah has none to save."""
    played = tmp_path / tool
    played.write_text(
        '#!/bin/sh\necho "$*" >> "$0.log"\n'
        f'case "$*" in build*) ;; "{saves} "*) ;; *) exit 125 ;; esac\n'
    )
    played.chmod(0o755)
    env = os.environ | {"IMAGE_TOOL": str(played), "IMAGE_ARCHIVES": str(tmp_path / "made")}
    done = subprocess.run(
        [ROOT / "deploy/image"], capture_output=True, text=True, check=False, env=env
    )

    assert done.returncode == 0, done.stderr
    asked = (tmp_path / f"{tool}.log").read_text()
    for image in ("partage", "kube-scheduler"):
        assert f"{tmp_path}/made/{image}.tar" in asked
