"""On a terminal a command that takes long says what it is doing."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partage.cli.patience import patience


@pytest.mark.parametrize(
    ("terminal", "seconds", "said"),
    [
        pytest.param(True, 0.3, "reading a\\x1b.yaml; Ctrl-C ends it\n", id="long"),
        pytest.param(True, 0.0, "", id="short"),
        pytest.param(False, 0.3, "", id="no terminal"),
    ],
)
def test_it_speaks_after_a_silence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,  # noqa: FBT001 # a case of the table
    seconds: float,
    said: str,
) -> None:
    """Once, on standard error of a terminal, and with no command to it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)

    with patience("reading a\x1b.yaml", silence=0.1):
        time.sleep(seconds)

    assert capsys.readouterr().err == said


def test_a_pipe_that_nobody_fills_is_named(tmp_path: Path) -> None:
    """The command of a person who forgot to give a file."""
    pipe = tmp_path / "nodes.yaml"
    os.mkfifo(pipe)
    screen, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "partage.cli.main", "schedule", str(pipe)], stderr=end
    ) as process:
        os.close(end)
        try:
            assert os.read(screen, 200).decode().split(";")[0] == f"reading {pipe}"
        finally:
            process.kill()
            os.close(screen)
