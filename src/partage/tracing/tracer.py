"""Receivers of spans: one that ignores them, or a queue from which a thread sends them.

    decision ── emit ──> sampled? ──> queue ── thread ──> exporter
                                        └ full: dropped, and counted

A span's fate never affects its reporter: `emit` neither waits nor raises, and a slow or unreachable collector
costs only spans. Time, chance and the exporter are arguments.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, Metric

from partage.tracing.context import TraceContext
from partage.tracing.spans import Span

_LOG: Final = logging.getLogger("partage.tracing")
_END: Final = 2.0
"""Seconds that a program's end waits for unsent spans."""


class Told(StrEnum):
    """A span's fate."""

    SENT = "sent"
    FAILED = "failed"  # the collector refused them or could not be reached
    DROPPED = "dropped"  # the queue was full, or they could not be encoded


@dataclass(frozen=True, slots=True)
class Sent:
    """A queued span.

    Attributes:
        parent: id of the span that it is part of; empty for none.
        span: the span to send; its children are sent separately.
    """

    trace: str
    id: str
    parent: str
    span: Span


class Exporter(Protocol):
    """Sends spans; called from one thread."""

    def export(self, batch: Sequence[Sent]) -> str:
        """The reason why the collector refused them; empty if it took them. Any exception counts as a refusal."""

    def close(self) -> None:
        """Abandon spans that are still being sent; may be called from another thread."""


class Tracer:
    """Takes spans; this one sends none.

    Attributes:
        on: whether spans are sent.
        now: nanoseconds since 1970; 0 if no spans are sent.
    """

    on = False

    def __init__(self, now: Callable[[], int] = int) -> None:
        self.now = now

    @property
    def counts(self) -> Mapping[Told, int]:
        """Number of spans by fate."""
        return {}

    def begin(self, parent: TraceContext | None) -> TraceContext | None:  # noqa: ARG002
        """A new child of `parent`, to which others may refer before it is sent; None if tracing is off."""
        return None

    def emit(
        self, trace: str, parent: TraceContext | None, build: Callable[[], Span | None]
    ) -> None:
        """Take a span.

        `parent`: the span that the trace continues; it decides the sampling. `build`: makes the span; not called if
        nothing is sent. If it returns None, nothing is sent.
        """


NO_TRACES: Final = Tracer()


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of the queue; the names are those of OpenTelemetry's variables.

    Attributes:
        size: most spans that wait (OTEL_BSP_MAX_QUEUE_SIZE).
        batch: spans sent at once (OTEL_BSP_MAX_EXPORT_BATCH_SIZE).
        delay: seconds that a span waits for others (OTEL_BSP_SCHEDULE_DELAY, there milliseconds).
    """

    size: int = 2048
    batch: int = 512
    delay: float = 5.0


Sampler = Callable[[str, TraceContext | None], bool]
"""Whether to send a trace, by its id and the span that it continues."""


class LiveTracer(Tracer):
    """Queues sampled spans, which a thread sends."""

    on = True

    def __init__(
        self,
        exporter: Exporter,
        sampler: Sampler,
        now: Callable[[], int],
        chance: Callable[[int], int],
        settings: QueueSettings = QueueSettings(),
    ) -> None:
        """A tracer; its thread starts at once. `now`: nanoseconds since 1970. `chance`: so many random bits."""
        super().__init__(now)
        self._exporter = exporter
        self._sampler = sampler
        self._chance = chance
        self._settings = settings
        self._counts = dict.fromkeys(Told, 0)
        self._lock = threading.Lock()
        self._queue: deque[Sent] = deque()
        self._due = threading.Event()
        self._ending = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> Mapping[Told, int]:
        """Number of spans by fate."""
        with self._lock:
            return dict(self._counts)

    def begin(self, parent: TraceContext | None) -> TraceContext:
        """A new span, to which others may refer before it is sent."""
        trace = parent.trace if parent is not None else self._id(128)
        return TraceContext(trace, self._id(64), self._sampler(trace, parent))

    def emit(
        self, trace: str, parent: TraceContext | None, build: Callable[[], Span | None]
    ) -> None:
        """Take a span; see `Tracer`."""
        try:
            span = build() if self._sampler(trace, parent) else None
        except Exception:  # noqa: BLE001 # a fault here must not fail the decision
            _LOG.exception("a span cannot be encoded and is left out")
            self._count(Told.DROPPED)
            return
        for one in () if span is None else self._each(trace, span, span.parent):
            if len(self._queue) >= self._settings.size or self._ending.is_set():
                self._count(Told.DROPPED)
            else:
                self._queue.append(one)
        if len(self._queue) >= self._settings.batch:
            self._due.set()

    def _each(self, trace: str, span: Span, parent: str) -> Iterator[Sent]:
        sent = Sent(trace, span.id or self._id(64), parent, span)
        yield sent
        for child in span.children:
            yield from self._each(trace, child, sent.id)

    def close(self, patience: float = _END) -> None:
        """Send waiting spans, for at most `patience` seconds."""
        self._ending.set()
        self._due.set()
        self._thread.join(patience)
        self._exporter.close()
        self._count(Told.DROPPED, len(self._queue))

    def _work(self) -> None:
        while not self._ending.is_set():
            self._due.wait(self._settings.delay)
            self._due.clear()
            self._send()
        self._send()

    def _send(self) -> None:
        for _ in range(-(-len(self._queue) // self._settings.batch)):
            count = min(len(self._queue), self._settings.batch)
            batch = [self._queue.popleft() for _ in range(count)]
            try:
                problem = self._exporter.export(batch)
            except Exception as error:  # noqa: BLE001 # the port says: whatever is raised
                problem = f"{type(error).__name__}: {error}"
            self._count(Told.FAILED if problem else Told.SENT, count)
            if bool(problem) is not self._failing:
                self._failing = bool(problem)
                if problem:
                    _LOG.warning(
                        "the collector takes no traces, and they are lost until it does: %s",
                        problem,
                    )
                else:
                    _LOG.info("traces are taken again")

    def _count(self, told: Told, count: int = 1) -> None:
        with self._lock:
            self._counts[told] += count

    def _id(self, bits: int) -> str:
        """Digits of an id; never all 0."""
        return f"{self._chance(bits) or 1:0{bits // 4}x}"


class SpanSeries:
    """Series of spans by fate, for a program's page of metrics."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`."""
        family = CounterMetricFamily(
            "partage_trace_spans", "Spans by outcome; 0 without traces.", labels=["outcome"]
        )
        counts = self._tracer.counts
        for told in Told:
            family.add_metric([told.value], counts.get(told, 0))
        yield family
