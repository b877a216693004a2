"""`partage agent` as a process of a test, beside a genuine containerd."""

import json
import os
import re
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import containerd
import pytest

WAIT = 240


@dataclass
class Agent:
    """`partage agent` as a process, with a host's files of its own.

    Attributes:
        node: its Device object; None has the agent find the devices of `folder/host` itself.
    """

    runtime: containerd.Containerd
    folder: Path
    node: Mapping[str, Any] | None
    options: tuple[str | Path, ...] = ()
    popen: subprocess.Popen[bytes] | None = None
    port: int = 0

    def start(self) -> None:
        """Start it; it serves when this returns."""
        root = self.folder / "host"
        if not root.exists():
            (root / "dev").mkdir(parents=True)
            for minor, name in enumerate(("nvidia0", "nvidia1", "nvidiactl")):
                os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3 + 2 * minor))
            for part in {self.folder.parts[1], "tmp"}:
                (root / part).symlink_to(f"/{part}")
        known: tuple[str | Path, ...] = ("--standalone",)
        if self.node is not None:
            (self.folder / "node.json").write_text(json.dumps(self.node))
            known = ("--devices", self.folder / "node.json")
        log = self.folder / "agent.log"
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "partage.cli.main",
                    "agent",
                    "--node",
                    "n1",
                    *known,
                    "--nri-socket",
                    self.runtime.nri,
                    "--journal",
                    self.folder / "journal",
                    "--host-root",
                    root,
                    "--port",
                    "0",
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        said = re.compile(r"metrics at \S+:(\d+)\n")
        self._until(lambda: bool(said.search(log.read_text())), "it does not start")
        self.port = int(said.findall(log.read_text())[0])
        self.ready()

    def ready(self) -> None:
        """Wait until the runtime asks it."""
        self._until(lambda: self.get("/readyz") == "ok\n", "it is not ready")

    def metric(self, name: str) -> float:
        """One series."""
        lines = self.get("/metrics").splitlines()
        found = next((line for line in lines if line.startswith(name)), "nan")
        return float(found.split()[-1])

    def until(self, name: str, value: float) -> None:
        """Wait for a series to have a value."""
        self._until(lambda: self.metric(name) == value, f"{name} is not {value}")

    def kill(self) -> None:
        """End it as a crash would."""
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait(WAIT)
            self.popen = None

    def stop(self) -> None:
        """End it by a signal."""
        if self.popen is not None:
            self.popen.terminate()
            assert self.popen.wait(WAIT) == 0
            self.popen = None

    def get(self, path: str) -> str:
        """What it serves."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=WAIT
            ) as got:
                text: str = got.read().decode()
                return text
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def _until(self, holds: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + WAIT
        while not holds():
            alive = self.popen is not None and self.popen.poll() is None
            if not alive or time.monotonic() > deadline:
                pytest.fail(f"{why}:\n{(self.folder / 'agent.log').read_text()[-3000:]}")
            time.sleep(0.02)
