"""SIGTERM and SIGINT end every service soon, with exit 0 and no unexpected output, in any state of the service.

Each service runs as a process against an unhelpful API server: away, silent, endlessly slow, refusing, or of
another authority. The tests do not judge how long an end takes on a busy machine. A service abandons work that
takes too long, and the tests of work that does not let go check that.
"""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from aiohttp import web
from daemon_world import PATIENCE, world
from proxy import Proxy

from partage.apiserver import write_kubeconfig

PROGRAM: Final = (sys.executable, "-m", "partage.cli.main")
SCHEDULER: Final = ("scheduler", "--host", "127.0.0.1", "--port", "0")
SECRET: Final = (*SCHEDULER, "--tls-secret", "tls", "--tls-host", "localhost")
PLAIN: Final = (*SCHEDULER, "--plain")
ALONE: Final = (*PLAIN, "--no-leader-elect")
WEBHOOK: Final = ("webhook", "--host", "127.0.0.1", "--port", "0")
AGENT: Final = (
    "agent",
    "--node",
    "n",
    "--port",
    "0",
    "--journal",
    "{folder}/journal",
    "--nri-socket",
    "{folder}/nri.sock",
    "--no-discovery",
)
FINDING: Final = (*AGENT[:-1], "--host-root", "{folder}")
PROXY: Final = (
    *AGENT,
    "--cri-socket",
    "{folder}/cri.sock",
    "--runtime-socket",
    "{folder}/run.sock",
)
WITH_KUBELET: Final = (*AGENT, "--kubelet-dir", "{folder}/kubelet")


@contextlib.asynccontextmanager
async def unhelpful(how: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A server that answers no request as an API server would; its URL, and whether it was asked."""
    asked = asyncio.Event()
    answering: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering[asyncio.current_task()] = writer
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            if how == "refuses":
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
            if how == "dribbles":
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n"
                )
                while True:
                    writer.write(b"1\r\n \r\n")
                    await writer.drain()
                    await asyncio.sleep(0.05)
            await reader.read()
        writer.close()

    secure: ssl.SSLContext | None = None
    if how == "is of another authority":
        secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(secure)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=secure)
    port = server.sockets[0].getsockname()[1]
    if how == "is away":
        server.close()
    try:
        yield f"{'https' if secure else 'http'}://127.0.0.1:{port}", asked
    finally:
        server.close()
        for writer in answering.values():
            writer.transport.abort()
        await asyncio.gather(*filter(None, answering), return_exceptions=True)


class Running:
    """A service as a process, and what it has said."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.said = ""
        self._reading = asyncio.create_task(self._read())
        self._more = asyncio.Condition()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            async with self._more:
                self.said += line.decode()
                self._more.notify_all()
        async with self._more:
            self._more.notify_all()

    async def says(self, *texts: str) -> None:
        """Wait until it has said one of them."""

        def over() -> bool:
            return self._reading.done() or any(text in self.said for text in texts)

        async with asyncio.timeout(PATIENCE), self._more:
            await self._more.wait_for(over)
        assert any(text in self.said for text in texts), self.said

    async def ends(self, *numbers: int) -> None:
        """Send these signals; it has to end well and quietly."""
        for number in numbers:
            self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE):
            code = await self.process.wait()
            await self._reading
        assert code == 0, self.said
        for odd in ("Traceback", "never retrieved", "never awaited"):
            assert odd not in self.said, self.said


@contextlib.asynccontextmanager
async def started(
    arguments: Sequence[str], folder: Path, url: str = "", before: Sequence[str] = ()
) -> AsyncIterator[Running]:
    """A service; it does not outlive the context."""
    given = [text.replace("{folder}", str(folder)) for text in arguments]
    if url:
        write_kubeconfig(folder / "config", url)
        given += ["--kubeconfig", str(folder / "config")]
    process = await asyncio.create_subprocess_exec(
        *before, *PROGRAM, *given, stdout=PIPE, stderr=PIPE
    )
    try:
        yield Running(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


ALL: Final = ("is away", "is silent", "dribbles", "refuses", "is of another authority")
STAGES: Final = [
    *((SECRET, how) for how in ALL),
    *((WEBHOOK, how) for how in ("is away", "dribbles", "is of another authority")),
    *((PLAIN, how) for how in ("is silent", "dribbles")),
    *((ALONE, how) for how in ("is silent", "refuses")),
    *((AGENT, how) for how in ("is silent", "dribbles")),
    (FINDING, "is silent"),
    (PROXY, "is silent"),
    (WITH_KUBELET, "is away"),
]


@pytest.mark.parametrize(
    ("arguments", "how"), STAGES, ids=lambda x: x if isinstance(x, str) else x[0]
)
async def test_an_api_server_that_does_not_help_keeps_nothing_from_ending(
    tmp_path: Path, arguments: Sequence[str], how: str
) -> None:
    """Before a certificate, a list or a node exists, one signal is enough, and a second does no harm."""
    async with unhelpful(how) as (url, asked), started(arguments, tmp_path, url) as service:
        if how in ("is away", "is of another authority"):
            await service.says("no certificate yet", "interrupted", "cannot be", "Lease")
        else:
            await asyncio.wait_for(asked.wait(), PATIENCE)
        again = [signal.SIGTERM] if arguments is SECRET else []
        await service.ends(signal.SIGINT if arguments is ALONE else signal.SIGTERM, *again)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_ends_while_it_waits_for_the_lease(tmp_path: Path, number: int) -> None:
    """Another instance leads."""
    async with world() as cluster:
        lease = cluster.stored("partage-scheduler", "leases.coordination.k8s.io")
        lease["spec"] = {"holderIdentity": "another", "leaseDurationSeconds": 3600}
        await cluster.api.update("leases.coordination.k8s.io", lease, "default")
        async with started(PLAIN, tmp_path, cluster.url) as service:
            await service.says("ledger rebuilt")
            await service.ends(number)
            assert "leading;" not in service.said


async def test_it_ends_while_it_leads_and_in_the_middle_of_ending(tmp_path: Path) -> None:
    """Five signals have the same effect as one."""
    async with world() as cluster, started(PLAIN, tmp_path, cluster.url) as service:
        await service.says("leading;")
        await service.ends(*[signal.SIGTERM, signal.SIGINT] * 3)
        assert "stopped" in service.said


async def test_it_ends_though_the_api_server_falls_silent_while_it_leads(tmp_path: Path) -> None:
    """The leader can release neither its label nor its Lease."""
    async with (
        world() as cluster,
        Proxy(cluster.url) as proxy,
        started(PLAIN, tmp_path, proxy.url) as service,
    ):
        await service.says("leading;")
        proxy.cut = True
        await service.ends(signal.SIGTERM)


@contextlib.asynccontextmanager
async def full(nodes: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """An API server of many nodes of eight cards, and nothing else; its URL, and whether nodes were listed."""
    listed = asyncio.Event()
    memory = {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "80Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    devices = [
        {"type": "gpu", "id": f"GPU-{i}", "minor": i, "health": True, "resources": memory}
        for i in range(8)
    ]
    items: dict[str, list[Any]] = {
        "nodes": [
            {"metadata": {"name": f"n{i}", "uid": f"n{i}", "resourceVersion": "1"}}
            for i in range(nodes)
        ],
        "devices": [
            {
                "metadata": {"name": f"n{i}", "uid": f"d{i}", "resourceVersion": "1"},
                "spec": {"devices": devices},
            }
            for i in range(nodes)
        ],
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            watching = web.StreamResponse()
            await watching.prepare(request)
            await asyncio.sleep(PATIENCE)
            return watching
        kind = request.path.rsplit("/", 1)[1]
        if kind == "nodes":
            listed.set()
        return web.json_response(
            {"kind": "List", "metadata": {"resourceVersion": "2"}, "items": items.get(kind, [])}
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", listed
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("pause", [0.0, 0.5, 2.0])
async def test_it_ends_while_it_makes_the_books_of_many_nodes(
    tmp_path: Path, pause: float
) -> None:
    """Five thousand nodes are decoded, taken in and rebuilt; the signal arrives during any of these."""
    async with full(5000) as (url, listed), started(ALONE, tmp_path, url) as service:
        async with asyncio.timeout(PATIENCE):
            await listed.wait()
        await asyncio.sleep(pause)
        await service.ends(signal.SIGTERM)


IN_ITS_OWN: Final = ("unshare", "--pid", "--fork", "--kill-child")


@pytest.mark.skipif(
    subprocess.run([*IN_ITS_OWN, "true"], check=False, capture_output=True).returncode != 0,
    reason="no process namespaces here",
)
@pytest.mark.parametrize(
    ("arguments", "how"),
    [(SECRET, "is away"), (PLAIN, "is silent"), (WEBHOOK, "is away"), (AGENT, "is silent")],
)
async def test_it_ends_as_the_first_process_of_a_container(
    tmp_path: Path, arguments: Sequence[str], how: str
) -> None:
    """Such a process has no default reaction, so a signal before its handler is lost."""
    async with (
        unhelpful(how) as (url, _),
        started(arguments, tmp_path, url, IN_ITS_OWN) as service,
    ):
        await service.says("partage", "waiting", "cannot", "listen", "serv", "{")
        outer = service.process.pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text()  # noqa: ASYNC240 # no file
        inner = int(children.split()[0])
        os.kill(inner, signal.SIGTERM)
        await service.ends()


@pytest.mark.parametrize("pause", [0.3, 1.0])
@pytest.mark.parametrize("arguments", [PLAIN, WEBHOOK, AGENT, ("up",)], ids=lambda x: x[0])
async def test_it_ends_while_it_starts(
    tmp_path: Path, arguments: Sequence[str], pause: float
) -> None:
    """The signal arrives soon or late, while modules are imported, files are read or ports are opened."""
    url = "" if arguments[0] == "up" else "http://127.0.0.1:1"
    ports = ["--port", "0", "--scheduler-port", "0"] if arguments[0] == "up" else []
    given = (*arguments, *ports)
    async with started(given, tmp_path, url) as service:
        await asyncio.sleep(pause)
        service.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            code = await service.process.wait()
        # Python itself has no handler before the first line of ours.
        assert code in (0, 128 + signal.SIGTERM, -signal.SIGTERM), service.said
        assert "Traceback" not in service.said


STUCK: Final = """
import asyncio, sys, time
from partage.cli import loop
import partage.cli.signals as signals
signals.Ending.__init__.__defaults__ = (0.5,)

async def swallows(stop):
    print("ready", file=sys.stderr, flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def blocks(stop):
    print("ready", file=sys.stderr, flush=True)
    while True:
        time.sleep(0.01)

async def fails(stop):
    print("ready", file=sys.stderr, flush=True)
    try:
        await asyncio.sleep(3600)
    finally:
        raise RuntimeError("while it ended")

async def thread(stop):
    async def wait():
        await asyncio.to_thread(time.sleep, 3600)
    print("ready", file=sys.stderr, flush=True)
    await wait()

loop.run_fast(globals()[sys.argv[1]])
"""


@pytest.mark.parametrize("what", ["swallows", "blocks", "thread", "fails"])
async def test_whatever_does_not_let_go_is_ended(what: str) -> None:
    """A service ignores its cancellation, a loop gets no turn, or a thread does not return."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STUCK, what, stdout=PIPE, stderr=PIPE
    )
    service = Running(process)
    await service.says("ready")
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 0
    assert "Traceback" not in service.said


async def test_a_command_that_only_asks_ends_by_a_signal(tmp_path: Path) -> None:
    """The first process of a container needs a handler, or the signal is lost."""
    async with (
        unhelpful("is silent") as (url, asked),
        started(("top",), tmp_path, url) as command,
    ):
        await asyncio.wait_for(asked.wait(), PATIENCE)
        command.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await command.process.wait() == 128 + signal.SIGTERM
        assert "Traceback" not in command.said
