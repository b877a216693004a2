"""The subresources of pods: binding, eviction, log."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from partage.apiserver import metadata, naming
from partage.apiserver.calls import Call, Cluster, check_preconditions, must_get, review
from partage.apiserver.decoding import Mismatch, conform
from partage.apiserver.deleting import DeleteOptions, delete
from partage.apiserver.problems import Problems
from partage.apiserver.status import (
    ApiError,
    bad_request,
    conflict,
    invalid,
    success,
)
from partage.apiserver.storage import Record
from partage.wire.field_types import catalogue

_BINDING: Final = catalogue()["io.k8s.api.core.v1.Binding"]


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The requested log. `tail`: only the last lines, None for all."""

    pod: Mapping[str, Any]
    container: str
    follow: bool = False
    tail: int | None = None
    previous: bool = False
    timestamps: bool = False


LogProvider = Callable[[LogRequest], str | Awaitable[str] | AsyncIterator[bytes]]
"""Returns a log as text, or piece by piece."""


async def bind(cluster: Cluster, call: Call, body: Any) -> dict[str, Any]:
    """Binds a pod to a node, with the Binding's annotations and labels, in one step.

    The Binding's UID and resourceVersion are preconditions. Raises `ApiError`: 404; 409 for a precondition, a bound,
    deleting or gated pod; 422; 403.
    """
    try:
        value: dict[str, Any] = conform(body, _BINDING, [], "", "Binding")
    except Mismatch as error:
        raise bad_request(
            f'Binding in version "v1" cannot be handled as a Binding: {error}'
        ) from error
    value = {"apiVersion": "v1", "kind": "Binding", **value}
    head = {"name": call.name, "namespace": call.namespace, **(value.get("metadata") or {})}
    if not call.name:
        call = replace(call, name=str(head.get("name") or ""))
    if head["name"] != call.name:
        raise bad_request("name in URL does not match name in Binding object")
    if head["namespace"] != call.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    value["metadata"] = head
    call = replace(call, sub="binding")
    must_get(cluster, call)
    value = await cluster.admission.mutate(review(call, "CREATE", value, None))
    _check_binding(cluster, call, value)
    await cluster.admission.validate(review(call, "CREATE", value, None))
    old = must_get(cluster, call)
    changed = _bound(cluster, call, value, old)
    if not call.dry_run:
        cluster.store.replace("pods", changed, old.revision)
    return {**success(), "code": 201}


def _check_binding(cluster: Cluster, call: Call, value: Mapping[str, Any]) -> None:
    problems = Problems(relaxed=cluster.relaxed_names)
    target = value.get("target") or {}
    if target.get("kind", "") not in ("", "Node"):
        problems.unsupported("target.kind", target["kind"], ["Node", "<empty>"])
    if not target.get("name"):
        problems.required("target.name")
    else:
        for why in naming.subdomain(problems.name(target["name"])):
            problems.invalid("target.name", target["name"], why)
    head = value["metadata"]
    naming.check_annotations(head.get("annotations"), "metadata.annotations", problems)
    naming.check_labels(head.get("labels"), "metadata.labels", problems)
    if problems:
        raise invalid("Binding", "", call.name, problems.causes)


def _bound(
    cluster: Cluster, call: Call, binding: Mapping[str, Any], old: Record
) -> dict[str, Any]:
    """The bound pod."""
    head, pod = binding["metadata"], old.value
    check_preconditions(call, old, head.get("uid"), head.get("resourceVersion"))
    spec = dict(pod.get("spec") or {})
    why = ""
    if old.metadata.get("deletionTimestamp"):
        why = f"pod {call.name} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        why = f'pod {call.name} is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        why = f"pod {call.name} has non-empty .spec.schedulingGates"
    if why:
        raise conflict("pods/binding", "", call.name, why)
    spec["nodeName"] = binding["target"]["name"]
    found = dict(pod["metadata"])
    for key in ("annotations", "labels"):
        if head.get(key):
            found[key] = {**(found.get(key) or {}), **head[key]}
    problems = Problems()
    naming.check_annotations(found.get("annotations"), "metadata.annotations", problems)
    if problems:
        raise invalid("Pod", "", call.name, problems.causes)
    return {
        **pod,
        "metadata": found,
        "spec": spec,
        "status": _scheduled(pod.get("status") or {}, cluster.ambient.now()),
    }


def _scheduled(status: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The pod's status with the condition for its node."""
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": metadata.timestamp(now),
    }
    others = [one for one in status.get("conditions") or () if one.get("type") != "PodScheduled"]
    return {**status, "conditions": [*others, condition]}


async def evict(cluster: Cluster, call: Call, body: Any) -> dict[str, Any]:
    """Deletes a pod unless a disruption budget forbids it. Raises `ApiError`: 404, 409, or 429 by the budget."""
    if not isinstance(body, Mapping):
        raise bad_request("the body is no Eviction")
    head = body.get("metadata") or {}
    named = head.get("name") if isinstance(head, Mapping) else None
    if named and named != call.name:
        raise bad_request("name in URL does not match name in Eviction object")
    options = DeleteOptions.read(body.get("deleteOptions"))
    call = replace(call, sub="eviction")
    pod = must_get(cluster, call)
    refusal = cluster.plugins.disruption(pod)
    if refusal is not None:
        raise refusal
    await cluster.admission.validate(review(call, "CREATE", dict(body), pod))
    await delete(cluster, replace(call, sub=""), options)
    return {**success(), "code": 201}


def _ended_before(pod: Mapping[str, Any], container: str) -> bool:
    """Whether the pod's status has an earlier run of the container."""
    status = pod.get("status") or {}
    return any(
        one.get("name") == container and (one.get("lastState") or {}).get("terminated")
        for group in ("containerStatuses", "initContainerStatuses")
        for one in status.get(group) or ()
    )


def log(cluster: Cluster, call: Call, query: Mapping[str, str]) -> LogRequest:
    """The requested log. Raises `ApiError`: 404; 400 if the container is not named or does not exist."""
    pod = must_get(cluster, call)
    spec = pod.value.get("spec") or {}
    names = [
        one.get("name", "")
        for group in ("containers", "initContainers")
        for one in spec.get(group) or ()
    ]
    container = query.get("container", "")
    if not container:
        main = [one.get("name", "") for one in spec.get("containers") or ()]
        if len(main) != 1:
            raise bad_request(
                f"a container name must be specified for pod {call.name}, choose one of: "
                f"[{' '.join(main)}]"
            )
        container = main[0]
    elif container not in names:
        raise bad_request(f"container {container} is not valid for pod {call.name}")
    previous = query.get("previous") in ("true", "1") and bool(spec.get("nodeName"))
    if previous and not _ended_before(pod.value, container):
        raise bad_request(
            f'previous terminated container "{container}" in pod "{call.name}" not found'
        )
    tail = query.get("tailLines", "")
    if tail and (not tail.isdecimal() or len(tail) > 9):
        raise ApiError(
            422,
            "Invalid",
            f'PodLogOptions "{call.name}" is invalid: tailLines: Invalid value: "{tail}": must '
            "be greater than or equal to 0",
        )
    return LogRequest(
        pod=pod.value,
        container=container,
        follow=query.get("follow") in ("true", "1"),
        tail=int(tail) if tail else None,
        previous=previous,
        timestamps=query.get("timestamps") in ("true", "1"),
    )
