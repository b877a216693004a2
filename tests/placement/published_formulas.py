"""The published strategies in plain Python, node by node: slow twins of the vectorised ones.

Written from the paper's formulas, not from the code under test: exponentials instead
of thresholds, loops instead of columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from partage.placement.fragmentation import Workload


@dataclass(frozen=True)
class State:
    """One node: CPU left (milli), compute left by card, model, kinds of pod that it hosts."""

    cpu: int
    left: tuple[int, ...]
    model: str
    kinds: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Asked:
    """One request: CPU, cards, compute of each card."""

    cpu: int
    cards: int
    milli: int

    @property
    def kind(self) -> str:
        """What GpuClustering tells apart."""
        return "share" if self.milli < 1000 else f"{self.cards}-gpu"


def best_fit(node: State, asked: Asked) -> int:
    """Half the CPU and half the compute that would be left, turned round."""
    rest = (node.cpu - asked.cpu) / 128000 * 0.5
    rest += (sum(node.left) - asked.cards * asked.milli) / 8000 * 0.5
    return int((1.0 - rest) * 100)


def dot_product(node: State, asked: Asked) -> int:
    """Product of what is free and asked, turned round."""
    dot = (node.cpu / 128000) * (asked.cpu / 128000)
    dot += (sum(node.left) / 8000) * (asked.cards * asked.milli / 8000)
    return int(100 * (1 - dot / 2))


def packing(node: State, asked: Asked) -> int:
    """Shared cards, then idle cards of used nodes, then idle nodes."""
    if not asked.cards:
        return 0
    free = sum(left == 1000 for left in node.left)
    if free == len(node.left):
        return max(33 - free, free)
    taken = sorted(left for left in node.left if left >= asked.milli)[: asked.cards]
    fresh = sum(left == 1000 for left in taken)
    if fresh:
        return max(50 - fresh, 33)
    return max(100 - sum(left * 100 // 1000 for left in taken) // 10, 50)


def clustering(node: State, asked: Asked) -> int:
    """Nodes that host the same kind of pod."""
    if not asked.cards:
        return 0
    base = 25 * (8000 - sum(node.left)) // 8000
    if asked.kind in node.kinds:
        return base + (75 if len(node.kinds) == 1 else 50)
    return base + (0 if node.kinds else 25)


def frag(node: State, workload: Workload) -> float:
    """Expected fragmentation, in the published buckets."""
    bucket = dict.fromkeys(("q1", "q2", "q4", "xl", "xr", "na"), 0.0)
    total = sum(node.left)
    for shape, chance in zip(workload.shapes, workload.chances, strict=True):
        names = [name for name in shape.models.split("|") if name]
        roomy = node.cpu >= shape.cpu_milli
        if not shape.core_milli:
            bucket["xl" if roomy else "xr"] += chance * total
            continue
        if names and node.model not in names:
            bucket["na"] += chance * total
            continue
        fit = sum(left >= shape.core_milli for left in node.left)
        small = sum(left for left in node.left if left < shape.core_milli)
        if fit >= shape.count:
            if roomy:
                bucket["q2"] += chance * small
            else:
                bucket["q4"] += chance * total
        elif roomy:
            bucket["q2"] += chance * total
        else:
            bucket["q1"] += chance * total
    q1, q2, q4 = bucket["q1"], bucket["q2"], bucket["q4"]
    return ((((q1 + q2) + q4) + bucket["xl"]) + bucket["xr"]) + bucket["na"]


def sigmoid_points(before: float, after: float) -> int:
    """The published score of a change in fragmentation."""
    return int(1 / (1 + exp(-((before - after) / 1000))) * 100)


def fgd(node: State, asked: Asked, workload: Workload) -> tuple[int, dict[int, int]]:
    """Score of the node, and of each card that fits a share."""
    before, cpu = frag(node, workload), node.cpu - asked.cpu
    if asked.cards and asked.milli < 1000:
        cards = {}
        for row, left in enumerate(node.left):
            if left >= asked.milli:
                after = _with(node.left, row, left - asked.milli)
                state = State(cpu, after, node.model)
                cards[row] = sigmoid_points(before, frag(state, workload))
        return max(cards.values(), default=0), cards
    rest, need = list(node.left), asked.cards
    for row, left in enumerate(rest):
        if need and left == 1000:
            rest[row], need = 0, need - 1
    return sigmoid_points(before, frag(State(cpu, tuple(rest), node.model), workload)), {}


def _with(left: Sequence[int], row: int, value: int) -> tuple[int, ...]:
    return (*left[:row], value, *left[row + 1 :])
