"""Problems of a bound pod's devices, and the pod's intended labels.

A pod that asks for devices and was bound without any protocol's record bypassed admission. Its use is not known,
so the scheduler closes its node's cards, and an operator must learn of it. The same applies to a record that
cannot be trusted, and to a device that the node no longer has.

The Binding carries the labels that a protocol needs. API servers before 1.35 do not copy them to the pod, so this
module compares them with the record and adds them to the bound pod.

Source: docs/decisions/0002, 0003 and 0006.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from partage.model.allocation import Allocation, Grant
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.vendors import names
from partage.vendors.base import PlacedPod
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.pod_phase import condition
from partage.wire.record import SOURCE, labels_of
from partage.wire.translation import PodEntry


class Problem(StrEnum):
    """A possible problem of a bound pod's devices."""

    NO_RECORD = "NoAllocationRecord"
    BAD_RECORD = "AllocationRecordRefused"
    LOST = "DeviceLost"
    UNHEALTHY = "DeviceUnhealthy"


@dataclass(frozen=True, slots=True)
class Flag:
    """One pod's problem, in words that change only with the problem."""

    problem: Problem
    message: str


def problem_of(pod: Pod, node: Node | None) -> Flag | None:
    """The problem of the pod's devices; None without one.

    `pod`: bound, with its record as read beside its node's devices. `node`: its node; None if the API has no such node.
    Other programs delete such a node's pods.
    """
    if pod.node is None or pod.finished or node is None:
        return None
    record = pod.record
    if record is None:
        if not pod.request.groups and pod.request.fault is None:
            return None
        return Flag(
            Problem.NO_RECORD,
            f"bound to node {node.name} without a record of devices, so it bypassed Partage's "
            "scheduler or admission; what it uses is unknown, so as many idle devices as it asks "
            "for take no new pod until it is gone: delete it and let it be scheduled again",
        )
    # The missing device explains a record that cannot be read beside the node.
    return _lost(record, node) or _refused(record)


def _refused(record: Record) -> Flag | None:
    if not record.problem:
        return None
    return Flag(
        Problem.BAD_RECORD,
        f"{record.problem}; the devices behind it take no new pod until this one is gone",
    )


def _lost(record: Record, node: Node) -> Flag | None:
    """The first device that the pod holds and its node lacks or reports as unhealthy."""
    devices = {(device.type, device.uuid): device for device in node.devices}
    unhealthy: Flag | None = None
    for grant in record.grants:
        device = devices.get((grant.type, grant.uuid))
        if device is None:
            return Flag(
                Problem.LOST,
                f"{_named(grant)} is no longer on node {node.name}; the pod cannot use it",
            )
        if not device.healthy and unhealthy is None:
            why = device.health_detail or "there is no reason"
            unhealthy = Flag(Problem.UNHEALTHY, f"{_named(grant)} is unhealthy: {why}")
    return unhealthy


def _named(grant: Grant) -> str:
    return f"{grant.type} {grant.minor} ({grant.uuid}) of container {grant.container}"


def label_changes(entry: PodEntry, node: Node, context: Context) -> Mapping[str, str]:
    """Labels that the pod lacks and its protocols need; empty for records of other programs."""
    pod, view = entry.pod, entry.view
    record = pod.record
    if record is None or record.problem or record.source != SOURCE or pod.finished:
        return {}
    allocation = Allocation(pod.uid, pod.namespace, pod.name, node.name, record.grants, pod.host)
    placed = PlacedPod(view, pod.request, allocation, node, now=0)
    wanted = labels_of(placed, context.settings, context.families)
    return {key: value for key, value in wanted.items() if view.labels.get(key) != value}


def condition_change(document: Document, flag: Flag | None) -> dict[str, str] | None:
    """The condition to write on the pod; None if it is right already.

    A pod that never had a problem gets no condition. After a problem it gets the condition as False.
    """
    known = condition(document.shape, names.CONDITION)
    if flag is None:
        if known is None or known.status == "False":
            return None
        wanted = ("False", "Resolved", "the pod's devices are allocated and on its node")
    else:
        wanted = ("True", flag.problem.value, flag.message)
        if known is not None and (known.status, known.reason, known.message) == wanted:
            return None
    return {
        "type": names.CONDITION,
        "status": wanted[0],
        "reason": wanted[1],
        "message": wanted[2],
    }
