"""Workloads as the pods they would make.

Names are like Kubernetes', but predictable: `<workload>-0`, `<workload>-1` and so on. A dump of a
live cluster holds both a workload and its pods; then only the pods that are still missing are
added, and a ReplicaSet that a Deployment of the dump owns adds none of its own.

Source: apps/v1 and batch/v1.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from partage.wire import shapes
from partage.wire.documents import Document

_MOST: Final = 100_000
"""Pods of one workload; more is a slip of the pen, and would fill the memory."""

_Key = tuple[str, str, str]


def with_pods(documents: Sequence[Document]) -> list[Document]:
    """The documents with every workload replaced by the pods that it still lacks. Raises `InvalidDocument`."""
    taken = {d.identity for d in documents if d.kind == "Pod"}
    parents = {
        d.identity: owner
        for d in documents
        if isinstance(d.shape, shapes.Workload) and (owner := _owner(d))
    }
    known = {d.identity for d in documents}
    present: Counter[_Key] = Counter()
    for document in documents:
        owner = _owner(document) if document.kind == "Pod" else None
        if owner:
            present[owner] += 1
            if owner in parents:
                present[parents[owner]] += 1
    result: list[Document] = []
    for document in documents:
        if not isinstance(document.shape, shapes.Workload):
            result.append(document)
        elif parents.get(document.identity) not in known:
            result.extend(_pods(document, document.shape, present[document.identity], taken))
    return result


def _owner(document: Document) -> _Key | None:
    for owner in document.metadata.owner_references or ():
        if owner.controller and owner.kind and owner.name:
            return owner.kind, document.namespace, owner.name
    return None


def _pods(
    document: Document, workload: shapes.Workload, present: int, taken: set[_Key]
) -> Iterator[Document]:
    spec = workload.spec or shapes.WorkloadSpec()
    template = spec.template or shapes.Template()
    if template.spec is None:
        raise document.invalid("spec.template.spec", "missing")
    inner = template.metadata or shapes.Metadata()
    index, missing = 0, _wanted(document, workload) - present
    while missing > 0:
        name = f"{document.name}-{index}"
        index += 1
        if ("Pod", document.namespace, name) in taken:
            continue
        missing -= 1
        metadata = msgspec.structs.replace(
            inner, name=name, namespace=document.namespace, uid=None, generate_name=None
        )
        pod = shapes.Pod(metadata=metadata, spec=template.spec)
        yield Document("Pod", document.source, document.number, pod)


def _wanted(document: Document, workload: shapes.Workload) -> int:
    """How many pods the workload wants to have at once."""
    spec = workload.spec or shapes.WorkloadSpec()
    if document.kind != "Job":
        return _count(document, "spec.replicas", spec.replicas)
    status = workload.status or shapes.WorkloadStatus()
    if spec.suspend or status.completion_time:
        return 0
    wanted = _count(document, "spec.parallelism", spec.parallelism)
    if spec.completions is not None:
        wanted = min(wanted, _count(document, "spec.completions", spec.completions))
    return wanted


def _count(document: Document, field: str, value: int | None) -> int:
    number = 1 if value is None else value
    if not 0 <= number <= _MOST:
        raise document.invalid(field, f"expected a number from 0 to {_MOST}, got {number}")
    return number
