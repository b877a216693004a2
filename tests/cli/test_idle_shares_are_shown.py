"""`partage top pods --idle` asks a Prometheus which pods hardly used what was granted."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from partage.cli.main import main

VALUES = {
    ("a", "idle"): (50, 1.5, 4096, 100),
    ("a", "busy"): (50, 40, 4096, 4000),
    ("b", "small"): (10, 0, 1024, 0),
    ("b", "unmeasured"): (100, None, 1024, None),
}
SERIES = (
    "container_request_gpu_utilization",
    "avg_over_time(container_gpu_utilization[1h])",
    "container_request_gpu_memory",
    "max_over_time(container_gpu_memory_total[1h])",
)


class Answers(BaseHTTPRequestHandler):
    """Prometheus' API, with the labels that a scrape without honorLabels leaves."""

    def do_GET(self) -> None:
        """One query; anything else is 404."""
        parts = urlsplit(self.path)
        if parts.path != "/api/v1/query":
            self.send_error(404)
            return
        column = SERIES.index(parse_qs(parts.query)["query"][0])
        result: list[dict[str, Any]] = [
            {
                "metric": {
                    "namespace": "partage-system",
                    "pod": "partage-agent-x",
                    "container": "agent",
                    "exported_namespace": namespace,
                    "exported_pod": pod,
                    "exported_container": "main",
                    "node": "n1",
                    "card": "0",
                },
                "value": [0, str(values[column])],
            }
            for (namespace, pod), values in VALUES.items()
            if values[column] is not None
        ]
        body = json.dumps({"status": "success", "data": {"result": result}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def prometheus() -> Iterator[str]:
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def top(*arguments: str) -> Result:
    """The command, whatever the environment says."""
    return CliRunner(env={"PARTAGE_PROMETHEUS": ""}).invoke(main, ["top", *arguments])


def test_who_received_little_is_shown_with_what_was_granted(prometheus: str) -> None:
    """The largest grant first; busy pods and pods without a measurement are not among them."""
    result = top("pods", "--idle", "--prometheus", f"{prometheus}/")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert rows[1:] == [
        ["a/idle", "main", "n1", "0", "50%", "1.5%", "4Gi", "100Mi"],
        ["b/small", "main", "n1", "0", "10%", "0.0%", "1Gi", "0"],
    ]
    found = json.loads(
        top("pods", "--idle", "--prometheus", prometheus, "-n", "b", "-o", "json").stdout
    )
    assert [one["pod"] for one in found["idle"]] == ["small"]
    assert "no container" in top("pods", "--idle", "--prometheus", prometheus, "-n", "c").stdout


def test_what_cannot_be_asked_is_said(prometheus: str) -> None:
    """No address, no list of pods, or no server that answers as Prometheus."""
    for arguments in (("pods", "--idle"), ("nodes", "--idle", "--prometheus", prometheus)):
        result = top(*arguments)
        assert result.exit_code == 2
        assert "--prometheus URL" in result.stderr
    result = top("pods", "--idle", "--prometheus", f"{prometheus}/elsewhere")
    assert result.exit_code == 2
    assert "404" in result.stderr
