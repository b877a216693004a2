"""Whatever a file argument names, a command reads a bounded part of it and says so: /dev/zero has no end."""

import json
import os
import subprocess
import sys
from typing import Final

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
import contextlib, io, json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
from partage.cli.main import main
for line in sys.argv[1:]:
    sys.stdin = open("/dev/zero")
    sys.argv[1:] = line.split()
    code = 0
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([line, code, said.getvalue()]), flush=True)
"""


def test_a_file_without_an_end_is_refused() -> None:
    """The sentence names it, and the command stays within 3 GiB of addresses."""
    done = subprocess.run(  # our own program, and all commands in one process, as each imports for long
        [sys.executable, "-c", LIMITED, *COMMANDS],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
        env={**os.environ, "COLUMNS": "400"},
    )
    ends = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [line for line, _, _ in ends] == [*COMMANDS], done.stderr
    for line, code, said in ends:
        assert code in (1, 2), (line, said)
        assert "Traceback" not in said, line
        assert "MiB that are read" in said or "no token there" in said, (line, said)
        assert (ZERO in said) or ("standard input" in said), (line, said)
    assert "Traceback" not in done.stderr, done.stderr
