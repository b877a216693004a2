"""Makes the report of foreign instances for the scheduler from looks at the cards.

Pure. A card that could not be read is reported as unknown, which closes it. A card that was not yet
read since the agent started keeps its last report, and is unknown if it had none.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from partage.agent.mig.nvml import GpuInstance
from partage.agent.mig.runner import Outcome
from partage.model.device import ForeignInstance
from partage.model.mig import MigAxis, MigSlice
from partage.wire.foreign import OnCard, decode_foreign

_UNSEEN: Final = "the agent has not looked at it yet"
_UNLISTED: Final = "the driver has not listed it to the maker of instances"


def on_card(outcome: Outcome) -> OnCard:
    """The foreign instances in a look at a card."""
    if outcome.fault:
        return OnCard(unknown=outcome.fault)
    found = tuple(_named(one, outcome.axis) for one in outcome.foreign)
    return OnCard(found, uncuttable=outcome.uncuttable)


def reported(
    cards: Iterable[str],
    outcomes: Mapping[str, Outcome],
    before: str | None,
    covered: Collection[str],
    unlisted: Iterable[str] = (),
) -> Mapping[str, OnCard]:
    """The report of every card.

    Args:
        cards: UUIDs of the node's cards that can be cut.
        before: the current annotation; None without one.
        covered: UUIDs of the cards that it was made for; those without such instances are not in it.
        unlisted: UUIDs of further cards of the node, which the driver has lost or has found again just now.
    """
    known: Mapping[str, OnCard] = {}
    if before is not None:
        told, problem = decode_foreign(before)
        known = {} if problem else {card: OnCard() for card in covered} | dict(told)
    unseen = OnCard(unknown=_UNSEEN)
    return {
        card: on_card(outcomes[card]) if card in outcomes else known.get(card, unseen)
        for card in cards
    } | {card: OnCard(unknown=_UNLISTED) for card in unlisted}


def _named(one: GpuInstance, axis: MigAxis | None) -> ForeignInstance:
    """An instance by the name of its profile; an unknown number stays a number."""
    profiles = axis.profiles if axis is not None else ()
    name = next((p.name for p in profiles if p.id == one.profile), f"profile {one.profile}")
    uuids = tuple(compute.uuid for compute in one.computes)
    return ForeignInstance(MigSlice(name, one.start, one.size), uuids)
