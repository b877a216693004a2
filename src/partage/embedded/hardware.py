"""Reports of the programs on a simulated node: its Node, its Device object, its totals.

Pure functions. The Device object is as the MetaX and Koordinator documents print it. The totals are those that only
the node's own plugins know (kubelet's, qGPU's, HAMi's, MetaX's, Huawei's, Cambricon's). As in a real cluster,
the controller computes the totals of Koordinator's names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from partage.agent.device_document import device_document, health_condition
from partage.agent.discovery.simulated import SimulatedHardware, faulty, simulate
from partage.agent.registration import registered_cards
from partage.embedded.fleet import SimulatedNode
from partage.embedded.manifests import decoded
from partage.model.device import DeviceType
from partage.vendors import names
from partage.vendors.catalog import encode_hami_cards, qgpu_totals
from partage.vendors.settings import HamiSettings
from partage.vendors.traits import NVIDIA, Reported, traits_of
from partage.wire.device_objects import translate_devices

_LONGEST_LABEL: Final = 63


def device_manifest(node: SimulatedNode, now: str) -> dict[str, Any]:
    """The Device object that the node's agent writes `now`, as Kubernetes writes times; every device is healthy."""
    spec = node.spec
    hardware = SimulatedHardware(
        node.name,
        spec.model,
        node.make,
        spec.cards,
        spec.rdma.cards if spec.rdma else 0,
        spec.rdma.functions if spec.rdma else 0,
        spec.numa_nodes,
        spec.cards_per_switch,
    )
    document = device_document(node.name, simulate(hardware), None, now)
    labels = {names.GPU_VENDOR: node.make.vendor, names.GPU_MODEL: node.spec.model}
    document["metadata"]["labels"] = {**labels, **document["metadata"]["labels"]}
    return document


def kubelet_labels(name: str) -> dict[str, str]:
    """A kubelet's labels of its node, which charts select by; no host name is longer."""
    hostname = {names.HOSTNAME: name.lower()} if len(name) <= _LONGEST_LABEL else {}
    return {
        **hostname,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }


def node_manifest(node: SimulatedNode) -> dict[str, Any]:
    """The Node that the kubelet registers, before its plugins have reported anything."""
    labels = kubelet_labels(node.name)
    if node.make.vendor == NVIDIA.name:
        product = node.make.product or node.spec.model
        labels["nvidia.com/gpu.product"] = product.replace(" ", "-")
        if node.make.driver:
            labels["nvidia.com/cuda.driver-version.full"] = node.make.driver
    taints = msgspec.to_builtins(node.spec.taints)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {**labels, **node.labels},
            "annotations": dict(node.annotations),
        },
        "spec": {"taints": list(taints)} if taints else {},
        "status": {
            "allocatable": {
                "cpu": node.spec.cpu,
                "memory": node.spec.host_memory,
                "pods": str(node.spec.pods),
                "ephemeral-storage": "1Ti",
            },
        },
    }


def plugin_totals(
    node: SimulatedNode, device: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
    """The plugins' totals and node annotations for the present devices.

    Raises `InvalidDocument`: another program has written malformed content into the Device object.
    """
    document = decoded("Device", device)
    devices, _ = translate_devices(document, document.labels)
    cards = [one for one in devices if one.type is DeviceType.GPU]
    healthy = [card for card in cards if card.healthy]
    annotations: dict[str, str] = {}
    totals: dict[str, str] = {}
    if "hami" in node.spec.registers:
        mode = "mig" if node.spec.mode == "mig" else "hami-core"
        products = [(card, node.make.product) for card in cards]
        known = registered_cards(products, HamiSettings(), node.name, mode)
        annotations[names.HAMI_REGISTER] = encode_hami_cards(known)
        totals[names.COUNT_NVIDIA] = str(sum(card.slots for card in known if card.healthy))
    elif node.make.vendor == NVIDIA.name:
        totals[names.COUNT_NVIDIA] = str(len(healthy))
    if "qgpu" in node.spec.registers:
        reported = qgpu_totals(devices)
        totals |= {
            name: str(reported.get(name, "0")) for name in (names.QGPU_CORE, names.QGPU_MEMORY)
        }
    told = Reported(
        len(healthy), sum(card.memory_bytes for card in healthy), node.spec.model, node.spec.mode
    )
    totals |= {name: str(n) for name, n in traits_of(node.make.vendor).reports(told).items()}
    return totals, annotations


def unhealthy_devices(text: str, device: Mapping[str, Any]) -> tuple[set[tuple[str, int]], str]:
    """The devices that a node's annotation declares unhealthy, with the reasons.

    `0,2` are cards, `rdma-0` another device, `all` every one; the reason follows `=`. Raises `InvalidRecord`: the
    annotation is malformed, or there is no such device.
    """
    return faulty(
        text, {(str(one.get("type")), int(one.get("minor") or 0)) for one in _entries(device)}
    )


def with_health(
    device: Mapping[str, Any], unhealthy: set[tuple[str, int]], reason: str, now: str
) -> dict[str, Any]:
    """The Device object with exactly these devices unhealthy; times change with the state only."""
    entries = []
    for one in _entries(device):
        healthy = (str(one.get("type")), int(one.get("minor") or 0)) not in unhealthy
        condition = health_condition(now, healthy=healthy, message=reason)
        if one.get("health") is not healthy or not _says(one, condition):
            one = {**one, "health": healthy, "conditions": [condition]}  # noqa: PLW2901 # the same one, changed
        entries.append(one)
    return {**device, "spec": {**(device.get("spec") or {}), "devices": entries}}


def _says(entry: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    """Whether a device has this condition already; a device without any counts as healthy."""
    found = entry.get("conditions")
    if not found:
        return bool(condition["status"] == "True")
    one = found[0]
    says: tuple[str, str] = (str(one.get("status")), str(one.get("message")))
    return says == (str(condition["status"]), str(condition["message"]))


def _entries(device: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (device.get("spec") or {}).get("devices") or ()
