"""The plain twin of `scoring.score`: how good one node is for a request, written card by card.

It is the reference for Partage's own strategies, as `card` is for the rules; a law under test keeps
the two equal to the last digit. It takes what the columns hold: what cards have left before the pod
comes.
"""

from collections.abc import Sequence
from typing import Final

from partage.inventory.ledger import UNCHECKED, Card, Ledger
from partage.model.device import MILLI, DeviceType
from partage.model.policy import Strategy
from partage.model.request import DeviceRequest
from partage.placement.card import need_of

__all__ = ["host_score", "score"]

_MILLION: Final = 1_000_000
_MOST_LEFT: Final = 4 * MILLI
_MOST_CARDS: Final = 64


def score(
    cards: Sequence[Card], serving: Sequence[Card], request: DeviceRequest, strategy: Strategy
) -> int:
    """How good a node is; higher is better, never negative.

    Args:
        cards: all cards of the request's type.
        serving: those that serve the request.
        request: the pod's first device request.
        strategy: between nodes.
    """
    if strategy is Strategy.FIRST_FIT:
        return 0
    usage = _usage(cards)
    if strategy is Strategy.SPREAD:
        return 2 * _MILLION - usage
    if strategy is Strategy.BINPACK:
        return usage
    if request.whole:
        return (_MOST_CARDS - min(len(serving), _MOST_CARDS)) * 4 * _MILLION + usage
    best = min((_left(card, request) for card in serving), default=_MOST_LEFT)
    return max(_MOST_LEFT - best, 0) * 4 * _MILLION + usage


def host_score(ledger: Ledger, index: int, strategy: Strategy) -> int:
    """How good a node is for a pod without devices: by its CPU and memory."""
    if strategy is Strategy.FIRST_FIT:
        return 0
    usage = 0
    for resource in ("cpu", "memory"):
        total = int(ledger.host_total[resource][index])
        free = min(max(int(ledger.host_free[resource][index]), 0), total)
        usage += 0 if total >= UNCHECKED else _part(total - free, total)
    if strategy is Strategy.SPREAD:
        return 2 * _MILLION - usage
    if strategy is Strategy.BINPACK:
        return usage
    plain = not any(ledger.cards(type_, index) for type_ in DeviceType)
    return 4 * _MILLION * plain + usage


def _left(card: Card, request: DeviceRequest) -> int:
    """What the request leaves of the card: compute and memory, each in thousandths."""
    need = need_of(card, request)
    spare = (card.memory_free - need.memory_bytes) * MILLI // max(card.device.memory_bytes, 1)
    return card.core_free - need.core_milli + spare


def _usage(cards: Sequence[Card]) -> int:
    """Used compute plus used memory of the cards, in millionths of each."""
    total_core = sum(card.device.core_milli for card in cards)
    total_memory = sum(card.device.memory_bytes for card in cards)
    core = min(max(sum(card.core_free for card in cards), 0), total_core)
    memory = min(max(sum(card.memory_free for card in cards), 0), total_memory)
    return _part(total_core - core, total_core) + _part(total_memory - memory, total_memory)


def _part(part: int, whole: int) -> int:
    """`part` in millionths of `whole`; both are scaled down where huge, as columns must be."""
    scale = 1 << 20 if whole >> 40 else 1
    return (part // scale) * _MILLION // max(whole // scale, 1)
