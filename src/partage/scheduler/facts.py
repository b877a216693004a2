"""Reads the API's objects for the books: facts of bound pods, and the ledger that follows from them.

Pure functions: the same objects always give the same books, whatever their order.
"""

from collections.abc import Iterable

from partage.inventory.card import Suspicion
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.model.pod import Pod, Record


def fact_of(pod: Pod) -> tuple[Allocation, Suspicion | None]:
    """A bound pod's allocation by its records, and the capacity that must be closed because of it.

    Without a record, the pod holds at most as many devices as it asks for, and it is unknown which. So as many of the
    devices that no pod holds are closed. If a record cannot be trusted, the pod was given devices. So no device of the
    types that it asks is free on its node until the pod is gone.
    """
    node = pod.node or ""
    record = _checked(pod.record)
    trusted = record is not None and not record.problem
    grants = record.grants if record is not None and trusted else ()
    permit = record.permit if record is not None and trusted else None
    allocation = Allocation(
        pod.uid, pod.namespace, pod.name, node, grants, pod.host, claim=pod.claim, permit=permit
    )
    if trusted:
        return allocation, None
    may_use = pod.request.may_use
    if record is not None:
        types = tuple(sorted({one.type for one in may_use})) or tuple(DeviceType)
        who = "claim" if pod.claim else "pod"
        return allocation, Suspicion(node, types, f"{who} {pod.key}: {record.problem}")
    if not may_use:
        return allocation, None
    message = f"pod {pod.key}: it asks for devices and has no record"
    return allocation, Suspicion(node, (), message, may_use)


def _checked(record: Record | None) -> Record | None:
    """The record, or its problem if an amount is negative."""
    for grant in record.grants if record is not None else ():
        units = (amount for _unit, amount in grant.extras)
        if min(grant.core_milli, grant.memory_bytes, grant.slots, *units) < 0:
            return Record(problem=f"container {grant.container} holds a negative amount")
    return record


def rebuild(nodes: Iterable[Node], pods: Iterable[Pod]) -> Ledger:
    """The ledger that follows from the API's objects; independent of their order."""
    ledger = Ledger()
    for node in nodes:
        ledger.upsert_node(node)
    for pod in pods:
        if pod.node is None or pod.finished:
            continue
        allocation, suspicion = fact_of(pod)
        ledger.apply(allocation)
        if suspicion is not None:
            ledger.suspect(pod.uid, suspicion)
    return ledger
