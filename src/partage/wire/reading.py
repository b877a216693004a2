"""Combines all families' readings of one pod."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.model.policy import CardOrder, Scoring
from partage.model.reason import ReasonCode
from partage.model.request import Fault, LabelRule
from partage.vendors import names
from partage.vendors.base import PodView, Reading
from partage.vendors.settings import IsolationSettings
from partage.vendors.traits import NVIDIA
from partage.vendors.wishes import Policy, read_wishes
from partage.wire.context import Context
from partage.wire.routing import HAMI, KOORDINATOR, route, whole_cards

_WHOSE: Final = {HAMI: "HAMi's", KOORDINATOR: "Koordinator's"}
_QUOTAS: Final = frozenset({Policy.FIXED_SHARE, Policy.BURST_SHARE})
"""Policies that hold or guarantee an amount of compute."""


def read_all(view: PodView, context: Context) -> Reading:
    """Every family reads its containers; then vendors refine the joint reading.

    A fault ends it, because the rest of a broken request is not guessed.
    """
    routes = route(view, context)
    if routes.fault:
        return Reading(fault=routes.fault, notes=routes.notes)
    readings = [
        family.read(view, routes.families[family.name], context.settings)
        for family in context.families
        if family.name in routes.families
    ]
    groups, problem = whole_cards(routes.undecided)
    readings.append(Reading(groups=groups, fault=Fault(problem) if problem else None))
    unread = _unread(view, context, routes.families) if routes.families else ()
    merged = _merged(readings, (*routes.notes, *unread))
    for family in context.families:
        merged = family.refine(view, merged, context.settings)
    return _wishing(view, merged, context.settings.isolation)


def _unread(view: PodView, context: Context, spoken: Collection[str]) -> Iterator[str]:
    """Annotations of a protocol that no container of this pod uses."""
    for family in context.families:
        whose = _WHOSE.get(family.name, family.name)
        for key in sorted(family.heeded & view.annotations.keys()):
            if family.name not in spoken:
                yield f"annotation {key} has no effect: no container asks by {whose} names"


def _wishing(view: PodView, reading: Reading, required: IsolationSettings) -> Reading:
    """The reading with the faults of the pod's wishes about its limits, and with the nodes that they need."""
    cards = [one.request for one in reading.groups if one.request.type is DeviceType.GPU]
    if not cards or reading.fault is not None:
        return reading
    try:
        policy = read_wishes(view.annotations, {}, None).policy
    except InvalidValue as error:
        return replace(reading, fault=Fault(str(error)))
    shares = [one for one in cards if not one.whole]
    # Partage's own library can keep shares of these.
    ours = [one for one in shares if not one.filter.vendors or NVIDIA.name in one.filter.vendors]
    if ours:
        rules = _needed(policy, required)
        reading = replace(reading, node_labels=(*reading.node_labels, *rules))
    if policy is None:
        return reading
    said = f"annotation {names.COMPUTE_POLICY}: {policy}"
    if not shares:
        note = f"{said} has no effect: the pod asks for no share of a card"
        return replace(reading, notes=(*reading.notes, note))
    if not ours:
        vendors = ", ".join(sorted({name for one in shares for name in one.filter.vendors}))
        why = f"{said} cannot be granted: shares of these cards ({vendors}) are enforced by their vendor"
        return replace(reading, fault=Fault(why))
    if policy in _QUOTAS and not any(one.core_milli for one in ours):
        why = (
            f"{said} cannot be granted: the pod asks for memory alone and so has no quota of compute; ask for "
            f"compute too, or choose {Policy.BEST_EFFORT}"
        )
        return replace(reading, fault=Fault(why))
    return reading


def _needed(policy: Policy | None, required: IsolationSettings) -> tuple[LabelRule, ...]:
    """The labels of the node's provider that the cluster's operator requires."""
    held = [(names.ISOLATION_MEMORY, "memory", "a share")] if required.memory else []
    if required.compute and policy in _QUOTAS:
        held.append((names.ISOLATION_COMPUTE, "compute", f"{names.COMPUTE_POLICY}: {policy}"))
    return tuple(
        LabelRule(
            key,
            "true",
            ReasonCode.ISOLATION_PROVIDER,
            f"{who} needs a node whose isolation provider enforces {what} (label {key} must be true)",
        )
        for key, what, who in held
    )


def _merged(readings: Iterable[Reading], notes: tuple[str, ...]) -> Reading:
    result = Reading(notes=notes)
    for reading in readings:
        order = result.card_order
        result = Reading(
            groups=(*result.groups, *reading.groups),
            joint=result.joint or reading.joint,
            partition=result.partition or reading.partition,
            node_labels=(*result.node_labels, *reading.node_labels),
            node_strategy=result.node_strategy or reading.node_strategy,
            card_order=reading.card_order if order == CardOrder() else order,
            scoring=reading.scoring if result.scoring == Scoring() else result.scoring,
            fault=result.fault or reading.fault,
            notes=(*result.notes, *reading.notes),
            quota={**result.quota, **reading.quota},
        )
    return result
