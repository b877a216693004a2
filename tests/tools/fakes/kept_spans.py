"""A tracer for tests that keeps what it gets."""

from collections.abc import Callable
from itertools import count
from typing import Final

from partage.tracing.context import TraceContext
from partage.tracing.spans import Span
from partage.tracing.tracer import Told

__all__ = ["KeptSpans"]


class KeptSpans:
    """Keeps every span, with the trace that it belongs to.

    Attributes:
        told: trace and span, in order.
        counts: nothing is ever sent.
    """

    on: Final = True

    def __init__(self) -> None:
        self.told: list[tuple[str, Span]] = []
        self.counts: dict[Told, int] = {}
        self._ticks = count(1)

    def now(self) -> int:
        """A later time at every call."""
        return next(self._ticks)

    def begin(self, parent: TraceContext | None) -> TraceContext:
        """A span with the next number as its id."""
        number = next(self._ticks)
        return TraceContext(parent.trace if parent else f"{number:032x}", f"{number:016x}")

    def emit(
        self, trace: str, parent: TraceContext | None, build: Callable[[], Span | None]
    ) -> None:
        """Keep it."""
        del parent
        span = build()
        if span is not None:
            self.told.append((trace, span))

    def named(self, name: str) -> list[Span]:
        """The spans of one kind."""
        return [span for _, span in self.told if span.kind.name == name]
