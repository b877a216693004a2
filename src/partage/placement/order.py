"""The order in which the fitting cards of a node are tried."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from partage.inventory.card import Card
from partage.model.device import MILLI
from partage.model.node import Node
from partage.model.policy import CardOrder, CardWeights, Scoring, Strategy
from partage.model.request import DeviceRequest
from partage.placement.card import Work, bare_amounts, need_of

_MILLION: Final = 1_000_000
_DEFAULT_WEIGHTS: Final = CardWeights(slot=0, core=1, memory=1)
_MOST_COMBINATIONS: Final = 20_000
_LOOKED_UP: Final = 8
_ADDED_UP: Final = 1_000
"""Link look-ups, and sums of links of two cards, for one unit of work."""


def ordered(
    cards: Sequence[Card],
    request: DeviceRequest,
    order: CardOrder,
    strategy: Strategy,
    ranking: Mapping[int, int] | None = None,
    scoring: Scoring = Scoring(),  # noqa: B008 # frozen
) -> list[Card]:
    """The cards, best first; equal ones stay in the order of their minors.

    Binpack prefers the most used card, spread the least used one, the default the one that the request leaves with
    least. Whole cards under binpack and the default prefer small memory, so that larger cards stay free for requests
    that need them. This is not so under binpack if the protocol counts sharers, because its own scheduler finds idle
    cards equal.

    Args:
        ranking: score of each row by a strategy that scores cards itself; higher is better.
    """
    strategy = order.strategy or strategy
    plain = ranking is None and not order.by_numa and not order.then_numa
    bare = bare_amounts(request) if plain and strategy is Strategy.PARTAGE else None
    if bare is not None:
        # As below, with values common to all cards computed once: a search asks this most often.
        core, memory = bare
        return sorted(
            cards,
            key=lambda card: (
                card.core_free
                - core
                + (
                    (card.memory_free - memory) * MILLI // card.device.memory_bytes
                    if card.device.memory_bytes
                    else 0
                ),
                card.device.minor,
            ),
        )
    weights = order.weights or (CardWeights() if scoring.sharers else _DEFAULT_WEIGHTS)
    smallest = request.whole and not (scoring.sharers and strategy is Strategy.BINPACK)

    def worth(card: Card) -> int:
        if ranking is not None and order.strategy is None:
            return -ranking.get(card.row, 0)
        if strategy is Strategy.FIRST_FIT:
            return 0
        if strategy is Strategy.SPREAD:
            return used(card, weights)
        if smallest:
            return card.device.memory_bytes
        return left(card, request) if strategy is Strategy.PARTAGE else -used(card, weights)

    def key(card: Card) -> tuple[int, int, int, int]:
        numa = card.device.topology.numa if card.device.topology else 0
        first, then = numa * order.by_numa, numa * order.then_numa
        return first, worth(card), then, card.device.minor

    return sorted(cards, key=key)


def used(card: Card, weights: CardWeights) -> int:
    """The used part of the card, in millionths, weighted over slots, compute and memory."""
    device = card.device
    total = _share(card.tenants, device.slots) * weights.slot
    total += _share(device.core_milli - card.core_free, device.core_milli) * weights.core
    total += _share(device.memory_bytes - card.memory_free, device.memory_bytes) * weights.memory
    return total


def left(card: Card, request: DeviceRequest) -> int:
    """The amounts that the request would leave on the card: compute and memory, each in thousandths."""
    need, device = need_of(card.device, request), card.device
    memory = card.memory_free - need.memory_bytes
    spare = memory * MILLI // device.memory_bytes if device.memory_bytes else 0
    return card.core_free - need.core_milli + spare


def best_linked(cards: Sequence[Card], count: int, node: Node, work: Work) -> list[Card]:
    """The set of cards with the best links; for one card the one with the worst links.

    Well-linked cards are kept for pods that use several (docs/sources/hami.md 4.3, topology-aware). With more
    than twenty thousand combinations the first cards in the given order are taken.
    """
    names = [card.device.uuid for card in cards]
    links = np.zeros((len(names), len(names)), np.int64)
    for one, left_name in enumerate(names):
        for two in range(one):
            pair = min(left_name, names[two]), max(left_name, names[two])
            links[one, two] = links[two, one] = node.links.get(pair, 0)
    sets = comb(len(cards), count)
    work.done += len(names) ** 2 // _LOOKED_UP
    if count == 1:
        return [cards[int(links.sum(axis=1).argmin())]]
    if sets > _MOST_COMBINATIONS:
        return list(cards[:count])
    work.done += sets * comb(count, 2) // _ADDED_UP
    members = _sets_of(len(cards), count)
    worth = np.zeros(sets, np.int64)
    for one, two in combinations(range(count), 2):
        worth += links[members[:, one], members[:, two]]
    return [cards[i] for i in members[int(worth.argmax())]]


@lru_cache(maxsize=32)
def _sets_of(cards: int, count: int) -> NDArray[np.int8]:
    """Every set of `count` cards, in order; shape (sets, count)."""
    flat = chain.from_iterable(combinations(range(cards), count))
    return np.fromiter(flat, np.int8).reshape(-1, count)


def _share(part: int, whole: int) -> int:
    return part * _MILLION // whole if whole else 0
