"""Reviews as spans: starts a pod's trace, or continues its author's.

A pod that is ours to complete and has no trace gets one, in an annotation, so that every later part agrees. A
trace that the author or controller has set continues unchanged, so completing a pod twice changes nothing. A
broken one is replaced, with a warning that has the reason.
"""

from collections.abc import Callable, Mapping
from typing import Any

from partage.tracing.context import TraceContext, read_traceparent, trace_of
from partage.tracing.spans import ADMIT, VALIDATE, Kind, Span, Value, cut
from partage.tracing.tracer import Tracer
from partage.vendors import names
from partage.webhook.manifest import mapping, texts_of
from partage.webhook.mutating import mutate, new_pod, not_ours
from partage.webhook.review import Review, Verdict
from partage.webhook.settings import Admission
from partage.webhook.validating import validate
from partage.wire.context import Context

Decide = Callable[[Review, Context, Admission], Verdict]


def mutating(tracer: Tracer) -> Decide:
    """`mutate`, with a span for the tracer and the pod's trace in its annotation."""

    def decide(review: Review, context: Context, admission: Admission) -> Verdict:
        start = tracer.now()
        own, came, problem = _begun(review, tracer)
        verdict = mutate(review, context, admission, None if came else own, problem)

        def build() -> Span | None:
            if own is None or not _ours(review, context, admission):
                return None
            more: dict[str, Value] = {"partage.changes": len(verdict.patch)}
            if problem:
                more["partage.trace.ignored"] = problem
            above = came.span if came is not None else ""
            return _span(ADMIT, (start, tracer.now()), review, verdict, more, own.span, above)

        if own is not None:
            tracer.emit(own.trace, came, build)
        return verdict

    return decide


def validating(tracer: Tracer) -> Decide:
    """`validate`, with a span for the tracer."""

    def decide(review: Review, context: Context, admission: Admission) -> Verdict:
        start = tracer.now()
        verdict = validate(review, context, admission)

        def build() -> Span | None:
            if not _ours(review, context, admission):
                return None
            return _span(VALIDATE, (start, tracer.now()), review, verdict, {}, "", trace.above)

        metadata = mapping(mapping(review.object).get("metadata"))
        uid = metadata.get("uid")
        trace = trace_of(
            uid if isinstance(uid, str) else "", texts_of(review.object, "annotations")
        )
        if not review.dry_run and (uid or trace.parent is not None):
            tracer.emit(trace.trace, trace.parent, build)
        return verdict

    return decide


def _begun(review: Review, tracer: Tracer) -> tuple[TraceContext | None, TraceContext | None, str]:
    """The span of a review, the pod's earlier span, and the reason why that one is ignored."""
    text = texts_of(review.object, "annotations").get(names.TRACEPARENT)
    found = "" if text is None else read_traceparent(text)
    came = found if isinstance(found, TraceContext) else None
    own = None if review.dry_run else tracer.begin(came)
    return own, came, found if isinstance(found, str) and own is not None else ""


def _ours(review: Review, context: Context, admission: Admission) -> bool:
    """Whether the review concerns a new pod that Partage places."""
    pod = new_pod(review, context, admission)
    return pod is not None and not not_ours(pod, admission)


def _span(
    kind: Kind,
    times: tuple[int, int],
    review: Review,
    verdict: Verdict,
    more: Mapping[str, Value],
    own: str,
    above: str,
) -> Span:
    metadata: Mapping[str, Any] = mapping(mapping(review.object).get("metadata"))
    said: dict[str, Value] = {"k8s.namespace.name": review.namespace}
    for key, field in (
        ("k8s.pod.name", "generateName"),
        ("k8s.pod.name", "name"),
        ("k8s.pod.uid", "uid"),
    ):
        value = metadata.get(field)
        if value and isinstance(value, str):
            said[key] = cut(value)
    said["partage.outcome"] = "allowed" if verdict.allowed else "refused"
    said |= more
    problem = "" if verdict.allowed else cut(verdict.message)
    return Span(kind, *times, said, problem, id=own, parent=above)
