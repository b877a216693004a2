"""Whatever a file argument names, a command reads so much of it and says so: /dev/zero has no end."""

import os
import subprocess
import sys
from typing import Final

import pytest

ZERO: Final = "/dev/zero"
COMMANDS: Final = (
    "schedule /dev/zero",
    "schedule -",
    "explain -f /dev/zero pod",
    "inspect -f /dev/zero",
    "top -f /dev/zero",
    "simulate cluster /dev/zero",
    "simulate repack --may-restart default /dev/zero",
    "simulate mig --model A100-40GB --cards 1 --sequences /dev/zero",
    "replay /dev/zero",
    "top --kubeconfig /dev/zero",
    "top --scheduler http://127.0.0.1:9 --token-file /dev/zero",
    "top --scheduler https://127.0.0.1:9 --scheduler-ca /dev/zero",
    "doctor --kubeconfig /dev/zero",
    "snapshot --kubeconfig /dev/zero",
    "snapshot --mask-key /dev/zero",
    "up --kubeconfig /dev/zero",
    "up --nodes /dev/zero",
    "up --state /dev/zero",
    "scheduler --kubeconfig /dev/zero --plain",
)
LIMITED: Final = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
from partage.cli.main import main
sys.argv = ["partage", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("line", COMMANDS)
def test_a_file_without_an_end_is_refused(line: str) -> None:
    """With a sentence that names it, within 3 GiB of addresses."""
    with open(ZERO, "rb") as zero:  # noqa: PTH123 # a device
        done = subprocess.run(  # our own program
            [sys.executable, "-c", LIMITED, *line.split()],
            stdin=zero,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
            env={**os.environ, "COLUMNS": "400"},
        )
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert "MiB that are read" in done.stderr or "no token there" in done.stderr, done.stderr
    assert (ZERO in done.stderr) or ("standard input" in done.stderr)
