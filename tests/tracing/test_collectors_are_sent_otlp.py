"""OTLP over HTTP, set up by OpenTelemetry's variables: what arrives, and what is refused."""

import random
import time
from collections.abc import Iterator

import pytest

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="the extra trace is not there"
)

from collector import Collector, collecting

from partage.model.errors import InvalidValue
from partage.tracing.context import TraceContext, trace_of
from partage.tracing.otlp import live_tracer, queue_settings
from partage.tracing.spans import BIND, FILTER, SEND, Event, Span
from partage.tracing.tracer import LiveTracer, QueueSettings, Told

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "5"}
TRACE = "0af7651916cd43dd8448eb211c80319c"
ONE = Span(FILTER, 1, 2)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector to which the environment leads."""
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


def tracer(**environ: str) -> LiveTracer:
    """A tracer as the environment wants it."""
    chance = random.Random(1)  # noqa: S311 # seeded
    found = live_tracer("partage-test", {**SOON, **environ}, time.time_ns, chance.getrandbits)
    assert found is not None
    return found


def test_a_span_arrives_whole(collector: Collector) -> None:
    """Ids, times, kind, attributes of every type, events, the problem and the sender."""
    live = tracer()
    span = Span(
        BIND,
        10**18,
        10**18 + 5,
        {"k8s.node.name": "n1", "partage.refusals": 3, "x": ["a", "b"]},
        "no",
        (Event("woken", 10**18 + 1, {"partage.code": "c"}),),
        (Span(SEND, 10**18 + 1, 10**18 + 2),),
        id="c" * 16,
        parent="b" * 16,
    )

    live.emit(TRACE, TraceContext(TRACE, "b" * 16), lambda: span)
    collector.until(lambda c: len(c.spans) == 2)
    live.close()

    bind, send = collector.named("partage.bind")[0], collector.named("partage.send")[0]
    assert (bind.service, bind.trace, bind.id, bind.parent) == (
        "partage-test",
        TRACE,
        "c" * 16,
        "b" * 16,
    )
    assert (bind.start, bind.end, bind.kind, bind.problem) == (10**18, 10**18 + 5, 2, "no")
    assert bind.attributes == {"k8s.node.name": "n1", "partage.refusals": 3, "x": ["a", "b"]}
    assert bind.events == [("woken", {"partage.code": "c"})]
    assert (send.parent, send.kind) == (bind.id, 3)
    assert collector.requests[0]["path"] == "/v1/traces"


def test_the_standard_variables_hold(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers, compression and the service's name."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    live = tracer(OTEL_SERVICE_NAME="mine")

    live.emit(TRACE, None, lambda: ONE)
    collector.until(lambda c: c.spans)
    live.close()

    assert collector.spans[0].service == "mine"
    assert {k.lower(): v for k, v in collector.requests[0].items()}["x-tenant"] == "a"
    assert collector.requests[0]["Content-Encoding"] == "gzip"


def test_a_ratio_samples_the_same_traces_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs agree on every trace by its id, and on what an earlier program decided."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    one, other = tracer(), tracer()
    traces = [trace_of(f"u{number}", {}).trace for number in range(2000)]

    def asks(live: LiveTracer, trace: str, parent: TraceContext | None) -> bool:
        made: list[int] = []
        live.emit(trace, parent, lambda: made.append(1))  # type: ignore[func-returns-value]
        return bool(made)

    chosen = [asks(one, trace, None) for trace in traces]

    assert chosen == [asks(other, trace, None) for trace in traces]
    assert 0.2 < sum(chosen) / len(chosen) < 0.3
    assert all(asks(one, t, TraceContext(t, "a" * 16)) for t in traces[:50])
    assert not any(asks(one, t, TraceContext(t, "a" * 16, sampled=False)) for t in traces[:50])
    one.close()
    other.close()


@pytest.mark.parametrize("status", [400, 500])
def test_a_collector_that_refuses_costs_spans_alone(
    status: int, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """They are counted as failed and the reason is logged; later ones arrive."""
    collector.status = status
    live = tracer()

    live.emit(TRACE, None, lambda: ONE)
    end = time.monotonic() + 240
    while not live.counts[Told.FAILED] and time.monotonic() < end:
        time.sleep(0.01)
    collector.status = 200
    live.emit(TRACE, None, lambda: ONE)
    collector.until(lambda c: c.spans)
    live.close()

    assert live.counts[Told.FAILED] == 1
    assert str(status) in caplog.text


def test_a_collector_that_is_away_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The spans are lost, and the program ends in time."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    live = tracer()

    live.emit(TRACE, None, lambda: ONE)
    end = time.monotonic() + 240
    while not live.counts[Told.FAILED] and time.monotonic() < end:
        time.sleep(0.01)
    live.close()

    assert live.counts[Told.FAILED] == 1
    assert "the collector takes no traces" in caplog.text


def test_a_slow_collector_keeps_nobody_waiting(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans queue up to the bound while it takes its time, and the sender goes on."""
    collector.delay = 3600.0
    live = tracer(OTEL_BSP_MAX_QUEUE_SIZE="20", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="10")
    live.emit(TRACE, None, lambda: ONE)
    collector.until(lambda c: c.requests)

    for _ in range(1000):
        live.emit(TRACE, None, lambda: ONE)

    assert live.counts[Told.DROPPED] == 980
    live.close(patience=0.01)


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "otlp and none are known"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf only"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "a number from 1"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "9" * 5000}, "a number from 1"),
        ({"OTEL_BSP_SCHEDULE_DELAY": "99999999999999"}, "to 999,999,999"),
        ({"OTEL_BSP_SCHEDULE_DELAY": "soon"}, "OTEL_BSP_SCHEDULE_DELAY=soon"),
        (
            {"OTEL_BSP_MAX_QUEUE_SIZE": "5", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "6"},
            "at most OTEL_BSP_MAX_QUEUE_SIZE, 5",
        ),
    ],
)
def test_a_variable_that_asks_for_more_is_refused(environ: dict[str, str], why: str) -> None:
    """One line names it."""
    with pytest.raises(InvalidValue, match=why):
        live_tracer("x", environ, time.time_ns, random.getrandbits)


@pytest.mark.parametrize(
    "environ", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}]
)
def test_a_variable_may_switch_off(environ: dict[str, str]) -> None:
    """Nothing is sent then."""
    assert live_tracer("x", environ, time.time_ns, random.getrandbits) is None


def test_the_queue_is_as_usual_without_variables() -> None:
    """The specification's own numbers."""
    assert queue_settings({}) == QueueSettings(2048, 512, 5.0)
    assert queue_settings({"OTEL_BSP_MAX_QUEUE_SIZE": "100"}) == QueueSettings(100, 100, 5.0)
