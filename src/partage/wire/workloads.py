"""Replaces workloads by the pods they would make, and templates of ResourceClaims by the claims of these pods.

Names are like Kubernetes', but predictable: `<workload>-0`, `<workload>-1` and so on, without those that are taken, as
by a workload of another kind with the same name. A dump of a live cluster contains both a workload and its pods. Then
only the missing pods are added, and a ReplicaSet that a Deployment of the dump owns adds none of its own. Ended pods
are no present ones; a Job makes as many fewer as have succeeded. Claims have the names `<pod>-<name in the pod>`.

Source: apps/v1, batch/v1 and resource.k8s.io/v1.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from partage.wire import shapes
from partage.wire.device_requests import claims_named
from partage.wire.documents import Document
from partage.wire.pod_phase import finished
from partage.wire.pods import stable_uid

_MOST: Final = 100_000
"""Pods of one workload; a larger number is a typing error, and would fill the memory."""

_OVER: Final = ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")
"""Conditions of a Job that makes no more pods."""

_Key = tuple[str, str, str]


def with_pods(documents: Sequence[Document]) -> list[Document]:
    """The documents with the missing pods in place of every workload, and with the missing claims of pods.

    Raises `InvalidDocument`: a workload has no pod's spec, or no number of pods.
    """
    taken = {d.identity for d in documents if d.kind == "Pod"}
    parents = {
        d.identity: owner
        for d in documents
        if isinstance(d.shape, shapes.Workload) and (owner := _owner(d))
    }
    known = {d.identity for d in documents}
    present: Counter[_Key] = Counter()
    succeeded: Counter[_Key] = Counter()
    for document in documents:
        pod, owner = document.shape, _owner(document)
        if owner and isinstance(pod, shapes.Pod):
            succeeded[owner] += pod.status is not None and pod.status.phase == "Succeeded"
            for one in (owner, parents[owner]) if owner in parents else (owner,):
                present[one] += not finished(pod)
    result: list[Document] = []
    for document in documents:
        if not isinstance(document.shape, shapes.Workload):
            result.append(document)
        elif parents.get(document.identity) not in known:
            there, done = present[document.identity], succeeded[document.identity]
            wanted = _wanted(document, document.shape, there, done)
            result.extend(_pods(document, document.shape, wanted - there, taken))
    return list(_with_claims(result))


def _owner(document: Document) -> _Key | None:
    for owner in document.metadata.owner_references or ():
        if owner.controller and owner.kind and owner.name:
            return owner.kind, document.namespace, owner.name
    return None


def _pods(
    document: Document, workload: shapes.Workload, missing: int, taken: set[_Key]
) -> Iterator[Document]:
    spec = workload.spec or shapes.WorkloadSpec()
    template = spec.template or shapes.Pod()
    if template.spec is None:
        raise document.invalid("spec.template.spec", "missing")
    inner = template.metadata or shapes.Metadata()
    index = 0
    while missing > 0:
        name = f"{document.name}-{index}"
        index += 1
        identity = "Pod", document.namespace, name
        if identity in taken:
            continue
        taken.add(identity)
        missing -= 1
        metadata = structs.replace(
            inner, name=name, namespace=document.namespace, uid=None, generate_name=None
        )
        pod = shapes.Pod(metadata=metadata, spec=template.spec)
        yield Document("Pod", document.source, document.number, pod)


def _with_claims(documents: Sequence[Document]) -> Iterator[Document]:
    """The documents with uids for pods that name claims, and with the claims of their templates."""
    templates = {
        (one.namespace, one.name): one
        for one in documents
        if isinstance(one.shape, shapes.ResourceClaimTemplate)
    }
    there = {one.identity for one in documents if one.kind == "ResourceClaim"}
    for document in documents:
        named = claims_named(document) if isinstance(document.shape, shapes.Pod) else ()
        made = [
            (name, template)
            for name, _, wanted in named
            if (template := templates.get((document.namespace, wanted))) is not None
        ]
        yield _claiming(document, [name for name, _ in made]) if named else document
        for name, template in made:
            full = f"{document.name}-{name}"
            if ("ResourceClaim", document.namespace, full) not in there:
                yield _claim(full, document.namespace, template)


def _claiming(document: Document, made: Sequence[str]) -> Document:
    """A pod with a uid, and with the names of its generated claims."""
    pod = document.shape
    if not isinstance(pod, shapes.Pod):
        return document
    uid = document.metadata.uid or stable_uid(document.namespace, "Pod", document.name)
    metadata = structs.replace(document.metadata, uid=uid, namespace=document.namespace)
    status = pod.status
    if made:
        told = [shapes.PodClaimStatus(one, f"{document.name}-{one}") for one in made]
        status = status or shapes.PodStatus()
        told = [*(status.resource_claim_statuses or ()), *told]
        status = structs.replace(status, resource_claim_statuses=told)
    return replace(document, shape=structs.replace(pod, metadata=metadata, status=status))


def _claim(name: str, namespace: str, template: Document) -> Document:
    shape = template.shape
    spec = shape.spec if isinstance(shape, shapes.ResourceClaimTemplate) else None
    uid = stable_uid(namespace, "ResourceClaim", name)
    metadata = shapes.Metadata(name=name, namespace=namespace, uid=uid)
    claim = shapes.ResourceClaim(metadata=metadata, spec=spec.spec if spec else None)
    return Document("ResourceClaim", template.source, template.number, claim)


def _wanted(document: Document, workload: shapes.Workload, present: int, succeeded: int) -> int:
    """The number of pods that the workload wants at once.

    `present`: its pods that have not ended. `succeeded`: its pods in the documents that succeeded; others may be
    deleted already.
    """
    spec = workload.spec or shapes.WorkloadSpec()
    if document.kind != "Job":
        return _count(document, "spec.replicas", spec.replicas)
    status = workload.status or shapes.WorkloadStatus()
    wanted = _count(document, "spec.parallelism", spec.parallelism)
    over = any(one.type in _OVER and one.status == "True" for one in status.conditions or ())
    if spec.suspend or status.completion_time or over:
        return 0
    done = max(succeeded, status.succeeded or 0)
    if spec.completions is not None:
        return min(wanted, max(0, _count(document, "spec.completions", spec.completions) - done))
    return min(wanted, present) if done else wanted  # a work queue, of which one has succeeded


def _count(document: Document, field: str, value: int | None) -> int:
    number = 1 if value is None else value
    if not 0 <= number <= _MOST:
        raise document.invalid(field, f"expected a number from 0 to {_MOST}, got {number}")
    return number
