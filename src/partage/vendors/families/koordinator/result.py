"""From an allocation to the keys that Koordinator's readers expect on the pod.

The record is `scheduling.koordinator.sh/device-allocated`: compact JSON, in the dialect of the pod (the Koordinator
document for v1.4; docs/sources/koordinator.md 4). Today's pods also get the bind time and the minors, as upstream's
device plugin adaption writes them. Pods of v1.4 get these only on cards whose vendor's plugin reads them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from partage.model.allocation import Grant, GrantMode
from partage.model.device import MILLI, DeviceType
from partage.model.quantity import whole_text
from partage.vendors import names
from partage.vendors.base import GrantedCard, PlacedPod, Rendering, cards_of
from partage.vendors.families.koordinator.amounts import DIALECT_V14, PERCENT_OF, old_name
from partage.vendors.families.koordinator.request import PROTOCOL
from partage.vendors.settings import Settings
from partage.vendors.traits import NVIDIA, traits_of

_HAMI_CORE: Final = "HAMi-core"
_LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"
_PERCENT: Final = MILLI // 100


def render(placed: PlacedPod, settings: Settings) -> Rendering:
    """Annotations, labels and environment for the pod's Koordinator devices."""
    cards = cards_of(placed)
    if not cards:
        return Rendering()
    old = any(
        group.protocol == PROTOCOL and group.dialect == DIALECT_V14
        for group in placed.request.groups
    )
    annotations = {names.DEVICE_ALLOCATED: _record(cards, old=old)}
    gpus = [card for card in cards if card.type is DeviceType.GPU]
    if not old or any(traits_of(card.vendor).adapted for card in gpus):
        annotations[names.BIND_TIMESTAMP] = str(placed.now)
        if gpus:
            annotations[names.GPU_MINORS] = ",".join(str(card.minor) for card in gpus)
    return Rendering(
        annotations=annotations,
        labels=labels(placed, settings),
        env=_environment(placed.grants(PROTOCOL), isolated=_isolated(placed)),
    )


def labels(placed: PlacedPod, _settings: Settings) -> Mapping[str, str]:
    """The node's name, if HAMi's library isolates the pod's cards."""
    if not _isolated(placed):
        return {}
    gpus = any(grant.type is DeviceType.GPU for grant in placed.grants(PROTOCOL))
    return {names.VGPU_NODE: placed.node.name} if gpus else {}


def _isolated(placed: PlacedPod) -> bool:
    return placed.pod.labels.get(names.GPU_ISOLATION_PROVIDER) == _HAMI_CORE


def _record(cards: Sequence[GrantedCard], *, old: bool) -> str:
    document: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for card in cards:
        amounts = (card.core, card.memory_bytes, card.ratio)
        resources = _resources(card.type, amounts, card.extras, old=old)
        # Field order and the null equal the output of Go's encoder, because readers compare texts.
        entry: dict[str, Any] = {"minor": card.minor, "resources": resources or None}
        if card.uuid and not old:
            entry["id"] = card.uuid
        extension: dict[str, Any] = {}
        if card.functions:
            extension["vfs"] = [
                {"minor": minor, "busID": bus} if minor else {"busID": bus}
                for minor, bus in card.functions
            ]
        if card.template:
            extension["gpuSharedResourceTemplate"] = card.template
        if extension:
            entry["extension"] = extension
        document[card.type.value].append(entry)
    return msgspec.json.encode(dict(sorted(document.items()))).decode()


@lru_cache(maxsize=1024)
def _resources(
    type_: DeviceType,
    amounts: tuple[int, int, int],
    extras: tuple[tuple[str, int], ...],
    *,
    old: bool,
) -> Mapping[str, str]:
    """A card's amounts by name, in the order of names; equal pods hold equal amounts, so each is written once.

    `amounts`: core, bytes of memory, and percent of it, as in `GrantedCard`. `old`: under the names of v1.4.
    """
    core, memory, ratio = amounts
    if type_ is not DeviceType.GPU:
        result = {PERCENT_OF[type_]: core} if core else {}
    else:
        result = {names.KOORD_GPU_MEMORY: memory, names.KOORD_GPU_MEMORY_RATIO: ratio}
        if core:
            result[names.KOORD_GPU_CORE] = core
        result |= {unit: amount for unit, amount in extras if amount}
    texts = {
        old_name(name) if old and name.startswith(names.KOORDINATOR_DOMAIN) else name: whole_text(
            amount, memory=name == names.KOORD_GPU_MEMORY
        )
        for name, amount in result.items()
    }
    return dict(sorted(texts.items()))


def _environment(grants: Sequence[Grant], *, isolated: bool) -> dict[str, Mapping[str, str]]:
    """Per container: its visible cards, and its limits if HAMi's library enforces them."""
    mine: dict[str, list[Grant]] = defaultdict(list)
    for grant in grants:
        if grant.type is DeviceType.GPU:
            mine[grant.container].append(grant)
    result: dict[str, Mapping[str, str]] = {}
    for container, held in mine.items():
        held.sort(key=lambda grant: grant.minor)
        env = {NVIDIA.variable: ",".join(str(grant.minor) for grant in held)}
        if isolated and held[0].mode is not GrantMode.WHOLE:
            env["CUDA_DEVICE_MEMORY_LIMIT"] = str(held[0].memory_bytes)
            if held[0].core_milli:
                env["CUDA_DEVICE_SM_LIMIT"] = str(held[0].core_milli // _PERCENT)
            env["LD_PRELOAD"] = _LIBRARY
        result[container] = env
    return result
