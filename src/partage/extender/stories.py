"""Reports the scheduling of each pod as spans of its trace.

    partage.schedule ── filter, prioritize, bind (lock, send, read_back), make_room …
       events: refused, woken

The service reports each decision. This module keeps only the time at which each pod was first seen,
and the events since then. `SILENT` keeps and reports nothing.
"""

import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from partage.extender.ports import Hooks
from partage.model.reason import ReasonCode, Refusal
from partage.tracing.context import PodTrace, trace_of
from partage.tracing.spans import BIND, FILTER, MAKE_ROOM, SCHEDULE, Event, Kind, Span, Value, cut
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.wire.translation import PodEntry

_LOG: Final = logging.getLogger("partage.extender")
_MOST: Final = 20_000
"""The most pods that are remembered."""
_EVENTS: Final = 32
_CODES: Final = frozenset(code.value for code in ReasonCode)


@dataclass(slots=True)
class _Story:
    """The scheduling of one pod until now.

    Attributes:
        start: the first time that a verb asked about the pod.
        events: the first events since then.
    """

    entry: PodEntry
    start: int
    refusals: int = 0
    events: list[Event] = field(default_factory=list)


class Step(NamedTuple):
    """An ended part of a bind; `node` is empty if it does not matter, `outcome` is one word."""

    kind: Kind
    start: int
    end: int
    node: str
    outcome: str
    problem: str


class Stories:
    """Receives decisions and reports them to a tracer; without traces it keeps nothing. `now` is that of `Tracer`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer, self.now = tracer, tracer.now
        self._known: OrderedDict[str, _Story] = OrderedDict()

    def trace_id(self, entry: PodEntry) -> str:
        """The id of the pod's trace, for the log; empty without traces."""
        return _trace(entry).trace if self._tracer.on else ""

    def tell(self, entry: PodEntry, decision: str, what: str) -> None:
        """Log a decision with its id in the journal and with the pod's trace, if one of them exists."""
        trace = self.trace_id(entry)
        if decision or trace:
            ids = {"decision": decision, "trace": trace}
            _LOG.info("pod %s %s", entry.pod.key, what, extra=ids)

    def filtered(
        self,
        entry: PodEntry,
        start: int,
        counts: tuple[int, int],
        refusal: Refusal | None,
        decision: str,
    ) -> None:
        """Report an answer of filter.

        Args:
            counts: the numbers of nodes in the question and in the answer.
            decision: the number of the decision in the recording; empty without one.
        """
        if not self._tracer.on:
            return
        end = self.now()
        story = self._known.setdefault(entry.pod.uid, _Story(entry, start))
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        if refusal is not None:
            story.refusals += 1
            self._happened(story, Event("refused", end, {"partage.code": refusal.code.value}))
        said = _filter_said(counts, refusal, decision)
        problem = f"{refusal.code}: {refusal.message}" if refusal is not None else ""
        self._tell(entry, FILTER, (start, end), said, problem)

    def asked(self, kind: Kind, entry: PodEntry, start: int, counts: Mapping[str, int]) -> None:
        """Report an answer of another verb."""
        self._tell(entry, kind, (start, self.now()), counts)

    def bound(
        self,
        entry: PodEntry,
        start: int,
        node: str,
        problem: str,
        decision: str,
        steps: Sequence[Step],
    ) -> None:
        """Report the end of a bind.

        Args:
            problem: the reason why the pod is not bound, or empty.
            decision: the number, in the record, of the decision that picked the cards or refused them; empty without one.
        """
        if not self._tracer.on:
            return
        uid, end = entry.pod.uid, self.now()
        said: dict[str, Value] = {
            "k8s.node.name": node,
            "partage.outcome": "refused" if problem else "bound",
        }
        code = problem.partition(":")[0]
        if code in _CODES:
            said["partage.code"] = code
        if decision:
            said["partage.decision"] = decision
        parts = tuple(_span_of(step, entry) for step in steps)
        self._tell(entry, BIND, (start, end), said, problem, parts)
        if not problem:
            story = self._known.pop(uid, None) or _Story(entry, start)  # its pod may have gone
            self._end(story, end, {"partage.outcome": "bound", "k8s.node.name": node})

    def made_room(
        self, entry: PodEntry, start: int, node: str, victims: int, problem: str
    ) -> None:
        """Report that less important pods were evicted for the pod, or the problem that prevented it."""
        said: dict[str, Value] = {
            "k8s.node.name": node,
            "partage.victims": victims,
            "partage.outcome": "given up" if problem else "asked",
        }
        self._tell(entry, MAKE_ROOM, (start, self.now()), said, problem)

    def gone(self, uid: str) -> None:
        """End the story of a deleted pod."""
        story = self._known.pop(uid, None)
        if story is not None:
            self._end(story, self.now(), {"partage.outcome": "gone"})

    def hooks(self, others: Hooks) -> Hooks:
        """The hooks of a service, extended so that this object hears of woken pods too."""
        if not self._tracer.on:
            return others

        def wake(uids: Sequence[str]) -> None:
            self._woken(uids)
            others.wake(uids)

        return replace(others, wake=wake)

    def _woken(self, uids: Collection[str]) -> None:
        for uid in uids:
            story = self._known.get(uid)
            if story is not None:
                self._happened(story, Event("woken", self.now()))

    @staticmethod
    def _happened(story: _Story, event: Event) -> None:
        if len(story.events) < _EVENTS:
            story.events.append(event)

    def _end(self, story: _Story, end: int, said: Mapping[str, Value]) -> None:
        """Emit the span of a pod's whole scheduling, with the id by which its parts refer to it."""
        trace = _trace(story.entry)
        told = {**_of(story.entry), **said, "partage.refusals": story.refusals}
        span = Span(
            SCHEDULE,
            story.start,
            end,
            told,
            events=tuple(story.events),
            id=trace.scheduling,
            parent=trace.parent.span if trace.parent is not None else "",
        )
        self._tracer.emit(trace.trace, trace.parent, lambda: span)

    def _tell(
        self,
        entry: PodEntry,
        kind: Kind,
        times: tuple[int, int],
        said: Mapping[str, Value],
        problem: str = "",
        steps: tuple[Span, ...] = (),
    ) -> None:
        if not self._tracer.on:
            return
        trace = _trace(entry)

        def build() -> Span:
            return Span(
                kind,
                *times,
                {**_of(entry), **said},
                cut(problem),
                children=steps,
                parent=trace.scheduling,
            )

        self._tracer.emit(trace.trace, trace.parent, build)


SILENT: Final = Stories(NO_TRACES)


def _trace(entry: PodEntry) -> PodTrace:
    return trace_of(entry.pod.uid, entry.view.annotations)


def _of(entry: PodEntry) -> dict[str, Value]:
    pod = entry.pod
    return {"k8s.namespace.name": pod.namespace, "k8s.pod.name": pod.name, "k8s.pod.uid": pod.uid}


def _span_of(step: Step, entry: PodEntry) -> Span:
    said = {**_of(entry), "partage.outcome": str(step.outcome)}
    if step.node:
        said["k8s.node.name"] = step.node
    return Span(step.kind, step.start, step.end, said, cut(step.problem))


def _filter_said(
    counts: tuple[int, int], refusal: Refusal | None, decision: str
) -> dict[str, Value]:
    said: dict[str, Value] = {
        "partage.outcome": "passed" if refusal is None else "refused",
        "partage.nodes.asked": counts[0],
        "partage.nodes.fitting": counts[1],
    }
    if decision:
        said["partage.decision"] = decision
    if refusal is not None:
        said["partage.code"] = refusal.code.value
        counted = sorted(refusal.counts.items(), key=lambda one: (-one[1], one[0]))
        said["partage.counts"] = [f"{code.value}={count}" for code, count in counted]
    return said
