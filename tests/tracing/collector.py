"""A collector that takes OTLP over HTTP as the specification has it, and keeps what it was sent."""

import contextlib
import gzip
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Received:
    """One span as it arrived."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    problem: str


@dataclass
class Collector:
    """What came, and how requests are answered."""

    url: str = ""
    status: int = 200
    delay: float = 0.0
    spans: list[Received] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)

    def named(self, name: str) -> list[Received]:
        """The spans of one kind."""
        return [one for one in self.spans if one.name == name]

    def until(self, true: Any, patience: float = 240.0) -> None:
        """Wait until something is true of what came."""
        end = time.monotonic() + patience
        while not true(self):
            assert time.monotonic() < end, sorted(one.name for one in self.spans)
            time.sleep(0.02)

    def take(self, body: bytes) -> None:
        """Decode a request; one that is no OTLP raises."""
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_received(service, span) for span in scope.spans]


def _received(service: str, span: Any) -> Received:
    return Received(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        [(event.name, _values(event.attributes)) for event in span.events],
        span.status.message if span.status.code == 2 else "",
    )


def _values(attributes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = (
            [item.string_value for item in value.values] if kind == "array_value" else value
        )
    return found


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of loopback."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.append({"path": self.path, **dict(self.headers)})
            time.sleep(found.delay)
            if found.status == 200:
                packed = self.headers.get("Content-Encoding") == "gzip"
                found.take(gzip.decompress(body) if packed else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(found.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
