"""Which big requests keep slots free for themselves, and how many slots their forecast needs."""

from dataclasses import replace
from typing import Final

import numpy as np

from partage.inventory.plane import Bools
from partage.placement.mix import Mix, Stock
from partage.placement.tables import Reserve

_BIG_CPU: Final = 24_000  # milli above which a pod without cards is big
_MOST: Final = 48
_PRIOR: Final = 0.05  # part of the largest nodes kept for unseen whole-node pods
_PRIOR_ROOM: Final = 0.9
_PRIOR_CPU: Final = 0.85


def reserves_of(mix: Mix, stock: Stock) -> tuple[Reserve, ...]:
    """Reserves of pods with several cards or much CPU, heaviest first, at most 48."""
    total = max(1, int(mix.counts.sum()))
    found = [*_seen(mix, stock), *_unseen(mix, stock)]
    found.sort(key=lambda r: -r.need * max(1, r.count))
    kept = found[:_MOST]
    return tuple(replace(r, need=_needed(r, kept) / total) for r in kept)


def _types(stock: Stock) -> list[tuple[int, int, int, int]]:
    rows = zip(
        *(c.tolist() for c in (stock.cpu, stock.memory, stock.cards, stock.model)), strict=True
    )
    return list(dict.fromkeys(rows))


def _seen(mix: Mix, stock: Stock) -> list[Reserve]:
    """Asks grouped by cards, by the types of empty node that can host them, and by models."""
    types = _types(stock)
    groups: dict[object, list[int]] = {}
    for ask in range(mix.counts.size):
        count, cpu, memory = int(mix.cards[ask]), int(mix.cpu[ask]), int(mix.memory[ask])
        if count == 1 or (count == 0 and cpu < _BIG_CPU):
            continue
        hosts = tuple(
            cpu <= c and memory <= m and count <= g and (count == 0 or mix.allowed[ask, model])
            for c, m, g, model in types
        )
        if any(hosts):
            mask = tuple(mix.allowed[ask].tolist()) if count else ()
            groups.setdefault((count, hosts, mask), []).append(ask)
    result = []
    for asks in groups.values():
        count = int(mix.cards[asks[0]])
        result.append(
            Reserve(
                count,
                int(mix.cpu[asks].max()),
                int(mix.memory[asks].max()),
                _names(mix.allowed[asks[0]], stock) if count else (),
                float(mix.counts[asks].sum()),
                int(mix.cpu[asks].min()),
            )
        )
    return result


def _names(allowed: Bools, stock: Stock) -> tuple[str, ...]:
    if allowed.all():
        return ()
    return tuple(m for m, fine in zip(stock.models, allowed.tolist(), strict=True) if fine)


def _unseen(mix: Mix, stock: Stock) -> list[Reserve]:
    """A small part of every largest type of node, for unseen shapes."""
    types = _types(stock)
    pods = stock.capacity / max(1.0, float(mix.demand.sum()) / max(1, int(mix.counts.sum())))
    result = []
    for one in types:
        cpu, memory, cards, model = one
        larger = any(
            o[:3] != one[:3] and o[0] >= cpu and o[1] >= memory and o[2] >= cards for o in types
        )
        if cards < 2 or larger:
            continue
        same = (stock.cpu == cpu) & (stock.memory == memory) & (stock.cards == cards)
        nodes = int(np.count_nonzero(same & (stock.model == model)))
        wanted = _PRIOR * nodes / max(pods, 1.0) * int(mix.counts.sum())
        room = int(_PRIOR_ROOM * cpu)
        names = (stock.models[model],)
        least = -(-int(_PRIOR_CPU * 1000) * room // 1000)
        result.append(Reserve(cards, room, int(_PRIOR_ROOM * memory), names, wanted, least))
    return result


def _needed(mine: Reserve, all_: list[Reserve]) -> float:
    """Slots of a reserve that its own pods and those of larger ones need."""
    return sum(
        r.need * max(1, r.count // max(1, mine.count))
        for r in all_
        if r is mine or _covers(r, mine)
    )


def _covers(larger: Reserve, mine: Reserve) -> bool:
    if mine.count == 0:
        return larger.count == 0 and larger.cpu_milli >= mine.cpu_milli
    fits = not mine.models or (bool(larger.models) and set(larger.models) <= set(mine.models))
    return larger.count >= mine.count and larger.cpu_milli >= mine.cpu_milli and fits
