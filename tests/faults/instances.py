"""Instances of the scheduler: in this process, or as processes that can be killed and paused."""

import asyncio
import contextlib
import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.ports import free_port
from partage.daemon.scheduler import SchedulerDaemon
from partage.serving.listener import end_listening

__all__ = ["Relay", "Spawned"]


QUICK = Path(__file__).with_name("quick_instance.py")
SKEWED = Path(__file__).with_name("skewed_instance.py")


@dataclass
class Spawned:
    """`partage scheduler` as a process.

    Attributes:
        name: its identity in the Lease.
        port: where it serves.
        log: what it says, one JSON object a line.
        lease: seconds of the Lease.
        audit: seconds between two audits.
        more: further options of the command.
        quick: not the command but `quick_instance`, with times for tests.
        program: another command of ours, in place of the scheduler.
        skew: seconds by which its wall clock is wrong.
        socket: of kube-scheduler's plugin; None where kube-scheduler asks as its extender.
        starts: how often it was started.
        paused: whether it stands still.
    """

    name: str
    kubeconfig: Path
    log: Path
    lease: int = 4
    audit: int = 1
    more: tuple[str, ...] = ()
    quick: bool = False
    program: tuple[str, ...] = ()
    skew: float = 0.0
    socket: Path | None = None
    port: int = field(default_factory=free_port)
    starts: int = 0
    process: asyncio.subprocess.Process | None = None
    paused: bool = False

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it, or start it again."""
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, *self._command(), stdout=log, stderr=log
            )

    def _command(self) -> list[str]:
        if self.quick:
            own = [str(self.socket)] if self.socket else []
            return [str(QUICK), str(self.kubeconfig), str(self.port), self.name, *own]
        start = [str(SKEWED), str(self.skew)] if self.skew else ["-m", "partage.cli.main"]
        common = [
            "--kubeconfig",
            str(self.kubeconfig),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--log-format",
            "json",
        ]
        if self.program:
            return [*start, *self.program, *common, *self.more]
        return [
            *start,
            "scheduler",
            "--plain",
            *common,
            "--lease-namespace",
            "default",
            "--lease-duration",
            str(self.lease),
            "--audit",
            str(self.audit),
            "--identity",
            self.name,
            *(["--plugin-socket", str(self.socket)] if self.socket else []),
            *self.more,
        ]

    @property
    def pid(self) -> int:
        """Its process; 0 before the first start."""
        return self.process.pid if self.process is not None else 0

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.returncode is None

    async def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None and self.running:
            self.process.kill()
            await self.process.wait()
        self.paused = False

    def pause(self) -> None:
        """It does nothing any more, and does not know it."""
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGSTOP)
            self.paused = True

    def go_on(self) -> None:
        """It goes on where it was."""
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGCONT)
        self.paused = False

    async def stop(self) -> int:
        """End it as Kubernetes does; its exit status."""
        if self.process is None:
            return 0
        self.go_on()
        if self.running:
            self.process.terminate()
        async with asyncio.timeout(240):
            return await self.process.wait()

    def said(self, text: str) -> list[dict[str, Any]]:
        """Lines of the log whose message holds a text."""
        rows = []
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if text in str(row.get("message", "")):
                    rows.append(row)
        return rows

    @property
    def tracebacks(self) -> list[str]:
        """Lines of the log that show a fault of the program."""
        return [
            line
            for line in self.log.read_text().splitlines()
            if "Traceback" in line or '"exception"' in line
        ]


class Relay:
    """What a Service does that selects the leader: new connections go to the leader.

    Connections that are open stay where they are, as with kube-proxy.

    Attributes:
        url: where it listens.
        instances: by identity, with where each serves.
        opened: connections that were let through.
    """

    def __init__(self, leader: Any) -> None:
        """A relay.

        Args:
            leader: the identity of the leader, empty without one.
        """
        self._leader = leader
        self._tasks: set[asyncio.Task[Any]] = set()
        self.url = ""
        self.instances: dict[str, Spawned | SchedulerDaemon] = {}
        self.opened = 0

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Close everything."""
        await end_listening(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            target = self.instances.get(self._leader())
            if target is None or not target.url:
                return
            host, port = target.url.removeprefix("http://").rsplit(":", 1)
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                self.opened += 1
                try:
                    await asyncio.wait(
                        [
                            asyncio.ensure_future(_pump(source, writer)),
                            asyncio.ensure_future(_pump(reader, sink)),
                        ],
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    writer.close()
        finally:
            sink.close()
            self._tasks.discard(task)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
