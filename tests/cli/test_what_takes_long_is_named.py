"""On a terminal a command that takes long says what it is doing."""

import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from partage.cli.patience import patience


def test_it_speaks_once_after_a_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line goes to standard error of a terminal, without characters that command it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said, end = "", time.monotonic() + 240

    with patience("reading a\x1b.yaml", silence=0.05):
        while not said.endswith("\n"):
            assert time.monotonic() < end
            time.sleep(0.01)
            said += capsys.readouterr().err

    assert said + capsys.readouterr().err == "reading a\\x1b.yaml; Ctrl-C ends it\n"


@pytest.mark.parametrize("terminal", [True, False], ids=["short", "no terminal"])
def test_it_says_nothing_of_what_is_soon_over_and_nothing_to_a_file(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    terminal: bool,
) -> None:
    """The thread that would speak on a terminal ends with the work; elsewhere there is none."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    before = {*threading.enumerate()}

    with patience("reading a.yaml", silence=600.0 if terminal else 0.0):
        speakers = {*threading.enumerate()} - before
    for one in speakers:
        one.join(240)

    assert len(speakers) == terminal
    assert not any(one.is_alive() for one in speakers)
    assert capsys.readouterr().err == ""


def test_a_pipe_that_nobody_fills_is_named(tmp_path: Path) -> None:
    """A command whose file argument is a pipe without a writer."""
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
