"""Intended device totals of a node's status, and its intended labels, as changes of the present ones.

The totals have both name families of Koordinator, always, in capacity and in allocatable, because the scheduler's
fit and the kubelet check the name that a pod used. Amounts are of healthy devices, scaled
(`wire.nodes.device_totals`), the same that `partage schedule` prints as `allocatable`. The comparison uses the
node's present state, not the last write. So an overwritten value is corrected, and an equal one is not written.

The controller never touches names that kubelet plugins serve (`nvidia.com/gpu`, qGPU's, vendors' triggers). It
touches vendors' native units (`huawei.com/npu-core`) only if the node's Device object names them, because
otherwise the vendor's plugin may report them. If the object is gone, the units are those of the vendor in the
node's label, which stays.

As upstream's manager does, Koordinator's labels of make, model and driver follow the Device object, and stay when it is
deleted. qGPU's driver and card labels use the same keys, because those of the closed product are not published. A
label that is an operator's decision is only added where it is absent: `qgpu-device-enable` on nodes that
publish qGPU's totals.

Source: docs/sources/koordinator.md 6; the MetaX and Koordinator documents; the qGPU document and docs/sources/qgpu.md 1.3
to 1.5.
"""

from collections.abc import Mapping
from typing import Any

from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.model.quantity import Quantity
from partage.vendors import names
from partage.vendors.catalog import koordinator_reports, native_units
from partage.vendors.settings import Settings
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.nodes import COPIED_LABELS, allocatable_of, device_totals

_OWN_DOMAINS = (names.KOORDINATOR_DOMAIN, names.KUBERNETES_DOMAIN)


def totals_patch(
    document: Document, device: Document | None, node: Node, settings: Settings
) -> dict[str, Any]:
    """A merge patch of the node's `status`; empty if the totals are right.

    `node`: both documents as read, with every family's configuration.
    """
    shape = document.shape if isinstance(document.shape, shapes.Node) else shapes.Node()
    status = shape.status or shapes.NodeStatus()
    wanted = device_totals(node)
    gone = native_units(document.labels.get(names.GPU_VENDOR, "")) if device is None else ()
    written = {
        name
        for name in koordinator_reports(settings)
        if name.startswith(_OWN_DOMAINS) or name in _described(device) or name in gone
    }
    parts = {
        "capacity": _difference(status.capacity or {}, wanted, written),
        "allocatable": _difference(status.allocatable or {}, wanted, written),
    }
    return {part: changes for part, changes in parts.items() if changes}


def node_label_changes(node: Document, device: Document | None) -> dict[str, str]:
    """Labels to set on the node; empty when it has them. Raises `InvalidDocument`: an amount is no quantity."""
    wanted = {}
    if device is not None:
        wanted = {key: device.labels[key] for key in COPIED_LABELS if device.labels.get(key)}
    labels = node.labels
    core = allocatable_of(node).get(names.QGPU_CORE)
    if core is not None and core.nano > 0:
        wanted.setdefault(names.QGPU_ENABLE, labels.get(names.QGPU_ENABLE, "enable"))
    return {key: value for key, value in sorted(wanted.items()) if labels.get(key) != value}


def _difference(
    given: Mapping[str, Any], wanted: Mapping[str, Quantity], written: set[str]
) -> dict[str, str | None]:
    """Names to set, and with None those to remove, in order."""
    changes: dict[str, str | None] = {}
    for name in sorted(written):
        amount = wanted.get(name)
        if amount is None:
            if name in given:
                changes[name] = None
        elif _amount(given.get(name)) != amount:
            changes[name] = str(amount)
    return changes


def _amount(value: Any) -> Quantity | None:
    """The amount on the node; None if it is absent or unreadable."""
    if value is None:
        return None
    try:
        return Quantity.parse(value)
    except InvalidValue:
        return None


def _described(device: Document | None) -> set[str]:
    """Every resource name in the Device object, including unhealthy devices."""
    shape = device.shape if device else None
    spec = shape.spec if isinstance(shape, shapes.Device) else None
    return {
        name for entry in (spec.devices if spec else None) or () for name in entry.resources or ()
    }
