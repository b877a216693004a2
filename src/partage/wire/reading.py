"""All families' readings of one pod, as one."""

from collections.abc import Iterable

from partage.model.policy import CardOrder
from partage.model.request import Fault
from partage.vendors.base import PodView, Reading
from partage.wire.context import Context
from partage.wire.routing import route, whole_cards

__all__ = ["read_all"]


def read_all(view: PodView, context: Context) -> Reading:
    """Every family reads its containers; vendors then refine what they read together.

    A fault ends it: what a broken request would have asked for is not guessed.
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
    merged = _merged(readings, routes.notes)
    for family in context.families:
        merged = family.refine(view, merged, context.settings)
    return merged


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
            fault=result.fault or reading.fault,
            notes=(*result.notes, *reading.notes),
            quota={**result.quota, **reading.quota},
        )
    return result
