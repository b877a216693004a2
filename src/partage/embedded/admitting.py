"""The webhook's rules as admission of the API server in the same process, and warnings of objects that nothing acts on.

The rules are `webhook.mutate` and `webhook.validate`, which the scheduler's port also serves over HTTP. In
process they are always reachable, so nothing ever waits for them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from partage.apiserver import ApiServer, Refused
from partage.apiserver import Review as Asked
from partage.apiserver.kinds import Kind
from partage.apiserver.patch import json_patch
from partage.embedded.manifests import decoded
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.webhook.review import Review, Verdict
from partage.webhook.settings import Admission
from partage.webhook.tracing import mutating, validating
from partage.wire.context import Context
from partage.wire.documents import Document

_CONCERNED: Final = ("pods", "bindings")
_CLAIMED: Final = "persistentvolumeclaims"
_NO_PODS: Final = "it creates no pods; try a Deployment or a Job"
_NO_TRAFFIC: Final = "no traffic passes here"
_NO_VOLUMES: Final = "no volumes are made or mounted here"
_NO_RIGHTS: Final = "every client may do everything here"
UNACTED: Final[Mapping[str, str]] = {
    "controllerrevisions.apps": "the workloads here keep none",
    "cronjobs.batch": _NO_PODS,
    "daemonsets.apps": _NO_PODS,
    "replicationcontrollers": _NO_PODS,
    "endpoints": _NO_TRAFFIC,
    "endpointslices.discovery.k8s.io": _NO_TRAFFIC,
    "ingressclasses.networking.k8s.io": _NO_TRAFFIC,
    "ingresses.networking.k8s.io": _NO_TRAFFIC,
    "networkpolicies.networking.k8s.io": _NO_TRAFFIC,
    "services": _NO_TRAFFIC,
    _CLAIMED: _NO_VOLUMES,
    "persistentvolumes": _NO_VOLUMES,
    "storageclasses.storage.k8s.io": _NO_VOLUMES,
    "clusterrolebindings.rbac.authorization.k8s.io": _NO_RIGHTS,
    "clusterroles.rbac.authorization.k8s.io": _NO_RIGHTS,
    "rolebindings.rbac.authorization.k8s.io": _NO_RIGHTS,
    "roles.rbac.authorization.k8s.io": _NO_RIGHTS,
    "horizontalpodautoscalers.autoscaling": "nothing is measured here, and replicas stay as they are",
    "limitranges": "pods get no defaults and no bounds from it",
    "poddisruptionbudgets.policy": "nothing counts the disruptions that it allows",
    "runtimeclasses.node.k8s.io": "nothing is executed here",
    "validatingadmissionpolicies.admissionregistration.k8s.io": "CEL is not read here",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": "CEL is not read here",
}
"""Stored built-in resources on which no part of `partage up` acts, with the consequence."""


def admit_with(
    server: ApiServer,
    context: Callable[[], Context],
    admission: Callable[[], Admission],
    tracer: Tracer = NO_TRACES,
) -> None:
    """Makes the server mutate and validate pods as the webhook does, by the present `context` and `admission`."""
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
    """Makes the server ask before it stores an allocation of our driver, as an API server asks the leader.

    `review`: reserves a claim's devices; returns the reason of a refusal, or nothing on success.
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


def admit_unacted(server: ApiServer) -> None:
    """Makes the server warn, on creation and update, of objects that nothing acts on."""

    def judged(asked: Asked) -> None:
        if asked.subresource or asked.operation not in ("CREATE", "UPDATE"):
            return
        if text := unacted(asked.kind):
            asked.warnings.append(text)
        if asked.kind.resource == "pods" and asked.operation == "CREATE":
            asked.warnings.extend(
                f'persistentvolumeclaim "{name}" not found; the pod runs all the same, because '
                + _NO_VOLUMES
                for name in _claimed(asked.object or {})
                if server.store.get(_CLAIMED, asked.namespace, name) is None
            )

    server.admission.validators.append(judged)


def unacted(kind: Kind) -> str:
    """The warning for an object of a kind on which nothing acts; empty for other kinds."""
    why = UNACTED.get(kind.resource)
    if why is None:
        return ""
    article = "an" if kind.kind[0] in "EI" else "a"
    return f"partage up stores {article} {kind.kind} and nothing acts on it: {why}"


def _claimed(pod: Mapping[str, Any]) -> Iterator[str]:
    """Names of the PersistentVolumeClaims that a pod names."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if name:
            yield str(name)


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
