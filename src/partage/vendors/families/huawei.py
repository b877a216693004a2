"""Huawei Ascend: the keys that its device plugin reads from a pod that Koordinator placed.

Whole cards are named by minor, parts by minor and template; the 300I DUO has a key of its own. These cards report AI
cores and no percent of compute, so only requests for AI cores use them (docs/sources/koordinator.md 2.3 and 5).
"""

from typing import Final

from partage.vendors import names
from partage.vendors.base import (
    Family,
    PlacedPod,
    PodView,
    Reading,
    Rendering,
    cut_by_plugin,
    gpus_of,
    kept_off,
)
from partage.vendors.settings import Settings
from partage.vendors.traits import HUAWEI


def _refine(_pod: PodView, reading: Reading, _settings: Settings) -> Reading:
    return kept_off(reading, HUAWEI.name, lambda one: names.NPU_CORE not in dict(one.extras))


def _render(placed: PlacedPod, _settings: Settings) -> Rendering:
    cards = gpus_of(placed, HUAWEI.name)
    if not cards:
        return Rendering()
    annotations = {names.PREDICATE_TIME: str(placed.now)}
    if cards[0].model in HUAWEI.unshareable:
        annotations[names.ASCEND_310P] = ",".join(f"Ascend310P-{card.minor}" for card in cards)
    elif all(card.whole or card.template for card in cards):
        # The plugin would take the name of a share without a template for a whole card.
        annotations[names.NPU_CORE] = ",".join(
            f"{card.minor}-{card.template}" if card.template else str(card.minor) for card in cards
        )
    return Rendering(annotations=annotations)


FAMILY: Final = Family(
    name=HUAWEI.name,
    triggers=frozenset(HUAWEI.wakes),
    refine=_refine,
    register=lambda node, _settings: cut_by_plugin(node, HUAWEI.name),
    render=_render,
)
