"""Cambricon dynamic sMLU: one share of one card, passed to the vendor's plugin.

The plugin cuts only shares of one card, in units of 256 MiB. Upstream notices this after placing, and the pod fails at
bind. Here such a pod is refused before. A pod that does not name the plugin's resources is kept off these cards,
because kubelet would never ask the plugin for its share (docs/sources/koordinator.md 5).
"""

from dataclasses import replace
from typing import Final

from partage.model.device import DeviceType
from partage.model.request import DeviceRequest, Fault, RequestGroup
from partage.vendors import names
from partage.vendors.base import (
    Family,
    PlacedPod,
    PodView,
    Reading,
    Rendering,
    asks_any,
    cut_by_plugin,
    gpus_of,
    kept_off,
    lock_value,
)
from partage.vendors.settings import Settings
from partage.vendors.traits import CAMBRICON


def _refine(pod: PodView, reading: Reading, _settings: Settings) -> Reading:
    """Check what the plugin can cut, and keep the pod on the vendor's cards."""
    if reading.fault is not None or not reading.groups:
        return reading  # without amounts the pod is kube-scheduler's, as any pod of a plugin
    if not asks_any(pod, CAMBRICON.wakes):
        return kept_off(reading, CAMBRICON.name, lambda _request: True)
    groups = [_ours(group) for group in reading.groups]
    requests = [g.request for g in groups if g.request.type is DeviceType.GPU]
    problem = next(filter(None, map(_problem, requests)), "")
    if not requests:
        problem = (
            "the sMLU resources only wake the plugin; ask for koordinator.sh/gpu.shared, gpu-core"
            " and gpu-memory beside them"
        )
    if problem:
        message = f'failed to adapt for GPU device plugin of vendor "{CAMBRICON.name}": {problem}'
        return replace(reading, fault=Fault(message))
    return replace(reading, groups=tuple(groups))


def _ours(group: RequestGroup) -> RequestGroup:
    if group.request.type is not DeviceType.GPU:
        return group
    cards = replace(group.request.filter, vendors=(CAMBRICON.name,))
    return replace(group, request=replace(group.request, filter=cards))


def _problem(request: DeviceRequest) -> str:
    if request.count > 1:
        return "multiple gpu share is not supported on device side"
    if request.whole:
        return "whole cards are not supported, only shares"
    if not request.core_milli:
        return "gpu core resource is required"
    if not request.memory_milli and request.memory_bytes < CAMBRICON.unit:
        return f"gpu memory must not be less than {CAMBRICON.unit} bytes"
    return ""


def _render(placed: PlacedPod, _settings: Settings) -> Rendering:
    cards = gpus_of(placed, CAMBRICON.name)
    if len(cards) != 1 or not cards[0].core:
        return Rendering()
    card = cards[0]
    return Rendering(
        annotations={
            names.DSMLU_ASSIGNED: "false",
            names.DSMLU_PROFILE: f"{card.minor}_{card.core}_{card.memory_bytes // CAMBRICON.unit}",
        },
        # Only a pod that activates the plugin gets the lock that the plugin later removes.
        node_annotations=(
            {names.DSMLU_LOCK: lock_value(placed)} if asks_any(placed.pod, CAMBRICON.wakes) else {}
        ),
    )


FAMILY: Final = Family(
    name=CAMBRICON.name,
    triggers=frozenset(CAMBRICON.wakes),
    refine=_refine,
    register=lambda node, _settings: cut_by_plugin(node, CAMBRICON.name),
    render=_render,
)
