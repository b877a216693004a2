"""A reader follows one pod from the question to the Binding in few files (`bench/walk.py` counts them).

The extender's questions are JSON, so its walk has one file more: `wire/extender.py`.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

WALK = Path(__file__).parents[2] / "bench/walk.py"
LINE = re.compile(
    r"^\w+, [\w ]+: (?P<files>\d+) files, \d+ functions, (?P<moves>\d+) moves$", re.MULTILINE
)


@pytest.mark.parametrize(
    ("seam", "files", "moves"), [("plugin", 18, 60), ("extender", 19, 60)], ids=str
)
def test_a_walk_opens_few_files(seam: str, files: int, moves: int) -> None:
    """Neither the first pod of its kind nor the next one takes more."""
    command = [sys.executable, WALK, "--seam", seam]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    walks = [(int(one["files"]), int(one["moves"])) for one in LINE.finditer(told)]
    assert len(walks) == 2
    assert all(opened <= files and moved <= moves for opened, moved in walks), told
