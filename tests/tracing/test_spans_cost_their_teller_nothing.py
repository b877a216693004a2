"""Every outcome of a span is counted, and none of it comes back to the code that made the span."""

import threading
import time
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from partage.tracing.context import TraceContext
from partage.tracing.spans import FILTER, SEND, Span
from partage.tracing.tracer import (
    NO_TRACES,
    LiveTracer,
    QueueSettings,
    Sent,
    SpanSeries,
    Told,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
ONE = Span(FILTER, 1, 2)


class Collector:
    """Keeps what it receives; says no, raises or waits where a test wants it."""

    def __init__(self) -> None:
        self.got: list[Sent] = []
        self.problem = ""
        self.fault: Exception | None = None
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Semaphore(0)
        self.closed = False

    def export(self, batch: Sequence[Sent]) -> str:
        """See Exporter."""
        self.asked.release()
        self.open.wait(60)
        if self.fault is not None:
            raise self.fault
        if not self.problem:
            self.got += batch
        return self.problem

    def close(self) -> None:
        """See Exporter."""
        self.closed = True
        self.open.set()


def tracer(
    collector: Collector, settings: QueueSettings | None = None, *, sampled: bool = True
) -> LiveTracer:
    """A tracer whose ids are 1, 2, 3 and so on."""
    ids = iter(range(1, 10**6))
    return LiveTracer(
        collector,
        lambda _trace, _parent: sampled,
        lambda: 7,
        lambda _bits: next(ids),
        settings or QueueSettings(delay=0.001),
    )


def until(live: LiveTracer, told: Told, count: int) -> None:
    """Wait for the thread."""
    end = time.monotonic() + 240
    while live.counts[told] < count:
        assert time.monotonic() < end, live.counts
        time.sleep(0.001)


def test_spans_within_a_span_belong_to_it() -> None:
    """Each goes on its way with an id, and with that of what it is part of."""
    collector = Collector()
    live = tracer(collector)

    live.emit(
        TRACE, None, lambda: Span(FILTER, 1, 9, children=(Span(SEND, 2, 3),), parent="a" * 16)
    )
    until(live, Told.SENT, 2)
    live.close()

    outer, inner = collector.got
    assert (outer.trace, outer.parent, inner.parent) == (TRACE, "a" * 16, outer.id)
    assert {len(outer.id), len(inner.id)} == {16}


def test_a_full_queue_drops_and_counts() -> None:
    """A collector that never answers: the sender does not wait, and the rest is counted."""
    collector = Collector()
    collector.open.clear()
    live = tracer(collector, QueueSettings(size=10, batch=5, delay=0.001))
    live.emit(TRACE, None, lambda: ONE)
    assert collector.asked.acquire(timeout=240)  # it hangs with the first

    for _ in range(100):
        live.emit(TRACE, None, lambda: ONE)

    assert live.counts == {Told.SENT: 0, Told.FAILED: 0, Told.DROPPED: 90}
    collector.open.set()
    until(live, Told.SENT, 11)
    live.close()
    assert collector.closed


def test_the_end_does_not_wait_for_a_collector_that_hangs() -> None:
    """What is still there is counted as dropped."""
    collector = Collector()
    collector.open.clear()
    live = tracer(collector, QueueSettings(batch=1, delay=0.001))
    live.emit(TRACE, None, lambda: ONE)
    assert collector.asked.acquire(timeout=240)
    live.emit(TRACE, None, lambda: ONE)

    live.close(patience=0.01)
    live.emit(TRACE, None, lambda: ONE)

    assert live.counts[Told.DROPPED] == 2


@pytest.mark.parametrize("fault", [None, RuntimeError("broken")])
def test_what_is_not_taken_is_counted(
    fault: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once for an outage, with its reason, and once when it is over."""
    collector = Collector()
    collector.problem, collector.fault = "not now", fault
    live = tracer(collector)

    for count in (1, 2):
        live.emit(TRACE, None, lambda: ONE)
        until(live, Told.FAILED, count)
    collector.problem, collector.fault = "", None
    live.emit(TRACE, None, lambda: ONE)
    until(live, Told.SENT, 1)
    live.close()

    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1
    assert ("RuntimeError: broken" if fault else "not now") in said[0]


def test_a_fault_in_words_is_not_one_of_the_decision(caplog: pytest.LogCaptureFixture) -> None:
    """A span that cannot be made is left out, logged and counted."""
    live = tracer(Collector())

    live.emit(TRACE, None, lambda: Span(FILTER, 1, int("x")))
    live.close()

    assert live.counts[Told.DROPPED] == 1
    assert "left out" in caplog.text


def test_what_is_not_sampled_is_not_even_made() -> None:
    """No span is built for a trace that is not sent; others learn it from the traceparent."""
    live = tracer(Collector(), sampled=False)

    live.emit(TRACE, None, lambda: pytest.fail("made"))
    begun = live.begin(None)
    live.close()

    assert begun.sampled is False
    assert str(begun).endswith("-00")


def test_a_trace_goes_on_or_begins() -> None:
    """A span within an author's trace keeps its id; ids that chance makes 0 are none."""
    live = LiveTracer(Collector(), lambda _t, _p: True, lambda: 7, lambda _bits: 0)

    within = live.begin(TraceContext(TRACE, "b" * 16))
    fresh = live.begin(None)
    live.close()

    assert (within.trace, within.span) == (TRACE, f"{1:016x}")
    assert fresh.trace == f"{1:032x}"


def test_nobody_is_told_where_nothing_is_sent() -> None:
    """Nothing begins, nothing is made, and the series are 0."""
    registry = CollectorRegistry()
    registry.register(SpanSeries(NO_TRACES))

    NO_TRACES.emit(TRACE, None, lambda: pytest.fail("made"))

    assert NO_TRACES.begin(None) is None
    assert 'partage_trace_spans_total{outcome="dropped"} 0.0' in generate_latest(registry).decode()


def test_series_say_what_became_of_spans() -> None:
    """They have one series for each outcome."""
    live = tracer(Collector())
    registry = CollectorRegistry()
    registry.register(SpanSeries(live))

    live.emit(TRACE, None, lambda: ONE)
    until(live, Told.SENT, 1)
    live.close()

    assert 'partage_trace_spans_total{outcome="sent"} 1.0' in generate_latest(registry).decode()
