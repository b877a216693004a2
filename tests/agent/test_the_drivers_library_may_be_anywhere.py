"""The driver's library is loaded from the folders that are named, for instances as for discovery."""

import subprocess
import sys
from pathlib import Path

import pytest
from nodes_world import compiled

ASK = """
import sys
from pathlib import Path
from partage.daemon.instances import InstanceOptions, open_node
here = Path(sys.argv[1])
open_node(InstanceOptions(here / "journal", here / "cdi", (here / "none", here / "lib")))
"""


def _asked(folder: Path, program: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own: a library that is loaded once is found by its name for the rest of the process."""
    env = {"FAKE_NVML": str(folder / "cards"), "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )


def test_an_agent_that_makes_instances_opens_the_library_it_is_given(tmp_path: Path) -> None:
    """A container has the host's folder mounted elsewhere, and no loader looks there."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: partage[nvidia]")
    (tmp_path / "cards").write_text("0 0 GPU-0 NVIDIA_T4 1 00000000:38:00.0 0 0 0\n")
    (tmp_path / "lib").mkdir()
    compiled("nvml_card.c", tmp_path / "lib/libnvidia-ml.so.1", "libnvidia-ml.so.1")

    assert _asked(tmp_path, ASK).stderr == ""


def test_a_library_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """The program does not take another one in silence."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libnvidia-ml.so.1").write_text("no library")

    assert f"{tmp_path}/lib/libnvidia-ml.so.1 cannot be loaded" in _asked(tmp_path, ASK).stderr
