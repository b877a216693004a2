"""The services' option for traces, and the sender of traces.

The module imports opentelemetry only if the option is given. Without it, services start without the extra
`trace`, and import, write and measure nothing for traces.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Iterator

from partage.cli.parameters import option, options
from partage.model.errors import InvalidValue
from partage.tracing.tracer import NO_TRACES, Tracer

_LOG = logging.getLogger("partage.tracing")

trace_options = options(
    option(
        "--traces/--no-traces",
        default=False,
        help="Send a trace of each pod with devices by OTLP over HTTP, as OpenTelemetry's variables "
        "OTEL_* set it (OTEL_EXPORTER_OTLP_ENDPOINT; default http://localhost:4318). Needs "
        "opentelemetry (extra `trace`).",
    ),
    title="Traces",
)


@contextlib.contextmanager
def sent_traces(service: str, *, wanted: bool) -> Iterator[Tracer]:
    """The tracer of pods, while the context lasts.

    `service`: name of the service, if OTEL_SERVICE_NAME has none. Raises `InvalidValue`: opentelemetry is not
    installed, or a variable cannot be used.
    """
    if not wanted:
        yield NO_TRACES
        return
    try:
        from partage.tracing.otlp import live_tracer  # noqa: PLC0415 # an extra
    except ImportError as error:
        raise InvalidValue(
            f"--traces: opentelemetry is not installed ({error.name or error}); install partage[trace]"
        ) from None
    found = live_tracer(service, os.environ, time.time_ns, random.getrandbits)
    if found is None:
        _LOG.warning("no traces are sent, because an OTEL_* variable overrides --traces")
        yield NO_TRACES
        return
    try:
        yield found
    finally:
        found.close()
