"""Replays arrivals on arrays alone, node by node: the loops in which rehearsals run.

They take the same decisions as the engine takes for such pods (a law under test). They do the same checks, and the same
floating-point operations in the same order as `priced`, `slot_reservation` and `fragmentation`. Without numba nothing
is rehearsed because a rehearsal would take minutes.

Nodes are in the order of preference. No pod leaves during a rehearsal, so a node without room for a request never has
room for it again.

Each request keeps a key for every node, and the least key wins. Most nodes never win, so their keys are lower bounds: a
node's value is the least over many pairs of prices, and one pair gives a bound. The true key is computed only for a
node whose bound is the least.
"""

from typing import Final, NamedTuple

import numpy as np

from partage.inventory.plane import Bools, Floats, Ints
from partage.placement.jit import compiled

NOWHERE: Final = 2**62
"""Key of a node without room."""
BEHIND: Final = 2**54
"""Added to the keys of places that take a slot from a short reserve."""
NODES: Final = 20  # bits of a key for its node, behind the score; then one for a bound
ROUGH: Final = 1
"""Bit of a key that is a lower bound."""
BLOCK: Final = 64  # nodes whose least key is found at once
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


class Notes(NamedTuple):
    """Arrays of a replay for its own use.

    For each request and node the key, the chosen card, and a bit for each reserve that loses a slot. For each request
    the changes that it has seen, whether no node has room, and a pair of prices that decided. The changed node of each
    change. For each node its latest change, the worth of its cards by pair, its value (or fragmentation), the pair that
    decides it, its compute left, its idle cards and its slots by reserve. The slots of each reserve. The least key of
    each block of nodes. For each node and usual request the cards with room for it, and what the others have left.
    """

    keys: Ints
    taken: Ints
    flags: Ints
    seen: Ints
    full: Bools
    hint: Ints
    log: Ints
    latest: Ints
    sums: Floats
    value: Floats
    lowest: Ints
    rest: Ints
    idle: Ints
    slots: Ints
    supply: Ints
    tops: Ints
    found: Ints
    small: Ints


def notes(
    arrivals: Ints, books: Books, asked: Asked, pairs: int = 0, reserves: int = 0, usual: int = 0
) -> Notes:
    """Empty notes for a replay with so many pairs of prices, reserves and usual requests."""
    asks, nodes = asked.cpu.size, books.cpu.size
    keys, taken = (np.full((asks, nodes), -1, np.int64) for _ in range(2))
    seen, latest = (np.full(size, -1, np.int64) for size in (asks, nodes))
    hint, log, lowest, rest, idle, supply, tops = (
        np.zeros(size, np.int64)
        for size in (asks, arrivals.size, nodes, nodes, nodes, reserves, -(-nodes // BLOCK))
    )
    flags, full = np.zeros((asks, nodes), np.int64), np.zeros(asks, np.bool_)
    sums, value = np.zeros((nodes, pairs)), np.zeros(nodes)
    slots = np.zeros((nodes, reserves), np.int64)
    found, small = (np.zeros((nodes, usual), np.int64) for _ in range(2))
    first = keys, taken, flags, seen, full, hint, log, latest
    return Notes(*first, sums, value, lowest, rest, idle, slots, supply, tops, found, small)


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
def _least(core: Floats, gib: Floats, cores: float, memory: float, sums: Floats) -> int:
    """The pair of prices at which a node is worth least, the first of equals."""
    best = np.inf
    for p in range(core.size):
        value = core[p] * cores + gib[p] * memory + sums[p]
        best = min(best, value)
    for p in range(core.size):
        if core[p] * cores + gib[p] * memory + sums[p] == best:
            return p
    return 0


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
def _counted(left: Ints, cards: int) -> tuple[int, int]:
    """Compute left on a node's cards, and the number of idle ones."""
    total = idle = 0
    for g in range(cards):
        total += left[g]
        idle += left[g] >= 1000
    return total, idle


@compiled
def _recount(worth: Worth, kept: Kept, mine: Notes, books: Books, i: int) -> None:
    """Count what a node has left, its value with the pair that decides it, and its slots with those of each reserve."""
    free_cpu, free_memory, left, size, model = books[:5]
    table, core, gib, _, _ = worth
    sums, slots, supply = mine.sums[i], mine.slots[i], mine.supply
    mine.rest[i], mine.idle[i] = _counted(left[i], size[i])
    sums[:] = 0.0
    for g in range(size[i]):
        row = table[model[i], left[i, g] // 10]
        for p in range(core.size):
            sums[p] += row[p]
    cores, memory = free_cpu[i] / 1000, free_memory[i] / 1024
    at = _least(core, gib, cores, memory, sums)
    mine.lowest[i], mine.value[i] = at, core[at] * cores + gib[at] * memory + sums[at]
    for b in range(supply.size):
        if kept.allowed[b, model[i]]:
            now = _slots(kept, b, free_cpu[i], free_memory[i], mine.idle[i])
            supply[b] += now - slots[b]
            slots[b] = now


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
    """The least value of a node after `times` cards went from one remainder to another."""
    best = np.inf
    for p in range(core.size):
        change = times * (after[p] - before[p])
        value = core[p] * cores + gib[p] * memory + (sums[p] + change)
        best = min(best, value)
    return best


@compiled
def _fresh(left: Ints, g: int, milli: int) -> bool:
    """Whether a card has room, and is the first of those with as much left, which are all alike."""
    if left[g] < milli:
        return False
    for other in range(g):
        if left[other] == left[g]:
            return False
    return True


@compiled
def _packed(key: int, i: int) -> int:
    """A key that names its node, so that the least is of the first of equal nodes."""
    return ((key << NODES) | i) << 1


@compiled
def _node(key: int) -> int:
    return (key >> 1) & ((1 << NODES) - 1)


@compiled
def _first(keys: Ints, flags: Ints, short: int) -> int:
    """The least key, those of places that take a slot from a short reserve behind the others."""
    top = NOWHERE
    if short == 0:
        for i in range(keys.size):
            top = min(top, keys[i])
    else:
        for i in range(keys.size):
            top = min(top, keys[i] + (BEHIND if flags[i] & short else 0))
    return top


@compiled
def play_priced(
    arrivals: Ints, books: Books, asked: Asked, worth: Worth, kept: Kept, mine: Notes, node: Ints
) -> None:
    """Place arrivals by prices and reserves.

    Args:
        arrivals: row of each one's request.
        books: the free amounts; written.
        mine: empty; written.
        node: row of the node of each arrival, -1 for none; written.
    """
    free_cpu, free_memory, left, size, model = books[:5]
    a_cpu, a_memory, a_cards, a_milli, a_allowed, elsewhere = asked
    table, core, gib, scarce, bonus = worth
    _, _, _, r_allowed, r_free, need, pod_milli = kept
    keys, taken, flags, seen, full, hint, log, latest = mine[:8]
    sums, value, lowest, rest, idle, slots, supply, tops = mine[8:16]
    nodes, reserves, total = free_cpu.size, need.size, 0
    for i in range(nodes):
        _recount(worth, kept, mine, books, i)
        total += rest[i]
    changes = 0
    for number in range(arrivals.size):
        k = arrivals[number]
        node[number] = -1
        if full[k]:
            continue
        cpu, memory, cards, milli = a_cpu[k], a_memory[k], a_cards[k], a_milli[k]
        whole = cards == 0 or milli >= 1000
        # 1. Bounds for the nodes that have changed since the request's last turn, from two pairs of prices.
        start = seen[k]
        seen[k] = changes
        for step in range(nodes if start < 0 else changes - start):
            i = step if start < 0 else log[start + step]
            if keys[k, i] == NOWHERE or (start >= 0 and latest[i] != start + step):
                continue
            m = model[i]
            barred = (cards > 0 and not a_allowed[k, m]) or (whole and idle[i] < cards)
            if barred or cpu > free_cpu[i] or memory > free_memory[i]:
                keys[k, i] = NOWHERE
                continue
            if elsewhere[k]:
                keys[k, i] = _packed(_spread(cpu, memory, books, i), i)
                continue
            cores, mib = (free_cpu[i] - cpu) / 1000, (free_memory[i] - memory) / 1024
            p, q = lowest[i], hint[k]
            at_p, at_q = core[p] * cores + gib[p] * mib, core[q] * cores + gib[q] * mib
            sum_p, sum_q = sums[i, p], sums[i, q]
            bound, room, last = NOWHERE, 0, -1
            for g in range(1 if whole else size[i]):
                have = left[i, g]
                if not whole and have < milli:
                    continue
                room += 1
                if have == last:
                    continue
                last = have
                then, now, times = (
                    (0, 100, cards) if whole else ((have - milli) // 10, have // 10, 1)
                )
                in_p = at_p + (sum_p + times * (table[m, then, p] - table[m, now, p]))
                in_q = at_q + (sum_q + times * (table[m, then, q] - table[m, now, q]))
                loss = value[i] - min(in_p, in_q)
                if cards > 0:
                    opened = cards if whole else int(have >= 1000)
                    loss += scarce[m] * (cards * milli)
                    loss += bonus[idle[i]] - bonus[max(idle[i] - opened, 0)]
                key = _key(loss, rest[i] - cards * milli, 0 if whole else have - milli)
                bound = min(bound, key)
            if not whole and room < cards:
                keys[k, i] = NOWHERE
                continue
            keys[k, i], flags[k, i] = _packed(bound, i) | ROUGH, 0
        # 2. The reserves that are short now.
        short = 0
        for b in range(reserves):
            wanted = need[b] * (total / pod_milli)
            if wanted > 0 and supply[b] <= wanted + MARGIN * np.sqrt(wanted):
                short |= 1 << b
        # 3. The best place. The true key is computed where the bound is below the best so far.
        first = NOWHERE
        for block in range(tops.size):
            i, end = block * BLOCK, (block + 1) * BLOCK
            tops[block] = _first(keys[k, i:end], flags[k, i:end], short)
            first = min(first, tops[block])
        top, step = (NOWHERE, -1) if first & ROUGH else (first, nodes)
        while step < nodes:
            i, end = (step, step + BLOCK) if step >= 0 else (_node(first), 0)
            if step % BLOCK == 0 and tops[step // BLOCK] >= top:
                step = end
                continue
            step += 1
            key = keys[k, i] + (BEHIND if flags[k, i] & short else 0)
            if key >= top:
                continue
            if key & ROUGH:
                m = model[i]
                cores, mib = (free_cpu[i] - cpu) / 1000, (free_memory[i] - memory) / 1024
                best, chosen, after = NOWHERE, -1, idle[i]
                for g in range(1 if whole else size[i]):
                    have = left[i, g]
                    if not whole and not _fresh(left[i], g, milli):
                        continue
                    then, now, times = (
                        (0, 100, cards) if whole else ((have - milli) // 10, have // 10, 1)
                    )
                    loss = value[i] - _least_after(
                        core, gib, cores, mib, sums[i], times, table[m, then], table[m, now]
                    )
                    opened = cards if whole else int(have >= 1000)
                    if cards > 0:
                        loss += scarce[m] * (cards * milli)
                        loss += bonus[idle[i]] - bonus[max(idle[i] - opened, 0)]
                    key = _key(loss, rest[i] - cards * milli, 0 if whole else have - milli)
                    if key < best:
                        best, chosen, after = key, -1 if whole else g, idle[i] - opened
                keys[k, i], taken[k, i] = _packed(best, i), chosen
                bits = 0
                for b in range(reserves):
                    if r_free[k, b] or not r_allowed[b, m]:
                        continue
                    before = slots[i, b]
                    if before > 0 and before > _slots(
                        kept, b, free_cpu[i] - cpu, free_memory[i] - memory, after
                    ):
                        bits |= 1 << b
                flags[k, i] = bits
                key = keys[k, i] + (BEHIND if bits & short else 0)
            top = min(top, key)
        if top >= NOWHERE:
            full[k] = True
            continue
        # 4. The place is taken.
        i = _node(top)
        _take(cpu, memory, cards, milli, taken[k, i], books, i)
        total -= cards * milli
        _recount(worth, kept, mine, books, i)
        hint[k] = lowest[i]
        node[number] = i
        latest[i] = changes
        log[changes] = i
        changes += 1


@compiled
def play_first_fit(arrivals: Ints, books: Books, asked: Asked, mine: Notes, node: Ints) -> None:
    """Place arrivals on the first node that fits, and its first fitting cards."""
    a_cpu, a_memory, a_cards, a_milli, a_allowed, elsewhere = asked
    first = mine.hint  # nodes before it have no room, now or ever
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
def _fragmentation(
    cpu: int,
    model: int,
    usual: Usual,
    counted: tuple[int, Ints, Ints],
    change: tuple[int, int, int],
) -> float:
    """Fragmentation of a node; the sums in the published order, see `fragmentation`.

    Args:
        counted: the compute left on its cards, and what `_measure` counted.
        change: so many cards went from one remainder to another since.
    """
    s_cpu, s_cards, chance, s_milli, allowed, p_cpu, p_chance, _ = usual
    both = lacking = starved = spare = blocked = barred = 0.0
    (total, found, small), (times, have, rest) = counted, change
    total += times * (rest - have)
    for k in range(s_cpu.size):
        everything = chance[k] * total
        if not allowed[k, model]:
            barred += everything
            continue
        room, little = found[k], small[k]
        if have >= s_milli[k]:
            room -= times
        else:
            little -= times * have
        if rest >= s_milli[k]:
            room += times
        else:
            little += times * rest
        enough = room >= s_cards[k]
        if cpu >= s_cpu[k]:
            lacking += chance[k] * little if enough else everything
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
def _measure(usual: Usual, mine: Notes, books: Books, i: int) -> None:
    """Count a node's cards that have room for each usual request, and what the others have left; its fragmentation."""
    left, cards, found, small = books.left[i], books.cards[i], mine.found[i], mine.small[i]
    mine.rest[i], _ = _counted(left, cards)
    for k in range(found.size):
        found[k] = small[k] = 0
        for g in range(cards):
            if left[g] >= usual.milli[k]:
                found[k] += 1
            else:
                small[k] += left[g]
    counted = mine.rest[i], found, small
    cpu, model = books.cpu[i], books.model[i]
    mine.value[i] = _fragmentation(cpu, model, usual, counted, (0, 0, 0))


@compiled
def play_fragmentation(
    arrivals: Ints, books: Books, asked: Asked, usual: Usual, mine: Notes, node: Ints
) -> None:
    """Place arrivals by FGD."""
    free_cpu, _, left, size, model = books[:5]
    a_cpu, a_memory, a_cards, a_milli, a_allowed, elsewhere = asked
    nodes, steps = free_cpu.size, usual.points
    keys, taken, _, seen, full, _, log, latest, _, frag = mine[:10]
    rest, found, small = mine.rest, mine.found, mine.small
    for i in range(nodes):
        _measure(usual, mine, books, i)
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
                keys[k, i] = _packed(_spread(cpu, memory, books, i), i)
                continue
            best, chosen = -1, -1
            counted = rest[i], found[i], small[i]
            if cards == 0 or milli >= 1000:
                after = _fragmentation(free_cpu[i] - cpu, m, usual, counted, (cards, 1000, 0))
                best = np.searchsorted(steps, frag[i] - after, side="right")
            else:
                for g in range(size[i]):
                    if not _fresh(left[i], g, milli):
                        continue
                    change = 1, left[i, g], left[i, g] - milli
                    after = _fragmentation(free_cpu[i] - cpu, m, usual, counted, change)
                    points = np.searchsorted(steps, frag[i] - after, side="right")
                    if points > best:
                        best, chosen = points, g
            keys[k, i], taken[k, i] = _packed(steps.size - best, i), chosen
        top = _first(keys[k], keys[k], 0)
        if top >= NOWHERE:
            full[k] = True
            continue
        i = _node(top)
        _take(cpu, memory, cards, milli, taken[k, i], books, i)
        _measure(usual, mine, books, i)
        node[number] = i
        latest[i] = changes
        log[changes] = i
        changes += 1
