"""Equal replicas of Deployments: the number of cards that they use, beside the fewest possible.

    python bench/waves.py

Twenty textbook cases, each in several orders of creation, under the default policy through the real
engine, from an empty cluster of 4 nodes with 4 cards of 40 GiB. The default learns from the pods
that have arrived. A search of all ways to fill a card finds the fewest cards.
"""

import random
import sys
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest

from partage.model.policy import Policy
from partage.sim.openb import NodeRow, PodRow, Trace
from partage.sim.openb import Sequence as Order
from partage.sim.replay import replay

MEMORY = 40  # GiB of a card
NODES = CARDS = 4
Kind = tuple[int, int, int]
"""Compute in milli, memory in GiB, replicas."""

CASES: tuple[tuple[Kind, ...], ...] = (
    ((300, 10, 12),),
    ((500, 10, 9),),
    ((200, 8, 20),),
    ((250, 10, 16),),
    ((340, 10, 10),),
    ((400, 10, 8),),
    ((600, 10, 6),),
    ((260, 5, 12),),
    ((150, 5, 12),),
    ((100, 4, 30),),
    ((300, 15, 10),),
    ((100, 18, 9),),
    ((50, 13, 12),),
    ((0, 10, 16),),
    ((1000, 40, 7),),
    ((500, 20, 6), (1000, 40, 4)),
    ((300, 10, 6), (700, 30, 6)),
    ((400, 10, 6), (600, 20, 6)),
    ((300, 10, 6), (400, 10, 6)),
    ((200, 8, 6), (300, 12, 6), (500, 20, 6)),
)


def fewest(kinds: Sequence[Kind]) -> int:
    """The fewest cards that hold all replicas."""

    def fills(left: tuple[int, ...], core: int, memory: int, first: int) -> list[tuple[int, ...]]:
        """Ways to fill a card from the remaining replicas, among them all that leave no room for another one."""
        found = []
        for k in range(first, len(left)):
            milli, gib, _ = kinds[k]
            if left[k] and milli <= core and gib <= memory:
                taken = tuple(n - (i == k) for i, n in enumerate(left))
                found += fills(taken, core - milli, memory - gib, k)
        return found or [left]

    @cache
    def cards(left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        return 1 + min(cards(rest) for rest in set(fills(left, 1000, MEMORY, 0)))

    return cards(tuple(n for _, _, n in kinds))


def orders(kinds: Sequence[Kind]) -> list[list[int]]:
    """Orders of creation: one Deployment after another, the reverse, in turn, and two random ones."""
    each = [[k] * n for k, (_, _, n) in enumerate(kinds)]
    plain = [k for replicas in each for k in replicas]
    if len(kinds) == 1:
        return [plain]
    turns = [k for turn in zip_longest(*each) for k in turn if k is not None]
    shuffled = [random.Random(seed).sample(plain, len(plain)) for seed in (1, 2)]  # noqa: S311
    return [plain, plain[::-1], turns, *shuffled]


def used(kinds: Sequence[Kind], order: Sequence[int], policy: str) -> int:
    """The number of cards that hold pods at the end; a pod without a place counts as a card."""
    nodes = tuple(
        NodeRow(f"n{i}", 64_000, 262_144, CARDS, "A100-40GB", MEMORY * 1024) for i in range(NODES)
    )
    pods = tuple(
        PodRow(f"p{k}", 1000, 1024, 1, milli, card_mib=gib * 1024)
        for k, (milli, gib, _) in enumerate(kinds)
    )
    trace = Trace("waves", nodes, pods)
    run = replay(trace, Order(tuple(order), tuple(range(NODES)), "waves"), Policy.parse(policy))
    # The run does not name whole cards; each pod on one counts as one card.
    shared = {
        (node, card)
        for node, card in zip(run.node.tolist(), run.card.tolist(), strict=True)
        if node >= 0 and card >= 0
    }
    return len(shared) + int((run.node < 0).sum()) + int(((run.node >= 0) & (run.card < 0)).sum())


def main() -> int:
    policies = ("partage", "binpack", "fgd")
    print(f"| replicas x compute, memory | fewest | {' | '.join(policies)} |")
    print(f"| --- | --- |{' --- |' * len(policies)}")
    for kinds in CASES:
        name = " and ".join(f"{n} x {milli / 10:g} %, {gib}Gi" for milli, gib, n in kinds)
        cells = []
        for policy in policies:
            found = [used(kinds, order, policy) for order in orders(kinds)]
            low, high = min(found), max(found)
            cells.append(str(low) if low == high else f"{low} to {high}")
        print(f"| {name} | {fewest(kinds)} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
