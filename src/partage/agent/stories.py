"""Reports the agent's work for each pod as spans of its trace.

The kubelet names no pod when it takes units, and the agent does not guess one. The mark that a container gets
with its units contains a random word, and the container that shows the word identifies the pod.
`SILENT` keeps and reports nothing, and marks with `1`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partage.agent.container_edits import MARK
from partage.agent.mig.plan import Wanted
from partage.agent.mig.runner import Outcome
from partage.agent.nri.messages import Container, PodSandbox
from partage.model.mig import MigSlice
from partage.tracing.context import trace_of
from partage.tracing.spans import ALLOCATE, INJECT, INSTANCE, Event, Kind, Span, Value, cut
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.wire import shapes

_MARKS: Final = 1024
"""Allocations that wait for their container."""
_EVENTS: Final = 16


@dataclass(frozen=True, slots=True)
class _Taken:
    """Units that the kubelet took for a container."""

    resource: str
    units: int
    start: int
    end: int


class Stories:
    """Reports the agent's work for containers to a tracer, from any thread; without traces it keeps nothing."""

    def __init__(self, tracer: Tracer, node: str, chance: Callable[[], str]) -> None:
        self._tracer, self.now = tracer, tracer.now
        self._node = node
        self._chance = chance
        self._taken: OrderedDict[str, _Taken] = OrderedDict()

    def trace_id(self, pod: PodSandbox) -> str:
        """The pod's trace, for the log; empty without traces."""
        return trace_of(pod.uid, pod.annotations).trace if self._tracer.on else ""

    def mark(self, resource: str, units: int, start: int) -> str:
        """The kubelet took units for some container; returns the value that marks it."""
        if not self._tracer.on:
            return "1"
        word = self._chance()
        self._taken[word] = _Taken(resource, units, start, self.now())
        if len(self._taken) > _MARKS:
            self._taken.popitem(last=False)
        return word

    def injected(self, pod: PodSandbox, container: Container, start: int, limits: str) -> None:
        """A container got its pod's record."""
        self._tell(pod, container, start, {"partage.outcome": "given", "partage.limits": limits})

    def refused(
        self, pod: PodSandbox, container: Container, start: int, rule: str, problem: str
    ) -> None:
        """A container must not be created."""
        said = {"partage.outcome": "refused", "partage.rule": rule}
        self._tell(pod, container, start, said, problem)

    def _tell(
        self,
        pod: PodSandbox,
        container: Container,
        start: int,
        said: Mapping[str, Value],
        problem: str = "",
    ) -> None:
        if not self._tracer.on:
            return
        end = self.now()
        trace = trace_of(pod.uid, pod.annotations)
        who = _who(pod.namespace, pod.name, pod.uid, self._node)
        who["k8s.container.name"] = container.name

        def emit(kind: Kind, times: tuple[int, int], more: Mapping[str, Value], why: str) -> None:
            span = Span(kind, *times, {**who, **more}, cut(why), parent=trace.above)
            self._tracer.emit(trace.trace, trace.parent, lambda: span)

        for text in container.env:
            # Other values of a mark are not the agent's.
            word = text.partition("=")[2] if text.startswith(MARK) else ""
            if (taken := self._taken.pop(word, None)) is not None:
                units: dict[str, Value] = {
                    "partage.resource": taken.resource,
                    "partage.units": taken.units,
                }
                emit(ALLOCATE, (taken.start, taken.end), units, "")
        emit(INJECT, (start, end), said, problem)


SILENT: Final = Stories(NO_TRACES, "", str)


def _who(namespace: str, name: str, uid: str, node: str) -> dict[str, Value]:
    return {
        "k8s.namespace.name": namespace,
        "k8s.pod.name": name,
        "k8s.pod.uid": uid,
        "k8s.node.name": node,
    }


_Key = tuple[str, str, MigSlice]
"""Owner, card, and place on it."""


@dataclass(slots=True)
class _Making:
    """An instance that is not ready yet."""

    start: int
    pod: shapes.Metadata
    events: list[Event] = field(default_factory=list)


class InstanceStories:
    """Reports how long pods wait for hardware instances, except pods older than the agent: their start is unknown."""

    def __init__(self, tracer: Tracer, node: str) -> None:
        self._tracer = tracer
        self._node = node
        self._known: set[_Key] | None = None
        self._making: dict[_Key, _Making] = {}

    def wanted(self, wanted: Mapping[str, Sequence[Wanted]], pods: Iterable[shapes.Pod]) -> None:
        """The node's current pods: `wanted` are instances by card."""
        if not self._tracer.on:
            return
        keys = {(one.owner, card, one.instance) for card, those in wanted.items() for one in those}
        if self._known is not None and keys - self._known:
            now = self._tracer.now()
            metadata = {one.metadata.uid: one.metadata for one in pods if one.metadata is not None}
            for key in keys - self._known:
                self._making[key] = _Making(now, metadata[key[0]])
        for key in self._making.keys() - keys:
            del self._making[key]
        self._known = keys

    def seen(self, card: str, outcome: Outcome) -> None:
        """The current state of a card."""
        for one in outcome.ready:
            making = self._making.pop((one.owner, card, one.instance), None)
            if making is not None:
                self._ready(card, one.instance, making)
        for other in outcome.hindrances:
            making = self._making.get((other.owner, card, other.instance))
            if making is not None and len(making.events) < _EVENTS:
                event = Event(
                    "hindered", self._tracer.now(), {"partage.code": str(other.obstacle)}
                )
                making.events.append(event)

    def _ready(self, card: str, place: MigSlice, making: _Making) -> None:
        pod = making.pod
        told = {key: text for key, text in (pod.annotations or {}).items() if text is not None}
        trace = trace_of(pod.uid or "", told)
        who = _who(pod.namespace or "", pod.name or "", pod.uid or "", self._node)
        said: dict[str, Value] = {
            **who,
            "partage.card": card,
            "partage.profile": place.profile,
            "partage.start": place.start,
        }
        times, events = (making.start, self._tracer.now()), tuple(making.events)
        span = Span(INSTANCE, *times, said, events=events, parent=trace.above)
        self._tracer.emit(trace.trace, trace.parent, lambda: span)
