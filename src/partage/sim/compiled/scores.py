"""Strategies that use only the books; see `placement.baselines` and `placement.node`."""

from typing import Final

from partage.inventory.plane import Bools, Ints
from partage.placement.jit import compiled
from partage.sim.compiled.columns import Found, Host, Used, Wanted

_BESTFIT, _DOTPROD, _PACKING, _CLUSTERING, _BINPACK, _SPREAD, _FGD, _PARTAGE = range(1, 9)

_RANKS: Final = 2**20
_OFFSET: Final = 1 << 32
_MOST: Final = (1 << 33) - 1
_UNCHECKED: Final = 2**62
_UNKNOWN: Final = 2**61
_MILLION: Final = 1_000_000


@compiled
def _packing(left: Ints, present: int, count: int, milli: int) -> int:
    """GpuPacking; `left` is scratch, one entry a card position."""
    free = fresh = rest = taken = 0
    for g in range(left.size):
        free += left[g] >= 1000
    if free == present:
        return max(33 - free, free)
    while taken < count:  # tightest first
        best = -1
        for g in range(left.size):
            if left[g] >= milli and (best < 0 or left[g] < left[best]):
                best = g
        if best < 0:
            break
        fresh += left[best] >= 1000
        rest += left[best] * 100 // 1000
        left[best] = -1
        taken += 1
    return max(50 - fresh, 33) if fresh > 0 else max(100 - rest // 10, 50)


@compiled
def _clustering(hosted: int, mine: int, total: int) -> int:
    score = max(25 * (8000 - total), 0) // 8000
    if hosted & mine:
        return score + (75 if hosted == mine else 50)
    return score + (25 if hosted == 0 else 0)


@compiled
def _norm(strategy: int, cpu: int, cpu_asked: int, total: int, milli: int) -> int:
    """BestFit and DotProd; `milli` is the total that all cards give."""
    told = 0 if cpu >= _UNKNOWN else cpu
    if strategy == _BESTFIT:
        rest = (told - cpu_asked) / 128000.0 * 0.5
        rest += (total - milli) / 8000.0 * 0.5
        score = int((1 - rest) * 100.0)
    else:
        product = (told / 128000.0) * (cpu_asked / 128000.0)
        product += (total / 8000.0) * (milli / 8000.0)
        score = int(100.0 * (1 - product / 2.0))
    return min(max(score + _OFFSET, 0), _MOST)


@compiled
def _used(total: int, free: int) -> int:
    """The used part, in millionths, without overflow: huge values of both are scaled down."""
    scale = 1 << 20 if total >> 40 > 0 else 1
    used = total - min(max(free, 0), total)
    return (used // scale) * _MILLION // max(total // scale, 1)


@compiled
def _usage(
    i: int, core_free: Ints, core_total: Ints, memory_free: Ints, memory_total: Ints
) -> int:
    """The used part of a node's cards, compute and memory in millionths of each."""
    core = core_all = memory = memory_all = 0
    for g in range(core_free.shape[0]):
        core += core_free[g, i]
        core_all += core_total[g, i]
        memory += memory_free[g, i]
        memory_all += memory_total[g, i]
    return _used(core_all, core) + _used(memory_all, memory)


@compiled
def node_scores(
    many: int,
    found: Found,
    value: Ints,
    strategy: int,
    wanted: Wanted,
    host: Host,
    hosted: Ints,
    bare: Bools,
    cards: Used,
    have: Ints,
) -> None:
    """Add the score of the first `many` nodes found to their value.

    `hosted`: the kinds of pod on them. `bare`: which have no devices. `have`: scratch, one entry a card position.
    """
    chosen, _ = found
    count, milli, whole, cpu_asked, _ = wanted
    open_, core_free, core_total, card_free, card_total, kind = cards
    cpu_free, cpu_total, memory_free, memory_total = host
    size = open_.shape[0]
    mine = 1 << min(count, 62) if whole else 1
    for n in range(many):
        i = chosen[n]
        score = 0
        if strategy in (_BINPACK, _SPREAD):
            if count:
                score = _usage(i, core_free, core_total, card_free, card_total)
            else:
                for free, total in (
                    (cpu_free[i], cpu_total[i]),
                    (memory_free[i], memory_total[i]),
                ):
                    if total < _UNCHECKED:
                        score += _used(total, free)
            if strategy == _SPREAD:
                score = 2 * _MILLION - score
        elif strategy == _PARTAGE:
            score = 1 if bare[i] and not count else 0
        else:
            total = known = 0
            for g in range(size):
                have[g] = core_free[g, i] if open_[g, i] else 0
                total += have[g]
                known += kind[g, i] > 0
            if strategy == _PACKING:
                score = _packing(have, known, count, milli) if count else 0
            elif strategy == _CLUSTERING:
                score = _clustering(hosted[i], mine, total) if count else 0
            else:
                score = _norm(strategy, cpu_free[i], cpu_asked, total, count * milli)
        value[i] += score * _RANKS
