"""Without --traces nothing is imported, written or sent; with it and without the extra, one line says why."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from partage.cli.main import main

_QUIET = """
import asyncio, json, sys
import partage.cli.main, partage.cli.agent, partage.cli.scheduler, partage.cli.up, partage.cli.webhook
import aiohttp
from partage.embedded.cluster import EmbeddedCluster, Plan
from partage.embedded.fleet import DEFAULT_FLEET

POD = {"metadata": {"name": "a", "annotations": {"partage.io/traceparent": "nonsense"}}, "spec": {
    "containers": [{"name": "m", "image": "i", "resources": {"limits": {"koordinator.sh/gpu": "50"}}}]}}

async def main():
    async with EmbeddedCluster(Plan(simulated=DEFAULT_FLEET)) as one, aiohttp.ClientSession() as http:
        url = one.addresses.api + "/api/v1/namespaces/default/pods"
        for name in ("a", "b"):
            POD["metadata"]["name"] = name
            async with http.post(url, json=POD) as answer:
                assert answer.status == 201 and "Warning" not in answer.headers
            POD["metadata"].pop("annotations", None)
        assert await one.settled(60)
        async with http.get(url) as answer:
            pods = (await answer.json())["items"]
    print(json.dumps({
        "modules": sorted(m for m in sys.modules if m.split(".")[0] in ("opentelemetry", "google", "requests")),
        "written": [p["metadata"]["annotations"].get("partage.io/traceparent") for p in pods],
        "placed": all(p["spec"].get("nodeName") for p in pods),
    }))

asyncio.run(main())
"""


def test_a_cluster_without_traces_knows_nothing_of_them() -> None:
    """No opentelemetry in the process, no annotation of ours, and an author's is not looked at."""
    found = subprocess.run(
        [sys.executable, "-c", _QUIET], capture_output=True, text=True, check=True, timeout=240
    )

    assert found.stdout.strip() == (
        '{"modules": [], "written": ["nonsense", null], "placed": true}'
    )


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["up", "--no-examples"], id="up"),
        pytest.param(["scheduler", "--plain", "--port", "0"], id="scheduler"),
        pytest.param(["webhook", "--port", "0"], id="webhook"),
        pytest.param(["agent", "--node", "n", "--port", "0"], id="agent"),
    ],
)
def test_without_the_extra_one_line_says_so(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is missing, and what to install; exit 2."""
    config = tmp_path / "config"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, "
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], "
        "contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.delitem(sys.modules, "partage.tracing.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    found = CliRunner().invoke(main, [*arguments, "--traces"])

    assert found.exit_code == 2
    assert "--traces: opentelemetry is not installed" in found.stderr
    assert "partage[trace]" in found.stderr
    assert "Traceback" not in found.output
