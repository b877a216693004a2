"""The webhook's rules as admission of the API server in the same process.

The rules themselves are `webhook.mutate` and `webhook.validate`; the same are served over HTTP on
the scheduler's port. In process they cannot be unreachable, so nothing ever waits for them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from partage.apiserver import ApiServer, Refused
from partage.apiserver import Review as Asked
from partage.apiserver.patch import json_patch
from partage.embedded.manifests import decoded
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.webhook.review import Review, Verdict
from partage.webhook.settings import Admission
from partage.webhook.tracing import mutating, validating
from partage.wire.context import Context
from partage.wire.documents import Document

_CONCERNED: Final = ("pods", "bindings")


def admit_with(
    server: ApiServer,
    context: Callable[[], Context],
    admission: Callable[[], Admission],
    tracer: Tracer = NO_TRACES,
) -> None:
    """Has the server complete and judge pods as the webhook does.

    Args:
        context: what pods are read against now.
        admission: the switches that are in force now.
        tracer: is told of pods that ask for devices.
    """
    mutate, validate = mutating(tracer), validating(tracer)

    def completed(asked: Asked) -> dict[str, Any] | None:
        if asked.kind.resource not in _CONCERNED or asked.object is None:
            return None
        verdict = mutate(_review(asked), context(), admission())
        _heed(asked, verdict)
        if not verdict.patch:
            return None
        changed: dict[str, Any] = json_patch(asked.object, list(verdict.patch))
        return changed

    def judged(asked: Asked) -> None:
        if asked.kind.resource in _CONCERNED:
            _heed(asked, validate(_review(asked), context(), admission()))

    server.admission.mutators.append(completed)
    server.admission.validators.append(judged)


def admit_claims(server: ApiServer, review: Callable[[Document], str]) -> None:
    """Has the server ask before it stores an allocation of our driver, as an API server asks the leader.

    Args:
        review: reserves what a claim is about to hold; says why not, and nothing where it is reserved.
    """

    def judged(asked: Asked) -> None:
        if asked.kind.plural != "resourceclaims" or asked.subresource != "status":
            return
        before, after = _allocation(asked.old), _allocation(asked.object)
        if before is None and after is not None and asked.object is not None:
            refusal = review(decoded("ResourceClaim", asked.object))
            if refusal:
                raise Refused(refusal, 409)

    server.admission.validators.append(judged)


def _allocation(claim: Mapping[str, Any] | None) -> Any:  # as the document has it
    return ((claim or {}).get("status") or {}).get("allocation")


def _review(asked: Asked) -> Review:
    resource = asked.kind.plural
    return Review(
        uid="in-process",
        resource=f"{resource}/{asked.subresource}" if asked.subresource else resource,
        operation=asked.operation,
        namespace=asked.namespace,
        user=asked.user.name,
        groups=asked.user.groups,
        object=asked.object,
        before=asked.old,
    )


def _heed(asked: Asked, verdict: Verdict) -> None:
    asked.warnings.extend(verdict.warnings)
    if not verdict.allowed:
        raise Refused(verdict.message, verdict.code)
