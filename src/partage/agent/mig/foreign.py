"""Makes the report of foreign instances for the scheduler from looks at the cards.

Pure. A card that could not be read is reported as unknown, which closes it. A card that was not yet
read since the agent started keeps its last report.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from partage.agent.mig.nvml import GpuInstance
from partage.agent.mig.runner import Outcome
from partage.model.device import ForeignInstance
from partage.model.mig import MigAxis, MigSlice
from partage.wire.foreign import OnCard, decode_foreign

_UNSEEN: Final = "the agent has not looked at it yet"


def on_card(outcome: Outcome) -> OnCard:
    """The foreign instances in a look at a card."""
    if outcome.fault:
        return OnCard(unknown=outcome.fault)
    found = tuple(_named(one, outcome.axis) for one in outcome.foreign)
    return OnCard(found, uncuttable=outcome.uncuttable)


def reported(
    cards: Iterable[str], outcomes: Mapping[str, Outcome], before: str | None
) -> Mapping[str, OnCard]:
    """The report of every card.

    Args:
        cards: UUIDs of the node's cards that can be cut.
        before: the current annotation; None without one.
    """
    known: Mapping[str, OnCard] = {}
    otherwise = OnCard(unknown=_UNSEEN)
    if before is not None:
        known, problem = decode_foreign(before)
        otherwise = otherwise if problem else OnCard()
    return {
        card: on_card(outcomes[card]) if card in outcomes else known.get(card, otherwise)
        for card in cards
    }


def _named(one: GpuInstance, axis: MigAxis | None) -> ForeignInstance:
    """An instance by the name of its profile; an unknown number stays a number."""
    profiles = axis.profiles if axis is not None else ()
    name = next((p.name for p in profiles if p.id == one.profile), f"profile {one.profile}")
    uuids = tuple(compute.uuid for compute in one.computes)
    return ForeignInstance(MigSlice(name, one.start, one.size), uuids)
