"""Replays arrivals on arrays alone, node by node: the loops in which rehearsals run.

They take the same decisions as the engine takes for such pods (a law under test). They do the same checks, and the same
floating-point operations in the same order as `priced`, `slot_reservation` and `fragmentation`. Without numba nothing
is rehearsed because a rehearsal would take minutes.

Nodes are in the order of preference. No pod leaves during a rehearsal, so a node without room for a request never has
room for it again.
"""

from typing import Final, NamedTuple

import numpy as np

from partage.inventory.plane import Bools, Floats, Ints
from partage.placement.jit import compiled

NOWHERE: Final = 2**62
"""Key of a node without room."""
BEHIND: Final = 2**50
"""Added to the keys of places that take a slot from a short reserve."""
BIN: Final = 15.0
OFFSET: Final = 128
MOST_BIN: Final = 2**10 - 1
MOST_NODE: Final = 2**13 - 1
MOST_CARD: Final = 2**10 - 1
MANY: Final = 2**20
WHOLE: Final = 200
"""The largest sum of kube-scheduler's two scores of a node."""
MARGIN: Final = 3.0
"""Those of `priced` and `slot_reservation`; the tests check that they are equal."""


class Books(NamedTuple):
    """Nodes in the order of preference; a replay writes the first three columns.

    CPU left (milli), memory left (MiB), compute left by node and card (milli), number of cards,
    row of their model, and CPU and memory of the empty node.
    """

    cpu: Ints
    memory: Ints
    left: Ints
    cards: Ints
    model: Ints
    room_cpu: Ints
    room_memory: Ints


class Asked(NamedTuple):
    """Requests: CPU (milli), memory (MiB), cards, compute of each (milli), (asks, models) allowed.

    Then whether kube-scheduler places such pods by its own scores.
    """

    cpu: Ints
    memory: Ints
    cards: Ints
    milli: Ints
    allowed: Bools
    elsewhere: Bools


class Worth(NamedTuple):
    """Prices: worth by model, hundredths and pair, and the pairs.

    Then the scarcity cost of a milli of each model, and the worth of a number of idle cards on one node as a set.
    """

    worth: Floats
    core: Floats
    gib: Floats
    scarce: Floats
    bonus: Floats


class Kept(NamedTuple):
    """Reserves: cards, CPU, memory, (reserves, models) allowed.

    Then which (asks, reserves) may take slots, slots wanted for each pod to come, and the mean
    compute of a pod.
    """

    cards: Ints
    cpu: Ints
    memory: Ints
    allowed: Bools
    free: Bools
    need: Floats
    milli: float


class Usual(NamedTuple):
    """FGD's usual requests as in a lens, but by model instead of kind of card."""

    cpu: Ints
    cards: Ints
    chance: Floats
    milli: Ints
    allowed: Bools
    plain_cpu: Ints
    plain_chance: Floats
    points: Floats


@compiled
def _fits(cpu: int, memory: int, cards: int, milli: int, books: Books, i: int) -> bool:
    free_cpu, free_memory, left, size = books[:4]
    if cpu > free_cpu[i] or memory > free_memory[i]:
        return False
    found = 0
    for g in range(size[i]):
        found += left[i, g] >= milli
    return found >= cards


@compiled
def _take(cpu: int, memory: int, cards: int, milli: int, card: int, books: Books, i: int) -> None:
    """Take a pod's share: of `card` and, if it asks more, of the first others that fit."""
    free_cpu, free_memory, left, size = books[:4]
    free_cpu[i] -= cpu
    free_memory[i] -= memory
    if cards > 0 and card >= 0:
        left[i, card] -= milli
        cards -= 1
    for g in range(size[i]):
        if cards > 0 and g != card and left[i, g] >= milli:
            left[i, g] -= milli
            cards -= 1


@compiled
def _spread(cpu: int, memory: int, books: Books, i: int) -> int:
    """Key of a node by kube-scheduler's own scores: most left of CPU and memory, and balance of both."""
    free_cpu, free_memory, _, _, _, room_cpu, room_memory = books
    cores = (free_cpu[i] - cpu) / max(room_cpu[i], 1)
    mib = (free_memory[i] - memory) / max(room_memory[i], 1)
    left = np.floor(50 * (cores + mib))
    alike = np.floor(100 - 50 * abs(cores - mib))
    return int(WHOLE - left - alike)


@compiled
def _least(core: Floats, gib: Floats, cores: float, memory: float, sums: Floats) -> float:
    best = np.inf
    for p in range(core.size):
        value = core[p] * cores + gib[p] * memory + sums[p]
        best = min(best, value)
    return best


@compiled
def _least_after(
    core: Floats,
    gib: Floats,
    cores: float,
    memory: float,
    sums: Floats,
    times: int,
    after: Floats,
    before: Floats,
) -> float:
    """`_least` after `times` cards went from one remainder to another."""
    best = np.inf
    for p in range(core.size):
        change = times * (after[p] - before[p])
        value = core[p] * cores + gib[p] * memory + (sums[p] + change)
        best = min(best, value)
    return best


@compiled
def _key(loss: float, node: int, card: int) -> int:
    bins = int(np.floor(loss / BIN + 0.5)) + OFFSET
    bins = max(0, min(bins, MOST_BIN))
    return (bins << 23) | (min(node, MOST_NODE) << 10) | min(card, MOST_CARD)


@compiled
def _slots(kept: Kept, b: int, free_cpu: int, free_memory: int, idle: int) -> int:
    """Pods of a reserve for which there is room."""
    cards, cpu, memory, slots = kept.cards[b], kept.cpu[b], kept.memory[b], MANY
    if cards > 0:
        slots = min(slots, idle // cards)
    if cpu > 0:
        slots = min(slots, free_cpu // cpu)
    if memory > 0:
        slots = min(slots, free_memory // memory)
    return slots


@compiled
def _idle(left: Ints, cards: int) -> int:
    idle = 0
    for g in range(cards):
        idle += left[g] >= 1000
    return idle


@compiled
def _supply(sign: int, supply: Ints, kept: Kept, books: Books, i: int) -> None:
    """Add a node's slots to those of each reserve, or subtract them."""
    idle = _idle(books.left[i], books.cards[i])
    for b in range(supply.size):
        if kept.allowed[b, books.model[i]]:
            supply[b] += sign * _slots(kept, b, books.cpu[i], books.memory[i], idle)


@compiled
def play_priced(
    arrivals: Ints, books: Books, asked: Asked, worth: Worth, kept: Kept, node: Ints
) -> None:
    """Place arrivals by prices and reserves.

    Args:
        arrivals: row of each one's request.
        books: the free amounts; written.
        asked: the requests.
        worth: the prices.
        kept: the reserves.
        node: row of the node of each arrival, -1 for none; written.
    """
    free_cpu, free_memory, left, size, model = books[:5]
    a_cpu, a_memory, a_cards, a_milli, a_allowed, elsewhere = asked
    table, core, gib, scarce, bonus = worth
    _, _, _, r_allowed, r_free, need, pod_milli = kept
    nodes, pairs, reserves = free_cpu.size, core.size, need.size
    sums, value = np.zeros((nodes, pairs)), np.zeros(nodes)
    supply = np.zeros(reserves, np.int64)
    total = 0
    for i in range(nodes):
        m = model[i]
        for g in range(size[i]):
            total += left[i, g]
            for p in range(pairs):
                sums[i, p] += table[m, left[i, g] // 10, p]
        value[i] = _least(core, gib, free_cpu[i] / 1000, free_memory[i] / 1024, sums[i])
        _supply(1, supply, kept, books, i)
    keys = np.full((a_cpu.size, nodes), -1, np.int64)
    taken = np.full((a_cpu.size, nodes), -1, np.int64)
    flags = np.zeros((a_cpu.size, nodes), np.int64)
    seen = np.full(a_cpu.size, -1, np.int64)
    full = np.zeros(a_cpu.size, np.bool_)
    log = np.zeros(arrivals.size, np.int64)
    latest = np.full(nodes, -1, np.int64)
    changes = 0
    for number in range(arrivals.size):
        k = arrivals[number]
        node[number] = -1
        if full[k]:
            continue
        cpu, memory, cards, milli = a_cpu[k], a_memory[k], a_cards[k], a_milli[k]
        # 1. The nodes that have changed since the request's last turn.
        start = seen[k]
        seen[k] = changes
        for step in range(nodes if start < 0 else changes - start):
            i = step if start < 0 else log[start + step]
            if keys[k, i] == NOWHERE or (start >= 0 and latest[i] != start + step):
                continue
            m = model[i]
            barred = cards > 0 and not a_allowed[k, m]
            if barred or not _fits(cpu, memory, cards, milli, books, i):
                keys[k, i] = NOWHERE
                continue
            if elsewhere[k]:
                keys[k, i] = _spread(cpu, memory, books, i)
                continue
            rest = 0
            for g in range(size[i]):
                rest += left[i, g]
            rest -= cards * milli
            idle = _idle(left[i], size[i])
            cores, mib = (free_cpu[i] - cpu) / 1000, (free_memory[i] - memory) / 1024
            best, chosen, after = NOWHERE, -1, idle
            if cards == 0 or milli >= 1000:
                loss = value[i] - _least_after(
                    core, gib, cores, mib, sums[i], cards, table[m, 0], table[m, 100]
                )
                if cards > 0:
                    loss += scarce[m] * (cards * 1000)
                    loss += bonus[idle] - bonus[max(idle - cards, 0)]
                best, after = _key(loss, rest, 0), idle - cards
            else:
                for g in range(size[i]):
                    have = left[i, g]
                    fresh = have >= milli
                    for other in range(g):  # cards with as much left have the same worth
                        fresh = fresh and left[i, other] != have
                    if not fresh:
                        continue
                    then, now = table[m, (have - milli) // 10], table[m, have // 10]
                    loss = value[i] - _least_after(core, gib, cores, mib, sums[i], 1, then, now)
                    loss += scarce[m] * (cards * milli)
                    opened = have >= 1000
                    loss += bonus[idle] - bonus[max(idle - opened, 0)]
                    key = _key(loss, rest, have - milli)
                    if key < best:
                        best, chosen, after = key, g, idle - opened
            keys[k, i], taken[k, i] = best, chosen
            bits = 0
            for b in range(reserves):
                if r_free[k, b] or not r_allowed[b, m]:
                    continue
                before = _slots(kept, b, free_cpu[i], free_memory[i], idle)
                if before > 0 and before > _slots(
                    kept, b, free_cpu[i] - cpu, free_memory[i] - memory, after
                ):
                    bits |= 1 << b
            flags[k, i] = bits
        # 2. The reserves that are short now, and the best place.
        short = 0
        for b in range(reserves):
            wanted = need[b] * (total / pod_milli)
            if wanted > 0 and supply[b] <= wanted + MARGIN * np.sqrt(wanted):
                short |= 1 << b
        top, found = NOWHERE, -1
        for i in range(nodes):
            key = keys[k, i]
            if key != NOWHERE and flags[k, i] & short:
                key += BEHIND
            if key < top:
                top, found = key, i
        if found < 0:
            full[k] = True
            continue
        # 3. The place is taken.
        i, m = found, model[found]
        _supply(-1, supply, kept, books, i)
        _take(cpu, memory, cards, milli, taken[k, i], books, i)
        total -= cards * milli
        _supply(1, supply, kept, books, i)
        sums[i, :] = 0.0
        for g in range(size[i]):
            for p in range(pairs):
                sums[i, p] += table[m, left[i, g] // 10, p]
        value[i] = _least(core, gib, free_cpu[i] / 1000, free_memory[i] / 1024, sums[i])
        node[number] = i
        latest[i] = changes
        log[changes] = i
        changes += 1


@compiled
def play_first_fit(arrivals: Ints, books: Books, asked: Asked, node: Ints) -> None:
    """Place arrivals on the first node that fits, and its first fitting cards."""
    a_cpu, a_memory, a_cards, a_milli, a_allowed, elsewhere = asked
    first = np.zeros(a_cpu.size, np.int64)  # nodes before it have no room, now or ever
    for number in range(arrivals.size):
        k = arrivals[number]
        cpu, memory, cards, milli = a_cpu[k], a_memory[k], a_cards[k], a_milli[k]
        node[number] = -1
        if elsewhere[k]:
            found, top = -1, NOWHERE
            for i in range(books.cpu.size):
                if _fits(cpu, memory, 0, 0, books, i):
                    key = _spread(cpu, memory, books, i)
                    if key < top:
                        found, top = i, key
            if found >= 0:
                _take(cpu, memory, 0, 0, -1, books, found)
                node[number] = found
            continue
        while first[k] < books.cpu.size:
            i = first[k]
            barred = cards > 0 and not a_allowed[k, books.model[i]]
            if not barred and _fits(cpu, memory, cards, milli, books, i):
                _take(cpu, memory, cards, milli, -1, books, i)
                node[number] = i
                break
            first[k] += 1


@compiled
def _fragmentation(cpu: int, left: Ints, cards: int, model: int, usual: Usual) -> float:
    """Fragmentation of a node; the sums in the published order, see `fragmentation`."""
    s_cpu, s_cards, chance, s_milli, allowed, p_cpu, p_chance, _ = usual
    both = lacking = starved = spare = blocked = barred = 0.0
    total = 0
    for g in range(cards):
        total += left[g]
    for k in range(s_cpu.size):
        everything = chance[k] * total
        if not allowed[k, model]:
            barred += everything
            continue
        found = small = 0
        for g in range(cards):
            if left[g] >= s_milli[k]:
                found += 1
            else:
                small += left[g]
        enough = found >= s_cards[k]
        if cpu >= s_cpu[k]:
            lacking += chance[k] * small if enough else everything
        elif enough:
            starved += everything
        else:
            both += everything
    for k in range(p_cpu.size):
        everything = p_chance[k] * total
        if cpu >= p_cpu[k]:
            spare += everything
        else:
            blocked += everything
    return ((((both + lacking) + starved) + spare) + blocked) + barred


@compiled
def play_fragmentation(
    arrivals: Ints, books: Books, asked: Asked, usual: Usual, node: Ints
) -> None:
    """Place arrivals by FGD."""
    free_cpu, _, left, size, model = books[:5]
    a_cpu, a_memory, a_cards, a_milli, a_allowed, elsewhere = asked
    nodes, steps = free_cpu.size, usual.points
    frag = np.zeros(nodes)
    for i in range(nodes):
        frag[i] = _fragmentation(free_cpu[i], left[i], size[i], model[i], usual)
    keys = np.full((a_cpu.size, nodes), -1, np.int64)
    taken = np.full((a_cpu.size, nodes), -1, np.int64)
    seen = np.full(a_cpu.size, -1, np.int64)
    full = np.zeros(a_cpu.size, np.bool_)
    log = np.zeros(arrivals.size, np.int64)
    latest = np.full(nodes, -1, np.int64)
    changes = 0
    for number in range(arrivals.size):
        k = arrivals[number]
        node[number] = -1
        if full[k]:
            continue
        cpu, memory, cards, milli = a_cpu[k], a_memory[k], a_cards[k], a_milli[k]
        start = seen[k]
        seen[k] = changes
        for step in range(nodes if start < 0 else changes - start):
            i = step if start < 0 else log[start + step]
            if keys[k, i] == NOWHERE or (start >= 0 and latest[i] != start + step):
                continue
            m = model[i]
            barred = cards > 0 and not a_allowed[k, m]
            if barred or not _fits(cpu, memory, cards, milli, books, i):
                keys[k, i] = NOWHERE
                continue
            if elsewhere[k]:
                keys[k, i] = _spread(cpu, memory, books, i)
                continue
            best, chosen = -1, -1
            trial = left[i].copy()
            if cards == 0 or milli >= 1000:
                wanted = cards
                for g in range(size[i]):
                    if wanted > 0 and trial[g] >= 1000:
                        trial[g] -= 1000
                        wanted -= 1
                after = _fragmentation(free_cpu[i] - cpu, trial, size[i], m, usual)
                best = np.searchsorted(steps, frag[i] - after, side="right")
            else:
                for g in range(size[i]):
                    if trial[g] < milli:
                        continue
                    trial[g] -= milli
                    after = _fragmentation(free_cpu[i] - cpu, trial, size[i], m, usual)
                    trial[g] += milli
                    points = np.searchsorted(steps, frag[i] - after, side="right")
                    if points > best:
                        best, chosen = points, g
            keys[k, i], taken[k, i] = steps.size - best, chosen
        top, found = NOWHERE, -1
        for i in range(nodes):
            if keys[k, i] < top:
                top, found = keys[k, i], i
        if found < 0:
            full[k] = True
            continue
        _take(cpu, memory, cards, milli, taken[k, found], books, found)
        frag[found] = _fragmentation(
            free_cpu[found], left[found], size[found], model[found], usual
        )
        node[number] = found
        latest[found] = changes
        log[changes] = found
        changes += 1
