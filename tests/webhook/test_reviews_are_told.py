"""Reviews as spans: which are sent, and which leave no trace at all."""

import json
from typing import Any

import pytest

from fakes.kept_spans import KeptSpans
from partage.tracing.spans import ADMIT, VALIDATE
from partage.tracing.tracer import NO_TRACES
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.webhook.review import Review, decode_review
from partage.webhook.settings import Admission
from partage.webhook.tracing import mutating, validating
from partage.wire.context import Context

CONTEXT = Context.of(Settings(), FAMILIES)


def _review(**more: Any) -> Review:
    """A new pod with half a card, as the API server sends it."""
    limits = {"koordinator.sh/gpu": "50"}
    pod = {
        "metadata": {"generateName": "web-"},
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": limits}}],
            **more.pop("spec", {}),
        },
    }
    request = {
        "uid": "r1",
        "resource": {"resource": "pods"},
        "operation": "CREATE",
        "namespace": "team",
        "object": pod,
        **more,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return decode_review(json.dumps(body).encode())


def _written(verdict: Any) -> list[Any]:
    return [op for op in verdict.patch if names.TRACEPARENT in str(op)]


def test_a_review_begins_a_trace() -> None:
    """The span, and the annotation that names it; the name is what it begins with."""
    kept = KeptSpans()
    verdict = mutating(kept)(_review(), CONTEXT, Admission())

    ((trace, span),) = kept.told
    assert (span.kind, span.parent, span.attributes["k8s.pod.name"]) == (ADMIT, "", "web-")
    (written,) = _written(verdict)
    assert f"00-{trace}-{span.id}-01" in str(written)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"dryRun": True}, id="a trial"),
        pytest.param({"spec": {"schedulerName": "another"}}, id="another scheduler's"),
        pytest.param({"namespace": "kube-system"}, id="an excluded namespace's"),
        pytest.param({"operation": "UPDATE"}, id="a change"),
        pytest.param({"object": {"spec": {"containers": [{"name": "main"}]}}}, id="no devices"),
    ],
)
def test_others_leave_no_trace(more: dict[str, Any]) -> None:
    """No span of either webhook and no annotation."""
    kept = KeptSpans()
    verdict = mutating(kept)(_review(**more), CONTEXT, Admission())
    validating(kept)(_review(**more), CONTEXT, Admission())

    assert kept.told == []
    assert _written(verdict) == []


def test_a_pod_that_was_completed_is_judged_in_its_trace() -> None:
    """The second webhook sees what the first has written."""
    kept = KeptSpans()
    mine = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    review = _review()
    assert review.object is not None
    review.object["metadata"]["annotations"] = {names.TRACEPARENT: mine}
    validating(kept)(review, CONTEXT, Admission())

    ((trace, span),) = kept.told
    assert (span.kind, trace, span.parent) == (VALIDATE, mine[3:35], mine[36:52])


def test_without_traces_the_patch_is_what_it_was() -> None:
    """The patch has nothing of them."""
    assert _written(mutating(NO_TRACES)(_review(), CONTEXT, Admission())) == []
