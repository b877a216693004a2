"""`partage scheduler` as a process: start, log, serve, refuse, and end by a signal."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from daemon_world import PATIENCE, world

from partage.apiserver import write_kubeconfig

PROGRAM = (sys.executable, "-m", "partage.cli.main", "scheduler")
TOKEN = "a-token-that-must-stay-secret"  # noqa: S105 # made up


async def started(*arguments: str) -> Process:
    """The command, running."""
    return await asyncio.create_subprocess_exec(*PROGRAM, *arguments, stdout=PIPE, stderr=PIPE)


async def line_with(process: Process, text: str) -> dict[str, str]:
    """The next line of the log whose message holds a text."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while True:
            line = await process.stderr.readline()
            assert line, "the log ended"
            found: dict[str, str] = json.loads(line)
            if text in found["message"]:
                return found


@pytest.mark.parametrize("gates", ["Other=true", "DevicePluginAdaption", "DevicePluginAdaption=1"])
async def test_a_gate_that_is_not_known_is_refused(tmp_path: Path, gates: str) -> None:
    """Otherwise its user would wait for it without end."""
    kubeconfig = tmp_path / "kubeconfig"
    write_kubeconfig(kubeconfig, "http://127.0.0.1:1")
    process = await started("--kubeconfig", str(kubeconfig), "--plain", "--feature-gates", gates)
    _, error = await process.communicate()

    assert process.returncode == 2
    assert "DevicePluginAdaption=true or =false" in error.decode()


async def test_it_serves_until_sigterm(tmp_path: Path) -> None:
    """One JSON object a line; 401 without the token; a clean end; no secret in the log."""
    kubeconfig, tokens = tmp_path / "kubeconfig", tmp_path / "tokens"
    tokens.write_text(TOKEN + "\n")
    async with world(nodes=1) as cluster:
        write_kubeconfig(kubeconfig, cluster.url)
        process = await started(
            "--kubeconfig",
            str(kubeconfig),
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--token-file",
            str(tokens),
            "--no-leader-elect",
            "--log-format",
            "json",
        )
        url = (await line_with(process, "listening on"))["message"].split()[-1]
        await line_with(process, "leading")

        async with cluster.http.post(f"{url}/scheduler/filter", json={}) as answer:
            assert answer.status == 401
        async with cluster.http.get(f"{url}/readyz") as answer:
            assert answer.status == 200
        headers = {"Authorization": f"Bearer {TOKEN}"}
        await cluster.pod("a")
        body = {"Pod": cluster.stored("a"), "NodeNames": ["n0"]}
        async with cluster.http.post(
            f"{url}/scheduler/filter", json=body, headers=headers
        ) as answer:
            assert (await answer.json())["NodeNames"] == ["n0"]

        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            _, errors = await process.communicate()
        assert process.returncode == 0
        assert json.loads(errors.splitlines()[-1])["message"] == "stopped"
        assert TOKEN.encode() not in errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--token-file"),
        (["--plain", "--tls-cert", "{file}"], "--tls-cert and --tls-key go together"),
        (["--plain", "--client-ca", "{file}"], "--client-ca needs --tls-cert"),
        (["--token-file", "{file}"], "holds no token"),
        (["--plain", "--kubeconfig", "{file}"], "{file}"),
        (["--plain", "--kubeconfig", "{missing}"], "does not exist"),
        (["--plain", "--policy", "nonsense"], "nonsense"),
    ],
    ids=["open", "no key", "no certificate", "no token", "kubeconfig", "missing", "policy"],
)
async def test_what_cannot_be_used_is_refused_by_name(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    """Exit 2, one message that names the thing, no traceback."""
    file, kubeconfig = tmp_path / "empty", tmp_path / "kubeconfig"
    file.write_text("")
    write_kubeconfig(kubeconfig, "http://127.0.0.1:1")
    names = {"file": str(file), "missing": str(tmp_path / "missing")}
    given = ["--kubeconfig", str(kubeconfig), *(text.format(**names) for text in arguments)]

    process = await started(*given)
    async with asyncio.timeout(PATIENCE):
        _, errors = await process.communicate()

    assert process.returncode == 2
    assert words.format(**names) in errors.decode()
    assert "Traceback" not in errors.decode()
