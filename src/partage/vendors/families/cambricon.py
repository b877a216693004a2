"""Cambricon dynamic sMLU: one share of one card, told to the vendor's plugin.

The plugin cuts shares only, of one card, in units of 256 MiB. Upstream finds out after placing
and lets the pod fail at bind; here a pod that names the plugin's resources is refused before, and
one that does not is kept off these cards (facts: koordinator.md 5).
"""

from dataclasses import replace
from typing import Final

from partage.model.device import DeviceType
from partage.model.request import DeviceRequest, Fault, RequestGroup
from partage.vendors import names
from partage.vendors.base import (
    Family,
    NodeView,
    PlacedPod,
    PodView,
    Reading,
    Registration,
    Rendering,
)
from partage.vendors.cards import asks_any, cards_of, kept_off, lock_value
from partage.vendors.settings import Settings

__all__ = ["FAMILY"]

_VENDOR: Final = "cambricon"
_PROTOCOL: Final = "koordinator"
_UNIT: Final = 256 * 2**20
_TRIGGERS: Final = frozenset({names.SMLU_VCORE, names.SMLU_VMEMORY})


def _refine(pod: PodView, reading: Reading, _settings: Settings) -> Reading:
    """Check what the plugin can cut, and keep the pod on the vendor's cards."""
    if reading.fault is not None:
        return reading
    if not asks_any(pod, _TRIGGERS):
        return kept_off(reading, _PROTOCOL, _VENDOR, lambda request: bool(_problem(request)))
    groups = [_ours(group) for group in reading.groups]
    requests = [g.request for g in groups if g.request.type is DeviceType.GPU]
    problem = next(filter(None, map(_problem, requests)), "")
    if not requests:
        problem = (
            "the sMLU resources only wake the plugin; ask for koordinator.sh/gpu.shared, gpu-core"
            " and gpu-memory beside them"
        )
    if problem:
        message = f'failed to adapt for GPU device plugin of vendor "{_VENDOR}": {problem}'
        return replace(reading, fault=Fault(message))
    return replace(reading, groups=tuple(groups))


def _ours(group: RequestGroup) -> RequestGroup:
    if group.request.type is not DeviceType.GPU:
        return group
    cards = replace(group.request.filter, vendors=(_VENDOR,))
    return replace(group, request=replace(group.request, filter=cards))


def _problem(request: DeviceRequest) -> str:
    if request.count > 1:
        return "multiple gpu share is not supported on device side"
    if request.whole:
        return "whole cards are not supported, only shares"
    if not request.core_milli:
        return "gpu core resource is required"
    if not request.memory_milli and request.memory_bytes < _UNIT:
        return f"gpu memory must not be less than {_UNIT} bytes"
    return ""


def _register(node: NodeView, _settings: Settings) -> Registration:
    """Shares are cut by the vendor's plugin."""
    if not any(device.vendor == _VENDOR for device in node.devices):
        return Registration()
    return Registration(
        devices=tuple(
            replace(device, vendor_cut=True)
            if device.vendor == _VENDOR and device.type is DeviceType.GPU
            else device
            for device in node.devices
        )
    )


def _render(placed: PlacedPod, _settings: Settings) -> Rendering:
    cards = [
        card
        for card in cards_of(placed, _PROTOCOL)
        if card.type is DeviceType.GPU and card.vendor == _VENDOR
    ]
    if len(cards) != 1 or not cards[0].core:
        return Rendering()
    card = cards[0]
    return Rendering(
        annotations={
            names.DSMLU_ASSIGNED: "false",
            names.DSMLU_PROFILE: f"{card.minor}_{card.core}_{card.memory_bytes // _UNIT}",
        },
        # Only a pod that wakes the plugin gets the lock that the plugin takes off again.
        node_annotations=(
            {names.DSMLU_LOCK: lock_value(placed)} if asks_any(placed.pod, _TRIGGERS) else {}
        ),
    )


FAMILY: Final = Family(
    name=_VENDOR, triggers=_TRIGGERS, refine=_refine, register=_register, render=_render
)
