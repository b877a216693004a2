"""The wishes in HAMi's pod annotations: which cards, in which order, on which node first.

The annotations hold for every container of the pod. Texts that upstream quietly ignores become notes; texts that no
card could ever meet are faults.

Source: docs/sources/hami.md 1.4 and 4.3.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from partage.model.device import SliceMode
from partage.model.policy import CardOrder, CardWeights, Strategy
from partage.model.reason import ReasonCode
from partage.model.request import CardFilter, Fault
from partage.vendors import names
from partage.vendors.families.hami.cards import BOOLEANS
from partage.vendors.traits import NVIDIA

HEEDED: Final = frozenset(
    {
        names.HAMI_AVOID_TYPE,
        names.HAMI_AVOID_UUID,
        names.HAMI_CARD_POLICY,
        names.HAMI_NODE_POLICY,
        names.HAMI_NUMA_BIND,
        names.HAMI_USE_TYPE,
        names.HAMI_USE_UUID,
        names.HAMI_VGPU_MODE,
        names.HAMI_WEIGHTS,
        names.MIG_PROFILE,
    }
)
"""All annotations that this module reads."""
_WEIGHT: Final = re.compile(r"[0-9]{1,9}")
_WRITTEN: Final = (SliceMode.SHARE, SliceMode.MIG)
_PROFILE: Final = re.compile(r"[0-9]{1,2}g(?:\.[0-9]{1,4}gb(?:[+-][a-z.]{1,8})?)?")
_WEIGHT_NAMES: Final = {"slot", "core", "memory"}


@dataclass(frozen=True, slots=True)
class Wishes:
    """A pod's annotations in the engine's words.

    Attributes:
        filter: which cards are accepted.
        numa_bind: all cards of one container on one NUMA node.
        unused: only cards without another tenant.
        node_strategy: the pod's own strategy between nodes.
        card_order: the pod's own order of cards.
        profile: the profile that each instance must have; empty if amounts decide.
        fault: the first annotation that breaks its rule.
        notes: annotations whose effect may differ from their author's intent.
    """

    filter: CardFilter = CardFilter(vendors=(NVIDIA.name,))
    numa_bind: bool = False
    unused: bool = False
    node_strategy: Strategy | None = None
    card_order: CardOrder = CardOrder()
    profile: str = ""
    fault: Fault | None = None
    notes: tuple[str, ...] = ()


def read_wishes(annotations: Mapping[str, str]) -> Wishes:
    """The wishes in a pod's annotations."""
    notes: list[str] = []
    modes, mode_fault = _modes(annotations.get(names.HAMI_VGPU_MODE, ""), notes)
    profile = annotations.get(names.MIG_PROFILE, "").strip()
    if profile and mode_fault is None:
        modes, mode_fault = _for_profile(profile, modes)
    weights, weight_fault = _weights(annotations.get(names.HAMI_WEIGHTS))
    numa_bind = _numa_bind(annotations.get(names.HAMI_NUMA_BIND, ""), notes)
    node_strategy = _node_strategy(annotations.get(names.HAMI_NODE_POLICY), notes)
    order, unused = _card_order(annotations.get(names.HAMI_CARD_POLICY), notes)
    return Wishes(
        filter=CardFilter(
            use_types=split_list(annotations.get(names.HAMI_USE_TYPE, "")),
            avoid_types=split_list(annotations.get(names.HAMI_AVOID_TYPE, "")),
            use_uuids=split_list(annotations.get(names.HAMI_USE_UUID, "")),
            avoid_uuids=split_list(annotations.get(names.HAMI_AVOID_UUID, "")),
            vendors=(NVIDIA.name,),
            modes=modes,
        ),
        numa_bind=numa_bind,
        unused=unused,
        node_strategy=node_strategy,
        card_order=replace(order, by_numa=order.by_numa or numa_bind, weights=weights),
        profile=profile,
        fault=mode_fault or weight_fault,
        notes=tuple(notes),
    )


def split_list(text: str) -> tuple[str, ...]:
    """The items of a comma list, trimmed, empty ones left out."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _numa_bind(text: str, notes: list[str]) -> bool:
    if text and text not in BOOLEANS:
        notes.append(
            f"annotation {names.HAMI_NUMA_BIND} is {text!r}, which counts as false; write true"
        )
    return BOOLEANS.get(text, False)


def _modes(text: str, notes: list[str]) -> tuple[tuple[SliceMode, ...], Fault | None]:
    """Modes that the annotation contains as a substring, and a note on others; if absent, any card is accepted."""
    modes = tuple(mode for mode in _WRITTEN if mode.value in text)
    either = SliceMode.EITHER in text
    about = f"annotation {names.HAMI_VGPU_MODE} is {text!r}"
    if text.strip() and not modes and not either:
        known = " or ".join(_WRITTEN)
        fault = f"{about}: no card has such a mode; write {known}"
        return (), Fault(fault, ReasonCode.MODE_MISMATCH)
    if not set(split_list(text)) <= {*SliceMode}:
        notes.append(f"{about}, which counts as {'any mode' if either else ' or '.join(modes)}")
    return () if either else modes, None


def _for_profile(
    profile: str, modes: tuple[SliceMode, ...]
) -> tuple[tuple[SliceMode, ...], Fault | None]:
    """A profile means instances: shares are not accepted beside it."""
    if not _PROFILE.fullmatch(profile):
        return modes, Fault(
            f"annotation {names.MIG_PROFILE} is {profile!r}: it must be a profile such as "
            "1g.10gb or 3g.40gb+me, or the compute part of one such as 3g"
        )
    if modes and SliceMode.MIG not in modes:
        return modes, Fault(
            f"annotation {names.MIG_PROFILE} asks for an instance, but {names.HAMI_VGPU_MODE} "
            f"allows {' or '.join(modes)} only"
        )
    return (SliceMode.MIG,), None


def _weights(text: str | None) -> tuple[CardWeights | None, Fault | None]:
    if text is None:
        return None, None
    parts = [[part.strip() for part in item.partition("=")] for item in text.split(",")]
    given = {name: int(value) for name, _, value in parts if _WEIGHT.fullmatch(value)}
    if len(parts) == len(given) and given.keys() == _WEIGHT_NAMES and any(given.values()):
        return CardWeights(**given), None
    return None, Fault(
        f"annotation {names.HAMI_WEIGHTS} is {text!r}: it needs slot, core and memory, each once, "
        "as whole numbers from 0 with at least one above 0, such as slot=1,core=1,memory=3"
    )


def _node_strategy(text: str | None, notes: list[str]) -> Strategy | None:
    if text is None:
        return None
    text = text.strip()
    if text == Strategy.SPREAD:
        return Strategy.SPREAD
    if text != Strategy.BINPACK:
        notes.append(f"annotation {names.HAMI_NODE_POLICY} is {text!r}, which counts as binpack")
    return Strategy.BINPACK


def _card_order(text: str | None, notes: list[str]) -> tuple[CardOrder, bool]:
    """Order, and whether cards must be unused.

    The first of binpack and spread decides, because both find the same cards equal. NUMA counts before or after it, in
    the written order. A chain that names none of the three means spread. NUMA alone leaves cards of one NUMA node in
    their order.
    """
    if text is None:
        return CardOrder(), False
    strategy: Strategy | None = None
    by_numa = then_numa = by_links = unused = False
    for word in split_list(text):
        match word:
            case "binpack" | "spread":
                strategy = strategy or Strategy(word)
            case "numa":
                by_numa = by_numa or strategy is None
                then_numa = not by_numa
            case "topology-aware":
                by_links = True
            case "mutex":
                unused = True
            case _:
                about = f"annotation {names.HAMI_CARD_POLICY}"
                notes.append(f"{about}: {word!r} is no card policy and is left out")
    if strategy is None:
        strategy = Strategy.FIRST_FIT if by_numa else Strategy.SPREAD
    order = CardOrder(strategy, by_numa=by_numa, then_numa=then_numa, by_links=by_links)
    return order, unused
