"""Cambricon dynamic sMLU: one share of one card, passed to the vendor's plugin.

The plugin cuts only shares of one card, in units of 256 MiB. Upstream notices this after placing, and the pod fails at
bind. Here such a pod is refused before. A pod that does not name the plugin's resources is kept off these cards,
because kubelet would never ask the plugin for its share (docs/sources/koordinator.md 5).
"""

from collections.abc import Sequence
from typing import Final

from partage.model.request import DeviceRequest
from partage.vendors import names
from partage.vendors.base import (
    Family,
    PlacedPod,
    PodView,
    Reading,
    Rendering,
    adapted,
    cut_by_plugin,
    gpus_of,
    lock_of,
    undersized,
)
from partage.vendors.settings import Settings
from partage.vendors.traits import CAMBRICON


def _refine(pod: PodView, reading: Reading, _settings: Settings) -> Reading:
    return adapted(pod, reading, CAMBRICON, lambda _request: True, _problem)


def _problem(requests: Sequence[DeviceRequest]) -> str:
    problem = next(filter(None, map(_uncut, requests)), "")
    if not requests:
        problem = (
            "the sMLU resources only wake the plugin; ask for koordinator.sh/gpu.shared, gpu-core"
            " and gpu-memory beside them"
        )
    if problem:
        return f'failed to adapt for GPU device plugin of vendor "{CAMBRICON.name}": {problem}'
    return ""


def _uncut(request: DeviceRequest) -> str:
    if request.count > 1:
        return "multiple gpu share is not supported on device side"
    if request.whole:
        return "whole cards are not supported, only shares"
    return undersized(request, CAMBRICON)


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
        node_annotations=lock_of(placed, CAMBRICON),
    )


FAMILY: Final = Family(
    name=CAMBRICON.name,
    triggers=frozenset(CAMBRICON.wakes),
    refine=_refine,
    register=lambda node, _settings: cut_by_plugin(node, CAMBRICON.name),
    render=_render,
)
