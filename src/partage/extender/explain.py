"""Explains why a pod is on its node, or why it waits, for `/api/explain/<namespace>/<pod>`.

For a waiting pod the engine decides again, so the reason is current and equals that of the next filter; this changes
nothing. For a placed pod the engine answers the same question for another pod like it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np

from partage.extender.books import Books
from partage.extender.cycle import asks
from partage.model.allocation import Allocation
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import CardFilter, RequestGroup
from partage.placement.card import Work
from partage.scheduler.engine import State
from partage.scheduler.events import Placement
from partage.scheduler.idle import fits_when_idle
from partage.vendors import names
from partage.vendors.reserved import RESERVED
from partage.wire import shapes
from partage.wire.advice import CHOSEN, NO_NODE, NONE_LEFT, PASSING, ROOM, advice, lacking
from partage.wire.documents import Document
from partage.wire.outcomes import grant_document, refusal_document
from partage.wire.permit import cut
from partage.wire.pod_phase import condition
from partage.wire.routing import DEFAULT_SCHEDULER, SERVED
from partage.wire.translation import PodEntry

_PROVEN: Final = 128
"""Nodes to check card by card, if only that shows whether they fit."""
_MOST_CLAIMS: Final = 100
"""Devices of claims that an explanation lists."""


def explain(
    books: Books,
    namespace: str,
    name: str,
    *,
    settled: bool = False,
    now: float | None = None,
    claimant: tuple[PodEntry, Callable[[Pod, Work], Placement | Refusal]] | None = None,
    host: Mapping[str, int] | None = None,
) -> dict[str, Any] | None:
    """The explanation of a pod; None for a pod that is not known or asks for no device.

    Args:
        settled: whether every pod had its turn; the reason is then that of the pod's own turn.
        now: seconds on the clock of the books. The search then counts for the pod's namespace, so that its users
            ask for no more search than the namespace may have for decisions. None counts nothing.
        claimant: the pod, if it names ResourceClaims, and the function that decides about both.
        host: the pod's requests beside devices, if the books know the amounts that nodes have left.

    `state` is `waiting`, `held` (its place is kept while kube-scheduler decides), `reserved`,
    `unknown` (its Binding was never answered), `bound`, or `finished`.
    """
    entry = books.cluster_cache.pod_named(namespace, name) or books.unreported(namespace, name)
    if claimant is not None:
        entry = entry or claimant[0]
    if entry is None or (claimant is None and not (asks(entry.pod) or entry.pod.record)):
        return None
    pod, ledger = entry.pod, books.engine.ledger
    if host is not None:
        pod = replace(pod, host=host)
    allocation = ledger.allocation(pod.uid)
    suspicion = ledger.suspicion(pod.uid)
    state: State | None = books.engine.states.get(pod.uid)
    if claimant is not None and pod.node is not None and not pod.finished:
        state = State.BOUND  # the books know nothing of a pod with claims alone
    reason, possible, never = None, None, False
    waiting = books.waiting.get(pod.uid)
    work = Work() if now is None else books.cycle.allowance.question(pod, now)
    if state is None and not pod.finished:
        decision = _decision(books, pod, work, claimant and claimant[1], settled=settled)
        if isinstance(decision, Placement):
            # The pod waits although there is room: kube-scheduler has its own reasons, or the pod has
            # not had its turn.
            possible = decision.allocation.node
        else:
            reason = refusal_document(decision)
            if claimant is None and decision.code in PASSING | CHOSEN and not work.few:
                asked = _choosing_freely(pod) if decision.code in CHOSEN else pod
                never = fits_when_idle(books.engine, asked, work) is False
    placed = state is not None and not pod.finished
    another = _another(books, pod, work) if placed and claimant is None else None
    if now is not None:
        books.cycle.allowance.spend(pod, work.taken, now)
    record = pod.record
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "state": "finished" if pod.finished else state.value if state else "waiting",
        "node": allocation.node if allocation else pod.node,
        "allocations": (
            [grant_document(grant, allocation.node) for grant in allocation.grants]
            if allocation
            else []
        ),
        "ended": ended(books.cluster_cache.documents.get(pod.uid)) if pod.finished else None,
        "reason": reason,
        "next": _next(books, pod, reason, never=never) if reason else None,
        "claims": list(islice(_claims(books, pod, _full(reason)), _MOST_CLAIMS)),
        "fits_now_on": possible,
        "policy": _policy(books, pod),
        "another": another,
        "annotations": _written(entry),
        "last_refusal": refusal_document(waiting.refusal) if waiting else None,
        "quarantine": suspicion.message if suspicion else None,
        "device_problems": list(_ill(books, allocation)) if allocation and placed else [],
        "record": (
            {"source": record.source, "problem": record.problem or None} if record else None
        ),
        "request": [_group(group) for group in pod.request.groups],
        "nominated_node": entry.nominated or None,
        "kube_scheduler": unscheduled(books, pod.uid) or None,
        "created": books.cluster_cache.born(pod.uid),
        "limits": (
            {"in_force": entry.limits[0], "message": entry.limits[1]} if entry.limits else None
        ),
        "adjustment": _adjustment(books, pod.uid),
        "notes": [
            *pod.request.notes,
            *(cut(allocation.permit, entry.view.annotations) if allocation else ()),
            *_kept_waiting(books, pod),
            *(_unserved(entry) if possible else ()),
        ],
    }


def _decision(
    books: Books,
    pod: Pod,
    work: Work,
    decide: Callable[[Pod, Work], Placement | Refusal] | None,
    *,
    settled: bool,
) -> Placement | Refusal:
    """The decision now, or that of the pod's own turn; for a pod with claims, `decide` makes it."""
    waiting = books.waiting.get(pod.uid)
    if settled and waiting:
        return waiting.refusal
    decision = decide(pod, work) if decide is not None else books.engine.evaluate(pod, work=work)
    if waiting and isinstance(decision, Refusal) and decision.code is ReasonCode.SEARCH_DEFERRED:
        return waiting.refusal
    return decision


def _full(reason: Mapping[str, Any] | None) -> list[str]:
    """Nodes that the pod may use and that lack room; claims on other nodes do not keep it waiting."""
    nodes = reason["nodes"] if reason else {}
    return [name for name, why in nodes.items() if why["code"] in ROOM]


def _claims(books: Books, pod: Pod, nodes: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The grants of ResourceClaims on these nodes, without the names of claims in other namespaces."""
    for node in nodes:
        for held in books.engine.ledger.on_node(node):
            own = held.namespace == pod.namespace
            for grant in held.grants if held.claim else ():
                yield {
                    "namespace": held.namespace if own else None,
                    "name": held.name if own else None,
                    **grant_document(grant, node),
                }


def _adjustment(books: Books, uid: str) -> dict[str, str | None] | None:
    """A pod's request for an adjustment of its shares, and the result; None without a request."""
    document = books.cluster_cache.documents.get(uid)
    asked = document.annotations.get(names.ADJUST) if document is not None else None
    if document is None or asked is None:
        return None
    known = condition(document.shape, names.ADJUSTED_CONDITION) or shapes.Condition()
    return {"asked": asked, "done": known.status, "reason": known.reason, "message": known.message}


def unscheduled(books: Books, uid: str) -> str:
    """kube-scheduler's message about a pod that it could not place; empty if there is none."""
    return said_of(books.cluster_cache.documents.get(uid))


def said_of(document: Document | None) -> str:
    """The same message, from a pod's document."""
    told = condition(document and document.shape, "PodScheduled")
    return told.message or "" if told is not None and told.status == "False" else ""


def ended(document: Document | None) -> dict[str, Any] | None:
    """How a pod and its containers ended, as the kubelet reports it; None if the pod has no status."""
    shape = document.shape if document is not None else None
    status = shape.status if isinstance(shape, shapes.Pod) else None
    if status is None:
        return None
    listed = ((status.init_container_statuses, True), (status.container_statuses, False))
    return {
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "containers": [
            {
                "name": one.name,
                "init": init,
                "exit_code": end.exit_code,
                "reason": end.reason,
                "message": end.message,
            }
            for containers, init in listed
            for one in containers or ()
            if (end := one.state and one.state.terminated)
        ],
    }


def _ill(books: Books, allocation: Allocation) -> Iterator[str]:
    """Unhealthy devices of a placed pod. A missing device makes the record doubtful, which `quarantine` reports."""
    ledger = books.engine.ledger
    index = ledger.index.get(allocation.node)
    if index is None:
        return
    devices = {(one.type, one.uuid): one for one in ledger.node_at(index).devices}
    for grant in allocation.grants:
        device = devices.get((grant.type, grant.uuid))
        if device is not None and not device.healthy:
            why = device.health_detail or "there is no reason"
            yield f"{grant.type} {grant.minor} of container {grant.container} is unhealthy: {why}"


def _choosing_freely(pod: Pod) -> Pod:
    """The pod with every card accepted."""
    groups = (
        replace(group, request=replace(group.request, filter=CardFilter()))
        for group in pod.request.groups
    )
    return replace(pod, request=replace(pod.request, groups=tuple(groups)))


def _next(books: Books, pod: Pod, reason: Mapping[str, Any], *, never: bool) -> str:
    """The advice for a refused pod."""
    if not books.engine.ledger.index and reason["code"] in ROOM:
        return NO_NODE
    if never and (absent := _absent(books, pod)):
        return lacking(absent)
    core = ReasonCode.INSUFFICIENT_CORE.value
    cards = [card for one in reason["nodes"].values() for card in one["cards"]]
    asked = [card["asked"] for card in cards if card["code"] == core]
    if reason["code"] == core and asked and not any(asked) and not never:
        return NONE_LEFT
    return advice(reason["code"], never=never)


def _absent(books: Books, pod: Pod) -> list[str]:
    """The types of device that the pod asks for and that no node has on which it may run."""
    nodes = np.flatnonzero(books.engine.accepting_opened(pod))
    types = sorted({group.request.type for group in pod.request.groups})
    planes = books.engine.ledger.planes
    return [type_.value for type_ in types if not planes[type_].kind[:, nodes].any()]


def _unserved(entry: PodEntry) -> Iterator[str]:
    """A note if the scheduler that the pod names may never try the pod, although there is room."""
    name = entry.view.scheduler
    if name and name not in (*SERVED, DEFAULT_SCHEDULER):
        yield (
            f"schedulerName is {name}: unless Partage serves that name, the pod is not placed, or placed without "
            f"devices; leave it out, or write {SERVED[0]}"
        )


def _kept_waiting(books: Books, pod: Pod) -> Iterator[str]:
    """Limits that a waiting pod has reached."""
    if pod.uid in books.postponed:
        most = books.cycle.allowance.settings.victims
        yield (
            f"no pod is evicted for it now: {most} a minute may be evicted for pods of namespace "
            f"{pod.namespace}, and as many did"
        )
    if books.kept_in_vain(pod.uid):
        yield "its reservation expired before kube-scheduler bound it"


def _policy(books: Books, pod: Pod) -> dict[str, Any]:
    """The strategies that place the pod, and the source of each."""
    policy, own = books.engine.policy, pod.request
    return {
        "node": (own.node_strategy or policy.node).value,
        "card": (own.card_order.strategy or policy.card).value,
        "node_from": "pod" if own.node_strategy else "cluster",
        "card_from": "pod" if own.card_order.strategy else "cluster",
    }


def _another(books: Books, pod: Pod, work: Work) -> dict[str, Any]:
    """The place of another pod like this one now, or the reason why it would wait."""
    twin = replace(pod, uid=f"{pod.uid}+1", node=None, record=None)
    decision = books.engine.evaluate(twin, work=work)
    if isinstance(decision, Placement):
        found, _scores = books.engine.candidates(twin, most=_PROVEN, work=work)
        return {"node": decision.allocation.node, "nodes": int(found.size), "message": None}
    return {"node": None, "nodes": 0, "message": f"{decision.code.value}: {decision.message}"}


def _written(entry: PodEntry) -> dict[str, str]:
    """Annotations of the pod that Partage or a plugin wrote on it."""
    annotations = entry.view.annotations
    return {key: annotations[key] for key in sorted(RESERVED.in_annotations(annotations))}


def _group(group: RequestGroup) -> dict[str, Any]:
    request = group.request
    return {
        "protocol": group.protocol,
        "dialect": group.dialect or None,
        "containers": [container.name for container in group.containers],
        "type": request.type.value,
        "count": None if request.every else request.count,
        "core_milli": request.core_milli,
        "memory_bytes": request.memory_bytes,
        "memory_milli": request.memory_milli,
        "whole": request.whole,
    }
