"""The plain twin of `node_scores`: how good one node is for a request, written card by card.

It is the reference for Partage's own strategies, as `card` is for the rules; a law under test keeps
the two equal to the last digit. It takes what the columns hold: what cards have left before the pod
comes.
"""

from collections.abc import Sequence
from typing import Final

from partage.inventory.card import Card
from partage.inventory.columns import UNCHECKED
from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType
from partage.model.policy import Scoring, Strategy

__all__ = ["host_score", "score"]

_MILLION: Final = 1_000_000


def score(cards: Sequence[Card], strategy: Strategy, scoring: Scoring = Scoring()) -> int:  # noqa: B008 # frozen
    """How good a node is; higher is better, never negative.

    Args:
        cards: all cards of the request's type.
        strategy: between nodes.
        scoring: what the pod's protocol compares.
    """
    if strategy in (Strategy.FIRST_FIT, Strategy.PARTAGE):
        return 0
    if strategy is Strategy.SPREAD and scoring.left:
        return sum(map(_left, cards))
    usage, most = _usage(cards), 2 * _MILLION
    if scoring.sharers:
        slots = sum(card.device.slots for card in cards)
        usage += _part(min(sum(card.tenants for card in cards), slots), slots)
        most += _MILLION
    return most - usage if strategy is Strategy.SPREAD else usage


def host_score(ledger: Ledger, index: int, strategy: Strategy) -> int:
    """How good a node is for a pod without devices: by its CPU and memory."""
    if strategy is Strategy.FIRST_FIT:
        return 0
    if strategy is Strategy.PARTAGE:
        return int(not any(ledger.cards(type_, index) for type_ in DeviceType))
    usage = 0
    for resource in ("cpu", "memory"):
        total = int(ledger.host_total[resource][index])
        free = min(max(int(ledger.host_free[resource][index]), 0), total)
        usage += 0 if total >= UNCHECKED else _part(total - free, total)
    return 2 * _MILLION - usage if strategy is Strategy.SPREAD else usage


def _usage(cards: Sequence[Card]) -> int:
    """Used compute plus used memory of the cards, in millionths of each."""
    total_core = sum(card.device.core_milli for card in cards)
    total_memory = sum(card.device.memory_bytes for card in cards)
    core = min(max(sum(card.core_free for card in cards), 0), total_core)
    memory = min(max(sum(card.memory_free for card in cards), 0), total_memory)
    return _part(total_core - core, total_core) + _part(total_memory - memory, total_memory)


def _left(card: Card) -> int:
    """Compute plus memory that a card has left, in millionths of each."""
    if card.closed is not None:
        return 0
    device = card.device
    core = min(max(card.core_free, 0), device.core_milli)
    memory = min(max(card.memory_free, 0), device.memory_bytes)
    return _part(core, device.core_milli) + _part(memory, device.memory_bytes)


def _part(part: int, whole: int) -> int:
    """`part` in millionths of `whole`; both are scaled down where huge, as columns must be."""
    scale = 1 << 20 if whole >> 40 else 1
    return (part // scale) * _MILLION // max(whole // scale, 1)
