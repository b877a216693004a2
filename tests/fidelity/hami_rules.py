"""HAMi's choice of cards and node, written again from its source (v2.10.0, commit 4707fb02): cards that are shared.

Each rule names the file and function that it was read from, under
https://github.com/Project-HAMi/HAMi/tree/v2.10.0/ . A rule that Partage keeps otherwise on purpose is marked with the row
of docs/compatibility/hami.md that says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

EQUAL_CARDS = "20 equal cards, NUMA groups"
"""Row of docs/compatibility/hami.md: the lowest number first, where upstream takes the highest or the last."""

ONE_AFTER_ANOTHER = "several containers"
"""Row of docs/compatibility/hami.md: other cards are tried for an earlier container, where upstream tries one set for each."""

Group = frozenset[str]


@dataclass
class Card:
    """A registered card and what is used of it; memory in MiB, cores in percent."""

    uuid: str
    index: int
    numa: int
    type: str
    count: int
    memory: int
    healthy: bool
    cordoned: bool
    cores: int = 100
    used: int = 0
    used_memory: int = 0
    used_cores: int = 0


@dataclass
class Node:
    """A node's cards, and the scores of pairs of them."""

    name: str
    cards: list[Card]
    links: Mapping[Group, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What a container asks of each card; `memory` 0 leaves it to `percentage`."""

    nums: int
    memory: int
    percentage: int
    cores: int


def request(limits: Mapping[str, str]) -> Request:
    """A container's request, after the webhook.

    pkg/device/nvidia/device.go: GenerateResourceRequests, defaultExclusiveCoreIfNeeded.
    """
    asked = {name.removeprefix("nvidia.com/"): int(value) for name, value in limits.items()}
    percentage = asked.get("gpumem-percentage", 0)
    memory = asked.get("gpumem", 0)
    exclusive = percentage == 100 if "gpumem-percentage" in asked else "gpumem" not in asked
    cores = asked.get("gpucores", 100 if exclusive else 0)
    if not memory and not percentage:
        percentage = 100
    return Request(asked["gpu"], memory, percentage, min(cores, 100))


def taken(card: Card, asked: Request) -> int:
    """MiB that a request takes of a card. device.go: Fit."""
    return asked.memory or card.memory * asked.percentage // 100


def _words(annotations: Mapping[str, str], name: str) -> list[str]:
    return [word.strip() for word in annotations.get(name, "").split(",") if word.strip()]


def _chain(annotations: Mapping[str, str]) -> list[str]:
    return _words(annotations, "hami.io/gpu-scheduler-policy")


def fits(card: Card, asked: Request, annotations: Mapping[str, str]) -> bool:
    """Whether a card serves a request. device.go: Fit; pkg/device/devices.go: CheckType, CheckUUID."""
    name = card.type.upper()
    use, avoid = (
        [word.upper() for word in _words(annotations, f"nvidia.com/{which}-gputype")]
        for which in ("use", "nouse")
    )
    uuids, others = (
        _words(annotations, f"nvidia.com/{which}-gpuuuid") for which in ("use", "nouse")
    )
    exclusive = card.cores == 100 and asked.cores == 100
    return not (
        not card.healthy
        or card.cordoned
        or (use and not any(word in name for word in use))
        or any(word in name for word in avoid)
        or (uuids and card.uuid not in uuids)
        or card.uuid in others
        or card.count <= card.used
        or ("mutex" in _chain(annotations) and card.used)
        or card.memory - card.used_memory < taken(card, asked)
        or card.cores - card.used_cores < asked.cores
        or (exclusive and card.used)
        or (card.used_cores == card.cores and asked.cores == 0)
    )


def card_score(card: Card, annotations: Mapping[str, str]) -> Fraction:
    """How much of a card is used. pkg/scheduler/policy/gpu_policy.go: ComputeScore.

    The request itself does not count: its type is `NVIDIA`, the card's is longer.
    """
    weights = {"slot": 1, "core": 1, "memory": 1}
    for word in _words(annotations, "hami.io/device-scoring-weights"):
        key, _, value = word.partition("=")
        weights[key] = int(value)
    return (
        weights["slot"] * Fraction(card.used, card.count)
        + weights["core"] * Fraction(card.used_cores, card.cores)
        + weights["memory"] * Fraction(card.used_memory, card.memory)
    )


def ordered(
    cards: list[Card], annotations: Mapping[str, str], *, upstream: bool = False
) -> list[Card]:
    """Cards in the order in which they are tried. gpu_policy.go: Less, lessByChain, gpuSortKeyChain.

    Upstream takes the list from its end; here the best comes first. Of equal cards and NUMA nodes the lowest comes first
    (EQUAL_CARDS), or the highest as `upstream` has it.
    """
    keys = [
        word
        for word in dict.fromkeys(_chain(annotations))
        if word in ("binpack", "spread", "numa")
    ]
    bind = annotations.get("nvidia.com/numa-bind") == "true"
    if bind:
        keys = ["numa", *(key for key in keys if key != "numa")]
    if not any(key != "numa" for key in keys) and "numa" not in _chain(annotations):
        keys.append("spread")

    # Upstream has NUMA nodes decide between equal cards where the policy is one word, and among them the highest but for one case.
    lowest = not upstream or (bind and _chain(annotations) == ["binpack"])
    alone = upstream and "," not in annotations.get("hami.io/gpu-scheduler-policy", "")

    def rank(card: Card) -> list[Fraction | int]:
        score = card_score(card, annotations)
        numa = card.numa if lowest else -card.numa
        by = {"binpack": -score, "spread": score, "numa": numa}
        tie = [numa] if alone else []
        return [*(by[key] for key in keys), *tie, -card.index if upstream else card.index]

    return sorted(cards, key=rank)


def choices(
    node: Node, asked: Request, annotations: Mapping[str, str], *, upstream: bool = False
) -> list[Group]:
    """The sets of cards that HAMi may give a container; none where it refuses. device.go: Fit.

    Args:
        node: with its cards as they are used.
        asked: by the container.
        annotations: of its pod.
        upstream: of equal cards take the one that upstream takes (EQUAL_CARDS).
    """
    found: list[Card] = []
    bind = annotations.get("nvidia.com/numa-bind") == "true"
    by_links = "topology-aware" in _chain(annotations)
    if asked.nums > len(node.cards):
        return []
    numa = None
    for card in ordered(node.cards, annotations, upstream=upstream):
        if bind and numa != card.numa:
            numa, found = card.numa, []
        if fits(card, asked, annotations):
            found.append(card)
        if len(found) == asked.nums and not by_links:
            return [frozenset(c.uuid for c in found)]
    if not by_links or len(found) < asked.nums:
        return []
    return list(_by_links(node, [card.uuid for card in found], asked.nums))


def _by_links(node: Node, uuids: list[str], count: int) -> Iterator[Group]:
    """device.go: computeWorstSingleCard, computeBestCombination; equal ones all count."""
    groups = [frozenset(group) for group in combinations(uuids, count)]

    def worth(group: Group) -> int:
        if count == 1:
            return -sum(
                node.links.get(group | {other}, 0) for other in uuids if other not in group
            )
        return sum(node.links.get(frozenset(pair), 0) for pair in combinations(group, 2))

    best = max(map(worth, groups))
    return (group for group in groups if worth(group) == best)


def node_score(node: Node) -> Fraction:
    """How much of a node is used before the pod comes. pkg/scheduler/policy/node_policy.go: ComputeDefaultScore."""
    cards = node.cards
    return (
        Fraction(sum(c.used for c in cards), sum(c.count for c in cards))
        + Fraction(sum(c.used_cores for c in cards), sum(c.cores for c in cards))
        + Fraction(sum(c.used_memory for c in cards), sum(c.memory for c in cards))
    )


def wants_spread(annotations: Mapping[str, str]) -> bool:
    """Whether the node used least is taken. node_policy.go: Less."""
    return annotations.get("hami.io/node-scheduler-policy") == "spread"


def charge(node: Node, group: Group, asked: Request) -> None:
    """Books a container's cards. device.go: AddResourceUsage."""
    for card in node.cards:
        if card.uuid in group:
            card.used += 1
            card.used_cores += asked.cores
            card.used_memory += taken(card, asked)
