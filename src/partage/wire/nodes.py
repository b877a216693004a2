"""A Node and its Device object as one node of the engine, and the totals that the node would report.

Devices come from the Device object. Then every family acts in catalog order: it may apply
its configuration to the devices, define them if there is no Device object, object to the node,
or claim its registration.

Source: docs/sources/koordinator.md 1 and 6, the MetaX and Koordinator documents; docs/sources/hami.md 3.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from partage.model.device import SEATS, Device, DeviceType, Partition
from partage.model.errors import InvalidValue
from partage.model.node import Node, Verdict
from partage.model.quantity import Quantity, decimal
from partage.model.reason import ReasonCode
from partage.model.selector import Taint
from partage.vendors import names
from partage.vendors.base import NodeView
from partage.vendors.catalog import (
    honoured,
    koordinator_reports,
    koordinator_totals,
    parse_partitions,
    partitions_of,
    qgpu_totals,
    templates_of,
)
from partage.vendors.settings import Settings
from partage.vendors.traits import files_known
from partage.wire import shapes
from partage.wire.amounts import quantities
from partage.wire.constraints import taints_of
from partage.wire.context import Context
from partage.wire.demand import bounded
from partage.wire.device_objects import MOST_DEVICES, left_out, translate_devices
from partage.wire.documents import Document, invalid
from partage.wire.routing import UNDECIDED
from partage.wire.silence import silence

_NUMA_POLICIES: Final = ("", "None", "BestEffort", "Restricted", "SingleNUMANode")

_MOST_NOTES: Final = 64
_MOST_NAMES: Final = 256
"""Ordinary resources of one node."""
_TURNS: Final = ("partage", "true")
"""The agent's labels of a node whose containers with shares take turns."""
_NOT_READY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

COPIED_LABELS: Final = (names.GPU_VENDOR, names.GPU_MODEL, names.GPU_DRIVER_VERSION)
"""Labels that Koordinator's manager copies from the Device object to the node."""


@dataclass(frozen=True, slots=True)
class TranslatedNode:
    """A node for the engine, its own totals as written, and notes on it."""

    node: Node
    allocatable: Mapping[str, Quantity] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def translate_node(
    node: Document | None, device: Document | None, context: Context, version: int = 0
) -> TranslatedNode:
    """The node of the two documents; one of them may be absent.

    Without a Node document the node's ordinary resources are unknown, and they are not checked. Raises
    `InvalidDocument`: an amount is no quantity; `ValueError`: both documents are absent.
    """
    present = node or device
    if present is None:
        raise ValueError("a node needs a Node or a Device document")
    name, notes = present.name, []
    allocatable = allocatable_of(node) if node else {}
    labels = _labels(node, device)
    devices: tuple[Device, ...] = ()
    if device:
        devices, told = translate_devices(device, labels)
        notes += told
    if node is None:
        notes.append(
            f"{present.where}: no Node document; its CPU, memory and pods are not checked"
        )
    view = NodeView(
        name=name,
        labels=labels,
        annotations=(device.annotations if device else {}) | (node.annotations if node else {}),
        allocatable=allocatable,
        devices=devices,
    )
    result, told = _registered(view, context, left_out(device) if device else 0)
    silent = silence(node.annotations) if node else None
    taints, unready = _taints(node)
    single_numa, misspelt = _single_numa(labels)
    told += [unready, misspelt, _undescribed(result, view, device, context)]
    notes += [f"{present.where}: {note}" for note in told if note]
    vendor, model = _make(result)
    partitions, problem = _partitions(result.labels, (vendor, model), device)
    notes += [f"{device.where}: {problem}"] if problem and device else []
    ordinary, missing = _ordinary(allocatable, context)
    notes += [f"{present.where}: {missing}"] if missing else []
    result = replace(
        result,
        uid=(node.metadata.uid if node else None) or "",
        taints=taints,
        unschedulable=bool(_spec(node).unschedulable),
        verdicts=(silent, *result.verdicts) if silent else result.verdicts,
        single_numa=single_numa,
        allocatable={resource: bounded(resource, allocatable[resource]) for resource in ordinary},
        partitions=partitions,
        honour_partitions=honoured(device.labels if device else {}, node.labels if node else {}),
        templates=templates_of(vendor, model, context.settings.koordinator),
        version=version,
    )
    if (more := len(notes) - _MOST_NOTES) > 0:
        notes[_MOST_NOTES:] = [f"{present.where}: {more} more such notes"]
    return TranslatedNode(result, allocatable, tuple(notes))


def unread_node(node: Document, device: Document | None, problem: str, version: int = 0) -> Node:
    """A node with an invalid quantity: closed and without devices, with the reason for its pods."""
    unread = Verdict("", ReasonCode.QUARANTINED, f"it cannot be read: {problem}")
    silent = silence(node.annotations)
    return Node(
        name=node.name,
        uid=node.metadata.uid or "",
        labels=_labels(node, device),
        taints=_taints(node)[0],
        unschedulable=bool(_spec(node).unschedulable),
        verdicts=(unread, silent) if silent else (unread,),
        version=version,
    )


def _spec(node: Document | None) -> shapes.NodeSpec:
    spec = node.shape.spec if node and isinstance(node.shape, shapes.Node) else None
    return spec or shapes.NodeSpec()


def _status(node: Document | None) -> shapes.NodeStatus:
    status = node.shape.status if node and isinstance(node.shape, shapes.Node) else None
    return status or shapes.NodeStatus()


def _ordinary(allocatable: Iterable[str], context: Context) -> tuple[list[str], str]:
    """Resources that no family owns, Kubernetes' own first; and a note if some are left out."""
    ordinary = [resource for resource in allocatable if resource not in context.owners]
    ordinary.sort(key=lambda resource: "/" in resource)
    beyond = len(ordinary) - _MOST_NAMES
    note = f"{beyond} resources beyond {_MOST_NAMES} are left out" if beyond > 0 else ""
    return ordinary[:_MOST_NAMES], note


def allocatable_of(node: Document) -> dict[str, Quantity]:
    """The node's allocatable totals, or its capacity without them. Raises `InvalidDocument`: no quantity."""
    status = _status(node)
    part = "capacity" if status.allocatable is None else "allocatable"
    try:
        return quantities(getattr(status, part), f"status.{part}")
    except InvalidValue as error:
        raise invalid(node, error) from error


def node_totals(
    node: Node, allocatable: Mapping[str, Quantity], settings: Settings
) -> dict[str, str]:
    """The totals that the node would report: its own, with the names of its devices made current.

    Koordinator's names are given in both dialects. qGPU's and `nvidia.com/gpu` are given only
    if the node already reports them or registers with their protocol. The node's own value of
    `nvidia.com/gpu` stays (the Koordinator document prints 2 for two cards).
    """
    stale = koordinator_reports(settings)
    own = {name: amount for name, amount in allocatable.items() if name not in stale}
    totals = {**own, **device_totals(node)}
    cards = [d for d in node.devices if d.type is DeviceType.GPU and d.healthy]
    qgpu = qgpu_totals(node.devices)
    for name in (names.QGPU_CORE, names.QGPU_MEMORY, names.QGPU_GREEDY):
        if name in allocatable or (node.registrar == "qgpu" and name != names.QGPU_GREEDY):
            totals[name] = qgpu.get(name, decimal(0))
    count = settings.hami.count_name
    if count not in allocatable and node.registrar == "hami":
        totals[count] = decimal(
            sum(card.slots for card in cards if "hami" not in card.hidden_from)
        )
    return {name: str(amount) for name, amount in sorted(totals.items())}


def device_totals(node: Node) -> dict[str, Quantity]:
    """Koordinator's names, in both dialects, with the amounts of the node's healthy devices.

    No kubelet plugin serves these names: a controller writes them to the node's status.
    """
    return koordinator_totals(node.devices, _make(node)[0])


def _labels(node: Document | None, device: Document | None) -> dict[str, str]:
    """The node's labels, with those that Koordinator copies from the Device object."""
    labels = node.labels if node else {}
    given = device.labels if device else {}
    return labels | {key: given[key] for key in COPIED_LABELS if given.get(key)}


def _single_numa(labels: Mapping[str, str]) -> tuple[bool, str]:
    """Whether a pod's devices must be on one NUMA node here, and a note on an odd label."""
    policy = labels.get(names.NUMA_TOPOLOGY_POLICY, "")
    if policy in _NUMA_POLICIES:
        return policy == "SingleNUMANode", ""
    known = ", ".join(_NUMA_POLICIES[1:])
    label = names.NUMA_TOPOLOGY_POLICY
    return False, f"label {label}: {policy!r} is not one of {known}; it has no effect"


def _taints(node: Document | None) -> tuple[tuple[Taint, ...], str]:
    """The node's taints, and a note if it is not ready.

    Kubernetes taints a node that is not ready, but a dump may be from the moment before.
    """
    taints = taints_of(_spec(node).taints)
    conditions = _status(node).conditions or ()
    ready = next((c.status for c in conditions if c.type == "Ready"), None)
    if ready in (None, "True"):
        return taints, ""
    note = f"condition Ready is {ready}; no pod is placed here that does not tolerate that"
    if any(taint.key in _NOT_READY and taint.effect == "NoSchedule" for taint in taints):
        return taints, note
    return (*taints, Taint(_NOT_READY[0], "", "NoSchedule")), note


def _undescribed(node: Node, view: NodeView, device: Document | None, context: Context) -> str:
    """A note if the node reports cards and nothing else describes them."""
    if device or names.HAMI_REGISTER in view.annotations or node.devices:
        return ""
    reported = sorted(
        name
        for name, amount in view.allocatable.items()
        if name in context.owners and not name.endswith(("/rdma", "/fpga")) and amount.nano > 0
    )
    if not reported:
        return ""
    return (
        "no Device object or registration describes this node's GPUs,"
        f" though it reports {', '.join(reported)}"
    )


def _registered(view: NodeView, context: Context, beyond: int) -> tuple[Node, list[str]]:
    """Every family's registration, each for the devices that the earlier ones left.

    `beyond`: devices that were not read.
    """
    verdicts: list[Verdict] = []
    properties: dict[str, str] = {}
    links: dict[tuple[str, str], int] = {}
    registrar = ""
    notes: list[str] = []
    for family in context.families:
        said = family.register(view, context.settings)
        if said.devices is not None:
            view = replace(view, devices=said.devices)
        verdicts += said.verdicts
        properties |= said.properties
        links |= said.links
        registrar = registrar or said.registrar
        notes += said.notes
    turns = (view.labels.get(names.ISOLATION_PROVIDER), view.labels.get(names.ISOLATION_COMPUTE))
    if turns == _TURNS:
        view = replace(view, devices=tuple(map(_seated, view.devices)))
    ordered = sorted(view.devices, key=lambda device: (device.type, device.minor))
    devices = tuple(_few(_kept_from(device, registrar) for device in ordered))
    beyond += len(view.devices) - len(devices)
    if beyond:
        notes.append(f"{beyond} devices beyond {MOST_DEVICES} of one type are left out")
    node = Node(
        name=view.name,
        labels=view.labels,
        devices=devices,
        links=links,
        verdicts=(*verdicts, *_without_files(view.devices)),
        registrar=registrar,
        properties=properties,
        left_out=beyond,
    )
    return node, notes


def _without_files(devices: Iterable[Device]) -> Iterator[Verdict]:
    """Cards whose device files are unknown, because a container with such a card would start without it."""
    vendors = {one.vendor for one in devices if one.type is DeviceType.GPU}
    for vendor in sorted(vendors):
        if not files_known(vendor):
            why = f"the device files that a container needs for cards of {vendor} is not known, so none is allocated"
            yield Verdict("", ReasonCode.DEVICE_FILES_UNKNOWN, why, cards_only=True)


def _kept_from(device: Device, registrar: str) -> Device:
    """A device hidden from the registrar's pods is also hidden from undecided pods, which will become its own."""
    if registrar not in device.hidden_from:
        return device
    return replace(device, hidden_from=device.hidden_from | {UNDECIDED})


def _seated(device: Device) -> Device:
    """A card whose sharers take turns: none is placed that would find no seat."""
    if device.type is not DeviceType.GPU or device.vendor_cut:
        return device
    return replace(device, slots=min(device.slots, SEATS), seated=True)


def _few(devices: Iterable[Device]) -> Iterator[Device]:
    """The first devices of each type, because every node of the books has room for as many as the largest one."""
    seen: Counter[DeviceType] = Counter()
    for device in devices:
        seen[device.type] += 1
        if seen[device.type] <= MOST_DEVICES:
            yield device


def _make(node: Node) -> tuple[str, str]:
    vendor = node.properties.get("vendor", "") or node.labels.get(names.GPU_VENDOR, "")
    return vendor, node.properties.get("model", "") or node.labels.get(names.GPU_MODEL, "")


def _partitions(
    labels: Mapping[str, str], make: tuple[str, str], device: Document | None
) -> tuple[Mapping[int, tuple[Partition, ...]], str]:
    """The node's partitions, and the unreadable part."""
    vendor, model = make
    text = device.annotations.get(names.GPU_PARTITIONS) if device else None
    try:
        if text is None:
            return partitions_of(labels, model, vendor), ""
        return parse_partitions(text), ""
    except InvalidValue as error:
        return {}, f"{error}; the node has no partitions"
