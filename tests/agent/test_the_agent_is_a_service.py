"""`partage agent` as a process: options that cannot be used, health, metrics, an end by a signal."""

import asyncio
import re
import signal
import socket
import struct
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from fakes.nri_runtime import fake_runtime
from fakes.ports import free_port
from partage.agent.nri.messages import Container, PodSandbox, Status
from partage.cli.agent import agent
from partage.daemon.agent import IsolationOptions
from partage.model.errors import InvalidDocument
from partage.vendors import names

ROOT = Path(__file__).parents[2]
NODE = ("--node", "host04", "--devices", str(ROOT / "examples/koordinator/host04.yaml"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        pytest.param(
            ["--node", "n", "--devices", "no-file"], "no-file: cannot be read", id="file"
        ),
        pytest.param(["--node", "n", *NODE[2:]], "no Node or Device named 'n'", id="other node"),
        pytest.param([*NODE, "--nri-index", "7"], "two digits", id="index"),
        pytest.param([*NODE, "--journal", "/proc/none"], "journal /proc/none", id="journal"),
        pytest.param([*NODE, "--standalone"], "--devices and --standalone exclude", id="modes"),
        pytest.param(["--standalone", "--mig"], "--mig needs the API server", id="instances"),
        pytest.param(["--standalone", "--simulated", "no-file"], "no-file", id="simulated"),
        pytest.param([*NODE, "--simulated", "x"], "--simulated is a kind of discovery", id="both"),
        pytest.param([*NODE, "--config-map", "x"], "is not NAMESPACE/NAME", id="map"),
        pytest.param([*NODE, "--context-memory", "x"], "--context-memory", id="quantity"),
        pytest.param([*NODE, "--memory-slack", "x"], "--memory-slack", id="slack"),
        pytest.param([*NODE, "--memory-slack=-1Gi"], "--memory-slack", id="less than nothing"),
        pytest.param(
            [*NODE, "--isolation", "none", "--not-in-force", "evict"],
            "evicted again and again",
            id="endless eviction",
        ),
        pytest.param(
            [*NODE, "--isolation", "partage", "--isolation-library", "no-lib"],
            "no-lib",
            id="library",
        ),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, arguments: list[str], why: str) -> None:
    """One line says which option and why; exit 2."""
    # Before the arguments: another agent of this machine may have the folder that is usual.
    found = CliRunner().invoke(agent, ["--journal", str(tmp_path), *arguments])

    assert found.exit_code == 2
    assert why in found.stderr
    assert "Traceback" not in found.output


@pytest.mark.parametrize(("given", "slack"), [([], 2**30), (["--memory-slack", "512Mi"], 2**29)])
def test_how_far_contexts_may_grow_reaches_who_looks_after_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], slack: int
) -> None:
    """A GiB by default."""
    said = []

    def statements(*given: object, **_: object) -> None:
        said.extend(one.slack for one in given if isinstance(one, IsolationOptions))
        raise InvalidDocument("that is all")

    monkeypatch.setattr("partage.cli.agent.Statements", statements)
    CliRunner().invoke(agent, [*NODE, "--journal", str(tmp_path), "--port", "0", *given])

    assert said == [slack]


def test_without_files_a_cluster_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default reads the node from the API server; without a way to one the message says so, exit 2."""
    monkeypatch.setenv("KUBECONFIG", "/no-such-file")

    found = CliRunner().invoke(agent, ["--node", "n"])

    assert found.exit_code == 2
    assert "/no-such-file" in found.stderr


async def test_an_api_server_that_is_away_keeps_nobody_from_serving(tmp_path: Path) -> None:
    """It starts, says that the node cannot be read, and ends well."""
    config = tmp_path / "config"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, "
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], "
        "contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}"
    )

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "partage.cli.main",
        "agent",
        "--node",
        "n",
        "--port",
        "0",
        "--kubeconfig",
        config,
        "--journal",
        tmp_path / "journal",
        "--no-discovery",
        "--nri-socket",
        tmp_path / "nri.sock",
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(240):
        await _said(process.stderr, "node n cannot be read")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def _said(stream: asyncio.StreamReader, pattern: str) -> str:
    while line := (await stream.readline()).decode():
        if found := re.search(pattern, line):
            return found[0]
    pytest.fail(f"the agent ended without saying {pattern}")


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=240) as answer:  # noqa: S310 # ours
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    """It is not ready before the runtime asks; it counts what it refused; SIGTERM ends it with 0."""
    probes = free_port()

    async with asyncio.timeout(240):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "partage.cli.main",
            "agent",
            *NODE,
            "--port",
            "0",
            f"--health-port={probes}",
            "--deadline=60",
            "--journal",
            tmp_path / "journal",
            "--nri-socket",
            tmp_path / "nri.sock",
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        url = await _said(process.stderr, r"http://\S+")
        assert (await asyncio.to_thread(_get, f"{url}/readyz"))[0] == 503
        async with fake_runtime(tmp_path / "nri.sock") as runtime:
            await runtime.plugin.wait()
            forged = PodSandbox("p", "bad", "u", "team", {}, {names.DEVICE_ALLOCATED: "{}"})
            refused = await runtime.create(forged, Container("c", "p", "main"), 60)
            assert isinstance(refused, Status)
            assert "NoRecord" in refused.message
            assert (await asyncio.to_thread(_get, f"{url}/readyz"))[0] == 200
            for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 404)):
                alone = f"http://127.0.0.1:{probes}{path}"
                assert (await asyncio.to_thread(_get, alone))[0] == status
            metrics = (await asyncio.to_thread(_get, f"{url}/metrics"))[1]
            assert 'partage_agent_refused_total{rule="NoRecord"} 1.0' in metrics
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


def _ask_and_reset(url: str) -> None:
    """Ask for all metrics, again and again, and be gone before they come."""
    host, port = url.removeprefix("http://").split(":")
    for _ in range(100):
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 3)


async def test_clients_that_go_away_fill_no_log(tmp_path: Path) -> None:
    """Any client that reaches the port may do so."""
    files = ("--journal", tmp_path / "journal", "--nri-socket", tmp_path / "nri.sock")
    command = (sys.executable, "-m", "partage.cli.main", "agent", *NODE, "--port", "0", *files)

    async with asyncio.timeout(240):
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        url = await _said(process.stderr, r"http://\S+")
        await asyncio.to_thread(_ask_and_reset, url)
        assert (await asyncio.to_thread(_get, f"{url}/healthz"))[0] == 200
        process.send_signal(signal.SIGTERM)
        said = (await process.stderr.read()).decode()
        assert await process.wait() == 0
        assert "Traceback" not in said
