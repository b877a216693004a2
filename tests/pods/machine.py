"""Machines for a genuine small cluster, each a set of namespaces: processes, mounts, network, name, with systemd's part played.

A machine has an address of its own on a bridge that is in the first machine; this process reaches all of them through one
link of its own. Ending its first process ends all that runs there, containers too, as a power failure would; started
again it has its disk (the folder), and no process. Nothing outside is changed but that link and the control groups.
"""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
UP_SECONDS = 240
_UNSHARE = shutil.which("unshare") or "unshare"
_GROUPS = Path("/sys/fs/cgroup")
_OWN = ("--mount", "--net", "--pid", "--uts")
"""Namespaces of a machine."""


def missing() -> str:
    """What keeps machines from running here, in one line; empty when nothing does."""
    if os.geteuid() != 0:
        return "a machine of namespaces needs root"
    absent = [one for one in ("unshare", "nsenter", "ip") if shutil.which(one) is None]
    if absent:
        return f"{', '.join(absent)} not installed"
    tried = subprocess.run(
        ["unshare", *_OWN, "--fork", "ip", "link", "add", "probe0", "type", "veth"],  # noqa: S607
        capture_output=True,
        check=False,
        text=True,
    )
    return (
        f"no namespaces or links can be made here: {tried.stderr.strip()}"
        if tried.returncode
        else ""
    )


@dataclass
class Machine:
    """One machine.

    Attributes:
        name: its host name.
        folder: its disk, units and logs; ends with its name.
        number: of the machine on the bridge; the first is 0.
        network: the first three bytes of addresses on the bridge, such as 10.231.0.
        env: variables of its programs.
    """

    name: str
    folder: Path
    number: int
    network: str
    env: Mapping[str, str] = field(default_factory=dict)
    popen: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its address on the bridge."""
        return f"{self.network}.{2 + self.number}"

    @property
    def pods(self) -> str:
        """Addresses of its pods."""
        return f"10.244.{self.number}.0/24"

    @property
    def group(self) -> str:
        """Control group of all its pods."""
        return f"/partage-machine-{os.getpid()}-{self.name}"

    @property
    def network_of(self) -> tuple[str, ...]:
        """What runs a command in its network, and in nothing else of it."""
        assert self.popen is not None
        return ("nsenter", f"--net=/proc/{self._first()}/ns/net", "--")

    def start(self) -> None:
        """Start its first process; links come afterwards.

        Raises:
            RuntimeError: it is not up in time.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "up").unlink(missing_ok=True)
        for group in _GROUPS.glob("*"):
            if (group / "cgroup.procs").exists():
                (group / self.group[1:]).mkdir(exist_ok=True)
        with (self.folder / "console").open("ab") as console:
            self.popen = subprocess.Popen(
                [
                    _UNSHARE,
                    *_OWN,
                    "--fork",
                    "--kill-child",
                    str(HERE / "machine_init"),
                    str(self.folder),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, **self.env},
                start_new_session=True,
            )
        deadline = time.monotonic() + UP_SECONDS
        while not (self.folder / "up").exists():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "console").read_text(errors="replace")
                raise RuntimeError(f"machine {self.name} is not up: {said[-2000:]}")
            time.sleep(0.05)

    def _first(self) -> int:
        """Process number of its first process: the only child of `unshare`."""
        assert self.popen is not None
        children = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text()
        return int(children.split()[0])

    def run(self, *command: str) -> str:
        """What a command prints on the machine.

        Raises:
            RuntimeError: it failed; says what it said.
        """
        done = subprocess.run(
            ["nsenter", "--target", str(self._first()), *_OWN, "--", *command],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.env},
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {shlex.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def join(self, bridge: "Machine | None" = None) -> None:
        """Link it to the bridge, which is in the first machine, and that one to this process.

        Args:
            bridge: the first machine; None where it is this one.
        """
        if bridge is None:
            link = self.outside
            with suppress(subprocess.CalledProcessError):
                _ip("link", "delete", link)
            _ip(
                "link",
                "add",
                link,
                "type",
                "veth",
                "peer",
                "name",
                "outside",
                "netns",
                str(self._first()),
            )
            _ip("address", "add", f"{self.network}.1/24", "dev", link)
            _ip("link", "set", link, "up")
            self.run("ip", "link", "add", "lan", "type", "bridge")
            self.run("ip", "link", "set", "outside", "master", "lan", "up")
            device = "lan"
        else:
            device, end = "eth0", f"to-{self.name}"
            with suppress(RuntimeError):
                bridge.run("ip", "link", "delete", end)
            _ip(
                "link",
                "add",
                end,
                "netns",
                str(bridge._first()),
                "type",
                "veth",
                "peer",
                "name",
                device,
                "netns",
                str(self._first()),
            )
            bridge.run("ip", "link", "set", end, "master", "lan", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", device)
        self.run("ip", "link", "set", device, "up")
        # Addresses of Services are nowhere; without a route to them nothing would be sent that could be rewritten.
        self.run("ip", "route", "add", "default", "via", f"{self.network}.1")
        for switch in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
            self.run("sh", "-c", f"echo 1 > /proc/sys/{switch}")

    def route(self, other: "Machine") -> None:
        """Tell it where another machine's pods are."""
        self.run("ip", "route", "replace", other.pods, "via", other.address)

    @property
    def outside(self) -> str:
        """The link of this process to the bridge."""
        return f"partage{self.network.rsplit('.', 1)[1]}"

    def unit(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> None:
        """A program that runs whenever the machine does."""
        lines = [f"export {key}={shlex.quote(value)}" for key, value in (env or {}).items()]
        path = self.folder / "units" / name
        path.parent.mkdir(exist_ok=True)
        fresh = self.folder / f"{name}.new"
        fresh.write_text("\n".join(["#!/bin/sh", *lines, f"exec {shlex.join(command)}", ""]))
        fresh.chmod(0o755)
        fresh.replace(path)

    def log(self, name: str, characters: int = 3000) -> str:
        """The end of what a unit said."""
        path = self.folder / "logs" / name
        return path.read_text(errors="replace")[-characters:] if path.exists() else ""

    def stop(self) -> None:
        """End everything on it at once."""
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()
            self.popen = None
        self._remove_groups()

    def _remove_groups(self) -> None:
        """Remove the control groups of its pods; processes that have just been killed may keep them a moment."""
        deadline = time.monotonic() + UP_SECONDS
        left = [path for path in _GROUPS.glob(f"*{self.group}") if path.is_dir()]
        left += [path for path in (_GROUPS / self.group[1:],) if path.is_dir()]
        while left and time.monotonic() < deadline:
            for top in left:
                for path in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
                    with suppress(OSError):
                        path.rmdir()
                with suppress(OSError):
                    top.rmdir()
            left = [path for path in left if path.exists()]
            if left:
                time.sleep(0.1)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)  # noqa: S607
