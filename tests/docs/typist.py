"""Types the command lines of a page into a shell, in a folder of its own, as its reader would.

The folder stands for the clone that the pages speak of: what the repository has is linked into it,
and what commands write stays in it. Programs that run until they are ended are started with a free
port, asked whether they are ready, and ended.
"""

import os
import shlex
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from page_blocks import ROOT

from fakes.ports import free_port

PATIENCE: Final = 240.0
"""Seconds that any one line may take; a loaded machine may take long."""
FOUND: Final = 3
"""Exit code of a program of ours whose answer is bad news: a pod waits, doctor found something."""
_WITHOUT: Final = ("PARTAGE_", "KUBE", "POD_NA", "HELM_")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy")
_LINKED: Final = (
    "examples",
    "deploy",
    "docs",
    "Makefile",
    "pyproject.toml",
    "src",
    "Dockerfile",
    "requirements",
)
_SERVICES: Final = ("up", "agent", "scheduler", "webhook")


class Typist:
    """A reader with a shell.

    Attributes:
        folder: where commands are typed.
        environment: of every command.
    """

    def __init__(self, folder: Path, kubeconfig: Path | str, **programs: Path) -> None:
        """Link the repository and the programs into an empty folder.

        Args:
            folder: of the reader's own.
            kubeconfig: of the cluster that kubectl and partage ask.
            programs: names to the files that are to be found by them, such as kubectl.
        """
        self.folder = folder
        for name in _LINKED:
            (folder / name).symlink_to(ROOT / name)
        (folder / ".venv").symlink_to(sys.prefix)
        tools = folder / "bin"
        tools.mkdir()
        for name, path in programs.items():
            (tools / name).symlink_to(path)
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(_WITHOUT) and key.lower() not in _PROXIES
        }
        ours = Path(sys.executable).parent  # has the commands that the package installs
        self.environment = {
            **kept,
            "HOME": str(folder),
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{tools}:{ours}:/usr/bin:/bin",
        }

    def run(self, text: str) -> tuple[int, str]:
        """Exit code of a line, and all that it prints."""
        done = subprocess.run(
            ["/bin/bash", "-o", "pipefail", "-c", text],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def type(self, text: str) -> str:
        """What a line prints.

        Raises:
            AssertionError: it ends badly, or prints a traceback; says what it said.
        """
        code, said = self.run(text)
        bad_news = "partage" in text and code == FOUND
        assert code == 0 or bad_news, f"$ {text}\nexit {code}\n{said}"
        assert "Traceback" not in said, f"$ {text}\n{said}"
        return said

    def until(self, text: str) -> None:
        """Type a line until it succeeds.

        Raises:
            AssertionError: it does not; says what it said last.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            code, said = self.run(text)
            if code == 0:
                return
            assert time.monotonic() < deadline, f"$ {text}\n{said}"

    def serve(self, words: list[str], *extra: str, then: str = "") -> None:
        """Start a program that runs until it is ended, see that it is ready, and end it.

        Args:
            words: as a page prints them.
            extra: further options that keep it to this folder and to free ports.
            then: a line that is typed while it runs, until it succeeds.

        Raises:
            AssertionError: it does not get ready, or does not end well; says what it said.
        """
        port = free_port()
        option = "--scheduler-port" if words[1] == "up" else "--port"
        log = self.folder / f"{words[1]}.log"
        with log.open("w", encoding="utf-8") as output:
            running = subprocess.Popen(
                [*words, option, str(port), *extra],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + PATIENCE
            while not _ready(port, words):
                assert running.poll() is None, f"{shlex.join(words)} ended\n{log.read_text()}"
                assert time.monotonic() < deadline, f"{shlex.join(words)}\n{log.read_text()}"
                time.sleep(0.1)
            if then:
                self.until(then)
            running.send_signal(signal.SIGTERM)
            code = running.wait(PATIENCE)
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()
        said = log.read_text("utf-8")
        assert code == 0, f"{shlex.join(words)} ended with {code}\n{said}"
        assert "Traceback" not in said, said


def is_service(words: list[str]) -> bool:
    """Whether a command runs until it is ended."""
    return words[:1] == ["partage"] and words[1] in _SERVICES and "--manifests" not in words


def quoted(words: Mapping[str, str], text: str) -> str:
    """A line with what stands for the reader's own names."""
    for placeholder, word in words.items():
        text = text.replace(placeholder, word)
    return text


def _ready(port: int, words: list[str]) -> bool:
    """Whether a program says that it is ready; of an agent, which has no runtime here, alive."""
    tls = words[1] == "webhook" or "--tls-cert" in words
    path = "/healthz" if words[1] == "agent" else "/readyz"
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE  # its certificate is its own
    ask = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
    )
    url = f"{'https' if tls else 'http'}://127.0.0.1:{port}{path}"
    try:
        with ask.open(url, timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
