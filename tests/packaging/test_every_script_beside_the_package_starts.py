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
IMPORTED = "import runpy, sys; sys.path[0] = sys.argv[2]; runpy.run_path(sys.argv[1], run_name='imported')"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_finds_all_that_it_imports(script: Path) -> None:
    """Nothing of pytest's own path helps it; `make` gives the long tests the tools' folder."""
    path = str(ROOT / "tests/tools") if script.name in LONG else ""
    command = [sys.executable, "-W", "error", "-c", IMPORTED, str(script), str(script.parent)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr


def test_make_runs_the_long_tests_so() -> None:
    """With the folder that the test above gives them."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    for name in LONG:
        (line,) = (line for line in lines if f"tests/faults/{name} " in line)
        assert line.startswith("\tPYTHONPATH=tests/tools $(BIN)/python ")
