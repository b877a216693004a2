"""Sends spans by OTLP over HTTP with OpenTelemetry's own exporter, set up by its own variables.

The only module that imports opentelemetry (extra `trace`), and imported only if traces are on. The SDK reads
destination, headers, certificates, time-out, compression, resource and sampling from the environment. The queue
before it is ours, because it has to count the spans that it drops.

Source: OpenTelemetry specification 1.4x, environment variables; OTLP 1.x over HTTP.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from partage import __version__
from partage.model.errors import InvalidValue
from partage.tracing.context import TraceContext
from partage.tracing.tracer import LiveTracer, QueueSettings, Sampler, Sent

_SAMPLED: Final = api.TraceFlags(api.TraceFlags.SAMPLED)
_SCOPE: Final = InstrumentationScope("partage", __version__)
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP: Final = "http/protobuf"
_DIGITS: Final = 9


def live_tracer(
    service: str, environ: Mapping[str, str], now: Callable[[], int], chance: Callable[[int], int]
) -> LiveTracer | None:
    """A tracer with the environment's settings; None if these disable it.

    Args:
        service: name of the service if the environment has none.
        environ: the environment; the SDK reads the process's own beside it.

    Raises:
        InvalidValue: a variable asks for an unsupported feature.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() or "otlp"
    if exporters == "none":
        return None
    if exporters != "otlp":
        raise InvalidValue(f"OTEL_TRACES_EXPORTER={exporters}: otlp and none are known")
    for name in _PROTOCOLS:
        if environ.get(name, _HTTP) not in ("", _HTTP):
            raise InvalidValue(f"{name}={environ[name]}: traces are sent by {_HTTP} only")
    settings = queue_settings(environ)
    name = environ.get("OTEL_SERVICE_NAME") or service
    resource = Resource.create({"service.name": name, "service.version": __version__})
    try:
        sampler = TracerProvider(resource=resource, shutdown_on_exit=False).sampler
        exporter = OtlpExporter(resource)
    except (ValueError, OSError) as error:
        raise InvalidValue(f"OTEL_*: {error}") from error
    return LiveTracer(exporter, sampler_of(sampler), now, chance, settings)


def queue_settings(environ: Mapping[str, str]) -> QueueSettings:
    """The queue by the variables OTEL_BSP_*.

    Raises `InvalidValue`: a variable is no number above 0 of at most nine digits, or a batch is larger than the queue.
    """
    usual = QueueSettings()
    size = _number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", usual.size)
    given = _number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(usual.batch, size))
    delay = _number(environ, "OTEL_BSP_SCHEDULE_DELAY", int(usual.delay * 1000)) / 1000
    if given > size:
        raise InvalidValue(
            f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE={given}: at most OTEL_BSP_MAX_QUEUE_SIZE, {size}"
        )
    return QueueSettings(size, given, delay)


def _number(environ: Mapping[str, str], name: str, usual: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return usual
    # A wait of more digits would be too long for the thread, and Python refuses thousands of digits.
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS or int(text) <= 0:
        raise InvalidValue(f"{name}={text[:64]}: a number from 1 to {10**_DIGITS - 1:,} is needed")
    return int(text)


def sampler_of(sampler: Any) -> Sampler:
    """A sampler of the SDK as a function: whether to send a trace."""

    def sampled(trace: str, parent: TraceContext | None) -> bool:
        around = None
        if parent is not None:
            flags = _SAMPLED if parent.sampled else api.TraceFlags(0)
            of = api.SpanContext(
                int(trace, 16), int(parent.span, 16), is_remote=True, trace_flags=flags
            )
            around = api.set_span_in_context(api.NonRecordingSpan(of))
        found = sampler.should_sample(around, int(trace, 16), "partage").decision
        return bool(found is Decision.RECORD_AND_SAMPLE)

    return sampled


class OtlpExporter:
    """Converts spans to OTLP and sends them."""

    def __init__(self, resource: Resource) -> None:
        """An exporter with the settings of the process's environment.

        Raises `ValueError`: a variable cannot be used; `OSError`: a variable's file cannot be read.
        """
        self._resource = resource
        self._reasons = _Reasons()
        logger = logging.getLogger("opentelemetry.exporter.otlp")
        logger.handlers[:] = [self._reasons]
        logger.propagate = False  # the tracer reports its message, once for each outage
        self._exporter: Any = OTLPSpanExporter()

    def export(self, batch: Sequence[Sent]) -> str:
        """The reason why the collector refused them; empty if it took them."""
        self._reasons.last = ""
        found = self._exporter.export([self._readable(one) for one in batch])
        if found is SpanExportResult.SUCCESS:
            return ""
        return self._reasons.last or "the collector does not take them"

    def close(self) -> None:
        """Abandon spans that are still being sent."""
        self._exporter.shutdown()

    def _readable(self, sent: Sent) -> ReadableSpan:
        span, trace = sent.span, int(sent.trace, 16)
        problem = api.StatusCode.ERROR if span.problem else api.StatusCode.UNSET
        return ReadableSpan(
            span.kind.name,
            api.SpanContext(trace, int(sent.id, 16), is_remote=False, trace_flags=_SAMPLED),
            api.SpanContext(trace, int(sent.parent, 16), is_remote=False, trace_flags=_SAMPLED)
            if sent.parent
            else None,
            self._resource,
            dict(span.attributes),
            [Event(one.name, dict(one.attributes), one.at) for one in span.events],
            kind=api.SpanKind[span.kind.role.name],
            status=api.Status(problem, span.problem or None),
            start_time=span.start,
            end_time=max(span.start, span.end),
            instrumentation_scope=_SCOPE,
        )


class _Reasons(logging.Handler):
    """Keeps the exporter's last message."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
