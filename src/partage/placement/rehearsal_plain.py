"""The twin of `rehearsal_loops` in NumPy: the same placements, several times slower.

One request's nodes are scored together; the driver is the same for prices and for FGD.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from partage.inventory.plane import Bools, Ints
from partage.placement.rehearsal_loops import (
    BEHIND,
    BIN,
    MANY,
    MARGIN,
    MOST_BIN,
    MOST_CARD,
    MOST_NODE,
    NOWHERE,
    OFFSET,
    Asked,
    Books,
    Floats,
    Kept,
    Usual,
    Worth,
)

Index = NDArray[np.intp]
_WHOLE: Final = 1000


def play_priced(
    arrivals: Ints, books: Books, asked: Asked, worth: Worth, kept: Kept, node: Ints
) -> None:
    """See `rehearsal_loops.play_priced`."""
    _play(arrivals, books, asked, _Priced(books, asked, worth, kept), node)


def play_fragmentation(
    arrivals: Ints, books: Books, asked: Asked, usual: Usual, node: Ints
) -> None:
    """See `rehearsal_loops.play_fragmentation`."""
    _play(arrivals, books, asked, _Fragmented(books, asked, usual), node)


def play_first_fit(arrivals: Ints, books: Books, asked: Asked, node: Ints) -> None:
    """See `rehearsal_loops.play_first_fit`."""
    _play(arrivals, books, asked, _Ordered(books, asked), node)


class _Ordered:
    """First fit, and what the other strategies have in common: what is left, and who fits."""

    def __init__(self, books: Books, asked: Asked) -> None:
        self.books, self.asked = books, asked
        there = np.arange(books.left.shape[1]) < books.cards[:, None]
        books.left[~there] = 0

    def fits(self, ask: int, nodes: Index) -> Bools:
        """Whether a request has room on nodes."""
        books, asked = self.books, self.asked
        fits: Bools = asked.cpu[ask] <= books.cpu[nodes]
        fits &= asked.memory[ask] <= books.memory[nodes]
        if asked.cards[ask]:
            fits &= asked.allowed[ask, books.model[nodes]]
            enough = books.left[nodes] >= max(int(asked.milli[ask]), 1)
            fits &= enough.sum(axis=1) >= asked.cards[ask]
        return fits

    def keys(self, ask: int, nodes: Index) -> tuple[Ints, Ints, Ints]:  # noqa: ARG002 # all alike
        """How good nodes with room are (less is better), the card to share, and flags."""
        none: Ints = np.zeros(nodes.size, np.int64)
        return none, none - 1, none

    def short(self) -> int:
        """A bit for each reserve that is short."""
        return 0

    def take(self, ask: int, node: int, card: int) -> None:
        """Take a request's share of a node, and of a card of it."""
        books, asked = self.books, self.asked
        books.cpu[node] -= asked.cpu[ask]
        books.memory[node] -= asked.memory[ask]
        cards, milli, left = int(asked.cards[ask]), int(asked.milli[ask]), books.left[node]
        if cards and card >= 0:
            left[card] -= milli
            cards -= 1
        for g in range(int(books.cards[node])):
            if cards and g != card and left[g] >= milli:
                left[g] -= milli
                cards -= 1


class _Priced(_Ordered):
    """Prices and reserves."""

    def __init__(self, books: Books, asked: Asked, worth: Worth, kept: Kept) -> None:
        super().__init__(books, asked)
        self.worth, self.kept = worth, kept
        every = np.arange(books.cpu.size)
        self.sums, self.value = np.zeros((every.size, worth.core.size)), np.zeros(every.size)
        self.slots: Ints = np.zeros((every.size, kept.cards.size), np.int64)
        self.total = int(books.left.sum())
        self._bits = np.left_shift(1, np.arange(kept.cards.size, dtype=np.int64))
        self._write(every)

    def keys(self, ask: int, nodes: Index) -> tuple[Ints, Ints, Ints]:
        books, asked = self.books, self.asked
        cards, milli = int(asked.cards[ask]), int(asked.milli[ask])
        left = books.left[nodes]
        idle = (left >= _WHOLE).sum(axis=1)
        rest = left.sum(axis=1) - cards * milli
        if not cards or milli >= _WHOLE:
            best = self._whole(ask, nodes, idle, rest)
            chosen, after = np.full(nodes.size, -1), idle - cards
        else:
            best, chosen = self._share(ask, nodes, idle, rest)
            after = idle - (left[np.arange(nodes.size), chosen] >= _WHOLE)
        return best, chosen, self._flags(ask, nodes, after)

    def _whole(self, ask: int, nodes: Index, idle: Ints, rest: Ints) -> Ints:
        table, scarce, bonus = self.worth.worth, self.worth.scarce, self.worth.bonus
        cards, model = int(self.asked.cards[ask]), self.books.model[nodes]
        change = cards * (table[model, 0] - table[model, 100])
        loss = self.value[nodes] - self._least(ask, nodes, self.sums[nodes] + change)
        if cards:
            loss += scarce[model] * (cards * _WHOLE)
            loss += bonus[idle] - bonus[np.maximum(idle - cards, 0)]
        return _key(loss, rest, np.zeros(nodes.size, np.int64))

    def _share(self, ask: int, nodes: Index, idle: Ints, rest: Ints) -> tuple[Ints, Ints]:
        table, scarce, bonus = self.worth.worth, self.worth.scarce, self.worth.bonus
        cards, milli = int(self.asked.cards[ask]), int(self.asked.milli[ask])
        best: Ints = np.full(nodes.size, NOWHERE, np.int64)
        chosen: Ints = np.full(nodes.size, -1, np.int64)
        for g in range(self.books.left.shape[1]):
            have = self.books.left[nodes, g]
            some = np.flatnonzero(have >= milli)
            if not some.size:
                continue
            have, place = have[some], nodes[some]
            model = self.books.model[place]
            change = table[model, (have - milli) // 10] - table[model, have // 10]
            loss = self.value[place] - self._least(ask, place, self.sums[place] + change)
            loss += scarce[model] * (cards * milli)
            opened = have >= _WHOLE
            loss += bonus[idle[some]] - bonus[np.maximum(idle[some] - opened, 0)]
            key = _key(loss, rest[some], have - milli)
            better = key < best[some]
            best[some] = np.where(better, key, best[some])
            chosen[some] = np.where(better, g, chosen[some])
        return best, chosen

    def _least(self, ask: int, nodes: Index, sums: Floats) -> Floats:
        """Value of nodes once a request has taken its CPU and memory; -1 for none."""
        cpu, memory = self.books.cpu[nodes], self.books.memory[nodes]
        if ask >= 0:
            cpu, memory = cpu - self.asked.cpu[ask], memory - self.asked.memory[ask]
        cores, gib = cpu / 1000, memory / 1024
        terms = self.worth.core * cores[:, None] + self.worth.gib * gib[:, None]
        terms += sums
        least: Floats = terms.min(axis=1)
        return least

    def _flags(self, ask: int, nodes: Index, idle: Ints) -> Ints:
        cpu = self.books.cpu[nodes] - self.asked.cpu[ask]
        memory = self.books.memory[nodes] - self.asked.memory[ask]
        after = self._counted(cpu, memory, idle, self.books.model[nodes])
        lost = (after < self.slots[nodes]) & ~self.kept.free[ask]
        flags: Ints = (lost * self._bits).sum(axis=1)
        return flags

    def _counted(self, cpu: Ints, memory: Ints, idle: Ints, model: Ints) -> Ints:
        kept = self.kept
        slots: Ints = np.full((cpu.size, kept.cards.size), MANY, np.int64)
        for have, want in ((idle, kept.cards), (cpu, kept.cpu), (memory, kept.memory)):
            room = have[:, None] // np.maximum(want, 1)
            np.minimum(slots, np.where(want > 0, room, MANY), out=slots)
        slots[~kept.allowed[:, model].T] = 0
        return slots

    def short(self) -> int:
        wanted = self.kept.need * (self.total / self.kept.milli)
        supply = self.slots.sum(axis=0)
        short = (wanted > 0) & (supply <= wanted + MARGIN * np.sqrt(wanted))
        return int((short * self._bits).sum())

    def take(self, ask: int, node: int, card: int) -> None:
        super().take(ask, node, card)
        self.total -= int(self.asked.cards[ask] * self.asked.milli[ask])
        self._write(np.array([node], np.intp))

    def _write(self, nodes: Index) -> None:
        books, table = self.books, self.worth.worth
        model = books.model[nodes]
        sums = np.zeros((nodes.size, self.sums.shape[1]))
        for g in range(books.left.shape[1]):
            sums += table[model, books.left[nodes, g] // 10]
        self.sums[nodes] = sums
        self.value[nodes] = self._least(-1, nodes, sums)
        idle = (books.left[nodes] >= _WHOLE).sum(axis=1)
        self.slots[nodes] = self._counted(books.cpu[nodes], books.memory[nodes], idle, model)


class _Fragmented(_Ordered):
    """FGD."""

    def __init__(self, books: Books, asked: Asked, usual: Usual) -> None:
        super().__init__(books, asked)
        self.usual = usual
        self.frag = self._expected(books.cpu, books.left, books.model)

    def keys(self, ask: int, nodes: Index) -> tuple[Ints, Ints, Ints]:
        books, asked = self.books, self.asked
        cards, milli = int(asked.cards[ask]), int(asked.milli[ask])
        cpu, model, left = books.cpu[nodes] - asked.cpu[ask], books.model[nodes], books.left[nodes]
        best: Ints = np.full(nodes.size, -1, np.int64)
        chosen: Ints = np.full(nodes.size, -1, np.int64)
        if not cards or milli >= _WHOLE:
            idle = left >= _WHOLE
            trial = np.where(idle & (idle.cumsum(axis=1) <= cards), left - _WHOLE, left)
            best = self._points(nodes, self._expected(cpu, trial, model))
        else:
            for g in range(left.shape[1]):
                trial = left.copy()
                trial[:, g] -= milli
                points = self._points(nodes, self._expected(cpu, trial, model))
                better = (left[:, g] >= milli) & (points > best)
                best, chosen = np.where(better, points, best), np.where(better, g, chosen)
        keys: Ints = self.usual.points.size - best
        return keys, chosen, np.zeros(nodes.size, np.int64)

    def _points(self, nodes: Index, after: Floats) -> Ints:
        drop = self.frag[nodes] - after
        return np.searchsorted(self.usual.points, drop, side="right").astype(np.int64)

    def _expected(self, cpu: Ints, left: Ints, model: Ints) -> Floats:
        """Fragmentation of nodes, request after request and bucket after bucket as published."""
        usual, total = self.usual, left.sum(axis=1)
        fine, roomy = usual.allowed[:, model], cpu >= usual.cpu[:, None]
        reaches = left >= usual.milli[:, None, None]
        enough = reaches.sum(axis=2) >= usual.cards[:, None]
        everything = usual.chance[:, None] * total
        part = usual.chance[:, None] * np.where(reaches, 0, left).sum(axis=2)
        both = _summed(fine & ~roomy & ~enough, everything)
        lacking = _summed(fine & roomy, np.where(enough, part, everything))
        starved = _summed(fine & ~roomy & enough, everything)
        barred = _summed(~fine, everything)
        everything, roomy = usual.plain_chance[:, None] * total, cpu >= usual.plain_cpu[:, None]
        spare, blocked = _summed(roomy, everything), _summed(~roomy, everything)
        result: Floats = ((((both + lacking) + starved) + spare) + blocked) + barred
        return result

    def take(self, ask: int, node: int, card: int) -> None:
        super().take(ask, node, card)
        one = np.array([node], np.intp)
        left = self.books.left[one]
        self.frag[one] = self._expected(self.books.cpu[one], left, self.books.model[one])


def _summed(which: Bools, terms: Floats) -> Floats:
    """Some terms of each column, one added after another."""
    if not terms.shape[0]:
        return np.zeros(terms.shape[1])
    summed: Floats = np.add.accumulate(np.where(which, terms, 0.0), axis=0)[-1]
    return summed


def _key(loss: Floats, node: Ints, card: Ints) -> Ints:
    bins = np.floor(loss / BIN + 0.5).astype(np.int64) + OFFSET
    key = np.clip(bins, 0, MOST_BIN) << 23
    key |= np.minimum(node, MOST_NODE) << 10
    key |= np.minimum(card, MOST_CARD)
    return key


def _play(arrivals: Ints, books: Books, asked: Asked, strategy: _Ordered, node: Ints) -> None:
    """Every arrival in its turn; of each request only the nodes that changed are looked at."""
    size = (asked.cpu.size, books.cpu.size)
    keys, taken, flags = (np.full(size, value, np.int64) for value in (-1, -1, 0))
    seen = np.full(asked.cpu.size, -1)
    full = np.zeros(asked.cpu.size, np.bool_)
    log: list[int] = []
    for number, ask in enumerate(arrivals.tolist()):
        node[number] = -1
        if full[ask]:
            continue
        start, seen[ask] = seen[ask], len(log)
        dirty = np.arange(size[1]) if start < 0 else np.unique(np.array(log[start:], np.intp))
        dirty = dirty[keys[ask, dirty] != NOWHERE]
        if dirty.size:
            fits = strategy.fits(ask, dirty)
            keys[ask, dirty[~fits]] = NOWHERE
            dirty = dirty[fits]
        if dirty.size:
            keys[ask, dirty], taken[ask, dirty], flags[ask, dirty] = strategy.keys(ask, dirty)
        behind = (flags[ask] & strategy.short()) != 0
        behind &= keys[ask] != NOWHERE
        offer = np.where(behind, keys[ask] + BEHIND, keys[ask])
        found = int(offer.argmin())
        if keys[ask, found] == NOWHERE:
            full[ask] = True
            continue
        strategy.take(ask, found, int(taken[ask, found]))
        node[number] = found
        log.append(found)
